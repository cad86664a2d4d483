/* SPDX-License-Identifier: Apache-2.0 */
/* The two directions of a link, independent of connections: the send window, and
 * the filter of duplicates. */
#pragma once

#include "base/limits.h"
#include "base/rng.h"
#include "base/time.h"
#include "core/base/machine.h"

#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------- send window */

/* Send window of one link: packets in order of their numbers until they are
 * acknowledged. The first `in_flight` of them are sent, the others wait.
 * Independent of connections. */

struct ps_window_entry {
    struct ps_packet *packet; /* Owned reference. */
    ps_time sent_at;          /* Time of the last transmission. */
    /* From `sent_at`, or from the last acknowledgement if that is later. */
    ps_time timeout;
    uint32_t tries;  /* Transmissions on this connection; sets the back-off. */
    bool was_sent;   /* Sent before, on any connection. */
    uint64_t memory; /* Bytes, as counted by the link. */
};

struct ps_window {
    ps_time timeout; /* First retransmission timeout. */
    ps_time timeout_max;
    struct ps_rng *rng;
    struct ps_window_entry *ring; /* Indexed by number modulo capacity. */
    uint32_t capacity;
    uint32_t count;         /* Unacknowledged packets. */
    uint32_t in_flight;     /* Packets from `first_unacked` on that are sent. */
    uint64_t first_unacked; /* Lowest unacknowledged number. */
    uint64_t highest_sent;  /* Highest number ever sent. */
    uint64_t memory;        /* Sum of the entries' `memory`. */
    /* Last time that an acknowledgement removed an entry. */
    ps_time last_ack_at;
    ps_time deadline; /* No retransmission is due before this time. */
};

void ps_window_init(struct ps_window *w, ps_time timeout, ps_time timeout_max,
                    struct ps_rng *rng);
void ps_window_fini(struct ps_window *w);
/* Removes all entries; numbers start at 1. */
void ps_window_reset(struct ps_window *w);

/* Takes over one reference. */
void ps_window_push(struct ps_window *w, struct ps_packet *packet,
                    uint64_t memory);
/* Removes all entries up to `ack`; true if there were any. Numbers that were
 * never sent are ignored, because the peer chooses `ack`. */
bool ps_window_ack(struct ps_window *w, uint64_t ack, ps_time now);
/* Marks all entries as not in flight; they are sent again from the first on. */
void ps_window_rewind(struct ps_window *w);

/* Returns the next packet to send and marks it as in flight; NULL: none, or
 * PS_LINK_IN_FLIGHT_MAX are. Borrowed until the next call. */
struct ps_window_entry *ps_window_next(struct ps_window *w, ps_time now,
                                       uint64_t *ret_seq);
/* Iterates over the entries whose retransmission is due: call with *seq = 0,
 * then until it returns NULL. *seq is the number of the returned entry. */
struct ps_window_entry *ps_window_due(struct ps_window *w, ps_time now,
                                      uint64_t *seq);

/* -------------------------------------------------------------- duplicates */

/* Duplicate filter of one direction of a link: every number up to `received`
 * has arrived, and a bitmap marks later ones that have. Its size is fixed,
 * because a sender has at most PS_LINK_IN_FLIGHT_MAX frames in flight. */

struct ps_dedup {
    uint64_t received; /* Every number up to this one has arrived. */
    /* Bitmap, indexed by number modulo its size. */
    uint64_t seen[PS_LINK_IN_FLIGHT_MAX / 64];
};

void ps_dedup_reset(struct ps_dedup *d);
/* True if `seq` is inside the window and has not arrived before. */
bool ps_dedup_is_new(const struct ps_dedup *d, uint64_t seq);
/* Records `seq`; true if it was new. A number beyond the window is not
 * recorded, so the sender will send it again. */
bool ps_dedup_add(struct ps_dedup *d, uint64_t seq);
