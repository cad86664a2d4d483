/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine: its figures, the messages that it takes, and its step,
 * deadline and payload calls. inner.h lists the files that handle them.
 *
 * Agents are served without a scheduler, too. Reports to the scheduler leave on
 * the uplink (core/link/dialer.h). */
#include "core/server/server.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/base/peer.h"
#include "core/server/admission.h"
#include "core/server/backup.h"
#include "core/server/copies.h"
#include "core/server/copy.h"
#include "core/server/credit.h"
#include "core/server/handover.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/kept.h"
#include "core/server/kind.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/pull.h"
#include "core/server/reply.h"
#include "core/server/restore.h"
#include "core/server/session.h"

#include <stdio.h>

/* ------------------------------------------------------------------ figures */

bool ps_server_is_ready(const struct ps_server *s)
{
    return ps_uplink_is_connected(&s->uplink);
}

uint64_t ps_server_residue(const struct ps_server *s)
{
    uint64_t n = 0;

    PS_MAP_EACH(const struct ps_server_job, job, s->jobs.by_gen)
    {
        n += ps_map_count(job->store.parts) + job->store.open_round_count +
             job->store.waiting_pull_count;
    }
    return n;
}

void ps_server_stats(const struct ps_server *s, struct ps_server_stats *ret)
{
    *ret = (struct ps_server_stats){
        .rounds = s->rounds,
        .bytes_in = s->bytes_in,
        .bytes_out = s->bytes_out,
        .resent = s->sessions.resent + ps_link_resent(s->uplink.dialer.link),
        .refused_parts = s->replies.refused_parts,
        .refused_frames = s->sessions.refused_frames,
    };
    PS_MAP_EACH(const struct ps_server_job, job, s->jobs.by_gen)
    {
        ret->stored_bytes += ps_server_job_stored_bytes(job);
        ret->waiting_requests += job->store.open_round_count +
                                 job->store.waiting_pull_count;
        for (uint32_t i = 0; i < job->slot_count; i++) {
            ret->unmerged_bytes += job->slots[i].unmerged_bytes;
        }
    }
    PS_MAP_EACH(const struct ps_server_session, p, s->sessions.by_node)
    {
        ret->resent += ps_link_resent(p->link);
    }
}

/* ---------------------------------------------------- link to the scheduler */

/* Updates the accounts with pool bytes and the partition tables. */
static void update_account(void *context)
{
    struct ps_server *s = ((struct ps_server_step *)context)->s;
    uint64_t tables = 0;

    PS_MAP_EACH(struct ps_server_job, job, s->jobs.by_gen)
    {
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

    ps_server_kept_send_ready(st);
    PS_MAP_EACH(const struct ps_server_job, job, st->s->jobs.by_gen)
    {
        ps_server_job_send_ready(st, job);
        ps_server_norm_send_known(st, job);
        ps_server_norm_resend(st, job);
        ps_server_restore_send_lost(st, job);
        ps_server_copies_report(st, job);
        ps_server_backup_ask_owner(st, job, UINT64_MAX);
    }
}

/* Rule N6: a new epoch may follow a move to this server. Messages of a
 * link may overtake each other, so the scheduler may have ignored a norm_part
 * that came before it counted this server as the owner: sends these again. */
static void on_map(struct ps_server_step *st, uint32_t epoch)
{
    if (epoch <= st->s->epoch) {
        return;
    }
    st->s->epoch = epoch;
    PS_MAP_EACH(const struct ps_server_job, job, st->s->jobs.by_gen)
    {
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
    hello->epoch = s->epoch;
    hello->memory_limit = ps_pool_budget(s->opt.pool);
    hello->keep = s->opt.records != NULL;
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
        .memory_kept = s->opt.records != NULL ? ps_records_bytes(s->opt.records)
                                              : 0,
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
    uint32_t count = 0;

    if (s->sessions.refused_frames == 0) {
        return 0;
    }
    PS_MAP_EACH(const struct ps_server_session, p, s->sessions.by_node)
    {
        ps_misuse_list(&p->misuse, p->agent_node, list, &count);
    }
    return count;
}

/* A scheduler without the memory of the one before counts epochs from its own
 * start. */
static void on_new_scheduler(void *context, bool knows_members)
{
    if (!knows_members) {
        ((struct ps_server_step *)context)->s->epoch = 0;
    }
}

static const struct ps_uplink_ops uplink_ops = {
    .fill_hello = fill_hello,
    .fill_ping = fill_ping,
    .list_refusals = list_refusals,
    .update_account = update_account,
    .on_new_scheduler = on_new_scheduler,
    .on_new_session = on_new_session,
};

static struct ps_uplink_call uplink_call(struct ps_server_step *st)
{
    st->s->uplink_has_changed = true;
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}

static void init_uplink(struct ps_server *s, ps_time now)
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
    s->uplink_at = ps_uplink_deadline(&s->uplink);
}

/* A scheduler of protocol 1 would move partitions through itself. */
static void refuse_reading(struct ps_server_step *st, const struct ps_msg *msg)
{
    static const char text[] = "a server of version 0.2.0 or later moves "
                               "partitions for a psched of such a version "
                               "alone: upgrade psched";
    struct ps_msg r = {.code = PS_MSG_PART_ACK};

    if (msg->code == PS_MSG_PART_READ) {
        r.code = PS_MSG_PART_CHUNK;
        r.part_chunk = (struct ps_msg_part_chunk){
            .migration = msg->part_read.migration,
            .gen = msg->part_read.gen,
            .key = msg->part_read.key,
            .index = msg->part_read.index,
            .error = PS_E_UNSUPPORTED,
            .text = text};
    } else if (msg->code == PS_MSG_PART_CHUNK) {
        r.part_ack = (struct ps_msg_part_ack){
            .migration = msg->part_chunk.migration,
            .gen = msg->part_chunk.gen,
            .key = msg->part_chunk.key,
            .index = msg->part_chunk.index,
            .error = PS_E_UNSUPPORTED,
            .text = text};
    } else {
        r.part_ack = (struct ps_msg_part_ack){
            .migration = msg->part_end.migration,
            .gen = msg->part_end.gen,
            .key = msg->part_end.key,
            .index = msg->part_end.index,
            .is_end_ack = true,
            .text = ""};
    }
    ps_server_uplink_send_msg(st, &r);
}

static void on_trace_get(struct ps_server_step *st,
                         const struct ps_msg_trace_get *m)
{
    struct ps_rec_trace_entry *list = ps_calloc(PS_TRACE_READ_MAX,
                                                sizeof(*list));
    struct ps_msg r = {.code = PS_MSG_TRACE_ENTRIES};

    if (m->recording) {
        ps_server_read_recording(st->s, m, list, &r.trace_entries);
    } else {
        ps_trace_read(st->s->opt.trace, m, 0, st->now, list, &r.trace_entries);
    }
    ps_server_uplink_send_msg(st, &r);
    ps_free(list);
}

static void on_sched_msg(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = uplink_call(st);
    const struct ps_msg *msg = ev->msg.msg;

    if (!ps_uplink_on_msg(&st->s->uplink, &call, ev->conn, msg)) {
        return;
    }
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_MAP:
        if (msg->map.epoch >= st->s->epoch) { /* Else an older one is late. */
            ps_server_peer_on_map(st, msg);
        }
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
    case PS_MSG_LOG_LEVEL:
        ps_effects_log_level(st->fx, &msg->log_level);
        break;
    case PS_MSG_TRACE_GET:
        on_trace_get(st, &msg->trace_get);
        break;
    case PS_MSG_MOVE:
        ps_server_on_move(st, &msg->move);
        ps_server_verify_held_hellos(st);
        break;
    case PS_MSG_MOVE_END:
        ps_server_on_move_end(st, &msg->move_end);
        break;
    case PS_MSG_PART_READ:
    case PS_MSG_PART_CHUNK:
    case PS_MSG_PART_END:
        refuse_reading(st, msg);
        break;
    default:
        ps_uplink_drop(&st->s->uplink, &call,
                       "it sent a message that is not for a server");
        break;
    }
}

/* ------------------------------------------------------- messages of agents */

/* Reads what a message is about; a message about no job has no parts. */
static struct ps_server_request read_request(const struct ps_server *s,
                                             struct ps_server_session *p,
                                             const struct ps_msg *msg)
{
    const bool has_rows = msg->code == PS_MSG_PUSH_ROWS ||
                          msg->code == PS_MSG_PULL_ROWS;
    struct ps_server_request q = {.msg = msg, .from.session = p};
    struct ps_msg_subject about;

    if (!ps_msg_subject(msg, &about)) {
        return q;
    }
    q.from.gen = about.gen;
    q.count = about.part_count;
    q.parts = has_rows ? NULL : (const void *)about.parts;
    q.rows = has_rows ? (const void *)about.parts : NULL;

    struct ps_server_job *job = ps_map_get(s->jobs.by_gen, about.gen);
    struct ps_server_slot *slot = job != NULL && about.slot < job->slot_count
                                      ? &job->slots[about.slot]
                                      : NULL;

    if (job == NULL) {
        q.rc = PS_E_NOJOB;
    } else if (slot == NULL) {
        q.rc = PS_E_INVAL;
    } else if (slot->agent_node != p->agent_node) {
        q.rc = PS_E_PERM;
    } else if (slot->incarnation != p->incarnation) {
        q.rc = PS_E_STALE;
    } else {
        q.from.slot = slot;
    }
    /* A job or an incarnation may be on its way here. Slots belong to their
     * nodes for as long as the job lives, so no honest agent names another's. */
    q.is_foreign = q.rc == PS_E_INVAL || q.rc == PS_E_PERM;
    return q;
}

/* Sums the bytes that the parts state. False: they are malformed. */
static bool sum_bytes(struct ps_server_request *q)
{
    const enum ps_msg_code code = q->msg->code;

    switch (code) {
    case PS_MSG_PUSH:
    case PS_MSG_INIT:
    case PS_MSG_RESTORE:
    case PS_MSG_STATE_PUT:
        break;
    case PS_MSG_PUSH_ROWS:
    case PS_MSG_PULL_ROWS:
        return q->count > 0 &&
               ps_server_rows_bytes(q->rows, q->count, code == PS_MSG_PUSH_ROWS,
                                    &q->bytes);
    default:
        return q->count > 0; /* No payload. */
    }
    /* 256 parts of 2^35 bytes do not overflow. */
    for (uint32_t i = 0; i < q->count; i++) {
        const struct ps_rec_part *part = &q->parts[i];

        /* One code for each worker of a node, at most. */
        if (ps_dtype_size(part->dtype) == 0 ||
            (part->codec != PS_CODEC_NONE &&
             (part->dtype != PS_DTYPE_FLOAT32 || part->count == 0 ||
              part->encoded_bytes > PS_PAYLOAD_MAX ||
              code == PS_MSG_STATE_PUT))) {
            return false;
        }
        q->bytes += ps_part_payload_bytes(part);
    }
    return q->count > 0;
}

/* Refuses a message about what is not the sender's, without an answer. */
static void refuse_foreign(struct ps_server_step *st, struct ps_server_conn *c,
                           const struct ps_server_request *q)
{
    const struct ps_server_job *job = ps_map_get(st->s->jobs.by_gen,
                                                 q->from.gen);
    struct ps_server_session *p = c->session;
    struct ps_msg_subject about;

    (void)ps_msg_subject(q->msg, &about);

    struct ps_str text = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_str who = PS_STR_ROOM(PS_NAME_MAX + 32);

    st->s->sessions.refused_frames++;
    ps_str_addf(&text,
                "sent a message (%s) for slot %u of job %s, which is not its "
                "own",
                ps_msg_name(q->msg->code), about.slot, job->name);
    ps_str_addf(&who, "agent %s (node %u)", p->name, p->agent_node);
    if (ps_misuse_add(&p->misuse, st->now, st->fx, who.data, text.data)) {
        ps_server_conn_close(st, c);
    }
}

/* Messages of agents about partitions: who handles one, and who refuses one for
 * a slot that is not known. */
static const struct {
    void (*handle)(struct ps_server_step *st,
                   const struct ps_server_request *q);
    void (*refuse)(struct ps_server_step *st, const struct ps_server_request *q,
                   int rc);
} handlers[] = {
    [PS_MSG_INIT] = {ps_server_on_init, ps_server_refuse},
    [PS_MSG_PUSH] = {ps_server_on_push, NULL}, /* Counts it first. */
    [PS_MSG_PUSH_ROWS] = {ps_server_on_push, NULL},
    [PS_MSG_PULL] = {ps_server_on_pull, ps_server_refuse},
    [PS_MSG_PULL_ROWS] = {ps_server_on_pull_rows, ps_server_refuse},
    [PS_MSG_ABORT_ROUND] = {ps_server_on_abort_round, ps_server_refuse},
    [PS_MSG_RESTORE] = {ps_server_on_restore, ps_server_refuse},
    [PS_MSG_STATE_GET] = {ps_server_on_state_get, ps_server_refuse_state},
    [PS_MSG_STATE_PUT] = {ps_server_on_state_put, ps_server_refuse_state},
};
#define HANDLERS (sizeof(handlers) / sizeof(handlers[0]))

static void send_pong(struct ps_server_step *st, const struct ps_server_conn *c,
                      const struct ps_msg_ping *ping)
{
    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_PONG,
                            .ack = ps_link_received(c->session->link),
                            .pong = {.stamp = ping->stamp},
                        });
}

static void on_session_msg(struct ps_server_step *st, struct ps_server_conn *c,
                           const struct ps_event *ev)
{
    const struct ps_msg *msg = ev->msg.msg;
    const struct ps_slice *payload = ev->msg.payload;
    struct ps_server_request q = read_request(st->s, c->session, msg);
    const bool is_known = msg->code < HANDLERS &&
                          handlers[msg->code].handle != NULL;

    if (msg->code == PS_MSG_PING) {
        send_pong(st, c, &msg->ping);
    } else if (msg->code == PS_MSG_ACK || msg->code == PS_MSG_PONG) {
        return;
    } else if (!is_known) {
        ps_server_session_close_bad(
            st, c, "it sent a message that is not for a server");
    } else if (q.is_foreign) {
        refuse_foreign(st, c, &q);
    } else if (!sum_bytes(&q) || ev->msg.discard_reason == PS_E_PROTO ||
               (q.bytes > 0) != (payload != NULL) ||
               (payload != NULL && payload->buf != NULL &&
                payload->len != q.bytes)) {
        char text[PS_TEXT_MAX];

        (void)snprintf(text, sizeof(text),
                       "the parts of its message (%s) do not match the payload",
                       ps_msg_name(msg->code));
        ps_server_session_close_bad(st, c, text);
    } else if (q.rc != 0 && handlers[msg->code].refuse != NULL) {
        handlers[msg->code].refuse(st, &q, q.rc);
    } else {
        q.payload = payload;
        q.discard_reason = ev->msg.discard_reason;
        handlers[msg->code].handle(st, &q);
    }
}

/* Of a server that owns places whose backup is here. */
static void on_owner_msg(struct ps_server_step *st, struct ps_server_conn *c,
                         const struct ps_event *ev)
{
    const struct ps_msg *msg = ev->msg.msg;

    if (msg->code == PS_MSG_PING) {
        send_pong(st, c, &msg->ping);
    } else if (msg->code == PS_MSG_COPY) {
        ps_server_backup_on_copy(st, c, ev);
    } else if (msg->code != PS_MSG_ACK && msg->code != PS_MSG_PONG) {
        ps_server_session_close_bad(
            st, c, "it sent a message that is not for a backup");
    }
}

static void on_agent_msg(struct ps_server_step *st, const struct ps_event *ev)
{
    struct ps_server_conn *c = ps_map_get(st->s->sessions.conns, ev->conn);
    const struct ps_msg *msg = ev->msg.msg;
    const struct ps_slice *payload = ev->msg.payload;

    if (c == NULL) {
        return; /* Closed here; late messages are ignored. */
    }
    if (c->session == NULL) {
        if (msg->code == PS_MSG_HELLO && c->unverified_hello == NULL) {
            ps_server_on_hello(st, c, &msg->hello);
        } else {
            ps_server_session_close_bad(st, c,
                                        c->unverified_hello == NULL
                                            ? "it did not say hello"
                                            : "it did not wait for a welcome");
        }
        return;
    }
    c->session->heard_at = st->now;
    bool fresh = ps_link_receive(c->session->link, msg, st->now, st->fx);

    ps_server_session_use(st->s, c->session);
    if (c->session->turns.waiting > 0) { /* Frames were acknowledged. */
        ps_server_session_pump(st, c->session);
    }
    if (fresh && payload != NULL && payload->buf != NULL) {
        st->s->bytes_in += payload->len;
    }
    if (fresh && c->session->is_server) {
        on_owner_msg(st, c, ev);
    } else if (fresh) {
        on_session_msg(st, c, ev);
    }
}

/* ------------------------------------------------------- payloads of agents */

/* Decides whether the message's payload is received: 0, or the discard
 * reason. */
static int check_payload(struct ps_server *s, struct ps_server_request *q,
                         uint64_t len)
{
    if (q->is_foreign) {
        return q->rc;
    }
    if (len > PS_PAYLOAD_MAX || !sum_bytes(q) || q->bytes != len) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(q->from.session->link, q->msg->seq)) {
        return PS_E_EXIST;
    }
    if (q->rc != 0) {
        return q->rc;
    }
    switch (q->msg->code) {
    case PS_MSG_PUSH:
    case PS_MSG_PUSH_ROWS:
        return ps_server_push_check_payload(s, q);
    case PS_MSG_INIT:
        return ps_server_init_is_duplicate(q) ? PS_E_EXIST : 0;
    default:
        return 0;
    }
}

static int agent_payload(struct ps_server *s, ps_conn_id conn,
                         const struct ps_msg *msg, uint64_t len,
                         struct ps_slice *ret_slice)
{
    const struct ps_server_conn *c = ps_map_get(s->sessions.conns, conn);

    if (c == NULL || c->session == NULL) {
        return PS_E_CLOSED;
    }
    if (c->session->is_server) {
        return ps_server_backup_payload(s, c->session, msg, len, ret_slice);
    }
    struct ps_server_request q = read_request(s, c->session, msg);
    int rc = check_payload(s, &q, len);

    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH && ps_server_credit_must_wait(q.from.slot)) {
        return PS_E_AGAIN;
    }
    rc = ps_server_memory_alloc_payload(s, &q, ret_slice);
    if (rc == 0 && msg->code == PS_MSG_PUSH) {
        q.from.slot->receiving_since = s->now;
    }
    return rc;
}

/* ------------------------------------------------------------ begin and end */

#define DIAL_BACKOFF_MIN_DEFAULT PS_MILLIS(100)
#define DIAL_BACKOFF_MAX_DEFAULT PS_SECONDS(5)
#define LINGER_DEFAULT           PS_SECONDS(60)
#define CREDIT_WINDOW_DEFAULT    (32ull * 1024 * 1024)
#define UNSENT_DEFAULT           (2ull * 1024 * 1024)
/* Keeps all compute threads busy; one of another job waits behind that many
 * bytes at most. */
#define COMPUTING_DEFAULT        (8ull * 1024 * 1024)

static void set_default(uint64_t *option, uint64_t value)
{
    *option = *option != 0 ? *option : value;
}

struct ps_server *ps_server_new(const struct ps_server_options *opt,
                                ps_time now)
{
    struct ps_server *s = ps_calloc(1, sizeof(*s));

    s->opt = *opt;
    set_default(&s->opt.credit_window, CREDIT_WINDOW_DEFAULT);
    set_default(&s->opt.unsent_max, UNSENT_DEFAULT);
    set_default(&s->opt.computing_max, COMPUTING_DEFAULT);
    set_default(&s->opt.dial_backoff_min, DIAL_BACKOFF_MIN_DEFAULT);
    set_default(&s->opt.dial_backoff_max, DIAL_BACKOFF_MAX_DEFAULT);
    set_default(&s->opt.link_linger, LINGER_DEFAULT);
    s->opt.dial_backoff_max = ps_max_u64(s->opt.dial_backoff_max,
                                         s->opt.dial_backoff_min);
    ps_rng_init(&s->rng, opt->seed);
    s->account_limits.limit[PS_COST_MEMORY] = (struct ps_account_limit){
        .max = ps_pool_budget(opt->pool), .option = "store.memory"};
    ps_account_init(&s->account, PS_ACCOUNT_DAEMON, opt->name,
                    &s->account_limits);
    init_uplink(s, now);
    ps_server_session_init(s);
    ps_server_peer_init(s);
    s->backup_flush_at = PS_TIME_NEVER;
    ps_server_job_init(s);
    ps_server_merge_init(s);
    ps_server_memory_init(s);
    ps_server_kept_init(s);
    ps_server_reply_init(s);
    s->now = now;
    return s;
}

void ps_server_free(struct ps_server *s)
{
    if (s == NULL) {
        return;
    }
    ps_server_job_fini(s);
    ps_server_session_fini(s);
    ps_server_peer_fini(s);
    ps_uplink_fini(&s->uplink);
    ps_server_merge_fini(s);
    ps_account_set_used(&s->account, PS_COST_MEMORY, 0);
    ps_account_fini(&s->account);
    ps_free(s);
}

/* ------------------------------------------------------------ machine calls */

static void server_tick(struct ps_server_step *st)
{
    const struct ps_uplink_call call = uplink_call(st);
    struct ps_server *s = st->s;

    ps_uplink_tick(&s->uplink, &call);
    ps_server_hello_tick(st);
    ps_server_session_tick(st);
    if (ps_server_peer_tick(st)) {
        ps_server_copies_report_unreachable(st);
    }
    if (st->now >= s->backup_flush_at) {
        ps_server_backup_flush(st);
    }
    ps_server_merge_tick(st);
    if (st->now >= s->replies.flush_at) {
        ps_server_reply_flush(st);
    }
    ps_server_memory_tick(s, st->now);
}

static void begin_shutdown(struct ps_server_step *st)
{
    const struct ps_uplink_call call = uplink_call(st);
    struct ps_server *s = st->s;

    if (s->ending) {
        return;
    }
    s->ending = true;
    ps_server_reply_flush(st);
    ps_server_session_close_all(st);
    ps_server_peer_close_all(st);
    ps_uplink_close(&s->uplink, &call);
}

static void on_conn_open(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = uplink_call(st);

    if (ev->open.kind == PS_CONN_DIALLED && (uint32_t)ev->open.target != 0) {
        ps_server_peer_on_open(st, ev);
    } else if (ev->open.kind == PS_CONN_DIALLED) {
        ps_uplink_on_open(&st->s->uplink, &call, ev->open.target, ev->conn);
    } else {
        ps_server_session_on_open(st, ev);
    }
}

static void on_dial_failed(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = uplink_call(st);

    if ((uint32_t)ev->dial_failed.target != 0) {
        ps_server_peer_on_dial_failed(st, ev);
        return;
    }
    ps_uplink_on_dial_failed(&st->s->uplink, &call, ev->dial_failed.target,
                             ev->dial_failed.rc, ev->dial_failed.why);
}

static void on_conn_closed(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = uplink_call(st);
    struct ps_server_peer *peer = ps_server_peer_of_conn(st->s, ev->conn);

    if (peer != NULL) {
        ps_server_peer_on_closed(st, peer, ev->conn);
        ps_server_copies_drop_unused_peers(st, true);
    } else if (ps_uplink_owns_conn(&st->s->uplink, ev->conn)) {
        ps_uplink_on_closed(&st->s->uplink, &call, ev->conn, ev->closed.rc,
                            ev->closed.why);
    } else {
        ps_server_session_on_closed(st, ev->conn);
    }
}

static void on_stalled(struct ps_server_step *st, const struct ps_event *ev)
{
    struct ps_server_peer *peer = ps_server_peer_of_conn(st->s, ev->conn);

    if (peer != NULL) {
        ps_dialer_on_stalled(&peer->dialer, st->now);
        return;
    }
    st->s->uplink_has_changed = true;
    ps_uplink_on_stalled(&st->s->uplink, ev->conn, ev->now);
}

/* Of a backup of this server's places. */
static void on_peer_msg(struct ps_server_step *st, struct ps_server_peer *peer,
                        const struct ps_event *ev)
{
    if (!ps_server_peer_on_msg(st, peer, ev)) {
        return;
    }
    if (ev->msg.msg->code == PS_MSG_COPIED) {
        ps_server_copy_on_copied(st, peer, &ev->msg.msg->copied);
    } else {
        ps_server_copy_resend(st, peer);
    }
}

static void on_msg(struct ps_server_step *st, const struct ps_event *ev)
{
    struct ps_server_peer *peer;

    if (ps_uplink_owns_conn(&st->s->uplink, ev->conn)) {
        on_sched_msg(st, ev);
    } else if ((peer = ps_server_peer_of_conn(st->s, ev->conn)) != NULL) {
        on_peer_msg(st, peer, ev);
    } else {
        on_agent_msg(st, ev);
    }
}

static void begin_draining(struct ps_server_step *st)
{
    const struct ps_uplink_call call = uplink_call(st);

    st->s->draining = true; /* The ping keeps new jobs away. */
    ps_uplink_ping_now(&st->s->uplink, &call);
}

static int server_step(void *self, const struct ps_event *ev,
                       struct ps_effects *fx)
{
    struct ps_server *s = self;
    struct ps_server_step st = {.s = s, .now = ev->now, .fx = fx};
    struct ps_server_session *used;
    struct ps_server_job *job;

    s->now = ev->now;
    switch (ev->type) {
    case PS_EV_TICK:
        server_tick(&st);
        break;
    case PS_EV_OPEN:
        on_conn_open(&st, ev);
        break;
    case PS_EV_DIAL_FAILED:
        on_dial_failed(&st, ev);
        break;
    case PS_EV_MSG:
        on_msg(&st, ev);
        break;
    case PS_EV_STALLED:
        on_stalled(&st, ev);
        break;
    case PS_EV_CLOSED:
        on_conn_closed(&st, ev);
        break;
    case PS_EV_COMPUTED:
        if (!ps_server_backup_on_computed(&st, ev->computed.token,
                                          ev->computed.rc)) {
            ps_server_merge_on_computed(&st, ev->computed.token,
                                        ev->computed.rc);
        }
        break;
    case PS_EV_DRAIN:
        begin_draining(&st);
        break;
    case PS_EV_SHUTDOWN:
        begin_shutdown(&st);
        break;
    case PS_EV_CERTIFICATE:
        s->certificate = ev->certificate;
        break;
    case PS_EV_SENT:
        ps_server_session_on_sent(&st, ev->conn, ev->sent.queued);
        break;
    case PS_EV_PROBED:
    case PS_EV_REGION:
    case PS_EV_RESIDUAL_SEGMENT:
    case PS_EV_OPS:
        break;
    }
    ps_server_copy_pump(&st);
    while ((job = PS_LIST_POP(struct ps_server_job, node,
                              &s->jobs.credit_check)) != NULL) {
        ps_server_credit_unblock(&st, job);
    }
    ps_server_kept_write(&st);
    while ((used = PS_LIST_POP(struct ps_server_session, used_node,
                               &s->sessions.used)) != NULL) {
        ps_server_session_settle(s, used);
    }
    if (s->uplink_has_changed) {
        s->uplink_at = ps_uplink_deadline(&s->uplink);
        s->uplink_has_changed = false;
    }
    return ps_uplink_is_name_lost(&s->uplink) ? PS_E_CONFIG : 0;
}

static ps_time server_deadline(const void *self)
{
    const struct ps_server *s = self;
    const struct ps_heap_item *session = ps_heap_peek(&s->sessions.timers);
    const ps_time limits[] = {
        s->uplink_at,
        s->sessions.hello_at,
        s->merges.starved_retry_at,
        s->replies.flush_at,
        s->memory.read_retry_at,
        s->memory.trim_at,
        s->backup_flush_at,
        ps_server_peer_deadline(s),
    };
    ps_time at = session != NULL ? session->key : PS_TIME_NEVER;

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        at = limits[i] < at ? limits[i] : at;
    }
    return at;
}

static int server_payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                          uint64_t len, struct ps_slice *ret_slice)
{
    struct ps_server *s = self;

    if (ps_uplink_owns_conn(&s->uplink, conn)) {
        return msg->code == PS_MSG_PART_CHUNK ? PS_E_UNSUPPORTED : PS_E_PROTO;
    }
    return agent_payload(s, conn, msg, len, ret_slice);
}

struct ps_machine ps_server_machine(struct ps_server *s)
{
    static const struct ps_machine_ops ops = {
        .step = server_step,
        .deadline = server_deadline,
        .payload = server_payload,
    };

    return (struct ps_machine){.ops = &ops, .self = s, .account = &s->account};
}
