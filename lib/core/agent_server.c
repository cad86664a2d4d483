/* SPDX-License-Identifier: Apache-2.0 */
/* Servers: one link each, dialled when a partition lies there. Also what the
 * conversation with the scheduler has in common with that. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

/* Ranks that an error names; of more it says how many. */
#define RANKS_NAMED 8u

void ps_agent_peer_init(struct ps_agent *a, struct ps_agent_peer *p,
                        uint64_t target, ps_time now)
{
    p->link = ps_link_new(&a->opt.link, &a->rng);
    p->session = ps_rng_next(&a->rng) ^ a->opt.instance;
    p->session += p->session == 0;
    p->target = target;
    p->backoff = a->opt.dial_first;
    p->retry_at = now;
}

static void redial(struct ps_agent_step *st, struct ps_agent_peer *p)
{
    ps_time half = p->backoff / 2;

    p->state = PS_AGENT_PEER_IDLE;
    p->conn = 0;
    p->retry_at = ps_time_add(
        st->now, half + ps_rng_below(&st->a->rng, p->backoff - half + 1));
    p->backoff = ps_time_min(p->backoff * 2, st->a->opt.dial_max);
}

void ps_agent_peer_lost(struct ps_agent_step *st, struct ps_agent_peer *p,
                        const char *who, const char *why)
{
    if (p->state == PS_AGENT_PEER_IDLE) {
        return;
    }
    ps_effects_note(st->fx, PS_LOG_INFO, "%s at %s: %s", who, p->address, why);
    if (p->conn != 0) {
        ps_effects_hangup(st->fx, p->conn);
    }
    ps_link_close(p->link, st->now);
    redial(st, p);
}

void ps_agent_peer_hello(struct ps_agent_step *st, struct ps_agent_peer *p,
                         ps_conn_id conn)
{
    const struct ps_agent *a = st->a;

    p->state = PS_AGENT_PEER_HELLO;
    p->conn = conn;
    p->heard_at = st->now;
    ps_effects_tell(st->fx, conn,
                    &(struct ps_msg){
                        .code = PS_MSG_HELLO,
                        .hello = {.protocol = PS_PROTOCOL,
                                  .protocol_least = PS_PROTOCOL_LEAST,
                                  .role = PS_ROLE_AGENT,
                                  .name = a->opt.name,
                                  .cluster = a->opt.cluster,
                                  .instance = a->opt.instance,
                                  .node = a->node,
                                  .incarnation = a->incarnation,
                                  .session = p->session,
                                  .received = ps_link_received(p->link),
                                  .address = ""},
                    });
}

void ps_agent_peer_tick(struct ps_agent_step *st, struct ps_agent_peer *p,
                        const char *who)
{
    if (p->wanted && p->state == PS_AGENT_PEER_IDLE && p->retry_at <= st->now &&
        p->address[0] != '\0') {
        p->state = PS_AGENT_PEER_DIALLED;
        p->tried_at = st->now;
        ps_effects_dial(st->fx, p->target, p->address);
    }
    if (p->state == PS_AGENT_PEER_HELLO &&
        ps_time_add(p->heard_at, WELCOME_WAIT) <= st->now) {
        ps_agent_peer_lost(st, p, who, "does not answer hello");
    }
    ps_link_tick(p->link, st->now, st->fx);
}

ps_time ps_agent_peer_deadline(const struct ps_agent_peer *p)
{
    ps_time at = ps_link_deadline(p->link);

    if (p->wanted && p->state == PS_AGENT_PEER_IDLE && p->address[0] != '\0') {
        at = ps_time_min(at, p->retry_at);
    }
    if (p->state == PS_AGENT_PEER_HELLO) {
        at = ps_time_min(at, ps_time_add(p->heard_at, WELCOME_WAIT));
    }
    return at;
}

/* ------------------------------------------------------------------ servers */

struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers, node);

    if (s == NULL) {
        s = ps_calloc(1, sizeof(*s));
        s->node = node;
        ps_list_init(&s->flows);
        /* The scheduler's target is 0. */
        ps_agent_peer_init(st->a, &s->peer, node, st->now);
        ps_map_put(st->a->servers, node, s);
    }
    return s;
}

void ps_agent_server_free(struct ps_agent_server *s)
{
    assert(ps_list_empty(&s->flows) && s->gather.count == 0);
    ps_link_free(s->peer.link);
    ps_free(s->gather.parts);
    ps_free(s->gather.rows);
    ps_free(s->gather.labels);
    ps_free(s->gather.slices);
    ps_free(s);
}

void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s)
{
    struct ps_agent_peer *p = &s->peer;

    if (!ps_list_empty(&s->flows)) {
        return;
    }
    p->wanted = false;
    if (p->conn != 0) {
        ps_effects_hangup(st->fx, p->conn);
    }
    ps_link_free(p->link); /* Nothing in it is needed any more. */
    p->link = ps_link_new(&st->a->opt.link, &st->a->rng);
    p->session = ps_rng_next(&st->a->rng) | 1;
    p->state = PS_AGENT_PEER_IDLE;
    p->conn = 0;
    p->retry_at = st->now;
    p->backoff = st->a->opt.dial_first;
    s->queued = 0;
}

/* What the scheduler says of a server; false: it is another process now. */
static void take_server(struct ps_agent_step *st, const struct ps_rec_server *m)
{
    struct ps_agent_server *s = ps_agent_server_get(st, m->node);
    bool other = s->known && s->incarnation != m->incarnation;
    bool gone = m->state == PS_NODE_STATE_GONE;

    if (other || (gone && !s->gone)) {
        ps_agent_peer_lost(st, &s->peer, s->name,
                           gone ? "is gone" : "was started anew");
    }
    s->known = true;
    s->gone = gone;
    s->incarnation = m->incarnation;
    ps_str_copy(s->name, sizeof(s->name), m->name);
    ps_str_copy(s->peer.address, sizeof(s->peer.address), m->address);
    s->peer.wanted = !gone && !ps_list_empty(&s->flows);
    if (other) {
        s->peer.retry_at = st->now;
    }
}

/* Does no connection lead to it, not even one that is about to close? */
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
 * has: a scheduler that was started again names all by other numbers. */
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
            s->peer.state == PS_AGENT_PEER_IDLE && has_no_conn(a, s)) {
            ps_map_take(a->servers, s->node);
            ps_agent_server_free(s);
        }
    }
}

void ps_agent_server_map(struct ps_agent_step *st, const struct ps_msg_map *m)
{
    if (m->epoch < st->a->epoch) {
        return;
    }
    st->a->epoch = m->epoch;
    for (uint32_t i = 0; i < m->servers_count; i++) {
        take_server(st, &m->servers[i]);
    }
    forget_servers(st->a, m);
}

static void welcomed(struct ps_agent_step *st, struct ps_agent_server *s,
                     const struct ps_msg_welcome *m)
{
    struct ps_agent_peer *p = &s->peer;

    if (p->state != PS_AGENT_PEER_HELLO) {
        return;
    }
    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        ps_agent_peer_lost(st, p, s->name,
                           "wants a protocol that this agent does not speak");
        return;
    }
    p->state = PS_AGENT_PEER_KNOWN;
    p->backoff = st->a->opt.dial_first;
    s->queued = 0;
    ps_effects_note(st->fx, PS_LOG_INFO, "linked to server %s%s", s->name,
                    m->resumed ? " again" : "");
    ps_link_open(p->link, p->conn, m->resumed, m->received, st->now, st->fx);
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
                    ps_agent_peer_lost(st, &s->peer, s->name,
                                       "sent a value that is a broken code");
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
            /* What it should have gone on from was lost with a link, or came
             * before the server knew the job. */
            p->restate = p->moved || p->key->past != NULL;
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
                         const struct ps_msg *m, const struct ps_slice *payload)
{
    struct ps_agent_peer *p = &s->peer;

    p->heard_at = st->now;
    if (m->code == PS_MSG_WELCOME) {
        welcomed(st, s, &m->welcome);
        return;
    }
    if (m->code == PS_MSG_REJECT) {
        ps_effects_note(st->fx, PS_LOG_WARNING, "server %s rejects us: %s",
                        s->name, m->reject.text);
        ps_agent_peer_lost(st, p, s->name, "hung up");
        return;
    }
    if (p->state != PS_AGENT_PEER_KNOWN) {
        return;
    }
    s->dirty = true; /* An acknowledgement alone makes room on the link. */
    if (!ps_link_receive(p->link, m, st->now, st->fx)) {
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
        s->peer.state != PS_AGENT_PEER_KNOWN ||
        !ps_link_is_new(s->peer.link, m->seq)) {
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
