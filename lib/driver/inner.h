/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the driver; for this folder only.
 *
 * Calls go down this list only:
 *
 *     driver.c     lifecycle, and work before each wait
 *     watch.c      connections that make no progress
 *     accept.c     connections from listeners and dials
 *     conn.c       one connection: open, frames, close
 *     ring.c       memory of workers: regions, operations of rings
 *     effect.c     steps of the machine, and their effects: sends, jobs, closes
 *     dial.c       connections and probes that the machine asks for
 *     output.c     memory of queued output, and its limits
 *     stats.c      statistics
 *     liveness.c   port that shows that an agent lives */
#pragma once

#include "base/list.h"
#include "base/spin.h"
#include "core/base/ledger.h"
#include "core/link/multipath.h"
#include "core/link/pre_handshake.h"
#include "driver/driver.h"
#include "net/loop.h"
#include "net/ring_set.h"

/* Refused connections, and the time they get to read the reason. */
#define REFUSED_MAX  8u
#define REFUSED_TIME PS_MILLIS(500)

struct output_user;

/* State of a connection to a worker. */
struct worker_conn {
    struct ps_process *process; /* Watch of its process; NULL: not watched. */
    struct ps_ring_conn ring;
};

struct daemon_conn {
    struct ps_driver *driver;
    ps_conn_id id;
    struct ps_conn *conn;
    enum ps_conn_kind kind;
    struct ps_pre_handshake_conn pre_handshake;
    struct ps_list_node to_flush; /* In the list while new output is queued. */
    struct ps_list_node paused;
    struct ps_account account; /* Account of its queued output. */
    /* Account of its user, for workers and tools; else NULL. */
    struct output_user *user;
    struct ps_slice payload; /* Payload being received; owned reference. */
    /* Why the payload being received is discarded; 0: it is kept. */
    int discard_reason;
    bool is_shm;
    bool is_greeted;
    /* Dialled to a server by TCP: watched while it sends. Members detect loss
     * of the scheduler by missing replies to their pings. */
    bool is_watched;
    union {
        struct worker_conn worker; /* LOCAL */
        struct ps_path path;       /* Others: the place in a link. */
    };
};

/* Connections whose reading waits for memory. */
struct driver_paused {
    struct ps_list conns;
    uint32_t count;
    bool has_stepped; /* Stepped since they were retried last. */
};

struct driver_dials {
    struct ps_list running;
    struct ps_list ended; /* Still to be reported. */
};

/* Refused sockets, with the reason sent, that are not closed yet. */
struct driver_refused {
    struct ps_loop_timer timer;
    int fds[REFUSED_MAX];
    uint32_t count;
};

struct driver_liveness {
    struct ps_listener *listener; /* NULL: none. */
    char host[PS_ADDRESS_MAX + 1];
    char address[PS_ADDRESS_MAX + 1];
};

struct driver_watch {
    struct ps_loop_timer timer; /* Next check of unacknowledged bytes. */
    bool is_set;                /* The timer is armed. */
};

struct driver_polling {
    struct ps_spin spin;
    ps_time until; /* End of busy polling; 0: not polling. */
    bool was_fed;  /* Stepped since the last busy_poll(). */
};

/* Memory of queued output. */
struct driver_output {
    struct ps_account total;
    struct ps_account_limits caller_limits; /* Workers and tools. */
    struct ps_account_limits link_limits;   /* Daemons. */
    struct ps_account_limits user_limits;
    struct ps_account_limits total_limits;
    struct ps_map *users; /* struct output_user by uid. */
    ps_conn_id relieved;  /* Connection closed to free memory; 0: none. */
};

struct ps_driver {
    struct ps_driver_options opt;
    struct ps_multipath multipath; /* Links and their connections. */
    struct ps_map *conns;
    ps_conn_id last_id;
    uint32_t local_count;
    uint32_t computing;
    struct ps_list to_flush;
    struct ps_pre_handshake pre_handshake;
    struct driver_paused paused;
    struct ps_ring_set rings;
    struct driver_dials dials;
    struct ps_effects fx;
    /* Wakes the loop; before_poll() feeds the tick. */
    struct ps_loop_timer tick_timer;
    struct ps_loop_timer grace_timer; /* Grace while closing. */
    struct driver_refused refused;
    struct driver_liveness liveness;
    struct driver_watch watch;
    struct driver_polling polling;
    struct driver_output output;
    bool is_stepping;
    bool is_closing;
    int failure;
    void (*closed)(void *ctx); /* NULL: not closing, or closed. */
    /* Count of freed arenas at the last notice to peers. */
    uint64_t arenas_freed;
    struct ps_driver_stats closed_stats; /* Sums over closed connections. */
};

struct dial {
    struct ps_list_node node; /* In a list of struct driver_dials. */
    struct ps_driver *driver;
    struct ps_dial *dial; /* NULL: the dial failed at its start. */
    uint64_t target;
    ps_conn_id subflow_of; /* Main connection of its link; 0: not a subflow. */
    bool is_probe;         /* Only tests whether a process listens. */
    bool is_shm;           /* To a server on this host, not by TCP. */
    uint32_t peer_roles;
    char address[PS_ADDRESS_MAX + 1];
    /* The result: error, socket (-1: none), and name of the peer or text of the
     * error (NULL: only `rc`). */
    int rc;
    int fd;
    char *detail;
};

struct conn_opening {
    int fd;
    uint32_t peer_roles;
    const char *peer;
    bool is_shm;
    /* Address of a server to dial subflows at; NULL: none can be dialled. */
    const char *address;
    /* Main connection of the link that it joins; NULL: none. */
    struct ps_path *main;
};

/* Kinds of log lines, see ps_log_of(); kinds of notes are addresses. */
enum driver_log {
    LOG_REFUSED = 1,
    LOG_DIALS,
    LOG_NOT_SENT,
    LOG_MEMORY,
    LOG_CLOSED = 256, /* Plus a number from error and kind of peer. */
};

/* effect.c */

/* Feeds `ev` to the machine at the loop's time, and applies the effects. */
void driver_feed(struct ps_driver *d, struct ps_event *ev);
void driver_feed_at(struct ps_driver *d, struct ps_event *ev, ps_time now);
void driver_apply_effects(struct ps_driver *d);
/* Marks new output, which before_poll() writes. */
void driver_mark_flush(struct daemon_conn *c);

/* conn.c */

/* Opens a connection; `ev` is the OPEN event, completed here. */
void driver_open(struct ps_driver *d, const struct conn_opening *o,
                 struct ps_event *ev);
/* Sends the reason to an accepted peer, closes `fd` a moment later, and counts
 * the refusal. */
void driver_refuse(struct ps_driver *d, int fd, const char *peer,
                   const char *why);
void driver_close_refused(struct ps_driver *d);
void driver_drop_payload(struct daemon_conn *c);
/* Handler of ps_conn_ops.sent: `queued` bytes of `conn` are left. */
void driver_on_sent(void *ctx, struct ps_conn *conn, uint64_t queued);

/* True if connections or dials are open. */
bool driver_is_open(const struct ps_driver *d);
/* Makes the end of a closing driver due once nothing is open. */
void driver_maybe_closed(struct ps_driver *d);

/* accept.c */

/* Reports the dials that have ended; false: there are none. */
bool driver_report_dials(struct ps_driver *d);

/* dial.c */

/* Carries out PS_FX_DIAL and PS_FX_PROBE. */
void driver_dial(struct ps_driver *d, const struct ps_fx *fx);
void driver_probe(struct ps_driver *d, const struct ps_fx *fx);
void driver_cancel_dials(struct ps_driver *d);

/* output.c */

void driver_output_init(struct ps_driver *d);
void driver_output_fini(struct ps_driver *d);
/* Sets up the account; `ev` is the OPEN event. */
void driver_output_open(struct daemon_conn *c, const struct ps_event *ev);
void driver_output_greeted(struct daemon_conn *c);
void driver_output_closed(struct daemon_conn *c);
/* Adjusts the account to the queued output. May close this or another
 * connection. */
void driver_output_update(struct daemon_conn *c);
/* True if queued output is large, and further error texts must be short. */
bool driver_output_is_long(const struct daemon_conn *c);
/* Closes the connection. A peer that dialled gets the reason, ahead of queued
 * output, if the socket accepts it. */
void driver_reject(struct daemon_conn *c, int rc, const char *text);
/* Once the memory reserve was given up: closes the connections that hold most,
 * one after the other, until there is a reserve again. */
void driver_relieve(struct ps_driver *d);

/* ring.c */

void driver_accept_region(struct daemon_conn *c, const struct ps_msg *msg);
void driver_accept_residuals(struct daemon_conn *c, const struct ps_msg *msg);
void driver_accept_ring(struct daemon_conn *c, const struct ps_msg *msg);
/* Handles the operations that the worker pushed before its frame number
 * `frames` + 1. True if there were any. */
bool driver_ring_poll(struct daemon_conn *c, uint64_t frames);
bool driver_poll_rings(struct ps_driver *d);
/* Wakes sleeping workers that have new completions. */
void driver_wake_ring_peers(struct ps_driver *d);

/* watch.c */

/* Starts the watch of a connection that is about to send. */
void driver_watch(struct daemon_conn *c);

/* liveness.c */

/* Address of a port on which only this process listens, on the host address of
 * `fd`. NULL: no agent, or it cannot be bound. */
const char *driver_liveness_address(struct ps_driver *d, int fd);
void driver_liveness_close(struct ps_driver *d);

/* stats.c */

void driver_add_stats(struct ps_driver_stats *sum, const struct ps_conn *conn);
