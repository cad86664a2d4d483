/* SPDX-License-Identifier: Apache-2.0 */
/* Uplink: a member's link to the scheduler, with registration and heartbeat.
 *
 * The member dials (core/link/dialer.h) and sends hello; welcome registers it.
 * It then pings at the interval that welcome names. A ping without an answer
 * when the next one is due makes it dial a second connection in parallel;
 * silence for ps_heartbeat_timeout() drops the connection. Messages to a
 * scheduler that is away wait in the link. A reject because another process
 * holds the member's name ends the daemon (core/link/name_claim.h).
 *
 * The uplink knows no member: what it reports and what follows from a welcome
 * is in the member's struct ps_uplink_ops. */
#pragma once

#include "core/link/dialer.h"

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
    /* The welcome is of another scheduler process, which counts its epochs from
     * its own start. Called before the link is opened. */
    void (*on_new_scheduler)(void *context);
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

struct ps_uplink {
    const struct ps_uplink_ops *ops;
    struct ps_dialer dialer;
    struct ps_account *account;
    uint8_t state; /* enum ps_uplink_state. */
    bool waits_after_reject;
    /* Scheduler process of the last welcome; 0: none. */
    uint64_t sched_instance;
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
