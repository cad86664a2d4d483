/* SPDX-License-Identifier: Apache-2.0 */
/* How much the connections of a loop may have on their way to it. Many that
 * send to one host at once fill the queue before it until packets are lost,
 * and the one that lost waits a fifth of a second. So together they get what
 * the link carries in a round trip and a little more, in equal shares; one
 * alone, and what is too slow or too fast for that to matter, is left to the
 * system. */
#pragma once

#include "base/rate_meter.h"

struct ps_rcvbuf_tuner {
    struct ps_rate_meter rate;
    uint32_t interval;        /* Counts them; from 1. */
    uint32_t active;          /* Connections with bytes in this stretch. */
    uint32_t active_estimate; /* That is, about: in the last ones. */
};

/* What one connection knows; zeroed to begin with. */
struct ps_rcvbuf_share {
    uint32_t interval; /* The last one in which it had bytes. */
    uint32_t buffer;   /* SO_RCVBUF as set; 0: the system's. */
};

/* `bytes` came from the TCP socket `fd`, whose share may change now. */
void ps_rcvbuf_tuner_add(struct ps_rcvbuf_tuner *f,
                         struct ps_rcvbuf_share *share, int fd, ps_time now,
                         uint64_t bytes);
