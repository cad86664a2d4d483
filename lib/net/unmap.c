/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of ranges and one thread, which begins with the first of them and lasts
 * as long as the process. A caller that finds the ring full does the work itself,
 * so callers cannot get ahead of the thread for long. */
#include "net/unmap.h"

#include "base/num.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

/* Smaller ranges take less time than a wake-up is worth. */
#define LEAST      ((size_t)256 * 1024)
/* Bytes of one call: others that map memory wait for it. A multiple of the
 * largest page. */
#define PIECE      ((size_t)32 * 1024 * 1024)
#define RANGES_MAX 256u
/* Limit on the bytes of all ranges. More than that has hardly any pages, so its
 * end is short, but its addresses may be needed. */
#define BYTES_MAX  ((uint64_t)1 << 40)

struct range {
    char *data;
    size_t size;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Guarded by the lock, as are all below. */
    struct range ranges[RANGES_MAX];
    uint32_t first;
    uint32_t count;
    uint64_t bytes; /* Of the ranges, and of the one that the thread unmaps. */
    bool has_thread;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void unmap_in_pieces(const struct range *r)
{
    for (size_t done = 0; done < r->size; done += PIECE) {
        munmap(r->data + done, ps_min_u64(PIECE, r->size - done));
    }
}

static void *thread_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&all.lock);
    for (;;) {
        while (all.count == 0) {
            pthread_cond_wait(&all.wake, &all.lock);
        }
        struct range r = all.ranges[all.first];

        all.first = (all.first + 1) % RANGES_MAX;
        all.count--;
        pthread_mutex_unlock(&all.lock);
        unmap_in_pieces(&r);
        pthread_mutex_lock(&all.lock);
        all.bytes -= r.size;
    }
    return NULL;
}

/* Its priority is the lowest, whatever that of the caller is, and all signals go
 * to other threads. */
static bool begin_thread(void)
{
    const struct sched_param none = {.sched_priority = 0};
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t blocked;
    sigset_t before;
    int rc;

    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
    (void)pthread_attr_setschedpolicy(&attr, SCHED_BATCH);
    (void)pthread_attr_setschedparam(&attr, &none);
    (void)sigfillset(&blocked);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, &before);
    rc = pthread_create(&thread, &attr, thread_main, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc == 0;
}

/* False: there is no place for it, or no thread. */
static bool enqueue(const struct range *r)
{
    bool taken;

    pthread_mutex_lock(&all.lock);
    all.has_thread = all.has_thread || begin_thread();
    taken = all.has_thread && all.count < RANGES_MAX &&
            r->size <= BYTES_MAX - all.bytes;
    if (taken) {
        all.bytes += r->size;
        all.ranges[(all.first + all.count++) % RANGES_MAX] = *r;
        pthread_cond_signal(&all.wake);
    }
    pthread_mutex_unlock(&all.lock);
    return taken;
}

void ps_unmap(void *data, size_t size)
{
    const struct range r = {.data = data, .size = size};

    if (size < LEAST || !enqueue(&r)) {
        munmap(data, size);
    }
}
