/* SPDX-License-Identifier: Apache-2.0 */
#include "psworker-agent/options.h"

#include "base/limits.h"

#define MIB_BYTES  (INT64_C(1024) * 1024)
#define AT(member) offsetof(struct psagent_options, member)

static const struct ps_option rows[] = {
    {.path = "client.socket",
     .text = "${RUNTIME_DIRECTORY:-/run/pskv}/agent.sock",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = PS_SOCKET_PATH_MAX,
     .expand = true,
     .offset = AT(socket),
     .help = "Unix socket for training processes."},
    {.path = "client.mode",
     .text = "0660",
     .type = PS_OPTION_MODE,
     .offset = AT(mode),
     .help = "Permissions of the socket: who may train here."},
    {.path = "client.max_clients",
     .text = "256",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_LOCAL_MAX,
     .offset = AT(max_clients),
     .help = "Sessions of training processes at one time, one for each "
             "process and one for each of its groups; more are turned away."},
    {.path = "limits.user.sessions",
     .text = "128",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_LOCAL_MAX,
     .offset = AT(limits.user_sessions),
     .help = "Of these, sessions of one user."},
    {.path = "limits.session.regions",
     .text = "1024",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_REGIONS_MAX,
     .offset = AT(limits.session_regions),
     .help = "Memory regions of one session. The library makes few large ones: "
             "one more is an error of the process, and ends its session."},
    {.path = "limits.user.regions",
     .text = "auto",
     .type = PS_OPTION_U64,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = INT32_MAX,
     .offset = AT(limits.user_regions),
     .help = "Memory regions of all sessions of one user; auto is half of "
             "limits.daemon.regions."},
    {.path = "limits.daemon.regions",
     .text = "auto",
     .type = PS_OPTION_U64,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = INT32_MAX,
     .offset = AT(limits.daemon_regions),
     .help = "Memory regions of all sessions; auto is half of vm.max_map_count "
             "of the system, beyond which the agent could map nothing for "
             "anybody."},
    {.path = "limits.session.mapped",
     .text = "4TiB",
     .type = PS_OPTION_SIZE,
     .min = MIB_BYTES,
     .offset = AT(limits.session_mapped),
     .help = "Bytes of the memory regions of one session."},
    {.path = "limits.user.mapped",
     .text = "16TiB",
     .type = PS_OPTION_SIZE,
     .min = MIB_BYTES,
     .offset = AT(limits.user_mapped),
     .help = "Bytes of the memory regions of all sessions of one user."},
    {.path = "limits.daemon.mapped",
     .text = "64TiB",
     .type = PS_OPTION_SIZE,
     .min = MIB_BYTES,
     .offset = AT(limits.daemon_mapped),
     .help = "Bytes of the memory regions of all sessions: half of the address "
             "space of a process."},
    {.path = "local.reduce_threads",
     .text = "auto",
     .type = PS_OPTION_INT,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = 256,
     .offset = AT(threads),
     .aliases = {{.name = "MXNET_KVSTORE_REDUCTION_NTHREADS"}},
     .help = "Threads that sum over local workers; auto is one for each "
             "processor."},
    {.path = "local.memory",
     .text = "50%",
     .type = PS_OPTION_SIZE,
     .percent = true,
     .min = 16 * MIB_BYTES,
     .offset = AT(memory),
     .help = "Memory for the results of one job, and as much again for all "
             "sums under way."},
    {.path = "network.loops",
     .text = "1",
     .type = PS_OPTION_INT,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = PS_LOOPS_MAX,
     .offset = AT(loops),
     .help = "Event loops, each a thread: the first decides, further ones move "
             "what is large between memory and TCP connections, where one "
             "cannot fill the network card; auto adds one when those there are "
             "have been busy for three seconds, up to half of the processors."},
    {.path = "network.same_host",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .words = "auto|off",
     .offset = AT(same_host),
     .help = "Servers of the same user on this host are reached over a Unix "
             "socket, and payloads are copied from memory to memory; off: by "
             "TCP, like all others."},
    {.path = "network.travel_together",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .words = "auto|off",
     .offset = AT(travel_together),
     .help = "Pushes of small partitions that are ready go in one frame; off: "
             "each in a frame of its own, to see what that costs."},
    {.path = "network.connections_per_server",
     .text = "auto",
     .type = PS_OPTION_U64,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = PS_LINK_CONNECTIONS_MAX,
     .offset = AT(connections),
     .help = "TCP connections to each server: more where the network gives a "
             "single one less than the link carries; auto is one, or so many "
             "that each further loop has one to move."},
    {.path = "network.hand_over",
     .text = "2MiB",
     .type = PS_OPTION_SIZE,
     .min = 65536,
     .max = 1024 * MIB_BYTES,
     .offset = AT(hand_over),
     .help = "Bytes handed to a connection ahead of the network: urgent "
             "partitions overtake what is behind them."},
};

static const struct ps_option_table tables[] = {
    {ps_common_rows, PS_COMMON_ROWS, AT(common)},
    {ps_scheduler_rows, PS_SCHEDULER_ROWS, AT(scheduler)},
    {rows, PS_OPTION_COUNT(rows), 0},
};

const struct ps_option_set psagent_set = {
    .program = "psworker-agent",
    .tables = tables,
    .table_count = PS_OPTION_COUNT(tables),
};
