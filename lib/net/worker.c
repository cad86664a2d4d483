/* SPDX-License-Identifier: Apache-2.0 */
/* One job queue under one lock. Threads take pieces of the first job; the
 * thread that finishes a job's last piece puts it on the done list and wakes
 * the loop, unless a wake-up is pending. Pieces are large enough that the cost
 * of the lock is negligible. */
#include "net/worker.h"

#include "base/alloc.h"
#include "base/num.h"
#include "net/loop.h"

#include <assert.h>
#include <uv.h>

#define INLINE_MAX_DEFAULT  (128u * 1024u)
/* Bytes of one source in a piece: fits in the L2 cache with the sum. */
#define PIECE_BYTES         (128u * 1024u)
/* The same for a device, whose copies and launches have a cost each. */
#define DEVICE_PIECE_BYTES  (4u * 1024u * 1024u)
#define THREADS_MAX         256u
/* A job up to this many times `inline_max` runs on the loop when there is no
 * other: waking a thread would take longer. */
#define INLINE_ALONE_FACTOR 8u

struct ps_worker {
    uint64_t inline_max;
    struct ps_device *device;   /* NULL: none. */
    struct ps_list small_tasks; /* Private to the loop thread. */
    /* Jobs given to threads; private to the loop thread. */
    uint32_t is_threaded;
    uv_async_t async;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool is_stopping; /* Guarded by the lock, as are all below. */
    struct ps_list
        pending_tasks; /* Jobs with elements that no thread has taken. */
    struct ps_list done_tasks;
    unsigned thread_count;
    uv_thread_t threads[];
};

static void claim_piece(struct ps_worker_task *t, uint64_t *from, uint64_t *to)
{
    *from = t->next;
    *to = ps_min_u64(t->job->count, t->next + t->step);
    t->next = *to;
    t->pieces++;
    if (t->next >= t->job->count) {
        ps_list_remove(&t->node);
    }
}

/* Ends one piece. True when the loop has to be woken. */
static bool piece_done(struct ps_worker *w, struct ps_worker_task *t, int rc)
{
    bool first;

    t->rc = t->rc != 0 ? t->rc : rc;
    if (--t->pieces > 0 || ps_list_linked(&t->node)) {
        return false;
    }
    first = ps_list_empty(&w->done_tasks);
    ps_list_push_back(&w->done_tasks, &t->node);
    return first;
}

static int run_piece(struct ps_worker *w, struct ps_worker_task *t,
                     uint64_t from, uint64_t to)
{
    if (t->run != NULL) {
        return t->run(t, from, to);
    }
    return w->device == NULL
               ? ps_kernel_run_range(t->job, from, to)
               : ps_device_run_range(w->device, t->job, &t->use, from, to);
}

static void thread_main(void *arg)
{
    struct ps_worker *w = arg;

    uv_mutex_lock(&w->lock);
    while (!w->is_stopping) {
        struct ps_list_node *n = ps_list_first(&w->pending_tasks);
        uint64_t from;
        uint64_t to;

        if (n == NULL) {
            uv_cond_wait(&w->wake, &w->lock);
            continue;
        }
        struct ps_worker_task *t = PS_CONTAINER(n, struct ps_worker_task, node);

        claim_piece(t, &from, &to);
        uv_mutex_unlock(&w->lock);
        int rc = run_piece(w, t, from, to);

        uv_mutex_lock(&w->lock);
        if (piece_done(w, t, rc)) {
            ps_uv_wake(&w->async);
        }
    }
    uv_mutex_unlock(&w->lock);
}

static void complete_all(struct ps_list *tasks)
{
    struct ps_worker_task *t;

    while ((t = PS_LIST_POP(struct ps_worker_task, node, tasks)) != NULL) {
        ps_device_end(t->job, &t->use, t->rc);
        t->done(t, t->rc);
    }
}

static void worker_reap(uv_async_t *handle)
{
    struct ps_worker *w = handle->data;
    struct ps_list ready;

    ps_list_init(&ready);
    uv_mutex_lock(&w->lock);
    ps_list_move_all(&w->done_tasks, &ready);
    uv_mutex_unlock(&w->lock);
    PS_LIST_EACH(n, &ready)
    {
        w->is_threaded--;
    }
    complete_all(&ready);
}

static unsigned thread_count(unsigned wanted)
{
    if (wanted == 0) {
        wanted = uv_available_parallelism();
    }
    return wanted > THREADS_MAX ? THREADS_MAX : wanted;
}

static void handle_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

static void join_threads(struct ps_worker *w)
{
    uv_mutex_lock(&w->lock);
    w->is_stopping = true;
    uv_cond_broadcast(&w->wake);
    uv_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->thread_count; i++) {
        uv_thread_join(&w->threads[i]);
    }
}

int ps_worker_new(const struct ps_worker_options *opt,
                  struct ps_worker **ret_worker)
{
    unsigned count = thread_count(opt->threads);
    struct ps_worker *w = ps_calloc(1,
                                    sizeof(*w) + count * sizeof(w->threads[0]));
    int rc = uv_async_init(ps_loop_uv(opt->loop), &w->async, worker_reap);

    if (rc != 0) {
        ps_free(w);
        return ps_err_from_uv(rc);
    }
    w->async.data = w;
    uv_unref((uv_handle_t *)&w->async);
    w->device = opt->device;
    w->inline_max = opt->inline_max != 0 ? opt->inline_max : INLINE_MAX_DEFAULT;
    ps_list_init(&w->small_tasks);
    ps_list_init(&w->pending_tasks);
    ps_list_init(&w->done_tasks);
    uv_mutex_init(&w->lock);
    uv_cond_init(&w->wake);
    while (w->thread_count < count && rc == 0) {
        rc = uv_thread_create(&w->threads[w->thread_count], thread_main, w);
        w->thread_count += rc == 0;
    }
    if (rc != 0 && w->thread_count == 0) {
        ps_worker_free(w);
        return ps_err_from_uv(rc);
    }
    /* A worker with fewer threads than requested is still usable. */
    *ret_worker = w;
    return 0;
}

void ps_worker_free(struct ps_worker *w)
{
    struct ps_list left;

    if (w == NULL) {
        return;
    }
    join_threads(w);
    ps_list_init(&left);
    ps_list_move_all(&w->pending_tasks, &left);
    ps_list_move_all(&w->small_tasks, &left);
    PS_LIST_EACH(n, &left)
    {
        PS_CONTAINER(n, struct ps_worker_task, node)->rc = PS_E_CANCELED;
    }
    ps_list_move_all(&w->done_tasks, &left);
    complete_all(&left);
    uv_mutex_destroy(&w->lock);
    uv_cond_destroy(&w->wake);
    uv_close((uv_handle_t *)&w->async, handle_closed);
}

/* Adds the task to those of the threads, or, if the device fails to begin, to
 * the small ones, which end with the error. */
static void submit_to_threads(struct ps_worker *w, struct ps_worker_task *t,
                              bool several)
{
    if (w->device != NULL && t->run == NULL) {
        t->rc = ps_device_begin(w->device, t->job, &t->use);
    }
    if (t->rc != 0) {
        ps_list_push_back(&w->small_tasks, &t->node);
        return;
    }
    w->is_threaded++;
    uv_mutex_lock(&w->lock);
    ps_list_push_back(&w->pending_tasks, &t->node);
    if (several) {
        uv_cond_broadcast(&w->wake);
    } else {
        uv_cond_signal(&w->wake);
    }
    uv_mutex_unlock(&w->lock);
}

/* Returns true if the loop's thread computes the task, between two frames. */
static bool is_small(const struct ps_worker *w, const struct ps_worker_task *t)
{
    const struct ps_job *job = t->job;
    uint64_t bytes; /* That the job reads and writes. */

    if (t->run != NULL ||
        (w->device != NULL && ps_device_has_copies(w->device, job)) ||
        !ps_mul_u64(ps_dtype_size(job->dtype), job->count, &bytes) ||
        !ps_mul_u64(bytes, (uint64_t)job->src_count + 1, &bytes)) {
        return false;
    }
    return bytes <= w->inline_max ||
           (bytes / INLINE_ALONE_FACTOR <= w->inline_max &&
            w->is_threaded == 0 && ps_list_empty(&w->small_tasks));
}

void ps_worker_submit(struct ps_worker *w, struct ps_worker_task *t)
{
    const struct ps_job *job = t->job;
    const uint64_t size = ps_dtype_size(job->dtype);
    const uint64_t piece = w->device != NULL &&
                                   ps_device_accepts(w->device, job)
                               ? DEVICE_PIECE_BYTES
                               : PIECE_BYTES;

    t->node = (struct ps_list_node){0};
    t->next = 0;
    t->pieces = 0;
    t->rc = 0;
    t->use = (struct ps_device_use){0};
    if (size == 0) {
        ps_list_push_back(&w->small_tasks, &t->node);
        return;
    }
    t->step = t->run != NULL                ? t->run_step
              : ps_kernel_is_divisible(job) ? piece / size
                                            : job->count;
    if (is_small(w, t)) {
        ps_list_push_back(&w->small_tasks, &t->node);
    } else {
        submit_to_threads(w, t, job->count > t->step);
    }
}

bool ps_worker_run_small(struct ps_worker *w)
{
    struct ps_list now;

    if (ps_list_empty(&w->small_tasks)) {
        return false;
    }
    ps_list_init(&now);
    ps_list_move_all(&w->small_tasks, &now);
    PS_LIST_EACH_OF(struct ps_worker_task, t, node, &now)
    {
        t->rc = t->rc != 0 ? t->rc : ps_device_fetch(t->job);
        t->rc = t->rc != 0 ? t->rc : ps_kernel_run(t->job);
    }
    complete_all(&now);
    return true;
}

unsigned ps_worker_threads(const struct ps_worker *w)
{
    return w->thread_count;
}
