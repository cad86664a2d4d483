/* SPDX-License-Identifier: Apache-2.0 */
/* psctl: shows and changes the state of a cluster through its scheduler. Parses
 * the command line, runs one verb, and maps the result to an exit code. */
#include "psctl/psctl.h"

#include "base/variables.h"
#include "client/psclient.h"

#include <getopt.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/pskv/psched.sock"
#define WATCH_DEFAULT  PS_SECONDS(2)

enum {
    OPT_TIMEOUT = 256,
    OPT_NO_HEADERS,
    OPT_AFTER,
    OPT_REASON,
    OPT_ROUND,
    OPT_SIZE,
    OPT_KEYS,
    OPT_ROUNDS,
    OPT_WORKERS,
    OPT_SOCKET,
    OPT_DRY_RUN,
    OPT_OFF,
    OPT_WATCH,
};

static const struct option options[] = {
    {"endpoint", required_argument, NULL, 'e'},
    {"write", required_argument, NULL, 'w'},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"after", required_argument, NULL, OPT_AFTER},
    {"reason", required_argument, NULL, OPT_REASON},
    {"round", required_argument, NULL, OPT_ROUND},
    {"size", required_argument, NULL, OPT_SIZE},
    {"keys", required_argument, NULL, OPT_KEYS},
    {"rounds", required_argument, NULL, OPT_ROUNDS},
    {"workers", required_argument, NULL, OPT_WORKERS},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"off", required_argument, NULL, OPT_OFF},
    {"watch", optional_argument, NULL, OPT_WATCH},
    {"no-headers", no_argument, NULL, OPT_NO_HEADERS},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

enum output_format {
    FORMAT_TABLE,
    FORMAT_JSON,
};

struct request {
    enum verb verb;
    const char *job; /* NULL: all jobs. */
    const char *reason;
    struct setting setting;
    struct bench_options bench;
    const char *endpoint;
    char endpoint_buffer[300];
    ps_time timeout;
    ps_time after;
    enum output_format format;
    bool has_headings;
    bool dry_run;
    bool help;
    ps_time watch; /* Pause between two outputs; 0: one output only. */
    const char *drain_server; /* NULL: balance all servers. */
};

static bool parse_time(const char *text, const char *what, ps_time *ret)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};
    char *end;
    double n = strtod(text, &end);

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (end != text && n > 0 && n * units[i].ns < 1e15 &&
            strcmp(end, units[i].name) == 0) {
            *ret = (ps_time)(n * units[i].ns);
            return true;
        }
    }
    fprintf(stderr, "psctl: %s '%s': give a time such as 500ms, 5s, 2m\n", what,
            text);
    return false;
}

static bool parse_round(const char *text, uint64_t *ret)
{
    char *end;
    long long n = strtoll(text, &end, 10);

    if (end == text || *end != '\0' || n < 1) {
        fprintf(stderr, "psctl: --round '%s': give a number from 1 on\n", text);
        return false;
    }
    *ret = (uint64_t)n;
    return true;
}

static bool parse_count(const char *text, const char *what, uint32_t most,
                        uint32_t *ret)
{
    char *end;
    long long n = strtoll(text, &end, 10);

    if (end == text || *end != '\0' || n < 1 || n > most) {
        fprintf(stderr, "psctl: %s '%s': give a number from 1 to %u\n", what,
                text, most);
        return false;
    }
    *ret = (uint32_t)n;
    return true;
}

static bool parse_size(const char *text, uint64_t *ret)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},
                 {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                 {"B", 1}};
    char *end;
    double n = strtod(text, &end);

    for (size_t i = 0; end != text && i < sizeof(units) / sizeof(units[0]);
         i++) {
        if (strcmp(end, units[i].name) == 0) {
            n *= units[i].bytes;
            end += strlen(end);
        }
    }
    if (end == text || *end != '\0' || !(n >= 4) ||
        n > (double)BENCH_BYTES_MAX) {
        fprintf(stderr,
                "psctl: --size '%s': give bytes, such as 65536, 64K, 64MiB "
                "or 64MB, of at most 64G\n",
                text);
        return false;
    }
    *ret = (uint64_t)n;
    return true;
}

static bool parse_setting(const char *text, struct setting *s)
{
    const char *equals = strchr(text, '=');
    char *end = NULL;

    if (equals != NULL && equals != text &&
        (size_t)(equals - text) < sizeof(s->name)) {
        memcpy(s->name, text, (size_t)(equals - text));
        s->value = strtod(equals + 1, &end);
    }
    if (end == NULL || end == equals + 1 || *end != '\0') {
        fprintf(stderr,
                "psctl: set '%s': give a name and a number, such as "
                "lr=0.05\n",
                text);
        return false;
    }
    if (s->round == 0) {
        fputs("psctl: set: give --round, the first round that has the value\n",
              stderr);
        return false;
    }
    return true;
}

static bool parse_option(struct request *q, int c)
{
    switch (c) {
    case 'e':
        q->endpoint = optarg;
        return true;
    case 'w':
        q->format = strcmp(optarg, "json") == 0 ? FORMAT_JSON : FORMAT_TABLE;
        if (q->format == FORMAT_TABLE && strcmp(optarg, "table") != 0) {
            fprintf(stderr, "psctl: -w '%s': give table or json\n", optarg);
            return false;
        }
        return true;
    case OPT_TIMEOUT:
        return parse_time(optarg, "--timeout", &q->timeout);
    case OPT_AFTER:
        return parse_time(optarg, "--after", &q->after);
    case OPT_REASON:
        q->reason = optarg;
        return true;
    case OPT_ROUND:
        return parse_round(optarg, &q->setting.round);
    case OPT_SIZE:
        return parse_size(optarg, &q->bench.size);
    case OPT_KEYS:
        return parse_count(optarg, "--keys", BENCH_KEYS_MAX, &q->bench.keys);
    case OPT_ROUNDS:
        return parse_count(optarg, "--rounds", BENCH_ROUNDS_MAX,
                           &q->bench.rounds);
    case OPT_WORKERS:
        return parse_count(optarg, "--workers", BENCH_WORKERS_MAX,
                           &q->bench.workers);
    case OPT_SOCKET:
        q->bench.socket = optarg;
        return true;
    case OPT_DRY_RUN:
        q->dry_run = true;
        return true;
    case OPT_OFF:
        if (optarg[0] == '\0' || strlen(optarg) > 64) {
            fputs("psctl: --off: the name of a server has 1 to 64 bytes\n",
                  stderr);
            return false;
        }
        q->drain_server = optarg;
        return true;
    case OPT_WATCH:
        q->watch = WATCH_DEFAULT;
        return optarg == NULL || parse_time(optarg, "--watch", &q->watch);
    case OPT_NO_HEADERS:
        q->has_headings = false;
        return true;
    default:
        return false;
    }
}

static bool parse_name(struct request *q, const char *name)
{
    if (strlen(name) == 0 || strlen(name) > 64) {
        fputs("psctl: the name of a job has 1 to 64 bytes\n", stderr);
        return false;
    }
    q->job = name;
    return true;
}

/* Parses the verb and its arguments. */
static bool parse_words(struct request *q, int argc, char **argv)
{
    static const struct {
        const char *name;
        enum verb verb;
        bool job;
    } verbs[] = {
        {"status", VERB_STATUS, false}, {"jobs", VERB_JOBS, false},
        {"nodes", VERB_NODES, false},   {"keys", VERB_KEYS, true},
        {"stall", VERB_STALL, true},    {"set", VERB_SET, true},
        {"bench", VERB_BENCH, false},   {"rebalance", VERB_REBALANCE, true},
    };
    size_t i = 0;

    if (argc == 0) {
        fputs("psctl: say what you want to know\n\n", stderr);
        help_all(stderr);
        return false;
    }
    while (i < sizeof(verbs) / sizeof(verbs[0]) &&
           strcmp(verbs[i].name, argv[0]) != 0) {
        i++;
    }
    if (i == sizeof(verbs) / sizeof(verbs[0])) {
        help_no_verb(argv[0]);
        return false;
    }
    q->verb = verbs[i].verb;
    if (q->watch != 0 && (q->verb == VERB_SET || q->verb == VERB_REBALANCE ||
                          q->verb == VERB_BENCH || argc == 3)) {
        fputs("psctl: --watch works with status, jobs, nodes, keys and stall "
              "only\n",
              stderr);
        return false;
    }
    if (q->verb == VERB_JOBS && argc == 3 && strcmp(argv[1], "cancel") == 0) {
        q->verb = VERB_CANCEL;
        return parse_name(q, argv[2]);
    }
    if (q->verb == VERB_SET && argc == 3) {
        return parse_setting(argv[2], &q->setting) && parse_name(q, argv[1]);
    }
    if (q->verb == VERB_REBALANCE && argc != 2) {
        fputs("psctl: rebalance: give one job\n", stderr);
        return false;
    }
    if ((q->verb != VERB_SET && argc == 1) ||
        (q->verb == VERB_JOBS && argc == 2 && strcmp(argv[1], "list") == 0)) {
        return true;
    }
    if (verbs[i].job && q->verb != VERB_SET && argc == 2) {
        return parse_name(q, argv[1]);
    }
    fprintf(stderr, "psctl: %s: too many or too few words; see psctl help %s\n",
            argv[0], argv[0]);
    return false;
}

static void choose_endpoint(struct request *q)
{
    const char *own = getenv("PSKV_SCHED");
    const char *host = getenv("DMLC_PS_ROOT_URI");
    const char *port = getenv("DMLC_PS_ROOT_PORT");

    if (q->endpoint != NULL) {
        return;
    }
    if (own != NULL && own[0] != '\0') {
        q->endpoint = own;
        return;
    }
    q->endpoint = wire_is_listening(DEFAULT_SOCKET) ? "unix:" DEFAULT_SOCKET
                                                    : "127.0.0.1:9091";
    if (host != NULL && host[0] != '\0') {
        bool v6 = strchr(host, ':') != NULL && host[0] != '[';

        snprintf(q->endpoint_buffer, sizeof(q->endpoint_buffer),
                 v6 ? "[%s]:%s" : "%s:%s", host,
                 port != NULL && port[0] != '\0' ? port : "9091");
        q->endpoint = q->endpoint_buffer;
    }
}

/* Warns about misspelt variables, such as one meant to name psched's
 * address. */
static void warn_unknown_variables(void)
{
    const char *near = NULL;
    const char *entry;
    size_t cursor = 0;

    while ((entry = ps_variables_unknown(environ, &cursor, &near)) != NULL) {
        fprintf(stderr,
                "psctl: %.*s has no effect, there is no such variable%s%s%s\n",
                (int)strcspn(entry, "="), entry,
                near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "");
    }
}

static int run_query(struct wire *w, const struct request *q, struct report *r)
{
    static const enum ps_query status[] = {PS_QUERY_NODES, PS_QUERY_JOBS,
                                           PS_QUERY_STALL};
    int rc = 0;

    switch (q->verb) {
    case VERB_STATUS:
        for (size_t i = 0; rc == 0 && i < 3; i++) {
            rc = wire_query(w, status[i], NULL, r);
        }
        return rc;
    case VERB_JOBS:
        return wire_query(w, PS_QUERY_JOBS, NULL, r);
    case VERB_NODES:
    case VERB_BENCH:
        return wire_query(w, PS_QUERY_NODES, NULL, r);
    case VERB_KEYS:
        rc = wire_query(w, PS_QUERY_KEYS, q->job, r);
        return rc != 0 ? rc : wire_query(w, PS_QUERY_SHARES, q->job, r);
    case VERB_REBALANCE:
        rc = wire_rebalance(w, q->job, q->drain_server, q->dry_run, r);
        r->has_migrated = !q->dry_run;
        return rc != 0 ? rc : wire_query(w, PS_QUERY_SHARES, q->job, r);
    case VERB_STALL:
        return wire_query(w, PS_QUERY_STALL, q->job, r);
    case VERB_CANCEL:
        return wire_cancel(w, q->job, q->reason, r);
    case VERB_SET:
        return wire_set(w, q->job, &q->setting, r);
    }
    return EXIT_USAGE;
}

/* Exit code of a valid answer: EXIT_DEGRADED if it shows problems. */
static int exit_code_of_health(const struct request *q, const struct report *r,
                               const struct health *h)
{
    const struct rows *stalls = &r->rows_of[PS_QUERY_STALL];

    if (q->verb == VERB_STATUS) {
        return h->count > 0 ? EXIT_DEGRADED : EXIT_HEALTHY;
    }
    for (size_t i = 0; q->verb == VERB_STALL && i < stalls->count; i++) {
        if (stall_is_problem(&stalls->row[i]->stall_row, q->after)) {
            return EXIT_DEGRADED;
        }
    }
    return EXIT_HEALTHY;
}

/* Runs the benchmark over all active servers. */
static int run_bench(const struct request *q, const struct report *r)
{
    const struct rows *nodes = &r->rows_of[PS_QUERY_NODES];
    const char *socket = getenv("PSKV_SOCKET");
    struct bench_options o = q->bench;

    if (o.size / o.keys < sizeof(float)) {
        fprintf(stderr,
                "psctl: bench: %u keys of one element have more bytes than "
                "--size\n",
                o.keys);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < nodes->count; i++) {
        const struct ps_msg_node_row *n = &nodes->row[i]->node_row;

        o.servers += n->role == PS_ROLE_SERVER &&
                     n->state == PS_NODE_STATE_ACTIVE && !n->draining;
    }
    if (o.servers == 0) {
        fputs("psctl: bench: the cluster has no active server\n", stderr);
        return EXIT_DEGRADED;
    }
    if (o.socket == NULL) {
        o.socket = socket != NULL && socket[0] != '\0' ? socket
                                                       : PSC_DEFAULT_SOCKET;
    }
    o.timeout = q->timeout;
    return bench_run(&o, q->format == FORMAT_JSON);
}

static int run_command(const struct request *q)
{
    struct report report = {0};
    struct health health = {0};
    int rc = 0;
    struct wire *w = wire_open(q->endpoint, q->timeout, &rc);

    if (w == NULL) {
        return rc;
    }
    if (q->verb == VERB_CANCEL || q->verb == VERB_SET ||
        (q->verb == VERB_REBALANCE && !q->dry_run)) {
        w = wire_switch_to_local(w);
    }
    rc = run_query(w, q, &report);
    wire_close(w);
    if (rc == 0 && q->verb == VERB_BENCH) {
        rc = run_bench(q, &report);
    } else if (rc == 0) {
        if (q->verb == VERB_STATUS) {
            health_check(&report, q->after, &health);
        }
        if (q->format == FORMAT_JSON) {
            show_json(q->verb, &report, &health);
        } else {
            show_table(q->verb, &report, &health, q->has_headings);
        }
        rc = exit_code_of_health(q, &report, &health);
    }
    report_fini(&report);
    if (fflush(stdout) != 0) {
        perror("psctl: standard output");
        rc = rc == 0 ? EXIT_FAILED : rc;
    }
    return rc;
}

/* Repeats the command until a signal; on a terminal each output overwrites the
 * last. */
static int run_watch(const struct request *q)
{
    const struct timespec pause = {
        .tv_sec = (time_t)(q->watch / PS_SECONDS(1)),
        .tv_nsec = (long)(q->watch % PS_SECONDS(1)),
    };
    bool clears = q->format != FORMAT_JSON && isatty(STDOUT_FILENO) == 1;

    for (;;) {
        int rc;

        if (clears) {
            fputs("\033[H\033[2J", stdout);
        }
        rc = run_command(q);
        if (rc == EXIT_USAGE || rc == EXIT_NOJOB || ferror(stdout) != 0) {
            return rc;
        }
        if (!clears && q->format != FORMAT_JSON) {
            putchar('\n');
            fflush(stdout);
        }
        nanosleep(&pause, NULL);
    }
}

/* Runs verbs that need no scheduler. False: it is another verb. */
static bool print_about(const struct request *q, int argc, char **argv,
                        int *ret_exit)
{
    bool help = argc > 0 && strcmp(argv[0], "help") == 0;
    /* argv[argc] is NULL. "help --help" shows the help of help. */
    const char *verb = help && (argc > 1 || !q->help) ? argv[1] : argv[0];

    *ret_exit = EXIT_HEALTHY;
    if (help && argc > 2) {
        fputs("psctl: help: give one verb\n", stderr);
        *ret_exit = EXIT_USAGE;
        return true;
    }
    if (q->help || help) {
        if (argc == 0 || verb == NULL) {
            help_all(stdout);
        } else if (!help_verb(verb)) {
            *ret_exit = EXIT_USAGE;
        }
        return true;
    }
    if (argc > 0 && strcmp(argv[0], "completion") == 0) {
        if (argc == 2 && strcmp(argv[1], "bash") == 0) {
            help_completion();
        } else {
            fputs("psctl: completion: there is one for bash\n", stderr);
            *ret_exit = EXIT_USAGE;
        }
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    struct request q = {
        .timeout = PS_SECONDS(5),
        .after = PS_SECONDS(10),
        .reason = "",
        .bench = {.size = 64u << 20, .keys = 100, .rounds = 50, .workers = 2},
        .has_headings = true};
    int c;

    /* Needed for printable characters of the terminal. */
    (void)setlocale(LC_CTYPE, "");
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":e:w:hV", options, NULL)) != -1) {
        if (c == 'h') {
            q.help = true;
            continue;
        }
        if (c == 'V') {
            printf("psctl %s\nprotocol %u\n", PSKV_VERSION, PS_PROTOCOL);
            return EXIT_HEALTHY;
        }
        if (c == ':' || c == '?') {
            fprintf(stderr, "psctl: %s: %s; see --help\n", argv[optind - 1],
                    c == ':' ? "needs a value" : "no such option");
            return EXIT_USAGE;
        }
        if (!parse_option(&q, c)) {
            return EXIT_USAGE;
        }
    }
    if (print_about(&q, argc - optind, argv + optind, &c)) {
        return c;
    }
    if (!parse_words(&q, argc - optind, argv + optind)) {
        return EXIT_USAGE;
    }
    warn_unknown_variables();
    choose_endpoint(&q);
    return q.watch != 0 ? run_watch(&q) : run_command(&q);
}
