/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of servers: a value, commit or refusal is applied to each partition
 * that it names. */
#include "base/num.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/opt_state.h"
#include "core/agent/part.h"
#include "core/agent/place.h"
#include "core/agent/round.h"
#include "core/agent/server.h"

/* Ranks that an error text lists; the others are only counted. */
#define RANKS_LISTED_MAX 8u

static void on_welcome(struct ps_agent_step *st, struct ps_agent_server *s,
                       ps_conn_id conn, const struct ps_msg_welcome *m)
{
    if (!ps_dialer_speaks(m)) {
        ps_agent_server_note(
            st, s, "requires a protocol that this agent does not support");
        (void)ps_dialer_drop_conn(&s->dialer, conn, st->now, st->fx);
        return;
    }
    if (!ps_dialer_on_welcome(&s->dialer, conn, st->now, st->fx)) {
        return;
    }
    s->unsent = 0;
    ps_effects_log(st->fx, PS_LOG_INFO, "linked to server %s%s", s->name,
                   m->resumed ? " again" : "");
    ps_link_open(s->dialer.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    if (!m->resumed) {
        ps_agent_resend_server(st, s,
                               s->instance != 0 && s->instance != m->instance);
    }
    s->instance = m->instance;
}

/* --------------------------------------------------------------- authority */

/* Returns true if the server may have owned a partition that has moved, or may
 * own it by now: its message crossed with the news of the next owner. Rule M8: a
 * server asks all slots for the state of a partition that came to it, also agents
 * that have opened the key since, those that have not heard of its placement, and
 * those that know a later one. */
static bool may_be_other_owner(const struct ps_agent_server *s,
                               const struct ps_agent_part *p,
                               const struct ps_msg *m)
{
    if (m->code == PS_MSG_REFUSE && m->refuse.error == PS_E_STALE &&
        (p->key->is_reassigned || m->refuse.epoch > p->key->placement_epoch)) {
        return true;
    }
    return p->owner_changed &&
           (m->code == PS_MSG_REFUSE ||
            ps_map_get(p->key->job->send_queues, s->node) != NULL);
}

/* Rule A3: a partition of the message about `j` that its sender neither owns nor
 * may have owned; NULL: there is none, or none that this agent knows. No honest
 * server names one. */
static const struct ps_agent_part *
find_foreign_part(const struct ps_agent_server *s, const struct ps_msg *m,
                  const struct ps_agent_job *j,
                  const struct ps_msg_subject *about)
{
    const struct ps_agent_key *k = NULL;

    if (j == NULL ||
        ps_msg_authority(m->code, PS_ROLE_SERVER) != PS_AUTHORITY_OWNER) {
        return NULL;
    }
    for (uint32_t i = 0; i < about->part_count; i++) {
        const uint32_t number = ps_msg_subject_key(about, i);
        const uint32_t index = ps_msg_subject_index(about, i);

        if (k == NULL || k->number != number) {
            k = ps_map_get(j->keys, number);
        }
        if (k != NULL && index < k->part_count &&
            k->parts[index].owner_node != s->node &&
            !may_be_other_owner(s, &k->parts[index], m)) {
            return &k->parts[index];
        }
    }
    return NULL;
}

/* Refuses the whole message, because `p` of it is not its sender's. */
static void refuse_foreign(struct ps_agent_step *st, struct ps_agent_server *s,
                           const struct ps_msg *m,
                           const struct ps_agent_part *p)
{
    const struct ps_agent_server *owner = ps_map_get(st->a->servers.by_node,
                                                     p->owner_node);
    char text[PS_TEXT_MAX + 1];
    char who[PS_NAME_MAX + 16];
    struct ps_str t;

    st->a->stats.refused_frames++;
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t,
                "sent a message (%s) about partition %u of '%s' of job %s, "
                "which belongs to %s%s",
                ps_msg_name(m->code), p->index, p->key->name, p->key->job->name,
                owner == NULL ? "this agent" : "server ",
                owner == NULL ? "" : owner->name);
    ps_str_init(&t, who, sizeof(who));
    ps_str_addf(&t, "server %s", s->name);
    if (ps_misuse_add(&s->misuse, st->now, st->fx, who, text)) {
        ps_dialer_drop_all(&s->dialer, st->now, st->fx);
        ps_dialer_max_backoff(&s->dialer, st->now);
    }
}

/* ------------------------------------------------------------------ values */

/* Prefetches the next PREFETCH_OPS parts when `i` begins a batch of them. */
static void prefetch_parts(const struct ps_agent_job *j,
                           const struct ps_rec_part *parts, uint32_t i,
                           uint32_t count)
{
    if (i % PREFETCH_OPS == 0) {
        ps_agent_prefetch_parts(j, parts + i,
                                (uint32_t)ps_min_u64(count - i, PREFETCH_OPS));
    }
}

static void trace_value(const struct ps_agent_step *st,
                        const struct ps_agent_server *s, uint64_t gen,
                        const struct ps_rec_part *rec, uint64_t bytes)
{
    ps_trace_add(st->a->opt.trace,
                 &(struct ps_trace_entry){.begun_at = st->now,
                                          .ended_at = st->now,
                                          .gen = gen,
                                          .round = rec->round,
                                          .bytes = bytes,
                                          .key = rec->key,
                                          .index = rec->index,
                                          .peer = s->node,
                                          .kind = PS_TRACE_KIND_VALUE});
}

static void on_value(struct ps_agent_step *st, struct ps_agent_server *s,
                     const struct ps_agent_job *j, const struct ps_msg_value *m,
                     const struct ps_slice *payload)
{
    struct ps_slice from = {0};

    if (payload == NULL || payload->buf == NULL) {
        /* Payload discarded: a duplicate, or of a job that is over. A part that
         * is still needed comes again when its push or pull is resent. */
        return;
    }
    from.buf = payload->buf;
    from.offset = payload->offset;
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];

        if (m->parts_count > 1) {
            prefetch_parts(j, m->parts, i, m->parts_count);
        }
        struct ps_agent_part *p = ps_agent_part_find_owned(j, s, rec);

        from.len = ps_part_payload_bytes(rec);
        trace_value(st, s, m->gen, rec, from.len);
        if (p != NULL && p->lent_version == (int64_t)rec->round) {
            p->lent_version = NO_VERSION;
        }
        if (p != NULL && p->count == rec->count &&
            p->key->kind->accept_value != NULL &&
            p->key->kind->accept_value(st, p, rec, &from) != 0) {
            ps_agent_server_note(
                st, s, "sent an encoded value that cannot be decoded");
            ps_dialer_drop_all(&s->dialer, st->now, st->fx);
            return;
        }
        from.offset += from.len;
    }
}

static void on_commit(struct ps_agent_step *st, const struct ps_agent_server *s,
                      const struct ps_agent_job *j,
                      const struct ps_msg_commit *m)
{
    for (uint32_t i = 0; i < m->parts_count; i++) {
        if (m->parts_count > 1) {
            prefetch_parts(j, m->parts, i, m->parts_count);
        }
        struct ps_agent_part *p = ps_agent_part_find_owned(j, s, &m->parts[i]);

        if (p == NULL) {
            continue;
        }
        if (m->parts[i].clock > 0) {
            ps_agent_async_raise_clock(p, m->parts[i].clock);
        }
        ps_agent_round_on_commit(st, p, m->parts[i].round,
                                 m->parts[i].all_skipped);
    }
}

/* ---------------------------------------------------------------- refusals */

/* Appends the ranks of the slots as "rank 0, 2 and 5 more". */
static void append_ranks(struct ps_str *t, const struct ps_agent_job *j,
                         const uint32_t *slots, uint32_t count)
{
    uint32_t named = 0;

    for (uint32_t rank = 0; rank < j->rank_count; rank++) {
        bool is_named = false;

        for (uint32_t i = 0; i < count && !is_named; i++) {
            is_named = slots[i] == j->slot_by_rank[rank];
        }
        if (is_named && ++named <= RANKS_LISTED_MAX) {
            ps_str_addf(t, "%s%u", named == 1 ? "rank " : ", ", rank);
        }
    }
    if (named > RANKS_LISTED_MAX) {
        ps_str_addf(t, " and %u more", named - RANKS_LISTED_MAX);
    }
}

/* Returns true if the refusal names slots whose request for the open round
 * differs from this agent's. */
static bool names_conflict(const struct ps_agent_key *k,
                           const struct ps_msg_refuse *m)
{
    bool broadcast = k->round.op == PS_OP_BROADCAST;

    return m->conflict_slots_count > 0 && ps_agent_round_is_open(k) &&
           !k->kind->is_collective &&
           (k->round.op == PS_OP_SKIP || broadcast != m->conflict_assign ||
            (!broadcast && k->round.reduce != m->conflict_reduce));
}

static void append_conflict(struct ps_str *t, const struct ps_agent_key *k,
                            const struct ps_msg_refuse *m)
{
    if (k->round.op == PS_OP_SKIP) {
        ps_str_add(
            t,
            "the requests of ranks that have not joined differ, among them ");
    } else {
        ps_str_add(t, "the requests of the ranks differ: ");
        append_ranks(t, k->job, &k->job->slot, 1);
        ps_str_addf(t, ": %s; ",
                    k->round.op == PS_OP_BROADCAST
                        ? "broadcast"
                        : ps_reduce_name(k->round.reduce));
    }
    append_ranks(t, k->job, m->conflict_slots, m->conflict_slots_count);
    ps_str_addf(t, ": %s",
                m->conflict_assign ? "broadcast"
                                   : ps_reduce_name(m->conflict_reduce));
}

/* Describes a broadcast whose root skips the round. */
static void append_root_skips(struct ps_str *t, const struct ps_agent_key *k)
{
    if (k->round.op == PS_OP_BROADCAST) {
        ps_str_addf(t, "rank %u has joined and cannot be the root",
                    k->round.root);
    } else {
        ps_str_add(t, "others broadcast from a rank that has joined and cannot "
                      "be the root");
    }
}

/* Returns true if the server may still need this agent's state of a partition
 * that it took over: the report was lost with a link or came before the server
 * knew the job, or the partition moved before this agent opened its key, or
 * moved to another server and back before this agent heard of it (STALE;
 * rule V9). */
static bool may_need_state(const struct ps_agent_part *p)
{
    return p->owner_changed || p->key->prior_state != NULL ||
           (p->committed_version == NO_VERSION &&
            p->local_version == NO_VERSION);
}

/* Returns true for a refusal of an attempt that has failed already, which does
 * not concern later operations. Servers echo the attempt count of an init or of
 * a push to a round. For rows keys and async pushes, only the round number
 * tells the attempts apart. */
static bool is_late_refusal(const struct ps_agent_part *p,
                            const struct ps_rec_part *rec)
{
    const struct ps_agent_key *k = p->key;
    const bool awaited = p->state == PS_AGENT_PART_SENT &&
                         rec->round == (p->is_init ? 0 : k->round.number);

    if (rec->attempt != 0) {
        return !awaited ||
               rec->attempt != (p->is_init ? k->init.retry : k->round.starts);
    }
    return !awaited && rec->round > 0 && !k->kind->has_results &&
           p->requested_version != (int64_t)rec->round &&
           ps_list_empty(&k->row_pulls);
}

/* Rule V8: returns true if a refusal with this error passes: the same message
 * is sent again later. */
static bool is_transient(int error)
{
    switch (error) {
    case PS_E_STALE:
    case PS_E_NOJOB:
    case PS_E_FUTURE:
    case PS_E_AGAIN:
    case PS_E_BUSY:
    case PS_E_NOMEM:
    case PS_E_MIGRATING:
    case PS_E_UNCONFIGURED:
    case PS_E_DISCARDED:
        return true;
    default:
        return false;
    }
}

/* True if the refusal ends the open pull of the partition. Without rounds one of
 * a push does not: the value that answers the pull would be taken for the answer
 * to the next pull, which may wait for that push. */
static bool ends_pull(const struct ps_agent_part *p,
                      const struct ps_rec_part *rec)
{
    return p->key->kind->has_rounds || (rec->round == 0 && rec->attempt == 0);
}

static void on_refuse(struct ps_agent_step *st, const struct ps_agent_server *s,
                      const struct ps_agent_job *j,
                      const struct ps_msg_refuse *m)
{
    const bool passing = is_transient(m->error);

    if (passing && m->parts_count > 0) {
        ps_effects_log(
            st->fx, PS_LOG_DEBUG,
            "server %s refused %u parts temporarily, from round %llu of "
            "key %u: %s",
            s->name, m->parts_count, (unsigned long long)m->parts[0].round,
            m->parts[0].key, ps_strerror(m->error));
    }

    for (uint32_t i = 0; i < m->parts_count; i++) {
        struct ps_agent_part *p = ps_agent_part_find_any_dtype(j, &m->parts[i]);

        if (p == NULL || p->owner_node != s->node) {
            continue;
        }
        if (passing) {
            if (ends_pull(p, &m->parts[i])) {
                p->requested_version = NO_VERSION;
                if (p->key->kind->on_requests_lost != NULL) {
                    p->key->kind->on_requests_lost(p->key, s->node, p->index);
                }
            }
            if (m->error == PS_E_STALE && p->key->kind->has_results) {
                p->owner_changed = true;
            }
            p->must_resend_state = may_need_state(p);
            if (p->state == PS_AGENT_PART_SENT) {
                ps_agent_part_set_state(p, PS_AGENT_PART_BACKOFF);
            }
            if (m->error == PS_E_AGAIN) {
                ps_agent_server_begin_backoff(
                    st,
                    ps_agent_send_queue_get(st, p->key->job, p->owner_node));
                continue;
            }
            st->a->due.resend_at = ps_time_min(
                st->a->due.resend_at, ps_time_add(st->now, RESEND_WAIT));
            continue;
        }
        if (m->retry == 0 && is_late_refusal(p, &m->parts[i])) {
            if (p->state != PS_AGENT_PART_SENT) {
                ps_agent_encode_refused(p, m->parts[i].round);
            }
            continue;
        }
        struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

        ps_str_addf(&t, "server %s refused round %llu of '%s': ", s->name,
                    (unsigned long long)m->parts[i].round, p->key->name);
        if (names_conflict(p->key, m)) {
            append_conflict(&t, p->key, m);
        } else if (m->retry != 0 && m->conflict_assign &&
                   m->conflict_slots_count == 0) {
            append_root_skips(&t, p->key);
        } else {
            ps_str_addf(&t, "%s%s%s", ps_strerror(m->error),
                        m->text[0] == '\0' ? "" : ": ", m->text);
        }
        if (m->retry == 0) {
            ps_agent_encode_refused(p, m->parts[i].round);
        }
        if (m->retry != 0 && p->key->kind->has_rounds) {
            ps_agent_conflict_on_refuse(st, p->key, m->parts[i].round, m->retry,
                                        t.data);
        } else {
            p->key->kind->fail_ops(st, p->key, m->error, t.data);
        }
    }
}

/* ---------------------------------------------------------------- messages */

void ps_agent_reply_on_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                           ps_conn_id conn, const struct ps_msg *m,
                           const struct ps_slice *payload)
{
    struct ps_dialer *c = &s->dialer;
    const struct ps_agent_part *foreign;
    const struct ps_agent_job *j;
    struct ps_msg_subject about;

    ps_agent_server_touch(st->a, s);
    if (m->code == PS_MSG_WELCOME) {
        on_welcome(st, s, conn, &m->welcome);
        return;
    }
    if (m->code == PS_MSG_REJECT) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "server %s rejected this daemon: %s", s->name,
                       m->reject.text);
        (void)ps_dialer_drop_conn(c, conn, st->now, st->fx);
        return;
    }
    if (conn != c->conn) {
        return;
    }
    ps_dialer_on_recv(c, conn, st->now);
    s->ping_interval = PING_INTERVAL_MIN;
    if (!ps_link_receive(c->link, m, st->now, st->fx)) {
        return;
    }
    j = ps_msg_subject(m, &about) ? ps_agent_job_find(st->a, about.gen) : NULL;
    foreign = find_foreign_part(s, m, j, &about);
    if (foreign != NULL) {
        refuse_foreign(st, s, m, foreign);
        return;
    }
    switch (m->code) {
    case PS_MSG_VALUE:
        ps_agent_server_on_credit(st, s, j, m->value.credit, true);
        on_value(st, s, j, &m->value, payload);
        break;
    case PS_MSG_ROWS:
        ps_agent_rows_on_rows(st, s, j, &m->rows, payload);
        break;
    case PS_MSG_STATE:
        ps_agent_opt_state_on_state(st, s, &m->state, payload);
        break;
    case PS_MSG_COMMIT:
        ps_agent_server_on_credit(st, s, j, m->commit.credit, true);
        on_commit(st, s, j, &m->commit);
        break;
    case PS_MSG_REFUSE:
        ps_agent_server_on_credit(st, s, j, m->refuse.credit, false);
        on_refuse(st, s, j, &m->refuse);
        break;
    case PS_MSG_CREDIT:
        ps_agent_server_on_credit(st, s, j, m->credit.credit, false);
        break;
    case PS_MSG_PING:
        ps_effects_send_msg(st->fx, conn,
                            &(struct ps_msg){.code = PS_MSG_PONG,
                                             .ack = ps_link_received(c->link),
                                             .pong = {.stamp = m->ping.stamp}});
        break;
    default:
        break; /* ack, pong: the link has applied their ack. */
    }
}

/* Returns the bytes that the parts of a value announce; 0: an encoding among
 * them is impossible. */
static uint64_t value_payload_bytes(const struct ps_msg_value *m)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];

        if (rec->codec != PS_CODEC_NONE &&
            (rec->dtype != PS_DTYPE_FLOAT32 ||
             rec->encoded_bytes > 4 * (uint64_t)rec->count + 8)) {
            return 0;
        }
        total += ps_part_payload_bytes(rec);
    }
    return total;
}

/* Takes memory for the payload of a value: where the partition's result lies,
 * or a buffer if the payload is encoded or has several partitions. */
static int place_value_payload(struct ps_agent *a,
                               const struct ps_agent_server *s,
                               const struct ps_agent_job *j,
                               const struct ps_msg_value *m, uint64_t len,
                               struct ps_slice *ret_slice)
{
    if (len == 0 || value_payload_bytes(m) != len) {
        return PS_E_PROTO;
    }
    if (m->parts_count == 1 && m->parts[0].codec == PS_CODEC_NONE) {
        const struct ps_rec_part *rec = &m->parts[0];
        struct ps_agent_part *p = ps_agent_part_find_owned(j, s, rec);

        if (p == NULL || p->count != rec->count ||
            p->key->kind->place_value == NULL) {
            return PS_E_STALE;
        }
        int rc = p->key->kind->place_value(a, p, rec, len, ret_slice);

        if (rc == 0 && ret_slice->buf == p->key->results) {
            p->lent_version = (int64_t)rec->round;
        }
        return rc;
    }
    if (len > PS_PAYLOAD_MAX ||
        (m->parts_count > 1 && len > PS_BATCH_FRAME_MAX + PS_BATCH_PART_MAX)) {
        return PS_E_TOOBIG;
    }
    return ps_agent_server_alloc_payload(a, len, ret_slice);
}

static bool is_state_payload(const struct ps_msg_state *m, uint64_t len)
{
    return m->parts_count == 1 && m->parts->codec == PS_CODEC_NONE &&
           ps_part_payload_bytes(m->parts) == len;
}

int ps_agent_reply_payload(struct ps_agent *a, struct ps_agent_server *s,
                           const struct ps_msg *m, uint64_t len,
                           struct ps_slice *ret_slice)
{
    const struct ps_agent_job *j;
    struct ps_msg_subject about;
    bool is_valid;

    if ((m->code != PS_MSG_VALUE && m->code != PS_MSG_ROWS &&
         m->code != PS_MSG_STATE) ||
        s->dialer.conn == 0 || !ps_link_is_new(s->dialer.link, m->seq)) {
        return PS_E_INVAL;
    }
    j = ps_msg_subject(m, &about) ? ps_agent_job_find(a, about.gen) : NULL;
    if (find_foreign_part(s, m, j, &about) != NULL) {
        return PS_E_PERM; /* The message is refused when it is complete. */
    }
    if (m->code == PS_MSG_VALUE) {
        return place_value_payload(a, s, j, &m->value, len, ret_slice);
    }
    is_valid = m->code == PS_MSG_ROWS
                   ? ps_agent_rows_payload_bytes(&m->rows) == len
                   : is_state_payload(&m->state, len);
    if (len == 0 || len > PS_PAYLOAD_MAX || !is_valid) {
        return PS_E_PROTO;
    }
    return ps_agent_server_alloc_payload(a, len, ret_slice);
}
