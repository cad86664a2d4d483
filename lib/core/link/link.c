/* SPDX-License-Identifier: Apache-2.0 */
/* A link: send window of one direction, duplicate filter of the other, and
 * acknowledgements that are carried by sent frames (rule L1). */
#include "core/link/link.h"

#include "base/alloc.h"
#include "core/link/window.h"

#include <assert.h>
#include <string.h>

/* ------------------------------------------------------------- send window */

/* Rule L4: a retransmission is due after a time without any acknowledgement,
 * not after a time since its own frame was sent: while acknowledgements arrive,
 * a long queue must not be sent twice. Frames that a connection still writes
 * are not retransmitted either: on a slow link one frame may take longer than
 * the timeout, and copies would make it slower. `deadline` is a lower bound,
 * corrected by a scan of the frames in flight when it is reached; so the cost
 * of a frame does not depend on their number. */

#define CAPACITY_INITIAL 16u
/* Up to this fraction of the timeout is added at random, so that peers with
 * simultaneous losses do not retransmit in step. */
#define JITTER_DIVISOR   4u

void ps_window_init(struct ps_window *w, ps_time timeout, ps_time timeout_max,
                    struct ps_rng *rng)
{
    assert(timeout > 0 && timeout <= timeout_max);
    *w = (struct ps_window){
        .timeout = timeout,
        .timeout_max = timeout_max,
        .rng = rng,
        .first_unacked = 1,
        .deadline = PS_TIME_NEVER,
    };
}

static struct ps_window_entry *entry_at(struct ps_window *w, uint64_t seq)
{
    return &w->ring[seq & (w->capacity - 1)];
}

static void drop_first_entry(struct ps_window *w)
{
    struct ps_window_entry *e = entry_at(w, w->first_unacked);

    w->memory -= e->memory;
    ps_packet_unref(e->packet);
    w->first_unacked++;
    w->count--;
    if (w->in_flight > 0) {
        w->in_flight--;
    }
}

void ps_window_fini(struct ps_window *w)
{
    while (w->count > 0) {
        drop_first_entry(w);
    }
    ps_free(w->ring);
    w->ring = NULL;
    w->capacity = 0;
}

void ps_window_reset(struct ps_window *w)
{
    while (w->count > 0) {
        drop_first_entry(w);
    }
    w->first_unacked = 1;
    w->highest_sent = 0;
    w->deadline = PS_TIME_NEVER;
}

static void enlarge_ring(struct ps_window *w)
{
    uint32_t capacity = w->capacity == 0 ? CAPACITY_INITIAL : w->capacity * 2;
    struct ps_window_entry *ring = ps_alloc(capacity * sizeof(*ring));

    for (uint64_t seq = w->first_unacked; seq < w->first_unacked + w->count;
         seq++) {
        ring[seq & (capacity - 1)] = *entry_at(w, seq);
    }
    ps_free(w->ring);
    w->ring = ring;
    w->capacity = capacity;
}

void ps_window_push(struct ps_window *w, struct ps_packet *packet,
                    uint64_t memory)
{
    if (w->count == w->capacity) {
        enlarge_ring(w);
    }
    *entry_at(w, w->first_unacked + w->count) = (struct ps_window_entry){
        .packet = packet, .memory = memory};
    w->count++;
    w->memory += memory;
}

bool ps_window_ack(struct ps_window *w, uint64_t ack, ps_time now)
{
    if (ack < w->first_unacked || ack > w->highest_sent) {
        return false;
    }
    /* After a rewind the peer may acknowledge packets that are not in
     * flight. */
    while (w->first_unacked <= ack) {
        drop_first_entry(w);
    }
    w->last_ack_at = now;
    if (w->in_flight == 0) {
        w->deadline = PS_TIME_NEVER;
    }
    return true;
}

void ps_window_rewind(struct ps_window *w)
{
    w->in_flight = 0;
    w->deadline = PS_TIME_NEVER;
    for (uint64_t seq = w->first_unacked; seq < w->first_unacked + w->count;
         seq++) {
        entry_at(w, seq)->tries = 0;
    }
}

static ps_time entry_due_at(const struct ps_window *w,
                            const struct ps_window_entry *e)
{
    ps_time from = e->sent_at > w->last_ack_at ? e->sent_at : w->last_ack_at;

    return ps_time_add(from, e->timeout);
}

static void mark_entry_sent(struct ps_window *w, struct ps_window_entry *e,
                            ps_time now)
{
    ps_time wait = w->timeout;

    for (uint32_t i = 0; i < e->tries && wait < w->timeout_max; i++) {
        wait *= 2;
    }
    wait = ps_time_min(wait, w->timeout_max);
    e->timeout = wait + ps_rng_below(w->rng, wait / JITTER_DIVISOR + 1);
    e->sent_at = now;
    e->tries++;
    w->deadline = ps_time_min(w->deadline, ps_time_add(now, e->timeout));
}

struct ps_window_entry *ps_window_next(struct ps_window *w, ps_time now,
                                       uint64_t *ret_seq)
{
    struct ps_window_entry *e;

    if (w->in_flight == w->count || w->in_flight == PS_LINK_IN_FLIGHT_MAX) {
        return NULL;
    }
    *ret_seq = w->first_unacked + w->in_flight;
    e = entry_at(w, *ret_seq);
    w->in_flight++;
    if (w->highest_sent < *ret_seq) {
        w->highest_sent = *ret_seq;
    }
    mark_entry_sent(w, e, now);
    return e;
}

struct ps_window_entry *ps_window_due(struct ps_window *w, ps_time now,
                                      uint64_t *seq)
{
    if (*seq == 0) {
        if (now < w->deadline) {
            return NULL;
        }
        *seq = w->first_unacked;
        w->deadline = PS_TIME_NEVER;
    } else {
        (*seq)++;
    }
    for (; *seq < w->first_unacked + w->in_flight; (*seq)++) {
        struct ps_window_entry *e = entry_at(w, *seq);

        if (entry_due_at(w, e) <= now) {
            if (e->packet->writers == 0) {
                mark_entry_sent(w, e, now);
                return e;
            }
            /* Not written yet: its timeout starts afterwards. */
            e->sent_at = now;
        }
        w->deadline = ps_time_min(w->deadline, entry_due_at(w, e));
    }
    return NULL;
}

/* -------------------------------------------------------------- duplicates */

/* Numbers that arrived before an earlier one are marked. A mark is removed when
 * `received` advances over it, so a position is free again before the next
 * number with the same position can enter the window (rule L6). */

static bool is_marked(const struct ps_dedup *d, uint64_t seq)
{
    return (d->seen[seq % PS_LINK_IN_FLIGHT_MAX / 64] >> seq % 64 & 1) != 0;
}

static void flip_mark(struct ps_dedup *d, uint64_t seq)
{
    d->seen[seq % PS_LINK_IN_FLIGHT_MAX / 64] ^= UINT64_C(1) << seq % 64;
}

void ps_dedup_reset(struct ps_dedup *d)
{
    memset(d, 0, sizeof(*d));
}

bool ps_dedup_is_new(const struct ps_dedup *d, uint64_t seq)
{
    return seq > d->received && seq - d->received <= PS_LINK_IN_FLIGHT_MAX &&
           !is_marked(d, seq);
}

bool ps_dedup_add(struct ps_dedup *d, uint64_t seq)
{
    if (!ps_dedup_is_new(d, seq)) {
        return false;
    }
    if (seq != d->received + 1) {
        flip_mark(d, seq);
        return true;
    }
    d->received = seq;
    while (is_marked(d, d->received + 1)) {
        d->received++;
        flip_mark(d, d->received);
    }
    return true;
}

/* -------------------------------------------------------------------- link */

/* Arrivals after which an acknowledgement is sent at once: a fraction of the
 * window, so that the sender's window never fills. */
#define ACK_PENDING_MAX 64u

struct ps_link {
    struct ps_window window;
    struct ps_dedup dedup;
    ps_conn_id conn;
    ps_time ack_delay;
    /* When an acknowledgement must leave; PS_TIME_NEVER: none is pending. */
    ps_time ack_due;
    uint32_t ack_pending; /* Arrivals since the last acknowledgement. */
    bool has_received;    /* A frame arrived since numbers last started at 1. */
    uint64_t resent;
    bool counts_payload;
    struct ps_account_limits limits;
    struct ps_account account; /* All zero: the link has none. */
};

static uint64_t memory_of(const struct ps_link *l, const struct ps_packet *p)
{
    /* Computed from lengths, not from the allocator's sizes, so that equal runs
     * report equal numbers. */
    return sizeof(*p) + p->slice_count * sizeof(p->slices[0]) + p->msg_size +
           (l->counts_payload ? p->payload_len : 0);
}

static void charge_memory(struct ps_link *l)
{
    if (l->account.chain_count > 0) {
        ps_account_set_used(&l->account, PS_COST_OUTPUT, l->window.memory);
    }
}

struct ps_link *ps_link_new(const struct ps_link_options *opt,
                            struct ps_rng *rng)
{
    struct ps_link *l = ps_calloc(1, sizeof(*l));
    ps_time timeout = opt->resend_timeout != 0 ? opt->resend_timeout
                                               : PS_SECONDS(1);
    ps_time timeout_max = opt->resend_max != 0 ? opt->resend_max
                                               : PS_SECONDS(5);

    if (timeout_max < timeout) {
        timeout_max = timeout;
    }
    ps_window_init(&l->window, timeout, timeout_max, rng);
    l->ack_delay = opt->ack_delay != 0 ? opt->ack_delay : PS_MILLIS(20);
    l->ack_due = PS_TIME_NEVER;
    l->counts_payload = opt->counts_payload;
    if (opt->ledger != NULL) {
        l->limits.limit[PS_COST_OUTPUT] = (struct ps_account_limit){
            .max = opt->memory_max, .option = "limits.link_output"};
        ps_account_init(&l->account, PS_ACCOUNT_PEER, opt->peer, &l->limits);
        ps_account_add_parent(&l->account, opt->ledger);
    }
    return l;
}

void ps_link_free(struct ps_link *l)
{
    if (l == NULL) {
        return;
    }
    ps_window_fini(&l->window);
    charge_memory(l);
    ps_account_fini(&l->account);
    ps_free(l);
}

static void clear_pending_ack(struct ps_link *l)
{
    l->ack_due = PS_TIME_NEVER;
    l->ack_pending = 0;
}

static void transmit_entry(struct ps_link *l, struct ps_window_entry *e,
                           uint64_t seq, struct ps_effects *fx)
{
    if (e->was_sent) {
        l->resent++;
    }
    e->was_sent = true;
    clear_pending_ack(l); /* The frame carries it. */
    ps_effects_send(fx, l->conn, seq, l->dedup.received,
                    ps_packet_ref(e->packet));
}

/* Sends the packets that fit into the window and are not in flight. */
static void pump_window(struct ps_link *l, ps_time now, struct ps_effects *fx)
{
    struct ps_window_entry *e;
    uint64_t seq;

    if (l->conn == 0) {
        return;
    }
    while ((e = ps_window_next(&l->window, now, &seq)) != NULL) {
        transmit_entry(l, e, seq, fx);
    }
}

static void send_ack(struct ps_link *l, struct ps_effects *fx)
{
    const struct ps_msg msg = {
        .code = PS_MSG_ACK,
        .ack = l->dedup.received,
    };

    ps_effects_send_msg(fx, l->conn, &msg);
    clear_pending_ack(l);
}

void ps_link_open(struct ps_link *l, ps_conn_id conn, bool resumed,
                  uint64_t peer_received, ps_time now, struct ps_effects *fx)
{
    l->conn = conn;
    if (resumed) {
        ps_window_ack(&l->window, peer_received, now);
        ps_window_rewind(&l->window);
    } else {
        ps_window_reset(&l->window);
        ps_dedup_reset(&l->dedup);
        clear_pending_ack(l);
        l->has_received = false;
    }
    charge_memory(l);
    pump_window(l, now, fx);
}

void ps_link_close(struct ps_link *l)
{
    l->conn = 0;
}

ps_conn_id ps_link_conn(const struct ps_link *l)
{
    return l->conn;
}

bool ps_link_is_resumable(const struct ps_link *l)
{
    return l->has_received;
}

void ps_link_send(struct ps_link *l, struct ps_packet *packet, ps_time now,
                  struct ps_effects *fx)
{
    ps_window_push(&l->window, packet, memory_of(l, packet));
    charge_memory(l);
    pump_window(l, now, fx);
}

void ps_link_send_msg(struct ps_link *l, const struct ps_msg *msg, ps_time now,
                      struct ps_effects *fx)
{
    ps_link_send(l, ps_packet_new(msg, NULL, 0), now, fx);
}

bool ps_link_receive(struct ps_link *l, const struct ps_msg *msg, ps_time now,
                     struct ps_effects *fx)
{
    l->has_received = true;
    if (ps_window_ack(&l->window, msg->ack, now)) {
        charge_memory(l);
        pump_window(l, now, fx);
    }
    if (msg->seq == 0) {
        return msg->code != PS_MSG_ACK;
    }
    if (!ps_dedup_add(&l->dedup, msg->seq)) {
        /* The sender has not seen the acknowledgement of this frame. It leaves
         * at the next tick, because duplicates arrive in bursts and one
         * acknowledgement covers them all. */
        l->ack_due = now;
        return false;
    }
    l->ack_pending++;
    if (l->ack_pending >= ACK_PENDING_MAX && l->conn != 0) {
        send_ack(l, fx);
    } else if (l->ack_due == PS_TIME_NEVER) {
        l->ack_due = ps_time_add(now, l->ack_delay);
    }
    /* Rule L5: an empty message that replaced a dropped payload is not
     * delivered. */
    return msg->code != PS_MSG_ACK;
}

bool ps_link_is_new(const struct ps_link *l, uint64_t seq)
{
    return seq == 0 || ps_dedup_is_new(&l->dedup, seq);
}

void ps_link_drop_payloads(struct ps_link *l, uint64_t gen)
{
    const struct ps_msg nothing = {.code = PS_MSG_ACK};
    struct ps_packet *empty = NULL;

    for (uint64_t seq = l->window.first_unacked;
         seq < l->window.first_unacked + l->window.count; seq++) {
        struct ps_window_entry *e = entry_at(&l->window, seq);
        struct ps_msg_subject about;

        if (e->packet->payload_len == 0 ||
            !ps_msg_subject(e->packet->msg, &about) || about.gen != gen) {
            continue;
        }
        if (empty == NULL) {
            empty = ps_packet_new(&nothing, NULL, 0);
        }
        ps_packet_unref(e->packet);
        e->packet = ps_packet_ref(empty);
        l->window.memory += memory_of(l, empty) - e->memory;
        e->memory = memory_of(l, empty);
    }
    ps_packet_unref(empty);
    charge_memory(l);
}

uint64_t ps_link_received(const struct ps_link *l)
{
    return l->dedup.received;
}

uint32_t ps_link_unacked(const struct ps_link *l)
{
    return l->window.count;
}

uint64_t ps_link_memory(const struct ps_link *l)
{
    return l->window.memory;
}

uint64_t ps_link_resent(const struct ps_link *l)
{
    return l->resent;
}

void ps_link_tick(struct ps_link *l, ps_time now, struct ps_effects *fx)
{
    struct ps_window_entry *e;
    uint64_t seq = 0;

    if (l->conn == 0) {
        return;
    }
    while ((e = ps_window_due(&l->window, now, &seq)) != NULL) {
        transmit_entry(l, e, seq, fx);
    }
    if (l->ack_due <= now) {
        send_ack(l, fx);
    }
}

ps_time ps_link_deadline(const struct ps_link *l)
{
    if (l->conn == 0) {
        return PS_TIME_NEVER;
    }
    return ps_time_min(l->window.deadline, l->ack_due);
}
