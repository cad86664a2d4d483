/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays that simulated workers push, and the expected results, computed
 * from the definition of the summation tree without code of the product. */
#pragma once

#include "support/world_internal.h"

enum world_kind {
    WORLD_PUSHPULL,
    WORLD_BROADCAST,
    WORLD_REDUCE_TO_ONE,
    WORLD_ROWS,
};

/* Kind of the rounds of key i, and their root. */
enum world_kind world_data_kind(const struct world *w, uint32_t i);
uint32_t world_data_root(const struct world *w, uint64_t round);
/* True if the rank skips this round of key i, or if all ranks do. */
bool world_data_skips(const struct world *w, uint32_t i, uint32_t rank,
                      uint64_t round);
bool world_data_all_skip(const struct world *w, uint32_t i, uint64_t round);
/* Reduction of the rounds of key i. */
enum ps_reduce world_data_reduce(const struct world *w, uint32_t i);
/* Writes the array of one rank for one round of key i. */
void world_data_fill(const struct world *w, void *dst, uint32_t i,
                     uint32_t rank, uint64_t round);
/* Without rounds: the rank whose pushes element j counts; the array of a push
 * or init; the count in an element. */
uint32_t world_data_owner_rank(const struct world *w, uint64_t j);
void world_data_count(const struct world *w, void *dst, uint32_t i,
                      uint32_t rank, bool init);
int64_t world_data_push_count(const struct world *w, const void *src,
                              uint32_t i, uint64_t j);
#define WORLD_COUNT_INITIAL 7 /* Value of init. */
/* Rows that a rank pushes in a round, or pulls after it, ascending: none, few,
 * many or all. */
uint32_t world_data_pushed(const struct world *w, uint32_t i, uint32_t rank,
                           uint64_t round, uint32_t *row);
uint32_t world_data_pulled(const struct world *w, uint32_t i, uint32_t rank,
                           uint64_t round, uint32_t *row);
/* True if a version of key i equals world_data_expect() bit by bit; false with
 * an optimizer or a lossy codec. */
bool world_data_is_exact(const struct world *w, uint32_t i);
/* True for keys of collectives: without init or optimizer. */
bool world_data_is_collective(const struct world *w, uint32_t i);
/* Checks a version against the model of the optimizer. */
void world_model_check(struct world *w, uint32_t i, uint64_t version,
                       const void *data);
void world_model_free(struct wmodel *m);
/* Writes the reduction over all ranks, grouped by their agents. */
void world_data_expect(const struct world *w, void *dst, uint32_t i,
                       uint64_t round);
