/* SPDX-License-Identifier: Apache-2.0 */
#include "support/world_data.h"

#include "base/alloc.h"

#include <string.h>

static uint64_t hash_u64(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    x ^= x >> 33;
    return x;
}

/* Jobs that run at the same time have different data. */
static uint64_t data_seed(const struct world *w)
{
    return w->opt.data_seed + w->current_job * (uint64_t)1000000007;
}

/* Numbers whose float32 sum depends on the order of addition. */
static double order_sensitive(uint64_t h)
{
    static const double v[] = {1e8, 1, -1e8, 1e-8, 3, -1, 0.5, 12345.678};

    return v[h % 8] * (double)(1 + h / 8 % 3);
}

/* Factors whose products neither overflow nor vanish. */
static double product_factor(uint64_t h)
{
    static const double v[] = {1.1, -0.7, 1.3, 0.9, -2.1, 0.3, 1.7, 0.6};

    return v[h % 8];
}

/* Some float16 values; as bfloat16 they are other usable numbers. */
static const uint16_t halves[] = {0x3c00, 0xbc01, 0x3555, 0x4233,
                                  0xb266, 0x2e66, 0x48ab, 0xc0cd};

static void put_element(void *dst, enum ps_dtype dtype, uint64_t j, double f,
                        int64_t n)
{
    switch (dtype) {
    case PS_DTYPE_FLOAT16:
    case PS_DTYPE_BFLOAT16:
        ((uint16_t *)dst)[j] = halves[(uint64_t)(n + 300) % 8];
        break;
    case PS_DTYPE_FLOAT32:
        ((float *)dst)[j] = (float)f;
        break;
    case PS_DTYPE_FLOAT64:
        ((double *)dst)[j] = f * 1e8;
        break;
    case PS_DTYPE_INT32:
        ((int32_t *)dst)[j] = (int32_t)n;
        break;
    case PS_DTYPE_INT64:
        ((int64_t *)dst)[j] = n * 1000003;
        break;
    default:
        break; /* Worlds use these six types only. */
    }
}

enum ps_reduce world_data_reduce(const struct world *w, uint32_t i)
{
    if (w->opt.fold != PS_REDUCE_SUM && w->opt.key[i].width == 0) {
        return w->opt.fold;
    }
    return w->opt.mean ? PS_REDUCE_MEAN : PS_REDUCE_SUM;
}

void world_data_fill(const struct world *w, void *dst, uint32_t i,
                     uint32_t rank, uint64_t round)
{
    uint64_t base = hash_u64(data_seed(w) * 1000003 + i * 7919 + rank * 104729 +
                             round * 1299709);

    for (uint64_t j = 0; j < w->opt.key[i].count; j++) {
        uint64_t h = hash_u64(base + j);

        put_element(dst, w->opt.key[i].dtype, j,
                    w->opt.fold == PS_REDUCE_PRODUCT ? product_factor(h)
                                                     : order_sensitive(h),
                    (int64_t)(h % 1000) - 300);
    }
}

uint32_t world_data_owner_rank(const struct world *w, uint64_t j)
{
    return (uint32_t)(j % w->opt.workers);
}

void world_data_count(const struct world *w, void *dst, uint32_t i,
                      uint32_t rank, bool init)
{
    for (uint64_t j = 0; j < w->opt.key[i].count; j++) {
        int n = init ? WORLD_COUNT_INITIAL
                     : world_data_owner_rank(w, j) == rank;

        switch (w->opt.key[i].dtype) {
        case PS_DTYPE_FLOAT32:
            ((float *)dst)[j] = (float)n;
            break;
        case PS_DTYPE_FLOAT64:
            ((double *)dst)[j] = n;
            break;
        case PS_DTYPE_INT32:
            ((int32_t *)dst)[j] = n;
            break;
        case PS_DTYPE_INT64:
            ((int64_t *)dst)[j] = n;
            break;
        default:
            break; /* Worlds use these four types only. */
        }
    }
}

int64_t world_data_push_count(const struct world *w, const void *src,
                              uint32_t i, uint64_t j)
{
    switch (w->opt.key[i].dtype) {
    case PS_DTYPE_FLOAT32:
        return (int64_t)((const float *)src)[j];
    case PS_DTYPE_FLOAT64:
        return (int64_t)((const double *)src)[j];
    case PS_DTYPE_INT32:
        return ((const int32_t *)src)[j];
    case PS_DTYPE_INT64:
        return ((const int64_t *)src)[j];
    default:
        return -1;
    }
}

static uint32_t some_rows(const struct world *w, uint32_t i, uint64_t base,
                          uint32_t *row)
{
    static const uint32_t of_eight[] = {0, 1, 4, 8};
    uint32_t all = (uint32_t)(w->opt.key[i].count / w->opt.key[i].width);
    uint32_t share = of_eight[hash_u64(base) % 4];
    uint32_t count = 0;

    for (uint32_t r = 0; r < all; r++) {
        if (hash_u64(base + 1 + r) % 8 < share) {
            row[count++] = r;
        }
    }
    return count;
}

static uint64_t rows_base(const struct world *w, uint32_t i, uint32_t rank,
                          uint64_t round)
{
    return hash_u64(data_seed(w) * 15485863 + i * 6700417 + rank * 15487469 +
                    round * 32452843);
}

uint32_t world_data_pushed(const struct world *w, uint32_t i, uint32_t rank,
                           uint64_t round, uint32_t *row)
{
    return some_rows(w, i, rows_base(w, i, rank, round), row);
}

uint32_t world_data_pulled(const struct world *w, uint32_t i, uint32_t rank,
                           uint64_t round, uint32_t *row)
{
    return some_rows(w, i, hash_u64(rows_base(w, i, rank, round)), row);
}

bool world_data_is_collective(const struct world *w, uint32_t i)
{
    return w->opt.key[i].kind == PS_KEY_KIND_COLLECTIVE;
}

bool world_data_is_exact(const struct world *w, uint32_t i)
{
    const struct world_key *k = &w->opt.key[i];

    if (world_data_is_collective(w, i)) {
        return true;
    }
    return !w->opt.optimizer &&
           (w->opt.compress.name == NULL || k->dtype != PS_DTYPE_FLOAT32 ||
            k->width != 0 || world_data_kind(w, i) == WORLD_BROADCAST);
}

/* Zeroes all rows but those that the rank pushes. */
static void clear_other_rows(const struct world *w, void *dst, uint32_t i,
                             uint32_t rank, uint64_t round)
{
    const struct world_key *k = &w->opt.key[i];
    size_t bytes = k->width * ps_dtype_size(k->dtype);
    uint32_t all = (uint32_t)(k->count / k->width);
    uint32_t *row = ps_calloc(all, sizeof(*row));
    uint32_t count = world_data_pushed(w, i, rank, round, row);

    for (uint32_t r = 0, n = 0; r < all; r++) {
        if (n < count && row[n] == r) {
            n++;
        } else {
            memset((uint8_t *)dst + r * bytes, 0, bytes);
        }
    }
    ps_free(row);
}

/* Adds a contribution to a reduction other than a sum. */
#define FOLD(type, product)                                                    \
    do {                                                                       \
        type *to = (type *)dst + j;                                            \
        type x = ((const type *)src)[j];                                       \
                                                                               \
        if (how == PS_REDUCE_PRODUCT) {                                        \
            *to = (type)((product)*to * (product)x);                           \
        } else if (how == PS_REDUCE_MIN ? x < *to : x > *to) {                 \
            *to = x;                                                           \
        }                                                                      \
    } while (0)

static void fold_array(void *dst, const void *src, enum ps_dtype dtype,
                       uint64_t count, enum ps_reduce how)
{
    for (uint64_t j = 0; j < count; j++) {
        switch (dtype) {
        case PS_DTYPE_FLOAT32:
            FOLD(float, float);
            break;
        case PS_DTYPE_FLOAT64:
            FOLD(double, double);
            break;
        case PS_DTYPE_INT32:
            FOLD(int32_t, uint32_t);
            break;
        case PS_DTYPE_INT64:
            FOLD(int64_t, uint64_t);
            break;
        default:
            break;
        }
    }
}

static void add_array(void *dst, const void *src, enum ps_dtype dtype,
                      uint64_t count)
{
    for (uint64_t j = 0; j < count; j++) {
        switch (dtype) {
        case PS_DTYPE_FLOAT32:
            ((float *)dst)[j] = ((float *)dst)[j] + ((const float *)src)[j];
            break;
        case PS_DTYPE_FLOAT64:
            ((double *)dst)[j] = ((double *)dst)[j] + ((const double *)src)[j];
            break;
        case PS_DTYPE_INT32:
            ((uint32_t *)dst)[j] += ((const uint32_t *)src)[j];
            break;
        case PS_DTYPE_INT64:
            ((uint64_t *)dst)[j] += ((const uint64_t *)src)[j];
            break;
        default:
            break;
        }
    }
}

struct tree {
    const struct world *w;
    uint32_t key;
    uint64_t round;
    size_t bytes;
    bool over_agents;
    const uint32_t *rank; /* Not over_agents: the ranks of one agent. */
};

static uint32_t left_leaves(uint32_t n)
{
    uint32_t p = 1;

    while (p * 2 < n) {
        p *= 2;
    }
    return p;
}

static void agent_range(const struct world *w, uint32_t agent,
                        uint32_t *ret_from, uint32_t *ret_to)
{
    *ret_from = 0;
    while ((uint64_t)*ret_from * w->opt.agents / w->opt.workers < agent) {
        (*ret_from)++;
    }
    *ret_to = *ret_from;
    while (*ret_to < w->opt.workers &&
           (uint64_t)*ret_to * w->opt.agents / w->opt.workers == agent) {
        (*ret_to)++;
    }
}

static bool reduce_tree(const struct tree *t, uint32_t from, uint32_t to,
                        void *dst);

/* Reduces the ranks of one agent. False: it has no contribution. */
static bool reduce_agent(const struct tree *t, uint32_t agent, void *dst)
{
    uint32_t *ranks = ps_alloc(t->w->opt.workers * sizeof(*ranks));
    struct tree local = *t;
    uint32_t n = 0;
    uint32_t from;
    uint32_t to;
    bool any;

    local.over_agents = false;
    local.rank = ranks;
    agent_range(t->w, agent, &from, &to);
    for (uint32_t rank = from; rank < to; rank++) {
        /* Rows keys have a place for every rank, dense keys only for
         * contributors. */
        if (t->w->opt.key[t->key].width != 0 ||
            !world_data_skips(t->w, t->key, rank, t->round)) {
            ranks[n++] = rank;
        }
    }
    any = reduce_tree(&local, 0, n, dst);
    ps_free(ranks);
    return any;
}

/* Reduces a subtree. False: it has no contribution. */
static bool reduce_tree(const struct tree *t, uint32_t from, uint32_t to,
                        void *dst)
{
    uint32_t n = to - from;
    void *right;

    if (n == 0) {
        return false;
    }
    if (n == 1 && !t->over_agents) {
        uint32_t rank = t->rank[from];

        if (world_data_skips(t->w, t->key, rank, t->round)) {
            return false;
        }
        world_data_fill(t->w, dst, t->key, rank, t->round);
        if (t->w->opt.key[t->key].width != 0) {
            clear_other_rows(t->w, dst, t->key, rank, t->round);
        }
        return true;
    }
    if (n == 1) {
        return reduce_agent(t, from, dst);
    }
    if (!reduce_tree(t, from, from + left_leaves(n), dst)) {
        return reduce_tree(t, from + left_leaves(n), to, dst);
    }
    right = ps_alloc(t->bytes);
    if (!reduce_tree(t, from + left_leaves(n), to, right)) {
        ps_free(right);
        return true;
    }
    if (world_data_reduce(t->w, t->key) >= PS_REDUCE_MIN) {
        fold_array(dst, right, t->w->opt.key[t->key].dtype,
                   t->w->opt.key[t->key].count, t->w->opt.fold);
    } else {
        add_array(dst, right, t->w->opt.key[t->key].dtype,
                  t->w->opt.key[t->key].count);
    }
    ps_free(right);
    return true;
}

enum world_kind world_data_kind(const struct world *w, uint32_t i)
{
    if (w->opt.key[i].width != 0) {
        return WORLD_ROWS;
    }
    return w->opt.collectives || world_data_is_collective(w, i)
               ? (enum world_kind)(i % 3)
               : WORLD_PUSHPULL;
}

/* Epoch of a round, with its first and last round. */
static uint64_t epoch_of(const struct world *w, uint64_t round,
                         uint64_t *ret_from, uint64_t *ret_to)
{
    uint64_t e = 0;

    while ((e + 1) * w->opt.rounds / w->opt.epochs < round) {
        e++;
    }
    *ret_from = e * w->opt.rounds / w->opt.epochs + 1;
    *ret_to = (e + 1) * w->opt.rounds / w->opt.epochs;
    return e;
}

/* True if the rank has no data in this round. One rank of each epoch has data
 * up to the last round but one. */
static bool is_out_of_data(const struct world *w, uint32_t rank, uint64_t round)
{
    uint64_t from;
    uint64_t to;

    if (w->opt.epochs == 0 || round == 0) {
        return false;
    }
    uint64_t base = hash_u64(data_seed(w) * 49979687 +
                             epoch_of(w, round, &from, &to));
    uint64_t data = rank == base % w->opt.workers
                        ? to - from
                        : hash_u64(base + rank) % (to - from + 1);

    return round - from >= data;
}

bool world_data_skips(const struct world *w, uint32_t i, uint32_t rank,
                      uint64_t round)
{
    return !world_data_is_collective(w, i) && is_out_of_data(w, rank, round);
}

bool world_data_all_skip(const struct world *w, uint32_t i, uint64_t round)
{
    uint64_t from;
    uint64_t to = 0;

    if (w->opt.epochs != 0 && round != 0) {
        (void)epoch_of(w, round, &from, &to);
    }
    return !world_data_is_collective(w, i) && to != 0 && round == to;
}

uint32_t world_data_root(const struct world *w, uint64_t round)
{
    uint32_t first = (uint32_t)(round % w->opt.workers);

    for (uint32_t n = 0; n < w->opt.workers && !w->opt.lone_root; n++) {
        uint32_t rank = (first + n) % w->opt.workers;

        if (!is_out_of_data(w, rank, round)) {
            return rank;
        }
    }
    return first;
}

void world_data_expect(const struct world *w, void *dst, uint32_t i,
                       uint64_t round)
{
    const struct world_key *k = &w->opt.key[i];
    struct tree t = {.w = w,
                     .key = i,
                     .round = round,
                     .bytes = k->count * ps_dtype_size(k->dtype),
                     .over_agents = true};
    uint32_t n = 0;

    if (world_data_all_skip(w, i, round)) {
        world_data_expect(w, dst, i, round - 1);
        return;
    }
    for (uint32_t rank = 0; rank < w->opt.workers; rank++) {
        n += !world_data_skips(w, i, rank, round);
    }
    if (world_data_kind(w, i) == WORLD_BROADCAST) {
        world_data_fill(w, dst, i, world_data_root(w, round), round);
        return;
    }
    (void)reduce_tree(&t, 0, w->opt.agents, dst);
    if (world_data_reduce(w, i) != PS_REDUCE_MEAN) {
        return;
    }
    for (uint64_t j = 0; j < k->count; j++) {
        switch (k->dtype) {
        case PS_DTYPE_FLOAT32:
            ((float *)dst)[j] /= (float)n;
            break;
        case PS_DTYPE_FLOAT64:
            ((double *)dst)[j] /= (double)n;
            break;
        case PS_DTYPE_INT32:
            ((int32_t *)dst)[j] /= (int32_t)n;
            break;
        case PS_DTYPE_INT64:
            ((int64_t *)dst)[j] /= (int64_t)n;
            break;
        default:
            break;
        }
    }
}
