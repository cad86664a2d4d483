/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one machine on the event loop: connections and compute jobs become
 * events, effects become writes, dials and jobs. It decides nothing. The
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
struct ps_worker;

struct ps_driver_options {
    struct ps_loop *loop;       /* Not owned, as all below. */
    struct ps_worker *worker;   /* NULL where the machine computes nothing. */
    struct ps_io_pool *io_pool; /* Further loops; NULL: none. */
    struct ps_arenas *arenas;   /* Whose descriptors go to workers and to peers
                               * on this host. NULL: none. */
    struct ps_machine machine;
    enum ps_role self;
    const char *scheduler; /* Whom a dial of this address reaches; others are
                            * servers. NULL: nobody is dialled. */
    struct ps_conn_limits limits;
    uint32_t link_connections; /* To a server by TCP; 0: so many that each
                                * further loop has one to move. */
    /* Bytes of memory that may wait to be sent: for a training process or a
     * tool, for a daemon, for all together. 0: as base/limits.h says. */
    uint64_t output;
    uint64_t link_output;
    uint64_t output_total;
    bool same_host; /* Dial servers on this host through net/shm_peer.h. */
    enum ps_tcp_kind bulk;   /* What links between agents and servers are. */
    uint32_t receive_buffer; /* 0: the system decides. */
    uint32_t send_buffer;
    ps_time busy_poll;          /* Before the loop waits, see base/spin.h. */
    uint32_t connections_max;   /* Of each kind; 0: 4096. */
    uint32_t local_max;         /* 0: PS_LOCAL_MAX. */
    uint32_t pre_handshake_max; /* Not greeted yet: the oldest goes; 0: 64. */
    ps_time dial_timeout;       /* 0: 10 s. */
    /* The machine cannot go on. */
    void (*on_failed)(void *ctx, int rc);
    /* Everything that came in has been dealt with, before each wait. */
    void (*on_idle)(void *ctx);
    void *ctx;
};

/* Takes over the loop's hook. */
struct ps_driver *ps_driver_new(const struct ps_driver_options *opt);
/* Ends connections (what is queued goes out first, for a moment at most),
 * dials and, with them, the machine's events. `closed` runs later, once. */
void ps_driver_close(struct ps_driver *d, void (*closed)(void *ctx));
/* After `closed`, and after the worker is gone. */
void ps_driver_free(struct ps_driver *d);

/* Connected descriptors from the listeners; taken over. */
void ps_driver_accept(struct ps_driver *d, int fd);
/* From the listener of net/shm_peer.h. */
void ps_driver_accept_shm(struct ps_driver *d, int fd);
void ps_driver_accept_local(struct ps_driver *d, int fd);

/* There is one more further loop. */
void ps_driver_io_grown(struct ps_driver *d);

/* PS_EV_DRAIN. */
void ps_driver_drain(struct ps_driver *d);
/* PS_EV_SHUTDOWN. */
void ps_driver_shutdown(struct ps_driver *d);
/* Nothing is queued, dialled or computed. */
bool ps_driver_is_quiet(const struct ps_driver *d);

struct ps_driver_stats {
    uint32_t connections;
    uint32_t pre_handshake;
    uint32_t paused;
    uint32_t computing;
    uint64_t queued;
    uint64_t output;   /* Memory that it takes. */
    uint64_t bytes_in; /* Of all connections there were. */
    uint64_t bytes_out;
    uint64_t copied;
    uint64_t by_reference;
    uint64_t moved_by_pool;
    uint64_t reads;
    uint64_t writes;
    uint64_t refused; /* Connections beyond a limit. */
};
void ps_driver_stats(const struct ps_driver *d, struct ps_driver_stats *ret);
/* One line for each connection to the log. */
void ps_driver_dump(const struct ps_driver *d);
