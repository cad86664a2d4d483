/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a client: connect, handshake, wait for the job, handle messages of
 * the agent, close.
 *
 * On l_error or a malformed frame, every open operation fails with that error,
 * and every later call returns it. The same holds when the agent closes the
 * connection, unless the client may re-attach, see reattach.c. If no agent
 * listens yet, the client dials again until connect_timeout_ms. */
#include "client/state.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/prefetch.h"
#include "base/str.h"

/* Interval between dials of a socket that does not exist yet. */
#define CONNECT_RETRY_MS 50
/* The agent names the missing ranks when start_timeout is over; this side gives
 * up only if the agent sends nothing for this much longer. */
#define START_SLACK_MS   10000
/* Time for the agent to see the end of the stream. */
#define END_MS           1000
/* Completions taken from the ring at once. */
#define ENDS_AHEAD       16
/* Ring polls between two readings of the clock. */
#define SPIN_LOOKS       50

_Static_assert(PSC_E_INVAL == (int)PS_E_INVAL && PSC_E_BUG == (int)PS_E_BUG,
               "psclient.h repeats err.def");
_Static_assert(PSC_TEXT_MAX >= 2 * PS_TEXT_MAX, "texts of the wire fit");

/* ------------------------------------------------------------------- small */

ps_time client_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return PS_SECONDS(t.tv_sec) + PS_NANOS(t.tv_nsec);
}

ps_time client_deadline(int timeout_ms)
{
    return timeout_ms < 0 ? PS_TIME_NEVER
                          : client_now() + PS_MILLIS(timeout_ms);
}

/* Milliseconds until the deadline, rounded up, so that a wait does not end just
 * before it. */
static int ms_until(ps_time deadline)
{
    ps_time now;

    if (deadline == PS_TIME_NEVER) {
        return -1;
    }
    now = client_now();
    if (deadline <= now) {
        return 0;
    }
    deadline = (deadline - now + PS_MILLIS(1) - 1) / PS_MILLIS(1);
    return deadline > INT_MAX ? INT_MAX : (int)deadline;
}

int client_enter(struct psc_client *c)
{
    if (!client_is_own_process(c)) {
        return PSC_E_FORKED;
    }
    pthread_mutex_lock(&c->lock);
    return 0;
}

void client_leave(struct psc_client *c)
{
    client_settle(c);
    pthread_mutex_unlock(&c->lock);
}

int client_error(struct psc_client *c, int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->detail, sizeof(c->detail), fmt, ap);
    va_end(ap);
    return rc;
}

bool client_wants_kick(const struct psc_client *c)
{
    return c->ops.queued > 0 || c->colls.join != NULL ||
           !ps_list_empty(&c->colls.order_queue);
}

void client_kick(struct psc_client *c)
{
    if (c->progress.wake_threshold > 1) {
        ps_sock_kick(c->sock); /* The next completion must wake it. */
    }
}

void client_changed(struct psc_client *c)
{
    if (c->progress.waiter_count > 0) {
        pthread_cond_broadcast(&c->progress.changed);
    }
}

void client_fail(struct psc_client *c, int rc, const char *fmt, ...)
{
    va_list ap;

    if (c->rc != 0) {
        return;
    }
    c->rc = rc;
    va_start(ap, fmt);
    vsnprintf(c->text, sizeof(c->text), fmt, ap);
    va_end(ap);
    c->has_unended_ops = true;
    client_changed(c);
}

void client_settle(struct psc_client *c)
{
    if (c->has_unended_ops) {
        c->has_unended_ops = false;
        op_end_all(c, c->rc, c->text);
    }
    op_free_deferred(c);
}

static void wake_agent(struct psc_client *c)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    int rc = 0;

    c->ring.needs_wake = false;
    /* A frame on its way wakes the agent as well. */
    if (c->rc == 0 && ps_sock_flushed(c->sock) &&
        ps_ring_wake_agent(&c->ring.worker)) {
        rc = ps_sock_put(c->sock, &wake, -1);
    }
    if (rc != 0) {
        client_fail(c, rc, "cannot wake the agent: %s", ps_strerror(rc));
    }
}

void client_flush(struct psc_client *c)
{
    int rc;

    if (c->ring.needs_wake) {
        wake_agent(c);
    }
    rc = c->rc != 0 || ps_sock_flushed(c->sock) ? 0 : ps_sock_flush(c->sock);
    /* Closed: the reader notices it after the agent's last messages. */
    if (rc != 0 && rc != PS_E_CLOSED) {
        client_fail(c, rc, "cannot write to the agent: %s", ps_strerror(rc));
    }
}

int client_put(struct psc_client *c, const struct ps_msg *msg)
{
    if (c->rc != 0 || c->reattach.link != LINK_UP) {
        return c->rc;
    }
    return ps_sock_put(c->sock, msg, -1);
}

int client_send(struct psc_client *c, const struct ps_msg *msg)
{
    int rc = client_put(c, msg);

    if (rc == 0) {
        client_flush(c);
        rc = c->rc;
    }
    return rc;
}

/* ---------------------------------------------------------- shared memory */

static int on_arena_made(void *ctx, uint32_t region, int fd, uint64_t size)
{
    struct psc_client *c = ctx;
    const struct ps_msg m = {.code = PS_MSG_L_REGION,
                             .l_region = {.region = region, .size = size}};

    if (c->rc == 0 && c->reattach.link != LINK_UP) {
        close(fd); /* The next agent gets all arenas offered. */
        return 0;
    }
    /* Flushed with the operation that uses the arena. */
    return c->rc != 0 ? c->rc : ps_sock_put(c->sock, &m, fd);
}

static void on_arena_freed(void *ctx, uint32_t region)
{
    struct psc_client *c = ctx;
    const struct ps_msg m = {.code = PS_MSG_L_REGION_GONE,
                             .l_region_gone = {.region = region}};

    /* On failure the agent keeps a mapping without use. */
    if (client_send(c, &m) != 0) {
        return;
    }
}

/* -------------------------------------------------------------- messages in */

static void accept_stall_answer(struct psc_client *c,
                                const struct ps_msg_l_stall_reply *m)
{
    PS_LIST_EACH(n, &c->progress.stall_requests)
    {
        struct stall_request *w = PS_CONTAINER(n, struct stall_request, node);

        if (w->id == m->op_id && !w->is_answered) {
            ps_str_copy(w->text, sizeof(w->text), m->text);
            w->is_answered = true;
        }
    }
    client_changed(c);
}

static void accept_done(struct psc_client *c, const struct ps_msg_l_done *m)
{
    struct psc_op *op = op_find(c, m->op_id);

    if (op == NULL || op->state != OP_SENT || op->kind == OP_KEY) {
        client_fail(c, PSC_E_PROTO,
                    "the agent ended an operation that is not open");
        return;
    }
    op_accept_done(op, m);
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
    struct psc_op *op = op_find(c, m->request);

    if ((m->request & KEY_REBIND) != 0) {
        key_accept_rebind(c, m);
        if (c->rc == 0) {
            send_job_requests(c);
        }
        return;
    }
    if (op == NULL || op->state != OP_SENT || op->kind != OP_KEY) {
        client_fail(c, PSC_E_PROTO,
                    "the agent answered for a key that was not asked for");
        return;
    }
    key_accept_info(c, op, m);
}

/* Without memory for a ring all messages use the socket. */
void client_open_ring(struct psc_client *c, uint32_t layout)
{
    struct ps_msg m = {.code = PS_MSG_L_RING};
    void *memory;
    int fd;

    if (layout == 0 || layout != ps_ring_layout() || c->ring.memory != NULL) {
        return;
    }
    m.l_ring.size = ps_ring_bytes();
    if (ps_shm_make(ps_ring_bytes(), &memory, &fd) != 0) {
        return;
    }
    if (ps_sock_put(c->sock, &m, fd) != 0) {
        close(fd);
        munmap(memory, ps_ring_bytes());
        return;
    }
    c->ring.memory = memory;
    ps_ring_worker_init(&c->ring.worker, memory);
}

static void accept_welcome(struct psc_client *c,
                           const struct ps_msg_l_welcome *m)
{
    if (c->id.is_welcomed) {
        reattach_welcome(c, m);
        return;
    }
    c->id.gen = m->gen;
    c->id.rank = m->rank;
    c->id.size = m->num_workers;
    c->id.local_rank = m->local_rank;
    c->id.local_size = m->local_size;
    c->id.num_servers = m->num_servers;
    c->queues.barriers_sent = m->completed_barriers;
    c->id.is_welcomed = true;
    client_open_ring(c, m->ring_layout);
    client_changed(c);
}

int client_failure(int32_t error)
{
    return error < 0 && error >= PSC_E_BUG ? error : PSC_E_JOBFAILED;
}

static void accept_message(struct psc_client *c, const struct ps_msg *m, int fd)
{
    switch ((int)m->code) {
    case PS_MSG_L_DONE:
        accept_done(c, &m->l_done);
        break;
    case PS_MSG_L_WELCOME:
        accept_welcome(c, &m->l_welcome);
        break;
    case PS_MSG_L_ARENA:
        key_accept_arena(c, &m->l_arena, fd);
        break;
    case PS_MSG_L_RESIDUAL_SEGMENT:
        reattach_add_segment(c, &m->l_residual_segment, fd);
        break;
    case PS_MSG_L_KEY_INFO:
        accept_key_info(c, &m->l_key_info);
        break;
    case PS_MSG_L_STALL_REPLY:
        accept_stall_answer(c, &m->l_stall_reply);
        break;
    case PS_MSG_L_WAKE:
        break; /* The reader polls the ring in any case. */
    case PS_MSG_L_ERROR:
        client_fail(c, client_failure(m->l_error.error), "%s", m->l_error.text);
        break;
    case PS_MSG_REJECT:
        client_fail(c, client_failure(m->reject.error), "%s", m->reject.text);
        break;
    default: /* The frame check admits no other message here. */
        client_fail(c, PSC_E_PROTO, "unexpected %s from the agent",
                    ps_msg_name(m->code));
    }
}

/* Handles every message in the buffer. */
static void accept_messages(struct psc_client *c)
{
    while (c->rc == 0) {
        struct ps_msg m;
        int fd = -1;
        int rc = ps_sock_next(c->sock, &m, &fd);

        if (rc == PS_E_AGAIN) {
            return;
        }
        if (rc != 0) {
            client_fail(c, rc, "malformed frame from the agent: %s",
                        ps_strerror(rc));
            return;
        }
        accept_message(c, &m, fd);
    }
}

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

/* Copies results as their parts become readable. */
static void accept_progress(struct psc_client *c)
{
    struct ps_ring_progress piece;
    int rc = 0;

    while (c->ring.memory != NULL && c->rc == 0 &&
           (rc = ps_ring_pop_progress(&c->ring.worker, &piece)) > 0) {
        struct psc_op *op = op_find(c, piece.op_id);

        if (op != NULL) { /* Otherwise the operation has already ended. */
            op_accept_progress(op, piece.bytes);
        }
    }
    if (rc < 0) {
        client_fail(c, rc, "malformed entry in the ring of the agent");
    }
}

/* Handles what the agent put into the ring. */
static void accept_completions(struct psc_client *c)
{
    accept_progress(c);
    while (c->ring.memory != NULL && c->rc == 0) {
        struct ps_msg_l_done m[ENDS_AHEAD];
        int count = ps_ring_pop_dones(&c->ring.worker, m, ENDS_AHEAD);

        if (count == 0) {
            return;
        }
        if (count < 0) {
            client_fail(c, count, "malformed entry in the ring of the agent");
            return;
        }
        prefetch_completions(c, m, count);
        for (int i = 0; i < count && c->rc == 0; i++) {
            accept_done(c, &m[i]);
        }
    }
}

/* One turn of the reader; never waits. */
static void reader_poll_once(struct psc_client *c)
{
    int rc;

    if (c->rc == 0 && c->reattach.link == LINK_LOST) {
        reattach_dial(c);
    }
    if (c->rc != 0 || c->reattach.link == LINK_LOST) {
        return;
    }
    rc = ps_sock_read(c->sock);
    /* Before the messages: the last of them may end every operation. */
    accept_completions(c);
    accept_messages(c);
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
    client_flush(c);
}

/* Makes the agent wake the program's poll descriptor from now on: a program
 * that polls it sleeps without a call of this library. */
static void arm_poll(struct psc_client *c)
{
    if (c->progress.poll_fd >= 0 && c->ring.memory != NULL &&
        !ps_ring_worker_sleep(&c->ring.worker, 1, c->ops.streaming > 0) &&
        eventfd_write(c->progress.event_fd, 1) != 0) {
        /* A full counter is readable, too. */
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
    client_settle(c);
    arm_poll(c);
    client_changed(c);
}

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

/* Sleeps until the agent has sent something or takes more. Completions in the
 * ring wake it when there are `count`. */
static int reader_sleep(struct psc_client *c, uint32_t count, ps_time deadline)
{
    bool ring = c->ring.memory != NULL;
    int rc;

    if (ring &&
        !ps_ring_worker_sleep(&c->ring.worker, count, c->ops.streaming > 0)) {
        return 0;
    }
    c->progress.wake_threshold = count;
    pthread_mutex_unlock(&c->lock);
    rc = ps_sock_wait(c->sock, ms_until(deadline));
    pthread_mutex_lock(&c->lock);
    ps_sock_unkick(c->sock);
    c->progress.wake_threshold = 0;
    if (ring) {
        ps_ring_worker_awake(&c->ring.worker);
    }
    return rc;
}

/* As the reader: flushes, waits, then takes one turn. */
static int wait_as_reader(struct psc_client *c, uint32_t (*missing)(void *arg),
                          void *arg, ps_time deadline)
{
    bool socket = false;
    int rc = 0;

    c->progress.has_reader = true;
    client_flush(c);
    if (c->rc == 0) {
        if (c->ring.memory != NULL && has_input(c)) {
            accept_completions(c);
            goto leave;
        }
        if (c->ring.memory != NULL && busy_poll(c, deadline, &socket)) {
            if (socket) {
                reader_poll_once(c);
            } else {
                accept_completions(c);
            }
            goto leave;
        }
        rc = reader_sleep(c,
                          c->progress.waiter_count > 0 || client_wants_kick(c)
                              ? 1
                              : missing(arg),
                          deadline);
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
    client_settle(c);
    client_changed(c);
    return rc;
}

static uint32_t one_missing(void *arg)
{
    (void)arg;
    return 1;
}

int client_wait(struct psc_client *c, bool (*ready)(void *arg), void *arg,
                ps_time deadline)
{
    return client_wait_many(c, ready, one_missing, arg, deadline);
}

static int wait_until(struct psc_client *c, bool (*ready)(void *arg),
                      uint32_t (*missing)(void *arg), void *arg,
                      ps_time deadline)
{
    while (!ready(arg)) {
        int rc;

        client_settle(c);
        if (c->rc != 0) {
            return c->rc;
        }
        rc = c->progress.has_reader ? wait_for_reader(c, deadline)
                                    : wait_as_reader(c, missing, arg, deadline);
        if (rc != 0 && !ready(arg)) {
            return c->rc != 0 ? c->rc : rc;
        }
    }
    return 0;
}

int client_wait_many(struct psc_client *c, bool (*ready)(void *arg),
                     uint32_t (*missing)(void *arg), void *arg,
                     ps_time deadline)
{
    int rc = wait_until(c, ready, missing, arg, deadline);

    arm_poll(c);
    return rc;
}

/* ------------------------------------------------------------------ opening */

/* Writes an error text before there is a client that holds its detail. */
static int open_error(char *err, size_t err_size, int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int open_error(char *err, size_t err_size, int rc, const char *fmt, ...)
{
    va_list ap;

    if (err != NULL && err_size > 0) {
        va_start(ap, fmt);
        vsnprintf(err, err_size, fmt, ap);
        va_end(ap);
    }
    return rc;
}

static int check_options(const struct psc_options *o, char *err, size_t size)
{
    size_t name = o->job != NULL ? strlen(o->job) : 0;

    if (name == 0 || name > PS_NAME_MAX) {
        return open_error(err, size, PSC_E_INVAL,
                          "the job's name must have 1 to %u bytes",
                          PS_NAME_MAX);
    }
    if (o->num_workers == 0 || o->num_workers > PS_RANKS_MAX) {
        return open_error(err, size, PSC_E_INVAL,
                          "num_workers is %u, but must be from 1 to %u",
                          o->num_workers, PS_RANKS_MAX);
    }
    if (o->num_servers > PS_SERVERS_MAX) {
        return open_error(err, size, PSC_E_INVAL,
                          "num_servers is %u, but must be at most %u",
                          o->num_servers, PS_SERVERS_MAX);
    }
    if (o->rank < PSC_RANK_ANY ||
        (o->rank >= 0 && (uint32_t)o->rank >= o->num_workers)) {
        return open_error(err, size, PSC_E_INVAL,
                          "rank %d is none of a job of %u workers", o->rank,
                          o->num_workers);
    }
    if (o->mode > PSC_MODE_SSP || o->on_loss > PSC_ON_LOSS_FAIL ||
        o->placement > PSC_PLACEMENT_MXNET) {
        return open_error(err, size, PSC_E_INVAL,
                          "no such mode, on_loss or placement");
    }
    if (o->rule != PSC_RULE_NONE &&
        (o->mode == PSC_MODE_SYNC ||
         (o->rule != PSC_RULE_ACCUMULATE && o->rule != PSC_RULE_ASSIGN))) {
        return open_error(
            err, size, PSC_E_INVAL,
            "a rule is accumulate or assign, and is stated for an "
            "async or ssp job alone");
    }
    if (o->staleness != 0 && o->mode != PSC_MODE_SSP) {
        return open_error(err, size, PSC_E_INVAL,
                          "staleness is stated for an ssp job alone");
    }
    if (o->mode != PSC_MODE_SYNC && o->num_servers == 0) {
        return open_error(
            err, size, PSC_E_INVAL,
            "an async or ssp job needs at least one server: servers "
            "apply its pushes");
    }
    if ((o->flags & ~PSC_OPEN_QUIET) != 0) {
        return open_error(err, size, PSC_E_INVAL, "no such flags as %#x",
                          o->flags);
    }
    if (o->start_timeout_ms < 0 || o->connect_timeout_ms < 0 ||
        o->op_timeout_ms < 0 || o->close_timeout_ms < 0 ||
        o->agent_retry_ms < 0) {
        return open_error(err, size, PSC_E_INVAL,
                          "a time limit must not be negative");
    }
    if (o->spin_us > SPIN_MAX_US) {
        return open_error(err, size, PSC_E_INVAL,
                          "spin_us is %d, but must be at most %d", o->spin_us,
                          SPIN_MAX_US);
    }
    return 0;
}

/* The remedy for an agent's socket that cannot be opened. */
static const char *socket_advice(int errnum)
{
    switch (errnum) {
    case ENOENT:
    case ECONNREFUSED:
        return "; start psworker-agent on this node, start this program by "
               "pslaunch, or name another socket (PSKV_SOCKET)";
    case EACCES:
        return "; this user has no access to it (client.mode of the agent)";
    default:
        return "";
    }
}

static int connect_agent(struct psc_client *c, const struct psc_options *o,
                         char *err, size_t err_size)
{
    ps_time deadline = client_deadline(o->connect_timeout_ms);
    const char *path = o->socket != NULL ? o->socket : PSC_DEFAULT_SOCKET;

    for (;;) {
        int errnum = 0;
        int rc = ps_sock_open(path, &c->sock, &errnum);

        if (rc == 0) {
            return 0;
        }
        if (rc != PS_E_UNREACH || ms_until(deadline) == 0) {
            return open_error(err, err_size, rc,
                              "no agent on the socket '%s': %s%s", path,
                              errnum != 0 ? strerror(errnum) : ps_strerror(rc),
                              socket_advice(errnum));
        }
        poll(NULL, 0, CONNECT_RETRY_MS);
    }
}

static bool has_been_welcomed(void *arg)
{
    return ((struct psc_client *)arg)->id.is_welcomed;
}

void client_hello(const struct psc_client *c, struct ps_msg *ret_msg)
{
    const struct psc_options *o = &c->options;

    *ret_msg = (struct ps_msg){
        .code = PS_MSG_L_HELLO,
        .l_hello = {
            .protocol = PS_PROTOCOL,
            .job = o->job,
            .num_workers = o->num_workers,
            .num_servers = o->num_servers,
            .rank = o->rank,
            .mode = (uint8_t)o->mode,
            .rule = (uint8_t)o->rule,
            .staleness = o->staleness,
            .on_loss = (uint8_t)o->on_loss,
            .placement = (uint8_t)o->placement,
            .big_array_bound = o->big_array_bound,
            .partition_bytes = o->partition_bytes,
            .start_timeout_ns = PS_MILLIS(o->start_timeout_ms),
            .holds_segments = reattach_is_wanted(o),
        }};
}

static int send_hello(struct psc_client *c, const struct psc_options *o,
                      char *err, size_t err_size)
{
    struct ps_msg m;
    int rc;

    client_hello(c, &m);
    rc = client_send(c, &m);

    if (rc == 0) {
        rc = wait_note_start(c, has_been_welcomed,
                             ps_time_add(client_deadline(o->start_timeout_ms),
                                         PS_MILLIS(START_SLACK_MS)));
    }
    if (rc == PS_E_TIMEOUT) {
        return open_error(err, err_size, rc,
                          "the agent has not answered for %d ms",
                          o->start_timeout_ms + START_SLACK_MS);
    }
    if (rc != 0) {
        return open_error(err, err_size, rc, "%s",
                          c->rc != 0 ? c->text : ps_strerror(rc));
    }
    return 0;
}

static const volatile uint8_t *map_fork_page(void)
{
    uint8_t *page = mmap(NULL, 1, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED) {
        return NULL;
    }
    if (madvise(page, 1, MADV_WIPEONFORK) != 0) {
        munmap(page, 1);
        return NULL;
    }
    *page = 1;
    return page;
}

static void unmap_fork_page(const volatile uint8_t *page)
{
    if (page != NULL) {
        munmap((void *)(uintptr_t)page, 1);
    }
}

static int new_client(struct psc_client **ret_client)
{
    struct psc_client *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;

    if (c == NULL) {
        return PSC_E_NOMEM;
    }
    c->pid = getpid();
    c->fork_page = map_fork_page();
    c->progress.poll_fd = -1;
    c->progress.event_fd = -1;
    ps_list_init(&c->ops.all);
    ps_list_init(&c->ops.spare);
    ps_list_init(&c->progress.callbacks);
    ps_list_init(&c->queues.stalled);
    ps_list_init(&c->queues.barriers);
    ps_list_init(&c->progress.stall_requests);
    ps_list_init(&c->ops.deferred_free);
    ps_list_init(&c->colls.order_queue);
    ps_list_init(&c->queues.job_requests);
    ps_shm_init(&c->shm, &(struct ps_shm_hooks){.on_made = on_arena_made,
                                                .on_freed = on_arena_freed,
                                                .ctx = c});
    if (pthread_condattr_init(&attr) != 0) {
        goto free_client;
    }
    if (pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) != 0 ||
        pthread_cond_init(&c->progress.changed, &attr) != 0) {
        goto destroy_attr;
    }
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        goto destroy_cond;
    }
    pthread_condattr_destroy(&attr);
    *ret_client = c;
    return 0;

destroy_cond:
    pthread_cond_destroy(&c->progress.changed);
destroy_attr:
    pthread_condattr_destroy(&attr);
free_client:
    unmap_fork_page(c->fork_page);
    free(c);
    return PSC_E_NOMEM;
}

/* Frees everything. No other thread uses the client, or this is a forked child,
 * which has no other threads. */
static void free_client(struct psc_client *c, bool child)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->ops.all)) != NULL) {
        op_free(PS_CONTAINER(n, struct psc_op, of_client));
    }
    while ((n = ps_list_pop(&c->ops.spare)) != NULL) {
        free(PS_CONTAINER(n, struct psc_op, of_client));
    }
    key_free_all(c);
    free((char *)(uintptr_t)c->options.socket);
    free(c->optimizer);
    free((char *)(uintptr_t)c->options.job);
    ps_shm_fini(&c->shm);
    if (c->ring.memory != NULL) {
        munmap(c->ring.memory, ps_ring_bytes());
    }
    unmap_fork_page(c->fork_page);
    reattach_fini(c);
    ps_sock_free(c->sock);
    if (c->progress.poll_fd >= 0) {
        close(c->progress.poll_fd);
    }
    if (c->progress.event_fd >= 0) {
        close(c->progress.event_fd);
    }
    free(c->ops.by_slot);
    free(c->ops.free_slots);
    if (!child) {
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->progress.changed);
    }
    free(c);
}

static int copy_options(struct psc_client *c, const struct psc_options *o,
                        char *err, size_t err_size)
{
    c->options = *o;
    c->options.socket = strdup(o->socket != NULL ? o->socket
                                                 : PSC_DEFAULT_SOCKET);
    c->options.job = strdup(o->job);
    if (c->options.socket == NULL || c->options.job == NULL) {
        return open_error(err, err_size, PSC_E_NOMEM, "%s",
                          ps_strerror(PS_E_NOMEM));
    }
    return 0;
}

int psc_open(const struct psc_options *o, struct psc_client **ret_client,
             char *err, size_t err_size)
{
    struct psc_options full;
    struct psc_client *c;
    int rc;

    /* Callers built with an older header have fewer fields. */
    psc_options_init(&full, sizeof(full));
    if (o->size < offsetof(struct psc_options, connect_timeout_ms) ||
        o->size > sizeof(full)) {
        return open_error(err, err_size, PSC_E_INVAL,
                          "the options were not set up with psc_options_init");
    }
    memcpy(&full, o, o->size);
    rc = check_options(&full, err, err_size);
    if (rc != 0) {
        return rc;
    }
    rc = new_client(&c);
    if (rc != 0) {
        return open_error(err, err_size, rc, "%s", ps_strerror(rc));
    }
    c->op_timeout_ms = full.op_timeout_ms;
    c->close_timeout_ms = full.close_timeout_ms;
    ps_spin_init(&c->progress.busy_poll, full.spin_us == 0 ? PS_SPIN_AUTO
                                         : full.spin_us < 0
                                             ? 0
                                             : PS_MICROS(full.spin_us));
    c->is_quiet = (full.flags & PSC_OPEN_QUIET) != 0;
    rc = copy_options(c, &full, err, err_size);
    if (rc == 0) {
        wait_note_init(c);
        rc = connect_agent(c, &full, err, err_size);
    }
    if (rc == 0) {
        pthread_mutex_lock(&c->lock);
        rc = send_hello(c, &full, err, err_size);
        pthread_mutex_unlock(&c->lock);
    }
    if (rc != 0) {
        free_client(c, false);
        return rc;
    }
    *ret_client = c;
    return 0;
}

/* ------------------------------------------------------------------ closing */

static bool all_ops_ended(void *arg)
{
    const struct psc_client *c = arg;

    /* Waits for a re-attach, so that the next agent gets the detach. Skips of a
     * failed join carry no data and do not count. */
    return c->ops.sent == c->colls.skips_detached &&
           c->keys.unbound_count == 0 && c->reattach.link == LINK_UP;
}

/* PS_E_CLOSED: the agent was lost before it received the message. */
static int send_bye(struct psc_client *c)
{
    const struct ps_msg m = {.code = PS_MSG_L_DETACH};
    ps_time deadline = client_deadline(END_MS);

    if (client_send(c, &m) != 0) {
        return 0;
    }
    while (!ps_sock_flushed(c->sock) && ms_until(deadline) > 0) {
        int rc = ps_sock_wait(c->sock, ms_until(deadline));

        /* Answers are read only to make space for the message. */
        rc = rc != 0 ? rc : ps_sock_flush(c->sock);
        if (rc == 0) {
            rc = ps_sock_read(c->sock);
        }
        if (rc != 0 && rc != PS_E_AGAIN) {
            return rc;
        }
        accept_messages(c);
    }
    return ps_sock_end(c->sock, END_MS);
}

static void leave_locked(struct psc_client *c)
{
    ps_time deadline = client_deadline(c->close_timeout_ms);
    bool lost;

    do {
        lost = false;
        if (client_wait(c, all_ops_ended, c, deadline) == PS_E_TIMEOUT) {
            /* Open operations end here; the agent has their data. */
        }
        if (c->rc == 0 && c->reattach.link == LINK_UP) {
            lost = send_bye(c) == PS_E_CLOSED && c->rc == 0 &&
                   reattach_is_possible(c);
        }
        if (lost) {
            reattach_agent_lost(c);
        }
    } while (lost && ms_until(deadline) > 0);
    client_fail(c, PSC_E_CLOSED, "this worker has left the job");
    client_settle(c);
}

int psc_leave(struct psc_client *c)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (c->rc != 0) {
        rc = client_error(c, c->rc, "%s", c->text);
    } else {
        leave_locked(c);
    }
    client_leave(c);
    return rc;
}

void psc_close(struct psc_client *c)
{
    if (c == NULL) {
        return;
    }
    if (!client_is_own_process(c)) {
        free_client(c, true);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (c->rc == 0) {
        leave_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    free_client(c, false);
}

/* ------------------------------------------------------------------- asking */

int psc_rank(const struct psc_client *c)
{
    return client_is_own_process(c) ? (int)c->id.rank : PSC_E_FORKED;
}

int psc_size(const struct psc_client *c)
{
    return client_is_own_process(c) ? (int)c->id.size : PSC_E_FORKED;
}

int psc_local_rank(const struct psc_client *c)
{
    return client_is_own_process(c) ? (int)c->id.local_rank : PSC_E_FORKED;
}

int psc_local_size(const struct psc_client *c)
{
    return client_is_own_process(c) ? (int)c->id.local_size : PSC_E_FORKED;
}

int psc_num_servers(const struct psc_client *c)
{
    return client_is_own_process(c) ? (int)c->id.num_servers : PSC_E_FORKED;
}

const char *psc_strerror(int rc)
{
    return ps_strerror(rc);
}

const char *psc_version(void)
{
    return PSC_VERSION;
}

int psc_last_detail(struct psc_client *c, char *text, size_t size)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    ps_str_copy(text, size, c->detail);
    client_leave(c);
    return 0;
}

int psc_get_stats(struct psc_client *c, struct psc_stats *ret_stats)
{
    struct psc_stats s = {.size = ret_stats->size};
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (s.size < sizeof(uint32_t) || s.size > sizeof(s)) {
        rc = client_error(c, PSC_E_INVAL, "size is not of the statistics");
        goto leave;
    }
    s.ops = c->stats.ops_ended;
    s.rounds = c->stats.rounds;
    s.bytes_given = c->stats.bytes_pushed;
    s.bytes_got = c->stats.bytes_pulled;
    s.bytes_copied = c->stats.bytes_copied;
    s.sends = ps_sock_sends(c->sock);
    s.receives = ps_sock_receives(c->sock);
    s.resumes = c->reattach.count;
    memcpy(ret_stats, &s, s.size);

leave:
    client_leave(c);
    return rc;
}

/* ------------------------------------------------------------------- memory */

int psc_alloc(struct psc_client *c, size_t size, void **ret_data)
{
    struct ps_shm_block *b;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = c->rc != 0 ? c->rc : ps_shm_get(&c->shm, size, &b);
    if (rc == 0) {
        *ret_data = ps_shm_data(b);
    } else {
        client_error(c, rc, "no shared memory of %zu bytes: %s", size,
                     c->rc != 0 ? c->text : ps_strerror(rc));
    }
    client_leave(c);
    return rc;
}

int psc_free(struct psc_client *c, void *data)
{
    struct ps_shm_block *b;
    int rc;

    if (data == NULL) {
        return 0;
    }
    rc = client_enter(c);
    if (rc != 0) {
        return rc;
    }
    b = ps_shm_find(&c->shm, data, 0);
    if (b == NULL || ps_shm_data(b) != data) {
        rc = client_error(c, PSC_E_INVAL, "not from psc_alloc");
    } else if (b->uses > 0) {
        rc = client_error(c, PSC_E_AGAIN, "%u open operations use this memory",
                          b->uses);
    } else {
        ps_shm_put(&c->shm, b);
    }
    client_leave(c);
    return rc;
}

/* -------------------------------------------------------------------- loops */

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
    arm_poll(c);
    if (!ps_list_empty(&c->progress.callbacks)) {
        return eventfd_write(event, 1) == 0 ? 0 : PSC_E_SYS;
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

int psc_dispatch(struct psc_client *c)
{
    struct ps_list_node *n;
    eventfd_t ignored;
    int count = 0;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    client_poll(c);
    while ((n = ps_list_pop(&c->progress.callbacks)) != NULL) {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_callbacks);
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
    if (c->progress.event_fd >= 0 &&
        eventfd_read(c->progress.event_fd, &ignored) != 0) {
        /* The counter was zero. */
    }
    arm_poll(c);
    if (count == 0 && c->rc != 0) {
        count = client_error(c, c->rc, "%s", c->text);
    }
    client_leave(c);
    return count;
}
