/* SPDX-License-Identifier: Apache-2.0 */
/* Part of a connection over TCP: its share of the receive buffers, its turns in
 * writing, and its distance. Other transports have none of them. */
#pragma once

#include "net/rcvbuf_tuner.h"
#include "net/send_scheduler.h"
#include "net/tcp.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_loop;

struct conn_tcp {
    struct ps_loop *loop;
    int fd;
    enum ps_tcp_kind kind;
    bool tunes_rcvbuf; /* The receive buffer is set by rcvbuf_tuner. */
    /* Takes turns by net/send_scheduler.h, unless it is far. */
    bool is_scheduled;
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

/* Counts `n` received bytes. */
void conn_tcp_received(struct conn_tcp *t, uint64_t n);

/* Bytes that may be written now; 0: waits for its send slot. */
uint64_t conn_tcp_request_slot(struct conn_tcp *t);
/* Counts `done` bytes; false when other connections are next. `is_last`: no
 * output is left. */
bool conn_tcp_wrote(struct conn_tcp *t, uint64_t done, uint64_t most,
                    bool is_last);
void conn_tcp_leave(struct conn_tcp *t);
/* Looks at the distance from time to time; `bytes_out` were written so far. A
 * far connection leaves the send scheduler: losses set its rate, and scheduled
 * connections have the rate of the slowest. */
void conn_tcp_check_distance(struct conn_tcp *t, uint64_t bytes_out);

/* Time without an acknowledgement of written bytes; 0: nothing is outstanding,
 * and all `bytes_out` are acknowledged. */
ps_time conn_tcp_unacked(struct conn_tcp *t, uint64_t bytes_out);
/* True if conn_tcp_unacked() needs no system call to return 0. */
bool conn_tcp_is_acked(const struct conn_tcp *t, uint64_t bytes_out);
