/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor memory with a budget, in size classes. Buffers return to their class
 * at the last unref and keep their pages, so that a steady state touches no new
 * pages. A used-up budget is an ordinary error. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

struct ps_pool;

/* Source of a pool's memory; NULL functions: anonymous memory. The agent's
 * result memory comes from memfds that it shares with its workers. */
struct ps_pool_source {
    /* Returns `size` bytes, with the tag and offset of buffers in them. 0 or
     * PS_E_NOMEM. */
    int (*get)(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
               uint64_t *ret_offset);
    void (*put)(void *ctx, void *data, size_t size, uint32_t tag);
    void (*close)(void *ctx); /* The pool is freed; may be NULL. */
    void *ctx;
};

/* Maps anonymous memory, for sources that use it partly; the tag is 0. */
PS_MUST_USE int ps_pool_map(size_t size, void **ret_data);
void ps_pool_unmap(void *data, size_t size);

struct ps_pool_options {
    uint64_t budget; /* Limit of bytes in use; 0: none. */
    struct ps_pool_source source;
};

struct ps_pool *ps_pool_new(const struct ps_pool_options *opt);
/* All buffers must be released. NULL: no effect. */
void ps_pool_free(struct ps_pool *p);
/* Returns a buffer of exactly `size` bytes, uninitialized, aligned to 64, refs
 * = 1. PS_E_NOMEM: the budget is used up. */
PS_MUST_USE int ps_pool_get(struct ps_pool *p, size_t size,
                            struct ps_buf **ret_buf);
/* Bytes of a pool's budget that one of its users holds: all live buffers
 * allocated for it. The share is freed when its owner and the last of these
 * buffers drop it. */
struct ps_pool_share;
struct ps_pool_share *ps_pool_share_new(void);
/* NULL: no effect. */
void ps_pool_share_unref(struct ps_pool_share *share);
uint64_t ps_pool_share_used(const struct ps_pool_share *share);
/* As ps_pool_get, charged to `share`; NULL: to none. */
PS_MUST_USE int ps_pool_get_for(struct ps_pool *p, size_t size,
                                struct ps_pool_share *share,
                                struct ps_buf **ret_buf);
/* Returns a buffer of memory that the source has given to an earlier process:
 * it takes `size` bytes of the budget, which it may exceed, and goes back to the
 * source at the last unref. Such buffers may lie at any address. */
struct ps_buf *ps_pool_adopt(struct ps_pool *p, void *data, size_t size,
                             struct ps_pool_share *share);
/* Bytes of the budget that a buffer of this size takes. */
uint64_t ps_pool_cost(size_t size);
/* The budget; 0: no limit. */
uint64_t ps_pool_budget(const struct ps_pool *p);
/* Bytes in use, and their peak. */
uint64_t ps_pool_used(const struct ps_pool *p);
uint64_t ps_pool_peak(const struct ps_pool *p);
/* Returns cached free memory to the source. */
void ps_pool_trim(struct ps_pool *p);
/* Returns about `max` bytes of it. True: the pool holds no memory now. */
bool ps_pool_trim_some(struct ps_pool *p, uint64_t max);
/* Tests: the n-th get from now fails; 0: none. */
void ps_pool_fail_at(struct ps_pool *p, uint64_t n);
