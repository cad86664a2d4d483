/* SPDX-License-Identifier: Apache-2.0 */
/* TCP options of connections between daemons, and the kernel's view of them. By
 * default TCP retransmits after 200 ms and doubles that up to minutes:
 * meanwhile a live peer is silent, and a repaired network stays unused. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

enum ps_tcp_kind {
    PS_TCP_OTHER,  /* Tools. */
    PS_TCP_BULK,   /* Between agents and servers. */
    PS_TCP_LEASES, /* Few and small messages, whose absence means death. */
    /* As PS_TCP_BULK, with the system's congestion control. */
    PS_TCP_BULK_SYSTEM,
};

/* Sets the options of a kind. All are hints: older kernels know only some. */
void ps_tcp_prepare(int fd, enum ps_tcp_kind kind);

/* The shortest round trip of a far connection: one that leaves the local
 * network, whose bandwidth-delay product is much larger than the leads of
 * net/send_scheduler.h and the queue of net/rcvbuf_tuner.h. */
#define PS_TCP_FAR PS_MILLIS(10)

/* True if the connection is far; false also while TCP has no sample. */
bool ps_tcp_is_far(int fd);
/* Prepares the sending side for a far connection: bbr for PS_TCP_BULK if the
 * system allows it, and as many unsent bytes as the system likes. */
void ps_tcp_go_far(int fd, enum ps_tcp_kind kind);

/* True if the congestion control reduces the rate at each loss. */
bool ps_tcp_slows_on_loss(int fd);
/* The bytes that were sent since the connection was made, retransmissions
 * included, and those of the retransmissions. False: an older kernel, which
 * does not count them. */
bool ps_tcp_sent(int fd, uint64_t *ret_sent, uint64_t *ret_again);

/* Time since which the peer's host has acknowledged none of the bytes sent,
 * given the result of the last call; PS_TIME_NEVER: nothing is outstanding. */
ps_time ps_tcp_unacked_since(int fd, ps_time before, ps_time now);
