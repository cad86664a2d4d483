/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of pslaunch, and the environment of each worker. */
#include "pslaunch.h"

#include "base/variables.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static const char usage[] =
    "usage: pslaunch -n WORKERS [options] [--] COMMAND...\n"
    "\n"
    "Starts COMMAND once for every worker of a training job on this host, "
    "with\n"
    "a psched, psservers and psworker-agents of its own unless an agent runs\n"
    "here already, and ends everything it started.\n"
    "\n"
    "  -n, --num-workers N      training processes\n"
    "  -s, --num-servers N      servers (default: N of -n; 0: none, one node)\n"
    "      --nodes N            agents, as if there were N nodes (default 1)\n"
    "      --launcher local     the only one yet\n"
    "      --name JOB           name of the job (default job-PID)\n"
    "      --env NAME[=VALUE]   set or pass a variable (also --env-worker;\n"
    "                           NAME:VALUE is understood)\n"
    "      --on-loss wait|fail  when a worker dies (default fail)\n"
    "      --mode NAME          dist_sync, dist_async, dist_ssp\n"
    "      --placement balanced|mxnet\n"
    "      --socket PATH        use the agent behind this socket\n"
    "      --private            never use an agent that runs here already\n"
    "      --output tagged|plain    rank in front of each line (default "
    "tagged)\n"
    "      --output-dir DIR     also write each rank's output to "
    "DIR/rank-N.log\n"
    "      --grace TIME         between TERM and KILL, e.g. 10s (default)\n"
    "      --start-timeout TIME for the daemons to be ready (default 60s)\n"
    "      --keep-going         a failing worker does not end the others\n"
    "      --log-level LEVEL    of the daemons (default warning)\n"
    "      --dry-run            print what would be started\n"
    "  -h, --help   -V, --version\n"
    "\n"
    "The exit code is that of the first worker that failed (128 + signal).\n";

enum {
    OPT_NODES = 256,
    OPT_LAUNCHER,
    OPT_NAME,
    OPT_ENV,
    OPT_ON_LOSS,
    OPT_PLACEMENT,
    OPT_MODE,
    OPT_SOCKET,
    OPT_PRIVATE,
    OPT_OUTPUT,
    OPT_OUTPUT_DIR,
    OPT_GRACE,
    OPT_START_TIMEOUT,
    OPT_KEEP_GOING,
    OPT_LOG_LEVEL,
    OPT_DRY_RUN,
};

static const struct option options[] = {
    {"num-workers", required_argument, NULL, 'n'},
    {"num-servers", required_argument, NULL, 's'},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"launcher", required_argument, NULL, OPT_LAUNCHER},
    {"name", required_argument, NULL, OPT_NAME},
    {"env", required_argument, NULL, OPT_ENV},
    {"env-worker", required_argument, NULL, OPT_ENV},
    {"on-loss", required_argument, NULL, OPT_ON_LOSS},
    {"placement", required_argument, NULL, OPT_PLACEMENT},
    {"mode", required_argument, NULL, OPT_MODE},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"private", no_argument, NULL, OPT_PRIVATE},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"output-dir", required_argument, NULL, OPT_OUTPUT_DIR},
    {"grace", required_argument, NULL, OPT_GRACE},
    {"start-timeout", required_argument, NULL, OPT_START_TIMEOUT},
    {"keep-going", no_argument, NULL, OPT_KEEP_GOING},
    {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
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
static bool add_env(struct plan *p, const char *text)
{
    size_t len = strcspn(text, "=:");
    char *copy;

    if (len == 0) {
        fprintf(stderr, "pslaunch: --env '%s': give NAME=VALUE\n", text);
        return false;
    }
    if (text[len] == '\0') {
        const char *value = getenv(text);

        if (value == NULL) {
            return true; /* Unset here. */
        }
        if (asprintf(&copy, "%s=%s", text, value) < 0) {
            return false;
        }
    } else if (asprintf(&copy, "%.*s=%s", (int)len, text, text + len + 1) < 0) {
        return false;
    }
    p->env = realloc(p->env, (p->env_count + 2) * sizeof(*p->env));
    if (p->env == NULL) {
        return false;
    }
    p->env[p->env_count++] = copy;
    p->env[p->env_count] = NULL;
    return true;
}

static bool check_mode(const char *name)
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
    fprintf(stderr,
            "pslaunch: --mode: %s is none of dist_sync, dist_async, dist_ssp "
            "and their other names\n",
            name);
    return false;
}

/* Options of mpirun, horovodrun, torchrun and launch.py, with the replacement
 * here. */
static const struct {
    const char *name;
    const char *instead;
} foreign_options[] = {
    {"np", "-n N"},
    {"hostfile", "this host only; else an agent on each host, and "
                 "--socket"},
    {"H", "this host only; else an agent on each host, and --socket"},
    {"host-file", "this host only; else an agent on each host, and "
                  "--socket"},
    {"hosts", "this host only; else an agent on each host, and --socket"},
    {"nproc-per-node", "-n N"},
    {"nproc_per_node", "-n N"},
    {"nnodes", "--nodes N plays N nodes on this host"},
    {"sync-dst-dir", "nothing is copied on one host"},
    {"env-server", "servers read no variables of the job"},
};

/* Reports an option that getopt_long() does not know or finds ambiguous. */
static void report_option_error(const char *word)
{
    const char *name = word + strspn(word, "-");
    size_t len = strcspn(name, "=");

    for (size_t i = 0; i < sizeof(foreign_options) / sizeof(foreign_options[0]);
         i++) {
        if (strlen(foreign_options[i].name) == len &&
            strncmp(foreign_options[i].name, name, len) == 0) {
            fprintf(stderr, "pslaunch: no option %.*s here; instead: %s\n",
                    (int)(len + (size_t)(name - word)), word,
                    foreign_options[i].instead);
            return;
        }
    }
    fprintf(stderr, "pslaunch: no option %s, or its value is missing\n", word);
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
    case OPT_LAUNCHER:
        return parse_one_of(optarg, "--launcher", "local", "auto");
    case OPT_NAME:
        if (strlen(optarg) == 0 || strlen(optarg) > 64) {
            fprintf(stderr, "pslaunch: --name: 1 to 64 bytes\n");
            return false;
        }
        p->name = optarg;
        return true;
    case OPT_ENV:
        return add_env(p, optarg);
    case OPT_ON_LOSS:
        p->on_loss = optarg;
        return parse_one_of(optarg, "--on-loss", "wait", "fail");
    case OPT_PLACEMENT:
        p->placement = optarg;
        return parse_one_of(optarg, "--placement", "balanced", "mxnet");
    case OPT_MODE:
        p->mode = optarg;
        return check_mode(optarg);
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
    case OPT_LOG_LEVEL:
        p->log_level = optarg;
        return true;
    case OPT_DRY_RUN:
        p->dry_run = true;
        return true;
    default: /* report_option_error() has named it. */
        fputs("pslaunch: --help lists the options\n", stderr);
        return false;
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
    if (p->private_trio) {
        p->socket = NULL;
    }
    if (p->socket != NULL && p->nodes > 1) {
        fputs("pslaunch: --socket is one node: --nodes needs daemons of our "
              "own\n",
              stderr);
        return EXIT_USAGE;
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

int plan_parse(int argc, char **argv, struct plan *ret_plan)
{
    struct plan *p = ret_plan;
    int c;

    *p = (struct plan){.servers = UINT32_MAX,
                       .nodes = 1,
                       .on_loss = "fail",
                       .placement = NULL,
                       .socket = NULL,
                       .log_level = "warning",
                       .grace_ms = 10000,
                       .start_timeout_ms = 60000};
    snprintf(p->name_buffer, sizeof(p->name_buffer), "job-%d", (int)getpid());
    p->name = p->name_buffer;
    opterr = 0; /* getopt's own texts would begin with the program's path. */
    for (;;) {
        const char *word = optind < argc ? argv[optind] : "";

        /* It would parse as -n with the value "p". */
        if (strcmp(word, "-np") == 0) {
            report_option_error(word);
            return EXIT_USAGE;
        }
        c = getopt_long(argc, argv, "+n:s:hV", options, NULL);
        if (c == -1) {
            break;
        }
        if (c == '?') {
            report_option_error(word);
        }
        if (c == 'h') {
            fputs(usage, stdout);
            return -1;
        }
        if (c == 'V') {
            puts("pslaunch " PSKV_VERSION);
            return -1;
        }
        if (!parse_option(p, c)) {
            return EXIT_USAGE;
        }
    }
    p->command = argv + optind;
    if (p->socket == NULL && !p->private_trio &&
        access("/run/pskv/agent.sock", W_OK) == 0 && p->nodes == 1) {
        p->socket = "/run/pskv/agent.sock";
    }
    warn_unknown_variables(environ);
    warn_unknown_variables((char *const *)p->env);
    return check_plan(p);
}

uint32_t plan_node_of(const struct plan *p, uint32_t rank)
{
    return (uint32_t)((uint64_t)rank * p->nodes / p->workers);
}

uint32_t plan_local_rank(const struct plan *p, uint32_t rank)
{
    uint32_t first = rank;

    while (first > 0 && plan_node_of(p, first - 1) == plan_node_of(p, rank)) {
        first--;
    }
    return rank - first;
}

uint32_t plan_local_size(const struct plan *p, uint32_t node)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < p->workers; r++) {
        n += plan_node_of(p, r) == node;
    }
    return n;
}

/* -------------------------------------------------------------- environment */

struct env {
    char **items;
    size_t count;
    size_t capacity;
};

static void env_put(struct env *e, char *item)
{
    size_t name = strcspn(item, "=") + 1;

    for (size_t i = 0; i < e->count; i++) {
        if (strncmp(e->items[i], item, name) == 0) {
            free(e->items[i]);
            e->items[i] = item;
            return;
        }
    }
    if (e->count + 1 >= e->capacity) {
        e->capacity = e->capacity == 0 ? 128 : e->capacity * 2;
        e->items = realloc(e->items, e->capacity * sizeof(*e->items));
        if (e->items == NULL) {
            abort();
        }
    }
    e->items[e->count++] = item;
    e->items[e->count] = NULL;
}

static void env_set(struct env *e, const char *name, const char *value)
{
    char *item;

    if (asprintf(&item, "%s=%s", name, value) < 0) {
        abort();
    }
    env_put(e, item);
}

static void env_number(struct env *e, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    env_set(e, name, text);
}

static void env_default(struct env *e, const char *name, const char *value)
{
    if (getenv(name) == NULL) {
        env_set(e, name, value);
    }
}

char **plan_worker_env(const struct plan *p, uint32_t rank, const char *socket,
                       uint16_t sched_port)
{
    struct env e = {0};
    uint32_t node = plan_node_of(p, rank);

    for (char **item = environ; *item != NULL; item++) {
        env_put(&e, strdup(*item));
    }
    /* Variables of torch, Open MPI and Horovod. */
    env_number(&e, "RANK", rank);
    env_number(&e, "WORLD_SIZE", p->workers);
    env_number(&e, "LOCAL_RANK", plan_local_rank(p, rank));
    env_number(&e, "LOCAL_WORLD_SIZE", plan_local_size(p, node));
    env_number(&e, "GROUP_RANK", node);
    env_default(&e, "MASTER_ADDR", "127.0.0.1");
    env_default(&e, "MASTER_PORT", "29500");
    /* Variables of MXNet. */
    env_set(&e, "DMLC_ROLE", "worker");
    env_number(&e, "DMLC_WORKER_ID", rank);
    env_number(&e, "DMLC_RANK", rank);
    env_number(&e, "DMLC_TASK_ID", rank);
    env_number(&e, "DMLC_NUM_WORKER", p->workers);
    env_number(&e, "DMLC_NUM_SERVER", p->servers);
    env_set(&e, "DMLC_JOB_CLUSTER", "local");
    if (sched_port != 0) {
        env_set(&e, "DMLC_PS_ROOT_URI", "127.0.0.1");
        env_number(&e, "DMLC_PS_ROOT_PORT", sched_port);
    }
    env_set(&e, "PSKV_LAUNCHER", "pslaunch");
    /* Two ranks report long waits: one of them may be the missing rank. */
    if (rank < 2 && isatty(STDERR_FILENO) == 1) {
        env_default(&e, "PSKV_WAIT_NOTES", "30s");
    }
    env_set(&e, "PSKV_SOCKET", socket);
    env_set(&e, "PSKV_JOB", p->name);
    env_set(&e, "PSKV_ON_LOSS", p->on_loss);
    if (p->placement != NULL) {
        env_set(&e, "PSKV_PLACEMENT", p->placement);
    }
    if (p->mode != NULL) {
        env_set(&e, "PSKV_MODE", p->mode);
    }
    env_default(&e, "PYTHONUNBUFFERED", "1");
    if (p->workers > 1) {
        env_default(&e, "OMP_NUM_THREADS", "1");
    }
    for (size_t i = 0; i < p->env_count; i++) {
        env_put(&e, strdup(p->env[i]));
    }
    return e.items;
}

void plan_free_env(char **env)
{
    for (char **item = env; item != NULL && *item != NULL; item++) {
        free(*item);
    }
    free(env);
}
