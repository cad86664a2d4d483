/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to the agent: the first one, and from a lost agent to the next. The
 * process holds all state that an agent has of it: shared memory, keys with their
 * completed rounds, and open operations. So the client continues with any agent
 * that its job lets take over:
 *
 *     UP        the stream ends. Operations SENT are queued again as if they
 *               had not been sent; new operations queue behind them
 *     LOST      the socket is dialled, at growing intervals
 *     HANDSHAKE connected: l_hello names the job and rank of this worker
 *     UP        l_welcome has arrived. Memory, job requests, keys and the
 *               barrier are sent again; the operations of a key leave when the
 *               agent has answered for it
 *
 * The reader does all this in its turns, which do not wait: a timer beside the
 * socket wakes it in time. Results of the lost agent stay mapped while an
 * operation shows them. */
#include "client/reattach.h"
#include "client/arena.h"
#include "client/device/shared.h"
#include "client/grow.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/limits.h"
#include "base/state_table.h"
#include "base/str.h"
#include "base/variables.h"

#define RETRY_FIRST_MS    10
#define RETRY_MOST_MS     1000
/* Residual segments that agents may leave here. */
#define SEGMENTS_HELD_MAX 64u
/* Of the first agents that pass `replicas` on. */
#define COPIES_PROTOCOL   2u

/* Interval between dials of a socket that does not exist yet. */
#define CONNECT_RETRY_MS  50

/* ----------------------------------------------------- the first connection */

/* Appends the remedy for an agent's socket that cannot be opened. */
static void add_socket_advice(int errnum, const char *path, struct ps_str *out)
{
    switch (errnum) {
    case ENOENT:
    case ECONNREFUSED:
        ps_str_add(out,
                   "; start psworker-agent on this node, start this program by "
                   "pslaunch, or name another socket (PSKV_SOCKET)");
        break;
    case EACCES:
        ps_str_add(
            out, "; this user has no access to it (client.mode of the agent)");
        ps_file_add_group(path, out);
        break;
    default:
        break;
    }
}

/* True if no agent can come to listen at this path: its folder is not there.
 * An agent that is started makes the folder first. */
static bool has_no_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];

    if (path[0] == '@' || slash == NULL || slash == path ||
        (size_t)(slash - path) >= sizeof(folder)) {
        return false;
    }
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    return access(folder, F_OK) != 0 && errno == ENOENT;
}

int handshake_connect(struct psc_client *c, const struct psc_options *o,
                      char *err, size_t err_size)
{
    ps_time deadline = client_deadline(o->connect_timeout_ms);
    const bool searches = options_have_default_socket(o);
    char place[PS_SOCKET_PATH_MAX + 1];
    const char *path = o->socket;
    struct ps_str advice = PS_STR_ROOM(PS_TEXT_MAX + 1);

    for (;;) {
        int errnum = 0;
        int rc;

        if (searches) {
            ps_runtime_socket("agent.sock", place, sizeof(place));
            path = place;
        }
        rc = ps_sock_open(path, &c->sock, &errnum);

        if (rc == 0) {
            c->options.socket = strdup(path);
            return c->options.socket != NULL
                       ? 0
                       : client_open_error(err, err_size, PSC_E_NOMEM, "%s",
                                           ps_strerror(PS_E_NOMEM));
        }
        if (rc != PS_E_UNREACH || client_ms_until(deadline) == 0 ||
            has_no_folder(path)) {
            add_socket_advice(errnum, path, &advice);
            return client_open_error(
                err, err_size, rc, "no agent on the socket '%s': %s%s", path,
                errnum != 0 ? strerror(errnum) : ps_strerror(rc), advice.data);
        }
        poll(NULL, 0, CONNECT_RETRY_MS);
    }
}

void handshake_hello(const struct psc_client *c, struct ps_msg *ret_msg)
{
    const struct psc_options *o = &c->options;

    *ret_msg = (struct ps_msg){
        .code = PS_MSG_L_HELLO,
        .l_hello = {
            /* The least that the job needs: an agent refuses a version above
             * its own. */
            .protocol = o->replicas > 1 ? COPIES_PROTOCOL : PS_PROTOCOL_LEAST,
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
            .weight = o->weight,
            .replicas = o->replicas,
            .holds_segments = options_allow_reattach(o),
            .token = c->token,
            .process = waiting_process(),
        }};
}

/* Offers the agent a ring of this layout. Without memory for one all messages
 * use the socket. */
static void open_ring(struct psc_client *c, uint32_t layout)
{
    struct ps_msg m = {.code = PS_MSG_L_RING};
    void *memory;
    int fd;
    int rc;

    if (layout == 0 || layout != ps_ring_layout() || c->ring.memory != NULL) {
        return;
    }
    m.l_ring.size = ps_ring_bytes();
    if (ps_shm_make(ps_ring_bytes(), &memory, &fd) != 0) {
        return;
    }
    rc = ps_sock_put(c->sock, &m, fd);
    close(fd);
    if (rc != 0) {
        munmap(memory, ps_ring_bytes());
        return;
    }
    c->ring.memory = memory;
    ps_ring_worker_init(&c->ring.worker, memory);
}

void handshake_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m)
{
    c->id.gen = m->gen;
    c->id.rank = m->rank;
    c->id.size = m->num_workers;
    c->id.local_rank = m->local_rank;
    c->id.local_size = m->local_size;
    c->id.num_servers = m->num_servers;
    c->queues.barriers_sent = m->completed_barriers;
    c->id.agent_takes_devices = m->takes_devices;
    ps_str_copy(c->id.node, sizeof(c->id.node), m->node != NULL ? m->node : "");
    c->id.is_welcomed = true;
    open_ring(c, m->ring_layout);
    client_changed(c);
}

void handshake_reject(struct psc_client *c, const struct ps_msg_reject *m)
{
    if (c->options.replicas > 1 && m->error == PS_E_VERSION) {
        client_fail(c, PSC_E_VERSION,
                    "replicas: 2 needs an agent of version 0.2.0 or later, and "
                    "the one on '%s' is older: upgrade it, or open the job "
                    "without replicas (%s)",
                    c->options.socket, m->text);
    } else {
        client_fail(c, client_failure(m->error), "%s", m->text);
    }
}

bool reattach_is_possible(const struct psc_client *c)
{
    return c->id.is_welcomed && c->id.gen != 0 &&
           options_allow_reattach(&c->options);
}

/* ------------------------------------------------------- residual segments */

static bool is_same_file(int fd, int other)
{
    struct stat a;
    struct stat b;

    return fstat(fd, &a) == 0 && fstat(other, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Compares files too: each agent numbers the same segment differently. */
static struct residual_segment *
find_segment(const struct psc_client *c, const struct residual_segment *keep)
{
    for (uint32_t i = 0; i < c->reattach.segment_count; i++) {
        if (c->reattach.segments[i].number == keep->number ||
            is_same_file(c->reattach.segments[i].fd, keep->fd)) {
            return &c->reattach.segments[i];
        }
    }
    return NULL;
}

static int add_segment(struct psc_client *c,
                       const struct residual_segment *keep)
{
    struct residual_segment *known = find_segment(c, keep);
    int rc;

    if (known != NULL) {
        close(known->fd);
        *known = *keep;
        return 0;
    }
    if (c->reattach.segment_count == SEGMENTS_HELD_MAX) {
        return PSC_E_FULL;
    }
    rc = client_grow(&c->reattach.segments, c->reattach.segment_count,
                     &c->reattach.segment_cap, sizeof(*keep));
    if (rc != 0) {
        return rc;
    }
    c->reattach.segments[c->reattach.segment_count++] = *keep;
    return 0;
}

void reattach_add_segment(struct psc_client *c,
                          const struct ps_msg_l_residual_segment *m, int fd)
{
    int rc = reattach_is_possible(c)
                 ? add_segment(c,
                               &(struct residual_segment){.number = m->segment,
                                                          .size = m->size,
                                                          .fd = fd})
                 : PSC_E_UNSUPPORTED;

    if (rc != 0) {
        close(fd); /* The agent still has its own descriptor. */
    }
    if (rc == PSC_E_FULL) {
        client_fail(c, PSC_E_PROTO,
                    "the agent offers more than %u residual segments",
                    SEGMENTS_HELD_MAX);
    } else if (rc == PSC_E_NOMEM) {
        client_fail(c, rc, "no memory for a residual segment of the agent");
    }
}

void reattach_fini(struct psc_client *c)
{
    for (uint32_t i = 0; i < c->reattach.segment_count; i++) {
        close(c->reattach.segments[i].fd);
    }
    free(c->reattach.segments);
}

static int offer_segment(struct psc_client *c, const struct residual_segment *k)
{
    const struct ps_msg m = {
        .code = PS_MSG_L_RESIDUAL_SEGMENT,
        .l_residual_segment = {.segment = k->number, .size = k->size}};

    return ps_sock_put(c->sock, &m, k->fd);
}

/* ------------------------------------------------------------------ losing */

static void end_stall_requests(struct psc_client *c)
{
    PS_LIST_EACH_OF(struct stall_request, w, node, &c->progress.stall_requests)
    {
        w->is_answered = w->is_answered ||
                         reattach_explain(c, NULL, w->text, sizeof(w->text));
    }
}

static ps_time reattach_deadline(const struct psc_client *c)
{
    return c->reattach.lost_at + PS_MILLIS(c->options.agent_retry_ms);
}

/* Schedules the next dial; `text` is the reason why the last one failed. */
static void schedule_retry(struct psc_client *c, const char *text)
{
    ps_time now = client_now();
    int rc;

    ps_str_copy(c->reattach.lost_text, sizeof(c->reattach.lost_text), text);
    if (now >= reattach_deadline(c)) {
        client_fail(c, PSC_E_CLOSED,
                    "the agent closed the connection, and no agent has "
                    "accepted this worker on '%s' for %d.%d s: %s",
                    c->options.socket, c->options.agent_retry_ms / 1000,
                    c->options.agent_retry_ms % 1000 / 100, text);
        return;
    }
    c->reattach.retry_at = ps_time_min(now + PS_MILLIS(c->reattach.retry_ms),
                                       reattach_deadline(c));
    rc = ps_sock_alarm(
        c->sock,
        (int)((c->reattach.retry_at - now + PS_MILLIS(1) - 1) / PS_MILLIS(1)));
    if (rc != 0) {
        client_fail(c, rc,
                    "the agent closed the connection, and there is no "
                    "timer to wait for another one: %s",
                    ps_strerror(rc));
    }
    c->reattach.retry_ms = c->reattach.retry_ms * 2 < RETRY_MOST_MS
                               ? c->reattach.retry_ms * 2
                               : RETRY_MOST_MS;
}

static void drop_ring(struct psc_client *c)
{
    if (c->ring.memory != NULL) {
        munmap(c->ring.memory, ps_ring_bytes());
    }
    c->ring.memory = NULL;
    c->ring.is_full = false;
    c->ring.needs_wake = false;
}

static const char *const link_names[] = {
    [LINK_UP] = "up",
    [LINK_LOST] = "lost",
    [LINK_HANDSHAKE] = "handshake",
};

static const uint32_t successors[] = {
    [LINK_UP] = PS_STATE_BIT(LINK_LOST),
    [LINK_LOST] = PS_STATE_BIT(LINK_HANDSHAKE),
    [LINK_HANDSHAKE] = PS_STATE_BIT(LINK_UP) | PS_STATE_BIT(LINK_LOST),
};

/* The connection of a client to its agent. */
static const struct ps_state_table link_states = {
    .name = "connection",
    .states = link_names,
    .count = sizeof(link_names) / sizeof(link_names[0]),
    .allowed = successors,
};

static void set_link(struct psc_client *c, enum link_state to)
{
    const enum link_state from = c->reattach.link;

    if (!ps_state_may_follow(&link_states, from, to)) {
        client_fail(c, PSC_E_BUG, "a %s that is %s cannot become %s",
                    link_states.name, ps_state_name(&link_states, from),
                    ps_state_name(&link_states, to));
        return;
    }
    c->reattach.link = to;
}

static void detach_from_agent(struct psc_client *c, const char *text)
{
    ps_sock_hang_up(c->sock);
    drop_ring(c);
    op_requeue_all(c);
    key_unbind_all(c);
    op_keep_results(c);
    arena_lose_all(c);
    set_link(c, LINK_LOST);
    schedule_retry(c, text);
    end_stall_requests(c);
    client_changed(c);
}

void reattach_agent_lost(struct psc_client *c)
{
    if (c->reattach.link == LINK_UP) {
        c->reattach.retry_ms = RETRY_FIRST_MS;
        if (c->keys.unbound_count == 0) {
            c->reattach.lost_at = client_now();
        }
    }
    detach_from_agent(c, "it closed the connection");
}

/* ----------------------------------------------------------------- dialling */

static int send_hello(struct psc_client *c)
{
    struct ps_msg m;
    int rc;

    handshake_hello(c, &m);
    m.l_hello.rank = (int32_t)c->id.rank;
    m.l_hello.gen = c->id.gen;
    m.l_hello.reattach_keys = c->keys.unbound_count;
    m.l_hello.completed_barriers = c->queues.barriers_sent;
    rc = ps_sock_put(c->sock, &m, -1);
    if (rc == 0) {
        rc = ps_sock_alarm(c->sock, -1);
    }
    if (rc != 0) {
        ps_sock_hang_up(c->sock);
    }
    return rc;
}

void reattach_dial(struct psc_client *c)
{
    int errnum = 0;
    int rc;

    if (client_now() < c->reattach.retry_at) {
        return;
    }
    rc = ps_sock_dial(c->sock, c->options.socket, &errnum);
    if (rc == 0) {
        rc = send_hello(c);
    }
    if (rc == 0) {
        set_link(c, LINK_HANDSHAKE);
        client_flush(c);
        return;
    }
    /* Any error is retried: a socket may exist before it may be opened, and
     * memory and descriptors may become free. */
    schedule_retry(c, errnum != 0 ? strerror(errnum) : ps_strerror(rc));
}

/* ------------------------------------------------------------------- resend */

static int resend_all(struct psc_client *c, uint32_t ring)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->reattach.segment_count; i++) {
        rc = offer_segment(c, &c->reattach.segments[i]);
    }
    if (rc == 0) {
        rc = ps_shm_announce_all(&c->shm);
    }
    if (rc == 0) {
        rc = shared_announce_all(c);
    }
    if (rc == 0) {
        open_ring(c, ring);
        rc = op_send_job_requests(c);
    }
    if (rc == 0) {
        rc = key_rebind_all(c);
    }
    if (rc == 0) {
        op_send_barriers(c);
    }
    return rc;
}

void reattach_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m)
{
    int rc;

    if (c->reattach.link != LINK_HANDSHAKE || m->gen != c->id.gen ||
        m->rank != c->id.rank || m->num_workers != c->id.size) {
        client_fail(c, PSC_E_PROTO,
                    "the agent on '%s' takes rank %u of %u for rank %u of %u%s"
                    ": start the job again",
                    c->options.socket, c->id.rank, c->id.size, m->rank,
                    m->num_workers,
                    m->gen != c->id.gen ? " of another job" : "");
        return;
    }
    c->id.agent_takes_devices = m->takes_devices;
    set_link(c, LINK_UP);
    rc = resend_all(c, m->ring_layout);
    if (rc != 0) {
        /* Closing the connection discards what the agent has received. */
        detach_from_agent(c, ps_strerror(rc));
        return;
    }
    c->reattach.count++;
    client_changed(c);
}

bool reattach_explain(const struct psc_client *c, const struct key *k,
                      char *text, size_t size)
{
    ps_time lost_for;

    if (c->rc != 0 ||
        (c->reattach.link == LINK_UP && (k == NULL || !k->is_unbound))) {
        return false;
    }
    lost_for = (client_now() - c->reattach.lost_at) / PS_MILLIS(1);
    snprintf(text, size, "the agent on '%s' was lost %llu.%llu s ago; %s%s",
             c->options.socket, (unsigned long long)(lost_for / 1000),
             (unsigned long long)(lost_for % 1000 / 100),
             c->reattach.link == LINK_LOST ? "none is there: "
             : c->reattach.link == LINK_HANDSHAKE
                 ? "one is there, and has not yet taken "
                   "this worker up"
                 : "one is there, and has not yet taken "
                   "the key up",
             c->reattach.link == LINK_LOST ? c->reattach.lost_text : "");
    return true;
}
