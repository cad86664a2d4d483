/* SPDX-License-Identifier: Apache-2.0 */
/* MPI_Allreduce of float32, measured as bench_pushpull and bench_keys measure
 * us:
 *
 *     mpirun -n WORKERS mpi_allreduce BYTES:ITERATIONS ...
 *     mpirun -n WORKERS mpi_allreduce KEYSxBYTES:ITERATIONS ...
 *     mpirun -n WORKERS mpi_allreduce resnet50:ITERATIONS ...
 *
 * Several arrays are summed one after the other in one round ("by array") and
 * as one array of their size ("fused").
 *
 * A barrier before each round; the time of a round is that of its slowest
 * process. */
#include "measure.h"

#include <mpi.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_size(const struct measure_size *size, int rank, int ranks)
{
    size_t count = size->bytes / sizeof(float);
    float *src = malloc(size->bytes);
    float *sum = malloc(size->bytes);
    double *seconds = calloc(size->iterations, sizeof(double));
    unsigned long wrong = 0;
    unsigned long wrong_all = 0;

    if (src == NULL || sum == NULL || seconds == NULL || count > INT_MAX) {
        fprintf(stderr, "mpi_allreduce: %zu bytes are too many\n", size->bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    measure_fill(src, count, rank);
    memset(sum, 0, size->bytes);
    for (unsigned round = 0; round < MEASURE_WARM_UP + size->iterations;
         round++) {
        double begin;
        double own;
        double slowest;

        measure_stamp(src, count, rank, round);
        MPI_Barrier(MPI_COMM_WORLD);
        begin = measure_now();
        MPI_Allreduce(src, sum, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        own = measure_now() - begin;
        wrong += measure_check(sum, count, ranks, round);
        MPI_Reduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0 && round >= MEASURE_WARM_UP) {
            seconds[round - MEASURE_WARM_UP] = slowest;
        }
    }
    MPI_Reduce(&wrong, &wrong_all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0,
               MPI_COMM_WORLD);
    if (rank == 0) {
        measure_print(size, "mpi_allreduce", ranks, seconds, wrong_all);
    }
    free(src);
    free(sum);
    free(seconds);
}

static void run_set(const struct measure_set *set, int rank, int ranks,
                    bool fused)
{
    float *src = malloc(set->total * sizeof(float));
    float *sum = malloc(set->total * sizeof(float));
    double *seconds = calloc(set->iterations, sizeof(double));
    size_t arrays = fused ? 1 : set->count;
    const size_t *counts = fused ? &set->total : set->counts;
    unsigned long wrong = 0;
    unsigned long wrong_all = 0;

    if (src == NULL || sum == NULL || seconds == NULL || set->total > INT_MAX) {
        fprintf(stderr, "mpi_allreduce: %zu elements are too many\n",
                set->total);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    memset(sum, 0, set->total * sizeof(float));
    for (size_t i = 0, at = 0; i < arrays; at += counts[i++]) {
        measure_fill(src + at, counts[i], rank);
    }
    for (unsigned round = 0; round < MEASURE_WARM_UP + set->iterations;
         round++) {
        double begin;
        double own;
        double slowest;

        for (size_t i = 0, at = 0; i < arrays; at += counts[i++]) {
            measure_stamp(src + at, counts[i], rank, round);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        begin = measure_now();
        for (size_t i = 0, at = 0; i < arrays; at += counts[i++]) {
            MPI_Allreduce(src + at, sum + at, (int)counts[i], MPI_FLOAT,
                          MPI_SUM, MPI_COMM_WORLD);
        }
        own = measure_now() - begin;
        for (size_t i = 0, at = 0; i < arrays; at += counts[i++]) {
            wrong += measure_check(sum + at, counts[i], ranks, round);
        }
        MPI_Reduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0 && round >= MEASURE_WARM_UP) {
            seconds[round - MEASURE_WARM_UP] = slowest;
        }
    }
    MPI_Reduce(&wrong, &wrong_all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0,
               MPI_COMM_WORLD);
    if (rank == 0) {
        measure_print_set(set, fused ? "fused" : "by array", ranks, seconds,
                          wrong_all);
    }
    free(src);
    free(sum);
    free(seconds);
}

static bool run(const char *text, int rank, int ranks)
{
    struct measure_size size;
    struct measure_set set;

    if (strpbrk(text, "xr") == NULL) {
        if (!measure_parse(text, &size)) {
            return false;
        }
        run_size(&size, rank, ranks);
        return true;
    }
    if (!measure_parse_set(text, &set)) {
        return false;
    }
    run_set(&set, rank, ranks, false);
    run_set(&set, rank, ranks, true);
    free(set.counts);
    return true;
}

int main(int argc, char **argv)
{
    int rank;
    int ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        if (!run(argv[i], rank, ranks)) {
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    MPI_Finalize();
    return 0;
}
