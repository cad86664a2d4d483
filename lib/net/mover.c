/* SPDX-License-Identifier: Apache-2.0 */
/* Each thread has moves that can go on, which take turns with one system call
 * each, and moves that wait for their socket, which its epoll watches for one
 * event at a time. One lock guards what goes to the threads and what comes
 * back; it is taken a few times for a move, which is large. A socket keeps its
 * thread unless another one has much less to do. */
#include "net/mover.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "net/loop.h"
#include "net/uverr.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define LEAST_DEFAULT (128u * 1024u)
#define EVENTS_MAX    64
/* Of bytes under way between two threads, before a socket changes over. */
#define DIFFERENCE    (1024u * 1024u)

struct ps_mover {
    struct ps_movers *all;
    uv_thread_t thread;
    int epoll;
    int wake;              /* An eventfd in it. */
    struct ps_list orders; /* Under the lock, as the next two. */
    struct ps_list canceled;
    bool told;            /* There is something new. */
    struct ps_list ready; /* The thread's own, as the next. */
    struct ps_list over;  /* Done, and not handed back yet. */
    _Atomic ps_time busy; /* Time spent on moving. */
    uint64_t under_way;   /* Bytes; the loop's own. */
};

struct ps_movers {
    struct ps_movers_options opt;
    uv_async_t async;
    uv_mutex_t lock;
    uv_cond_t back; /* Moves have come back. */
    bool stop;      /* Under the lock, as the next. */
    struct ps_list done;
    uint32_t under_way; /* Moves; the loop's own, as all below. */
    ps_time spent;      /* By the loop itself. */
    struct ps_grow grow;
    unsigned count;
    struct ps_mover movers[PS_LOOPS_MAX - 1];
};

/* ----------------------------------------------------------- the thread */

static void over(struct ps_mover *mv, struct ps_move *m, int error)
{
    m->error = error;
    ps_list_push_back(&mv->over, &m->node);
}

/* Watch for what the moves of the socket wait for. */
static int watch(struct ps_mover *mv, struct ps_move_socket *s)
{
    struct epoll_event ev = {.events = EPOLLONESHOT, .data.ptr = s};

    ev.events |= s->in != NULL ? EPOLLIN : 0;
    ev.events |= s->out != NULL ? EPOLLOUT : 0;
    int rc = epoll_ctl(mv->epoll, s->known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
                       s->fd, &ev);

    if (rc != 0 && errno == EEXIST) {
        rc = epoll_ctl(mv->epoll, EPOLL_CTL_MOD, s->fd, &ev);
    }
    s->known = rc == 0;
    return rc == 0 ? 0 : errno;
}

static void wait_for_socket(struct ps_mover *mv, struct ps_move *m)
{
    struct ps_move_socket *s = m->socket;
    struct ps_move **place = m->out ? &s->out : &s->in;
    int error;

    *place = m;
    error = watch(mv, s);
    if (error != 0) {
        *place = NULL;
        over(mv, m, error);
    }
}

/* One system call. */
static ssize_t call(struct ps_move *m)
{
    struct msghdr h = {.msg_iov = m->iov, .msg_iovlen = m->count};
    ssize_t n;

    do {
        n = m->out ? sendmsg(m->socket->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT)
                   : recvmsg(m->socket->fd, &h, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    m->calls++;
    return n;
}

/* Account for `n` bytes; returns what was asked for. */
static size_t advance(struct ps_move *m, size_t n)
{
    size_t asked = 0;

    for (unsigned i = 0; i < m->count; i++) {
        asked += m->iov[i].iov_len;
    }
    m->moved += n;
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
    return asked;
}

static void go_on(struct ps_mover *mv, struct ps_move *m)
{
    ssize_t n = call(m);

    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            wait_for_socket(mv, m);
        } else {
            over(mv, m, errno);
        }
        return;
    }
    if (n == 0 && !m->out) {
        m->ended = true;
        over(mv, m, 0);
        return;
    }
    size_t asked = advance(m, (size_t)n);

    atomic_store_explicit(&m->at, uv_hrtime(), memory_order_relaxed);
    if (m->moved >= m->need) {
        over(mv, m, 0);
    } else if ((size_t)n < asked) {
        wait_for_socket(mv, m); /* It is empty, or full. */
    } else {
        ps_list_push_back(&mv->ready, &m->node);
    }
}

static void all_go_on(struct ps_mover *mv)
{
    struct ps_list turn;
    struct ps_list_node *n;
    ps_time begun = uv_hrtime();

    if (ps_list_empty(&mv->ready)) {
        return;
    }
    ps_list_init(&turn);
    while ((n = ps_list_pop(&mv->ready)) != NULL) {
        ps_list_push_back(&turn, n);
    }
    while ((n = ps_list_pop(&turn)) != NULL) {
        go_on(mv, PS_CONTAINER(n, struct ps_move, node));
    }
    atomic_fetch_add_explicit(&mv->busy, uv_hrtime() - begun,
                              memory_order_relaxed);
}

/* What is taken back can go on or waits: else it would be over already, and
 * not in the list. */
static void take_back(struct ps_mover *mv, struct ps_move *m)
{
    struct ps_move_socket *s = m->socket;

    if (ps_list_linked(&m->node)) {
        ps_list_remove(&m->node);
    } else {
        *(m->out ? &s->out : &s->in) = NULL;
        /* The socket may be closed as soon as this is known. */
        (void)epoll_ctl(mv->epoll, EPOLL_CTL_DEL, s->fd, NULL);
        s->known = false;
        struct ps_move *other = m->out ? s->in : s->out;

        if (other != NULL) {
            int error = watch(mv, s);

            if (error != 0) {
                *(m->out ? &s->in : &s->out) = NULL;
                over(mv, other, error);
            }
        }
    }
    over(mv, m, ECANCELED);
}

/* False: it is the end. */
static bool take_orders(struct ps_mover *mv)
{
    struct ps_movers *all = mv->all;
    struct ps_list_node *n;
    bool stop;

    uv_mutex_lock(&all->lock);
    mv->told = false;
    stop = all->stop;
    while ((n = ps_list_pop(&mv->orders)) != NULL) {
        ps_list_push_back(&mv->ready, n);
    }
    while ((n = ps_list_pop(&mv->canceled)) != NULL) {
        take_back(mv, PS_CONTAINER(n, struct ps_move, canceled));
    }
    uv_mutex_unlock(&all->lock);
    return !stop;
}

static void hand_back(struct ps_mover *mv)
{
    struct ps_movers *all = mv->all;
    struct ps_list_node *n;
    bool first;

    if (ps_list_empty(&mv->over)) {
        return;
    }
    uv_mutex_lock(&all->lock);
    first = ps_list_empty(&all->done);
    while ((n = ps_list_pop(&mv->over)) != NULL) {
        struct ps_move *m = PS_CONTAINER(n, struct ps_move, node);

        m->complete = true;
        if (ps_list_linked(&m->canceled)) {
            ps_list_remove(&m->canceled);
        }
        ps_list_push_back(&all->done, n);
    }
    uv_cond_broadcast(&all->back);
    uv_mutex_unlock(&all->lock);
    if (first) {
        uv_async_send(&all->async);
    }
}

static void socket_ready(struct ps_mover *mv, struct ps_move_socket *s,
                         uint32_t events)
{
    const uint32_t any = EPOLLERR | EPOLLHUP;
    struct ps_move *in = s->in;
    struct ps_move *out = s->out;

    if (in != NULL && (events & (EPOLLIN | any)) != 0) {
        s->in = NULL;
        ps_list_push_back(&mv->ready, &in->node);
    }
    if (out != NULL && (events & (EPOLLOUT | any)) != 0) {
        s->out = NULL;
        ps_list_push_back(&mv->ready, &out->node);
    }
    struct ps_move *left = s->in != NULL ? s->in : s->out;

    if (left != NULL) {
        wait_for_socket(mv, left);
    }
}

static void wait(struct ps_mover *mv)
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
            socket_ready(mv, events[i].data.ptr, events[i].events);
        }
    }
}

static void run(void *arg)
{
    struct ps_mover *mv = arg;

    while (take_orders(mv)) {
        all_go_on(mv);
        hand_back(mv);
        wait(mv);
    }
}

/* ------------------------------------------------------------- the loop */

/* Under the lock. */
static void tell(struct ps_mover *mv)
{
    const uint64_t one = 1;

    if (mv->told) {
        return;
    }
    mv->told = true;
    while (write(mv->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static int start_mover(struct ps_movers *all)
{
    struct ps_mover *mv = &all->movers[all->count];
    struct epoll_event ev = {.events = EPOLLIN};
    int rc;

    *mv = (struct ps_mover){.all = all};
    ps_list_init(&mv->orders);
    ps_list_init(&mv->canceled);
    ps_list_init(&mv->ready);
    ps_list_init(&mv->over);
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
    rc = ps_err_from_uv(uv_thread_create(&mv->thread, run, mv));
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

/* One more where those there are have had too much to do. */
static void grow(struct ps_movers *all)
{
    unsigned count = all->count;
    uint64_t busy = 0;

    if (count >= all->opt.count_max) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        busy += atomic_load_explicit(&all->movers[i].busy,
                                     memory_order_relaxed);
    }
    if (!ps_grow_ask(&all->grow, uv_hrtime(), count == 0 ? all->spent : busy,
                     count == 0 ? 1 : count)) {
        return;
    }
    if (start_mover(all) != 0) {
        all->opt.count_max = count; /* It goes on as it is. */
    } else if (all->opt.grown != NULL) {
        all->opt.grown(all->opt.ctx, all->count);
    }
}

static void some_done(uv_async_t *handle)
{
    struct ps_movers *all = handle->data;
    struct ps_list ready;
    struct ps_list_node *n;

    ps_list_init(&ready);
    uv_mutex_lock(&all->lock);
    while ((n = ps_list_pop(&all->done)) != NULL) {
        ps_list_push_back(&ready, n);
    }
    uv_mutex_unlock(&all->lock);
    while ((n = ps_list_pop(&ready)) != NULL) {
        struct ps_move *m = PS_CONTAINER(n, struct ps_move, node);

        m->socket->under_way--;
        m->socket->mover->under_way -= m->need;
        if (--all->under_way == 0) {
            uv_unref((uv_handle_t *)&all->async);
        }
        m->done(m);
    }
    grow(all);
}

int ps_movers_new(const struct ps_movers_options *opt,
                  struct ps_movers **ret_movers)
{
    struct ps_movers *all = ps_calloc(1, sizeof(*all));
    int rc = uv_async_init(ps_loop_uv(opt->loop), &all->async, some_done);

    if (rc != 0) {
        ps_free(all);
        return ps_err_from_uv(rc);
    }
    assert(opt->count <= opt->count_max && opt->count_max < PS_LOOPS_MAX);
    all->async.data = all;
    uv_unref((uv_handle_t *)&all->async);
    all->opt = *opt;
    all->opt.least = opt->least != 0 ? opt->least : LEAST_DEFAULT;
    all->grow = opt->grow.period != 0
                    ? opt->grow
                    : (struct ps_grow){
                          .period = PS_SECONDS(1), .percent = 60, .periods = 3};
    ps_list_init(&all->done);
    uv_mutex_init(&all->lock);
    uv_cond_init(&all->back);
    for (unsigned i = 0; i < opt->count && rc == 0; i++) {
        rc = start_mover(all);
    }
    if (rc != 0) {
        ps_movers_free(all);
        return rc;
    }
    *ret_movers = all;
    return 0;
}

static void handle_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

void ps_movers_free(struct ps_movers *all)
{
    if (all == NULL) {
        return;
    }
    assert(all->under_way == 0);
    uv_mutex_lock(&all->lock);
    all->stop = true;
    for (unsigned i = 0; i < all->count; i++) {
        tell(&all->movers[i]);
    }
    uv_mutex_unlock(&all->lock);
    for (unsigned i = 0; i < all->count; i++) {
        uv_thread_join(&all->movers[i].thread);
        close(all->movers[i].wake);
        close(all->movers[i].epoll);
    }
    uv_cond_destroy(&all->back);
    uv_mutex_destroy(&all->lock);
    uv_close((uv_handle_t *)&all->async, handle_closed);
}

unsigned ps_movers_count(const struct ps_movers *all)
{
    return all->count;
}

bool ps_movers_want(const struct ps_movers *all, uint64_t bytes)
{
    return all->count > 0 && bytes >= all->opt.least;
}

void ps_movers_spent(struct ps_movers *all, ps_time time)
{
    all->spent += time;
    if (all->count == 0) {
        grow(all);
    }
}

static struct ps_mover *choose(struct ps_movers *all,
                               const struct ps_move_socket *s)
{
    struct ps_mover *least = &all->movers[0];

    if (s->under_way > 0) {
        return s->mover;
    }
    for (unsigned i = 1; i < all->count; i++) {
        if (all->movers[i].under_way < least->under_way) {
            least = &all->movers[i];
        }
    }
    return s->mover != NULL &&
                   s->mover->under_way <= least->under_way + DIFFERENCE
               ? s->mover
               : least;
}

void ps_move_begin(struct ps_movers *all, struct ps_move_socket *s,
                   struct ps_move *m)
{
    struct ps_mover *mv = choose(all, s);

    if (mv != s->mover) {
        s->mover = mv;
        s->known = false;
    }
    s->under_way++;
    mv->under_way += m->need;
    m->all = all;
    m->socket = s;
    m->node = (struct ps_list_node){0};
    m->canceled = (struct ps_list_node){0};
    m->moved = 0;
    m->calls = 0;
    m->error = 0;
    m->ended = false;
    m->complete = false;
    atomic_store_explicit(&m->at, uv_hrtime(), memory_order_relaxed);
    if (all->under_way++ == 0) {
        uv_ref((uv_handle_t *)&all->async);
    }
    uv_mutex_lock(&all->lock);
    ps_list_push_back(&mv->orders, &m->node);
    tell(mv);
    uv_mutex_unlock(&all->lock);
}

/* Under the lock. */
static void cancel(struct ps_move *m)
{
    struct ps_mover *mv = m->socket->mover;

    if (!m->complete && !ps_list_linked(&m->canceled)) {
        ps_list_push_back(&mv->canceled, &m->canceled);
        tell(mv);
    }
}

void ps_move_cancel(struct ps_move *m)
{
    struct ps_movers *all = m->all;

    uv_mutex_lock(&all->lock);
    cancel(m);
    uv_mutex_unlock(&all->lock);
}

void ps_move_stop(struct ps_move *m)
{
    struct ps_movers *all = m->all;

    uv_mutex_lock(&all->lock);
    cancel(m);
    while (!m->complete) {
        uv_cond_wait(&all->back, &all->lock);
    }
    uv_mutex_unlock(&all->lock);
}
