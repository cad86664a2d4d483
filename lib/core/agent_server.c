/* SPDX-License-Identifier: Apache-2.0 */
/* Servers: one link each, dialled when a partition lies there. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

/* Ranks that an error names; of more it says how many. */
#define RANKS_NAMED 8u
/* A server that is not heard is pinged after this, while operations wait, and
 * then ever more rarely. */
#define PING_FIRST  PS_MILLIS(500)
#define PING_MAX    PS_SECONDS(2)

struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers, node);
    struct ps_link_options link = st->a->opt.link;
    struct ps_str name;

    if (s == NULL) {
        s = ps_calloc(1, sizeof(*s));
        s->node = node;
        s->ping_wait = PING_FIRST;
        link.ledger = &st->a->account;
        ps_str_init(&name, s->peer, sizeof(s->peer));
        ps_str_addf(&name, "node %u", node);
        link.peer = s->peer;
        ps_list_init(&s->flows);
        /* The scheduler's target is 0. The number may have been another's,
         * whose dials are still under way. */
        st->a->dial_era++;
        ps_caller_init(
            &s->caller,
            &(struct ps_caller_options){
                .target = node,
                .era = st->a->dial_era << 12,
                .instance = st->a->opt.instance,
                .dial_first = st->a->opt.dial_first,
                .dial_max = ps_time_min(st->a->opt.dial_max, PS_CALLER_AGAIN),
                .link = link},
            &st->a->rng, st->now);
        ps_map_put(st->a->servers, node, s);
    }
    return s;
}

void ps_agent_server_free(struct ps_agent_server *s)
{
    assert(ps_list_empty(&s->flows) && s->gather.count == 0);
    ps_caller_fini(&s->caller);
    ps_free(s->gather.parts);
    ps_free(s->gather.rows);
    ps_free(s->gather.labels);
    ps_free(s->gather.slices);
    ps_free(s);
}

void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s)
{
    if (!ps_list_empty(&s->flows)) {
        return;
    }
    s->caller.wanted = false;
    ps_caller_reset(&s->caller, st->now, st->fx); /* Nothing in it is needed. */
    s->queued = 0;
}

static void tell_lost(struct ps_agent_step *st, const struct ps_agent_server *s,
                      const char *why)
{
    ps_effects_note(st->fx, PS_LOG_INFO, "%s at %s: %s",
                    s->name[0] == '\0' ? "server" : s->name, s->caller.address,
                    why);
}

/* What the scheduler says of a server, which may be another process now. */
static void take_server(struct ps_agent_step *st, const struct ps_rec_server *m)
{
    struct ps_agent_server *s = ps_agent_server_get(st, m->node);
    bool other = s->known && s->incarnation != m->incarnation;

    if (other) {
        tell_lost(st, s, "was restarted");
        ps_caller_cut(&s->caller, st->now, st->fx);
    }
    if (other || s->gone) {
        ps_caller_hurry(&s->caller, st->now);
    }
    s->known = true;
    s->gone = false;
    s->epoch = st->a->epoch;
    s->incarnation = m->incarnation;
    ps_str_copy(s->name, sizeof(s->name), m->name);
    ps_caller_address(&s->caller, m->address, st->now, st->fx);
    s->caller.wanted = !ps_list_empty(&s->flows);
}

/* The map does not have it: nobody is to dial it before it comes back. */
static void lose_server(struct ps_agent_step *st, struct ps_agent_server *s)
{
    s->gone = true;
    s->caller.wanted = false;
    tell_lost(st, s, "is gone");
    ps_caller_cut(&s->caller, st->now, st->fx);
}

/* True: no connection leads to it, not even one about to close. */
static bool has_no_conn(const struct ps_agent *a,
                        const struct ps_agent_server *s)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_server *other;

    while ((other = ps_map_next(a->server_conns, &c)) != NULL) {
        if (other == s) {
            return false;
        }
    }
    return true;
}

/* Servers that the scheduler does not name any more, and that no job here
 * has: a scheduler that was restarted names all by other numbers. */
static void forget_servers(struct ps_agent *a, const struct ps_msg_map *m)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    while ((s = ps_map_next(a->servers, &c)) != NULL) {
        bool named = false;

        for (uint32_t i = 0; i < m->servers_count && !named; i++) {
            named = m->servers[i].node == s->node;
        }
        if (!named && s->known && ps_list_empty(&s->flows) &&
            has_no_conn(a, s)) {
            ps_map_take(a->servers, s->node);
            ps_agent_server_free(s);
        }
    }
}

void ps_agent_server_map(struct ps_agent_step *st, const struct ps_msg_map *m)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    if (m->epoch < st->a->epoch) {
        return;
    }
    st->a->epoch = m->epoch;
    for (uint32_t i = 0; i < m->servers_count; i++) {
        take_server(st, &m->servers[i]);
    }
    while ((s = ps_map_next(st->a->servers, &c)) != NULL) {
        if (s->known && !s->gone && s->epoch != m->epoch) {
            lose_server(st, s);
        }
    }
    forget_servers(st->a, m);
}

/* -------------------------------------------------------------- connections */

void ps_agent_server_open(struct ps_agent_step *st, uint64_t target,
                          ps_conn_id conn)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers, (uint32_t)target);

    if (s == NULL) {
        ps_effects_hangup(st->fx, conn);
    } else if (ps_caller_open(&s->caller, target, conn, st->now, st->fx)) {
        ps_map_put(st->a->server_conns, conn, s);
        ps_agent_hello(st, &s->caller, conn);
    }
}

void ps_agent_server_dial_failed(struct ps_agent_step *st, uint64_t target,
                                 int rc, const char *why)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers, (uint32_t)target);

    if (s != NULL && ps_caller_failed(&s->caller, target, rc, st->now)) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "server %s at %s cannot be reached: %s", s->name,
                        s->caller.address, why != NULL ? why : ps_strerror(rc));
    }
}

void ps_agent_server_closed(struct ps_agent_step *st, struct ps_agent_server *s,
                            ps_conn_id conn)
{
    if (ps_caller_closed(&s->caller, conn, st->now)) {
        tell_lost(st, s, "connection lost");
    }
}

void ps_agent_server_stalled(struct ps_agent_step *st,
                             struct ps_agent_server *s, ps_conn_id conn)
{
    if (conn == s->caller.conn) {
        ps_caller_trouble(&s->caller, st->now);
    }
}

/* An operation waits, and perhaps for this one: its answers may be stuck where
 * nothing is heard. A ping is acknowledged by its host, at least, and one that
 * is not shows that the connection does not get through (PS_EV_STALLED). */
static bool is_pinged(const struct ps_agent *a, const struct ps_agent_server *s)
{
    return a->op_count > 0 && ps_caller_is_known(&s->caller) &&
           !ps_list_empty(&s->flows);
}

static ps_time ping_due(const struct ps_agent_server *s)
{
    return s->ping_at > ps_time_add(s->caller.heard_at, PING_FIRST)
               ? s->ping_at
               : ps_time_add(s->caller.heard_at, PING_FIRST);
}

static void send_ping(struct ps_agent_step *st, const struct ps_agent_server *s)
{
    ps_effects_tell(st->fx, s->caller.conn,
                    &(struct ps_msg){.code = PS_MSG_PING,
                                     .ack = ps_link_received(s->caller.link),
                                     .ping = {.stamp = st->now}});
}

static void ping(struct ps_agent_step *st, struct ps_agent_server *s)
{
    send_ping(st, s);
    s->ping_at = ps_time_add(st->now, s->ping_wait);
    s->ping_wait = ps_time_min(2 * s->ping_wait, PING_MAX);
}

void ps_agent_server_ping_req(struct ps_agent_step *st,
                              const struct ps_msg_ping_req *m)
{
    const struct ps_agent_server *s = ps_map_get(st->a->servers, m->node);
    const struct ps_caller *up = &st->a->up.caller;

    if (s == NULL || s->incarnation != m->incarnation ||
        !ps_caller_is_known(&s->caller)) {
        return;
    }
    ps_effects_tell(
        st->fx, up->conn,
        &(struct ps_msg){
            .code = PS_MSG_PING_ACK,
            .ack = ps_link_received(up->link),
            .ping_ack = {.node = m->node,
                         .incarnation = m->incarnation,
                         .silent_ns = st->now - s->caller.heard_at}});
    send_ping(st, s);
}

void ps_agent_server_tick(struct ps_agent_step *st, struct ps_agent_server *s)
{
    if (is_pinged(st->a, s) && ping_due(s) <= st->now) {
        ping(st, s);
    }
    ps_caller_tick(&s->caller, st->now, st->fx);
}

ps_time ps_agent_server_deadline(const struct ps_agent *a,
                                 const struct ps_agent_server *s)
{
    ps_time at = ps_caller_deadline(&s->caller);

    return is_pinged(a, s) ? ps_time_min(at, ping_due(s)) : at;
}

static void welcomed(struct ps_agent_step *st, struct ps_agent_server *s,
                     ps_conn_id conn, const struct ps_msg_welcome *m)
{
    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        tell_lost(st, s, "wants a protocol that this agent does not speak");
        (void)ps_caller_drop(&s->caller, conn, st->now, st->fx);
        return;
    }
    if (!ps_caller_welcomed(&s->caller, conn, st->now, st->fx)) {
        return;
    }
    s->queued = 0;
    ps_effects_note(st->fx, PS_LOG_INFO, "linked to server %s%s", s->name,
                    m->resumed ? " again" : "");
    ps_link_open(s->caller.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    if (!m->resumed) {
        ps_agent_send_again(st, s);
    }
    s->dirty = true;
}

/* ------------------------------------------------------ what a server tells */

/* The value of a partition that travelled as a code, to `at`. False: it is not
 * what the key has declared, or broken. */
static bool decode(const struct ps_agent_part *p, const struct ps_rec_part *rec,
                   const uint8_t *from, uint8_t *at)
{
    const struct ps_press *press = &p->key->compress.press;
    char why[200];

    if (rec->codec != press->kind || !p->key->compress.both ||
        rec->dtype != p->key->dtype ||
        ps_press_check(press, from, rec->bytes, rec->count, why, sizeof(why)) !=
            0) {
        return false;
    }
    ps_press_decode(
        press,
        ps_press_stream(
            press, &(struct ps_press_at){.key = ps_compress_salt(p->key->label),
                                         .index = rec->index,
                                         .round = rec->round}),
        from, rec->count, 0, rec->count, (float *)(void *)at);
    return true;
}

/* Does it speak of a partition that is another's now? That one has been told
 * what is known here, so nothing may become known behind its back. */
static bool is_past(const struct ps_agent_server *s,
                    const struct ps_agent_part *p)
{
    return p->moved && p->node != s->node;
}

/* Before the parts from the i-th on are looked at. */
static void soon(const struct ps_agent *a, uint64_t gen,
                 const struct ps_rec_part *parts, uint32_t i, uint32_t count)
{
    if (i % OPS_AHEAD == 0) {
        ps_agent_soon_ends(a, gen, parts + i,
                           (uint32_t)ps_min_u64(count - i, OPS_AHEAD));
    }
}

static void took_value(struct ps_agent_step *st, struct ps_agent_server *s,
                       const struct ps_msg_value *m,
                       const struct ps_slice *payload)
{
    uint64_t offset = 0;

    if (payload == NULL || payload->buf == NULL) {
        /* Thrown away: a duplicate, or of a job that is over. A part of it
         * that is still wanted is asked for again by the resend of its
         * contribution or pull. */
        return;
    }
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];

        soon(st->a, m->gen, m->parts, i, m->parts_count);
        struct ps_agent_part *p = ps_agent_part_find(st->a, m->gen, rec);
        size_t bytes = ps_part_payload(rec);
        struct ps_agent_key *k;

        if (p == NULL || p->count != rec->count || p->key->width != 0 ||
            is_past(s, p)) {
            offset += bytes;
            continue;
        }
        k = p->key;
        if (k->async) {
            ps_agent_async_clock(p, rec->clock);
            if (rec->codec == PS_PRESS_NONE) { /* Codes are of rounds. */
                ps_agent_async_value(st, p, ps_slice_data(payload) + offset);
            }
            offset += bytes;
            continue;
        }
        if ((int64_t)rec->round > p->held) {
            uint8_t *at = k->result->data + k->result_at[rec->round & 1] +
                          p->first * ps_dtype_size(k->dtype);
            const uint8_t *from = ps_slice_data(payload) + offset;

            if (rec->codec != PS_PRESS_NONE) {
                if (!decode(p, rec, from, at)) {
                    tell_lost(st, s, "sent a value that is a broken code");
                    ps_caller_cut(&s->caller, st->now, st->fx);
                    return;
                }
            } else if (from != at) {
                memcpy(at, from, bytes);
            }
            p->held = (int64_t)rec->round;
            st->a->stats.bytes_in += bytes;
        }
        if (p->asked != NONE && p->held >= p->asked) {
            p->asked = NONE;
        }
        if ((int64_t)rec->round > p->committed) {
            p->committed = (int64_t)rec->round;
        }
        if (rec->salt == PS_PART_PASSED) {
            ps_agent_round_passed(p, rec->round);
        }
        offset += bytes;
        ps_agent_round_reached(st, p);
    }
}

static void took_commit(struct ps_agent_step *st,
                        const struct ps_agent_server *s,
                        const struct ps_msg_commit *m)
{
    for (uint32_t i = 0; i < m->parts_count; i++) {
        soon(st->a, m->gen, m->parts, i, m->parts_count);
        struct ps_agent_part *p = ps_agent_part_find(st->a, m->gen,
                                                     &m->parts[i]);

        if (p == NULL || is_past(s, p)) {
            continue;
        }
        if ((int64_t)m->parts[i].round > p->committed) {
            p->committed = (int64_t)m->parts[i].round;
        }
        if (m->parts[i].salt == PS_PART_PASSED && !p->key->async) {
            ps_agent_round_passed(p, m->parts[i].round);
        }
        ps_agent_async_clock(p, m->parts[i].clock);
        ps_agent_round_reached(st, p);
    }
}

/* "rank 0, 2 and 5 more": those on the slots. */
static void add_ranks(struct ps_str *t, const struct ps_agent_job *j,
                      const uint32_t *slots, uint32_t count)
{
    uint32_t named = 0;

    for (uint32_t rank = 0; rank < j->slot_of_count; rank++) {
        bool there = false;

        for (uint32_t i = 0; i < count && !there; i++) {
            there = slots[i] == j->slot_of[rank];
        }
        if (there && ++named <= RANKS_NAMED) {
            ps_str_addf(t, "%s%u", named == 1 ? "rank " : ", ", rank);
        }
    }
    if (named > RANKS_NAMED) {
        ps_str_addf(t, " and %u more", named - RANKS_NAMED);
    }
}

/* Do others ask for something else in this round, and was it told? */
static bool has_sides(const struct ps_agent_key *k,
                      const struct ps_msg_refuse *m)
{
    bool broadcast = k->kind == PS_OP_BROADCAST;

    return m->slots_count > 0 && k->active && !k->collective &&
           (k->kind == PS_OP_PASS || broadcast != m->assign ||
            (!broadcast && k->reduce != m->reduce));
}

static void add_sides(struct ps_str *t, const struct ps_agent_key *k,
                      const struct ps_msg_refuse *m)
{
    if (k->kind == PS_OP_PASS) {
        ps_str_add(t, "ranks that have not joined ask for different things, "
                      "among them ");
        add_ranks(t, k->job, m->slots, m->slots_count);
        ps_str_addf(t, ": %s",
                    m->assign ? "broadcast" : ps_reduce_name(m->reduce));
        return;
    }
    ps_str_add(t, "the ranks ask for different things: ");
    add_ranks(t, k->job, &k->job->slot, 1);
    ps_str_addf(t, ": %s; ",
                k->kind == PS_OP_BROADCAST ? "broadcast"
                                           : ps_reduce_name(k->reduce));
    add_ranks(t, k->job, m->slots, m->slots_count);
    ps_str_addf(t, ": %s", m->assign ? "broadcast" : ps_reduce_name(m->reduce));
}

/* Of a broadcast whose root passes. */
static void add_root(struct ps_str *t, const struct ps_agent_key *k)
{
    if (k->kind == PS_OP_BROADCAST) {
        ps_str_addf(t, "rank %u has joined and cannot be the root", k->root);
    } else {
        ps_str_add(t, "others broadcast from a rank that has joined and cannot "
                      "be the root");
    }
}

/* The server may wait to hear what is known here of a partition that it was
 * given: what it heard was lost with a link or came before it knew the job, or
 * the partition moved before this agent opened its key. */
static bool is_to_state(const struct ps_agent_part *p)
{
    return p->moved || p->key->past != NULL ||
           (p->committed == NONE && p->held == NONE);
}

/* A refusal of an attempt that has failed already: it says nothing of the
 * operations that came after. Servers repeat the count of attempts that came
 * with a push of a round or an init. Of keys of rows, and of pushes without
 * rounds, the number alone tells. */
static bool is_late(const struct ps_agent_part *p,
                    const struct ps_rec_part *rec)
{
    const struct ps_agent_key *k = p->key;
    const bool awaited = p->state == PS_AGENT_PART_SENT &&
                         rec->round == (p->init ? 0 : k->round);

    if (rec->clock != 0 && (rec->round == 0 || !k->async)) {
        return !awaited ||
               rec->clock != (p->init ? k->init_attempt : k->attempt);
    }
    return !awaited && rec->round > 0 && (k->async || k->width != 0) &&
           p->asked != (int64_t)rec->round && ps_list_empty(&k->row_pulls);
}

static void took_refuse(struct ps_agent_step *st,
                        const struct ps_agent_server *s,
                        const struct ps_msg_refuse *m)
{
    bool passing = m->error == PS_E_STALE || m->error == PS_E_NOJOB ||
                   m->error == PS_E_FUTURE || m->error == PS_E_AGAIN;
    char text[PS_TEXT_MAX];

    for (uint32_t i = 0; i < m->parts_count; i++) {
        struct ps_agent_part *p = ps_agent_part_named(st->a, m->gen,
                                                      &m->parts[i]);
        struct ps_str t;

        if (p == NULL || p->node != s->node) {
            continue;
        }
        if (passing) {
            p->asked = NONE;
            ps_agent_rows_again(p->key, s->node, p->index);
            p->restate = is_to_state(p);
            if (p->state == PS_AGENT_PART_SENT) {
                p->state = PS_AGENT_PART_HELD_BACK;
            }
            if (m->error == PS_E_AGAIN) {
                ps_agent_send_full(st,
                                   ps_agent_flow_get(st, p->key->job, p->node));
                continue;
            }
            st->a->retry_at = ps_time_min(st->a->retry_at,
                                          ps_time_add(st->now, RETRY_WAIT));
            continue;
        }
        if (m->attempt == 0 && is_late(p, &m->parts[i])) {
            if (p->state != PS_AGENT_PART_SENT) {
                ps_agent_code_refused(p, m->parts[i].round);
            }
            continue;
        }
        ps_str_init(&t, text, sizeof(text));
        ps_str_addf(&t, "server %s refused round %llu of '%s': ", s->name,
                    (unsigned long long)m->parts[i].round, p->key->name);
        if (has_sides(p->key, m)) {
            add_sides(&t, p->key, m);
        } else if (m->attempt != 0 && m->assign && m->slots_count == 0) {
            add_root(&t, p->key);
        } else {
            ps_str_addf(&t, "%s%s%s", ps_strerror(m->error),
                        m->text[0] == '\0' ? "" : ": ", m->text);
        }
        if (m->attempt == 0) {
            ps_agent_code_refused(p, m->parts[i].round);
        }
        if (m->attempt != 0 && !p->key->async) {
            ps_agent_quarrel_refused(st, p->key, m->parts[i].round, m->attempt,
                                     text);
        } else if (p->key->async) {
            ps_agent_async_fail(st, p->key, m->error, text);
        } else {
            ps_agent_round_fail(st, p->key, m->error, text);
        }
    }
}

void ps_agent_server_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                         ps_conn_id conn, const struct ps_msg *m,
                         const struct ps_slice *payload)
{
    struct ps_caller *c = &s->caller;

    if (m->code == PS_MSG_WELCOME) {
        welcomed(st, s, conn, &m->welcome);
        return;
    }
    if (m->code == PS_MSG_REJECT) {
        ps_effects_note(st->fx, PS_LOG_WARNING, "server %s rejects us: %s",
                        s->name, m->reject.text);
        (void)ps_caller_drop(c, conn, st->now, st->fx);
        return;
    }
    if (conn != c->conn) {
        return;
    }
    ps_caller_heard(c, conn, st->now);
    s->ping_wait = PING_FIRST;
    s->dirty = true; /* An acknowledgement alone makes room on the link. */
    if (!ps_link_receive(c->link, m, st->now, st->fx)) {
        return;
    }
    switch (m->code) {
    case PS_MSG_VALUE:
        ps_agent_send_credit(st, s, m->value.gen, m->value.credit);
        ps_agent_send_taken(st, s, m->value.gen);
        took_value(st, s, &m->value, payload);
        break;
    case PS_MSG_ROWS:
        ps_agent_rows_took(st, &m->rows, payload);
        break;
    case PS_MSG_STATE:
        ps_agent_state_took(st, &m->state, payload);
        break;
    case PS_MSG_COMMIT:
        ps_agent_send_credit(st, s, m->commit.gen, m->commit.credit);
        ps_agent_send_taken(st, s, m->commit.gen);
        took_commit(st, s, &m->commit);
        break;
    case PS_MSG_REFUSE:
        ps_agent_send_credit(st, s, m->refuse.gen, m->refuse.credit);
        took_refuse(st, s, &m->refuse);
        break;
    case PS_MSG_CREDIT:
        ps_agent_send_credit(st, s, m->credit.gen, m->credit.credit);
        break;
    case PS_MSG_PING:
        ps_effects_tell(st->fx, conn,
                        &(struct ps_msg){.code = PS_MSG_PONG,
                                         .ack = ps_link_received(c->link),
                                         .pong = {.stamp = m->ping.stamp}});
        break;
    default:
        break; /* ack, pong: the link has taken what is in them. */
    }
}

/* May version `v` of the partition be written into the results now? */
static bool acceptable(const struct ps_agent_part *p, int64_t v)
{
    const struct ps_agent_key *k = p->key;

    if (v <= p->held) {
        return false;
    }
    if (k->active && k->complete && (uint64_t)v == k->round) {
        return true;
    }
    /* A pull: the buffer of this parity holds v - 2 at best. Nobody may still
     * read that, which is so when all ranks here have pushed v, or none of
     * them was ever told of anything. */
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        if (k->pushed[i] < (uint64_t)v && p->held != NONE && v > 1 &&
            v - p->held > 1) {
            return false;
        }
    }
    return true;
}

static int take_memory(struct ps_agent *a, uint64_t len,
                       struct ps_slice *ret_slice)
{
    struct ps_buf *buf;

    if (ps_pool_get(a->opt.sums, len, &buf) != 0) {
        /* The pool may be full of sums whose acknowledgement is behind this
         * very frame: it is read all the same. One a connection at a time. */
        buf = ps_buf_new(len);
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

int ps_agent_server_payload(struct ps_agent *a, struct ps_agent_server *s,
                            const struct ps_msg *m, uint64_t len,
                            struct ps_slice *ret_slice)
{
    uint64_t total = 0;

    if ((m->code != PS_MSG_VALUE && m->code != PS_MSG_ROWS &&
         m->code != PS_MSG_STATE) ||
        !ps_caller_is_known(&s->caller) ||
        !ps_link_is_new(s->caller.link, m->seq)) {
        return PS_E_INVAL;
    }
    if (m->code == PS_MSG_ROWS) {
        if (len == 0 || len > PS_PAYLOAD_MAX ||
            ps_agent_rows_payload(&m->rows) != len) {
            return PS_E_PROTO;
        }
        return take_memory(a, len, ret_slice);
    }
    if (m->code == PS_MSG_STATE) {
        if (len == 0 || len > PS_PAYLOAD_MAX || m->state.parts_count != 1 ||
            m->state.parts->codec != PS_PRESS_NONE ||
            ps_part_payload(m->state.parts) != len) {
            return PS_E_PROTO;
        }
        return take_memory(a, len, ret_slice);
    }
    for (uint32_t i = 0; i < m->value.parts_count; i++) {
        const struct ps_rec_part *rec = &m->value.parts[i];

        if (rec->codec != PS_PRESS_NONE &&
            (rec->dtype != PS_DTYPE_FLOAT32 ||
             rec->bytes > 4 * (uint64_t)rec->count + 8)) {
            return PS_E_PROTO;
        }
        total += ps_part_payload(rec);
    }
    if (total != len || len == 0) {
        return PS_E_PROTO;
    }
    if (m->value.parts_count == 1 && m->value.parts[0].codec == PS_PRESS_NONE) {
        const struct ps_rec_part *rec = &m->value.parts[0];
        struct ps_agent_part *p = ps_agent_part_find(a, m->value.gen, rec);

        if (p != NULL && p->key->async && p->count == rec->count) {
            return take_memory(a, len, ret_slice);
        }
        if (p == NULL || p->key->width != 0 || p->key->async ||
            p->count != rec->count || rec->round > INT64_MAX ||
            !acceptable(p, (int64_t)rec->round)) {
            return PS_E_STALE;
        }
        *ret_slice = (struct ps_slice){
            .buf = ps_buf_ref(p->key->result),
            .offset = p->key->result_at[rec->round & 1] +
                      p->first * ps_dtype_size(p->key->dtype),
            .len = len};
        return 0;
    }
    if (len > PS_PAYLOAD_MAX || (m->value.parts_count > 1 &&
                                 len > PS_FUSE_FRAME_MAX + PS_FUSE_PART_MAX)) {
        return PS_E_TOOBIG;
    }
    return take_memory(a, len, ret_slice);
}
