/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one machine on the event loop: connections and compute jobs become
 * events, effects become writes, dials and jobs. It takes no decisions. The
 * simulator is the other driver of the same machines. */
#pragma once

#include "base/err.h"
#include "core/base/machine.h"
#include "net/conn.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_arenas;
struct ps_driver;
struct ps_loop;
struct ps_io_pool;
struct ps_share;
struct ps_tls_context;
struct ps_tls_gate;
struct ps_worker;

/* TLS on TCP connections. */
struct ps_driver_tls {
    struct ps_tls_gate *gate;
    /* Own certificate and authorities; the driver keeps a reference. NULL: no
     * connection is encrypted. */
    struct ps_tls_context *context;
};

/* Ports for liveness probes, of which the first free one is taken; 0 as a port:
 * any. A count of 0: none. */
struct ps_driver_liveness {
    uint16_t port;
    uint16_t count;
    bool any; /* Takes any port if none of these is free. */
};

/* Store of the machine's PS_FX_STORE; the functions get the options' `ctx`. */
struct ps_driver_store {
    /* Changes rows in a transaction. NULL: the machine stores nothing. */
    void (*change)(void *ctx, const struct ps_store_row *rows, uint32_t count);
    /* Commits the transaction: once in a turn of the loop, before later effects
     * are carried out. False: that failed, and the daemon ends without them. */
    bool (*commit)(void *ctx);
};

struct ps_driver_options {
    struct ps_loop *loop;       /* Borrowed, as are all pointers below. */
    struct ps_worker *worker;   /* NULL: the machine computes nothing. */
    struct ps_io_pool *io_pool; /* I/O threads; NULL: none. */
    /* Arenas whose descriptors go to workers and same-host peers; NULL:
     * none. */
    struct ps_arenas *arenas;
    struct ps_share *share; /* Memory of GPUs; NULL: workers share none. */
    struct ps_machine machine;
    enum ps_role self;
    /* Address of the scheduler; all other dialled addresses are servers. NULL:
     * no scheduler. */
    const char *scheduler;
    struct ps_driver_liveness liveness;
    struct ps_conn_limits limits;
    /* Connections of a TCP link to a server; 0: enough to give each I/O thread
     * one. */
    uint32_t link_connections;
    /* Limits on memory of queued output, in bytes: of a worker or tool, of a
     * daemon, in all. 0: the default of base/limits.h. */
    uint64_t output;
    uint64_t link_output;
    uint64_t output_total;
    bool same_host;        /* Dials servers on this host by net/shm_peer.h. */
    enum ps_tcp_kind bulk; /* Kind of the links between agents and servers. */
    enum ps_conn_checksums checksums;
    uint32_t receive_buffer; /* 0: chosen by the system; so is `send_buffer`. */
    uint32_t send_buffer;
    ps_time busy_poll;        /* Limit on busy polling, see base/spin.h. */
    uint32_t connections_max; /* Limit without Unix sockets; 0: 4096. */
    uint32_t local_max;       /* Limit on Unix sockets; 0: PS_LOCAL_MAX. */
    /* Connections before their handshake, beyond which the oldest is closed; 0:
     * 64. */
    uint32_t pre_handshake_max;
    ps_time dial_timeout; /* 0: 10 s. */
    struct ps_driver_tls tls;
    struct ps_driver_store store;
    /* Called when the machine has failed. */
    void (*on_failed)(void *ctx, int rc);
    /* Called before each wait, when all input has been handled. */
    void (*on_idle)(void *ctx);
    void *ctx;
};

/* Creates a driver, which takes over the loop's hook. */
struct ps_driver *ps_driver_new(const struct ps_driver_options *opt);
/* Closes connections (queued output gets a short grace), dials and the flow of
 * events to the machine. `closed` runs later, once. A second call closes
 * without grace. */
void ps_driver_close(struct ps_driver *d, void (*closed)(void *ctx));
/* Requires that `closed` has run and the worker is freed. */
void ps_driver_free(struct ps_driver *d);

/* Takes over connected descriptors from the listeners. */
void ps_driver_accept(struct ps_driver *d, int fd);
/* From the listener of net/shm_peer.h. */
void ps_driver_accept_shm(struct ps_driver *d, int fd);
void ps_driver_accept_local(struct ps_driver *d, int fd);

/* Uses another context for new connections, and closes those whose peer it does
 * not accept any more. Requires that the driver was made with one. */
void ps_driver_set_tls(struct ps_driver *d, struct ps_tls_context *context);

/* Feeds PS_EV_CERTIFICATE. */
void ps_driver_report_certificate(struct ps_driver *d,
                                  const struct ps_certificate_end *end);

/* The I/O pool has one more thread. */
void ps_driver_io_grown(struct ps_driver *d);

/* Feeds PS_EV_DRAIN. */
void ps_driver_drain(struct ps_driver *d);
/* Feeds PS_EV_SHUTDOWN. */
void ps_driver_shutdown(struct ps_driver *d);
/* True if no output is queued and nothing is computed. */
bool ps_driver_is_quiet(const struct ps_driver *d);

struct ps_driver_stats {
    uint32_t connections;
    uint32_t pre_handshake;
    uint32_t paused;
    uint32_t computing;
    uint64_t queued;
    uint64_t output;   /* Memory of queued output. */
    uint64_t bytes_in; /* Sums over all connections, also closed ones. */
    uint64_t bytes_out;
    uint64_t copied;
    uint64_t by_reference;
    uint64_t moved_by_pool;
    uint64_t reads;
    uint64_t writes;
    uint64_t refused; /* Connections beyond a limit. */
    uint64_t corrupt; /* Frames with a wrong checksum. */
};
void ps_driver_stats(const struct ps_driver *d, struct ps_driver_stats *ret);
/* Logs one line for each connection. */
void ps_driver_dump(const struct ps_driver *d);
