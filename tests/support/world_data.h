/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated workers push, and what must come of it, computed by the
 * definition of the tree and nothing shared with the product. */
#pragma once

#include "support/world_internal.h"

enum world_kind {
    WORLD_PUSHPULL,
    WORLD_BROADCAST,
    WORLD_REDUCE_TO_ONE,
    WORLD_ROWS,
};

/* How the rounds of key i go, and who is their root. */
enum world_kind world_data_kind(const struct world *w, uint32_t i);
uint32_t world_data_root(const struct world *w, uint64_t round);
/* Does the rank pass this round of key i, or do all? */
bool world_data_skips(const struct world *w, uint32_t i, uint32_t rank,
                      uint64_t round);
bool world_data_all_skip(const struct world *w, uint32_t i, uint64_t round);
/* What is made of the pushes of a round of key i. */
enum ps_reduce world_data_reduce(const struct world *w, uint32_t i);
/* The array of one rank for one round of key i. */
void world_data_fill(const struct world *w, void *dst, uint32_t i,
                     uint32_t rank, uint64_t round);
/* Without rounds: the rank whose pushes element j counts, the array of a push
 * (or of init), and what an element is. */
uint32_t world_data_owner_rank(const struct world *w, uint64_t j);
void world_data_count(const struct world *w, void *dst, uint32_t i,
                      uint32_t rank, bool init);
int64_t world_data_push_count(const struct world *w, const void *src,
                              uint32_t i, uint64_t j);
#define WORLD_COUNT_INITIAL 7 /* What init gives. */
/* The rows that a rank gives in a round, or pulls after it, ascending: none,
 * few, many or all. */
uint32_t world_data_pushed(const struct world *w, uint32_t i, uint32_t rank,
                           uint64_t round, uint32_t *row);
uint32_t world_data_pulled(const struct world *w, uint32_t i, uint32_t rank,
                           uint64_t round, uint32_t *row);
/* Is a version of key i what world_data_expect() says? Not where an optimizer
 * steps or codes lose something. */
bool world_data_is_exact(const struct world *w, uint32_t i);
/* Nothing begins it, and no optimizer steps it. */
bool world_data_is_collective(const struct world *w, uint32_t i);
/* True: this is the optimizer's result for the pushes. */
void world_model_check(struct world *w, uint32_t i, uint64_t version,
                       const void *data);
void world_model_free(struct wmodel *m);
/* The reduction over all ranks, by way of their agents. */
void world_data_expect(const struct world *w, void *dst, uint32_t i,
                       uint64_t round);
