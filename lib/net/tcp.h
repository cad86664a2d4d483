/* SPDX-License-Identifier: Apache-2.0 */
/* TCP between daemons: options and the kernel's view of a connection; and what
 * the connections of one loop share, receive buffers and turns of writing. */
#pragma once

#include "base/list.h"
#include "base/rate_meter.h"
#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_loop;
struct ps_loop_shared;

/* ------------------------------------- options, and the state of the kernel */

/* By default TCP retransmits after 200 ms and doubles that up to minutes:
 * meanwhile a live peer is silent, and a repaired network stays unused. */

enum ps_tcp_kind {
    PS_TCP_OTHER,  /* Tools. */
    PS_TCP_BULK,   /* Between agents and servers. */
    PS_TCP_LEASES, /* Few and small messages, whose absence means death. */
    /* As PS_TCP_BULK, with the system's congestion control. */
    PS_TCP_BULK_SYSTEM,
};

/* Sets the options of a kind. All are hints: older kernels know only some. */
void ps_tcp_prepare(int fd, enum ps_tcp_kind kind);

/* True if the peer is on another host, as far as the addresses show. */
bool ps_tcp_is_foreign(int fd);
/* True if the congestion control reduces the rate at each loss. */
bool ps_tcp_slows_on_loss(int fd);
/* The bytes that were sent since the connection was made, retransmissions
 * included, and those of the retransmissions. False: an older kernel, which
 * does not count them. */
bool ps_tcp_sent(int fd, uint64_t *ret_sent, uint64_t *ret_again);

/* ---------------------------------------------------------- receive buffers */

/* Receive buffers of the connections of a loop. Many peers that send to one
 * host at once fill the queue before it until packets are lost, and a sender
 * that lost one waits 200 ms. So together they get the bandwidth-delay product
 * of the link and a little more, in equal shares. A single sender, and links
 * too slow or too fast for that to matter, are left to the system. */

struct ps_rcvbuf_tuner {
    struct ps_rate_meter rate;
    /* Number of the current interval, from 1; 0: none yet. */
    uint32_t interval;
    uint32_t active;          /* Connections with bulk data in this interval. */
    uint32_t active_estimate; /* Smoothed `active` of the last intervals. */
};

/* State of one connection; zeroed at first. */
struct ps_rcvbuf_share {
    uint32_t interval; /* Last interval in which it had bulk data. */
    uint32_t buffer;   /* SO_RCVBUF as set; 0: the system's default. */
};

/* Counts `bytes` received from the TCP socket `fd`; may change its buffer. */
void ps_rcvbuf_tuner_add(struct ps_rcvbuf_tuner *f,
                         struct ps_rcvbuf_share *share, int fd, ps_time now,
                         uint64_t bytes);

/* --------------------------------------------------------- turns of writing */

/* Fair order of writing among the connections of a loop. Bytes given to the
 * system at once would leave in the order of its flows, and each peer would
 * wait for the one that is served last. So connections write small pieces in
 * turns, and none gets further ahead of the least advanced than the link
 * carries in a few milliseconds. A connection without progress holds up the
 * others only briefly; a single one writes without limit.
 *
 * Knows neither sockets nor clocks. */

struct ps_send_scheduler {
    struct ps_rate_meter rate;
    struct ps_list active; /* Slots with output. */
    /* Active slots that wait for their turn, in order of arrival. */
    struct ps_list waiting;
    uint32_t count; /* Number of active slots. */
};

/* State of one connection; zeroed at first, but for `on_slot`. */
struct ps_send_slot {
    struct ps_list_node active;
    struct ps_list_node waiting;
    /* Bytes written, raised to the others' level; comparable between slots. */
    uint64_t progress;
    ps_time moved_at; /* Time of the last write, or of becoming active. */
    /* Until then no other slot waits for it; 0: the others wait. */
    ps_time excused_until;
    /* Called when the slot may write; it is no longer in `waiting`. */
    void (*on_slot)(struct ps_send_slot *t);
};

void ps_send_scheduler_init(struct ps_send_scheduler *f);

/* Bytes that a connection with output may write now; makes it active. 0: none,
 * and `on_slot` will be called. */
uint64_t ps_send_scheduler_request(struct ps_send_scheduler *f,
                                   struct ps_send_slot *t, ps_time now);
/* Counts `bytes` written of the `most` allowed. True: the share is used up, and
 * `on_slot` will be called for the next one. */
bool ps_send_scheduler_wrote(struct ps_send_scheduler *f,
                             struct ps_send_slot *t, ps_time now,
                             uint64_t bytes, uint64_t most);
/* The connection has no more output. */
void ps_send_scheduler_leave(struct ps_send_scheduler *f,
                             struct ps_send_slot *t);

/* Calls `on_slot` of the slots whose turn it is. */
void ps_send_scheduler_run(struct ps_send_scheduler *f, ps_time now);
/* Time of the next ps_send_scheduler_run(); PS_TIME_NEVER: none. */
ps_time ps_send_scheduler_deadline(struct ps_send_scheduler *f, ps_time now);

/* Limit on unsent bytes in the kernel for one connection; 0: the system's. More
 * would exceed the lead that waiting bytes are held to. */
uint64_t ps_send_scheduler_unsent_max(const struct ps_send_scheduler *f);

/* ----------------------------------------------------- part of a connection */

/* Part of a connection over TCP: its share of the receive buffers, its turns in
 * writing, and its distance. Other transports have none of them. */

struct conn_tcp {
    struct ps_loop *loop;
    const struct ps_loop_shared *shared;
    int fd;
    enum ps_tcp_kind kind;
    bool tunes_rcvbuf; /* The receive buffer has its share. */
    bool takes_turns;  /* In writing, unless it is far. */
    bool is_far;
    struct ps_rcvbuf_share rcvbuf;
    struct ps_send_slot send_slot;
    /* Bytes out at the next check of the round trip. */
    uint64_t next_far_check;
    /* TCP_NOTSENT_LOWAT as set; 0: the system's default. */
    uint64_t unsent_max;
    /* Since when nothing was acknowledged, as of the last check. */
    ps_time unacked_since;
    /* Bytes out when all of them were acknowledged. */
    uint64_t acked_bytes_out;
};

/* For a connection over TCP. */
void conn_tcp_init(struct conn_tcp *t, bool tunes_rcvbuf);
/* For any other. */
void conn_tcp_init_unused(struct conn_tcp *t);

/* The others wait for what it carries, which is little beside theirs: it takes no
 * turns, and has no share of the receive buffers. */
void conn_tcp_set_urgent(struct conn_tcp *t);
/* True if it takes turns in writing now. */
static inline bool conn_tcp_is_scheduled(const struct conn_tcp *t)
{
    return t->takes_turns && !t->is_far;
}

/* Counts `n` received bytes. Requires `tunes_rcvbuf`. */
void conn_tcp_received(struct conn_tcp *t, uint64_t n);

/* Bytes that may be written now; 0: waits for its send slot. */
uint64_t conn_tcp_request_slot(struct conn_tcp *t);
/* Counts `done` bytes; false when other connections are next. `is_last`: no
 * output is left. */
bool conn_tcp_wrote(struct conn_tcp *t, uint64_t done, uint64_t most,
                    bool is_last);
void conn_tcp_leave(struct conn_tcp *t);
/* Looks at the distance; to be called when `bytes_out`, the bytes written so
 * far, have reached `next_far_check`. A far connection leaves the send scheduler: losses set its rate, and scheduled
 * connections have the rate of the slowest. */
void conn_tcp_check_distance(struct conn_tcp *t, uint64_t bytes_out);

/* Time without an acknowledgement of written bytes; 0: nothing is outstanding,
 * and all `bytes_out` are acknowledged. */
ps_time conn_tcp_unacked(struct conn_tcp *t, uint64_t bytes_out);
/* True if conn_tcp_unacked() needs no system call to return 0. */
bool conn_tcp_is_acked(const struct conn_tcp *t, uint64_t bytes_out);
