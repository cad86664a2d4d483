/* SPDX-License-Identifier: Apache-2.0 */
/* Everything about a daemon that is not its machine: arguments, options,
 * log, signals, sockets, readiness, and the order in which things begin and
 * end. */
#pragma once

#include "common/options.h"
#include "core/link/link.h"
#include "core/base/machine.h"

#include <stddef.h>

struct ps_arenas;

/* Exit codes. */
enum ps_exit {
    PS_EXIT_OK = 0,
    PS_EXIT_FAILURE = 1,
    PS_EXIT_USAGE = 2,
    PS_EXIT_UNAVAILABLE = 69,
    PS_EXIT_CANTCREAT = 73,
    PS_EXIT_TEMPFAIL = 75,
    PS_EXIT_NOPERM = 77,
    PS_EXIT_CONFIG = 78,
};

/* What an app needs to know to make its machine. Borrowed for the app's
 * life. */
struct ps_daemon_facts {
    char name[PS_NAME_MAX + 1];
    char host[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char address[PS_ADDRESS_MAX + 1];   /* Where peers dial us; "". */
    char scheduler[PS_ADDRESS_MAX + 1]; /* "host:port"; "". */
    const char *socket;                 /* The Unix socket; "". */
    uint32_t uid;                       /* This process's user. */
    uint64_t instance;
    uint64_t seed;
    uint64_t wall_ns; /* Nanoseconds since 1970. */
    ps_time now;
    struct ps_link_options link;
};

#define PS_DAEMON_NONE SIZE_MAX

/* One daemon. `values` is the program's options struct. */
struct ps_daemon_spec {
    const char *summary; /* For --help. */
    enum ps_role self;
    const struct ps_option_set *options;
    size_t values_size;
    size_t common; /* Offsets of the shared structs within `values`, */
    size_t listen; /* or PS_DAEMON_NONE. */
    size_t scheduler;
    uint16_t port;       /* What listen.port: auto begins with, */
    uint16_t port_count; /* and how many there are to try. */

    /* The host where peers are told to dial, "": decide. False, with a line in
     * the log: there is none. NULL: peers do not dial. */
    bool (*advertise)(const void *values, char *out, size_t cap);
    /* The Unix socket, its mode and the most connections; NULL, or one that
     * returns "": none. */
    const char *(*socket)(const void *values, unsigned *ret_mode,
                          uint32_t *ret_max);
    /* The option that names the socket where the daemon can do without: one
     * that nobody asked for may fail, with a warning. NULL: it cannot. */
    const char *socket_option;
    /* Servers and agents of one host meet there, too; NULL: no. */
    bool (*same_host)(const void *values);
    uint32_t (*link_connections)(const void *values); /* NULL: 1; 0: as many
                                                       * as loops need. */
    unsigned (*loops)(const void *values); /* NULL: 1; 0: by measured need. */
    /* Compute threads, 0: one for each processor. NULL: computes nothing. */
    unsigned (*threads)(const void *values);
    /* Settings that do not go together: a line "where: what; what to do" for
     * each, and false. May be NULL. */
    bool (*check)(const void *values, const struct ps_options *o,
                  struct ps_str *report);

    PS_MUST_USE int (*open)(const void *values,
                            const struct ps_daemon_facts *facts,
                            void **ret_app);
    void (*close)(void *app);
    struct ps_machine (*machine)(void *app);
    struct ps_arenas *(*arenas)(void *app); /* May be NULL. */
    bool (*ready)(const void *app);         /* NULL: from the start. */
    uint64_t (*residue)(const void *app);   /* 0: nothing is in progress. */
    void (*dump)(const void *app);          /* Its state to the log. */
    /* PS_EV_SHUTDOWN makes the machine hang up on everybody, so it comes when
     * nothing is in progress any more, and PS_EV_DRAIN with the signal; false:
     * it comes with the signal. */
    bool shutdown_last;
};

/* The program's main. */
int ps_daemon_main(const struct ps_daemon_spec *spec, int argc, char **argv);
