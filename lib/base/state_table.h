/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of the states of a kind of object: for each state a bit set of its
 * successors. One function of each kind changes the state, and looks the change up
 * here. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define PS_STATE_BIT(state) (1u << (state))

struct ps_state_table {
    const char *name;        /* Kind of object. */
    uint32_t count;          /* States, at most 32. */
    const uint32_t *allowed; /* For each state the PS_STATE_BITs that follow. */
    const char *const *states; /* Names, for messages; NULL: there are none. */
};

static inline bool ps_state_may_follow(const struct ps_state_table *t,
                                       uint32_t from, uint32_t to)
{
    return from < t->count && to < t->count &&
           (t->allowed[from] & PS_STATE_BIT(to)) != 0;
}

static inline const char *ps_state_name(const struct ps_state_table *t,
                                        uint32_t state)
{
    return state < t->count ? t->states[state] : "unknown";
}

/* Changes a state of the machines, whose callers have compared it before. The
 * client, which must not abort the program that it is part of, looks first. */
static inline void ps_state_change(const struct ps_state_table *t,
                                   uint8_t *state, uint8_t to)
{
    assert(ps_state_may_follow(t, *state, to));
    *state = to;
}
