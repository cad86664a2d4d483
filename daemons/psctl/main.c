/* SPDX-License-Identifier: Apache-2.0 */
/* psctl: what an operator asks the scheduler. */
#include "psctl/psctl.h"

#include "base/variables.h"
#include "client/psclient.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/pskv/psched.sock"

static const char usage[] =
    "usage: psctl [OPTION]... VERB\n"
    "\n"
    "  status            one screen: members, jobs, what is wrong\n"
    "  jobs [list]       jobs, also those that ended lately\n"
    "  jobs cancel NAME  end a job; its workers get an error that says so\n"
    "  set JOB NAME=VALUE  give learning_rate, wd, rescale_grad or\n"
    "                    clip_gradient of the job's optimizer another value\n"
    "                    from --round on\n"
    "  nodes             servers and agents\n"
    "  keys [JOB]        keys and which server holds how much of them, and\n"
    "                    how even the servers of each job are\n"
    "  rebalance JOB     move partitions of a running job between its servers\n"
    "                    until these are within 5 % of even\n"
    "  --off SERVER rebalance JOB\n"
    "                    move all that the job has on SERVER to its others\n"
    "  stall [JOB]       what is waited for, since when, and which ranks are\n"
    "                    missing\n"
    "  bench             push and pull in a job of its own from this node, "
    "and\n"
    "                    how long a round takes\n"
    "\n"
    "  -e, --endpoint HOST:PORT|unix:PATH\n"
    "                            the scheduler; else $PSKV_SCHED, else\n"
    "                            $DMLC_PS_ROOT_URI and $DMLC_PS_ROOT_PORT,\n"
    "                            else its Unix socket in /run/pskv, else\n"
    "                            127.0.0.1:9091\n"
    "  -w, --write FORMAT        table (for people) or json (for programs)\n"
    "      --timeout TIME        how long the scheduler may be silent, e.g.\n"
    "                            500ms or 5s (default)\n"
    "      --after TIME          a shorter wait is work, not a stall, unless\n"
    "                            a missing rank is lost (default 10s)\n"
    "      --reason TEXT         of jobs cancel, for the workers' error\n"
    "      --round N             of set: the first round of each key that\n"
    "                            has the value\n"
    "      --size BYTES          of bench: of all keys together, e.g. 64M\n"
    "                            (default)\n"
    "      --keys N              of bench: default 100\n"
    "      --rounds N            of bench: default 50\n"
    "      --workers N           of bench: processes, default 2\n"
    "      --socket PATH         of bench: this node's agent; else\n"
    "                            $PSKV_SOCKET, else /run/pskv/agent.sock\n"
    "      --off SERVER          of rebalance: empty this one\n"
    "      --dry-run             of rebalance: say what, and do nothing\n"
    "      --no-headers          rows alone\n"
    "  -h, --help   -V, --version\n"
    "\n"
    "Exit codes: 0 done, and healthy; 3 degraded (status) or stalled (stall);\n"
    "2 wrong usage; 4 no such job; 69 no scheduler there; 77 not allowed.\n";

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
    {"no-headers", no_argument, NULL, OPT_NO_HEADERS},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

struct request {
    enum verb verb;
    const char *job; /* NULL: all. */
    const char *reason;
    struct setting setting;
    struct bench_options bench;
    const char *endpoint;
    char endpoint_buffer[300];
    ps_time timeout;
    ps_time after;
    bool json;
    bool headings;
    bool dry_run;
    const char *off; /* NULL: make servers even. */
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
    static const char units[] = "KMG";
    char *end;
    double n = strtod(text, &end);
    const char *unit = end != text && *end != '\0' ? strchr(units, *end) : NULL;

    if (unit != NULL) {
        n *= (double)(UINT64_C(1) << (10 * (unit - units + 1)));
        end++;
    }
    if (end == text || *end != '\0' || !(n >= 4) ||
        n > (double)BENCH_BYTES_MAX) {
        fprintf(stderr,
                "psctl: --size '%s': give bytes, such as 65536, 64K or 64M, "
                "of at most 64G\n",
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

static bool take_option(struct request *q, int c)
{
    switch (c) {
    case 'e':
        q->endpoint = optarg;
        return true;
    case 'w':
        q->json = strcmp(optarg, "json") == 0;
        if (!q->json && strcmp(optarg, "table") != 0) {
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
        q->off = optarg;
        return true;
    case OPT_NO_HEADERS:
        q->headings = false;
        return true;
    default:
        return false;
    }
}

static bool take_name(struct request *q, const char *name)
{
    if (strlen(name) == 0 || strlen(name) > 64) {
        fputs("psctl: the name of a job has 1 to 64 bytes\n", stderr);
        return false;
    }
    q->job = name;
    return true;
}

/* The verb and what follows it. */
static bool take_words(struct request *q, int argc, char **argv)
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
        fputs("psctl: say what you want to know; --help lists the verbs\n",
              stderr);
        return false;
    }
    while (i < sizeof(verbs) / sizeof(verbs[0]) &&
           strcmp(verbs[i].name, argv[0]) != 0) {
        i++;
    }
    if (i == sizeof(verbs) / sizeof(verbs[0])) {
        fprintf(stderr,
                "psctl: no verb '%s'; there are status, jobs, nodes, "
                "keys, rebalance, stall, set, bench\n",
                argv[0]);
        return false;
    }
    q->verb = verbs[i].verb;
    if (q->verb == VERB_JOBS && argc == 3 && strcmp(argv[1], "cancel") == 0) {
        q->verb = VERB_CANCEL;
        return take_name(q, argv[2]);
    }
    if (q->verb == VERB_SET && argc == 3) {
        return parse_setting(argv[2], &q->setting) && take_name(q, argv[1]);
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
        return take_name(q, argv[1]);
    }
    fprintf(stderr, "psctl: %s: too many or too few words; see --help\n",
            argv[0]);
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
    q->endpoint = wire_is_there(DEFAULT_SOCKET) ? "unix:" DEFAULT_SOCKET
                                                : "127.0.0.1:9091";
    if (host != NULL && host[0] != '\0') {
        bool v6 = strchr(host, ':') != NULL && host[0] != '[';

        snprintf(q->endpoint_buffer, sizeof(q->endpoint_buffer),
                 v6 ? "[%s]:%s" : "%s:%s", host,
                 port != NULL && port[0] != '\0' ? port : "9091");
        q->endpoint = q->endpoint_buffer;
    }
}

/* What was to say where psched is may have no effect. */
static void warn_of_names(void)
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

static int ask(struct wire *w, const struct request *q, struct report *r)
{
    static const enum ps_query status[] = {PS_QUERY_NODES, PS_QUERY_JOBS,
                                           PS_QUERY_STALL};
    int rc = 0;

    switch (q->verb) {
    case VERB_STATUS:
        for (size_t i = 0; rc == 0 && i < 3; i++) {
            rc = wire_ask(w, status[i], NULL, r);
        }
        return rc;
    case VERB_JOBS:
        return wire_ask(w, PS_QUERY_JOBS, NULL, r);
    case VERB_NODES:
    case VERB_BENCH:
        return wire_ask(w, PS_QUERY_NODES, NULL, r);
    case VERB_KEYS:
        rc = wire_ask(w, PS_QUERY_KEYS, q->job, r);
        return rc != 0 ? rc : wire_ask(w, PS_QUERY_SHARES, q->job, r);
    case VERB_REBALANCE:
        rc = wire_rebalance(w, q->job, q->off, q->dry_run, r);
        r->moved = !q->dry_run;
        return rc != 0 ? rc : wire_ask(w, PS_QUERY_SHARES, q->job, r);
    case VERB_STALL:
        return wire_ask(w, PS_QUERY_STALL, q->job, r);
    case VERB_CANCEL:
        return wire_cancel(w, q->job, q->reason, r);
    case VERB_SET:
        return wire_set(w, q->job, &q->setting, r);
    }
    return EXIT_USAGE;
}

/* Bad news of an answer that came in good order. */
static int judge(const struct request *q, const struct report *r,
                 const struct health *h)
{
    const struct rows *stalls = &r->of[PS_QUERY_STALL];

    if (q->verb == VERB_STATUS) {
        return h->count > 0 ? EXIT_DEGRADED : EXIT_HEALTHY;
    }
    for (size_t i = 0; q->verb == VERB_STALL && i < stalls->count; i++) {
        if (stall_is_bad(&stalls->row[i]->stall_row, q->after)) {
            return EXIT_DEGRADED;
        }
    }
    return EXIT_HEALTHY;
}

/* Over all servers that can take part. */
static int bench(const struct request *q, const struct report *r)
{
    const struct rows *nodes = &r->of[PS_QUERY_NODES];
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
    return bench_run(&o, q->json);
}

static int run(const struct request *q)
{
    struct report report = {0};
    struct health health = {0};
    int rc = 0;

    warn_of_names();
    struct wire *w = wire_open(q->endpoint, q->timeout, &rc);

    if (w == NULL) {
        return rc;
    }
    if (q->verb == VERB_CANCEL || q->verb == VERB_SET ||
        (q->verb == VERB_REBALANCE && !q->dry_run)) {
        w = wire_to_change(w);
    }
    rc = ask(w, q, &report);
    wire_close(w);
    if (rc == 0 && q->verb == VERB_BENCH) {
        rc = bench(q, &report);
    } else if (rc == 0) {
        if (q->verb == VERB_STATUS) {
            health_check(&report, q->after, &health);
        }
        if (q->json) {
            show_json(q->verb, &report, &health);
        } else {
            show_table(q->verb, &report, &health, q->headings);
        }
        rc = judge(q, &report, &health);
    }
    report_fini(&report);
    if (fflush(stdout) != 0) {
        perror("psctl: standard output");
        rc = rc == 0 ? EXIT_FAILED : rc;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct request q = {
        .timeout = PS_SECONDS(5),
        .after = PS_SECONDS(10),
        .reason = "",
        .bench = {.size = 64u << 20, .keys = 100, .rounds = 50, .workers = 2},
        .headings = true};
    int c;

    opterr = 0;
    while ((c = getopt_long(argc, argv, ":e:w:hV", options, NULL)) != -1) {
        if (c == 'h') {
            fputs(usage, stdout);
            return EXIT_HEALTHY;
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
        if (!take_option(&q, c)) {
            return EXIT_USAGE;
        }
    }
    if (!take_words(&q, argc - optind, argv + optind)) {
        return EXIT_USAGE;
    }
    choose_endpoint(&q);
    return run(&q);
}
