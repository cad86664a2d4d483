/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/balance.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#define NONE UINT32_MAX

/* Parts of one server in a sorted list, largest first. */
struct server_load {
    uint64_t *bytes;
    uint32_t first;
    uint32_t end;
    bool is_stuck; /* Has no part to give. */
};

struct plan {
    struct ps_balance_part **sorted;
    /* Next entry that has not moved; the entry itself if it has not. Shortened
     * when walked, so that runs of moved parts are skipped in one step. */
    uint32_t *next;
    struct server_load *holders;
    uint32_t count; /* Number of holders. */
};

static int by_server_and_size(const void *a, const void *b)
{
    const struct ps_balance_part *x = *(struct ps_balance_part *const *)a;
    const struct ps_balance_part *y = *(struct ps_balance_part *const *)b;

    if (x->source != y->source) {
        return x->source < y->source ? -1 : 1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return x < y ? -1 : x > y; /* Order in the array that holds all. */
}

static void sort_parts(struct plan *p, struct ps_balance_part *pieces,
                       uint32_t count, uint64_t *bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(pieces[i].source < p->count);
        pieces[i].target = pieces[i].source;
        p->sorted[i] = &pieces[i];
    }
    qsort(p->sorted, count, sizeof(struct ps_balance_part *),
          by_server_and_size);
    for (uint32_t i = 0; i <= count; i++) {
        p->next[i] = i;
    }
    for (uint32_t s = 0, at = 0; s < p->count; s++) {
        struct server_load *h = &p->holders[s];

        h->bytes = &bytes[s];
        h->first = at;
        while (at < count && p->sorted[at]->source == s) {
            at++;
        }
        h->end = at;
    }
}

static uint32_t skip_assigned_parts(struct plan *p, uint32_t at)
{
    while (p->next[at] != at) {
        p->next[at] = p->next[p->next[at]];
        at = p->next[at];
    }
    return at;
}

/* First entry of at most `most` bytes, or h->end. */
static uint32_t find_part_up_to(const struct plan *p,
                                const struct server_load *h, uint64_t most)
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

/* Largest part of at most `need` bytes, or else the smallest one below
 * `gap`. */
static uint32_t choose_part(struct plan *p, const struct server_load *h,
                            uint64_t need, uint64_t gap)
{
    uint32_t split = find_part_up_to(p, h, need);
    uint32_t at = skip_assigned_parts(p, split);

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

/* Finds the fullest and the emptiest server, and the mean, of those that are
 * not stuck; the first of equals. False: fewer than two. */
static bool find_extremes(const struct plan *p, struct server_load **ret_full,
                          struct server_load **ret_empty, uint64_t *ret_mean)
{
    struct server_load *full = NULL;
    struct server_load *empty = NULL;
    uint64_t total = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        struct server_load *h = &p->holders[i];

        if (h->is_stuck) {
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

static uint32_t move_parts(struct plan *p)
{
    struct server_load *full;
    struct server_load *empty;
    uint64_t mean;
    uint32_t moved = 0;

    while (find_extremes(p, &full, &empty, &mean)) {
        uint64_t most = mean / PS_BALANCE_TOLERANCE_DIV;
        uint64_t over = *full->bytes - mean;
        uint64_t under = mean - *empty->bytes;
        uint32_t at;

        if (over <= most && under <= most) {
            break;
        }
        at = choose_part(p, full, ps_min_u64(over, under),
                         *full->bytes - *empty->bytes);
        if (at == NONE) {
            full->is_stuck = true;
            continue;
        }
        p->sorted[at]->target = (uint32_t)(empty - p->holders);
        p->next[at] = at + 1;
        *full->bytes -= p->sorted[at]->bytes;
        *empty->bytes += p->sorted[at]->bytes;
        moved++;
    }
    return moved;
}

int ps_balance_plan(struct ps_balance_part *pieces, uint32_t count,
                    uint64_t *bytes, uint32_t server_count, uint32_t *ret_moved)
{
    struct plan p = {.count = server_count};
    int rc = PS_E_NOMEM;

    assert(count < NONE);
    p.sorted = ps_try_alloc((count + 1u) * sizeof(struct ps_balance_part *));
    p.next = ps_try_alloc((count + 1u) * sizeof(*p.next));
    p.holders = ps_try_calloc(server_count + 1u, sizeof(*p.holders));
    if (p.sorted != NULL && p.next != NULL && p.holders != NULL) {
        sort_parts(&p, pieces, count, bytes);
        *ret_moved = move_parts(&p);
        rc = 0;
    }
    ps_free(p.sorted);
    ps_free(p.next);
    ps_free(p.holders);
    return rc;
}
