/* SPDX-License-Identifier: Apache-2.0 */
/* States that change by allowed moves only. A table holds for each state the
 * bits of those that may follow; each kind of thing has one function that
 * changes its state, through ps_state_move, and leaves a note. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define PS_STATE_BIT(state) (1u << (state))

static inline bool ps_state_allows(const uint32_t *allowed, uint8_t from,
                                   uint8_t to)
{
    return (allowed[from] & PS_STATE_BIT(to)) != 0;
}

/* Asserts that the move is allowed: what peers say is checked before. */
static inline void ps_state_change(const uint32_t *allowed, uint8_t *state,
                                   uint8_t to)
{
    assert(ps_state_allows(allowed, *state, to));
    *state = to;
}
