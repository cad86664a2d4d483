/* SPDX-License-Identifier: Apache-2.0 */
/* Size classes, four to a power of two, so that at most a fifth of a piece is
 * wasted. A chunk is a range from the source, cut into pieces of one class: of
 * 64 KiB and more, one piece; of smaller ones, a slab of 1 MiB. Free pieces
 * wait in the list of their class, the most recently used first. An unused
 * chunk returns to the source when ps_pool_trim() is called or another class
 * needs its memory. */
#include "base/pool.h"

#include "base/alloc.h"
#include "base/list.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#define CLASS_BITS_MIN 12u /* 4 KiB */
#define CLASS_BITS_MAX 46u /* More than any machine has. */
#define CLASSES        ((CLASS_BITS_MAX - CLASS_BITS_MIN) * 4 + 1)
#define LARGE_MIN      (64u * 1024u)
#define SLAB_SIZE      (1024u * 1024u)
#define HUGE_SIZE      (2u * 1024u * 1024u)

struct ps_pool_share {
    uint64_t used;
    uint64_t refs; /* Buffers, and one for the owner. */
};

struct piece {
    struct ps_buf buf;
    struct chunk *chunk;
    struct ps_pool_share *share; /* Charged while in use; NULL: no share. */
    struct ps_list_node node;    /* In the free list of its class. */
};

struct chunk {
    struct ps_pool *pool;
    struct ps_list_node node;
    void *data;
    size_t size;
    size_t piece_size;
    uint64_t offset;
    uint32_t tag;
    unsigned class;
    unsigned used; /* Pieces in use. */
    unsigned count;
    struct piece pieces[];
};

struct ps_pool {
    uint64_t budget;
    struct ps_pool_source source;
    uint64_t used;
    uint64_t peak;
    uint64_t source_bytes; /* Bytes taken from the source. */
    uint64_t fail_at;
    struct ps_list chunks;
    struct ps_list classes[CLASSES];
};

/* Large ranges are aligned so that huge pages can back them. Surplus address
 * space is unmapped at once. */
int ps_pool_map(size_t size, void **ret_data)
{
    size_t unit = size >= HUGE_SIZE ? HUGE_SIZE : 0;
    char *p = mmap(NULL, size + unit, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        return PS_E_NOMEM;
    }
    if (unit != 0) {
        size_t before = (size_t)(-(uintptr_t)p & (unit - 1));

        if (before > 0) {
            munmap(p, before);
        }
        munmap(p + before + size, unit - before);
        p += before;
        /* Only an optimization; failure is ignored. */
        madvise(p, size, MADV_HUGEPAGE);
    }
    madvise(p, size, MADV_DONTDUMP); /* Tensors stay out of core dumps. */
    *ret_data = p;
    return 0;
}

void ps_pool_unmap(void *data, size_t size)
{
    munmap(data, size);
}

/* The default source. */
static int map_anonymous(void *ctx, size_t size, void **ret_data,
                         uint32_t *ret_tag, uint64_t *ret_offset)
{
    (void)ctx;
    *ret_tag = 0;
    *ret_offset = 0;
    return ps_pool_map(size, ret_data);
}

static void unmap_anonymous(void *ctx, void *data, size_t size, uint32_t tag)
{
    (void)ctx;
    (void)tag;
    ps_pool_unmap(data, size);
}

/* Classes are 4, 5, 6 and 7 quarters of 4 KiB, then of 8 KiB, and so on. */
static unsigned class_of(size_t size)
{
    if (size <= (size_t)1 << CLASS_BITS_MIN) {
        return 0;
    }
    size_t n = size - 1;
    unsigned bits = 63 - (unsigned)__builtin_clzll(n);

    return (bits - CLASS_BITS_MIN) * 4 + (unsigned)(n >> (bits - 2) & 3) + 1;
}

static size_t class_size(unsigned class)
{
    return (size_t)(4 + class % 4) << (CLASS_BITS_MIN - 2 + class / 4);
}

static void chunk_free(struct chunk *c)
{
    struct ps_pool *p = c->pool;

    assert(c->used == 0);
    for (unsigned i = 0; i < c->count; i++) {
        ps_list_remove(&c->pieces[i].node);
    }
    ps_list_remove(&c->node);
    p->source_bytes -= c->size;
    p->source.put(p->source.ctx, c->data, c->size, c->tag);
    ps_free(c);
}

/* Returns unused chunks to the source until at most `target` bytes are held. */
static void pool_shrink(struct ps_pool *p, uint64_t target)
{
    PS_LIST_EACH_SAFE(struct chunk, c, node, &p->chunks)
    {
        if (p->source_bytes <= target) {
            return;
        }
        if (c->used == 0) {
            chunk_free(c);
        }
    }
}

static void piece_release(struct ps_buf *b)
{
    struct piece *piece = PS_CONTAINER(b, struct piece, buf);
    struct chunk *c = piece->chunk;

    assert(c->used > 0);
    c->used--;
    c->pool->used -= c->piece_size;
    if (piece->share != NULL) {
        piece->share->used -= c->piece_size;
        ps_pool_share_unref(piece->share);
        piece->share = NULL;
    }
    ps_list_push_front(&c->pool->classes[c->class], &piece->node);
}

static int source_get(struct ps_pool *p, struct chunk *c)
{
    /* Free memory of other classes must not add up to more than the budget. */
    if (p->budget != 0 && p->source_bytes + c->size > p->budget) {
        pool_shrink(p, c->size < p->budget ? p->budget - c->size : 0);
    }
    int rc = p->source.get(p->source.ctx, c->size, &c->data, &c->tag,
                           &c->offset);
    if (rc != 0 && !ps_list_empty(&p->chunks)) {
        pool_shrink(p, 0);
        rc = p->source.get(p->source.ctx, c->size, &c->data, &c->tag,
                           &c->offset);
    }
    return rc;
}

static int chunk_add(struct ps_pool *p, unsigned class)
{
    size_t piece_size = class_size(class);
    size_t size = piece_size < LARGE_MIN ? SLAB_SIZE : piece_size;
    unsigned count = (unsigned)(size / piece_size);
    struct chunk *c = ps_calloc(1, sizeof(*c) + count * sizeof(c->pieces[0]));

    c->pool = p;
    c->size = size;
    c->piece_size = piece_size;
    c->class = class;
    c->count = count;
    int rc = source_get(p, c);
    if (rc != 0) {
        ps_free(c);
        return rc;
    }
    p->source_bytes += size;
    ps_list_push_back(&p->chunks, &c->node);
    for (unsigned i = 0; i < count; i++) {
        struct piece *piece = &c->pieces[i];

        piece->chunk = c;
        piece->buf = (struct ps_buf){
            .data = (uint8_t *)c->data + i * piece_size,
            .tag = c->tag,
            .offset = c->offset + i * piece_size,
            .release = piece_release,
        };
        ps_list_push_back(&p->classes[class], &piece->node);
    }
    return 0;
}

struct ps_pool *ps_pool_new(const struct ps_pool_options *opt)
{
    struct ps_pool *p = ps_calloc(1, sizeof(*p));

    p->budget = opt->budget;
    p->source = opt->source;
    if (p->source.get == NULL) {
        p->source.get = map_anonymous;
        p->source.put = unmap_anonymous;
    }
    ps_list_init(&p->chunks);
    for (unsigned i = 0; i < CLASSES; i++) {
        ps_list_init(&p->classes[i]);
    }
    return p;
}

void ps_pool_free(struct ps_pool *p)
{
    if (p == NULL) {
        return;
    }
    assert(p->used == 0);
    pool_shrink(p, 0);
    assert(p->source_bytes == 0);
    if (p->source.close != NULL) {
        p->source.close(p->source.ctx);
    }
    ps_free(p);
}

struct ps_pool_share *ps_pool_share_new(void)
{
    struct ps_pool_share *share = ps_calloc(1, sizeof(*share));

    share->refs = 1;
    return share;
}

void ps_pool_share_unref(struct ps_pool_share *share)
{
    if (share != NULL && --share->refs == 0) {
        ps_free(share);
    }
}

uint64_t ps_pool_share_used(const struct ps_pool_share *share)
{
    return share->used;
}

int ps_pool_get(struct ps_pool *p, size_t size, struct ps_buf **ret_buf)
{
    return ps_pool_get_for(p, size, NULL, ret_buf);
}

int ps_pool_get_for(struct ps_pool *p, size_t size, struct ps_pool_share *share,
                    struct ps_buf **ret_buf)
{
    if (p->fail_at > 0 && --p->fail_at == 0) {
        return PS_E_NOMEM;
    }
    if (size > (size_t)1 << CLASS_BITS_MAX) {
        return PS_E_NOMEM;
    }
    unsigned class = class_of(size);
    uint64_t cost = class_size(class);

    if (p->budget != 0 && p->used + cost > p->budget) {
        return PS_E_NOMEM;
    }
    if (ps_list_empty(&p->classes[class])) {
        int rc = chunk_add(p, class);

        if (rc != 0) {
            return rc;
        }
    }
    struct piece *piece = PS_LIST_POP(struct piece, node, &p->classes[class]);

    piece->chunk->used++;
    p->used += cost;
    p->peak = ps_max_u64(p->peak, p->used);
    piece->buf.size = size;
    piece->buf.refs = 1;
    piece->share = share;
    if (share != NULL) {
        share->used += cost;
        share->refs++;
    }
    *ret_buf = &piece->buf;
    return 0;
}

/* Memory of an earlier process. */
struct adopted {
    struct ps_buf buf;
    struct ps_pool *pool;
    struct ps_pool_share *share;
};

static void adopted_release(struct ps_buf *b)
{
    struct adopted *a = PS_CONTAINER(b, struct adopted, buf);
    struct ps_pool *p = a->pool;

    p->used -= b->size;
    p->source_bytes -= b->size;
    if (a->share != NULL) {
        a->share->used -= b->size;
        ps_pool_share_unref(a->share);
    }
    p->source.put(p->source.ctx, b->data, b->size, b->tag);
    ps_free(a);
}

struct ps_buf *ps_pool_adopt(struct ps_pool *p, void *data, size_t size,
                             struct ps_pool_share *share)
{
    struct adopted *a = ps_calloc(1, sizeof(*a));

    *a = (struct adopted){.buf = {.data = data,
                                  .size = size,
                                  .refs = 1,
                                  .release = adopted_release},
                          .pool = p,
                          .share = share};
    p->used += size;
    p->source_bytes += size;
    p->peak = ps_max_u64(p->peak, p->used);
    if (share != NULL) {
        share->used += size;
        share->refs++;
    }
    return &a->buf;
}

uint64_t ps_pool_cost(size_t size)
{
    return size <= (size_t)1 << CLASS_BITS_MAX ? class_size(class_of(size))
                                               : UINT64_MAX;
}

uint64_t ps_pool_budget(const struct ps_pool *p)
{
    return p->budget;
}

uint64_t ps_pool_used(const struct ps_pool *p)
{
    return p->used;
}

uint64_t ps_pool_peak(const struct ps_pool *p)
{
    return p->peak;
}

void ps_pool_trim(struct ps_pool *p)
{
    pool_shrink(p, 0);
}

bool ps_pool_trim_some(struct ps_pool *p, uint64_t max)
{
    pool_shrink(p, p->source_bytes > max ? p->source_bytes - max : 0);
    return p->source_bytes == 0;
}

void ps_pool_fail_at(struct ps_pool *p, uint64_t n)
{
    p->fail_at = n;
}
