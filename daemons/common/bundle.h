/* SPDX-License-Identifier: Apache-2.0 */
/* Further connections of one link, which share what it carries. The machines
 * know of one connection only, the first: it greets, carries what is small or
 * not sequenced, and what is sent again. Large frames go to whichever has
 * least waiting. Each further one, a strand, remembers what it was given until
 * the peer acknowledges that: when it is cut, this alone is sent again. */
#pragma once

#include "base/list.h"
#include "core/effect.h"

#include <stdbool.h>

struct ps_conn;

/* Of hello and welcome, see proto/messages.toml. */
#define PS_FEATURE_JOIN     UINT64_C(1)
/* Smaller ones are not worth a system call of their own. */
#define PS_BUNDLE_FRAME_MIN (16u * 1024u)

struct ps_carried {
    uint64_t seq;
    struct ps_parcel *parcel; /* Own reference. */
};

struct ps_strand {
    struct ps_list_node node; /* Of its bundle. */
    struct ps_conn *conn;
    bool ready;                 /* Both sides know what it belongs to. */
    uint64_t given;             /* Payload bytes. */
    struct ps_carried *carried; /* A ring, numbers ascend. */
    uint32_t first;
    uint32_t count;
    uint32_t capacity;
};

struct ps_bundle {
    struct ps_list strands;
    uint64_t given; /* To the first connection. */
    uint64_t high;  /* Highest number ever sent. */
    uint64_t acked; /* By the peer. */
    uint64_t ack;   /* What we last acknowledged. */
};

void ps_bundle_init(struct ps_bundle *b);
/* `s` shall carry a part from now on. */
void ps_bundle_add(struct ps_bundle *b, struct ps_strand *s,
                   struct ps_conn *conn);
/* The peer can be given frames on it. */
void ps_bundle_ready(struct ps_bundle *b, struct ps_strand *s);

/* Who is to send this? NULL: the first connection. A strand remembers it. */
struct ps_strand *ps_bundle_choose(struct ps_bundle *b,
                                   const struct ps_conn *first, uint64_t seq,
                                   uint64_t ack, struct ps_parcel *parcel);
/* Everything up to `ack` has arrived. Takes any number: a peer chose it. */
void ps_bundle_acked(struct ps_bundle *b, uint64_t ack);
/* Bytes that wait, those of the first connection included. */
uint64_t ps_bundle_queued(const struct ps_bundle *b,
                          const struct ps_conn *first);

/* When a strand is cut: the next that it carried and that may not have
 * arrived; the caller owns the reference. False: there are no more. */
bool ps_strand_next(struct ps_strand *s, struct ps_carried *ret_lost);
/* Leaves its bundle and forgets the rest. */
void ps_strand_fini(struct ps_strand *s);
