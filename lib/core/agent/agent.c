/* SPDX-License-Identifier: Apache-2.0 */
/* Agent machine: dispatches each event to the module that handles it, runs
 * timers, and implements the ps_machine interface. Every step ends by pumping
 * the send queues of the servers that it has touched.
 *
 * The file has the agent's side of its uplink (core/link/dialer.h), too: what it
 * reports to the scheduler, and what follows from the scheduler's messages.
 * Training continues while the scheduler is away; a scheduler that does not know
 * this agent gets its state again. */
#include "core/agent/agent.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/diagnose.h"
#include "core/agent/inner.h"
#include "core/agent/job.h"
#include "core/agent/key.h"
#include "core/agent/place.h"
#include "core/agent/report.h"
#include "core/agent/request.h"
#include "core/agent/residual_log.h"
#include "core/agent/round.h"
#include "core/agent/send.h"
#include "core/agent/server.h"
#include "core/agent/session.h"
#include "core/agent/waits.h"
#include "core/agent/worker.h"
#include "core/base/peer.h"
#include "proto/ps_fixed.h"

#include <assert.h>

/* ----------------------------------------------------------------- figures */

bool ps_agent_is_ready(const struct ps_agent *a)
{
    return ps_uplink_is_connected(&a->uplink);
}

uint64_t ps_agent_residue(const struct ps_agent *a)
{
    return ps_map_count(a->jobs) + ps_map_count(a->sessions_by_conn) +
           ps_map_count(a->stall_queries) + a->draining_pools.count;
}

void ps_agent_stats(const struct ps_agent *a, struct ps_agent_stats *ret)
{
    *ret = a->stats;
    ret->sessions = (uint32_t)ps_map_count(a->sessions_by_conn);
    ret->resent = ps_link_resent(a->uplink.dialer.link);
    ret->pending_ops = 0;
    PS_LIST_EACH_OF(const struct ps_agent_session, session, node, &a->sessions)
    {
        ret->pending_ops += session->op_count;
    }
    PS_MAP_EACH(const struct ps_agent_server, s, a->servers.by_node)
    {
        ret->resent += ps_link_resent(s->dialer.link);
    }
}

/* --------------------------------------------------------------- scheduler */

static void fill_hello(void *context, struct ps_msg_hello *hello)
{
    const struct ps_agent_step *st = context;

    *hello = ps_agent_hello(st->a);
    hello->epoch = st->a->servers.map_epoch;
    ps_facts_fill_hello(&st->a->opt.facts, st->now, hello);
}

static uint64_t stored_bytes(const struct ps_agent *a)
{
    uint64_t bytes = 0;

    PS_MAP_EACH(const struct ps_agent_job, j, a->jobs)
    {
        bytes += ps_pool_used(j->result_pool);
    }
    return bytes;
}

static void fill_ping(void *context, struct ps_msg_ping *ping)
{
    const struct ps_agent *a = ((struct ps_agent_step *)context)->a;
    struct ps_agent_stats s;

    ps_agent_stats(a, &s);
    *ping = (struct ps_msg_ping){
        .epoch = a->servers.map_epoch,
        .rounds = s.rounds,
        .bytes_in = s.bytes_in,
        .bytes_out = s.bytes_out,
        .stored_bytes = stored_bytes(a),
        .resent = s.resent,
        .waiting_requests = s.pending_ops,
        .draining = a->draining,
        .certificate_ends = a->certificate.at,
        .certificate_is_expiring = a->certificate.is_expiring};
    ps_facts_fill_ping(&a->opt.facts, ping);
}

static uint32_t
list_refusals(void *context, struct ps_rec_refusals list[PS_REFUSALS_SHOWN_MAX])
{
    const struct ps_agent *a = ((struct ps_agent_step *)context)->a;
    uint32_t count = 0;

    if (a->stats.refused_frames == 0) {
        return 0;
    }
    PS_MAP_EACH(const struct ps_agent_server, s, a->servers.by_node)
    {
        ps_misuse_list(&s->misuse, s->node, list, &count);
    }
    return count;
}

/* A scheduler without the memory of the one before counts map epochs from its own
 * start and gives the servers other numbers. None knows jobs that had not
 * begun. */
static void on_new_scheduler(void *context, bool knows_members)
{
    struct ps_agent_step *st = context;

    if (!knows_members) {
        st->a->servers.map_epoch = 0;
        ps_agent_departed_drop(st->a, NULL);
    }
    ps_agent_job_reoffer(st);
}

static void on_new_session(void *context)
{
    ps_agent_job_resend_all(context);
}

static const struct ps_uplink_ops uplink_ops = {
    .fill_hello = fill_hello,
    .fill_ping = fill_ping,
    .list_refusals = list_refusals,
    .on_new_scheduler = on_new_scheduler,
    .on_new_session = on_new_session,
};

static void uplink_init(struct ps_agent *a, ps_time now)
{
    ps_uplink_init(&a->uplink,
                   &(struct ps_uplink_options){
                       .ops = &uplink_ops,
                       .address = a->opt.sched_address,
                       .dialer = {.instance = a->opt.instance,
                                  .backoff_min = a->opt.dial_backoff_min,
                                  .backoff_max = a->opt.dial_backoff_max,
                                  .link = a->opt.link},
                       .account = &a->account},
                   &a->rng, now);
}

/* `liveness_address` NULL: none. */
static void on_scheduler_open(struct ps_agent_step *st, ps_conn_id conn,
                              const char *liveness_address)
{
    const struct ps_uplink_call call = ps_agent_uplink_call(st);

    ps_str_copy(st->a->liveness_address, sizeof(st->a->liveness_address),
                liveness_address != NULL ? liveness_address : "");
    ps_uplink_on_open(&st->a->uplink, &call, 0, conn);
}

static void on_trace_get(struct ps_agent_step *st,
                         const struct ps_msg_trace_get *m)
{
    struct ps_rec_trace_entry *list = ps_calloc(PS_TRACE_READ_MAX,
                                                sizeof(*list));
    struct ps_rec_span_name names[PS_SPAN_NAMES_NODE_MAX];
    const struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_msg r = {.code = PS_MSG_TRACE_ENTRIES};

    ps_trace_read(st->a->opt.trace, m, 0, st->now, list, &r.trace_entries);
    if (j != NULL && r.trace_entries.entries_count > 0) {
        r.trace_entries.span_names = names;
        r.trace_entries.span_names_count = ps_agent_span_list(j, names);
    }
    ps_agent_uplink_send_msg(st, &r);
    ps_free(list);
}

static void on_scheduler_msg(struct ps_agent_step *st, ps_conn_id conn,
                             const struct ps_msg *m,
                             const struct ps_slice *payload)
{
    const struct ps_uplink_call call = ps_agent_uplink_call(st);

    if (!ps_uplink_on_msg(&st->a->uplink, &call, conn, m)) {
        return;
    }
    switch (m->code) {
    case PS_MSG_MAP:
        ps_agent_server_on_map(st, &m->map);
        break;
    case PS_MSG_JOB_OPENED:
        ps_agent_job_on_opened(st, &m->job_opened);
        break;
    case PS_MSG_JOB_STATE:
        ps_agent_job_on_state(st, &m->job_state);
        break;
    case PS_MSG_KEY_OPENED:
        ps_agent_key_on_opened(st, &m->key_opened, payload);
        break;
    case PS_MSG_DISAGREEMENT:
        ps_agent_key_on_disagreement(st, &m->disagreement);
        break;
    case PS_MSG_BARRIER_DONE:
        ps_agent_barrier_on_done(st, &m->barrier_done);
        break;
    case PS_MSG_OPTIMIZER_DONE:
        ps_agent_request_on_done(st, &m->optimizer_done);
        break;
    case PS_MSG_TRACE_ENTRIES:
        ps_agent_request_on_entries(st, &m->trace_entries);
        break;
    case PS_MSG_REPORT_DONE:
        ps_agent_report_on_done(st, &m->report_done);
        break;
    case PS_MSG_PING_REQ:
        ps_agent_server_on_ping_req(st, &m->ping_req);
        break;
    case PS_MSG_LOG_LEVEL:
        ps_effects_log_level(st->fx, &m->log_level);
        break;
    case PS_MSG_TRACE_GET:
        on_trace_get(st, &m->trace_get);
        break;
    case PS_MSG_WAIT_COLLECT:
        ps_agent_waits_on_collect(st, &m->wait_collect);
        break;
    case PS_MSG_STALL_COLLECT:
        ps_agent_diagnose_on_collect(st, &m->stall_collect);
        break;
    case PS_MSG_STALL_REPLY:
        ps_agent_diagnose_on_reply(st, &m->stall_reply);
        break;
    default:
        break;
    }
}

/* -------------------------------------------------------------- connections */

static struct ps_agent_server *find_server_by_conn(const struct ps_agent *a,
                                                   ps_conn_id conn)
{
    struct ps_agent_server *s = ps_map_get(a->servers.by_conn, conn);

    return s != NULL && ps_dialer_owns_conn(&s->dialer, conn) ? s : NULL;
}

static void on_conn_open(struct ps_agent_step *st, const struct ps_event *ev)
{
    switch (ev->open.kind) {
    case PS_CONN_LOCAL:
        ps_agent_session_on_open(st, ev);
        return;
    case PS_CONN_ACCEPTED:
        ps_effects_close(st->fx, ev->conn); /* No peer dials an agent. */
        return;
    case PS_CONN_DIALLED:
        break;
    }
    if (ev->open.target == 0) {
        on_scheduler_open(st, ev->conn, ev->open.liveness_address);
        return;
    }
    ps_agent_server_on_open(st, ev);
}

static void on_dial_failed(struct ps_agent_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = ps_agent_uplink_call(st);

    if (ev->dial_failed.target == 0) {
        ps_uplink_on_dial_failed(&st->a->uplink, &call, 0, ev->dial_failed.rc,
                                 ev->dial_failed.why);
    } else {
        ps_agent_server_on_dial_failed(st, ev->dial_failed.target,
                                       ev->dial_failed.rc, ev->dial_failed.why);
    }
}

static void on_conn_stalled(struct ps_agent_step *st, ps_conn_id conn)
{
    struct ps_agent_server *s = find_server_by_conn(st->a, conn);

    if (s != NULL) {
        ps_agent_server_on_stalled(st, s, conn);
    } else {
        st->a->due.uplink_has_changed = true;
        ps_uplink_on_stalled(&st->a->uplink, conn, st->now);
    }
}

static void on_conn_closed(struct ps_agent_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = ps_agent_uplink_call(st);
    struct ps_agent_session *session = ps_map_get(st->a->sessions_by_conn,
                                                  ev->conn);
    struct ps_agent_server *s;

    if (session != NULL) {
        ps_agent_session_on_closed(st, session);
        return;
    }
    if (ps_uplink_owns_conn(&st->a->uplink, ev->conn)) {
        ps_uplink_on_closed(&st->a->uplink, &call, ev->conn, ev->closed.rc,
                            ev->closed.why);
        return;
    }
    s = find_server_by_conn(st->a, ev->conn);
    (void)ps_map_remove(st->a->servers.by_conn, ev->conn);
    if (s != NULL) {
        ps_agent_server_on_closed(st, s, ev->conn);
    }
}

static void on_msg(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_server *s = find_server_by_conn(st->a, ev->conn);
    struct ps_agent_session *session;

    if (s != NULL) {
        ps_agent_reply_on_msg(st, s, ev->conn, ev->msg.msg, ev->msg.payload);
        return;
    }
    session = ps_map_get(st->a->sessions_by_conn, ev->conn);
    if (session != NULL) {
        ps_agent_session_on_msg(st, session, ev->msg.msg);
    } else if (ps_uplink_owns_conn(&st->a->uplink, ev->conn)) {
        on_scheduler_msg(st, ev->conn, ev->msg.msg, ev->msg.payload);
    }
}

static void on_bytes_sent(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_conn, ev->conn);

    if (s != NULL && ev->conn == s->dialer.conn) {
        s->unsent = ev->sent.queued;
        if (s->is_full) {
            ps_agent_server_touch(st->a, s);
        }
    }
}

static void on_computed(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_computation *run = ps_map_remove(st->a->computations,
                                                     ev->computed.token);

    if (run == NULL) {
        return;
    }
    if (run->is_delivery) {
        ps_agent_round_on_delivered(st, run, ev->computed.rc);
    } else if (run->send_queue != NULL || run->part == NULL) {
        ps_agent_send_on_computed(st, run, ev->computed.rc);
    } else {
        ps_agent_round_on_computed(st, run, ev->computed.rc);
    }
}

static void on_region(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *s = ps_map_get(st->a->sessions_by_conn, ev->conn);

    if (s != NULL && ev->region.buf != NULL) {
        ps_agent_session_on_region(st, s, ev->region.region, ev->region.buf);
    } else if (s != NULL) {
        ps_agent_session_on_unmapped(st, s, ev->region.region, ev->region.rc,
                                     ev->region.why);
    }
}

static void on_residual_segment(struct ps_agent_step *st,
                                const struct ps_event *ev)
{
    struct ps_agent_session *s = ps_map_get(st->a->sessions_by_conn, ev->conn);

    if (s != NULL && ev->region.buf != NULL) {
        ps_agent_residual_on_segment(st, s, ev->region.buf);
    } else if (s != NULL) {
        ps_agent_session_on_unmapped(st, s, 0, ev->region.rc, ev->region.why);
    }
}

static void on_ops(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *s = ps_map_get(st->a->sessions_by_conn, ev->conn);

    if (s != NULL) {
        ps_agent_session_on_ops(st, s, ev->ops.op, ev->ops.count);
    }
}

/* --------------------------------------------------------------------- time */

static void on_tick(struct ps_agent_step *st)
{
    const struct ps_uplink_call call = ps_agent_uplink_call(st);
    struct ps_agent *a = st->a;

    ps_agent_send_tick(st);
    ps_uplink_tick(&a->uplink, &call);
    if (a->due.stall_answer_at <= st->now) {
        ps_agent_diagnose_tick(st);
    }
    ps_agent_waits_tick(st);
    ps_agent_server_tick(st);
    if (a->due.scratch_retry_at <= st->now) {
        a->due.scratch_retry_at = PS_TIME_NEVER; /* Its end pumps again. */
    }
    if (a->due.resend_at <= st->now) {
        ps_agent_resend_refused(st);
    }
    if (a->due.report_at <= st->now) {
        ps_agent_report_tick(st);
    }
    if (a->unmapping.next_at <= st->now) {
        ps_agent_unmap_regions(a);
    }
    if (a->due.scratch_trim_at <= st->now) {
        a->due.scratch_trim_at = PS_TIME_NEVER;
        ps_pool_trim(a->opt.scratch_pool);
    }
}

static ps_time agent_deadline(const void *self)
{
    const struct ps_agent *a = self;
    ps_time at = ps_time_min(a->due.uplink_at, ps_heap_least(&a->servers.due));

    if (!ps_list_empty(&a->servers.with_batch) || a->sum_arena.buf != NULL) {
        return a->now; /* The tick sends batches and frees their memory. */
    }
    if (a->spare_ops.in_use > 0) {
        at = ps_time_min(at, ps_heap_least(&a->servers.pings));
    }
    at = ps_time_min(at, a->due.scratch_retry_at);
    at = ps_time_min(at, a->due.resend_at);
    at = ps_time_min(at, a->due.scratch_trim_at);
    at = ps_time_min(at, a->due.report_at);
    at = ps_time_min(at, a->due.stall_answer_at);
    at = ps_time_min(at, a->waits.check_at);
    at = ps_time_min(at, a->unmapping.next_at);
    return ps_time_min(at, a->draining_pools.next_reap_at);
}

/* -------------------------------------------------------- machine interface */

/* The ping states it, so that the end is no loss. */
static void begin_draining(struct ps_agent_step *st)
{
    const struct ps_uplink_call call = ps_agent_uplink_call(st);

    st->a->draining = true;
    ps_uplink_ping_now(&st->a->uplink, &call);
}

static int agent_step(void *self, const struct ps_event *ev,
                      struct ps_effects *fx)
{
    struct ps_agent *a = self;
    struct ps_agent_step st = {.a = a, .now = ev->now, .fx = fx};

    assert(ev->now >= a->now);
    a->now = ev->now;
    switch (ev->type) {
    case PS_EV_TICK:
        on_tick(&st);
        break;
    case PS_EV_OPEN:
        on_conn_open(&st, ev);
        break;
    case PS_EV_DIAL_FAILED:
        on_dial_failed(&st, ev);
        break;
    case PS_EV_PROBED:
        break;
    case PS_EV_MSG:
        on_msg(&st, ev);
        break;
    case PS_EV_SENT:
        on_bytes_sent(&st, ev);
        break;
    case PS_EV_STALLED:
        on_conn_stalled(&st, ev->conn);
        break;
    case PS_EV_CLOSED:
        on_conn_closed(&st, ev);
        break;
    case PS_EV_COMPUTED:
        on_computed(&st, ev);
        break;
    case PS_EV_REGION:
        on_region(&st, ev);
        break;
    case PS_EV_RESIDUAL_SEGMENT:
        on_residual_segment(&st, ev);
        break;
    case PS_EV_OPS:
        on_ops(&st, ev);
        break;
    case PS_EV_DRAIN:
    case PS_EV_SHUTDOWN:
        begin_draining(&st);
        break;
    case PS_EV_CERTIFICATE:
        a->certificate = ev->certificate;
        break;
    }
    if (a->deferred_session_count > 0) {
        ps_agent_session_send_deferred(&st);
    }
    if (a->draining_pools.count > 0 &&
        (a->draining_pools.next_reap_at <= st.now ||
         a->draining_pools.next_reap_at == PS_TIME_NEVER)) {
        ps_agent_job_reap_pools(a);
    }
    if (!ps_list_empty(&a->servers.touched)) {
        ps_agent_send_pump(&st);
    }
    if (a->due.uplink_has_changed) {
        a->due.uplink_at = ps_uplink_deadline(&a->uplink);
        a->due.uplink_has_changed = false;
    }
    return a->uplink.state == PS_UPLINK_NAME_LOST ? PS_E_CONFIG : 0;
}

/* Allocates the payload of key_opened, the placement table. PS_E_INVAL if the
 * message is unexpected. */
static int accept_placement_payload(const struct ps_agent *a, ps_conn_id conn,
                                    const struct ps_msg *m, uint64_t len,
                                    struct ps_slice *ret_slice)
{
    struct ps_agent_job *j = ps_agent_job_find(a, m->key_opened.gen);

    if (conn != a->uplink.dialer.conn || j == NULL ||
        !ps_link_is_new(a->uplink.dialer.link, m->seq) ||
        len != PS_FIXED_PLACEMENT_PART_BYTES * (uint64_t)m->key_opened.parts ||
        m->key_opened.parts > PS_KEY_PARTS_MAX) {
        return PS_E_INVAL;
    }
    *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    return 0;
}

static int agent_payload(void *self, ps_conn_id conn, const struct ps_msg *m,
                         uint64_t len, struct ps_slice *ret_slice)
{
    struct ps_agent *a = self;
    struct ps_agent_server *s;

    if (m->code == PS_MSG_KEY_OPENED) {
        return accept_placement_payload(a, conn, m, len, ret_slice);
    }
    s = find_server_by_conn(a, conn);
    return s == NULL ? PS_E_INVAL
                     : ps_agent_reply_payload(a, s, m, len, ret_slice);
}

static uint64_t session_charged_bytes(const void *self, ps_conn_id conn)
{
    const struct ps_agent *a = self;
    const struct ps_agent_session *s = ps_map_get(a->sessions_by_conn, conn);

    return s == NULL ? 0
                     : s->account.cost[PS_COST_MEMORY].used +
                           s->account.cost[PS_COST_MAPPED].used;
}

static const struct ps_machine_ops agent_machine_ops = {
    .step = agent_step,
    .deadline = agent_deadline,
    .payload = agent_payload,
    .peer_memory = session_charged_bytes,
};

struct ps_machine ps_agent_machine(struct ps_agent *a)
{
    return (struct ps_machine){
        .ops = &agent_machine_ops, .self = a, .account = &a->account};
}

struct ps_agent *ps_agent_new(const struct ps_agent_options *opt, ps_time now)
{
    struct ps_agent *a = ps_calloc(1, sizeof(*a));

    a->opt = *opt;
    a->now = now;
    ps_rng_init(&a->rng, opt->seed);
    a->servers.by_node = ps_map_new();
    a->sessions_by_conn = ps_map_new();
    a->servers.by_conn = ps_map_new();
    a->jobs = ps_map_new();
    a->computations = ps_map_new();
    a->stall_queries = ps_map_new();
    a->unmapping.regions = ps_map_new();
    a->unmapping.next_at = PS_TIME_NEVER;
    a->draining_pools.next_reap_at = PS_TIME_NEVER;
    ps_agent_budget_init(a);
    ps_list_init(&a->servers.touched);
    ps_list_init(&a->servers.with_batch);
    ps_heap_init(&a->servers.due);
    ps_heap_init(&a->servers.pings);
    ps_list_init(&a->sessions);
    ps_list_init(&a->waits.collects);
    a->waits.check_at = PS_TIME_NEVER;
    a->due.scratch_retry_at = PS_TIME_NEVER;
    a->due.resend_at = PS_TIME_NEVER;
    a->due.scratch_trim_at = PS_TIME_NEVER;
    a->due.report_at = PS_TIME_NEVER;
    a->due.stall_answer_at = PS_TIME_NEVER;
    uplink_init(a, now);
    a->due.uplink_at = ps_uplink_deadline(&a->uplink);
    return a;
}

static void free_computations(struct ps_agent *a)
{
    PS_MAP_EACH(struct ps_agent_computation, run, a->computations)
    {
        ps_buf_unref(run->dst.buf);
        ps_free(run);
    }
    ps_map_free(a->computations);
}

void ps_agent_free(struct ps_agent *a)
{
    struct ps_agent_session *session;

    if (a == NULL) {
        return;
    }
    while ((session = PS_LIST_FIRST(struct ps_agent_session, node,
                                    &a->sessions)) != NULL) {
        ps_agent_session_free(a, session);
    }
    PS_MAP_EACH(struct ps_agent_job, j, a->jobs)
    {
        ps_agent_job_free(NULL, a, j);
    }
    free_computations(a);
    ps_agent_send_release_arena(a);
    PS_MAP_EACH(struct ps_agent_server, s, a->servers.by_node)
    {
        ps_agent_server_free(a, s);
    }
    while (ps_map_count(a->unmapping.regions) > 0) {
        ps_agent_unmap_regions(a);
    }
    ps_map_free(a->unmapping.regions);
    ps_agent_diagnose_fini(a);
    ps_agent_waits_fini(a);
    while (a->spare_ops.count > 0) {
        ps_free(a->spare_ops.ops[--a->spare_ops.count]);
    }
    ps_free(a->spare_ops.ops);
    ps_heap_fini(&a->servers.due);
    ps_heap_fini(&a->servers.pings);
    ps_map_free(a->servers.by_node);
    ps_map_free(a->sessions_by_conn);
    ps_map_free(a->servers.by_conn);
    ps_map_free(a->jobs);
    ps_uplink_fini(&a->uplink);
    do {
        ps_agent_job_reap_pools(a);
    } while (a->draining_pools.next_reap_at != PS_TIME_NEVER);
    assert(a->draining_pools.count ==
           0); /* The driver has released all frames. */
    ps_agent_budget_fini(a);
    ps_free(a->draining_pools.pools);
    ps_free(a->departed.workers);
    ps_free(a);
}
