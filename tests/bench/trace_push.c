/* SPDX-License-Identifier: Apache-2.0 */
/* A worker whose last push is recorded by trace_record:
 *
 *     pslaunch -n 2 -s 1 -- trace_push KEYS BYTES [OPTIMIZER]
 *
 * After five rounds of all keys, rank 0 calls, and then the last rank; the
 * recording is on from before these calls to the end of that of rank 0. All
 * that happens then follows from the last rank's call. */
#include "job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEYS_MAX 64u
#define WARM_UP  5u
/* Until the daemons have sent what they send behind a round. */
#define QUIET_US 300000u
#define TURN_US  100000u

struct arrays {
    size_t count;
    uint32_t keys[KEYS_MAX];
    void *src[KEYS_MAX];
    void *out[KEYS_MAX];
};

static void open_arrays(const struct job *j, struct arrays *a, size_t bytes)
{
    uint64_t count = bytes / sizeof(float);
    char name[24];

    for (size_t i = 0; i < a->count; i++) {
        JOB_CHECK(j, psc_alloc(j->client, bytes, &a->src[i]));
        JOB_CHECK(j, psc_alloc(j->client, bytes, &a->out[i]));
        memset(a->src[i], 0, bytes);
        snprintf(name, sizeof(name), "w%zu", i);
        a->keys[i] = job_key(j, name, PSC_FLOAT32, count, a->src[i]);
    }
}

/* One call for one key, as a program makes it; all keys at once otherwise. */
static void push_all(const struct job *j, const struct arrays *a)
{
    struct psc_op *ops[KEYS_MAX];

    if (a->count == 1) {
        JOB_CHECK(j, psc_pushpull(j->client, a->keys[0], a->src[0], a->out[0]));
        return;
    }
    for (size_t i = 0; i < a->count; i++) {
        JOB_CHECK(j, psc_pushpull_start(j->client, a->keys[i], a->src[i],
                                        a->out[i], NULL, &ops[i]));
    }
    JOB_CHECK(j, psc_ops_wait(ops, a->count, PSC_WAIT_DEFAULT));
    for (size_t i = 0; i < a->count; i++) {
        psc_op_free(ops[i]);
    }
}

static volatile char *map_flag(const struct job *j)
{
    const char *path = getenv("PSKV_TRACE_FLAG");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void *flag = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (flag == MAP_FAILED) {
        job_give_up(j, "no flag of the recorder, PSKV_TRACE_FLAG");
    }
    close(fd);
    return flag;
}

int main(int argc, char **argv)
{
    struct arrays a = {.count = 0};
    volatile char *flag;
    struct job j;

    job_open(&j, "trace_push");
    if (argc >= 3) {
        a.count = strtoul(argv[1], NULL, 10);
    }
    if (a.count == 0 || a.count > KEYS_MAX) {
        job_give_up(&j, "usage: trace_push KEYS BYTES [OPTIMIZER]");
    }
    flag = map_flag(&j);
    if (argc > 3) {
        JOB_CHECK(&j, psc_optimizer_set(j.client, argv[3], NULL, 0));
    }
    open_arrays(&j, &a, strtoul(argv[2], NULL, 10));
    for (unsigned i = 0; i < WARM_UP; i++) {
        push_all(&j, &a);
    }
    JOB_CHECK(&j, psc_barrier(j.client));
    usleep(QUIET_US);
    if (j.rank == 0) {
        *flag = 1;
    }
    usleep(TURN_US * (unsigned)(j.rank + 1));
    push_all(&j, &a);
    if (j.rank == 0) {
        *flag = 0;
        printf("{\"what\": \"push\", \"keys\": %zu}\n", a.count);
    }
    JOB_CHECK(&j, psc_barrier(j.client));
    psc_close(j.client);
    return 0;
}
