/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of a link, as its driver sees it. The machines know only the
 * main connection of a link, which carries the handshake, small and unnumbered
 * frames, and resent ones; this module stands between a machine and its driver.
 * Most links have no other connection: core/link/multipath.h has the rest.
 *
 * A driver has a struct ps_path in each connection that is not a worker's. It
 * reports what happens to a connection, carries out the effects, and keeps the
 * inputs of the paths current. */
#pragma once

#include "base/list.h"
#include "core/base/machine.h"
#include "core/link/losses.h"

#include <stdbool.h>

enum ps_path_state {
    PS_PATH_CLOSED,  /* Closed, or its link has ended. */
    PS_PATH_MAIN,    /* Main connection of its link. */
    PS_PATH_JOINING, /* Dialled subflow, not welcomed yet. */
    PS_PATH_READY,   /* Subflow that sends frames. */
};

struct ps_multipath;
struct ps_path_link;
struct ps_path_record;

/* One connection of a link. */
struct ps_path {
    ps_conn_id id;
    uint8_t state;             /* enum ps_path_state. */
    struct ps_path_link *link; /* NULL: CLOSED. */
    struct ps_list_node node;  /* In the paths of its link. */
    /* Inputs, set by the driver: bytes that the kernel has not taken, and
     * whether payloads go by reference, so that few bytes delay a frame. */
    uint64_t queued;
    bool by_reference;
    /* Input, set once it is open: the peer by its certificate; borrowed. NULL:
     * none. */
    const struct ps_peer_identity *peer;
    /* A payload is being received into memory that the machine uses, too. */
    bool borrows_payload;
    uint64_t payload_given; /* Payload bytes sent on it. */
    ps_time unacked_for;    /* Time without an acknowledgement of bytes. */
    struct ps_path_losses losses; /* Counters as of the last report. */
    /* Unacknowledged frames of a subflow, in order of numbers. */
    struct ps_path_record *records;
    uint32_t record_first;
    uint32_t record_count;
    uint32_t record_capacity;
};

/* `p` is a new connection, the main one until it joins a link. `address`: of
 * the server that this side has dialled, for subflows; NULL: it dials none. */
void ps_path_open(struct ps_path *p, struct ps_multipath *mp, ps_conn_id id,
                  const char *address);
/* The driver was asked to close the connection: that of a link takes no more
 * subflows, and those it has are closed as well. */
void ps_path_finish(struct ps_path *p, struct ps_effects *fx);
/* The connection is closed. Sends the unacknowledged frames of a subflow again,
 * or ends the subflows of a main connection. True: the machine knew it. */
PS_MUST_USE bool ps_path_closed(struct ps_path *p, ps_time now,
                                struct ps_effects *fx);
/* Frees what `p` has, without any effect. */
void ps_path_fini(struct ps_path *p);

/* Connection as which the machine knows `p`; 0: none, the link has ended. */
ps_conn_id ps_path_machine_conn(const struct ps_path *p);

/* How a packet is sent. */
struct ps_path_choice {
    struct ps_path *path; /* Connection that sends it. */
    /* Goes ahead of the queued frames. */
    bool is_urgent;
    /* An urgent `ack` with the packet's acknowledgement goes ahead of the
     * frames that are queued on the main connection (rule L3): on a slow link
     * the packet would deliver it seconds late, and the peer would send again
     * what has long arrived. */
    bool acks_ahead;
};

/* Chooses the connection for a packet that the machine sends on `main`, and
 * records it if that is a subflow. `msg` is the copy of its message that will
 * be encoded, with number and acknowledgement; a welcome gets the feature. */
struct ps_path_choice ps_path_choose(struct ps_path *main, struct ps_msg *msg,
                                     struct ps_packet *packet);

enum ps_path_verdict {
    /* The machine gets the frame as one of ps_path_machine_conn(). */
    PS_PATH_DELIVER,
    PS_PATH_DROP, /* The frame was not for the machine. */
    /* The connection has become a subflow of another link: the machine gets
     * PS_EV_CLOSED of it. */
    PS_PATH_JOINED,
};

/* Handles a frame that has arrived on `p`. */
PS_MUST_USE enum ps_path_verdict ps_path_receive(struct ps_path *p,
                                                 const struct ps_msg *msg,
                                                 ps_time now,
                                                 struct ps_effects *fx);
/* The machine's payload(), for a frame on `p`. Frames of several connections
 * arrive in parallel: a late duplicate could write to memory of the machine
 * while that holds the next payload, so they get fresh memory. */
PS_MUST_USE int ps_path_payload(struct ps_path *p, const struct ps_machine *m,
                                const struct ps_msg *msg, uint64_t len,
                                struct ps_slice *ret_slice);
/* The kernel took bytes of `p`, and `queued` are left. Fills in the event SENT
 * of its link; false: the link has ended. */
PS_MUST_USE bool ps_path_sent(struct ps_path *p, uint64_t queued,
                              struct ps_event *ev);
