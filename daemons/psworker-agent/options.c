/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows of psworker-agent. */
#include "psworker-agent/options.h"

#include "base/limits.h"

#define MIB_BYTES  (INT64_C(1024) * 1024)
#define AT(member) offsetof(struct psagent_options, member)

static const struct ps_option rows[] = {
    {.path = "listen.port",
     .text = "auto",
     .type = PS_OPTION_U64,
     .special = "auto",
     .special_value = PS_LISTEN_PORT_AUTO,
     .max = 65535,
     .offset = AT(liveness_port),
     .help = "Port on which psched probes whether this process lives, at the "
             "address from which the agent reaches psched; nothing is read or "
             "written there. 0 takes any that is free. auto is the first free "
             "one from 9156 on, of 64, or any if none of these is free."},
    {.path = "client.socket",
     .text = "${RUNTIME_DIRECTORY:-/run/pskv}/agent.sock",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = PS_SOCKET_PATH_MAX,
     .form = PS_OPTION_EXPANDED,
     .offset = AT(socket),
     .help = "Unix socket for training processes; of a user who may not write "
             "/run/pskv: in $XDG_RUNTIME_DIR/pskv, where that user's processes "
             "look first."},
    {.path = "client.mode",
     .text = "0660",
     .type = PS_OPTION_MODE,
     .offset = AT(mode),
     .help = "Permissions of the socket, which decide which users may train "
             "here."},
    {.path = "client.group",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = PS_NAME_MAX,
     .check = ps_option_check_name,
     .offset = AT(group),
     .help = "Group of the socket, by name or number, of which the daemon's "
             "user must be a member; null is the daemon's own."},
    {.path = "client.max_clients",
     .text = "256",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_LOCAL_MAX,
     .offset = AT(max_clients),
     .help = "Sessions of training processes at one time, one for each process "
             "and one for each of its groups; more are rejected."},
    {.path = "limits.user.sessions",
     .text = "128",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_LOCAL_MAX,
     .offset = AT(limits.user_sessions),
     .help = "Sessions of one user, out of client.max_clients."},
    {.path = "limits.user.memory",
     .text = "auto",
     .type = PS_OPTION_SIZE,
     .form = PS_OPTION_PERCENT,
     .special = "auto",
     .special_value = 0,
     .min = MIB_BYTES,
     .offset = AT(limits.user_memory),
     .help =
         "Share of local.memory that the jobs of one user may take; auto is "
         "four fifths of it."},
    {.path = "limits.user.operations",
     .text = "4194304",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = (int64_t)PS_LOCAL_MAX * PS_OPS_MAX,
     .offset = AT(limits.user_operations),
     .help = "Unfinished operations of all sessions of one user: as many as 64 "
             "processes may have, 65536 each."},
    {.path = "limits.session.queries",
     .text = "256",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_OPS_MAX,
     .offset = AT(limits.session_queries),
     .help = "Unanswered requests of one session to the scheduler: "
             "declarations and changes of an optimizer, stall queries."},
    {.path = "limits.user.queries",
     .text = "4096",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_OPS_MAX,
     .offset = AT(limits.user_queries),
     .help = "Unanswered requests of all sessions of one user to the "
             "scheduler."},
    {.path = "limits.session.regions",
     .text = "1024",
     .type = PS_OPTION_U64,
     .min = 1,
     .max = PS_REGIONS_MAX,
     .offset = AT(limits.session_regions),
     .help = "Memory regions of one session. The library makes few large ones, "
             "so one more is an error of the process and ends its session."},
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
             "of the system, beyond which the agent cannot map any memory."},
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
     .offset = AT(compute.threads),
     .aliases = {{.name = "MXNET_KVSTORE_REDUCTION_NTHREADS"}},
     .help = "Threads that sum over local workers; auto is one for each "
             "processor."},
    {.path = "compute.device",
     .text = "cpu",
     .type = PS_OPTION_ENUM,
     .enum_names = "cpu|auto|cuda",
     .offset = AT(compute.device),
     .help = "Whether gradients in memory of GPUs are summed there: auto takes "
             "the GPUs if there are any; with cuda, psworker-agent does not "
             "start without one. The bits are the same."},
    {.path = "compute.gpu_module",
     .text = "auto",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = 4095,
     .offset = AT(compute.module),
     .help = "File of the module for GPUs, libpskv-cuda.so; auto is the "
             "installed one."},
    {.path = "local.memory",
     .text = "50%",
     .type = PS_OPTION_SIZE,
     .form = PS_OPTION_PERCENT,
     .min = 16 * MIB_BYTES,
     .offset = AT(memory),
     .help = "Memory for the results, tables and residuals of all jobs; as "
             "much again for sums in progress."},
    {.path = "network.connections_per_server",
     .text = "auto",
     .type = PS_OPTION_U64,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = PS_LINK_CONNECTIONS_MAX,
     .offset = AT(connections),
     .help = "TCP connections to each server, for networks that give a single "
             "one less than the link carries; auto: one, or one for each "
             "additional I/O thread; if a round trip takes 10 ms or more and "
             "packets are lost, 4, or up to 16 if the congestion control slows "
             "down at each loss."},
    {.path = "network.hand_over",
     .text = "2MiB",
     .type = PS_OPTION_SIZE,
     .min = 65536,
     .max = 1024 * MIB_BYTES,
     .offset = AT(hand_over),
     .help = "Bytes handed to a connection and not sent yet; until then a "
             "partition of a higher priority overtakes."},
};

static const struct ps_option_table tables[] = {
    {ps_common_rows, PS_COMMON_ROWS, AT(common)},
    {ps_scheduler_rows, PS_SCHEDULER_ROWS, AT(scheduler)},
    {ps_transport_rows, PS_TRANSPORT_ROWS, AT(transport)},
    {ps_key_limit_rows, PS_KEY_LIMIT_ROWS, AT(key_limits)},
    {rows, PS_OPTION_COUNT(rows), 0},
};

const struct ps_option_set psagent_set = {
    .program = "psworker-agent",
    .tables = tables,
    .table_count = PS_OPTION_COUNT(tables),
};
