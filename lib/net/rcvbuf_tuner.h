/* SPDX-License-Identifier: Apache-2.0 */
/* Receive buffers of the connections of a loop. Many peers that send to one
 * host at once fill the queue before it until packets are lost, and a sender
 * that lost one waits 200 ms. So together they get the bandwidth-delay product
 * of the link and a little more, in equal shares. A single sender, and links
 * too slow or too fast for that to matter, are left to the system. */
#pragma once

#include "base/rate_meter.h"

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
