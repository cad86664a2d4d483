/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives in C, for the sanitizers: the same random ones on all ranks, many
 * under way, waited for in any order or not at all, some of which no two ranks
 * agree about; then join, then a close with some still open.
 *
 *     collectives SEED STEPS, with the job in the environment */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psclient.h"

#define OPEN_MAX 8u

enum what {
    COLL_ALLREDUCE,
    MANY,
    COLL_BCAST,
    COLL_ALLGATHER,
    SCATTER,
    COLL_ALLTOALL,
    COLL_MISMATCH
};

struct open {
    struct psc_op *op;
    enum what what;
    uint64_t n;
    uint64_t mark; /* Makes the values of each collective its own. */
    uint32_t root;
    bool shared; /* src is of psc_alloc(). */
    double *src;
    double *out;
};

static struct psc_client *client;
static uint32_t rank;
static uint32_t size;

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void fail(const char *fmt, ...)
{
    char text[PSC_TEXT_MAX] = "";
    va_list ap;

    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (client != NULL) {
        psc_last_detail(client, text, sizeof(text));
    }
    fprintf(stderr, ": %s\n", text);
    exit(1);
}

static void need(int rc, const char *what)
{
    if (rc != 0) {
        fail("%s gives %d", what, rc);
    }
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double value(uint64_t mark, uint64_t of, uint64_t i)
{
    return (double)(mark % 1000 + 7 * of + i % 13);
}

/* Rows that rank r sends to rank t. */
static uint64_t split(const struct open *o, uint32_t r, uint32_t t)
{
    return (o->n + r + 2 * t) % 5;
}

static uint64_t rows_of(const struct open *o, uint32_t r)
{
    uint64_t rows = 0;

    switch (o->what) {
    case COLL_ALLGATHER:
        return (o->n + r) % 7 * 3;
    case COLL_ALLTOALL:
        for (uint32_t t = 0; t < size; t++) {
            rows += split(o, r, t);
        }
        return rows;
    default:
        return o->n;
    }
}

static void start(struct open *o)
{
    const struct psc_coll_options opt = {.size = sizeof(opt), .root = o->root};
    uint64_t rows = rows_of(o, rank);
    struct psc_array array = {.dtype = PSC_FLOAT64, .ndim = 1, .dims = &rows};
    uint64_t splits[64];
    struct psc_piece pieces[2];
    int rc = 0;

    if (o->shared) {
        void *data;

        need(psc_alloc(client, (rows + 2) * sizeof(double), &data), "alloc");
        o->src = data;
    } else {
        o->src = malloc((rows + 2) * sizeof(double));
    }
    o->out = malloc((o->n + 1) * sizeof(double));
    for (uint64_t i = 0; i < rows + 2; i++) {
        o->src[i] = value(o->mark, rank, i);
    }
    array.src = o->src;
    array.out = o->out;
    array.out_size = (o->n + 1) * sizeof(double);
    switch (o->what) {
    case COLL_ALLREDUCE:
        rc = psc_allreduce_start(client, "sum", &array, &opt, &o->op);
        break;
    case MANY:
        pieces[0] = (struct psc_piece){o->src, o->out, o->n / 2};
        pieces[1] = (struct psc_piece){o->src + o->n / 2, o->out + o->n / 2,
                                       o->n - o->n / 2};
        rc = psc_allreduce_many_start(
            client, NULL, &(struct psc_pieces){PSC_FLOAT64, 2, pieces}, &opt,
            &o->op);
        break;
    case COLL_BCAST:
        rc = psc_bcast_start(client, NULL, &array, &opt, &o->op);
        break;
    case COLL_ALLGATHER:
        array.out = NULL;
        rc = psc_allgather_start(client, NULL, &array, &opt, &o->op);
        break;
    case SCATTER:
        rc = psc_reducescatter_start(client, NULL, &array, &opt, &o->op);
        break;
    case COLL_ALLTOALL:
        for (uint32_t t = 0; t < size; t++) {
            splits[t] = split(o, rank, t);
        }
        array.out = NULL;
        rc = psc_alltoall_start(client, NULL, &array, splits, &opt, &o->op);
        break;
    case COLL_MISMATCH:
        array.dims = &(uint64_t){1 + rank % 2};
        array.out = NULL;
        rc = psc_allreduce_start(client, NULL, &array, &opt, &o->op);
        break;
    }
    need(rc, "start");
}

static void expect(const struct open *o, double got, double want, uint64_t i)
{
    if (got < want || got > want) {
        fail("kind %d of %" PRIu64 ": element %" PRIu64 " is %g, not %g",
             (int)o->what, o->n, i, got, want);
    }
}

static double sum(const struct open *o, uint64_t i)
{
    double s = 0;

    for (uint32_t r = 0; r < size; r++) {
        s += value(o->mark, r, i);
    }
    return s;
}

/* Fails unless the view has the parts of all ranks, one after the other. */
static void check_view(const struct open *o)
{
    const void *data;
    const double *at;
    uint64_t rows[64];
    size_t bytes;
    uint64_t total = 0;

    need(psc_op_view(o->op, &data, &bytes), "view");
    need(psc_op_rows(o->op, rows, size), "rows");
    at = data;
    for (uint32_t r = 0; r < size; r++) {
        uint64_t from = 0;
        uint64_t count = rows_of(o, r);

        if (o->what == COLL_ALLTOALL) {
            for (uint32_t t = 0; t < rank; t++) {
                from += split(o, r, t);
            }
            count = split(o, r, rank);
        }
        if (rows[r] != count) {
            fail("%" PRIu64 " rows from %u, not %" PRIu64, rows[r], r, count);
        }
        for (uint64_t i = 0; i < count; i++) {
            expect(o, *at++, value(o->mark, r, from + i), i);
        }
        total += count;
    }
    if (bytes != total * sizeof(double)) {
        fail("%zu bytes of %" PRIu64 " rows", bytes, total);
    }
}

static void check(const struct open *o)
{
    uint64_t share = o->n / size + (rank < o->n % size);
    uint64_t before = 0;

    switch (o->what) {
    case COLL_ALLREDUCE:
    case MANY:
        for (uint64_t i = 0; i < o->n; i++) {
            expect(o, o->out[i], sum(o, i), i);
        }
        break;
    case COLL_BCAST:
        for (uint64_t i = 0; i < o->n; i++) {
            expect(o, o->out[i], value(o->mark, o->root, i), i);
        }
        break;
    case SCATTER:
        for (uint32_t r = 0; r < rank; r++) {
            before += o->n / size + (r < o->n % size);
        }
        for (uint64_t i = 0; i < share; i++) {
            expect(o, o->out[i], sum(o, before + i), i);
        }
        break;
    case COLL_ALLGATHER:
    case COLL_ALLTOALL:
        check_view(o);
        break;
    case COLL_MISMATCH:
        break;
    }
}

/* Arrays of the caller are its own once the operation has ended or, given away
 * with it, never: psc_free() says so of what is shared. */
static void end(struct open *o, bool wait)
{
    if (wait) {
        int rc = psc_op_wait(o->op, PSC_WAIT_FOREVER);

        if (o->what == COLL_MISMATCH && rc != PSC_E_MISMATCH && size > 1) {
            fail("ranks that differ give %d", rc);
        } else if (o->what != COLL_MISMATCH) {
            need(rc, "wait");
            check(o);
        }
    }
    psc_op_free(o->op);
    if (!o->shared) {
        free(o->src);
    } else if (wait) {
        need(psc_free(client, o->src), "free");
    }
    free(o->out);
    *o = (struct open){0};
}

int main(int argc, char **argv)
{
    struct psc_options options;
    struct open open[OPEN_MAX] = {0};
    char why[PSC_TEXT_MAX] = "";
    uint64_t shared_seed = strtoull(argv[1], NULL, 10);
    uint64_t steps = strtoull(argv[2], NULL, 10);
    uint64_t own_seed;
    struct psc_op *join;
    uint64_t last;

    (void)argc;
    psc_options_init(&options, sizeof(options));
    if (psc_options_env(&options, why, sizeof(why)) != 0 ||
        psc_open(&options, &client, why, sizeof(why)) != 0) {
        fail("open: %s", why);
    }
    rank = (uint32_t)psc_rank(client);
    size = (uint32_t)psc_size(client);
    own_seed = shared_seed + 1000 + rank;
    for (uint64_t step = 0; step < steps; step++) {
        struct open *o = &open[next(&own_seed) % OPEN_MAX];

        if (o->op != NULL) {
            end(o, next(&own_seed) % 4 != 0);
        }
        o->what = (enum what)(next(&shared_seed) % (COLL_MISMATCH + 1));
        o->n = next(&shared_seed) % 8 == 0 ? 200000 : next(&shared_seed) % 300;
        o->mark = next(&shared_seed);
        o->root = (uint32_t)(next(&shared_seed) % size);
        o->shared = next(&own_seed) % 2 == 0;
        start(o);
    }
    for (uint32_t i = 0; i < OPEN_MAX; i++) {
        if (open[i].op != NULL) {
            end(&open[i], true);
        }
    }
    /* Each rank has as many more as its number. */
    for (uint32_t i = 0; i < rank; i++) {
        double one = 1;
        double out;
        struct psc_op *op;

        need(psc_allreduce_start(client, NULL,
                                 &(struct psc_array){.dtype = PSC_FLOAT64,
                                                     .src = &one,
                                                     .out = &out},
                                 NULL, &op),
             "start");
        need(psc_op_wait(op, PSC_WAIT_FOREVER), "wait");
        psc_op_free(op);
        expect(&open[0], out, size - i - 1, i);
    }
    need(psc_join_start(client, NULL, &join), "join");
    need(psc_op_wait(join, PSC_WAIT_FOREVER), "join");
    need(psc_op_version(join, &last), "version");
    psc_op_free(join);
    if (last != size - 1) {
        fail("rank %" PRIu64 " was last", last);
    }
    open[0] = (struct open){.what = COLL_ALLREDUCE, .n = 100};
    start(&open[0]);
    open[1] = (struct open){.what = COLL_ALLGATHER, .n = 100, .shared = true};
    start(&open[1]);
    psc_op_free(open[0].op); /* The other one is open when the client goes. */
    psc_close(client);
    free(open[0].src);
    free(open[0].out);
    free(open[1].out);
    return 0;
}
