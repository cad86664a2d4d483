/* SPDX-License-Identifier: Apache-2.0 */
/* Several connections of a link (rules L15 to L18). Large frames go to the
 * connection with the least queued bytes. Each subflow records its frames until
 * the peer acknowledges them: when it is closed, the main connection sends them
 * again. When the main connection is closed, the subflows end with it, and the
 * link is resumed on another one (core/link/link.h).
 *
 * A driver has one struct ps_multipath, for the paths of all its links. */
#pragma once

#include "core/link/path.h"

#include <stdbool.h>

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
