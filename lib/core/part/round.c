/* SPDX-License-Identifier: Apache-2.0 */
/* The tree over the contributors is a row of perfect trees, one for each binary
 * digit of their number, largest first. In a perfect tree of level n, an empty
 * half is left out and the other half stands for the whole, at level n. So
 * level n is passed to the only non-empty half, or n - 1 to both; the level
 * that reaches a leaf is that of its source. The kernel's counter then carries
 * exactly where two halves meet: every entry below a tree on its stack has that
 * tree's level or a higher one, so nothing is added across a boundary. */
#include "core/part/round.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

void ps_round_init(struct ps_round *r, uint32_t size)
{
    memset(r, 0, sizeof(*r));
    r->size = size;
    ps_bits_init(&r->contributed, size);
    r->contributions = ps_calloc(size, sizeof(*r->contributions));
}

void ps_round_release_payloads(struct ps_round *r)
{
    for (uint32_t i = 0; r->contributions != NULL && i < r->size; i++) {
        ps_buf_unref(r->contributions[i].buf);
        r->contributions[i] = (struct ps_slice){0};
    }
    r->bytes = 0;
}

void ps_round_fini(struct ps_round *r)
{
    ps_round_release_payloads(r);
    ps_free(r->contributions);
    ps_bits_fini(&r->contributed);
    memset(r, 0, sizeof(*r));
}

bool ps_round_contribute(struct ps_round *r, uint32_t place,
                         const struct ps_slice *slice, uint64_t weight)
{
    if (!ps_bits_set(&r->contributed, place)) {
        return false;
    }
    if (slice != NULL) {
        r->contributions[place] = *slice;
        ps_buf_ref(slice->buf);
        r->nonempty++;
        r->weight += weight;
        r->bytes += slice->len;
    }
    return true;
}

bool ps_round_has_contributed(const struct ps_round *r, uint32_t place)
{
    return ps_bits_get(&r->contributed, place);
}

bool ps_round_is_complete(const struct ps_round *r)
{
    return ps_bits_full(&r->contributed);
}

const struct ps_slice *ps_round_first_nonempty(const struct ps_round *r)
{
    for (uint32_t i = 0; i < r->size; i++) {
        if (r->contributions[i].buf != NULL) {
            return &r->contributions[i];
        }
    }
    return NULL;
}

static bool subtree_has_payload(const struct ps_round *r, uint32_t from,
                                uint32_t count)
{
    for (uint32_t i = from; i < from + count; i++) {
        if (r->contributions[i].buf != NULL) {
            return true;
        }
    }
    return false;
}

/* Adds the sources of the perfect tree over `count` contributors from `from`
 * on, at least one of them not empty, as one subtree of level `level`. */
static void add_subtree_sources(const struct ps_round *r, uint32_t from,
                                uint32_t count, uint8_t level,
                                struct ps_compute *c)
{
    uint32_t half = count / 2;

    if (count == 1) {
        ps_compute_add_src(c, &r->contributions[from], level);
        return;
    }
    bool left = subtree_has_payload(r, from, half);
    bool right = subtree_has_payload(r, from + half, half);

    if (left && right) {
        level--;
    }
    if (left) {
        add_subtree_sources(r, from, half, level, c);
    }
    if (right) {
        add_subtree_sources(r, from + half, half, level, c);
    }
}

enum ps_fold ps_round_fold(uint8_t reduce)
{
    switch ((enum ps_reduce)reduce) {
    case PS_REDUCE_SUM:
    case PS_REDUCE_MEAN:
        break;
    case PS_REDUCE_MIN:
        return PS_FOLD_MIN;
    case PS_REDUCE_MAX:
        return PS_FOLD_MAX;
    case PS_REDUCE_PRODUCT:
        return PS_FOLD_PRODUCT;
    }
    return PS_FOLD_SUM;
}

void ps_round_add_sources(const struct ps_round *r, struct ps_compute *c)
{
    uint32_t from = 0;

    for (uint8_t level = 32; level-- > 0;) {
        uint32_t count = 1u << level;

        if ((r->size & count) == 0) {
            continue;
        }
        if (subtree_has_payload(r, from, count)) {
            add_subtree_sources(r, from, count, level, c);
        }
        from += count;
    }
}

/* ------------------------------------------------------------------ batches */

#define FIRST_CAPACITY 4u

/* Most batches have one partition or a few, so the memory grows with them. */
static void grow(struct ps_batch *g)
{
    g->capacity = g->capacity == 0 ? FIRST_CAPACITY : 2 * g->capacity;
    g->parts = ps_realloc(g->parts, g->capacity * sizeof(*g->parts));
    g->slices = ps_realloc(g->slices, g->capacity * sizeof(*g->slices));
}

/* Appends the slice, or makes the last one longer. */
static void add_slice(struct ps_batch *g, const struct ps_slice *slice)
{
    if (g->slice_count > 0 &&
        ps_slice_is_adjacent(&g->slices[g->slice_count - 1], slice)) {
        g->slices[g->slice_count - 1].len += slice->len;
    } else {
        g->slices[g->slice_count++] = *slice;
        ps_buf_ref(slice->buf);
    }
    g->payload_bytes += slice->len;
}

uint32_t ps_batch_add(struct ps_batch *g, const struct ps_rec_part *part,
                      const struct ps_slice *slice)
{
    assert(ps_batch_has_room(g, slice != NULL ? slice->len : 0));
    if (g->part_count == g->capacity) {
        grow(g);
    }
    if (slice != NULL) {
        add_slice(g, slice);
    }
    g->parts[g->part_count] = *part;
    return g->part_count++;
}

void ps_batch_clear(struct ps_batch *g)
{
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->part_count = 0;
    g->slice_count = 0;
    g->payload_bytes = 0;
}

void ps_batch_fini(struct ps_batch *g)
{
    ps_batch_clear(g);
    ps_free(g->parts);
    ps_free(g->slices);
    g->parts = NULL;
    g->slices = NULL;
    g->capacity = 0;
}
