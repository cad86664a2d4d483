/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows of psserver. */
#include "psserver/options.h"

#include "base/limits.h"

#include <string.h>

#define MIB_BYTES  (INT64_C(1024) * 1024)
#define MSEC       INT64_C(1000000)
#define DAY        (INT64_C(86400) * 1000000000)
#define AT(member) offsetof(struct psserver_options, member)

/* "auto" and null both choose an address. */
static bool check_advertise(const char *value, struct ps_str *why)
{
    if (strpbrk(value, " /[]") != NULL) {
        ps_str_add(why, "write a name or an IP address, without a port");
        return false;
    }
    return true;
}

static const struct ps_option rows[] = {
    {.path = "advertise.address",
     .text = "auto",
     .type = PS_OPTION_STRING,
     .max = PS_ADDRESS_MAX - 8,
     .check = check_advertise,
     .offset = AT(advertise),
     .aliases = {{.name = "DMLC_NODE_HOST"}},
     .help = "Address at which agents reach this server; auto is "
             "listen.address, or the local address of the route to the "
             "scheduler."},
    {.path = "advertise.interface",
     .text = "",
     .type = PS_OPTION_STRING,
     .max = 15,
     .offset = AT(interface),
     .aliases = {{.name = "DMLC_INTERFACE"}},
     .help = "Network interface whose address agents use, unless "
             "advertise.address is set."},
    {.path = "network.link_linger",
     .text = "60s",
     .type = PS_OPTION_DURATION,
     .min = MSEC,
     .max = DAY,
     .offset = AT(link_linger),
     .help = "Time for which the state of a link is kept without a "
             "connection."},
    {.path = "compute.threads",
     .text = "auto",
     .type = PS_OPTION_INT,
     .special = "auto",
     .special_value = 0,
     .min = 1,
     .max = 256,
     .offset = AT(compute.threads),
     .help = "Threads that merge gradients; auto is one for each processor."},
    {.path = "compute.device",
     .text = "cpu",
     .type = PS_OPTION_ENUM,
     .enum_names = "cpu|auto|cuda",
     .offset = AT(compute.device),
     .help = "Where large sums and optimizer steps are computed, with the same "
             "bits: auto takes a GPU if there is one; with cuda, psserver does "
             "not start without one."},
    {.path = "compute.state",
     .text = "mirrored",
     .type = PS_OPTION_ENUM,
     .enum_names = "mirrored|device",
     .offset = AT(compute.state),
     .help = "Optimizer states on a GPU: mirrored copies them to the host with "
             "each step, so that a GPU that fails loses nothing; device leaves "
             "them there, and such a failure ends the jobs."},
    {.path = "compute.gpu_module",
     .text = "auto",
     .type = PS_OPTION_STRING,
     .min = 1,
     .max = 4095,
     .offset = AT(compute.module),
     .help = "File of the module for GPUs, libpskv-cuda.so; auto is the "
             "installed one."},
    {.path = "store.memory",
     .text = "80%",
     .type = PS_OPTION_SIZE,
     .form = PS_OPTION_PERCENT,
     .min = 16 * MIB_BYTES,
     .offset = AT(memory),
     .help = "Memory for parameters, optimizer state and gradients in flight; "
             "a key whose job would need more is refused."},
    {.path = "store.keep",
     .text = "auto",
     .type = PS_OPTION_ENUM,
     .enum_names = "auto|off",
     .offset = AT(keep),
     .help = "Parameters and optimizer state in memory that outlives the "
             "process, so that jobs go on after its end: auto if somebody "
             "keeps the memory, which is the service manager or the parent "
             "process of --keep."},
    {.path = "flow.window",
     .text = "32MiB",
     .type = PS_OPTION_SIZE,
     .min = PS_CREDIT_INITIAL,
     .max = 16384 * MIB_BYTES,
     .offset = AT(window),
     .help = "Unmerged bytes of one agent and job: how far the agent may be "
             "ahead of the slowest."},
};

static const struct ps_option_table tables[] = {
    {ps_common_rows, PS_COMMON_ROWS, AT(common)},
    {ps_listen_rows, PS_LISTEN_ROWS, AT(listen)},
    {ps_scheduler_rows, PS_SCHEDULER_ROWS, AT(scheduler)},
    {ps_transport_rows, PS_TRANSPORT_ROWS, AT(transport)},
    {rows, PS_OPTION_COUNT(rows), 0},
};

const struct ps_option_set psserver_set = {
    .program = "psserver",
    .tables = tables,
    .table_count = PS_OPTION_COUNT(tables),
};
