/* SPDX-License-Identifier: Apache-2.0 */
/* Budgeted tensor memory in size classes. Buffers go back to their class at
 * the last unref and keep their pages, so that a steady state touches no fresh
 * memory. Exhaustion is an ordinary error. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

struct ps_pool;

/* Where a pool gets large pieces from; NULL functions: anonymous memory. The
 * agent's result memory comes from memfds that it shares with its workers. */
struct ps_pool_source {
    /* Give `size` bytes: where, and the tag and offset that buffers cut from
     * it carry. 0 or PS_E_NOMEM. */
    int (*get)(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
               uint64_t *ret_offset);
    void (*put)(void *ctx, void *data, size_t size, uint32_t tag);
    void (*close)(void *ctx); /* The pool is gone; may be NULL. */
    void *ctx;
};

/* Anonymous memory, for a source that has some of it; the tag is 0. */
PS_MUST_USE int ps_pool_map(size_t size, void **ret_data);
void ps_pool_unmap(void *data, size_t size);

struct ps_pool_options {
    uint64_t budget; /* Bytes handed out at most; 0: no limit. */
    struct ps_pool_source source;
};

struct ps_pool *ps_pool_new(const struct ps_pool_options *opt);
/* Every buffer must have come back. NULL is fine. */
void ps_pool_free(struct ps_pool *p);
/* A buffer of exactly `size` usable bytes, contents undefined, aligned to 64,
 * refs = 1. PS_E_NOMEM when the budget is used up. */
PS_MUST_USE int ps_pool_get(struct ps_pool *p, size_t size,
                            struct ps_buf **ret_buf);
/* What one of several users of a pool has of it, in bytes of the budget: all
 * buffers that were made for it and have not come back. The share lives until
 * its owner and the last of these buffers let go of it. */
struct ps_pool_share;
struct ps_pool_share *ps_pool_share_new(void);
/* NULL is fine. */
void ps_pool_share_unref(struct ps_pool_share *share);
uint64_t ps_pool_share_used(const struct ps_pool_share *share);
/* As ps_pool_get; NULL: it is nobody's. */
PS_MUST_USE int ps_pool_get_for(struct ps_pool *p, size_t size,
                                struct ps_pool_share *share,
                                struct ps_buf **ret_buf);
/* What a buffer of this size takes of the budget. */
uint64_t ps_pool_cost(size_t size);
/* The budget; 0: no limit. */
uint64_t ps_pool_budget(const struct ps_pool *p);
/* Bytes handed out now, and the most there ever were. */
uint64_t ps_pool_used(const struct ps_pool *p);
uint64_t ps_pool_peak(const struct ps_pool *p);
/* Give cached free memory back to the source. */
void ps_pool_trim(struct ps_pool *p);
/* Tests: the n-th get from now fails (0: never). */
void ps_pool_fail_at(struct ps_pool *p, uint64_t n);
