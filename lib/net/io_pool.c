/* SPDX-License-Identifier: Apache-2.0 */
/* Each thread has ready tasks, which run round-robin with one system call each,
 * and tasks that wait for their socket, which its epoll watches with
 * EPOLLONESHOT. One lock guards the queues to and from the threads; it is taken
 * a few times per task, and tasks are large. A socket stays with its thread
 * unless another has much less load. */
#include "net/io_pool.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "net/loop.h"
#include "net/transport.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define LEAST_DEFAULT (128u * 1024u)
#define EVENTS_MAX    64
/* Difference in bytes in flight between two threads from which a socket changes
 * threads. */
#define DIFFERENCE    (1024u * 1024u)

struct ps_io_thread {
    struct ps_io_pool *pool;
    uv_thread_t thread;
    int epoll;
    int wake;                 /* Eventfd, registered with `epoll`. */
    struct ps_list submitted; /* Guarded by the lock, as are the next two. */
    struct ps_list canceled;
    bool is_woken;             /* A wake-up is pending. */
    struct ps_list ready;      /* Private to the thread, as is the next. */
    struct ps_list stopped;    /* Ended, and not reported to the loop yet. */
    _Atomic ps_time busy_time; /* Time spent in task system calls. */
    uint64_t tasks; /* Bytes in flight; private to the loop thread. */
};

struct ps_io_pool {
    struct ps_io_pool_options opt;
    uv_async_t async;
    uv_mutex_t lock;
    uv_cond_t completed; /* Signalled when tasks have completed. */
    bool stop;           /* Guarded by the lock, as is the next. */
    struct ps_list done;
    /* Tasks in flight; private to the loop thread, as are all below. */
    uint32_t tasks;
    ps_time loop_spent; /* Time that the loop thread spent on I/O. */
    struct ps_autoscale autoscale;
    unsigned count;
    struct ps_io_thread threads[PS_IO_THREADS_MAX - 1];
};

/* ----------------------------------------------------------- on the threads */

static void thread_is_stopped(struct ps_io_thread *mv, struct ps_io_task *m,
                              int error)
{
    m->error = error;
    ps_list_push_back(&mv->stopped, &m->node);
}

/* Watches for the events that the socket's tasks wait for. */
static int thread_watch_socket(struct ps_io_thread *mv, struct ps_io_socket *s)
{
    struct epoll_event ev = {.events = EPOLLONESHOT, .data.ptr = s};

    ev.events |= s->receive_task != NULL ? EPOLLIN : 0;
    ev.events |= s->send_task != NULL ? EPOLLOUT : 0;
    int rc = epoll_ctl(mv->epoll,
                       s->is_registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, s->fd,
                       &ev);

    if (rc != 0 && errno == EEXIST) {
        rc = epoll_ctl(mv->epoll, EPOLL_CTL_MOD, s->fd, &ev);
    }
    s->is_registered = rc == 0;
    return rc == 0 ? 0 : errno;
}

static void task_wait_for_socket(struct ps_io_thread *mv, struct ps_io_task *m)
{
    struct ps_io_socket *s = m->socket;
    struct ps_io_task **place = m->is_send ? &s->send_task : &s->receive_task;
    int error;

    *place = m;
    error = thread_watch_socket(mv, s);
    if (error != 0) {
        *place = NULL;
        thread_is_stopped(mv, m, error);
    }
}

/* Makes one system call for the task; with a transport, a few. */
static ssize_t task_syscall(struct ps_io_task *m)
{
    struct msghdr h = {.msg_iov = m->iov, .msg_iovlen = m->count};
    struct ps_transport *t = m->transport;
    ssize_t n;

    m->syscalls++;
    if (t != NULL) {
        return m->is_send ? t->ops->write(t, m->iov, (int)m->count, -1)
                          : t->ops->read(t, m->iov, (int)m->count);
    }
    do {
        n = m->is_send ? sendmsg(m->socket->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : recvmsg(m->socket->fd, &h, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* Advances the task by `n` bytes; returns the bytes that the call wanted. */
static size_t task_advance(struct ps_io_task *m, size_t n)
{
    size_t wanted = 0;

    for (unsigned i = 0; i < m->count; i++) {
        wanted += m->iov[i].iov_len;
    }
    m->bytes_done += n;
    while (n > 0) {
        size_t len = m->iov->iov_len;

        if (n < len) {
            m->iov->iov_base = (char *)m->iov->iov_base + n;
            m->iov->iov_len -= n;
            break;
        }
        n -= len;
        m->iov++;
        m->count--;
    }
    return wanted;
}

static void task_continue(struct ps_io_thread *mv, struct ps_io_task *m)
{
    ssize_t n = task_syscall(m);

    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            task_wait_for_socket(mv, m);
        } else {
            thread_is_stopped(mv, m, errno);
        }
        return;
    }
    if (n == 0 && !m->is_send) {
        m->peer_ended = true;
        thread_is_stopped(mv, m, 0);
        return;
    }
    size_t wanted = task_advance(m, (size_t)n);

    atomic_store_explicit(&m->progress_at, uv_hrtime(), memory_order_relaxed);
    if (m->bytes_done >= m->bytes_min) {
        thread_is_stopped(mv, m, 0);
    } else if (m->transport == NULL ? (size_t)n < wanted
                                    : m->is_send && m->transport->unsent > 0) {
        task_wait_for_socket(mv, m); /* Socket empty, or full. */
    } else {
        ps_list_push_back(&mv->ready, &m->node);
    }
}

static void pool_run_ready(struct ps_io_thread *mv)
{
    struct ps_list now_ready;
    struct ps_io_task *m;
    ps_time begun = uv_hrtime();

    if (ps_list_empty(&mv->ready)) {
        return;
    }
    ps_list_init(&now_ready);
    ps_list_move_all(&mv->ready, &now_ready);
    while ((m = PS_LIST_POP(struct ps_io_task, node, &now_ready)) != NULL) {
        task_continue(mv, m);
    }
    atomic_fetch_add_explicit(&mv->busy_time, uv_hrtime() - begun,
                              memory_order_relaxed);
}

/* Withdraws a task that is ready or waits for its socket. A completed one was
 * removed from the list of cancelled tasks. */
static void task_withdraw(struct ps_io_thread *mv, struct ps_io_task *m)
{
    struct ps_io_socket *s = m->socket;

    if (ps_list_linked(&m->node)) {
        ps_list_remove(&m->node);
    } else {
        *(m->is_send ? &s->send_task : &s->receive_task) = NULL;
        /* The socket may be closed as soon as the cancel is reported. */
        (void)epoll_ctl(mv->epoll, EPOLL_CTL_DEL, s->fd, NULL);
        s->is_registered = false;
        struct ps_io_task *other = m->is_send ? s->receive_task : s->send_task;

        if (other != NULL) {
            int error = thread_watch_socket(mv, s);

            if (error != 0) {
                *(m->is_send ? &s->receive_task : &s->send_task) = NULL;
                thread_is_stopped(mv, other, error);
            }
        }
    }
    thread_is_stopped(mv, m, ECANCELED);
}

/* Takes over submitted and cancelled tasks. False: the thread has to end. */
static bool thread_accept_tasks(struct ps_io_thread *mv)
{
    struct ps_io_pool *all = mv->pool;
    struct ps_io_task *m;
    bool stop;

    uv_mutex_lock(&all->lock);
    mv->is_woken = false;
    stop = all->stop;
    ps_list_move_all(&mv->submitted, &mv->ready);
    while ((m = PS_LIST_POP(struct ps_io_task, canceled, &mv->canceled)) !=
           NULL) {
        task_withdraw(mv, m);
    }
    uv_mutex_unlock(&all->lock);
    return !stop;
}

static void thread_complete_task(struct ps_io_thread *mv)
{
    struct ps_io_pool *all = mv->pool;
    struct ps_io_task *m;
    bool first;

    if (ps_list_empty(&mv->stopped)) {
        return;
    }
    uv_mutex_lock(&all->lock);
    first = ps_list_empty(&all->done);
    while ((m = PS_LIST_POP(struct ps_io_task, node, &mv->stopped)) != NULL) {
        m->complete = true;
        if (ps_list_linked(&m->canceled)) {
            ps_list_remove(&m->canceled);
        }
        ps_list_push_back(&all->done, &m->node);
    }
    uv_cond_broadcast(&all->completed);
    uv_mutex_unlock(&all->lock);
    if (first) {
        ps_uv_wake(&all->async);
    }
}

static void thread_socket_ready(struct ps_io_thread *mv, struct ps_io_socket *s,
                                uint32_t events)
{
    const uint32_t any = EPOLLERR | EPOLLHUP;
    struct ps_io_task *in = s->receive_task;
    struct ps_io_task *out = s->send_task;

    if (in != NULL && (events & (EPOLLIN | any)) != 0) {
        s->receive_task = NULL;
        ps_list_push_back(&mv->ready, &in->node);
    }
    if (out != NULL && (events & (EPOLLOUT | any)) != 0) {
        s->send_task = NULL;
        ps_list_push_back(&mv->ready, &out->node);
    }
    struct ps_io_task *left = s->receive_task != NULL ? s->receive_task
                                                      : s->send_task;

    if (left != NULL) {
        task_wait_for_socket(mv, left);
    }
}

static void thread_wait(struct ps_io_thread *mv)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(mv->epoll, events, EVENTS_MAX,
                           ps_list_empty(&mv->ready) ? -1 : 0);

    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == NULL) {
            uint64_t n;

            while (read(mv->wake, &n, sizeof(n)) < 0 && errno == EINTR) {
            }
        } else {
            thread_socket_ready(mv, events[i].data.ptr, events[i].events);
        }
    }
}

static void thread_main(void *arg)
{
    struct ps_io_thread *mv = arg;

    while (thread_accept_tasks(mv)) {
        pool_run_ready(mv);
        thread_complete_task(mv);
        thread_wait(mv);
    }
}

/* ------------------------------------------------------- on the loop thread */

/* Requires the lock. */
static void thread_wake(struct ps_io_thread *mv)
{
    const uint64_t one = 1;

    if (mv->is_woken) {
        return;
    }
    mv->is_woken = true;
    while (write(mv->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static int pool_start_thread(struct ps_io_pool *all)
{
    struct ps_io_thread *mv = &all->threads[all->count];
    struct epoll_event ev = {.events = EPOLLIN};
    int rc;

    *mv = (struct ps_io_thread){.pool = all};
    ps_list_init(&mv->submitted);
    ps_list_init(&mv->canceled);
    ps_list_init(&mv->ready);
    ps_list_init(&mv->stopped);
    mv->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (mv->epoll < 0) {
        return ps_err_from_errno(errno);
    }
    mv->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mv->wake < 0 ||
        epoll_ctl(mv->epoll, EPOLL_CTL_ADD, mv->wake, &ev) != 0) {
        rc = ps_err_from_errno(errno);
        goto close_both;
    }
    rc = ps_err_from_uv(uv_thread_create(&mv->thread, thread_main, mv));
    if (rc != 0) {
        goto close_both;
    }
    all->count++;
    return 0;

close_both:
    if (mv->wake >= 0) {
        close(mv->wake);
    }
    close(mv->epoll);
    return rc;
}

/* Starts one more thread when the present ones have been busy. */
static void pool_add_thread(struct ps_io_pool *all)
{
    unsigned count = all->count;
    uint64_t busy = 0;

    if (count >= all->opt.threads_max) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        busy += atomic_load_explicit(&all->threads[i].busy_time,
                                     memory_order_relaxed);
    }
    if (!ps_autoscale_is_due(&all->autoscale, uv_hrtime(),
                             count == 0 ? all->loop_spent : busy,
                             count == 0 ? 1 : count)) {
        return;
    }
    if (pool_start_thread(all) != 0) {
        all->opt.threads_max = count; /* No further attempt. */
    } else if (all->opt.on_grown != NULL) {
        all->opt.on_grown(all->opt.ctx, all->count);
    }
}

static void pool_reap(uv_async_t *handle)
{
    struct ps_io_pool *all = handle->data;
    struct ps_list ready;
    struct ps_io_task *m;

    ps_list_init(&ready);
    uv_mutex_lock(&all->lock);
    ps_list_move_all(&all->done, &ready);
    uv_mutex_unlock(&all->lock);
    while ((m = PS_LIST_POP(struct ps_io_task, node, &ready)) != NULL) {
        m->socket->tasks--;
        m->socket->thread->tasks -= m->bytes_min;
        if (--all->tasks == 0) {
            uv_unref((uv_handle_t *)&all->async);
        }
        m->done(m);
    }
    pool_add_thread(all);
}

int ps_io_pool_new(const struct ps_io_pool_options *opt,
                   struct ps_io_pool **ret_pool)
{
    struct ps_io_pool *all = ps_calloc(1, sizeof(*all));
    int rc = uv_async_init(ps_loop_uv(opt->loop), &all->async, pool_reap);

    if (rc != 0) {
        ps_free(all);
        return ps_err_from_uv(rc);
    }
    assert(opt->threads <= opt->threads_max &&
           opt->threads_max < PS_IO_THREADS_MAX);
    all->async.data = all;
    uv_unref((uv_handle_t *)&all->async);
    all->opt = *opt;
    all->opt.task_bytes_min = opt->task_bytes_min != 0 ? opt->task_bytes_min
                                                       : LEAST_DEFAULT;
    all->autoscale = opt->autoscale.period != 0
                         ? opt->autoscale
                         : (struct ps_autoscale){.period = PS_SECONDS(1),
                                                 .busy_percent = 60,
                                                 .periods = 3};
    ps_list_init(&all->done);
    uv_mutex_init(&all->lock);
    uv_cond_init(&all->completed);
    for (unsigned i = 0; i < opt->threads && rc == 0; i++) {
        rc = pool_start_thread(all);
    }
    if (rc != 0) {
        ps_io_pool_free(all);
        return rc;
    }
    *ret_pool = all;
    return 0;
}

static void pool_async_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

void ps_io_pool_free(struct ps_io_pool *all)
{
    if (all == NULL) {
        return;
    }
    assert(all->tasks == 0);
    uv_mutex_lock(&all->lock);
    all->stop = true;
    for (unsigned i = 0; i < all->count; i++) {
        thread_wake(&all->threads[i]);
    }
    uv_mutex_unlock(&all->lock);
    for (unsigned i = 0; i < all->count; i++) {
        uv_thread_join(&all->threads[i].thread);
        close(all->threads[i].wake);
        close(all->threads[i].epoll);
    }
    uv_cond_destroy(&all->completed);
    uv_mutex_destroy(&all->lock);
    uv_close((uv_handle_t *)&all->async, pool_async_closed);
}

unsigned ps_io_pool_threads(const struct ps_io_pool *all)
{
    return all->count;
}

bool ps_io_pool_wants(const struct ps_io_pool *all, uint64_t bytes)
{
    return all->count > 0 && bytes >= all->opt.task_bytes_min;
}

void ps_io_pool_add_spent(struct ps_io_pool *all, ps_time time)
{
    all->loop_spent += time;
    if (all->count == 0) {
        pool_add_thread(all);
    }
}

static struct ps_io_thread *pool_choose_thread(struct ps_io_pool *all,
                                               const struct ps_io_socket *s)
{
    struct ps_io_thread *least = &all->threads[0];

    if (s->tasks > 0) {
        return s->thread;
    }
    for (unsigned i = 1; i < all->count; i++) {
        if (all->threads[i].tasks < least->tasks) {
            least = &all->threads[i];
        }
    }
    return s->thread != NULL && s->thread->tasks <= least->tasks + DIFFERENCE
               ? s->thread
               : least;
}

void ps_io_task_submit(struct ps_io_pool *all, struct ps_io_socket *s,
                       struct ps_io_task *m)
{
    struct ps_io_thread *mv = pool_choose_thread(all, s);

    if (mv != s->thread) {
        s->thread = mv;
        s->is_registered = false;
    }
    s->tasks++;
    mv->tasks += m->bytes_min;
    m->pool = all;
    m->socket = s;
    m->node = (struct ps_list_node){0};
    m->canceled = (struct ps_list_node){0};
    m->bytes_done = 0;
    m->syscalls = 0;
    m->error = 0;
    m->peer_ended = false;
    m->complete = false;
    atomic_store_explicit(&m->progress_at, uv_hrtime(), memory_order_relaxed);
    if (all->tasks++ == 0) {
        uv_ref((uv_handle_t *)&all->async);
    }
    uv_mutex_lock(&all->lock);
    ps_list_push_back(&mv->submitted, &m->node);
    thread_wake(mv);
    uv_mutex_unlock(&all->lock);
}

/* Requires the lock. */
static void thread_cancel_task(struct ps_io_task *m)
{
    struct ps_io_thread *mv = m->socket->thread;

    if (!m->complete && !ps_list_linked(&m->canceled)) {
        ps_list_push_back(&mv->canceled, &m->canceled);
        thread_wake(mv);
    }
}

void ps_io_task_cancel(struct ps_io_task *m)
{
    struct ps_io_pool *all = m->pool;

    uv_mutex_lock(&all->lock);
    thread_cancel_task(m);
    uv_mutex_unlock(&all->lock);
}

void ps_io_task_stop(struct ps_io_task *m)
{
    struct ps_io_pool *all = m->pool;

    uv_mutex_lock(&all->lock);
    thread_cancel_task(m);
    while (!m->complete) {
        uv_cond_wait(&all->completed, &all->lock);
    }
    uv_mutex_unlock(&all->lock);
}
