/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that has done a round and then does nothing until it is ended, so
 * that what an idle job costs can be seen from outside; rank 0 says "idle". */
#include "job.h"

#include <stdio.h>
#include <unistd.h>

int main(void)
{
    struct job j;
    float one = 1;
    float sum;
    uint32_t key;

    job_open(&j, "bench_idle");
    key = job_key(&j, "bench.idle", PSC_FLOAT32, 1, &one);
    JOB_CHECK(&j, psc_pushpull(j.client, key, &one, &sum));
    JOB_CHECK(&j, psc_barrier(j.client));
    if (j.rank == 0) {
        puts("idle");
        fflush(stdout);
    }
    for (;;) {
        pause();
    }
}
