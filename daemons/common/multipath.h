/* SPDX-License-Identifier: Apache-2.0 */
/* Further connections of one link, which share what it carries. The machines
 * know of one connection only, the first: it greets, carries what is small or
 * not sequenced, and what is sent again. Large frames go to whichever has
 * least waiting. Each further one, a strand, remembers what it was given until
 * the peer acknowledges that: when it is cut, this alone is sent again. */
#pragma once

#include "base/list.h"
#include "core/base/effect.h"

#include <stdbool.h>

struct ps_conn;

/* Of hello and welcome, see proto/messages.toml. */
#define PS_FEATURE_SUBFLOW     UINT64_C(1)
/* Smaller ones are not worth a system call of their own. */
#define PS_MULTIPATH_FRAME_MIN (16u * 1024u)

struct ps_unacked {
    uint64_t seq;
    struct ps_packet *parcel; /* Own reference. */
};

struct ps_subflow {
    struct ps_list_node node; /* Of its bundle. */
    struct ps_conn *conn;
    bool is_ready;              /* Both sides know what it belongs to. */
    uint64_t payload_given;     /* Payload bytes. */
    struct ps_unacked *unacked; /* A ring, numbers ascend. */
    uint32_t first;
    uint32_t count;
    uint32_t capacity;
};

struct ps_multipath {
    struct ps_list subflows;
    uint64_t payload_given; /* To the first connection. */
    uint64_t seq_max;       /* Highest number ever sent. */
    uint64_t acked;         /* By the peer. */
    uint64_t ack;           /* What we last acknowledged. */
};

void ps_multipath_init(struct ps_multipath *b);
/* `s` shall carry a part from now on. */
void ps_multipath_add(struct ps_multipath *b, struct ps_subflow *s,
                      struct ps_conn *conn);
/* The peer can be given frames on it. */
void ps_multipath_ready(struct ps_multipath *b, struct ps_subflow *s);

/* Who is to send this? NULL: the first connection. A strand remembers it. */
struct ps_subflow *ps_multipath_choose(struct ps_multipath *b,
                                       const struct ps_conn *first,
                                       uint64_t seq, uint64_t ack,
                                       struct ps_packet *parcel);
/* Everything up to `ack` has arrived. Takes any number: a peer chose it. */
void ps_multipath_acked(struct ps_multipath *b, uint64_t ack);
/* Bytes that wait, those of the first connection included. */
uint64_t ps_multipath_queued(const struct ps_multipath *b,
                             const struct ps_conn *first);

/* When a strand is cut: the next that it carried and that may not have
 * arrived; the caller owns the reference. False: there are no more. */
bool ps_subflow_pop_unacked(struct ps_subflow *s, struct ps_unacked *ret_lost);
/* Leaves its bundle and forgets the rest. */
void ps_subflow_fini(struct ps_subflow *s);
