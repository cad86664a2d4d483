/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the rank for which the others wait. In each round of a key, the rank
 * that begins last delays all others, by the time since the last but one began.
 * Each rank's delays are added up: a rank that is slow on its own pays for most
 * rounds, while equal ranks take turns. */
#include "psctl/trace.h"

#include "base/alloc.h"
#include "base/num.h"

#include <stdlib.h>

/* The slowest rank stands out if its cost is this many times that of any other,
 * and so long in the mean of its rounds. */
#define TIMES_OTHERS 2u
#define LEAST_MEAN   PS_MICROS(200)

/* Begin of one rank's part in a round. */
struct arrival {
    uint32_t key;
    uint64_t round;
    uint32_t rank;
    uint32_t member;
    int64_t begin;
};

static bool is_part_of_round(const struct ps_rec_trace_entry *e)
{
    return e->kind == PS_TRACE_KIND_OP && e->key != UINT32_MAX &&
           e->round > 0 && e->peer < PS_RANKS_MAX &&
           (e->op == PS_OP_PUSH || e->op == PS_OP_PUSHPULL ||
            e->op == PS_OP_PUSH_ROWS || e->op == PS_OP_BROADCAST);
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* By key, round, rank, then begin. */
static int compare_arrivals(const void *left, const void *right)
{
    const struct arrival *a = left;
    const struct arrival *b = right;
    int c = compare_u64(a->key, b->key);

    c = c != 0 ? c : compare_u64(a->round, b->round);
    c = c != 0 ? c : compare_u64(a->rank, b->rank);
    return c != 0 ? c : (a->begin > b->begin) - (a->begin < b->begin);
}

static struct arrival *list_arrivals(const struct trace *t, size_t *ret_count)
{
    struct arrival *list;
    size_t capacity = 1;
    size_t count = 0;

    for (uint32_t i = 0; i < t->member_count; i++) {
        capacity += t->members[i].count;
    }
    list = ps_calloc(capacity, sizeof(*list));
    for (uint32_t i = 0; i < t->member_count; i++) {
        const struct trace_member *m = &t->members[i];

        for (uint32_t k = 0; k < m->count; k++) {
            const struct ps_rec_trace_entry *e = &m->entries[k];

            if (is_part_of_round(e)) {
                list[count++] = (struct arrival){.key = e->key,
                                                 .round = e->round,
                                                 .rank = e->peer,
                                                 .member = i,
                                                 .begin = trace_begin(m, e)};
            }
        }
    }
    qsort(list, count, sizeof(*list), compare_arrivals);
    *ret_count = count;
    return list;
}

/* Adds one round, of `n` arrivals that are sorted by rank. */
static void add_round(const struct trace *t, struct trace_lag *lags,
                      const struct arrival *round, size_t n)
{
    const struct arrival *last = NULL;
    const struct arrival *before = NULL;
    struct trace_lag *lag;
    uint64_t cost;

    for (size_t i = 0; i < n; i++) {
        if (i > 0 && round[i].rank == round[i - 1].rank) {
            return; /* An attempt was repeated: its times mean nothing. */
        }
        if (last == NULL || round[i].begin >= last->begin) {
            before = last;
            last = &round[i];
        } else if (before == NULL || round[i].begin > before->begin) {
            before = &round[i];
        }
    }
    if (n < 2) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        lag = &lags[round[i].rank];
        lag->node = t->members[round[i].member].name;
        lag->rounds++;
    }
    lag = &lags[last->rank];
    cost = (uint64_t)(last->begin - before->begin);
    lag->last++;
    lag->cost_ns += cost;
    lag->longest_ns = ps_max_u64(lag->longest_ns, cost);
}

/* Drops ranks without a round; returns the number of the others. */
static size_t pack_lags(struct trace_lag *lags)
{
    size_t count = 0;

    for (uint32_t rank = 0; rank < PS_RANKS_MAX; rank++) {
        if (lags[rank].rounds > 0) {
            lags[rank].rank = rank;
            lags[count++] = lags[rank];
        }
    }
    return count;
}

static const struct trace_lag *find_slowest(const struct trace_lag *lags,
                                            size_t count)
{
    const struct trace_lag *most = NULL;
    uint64_t second = 0;

    for (size_t i = 0; i < count; i++) {
        if (most == NULL || lags[i].cost_ns > most->cost_ns) {
            second = most != NULL ? most->cost_ns : 0;
            most = &lags[i];
        } else {
            second = ps_max_u64(second, lags[i].cost_ns);
        }
    }
    return most != NULL && most->cost_ns > TIMES_OTHERS * second &&
                   most->cost_ns >= LEAST_MEAN * most->rounds
               ? most
               : NULL;
}

struct trace_lag *trace_lags(const struct trace *t, size_t *ret_count,
                             const struct trace_lag **ret_slowest)
{
    /* By rank, at first. */
    struct trace_lag *lags = ps_calloc(PS_RANKS_MAX, sizeof(*lags));
    size_t arrivals;
    struct arrival *list = list_arrivals(t, &arrivals);

    for (size_t i = 0, n; i < arrivals; i += n) {
        n = 1;
        while (i + n < arrivals && list[i + n].key == list[i].key &&
               list[i + n].round == list[i].round) {
            n++;
        }
        add_round(t, lags, &list[i], n);
    }
    ps_free(list);
    *ret_count = pack_lags(lags);
    *ret_slowest = find_slowest(lags, *ret_count);
    return lags;
}
