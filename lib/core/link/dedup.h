/* SPDX-License-Identifier: Apache-2.0 */
/* Duplicate filter of one direction of a link: everything up to `received`
 * has arrived, and a bitmap tells what has arrived beyond it. Its memory is
 * fixed: a sender has at most PS_LINK_IN_FLIGHT_MAX frames under way. */
#pragma once

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_dedup {
    uint64_t received;                         /* Cumulative. */
    uint64_t seen[PS_LINK_IN_FLIGHT_MAX / 64]; /* By number modulo size. */
};

void ps_dedup_reset(struct ps_dedup *d);
/* Neither seen nor beyond the window? */
bool ps_dedup_is_new(const struct ps_dedup *d, uint64_t seq);
/* Take in a number; true when it was new. One beyond the window is not taken
 * in, so the sender will send it again. */
bool ps_dedup_add(struct ps_dedup *d, uint64_t seq);
