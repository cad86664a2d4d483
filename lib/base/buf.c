/* SPDX-License-Identifier: Apache-2.0 */
/* Reference-counted bytes. A new buffer is one allocation for struct and bytes;
 * a wrapped one keeps the function that releases its memory. */
#include "base/buf.h"

#include "base/alloc.h"

#include <assert.h>
#include <stdalign.h>

struct heap_buf {
    struct ps_buf buf;
    alignas(64) uint8_t bytes[];
};

struct wrapped_buf {
    struct ps_buf buf;
    void (*release)(void *ctx);
};

static void release_heap(struct ps_buf *b)
{
    ps_free(b->ctx);
}

static void release_wrapped(struct ps_buf *b)
{
    struct wrapped_buf *w = (struct wrapped_buf *)b;
    void (*release)(void *ctx) = w->release;
    void *ctx = b->ctx;

    ps_free(w);
    if (release != NULL) {
        release(ctx);
    }
}

/* malloc aligns to 16 bytes; the buffer starts on a cache line. */
#define HEAD (sizeof(struct heap_buf) + 64)

static struct ps_buf *buf_new(void *raw, size_t size)
{
    struct heap_buf *h = (void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);

    h->buf = (struct ps_buf){
        .data = h->bytes,
        .size = size,
        .refs = 1,
        .release = release_heap,
        .ctx = raw,
    };
    return &h->buf;
}

struct ps_buf *ps_buf_new(size_t size)
{
    return buf_new(ps_alloc(HEAD + size), size);
}

struct ps_buf *ps_buf_try_new(size_t size)
{
    void *raw = size <= SIZE_MAX - HEAD ? ps_try_alloc(HEAD + size) : NULL;

    return raw != NULL ? buf_new(raw, size) : NULL;
}

struct ps_buf *ps_buf_wrap(void *data, size_t size, void (*release)(void *ctx),
                           void *ctx)
{
    struct wrapped_buf *w = ps_alloc(sizeof(*w));

    *w = (struct wrapped_buf){
        .buf = {.data = data,
                .size = size,
                .refs = 1,
                .release = release_wrapped,
                .ctx = ctx},
        .release = release,
    };
    return &w->buf;
}

struct ps_buf *ps_buf_ref(struct ps_buf *b)
{
    assert(b->refs > 0 && b->refs < UINT32_MAX);
    b->refs++;
    return b;
}

void ps_buf_unref(struct ps_buf *b)
{
    if (b == NULL) {
        return;
    }
    assert(b->refs > 0);
    if (--b->refs == 0) {
        struct ps_buf_copy *copy = b->copy;

        if (copy != NULL) {
            b->copy = NULL;
            copy->ops->free(copy);
        }
        b->release(b);
    }
}
