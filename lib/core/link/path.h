/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of a link, as their driver sees them. The machines know only the
 * main connection of a link, which carries the handshake, small and unnumbered
 * frames, and resent ones; this module stands between a machine and its driver.
 *
 * A link has one connection, or several (rules L15 to L18): large frames go to
 * the connection with the least queued bytes. Each subflow records its frames
 * until the peer acknowledges them: when it is closed, the main connection sends
 * them again. When the main connection is closed, the subflows end with it, and
 * the link is resumed on another one (core/link/link.h).
 *
 * A driver has one struct ps_multipath, for the paths of all its links, and a
 * struct ps_path in each connection that is not a worker's. It reports what
 * happens to a connection, carries out the effects, and keeps the inputs of the
 * paths current. */
#pragma once

#include "base/list.h"
#include "base/time.h"
#include "core/base/machine.h"

#include <stdbool.h>

struct ps_path_link;
struct ps_path_record;

/* ------------------------------------------------------------------ losses */

/* Number of connections of a far link (net/tcp.h), from its losses. Losses
 * and round trip bound the rate of one connection, and each loss delays all
 * its data by a round trip; n connections have n times the rate, and lose at
 * different times. A link without losses keeps one connection, which fills
 * it. */

/* Counters of one connection. */
struct ps_path_losses {
    uint64_t sent;          /* Bytes since the connection was made. */
    uint64_t retransmitted; /* Bytes of `sent` that were retransmissions. */
    bool slows_on_loss; /* Congestion control reduces the rate at each loss. */
};

struct ps_losses {
    uint64_t sent;            /* Bytes sent since `since`. */
    uint64_t retransmitted;   /* Bytes of `sent` that were retransmissions. */
    ps_time since;            /* Start of the current interval. */
    uint32_t lossy_intervals; /* Consecutive lossy intervals. */
    uint32_t subflows; /* Connections wanted; 0: no losses, one connection. */
};

/* Adds bytes sent since the last call. `heeded`: the congestion control reduces
 * the rate at each loss. True: `subflows` has grown. */
bool ps_losses_add(struct ps_losses *l, ps_time now, uint64_t sent,
                   uint64_t again, bool heeded);

/* ------------------------------------------------------------------- links */

/* Bit in `features` of hello and welcome, see proto/messages.toml. */
#define PS_FEATURE_SUBFLOW  UINT64_C(1)

/* Time without an acknowledgement of sent bytes after which a connection is
 * stalled. */
#define PS_PATH_UNACKED_MAX PS_MILLIS(500)

struct ps_multipath_options {
    enum ps_role self;
    /* Connections of each link that this side dials; 0: as many as the I/O
     * threads and the losses of the link need. */
    uint32_t connections;
    /* Least payload for a subflow; less is not worth a system call of its own.
     * 0: 16 KiB. */
    uint64_t payload_min;
    /* Queued bytes from which an acknowledgement behind them is late; 0:
     * 64 KiB. */
    uint64_t late_min;
};

/* Of a driver, for the paths of all its links. */
struct ps_multipath {
    struct ps_multipath_options opt;
    uint32_t io_threads;    /* Threads that move large payloads. */
    uint32_t dialled_links; /* Links to which this side may dial subflows. */
    struct ps_list links;   /* Newest first. */
    ps_time deadline;       /* When the next subflow may be due. */
};

void ps_multipath_init(struct ps_multipath *mp,
                       const struct ps_multipath_options *opt);
/* Sets the number of I/O threads. More threads need more connections. */
void ps_multipath_set_threads(struct ps_multipath *mp, uint32_t threads,
                              ps_time now);
/* Dials the subflows that are due. */
void ps_multipath_tick(struct ps_multipath *mp, ps_time now,
                       struct ps_effects *fx);

/* ------------------------------------------------------------- connections */

enum ps_path_state {
    PS_PATH_CLOSED,  /* Closed, or its link has ended. */
    PS_PATH_MAIN,    /* Main connection of its link. */
    PS_PATH_JOINING, /* Dialled subflow, not welcomed yet. */
    PS_PATH_READY,   /* Subflow that sends frames. */
};

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

/* ---------------------------------------------------------------- subflows */

/* `p` is the connection to which the dial of a subflow has led, and sends its
 * hello. False: the link with main connection `main` has ended. */
PS_MUST_USE bool ps_path_join(struct ps_path *p, ps_conn_id id,
                              struct ps_path *main, struct ps_effects *fx);
/* The dial of a subflow of this link has failed. */
void ps_path_dial_failed(struct ps_path *main, ps_time now);
static inline bool ps_path_is_subflow(const struct ps_path *p)
{
    return p->state == PS_PATH_JOINING || p->state == PS_PATH_READY;
}

/* The peer's host has acknowledged nothing of what was sent for `time`; 0:
 * nothing is outstanding. Closes a stalled subflow whose main connection
 * works. To be called regularly while bytes are outstanding. True: the machine
 * gets PS_EV_STALLED of it. */
PS_MUST_USE bool ps_path_on_unacked(struct ps_path *p, ps_time time,
                                    struct ps_effects *fx);
/* New counters of `p`. Dials more if they show that the link loses packets. */
void ps_path_on_losses(struct ps_path *p, const struct ps_path_losses *counters,
                       ps_time now);
