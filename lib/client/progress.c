/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: it takes what the agent sends, from the ring and the socket, and
 * wakes the threads that wait. */
#include "client/threads.h"
#include "client/arena.h"
#include "client/device/gpu.h"
#include "client/device/shared.h"
#include "client/key.h"
#include "client/op.h"
#include "client/reattach.h"
#include "client/state.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/prefetch.h"
#include "base/str.h"

/* Completions taken from the ring at once. */
#define ENDS_AHEAD  16
/* Ring polls between two readings of the clock. */
#define SPIN_LOOKS  50
/* Time between two looks at the copies of a GPU, which fail without a kick. */
#define GPU_LOOK_MS 100

/* ----------------------------------------------------------------- messages */

static void accept_stall_answer(struct psc_client *c,
                                const struct ps_msg_l_stall_reply *m)
{
    PS_LIST_EACH_OF(struct stall_request, w, node, &c->progress.stall_requests)
    {
        if (w->id == m->op_id && !w->is_answered) {
            ps_str_copy(w->text, sizeof(w->text), m->text);
            w->is_answered = true;
        }
    }
    client_changed(c);
}

/* Sends the requests that waited for the answer. */
static void send_job_requests(struct psc_client *c)
{
    int rc = op_send_job_requests(c);

    if (rc != 0) {
        client_fail(c, rc, "cannot write to the agent: %s", ps_strerror(rc));
    }
}

static void accept_key_info(struct psc_client *c,
                            const struct ps_msg_l_key_info *m)
{
    struct psc_op *op;

    if (m->reattached) {
        key_accept_rebind(c, m);
        if (c->rc == 0) {
            send_job_requests(c);
        }
        return;
    }
    op = op_find(c, m->request);
    if (op == NULL || op->state != OP_SENT || op->kind != OP_KEY) {
        client_fail(c, PSC_E_PROTO,
                    "the agent answered for a key that was not asked for");
        return;
    }
    key_accept_info(c, op, m);
}

static void accept_welcome(struct psc_client *c,
                           const struct ps_msg_l_welcome *m)
{
    if (c->id.is_welcomed) {
        reattach_welcome(c, m);
    } else {
        handshake_welcome(c, m);
    }
}

static void accept_message(struct psc_client *c, const struct ps_msg *m, int fd)
{
    switch ((int)m->code) {
    case PS_MSG_L_DONE:
        op_accept_done(c, &m->l_done);
        break;
    case PS_MSG_L_WELCOME:
        accept_welcome(c, &m->l_welcome);
        break;
    case PS_MSG_L_ARENA:
        arena_accept(c, &m->l_arena, fd);
        break;
    case PS_MSG_L_RESIDUAL_SEGMENT:
        reattach_add_segment(c, &m->l_residual_segment, fd);
        break;
    case PS_MSG_L_KEY_INFO:
        accept_key_info(c, &m->l_key_info);
        break;
    case PS_MSG_L_PROFILE_EVENTS:
        op_accept_profile(c, &m->l_profile_events);
        break;
    case PS_MSG_L_STALL_REPLY:
        accept_stall_answer(c, &m->l_stall_reply);
        break;
    case PS_MSG_L_WAIT_QUERY:
        waiting_answer(c, &m->l_wait_query);
        break;
    case PS_MSG_L_DEVICE_INFO:
        shared_accept_info(c, &m->l_device_info);
        break;
    case PS_MSG_L_WAKE:
        break; /* The reader polls the ring in any case. */
    case PS_MSG_L_ERROR:
        client_fail(c, client_failure(m->l_error.error), "%s", m->l_error.text);
        break;
    case PS_MSG_REJECT:
        handshake_reject(c, &m->reject);
        break;
    default: /* The frame check admits no other message here. */
        client_fail(c, PSC_E_PROTO, "unexpected %s from the agent",
                    ps_msg_name(m->code));
    }
}

void client_accept_messages(struct psc_client *c)
{
    while (c->rc == 0) {
        struct ps_msg m;
        int fd = -1;
        int rc = ps_sock_next(c->sock, &m, &fd);

        if (rc == PS_E_AGAIN) {
            return;
        }
        if (rc != 0) {
            /* PSC_E_PERM and PSC_E_TOOBIG would blame the program. */
            rc = rc == PS_E_VERSION || rc == PS_E_NOMEM ? rc : PS_E_PROTO;
            client_fail(c, rc, "malformed frame from the agent: %s",
                        ps_strerror(rc));
            return;
        }
        accept_message(c, &m, fd);
    }
}

/* ----------------------------------------------------------------- the ring */

/* Prefetches the memory that these completions touch: thousands of open
 * operations do not stay in the cache. */
static void prefetch_completions(struct psc_client *c,
                                 const struct ps_msg_l_done *m, int count)
{
    for (int i = 0; i < count; i++) {
        ps_prefetch(op_find(c, m[i].op_id), sizeof(struct psc_op));
    }
    for (int i = 0; i < count; i++) {
        const struct psc_op *op = op_find(c, m[i].op_id);

        if (op != NULL) {
            ps_prefetch(op->key, sizeof(*op->key));
            ps_prefetch(op->src.block, sizeof(*op->src.block));
        }
    }
}

/* Handles what the agent put into the ring: parts of results that are readable,
 * then completions. */
static void accept_ring(struct psc_client *c)
{
    struct ps_msg_l_done ended[ENDS_AHEAD];
    struct ps_ring_progress piece;
    int rc = 0;

    while (c->ring.memory != NULL && c->rc == 0 &&
           (rc = ps_ring_pop_progress(&c->ring.worker, &piece)) > 0) {
        struct psc_op *op = op_find(c, piece.op_id);

        if (op != NULL) { /* Otherwise the operation has already ended. */
            op_accept_progress(op, piece.bytes);
        }
    }
    while (rc >= 0 && c->ring.memory != NULL && c->rc == 0 &&
           (rc = ps_ring_pop_dones(&c->ring.worker, ended, ENDS_AHEAD)) > 0) {
        if (rc > 1) {
            prefetch_completions(c, ended, rc);
        }
        for (int i = 0; i < rc && c->rc == 0; i++) {
            op_accept_done(c, &ended[i]);
        }
    }
    if (rc < 0) {
        client_fail(c, rc, "malformed entry in the ring of the agent");
    }
}

/* ------------------------------------------------------ turns of the reader */

/* One turn of the reader; never waits. The caller flushes. */
static void reader_poll_once(struct psc_client *c)
{
    int rc;

    if (c->gpus != NULL) {
        ps_sock_unkick(c->sock); /* The end of a copy kicks, too. */
        gpu_poll(c);
    }
    if (c->rc == 0 && c->reattach.link == LINK_LOST) {
        reattach_dial(c);
    }
    if (c->rc != 0 || c->reattach.link == LINK_LOST) {
        return;
    }
    rc = ps_sock_read(c->sock);
    /* Before the messages: the last of them may end every operation. */
    accept_ring(c);
    client_accept_messages(c);
    if (rc == PS_E_CLOSED && c->rc == 0 && reattach_is_possible(c)) {
        /* A message may have lost the link already. */
        if (c->reattach.link != LINK_LOST) {
            reattach_agent_lost(c);
        }
    } else if (rc == PS_E_CLOSED) {
        client_fail(c, PSC_E_CLOSED, "the agent closed the connection");
    } else if (rc != 0 && rc != PS_E_AGAIN) {
        client_fail(c, rc, "cannot read from the agent: %s", ps_strerror(rc));
    }
}

/* Makes the agent wake the program's poll descriptor from now on: a program
 * that polls it sleeps without a call of this library. Not while there is a
 * reader, which does so at its end: it may sleep, and finding a completion here
 * would take back its request to be woken. */
static void arm_poll(struct psc_client *c)
{
    if (c->progress.poll_fd >= 0 && c->ring.memory != NULL &&
        !c->progress.has_reader &&
        !ps_ring_worker_sleep(&c->ring.worker, 1, c->ops.streaming > 0)) {
        client_signal_poll(c);
    }
}

void client_poll(struct psc_client *c)
{
    if (c->progress.has_reader) {
        return; /* The reader handles all input. */
    }
    c->progress.has_reader = true;
    reader_poll_once(c);
    c->progress.has_reader = false;
    client_flush(c);
    client_reap_ops(c);
    arm_poll(c);
    client_changed(c);
}

/* -------------------------------------------------------------------- waits */

static int wait_for_reader(struct psc_client *c, ps_time deadline)
{
    struct timespec t = {.tv_sec = (time_t)(deadline / PS_SECONDS(1)),
                         .tv_nsec = (long)(deadline % PS_SECONDS(1))};
    int rc;

    c->progress.waiter_count++;
    client_kick(c);
    rc = deadline == PS_TIME_NEVER
             ? pthread_cond_wait(&c->progress.changed, &c->lock)
             : pthread_cond_timedwait(&c->progress.changed, &c->lock, &t);
    c->progress.waiter_count--;
    return rc == ETIMEDOUT ? PS_E_TIMEOUT : 0;
}

static bool has_input(const struct psc_client *c)
{
    return ps_ring_has_done(&c->ring.worker) ||
           ps_ring_has_progress(&c->ring.worker);
}

/* Polls for input for as long as that costs less than sleeping. True: input has
 * come, in the ring unless *ret_socket. */
static bool busy_poll(struct psc_client *c, ps_time deadline, bool *ret_socket)
{
    ps_time budget = ps_spin_budget(&c->progress.busy_poll);
    ps_time now = client_now();
    ps_time end = ps_time_min(ps_time_add(now, budget), deadline);
    bool crowded = false;
    bool ring = false;
    bool socket = false;

    if (now >= end) {
        return false;
    }
    pthread_mutex_unlock(&c->lock);
    while (!ring && !socket && !crowded && now < end) {
        for (int i = 0; i < SPIN_LOOKS && !ring; i++) {
            ring = has_input(c);
        }
        if (!ring) {
            ps_time before = client_now();

            (void)sched_yield();
            now = client_now();
            crowded = ps_spin_is_crowded(&c->progress.busy_poll, before, now);
            /* Errors, other messages and the kick of another thread arrive at
             * the socket. */
            socket = ps_sock_wait(c->sock, 0) == 0;
        }
    }
    pthread_mutex_lock(&c->lock);
    ps_spin_record(&c->progress.busy_poll, ring || socket, crowded);
    *ret_socket = socket;
    return ring || socket;
}

/* Completions that wake the sleeping reader. One, if also those that it does not
 * wait for have to wake it: for other threads, for a program that polls, or because
 * each may let this client send more. client_kick() wakes the reader if that
 * changes. */
static uint32_t wake_threshold_of(const struct psc_client *c,
                                  const struct wait_condition *until)
{
    const bool serves_others = c->progress.waiter_count > 0 ||
                               c->progress.poll_fd >= 0 || c->ops.queued > 0 ||
                               c->colls.join != NULL ||
                               !ps_list_empty(&c->colls.order_queue);

    return serves_others || until->missing == NULL ? 1
                                                   : until->missing(until->arg);
}

/* Sleeps until the agent has sent something or takes more. While a GPU copies, it
 * also returns now and then. */
static int reader_sleep(struct psc_client *c,
                        const struct wait_condition *until, ps_time deadline)
{
    const bool ring = c->ring.memory != NULL;
    uint32_t count = wake_threshold_of(c, until);
    bool looks = false;
    int rc;

    if (c->gpu_transfers > 0) {
        ps_time look = ps_time_add(client_now(), PS_MILLIS(GPU_LOOK_MS));

        looks = look < deadline;
        count = looks ? 1 : count;
        deadline = ps_time_min(look, deadline);
    }
    if (ring &&
        !ps_ring_worker_sleep(&c->ring.worker, count, c->ops.streaming > 0)) {
        return 0;
    }
    c->progress.wake_threshold = count;
    pthread_mutex_unlock(&c->lock);
    rc = ps_sock_wait(c->sock, client_ms_until(deadline));
    pthread_mutex_lock(&c->lock);
    ps_sock_unkick(c->sock);
    c->progress.wake_threshold = 0;
    if (ring) {
        ps_ring_worker_awake(&c->ring.worker);
    }
    return looks && rc == PS_E_TIMEOUT ? 0 : rc;
}

/* As the reader: flushes, waits, then takes one turn. */
static int wait_as_reader(struct psc_client *c,
                          const struct wait_condition *until, ps_time deadline)
{
    bool socket = false;
    int rc = 0;

    c->progress.has_reader = true;
    if (c->gpu_transfers > 0) {
        gpu_poll(c);
    }
    client_flush(c);
    if (c->rc == 0 && c->ring.memory != NULL &&
        (has_input(c) || busy_poll(c, deadline, &socket)) && !socket) {
        accept_ring(c);
        goto leave;
    }
    if (c->rc == 0 && !socket) {
        span_send_due(c);
        rc = reader_sleep(c, until, deadline);
    }
    if (rc == 0) {
        reader_poll_once(c);
    } else if (rc != PS_E_TIMEOUT) {
        client_fail(c, rc, "cannot wait for the agent: %s", ps_strerror(rc));
        rc = 0;
    }

leave:
    c->progress.has_reader = false;
    client_flush(c); /* Operations that completions have unblocked. */
    client_changed(c);
    return rc;
}

int client_wait_many(struct psc_client *c, const struct wait_condition *until,
                     ps_time deadline)
{
    int rc = 0;

    for (;;) {
        client_reap_ops(c);
        if (until->is_over(until->arg)) {
            rc = 0;
            break;
        }
        rc = c->rc != 0 ? c->rc : rc;
        if (rc != 0) {
            break;
        }
        rc = c->progress.has_reader ? wait_for_reader(c, deadline)
                                    : wait_as_reader(c, until, deadline);
    }
    arm_poll(c);
    return rc;
}

int client_wait(struct psc_client *c, bool (*ready)(void *arg), void *arg,
                ps_time deadline)
{
    return client_wait_many(
        c, &(struct wait_condition){.is_over = ready, .arg = arg}, deadline);
}

/* ------------------------------------------------------------------- loops */

static int make_poll_fd(struct psc_client *c)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int fd = epoll_create1(EPOLL_CLOEXEC);

    if (event < 0 || fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, event, &ev) != 0 ||
        epoll_ctl(fd, EPOLL_CTL_ADD, ps_sock_fd(c->sock), &ev) != 0) {
        int rc = ps_err_from_errno(errno);

        if (event >= 0) {
            close(event);
        }
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    c->progress.event_fd = event;
    c->progress.poll_fd = fd;
    client_kick(c); /* The reader sleeps until all that it waits for end. */
    arm_poll(c);
    if (!ps_list_empty(&c->progress.callbacks)) {
        client_signal_poll(c);
    }
    return 0;
}

int psc_fd(struct psc_client *c)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (c->progress.poll_fd < 0) {
        rc = make_poll_fd(c);
        if (rc != 0) {
            client_error(c, rc, "no descriptor to poll: %s", ps_strerror(rc));
        }
    }
    rc = rc != 0 ? rc : c->progress.poll_fd;
    client_leave(c);
    return rc;
}

static void clear_poll_signal(struct psc_client *c)
{
    eventfd_t ignored;

    if (c->progress.is_signaled &&
        eventfd_read(c->progress.event_fd, &ignored) != 0) {
        /* The counter was zero. */
    }
    c->progress.is_signaled = false;
}

int psc_dispatch(struct psc_client *c)
{
    struct psc_op *op;
    int count = 0;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    client_poll(c);
    /* Before the callbacks: what ends during these signals again. */
    clear_poll_signal(c);
    while ((op = PS_LIST_POP(struct psc_op, of_callbacks,
                             &c->progress.callbacks)) != NULL) {
        psc_callback callback = op->callback;
        void *user = op->user;

        rc = op->rc;
        client_leave(c);
        callback(op, rc, user);
        count++;
        rc = client_enter(c);
        if (rc != 0) {
            return rc; /* The callback has forked. */
        }
    }
    arm_poll(c);
    if (count == 0 && c->rc != 0) {
        count = client_error(c, c->rc, "%s", c->text);
    }
    client_leave(c);
    return count;
}
