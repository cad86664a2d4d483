/* SPDX-License-Identifier: Apache-2.0 */
/* Reference-counted bytes and slices of them. Counts change on the loop thread
 * only, so they are plain integers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_buf {
    uint8_t *data;
    size_t size;
    uint32_t refs;
    /* Number that the owner of the memory assigns, such as an arena's. */
    uint32_t tag;
    uint64_t offset; /* Offset of `data` from the beginning of that memory. */
    /* Called at the last unref; also frees `b`. */
    void (*release)(struct ps_buf *b);
    void *ctx;
};

/* Allocates a buffer from the heap of small allocations; refs = 1. */
struct ps_buf *ps_buf_new(size_t size);
/* The same for a size that a peer chooses: NULL if memory is used up. */
struct ps_buf *ps_buf_try_new(size_t size);
/* Wraps memory of another owner; `release` is called at the last unref and may
 * be NULL. refs = 1. */
struct ps_buf *ps_buf_wrap(void *data, size_t size, void (*release)(void *ctx),
                           void *ctx);
struct ps_buf *ps_buf_ref(struct ps_buf *b);
/* NULL: no effect. */
void ps_buf_unref(struct ps_buf *b);

/* Part of a buffer. Its holder states whether it owns a reference. buf NULL:
 * empty. */
struct ps_slice {
    struct ps_buf *buf;
    size_t offset;
    size_t len;
};

/* True if `b` begins where `a` ends. */
static inline bool ps_slice_is_adjacent(const struct ps_slice *a,
                                        const struct ps_slice *b)
{
    return a->buf == b->buf && a->offset + a->len == b->offset;
}

static inline uint8_t *ps_slice_data(const struct ps_slice *s)
{
    return s->buf->data + s->offset;
}
