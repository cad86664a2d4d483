/* SPDX-License-Identifier: Apache-2.0 */
/* Options that daemons share, in groups: for every daemon, for those that listen
 * on TCP, for those that dial the scheduler, for those that move tensors, and
 * for those that keep tables of keys. */
#pragma once

#include "base/time.h"
#include "conf/option.h"

#include <stdbool.h>
#include <stdint.h>

/* Number of rows in each group. */
#define PS_COMMON_ROWS    32
#define PS_LISTEN_ROWS    4
#define PS_SCHEDULER_ROWS 4
#define PS_TRANSPORT_ROWS 3
#define PS_KEY_LIMIT_ROWS 4

enum ps_log_format {
    PS_LOG_FORMAT_AUTO,
    PS_LOG_FORMAT_JOURNAL,
    PS_LOG_FORMAT_TEXT,
    PS_LOG_FORMAT_JSON,
};

enum ps_tls_enabled {
    PS_TLS_AUTO, /* On every TCP connection, if there are credentials. */
    PS_TLS_ON,   /* The same; without credentials there is no start. */
    PS_TLS_OFF,
};

enum ps_ktls_mode {
    PS_KTLS_AUTO, /* Where the kernel can. */
    PS_KTLS_ON,   /* The same, with a warning where it cannot. */
    PS_KTLS_OFF,
};

/* Files: "" is that of the folder, if there is one. */
struct ps_tls_options {
    int enabled; /* enum ps_tls_enabled */
    const char *directory;
    const char *ca;
    const char *cert;
    const char *key;
    const char *crl;
    int fd;   /* -1: none. */
    int ktls; /* Of enum ps_ktls_mode. */
};

struct ps_common_options {
    int log_level;  /* enum ps_log_level */
    int log_format; /* enum ps_log_format */
    const char *cluster;
    const char *node; /* "": derived from the host name. */
    uint64_t connections;
    uint64_t pre_handshake;
    uint64_t output;
    uint64_t link_output;
    uint64_t output_total;
    ps_time handshake;
    ps_time header;
    ps_time stall;
    int congestion_control;  /* 0: auto, 1: the system's default. */
    int checksums;           /* enum ps_conn_checksums */
    uint64_t receive_buffer; /* 0: chosen by the system; so is `send_buffer`. */
    uint64_t send_buffer;
    ps_time spin; /* Limit on busy polling; or PS_SPIN_AUTO. */
    ps_time resend_timeout;
    ps_time resend_max;
    ps_time grace;
    bool private_memory;
    struct ps_tls_options tls;
    const char *metrics_file;   /* "": none. */
    const char *metrics_listen; /* "ADDRESS:PORT"; "": none. */
    ps_time metrics_interval;
};
extern const struct ps_option ps_common_rows[PS_COMMON_ROWS];

/* listen.port: auto; the ports are in ps_daemon_spec. */
#define PS_LISTEN_PORT_AUTO (-1)

struct ps_listen_options {
    const char *address;
    uint64_t port;
    int backlog;
    bool insecure;
};
extern const struct ps_option ps_listen_rows[PS_LISTEN_ROWS];

struct ps_scheduler_options {
    const char *address;
    uint64_t port;
    ps_time retry_first;
    ps_time retry_max;
};
extern const struct ps_option ps_scheduler_rows[PS_SCHEDULER_ROWS];

struct ps_transport_options {
    /* I/O threads, the loop's own included; 0: by measured need. */
    int loops;
    int same_host;       /* 0: auto, 1: off. */
    int travel_together; /* 0: auto, 1: off. */
};
extern const struct ps_option ps_transport_rows[PS_TRANSPORT_ROWS];

/* Where compute threads compute. */
enum ps_compute_device {
    PS_COMPUTE_CPU,
    PS_COMPUTE_AUTO, /* On a GPU if there is one. */
    PS_COMPUTE_CUDA, /* On a GPU, or the daemon does not start. */
};

/* Where optimizer states are, with a GPU. */
enum ps_compute_state {
    PS_COMPUTE_STATE_MIRRORED, /* On the GPU and the host. */
    PS_COMPUTE_STATE_DEVICE,   /* On the GPU alone. */
};

/* Of daemons that compute; each has rows of its own. */
struct ps_compute_options {
    int threads;        /* 0: one for each processor. */
    int device;         /* enum ps_compute_device */
    int state;          /* enum ps_compute_state */
    const char *module; /* Path; "auto": the installed one. */
};

struct ps_key_limits {
    uint64_t job_keys;
    uint64_t user_keys;
    uint64_t job_partitions;
    uint64_t user_partitions;
};
extern const struct ps_option ps_key_limit_rows[PS_KEY_LIMIT_ROWS];

/* Check of a node or cluster name in an option row; "" is valid. */
bool ps_option_check_name(const char *value, struct ps_str *why);

/* Options of all daemons: variables PSD_* of one are in the environment of the
 * others too. Ends with NULL. */
extern const struct ps_option_set *const ps_daemon_sets[];

/* -------------------------------------------------------------------- users */

/* Writes the uids of users that exist, of `max` at most, and returns their
 * number. */
uint32_t ps_users_find(const struct ps_option_list *names, uint32_t *uids,
                       uint32_t max);
/* True if all users exist; else a line in the report names the option. */
bool ps_users_check(const struct ps_option_list *names, const char *option,
                    const struct ps_options *o, struct ps_str *report);
