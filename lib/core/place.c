/* SPDX-License-Identifier: Apache-2.0 */
#include "core/place.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>

#define PIECE_UNIT     64u /* Elements; a partition starts at a multiple of it. */
#define CLASSIC_FACTOR 9973u
/* Without a size given: a wave is one piece on each server. */
#define WAVES          64u
#define WAVE_MIN       (256u * 1024u)
#define WAVE_PIECE_MIN (32u * 1024u)

struct parts {
    struct ps_place_part *items;
    uint32_t count;
    uint32_t capacity;
};

/* Elements of a part at most. */
static uint64_t most_of(const struct ps_place_key *key)
{
    return key->width == 0 || key->rows_max == 0
               ? UINT32_MAX
               : (uint64_t)key->width * key->rows_max;
}

/* Elements that are never cut apart: whole rows, a multiple of PIECE_UNIT as
 * far as a part of so many rows is allowed. */
static uint64_t unit_of(const struct ps_place_key *key)
{
    uint64_t unit = key->width == 0 ? 1 : key->width;

    while (unit % PIECE_UNIT != 0 && 2 * unit <= most_of(key)) {
        unit *= 2;
    }
    return unit;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* As many pieces for each server, of a size at which the first answers leave
 * when a small share of the key has come: before, one piece of every server
 * has to arrive from everybody. Not smaller than pays. */
static uint64_t even_count(const struct ps_place_key *key, uint32_t servers)
{
    uint64_t all = key->count * key->element;
    uint64_t wave = ps_max_u64(all / WAVES, WAVE_MIN);
    uint64_t piece = ps_min_u64(ps_max_u64(wave / servers, WAVE_PIECE_MIN),
                                PS_PARTITION_BYTES_DEFAULT);
    uint64_t n = div_up(key->count, servers * div_up(all, servers * piece));

    return div_up(n, PIECE_UNIT) * PIECE_UNIT;
}

static uint64_t piece_count(const struct ps_place_key *key, uint32_t servers)
{
    uint64_t most = PS_PARTITION_BYTES_DEFAULT / key->element;
    uint64_t n = key->partition_bytes != 0 ? key->partition_bytes / key->element
                                           : most;
    uint64_t unit = unit_of(key);

    /* Rows go in large pieces, because few of them are sent in a round. */
    if (key->partition_bytes == 0 && servers > 0 && key->width <= 1 &&
        key->count <= most * PS_KEY_PARTS_MAX) {
        return even_count(key, servers);
    }
    n = ps_min_u64(n, most_of(key));
    return n < unit ? unit : n - n % unit;
}

/* Fewest bytes of the job, then of all jobs, then first by name. */
static struct ps_place_server *least(struct ps_place_server *servers,
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

static void give(struct ps_place_server *s, uint64_t bytes)
{
    s->bytes += bytes;
    s->load += bytes;
}

static void add(struct parts *p, uint32_t node, uint64_t count)
{
    assert(p->count < p->capacity);
    p->items[p->count++] = (struct ps_place_part){.node = node,
                                                  .count = (uint32_t)count};
}

static void place_balanced(const struct ps_place_key *key, uint64_t piece,
                           struct ps_place_server *servers,
                           uint32_t server_count, struct parts *out)
{
    for (uint64_t left = key->count; left > 0;) {
        uint64_t n = ps_min_u64(left, piece);
        uint32_t node = 0;

        if (server_count > 0) {
            struct ps_place_server *s = least(servers, server_count);

            give(s, n * key->element);
            node = s->node;
        }
        add(out, node, n);
        left -= n;
    }
}

/* round(n / S * i) of the classic store: in double, half away from zero. */
static uint64_t classic_bound(uint64_t count, uint32_t servers, uint32_t i)
{
    double x = (double)count / servers * i;
    uint64_t down = (uint64_t)x;

    if (i == servers) {
        return count;
    }
    return x - (double)down >= 0.5 ? down + 1 : down;
}

static void cut_on(const struct ps_place_key *key, uint64_t piece,
                   struct ps_place_server *s, uint64_t count, struct parts *out)
{
    give(s, count * key->element);
    for (uint64_t left = count; left > 0;) {
        uint64_t n = ps_min_u64(left, piece);

        add(out, s->node, n);
        left -= n;
    }
}

static void place_classic(const struct ps_place_key *key, uint64_t piece,
                          struct ps_place_server *servers,
                          uint32_t server_count, struct parts *out)
{
    uint64_t width = key->width == 0 ? 1 : key->width;
    uint64_t from = 0;

    if (key->count < key->big_array_bound) {
        /* Both factors are reduced first, so that nothing overflows. */
        uint64_t i = (key->number % server_count) *
                     (CLASSIC_FACTOR % server_count) % server_count;

        cut_on(key, piece, &servers[i], key->count, out);
        return;
    }
    for (uint32_t i = 0; i < server_count; i++) {
        uint64_t to = width *
                      classic_bound(key->count / width, server_count, i + 1);

        if (to > from) {
            cut_on(key, piece, &servers[i], to - from, out);
        }
        from = to;
    }
}

int ps_place_key(const struct ps_place_key *key,
                 struct ps_place_server *servers, uint32_t server_count,
                 struct ps_place_part **ret_parts, uint32_t *ret_count)
{
    uint64_t piece = piece_count(key, server_count);
    /* In the classic way each server may end with a part that is not full. */
    uint64_t most = div_up(key->count, piece);
    struct parts out = {0};

    assert(key->count > 0 && key->element > 0);
    assert(key->width == 0 || key->count % key->width == 0);
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
        place_classic(key, piece, servers, server_count, &out);
    } else {
        place_balanced(key, piece, servers, server_count, &out);
    }
    *ret_parts = out.items;
    *ret_count = out.count;
    return 0;
}

uint32_t ps_place_move(struct ps_place_part *parts, uint32_t count,
                       uint32_t element, uint32_t gone,
                       struct ps_place_server *servers, uint32_t server_count)
{
    uint32_t moved = 0;

    assert(server_count > 0);
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].node == gone) {
            struct ps_place_server *s = least(servers, server_count);

            give(s, (uint64_t)parts[i].count * element);
            parts[i].node = s->node;
            moved++;
        }
    }
    return moved;
}
