/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines of a connection, all on one timer of the loop. */
#pragma once

#include "net/loop.h"

enum conn_deadline {
    CONN_DUE_CLOSE,     /* To close, after the last write or its failure. */
    CONN_DUE_HANDSHAKE, /* To complete the handshake. */
    CONN_DUE_HEADER,    /* To complete a header. */
    CONN_DUE_STALL,     /* To accept queued output. */
    CONN_DUE_PAYLOAD,   /* To continue a payload. */
    CONN_DEADLINES,
};

struct conn_timers {
    struct ps_loop_timer timer; /* Armed for the earliest deadline or before. */
    ps_time due[CONN_DEADLINES]; /* PS_TIME_NEVER: not set. */
};

/* No deadline is set; `due` runs for the timer. */
void conn_timers_init(struct conn_timers *t,
                      void (*due)(struct ps_loop_timer *timer));
/* Arms the timer for the earliest deadline. A cancelled deadline leaves the
 * timer as it is, and the timer finds nothing due: no heap operation per
 * frame. */
void conn_timers_arm(struct conn_timers *t, struct ps_loop *l);
/* The first deadline that is over; CONN_DEADLINES: none is. */
enum conn_deadline conn_timers_over(const struct conn_timers *t, ps_time now);
