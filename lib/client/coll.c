/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives out of rounds. Every worker takes part in the same collectives
 * in the same order; the n-th of each worker is one.
 *
 *     MEET    a round of a small key: all learn whether they ask for the same,
 *             and how many rows each brings
 *     TURN    those that met before have their rounds under way
 *     FOLLOW  some have joined, see psc_join_start(): those who have not say
 *             what they do, and the others do the same with nothing to give
 *     DIFFER  they do not: a round in which each says what it asks for, so
 *             that everybody's error names everybody
 *     SPLITS  alltoall: who sends how much to whom
 *     DATA    allreduce is one pushpull; an array that one rank gives to all is
 *             a broadcast in words of 8 bytes; allgather is one of these for
 *             each rank, alltoall for each pair of ranks, of which only the
 *             receiver wants the value; reduce-scatter is one round for each
 *             chunk, whose value only its owner wants
 *
 * The keys of DATA are named by what they hold, not by the collective: the
 * same shapes use the same keys again. When some rank has seen EXACT_MAX keys,
 * which all learn in MEET, sizes are rounded up, so there is a bounded number
 * of keys; they are gone with the job. The rounds of a key belong to the same
 * collectives on all ranks because of TURN: without it, one that has met could
 * overtake an alltoall that waits for SPLITS, on some ranks and not on others. */
#include "client/coll.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"
#include "base/str.h"
#include "kernel/half.h"
#include "kernel/kernel.h"

#define DIMS_MAX   16u
#define NAME_MAX_  200u /* Of a collective. */
/* What one rank says in DIFFER: words of 8 characters. */
#define SAY_WORDS  24u
#define SAY_BYTES  (SAY_WORDS * 8u)
/* Sums of so many bits over all ranks stay within 64. */
#define HASH_BITS  48u
#define EXACT_MAX  256u
#define WORD       8u
/* Of alltoall: ranks that send so much to each of the others on average send
 * to each by itself. */
#define PAIR_BYTES 2048u

enum coll_kind {
    ALLREDUCE,
    BCAST,
    ALLGATHER,
    REDUCESCATTER,
    ALLTOALL,
    JOIN,
};

enum coll_stage { MEET, TURN, FOLLOW, DIFFER, SPLITS, DATA };

/* What a rank says in FOLLOW; zeros from those who have joined. */
enum {
    F_HERE,
    F_HASH,
    F_KIND,
    F_DTYPE,
    F_REDUCE,
    F_ROOT,
    F_COUNT,
    F_ROWS,
    F_ROW_BYTES,
    FOLLOW_WORDS
};

struct coll {
    struct psc_op *op;
    struct ps_list_node of_turn; /* From MEET on, until others may go on. */
    enum coll_kind kind;
    enum coll_stage stage;
    bool agree; /* All ask for the same. */
    char *name;
    char say[SAY_BYTES];
    uint64_t hash;
    uint32_t dtype;
    size_t row_bytes; /* Allgather, alltoall, reduce-scatter. */
    uint64_t rows;    /* This rank's first dimension. */
    uint64_t count;   /* Elements given. */
    size_t bytes;     /* Given. */
    double postscale;
    struct ps_shm_block *block; /* What is given; NULL: nothing. */
    size_t offset;
    bool staged;   /* The block is ours. */
    bool rounded;  /* Sizes of keys are. */
    bool joined;   /* It is a join, whatever kind it follows now. */
    uint32_t gone; /* Ranks that have joined. */
    int64_t meets; /* Of a join. */
    uint8_t *out;
    size_t out_size;
    struct psc_piece *pieces; /* Of a grouped allreduce; else NULL. */
    uint32_t piece_count;
    uint64_t *row_of;   /* By rank: rows that came from it. */
    uint64_t *splits;   /* Alltoall: own, then everybody's, W x W. */
    void *result;       /* Where no out was given and there are many parts. */
    size_t result_size; /* Of out or result, as far as it is filled. */
    struct psc_op **parts;
    uint32_t part_count;
    uint32_t part_cap;
    uint32_t open;
    int rc;
    char *text;
};

static const char *const kind_names[] = {
    [ALLREDUCE] = "allreduce", [BCAST] = "broadcast",
    [ALLGATHER] = "allgather", [REDUCESCATTER] = "reduce-scatter",
    [ALLTOALL] = "alltoall",   [JOIN] = "join",
};

void coll_name(const struct psc_op *op, char *text, size_t size)
{
    const struct coll *k = op->coll;

    if (k->joined) {
        snprintf(text, size, "join");
    } else if (k->name[0] == '\0') {
        snprintf(text, size, "%s", kind_names[k->kind]);
    } else {
        snprintf(text, size, "%s of '%s'", kind_names[k->kind], k->name);
    }
}

static uint64_t fnv(uint64_t h, const void *data, size_t size)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ p[i]) * 1099511628211ull;
    }
    return h;
}

/* ------------------------------------------------------------------- memory */

static struct ps_shm_block *spare_take(struct psc_client *c, size_t size)
{
    size_t best = PSC_SPARES;

    for (size_t i = 0; i < PSC_SPARES; i++) {
        const struct ps_shm_block *b = c->spares[i];

        if (b != NULL && b->size >= size && b->size / 2 <= size + 4096 &&
            (best == PSC_SPARES || b->size < c->spares[best]->size)) {
            best = i;
        }
    }
    if (best == PSC_SPARES) {
        return NULL;
    }
    struct ps_shm_block *b = c->spares[best];

    c->spares[best] = NULL;
    return b;
}

/* Memory that was just used is warm: a piece given back and taken again would
 * be filled with zeros by the kernel. */
static void spare_put(struct psc_client *c, struct ps_shm_block *b)
{
    struct ps_shm_block **at = &c->spares[c->next_spare];

    for (size_t i = 0; i < PSC_SPARES; i++) {
        if (c->spares[i] == NULL) {
            c->spares[i] = b;
            return;
        }
    }
    c->next_spare = (c->next_spare + 1) % PSC_SPARES;
    ps_shm_put(&c->shm, *at);
    *at = b;
}

static void release_given(struct coll *k)
{
    if (k->block == NULL) {
        return;
    }
    k->block->uses--;
    if (k->staged) {
        spare_put(k->op->client, k->block);
    }
    k->block = NULL;
}

static void leave_turn(struct coll *k)
{
    if (ps_list_linked(&k->of_turn)) {
        ps_list_remove(&k->of_turn);
    }
}

void coll_free(struct psc_op *op)
{
    struct coll *k = op->coll;

    if (k == NULL) {
        return;
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        op_free(k->parts[i]);
    }
    leave_turn(k);
    release_given(k);
    free(k->parts);
    free(k->name);
    free(k->pieces);
    free(k->row_of);
    free(k->splits);
    free(k->result);
    free(k->text);
    free(k);
    op->coll = NULL;
}

void coll_bury(struct psc_client *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->graves)) != NULL) {
        op_free(PS_CONTAINER(n, struct psc_op, of_key));
    }
}

/* -------------------------------------------------------------------- parts */

static void fail(struct coll *k, int rc, const char *text)
{
    if (k->rc == 0) {
        k->rc = rc;
        k->text = text != NULL ? strdup(text) : NULL;
    }
}

/* A part on the key of that name; `dtype` in elements of `count`. */
static int part_new(struct coll *k, enum op_kind kind, const char *full,
                    uint32_t dtype, uint64_t count, struct psc_op **ret_part)
{
    struct psc_client *c = k->op->client;
    struct key *key;
    struct psc_op *part;
    int rc;

    if (k->part_count == k->part_cap) {
        uint32_t cap = k->part_cap == 0 ? 4 : k->part_cap * 2;
        struct psc_op **grown = realloc(k->parts,
                                        cap * sizeof(struct psc_op *));

        if (grown == NULL) {
            return PSC_E_NOMEM;
        }
        k->parts = grown;
        k->part_cap = cap;
    }
    rc = key_want(c, full, dtype, count, &key);
    if (rc != 0) {
        return rc;
    }
    part = op_new(c, kind);
    if (part == NULL) {
        return PSC_E_NOMEM;
    }
    part->key = key;
    part->part_of = k;
    part->priority = k->op->priority;
    k->parts[k->part_count++] = part;
    *ret_part = part;
    return 0;
}

static void part_give(struct psc_op *part, size_t offset)
{
    struct coll *k = part->part_of;

    part->block = k->block;
    part->block->uses++;
    part->block_offset = k->offset + offset;
}

static void part_start(struct psc_op *part)
{
    struct coll *k = part->part_of;
    int rc;

    k->open++;
    rc = op_submit(part, NULL);
    if (rc != 0) {
        op_end(part, rc, NULL);
    }
}

/* What the latest round of the part brought. */
static const int64_t *part_words(const struct psc_op *part)
{
    return (const int64_t *)(const void *)part->key->data[part->version & 1];
}

/* A round of `count` words to which this rank adds its own. */
static int small_round(struct coll *k, const char *full, uint64_t count,
                       int64_t **ret_words, struct psc_op **ret_part)
{
    struct psc_op *part;
    int rc = part_new(k, OP_PUSHPULL, full, PS_DTYPE_INT64, count, &part);

    if (rc != 0) {
        return rc;
    }
    part->reduce = PSC_SUM;
    part->priority = INT32_MAX;
    rc = op_stage(part);
    if (rc != 0) {
        return rc;
    }
    *ret_words = ps_shm_data(part->block);
    memset(*ret_words, 0, count * WORD);
    *ret_part = part;
    return 0;
}

/* --------------------------------------------------------------------- copies */

bool coll_wants(const struct psc_op *part)
{
    const struct coll *k = part->part_of;

    return k->stage == DATA && k->rc == 0 && !k->op->freed &&
           part->out_bytes > 0 &&
           (k->out != NULL || k->result != NULL || k->pieces != NULL);
}

static void scaled(uint32_t dtype, void *dst, const void *src, uint64_t count,
                   double by)
{
    if (dtype == PS_DTYPE_FLOAT32) {
        const float *s = src;
        float *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = s[i] * (float)by;
        }
    } else if (dtype == PS_DTYPE_FLOAT16) {
        const uint16_t *s = src;
        uint16_t *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = ps_fp16_of_float(ps_float_of_fp16(s[i]) * (float)by);
        }
    } else if (dtype == PS_DTYPE_BFLOAT16) {
        const uint16_t *s = src;
        uint16_t *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = ps_bf16_of_float(ps_float_of_bf16(s[i]) * (float)by);
        }
    } else {
        const double *s = src;
        double *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = s[i] * by;
        }
    }
}

static void move(const struct coll *k, void *dst, const void *src, size_t bytes,
                 double by)
{
    if (by == 1) {
        ps_kernel_copy(dst, src, bytes);
    } else {
        scaled(k->dtype, dst, src, bytes / ps_dtype_size(k->dtype), by);
    }
}

void coll_copy(struct psc_op *part, const void *from)
{
    const struct coll *k = part->part_of;
    const uint8_t *at = from;

    if (k->pieces == NULL) {
        move(k, part->out, at + part->out_from, part->out_bytes, k->postscale);
        return;
    }
    for (uint32_t i = 0; i < k->piece_count; i++) {
        size_t bytes = k->pieces[i].count * ps_dtype_size(k->dtype);

        move(k, k->pieces[i].out, at, bytes, k->postscale);
        at += bytes;
    }
}

bool coll_copying(const struct psc_op *op)
{
    const struct coll *k = op->coll;

    for (uint32_t i = 0; k != NULL && i < k->part_count; i++) {
        if (k->parts[i]->state == OP_COPYING) {
            return true;
        }
    }
    return false;
}

struct psc_op *coll_open_part(struct psc_op *op)
{
    const struct coll *k = op->coll;

    if (k != NULL && k->stage == TURN) {
        k = PS_CONTAINER(ps_list_first(&op->client->turns), struct coll,
                         of_turn);
    }
    for (uint32_t i = 0; k != NULL && i < k->part_count; i++) {
        if (k->parts[i]->state != OP_DONE) {
            return k->parts[i];
        }
    }
    return op;
}

int coll_view(const struct psc_op *op, const void **ret_data, size_t *ret_bytes)
{
    const struct coll *k = op->coll;
    const struct psc_op *last;

    if (k->kind == JOIN) {
        return PSC_E_NOENT;
    }
    if (k->result != NULL || k->result_size == 0) {
        *ret_data = k->result;
        *ret_bytes = k->result_size;
        return 0;
    }
    if (k->pieces != NULL || k->postscale != 1) {
        return PSC_E_NOENT;
    }
    if (k->kind != ALLREDUCE && k->kind != BCAST) {
        *ret_data = k->out;
        *ret_bytes = k->result_size;
        return 0;
    }
    last = k->parts[k->part_count - 1];
    *ret_data = last->key->data[last->version & 1];
    *ret_bytes = k->result_size;
    return 0;
}

/* --------------------------------------------------------------------- DATA */

static void data_key(struct coll *k, const char *prefix, uint32_t dtype,
                     uint64_t *count, char *full, size_t size)
{
    uint64_t step = 512;

    while (k->rounded && step * 16 < *count) {
        step *= 2;
    }
    if (k->rounded) {
        *count = ps_round_up(*count, step);
    }
    snprintf(full, size, "%s.%s.%llu", prefix, ps_dtype_name(dtype),
             (unsigned long long)*count);
}

/* Beyond what is given, keys of rounded sizes read what lies behind it. */
static size_t slack(size_t bytes)
{
    return bytes / 8 + 512 * WORD + PS_SHM_ALIGN;
}

static int get_block(struct psc_client *c, size_t bytes,
                     struct ps_shm_block **ret_block)
{
    *ret_block = spare_take(c, bytes + slack(bytes));
    return *ret_block != NULL
               ? 0
               : ps_shm_get(&c->shm, bytes + slack(bytes), ret_block);
}

/* An array of the caller that ends where its memory ends. */
static int widen(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct ps_shm_block *wide;
    int rc;

    if (k->block == NULL || !k->rounded ||
        k->offset + k->bytes + slack(k->bytes) <= k->block->size) {
        return 0;
    }
    rc = get_block(c, k->bytes, &wide);
    if (rc != 0) {
        return rc;
    }
    memcpy(ps_shm_data(wide),
           (const uint8_t *)ps_shm_data(k->block) + k->offset, k->bytes);
    release_given(k);
    wide->uses++;
    k->block = wide;
    k->offset = 0;
    k->staged = true;
    return 0;
}

static int reduce_part(struct coll *k, const char *prefix, uint64_t from,
                       uint64_t count, bool want, size_t out_from)
{
    size_t size = ps_dtype_size(k->dtype);
    char full[PS_KEY_NAME_MAX + 1];
    uint64_t padded = count;
    struct psc_op *part;
    int rc;

    data_key(k, prefix, k->dtype, &padded, full, sizeof(full));
    rc = part_new(k, want ? OP_PUSHPULL : OP_PUSH, full, k->dtype, padded,
                  &part);
    if (rc != 0) {
        return rc;
    }
    part->reduce = k->op->reduce;
    part_give(part, from * size);
    if (want) {
        part->out = k->out != NULL ? k->out + out_from : k->result;
        part->out_bytes = count * size;
    }
    return 0;
}

/* Bytes that rank `root` gives, from `given` of its array on; of them, from
 * `from` on, `wanted` go to `out_from` of the result. */
struct stretch {
    size_t given; /* Whole words. */
    size_t bytes;
    size_t from;
    size_t wanted;
    size_t out_from;
};

static int give_part(struct coll *k, const char *prefix, uint32_t root,
                     const struct stretch *s)
{
    struct psc_client *c = k->op->client;
    char full[PS_KEY_NAME_MAX + 1];
    uint64_t words = (s->bytes + WORD - 1) / WORD;
    struct psc_op *part;
    int rc;

    data_key(k, prefix, PS_DTYPE_INT64, &words, full, sizeof(full));
    rc = part_new(k, OP_BROADCAST, full, PS_DTYPE_INT64, words, &part);
    if (rc != 0) {
        return rc;
    }
    part->root = root;
    if (root == c->rank) {
        part_give(part, s->given);
    }
    part->out = k->out != NULL
                    ? k->out + s->out_from
                    : (k->result != NULL ? (uint8_t *)k->result + s->out_from
                                         : NULL);
    part->out_from = s->from;
    part->out_bytes = s->wanted;
    part->aside = s->wanted == 0 || k->joined;
    return 0;
}

/* Room for what comes. A rank whose array is too small takes part all the
 * same, so that the others get theirs. */
static int make_room(struct coll *k, uint64_t rows)
{
    struct psc_client *c = k->op->client;
    char text[PSC_TEXT_MAX];
    char name[NAME_MAX_ + 64];
    uint64_t bytes;

    if (!ps_mul_u64(rows, k->row_bytes, &bytes) || bytes > SIZE_MAX / 2) {
        return PSC_E_TOOBIG;
    }
    if (k->joined) {
        return 0; /* Nobody here wants it. */
    }
    k->result_size = (size_t)bytes;
    if (k->out != NULL && k->out_size < bytes) {
        coll_name(k->op, name, sizeof(name));
        snprintf(text, sizeof(text),
                 "%s brings %llu bytes to rank %u, but its array has %zu", name,
                 (unsigned long long)bytes, c->rank, k->out_size);
        fail(k, PSC_E_TOOBIG, text);
        return 0;
    }
    if (k->out == NULL && bytes > 0) {
        k->result = malloc((size_t)bytes);
        return k->result == NULL ? PSC_E_NOMEM : 0;
    }
    return 0;
}

static int start_allreduce(struct coll *k)
{
    k->result_size = k->bytes;
    return k->count == 0 ? 0 : reduce_part(k, "c:sum", 0, k->count, true, 0);
}

static int start_bcast(struct coll *k)
{
    k->result_size = k->bytes;
    return k->bytes == 0 ? 0
                         : give_part(k, "c:copy", k->op->root,
                                     &(struct stretch){.bytes = k->bytes,
                                                       .wanted = k->bytes});
}

static int start_allgather(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint64_t rows = 0;
    size_t at = 0;
    int rc;

    for (uint32_t r = 0; r < c->size; r++) {
        rows += k->row_of[r];
    }
    rc = make_room(k, rows);
    for (uint32_t r = 0; rc == 0 && r < c->size; r++) {
        size_t bytes = (size_t)k->row_of[r] * k->row_bytes;
        char prefix[32];

        snprintf(prefix, sizeof(prefix), "c:from%u", r);
        if (bytes > 0) {
            rc = give_part(k, prefix, r,
                           &(struct stretch){.bytes = bytes,
                                             .wanted = bytes,
                                             .out_from = at});
        }
        at += bytes;
    }
    return rc;
}

/* Chunk r belongs to rank r; the first ones have a row more. */
static int start_reducescatter(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint64_t elements = k->row_bytes / ps_dtype_size(k->dtype);
    uint64_t from = 0;
    int rc = make_room(k, k->rows / c->size + (c->rank < k->rows % c->size));

    for (uint32_t r = 0; rc == 0 && r < c->size; r++) {
        uint64_t rows = k->rows / c->size + (r < k->rows % c->size);
        char prefix[32];

        snprintf(prefix, sizeof(prefix), "c:chunk%u", r);
        if (rows * elements > 0) {
            rc = reduce_part(k, prefix, from, rows * elements, r == c->rank, 0);
        }
        from += rows * elements;
    }
    return rc;
}

/* What this rank sends to itself. */
static void keep_own(const struct coll *k, const struct stretch *s)
{
    uint8_t *out = k->out != NULL ? k->out : k->result;

    if (k->rc == 0 && !k->op->freed && k->block != NULL && out != NULL) {
        ps_kernel_copy(out + s->out_from,
                       (const uint8_t *)ps_shm_data(k->block) + k->offset +
                           s->given,
                       s->bytes);
    }
}

/* Rows of rank `from`, a round for each rank that gets some: only nodes where
 * such a rank is receive them. */
static int give_pairs(struct coll *k, uint32_t from, size_t out_from)
{
    const uint32_t size = k->op->client->size;
    const uint32_t rank = k->op->client->rank;
    const uint64_t *sends = k->splits + (size_t)from * size;
    size_t at = 0;
    int rc = 0;

    for (uint32_t to = 0; rc == 0 && to < size; to++) {
        struct stretch s = {.given = at,
                            .bytes = (size_t)sends[to] * k->row_bytes,
                            .out_from = out_from};
        char prefix[48];

        at += s.bytes;
        if (s.bytes == 0) {
            continue;
        }
        if (to == from) {
            if (from == rank) {
                keep_own(k, &s);
            }
            continue;
        }
        s.wanted = to == rank ? s.bytes : 0;
        s.from = s.given % WORD; /* Words are what is given. */
        s.given -= s.from;
        s.bytes += s.from;
        snprintf(prefix, sizeof(prefix), "c:from%u-%u", from, to);
        rc = give_part(k, prefix, from, &s);
    }
    return rc;
}

/* Few rows go as one to all who get some of them. */
static int give_rows(struct coll *k, uint32_t from, size_t out_from)
{
    const uint32_t size = k->op->client->size;
    const uint32_t rank = k->op->client->rank;
    const uint64_t *sends = k->splits + (size_t)from * size;
    struct stretch s = {.out_from = out_from};
    char prefix[32];

    for (uint32_t to = 0; to < size; to++) {
        s.bytes += (size_t)sends[to] * k->row_bytes;
        s.from += to < rank ? (size_t)sends[to] * k->row_bytes : 0;
    }
    if (s.bytes == 0) {
        return 0;
    }
    if (s.bytes / size >= PAIR_BYTES) {
        return give_pairs(k, from, out_from);
    }
    s.wanted = (size_t)sends[rank] * k->row_bytes;
    snprintf(prefix, sizeof(prefix), "c:from%u", from);
    return give_part(k, prefix, from, &s);
}

static int start_alltoall(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint64_t rows = 0;
    size_t at = 0;
    int rc;

    for (uint32_t r = 0; r < c->size; r++) {
        k->row_of[r] = k->splits[(size_t)r * c->size + c->rank];
        rows += k->row_of[r];
    }
    rc = make_room(k, rows);
    for (uint32_t r = 0; rc == 0 && r < c->size; r++) {
        rc = give_rows(k, r, at);
        at += (size_t)k->row_of[r] * k->row_bytes;
    }
    return rc;
}

static int start_kind(struct coll *k)
{
    switch (k->kind) {
    case ALLREDUCE:
        return start_allreduce(k);
    case BCAST:
        return start_bcast(k);
    case ALLGATHER:
        return start_allgather(k);
    case REDUCESCATTER:
        return start_reducescatter(k);
    case ALLTOALL:
        return start_alltoall(k);
    case JOIN:
        break;
    }
    return PSC_E_INVAL;
}

static void start_data(struct coll *k)
{
    uint32_t first = k->part_count;
    int rc = widen(k);

    k->stage = DATA;
    if (rc == 0) {
        rc = start_kind(k);
    }
    if (rc != 0) {
        /* Out of memory in the middle: the others wait for what this rank
         * cannot give, so it must not seem to be well. */
        client_fail(k->op->client, rc, "%s cannot go on: %s",
                    kind_names[k->kind], ps_strerror(rc));
        fail(k, rc, NULL);
    }
    for (uint32_t i = first; i < k->part_count; i++) {
        part_start(k->parts[i]); /* All fail where the client has failed. */
    }
}

/* ------------------------------------------------------------- MEET, DIFFER */

static void start_differ(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = small_round(k, "c:differ", (uint64_t)c->size * SAY_WORDS, &words,
                         &part);

    k->stage = DIFFER;
    if (rc != 0) {
        fail(k, PSC_E_MISMATCH, "the ranks ask for different things");
        return;
    }
    memcpy(words + (size_t)c->rank * SAY_WORDS, k->say, SAY_BYTES);
    part_start(part);
}

static void add_ranks(struct ps_str *s, const char *says, uint32_t from,
                      uint32_t size)
{
    const char *mine = says + (size_t)from * SAY_BYTES;
    uint32_t others = 0;

    ps_str_addf(s, "rank %u", from);
    for (uint32_t r = from + 1; r < size; r++) {
        if (memcmp(mine, says + (size_t)r * SAY_BYTES, SAY_BYTES) != 0) {
            continue;
        }
        if (++others <= 6) {
            ps_str_addf(s, ", %u", r);
        }
    }
    if (others > 6) {
        ps_str_addf(s, " and %u more", others - 6);
    }
    ps_str_addf(s, ": %.*s", (int)SAY_BYTES - 1, mine);
}

static void end_differ(struct coll *k)
{
    struct psc_client *c = k->op->client;
    const struct psc_op *part = k->parts[k->part_count - 1];
    const char *says = (const char *)part_words(part);
    char text[PSC_TEXT_MAX];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_str_add(&s, "the ranks ask for different things: ");
    for (uint32_t r = 0; r < c->size; r++) {
        const char *mine = says + (size_t)r * SAY_BYTES;
        bool said = false;

        for (uint32_t i = 0; i < r && !said; i++) {
            said = memcmp(mine, says + (size_t)i * SAY_BYTES, SAY_BYTES) == 0;
        }
        if (!said) {
            ps_str_add(&s, r > 0 ? "; " : "");
            add_ranks(&s, says, r, c->size);
        }
    }
    fail(k, PSC_E_MISMATCH, text);
}

static void start_splits(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = small_round(k, "c:splits", (uint64_t)c->size * c->size, &words,
                         &part);

    k->stage = SPLITS;
    if (rc != 0) {
        client_fail(c, rc, "alltoall cannot go on: %s", ps_strerror(rc));
        fail(k, rc, NULL);
        return;
    }
    memcpy(words + (size_t)c->rank * c->size, k->splits, c->size * WORD);
    part_start(part);
}

static void end_splits(struct coll *k)
{
    uint32_t size = k->op->client->size;
    uint64_t *all = realloc(k->splits, (size_t)size * size * WORD);

    if (all == NULL) {
        client_fail(k->op->client, PSC_E_NOMEM, "alltoall cannot go on: %s",
                    ps_strerror(PS_E_NOMEM));
        fail(k, PSC_E_NOMEM, NULL);
        return;
    }
    memcpy(all, part_words(k->parts[k->part_count - 1]),
           (size_t)size * size * WORD);
    k->splits = all;
    start_data(k);
}

static void start_follow(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = small_round(k, "c:follow", (uint64_t)c->size * FOLLOW_WORDS,
                         &words, &part);

    k->stage = FOLLOW;
    if (rc != 0) {
        client_fail(c, rc, "%s cannot go on: %s", kind_names[k->kind],
                    ps_strerror(rc));
        fail(k, rc, NULL);
        return;
    }
    if (!k->joined) {
        words += (size_t)c->rank * FOLLOW_WORDS;
        words[F_HERE] = 1;
        words[F_HASH] = (int64_t)k->hash;
        words[F_KIND] = (int64_t)k->kind;
        words[F_DTYPE] = k->dtype;
        words[F_REDUCE] = k->op->reduce;
        words[F_ROOT] = k->op->root;
        words[F_COUNT] = (int64_t)k->count;
        words[F_ROWS] = (int64_t)k->rows;
        words[F_ROW_BYTES] = (int64_t)k->row_bytes;
    }
    part_start(part);
}

/* The bits that change nothing, whatever they are reduced with. */
static uint64_t neutral(uint32_t dtype, uint8_t reduce)
{
    static const struct {
        uint64_t one, greatest, least;
    } of[] = {
        [PS_DTYPE_FLOAT32] = {0x3f800000u, 0x7f800000u, 0xff800000u},
        [PS_DTYPE_FLOAT64] = {0x3ff0000000000000u, 0x7ff0000000000000u,
                              0xfff0000000000000u},
        [PS_DTYPE_FLOAT16] = {0x3c00, 0x7c00, 0xfc00},
        [PS_DTYPE_BFLOAT16] = {0x3f80, 0x7f80, 0xff80},
        [PS_DTYPE_INT8] = {1, 0x7f, 0x80},
        [PS_DTYPE_INT32] = {1, INT32_MAX, 0x80000000u},
        [PS_DTYPE_INT64] = {1, INT64_MAX, 0x8000000000000000u},
        [PS_DTYPE_UINT8] = {1, 0xff, 0},
        [PS_DTYPE_BOOL] = {1, 1, 0},
    };

    switch (reduce) {
    case PSC_MIN:
        return of[dtype].greatest;
    case PSC_MAX:
        return of[dtype].least;
    case PSC_PRODUCT:
        return of[dtype].one;
    default:
        return 0;
    }
}

static void fill_neutral(struct coll *k)
{
    const uint64_t bits = neutral(k->dtype, k->op->reduce);
    const size_t size = ps_dtype_size(k->dtype);
    uint8_t *at = ps_shm_data(k->block);

    for (uint64_t i = 0; i < k->count; i++) {
        memcpy(at + i * size, &bits, size); /* Little-endian, as all is. */
    }
}

/* Become what the others do. */
static int follow(struct coll *k, const int64_t *words)
{
    struct psc_client *c = k->op->client;
    int rc;

    k->kind = (enum coll_kind)words[F_KIND];
    k->dtype = (uint32_t)words[F_DTYPE];
    k->op->reduce = (uint8_t)words[F_REDUCE];
    k->op->root = (uint32_t)words[F_ROOT];
    k->row_bytes = (size_t)words[F_ROW_BYTES];
    k->count = (uint64_t)words[F_COUNT];
    k->rows = (uint64_t)words[F_ROWS];
    k->bytes = (size_t)k->count * ps_dtype_size(k->dtype);
    if (k->kind == ALLTOALL) {
        free(k->splits);
        k->splits = calloc(c->size, WORD);
        return k->splits != NULL ? 0 : PSC_E_NOMEM;
    }
    if (k->kind != ALLREDUCE && k->kind != REDUCESCATTER) {
        return 0;
    }
    rc = get_block(c, k->bytes, &k->block);
    if (rc == 0) {
        k->block->uses++;
        k->staged = true;
        k->offset = 0;
        fill_neutral(k);
    }
    return rc;
}

static void start_work(struct coll *k)
{
    if (k->kind == ALLTOALL) {
        start_splits(k);
    } else {
        start_data(k);
    }
}

static void end_follow(struct coll *k)
{
    struct psc_client *c = k->op->client;
    const int64_t *words = part_words(k->parts[k->part_count - 1]);
    const int64_t *first = NULL;
    char text[PSC_TEXT_MAX];
    int rc;

    for (uint32_t r = 0; r < c->size; r++) {
        const int64_t *at = words + (size_t)r * FOLLOW_WORDS;

        if (at[F_HERE] == 0) {
            continue;
        }
        first = first == NULL ? at : first;
        if (at[F_HASH] != first[F_HASH]) {
            start_differ(k);
            return;
        }
    }
    if (first == NULL || first[F_KIND] < 0 || first[F_KIND] >= JOIN ||
        ps_dtype_size((unsigned)first[F_DTYPE]) == 0 || first[F_REDUCE] < 0 ||
        first[F_REDUCE] > PSC_PRODUCT || first[F_ROOT] >= c->size) {
        client_fail(c, PSC_E_PROTO, "a collective that makes no sense");
        fail(k, PSC_E_PROTO, NULL);
        return;
    }
    if (first[F_KIND] == BCAST && (int64_t)k->row_of[first[F_ROOT]] < 0) {
        if (!k->joined) {
            snprintf(text, sizeof(text),
                     "broadcast from rank %u, which has joined",
                     (unsigned)first[F_ROOT]);
            fail(k, PSC_E_INVAL, text);
        }
        k->stage = DATA; /* There is none. */
        return;
    }
    rc = k->joined ? follow(k, first) : 0;
    for (uint32_t r = 0; r < c->size; r++) {
        if ((int64_t)k->row_of[r] < 0) {
            k->row_of[r] = 0;
        }
    }
    if (rc != 0) {
        client_fail(c, rc, "join cannot go on: %s", ps_strerror(rc));
        fail(k, rc, NULL);
        return;
    }
    if (!k->joined && k->op->reduce == PSC_MEAN && ps_dtype_is_real(k->dtype)) {
        /* The mean is of those who take part. */
        k->postscale *= (double)c->size / (double)(c->size - k->gone);
    }
    start_work(k);
}

/* Everybody has joined: who was last? Those who are new have met once. */
static void end_join(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint32_t last = 0;

    for (uint32_t r = 1; r < c->size; r++) {
        if ((int64_t)k->row_of[r] >= (int64_t)k->row_of[last]) {
            last = r;
        }
    }
    k->op->version = last;
    k->joined = false; /* It does not go on. */
    k->stage = DATA;
}

static void end_meet(struct coll *k)
{
    uint32_t size = k->op->client->size;
    const int64_t *words = part_words(k->parts[0]);

    k->rounded = words[1] > 0;
    k->agree = (uint64_t)words[0] == k->hash * size;
    memcpy(k->row_of, words + 2, size * WORD);
    k->gone = 0;
    for (uint32_t r = 0; r < size; r++) {
        k->gone += words[2 + r] < 0;
    }
    k->stage = TURN;
}

static void end_turn(struct coll *k)
{
    if (k->gone == k->op->client->size) {
        end_join(k);
    } else if (k->gone > 0) {
        start_follow(k);
    } else if (!k->agree) {
        start_differ(k);
    } else {
        start_work(k);
    }
}

static int start_meet(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = small_round(k, "c:meet", 2 + (uint64_t)c->size, &words, &part);

    if (rc != 0) {
        return rc;
    }
    words[0] = (int64_t)k->hash;
    words[1] = c->key_count >= EXACT_MAX;
    words[2 + c->rank] = k->joined ? -++k->meets : (int64_t)k->rows;
    k->stage = MEET;
    k->op->state = OP_COLLECTING;
    ps_list_push_back(&c->turns, &k->of_turn);
    part_start(part);
    return k->rc;
}

/* -------------------------------------------------------------------- steps */

static void finish(struct coll *k)
{
    struct psc_op *op = k->op;

    leave_turn(k);
    release_given(k);
    op_end(op, k->rc, k->text);
}

/* A join takes part in the next collective. */
static void meet_again(struct coll *k)
{
    int rc;

    release_given(k);
    while (k->part_count > 0) {
        op_free(k->parts[--k->part_count]);
    }
    k->kind = JOIN;
    rc = start_meet(k);
    if (rc != 0) {
        client_fail(k->op->client, rc, "join cannot go on: %s",
                    ps_strerror(rc));
        fail(k, rc, NULL);
    }
}

static void next_stage(struct coll *k)
{
    switch (k->stage) {
    case MEET:
        end_meet(k);
        break;
    case TURN:
        end_turn(k);
        break;
    case FOLLOW:
        end_follow(k);
        break;
    case DIFFER:
        if (!k->joined) {
            end_differ(k);
        }
        k->stage = DATA;
        break;
    case SPLITS:
        end_splits(k);
        break;
    case DATA:
        break;
    }
}

static bool has_turn(const struct coll *k)
{
    return ps_list_first(&k->op->client->turns) == &k->of_turn;
}

/* All parts that were started have ended. */
static void step(struct coll *k)
{
    k->open++; /* Parts that end while others are started do not come here. */
    while (k->rc == 0 && k->open == 1 && k->stage != DATA &&
           (k->stage != TURN || has_turn(k))) {
        next_stage(k);
    }
    if (k->stage == DIFFER || k->stage == DATA) {
        leave_turn(k);
    }
    while (k->rc == 0 && k->open == 1 && k->joined && k->stage == DATA) {
        meet_again(k);
    }
    if (--k->open == 0 && (k->rc != 0 || k->stage != TURN)) {
        finish(k);
    }
}

/* Those that have met and waited for the one that has now gone on. A step may
 * end others: they come to step() below, not here once more. */
static void step_turns(struct psc_client *c)
{
    struct ps_list_node *n;

    if (c->turning) {
        return;
    }
    c->turning = true;
    while ((n = ps_list_first(&c->turns)) != NULL) {
        struct coll *k = PS_CONTAINER(n, struct coll, of_turn);

        if (k->stage != TURN) {
            break;
        }
        step(k);
    }
    c->turning = false;
}

void coll_part_ended(struct psc_op *part)
{
    struct coll *k = part->part_of;
    struct psc_client *c = k->op->client;

    if (part->rc != 0) {
        fail(k, part->rc, part->text);
    }
    assert(k->open > 0);
    if (--k->open == 0 && k->op->state == OP_COLLECTING) {
        step(k);
        step_turns(c);
    }
}

/* ----------------------------------------------------------------- starting */

struct asked {
    enum coll_kind kind;
    const char *name;
    const struct psc_shape *shape;
    const struct psc_piece *pieces;
    uint32_t piece_count;
    const uint64_t *splits;
    const void *src;
    void *out;
    size_t out_size;
    struct psc_coll_options o;
};

static int check_options(struct psc_client *c, struct asked *a,
                         const struct psc_coll_options *o)
{
    a->o = (struct psc_coll_options){.size = sizeof(a->o)};
    if (o != NULL) {
        if (o->size < offsetof(struct psc_coll_options, callback) ||
            o->size > sizeof(a->o)) {
            return client_complain(c, PSC_E_INVAL,
                                   "size is not of the collective's options");
        }
        memcpy(&a->o, o, o->size);
    }
    a->o.prescale = a->o.prescale == 0 ? 1 : a->o.prescale;
    a->o.postscale = a->o.postscale == 0 ? 1 : a->o.postscale;
    if (a->o.reduce > PSC_PRODUCT) {
        return client_complain(c, PSC_E_INVAL, "no such reduction as %u",
                               a->o.reduce);
    }
    if (a->o.reduce == PSC_MEAN && a->shape->dtype == PSC_BOOL) {
        return client_complain(c, PSC_E_INVAL, "bool has no mean");
    }
    if (a->o.root >= c->size) {
        return client_complain(c, PSC_E_INVAL, "rank %u is none of %u workers",
                               a->o.root, c->size);
    }
    if ((a->o.prescale != 1 || a->o.postscale != 1) &&
        (a->kind == BCAST || a->kind == ALLGATHER || a->kind == ALLTOALL ||
         !ps_dtype_is_real(a->shape->dtype))) {
        return client_complain(c, PSC_E_INVAL,
                               "only reductions of real numbers can be scaled");
    }
    return 0;
}

static int check_shape(struct psc_client *c, const struct asked *a,
                       uint64_t *ret_count)
{
    const struct psc_shape *s = a->shape;
    size_t size = ps_dtype_size(s->dtype);
    uint64_t bytes;

    if (size == 0) {
        return client_complain(c, PSC_E_INVAL, "%s: no element type %u",
                               kind_names[a->kind], s->dtype);
    }
    if (s->ndim > DIMS_MAX) {
        return client_complain(c, PSC_E_INVAL,
                               "%s: %u dimensions, but at most %u",
                               kind_names[a->kind], s->ndim, DIMS_MAX);
    }
    if (s->ndim == 0 && a->kind != ALLREDUCE && a->kind != BCAST &&
        a->kind != JOIN) {
        return client_complain(c, PSC_E_INVAL,
                               "%s wants an array with a first dimension",
                               kind_names[a->kind]);
    }
    *ret_count = 1;
    for (uint32_t i = 0; i < s->ndim; i++) {
        if (!ps_mul_u64(*ret_count, s->dims[i], ret_count)) {
            *ret_count = UINT64_MAX;
        }
    }
    if (!ps_mul_u64(*ret_count, size, &bytes) || bytes > (uint64_t)1 << 40) {
        return client_complain(c, PSC_E_TOOBIG, "%s of more than 1 TiB",
                               kind_names[a->kind]);
    }
    return 0;
}

/* What this rank asks for, in words: they are compared, and told. */
static void say(struct psc_client *c, struct coll *k, const struct asked *a)
{
    const struct psc_shape *shape = a->shape;
    bool first_free = a->kind == ALLGATHER || a->kind == ALLTOALL;
    bool sums = a->kind == ALLREDUCE || a->kind == REDUCESCATTER;
    uint64_t more = c->members;
    struct ps_str s;

    ps_str_init(&s, k->say, sizeof(k->say));
    ps_str_addf(&s, "%s", kind_names[a->kind]);
    if (a->name[0] != '\0') {
        ps_str_addf(&s, " '%.80s'", a->name);
    }
    ps_str_addf(&s, " %s [", ps_dtype_name(shape->dtype));
    for (uint32_t i = 0; i < shape->ndim; i++) {
        ps_str_add(&s, i > 0 ? ", " : "");
        if (i == 0 && first_free) {
            ps_str_add(&s, "*");
        } else {
            ps_str_addf(&s, "%llu", (unsigned long long)shape->dims[i]);
        }
    }
    ps_str_add(&s, "]");
    if (sums) {
        ps_str_addf(&s, " %s", ps_reduce_name((uint8_t)a->o.reduce));
    }
    if (a->kind == BCAST) {
        ps_str_addf(&s, " from rank %u", a->o.root);
    }
    if (a->o.prescale != 1) {
        ps_str_addf(&s, " times %g before", a->o.prescale);
    }
    if (a->o.postscale != 1) {
        ps_str_addf(&s, " times %g after", a->o.postscale);
    }
    for (uint32_t i = 0; i < a->piece_count; i++) {
        more = fnv(more, &a->pieces[i].count, sizeof(a->pieces[i].count));
    }
    if (a->piece_count > 0) {
        ps_str_addf(&s, " in %u arrays", a->piece_count);
    }
    if (more != 0) {
        ps_str_addf(&s, " (%08x)", (unsigned)(more ^ more >> 32));
    }
    k->hash = fnv(14695981039346656037ull, k->say, sizeof(k->say));
    k->hash = fnv(k->hash, a->name, strlen(a->name));
    k->hash &= ((uint64_t)1 << HASH_BITS) - 1;
}

/* Does this rank give an array? */
static bool gives(const struct psc_client *c, const struct asked *a)
{
    return a->kind != JOIN && (a->kind != BCAST || a->o.root == c->rank);
}

/* Copies into memory that the agent can read; the mutex is let go. */
static int stage(struct psc_client *c, struct coll *k, const struct asked *a)
{
    struct ps_shm_block *b;
    uint8_t *at;
    int rc = get_block(c, k->bytes, &b);

    if (rc != 0) {
        return client_complain(c, rc, "no shared memory of %zu bytes: %s",
                               k->bytes, ps_strerror(rc));
    }
    b->uses++;
    k->block = b;
    k->staged = true;
    at = ps_shm_data(b);
    client_leave(c);
    if (a->piece_count == 0) {
        move(k, at, a->src, k->bytes, a->o.prescale);
    }
    for (uint32_t i = 0; i < a->piece_count; i++) {
        size_t bytes = a->pieces[i].count * ps_dtype_size(k->dtype);

        move(k, at, a->pieces[i].src, bytes, a->o.prescale);
        at += bytes;
    }
    pthread_mutex_lock(&c->lock);
    c->bytes_copied += k->bytes;
    return 0;
}

static int take(struct psc_client *c, struct coll *k, const struct asked *a)
{
    struct ps_shm_block *b;

    if (!gives(c, a) || k->bytes == 0) {
        return 0;
    }
    if (a->piece_count == 0 && a->src == NULL) {
        return client_complain(c, PSC_E_INVAL, "%s is given no array",
                               kind_names[k->kind]);
    }
    if (a->piece_count == 0 && a->o.prescale == 1 &&
        (uintptr_t)a->src % WORD == 0) {
        b = ps_shm_find(&c->shm, a->src, k->bytes);
        if (b != NULL) {
            b->uses++;
            k->block = b;
            k->offset = (size_t)((const uint8_t *)a->src -
                                 (const uint8_t *)ps_shm_data(b));
            return 0;
        }
    }
    return stage(c, k, a);
}

static int fill(struct psc_client *c, struct coll *k, const struct asked *a)
{
    const struct psc_shape *s = a->shape;
    uint64_t sent = 0;
    int rc = check_shape(c, a, &k->count);

    if (rc != 0) {
        return rc;
    }
    k->kind = a->kind;
    k->joined = a->kind == JOIN;
    k->dtype = s->dtype;
    k->bytes = (size_t)k->count * ps_dtype_size(s->dtype);
    k->rows = s->ndim > 0 ? s->dims[0] : 1;
    k->row_bytes = ps_dtype_size(s->dtype);
    for (uint32_t i = 1; i < s->ndim; i++) {
        k->row_bytes *= (size_t)s->dims[i];
    }
    k->out = a->out;
    k->out_size = a->out_size;
    k->postscale = a->o.postscale;
    k->name = strdup(a->name);
    k->row_of = calloc(c->size, WORD);
    if (k->name == NULL || k->row_of == NULL) {
        return client_complain(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    if (a->piece_count > 0) {
        k->pieces = calloc(a->piece_count, sizeof(*k->pieces));
        if (k->pieces == NULL) {
            return client_complain(c, PSC_E_NOMEM, "%s",
                                   ps_strerror(PS_E_NOMEM));
        }
        memcpy(k->pieces, a->pieces, a->piece_count * sizeof(*k->pieces));
        k->piece_count = a->piece_count;
    }
    if (a->kind == ALLTOALL) {
        k->splits = calloc(c->size, WORD);
        if (k->splits == NULL) {
            return client_complain(c, PSC_E_NOMEM, "%s",
                                   ps_strerror(PS_E_NOMEM));
        }
        if (a->splits == NULL && k->rows % c->size != 0) {
            return client_complain(
                c, PSC_E_INVAL,
                "alltoall of %llu rows among %u ranks needs splits",
                (unsigned long long)k->rows, c->size);
        }
        for (uint32_t r = 0; r < c->size; r++) {
            k->splits[r] = a->splits != NULL ? a->splits[r] : k->rows / c->size;
            sent += k->splits[r];
        }
        if (sent != k->rows) {
            return client_complain(
                c, PSC_E_INVAL,
                "alltoall: the splits send %llu rows, but there are %llu",
                (unsigned long long)sent, (unsigned long long)k->rows);
        }
    }
    return 0;
}

static int start_locked(struct psc_client *c, struct asked *a,
                        struct psc_op **ret_op)
{
    struct psc_op *op;
    struct coll *k;
    int rc;

    if (c->rc != 0) {
        return client_complain(c, c->rc, "%s", c->text);
    }
    if (strlen(a->name) > NAME_MAX_) {
        return client_complain(c, PSC_E_INVAL,
                               "the name of a collective has at most %u bytes",
                               NAME_MAX_);
    }
    op = op_new(c, OP_COLL);
    k = calloc(1, sizeof(*k));
    if (op == NULL || k == NULL) {
        rc = client_complain(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        goto free_op;
    }
    op->coll = k;
    k->op = op;
    rc = fill(c, k, a);
    if (rc != 0) {
        goto free_op;
    }
    op->priority = a->o.priority;
    op->reduce = (uint8_t)a->o.reduce;
    op->root = a->o.root;
    say(c, k, a);
    rc = take(c, k, a);
    if (rc != 0) {
        goto free_op;
    }
    op->callback = a->o.callback;
    op->user = a->o.user;
    rc = start_meet(k);
    if (rc != 0) {
        client_complain(c, rc, "%s", c->rc != 0 ? c->text : ps_strerror(rc));
        goto free_op;
    }
    *ret_op = op;
    return 0;

free_op:
    if (op != NULL) {
        op_free(op); /* With what it has so far. */
    } else {
        free(k);
    }
    return rc;
}

static int start(struct psc_client *c, struct asked *a,
                 const struct psc_coll_options *o, struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    a->name = a->name != NULL ? a->name : "";
    rc = check_options(c, a, o);
    if (rc == 0) {
        rc = start_locked(c, a, ret_op);
    }
    client_leave(c);
    return rc;
}

int psc_allreduce_start(struct psc_client *c, const char *name,
                        const struct psc_shape *shape, const void *src,
                        void *out, const struct psc_coll_options *o,
                        struct psc_op **ret_op)
{
    struct asked a = {.kind = ALLREDUCE,
                      .name = name,
                      .shape = shape,
                      .src = src,
                      .out = out,
                      .out_size = SIZE_MAX};

    return start(c, &a, o, ret_op);
}

int psc_allreduce_many_start(struct psc_client *c, const char *name,
                             uint32_t dtype, const struct psc_piece *pieces,
                             uint32_t count, const struct psc_coll_options *o,
                             struct psc_op **ret_op)
{
    uint64_t total = 0;
    const struct psc_shape shape = {.dtype = dtype, .ndim = 1, .dims = &total};
    struct asked a = {.kind = ALLREDUCE,
                      .name = name,
                      .shape = &shape,
                      .pieces = pieces,
                      .piece_count = count};

    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].count > UINT64_MAX - total) {
            return PSC_E_TOOBIG;
        }
        total += pieces[i].count;
    }
    return count == 0 ? PSC_E_INVAL : start(c, &a, o, ret_op);
}

int psc_bcast_start(struct psc_client *c, const char *name,
                    const struct psc_shape *shape, const void *src, void *out,
                    const struct psc_coll_options *o, struct psc_op **ret_op)
{
    struct asked a = {.kind = BCAST,
                      .name = name,
                      .shape = shape,
                      .src = src,
                      .out = out,
                      .out_size = SIZE_MAX};

    return start(c, &a, o, ret_op);
}

int psc_allgather_start(struct psc_client *c, const char *name,
                        const struct psc_shape *shape, const void *src,
                        void *out, size_t out_size,
                        const struct psc_coll_options *o,
                        struct psc_op **ret_op)
{
    struct asked a = {.kind = ALLGATHER,
                      .name = name,
                      .shape = shape,
                      .src = src,
                      .out = out,
                      .out_size = out_size};

    return start(c, &a, o, ret_op);
}

int psc_reducescatter_start(struct psc_client *c, const char *name,
                            const struct psc_shape *shape, const void *src,
                            void *out, size_t out_size,
                            const struct psc_coll_options *o,
                            struct psc_op **ret_op)
{
    struct asked a = {.kind = REDUCESCATTER,
                      .name = name,
                      .shape = shape,
                      .src = src,
                      .out = out,
                      .out_size = out_size};

    return start(c, &a, o, ret_op);
}

int psc_alltoall_start(struct psc_client *c, const char *name,
                       const struct psc_shape *shape, const uint64_t *splits,
                       const void *src, void *out, size_t out_size,
                       const struct psc_coll_options *o, struct psc_op **ret_op)
{
    struct asked a = {.kind = ALLTOALL,
                      .name = name,
                      .shape = shape,
                      .splits = splits,
                      .src = src,
                      .out = out,
                      .out_size = out_size};

    return start(c, &a, o, ret_op);
}

int psc_join_start(struct psc_client *c, const struct psc_coll_options *o,
                   struct psc_op **ret_op)
{
    const struct psc_shape shape = {.dtype = PSC_FLOAT32, .ndim = 0};
    struct asked a = {.kind = JOIN, .shape = &shape};

    return start(c, &a, o, ret_op);
}

int psc_op_rows(struct psc_op *op, uint64_t *rows, uint32_t count)
{
    struct psc_client *c = op->client;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (op->state != OP_DONE) {
        rc = client_complain(c, PSC_E_AGAIN, "the operation is open");
    } else if (op->coll == NULL || op->rc != 0 || count != c->size ||
               (op->coll->kind != ALLGATHER && op->coll->kind != ALLTOALL)) {
        rc = client_complain(c, PSC_E_NOENT,
                             "rows come from %u ranks by an allgather or an "
                             "alltoall that ended well",
                             c->size);
    } else {
        memcpy(rows, op->coll->row_of, c->size * WORD);
    }
    client_leave(c);
    return rc;
}
