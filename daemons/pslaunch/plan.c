/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of pslaunch. */
#include "pslaunch/plan.h"

#include "base/file_check.h"
#include "base/limits.h"
#include "base/nearest.h"
#include "base/str.h"
#include "base/variables.h"
#include "pslaunch/job_file.h"
#include "pslaunch/job_options.h"
#include "pslaunch/launcher.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Of an agent that runs here already. */
static char default_socket[PS_SOCKET_PATH_MAX + 1];

static const char usage[] =
    "usage: pslaunch -n WORKERS [options] [--] COMMAND...\n"
    "       pslaunch JOB.yaml [options] [-- COMMAND...]\n"
    "\n"
    "Starts COMMAND once for every worker of a training job, with a psched,\n"
    "psservers and psworker-agents of its own unless an agent runs here\n"
    "already, and ends everything it started.\n"
    "\n"
    "  -n, --num-workers N      training processes\n"
    "  -s, --num-servers N      servers (default: N of -n; 0: none, one node)\n"
    "      --nodes N            agents, as if there were N nodes (default 1)\n"
    "  -H, --hostfile FILE      hosts, one a line (NAME [slots=N] [port=N])\n"
    "      --hosts LIST         hosts, as in h1:4,h2:4 or n[01-04]:8\n"
    "      --launcher NAME      local, ssh, mpi, slurm, systemd, sge, k8s\n"
    "                           (default: ssh if hosts are named, else "
    "local)\n"
    "      --image IMAGE        of containers (k8s)\n"
    "      --namespace NAME     of pods (k8s)\n"
    "      --queue NAME         of jobs (sge)\n"
    "      --cpus N, --memory SIZE    of each container (default 1 and 2GiB)\n"
    "      --sync-dst-dir DIR   copy this folder to DIR on each host first\n"
    "      --tls auto|on|off    encrypt connections of its own daemons "
    "(default\n"
    "                           auto: on several hosts, not within this one)\n"
    "      --insecure-network   let daemons on hosts accept connections that\n"
    "                           are neither encrypted nor authenticated\n"
    "      --name JOB           name of the job (default job-PID)\n"
    "      --env NAME[=VALUE]   set or pass a variable (NAME:VALUE is\n"
    "                           understood)\n"
    "      --env-worker NAME[=VALUE]    the same for workers alone\n"
    "      --env-server NAME[=VALUE]    the same for servers alone\n"
    "      --on-loss wait|fail  when a worker dies (default fail)\n"
    "      --mode NAME          dist_sync, dist_async, dist_ssp\n"
    "      --placement balanced|mxnet\n"
    "      --weight N           share beside other jobs, 1 to 1000 (default "
    "100)\n"
    "      --socket PATH        use the agent behind this socket\n"
    "      --private            never use an agent that runs here already\n"
    "      --output tagged|plain    rank in front of each line (default "
    "tagged)\n"
    "      --output-dir DIR     also write each rank's output to "
    "DIR/rank-N.log\n"
    "      --grace TIME         between TERM and KILL, e.g. 10s (default)\n"
    "      --start-timeout TIME for the daemons to be ready (default 60s)\n"
    "      --keep-going         a failing worker does not end the others\n"
    "      --p3                 of launch.py: priorities always count here\n"
    "      --log-level LEVEL    of the daemons (default warning)\n"
    "      --dry-run            print what would be started, and where\n"
    "      --file FILE          job file in YAML; other options replace its "
    "own\n"
    "      --print-config=defaults|schema    print a job file of all defaults\n"
    "  -h, --help   -V, --version\n"
    "\n"
    "The exit code is that of the first worker that failed (128 + signal).\n";

enum {
    OPT_NODES = 256,
    OPT_HOSTS,
    OPT_TLS,
    OPT_INSECURE_NETWORK,
    OPT_SYNC_DST_DIR,
    OPT_LAUNCHER,
    OPT_NAME,
    OPT_ENV,
    OPT_ENV_WORKER,
    OPT_ENV_SERVER,
    OPT_ON_LOSS,
    OPT_PLACEMENT,
    OPT_MODE,
    OPT_WEIGHT,
    OPT_SOCKET,
    OPT_PRIVATE,
    OPT_OUTPUT,
    OPT_OUTPUT_DIR,
    OPT_GRACE,
    OPT_START_TIMEOUT,
    OPT_KEEP_GOING,
    OPT_P3,
    OPT_LOG_LEVEL,
    OPT_DRY_RUN,
    OPT_FILE,
    OPT_PRINT_CONFIG,
    OPT_IMAGE,
    OPT_NAMESPACE,
    OPT_QUEUE,
    OPT_CPUS,
    OPT_MEMORY,
};

/* The '+': the first word that is no option ends them. The ':': a value that is
 * missing is told from an option that is none. */
static const char short_options[] = "+:n:s:H:hV";

static const struct option options[] = {
    {"num-workers", required_argument, NULL, 'n'},
    {"num-servers", required_argument, NULL, 's'},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"hostfile", required_argument, NULL, 'H'},
    {"host-file", required_argument, NULL, 'H'},
    {"hosts", required_argument, NULL, OPT_HOSTS},
    {"tls", required_argument, NULL, OPT_TLS},
    {"insecure-network", no_argument, NULL, OPT_INSECURE_NETWORK},
    {"sync-dst-dir", required_argument, NULL, OPT_SYNC_DST_DIR},
    {"launcher", required_argument, NULL, OPT_LAUNCHER},
    {"name", required_argument, NULL, OPT_NAME},
    {"env", required_argument, NULL, OPT_ENV},
    {"env-worker", required_argument, NULL, OPT_ENV_WORKER},
    {"env-server", required_argument, NULL, OPT_ENV_SERVER},
    {"on-loss", required_argument, NULL, OPT_ON_LOSS},
    {"placement", required_argument, NULL, OPT_PLACEMENT},
    {"mode", required_argument, NULL, OPT_MODE},
    {"weight", required_argument, NULL, OPT_WEIGHT},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"private", no_argument, NULL, OPT_PRIVATE},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"output-dir", required_argument, NULL, OPT_OUTPUT_DIR},
    {"grace", required_argument, NULL, OPT_GRACE},
    {"start-timeout", required_argument, NULL, OPT_START_TIMEOUT},
    {"keep-going", no_argument, NULL, OPT_KEEP_GOING},
    {"p3", no_argument, NULL, OPT_P3},
    {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"file", required_argument, NULL, OPT_FILE},
    {"image", required_argument, NULL, OPT_IMAGE},
    {"namespace", required_argument, NULL, OPT_NAMESPACE},
    {"queue", required_argument, NULL, OPT_QUEUE},
    {"cpus", required_argument, NULL, OPT_CPUS},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"print-config", required_argument, NULL, OPT_PRINT_CONFIG},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static bool parse_count(const char *text, const char *what, uint32_t most,
                        uint32_t *ret)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (end == text || *end != '\0' || text[0] == '-' || n > most) {
        fprintf(stderr, "pslaunch: %s '%s': give a number from 0 to %u\n", what,
                text, most);
        return false;
    }
    *ret = (uint32_t)n;
    return true;
}

static bool parse_time(const char *text, const char *what, uint64_t *ret_ms)
{
    char *end;
    double n = strtod(text, &end);

    if (end != text && n >= 0 && n < 1e6) {
        if (strcmp(end, "ms") == 0) {
            *ret_ms = (uint64_t)n;
            return true;
        }
        if (strcmp(end, "s") == 0) {
            *ret_ms = (uint64_t)(n * 1000);
            return true;
        }
        if (strcmp(end, "m") == 0) {
            *ret_ms = (uint64_t)(n * 60000);
            return true;
        }
    }
    fprintf(stderr, "pslaunch: %s '%s': give a time such as 500ms, 10s, 2m\n",
            what, text);
    return false;
}

static bool parse_one_of(const char *text, const char *what, const char *first,
                         const char *second)
{
    if (strcmp(text, first) == 0 || strcmp(text, second) == 0) {
        return true;
    }
    fprintf(stderr, "pslaunch: %s '%s': give %s or %s\n", what, text, first,
            second);
    return false;
}

/* Parses NAME=VALUE, NAME:VALUE of older scripts, or NAME alone, which passes
 * pslaunch's own value. */
static bool add_variable(struct variables *v, const char *option,
                         const char *text)
{
    size_t len = strcspn(text, "=:");
    char *copy;

    if (len == 0) {
        fprintf(stderr, "pslaunch: %s '%s': give NAME=VALUE\n", option, text);
        return false;
    }
    if (text[len] == '\0') {
        const char *value = getenv(text);

        if (value == NULL) {
            fprintf(stderr,
                    "pslaunch: %s %s: this variable is not set here; set it, "
                    "give %s=VALUE, or leave it out\n",
                    option, text, text);
            return false;
        }
        if (asprintf(&copy, "%s=%s", text, value) < 0) {
            return false;
        }
    } else if (asprintf(&copy, "%.*s=%s", (int)len, text, text + len + 1) < 0) {
        return false;
    }
    v->items = realloc(v->items, (v->count + 2) * sizeof(*v->items));
    if (v->items == NULL) {
        return false;
    }
    v->items[v->count++] = copy;
    v->items[v->count] = NULL;
    return true;
}

/* `what` names the option or variable. */
static bool set_tls(struct plan *p, const char *what, const char *text)
{
    static const char *const names[] = {
        [TLS_AUTO] = "auto", [TLS_ON] = "on", [TLS_OFF] = "off"};

    for (int i = TLS_AUTO; i <= TLS_OFF; i++) {
        if (strcmp(text, names[i]) == 0) {
            p->tls = (enum tls_choice)i;
            return true;
        }
    }
    fprintf(stderr, "pslaunch: %s '%s': give auto, on or off\n", what, text);
    return false;
}

static bool set_launcher(struct plan *p, const char *name)
{
    if (strcmp(name, "auto") == 0) {
        p->launcher = NULL;
        return true;
    }
    p->launcher = launcher_find(name);
    if (p->launcher == NULL) {
        fprintf(stderr, "pslaunch: --launcher '%s': give auto, %s\n", name,
                launcher_names());
        return false;
    }
    return true;
}

static bool set_hosts(struct plan *p, const char *option, const char *text)
{
    char error[HOSTS_TEXT_MAX];
    int rc;

    if (p->hosts.count > 0) {
        fputs("pslaunch: give one list of hosts, by -H or by --hosts\n",
              stderr);
        return false;
    }
    rc = strcmp(option, "--hosts") == 0 ? hosts_parse(text, &p->hosts, error)
                                        : hosts_read(text, &p->hosts, error);
    if (rc != 0) {
        fprintf(stderr, "pslaunch: %s: %s\n", option, error);
        return false;
    }
    return true;
}

static bool check_mode(const char *name)
{
    if (job_is_mode(name)) {
        return true;
    }
    fprintf(stderr,
            "pslaunch: --mode: %s is none of dist_sync, dist_async, dist_ssp "
            "and their other names\n",
            name);
    return false;
}

/* Long options that begin with the name: "--hosts, --hostfile". Returns their
 * number. */
static uint32_t list_longer(const char *name, size_t len, struct ps_str *list)
{
    uint32_t count = 0;

    for (const struct option *o = options; o->name != NULL; o++) {
        if (strncmp(o->name, name, len) == 0) {
            ps_str_addf(list, "%s--%s", count == 0 ? "" : ", ", o->name);
            count++;
        }
    }
    return count;
}

/* The long option that `name` may be a misspelling of; NULL: none. */
static const char *nearest_option(const char *name)
{
    const char *names[sizeof(options) / sizeof(options[0])];
    size_t count = 0;

    while (options[count].name != NULL) {
        names[count] = options[count].name;
        count++;
    }
    names[count] = NULL;
    return ps_nearest(names, name);
}

/* Reports a word that getopt_long() does not take, with the option that the user
 * may mean. */
static void report_option_error(const char *word)
{
    const char *name = word + strspn(word, "-");
    const size_t len = strcspn(name, "=");
    const int shown = (int)(len + (size_t)(name - word));
    const char *instead = job_foreign_option(word);
    char text[512];
    struct ps_str list;
    char *alone;

    if (instead != NULL) {
        fprintf(stderr, "pslaunch: no option %.*s here; %s\n", shown, word,
                instead);
        return;
    }
    ps_str_init(&list, text, sizeof(text));
    if (len > 0 && list_longer(name, len, &list) > 1) {
        fprintf(stderr, "pslaunch: %.*s is short for several options: %s\n",
                shown, word, text);
        return;
    }
    alone = strndup(name, len);
    instead = alone != NULL ? nearest_option(alone) : NULL;
    free(alone);
    if (instead != NULL && len > 1) {
        fprintf(stderr, "pslaunch: no option %.*s; did you mean --%s?\n", shown,
                word, instead);
        return;
    }
    fprintf(stderr, "pslaunch: no option %.*s; pslaunch --help lists all\n",
            shown, word);
}

/* True for a long option with one dash, as of mpirun, which would be read as
 * options of one letter: -np as -n with the value "p". */
static bool is_long_with_one_dash(const char *word)
{
    if (word[0] != '-' || word[1] == '-' || word[1] == '\0' ||
        word[2] == '\0') {
        return false;
    }
    for (const struct option *o = options; o->name != NULL; o++) {
        if (strcmp(o->name, word + 1) == 0) {
            return true;
        }
    }
    return job_foreign_option(word) != NULL;
}

static bool parse_memory(const char *text, uint64_t *ret_mib)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (end != text && n > 0 && n < 1000000 &&
        (strcmp(end, "MiB") == 0 || strcmp(end, "GiB") == 0)) {
        *ret_mib = end[0] == 'G' ? (uint64_t)n * 1024 : n;
        return true;
    }
    fprintf(stderr, "pslaunch: --memory '%s': give a size such as 4GiB\n",
            text);
    return false;
}

static bool parse_namespace(const char *text, const char **ret_space)
{
    if (text[0] != '\0' &&
        text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0') {
        *ret_space = text;
        return true;
    }
    fprintf(stderr,
            "pslaunch: --namespace '%s': it has small letters, digits and "
            "'-'\n",
            text);
    return false;
}

/* Options of containers. */
static bool parse_container_option(struct plan *p, int c)
{
    switch (c) {
    case OPT_IMAGE:
        p->container.image = optarg;
        return true;
    case OPT_NAMESPACE:
        return parse_namespace(optarg, &p->container.space);
    case OPT_QUEUE:
        p->container.queue = optarg;
        return true;
    case OPT_CPUS:
        return parse_count(optarg, "--cpus", 4096, &p->container.cpus);
    case OPT_MEMORY:
        return parse_memory(optarg, &p->container.memory_mib);
    default:
        return false;
    }
}

/* Options of places. */
static bool parse_host_option(struct plan *p, int c)
{
    switch (c) {
    case OPT_LAUNCHER:
        return set_launcher(p, optarg);
    case 'H':
        return set_hosts(p, "-H", optarg);
    case OPT_HOSTS:
        return set_hosts(p, "--hosts", optarg);
    case OPT_TLS:
        return set_tls(p, "--tls", optarg);
    case OPT_INSECURE_NETWORK:
        p->network = NETWORK_INSECURE;
        return true;
    case OPT_SYNC_DST_DIR:
        p->sync_dir = optarg;
        return true;
    case OPT_FILE: /* It has been read before the options. */
        return true;
    default:
        return parse_container_option(p, c);
    }
}

static bool parse_option(struct plan *p, int c)
{
    switch (c) {
    case 'n':
        return parse_count(optarg, "-n", 4096, &p->workers);
    case 's':
        return parse_count(optarg, "-s", 256, &p->servers);
    case OPT_NODES:
        return parse_count(optarg, "--nodes", 1024, &p->nodes);
    case OPT_NAME:
        if (strlen(optarg) == 0 || strlen(optarg) > 64) {
            fprintf(stderr, "pslaunch: --name: 1 to 64 bytes\n");
            return false;
        }
        p->name = optarg;
        return true;
    case OPT_ENV:
        return add_variable(&p->env, "--env", optarg);
    case OPT_ENV_WORKER:
        return add_variable(&p->worker_env, "--env-worker", optarg);
    case OPT_ENV_SERVER:
        return add_variable(&p->server_env, "--env-server", optarg);
    case OPT_ON_LOSS:
        p->on_loss = optarg;
        return parse_one_of(optarg, "--on-loss", "wait", "fail");
    case OPT_PLACEMENT:
        p->placement = optarg;
        return parse_one_of(optarg, "--placement", "balanced", "mxnet");
    case OPT_MODE:
        p->mode = optarg;
        return check_mode(optarg);
    case OPT_WEIGHT:
        return parse_count(optarg, "--weight", PS_JOB_WEIGHT_MAX, &p->weight);
    case OPT_SOCKET:
        p->socket = optarg;
        return true;
    case OPT_PRIVATE:
        p->private_trio = true;
        return true;
    case OPT_OUTPUT:
        p->output = strcmp(optarg, "plain") == 0 ? OUTPUT_PLAIN : OUTPUT_TAGGED;
        return parse_one_of(optarg, "--output", "tagged", "plain");
    case OPT_OUTPUT_DIR:
        p->output_dir = optarg;
        return true;
    case OPT_GRACE:
        return parse_time(optarg, "--grace", &p->grace_ms);
    case OPT_START_TIMEOUT:
        return parse_time(optarg, "--start-timeout", &p->start_timeout_ms);
    case OPT_KEEP_GOING:
        p->keep_going = true;
        return true;
    case OPT_P3: /* Priorities always count. */
        return true;
    case OPT_LOG_LEVEL:
        p->log_level = optarg;
        return true;
    case OPT_DRY_RUN:
        p->dry_run = true;
        return true;
    default:
        return parse_host_option(p, c);
    }
}

/* Lets a shell split a command that is one quoted string. */
static void split_command(struct plan *p)
{
    static char shell[] = "/bin/sh";
    static char option[] = "-c";
    static char *words[4] = {shell, option};

    if (p->command[1] == NULL && strpbrk(p->command[0], " \t\n") != NULL) {
        words[2] = p->command[0];
        p->command = words;
    }
}

static int check_plan(struct plan *p)
{
    if (p->workers == 0) {
        fputs("pslaunch: -n WORKERS is needed, at least 1\n", stderr);
        return EXIT_USAGE;
    }
    if (p->servers == UINT32_MAX) {
        p->servers = p->workers < 256 ? p->workers : 256;
    }
    if (p->nodes == 0 || p->nodes > p->workers) {
        fprintf(stderr,
                "pslaunch: --nodes %u: give 1 to %u, one worker each "
                "at least\n",
                p->nodes, p->workers);
        return EXIT_USAGE;
    }
    if (p->servers == 0 && p->nodes > 1) {
        fputs("pslaunch: -s 0 starts no server, which needs --nodes 1\n",
              stderr);
        return EXIT_USAGE;
    }
    if (p->command == NULL || p->command[0] == NULL) {
        fputs("pslaunch: no command to run; it goes last, behind --\n", stderr);
        return EXIT_USAGE;
    }
    split_command(p);
    return 0;
}

/* Takes the hosts of an allocation, unless the user names others. */
static bool take_hosts_variable(struct plan *p)
{
    const char *name = p->launcher->hosts_variable;

    return name == NULL || p->hosts.count > 0 || getenv(name) == NULL ||
           set_hosts(p, "--hosts", getenv(name));
}

/* Lets the launcher fill the list of hosts. */
static bool make_hosts(struct plan *p)
{
    if (p->launcher->define != NULL &&
        (p->hosts.count > 0 || p->sync_dir != NULL || p->socket != NULL)) {
        fprintf(stderr,
                "pslaunch: the launcher %s takes neither hosts nor "
                "--sync-dst-dir nor --socket: its hosts are containers\n",
                p->launcher->name);
        return false;
    }
    return p->launcher->make_hosts(p);
}

/* Takes the agent of this host, if it is for this user. */
static void find_agent(struct plan *p)
{
    char text[256];
    struct ps_str why;

    if (access(default_socket, W_OK) == 0) {
        p->socket = default_socket;
    } else if (errno == EACCES) {
        ps_str_init(&why, text, sizeof(text));
        ps_file_add_group(default_socket, &why);
        fprintf(stderr,
                "pslaunch: this user may not use the agent at %s, and the job "
                "gets daemons of its own%s\n",
                default_socket, text);
    }
}

/* Chooses the launcher and the agent. */
static int check_hosts(struct plan *p)
{
    if (p->launcher == NULL) {
        p->launcher = p->hosts.count > 0 ? &launcher_ssh : &launcher_local;
    }
    if (p->launcher->make_hosts != NULL && !make_hosts(p)) {
        return EXIT_USAGE;
    }
    if (p->hosts.count > 0 && p->nodes > 1) {
        fputs("pslaunch: --nodes plays nodes on this host; with a list of "
              "hosts, each is a node\n",
              stderr);
        return EXIT_USAGE;
    }
    if (!take_hosts_variable(p)) {
        return EXIT_USAGE;
    }
    if ((p->hosts.count > 0) != p->launcher->uses_hosts) {
        fprintf(stderr, "pslaunch: the launcher %s %s\n", p->launcher->name,
                p->launcher->uses_hosts
                    ? "needs hosts: -H FILE, or --hosts h1,h2"
                    : "is for this host alone, without a list of hosts");
        return EXIT_USAGE;
    }
    if (p->sync_dir != NULL && !p->launcher->uses_hosts) {
        fputs("pslaunch: --sync-dst-dir: nothing is copied on one host\n",
              stderr);
        return EXIT_USAGE;
    }
    ps_runtime_socket("agent.sock", default_socket, sizeof(default_socket));
    if (p->private_trio) {
        p->socket = NULL;
    } else if (p->socket == NULL && p->hosts.count == 0 && p->nodes == 1) {
        find_agent(p);
    }
    if (p->socket != NULL && p->nodes > 1) {
        fputs("pslaunch: --socket is one node: --nodes needs daemons of our "
              "own\n",
              stderr);
        return EXIT_USAGE;
    }
    return 0;
}

/* Decides which host runs which process. */
static int lay_out(struct plan *p)
{
    const struct layout_counts n = {
        .workers = p->workers, .servers = p->servers, .nodes = p->nodes};
    char error[HOSTS_TEXT_MAX];

    if (p->hosts.count == 0) {
        layout_local(&n, &p->layout);
        return 0;
    }
    if (layout_hosts(&n, &p->hosts, &p->layout, error) != 0) {
        fprintf(stderr, "pslaunch: %s\n", error);
        return EXIT_USAGE;
    }
    if (p->servers == 0 && plan_has_daemons(p) && p->layout.node_count > 1) {
        fprintf(stderr,
                "pslaunch: -s 0 starts no server, which needs one host for "
                "all workers, not %u\n",
                p->layout.node_count);
        return EXIT_USAGE;
    }
    return 0;
}

/* Refuses options that contradict each other. */
static int check_tls_options(const struct plan *p)
{
    if (p->tls == TLS_ON && p->network == NETWORK_INSECURE) {
        fputs("pslaunch: --tls on encrypts what --insecure-network leaves "
              "plain; give one of them\n",
              stderr);
        return EXIT_USAGE;
    }
    if (p->tls == TLS_ON && p->socket != NULL) {
        fprintf(stderr,
                "pslaunch: --tls is for daemons of its own, and the workers "
                "would use the agent at %s; say --private\n",
                p->socket);
        return EXIT_USAGE;
    }
    return 0;
}

/* Chooses whether connections are encrypted. A job on several hosts without
 * that demands a word of the user. */
static int check_tls(struct plan *p)
{
    const char *given = getenv("PSKV_LAUNCH_TLS");
    int rc = check_tls_options(p);

    if (rc != 0 || !plan_has_daemons(p)) {
        return rc;
    }
    if (p->network == NETWORK_INSECURE && p->launcher->uses_hosts) {
        p->tls = TLS_OFF;
    } else if (p->tls == TLS_UNSTATED && given != NULL &&
               !set_tls(p, "PSKV_LAUNCH_TLS", given)) {
        return EXIT_USAGE;
    }
    if (p->tls == TLS_OFF && p->launcher->uses_hosts &&
        p->network == NETWORK_UNSTATED) {
        fputs("pslaunch: without TLS the daemons of a job on several hosts "
              "accept connections that are neither encrypted nor "
              "authenticated: every host that reaches their ports can read "
              "and change the job; leave --tls and PSKV_LAUNCH_TLS at auto, "
              "or, on a network that you trust, say --insecure-network\n",
              stderr);
        return EXIT_USAGE;
    }
    return 0;
}

/* Refuses to start as one of several tasks of another launcher: each would start
 * a job of its own. A script of sbatch has SLURM_NTASKS, but is no task of
 * srun. */
static int check_alone(void)
{
    static const struct {
        const char *launcher;
        const char *size;
    } others[] = {
        {"mpirun", "OMPI_COMM_WORLD_SIZE"},
        {"srun", "SLURM_STEP_NUM_TASKS"},
        {"mpirun", "PMI_SIZE"},
    };

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        const char *text = getenv(others[i].size);
        unsigned long n = text != NULL ? strtoul(text, NULL, 10) : 0;

        if (n > 1) {
            fprintf(stderr,
                    "pslaunch: %s has started this %lu times (%s), and each "
                    "would start a job of its own; start pslaunch once, or "
                    "let %s start the workers themselves, which find their "
                    "job; if %lu jobs are wanted, unset %s\n",
                    others[i].launcher, n, others[i].size, others[i].launcher,
                    n, others[i].size);
            return EXIT_USAGE;
        }
    }
    return 0;
}

/* Warns about variables in `env` that no worker reads. */
static void warn_unknown_variables(char *const *env)
{
    const char *near = NULL;
    const char *entry;
    size_t cursor = 0;

    while ((entry = ps_variables_unknown(env, &cursor, &near)) != NULL) {
        fprintf(stderr,
                "pslaunch: %.*s has no effect, there is no such "
                "variable%s%s%s\n",
                (int)strcspn(entry, "="), entry,
                near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "");
    }
}

/* Job file of a command line: that of --file, or the first word that is no
 * option, if it has the name of one. NULL: none. */
static char *find_job_file(int argc, char **argv)
{
    char *found = NULL;
    int c;

    while ((c = getopt_long(argc, argv, short_options, options, NULL)) != -1 &&
           c != '?' && c != ':') {
        found = c == OPT_FILE ? optarg : found;
    }
    if (c == -1 && found == NULL && optind < argc &&
        strcmp(argv[optind - 1], "--") != 0 && job_file_is_name(argv[optind])) {
        found = argv[optind];
    }
    optind = 0; /* From the first word again. */
    return found;
}

/* Prints what an option asks for in place of a job. Returns true if it is
 * such an option, with the exit code; -1: success. */
static bool print_instead(int option, int *ret_code)
{
    switch (option) {
    case 'h':
        fputs(usage, stdout);
        break;
    case 'V':
        puts("pslaunch " PSKV_VERSION);
        break;
    case OPT_PRINT_CONFIG:
        *ret_code = job_file_print(optarg) ? -1 : EXIT_USAGE;
        return true;
    default:
        return false;
    }
    *ret_code = -1;
    return true;
}

/* Reads the options up to the command; `file`: the job file among the words.
 * Returns 0, an exit code, or -1. */
static int parse_options(struct plan *p, int argc, char **argv,
                         const char *file)
{
    int code = 0;

    for (;;) {
        const int at = optind > 0 ? optind : 1;
        const char *word = at < argc ? argv[at] : "";
        int c;

        if (is_long_with_one_dash(word)) {
            report_option_error(word);
            return EXIT_USAGE;
        }
        c = getopt_long(argc, argv, short_options, options, NULL);
        if (c == -1 && optind < argc && argv[optind] == file) {
            optind++; /* Options may follow it. */
            continue;
        }
        if (c == -1) {
            return 0;
        }
        if (c == ':') {
            fprintf(stderr, "pslaunch: %s needs a value\n", word);
            return EXIT_USAGE;
        }
        if (c == '?' && optopt >= OPT_NODES) { /* It is known. */
            fprintf(stderr, "pslaunch: %s: this option takes no value\n", word);
            return EXIT_USAGE;
        }
        if (c == '?') {
            report_option_error(word);
            return EXIT_USAGE;
        }
        if (print_instead(c, &code)) {
            return code;
        }
        if (!parse_option(p, c)) {
            return EXIT_USAGE;
        }
    }
}

int plan_parse(int argc, char **argv, struct plan *ret_plan)
{
    struct plan *p = ret_plan;
    const char *file;
    int c;

    *p = (struct plan){.servers = UINT32_MAX,
                       .nodes = 1,
                       .on_loss = "fail",
                       .placement = NULL,
                       .socket = NULL,
                       .log_level = "warning",
                       .container = {.cpus = 1, .memory_mib = 2048},
                       .grace_ms = 10000,
                       .start_timeout_ms = 60000};
    snprintf(p->name_buffer, sizeof(p->name_buffer), "job-%d", (int)getpid());
    p->name = p->name_buffer;
    opterr = 0; /* getopt's own texts would begin with the program's path. */
    file = find_job_file(argc, argv);
    c = file != NULL ? job_file_read(file, p) : 0;
    if (c == 0) {
        c = parse_options(p, argc, argv, file);
    }
    if (c != 0) {
        return c;
    }
    p->command = argv + optind;
    c = job_file_complete(p);
    warn_unknown_variables(environ);
    warn_unknown_variables(p->env.items);
    warn_unknown_variables(p->worker_env.items);
    if (c == 0) {
        c = check_alone();
    }
    if (c == 0) {
        c = check_plan(p);
    }
    if (c == 0) {
        c = check_hosts(p);
    }
    if (c == 0) {
        c = lay_out(p);
    }
    return c == 0 ? check_tls(p) : c;
}

bool plan_has_daemons(const struct plan *p)
{
    return p->socket == NULL;
}

bool plan_encrypts(const struct plan *p)
{
    return plan_has_daemons(p) &&
           (p->tls == TLS_ON || (p->tls != TLS_OFF && p->launcher->uses_hosts));
}

void plan_node_name(const char *prefix, uint32_t number, char ret_name[16])
{
    snprintf(ret_name, 16, "%s%u", prefix, number % 1000000);
}

bool plan_shares_folder(const struct plan *p)
{
    return p->launcher->shares_folder != NULL && p->launcher->shares_folder();
}

bool plan_needs_folder(const struct plan *p)
{
    return !p->dry_run && (plan_shares_folder(p) ||
                           (plan_has_daemons(p) && !p->launcher->uses_hosts));
}
