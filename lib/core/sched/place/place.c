/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of placement: the partitions of a key and their servers, the
 * partitions to move for balanced servers, and the memory that a job takes on a
 * server. */
#include "core/sched/place/place.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/pool.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

/* --------------------------------------------------------------- placement */

/* Elements; a partition starts at a multiple of it. */
#define PART_UNIT     64u
#define MXNET_FACTOR  9973u
/* Partition size where none is set: a wave is one partition on each server, and
 * a key has up to WAVES of them. Minimums are in bytes. */
#define WAVES         64u
#define WAVE_MIN      (256u * 1024u)
#define WAVE_PART_MIN (32u * 1024u)

struct part_list {
    struct ps_place_part *items;
    uint32_t count;
    uint32_t capacity;
};

/* Most elements of one partition. */
static uint64_t max_part_elements(const struct ps_place_request *key)
{
    return key->row_width == 0 || key->max_rows == 0
               ? UINT32_MAX
               : (uint64_t)key->row_width * key->max_rows;
}

/* Elements that are not split: whole rows, and a multiple of PART_UNIT if a
 * partition may have as many rows. */
static uint64_t part_unit(const struct ps_place_request *key)
{
    uint64_t unit = key->row_width == 0 ? 1 : key->row_width;

    while (unit % PART_UNIT != 0 && 2 * unit <= max_part_elements(key)) {
        unit *= 2;
    }
    return unit;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* Elements of a partition such that each server has equally many, and the first
 * replies leave when a small share of the key has arrived: they need one
 * partition of each server from all contributors. At least WAVE_PART_MIN. */
static uint64_t wave_part_elements(const struct ps_place_request *key)
{
    const uint32_t servers = key->servers;
    uint64_t all = key->count * key->element_bytes;
    uint64_t wave = ps_max_u64(all / WAVES, WAVE_MIN);
    uint64_t piece = ps_min_u64(ps_max_u64(wave / servers, WAVE_PART_MIN),
                                PS_PARTITION_BYTES_DEFAULT);
    uint64_t n = div_up(key->count, servers * div_up(all, servers * piece));

    return div_up(n, PART_UNIT) * PART_UNIT;
}

static uint64_t part_elements(const struct ps_place_request *key)
{
    uint64_t most = PS_PARTITION_BYTES_DEFAULT / key->element_bytes;
    uint64_t n = key->partition_bytes != 0
                     ? key->partition_bytes / key->element_bytes
                     : most;
    uint64_t unit = part_unit(key);

    /* Rows keys have large partitions, because a round has few of their
     * rows. */
    if (key->partition_bytes == 0 && key->servers > 0 && key->row_width <= 1 &&
        key->count <= most * PS_KEY_PARTS_MAX) {
        return wave_part_elements(key);
    }
    n = ps_min_u64(n, max_part_elements(key));
    return n < unit ? unit : n - n % unit;
}

/* Server with the fewest bytes of the job, then of all jobs, then first by
 * name. */
static struct ps_place_server *least_loaded(struct ps_place_server *servers,
                                            uint32_t count)
{
    struct ps_place_server *best = &servers[0];

    for (uint32_t i = 1; i < count; i++) {
        struct ps_place_server *s = &servers[i];

        if (s->bytes < best->bytes ||
            (s->bytes == best->bytes && s->load < best->load)) {
            best = s;
        }
    }
    return best;
}

static void add_server_load(struct ps_place_server *s, uint64_t bytes)
{
    s->bytes += bytes;
    s->load += bytes;
}

static void add_part(struct part_list *p, uint32_t node, uint64_t count)
{
    assert(p->count < p->capacity);
    p->items[p->count++] = (struct ps_place_part){.node = node,
                                                  .count = (uint32_t)count};
}

static void place_balanced(const struct ps_place_request *key, uint64_t piece,
                           struct ps_place_server *servers,
                           uint32_t server_count, struct part_list *out)
{
    for (uint64_t left = key->count; left > 0;) {
        uint64_t n = ps_min_u64(left, piece);
        uint32_t node = 0;

        if (server_count > 0) {
            struct ps_place_server *s = least_loaded(servers, server_count);

            add_server_load(s, n * key->element_bytes);
            node = s->node;
        }
        add_part(out, node, n);
        left -= n;
    }
}

/* round(n / S * i) as in MXNet's KVStore: in double, half away from zero. */
static uint64_t mxnet_bound(uint64_t count, uint32_t servers, uint32_t i)
{
    double x = (double)count / servers * i;
    uint64_t down = (uint64_t)x;

    if (i == servers) {
        return count;
    }
    return x - (double)down >= 0.5 ? down + 1 : down;
}

static void add_parts_on(const struct ps_place_request *key, uint64_t piece,
                         struct ps_place_server *s, uint64_t count,
                         struct part_list *out)
{
    add_server_load(s, count * key->element_bytes);
    for (uint64_t left = count; left > 0;) {
        uint64_t n = ps_min_u64(left, piece);

        add_part(out, s->node, n);
        left -= n;
    }
}

/* Server i of the formula is server i of those that get partitions, or, if they
 * are fewer, one of them. */
static void place_mxnet(const struct ps_place_request *key, uint64_t piece,
                        struct ps_place_server *servers, uint32_t server_count,
                        struct part_list *out)
{
    uint64_t width = key->row_width == 0 ? 1 : key->row_width;
    uint64_t from = 0;

    if (key->count < key->big_array_bound) {
        /* Both factors are reduced first, to avoid overflow. */
        uint64_t i = (key->mxnet_key % key->servers) *
                     (MXNET_FACTOR % key->servers) % key->servers;

        add_parts_on(key, piece, &servers[i % server_count], key->count, out);
        return;
    }
    for (uint32_t i = 0; i < key->servers; i++) {
        uint64_t to = width *
                      mxnet_bound(key->count / width, key->servers, i + 1);

        if (to > from) {
            add_parts_on(key, piece, &servers[i % server_count], to - from,
                         out);
        }
        from = to;
    }
}

int ps_place_request(const struct ps_place_request *key,
                     struct ps_place_server *servers, uint32_t server_count,
                     struct ps_place_part **ret_parts, uint32_t *ret_count)
{
    uint64_t piece = part_elements(key);
    /* mxnet placement adds up to one partial partition for each server. */
    uint64_t most = div_up(key->count, piece);
    struct part_list out = {0};

    assert(key->count > 0 && key->element_bytes > 0);
    assert(key->row_width == 0 || key->count % key->row_width == 0);
    assert(server_count == 0 || key->servers > 0);
    if (piece > UINT32_MAX) {
        return PS_E_TOOBIG;
    }
    if (most > PS_KEY_PARTS_MAX) {
        return PS_E_TOOBIG;
    }
    out.capacity = (uint32_t)most + key->servers;
    out.items = ps_try_alloc(out.capacity * sizeof(*out.items));
    if (out.items == NULL) {
        return PS_E_NOMEM;
    }
    if (key->policy == PS_PLACEMENT_MXNET && server_count > 0) {
        place_mxnet(key, piece, servers, server_count, &out);
    } else {
        place_balanced(key, piece, servers, server_count, &out);
    }
    *ret_parts = out.items;
    *ret_count = out.count;
    return 0;
}

uint32_t ps_place_reassign(struct ps_place_part *parts, uint32_t count,
                           uint32_t element, uint32_t gone,
                           struct ps_place_server *servers,
                           uint32_t server_count)
{
    uint32_t moved = 0;

    assert(server_count > 0);
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].node == gone) {
            struct ps_place_server *s = least_loaded(servers, server_count);

            add_server_load(s, (uint64_t)parts[i].count * element);
            parts[i].node = s->node;
            moved++;
        }
    }
    return moved;
}

/* ----------------------------------------------------------------- balance */

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

/* ------------------------------------------------------------------ demand */

/* Partitions whose rounds may be open at once, at least. */
#define OPEN_ROUNDS_MIN      2u
/* Limit of memory for second versions of values. Rounds beyond it wait, which
 * costs less than memory for two versions of all values. */
#define PENDING_VERSIONS_MAX (64ull * 1024 * 1024)
/* Bytes of a partition's table entry on a server. */
#define PART_OVERHEAD_BYTES  512u

void ps_demand_profile_set(struct ps_demand_profile *kind,
                           const struct ps_optim *optim,
                           const struct ps_compression *compress)
{
    *kind = (struct ps_demand_profile){
        .encodes_values = compress->bidirectional && optim == NULL};
    if (optim != NULL) {
        kind->has_optimizer = true;
        kind->step_buffers = ps_optim_state_count(optim) +
                             (ps_optim_needs_norms(optim) ? 1u : 0u);
        kind->sum_buffers = ps_optim_rounds_per_step(optim) > 1 ? 1 : 0;
    }
}

/* Pool bytes of a value. A small value also travels in a batch, whose size
 * class adds less than a quarter; this can exceed the cost in a class of its
 * own. */
static uint64_t part_value_bytes(uint8_t dtype, uint64_t count)
{
    const uint64_t len = count * ps_dtype_size(dtype);
    const uint64_t cost = ps_pool_cost(len);

    return len > PS_BATCH_PART_MAX ? cost
                                   : ps_max_u64(cost, len + (len + 3) / 4);
}

static uint64_t part_stored_bytes(const struct ps_demand_profile *kind,
                                  uint8_t dtype, uint64_t count)
{
    const uint64_t value = part_value_bytes(dtype, count);
    uint64_t all = value + PART_OVERHEAD_BYTES;

    if (kind->has_optimizer && ps_dtype_is_real(dtype)) {
        const bool half = !ps_dtype_is_float(dtype);
        const uint64_t wide = ps_pool_cost(
            count * (half ? sizeof(float) : ps_dtype_size(dtype)));

        all += wide * (kind->step_buffers + (half ? 1u : 0u));
        all += value * kind->sum_buffers;
    }
    if (kind->encodes_values && dtype == PS_DTYPE_FLOAT32) {
        all += 3 * value; /* Residual, encoded values of two versions. */
    }
    return all;
}

void ps_demand_add(struct ps_demand *n, const struct ps_demand_profile *kind,
                   uint8_t dtype, uint64_t count)
{
    const uint64_t value = part_value_bytes(dtype, count);

    n->stored_bytes += part_stored_bytes(kind, dtype, count);
    n->value_bytes += value;
    n->largest_part_bytes = ps_max_u64(n->largest_part_bytes, value);
}

void ps_demand_remove(struct ps_demand *n, const struct ps_demand_profile *kind,
                      uint8_t dtype, uint64_t count)
{
    n->stored_bytes -= part_stored_bytes(kind, dtype, count);
    n->value_bytes -= part_value_bytes(dtype, count);
}

uint64_t ps_demand_round_bytes(const struct ps_demand *n, uint32_t slots)
{
    const uint64_t frame = ps_pool_cost(PS_BATCH_FRAME_MAX + PS_BATCH_PART_MAX);

    return slots * ps_min_u64(n->value_bytes,
                              OPEN_ROUNDS_MIN *
                                  ps_max_u64(n->largest_part_bytes, frame));
}

uint64_t ps_demand_bytes(const struct ps_demand *n, uint32_t slots)
{
    return n->stored_bytes + ps_min_u64(n->value_bytes, PENDING_VERSIONS_MAX) +
           ps_demand_round_bytes(n, slots);
}
