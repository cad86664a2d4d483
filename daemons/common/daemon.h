/* SPDX-License-Identifier: Apache-2.0 */
/* Daemon around a machine: arguments, options, log, signals, sockets,
 * readiness, and the order of start and stop. */
#pragma once

#include "common/options.h"
#include "core/base/ledger.h"
#include "core/base/machine.h"
#include "core/base/peer.h"
#include "core/link/link.h"
#include "driver/driver.h"

#include <stddef.h>

struct ps_arenas;
struct ps_metrics;
struct ps_share;

/* Input of an app that makes its machine. Borrowed for the app's life. */
struct ps_daemon_facts {
    char name[PS_NAME_MAX + 1];
    char host[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char address[PS_ADDRESS_MAX + 1];   /* Address that peers dial; "": none. */
    char scheduler[PS_ADDRESS_MAX + 1]; /* "host:port"; "": none. */
    const char *socket;                 /* Path of the Unix socket; "": none. */
    uint32_t uid;                       /* User of this process. */
    uint64_t instance;
    uint64_t seed;
    uint64_t wall_ns; /* Nanoseconds since 1970. */
    ps_time now;
    struct ps_facts process;
    struct ps_link_options link;
    struct ps_share *share; /* Memory of GPUs that workers share; NULL: none. */
};

/* Unix socket of a daemon. */
struct ps_daemon_socket {
    const char *path;  /* "": none. */
    const char *group; /* Name or number of its group; "": the process's. */
    unsigned mode;
    uint32_t max; /* Limit on connections. */
    /* Options that set path and group, for messages. */
    const char *path_option;
    const char *group_option;
    bool is_optional; /* Failing at the default path only warns. */
};

#define PS_DAEMON_NONE SIZE_MAX

/* Result of open() of a daemon. */
struct ps_daemon_app {
    void *self; /* Argument of close(), ready(), residue() and dump(). */
    struct ps_machine machine;
    struct ps_arenas *arenas; /* Owned by `self`; NULL: none. */
    /* As in struct ps_driver_store, with `self`. */
    void (*store_change)(void *self, const struct ps_store_row *rows,
                         uint32_t count);
    bool (*store_commit)(void *self);
};

/* Description of one daemon. `values` is the program's options struct. */
struct ps_daemon_spec {
    const char *summary;  /* For --help. */
    const char *commands; /* Lines of --help; NULL: none of its own. */
    enum ps_role self;
    const struct ps_option_set *options;
    size_t values_size;
    size_t common; /* Offset of the struct within `values`. */
    size_t listen; /* Offset, or PS_DAEMON_NONE; so are those below. */
    size_t scheduler;
    size_t transport;
    size_t compute;
    /* uint64_t: port for liveness probes; PS_LISTEN_PORT_AUTO: one of
     * `port_count`, or any that is free. */
    size_t liveness_port;
    /* uint64_t: connections of a link, 0: as many as I/O threads need. Without
     * this there is one. */
    size_t link_connections;
    uint16_t port;       /* First port that listen.port: auto tries. */
    uint16_t port_count; /* Number of ports to try. */

    /* Host that peers are told to dial; "": chosen from the addresses. False,
     * with a line in the log: there is none. NULL: peers do not dial. */
    bool (*advertise)(const void *values, char *out, size_t cap);
    /* NULL: the daemon has no Unix socket. */
    struct ps_daemon_socket (*socket)(const void *values);
    /* The device option is for memory that processes of this host share with the
     * daemon, on all GPUs; see facts->share. */
    bool shares_devices;
    /* False if settings conflict, with a line "where: what; what to do" for
     * each. May be NULL. */
    bool (*check)(const void *values, const struct ps_options *o,
                  struct ps_str *report);

    PS_MUST_USE int (*open)(const void *values,
                            const struct ps_daemon_facts *facts,
                            struct ps_daemon_app *ret_app);
    void (*close)(void *self);
    bool (*ready)(const void *self); /* Readiness; NULL: from the start. */
    uint64_t (*residue)(const void *self); /* Number of items in progress. */
    void (*dump)(const void *self);        /* Logs the state. */
    /* Adds the metrics of the machine. */
    void (*metrics)(const void *self, struct ps_metrics *m);
    /* True: PS_EV_SHUTDOWN, on which the machine closes all connections, comes
     * when nothing is in progress any more, and PS_EV_DRAIN with the signal.
     * False: PS_EV_SHUTDOWN comes with the signal. */
    bool shutdown_last;
    bool has_state_memory; /* See keeper.h; takes --keep. */
};

/* Sets a limit of accounts of one kind, and those on keys and partitions. */
void ps_daemon_limit(struct ps_account_limits *l, enum ps_cost cost,
                     uint64_t max, const char *option);
void ps_daemon_limit_keys(struct ps_account_limits *limits,
                          const struct ps_key_limits *k);

/* main() of the program; returns the exit code. */
int ps_daemon_main(const struct ps_daemon_spec *spec, int argc, char **argv);
