/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a daemon; for this folder only.
 *
 *     daemon.c     order of start and stop, signals, machine, driver, compute threads
 *     config.c     command line; options: load, reload, print
 *     sockets.c    listeners and the files that name them
 *     tls.c        certificate: load, reload, warnings before its end
 *     status.c     name and addresses; readiness, watchdog, warnings, memory
 *     metrics.c    text of the metrics, and the file of metrics.file
 *     http.c       HTTP at the address of metrics.listen
 *     exit.c       exit codes */
#pragma once

#include "common/daemon.h"
#include "common/exit.h"
#include "common/expiry.h"
#include "common/memory.h"
#include "crypto/identity.h"
#include "driver/driver.h"
#include "net/loop.h"
#include "net/socket.h"

/* -------------------------------------------------------------- command line */

enum ps_print {
    PS_PRINT_NOTHING,
    PS_PRINT_EFFECTIVE,
    PS_PRINT_DEFAULTS,
    PS_PRINT_SCHEMA,
};

struct ps_args {
    const char *config; /* Path of the file; NULL: the default one. */
    char **overrides;   /* "path=value"; owned. */
    size_t override_count;
    bool check;
    enum ps_print print;
    int ready_fd; /* -1: none. */
    const char *port_file;
    bool help;
    bool version;
};

/* ------------------------------------------------------------------- daemon */

struct daemon_config {
    void *values;                /* Options struct of the program. */
    struct ps_options *options;  /* Owner of the strings in `values`. */
    struct ps_options *reloaded; /* Options of the last reload; NULL: none. */
    /* Next try of a reload without descriptors. */
    struct ps_loop_timer reload_timer;
    int spare_fd; /* Reserved for reading the configuration; -1: none. */
    ps_time grace_time;
};

struct daemon_socket {
    int fd; /* Without a listener yet; -1: none. */
    struct ps_listener *listener;
    const struct daemon *d;
    void (*accept)(struct ps_driver *d, int fd);
};

struct daemon_sockets {
    struct daemon_socket tcp;
    struct daemon_socket local;
    struct daemon_socket shm;
    uint16_t listen_port;
    const char *local_path; /* NULL: no Unix socket. */
    bool owns_local_path;   /* The file is removed at the end. */
};

struct daemon_credentials {
    struct ps_tls_context *context; /* NULL: no connection is encrypted. */
    bool has_crl;                   /* With a list of revoked certificates. */
};

struct daemon_tls {
    struct daemon_credentials credentials;
    struct ps_tls_gate *gate; /* NULL: no connection is encrypted. */
    struct ps_expiry expiry;
    struct ps_loop_timer expiry_timer; /* Next look at the end. */
};

struct daemon_upkeep {
    ps_time beat; /* Interval of the next; PS_TIME_NEVER: nobody listens. */
    struct ps_loop_timer beat_timer;
    struct ps_loop_timer trim_timer; /* When memory may be trimmed. */
    struct ps_loop_timer log_timer;  /* When a summary of lines is due. */
    struct ps_trim trim;
};

/* Text of all metrics of a daemon: 50 metrics with the longest names of
 * cluster and node. */
#define DAEMON_METRICS_TEXT_MAX   65536u
#define DAEMON_METRICS_LABELS_MAX (2 * PS_NAME_MAX + 32)

struct daemon_metrics_file;
struct ps_http;

struct daemon_metrics {
    struct daemon_metrics_file *file; /* NULL: none. */
    struct ps_http *http;             /* NULL: none. */
};

struct ps_device;
struct ps_share;

struct daemon_compute {
    struct ps_worker *worker; /* NULL: the daemon computes nothing. */
    struct ps_device *device; /* NULL: the CPU alone. */
    struct ps_share *share;   /* Memory of GPUs; NULL: none. */
    struct ps_gpu gpu;
    bool is_failure_logged;
};

struct daemon {
    const struct ps_daemon_spec *spec;
    struct ps_args args;
    struct daemon_config config;
    struct daemon_sockets sockets;
    struct daemon_tls tls;
    struct daemon_upkeep upkeep;
    struct daemon_metrics metrics;
    struct ps_daemon_facts facts;
    struct ps_loop *loop;
    struct daemon_compute compute;
    struct ps_io_pool *io_pool; /* NULL: all I/O is done on the loop thread. */
    struct ps_driver *driver;
    struct ps_daemon_app app;
    struct ps_loop_timer grace_timer;
    bool is_kept;    /* --keep: runs in a child of a keeper. */
    bool is_serving; /* Readiness has been reported. */
    bool is_stopping;
    int exit_code;
};

/* A group of the options; NULL: the daemon has none at this offset. */
static inline const void *daemon_group(const struct daemon *d, size_t offset)
{
    return offset == PS_DAEMON_NONE ? NULL
                                    : (const char *)d->config.values + offset;
}

static inline const struct ps_common_options *
daemon_common_options(const struct daemon *d)
{
    return daemon_group(d, d->spec->common);
}

/* NULL: the daemon does not listen. */
static inline const struct ps_listen_options *
daemon_listen_options(const struct daemon *d)
{
    return daemon_group(d, d->spec->listen);
}

/* NULL: the daemon moves no tensors. */
static inline const struct ps_transport_options *
daemon_transport_options(const struct daemon *d)
{
    return daemon_group(d, d->spec->transport);
}

/* config.c: functions that return int return an exit code. */

/* Parses the command line into `args`. False: wrong usage, already reported on
 * standard error. */
bool daemon_args_parse(struct daemon *d, int argc, char **argv);
void daemon_print_help(const struct daemon *d);
/* Loads the options, and prints errors and warnings to stderr. A combination
 * that is invalid is still printed with --print-config, because that shows
 * where the values come from. */
int daemon_config_load(struct daemon *d);
/* Reloads the options and applies the reloadable ones; all others stay. */
void daemon_config_reload(struct daemon *d);
/* Prints what --print-config and its relatives ask for. */
int daemon_config_print(const struct daemon *d);
/* Answer of --check-config where nothing is wrong. */
void daemon_config_print_valid(const struct daemon *d);
/* Prepares reloads, and ends them. */
void daemon_config_start(struct daemon *d);
void daemon_config_stop(struct daemon *d);
void daemon_config_fini(struct daemon *d);

/* tls.c */

/* Loads the certificate, if the options name one. PS_E_CONFIG: lines in
 * `report`. */
PS_MUST_USE int daemon_tls_load(struct daemon *d, struct ps_str *report);
/* Of the own certificate; NULL: there is none. */
const struct ps_identity *daemon_tls_identity(const struct daemon *d);
/* Starts the thread for handshakes, and the watch of the certificate's end. */
PS_MUST_USE int daemon_tls_start(struct daemon *d);
struct ps_driver_tls daemon_tls_of_driver(const struct daemon *d);
/* Tells the machine when the certificate ends; heartbeats report it. */
void daemon_tls_report(const struct daemon *d);
/* Loads the certificate again, by other options. False: the old one stays. */
bool daemon_tls_reload(struct daemon *d, const void *values,
                       const struct ps_options *o);
/* Requires that the driver is freed. */
void daemon_tls_stop(struct daemon *d);
void daemon_tls_fini(struct daemon *d);

/* sockets.c */

void daemon_raise_descriptors(const struct daemon *d);
/* Chooses the folder that the defaults of options for Unix sockets name; before
 * the options are read. */
void daemon_choose_runtime(void);
/* Binds the sockets that the options name, but for those that the service
 * manager passes. */
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

/* status.c */

/* Fills `facts`, after the sockets are bound. */
int daemon_make_facts(struct daemon *d);

void daemon_print_version(const struct ps_daemon_spec *spec);
/* Warns about security.insecure, and about variables without effect. */
void daemon_log_warnings(const struct daemon *d);
void daemon_log_state(const struct daemon *d);
/* Reports readiness to the service manager and the starting process. */
void daemon_report_serving(struct daemon *d);
/* Starts the watchdog and the timers of the work below. */
void daemon_upkeep_start(struct daemon *d);
void daemon_upkeep_stop(struct daemon *d);
/* Returns memory of a burst to the system, which the allocator would keep. To
 * be called when ps_trim_is_burst_over(). */
void daemon_trim_memory(struct daemon *d);

/* metrics.c */

/* Adds the metrics of connections and of the machine; on the loop thread. */
void daemon_metrics_add(const struct daemon *d, struct ps_str *text);
/* Adds those of the process; on any thread. */
void daemon_metrics_add_process(const struct daemon *d, struct ps_str *text);

/* Writes metrics.file, if it is set, and begins to write it at intervals. */
void daemon_metrics_file_start(struct daemon *d);
/* Removes the file: its figures are no longer true. If it is being written, the
 * loop does so when that is over. */
void daemon_metrics_file_stop(struct daemon *d);

/* http.c */

/* False if metrics.listen cannot be used, with a line in the report. */
bool daemon_http_check(const struct daemon *d, const struct ps_options *o,
                       struct ps_str *report);
/* Listens at metrics.listen, if it is set. Returns an exit code. */
int daemon_http_open(struct daemon *d);
/* Replaces the metrics that requests get; also a sign of life of the loop. */
void daemon_http_publish(struct daemon *d);
void daemon_http_close(struct daemon *d);
