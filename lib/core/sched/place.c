/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/place.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>

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
static uint64_t wave_part_elements(const struct ps_place_request *key,
                                   uint32_t servers)
{
    uint64_t all = key->count * key->element_bytes;
    uint64_t wave = ps_max_u64(all / WAVES, WAVE_MIN);
    uint64_t piece = ps_min_u64(ps_max_u64(wave / servers, WAVE_PART_MIN),
                                PS_PARTITION_BYTES_DEFAULT);
    uint64_t n = div_up(key->count, servers * div_up(all, servers * piece));

    return div_up(n, PART_UNIT) * PART_UNIT;
}

static uint64_t part_elements(const struct ps_place_request *key,
                              uint32_t servers)
{
    uint64_t most = PS_PARTITION_BYTES_DEFAULT / key->element_bytes;
    uint64_t n = key->partition_bytes != 0
                     ? key->partition_bytes / key->element_bytes
                     : most;
    uint64_t unit = part_unit(key);

    /* Rows keys have large partitions, because a round has few of their
     * rows. */
    if (key->partition_bytes == 0 && servers > 0 && key->row_width <= 1 &&
        key->count <= most * PS_KEY_PARTS_MAX) {
        return wave_part_elements(key, servers);
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

static void place_mxnet(const struct ps_place_request *key, uint64_t piece,
                        struct ps_place_server *servers, uint32_t server_count,
                        struct part_list *out)
{
    uint64_t width = key->row_width == 0 ? 1 : key->row_width;
    uint64_t from = 0;

    if (key->count < key->big_array_bound) {
        /* Both factors are reduced first, to avoid overflow. */
        uint64_t i = (key->mxnet_key % server_count) *
                     (MXNET_FACTOR % server_count) % server_count;

        add_parts_on(key, piece, &servers[i], key->count, out);
        return;
    }
    for (uint32_t i = 0; i < server_count; i++) {
        uint64_t to = width *
                      mxnet_bound(key->count / width, server_count, i + 1);

        if (to > from) {
            add_parts_on(key, piece, &servers[i], to - from, out);
        }
        from = to;
    }
}

int ps_place_request(const struct ps_place_request *key,
                     struct ps_place_server *servers, uint32_t server_count,
                     struct ps_place_part **ret_parts, uint32_t *ret_count)
{
    uint64_t piece = part_elements(key, server_count);
    /* mxnet placement adds up to one partial partition for each server. */
    uint64_t most = div_up(key->count, piece);
    struct part_list out = {0};

    assert(key->count > 0 && key->element_bytes > 0);
    assert(key->row_width == 0 || key->count % key->row_width == 0);
    if (piece > UINT32_MAX) {
        return PS_E_TOOBIG;
    }
    if (most > PS_KEY_PARTS_MAX) {
        return PS_E_TOOBIG;
    }
    out.capacity = (uint32_t)most + server_count;
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
