/* SPDX-License-Identifier: Apache-2.0 */
/* The tree over places is a row of perfect trees, one for each binary digit of
 * their number, largest first. Within a perfect tree of level n, a half that
 * gives nothing drops out and the other half stands for the whole, at level n.
 * Level n is therefore handed down to the half that is left, and n - 1 to both
 * when there are two; what arrives at a leaf is the level of its source. The
 * kernel's counter then carries exactly where two halves meet: what lies below
 * a tree on its stack has that tree's level or a higher one, so nothing is
 * added across a border. */
#include "core/round.h"

#include "base/alloc.h"

#include <string.h>

void ps_round_init(struct ps_round *r, uint32_t size)
{
    memset(r, 0, sizeof(*r));
    r->size = size;
    ps_bits_init(&r->in, size);
    r->part = ps_calloc(size, sizeof(*r->part));
}

void ps_round_release(struct ps_round *r)
{
    for (uint32_t i = 0; r->part != NULL && i < r->size; i++) {
        ps_buf_unref(r->part[i].buf);
        r->part[i] = (struct ps_slice){0};
    }
}

void ps_round_fini(struct ps_round *r)
{
    ps_round_release(r);
    ps_free(r->part);
    ps_bits_fini(&r->in);
    memset(r, 0, sizeof(*r));
}

bool ps_round_offer(struct ps_round *r, uint32_t place,
                    const struct ps_slice *slice, uint64_t weight)
{
    if (!ps_bits_set(&r->in, place)) {
        return false;
    }
    if (slice != NULL) {
        r->part[place] = *slice;
        ps_buf_ref(slice->buf);
        r->given++;
        r->weight += weight;
        r->bytes += slice->len;
    }
    return true;
}

bool ps_round_has(const struct ps_round *r, uint32_t place)
{
    return ps_bits_get(&r->in, place);
}

bool ps_round_complete(const struct ps_round *r)
{
    return ps_bits_full(&r->in);
}

const struct ps_slice *ps_round_first(const struct ps_round *r)
{
    for (uint32_t i = 0; i < r->size; i++) {
        if (r->part[i].buf != NULL) {
            return &r->part[i];
        }
    }
    return NULL;
}

static bool gives(const struct ps_round *r, uint32_t from, uint32_t count)
{
    for (uint32_t i = from; i < from + count; i++) {
        if (r->part[i].buf != NULL) {
            return true;
        }
    }
    return false;
}

/* The perfect tree over `count` places from `from` on, which gives something,
 * as a whole of level `level`. */
static void add_tree(const struct ps_round *r, uint32_t from, uint32_t count,
                     uint8_t level, struct ps_compute *c)
{
    uint32_t half = count / 2;

    if (count == 1) {
        ps_compute_add_src(c, &r->part[from], level);
        return;
    }
    bool left = gives(r, from, half);
    bool right = gives(r, from + half, half);

    if (left && right) {
        level--;
    }
    if (left) {
        add_tree(r, from, half, level, c);
    }
    if (right) {
        add_tree(r, from + half, half, level, c);
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

void ps_round_sources(const struct ps_round *r, struct ps_compute *c)
{
    uint32_t from = 0;

    for (uint8_t level = 32; level-- > 0;) {
        uint32_t count = 1u << level;

        if ((r->size & count) == 0) {
            continue;
        }
        if (gives(r, from, count)) {
            add_tree(r, from, count, level, c);
        }
        from += count;
    }
}
