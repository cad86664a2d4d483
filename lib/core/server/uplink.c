/* SPDX-License-Identifier: Apache-2.0 */
/* Link of the server to the scheduler, which the server dials
 * (core/link/dialer.h): hello, welcome, then pings. If a ping is not answered
 * before the next one, the server dials beside the present connection. Agents
 * are served without a scheduler, too. */
#include "core/server/inner.h"

#include "base/num.h"
#include "base/str.h"
#include "core/link/heartbeat.h"
#include "core/link/name_claim.h"

#include <string.h>

static void cut_uplink(struct ps_server_step *st, const char *why)
{
    ps_effects_log(st->fx, PS_LOG_WARNING, "scheduler cut off: %s", why);
    ps_dialer_drop_all(&st->s->uplink.dialer, st->now, st->fx);
}

void ps_server_uplink_init(struct ps_server *s, ps_time now)
{
    struct ps_server_uplink *up = &s->uplink;
    struct ps_link_options link = s->opt.link;

    link.ledger = &s->account;
    link.peer = "scheduler";
    ps_dialer_init(
        &up->dialer,
        &(struct ps_dialer_options){.instance = s->opt.instance,
                                    .backoff_min = s->opt.dial_backoff_min,
                                    .backoff_max = s->opt.dial_backoff_max,
                                    .link = link},
        &s->rng, now);
    ps_str_copy(up->dialer.address, sizeof(up->dialer.address),
                s->opt.sched_address);
    up->dialer.enabled = true;
    up->heartbeat_interval = PS_HEARTBEAT_DEFAULT;
}

void ps_server_uplink_fini(struct ps_server *s)
{
    ps_dialer_fini(&s->uplink.dialer);
}

void ps_server_uplink_close(struct ps_server_step *st)
{
    st->s->uplink.dialer.enabled = false;
    ps_dialer_drop_all(&st->s->uplink.dialer, st->now, st->fx);
}

void ps_server_uplink_on_open(struct ps_server_step *st, uint64_t target,
                              ps_conn_id conn)
{
    struct ps_server *s = st->s;
    struct ps_server_uplink *up = &s->uplink;

    if (!ps_dialer_on_open(&up->dialer, target, conn, st->now, st->fx)) {
        return;
    }
    ps_effects_send_msg(
        st->fx, conn,
        &(struct ps_msg){
            .code = PS_MSG_HELLO,
            .hello =
                {
                    .protocol = PS_PROTOCOL,
                    .protocol_least = PS_PROTOCOL_LEAST,
                    .role = PS_ROLE_SERVER,
                    .name = s->opt.name,
                    .cluster = s->opt.cluster,
                    .instance = s->opt.instance,
                    .node = up->node,
                    .incarnation = up->incarnation,
                    .session = up->dialer.session,
                    .received = ps_link_received(up->dialer.link),
                    .address = s->opt.address,
                    .memory_limit = ps_pool_budget(s->opt.pool),
                },
        });
}

void ps_server_uplink_on_dial_failed(struct ps_server_step *st, uint64_t target,
                                     int rc, const char *why)
{
    if (ps_dialer_on_dial_failed(&st->s->uplink.dialer, target, rc, st->now)) {
        ps_effects_log(
            st->fx, PS_LOG_WARNING, "scheduler at %s cannot be reached: %s",
            st->s->opt.sched_address, why != NULL ? why : ps_strerror(rc));
    }
}

void ps_server_uplink_on_stalled(struct ps_server_step *st)
{
    ps_dialer_on_stalled(&st->s->uplink.dialer, st->now);
}

void ps_server_uplink_on_closed(struct ps_server_step *st, ps_conn_id conn,
                                int rc)
{
    if (ps_dialer_on_closed(&st->s->uplink.dialer, conn, st->now)) {
        ps_effects_log(st->fx, PS_LOG_INFO, "scheduler connection lost: %s",
                       ps_strerror(rc));
    }
}

void ps_server_uplink_send_msg(struct ps_server_step *st,
                               const struct ps_msg *msg)
{
    ps_link_send_msg(st->s->uplink.dialer.link, msg, st->now, st->fx);
}

void ps_server_uplink_send_ready(struct ps_server_step *st,
                                 const struct ps_server_job *job)
{
    if (!ps_dialer_is_connected(&st->s->uplink.dialer)) {
        return; /* on_welcome() sends it. */
    }
    ps_link_send_msg(
        st->s->uplink.dialer.link,
        &(struct ps_msg){.code = PS_MSG_JOB_READY,
                         .job_ready = {.gen = job->gen,
                                       .version = job->version,
                                       .round = job->newest_version}},
        st->now, st->fx);
}

void ps_server_uplink_send_lost(struct ps_server_step *st,
                                const struct ps_server_job *job)
{
    if (!job->lost_value.known) {
        return;
    }
    ps_server_uplink_send_msg(
        st,
        &(struct ps_msg){.code = PS_MSG_VALUE_LOST,
                         .value_lost = {.gen = job->gen,
                                        .key = job->lost_value.key,
                                        .index = job->lost_value.index,
                                        .version = job->lost_value.version}});
}

/* Reports the server's jobs on a new session of the link, so that the scheduler
 * can name those that ended meanwhile. */
static void report_jobs(struct ps_server_step *st)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;

    while ((job = ps_map_next(st->s->jobs, &c)) != NULL) {
        ps_server_uplink_send_ready(st, job);
        ps_server_norm_resend(st, job);
        ps_server_uplink_send_lost(st, job);
    }
}

/* A new epoch may follow a migration to this server. Messages of a link may
 * overtake each other, so the scheduler may have ignored a norm_part that came
 * before it counted this server as the owner: sends these again. */
static void on_map(struct ps_server_step *st, uint32_t epoch)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;

    if (epoch <= st->s->epoch) {
        return;
    }
    st->s->epoch = epoch;
    while ((job = ps_map_next(st->s->jobs, &c)) != NULL) {
        ps_server_norm_resend(st, job);
    }
}

/* A scheduler counts epochs from its own start. */
static void on_sched_instance(struct ps_server_step *st, uint64_t instance)
{
    struct ps_server_uplink *up = &st->s->uplink;

    if (up->sched_instance != 0 && up->sched_instance != instance) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "the scheduler was restarted; jobs that it does "
                       "not know end");
        st->s->epoch = 0;
    }
    up->sched_instance = instance;
}

static void on_welcome(struct ps_server_step *st, ps_conn_id conn,
                       const struct ps_msg_welcome *m)
{
    struct ps_server_uplink *up = &st->s->uplink;

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        cut_uplink(st, "it wants a protocol that this server does not speak");
        return;
    }
    if (!ps_dialer_on_welcome(&up->dialer, conn, st->now, st->fx)) {
        return;
    }
    on_sched_instance(st, m->instance);
    up->node = m->node;
    up->incarnation = m->incarnation;
    up->name_refused_since = 0;
    up->heartbeat_interval = m->heartbeat_ns != 0 ? m->heartbeat_ns
                                                  : PS_HEARTBEAT_DEFAULT;
    up->next_ping_at = st->now;
    up->last_ping_at = 0;
    ps_effects_log(st->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s",
                   m->node, (unsigned long long)m->incarnation,
                   m->resumed ? " resumed" : "");
    ps_link_open(up->dialer.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    if (!m->resumed) {
        report_jobs(st);
    }
}

static void on_reject(struct ps_server_step *st, ps_conn_id conn,
                      const struct ps_msg_reject *m)
{
    struct ps_server_uplink *up = &st->s->uplink;
    char text[256];
    struct ps_str why;
    const char *said = m->text != NULL ? m->text : "";

    ps_str_init(&why, text, sizeof(text));
    ps_str_add_escaped(&why, said, strlen(said), 200);
    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "scheduler cut off: it refuses this server: %s", text);
    (void)ps_dialer_drop_conn(&up->dialer, conn, st->now, st->fx);
    if (m->error != PS_E_EXIST) {
        ps_dialer_max_backoff(&up->dialer, st->now);
    } else if (ps_name_claim_lost(&up->name_refused_since, up->node != 0,
                                  st->now)) {
        ps_effects_log(st->fx, PS_LOG_ERROR, "ending: %s", text);
        up->name_lost = true;
    }
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

void ps_server_uplink_on_msg(struct ps_server_step *st, ps_conn_id conn,
                             const struct ps_msg *msg,
                             const struct ps_slice *payload)
{
    struct ps_server_uplink *up = &st->s->uplink;

    if (conn == up->dialer.pending_conn) {
        if (msg->code == PS_MSG_WELCOME) {
            on_welcome(st, conn, &msg->welcome);
        } else if (msg->code == PS_MSG_REJECT) {
            on_reject(st, conn, &msg->reject);
        } else {
            ps_effects_log(st->fx, PS_LOG_WARNING,
                           "scheduler cut off: it spoke before its welcome");
            (void)ps_dialer_drop_conn(&up->dialer, conn, st->now, st->fx);
        }
        return;
    }
    ps_dialer_on_recv(&up->dialer, conn, st->now);
    if (!ps_link_receive(up->dialer.link, msg, st->now, st->fx)) {
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
        cut_uplink(st, "it sent what is not for a server");
        break;
    }
}

/* Updates the accounts with pool bytes and the partition tables. */
static void measure_jobs(struct ps_server *s)
{
    struct ps_map_cursor c = {0};
    struct ps_server_job *job;
    uint64_t tables = 0;

    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
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

static void send_costs(struct ps_server_step *st)
{
    struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    uint32_t count;

    measure_jobs(st->s);
    count = ps_ledger_records(&st->s->account, list);
    ps_effects_send_msg(
        st->fx, st->s->uplink.dialer.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list, .costs_count = count}});
}

static void send_ping(struct ps_server_step *st)
{
    struct ps_server_uplink *up = &st->s->uplink;
    struct ps_server_stats stats;

    ps_server_stats(st->s, &stats);
    ps_effects_send_msg(
        st->fx, up->dialer.conn,
        &(struct ps_msg){
            .code = PS_MSG_PING,
            .ack = ps_link_received(up->dialer.link),
            .ping = {.stamp = st->now,
                     .epoch = st->s->epoch,
                     .rounds = stats.rounds,
                     .bytes_in = stats.bytes_in,
                     .bytes_out = stats.bytes_out,
                     .stored_bytes = stats.stored_bytes,
                     .resent = stats.resent,
                     .waiting_requests = stats.waiting_requests,
                     .memory_used = ps_pool_used(st->s->opt.pool),
                     .memory_short = ps_server_memory_is_short(st->s),
                     .draining = st->s->draining}});
    if (up->next_costs_at <= st->now) {
        send_costs(st);
        up->next_costs_at = ps_time_add(st->now, PS_LEDGER_REPORT_INTERVAL);
    }
    up->last_ping_at = st->now;
    up->next_ping_at = ps_time_add(st->now, up->heartbeat_interval);
}

void ps_server_uplink_announce_drain(struct ps_server_step *st)
{
    if (ps_dialer_is_connected(&st->s->uplink.dialer)) {
        send_ping(st);
    }
}

static ps_time silence_deadline(const struct ps_server_uplink *up)
{
    return ps_time_add(up->dialer.last_recv_at,
                       ps_heartbeat_timeout(up->heartbeat_interval));
}

void ps_server_uplink_tick(struct ps_server_step *st)
{
    struct ps_server_uplink *up = &st->s->uplink;

    if (ps_dialer_is_connected(&up->dialer)) {
        if (st->now >= silence_deadline(up)) {
            cut_uplink(st, "nothing was heard of it");
        } else if (st->now >= up->next_ping_at) {
            if (up->dialer.last_recv_at < up->last_ping_at) {
                ps_dialer_on_stalled(&up->dialer, st->now);
            }
            send_ping(st);
        }
    }
    ps_dialer_tick(&up->dialer, st->now, st->fx);
}

ps_time ps_server_uplink_deadline(const struct ps_server *s)
{
    const struct ps_server_uplink *up = &s->uplink;
    ps_time at = ps_dialer_deadline(&up->dialer);

    if (ps_dialer_is_connected(&up->dialer)) {
        at = ps_time_min(at,
                         ps_time_min(up->next_ping_at, silence_deadline(up)));
    }
    return at;
}
