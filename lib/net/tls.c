/* SPDX-License-Identifier: Apache-2.0 */
/* The thread has an epoll and a list of handshakes in progress, oldest first.
 * All of them have the same time, so the first deadline is that of the first. */
#include "net/tls.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "crypto/tls.h"
#include "net/loop.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

#define ACCEPTED_MAX_DEFAULT 64u
#define EVENTS_MAX           32

struct ps_tls_gate {
    struct ps_tls_gate_options opt;
    uv_async_t async;
    uv_mutex_t lock;
    bool stop; /* Guarded by the lock, as are the next three. */
    struct ps_list submitted;
    struct ps_list canceled;
    struct ps_list done;
    uint32_t count; /* In progress; private to the loop thread. */
    uv_thread_t thread;
    int epoll;
    int wake;               /* Eventfd, registered with `epoll`. */
    struct ps_list running; /* Private to the thread, as is the next. */
    uint32_t accepted_count;
};

/* ------------------------------------------------ handshakes, on the thread */

/* Adds the name in the peer's certificate, as far as it is known. */
static void add_certificate(struct ps_str *text, const struct ps_identity *peer)
{
    if (peer->role != 0) {
        ps_str_add(text, " (");
        ps_identity_add_uri(text, peer);
        ps_str_add(text, ")");
    }
}

static void handshake_over(struct ps_tls_gate *g, struct ps_tls_handshake *h,
                           int rc, const char *why)
{
    ps_list_remove(&h->node);
    g->accepted_count -= !h->dialled;
    (void)epoll_ctl(g->epoll, EPOLL_CTL_DEL, h->fd, NULL);
    h->rc = rc;
    if (rc != 0) {
        struct ps_str text;

        ps_str_init(&text, h->why, sizeof(h->why));
        ps_str_add(&text, why);
        add_certificate(&text, ps_tls_session_peer(h->session));
        ps_tls_session_free(h->session);
        h->session = NULL;
    }
    uv_mutex_lock(&g->lock);
    h->is_complete = true;
    if (ps_list_linked(&h->canceled)) {
        ps_list_remove(&h->canceled);
    }
    ps_list_push_back(&g->done, &h->node);
    uv_mutex_unlock(&g->lock);
    ps_uv_wake(&g->async);
}

static int watch(struct ps_tls_gate *g, struct ps_tls_handshake *h, int op,
                 uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = h};

    return epoll_ctl(g->epoll, op, h->fd, &ev) == 0 ? 0 : errno;
}

/* Goes on as far as the socket allows. */
static void handshake_continue(struct ps_tls_gate *g,
                               struct ps_tls_handshake *h)
{
    struct ps_str why = PS_STR_ROOM(PS_TLS_WHY_MAX);
    int rc = ps_tls_session_handshake(h->session, &why);

    if (rc == PS_E_AGAIN) {
        int error = watch(g, h, EPOLL_CTL_MOD,
                          ps_tls_session_waits_to_write(h->session) ? EPOLLOUT
                                                                    : EPOLLIN);

        if (error == 0) {
            return;
        }
        ps_str_add(&why, strerror(error));
        rc = ps_err_from_errno(error);
    }
    handshake_over(g, h, rc, why.data);
}

/* Ends a handshake that a peer began, for one more of `source`: the oldest of
 * that source if it has a quarter of the places, or else the oldest. */
static void make_room(struct ps_tls_gate *g, uint64_t source)
{
    const uint32_t share = g->opt.accepted_max / 4;
    struct ps_tls_handshake *oldest = NULL;
    struct ps_tls_handshake *own = NULL;
    uint32_t count = 0;

    PS_LIST_EACH_OF(struct ps_tls_handshake, h, node, &g->running)
    {
        if (h->dialled) {
            continue;
        }
        oldest = oldest != NULL ? oldest : h;
        if (h->source == source) {
            own = own != NULL ? own : h;
            count++;
        }
    }
    if (own != NULL && count >= share) {
        oldest = own;
    }
    if (oldest != NULL) {
        handshake_over(g, oldest, PS_E_FULL,
                       "other connections wait for their handshake "
                       "(limits.pre_handshake)");
    }
}

static void handshake_begin(struct ps_tls_gate *g, struct ps_tls_handshake *h)
{
    if (!h->dialled && g->accepted_count >= g->opt.accepted_max) {
        make_room(g, h->source);
    }
    ps_list_push_back(&g->running, &h->node);
    g->accepted_count += !h->dialled;
    int error = watch(g, h, EPOLL_CTL_ADD, 0);

    if (error != 0) {
        handshake_over(g, h, ps_err_from_errno(error), strerror(error));
    } else {
        handshake_continue(g, h);
    }
}

/* Takes the next handshake that was submitted or, only if there is none, so that
 * each has begun before it is canceled, the next that was canceled. */
static bool take_next(struct ps_tls_gate *g)
{
    struct ps_list_node *submitted;
    struct ps_list_node *canceled = NULL;

    uv_mutex_lock(&g->lock);
    submitted = ps_list_pop(&g->submitted);
    if (submitted == NULL) {
        canceled = ps_list_pop(&g->canceled);
    }
    uv_mutex_unlock(&g->lock);
    if (submitted != NULL) {
        handshake_begin(g,
                        PS_CONTAINER(submitted, struct ps_tls_handshake, node));
    } else if (canceled != NULL) {
        handshake_over(
            g, PS_CONTAINER(canceled, struct ps_tls_handshake, canceled),
            PS_E_CANCELED, "canceled");
    }
    return submitted != NULL || canceled != NULL;
}

/* Takes over submitted and canceled handshakes. False: the thread ends. */
static bool accept_submitted(struct ps_tls_gate *g)
{
    bool stop;

    while (take_next(g)) {
    }
    uv_mutex_lock(&g->lock);
    stop = g->stop;
    uv_mutex_unlock(&g->lock);
    return !stop;
}

static int time_to_wait(const struct ps_tls_gate *g)
{
    const struct ps_list_node *n = ps_list_first(&g->running);
    ps_time now = uv_hrtime();

    if (n == NULL) {
        return -1;
    }
    ps_time due =
        PS_CONTAINER(n, const struct ps_tls_handshake, node)->deadline;

    return due <= now ? 0 : (int)((due - now) / 1000000u) + 1;
}

static void end_overdue(struct ps_tls_gate *g)
{
    struct ps_tls_handshake *h;

    while ((h = PS_LIST_FIRST(struct ps_tls_handshake, node, &g->running)) !=
               NULL &&
           h->deadline <= uv_hrtime()) {
        handshake_over(g, h, PS_E_TIMEOUT, "no handshake of TLS in time");
    }
}

static void gate_main(void *arg)
{
    struct ps_tls_gate *g = arg;

    while (accept_submitted(g)) {
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_wait(g->epoll, events, EVENTS_MAX, time_to_wait(g));

        for (int i = 0; i < count; i++) {
            uint64_t n;

            if (events[i].data.ptr != NULL) {
                handshake_continue(g, events[i].data.ptr);
                continue;
            }
            while (read(g->wake, &n, sizeof(n)) < 0 && errno == EINTR) {
            }
        }
        end_overdue(g);
    }
}

/* ------------------------------------------- handshakes, on the loop thread */

static void wake_thread(struct ps_tls_gate *g)
{
    const uint64_t one = 1;

    while (write(g->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static void reap(uv_async_t *handle)
{
    struct ps_tls_gate *g = handle->data;
    struct ps_list done;
    struct ps_tls_handshake *h;

    ps_list_init(&done);
    uv_mutex_lock(&g->lock);
    ps_list_move_all(&g->done, &done);
    uv_mutex_unlock(&g->lock);
    while ((h = PS_LIST_POP(struct ps_tls_handshake, node, &done)) != NULL) {
        if (--g->count == 0) {
            uv_unref((uv_handle_t *)&g->async);
        }
        h->done(h, h->rc, h->why);
    }
}

static void async_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

static int gate_start(struct ps_tls_gate *g)
{
    struct epoll_event ev = {.events = EPOLLIN};

    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->epoll < 0 || g->wake < 0 ||
        epoll_ctl(g->epoll, EPOLL_CTL_ADD, g->wake, &ev) != 0) {
        return ps_err_from_errno(errno);
    }
    return ps_err_from_uv(uv_thread_create(&g->thread, gate_main, g));
}

static void gate_close(struct ps_tls_gate *g)
{
    if (g->wake >= 0) {
        close(g->wake);
    }
    if (g->epoll >= 0) {
        close(g->epoll);
    }
    uv_mutex_destroy(&g->lock);
    uv_close((uv_handle_t *)&g->async, async_closed);
}

int ps_tls_gate_new(const struct ps_tls_gate_options *opt,
                    struct ps_tls_gate **ret_gate)
{
    struct ps_tls_gate *g = ps_calloc(1, sizeof(*g));
    int rc = uv_async_init(ps_loop_uv(opt->loop), &g->async, reap);

    if (rc != 0) {
        ps_free(g);
        return ps_err_from_uv(rc);
    }
    g->async.data = g;
    uv_unref((uv_handle_t *)&g->async);
    g->opt = *opt;
    g->opt.timeout = opt->timeout != 0 ? opt->timeout : PS_SECONDS(5);
    g->opt.accepted_max = opt->accepted_max != 0 ? opt->accepted_max
                                                 : ACCEPTED_MAX_DEFAULT;
    ps_list_init(&g->submitted);
    ps_list_init(&g->canceled);
    ps_list_init(&g->done);
    ps_list_init(&g->running);
    uv_mutex_init(&g->lock);
    rc = gate_start(g);
    if (rc != 0) {
        gate_close(g);
        return rc;
    }
    *ret_gate = g;
    return 0;
}

void ps_tls_gate_free(struct ps_tls_gate *g)
{
    if (g == NULL) {
        return;
    }
    assert(g->count == 0);
    uv_mutex_lock(&g->lock);
    g->stop = true;
    uv_mutex_unlock(&g->lock);
    wake_thread(g);
    uv_thread_join(&g->thread);
    gate_close(g);
}

void ps_tls_gate_submit(struct ps_tls_gate *g, struct ps_tls_context *c,
                        struct ps_tls_handshake *h)
{
    h->node = (struct ps_list_node){0};
    h->canceled = (struct ps_list_node){0};
    h->deadline = ps_time_add(uv_hrtime(), g->opt.timeout);
    h->is_complete = false;
    h->rc = 0;
    h->why[0] = '\0';
    h->session = ps_tls_session_new(c, h->fd, h->dialled);
    /* The thread may use and end the handshake as soon as the lock is free. */
    const bool begins = h->session != NULL;

    if (g->count++ == 0) {
        uv_ref((uv_handle_t *)&g->async);
    }
    uv_mutex_lock(&g->lock);
    if (begins) {
        ps_list_push_back(&g->submitted, &h->node);
    } else {
        h->rc = PS_E_NOMEM;
        h->is_complete = true;
        ps_str_copy(h->why, sizeof(h->why), ps_strerror(PS_E_NOMEM));
        ps_list_push_back(&g->done, &h->node);
    }
    uv_mutex_unlock(&g->lock);
    if (begins) {
        wake_thread(g);
    } else {
        ps_uv_wake(&g->async);
    }
}

void ps_tls_gate_cancel(struct ps_tls_gate *g, struct ps_tls_handshake *h)
{
    uv_mutex_lock(&g->lock);
    if (!h->is_complete && !ps_list_linked(&h->canceled)) {
        ps_list_push_back(&g->canceled, &h->canceled);
    }
    uv_mutex_unlock(&g->lock);
    wake_thread(g);
}

/* ---------------------------------------------------------------- transport */

static ssize_t tls_read(struct ps_transport *t, struct iovec *iov, int count)
{
    ssize_t n = ps_tls_session_read(t->ctx, iov, count);

    t->has_unread = ps_tls_session_has_unread(t->ctx);
    switch (n) {
    case PS_E_AGAIN:
        errno = EAGAIN;
        return -1;
    case PS_E_IO:
        return -1;
    case PS_E_CLOSED:
        return 0;
    default:
        break;
    }
    if (n < 0) {
        t->failure_rc = (int)n;
        t->failure = ps_tls_session_failure(t->ctx);
        errno = ECANCELED;
        return -1;
    }
    return n;
}

static ssize_t tls_write(struct ps_transport *t, struct iovec *iov, int count,
                         int pass_fd)
{
    ssize_t n = ps_tls_session_write(t->ctx, iov, count);

    (void)pass_fd;
    t->unsent = ps_tls_session_unsent(t->ctx);
    if (n == PS_E_AGAIN) {
        errno = EAGAIN;
    } else if (n == PS_E_IO && errno == EKEYEXPIRED) {
        t->failure_rc = PS_E_CLOSED;
        t->failure = "the kernel cannot change the keys of its output; the "
                     "link goes on with another connection";
    }
    return n < 0 ? -1 : n;
}

/* The kernel would drop sealed records that TCP has not taken yet: the peer
 * ends the connection at the message instead. */
static void tls_end(struct ps_transport *t)
{
    ps_tls_session_end(t->ctx);
    if (!ps_tls_session_is_sealed_by_kernel(t->ctx)) {
        (void)shutdown(t->fd, SHUT_WR);
    }
}

static void tls_fini(struct ps_transport *t)
{
    ps_tls_session_free(t->ctx);
}

const struct ps_transport_ops ps_transport_tls = {
    .is_tcp = true,
    .is_exclusive = true,
    .read_turn = PS_TLS_BATCH_BYTES,
    .write_turn = PS_TLS_BATCH_BYTES,
    .read = tls_read,
    .write = tls_write,
    .end = tls_end,
    .fini = tls_fini,
};

struct ps_tls_session *ps_transport_session(const struct ps_transport *t)
{
    return t->ops == &ps_transport_tls ? t->ctx : NULL;
}

bool ps_transport_kernel_has_tls(void)
{
#ifdef OPENSSL_NO_KTLS
    return false;
#endif
    static const char name[] = "tls";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has_tls = false;

    if (fd >= 0) {
        /* The error of a socket without connection, if the module is here. */
        has_tls = setsockopt(fd, IPPROTO_TCP, TCP_ULP, name, sizeof(name)) ==
                      0 ||
                  errno == ENOTCONN;
        close(fd);
    }
    return has_tls;
}
