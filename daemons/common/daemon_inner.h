/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a daemon; for this folder only.
 *
 *     daemon.c     order of start and stop, signals, machine and driver
 *     config.c     options: load, reload, print
 *     sockets.c    listeners and the files that name them
 *     identity.c   name and addresses
 *     status.c     readiness, watchdog, warnings, state in the log, memory
 *     exit.c       exit codes */
#pragma once

#include "common/args.h"
#include "common/daemon.h"
#include "common/exit.h"
#include "common/trim.h"
#include "net/listen.h"
#include "net/loop.h"

struct daemon_config {
    void *values;                /* Options struct of the program. */
    struct ps_options *options;  /* Owner of the strings in `values`. */
    struct ps_options *reloaded; /* Options of the last reload; NULL: none. */
    /* Next try of a reload without descriptors. */
    struct ps_loop_timer reload_timer;
    int spare_fd; /* Reserved for reading the configuration; -1: none. */
    ps_time grace_time;
};

struct daemon_sockets {
    struct ps_listener *tcp_listener;
    struct ps_listener *local_listener;
    struct ps_listener *shm_listener;
    /* Sockets without a listener yet; -1: none. */
    int listen_fd;
    int local_fd;
    int shm_fd;
    uint16_t listen_port;
    const char *local_path; /* Owned socket file: removed at the end. */
};

struct daemon_upkeep {
    struct ps_loop_timer watchdog_timer;
    struct ps_loop_timer trim_timer; /* Wakes the loop to trim memory. */
    struct ps_loop_timer log_timer;  /* Wakes the loop to log summaries. */
    struct ps_trim trim;
};

struct daemon {
    const struct ps_daemon_spec *spec;
    struct ps_args args;
    struct daemon_config config;
    struct daemon_sockets sockets;
    struct daemon_upkeep upkeep;
    struct ps_daemon_facts facts;
    struct ps_loop *loop;
    struct ps_worker *worker;
    struct ps_io_pool *io_pool; /* NULL: all I/O is done on the loop thread. */
    struct ps_driver *driver;
    void *app;
    struct ps_loop_timer grace_timer;
    bool is_serving; /* Readiness has been reported. */
    bool is_stopping;
    int exit_code;
};

static inline const struct ps_common_options *
daemon_common_options(const struct daemon *d)
{
    return (const void *)((const char *)d->config.values + d->spec->common);
}

/* NULL: the daemon does not listen. */
static inline const struct ps_listen_options *
daemon_listen_options(const struct daemon *d)
{
    return d->spec->listen == PS_DAEMON_NONE
               ? NULL
               : (const void *)((const char *)d->config.values +
                                d->spec->listen);
}

/* NULL: the daemon does not dial the scheduler. */
static inline const struct ps_scheduler_options *
daemon_scheduler_options(const struct daemon *d)
{
    return d->spec->scheduler == PS_DAEMON_NONE
               ? NULL
               : (const void *)((const char *)d->config.values +
                                d->spec->scheduler);
}

/* NULL: the daemon moves no tensors. */
static inline const struct ps_transport_options *
daemon_transport_options(const struct daemon *d)
{
    return d->spec->transport == PS_DAEMON_NONE
               ? NULL
               : (const void *)((const char *)d->config.values +
                                d->spec->transport);
}

/* config.c: functions that return int return an exit code. */

/* Path of the configuration file without --config. */
void daemon_config_path(const struct daemon *d, char *out, size_t cap);
/* Loads the options, and prints errors and warnings to stderr. A combination
 * that is invalid is still printed with --print-config, because that shows
 * where the values come from. */
int daemon_config_load(struct daemon *d);
/* Reloads the options and applies the reloadable ones; all others stay. */
void daemon_config_reload(struct daemon *d);
/* Prints what --print-config and its relatives ask for. */
int daemon_config_print(const struct daemon *d);
/* Prepares reloads, and ends them. */
void daemon_config_start(struct daemon *d);
void daemon_config_stop(struct daemon *d);
void daemon_config_fini(struct daemon *d);

/* sockets.c */

void daemon_raise_descriptors(const struct daemon *d);
/* Binds the sockets that the options name. */
int daemon_sockets_open(struct daemon *d);
bool daemon_uses_shm(const struct daemon *d);
/* Binds the socket for agents of this host. A failure is no error: they use TCP
 * then. */
void daemon_listen_shm(struct daemon *d);
/* Starts to accept connections. */
int daemon_listeners_open(struct daemon *d);
/* Writes the port file atomically: a reader may open it at any moment. */
int daemon_write_port_file(const struct daemon *d);
void daemon_sockets_close(struct daemon *d);

/* identity.c */

/* Fills `facts`, after the sockets are bound. */
int daemon_make_facts(struct daemon *d);

/* status.c */

void daemon_print_version(const struct ps_daemon_spec *spec);
/* Warns about security.insecure, and about variables without effect. */
void daemon_log_warnings(const struct daemon *d);
void daemon_log_state(const struct daemon *d);
/* Reports readiness to the service manager and the starting process. */
void daemon_report_serving(struct daemon *d);
/* Starts the watchdog and the timers of the work below. */
void daemon_upkeep_start(struct daemon *d);
void daemon_upkeep_stop(struct daemon *d);
/* Trims memory, and logs summaries of skipped lines, where either is due. */
void daemon_upkeep(struct daemon *d);
