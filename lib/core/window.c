/* SPDX-License-Identifier: Apache-2.0 */
/* A retransmission is due after a time without any progress, not after a time
 * since its own frame was sent: while acknowledgements come in, a queue that
 * is merely long must not be sent twice. Nor must what a connection still
 * writes: on a slow link one frame may take longer than that time, and a
 * second copy of each would make it slower still. `deadline` is a lower bound,
 * put right by the scan of what is under way when it has come; so a frame costs
 * constant time however many there are. */
#include "core/window.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

#define CAPACITY_FIRST 16u
/* Up to this fraction of the wait is added at random, so that peers that lost
 * the same thing at the same time do not answer in step. */
#define JITTER_DIVISOR 4u

void ps_window_init(struct ps_window *w, ps_time timeout, ps_time timeout_max,
                    struct ps_rng *rng)
{
    assert(timeout > 0 && timeout <= timeout_max);
    *w = (struct ps_window){
        .timeout = timeout,
        .timeout_max = timeout_max,
        .rng = rng,
        .first = 1,
        .deadline = PS_TIME_NEVER,
    };
}

static struct ps_window_entry *at(struct ps_window *w, uint64_t seq)
{
    return &w->ring[seq & (w->capacity - 1)];
}

static void drop_first(struct ps_window *w)
{
    struct ps_window_entry *e = at(w, w->first);

    w->bytes -= e->parcel->payload_len;
    w->memory -= e->memory;
    ps_parcel_unref(e->parcel);
    w->first++;
    w->count--;
    if (w->under_way > 0) {
        w->under_way--;
    }
}

void ps_window_fini(struct ps_window *w)
{
    while (w->count > 0) {
        drop_first(w);
    }
    ps_free(w->ring);
    w->ring = NULL;
    w->capacity = 0;
}

void ps_window_reset(struct ps_window *w)
{
    while (w->count > 0) {
        drop_first(w);
    }
    w->first = 1;
    w->sent = 0;
    w->deadline = PS_TIME_NEVER;
}

static void grow(struct ps_window *w)
{
    uint32_t capacity = w->capacity == 0 ? CAPACITY_FIRST : w->capacity * 2;
    struct ps_window_entry *ring = ps_alloc(capacity * sizeof(*ring));

    for (uint64_t seq = w->first; seq < w->first + w->count; seq++) {
        ring[seq & (capacity - 1)] = *at(w, seq);
    }
    ps_free(w->ring);
    w->ring = ring;
    w->capacity = capacity;
}

void ps_window_push(struct ps_window *w, struct ps_parcel *parcel,
                    uint64_t memory)
{
    if (w->count == w->capacity) {
        grow(w);
    }
    *at(w, w->first + w->count) = (struct ps_window_entry){.parcel = parcel,
                                                           .memory = memory};
    w->count++;
    w->bytes += parcel->payload_len;
    w->memory += memory;
}

bool ps_window_ack(struct ps_window *w, uint64_t ack, ps_time now)
{
    if (ack < w->first || ack > w->sent) {
        return false;
    }
    /* After a rewind the peer may acknowledge what is not under way yet. */
    while (w->first <= ack) {
        drop_first(w);
    }
    w->progress = now;
    if (w->under_way == 0) {
        w->deadline = PS_TIME_NEVER;
    }
    return true;
}

struct ps_window_entry *ps_window_at(struct ps_window *w, uint64_t seq)
{
    return at(w, seq);
}

void ps_window_replace(struct ps_window *w, uint64_t seq,
                       struct ps_parcel *parcel, uint64_t memory)
{
    struct ps_window_entry *e = at(w, seq);

    w->bytes -= e->parcel->payload_len;
    w->bytes += parcel->payload_len;
    w->memory += memory - e->memory;
    ps_parcel_unref(e->parcel);
    e->parcel = parcel;
    e->memory = memory;
}

void ps_window_rewind(struct ps_window *w)
{
    w->under_way = 0;
    w->deadline = PS_TIME_NEVER;
    for (uint64_t seq = w->first; seq < w->first + w->count; seq++) {
        at(w, seq)->tries = 0;
    }
}

static ps_time due(const struct ps_window *w, const struct ps_window_entry *e)
{
    ps_time from = e->sent > w->progress ? e->sent : w->progress;

    return ps_time_add(from, e->wait);
}

static void mark_sent(struct ps_window *w, struct ps_window_entry *e,
                      ps_time now)
{
    ps_time wait = w->timeout;

    for (uint32_t i = 0; i < e->tries && wait < w->timeout_max; i++) {
        wait *= 2;
    }
    wait = ps_time_min(wait, w->timeout_max);
    e->wait = wait + ps_rng_below(w->rng, wait / JITTER_DIVISOR + 1);
    e->sent = now;
    e->tries++;
    w->deadline = ps_time_min(w->deadline, ps_time_add(now, e->wait));
}

struct ps_window_entry *ps_window_next(struct ps_window *w, ps_time now,
                                       uint64_t *ret_seq)
{
    struct ps_window_entry *e;

    if (w->under_way == w->count || w->under_way == PS_LINK_IN_FLIGHT_MAX) {
        return NULL;
    }
    *ret_seq = w->first + w->under_way;
    e = at(w, *ret_seq);
    w->under_way++;
    if (w->sent < *ret_seq) {
        w->sent = *ret_seq;
    }
    mark_sent(w, e, now);
    return e;
}

struct ps_window_entry *ps_window_due(struct ps_window *w, ps_time now,
                                      uint64_t *seq)
{
    if (*seq == 0) {
        if (now < w->deadline) {
            return NULL;
        }
        *seq = w->first;
        w->deadline = PS_TIME_NEVER;
    } else {
        (*seq)++;
    }
    for (; *seq < w->first + w->under_way; (*seq)++) {
        struct ps_window_entry *e = at(w, *seq);

        if (due(w, e) <= now) {
            if (e->parcel->writing == 0) {
                mark_sent(w, e, now);
                return e;
            }
            e->sent = now; /* It has not left yet: its time begins then. */
        }
        w->deadline = ps_time_min(w->deadline, due(w, e));
    }
    return NULL;
}
