/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/options.h"

#include "base/limits.h"
#include "pslaunch/hosts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct job_options, member)

/* Modes of training, and their names in other systems. */
static bool check_mode(const char *value, struct ps_str *why)
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
        if (strcmp(value, modes[i]) == 0) {
            return true;
        }
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
     .flag = "--name JOB",
     .group = GROUP_TRAINING,
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
     .flag = "--launcher NAME",
     .group = GROUP_HOSTS,
     .type = PS_OPTION_STRING,
     .text = "auto",
     .offset = AT(launcher),
     .help = "Way to start processes on hosts: local, ssh, mpi, slurm, "
             "systemd, sge or k8s; auto is ssh if hosts are named, else "
             "local."},
    {.path = "hosts",
     .flag = "--hosts LIST",
     .group = GROUP_HOSTS,
     .type = PS_OPTION_LIST,
     .check = check_hosts,
     .offset = AT(hosts),
     .help = "Hosts, as in h1:4 or n[01-04]:8 with the number of workers that "
             "each may have."},
    {.path = "hostfile",
     .flag = "-H, --hostfile FILE",
     .group = GROUP_HOSTS,
     .type = PS_OPTION_STRING,
     .offset = AT(hostfile),
     .help = "File of hosts, one a line, in place of hosts."},
    {.path = "scaling.workers",
     .flag = "-n, --num-workers N",
     .group = GROUP_PROCESSES,
     .type = PS_OPTION_U64,
     .text = "0",
     .max = 4096,
     .offset = AT(scaling.workers),
     .help = "Training processes; 0 leaves the number to -n."},
    {.path = "scaling.servers",
     .flag = "-s, --num-servers N",
     .group = GROUP_PROCESSES,
     .type = PS_OPTION_U64,
     .text = "auto",
     .max = 256,
     .special = "auto",
     .special_value = JOB_SERVERS_AUTO,
     .offset = AT(scaling.servers),
     .help = "Servers; auto is the number of workers."},
    {.path = "scaling.nodes",
     .flag = "--nodes N",
     .group = GROUP_PROCESSES,
     .type = PS_OPTION_U64,
     .text = "1",
     .min = 1,
     .max = 1024,
     .offset = AT(scaling.nodes),
     .help = "Agents on this host, each of which plays a node."},
    {.path = "run.mode",
     .flag = "--mode NAME",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_STRING,
     .check = check_mode,
     .offset = AT(run.mode),
     .help = "Mode of training, unless the program names one."},
    {.path = "run.placement",
     .flag = "--placement balanced|mxnet",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_STRING,
     .check = check_placement,
     .offset = AT(run.placement),
     .help = "Placement of keys on servers: balanced or mxnet."},
    {.path = "run.weight",
     .flag = "--weight N",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_U64,
     .text = "0",
     .max = PS_JOB_WEIGHT_MAX,
     .offset = AT(run.weight),
     .help = "Share beside other jobs; 0 leaves it to the environment."},
    {.path = "run.replicas",
     .flag = "--replicas 1|2",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_U64,
     .text = "0",
     .max = PS_REPLICAS_MAX,
     .offset = AT(run.replicas),
     .help = "Servers with each value; 0 leaves it to the environment."},
    {.path = "run.env",
     .flag = "--env NAME[=VALUE]",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_LIST,
     .form = PS_OPTION_PAIRS,
     .offset = AT(run.env),
     .help = "Variables of workers and servers."},
    {.path = "run.env_worker",
     .flag = "--env-worker NAME[=VALUE]",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_LIST,
     .form = PS_OPTION_PAIRS,
     .offset = AT(run.env_worker),
     .help = "Variables of workers alone."},
    {.path = "run.env_server",
     .flag = "--env-server NAME[=VALUE]",
     .group = GROUP_TRAINING,
     .type = PS_OPTION_LIST,
     .form = PS_OPTION_PAIRS,
     .offset = AT(run.env_server),
     .help = "Variables of servers alone."},
    {.path = "run.output",
     .flag = "--output tagged|plain",
     .group = GROUP_OUTPUT,
     .type = PS_OPTION_ENUM,
     .text = "tagged",
     .enum_names = "tagged|plain",
     .offset = AT(run.output),
     .help = "Form of output: each line with the rank in front, or without."},
    {.path = "run.output_dir",
     .flag = "--output-dir DIR",
     .group = GROUP_OUTPUT,
     .type = PS_OPTION_STRING,
     .offset = AT(run.output_dir),
     .help = "Folder for a log of each worker, too."},
    {.path = "run.sync_dst_dir",
     .flag = "--sync-dst-dir DIR",
     .group = GROUP_HOSTS,
     .type = PS_OPTION_STRING,
     .offset = AT(run.sync_dst_dir),
     .help = "Folder on each host to which the present one is copied first."},
    {.path = "run.log_level",
     .flag = "--log-level LEVEL",
     .group = GROUP_OUTPUT,
     .type = PS_OPTION_STRING,
     .text = "warning",
     .check = check_level,
     .offset = AT(run.log_level),
     .help = "Level of the log of its own daemons."},
    {.path = "failure.on_worker_loss",
     .flag = "--on-loss wait|fail",
     .group = GROUP_FAILURES,
     .type = PS_OPTION_STRING,
     .text = "fail",
     .check = check_loss,
     .offset = AT(failure.on_worker_loss),
     .help = "Behaviour of the others when a worker dies: fail or wait."},
    {.path = "failure.keep_going",
     .flag = "--keep-going",
     .group = GROUP_FAILURES,
     .type = PS_OPTION_BOOL,
     .text = "false",
     .offset = AT(failure.keep_going),
     .help = "True: a worker that fails does not end the others."},
    {.path = "failure.grace",
     .flag = "--grace TIME",
     .group = GROUP_FAILURES,
     .type = PS_OPTION_DURATION,
     .text = "10s",
     .max = PS_SECONDS(1000000),
     .offset = AT(failure.grace),
     .help = "Time between TERM and KILL."},
    {.path = "failure.start_timeout",
     .flag = "--start-timeout TIME",
     .group = GROUP_FAILURES,
     .type = PS_OPTION_DURATION,
     .text = "60s",
     .max = PS_SECONDS(1000000),
     .offset = AT(failure.start_timeout),
     .help = "Time until its own daemons must be ready."},
    {.path = "daemons.socket",
     .flag = "--socket PATH",
     .group = GROUP_DAEMONS,
     .type = PS_OPTION_STRING,
     .offset = AT(daemons.socket),
     .help = "Socket of an agent that runs already, in place of its own "
             "daemons."},
    {.path = "daemons.private",
     .flag = "--private",
     .group = GROUP_DAEMONS,
     .type = PS_OPTION_BOOL,
     .text = "false",
     .offset = AT(daemons.is_private),
     .help = "True: starts daemons even if an agent runs here already."},
    {.path = "daemons.tls",
     .flag = "--tls auto|on|off",
     .group = GROUP_DAEMONS,
     .type = PS_OPTION_ENUM,
     .text = "auto",
     .enum_names = "auto|on|off",
     .offset = AT(daemons.tls),
     .help = "Encryption of connections between its own daemons; auto is on "
             "for several hosts."},
    {.path = "daemons.insecure_network",
     .flag = "--insecure-network",
     .group = GROUP_DAEMONS,
     .type = PS_OPTION_BOOL,
     .text = "false",
     .offset = AT(daemons.insecure_network),
     .help = "True: daemons on several hosts accept connections that are "
             "neither encrypted nor authenticated."},
    {.path = "container.image",
     .flag = "--image IMAGE",
     .group = GROUP_CONTAINERS,
     .type = PS_OPTION_STRING,
     .offset = AT(container.image),
     .help = "Image of containers, for the launchers k8s and yarn."},
    {.path = "container.namespace",
     .flag = "--namespace NAME",
     .group = GROUP_CONTAINERS,
     .type = PS_OPTION_STRING,
     .max = 63,
     .check = check_namespace,
     .offset = AT(container.space),
     .help = "Namespace of pods, for the launcher k8s."},
    {.path = "container.queue",
     .flag = "--queue NAME",
     .group = GROUP_CONTAINERS,
     .type = PS_OPTION_STRING,
     .offset = AT(container.queue),
     .help = "Queue of the service or jobs, for the launchers yarn and sge."},
    {.path = "container.cpus",
     .flag = "--cpus N",
     .group = GROUP_CONTAINERS,
     .type = PS_OPTION_U64,
     .text = "1",
     .min = 1,
     .max = 4096,
     .offset = AT(container.cpus),
     .help = "Cores of each container."},
    {.path = "container.memory",
     .flag = "--memory SIZE",
     .group = GROUP_CONTAINERS,
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

static const struct ps_option own_rows[OWN_OPTIONS] = {
    [OWN_DRY_RUN] = {.flag = "--dry-run",
                     .group = GROUP_PSLAUNCH,
                     .help = "Prints what would be started, and where."},
    [OWN_P3] = {.flag = "--p3",
                .group = GROUP_PSLAUNCH,
                .help = "Option of launch.py, without effect: priorities "
                        "always count."},
    [OWN_FILE] = {.flag = "--file FILE",
                  .group = GROUP_PSLAUNCH,
                  .help = "Job file in YAML, whatever its name; other options "
                          "replace its own."},
    [OWN_PRINT_CONFIG] = {.flag = "--print-config=defaults|schema",
                          .group = GROUP_PSLAUNCH,
                          .help = "Prints a job file of all defaults, or its "
                                  "JSON schema."},
    [OWN_HELP] = {.flag = "-h, --help",
                  .group = GROUP_PSLAUNCH,
                  .help = "Prints all options."},
    [OWN_VERSION] = {.flag = "-V, --version",
                     .group = GROUP_PSLAUNCH,
                     .help = "Prints the version."},
};

const struct ps_option *option_row(size_t i)
{
    size_t k = 0;

    for (; k < PS_OPTION_COUNT(rows); k++) {
        if (rows[k].flag != NULL && i-- == 0) {
            return &rows[k];
        }
    }
    return i < OWN_OPTIONS ? &own_rows[i] : NULL;
}

int option_own(const struct ps_option *row)
{
    return row >= own_rows && row < own_rows + OWN_OPTIONS
               ? (int)(row - own_rows)
               : -1;
}

struct option_name option_name(const struct ps_option *row)
{
    struct option_name n = {.word = row->flag};

    if (n.word[1] != '-') {
        n.letter = n.word[1];
        n.word += strlen("-x, ");
    }
    n.word += strlen("--");
    n.len = strcspn(n.word, " =");
    n.has_value = n.word[n.len] != '\0';
    return n;
}

/* --------------------------------------------------------------------- help */

#define HELP_WIDTH  77
#define NAME_COLUMN 13
#define HELP_COLUMN 27
/* How the help of a row begins that is true or false. */
#define TRUE_HELP   "True: "

static const char *const group_names[OPTION_GROUPS] = {
    [GROUP_PROCESSES] = "processes",   [GROUP_HOSTS] = "hosts",
    [GROUP_TRAINING] = "training",     [GROUP_OUTPUT] = "output",
    [GROUP_FAILURES] = "failures",     [GROUP_DAEMONS] = "daemons",
    [GROUP_CONTAINERS] = "containers", [GROUP_PSLAUNCH] = "pslaunch",
};

/* The options of a group, without what they are for. */
static void print_names(int group, FILE *out)
{
    const struct ps_option *row;
    size_t column = (size_t)fprintf(out, "%-*s", NAME_COLUMN,
                                    group_names[group]);

    for (size_t i = 0; (row = option_row(i)) != NULL; i++) {
        if (row->group != group) {
            continue;
        }
        if (column > NAME_COLUMN &&
            column + 2 + strlen(row->flag) > HELP_WIDTH) {
            fprintf(out, "\n%*s", NAME_COLUMN, "");
            column = NAME_COLUMN;
        }
        column += (size_t)fprintf(out, "%s%s", column > NAME_COLUMN ? "  " : "",
                                  row->flag);
    }
    fputs("\n", out);
}

void options_help(FILE *out)
{
    fputs("usage: pslaunch -n WORKERS [OPTION]... [--] COMMAND...\n"
          "       pslaunch JOB.yaml [OPTION]... [-- COMMAND...]\n"
          "\n"
          "Starts COMMAND once for every worker of a training job, with a "
          "psched,\n"
          "psservers and psworker-agents of its own unless an agent runs here\n"
          "already, and ends everything it started.\n"
          "\n",
          out);
    for (int g = 0; g < OPTION_GROUPS; g++) {
        print_names(g, out);
    }
    fputs("\n"
          "pslaunch help GROUP, OPTION or all: what they are for.\n"
          "The exit code is that of the first worker that failed (128 + "
          "signal).\n",
          out);
}

/* Prints words, with lines that begin in one column; returns the last column. */
static int print_wrapped(const char *text, int column)
{
    while (*text != '\0') {
        const int len = (int)strcspn(text, " ");

        if (column > HELP_COLUMN && column + 1 + len > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += printf("%s%.*s", column > HELP_COLUMN ? " " : "", len, text);
        text += len + (text[len] == ' ');
    }
    return column;
}

static void print_option(const struct ps_option *row)
{
    const bool is_flag = strncmp(row->help, TRUE_HELP, strlen(TRUE_HELP)) == 0;
    const char *help = row->help + (is_flag ? strlen(TRUE_HELP) : 0);
    int column = printf("%s%s", row->flag[1] == '-' ? "      " : "  ",
                        row->flag);

    if (column >= HELP_COLUMN) {
        putchar('\n');
        column = 0;
    }
    column += printf("%*s%c", HELP_COLUMN - column, "",
                     toupper((unsigned char)help[0]));
    column = print_wrapped(help + 1, column - 1);
    if (row->text != NULL && row->type != PS_OPTION_BOOL &&
        strcmp(row->text, "0") != 0) {
        column = print_wrapped("Default", column);
        print_wrapped(row->text, column);
        putchar('.');
    }
    putchar('\n');
}

static bool is_topic(const struct ps_option *row, const char *topic)
{
    const struct option_name n = option_name(row);
    const char *name = topic + strspn(topic, "-");

    return strcmp(topic, "all") == 0 ||
           strcmp(topic, group_names[row->group]) == 0 ||
           (strlen(name) == n.len && strncmp(name, n.word, n.len) == 0) ||
           (n.letter != 0 && name[0] == n.letter && name[1] == '\0');
}

bool options_help_of(const char *topic)
{
    const struct ps_option *row;
    bool found = false;

    for (int g = 0; g < OPTION_GROUPS; g++) {
        bool begun = false;

        for (size_t i = 0; (row = option_row(i)) != NULL; i++) {
            if (row->group == g && is_topic(row, topic)) {
                if (!begun) {
                    printf("%s%s\n", found ? "\n" : "", group_names[g]);
                }
                print_option(row);
                begun = true;
                found = true;
            }
        }
    }
    if (!found) {
        fprintf(stderr,
                "pslaunch: help %s: no such group or option; pslaunch --help "
                "lists all\n",
                topic);
    }
    return found;
}

/* --------------------------------------------------------------- completion */

static void complete_in_bash(const struct ps_option *row)
{
    const struct option_name n = option_name(row);

    printf(" --%.*s", (int)n.len, n.word);
}

static void complete_in_zsh(const struct ps_option *row)
{
    const struct option_name n = option_name(row);

    printf(" \\\n    '--%.*s%s[", (int)n.len, n.word, n.has_value ? "=" : "");
    for (const char *p = row->help; *p != '\0'; p++) {
        if (strchr("'[]:", *p) == NULL) {
            putchar(*p);
        }
    }
    printf(n.has_value ? "]:value:_files'" : "]'");
}

static void complete_in_fish(const struct ps_option *row)
{
    const struct option_name n = option_name(row);

    printf("complete -c pslaunch -l %.*s", (int)n.len, n.word);
    if (n.letter != 0) {
        printf(" -s %c", n.letter);
    }
    printf("%s -d \"%s\"\n", n.has_value ? " -r" : "", row->help);
}

bool options_completion(const char *shell)
{
    static const struct {
        const char *shell;
        const char *begin;
        void (*each)(const struct ps_option *row);
        const char *end;
    } scripts[] = {
        {"bash", "complete -o default -W '", complete_in_bash, "' pslaunch\n"},
        {"zsh", "_pslaunch() {\n  _arguments", complete_in_zsh,
         " \\\n    '*::command:_normal'\n}\ncompdef _pslaunch pslaunch\n"},
        {"fish", "", complete_in_fish, ""},
    };
    const struct ps_option *row;

    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        if (strcmp(scripts[i].shell, shell) == 0) {
            fputs(scripts[i].begin, stdout);
            for (size_t k = 0; (row = option_row(k)) != NULL; k++) {
                scripts[i].each(row);
            }
            fputs(scripts[i].end, stdout);
            return true;
        }
    }
    fputs("pslaunch: completion: give bash, zsh or fish\n", stderr);
    return false;
}

/* ------------------------------------------------- options of other launchers */

static const struct {
    const char *names; /* Separated by blanks; '-' also stands for '_'. */
    const char *instead;
} foreign_options[] = {
    {"np num-proc n-proc nproc-per-node npernode ppn perhost ntasks "
     "num-processes num-gpus",
     "instead: -n N, the processes of the whole job"},
    {"nnodes num-nodes num-machines",
     "instead: --hosts h1,h2; --nodes N plays N nodes on this host"},
    {"host", "instead: --hosts h1:4,h2:4"},
    {"machinefile nodelist f w", "instead: -H FILE, or --hosts h1:4,h2:4"},
    {"hostfile", "instead: --hostfile FILE"},
    {"ntasks-per-node slots-per-host npersocket N",
     "instead: the slots of each host, --hosts h1:4,h2:4"},
    {"cluster", "instead: --launcher NAME"},
    {"mpi", "instead: --launcher mpi"},
    {"gloo jsrun", "leave it out: --launcher says how processes start, and the "
                   "daemons carry the data"},
    {"standalone", "leave it out: without hosts the job runs here"},
    {"jobname job-name rdzv-id run-id J", "instead: --name JOB"},
    {"node-rank machine-rank rdzv-backend rdzv-endpoint rdzv-conf master-addr "
     "master-port local-addr main-process-ip main-process-port host-ip",
     "leave it out: one pslaunch starts all hosts of --hosts, and ranks find "
     "each other by it"},
    {"x genv genvlist export", "instead: --env NAME, or --env NAME=VALUE"},
    {"genvall envall", "instead: --env NAME for each variable; on this host "
                       "processes have all of them"},
    {"log-dir output-filename sge-log-dir outfile-pattern redirects tee r t",
     "instead: --output-dir DIR"},
    {"log-file", "instead: --output-dir DIR for ranks; daemons of a job log to "
                 "standard error"},
    {"tag-output prepend-rank l",
     "leave it out: each line has its rank, unless "
     "--output plain says otherwise"},
    {"timestamp-output prefix-output-with-timestamp",
     "leave it out: lines have ranks and no times"},
    {"verbose v log-with-timestamp log-hide-timestamp log-without-timestamp",
     "instead: --log-level info, for its daemons"},
    {"check-build cb",
     "instead: pslaunch --version; psched --version has what is built in"},
    {"config-file",
     "instead: --file JOB.yaml; pslaunch --print-config=defaults prints one"},
    {"timeline-filename",
     "instead: --env HOROVOD_TIMELINE=FILE, or psctl trace JOB"},
    {"timeline-mark-cycles", "instead: --env HOROVOD_TIMELINE_MARK_CYCLES=1"},
    {"stall-check-warning-time-seconds",
     "instead: --env PSKV_WAIT_NOTES=30s, or psctl stall"},
    {"no-stall-check", "instead: --env PSKV_WAIT_NOTES=0"},
    {"stall-check-shutdown-time-seconds gloo-timeout-seconds",
     "instead: --env PSKV_OP_TIMEOUT=60s"},
    {"fusion-threshold-mb cycle-time-ms cache-capacity disable-cache",
     "leave it out: small partitions share frames, and nothing waits for a "
     "cycle"},
    {"autotune autotune-log-file autotune-warmup-samples "
     "autotune-steps-per-sample autotune-bayes-opt-max-samples "
     "autotune-gaussian-process-noise no-autotune",
     "leave it out: nothing has to be tuned"},
    {"hierarchical-allreduce no-hierarchical-allreduce hierarchical-allgather "
     "no-hierarchical-allgather torus-allreduce",
     "leave it out: agents add up the ranks of a node in any case"},
    {"num-nccl-streams thread-affinity tcp mpi-args mpi-threads-disable "
     "binding-args",
     "leave it out: no MPI and no NCCL carries the data"},
    {"mca btl oob prefix",
     "leave it out: no MPI carries the data; --launcher mpi starts by mpirun"},
    {"network-interface network-interfaces iface",
     "leave it out: an interface is advertise.interface of psserver, or the "
     "addresses of --hosts"},
    {"ssh-port ssh-identity-file p i",
     "instead: Port and IdentityFile of the host in ~/.ssh/config"},
    {"max-restarts elastic-timeout reset-limit min-np max-np min-num-proc "
     "max-num-proc host-discovery-script blacklist-cooldown-range "
     "cooldown-range local-num-attempt monitor-interval enable-recovery",
     "the number of ranks is fixed, and none starts again; with --keep-going "
     "--on-loss wait the others wait for a process that takes the rank"},
    {"m module", "instead: -- python3 -m MODULE"},
    {"no-python", "leave it out: the command is run as it is"},
    {"run-path start-method role use-env local-ranks-filter logs-specs "
     "event-log-handler signals-to-handle virtual-local-rank numa-binding",
     "leave it out: it is of torchrun's own processes"},
    {"wdir wd chdir preload-files files archives auto-file-cache",
     "instead: cd before pslaunch; --sync-dst-dir DIR copies this folder to "
     "hosts"},
    {"bind-to map-by rank-by bynode byslot bycore report-bindings cpu-set numa",
     "leave it out: ranks go to hosts in turn; taskset or numactl in front of "
     "the command binds them"},
    {"oversubscribe nooversubscribe allow-run-as-root",
     "leave it out: nothing forbids it here"},
    {"timeout time", "instead: timeout 1h pslaunch ..."},
    {"display-map display-allocation", "instead: --dry-run"},
    {"worker-cores server-cores cpus-per-task",
     "instead: --cpus N, of each container"},
    {"worker-memory server-memory mem",
     "instead: --memory SIZE, of each container"},
    {"kube-namespace", "instead: --namespace NAME"},
    {"kube-worker-image kube-server-image", "instead: --image IMAGE"},
    {"kube-worker-template kube-server-template yarn-app-classpath "
     "yarn-app-dir hdfs-tempdir mesos-master ship-libcxx",
     "leave it out: --dry-run --launcher k8s or yarn prints the definition, to "
     "be changed and submitted"},
    {"slurm-worker-nodes slurm-server-nodes partition gres gpus account "
     "exclusive",
     "instead: options of salloc or sbatch, and --launcher slurm within"},
    {"duplicate-stdout-filters duplicate-stderr-filters stdin "
     "merge-stderr-to-stdout",
     "leave it out: standard input is empty, and the two outputs stay apart"},
};

/* True if `name` is one of the words in `names`. */
static bool is_among(const char *names, const char *name, size_t len)
{
    while (*names != '\0') {
        const size_t word = strcspn(names, " ");
        size_t same = 0;

        while (word == len && same < len &&
               (names[same] == name[same] ||
                (names[same] == '-' && name[same] == '_'))) {
            same++;
        }
        if (word == len && same == len) {
            return true;
        }
        names += word + strspn(names + word, " ");
    }
    return false;
}

const char *job_foreign_option(const char *word)
{
    const char *name = word + strspn(word, "-");
    const size_t len = strcspn(name, "=");

    for (size_t i = 0; i < sizeof(foreign_options) / sizeof(foreign_options[0]);
         i++) {
        if (is_among(foreign_options[i].names, name, len)) {
            return foreign_options[i].instead;
        }
    }
    return NULL;
}
