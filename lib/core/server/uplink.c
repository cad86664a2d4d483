/* SPDX-License-Identifier: Apache-2.0 */
/* The server's side of its uplink (core/link/uplink.h): what it reports to the
 * scheduler, and what follows from the scheduler's messages. Agents are served
 * without a scheduler, too. */
#include "core/server/uplink.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/base/trace_read.h"
#include "core/server/inner.h"
#include "core/server/job_state.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/migration_end.h"
#include "core/server/migration_in.h"
#include "core/server/migration_out.h"
#include "core/server/norm.h"
#include "core/server/profile.h"
#include "core/server/restore.h"
#include "core/server/session.h"
#include "core/server/stats.h"

/* Updates the accounts with pool bytes and the partition tables. */
static void update_account(void *context)
{
    struct ps_server *s = ((struct ps_server_step *)context)->s;
    struct ps_map_cursor c = {0};
    struct ps_server_job *job;
    uint64_t tables = 0;

    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
        const uint64_t parts = ps_map_count(job->store.parts);

        ps_account_set_used(&job->account, PS_COST_PARTITIONS, parts);
        ps_account_set_used(&job->account, PS_COST_MEMORY,
                            ps_pool_share_used(job->pool_share) +
                                parts * sizeof(struct ps_part));
        tables += parts * sizeof(struct ps_part);
    }
    /* Includes buffers of no job, or of one that has ended. */
    ps_account_set_used(&s->account, PS_COST_MEMORY,
                        ps_pool_used(s->opt.pool) + tables);
}

/* Reports the server's jobs on a new session of the link, so that the scheduler
 * can name those that ended meanwhile. */
static void on_new_session(void *context)
{
    struct ps_server_step *st = context;
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;

    while ((job = ps_map_next(st->s->jobs.by_gen, &c)) != NULL) {
        ps_server_job_send_ready(st, job);
        ps_server_norm_resend(st, job);
        ps_server_restore_send_lost(st, job);
    }
}

/* Rule N6: a new epoch may follow a migration to this server. Messages of a
 * link may overtake each other, so the scheduler may have ignored a norm_part
 * that came before it counted this server as the owner: sends these again. */
static void on_map(struct ps_server_step *st, uint32_t epoch)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;

    if (epoch <= st->s->epoch) {
        return;
    }
    st->s->epoch = epoch;
    while ((job = ps_map_next(st->s->jobs.by_gen, &c)) != NULL) {
        ps_server_norm_resend(st, job);
    }
}

static void fill_hello(void *context, struct ps_msg_hello *hello)
{
    const struct ps_server_step *st = context;
    const struct ps_server *s = st->s;

    hello->role = PS_ROLE_SERVER;
    hello->name = s->opt.name;
    hello->cluster = s->opt.cluster;
    hello->address = s->opt.address;
    hello->memory_limit = ps_pool_budget(s->opt.pool);
    ps_facts_fill_hello(&s->opt.facts, st->now, hello);
}

static void fill_ping(void *context, struct ps_msg_ping *ping)
{
    const struct ps_server *s = ((struct ps_server_step *)context)->s;
    struct ps_server_stats stats;

    ps_server_stats(s, &stats);
    *ping = (struct ps_msg_ping){
        .epoch = s->epoch,
        .rounds = stats.rounds,
        .bytes_in = stats.bytes_in,
        .bytes_out = stats.bytes_out,
        .stored_bytes = stats.stored_bytes,
        .resent = stats.resent,
        .waiting_requests = stats.waiting_requests,
        .memory_used = ps_pool_used(s->opt.pool),
        .memory_short = ps_server_memory_is_short(s),
        .draining = s->draining,
        .certificate_ends = s->certificate.at,
        .certificate_is_expiring = s->certificate.is_expiring};
    ps_facts_fill_ping(&s->opt.facts, ping);
}

static uint32_t
list_refusals(void *context, struct ps_rec_refusals list[PS_REFUSALS_SHOWN_MAX])
{
    const struct ps_server *s = ((struct ps_server_step *)context)->s;
    struct ps_map_cursor c = {0};
    const struct ps_server_session *p;
    uint32_t count = 0;

    while (s->sessions.refused_frames > 0 &&
           (p = ps_map_next(s->sessions.by_node, &c)) != NULL) {
        ps_misuse_list(&p->misuse, p->agent_node, list, &count);
    }
    return count;
}

/* A scheduler counts epochs from its own start. */
static void on_new_scheduler(void *context)
{
    ((struct ps_server_step *)context)->s->epoch = 0;
}

static const struct ps_uplink_ops uplink_ops = {
    .fill_hello = fill_hello,
    .fill_ping = fill_ping,
    .list_refusals = list_refusals,
    .update_account = update_account,
    .on_new_scheduler = on_new_scheduler,
    .on_new_session = on_new_session,
};

void ps_server_uplink_init(struct ps_server *s, ps_time now)
{
    ps_uplink_init(&s->uplink,
                   &(struct ps_uplink_options){
                       .ops = &uplink_ops,
                       .address = s->opt.sched_address,
                       .dialer = {.instance = s->opt.instance,
                                  .backoff_min = s->opt.dial_backoff_min,
                                  .backoff_max = s->opt.dial_backoff_max,
                                  .link = s->opt.link},
                       .account = &s->account,
                       .waits_after_reject = true},
                   &s->rng, now);
}

int ps_server_uplink_payload(struct ps_server *s, const struct ps_msg *msg,
                             uint64_t len, struct ps_slice *ret_slice)
{
    if (msg->code != PS_MSG_PART_CHUNK || len > PS_MIGRATION_CHUNK_MAX) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(s->uplink.dialer.link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_buf *buf = ps_buf_try_new(len);

    if (buf == NULL) {
        return PS_E_NOMEM; /* The migration is aborted. */
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

static void on_trace_get(struct ps_server_step *st,
                         const struct ps_msg_trace_get *m)
{
    struct ps_rec_trace_entry *list = ps_calloc(PS_TRACE_READ_MAX,
                                                sizeof(*list));
    struct ps_msg r = {.code = PS_MSG_TRACE_ENTRIES};

    ps_trace_read(st->s->opt.trace, m, st->now, list, &r.trace_entries);
    ps_server_uplink_send_msg(st, &r);
    ps_free(list);
}

void ps_server_uplink_on_msg(struct ps_server_step *st, ps_conn_id conn,
                             const struct ps_msg *msg,
                             const struct ps_slice *payload)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);

    if (!ps_uplink_on_msg(&st->s->uplink, &call, conn, msg)) {
        return;
    }
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_MAP:
        on_map(st, msg->map.epoch);
        break;
    case PS_MSG_PING_REQ:
        ps_server_session_on_ping_req(st, &msg->ping_req);
        break;
    case PS_MSG_JOB_STATE:
        ps_server_on_job_state(st, &msg->job_state);
        break;
    case PS_MSG_JOB_QUOTA:
        ps_server_on_job_quota(st, &msg->job_quota);
        break;
    case PS_MSG_NORM_RESULT:
        ps_server_on_norm_result(st, &msg->norm_result);
        break;
    case PS_MSG_PROFILE_GET:
        ps_server_on_profile_get(st, &msg->profile_get);
        break;
    case PS_MSG_LOG_LEVEL:
        ps_effects_log_level(st->fx, &msg->log_level);
        break;
    case PS_MSG_TRACE_GET:
        on_trace_get(st, &msg->trace_get);
        break;
    case PS_MSG_PART_READ:
        ps_server_on_part_read(st, &msg->part_read);
        break;
    case PS_MSG_PART_CHUNK:
        ps_server_on_part_chunk(st, &msg->part_chunk, payload);
        break;
    case PS_MSG_PART_END:
        ps_server_on_part_end(st, &msg->part_end);
        break;
    default:
        ps_uplink_drop(&st->s->uplink, &call,
                       "it sent what is not for a server");
        break;
    }
}
