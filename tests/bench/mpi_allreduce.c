/* SPDX-License-Identifier: Apache-2.0 */
/* MPI_Allreduce of float32, measured as bench_pushpull measures us:
 *
 *     mpirun -n WORKERS mpi_allreduce BYTES:ITERATIONS ...
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

int main(int argc, char **argv)
{
    int rank;
    int ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        struct measure_size size;

        if (!measure_parse(argv[i], &size)) {
            MPI_Abort(MPI_COMM_WORLD, 2);
        } else {
            run_size(&size, rank, ranks);
        }
    }
    MPI_Finalize();
    return 0;
}
