/* SPDX-License-Identifier: Apache-2.0 */
/* Subflows: further connections of one link, which share its load. The machines
 * know only the main connection: it carries the handshake, small and unnumbered
 * frames, and resent ones. Large frames go to the connection with the least
 * queued bytes. Each subflow records its frames until the peer acknowledges
 * them: when it is closed, only these are resent. */
#pragma once

#include "base/list.h"
#include "core/base/effect.h"

#include <stdbool.h>

struct ps_conn;

/* Bit in `features` of hello and welcome, see proto/messages.toml. */
#define PS_FEATURE_SUBFLOW     UINT64_C(1)
/* Least payload for a subflow; less is not worth a system call of its own. */
#define PS_MULTIPATH_FRAME_MIN (16u * 1024u)

struct ps_unacked {
    uint64_t seq;
    struct ps_packet *parcel; /* Owned reference. */
};

struct ps_subflow {
    struct ps_list_node node; /* In the subflows of its link. */
    struct ps_conn *conn;
    bool is_ready;          /* The handshake is complete; frames may be sent. */
    uint64_t payload_given; /* Payload bytes sent on it. */
    struct ps_unacked *unacked; /* Ring buffer, in order of numbers. */
    uint32_t first;
    uint32_t count;
    uint32_t capacity;
};

struct ps_multipath {
    struct ps_list subflows;
    uint64_t payload_given; /* Payload bytes sent on the main connection. */
    uint64_t seq_max;       /* Highest number sent so far. */
    uint64_t acked;         /* Highest number acknowledged by the peer. */
    uint64_t ack;           /* Highest acknowledgement sent to the peer. */
};

void ps_multipath_init(struct ps_multipath *b);
/* Adds subflow `s` on `conn`. */
void ps_multipath_add(struct ps_multipath *b, struct ps_subflow *s,
                      struct ps_conn *conn);
/* Allows frames on `s`: its handshake is complete. */
void ps_multipath_ready(struct ps_multipath *b, struct ps_subflow *s);

/* Subflow that sends this packet, which it records; NULL: the main connection
 * sends it. */
struct ps_subflow *ps_multipath_choose(struct ps_multipath *b,
                                       const struct ps_conn *first,
                                       uint64_t seq, uint64_t ack,
                                       struct ps_packet *parcel);
/* Releases everything up to `ack`. Any value is allowed: the peer chose it. */
void ps_multipath_acked(struct ps_multipath *b, uint64_t ack);
/* Queued bytes of all connections of the link. */
uint64_t ps_multipath_queued(const struct ps_multipath *b,
                             const struct ps_conn *first);

/* Takes the next unacknowledged frame of a closed subflow; the caller owns the
 * reference. False: there are no more. */
bool ps_subflow_pop_unacked(struct ps_subflow *s, struct ps_unacked *ret_lost);
/* Removes the subflow from its link and releases its frames. */
void ps_subflow_fini(struct ps_subflow *s);
