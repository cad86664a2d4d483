/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's side of its uplink (core/link/dialer.h): what it reports to the
 * scheduler, and what follows from the scheduler's messages. Training continues
 * while the scheduler is away; a scheduler that does not know this agent gets
 * its state again. */
#include "core/agent/uplink.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/diagnose.h"
#include "core/agent/inner.h"
#include "core/agent/inspect.h"
#include "core/agent/job.h"
#include "core/agent/key.h"
#include "core/agent/report.h"
#include "core/agent/request.h"
#include "core/agent/server.h"
#include "core/agent/session.h"
#include "core/agent/waits.h"
#include "core/base/peer.h"

static void fill_hello(void *context, struct ps_msg_hello *hello)
{
    const struct ps_agent_step *st = context;

    *hello = ps_agent_hello(st->a);
    ps_facts_fill_hello(&st->a->opt.facts, st->now, hello);
}

static uint64_t stored_bytes(const struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_job *j;
    uint64_t bytes = 0;

    while ((j = ps_map_next(a->jobs, &c)) != NULL) {
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
    struct ps_map_cursor c = {0};
    const struct ps_agent_server *s;
    uint32_t count = 0;

    while (a->stats.refused_frames > 0 &&
           (s = ps_map_next(a->servers.by_node, &c)) != NULL) {
        ps_misuse_list(&s->misuse, s->node, list, &count);
    }
    return count;
}

/* A new scheduler counts map epochs from its own start and gives the servers
 * other numbers. */
static void on_new_scheduler(void *context)
{
    struct ps_agent_step *st = context;

    st->a->servers.map_epoch = 0;
    ps_agent_departed_drop_unknown(st->a);
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

void ps_agent_uplink_init(struct ps_agent *a, ps_time now)
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

void ps_agent_uplink_on_open(struct ps_agent_step *st, ps_conn_id conn,
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

    ps_trace_read(st->a->opt.trace, m, st->now, list, &r.trace_entries);
    if (j != NULL && r.trace_entries.entries_count > 0) {
        r.trace_entries.span_names = names;
        r.trace_entries.span_names_count = ps_agent_span_list(j, names);
    }
    ps_agent_uplink_send_msg(st, &r);
    ps_free(list);
}

void ps_agent_uplink_on_msg(struct ps_agent_step *st, ps_conn_id conn,
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
    case PS_MSG_PROFILE_EVENTS:
        ps_agent_request_on_profile_events(st, &m->profile_events);
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
