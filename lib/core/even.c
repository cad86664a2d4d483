/* SPDX-License-Identifier: Apache-2.0 */
#include "core/even.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#define NONE UINT32_MAX

/* The pieces of one server in a sorted list, largest first. */
struct holder {
    uint64_t *bytes;
    uint32_t first;
    uint32_t end;
    bool stuck; /* Has nothing to give. */
};

struct plan {
    struct ps_even_piece **sorted;
    /* The next entry that has not moved; itself, if it has not. Shortened when
     * walked, so that runs of moved pieces cost nothing again. */
    uint32_t *next;
    struct holder *holders;
    uint32_t count; /* Of holders. */
};

static int by_server_and_size(const void *a, const void *b)
{
    const struct ps_even_piece *x = *(struct ps_even_piece *const *)a;
    const struct ps_even_piece *y = *(struct ps_even_piece *const *)b;

    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return x < y ? -1 : x > y; /* All lie in one array: their order in it. */
}

static void prepare(struct plan *p, struct ps_even_piece *pieces,
                    uint32_t count, uint64_t *bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pieces[i].from < p->count);
        pieces[i].to = pieces[i].from;
        p->sorted[i] = &pieces[i];
    }
    qsort(p->sorted, count, sizeof(struct ps_even_piece *), by_server_and_size);
    for (uint32_t i = 0; i <= count; i++) {
        p->next[i] = i;
    }
    for (uint32_t s = 0, at = 0; s < p->count; s++) {
        struct holder *h = &p->holders[s];

        h->bytes = &bytes[s];
        h->first = at;
        while (at < count && p->sorted[at]->from == s) {
            at++;
        }
        h->end = at;
    }
}

static uint32_t skip_moved(struct plan *p, uint32_t at)
{
    while (p->next[at] != at) {
        p->next[at] = p->next[p->next[at]];
        at = p->next[at];
    }
    return at;
}

/* The first entry of at most `most` bytes; h->end when there is none. */
static uint32_t search(const struct plan *p, const struct holder *h,
                       uint64_t most)
{
    uint32_t low = h->first;
    uint32_t high = h->end;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (p->sorted[middle]->bytes <= most) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* The largest piece of at most `need`, or else the smallest one below `gap`. */
static uint32_t choose(struct plan *p, const struct holder *h, uint64_t need,
                       uint64_t gap)
{
    uint32_t split = search(p, h, need);
    uint32_t at = skip_moved(p, split);

    if (at < h->end) {
        return at;
    }
    for (at = split; at > h->first; at--) {
        if (p->next[at - 1] == at - 1) {
            return p->sorted[at - 1]->bytes < gap ? at - 1 : NONE;
        }
    }
    return NONE;
}

/* The two that are farthest from each other, and the mean, of those that are
 * not stuck; the first of equals. False: there are not two. */
static bool extremes(const struct plan *p, struct holder **ret_full,
                     struct holder **ret_empty, uint64_t *ret_mean)
{
    struct holder *full = NULL;
    struct holder *empty = NULL;
    uint64_t total = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        struct holder *h = &p->holders[i];

        if (h->stuck) {
            continue;
        }
        full = full == NULL || *h->bytes > *full->bytes ? h : full;
        empty = empty == NULL || *h->bytes < *empty->bytes ? h : empty;
        total += *h->bytes;
        n++;
    }
    if (n < 2) {
        return false;
    }
    *ret_full = full;
    *ret_empty = empty;
    *ret_mean = total / n;
    return true;
}

static uint32_t run(struct plan *p)
{
    struct holder *full;
    struct holder *empty;
    uint64_t mean;
    uint32_t moved = 0;

    while (extremes(p, &full, &empty, &mean)) {
        uint64_t most = mean / PS_EVEN_PART;
        uint64_t over = *full->bytes - mean;
        uint64_t under = mean - *empty->bytes;
        uint32_t at;

        if (over <= most && under <= most) {
            break;
        }
        at = choose(p, full, ps_min_u64(over, under),
                    *full->bytes - *empty->bytes);
        if (at == NONE) {
            full->stuck = true;
            continue;
        }
        p->sorted[at]->to = (uint32_t)(empty - p->holders);
        p->next[at] = at + 1;
        *full->bytes -= p->sorted[at]->bytes;
        *empty->bytes += p->sorted[at]->bytes;
        moved++;
    }
    return moved;
}

int ps_even_plan(struct ps_even_piece *pieces, uint32_t count, uint64_t *bytes,
                 uint32_t server_count, uint32_t *ret_moved)
{
    struct plan p = {.count = server_count};
    int rc = PS_E_NOMEM;

    assert(count < NONE);
    p.sorted = ps_try_alloc((count + 1u) * sizeof(struct ps_even_piece *));
    p.next = ps_try_alloc((count + 1u) * sizeof(*p.next));
    p.holders = ps_try_calloc(server_count + 1u, sizeof(*p.holders));
    if (p.sorted != NULL && p.next != NULL && p.holders != NULL) {
        prepare(&p, pieces, count, bytes);
        *ret_moved = run(&p);
        rc = 0;
    }
    ps_free(p.sorted);
    ps_free(p.next);
    ps_free(p.holders);
    return rc;
}
