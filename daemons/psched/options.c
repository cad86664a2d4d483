/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows of psched, and its heartbeat times. */
#include "psched/options.h"

#include "base/limits.h"
#include "base/num.h"

/* Room for what is added to the name of the key's file. */
#define PS_TOKEN_KEY_PATH_MAX 4000

/* And for what SQLite adds. */
#define PS_STATE_PATH_MAX     4000

#define MSEC                  INT64_C(1000000)
#define BEAT                  PS_MILLIS(500)
#define DAY                   (INT64_C(86400) * 1000000000)
#define AT(member)            offsetof(struct psched_options, member)

static const struct ps_option rows[] = {
    {.path = "control.socket",
     .text = "${RUNTIME_DIRECTORY:-/run/pskv}/psched.sock",
     .type = PS_OPTION_STRING,
     .max = PS_SOCKET_PATH_MAX,
     .form = PS_OPTION_EXPANDED,
     .offset = AT(socket),
     .help =
         "Unix socket for psctl, over which a job's owner, root and the "
         "user of this daemon may change jobs; over TCP psctl may only "
         "read, without a token. Empty is none. Of a user who may not write "
         "/run/pskv: in $XDG_RUNTIME_DIR/pskv, where psctl looks first."},
    {.path = "control.mode",
     .text = "0666",
     .type = PS_OPTION_MODE,
     .offset = AT(mode),
     .help = "Permissions of the socket; they do not decide which user may "
             "change which job."},
    {.path = "control.group",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = PS_NAME_MAX,
     .check = ps_option_check_name,
     .offset = AT(group),
     .help = "Group of the socket, by name or number, of which the daemon's "
             "user must be a member; null is the daemon's own."},
    {.path = "control.operators",
     .type = PS_OPTION_LIST,
     .max = PS_OPERATORS_MAX,
     .offset = AT(operators),
     .help = "Users, by name or uid, who may change every job and manage all "
             "tokens, as root and the user of this daemon may."},
    {.path = "control.read",
     .text = "all",
     .type = PS_OPTION_ENUM,
     .enum_names = "all|token",
     .offset = AT(read),
     .help =
         "token: by TCP psctl may only read with a token that has the right "
         "read; on the Unix socket every user may read."},
    {.path = "security.tokens.key",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = PS_TOKEN_KEY_PATH_MAX,
     .form = PS_OPTION_EXPANDED,
     .offset = AT(token_key),
     .help =
         "File with the key that signs tokens, made at the first start with "
         "mode 0600; a list of tokens lies beside it. Empty: a key of this "
         "process, with which its tokens end."},
    {.path = "state.file",
     .text = "auto",
     .type = PS_OPTION_STRING,
     .max = PS_STATE_PATH_MAX,
     .form = PS_OPTION_EXPANDED,
     .offset = AT(state_file),
     .help = "File from which the next process goes on with members and jobs; "
             "auto is psched.state in the state directory of the service, and "
             "none without one. null: none, so that a restart ends jobs."},
    {.path = "heartbeat.interval",
     .text = "auto",
     .type = PS_OPTION_DURATION,
     .special = "auto",
     .special_value = 0,
     .min = MSEC,
     .max = DAY,
     .offset = AT(heartbeat),
     .aliases = {{.name = "PS_HEARTBEAT_INTERVAL",
                  .unit = "s",
                  .values = "0=auto"}},
     .help = "Interval of heartbeats of servers and agents; auto is 500ms, at "
             "most half of suspect_after and a quarter of dead_after."},
    {.path = "heartbeat.suspect_after",
     .text = "auto",
     .type = PS_OPTION_DURATION,
     .special = "auto",
     .special_value = 0,
     .min = MSEC,
     .max = DAY,
     .offset = AT(suspect_after),
     .help = "A member that is silent for this time is SUSPECT; auto is two "
             "intervals, at least 1s, or less before dead_after."},
    {.path = "heartbeat.dead_after",
     .text = "auto",
     .type = PS_OPTION_DURATION,
     .special = "auto",
     .special_value = 0,
     .min = MSEC,
     .max = DAY,
     .offset = AT(dead_after),
     .aliases = {{.name = "PS_HEARTBEAT_TIMEOUT",
                  .unit = "s",
                  .values = "0=auto"}},
     .help = "A member that is silent for this time is GONE; auto is twice "
             "suspect_after, at least 2s."},
    {.path = "network.link_linger",
     .text = "60s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = DAY,
     .offset = AT(link_linger),
     .help = "Time for which the state of a link is kept without a "
             "connection."},
    {.path = "registration.start_timeout",
     .text = "120s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = DAY,
     .offset = AT(start_timeout),
     .help = "A job fails if its ranks have not all joined after this time, "
             "unless it has a time of its own."},
    {.path = "registration.rejoin_grace",
     .text = "60s",
     .type = PS_OPTION_DURATION,
     .max = DAY,
     .offset = AT(rejoin_grace),
     .help = "A job without a live worker ends after this time."},
    {.path = "registration.rejoin_timeout",
     .text = "1h",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = 366 * DAY,
     .offset = AT(rejoin_timeout),
     .help = "A job that waits for lost ranks ends if no process takes one of "
             "them again within this time."},
    {.path = "failure.diverged_after",
     .text = "30s",
     .type = PS_OPTION_DURATION,
     .special = "null",
     .special_value = 0,
     .min = MSEC,
     .max = 366 * DAY,
     .offset = AT(diverged_after),
     .help = "A job ends if its ranks have waited for each other for this "
             "time, so that none of them can go on; null: it is only shown as "
             "DIVERGED."},
    {.path = "failure.server_return",
     .text = "30s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = DAY,
     .offset = AT(server_return),
     .help = "A job waits for this time for the next process of a server that "
             "was lost, if its memory outlives its process."},
    {.path = "placement.partition_bytes",
     .text = "auto",
     .type = PS_OPTION_SIZE,
     .special = "auto",
     .special_value = 0,
     .min = PS_PARTITION_BYTES_MIN,
     .max = PS_PARTITION_BYTES_MAX,
     .offset = AT(partition_bytes),
     .help = "Size of the partitions of large keys, unless the job has its "
             "own; auto is 32KiB to 1MiB, by the size of each key and the "
             "number of servers."},
};

static const struct ps_option limits[] = {
    {.path = "limits.daemon.memory",
     .text = "1GiB",
     .type = PS_OPTION_SIZE,
     .min = 1024 * 1024,
     .offset = AT(table_memory),
     .help = "Memory for the tables of all keys of all jobs."},
};

static const struct ps_option_table tables[] = {
    {ps_common_rows, PS_COMMON_ROWS, AT(common)},
    {ps_listen_rows, PS_LISTEN_ROWS, AT(listen)},
    {rows, PS_OPTION_COUNT(rows), 0},
    {ps_key_limit_rows, PS_KEY_LIMIT_ROWS, AT(key_limits)},
    {limits, PS_OPTION_COUNT(limits), 0},
};

/* Defaults shared with the other daemons, so that daemons started with the same
 * variables find each other. */
static const struct ps_option_default defaults[] = {
    {"listen.address", NULL, {.name = "DMLC_PS_ROOT_URI"}},
    {"listen.port", "9091", {.name = "DMLC_PS_ROOT_PORT"}},
};

const struct ps_option_set psched_set = {
    .program = "psched",
    .tables = tables,
    .table_count = PS_OPTION_COUNT(tables),
    .defaults = defaults,
    .default_count = PS_OPTION_COUNT(defaults),
};

/* Interval of heartbeats. Each one wakes two processes, so it is as long as
 * timely detection allows. */
ps_time psched_heartbeat(const struct psched_options *o)
{
    ps_time beat = BEAT;

    if (o->heartbeat != 0) {
        return o->heartbeat;
    }
    if (o->suspect_after != 0) {
        beat = ps_time_min(beat, o->suspect_after / 2);
    }
    if (o->dead_after != 0) {
        beat = ps_time_min(beat, o->dead_after / 4);
    }
    return beat;
}

ps_time psched_suspect_after(const struct psched_options *o)
{
    ps_time beat = psched_heartbeat(o);
    ps_time after = ps_max_u64(2 * beat, 2 * BEAT);

    if (o->suspect_after != 0) {
        return o->suspect_after;
    }
    return o->dead_after != 0 && o->dead_after <= after
               ? (beat + o->dead_after) / 2
               : after;
}

ps_time psched_dead_after(const struct psched_options *o)
{
    return o->dead_after != 0
               ? o->dead_after
               : ps_max_u64(2 * psched_suspect_after(o), 4 * BEAT);
}
