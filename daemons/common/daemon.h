/* SPDX-License-Identifier: Apache-2.0 */
/* Daemon around a machine: arguments, options, log, signals, sockets,
 * readiness, and the order of start and stop. */
#pragma once

#include "common/options.h"
#include "core/link/link.h"
#include "core/base/machine.h"

#include <stddef.h>

struct ps_arenas;

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
    struct ps_link_options link;
};

#define PS_DAEMON_NONE SIZE_MAX

/* Description of one daemon. `values` is the program's options struct. */
struct ps_daemon_spec {
    const char *summary; /* For --help. */
    enum ps_role self;
    const struct ps_option_set *options;
    size_t values_size;
    size_t common; /* Offset of the struct within `values`. */
    size_t listen; /* Offset, or PS_DAEMON_NONE; so are those below. */
    size_t scheduler;
    size_t transport;
    uint16_t port;       /* First port that listen.port: auto tries. */
    uint16_t port_count; /* Number of ports to try. */

    /* Host that peers are told to dial; "": chosen from the addresses. False,
     * with a line in the log: there is none. NULL: peers do not dial. */
    bool (*advertise)(const void *values, char *out, size_t cap);
    /* Port for liveness probes; PS_LISTEN_PORT_AUTO: one of `port_count`, or any
     * that is free. NULL: the daemon has none. */
    uint64_t (*liveness_port)(const void *values);
    /* Path of the Unix socket, its mode and the limit on connections; NULL, or
     * a result of "": none. */
    const char *(*socket)(const void *values, unsigned *ret_mode,
                          uint32_t *ret_max);
    /* Option that names the socket, if the daemon works without one: failing at
     * its default path only warns. NULL: the socket is required. */
    const char *socket_option;
    /* Connections of a link; NULL: 1; 0: as many as I/O threads need. */
    uint32_t (*link_connections)(const void *values);
    /* Compute threads; 0: one for each processor. NULL: computes nothing. */
    unsigned (*threads)(const void *values);
    /* False if settings conflict, with a line "where: what; what to do" for
     * each. May be NULL. */
    bool (*check)(const void *values, const struct ps_options *o,
                  struct ps_str *report);

    PS_MUST_USE int (*open)(const void *values,
                            const struct ps_daemon_facts *facts,
                            void **ret_app);
    void (*close)(void *app);
    struct ps_machine (*machine)(void *app);
    struct ps_arenas *(*arenas)(void *app); /* May be NULL. */
    bool (*ready)(const void *app);       /* Readiness; NULL: from the start. */
    uint64_t (*residue)(const void *app); /* Number of items in progress. */
    void (*dump)(const void *app);        /* Logs the state. */
    /* True: PS_EV_SHUTDOWN, on which the machine closes all connections, comes
     * when nothing is in progress any more, and PS_EV_DRAIN with the signal.
     * False: PS_EV_SHUTDOWN comes with the signal. */
    bool shutdown_last;
};

/* main() of the program; returns the exit code. */
int ps_daemon_main(const struct ps_daemon_spec *spec, int argc, char **argv);
