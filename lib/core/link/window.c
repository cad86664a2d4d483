/* SPDX-License-Identifier: Apache-2.0 */
/* Send window and duplicate filter of a link. */
#include "core/link/window.h"

#include "base/alloc.h"

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

struct ps_window_entry *ps_window_get(struct ps_window *w, uint64_t seq)
{
    return entry_at(w, seq);
}

void ps_window_replace(struct ps_window *w, uint64_t seq,
                       struct ps_packet *packet, uint64_t memory)
{
    struct ps_window_entry *e = entry_at(w, seq);

    w->memory += memory - e->memory;
    ps_packet_unref(e->packet);
    e->packet = packet;
    e->memory = memory;
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
