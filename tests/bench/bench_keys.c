/* SPDX-License-Identifier: Apache-2.0 */
/* psc_pushpull() of many arrays at once, as a worker of a job on one machine:
 *
 *     pslaunch -n WORKERS -s SERVERS -- bench_keys [VARIANT ...] SET ...
 *
 * A set is KEYSxBYTES:ITERATIONS (float32 arrays of one size) or
 * resnet50:ITERATIONS. A variant counts for the sets behind it:
 *
 *     view     arrays in shared memory; results read where the agent put them
 *     array    arrays and results in memory of psc_alloc()
 *     private  arrays and results in memory of malloc()
 *
 * Without one all three are measured. A round starts all operations, then
 * waits for them. A barrier before each round; the time of a round is that of
 * its slowest worker. "open", in milliseconds, is what declaring the keys and
 * giving them a first value took rank 0. */
#include "job.h"
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum variant { VIEW = 1, ARRAY = 2, PRIVATE = 4 };

struct array {
    uint32_t key;
    uint64_t count;
    float *src;
    float *out; /* NULL: view. */
};

static float *get_memory(const struct job *j, size_t bytes, bool private)
{
    void *data = NULL;

    if (!private) {
        JOB_CHECK(j, psc_alloc(j->client, bytes, &data));
    } else if (posix_memalign(&data, 64, bytes) != 0) {
        job_give_up(j, "no memory of %zu bytes", bytes);
    }
    return data;
}

static void put_memory(const struct job *j, float *data, bool private)
{
    if (private) {
        free(data);
    } else {
        JOB_CHECK(j, psc_free(j->client, data));
    }
}

static double open_keys(const struct job *j, const struct measure_set *set,
                        const char *what, struct array *arrays,
                        struct psc_op **ops)
{
    struct psc_key_spec *specs = calloc(set->count, sizeof(*specs));
    uint32_t *keys = calloc(set->count, sizeof(*keys));
    char(*names)[96] = calloc(set->count, sizeof(*names));
    double begin = measure_now();

    if (specs == NULL || keys == NULL || names == NULL) {
        job_give_up(j, "no memory");
    }
    for (size_t i = 0; i < set->count; i++) {
        snprintf(names[i], sizeof(names[i]), "keys.%s.%s.%zu", what, set->name,
                 i);
        specs[i] = (struct psc_key_spec){.name = names[i],
                                         .dtype = PSC_FLOAT32,
                                         .ndim = 1,
                                         .shape = &arrays[i].count};
    }
    JOB_CHECK(j, psc_keys(j->client, specs, set->count, keys));
    for (size_t i = 0; i < set->count; i++) {
        arrays[i].key = keys[i];
        JOB_CHECK(j, psc_init_start(j->client, keys[i],
                                    j->rank == 0 ? arrays[i].src : NULL, NULL,
                                    &ops[i]));
    }
    JOB_CHECK(j, psc_ops_wait(ops, set->count, PSC_WAIT_DEFAULT));
    for (size_t i = 0; i < set->count; i++) {
        psc_op_free(ops[i]);
    }
    free(specs);
    free(keys);
    free(names);
    return measure_now() - begin;
}

/* The time that it took this worker. */
static double run_round(const struct job *j, const struct measure_set *set,
                        const struct array *arrays, struct psc_op **ops)
{
    double begin;

    JOB_CHECK(j, psc_barrier(j->client));
    begin = measure_now();
    for (size_t i = 0; i < set->count; i++) {
        JOB_CHECK(j, psc_pushpull_start(j->client, arrays[i].key, arrays[i].src,
                                        arrays[i].out, NULL, &ops[i]));
    }
    JOB_CHECK(j, psc_ops_wait(ops, set->count, PSC_WAIT_DEFAULT));
    return measure_now() - begin;
}

static size_t check_round(const struct job *j, const struct measure_set *set,
                          const struct array *arrays, struct psc_op **ops,
                          unsigned round)
{
    size_t wrong = 0;

    for (size_t i = 0; i < set->count; i++) {
        const void *view = arrays[i].out;
        size_t bytes = 0;

        if (view == NULL) {
            JOB_CHECK(j, psc_op_view(ops[i], &view, &bytes));
        }
        wrong += job_check_result(j, view, arrays[i].count, round);
        psc_op_free(ops[i]);
    }
    return wrong;
}

static void run_set(const struct job *j, const struct measure_set *set,
                    const char *what, enum variant variant)
{
    struct array *arrays = calloc(set->count, sizeof(*arrays));
    struct psc_op **ops = calloc(set->count, sizeof(struct psc_op *));
    double *seconds = calloc(set->iterations, sizeof(double));
    bool private = variant == PRIVATE;
    size_t wrong = 0;
    double open;

    if (arrays == NULL || ops == NULL || seconds == NULL) {
        job_give_up(j, "no memory");
    }
    for (size_t i = 0; i < set->count; i++) {
        size_t bytes = set->counts[i] * sizeof(float);

        arrays[i].count = set->counts[i];
        arrays[i].src = get_memory(j, bytes, private);
        arrays[i].out = variant == VIEW ? NULL : get_memory(j, bytes, private);
        measure_fill(arrays[i].src, set->counts[i], j->rank);
    }
    open = open_keys(j, set, what, arrays, ops);
    for (unsigned round = 0; round < MEASURE_WARM_UP + set->iterations;
         round++) {
        double took;

        for (size_t i = 0; i < set->count; i++) {
            measure_stamp(arrays[i].src, arrays[i].count, j->rank, round);
        }
        took = run_round(j, set, arrays, ops);
        wrong += check_round(j, set, arrays, ops, round);
        if (round >= MEASURE_WARM_UP) {
            seconds[round - MEASURE_WARM_UP] = took;
        }
    }
    wrong = job_gather(j, set->iterations, seconds, wrong);
    if (j->rank == 0) {
        printf("{\"what\": \"open\", \"set\": \"%s\", \"ms\": %.3f}\n",
               set->name, open * 1e3);
        measure_print_set(set, what, j->ranks, seconds, wrong);
    }
    for (size_t i = 0; i < set->count; i++) {
        put_memory(j, arrays[i].src, private);
        put_memory(j, arrays[i].out, private);
    }
    free(arrays);
    free(ops);
    free(seconds);
}

static const struct {
    const char *name;
    enum variant variant;
} variants[] = {{"view", VIEW}, {"array", ARRAY}, {"private", PRIVATE}};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static unsigned variant_of(const char *text)
{
    for (size_t i = 0; i < VARIANTS; i++) {
        if (strcmp(variants[i].name, text) == 0) {
            return variants[i].variant;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    unsigned chosen = 0;
    struct job j;

    job_open(&j, "bench_keys");
    for (int i = 1; i < argc; i++) {
        struct measure_set set;
        unsigned one = variant_of(argv[i]);

        if (one != 0) {
            bool first = i == 1 || variant_of(argv[i - 1]) == 0;

            chosen = first ? one : chosen | one;
            continue;
        }
        if (!measure_parse_set(argv[i], &set)) {
            return 2;
        }
        for (size_t v = 0; v < VARIANTS; v++) {
            if (chosen == 0 || (chosen & variants[v].variant) != 0) {
                run_set(&j, &set, variants[v].name, variants[v].variant);
            }
        }
        free(set.counts);
    }
    psc_close(j.client);
    return 0;
}
