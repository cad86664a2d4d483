/* SPDX-License-Identifier: Apache-2.0 */
/* Duplicate filter of one direction of a link: every number up to `received`
 * has arrived, and a bitmap marks later ones that have. Its size is fixed,
 * because a sender has at most PS_LINK_IN_FLIGHT_MAX frames in flight. */
#pragma once

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_dedup {
    uint64_t received; /* Every number up to this one has arrived. */
    /* Bitmap, indexed by number modulo its size. */
    uint64_t seen[PS_LINK_IN_FLIGHT_MAX / 64];
};

void ps_dedup_reset(struct ps_dedup *d);
/* True if `seq` is inside the window and has not arrived before. */
bool ps_dedup_is_new(const struct ps_dedup *d, uint64_t seq);
/* Records `seq`; true if it was new. A number beyond the window is not
 * recorded, so the sender will send it again. */
bool ps_dedup_add(struct ps_dedup *d, uint64_t seq);
