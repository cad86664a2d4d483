/* SPDX-License-Identifier: Apache-2.0 */
/* The dialling side of a link: agent to servers, agent and server to the
 * scheduler.
 *
 * One connection carries the link. While there is none, the dialer dials with
 * back-off. A dial without an answer after PS_DIALER_PARALLEL_DELAY gets others
 * in parallel, and so does a stalled connection (ps_dialer_on_stalled): after a
 * network failure, the first packet of a new dial arrives long before TCP
 * retransmits on the old connection. The newest connection with a welcome
 * carries the link; if bytes arrive on the old one first, the new one is
 * dropped.
 *
 * The machine calls ps_dialer_send_hello() when ps_dialer_on_open() is true, and
 * ps_link_open() when ps_dialer_on_welcome() is. */
#pragma once

#include "core/link/link.h"

/* Concurrent dials of one link. */
#define PS_DIALER_DIALS_MAX       4u
/* Time without an answer before another dial is started in parallel. */
#define PS_DIALER_PARALLEL_DELAY  PS_MILLIS(500)
/* Time limit of one dial. */
#define PS_DIALER_DIAL_TIMEOUT    (PS_DIALER_DIALS_MAX * PS_DIALER_PARALLEL_DELAY)
/* Time limit from hello to welcome; then the connection is dropped. */
#define PS_DIALER_WELCOME_TIMEOUT PS_SECONDS(5)

struct ps_dialer_options {
    /* Lower 32 bits of its dials' target; the upper ones hold the address
     * generation. */
    uint32_t target;
    /* First address generation; no target may be used twice. */
    uint32_t first_generation;
    uint64_t instance;
    /* Wait before the second dial; doubled after each failure. */
    ps_time backoff_min;
    ps_time backoff_max; /* Upper limit of the wait. */
    struct ps_link_options link;
};

struct ps_dialer {
    struct ps_dialer_options opt;
    struct ps_rng *rng;
    struct ps_link *link;
    uint64_t session;
    char address[PS_ADDRESS_MAX + 1]; /* "": not known yet. */
    uint32_t address_generation;      /* Raised by each change of address. */
    bool enabled;                     /* False: no new dial is started. */
    /* Frames on `conn` do not get through (ps_dialer_on_stalled). */
    bool suspect;
    ps_conn_id conn; /* Connection that carries the link; 0: none. */
    /* Connection that waits for its welcome; 0: none. */
    ps_conn_id pending_conn;
    uint32_t dials_in_flight; /* Dials without a result. */
    ps_time backoff;
    ps_time hello_wait; /* Wait for a welcome before another dial; doubles. */
    ps_time next_dial_at;
    ps_time last_dial_at;  /* 0: never. */
    ps_time pending_since; /* Time when `pending_conn` was opened. */
    ps_time last_recv_at;  /* Last arrival on a `conn`; 0: none of the link. */
    int noted_error;       /* Error of the last failed dial that was logged. */
    ps_time noted_at;      /* Time of that log line. */
};

void ps_dialer_init(struct ps_dialer *c, const struct ps_dialer_options *opt,
                    struct ps_rng *rng, ps_time now);
void ps_dialer_fini(struct ps_dialer *c);
/* Drops all connections and starts a new link under a new session id. */
void ps_dialer_reset(struct ps_dialer *c, ps_time now, struct ps_effects *fx);

static inline bool ps_dialer_is_connected(const struct ps_dialer *c)
{
    return c->conn != 0;
}

/* Sets the address. Connections and dials to another one are dropped. */
void ps_dialer_set_address(struct ps_dialer *c, const char *address,
                           ps_time now, struct ps_effects *fx);
/* True if `conn` is the connection of the link or the pending one. */
bool ps_dialer_owns_conn(const struct ps_dialer *c, ps_conn_id conn);

/* A dial of `target` led to `conn`. True: it is `pending_conn` now, and the
 * caller sends hello on it. False: it is not needed and is closed. */
PS_MUST_USE bool ps_dialer_on_open(struct ps_dialer *c, uint64_t target,
                                   ps_conn_id conn, ps_time now,
                                   struct ps_effects *fx);
/* Sends hello on `conn`: as `member`, with this side's protocol versions and the
 * link's session. */
void ps_dialer_send_hello(const struct ps_dialer *c, ps_conn_id conn,
                          const struct ps_msg_hello *member,
                          struct ps_effects *fx);
/* True if the welcome chose a protocol version that this side speaks. */
bool ps_dialer_speaks(const struct ps_msg_welcome *m);
/* A dial failed. True: the failure should be logged. */
bool ps_dialer_on_dial_failed(struct ps_dialer *c, uint64_t target, int rc,
                              ps_time now);
/* The peer sent welcome on `conn`. True: it carries the link now, an older
 * connection is closed, and the caller opens the link on it. */
PS_MUST_USE bool ps_dialer_on_welcome(struct ps_dialer *c, ps_conn_id conn,
                                      ps_time now, struct ps_effects *fx);
/* `conn` is closed. True: the link has lost its connection. */
bool ps_dialer_on_closed(struct ps_dialer *c, ps_conn_id conn, ps_time now);
/* Closes `conn`, if it belongs to this dialer; another dial follows. True: the
 * link has lost its connection. */
bool ps_dialer_drop_conn(struct ps_dialer *c, ps_conn_id conn, ps_time now,
                         struct ps_effects *fx);
/* Closes all connections. */
void ps_dialer_drop_all(struct ps_dialer *c, ps_time now,
                        struct ps_effects *fx);
/* Raises the back-off to its maximum for the next dial. */
void ps_dialer_max_backoff(struct ps_dialer *c, ps_time now);
/* Dials at the next tick and resets the back-off. */
void ps_dialer_dial_now(struct ps_dialer *c, ps_time now);

/* A frame arrived on `conn`. */
void ps_dialer_on_recv(struct ps_dialer *c, ps_conn_id conn, ps_time now);
/* The connection of the link is stalled: dial in parallel to it. */
void ps_dialer_on_stalled(struct ps_dialer *c, ps_time now);

/* Starts a dial when one is due; drops `pending_conn` after
 * PS_DIALER_WELCOME_TIMEOUT. */
void ps_dialer_tick(struct ps_dialer *c, ps_time now, struct ps_effects *fx);
ps_time ps_dialer_deadline(const struct ps_dialer *c);
