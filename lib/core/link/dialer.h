/* SPDX-License-Identifier: Apache-2.0 */
/* The dialling side of a link: agent to servers, and the uplink, by which agent
 * and server register at the scheduler. */
#pragma once

#include "base/time.h"
#include "core/link/link.h"

#include <stdbool.h>

/* ------------------------------------------------------------------ dialer */

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

/* --------------------------------------------------------------- heartbeat */

/* Interval and timeout of a member's heartbeats to the scheduler. */

/* Interval before a welcome sets another one. */
#define PS_HEARTBEAT_DEFAULT PS_SECONDS(1)

/* Time without any message of the scheduler after which the member drops the
 * connection: two seconds, but at least four and at most eight intervals. */
static inline ps_time ps_heartbeat_timeout(ps_time beat)
{
    ps_time one = ps_time_min(beat, PS_TIME_NEVER / 8);
    ps_time few = 4 * one;
    ps_time some = ps_time_min(8 * one, PS_SECONDS(2));

    return few > some ? few : some;
}

/* ------------------------------------------------------------------ uplink */

/* Uplink: a member's link to the scheduler, with registration and heartbeat.
 *
 * The member dials and sends hello; welcome registers it.
 * It then pings at the interval that welcome names. A ping without an answer
 * when the next one is due makes it dial a second connection in parallel;
 * silence for ps_heartbeat_timeout() drops the connection. Messages to a
 * scheduler that is away wait in the link.
 *
 * A reject because another process holds the member's name ends the daemon: at
 * once if it was registered, and has lost its name and its jobs. One that was
 * not may have restarted before the scheduler noticed the death of its
 * predecessor: it tries again for PS_NAME_CLAIM_TIMEOUT, then two daemons are
 * configured with one name.
 *
 * The uplink knows no member: what it reports and what follows from a welcome
 * is in the member's struct ps_uplink_ops. */

enum ps_uplink_state {
    PS_UPLINK_UNREGISTERED, /* No welcome yet. */
    PS_UPLINK_CONNECTED,    /* A connection carries the link. */
    PS_UPLINK_DISCONNECTED, /* Registered; the link has no connection. */
    PS_UPLINK_NAME_LOST, /* Another process keeps the name: the daemon ends. */
    PS_UPLINK_CLOSED,    /* Shut down; not dialled again. */
};

/* Operations of a member; `context` is that of the call. */
struct ps_uplink_ops {
    /* Sets role, name, cluster and address, and the limit of memory. */
    void (*fill_hello)(void *context, struct ps_msg_hello *hello);
    /* Sets everything but the stamp. */
    void (*fill_ping)(void *context, struct ps_msg_ping *ping);
    /* Updates the account, whose costs are sent next. NULL: it is up to
     * date. */
    void (*update_account)(void *context);
    /* Lists the peers with refused frames, and returns their count. NULL: none
     * was refused. */
    uint32_t (*list_refusals)(
        void *context, struct ps_rec_refusals list[PS_REFUSALS_SHOWN_MAX]);
    /* The welcome is of another scheduler process. `knows_members`: it has the
     * memory of the one before, node numbers, jobs and epochs; else it counts
     * epochs from its own start. Called before the link is opened. */
    void (*on_new_scheduler)(void *context, bool knows_members);
    /* The link has a new session: messages sent before may be lost, so state
     * is sent again. */
    void (*on_new_session)(void *context);
};

struct ps_uplink_options {
    const struct ps_uplink_ops *ops;
    const char *address; /* Address of the scheduler; copied. */
    struct ps_dialer_options dialer;
    /* Parent of the link's account; its costs are sent to the scheduler. */
    struct ps_account *account;
    /* A reject for another reason than the name is final until somebody changes
     * the configuration: raises the back-off to its maximum. */
    bool waits_after_reject;
};

/* Bytes of the text about a failure. */
#define PS_UPLINK_FAILURE_MAX 159u
/* Longer than a scheduler takes to detect a dead member. */
#define PS_NAME_CLAIM_TIMEOUT PS_SECONDS(60)

struct ps_uplink {
    const struct ps_uplink_ops *ops;
    struct ps_dialer dialer;
    struct ps_account *account;
    uint8_t state; /* enum ps_uplink_state. */
    bool waits_after_reject;
    /* Scheduler process of the last welcome; 0: none. */
    uint64_t sched_instance;
    uint64_t sched_store; /* And its file; 0: it has none. */
    uint32_t node; /* Node number of the member; 0: not registered yet. */
    uint64_t incarnation;
    ps_time name_refused_since; /* First reject of the name; 0: none. */
    ps_time heartbeat_interval;
    ps_time next_ping_at;
    ps_time last_ping_at; /* 0: none on this connection. */
    ps_time next_costs_at;
    /* Why the last dial or connection has failed; "": the link is connected, or
     * has not failed yet. */
    char failure[PS_UPLINK_FAILURE_MAX + 1];
};

/* Context that all calls of one step share. */
struct ps_uplink_call {
    void *context; /* Handed to the operations. */
    ps_time now;
    struct ps_effects *fx;
};

void ps_uplink_init(struct ps_uplink *up, const struct ps_uplink_options *opt,
                    struct ps_rng *rng, ps_time now);
void ps_uplink_fini(struct ps_uplink *up);
/* Closes all connections and stops dialling. */
void ps_uplink_close(struct ps_uplink *up, const struct ps_uplink_call *call);

static inline bool ps_uplink_is_connected(const struct ps_uplink *up)
{
    return up->state == PS_UPLINK_CONNECTED;
}

/* True: the daemon has to end, because another process keeps its name. */
static inline bool ps_uplink_is_name_lost(const struct ps_uplink *up)
{
    return up->state == PS_UPLINK_NAME_LOST;
}

static inline bool ps_uplink_owns_conn(const struct ps_uplink *up,
                                       ps_conn_id conn)
{
    return ps_dialer_owns_conn(&up->dialer, conn);
}

/* A dial led to `conn`: sends hello, or closes what is not needed. */
void ps_uplink_on_open(struct ps_uplink *up, const struct ps_uplink_call *call,
                       uint64_t target, ps_conn_id conn);
/* `why` NULL: the text of `rc`. */
void ps_uplink_on_dial_failed(struct ps_uplink *up,
                              const struct ps_uplink_call *call,
                              uint64_t target, int rc, const char *why);
/* Frames on `conn` are not acknowledged: dials in parallel. */
void ps_uplink_on_stalled(struct ps_uplink *up, ps_conn_id conn, ps_time now);
void ps_uplink_on_closed(struct ps_uplink *up,
                         const struct ps_uplink_call *call, ps_conn_id conn,
                         int rc, const char *why);
/* Handles a message on a connection of the uplink. True: it is new, and the
 * member's to handle. */
PS_MUST_USE bool ps_uplink_on_msg(struct ps_uplink *up,
                                  const struct ps_uplink_call *call,
                                  ps_conn_id conn, const struct ps_msg *msg);
/* Drops all connections, with `why` in the log; dials follow. */
void ps_uplink_drop(struct ps_uplink *up, const struct ps_uplink_call *call,
                    const char *why);

/* Sends on the link, which keeps the message until it is acknowledged. Before
 * registration it is discarded: on_new_session() sends state again. */
void ps_uplink_send_msg(struct ps_uplink *up, const struct ps_msg *msg,
                        ps_time now, struct ps_effects *fx);
/* Answers the scheduler's question whether `m->node` is alive: the member's
 * link to it has been silent for `silent_ns`. */
void ps_uplink_send_ping_ack(const struct ps_uplink *up,
                             const struct ps_msg_ping_req *m, ps_time silent_ns,
                             struct ps_effects *fx);
/* Sends a ping at once, if connected. */
void ps_uplink_ping_now(struct ps_uplink *up,
                        const struct ps_uplink_call *call);

void ps_uplink_tick(struct ps_uplink *up, const struct ps_uplink_call *call);
ps_time ps_uplink_deadline(const struct ps_uplink *up);
