/* SPDX-License-Identifier: Apache-2.0 */
/* Servers of this agent, each with one link, dialled while a job has a queue of
 * partitions for it: the cluster map, connections, pings, and the queues. send.c
 * has how partitions leave them.
 *
 * Each job has one queue per server: higher priority first, FIFO among equals
 * (rule C5). Between jobs the order is that of fair queueing by their weights,
 * so a priority is one of its job only (rule C7). A server that one job uses has
 * no turns. A queue also has the job's credit at the server, and the time until
 * which refused partitions wait for its memory. */
#include "core/agent/server.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/base/machine.h"

#include <assert.h>

/* Longest wait for a server without memory; the wait doubles each time. */
#define FULL_BACKOFF_MAX PS_SECONDS(1)

/* --------------------------------------------------------------- life, map */

void ps_agent_server_touch(struct ps_agent *a, struct ps_agent_server *s)
{
    if (!ps_list_linked(&s->touched_node)) {
        ps_list_push_back(&a->servers.touched, &s->touched_node);
    }
}

static struct ps_agent_server *server_get(struct ps_agent_step *st,
                                          uint32_t node)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node, node);
    struct ps_link_options link = st->a->opt.link;
    struct ps_str name;

    if (s == NULL) {
        s = ps_calloc(1, sizeof(*s));
        s->node = node;
        s->ping_interval = PING_INTERVAL_MIN;
        link.ledger = &st->a->account;
        ps_str_init(&name, s->peer, sizeof(s->peer));
        ps_str_addf(&name, "node %u", node);
        link.peer = s->peer;
        ps_list_init(&s->send_queues);
        ps_fair_init(&s->fair);
        /* Target 0 is the scheduler. An earlier server may have had the same
         * number and dials in flight; first_generation tells them apart. */
        st->a->servers.met++;
        ps_dialer_init(
            &s->dialer,
            &(struct ps_dialer_options){
                .target = node,
                .first_generation = st->a->servers.met << 12,
                .instance = st->a->opt.instance,
                .backoff_min = st->a->opt.dial_backoff_min,
                .backoff_max = ps_time_min(st->a->opt.dial_backoff_max,
                                           PS_DIALER_PARALLEL_DELAY),
                .link = link},
            &st->a->rng, st->now);
        ps_map_put(st->a->servers.by_node, node, s);
        ps_agent_server_touch(st->a, s);
    }
    return s;
}

void ps_agent_server_free(struct ps_agent *a, struct ps_agent_server *s)
{
    assert(ps_list_empty(&s->send_queues));
    assert(ps_batch_is_empty(&s->batch.parts));
    if (ps_list_linked(&s->touched_node)) {
        ps_list_remove(&s->touched_node);
    }
    if (ps_heap_linked(&s->due_item)) {
        ps_heap_remove(&a->servers.due, &s->due_item);
        ps_heap_remove(&a->servers.pings, &s->ping_item);
    }
    ps_fair_fini(&s->fair);
    ps_dialer_fini(&s->dialer);
    ps_batch_fini(&s->batch.parts);
    ps_free(s->batch.row_parts);
    ps_free(s->batch.name_hashes);
    ps_free(s->batch.first_elems);
    ps_free(s);
}

void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s)
{
    if (!ps_list_empty(&s->send_queues)) {
        return;
    }
    s->dialer.enabled = false;
    ps_agent_server_touch(st->a, s);
    ps_dialer_reset(&s->dialer, st->now, st->fx); /* New link. */
    s->unsent = 0;
}

void ps_agent_server_note(struct ps_agent_step *st,
                          const struct ps_agent_server *s, const char *why)
{
    ps_effects_log(st->fx, PS_LOG_INFO, "%s at %s: %s",
                   *s->name == '\0' ? "server" : s->name, s->dialer.address,
                   why);
}

/* Applies one entry of the map. Another incarnation is another process:
 * connections to the old one are dropped. */
static void update_server(struct ps_agent_step *st,
                          const struct ps_rec_server *m)
{
    struct ps_agent_server *s = server_get(st, m->node);
    bool other = s->was_in_map && s->incarnation != m->incarnation;

    ps_agent_server_touch(st->a, s);
    if (other) {
        ps_agent_server_note(st, s, "was restarted");
        ps_dialer_drop_all(&s->dialer, st->now, st->fx);
    }
    if (other || s->removed) {
        ps_dialer_dial_now(&s->dialer, st->now);
    }
    s->was_in_map = true;
    s->removed = false;
    s->map_epoch = st->a->servers.map_epoch;
    s->incarnation = m->incarnation;
    ps_str_copy(s->name, sizeof(s->name), m->name);
    ps_dialer_set_address(&s->dialer, m->address, st->now, st->fx);
    s->dialer.enabled = !ps_list_empty(&s->send_queues);
}

/* Marks a server that the map does not list. It is not dialled until a map
 * lists it again. */
static void remove_server(struct ps_agent_step *st, struct ps_agent_server *s)
{
    ps_agent_server_touch(st->a, s);
    s->removed = true;
    s->dialer.enabled = false;
    ps_agent_server_note(st, s, "is gone");
    ps_dialer_drop_all(&s->dialer, st->now, st->fx);
}

/* Returns true if the server has no connection, not even a closing one. */
static bool is_unconnected(const struct ps_agent *a,
                           const struct ps_agent_server *s)
{
    PS_MAP_EACH(const struct ps_agent_server, other, a->servers.by_conn)
    {
        if (other == s) {
            return false;
        }
    }
    return true;
}

/* Frees servers that the map does not list and no job here uses. They would
 * accumulate, because a restarted scheduler numbers all servers again. */
static void free_unused_servers(struct ps_agent *a, const struct ps_msg_map *m)
{
    PS_MAP_EACH(struct ps_agent_server, s, a->servers.by_node)
    {
        bool named = false;

        for (uint32_t i = 0; i < m->servers_count && !named; i++) {
            named = m->servers[i].node == s->node;
        }
        if (!named && s->was_in_map && ps_list_empty(&s->send_queues) &&
            is_unconnected(a, s)) {
            ps_map_remove(a->servers.by_node, s->node);
            ps_agent_server_free(a, s);
        }
    }
}

void ps_agent_server_on_map(struct ps_agent_step *st,
                            const struct ps_msg_map *m)
{
    if (m->epoch < st->a->servers.map_epoch) {
        return;
    }
    st->a->servers.map_epoch = m->epoch;
    for (uint32_t i = 0; i < m->servers_count; i++) {
        update_server(st, &m->servers[i]);
    }
    PS_MAP_EACH(struct ps_agent_server, s, st->a->servers.by_node)
    {
        if (s->was_in_map && !s->removed && s->map_epoch != m->epoch) {
            remove_server(st, s);
        }
    }
    free_unused_servers(st->a, m);
}

/* -------------------------------------------------------------- connections */

/* Limits of a server that several jobs use, by the kind of its link. A sum of
 * one job waits behind those that run, and one of 1 MiB keeps all threads
 * busy. */
static const struct ps_agent_queue_limits of_jobs_by_reference = {
    .computing = 1024ull * 1024, .unsent = UINT64_MAX};
/* One partition of each: the loop takes about 0.5 ms to encrypt one, and a small
 * round of another job waits behind all of them. */
static const struct ps_agent_queue_limits of_jobs_by_stream = {
    .computing = 64ull * 1024, .unsent = 64ull * 1024};

void ps_agent_server_on_open(struct ps_agent_step *st,
                             const struct ps_event *ev)
{
    const uint64_t target = ev->open.target;
    const ps_conn_id conn = ev->conn;
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                           (uint32_t)target);
    const struct ps_msg_hello hello = ps_agent_hello(st->a);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (s == NULL) {
        ps_effects_close(st->fx, conn);
    } else if (!ps_peer_check_name(ev->open.identity, s->name, &why)) {
        ps_effects_close(st->fx, conn);
        ps_agent_server_on_dial_failed(st, target, PS_E_PERM, why.data);
    } else if (ps_dialer_on_open(&s->dialer, target, conn, st->now, st->fx)) {
        s->shared_limits = ev->open.is_by_reference ? &of_jobs_by_reference
                                                    : &of_jobs_by_stream;
        ps_map_put(st->a->servers.by_conn, conn, s);
        ps_agent_server_touch(st->a, s);
        ps_dialer_send_hello(&s->dialer, conn, &hello, st->fx);
    }
}

void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                           (uint32_t)target);

    if (s == NULL) {
        return;
    }
    ps_agent_server_touch(st->a, s);
    if (ps_dialer_on_dial_failed(&s->dialer, target, rc, st->now)) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "server %s at %s cannot be reached: %s", s->name,
                       s->dialer.address, why != NULL ? why : ps_strerror(rc));
    }
}

/* Returns true if a key of this node has a partition on the server. */
static bool has_partitions(const struct ps_agent_server *s)
{
    PS_LIST_EACH_OF(const struct ps_agent_send_queue, f, node, &s->send_queues)
    {
        PS_MAP_EACH(const struct ps_agent_key, k, f->job->keys)
        {
            for (uint32_t i = 0; i < k->part_count; i++) {
                if (k->parts[i].owner_node == s->node) {
                    return true;
                }
            }
        }
    }
    return false;
}

void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn)
{
    ps_agent_server_touch(st->a, s);
    if (ps_dialer_on_closed(&s->dialer, conn, st->now)) {
        ps_agent_server_note(st, s, "connection lost");
    }
    if (s->dialer.enabled && !ps_dialer_is_connected(&s->dialer) &&
        !has_partitions(s)) {
        /* A server that was restarted, and whose partitions others have taken
         * over, does not know the jobs here, and would refuse each dial. */
        s->dialer.enabled = false;
        ps_agent_server_note(st, s,
                             "has no partition of a job here; it is "
                             "dialled when one is placed there");
    }
}

void ps_agent_server_on_stalled(struct ps_agent_step *st,
                                struct ps_agent_server *s, ps_conn_id conn)
{
    if (conn == s->dialer.conn) {
        ps_agent_server_touch(st->a, s);
        ps_dialer_on_stalled(&s->dialer, st->now);
    }
}

void ps_agent_server_send(struct ps_agent_step *st, struct ps_agent_server *s,
                          struct ps_packet *packet)
{
    ps_link_send(s->dialer.link, packet, st->now, st->fx);
    ps_agent_server_touch(st->a, s);
}

void ps_agent_server_send_msg(struct ps_agent_step *st,
                              struct ps_agent_server *s,
                              const struct ps_msg *msg)
{
    ps_agent_server_send(st, s, ps_packet_new(msg, NULL, 0));
}

int ps_agent_server_alloc_payload(struct ps_agent *a, uint64_t len,
                                  struct ps_slice *ret_slice)
{
    struct ps_buf *buf;

    if (ps_pool_get(a->opt.scratch_pool, len, &buf) != 0) {
        /* The pool may be full of sums whose acknowledgements come after this
         * frame, so the frame is read in spite of the limit: at most one per
         * connection at a time. */
        buf = ps_buf_new(len);
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

/* --------------------------------------------------------------- deadlines */

/* Time of the next ping to a server that may be the reason why operations wait.
 * At least its host acknowledges a ping; a missing acknowledgement shows that
 * the connection is broken (PS_EV_STALLED). */
static ps_time ping_due_at(const struct ps_agent_server *s)
{
    if (s->dialer.conn == 0 || ps_list_empty(&s->send_queues)) {
        return PS_TIME_NEVER;
    }
    return ps_max_u64(s->next_ping_at,
                      ps_time_add(s->dialer.last_recv_at, PING_INTERVAL_MIN));
}

static void send_ping(struct ps_agent_step *st, const struct ps_agent_server *s)
{
    ps_effects_send_msg(
        st->fx, s->dialer.conn,
        &(struct ps_msg){.code = PS_MSG_PING,
                         .ack = ps_link_received(s->dialer.link),
                         .ping = {.stamp = st->now}});
}

void ps_agent_server_on_ping_req(struct ps_agent_step *st,
                                 const struct ps_msg_ping_req *m)
{
    const struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                                 m->node);

    if (s == NULL || s->incarnation != m->incarnation ||
        s->dialer.last_recv_at == 0) {
        return;
    }
    ps_uplink_send_ping_ack(&st->a->uplink, m, st->now - s->dialer.last_recv_at,
                            st->fx);
    if (ps_dialer_is_connected(&s->dialer)) {
        send_ping(st, s);
    }
}

/* Sends the pings that are due. Their servers are due again when the step has
 * ended. */
static void send_due_pings(struct ps_agent_step *st)
{
    struct ps_heap *pings = &st->a->servers.pings;
    struct ps_heap_item *item;

    while ((item = ps_heap_peek(pings)) != NULL && item->key <= st->now) {
        struct ps_agent_server *s = PS_CONTAINER(item, struct ps_agent_server,
                                                 ping_item);

        ps_heap_update(pings, item, PS_TIME_NEVER);
        ps_agent_server_touch(st->a, s);
        send_ping(st, s);
        s->next_ping_at = ps_time_add(st->now, s->ping_interval);
        s->ping_interval = ps_time_min(2 * s->ping_interval, PING_INTERVAL_MAX);
    }
}

void ps_agent_server_tick(struct ps_agent_step *st)
{
    struct ps_heap *due = &st->a->servers.due;
    struct ps_heap_item *item;

    if (st->a->spare_ops.in_use > 0) {
        send_due_pings(st);
    }
    while ((item = ps_heap_peek(due)) != NULL && item->key <= st->now) {
        struct ps_agent_server *s = PS_CONTAINER(item, struct ps_agent_server,
                                                 due_item);

        ps_heap_update(due, item, PS_TIME_NEVER);
        ps_agent_server_touch(st->a, s);
        ps_dialer_tick(&s->dialer, st->now, st->fx);
    }
}

void ps_agent_server_update_deadlines(struct ps_agent *a,
                                      struct ps_agent_server *s)
{
    ps_heap_update(&a->servers.due, &s->due_item,
                   ps_dialer_deadline(&s->dialer));
    ps_heap_update(&a->servers.pings, &s->ping_item, ping_due_at(s));
}

/* ------------------------------------------------------------------ queues */

static uint64_t initial_credit(const struct ps_agent *a)
{
    return a->opt.initial_credit != 0 ? a->opt.initial_credit
                                      : PS_CREDIT_INITIAL;
}

/* Adds the queue to those of its server. The second one begins the turns. */
static void join_server(struct ps_agent *a, struct ps_agent_send_queue *f)
{
    struct ps_agent_server *s = f->server;
    struct ps_agent_send_queue *first = PS_LIST_FIRST(
        struct ps_agent_send_queue, node, &s->send_queues);

    ps_agent_server_touch(a, s);
    ps_list_push_back(&s->send_queues, &f->node);
    if (++s->queue_count == 2) {
        ps_agent_send_queue_wake(first);
    }
    s->dialer.enabled = !s->removed;
}

/* Removes the queue from those of its server. The turns end when one is
 * left. */
static void leave_server(struct ps_agent *a, struct ps_agent_send_queue *f)
{
    struct ps_agent_server *s = f->server;
    struct ps_agent_send_queue *last;

    ps_agent_server_touch(a, s);
    ps_fair_deactivate(&s->fair, &f->flow);
    ps_list_remove(&f->node);
    last = PS_LIST_FIRST(struct ps_agent_send_queue, node, &s->send_queues);
    if (--s->queue_count == 1) {
        ps_fair_deactivate(&s->fair, &last->flow);
    }
}

struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node)
{
    struct ps_agent_send_queue *f = ps_map_get(j->send_queues, node);

    if (f == NULL) {
        f = ps_calloc(1, sizeof(*f));
        f->job = j;
        f->server = server_get(st, node);
        f->credit = initial_credit(st->a);
        ps_heap_init(&f->heap);
        join_server(st->a, f);
        ps_map_put(j->send_queues, node, f);
    } else if (!f->server->dialer.enabled && !f->server->removed) {
        ps_agent_server_touch(st->a, f->server);
        f->server->dialer.enabled = true; /* It had no partition meanwhile. */
        ps_dialer_dial_now(&f->server->dialer, st->now);
    }
    return f;
}

void ps_agent_send_queue_reset(const struct ps_agent *a,
                               struct ps_agent_send_queue *f)
{
    f->bytes_sent = 0;
    f->credit = initial_credit(a);
    ps_agent_send_queue_wake(f);
}

void ps_agent_send_queue_wake(struct ps_agent_send_queue *f)
{
    if (f->heap.count > 0 && f->server->queue_count > 1) {
        ps_fair_activate(&f->server->fair, &f->flow);
    }
}

void ps_agent_send_queue_free(struct ps_agent *a, struct ps_agent_send_queue *f)
{
    assert(f->heap.count == 0);
    leave_server(a, f);
    ps_heap_fini(&f->heap);
    ps_free(f);
}

struct ps_agent_computation *
ps_agent_computation_new(struct ps_agent *a, struct ps_agent_part *p,
                         struct ps_agent_send_queue *f)
{
    struct ps_agent_computation *run = ps_calloc(1, sizeof(*run));

    run->token = ++a->last.token;
    run->part = p;
    run->send_queue = f;
    run->round_starts = p->key->round.starts;
    return run;
}

void ps_agent_computation_start(struct ps_agent_step *st,
                                struct ps_agent_computation *run,
                                struct ps_compute *c)
{
    struct ps_agent_send_queue *f = run->send_queue;

    if (f != NULL) {
        f->computing_bytes += run->bytes;
        f->server->computing++;
        f->server->computing_bytes += run->bytes;
    }
    if (!run->is_delivery) {
        ps_agent_part_set_state(run->part, PS_AGENT_PART_COMPUTING);
    }
    ps_map_put(st->a->computations, run->token, run);
    ps_effects_compute(st->fx, c);
}

void ps_agent_computation_leave(const struct ps_agent_computation *run)
{
    struct ps_agent_send_queue *f = run->send_queue;

    f->computing_bytes -= run->bytes;
    f->server->computing--;
    f->server->computing_bytes -= run->bytes;
    ps_agent_send_queue_wake(f);
}

void ps_agent_server_enqueue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, p->key->job,
                                                            p->owner_node);
    int64_t priority = p->is_init ? 0 : p->key->round.priority;

    assert(p->state != PS_AGENT_PART_QUEUED &&
           p->state != PS_AGENT_PART_COMPUTING);
    ps_agent_part_set_state(p, PS_AGENT_PART_QUEUED);
    ps_heap_push(&f->heap, &p->queue_item, (uint64_t)(INT32_MAX - priority));
    ps_agent_send_queue_wake(f);
    ps_agent_server_touch(st->a, f->server);
}

void ps_agent_server_dequeue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->state == PS_AGENT_PART_QUEUED) {
        struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, p->key->job,
                                                                p->owner_node);

        ps_heap_remove(&f->heap, &p->queue_item);
        /* The next one may need no credit. */
        ps_agent_send_queue_wake(f);
        ps_agent_server_touch(st->a, f->server);
    }
    ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
}

void ps_agent_server_on_credit(struct ps_agent_step *st,
                               const struct ps_agent_server *s,
                               const struct ps_agent_job *j, uint64_t credit,
                               bool accepted)
{
    struct ps_agent_send_queue *f = j == NULL
                                        ? NULL
                                        : ps_map_get(j->send_queues, s->node);
    const ps_time retry_at = ps_time_add(st->now, RESEND_WAIT);

    if (f != NULL && credit > f->credit) {
        f->credit = credit;
        ps_agent_send_queue_wake(f);
    }
    if (f != NULL && accepted && f->backoff != 0) {
        f->backoff = 0;
        f->backoff_until = ps_time_min(f->backoff_until, retry_at);
        st->a->due.resend_at = ps_time_min(st->a->due.resend_at, retry_at);
    }
}

void ps_agent_server_begin_backoff(struct ps_agent_step *st,
                                   struct ps_agent_send_queue *f)
{
    if (f->backoff_until <= st->now) {
        f->backoff = ps_min_u64(ps_max_u64(2 * f->backoff, RESEND_WAIT),
                                FULL_BACKOFF_MAX);
        f->backoff_until = ps_time_add(st->now, f->backoff);
    }
    st->a->due.resend_at = ps_time_min(st->a->due.resend_at, f->backoff_until);
}

bool ps_agent_server_is_backing_off(struct ps_agent_step *st,
                                    const struct ps_agent_part *p)
{
    const struct ps_agent_send_queue *f = ps_map_get(p->key->job->send_queues,
                                                     p->owner_node);

    if (f == NULL || f->backoff_until <= st->now) {
        return false;
    }
    st->a->due.resend_at = ps_time_min(st->a->due.resend_at, f->backoff_until);
    return true;
}
