/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/job_options.h"

#include "base/limits.h"
#include "pslaunch/hosts.h"

#include <string.h>

#define AT(member) offsetof(struct job_options, member)

bool job_is_mode(const char *name)
{
    static const char *const modes[] = {
        "dist_sync",
        "dist_async",
        "dist_ssp",
        "dist",
        "sync",
        "async",
        "ssp",
        "dist_sync_device",
        "dist_device_sync",
        "dist_async_device",
        "dist_device_async",
        "dist_sync_mpi",
    };

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(name, modes[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool check_mode(const char *value, struct ps_str *why)
{
    if (job_is_mode(value)) {
        return true;
    }
    ps_str_addf(why, "'%s' is no mode; write dist_sync, dist_async or dist_ssp",
                value);
    return false;
}

static bool check_placement(const char *value, struct ps_str *why)
{
    if (strcmp(value, "balanced") == 0 || strcmp(value, "mxnet") == 0) {
        return true;
    }
    ps_str_addf(why, "'%s' is no placement; write balanced or mxnet", value);
    return false;
}

static bool check_loss(const char *value, struct ps_str *why)
{
    if (strcmp(value, "wait") == 0 || strcmp(value, "fail") == 0) {
        return true;
    }
    ps_str_addf(why, "'%s' is not understood; write wait or fail", value);
    return false;
}

static bool check_level(const char *value, struct ps_str *why)
{
    static const char levels[] = "error warning notice info debug trace ";
    const char *at = strstr(levels, value);
    size_t len = strlen(value);

    if (at != NULL && at[len] == ' ' && (at == levels || at[-1] == ' ')) {
        return true;
    }
    ps_str_addf(why,
                "'%s' is no level; write error, warning, notice, info, debug "
                "or trace",
                value);
    return false;
}

/* An item of the list has to be a list of its own. */
static bool check_hosts(const char *value, struct ps_str *why)
{
    struct host_list list = {0};
    char error[HOSTS_TEXT_MAX];
    int rc = hosts_parse(value, &list, error);

    hosts_free(&list);
    if (rc != 0) {
        ps_str_add(why, error);
    }
    return rc == 0;
}

static bool check_namespace(const char *value, struct ps_str *why)
{
    if (value[strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0') {
        return true;
    }
    ps_str_add(why, "write small letters, digits and '-'");
    return false;
}

static const struct ps_option rows[] = {
    {.path = "name",
     .type = PS_OPTION_STRING,
     .max = 64,
     .offset = AT(name),
     .help = "Name of the job; null makes one from the number of the "
             "process."},
    {.path = "command",
     .type = PS_OPTION_LIST,
     .offset = AT(command),
     .help = "Command of every worker, a word an item; a single item with "
             "spaces goes to a shell. Words behind -- on the command line "
             "replace it."},
    {.path = "launcher",
     .type = PS_OPTION_STRING,
     .text = "auto",
     .offset = AT(launcher),
     .help = "Launcher that starts processes on hosts, as of --launcher."},
    {.path = "hosts",
     .type = PS_OPTION_LIST,
     .check = check_hosts,
     .offset = AT(hosts),
     .help = "Hosts, as in h1:4 or n[01-04]:8 with the number of workers that "
             "each may have."},
    {.path = "hostfile",
     .type = PS_OPTION_STRING,
     .offset = AT(hostfile),
     .help = "File of hosts, one a line, in place of hosts."},
    {.path = "scaling.workers",
     .type = PS_OPTION_U64,
     .text = "0",
     .max = 4096,
     .offset = AT(scaling.workers),
     .help = "Training processes; 0 leaves the number to -n."},
    {.path = "scaling.servers",
     .type = PS_OPTION_U64,
     .text = "auto",
     .max = 256,
     .special = "auto",
     .special_value = JOB_SERVERS_AUTO,
     .offset = AT(scaling.servers),
     .help = "Servers; auto is the number of workers."},
    {.path = "scaling.nodes",
     .type = PS_OPTION_U64,
     .text = "1",
     .min = 1,
     .max = 1024,
     .offset = AT(scaling.nodes),
     .help = "Agents on this host, each of which plays a node."},
    {.path = "run.mode",
     .type = PS_OPTION_STRING,
     .check = check_mode,
     .offset = AT(run.mode),
     .help = "Mode of training, unless the program names one."},
    {.path = "run.placement",
     .type = PS_OPTION_STRING,
     .check = check_placement,
     .offset = AT(run.placement),
     .help = "Placement of keys on servers: balanced or mxnet."},
    {.path = "run.weight",
     .type = PS_OPTION_U64,
     .text = "0",
     .max = PS_JOB_WEIGHT_MAX,
     .offset = AT(run.weight),
     .help = "Share beside other jobs; 0 leaves it to the environment."},
    {.path = "run.env",
     .type = PS_OPTION_LIST,
     .form = PS_OPTION_PAIRS,
     .offset = AT(run.env),
     .help = "Variables of workers and servers."},
    {.path = "run.env_worker",
     .type = PS_OPTION_LIST,
     .form = PS_OPTION_PAIRS,
     .offset = AT(run.env_worker),
     .help = "Variables of workers alone."},
    {.path = "run.env_server",
     .type = PS_OPTION_LIST,
     .form = PS_OPTION_PAIRS,
     .offset = AT(run.env_server),
     .help = "Variables of servers alone."},
    {.path = "run.output",
     .type = PS_OPTION_ENUM,
     .text = "tagged",
     .enum_names = "tagged|plain",
     .offset = AT(run.output),
     .help = "Form of output: each line with the rank in front, or without."},
    {.path = "run.output_dir",
     .type = PS_OPTION_STRING,
     .offset = AT(run.output_dir),
     .help = "Folder for a log of each worker, too."},
    {.path = "run.sync_dst_dir",
     .type = PS_OPTION_STRING,
     .offset = AT(run.sync_dst_dir),
     .help = "Folder on each host to which the present one is copied first."},
    {.path = "run.log_level",
     .type = PS_OPTION_STRING,
     .text = "warning",
     .check = check_level,
     .offset = AT(run.log_level),
     .help = "Level of the log of its own daemons."},
    {.path = "failure.on_worker_loss",
     .type = PS_OPTION_STRING,
     .text = "fail",
     .check = check_loss,
     .offset = AT(failure.on_worker_loss),
     .help = "Behaviour of the others when a worker dies: fail or wait."},
    {.path = "failure.keep_going",
     .type = PS_OPTION_BOOL,
     .text = "false",
     .offset = AT(failure.keep_going),
     .help = "True: a worker that fails does not end the others."},
    {.path = "failure.grace",
     .type = PS_OPTION_DURATION,
     .text = "10s",
     .max = PS_SECONDS(1000000),
     .offset = AT(failure.grace),
     .help = "Time between TERM and KILL."},
    {.path = "failure.start_timeout",
     .type = PS_OPTION_DURATION,
     .text = "60s",
     .max = PS_SECONDS(1000000),
     .offset = AT(failure.start_timeout),
     .help = "Time until its own daemons must be ready."},
    {.path = "daemons.socket",
     .type = PS_OPTION_STRING,
     .offset = AT(daemons.socket),
     .help = "Socket of an agent that runs already, in place of its own "
             "daemons."},
    {.path = "daemons.private",
     .type = PS_OPTION_BOOL,
     .text = "false",
     .offset = AT(daemons.is_private),
     .help = "True: starts daemons even if an agent runs here already."},
    {.path = "daemons.tls",
     .type = PS_OPTION_ENUM,
     .text = "auto",
     .enum_names = "auto|on|off",
     .offset = AT(daemons.tls),
     .help = "Encryption of connections between its own daemons; auto is on "
             "for several hosts."},
    {.path = "daemons.insecure_network",
     .type = PS_OPTION_BOOL,
     .text = "false",
     .offset = AT(daemons.insecure_network),
     .help = "True: daemons on several hosts accept connections that are "
             "neither encrypted nor authenticated."},
    {.path = "container.image",
     .type = PS_OPTION_STRING,
     .offset = AT(container.image),
     .help = "Image of containers, for the launchers k8s and yarn."},
    {.path = "container.namespace",
     .type = PS_OPTION_STRING,
     .max = 63,
     .check = check_namespace,
     .offset = AT(container.space),
     .help = "Namespace of pods, for the launcher k8s."},
    {.path = "container.queue",
     .type = PS_OPTION_STRING,
     .offset = AT(container.queue),
     .help = "Queue of the service or jobs, for the launchers yarn and sge."},
    {.path = "container.cpus",
     .type = PS_OPTION_U64,
     .text = "1",
     .min = 1,
     .max = 4096,
     .offset = AT(container.cpus),
     .help = "Cores of each container."},
    {.path = "container.memory",
     .type = PS_OPTION_SIZE,
     .text = "2GiB",
     .min = 1024 * 1024,
     .offset = AT(container.memory),
     .help = "Memory of each container."},
};

static const struct ps_option_table tables[] = {
    {rows, PS_OPTION_COUNT(rows), 0}};

const struct ps_option_set job_set = {
    .program = "a job of pslaunch", .tables = tables, .table_count = 1};
