/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows that daemons share, and users that options name. */
#include "common/options.h"

#include "base/limits.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#define MIB_BYTES       (1024 * 1024)
#define HOUR            (INT64_C(3600) * 1000000000)
#define MSEC            INT64_C(1000000)
/* Room for the names of the files in a folder. */
#define PS_TLS_PATH_MAX 4000

bool ps_option_check_name(const char *value, struct ps_str *why)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";

    if (strspn(value, letters) != strlen(value)) {
        ps_str_add(why, "use letters, digits, '.', '_' and '-'");
        return false;
    }
    return true;
}

#define AT(member) offsetof(struct ps_common_options, member)
/* A file of a certificate, or their folder. */
#define TLS_FILE(name, member)                                                 \
    .path = "security.tls." name, .text = "", .type = PS_OPTION_STRING,        \
    .max = PS_TLS_PATH_MAX, .form = PS_OPTION_EXPANDED, .reloadable = true,    \
    .offset = AT(tls.member)

const struct ps_option ps_common_rows[PS_COMMON_ROWS] = {
    {.path = "log.level",
     .text = "info",
     .type = PS_OPTION_ENUM,
     .enum_names = "error|warning|notice|info|debug|trace",
     .reloadable = true,
     .offset = AT(log_level),
     .aliases = {{.name = "PS_VERBOSE", .values = "0=info 1=debug 2=trace"}},
     .help = "Detail of the log: the least important level that it has."},
    {.path = "log.format",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|journal|text|json",
     .offset = AT(log_format),
     .help = "Form of the log's lines; auto takes journal under systemd and "
             "else text."},
    {.path = "cluster.name",
     .text = "default",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = PS_NAME_MAX,
     .check = ps_option_check_name,
     .offset = AT(cluster),
     .help = "Name of the cluster; daemons of another cluster are rejected. "
             "With a certificate, its cluster is the default."},
    {.path = "node.name",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = PS_NAME_MAX,
     .check = ps_option_check_name,
     .offset = AT(node),
     .help = "Name of this daemon, unique for its role in the cluster and the "
             "same after a restart; null is that of the certificate, or one "
             "made from the host's name."},
    {.path = "limits.connections",
     .text = "4096",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = 1000000,
     .offset = AT(connections),
     .help = "TCP connections at one time; more are closed at once."},
    {.path = "limits.pre_handshake",
     .text = "64",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = 65536,
     .offset = AT(pre_handshake),
     .help = "Connections before the end of their handshake; beyond that the "
             "oldest is closed."},
    {.path = "limits.output",
     .text = "16MiB",
     .type = PS_OPTION_SIZE,
     .min = MIB_BYTES,
     .offset = AT(output),
     .help = "Memory for output that waits for one training process or tool; "
             "a connection that needs more is closed."},
    {.path = "limits.link_output",
     .text = "64MiB",
     .type = PS_OPTION_SIZE,
     .min = MIB_BYTES,
     .offset = AT(link_output),
     .help = "Memory for queued output and unacknowledged messages to one "
             "daemon, not counting tensors that are kept anyway; a connection "
             "that needs more is closed."},
    {.path = "limits.output_total",
     .text = "128MiB",
     .type = PS_OPTION_SIZE,
     .min = 4 * MIB_BYTES,
     .offset = AT(output_total),
     .help = "Memory for output that waits for all peers together, and a "
             "quarter of it for one user's training processes, or for all "
             "tools by TCP; beyond it the connection that holds most is "
             "closed."},
    {.path = "limits.handshake",
     .text = "5s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = HOUR,
     .offset = AT(handshake),
     .help = "Time for the handshake of a new connection."},
    {.path = "limits.header",
     .text = "10s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = HOUR,
     .offset = AT(header),
     .help = "Time from the first byte of a message's header to its last."},
    {.path = "limits.stall",
     .text = "60s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = 24 * HOUR,
     .offset = AT(stall),
     .help = "A connection is closed if its peer reads no queued output, or "
             "stops in the middle of a payload, for this time."},
    {.path = "network.receive_buffer",
     .text = "auto",
     .type = PS_OPTION_SIZE,
     .special = "auto",
     .special_value = 0,
     .min = 4096,
     .max = 1024 * MIB_BYTES,
     .offset = AT(receive_buffer),
     .help = "Receive buffer of each socket; auto: the system's, but many "
             "senders share a window that the link can drain."},
    {.path = "network.send_buffer",
     .text = "auto",
     .type = PS_OPTION_SIZE,
     .special = "auto",
     .special_value = 0,
     .min = 4096,
     .max = 1024 * MIB_BYTES,
     .offset = AT(send_buffer),
     .help = "Send buffer of each socket; auto: the system's."},
    {.path = "network.congestion_control",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|system",
     .offset = AT(congestion_control),
     .help = "auto: connections between agents and servers with a round trip "
             "of 10 ms or more use bbr if the system allows it, because they "
             "may lose packets without congestion; system: all connections use "
             "the system's."},
    {.path = "network.checksums",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|on|off",
     .offset = AT(checksums),
     .help = "Checksums in the frames of plain TCP connections between "
             "daemons: a frame whose bytes the network has changed closes its "
             "connection and is sent again. They are used if either side asks "
             "for them; auto: it asks if the other one is on another host. TLS "
             "has its own."},
    {.path = "network.spin",
     .text = "auto",
     .type = PS_OPTION_DURATION,
     .special = "auto",
     .special_value = -1,
     .max = INT64_C(1000000000),
     .offset = AT(spin),
     .help = "Time for which a thread polls for further work before it sleeps; "
             "auto: up to 50us, while that saves time and no other process "
             "needs the processor."},
    {.path = "network.resend_timeout",
     .text = "1s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = HOUR,
     .offset = AT(resend_timeout),
     .aliases = {{.name = "PS_RESEND_TIMEOUT", .unit = "ms"}},
     .help = "Time after which unacknowledged messages are sent again."},
    {.path = "network.resend_max",
     .text = "5s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = HOUR,
     .offset = AT(resend_max),
     .help = "Longest time between two attempts; it doubles up to this."},
    {.path = "shutdown.grace",
     .text = "30s",
     .type = PS_OPTION_DURATION,
     .max = 24 * HOUR,
     .reloadable = true,
     .offset = AT(grace),
     .help = "Time for work in progress after SIGTERM."},
    {.path = "security.private_memory",
     .text = "false",
     .type = PS_OPTION_BOOL,
     .offset = AT(private_memory),
     .help = "Write no core dump, and let no process without CAP_SYS_PTRACE "
             "read this one's memory, not even one of the same user: payloads "
             "to daemons of this host go through shared memory or the socket "
             "then."},
    {.path = "security.tls.enabled",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|on|off",
     .offset = AT(tls.enabled),
     .help = "Encrypt and authenticate TCP connections, those over loopback "
             "included: auto does so if there is a certificate; on demands "
             "one; off never. Unix sockets are never encrypted."},
    {.path = "security.tls.ktls",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|on|off",
     .offset = AT(tls.ktls),
     .help = "Protection of the records of encrypted connections by the "
             "kernel (kTLS, its module tls): auto, if it can; on, the same "
             "with a warning if it cannot; off, never."},
    {TLS_FILE("directory", directory),
     .help = "Folder with the certificates of this node, as psctl pki issue "
             "writes it: ca.crt, crl.pem, and of this daemon ROLE.crt and "
             "ROLE.key (ROLE is sched, server or agent)."},
    {TLS_FILE("ca", ca),
     .help = "File with the certificates of the authorities whose members are "
             "accepted, instead of ca.crt."},
    {TLS_FILE("cert", cert),
     .help = "File with this daemon's certificate, instead of ROLE.crt; "
             "certificates between it and the authority follow it."},
    {TLS_FILE("key", key),
     .help = "File with the key of the certificate, instead of ROLE.key; no "
             "other user may read it."},
    {TLS_FILE("crl", crl),
     .help = "File with the list of revoked certificates, instead of "
             "crl.pem."},
    {.path = "security.tls.fd",
     .text = "none",
     .type = PS_OPTION_INT,
     .special = "none",
     .special_value = -1,
     .max = 1048576,
     .offset = AT(tls.fd),
     .help = "Inherited descriptor from which key, certificate and authority "
             "are read at the start, as one PEM text, instead of files; it "
             "is closed then."},
    {.path = "metrics.file",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = 4000,
     .offset = AT(metrics_file),
     .help = "File for this daemon's metrics in the text format of Prometheus, "
             "as the textfile collector of node_exporter reads it; null: "
             "none."},
    {.path = "metrics.interval",
     .text = "15s",
     .type = PS_OPTION_DURATION,
     .min = 100 * MSEC,
     .max = HOUR,
     .offset = AT(metrics_interval),
     .help = "Time between two writes of metrics.file."},
    {.path = "metrics.listen",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = PS_ADDRESS_MAX,
     .offset = AT(metrics_listen),
     .help = "Address and port, such as 127.0.0.1:9191, at which HTTP answers "
             "GET /metrics, /healthz and /readyz; null: none. Every process "
             "that reaches it may read. Port 0 is any free one, which the log "
             "names."},
};

#undef AT
#define AT(member) offsetof(struct ps_listen_options, member)

const struct ps_option ps_listen_rows[PS_LISTEN_ROWS] = {
    {.path = "listen.address",
     .text = "127.0.0.1",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = PS_ADDRESS_MAX,
     .offset = AT(address),
     .help = "Address to accept connections on, or a name of this host; any "
             "but loopback needs a certificate (security.tls.directory) or "
             "security.insecure. 0.0.0.0 is every address of the host."},
    {.path = "listen.port",
     .text = "auto",
     .type = PS_OPTION_U64,
     .special = "auto",
     .special_value = PS_LISTEN_PORT_AUTO,
     .max = 65535,
     .offset = AT(port),
     .aliases = {{.name = "PORT"}},
     .help = "Port to accept connections on; 0 takes any that is free. auto is "
             "9091 for psched; for psserver the first free one from 9092 on, "
             "of 64, so that servers keep their ports over restarts."},
    {.path = "listen.backlog",
     .text = "1024",
     .type = PS_OPTION_INT,
     .min = 1,
     .max = 65535,
     .offset = AT(backlog),
     .help = "Connections that may wait to be accepted."},
    {.path = "security.insecure",
     .text = "false",
     .type = PS_OPTION_BOOL,
     .offset = AT(insecure),
     .help = "Accept connections from other hosts without encryption, if there "
             "is no certificate: every host that reaches the port can then "
             "read and change every job."},
};

#undef AT
#define AT(member) offsetof(struct ps_scheduler_options, member)

const struct ps_option ps_scheduler_rows[PS_SCHEDULER_ROWS] = {
    {.path = "scheduler.address",
     .text = "127.0.0.1",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = PS_ADDRESS_MAX - 8,
     .offset = AT(address),
     .aliases = {{.name = "DMLC_PS_ROOT_URI"}},
     .help = "Name or address of the scheduler's host."},
    {.path = "scheduler.port",
     .text = "9091",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = 65535,
     .offset = AT(port),
     .aliases = {{.name = "DMLC_PS_ROOT_PORT"}},
     .help = "Port of the scheduler."},
    {.path = "scheduler.retry.first",
     .text = "200ms",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = HOUR,
     .offset = AT(retry_first),
     .help = "Wait before the second attempt to reach the scheduler."},
    {.path = "scheduler.retry.max",
     .text = "1s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = HOUR,
     .offset = AT(retry_max),
     .help = "Longest wait between attempts; it doubles up to this."},
};

#undef AT
#define AT(name) offsetof(struct ps_transport_options, name)

const struct ps_option ps_transport_rows[PS_TRANSPORT_ROWS] = {
    {.path = "network.loops",
     .text = "1",
     .type = PS_OPTION_INT,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = PS_IO_THREADS_MAX,
     .offset = AT(loops),
     .help = "Threads for network I/O: the first runs the event loop, the "
             "others copy large payloads between memory and TCP connections, "
             "for networks that one thread cannot fill; auto adds one when all "
             "have been busy for three seconds, up to half of the processors."},
    {.path = "network.same_host",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|off",
     .offset = AT(same_host),
     .help = "Servers and agents of the same user on one host connect over a "
             "Unix socket, and payloads are copied from memory to memory; off: "
             "they use TCP, like all others."},
    {.path = "network.travel_together",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|off",
     .offset = AT(travel_together),
     .help = "Small partitions that are ready share a frame; off: each has "
             "a frame of its own, to measure the difference."},
};

#undef AT
#define AT(name) offsetof(struct ps_key_limits, name)

const struct ps_option ps_key_limit_rows[PS_KEY_LIMIT_ROWS] = {
    {.path = "limits.job.keys",
     .text = "131072",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_KEYS_MAX,
     .offset = AT(job_keys),
     .help = "Keys of one job."},
    {.path = "limits.user.keys",
     .text = "262144",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = 16 * PS_KEYS_MAX,
     .offset = AT(user_keys),
     .help = "Keys of all jobs of one user."},
    {.path = "limits.job.partitions",
     .text = "262144",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_STORE_PARTS_MAX,
     .offset = AT(job_partitions),
     .help = "Partitions of all keys of one job: 256 GiB in pieces of 1 MiB."},
    {.path = "limits.user.partitions",
     .text = "524288",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = 16ll * PS_STORE_PARTS_MAX,
     .offset = AT(user_partitions),
     .help = "Partitions of all keys of all jobs of one user."},
};

#undef AT

/* -------------------------------------------------------------------- users */

/* Finds the uid of a user by name or number. */
static bool find_user(const char *text, uint32_t *ret_uid)
{
    const struct passwd *user = getpwnam(text);
    unsigned long uid;
    char *end;

    if (user != NULL) {
        *ret_uid = user->pw_uid;
        return true;
    }
    errno = 0;
    uid = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        uid >= UINT32_MAX) {
        return false;
    }
    *ret_uid = (uint32_t)uid;
    return true;
}

uint32_t ps_users_find(const struct ps_option_list *names, uint32_t *uids,
                       uint32_t max)
{
    uint32_t count = 0;

    for (size_t i = 0; i < names->count && count < max; i++) {
        count += find_user(names->items[i], &uids[count]);
    }
    return count;
}

bool ps_users_check(const struct ps_option_list *names, const char *option,
                    const struct ps_options *o, struct ps_str *report)
{
    for (size_t i = 0; i < names->count; i++) {
        uint32_t uid;

        if (!find_user(names->items[i], &uid)) {
            ps_options_where(o, option, report);
            ps_str_addf(report, ": %s: this host has no user '", option);
            ps_str_add_escaped(report, names->items[i], strlen(names->items[i]),
                               64);
            ps_str_add(report, "'\n");
            return false;
        }
    }
    return true;
}
