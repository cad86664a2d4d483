/* SPDX-License-Identifier: Apache-2.0 */
/* Send window of one link: parcels in order of their numbers, of which the
 * first ones are under way and the others wait for room. Forgets what is
 * acknowledged. Knows nothing of connections. */
#pragma once

#include "base/rng.h"
#include "base/time.h"
#include "core/base/effect.h"

#include <stdbool.h>

struct ps_window_entry {
    struct ps_packet *packet; /* Owned reference. */
    ps_time sent_at;          /* Last time. */
    ps_time timeout;          /* From then, or from the last progress. */
    uint32_t tries;           /* On this connection; sets the back-off. */
    bool was_sent;            /* Was sent before, on whatever connection. */
    uint64_t memory;          /* As the owner counts it. */
};

struct ps_window {
    ps_time timeout; /* First retransmission. */
    ps_time timeout_max;
    struct ps_rng *rng;
    struct ps_window_entry *ring; /* By number modulo capacity. */
    uint32_t capacity;
    uint32_t count;         /* Entries. */
    uint32_t in_flight;     /* The first of them. */
    uint64_t first_unacked; /* Number of the first; all before it are done. */
    uint64_t highest_sent;  /* Highest number ever sent. */
    uint64_t bytes;         /* Payload of all entries. */
    uint64_t memory;        /* Of all entries. */
    ps_time last_ack_at;    /* When an acknowledgement last forgot one. */
    ps_time deadline;       /* No entry is due before this. */
};

void ps_window_init(struct ps_window *w, ps_time timeout, ps_time timeout_max,
                    struct ps_rng *rng);
void ps_window_fini(struct ps_window *w);
/* Drop everything; numbers start at 1. */
void ps_window_reset(struct ps_window *w);

/* Takes over one reference. */
void ps_window_push(struct ps_window *w, struct ps_packet *parcel,
                    uint64_t memory);
/* Everything up to `ack` has arrived. Numbers never sent are ignored: a peer
 * chose them. True when something was forgotten. */
bool ps_window_ack(struct ps_window *w, uint64_t ack, ps_time now);
/* The entry of a number from `first` on, of `count`. */
struct ps_window_entry *ps_window_get(struct ps_window *w, uint64_t seq);
/* Takes over one reference; the entry stays where it is. */
void ps_window_replace(struct ps_window *w, uint64_t seq,
                       struct ps_packet *parcel, uint64_t memory);
/* Everything is to be sent anew, from the first on. */
void ps_window_rewind(struct ps_window *w);

/* The next parcel that is not under way, if there is room; it is from now on.
 * NULL: none. Borrowed until the next call. */
struct ps_window_entry *ps_window_next(struct ps_window *w, ps_time now,
                                       uint64_t *ret_seq);
/* Send again what is due: call with *seq = 0, then until it returns NULL.
 * *seq is the number of what was returned. */
struct ps_window_entry *ps_window_due(struct ps_window *w, ps_time now,
                                      uint64_t *seq);
