/* SPDX-License-Identifier: Apache-2.0 */
/* State machines with a table of allowed transitions: for each state, a bit set
 * of its successors. Each kind of object has one function that changes its
 * state, through ps_state_change. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/state_table.h"

static inline bool ps_state_allows(const uint32_t *allowed, uint8_t from,
                                   uint8_t to)
{
    return (allowed[from] & PS_STATE_BIT(to)) != 0;
}

/* Asserts that the transition is allowed. Callers check input of peers
 * before. */
static inline void ps_state_change(const uint32_t *allowed, uint8_t *state,
                                   uint8_t to)
{
    assert(ps_state_allows(allowed, *state, to));
    *state = to;
}
