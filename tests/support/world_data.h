/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated workers push, and what must come of it, computed by the
 * definition of the tree and nothing shared with the product. */
#pragma once

#include "support/world_internal.h"

enum world_kind { WORLD_PUSHPULL, WORLD_BROADCAST, WORLD_ONE_WANTS };

/* How the rounds of key i go, and who is their root. */
enum world_kind world_data_kind(const struct world *w, uint32_t i);
uint32_t world_data_root(const struct world *w, uint64_t round);
/* The array of one rank for one round of key i. */
void world_data_fill(const struct world *w, void *dst, uint32_t i,
                     uint32_t rank, uint64_t round);
/* The reduction over all ranks, by way of their agents. */
void world_data_expect(const struct world *w, void *dst, uint32_t i,
                       uint64_t round);
