/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the driver; for this folder only.
 *
 * Calls go down this list only:
 *
 *     driver.c     lifecycle, work before each wait, connections without
 *                  progress, statistics
 *     accept.c     connections from listeners and dials
 *     conn.c       one connection: open, frames, close
 *     memory.c     memory of workers: regions, rings of operations, GPUs
 *     effect.c     steps of the machine, and their effects: sends, jobs, closes
 *     dial.c       connections and probes that the machine asks for; the port
 *                  that shows that an agent lives
 *     tls.c        handshakes of TLS, and certificates of peers
 *     output.c     memory of queued output: reports, and closes for it */
#pragma once

#include "base/list.h"
#include "base/spin.h"
#include "core/link/output.h"
#include "core/link/path.h"
#include "driver/driver.h"
#include "net/loop.h"
#include "net/tls.h"
#include "proto/ring.h"

/* Refused connections, and the time they get to read the reason. */
#define REFUSED_MAX  8u
#define REFUSED_TIME PS_MILLIS(500)

/* Ring of operations of a worker. */
struct worker_ring {
    struct ps_buf *memory; /* Mapping of the ring; NULL: no ring. */
    struct ps_ring_agent ring;
    struct ps_list_node node; /* In `rings.all`. */
    struct ps_list_node wake; /* In `rings.wakes`. */
};

/* State of a connection to a worker. */
struct worker_conn {
    struct ps_process *process; /* Watch of its process; NULL: not watched. */
    struct worker_ring ring;
    uint64_t frames; /* That have arrived, with the one being delivered. */
    struct ps_map *events; /* Its events of GPUs, by number; NULL: none. */
    uint32_t waiting_ops;  /* Operations that wait for one of them. */
};

struct daemon_conn {
    struct ps_driver *driver;
    ps_conn_id id;
    struct ps_conn *conn;
    enum ps_conn_kind kind;
    struct ps_pre_handshake_conn pre_handshake;
    uint64_t log_source; /* Its host, or its user, if it was accepted. */
    struct ps_list_node to_flush; /* In the list while new output is queued. */
    struct ps_list_node paused;
    struct ps_list_node shm; /* In the list of same-host peers. */
    struct ps_output_conn output;
    struct ps_peer_identity identity; /* Of the peer's certificate. */
    uint32_t tls_generation; /* That of the context which accepted it last. */
    int64_t expires_at; /* Of its certificate, seconds since 1970; 0: none. */
    struct ps_slice payload; /* Payload being received; owned reference. */
    /* Why the payload being received is discarded; 0: it is kept. */
    int discard_reason;
    bool is_handshake_done;
    /* Dialled to a server by TCP: watched while it sends. Members detect loss
     * of the scheduler by missing replies to their pings. */
    bool is_watched;
    union {
        struct worker_conn worker; /* LOCAL */
        struct ps_path path; /* Connections of daemons: the place in a link. */
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
    struct ps_list ended; /* Ended dials to be reported. */
};

struct driver_rings {
    struct ps_list all;
    struct ps_list wakes; /* Those with new completions. */
    bool are_asleep;      /* Workers have to wake the agent. */
};

/* Refused sockets, with the reason sent, that are not closed yet. */
struct driver_refused {
    struct ps_loop_timer timer;
    int fds[REFUSED_MAX];
    uint32_t count;
};

/* One handshake of TLS. */
struct driver_handshake {
    struct ps_tls_handshake tls;
    uint32_t generation; /* That of the context it began with. */
};

/* An accepted connection before the end of its handshake of TLS. */
struct accepting {
    struct ps_list_node node; /* In `tls.accepting`. */
    struct ps_driver *driver;
    struct driver_handshake handshake;
    char peer[PS_CONN_PEER_MAX];
};

struct driver_tls {
    struct ps_list accepting;
    uint32_t generation;               /* Contexts there have been. */
    struct ps_loop_timer check_timer;  /* More connections to be checked. */
    struct ps_map_cursor checked_to;   /* They follow this one. */
    struct ps_loop_timer expiry_timer; /* The next end of a certificate. */
    int64_t expires_at;                /* That end; 0: none. */
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
    struct ps_list shm_conns; /* Connections to same-host peers. */
    struct driver_rings rings;
    struct driver_dials dials;
    struct ps_effects fx;
    /* Wakes the loop; before_poll() feeds the tick. */
    struct ps_loop_timer tick_timer;
    struct ps_loop_timer grace_timer; /* Grace while closing. */
    struct driver_refused refused;
    struct driver_liveness liveness;
    struct driver_tls tls;
    struct driver_watch watch;
    struct driver_device_watch *device_watch; /* NULL: there was none yet. */
    struct driver_polling polling;
    struct ps_output output;
    bool is_stepping;
    bool is_closing;
    int failure;
    /* Effects wait for the commit of what an earlier one stores. */
    bool awaits_commit;
    void (*closed)(void *ctx); /* NULL: not closing, or closed. */
    /* Count of freed arenas at the last notice to peers. */
    uint64_t arenas_freed;
    struct ps_driver_stats closed_stats; /* Sums over closed connections. */
};

struct dial {
    struct ps_list_node node; /* In a list of struct driver_dials. */
    struct ps_driver *driver;
    struct ps_dial *dial; /* NULL: not in progress. */
    uint64_t target;
    ps_conn_id subflow_of; /* Main connection of its link; 0: not a subflow. */
    bool is_probe;         /* Only to test whether a process listens. */
    bool is_shm;           /* Dials a server on this host, not by TCP. */
    uint32_t peer_roles;
    char address[PS_ADDRESS_MAX + 1];
    struct driver_handshake handshake; /* In progress if `dial` is not. */
    struct ps_peer_identity identity;  /* Of the peer's certificate. */
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
    uint64_t source; /* Of one that was accepted: its host, or its user. */
    /* Owned by the connection if it opens; NULL: it is not encrypted. */
    struct ps_tls_session *session;
    const struct ps_peer_identity *identity; /* NULL: no certificate. */
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
    LOG_DEVICE,
    LOG_CLOSED = 256, /* Plus a number from error and kind of peer. */
};

/* effect.c */

/* Feeds `ev` to the machine, and applies the effects. If `ev->now` is 0, the
 * loop's time is filled in. */
void driver_feed(struct ps_driver *d, struct ps_event *ev);
void driver_apply_effects(struct ps_driver *d);
/* Kind of a log line that `source` causes, a host or user, so that the lines of
 * one do not hide those of another; 0: none. */
uint64_t driver_log_kind(uint64_t kind, uint64_t source);
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
/* The same for a peer that began without TLS where it is needed: the reason is
 * sent as the peer speaks. */
void driver_refuse_plain(struct ps_driver *d, int fd, const char *peer,
                         const char *why);
/* The same after the handshake of TLS: `session` carries the reason, and is
 * freed. */
void driver_refuse_encrypted(struct ps_driver *d, int fd,
                             struct ps_tls_session *session, const char *peer,
                             const char *why);
void driver_close_refused(struct ps_driver *d);
void driver_drop_payload(struct daemon_conn *c);

/* True if connections, handshakes or dials are open. */
bool driver_is_open(const struct ps_driver *d);
/* Makes the end of a closing driver due once nothing is open. */
void driver_maybe_closed(struct ps_driver *d);

void driver_add_stats(struct ps_driver_stats *sum, const struct ps_conn *conn);

/* accept.c */

/* Reports the dials that have ended. */
void driver_report_dials(struct ps_driver *d);
void driver_cancel_accepting(struct ps_driver *d);

/* dial.c */

/* Commits what effects store, and carries out those that wait for it. */
void driver_commit(struct ps_driver *d);
/* Carries out PS_FX_DIAL and PS_FX_PROBE. */
void driver_dial(struct ps_driver *d, const struct ps_fx *fx);
void driver_probe(struct ps_driver *d, const struct ps_fx *fx);
void driver_cancel_dials(struct ps_driver *d);
/* Address of a port on which only this process listens, on the host address of
 * `fd`. NULL: no agent, or it cannot be bound. */
const char *driver_liveness_address(struct ps_driver *d, int fd);
void driver_liveness_close(struct ps_driver *d);

/* tls.c */

void driver_tls_init(struct ps_driver *d);
void driver_tls_fini(struct ps_driver *d);
/* True if a connection over this socket is to be encrypted. */
bool driver_encrypts(const struct ps_driver *d, int fd);
/* Begins a handshake on a connected socket; `done` runs later. */
void driver_tls_begin(struct ps_driver *d, struct driver_handshake *h,
                      const struct ps_tls_handshake *tls);
/* Watches the end of the certificate of an encrypted connection. */
void driver_tls_watch(struct daemon_conn *c);
/* Checks the peer of a complete handshake: it must be of this cluster and have
 * one of `roles`. PS_E_PERM adds the reason to `why`. */
PS_MUST_USE int driver_tls_check(const struct ps_driver *d,
                                 const struct driver_handshake *h,
                                 uint32_t roles,
                                 struct ps_peer_identity *ret_identity,
                                 struct ps_str *why);
/* Sends a message in the session of a connection that is not made. */
void driver_tls_send(struct ps_tls_session *session, const void *bytes,
                     size_t len);

/* output.c */

void driver_output_init(struct ps_driver *d);
/* Takes over the state of the output. May close this or another connection. */
void driver_output_update(struct daemon_conn *c);
/* Closes the connection. A peer that dialled gets the reason, ahead of queued
 * output, if the socket accepts it. */
void driver_reject(struct daemon_conn *c, int rc, const char *text);
/* The memory reserve was given up: closes the connections that hold most, one
 * call after the other, until there is a reserve again. */
void driver_relieve(struct ps_driver *d);

/* memory.c */

/* Handles a frame of a worker about memory that it shares; false: it is for the
 * machine. */
bool driver_accept_memory(struct daemon_conn *c, const struct ps_msg *msg);
/* Handles the operations that are left in the ring of a closed connection, and frees
 * what the worker has shared. */
void driver_drop_memory(struct daemon_conn *c);
/* Handles the operations that the worker pushed before its frame number
 * `frames` + 1. True if there were any. */
bool driver_ring_poll(struct daemon_conn *c, uint64_t frames);
/* Handles the operations of all rings. True if there were any. */
bool driver_rings_poll(struct ps_driver *d);
/* Wakes the sleeping ones of the workers that have new completions. */
void driver_rings_wake(struct ps_driver *d);
/* From now on workers wake the loop. False: a ring has an operation. */
bool driver_rings_sleep(struct ps_driver *d);
void driver_rings_awake(struct ps_driver *d);
void driver_device_fini(struct ps_driver *d);
