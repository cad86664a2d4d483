/* SPDX-License-Identifier: Apache-2.0 */
/* Reference-counted bytes and slices of them. Counts change on the loop thread
 * only, so they are plain integers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_buf;

/* A copy of a buffer in other memory, where computations read and write it;
 * embedded by the owner of that memory. It lives as long as the buffer. */
struct ps_buf_copy {
    const struct ps_buf_copy_ops *ops;
};

/* Kind of copies. No computation uses the buffer during a call. */
struct ps_buf_copy_ops {
    /* Brings to the buffer the bytes that only the copy has. */
    int (*fetch)(struct ps_buf_copy *c, struct ps_buf *b);
    /* The buffer has other bytes now than the copy. */
    void (*invalidate)(struct ps_buf_copy *c);
    /* The buffer is released. */
    void (*free)(struct ps_buf_copy *c);
};

struct ps_buf {
    uint8_t *data;
    size_t size;
    uint32_t refs;
    /* Number that the owner of the memory assigns, such as an arena's. */
    uint32_t tag;
    uint64_t offset; /* Offset of `data` from the beginning of that memory. */
    /* Memory of a GPU: its owner's record, and `data` is an address of the GPU,
     * which only jobs use. NULL: memory of the host. */
    void *device;
    /* Called at the last unref; also frees `b`. */
    void (*release)(struct ps_buf *b);
    void *ctx;
    struct ps_buf_copy *copy; /* Owned; NULL: none. */
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

/* Makes the bytes current: to be called before a read of a buffer that
 * computations write in place. Fails if they were in a copy that is lost. */
static inline int ps_buf_fetch(struct ps_buf *b)
{
    return b->copy == NULL ? 0 : b->copy->ops->fetch(b->copy, b);
}
/* To be called after a write of all bytes. */
static inline void ps_buf_invalidate_copy(struct ps_buf *b)
{
    if (b->copy != NULL) {
        b->copy->ops->invalidate(b->copy);
    }
}

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
