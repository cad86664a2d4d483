/* SPDX-License-Identifier: Apache-2.0 */
/* psctl: shows and changes the state of a cluster through its scheduler. Parses
 * the command line, runs one verb, and maps the result to an exit code. */
#include "psctl/psctl.h"

#include "psctl/cluster.h"
#include "psctl/completion.h"
#include "psctl/help.h"
#include "psctl/pki.h"

#include "base/log.h"
#include "base/variables.h"
#include "common/exit.h"

#include <getopt.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WATCH_DEFAULT PS_SECONDS(2)
#define FOLLOW_PAUSE  PS_SECONDS(1)
#define FRAMES_MAX    1000000000u

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
    OPT_CLUSTER,
    OPT_DIR,
    OPT_OUT,
    OPT_HOST,
    OPT_DAYS,
    OPT_OWNER,
    OPT_FORCE,
    OPT_JOB,
    OPT_RIGHTS,
    OPT_TTL,
    OPT_TOKEN,
    OPT_TLS,
    OPT_INSECURE,
    OPT_CONTEXT,
    OPT_LISTEN,
    OPT_SERVER,
    OPT_CODE,
    OPT_FOLLOW,
    OPT_SORT,
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
    {"follow", no_argument, NULL, OPT_FOLLOW},
    {"batch", no_argument, NULL, 'b'},
    {"count", required_argument, NULL, 'n'},
    {"sort", required_argument, NULL, OPT_SORT},
    {"cluster", required_argument, NULL, OPT_CLUSTER},
    {"dir", required_argument, NULL, OPT_DIR},
    {"out", required_argument, NULL, OPT_OUT},
    {"directory", required_argument, NULL, OPT_OUT},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"server", required_argument, NULL, OPT_SERVER},
    {"code", required_argument, NULL, OPT_CODE},
    {"host", required_argument, NULL, OPT_HOST},
    {"days", required_argument, NULL, OPT_DAYS},
    {"owner", required_argument, NULL, OPT_OWNER},
    {"force", no_argument, NULL, OPT_FORCE},
    {"job", required_argument, NULL, OPT_JOB},
    {"rights", required_argument, NULL, OPT_RIGHTS},
    {"ttl", required_argument, NULL, OPT_TTL},
    {"token", required_argument, NULL, OPT_TOKEN},
    {"tls", required_argument, NULL, OPT_TLS},
    {"insecure", no_argument, NULL, OPT_INSECURE},
    {"output", required_argument, NULL, 'o'},
    {"context", required_argument, NULL, OPT_CONTEXT},
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
    const char *job; /* As the user names it; NULL: all jobs. */
    const char *reason;
    struct setting setting;
    struct bench_options bench;
    struct pki_options pki;
    struct cluster cluster;
    ps_time timeout;
    ps_time after;
    enum output_format format;
    bool has_headings;
    bool dry_run;
    bool help;
    ps_time watch;  /* Pause between two outputs; 0: one output only. */
    ps_time follow; /* Pause between two looks for events; 0: one only. */
    struct top_options top;
    const char *output;       /* File of a trace; NULL: none. */
    const char *member;       /* Whose log level changes; "": of all. */
    unsigned log_level;       /* enum ps_verbosity */
    const char *drain_server; /* NULL: balance all servers. */
    struct token_request wanted;
    uint64_t token_id; /* To be revoked. */
    struct launch_order order;
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

/* A weight holds at once. */
static bool parse_weight(const char *value, struct setting *s)
{
    uint32_t weight = 0;

    if (s->round != 0) {
        fputs("psctl: set: a weight holds at once; leave --round out\n",
              stderr);
        return false;
    }
    if (!parse_count(value, "set: weight", PS_JOB_WEIGHT_MAX, &weight)) {
        return false;
    }
    s->value = weight;
    return true;
}

/* Parses "NAME=VALUE", or "NAME" if `value` is not NULL. */
static bool parse_setting(const char *text, const char *value,
                          struct setting *s)
{
    const size_t len = value != NULL ? strlen(text) : strcspn(text, "=");
    char *end = NULL;

    value = value == NULL && text[len] == '=' ? text + len + 1 : value;
    if (value != NULL && len > 0 && len < sizeof(s->name)) {
        memcpy(s->name, text, len);
        s->value = strtod(value, &end);
    }
    if (end == NULL || end == value || *end != '\0') {
        fprintf(stderr,
                "psctl: set '%s': give a name and a number, such as "
                "lr=0.05\n",
                text);
        return false;
    }
    if (strcmp(s->name, "weight") == 0) {
        return parse_weight(value, s);
    }
    if (s->round == 0) {
        fputs("psctl: set: give --round, the first round that has the value\n",
              stderr);
        return false;
    }
    return true;
}

static bool parse_pki_option(struct pki_options *o, int c)
{
    switch (c) {
    case OPT_CLUSTER:
        o->cluster = optarg;
        return true;
    case OPT_DIR:
        o->directory = optarg;
        return true;
    case OPT_OUT:
        o->output = optarg;
        return true;
    case OPT_OWNER:
        o->owner = optarg;
        return true;
    case OPT_FORCE:
        o->force = true;
        return true;
    case OPT_LISTEN:
        o->listen = optarg;
        return true;
    case OPT_SERVER:
        o->server = optarg;
        return true;
    case OPT_CODE:
        o->code = optarg;
        return true;
    case OPT_DAYS:
        return parse_count(optarg, "--days", PKI_DAYS_MAX, &o->days);
    case OPT_HOST:
        if (o->host_count == PS_PKI_HOSTS_MAX || !ps_pki_is_host(optarg)) {
            fprintf(
                stderr,
                "psctl: --host: give at most %u names of DNS or addresses\n",
                PS_PKI_HOSTS_MAX);
            return false;
        }
        o->hosts[o->host_count++] = optarg;
        return true;
    default:
        return false;
    }
}

static bool has_name_length(const char *name)
{
    return name[0] != '\0' && strlen(name) <= PS_NAME_MAX;
}

static bool parse_name(struct request *q, const char *name)
{
    const char *slash = strchr(name, '/');
    bool has_user = slash != NULL && slash != name &&
                    slash - name <= (ptrdiff_t)PS_NAME_MAX;

    if (!has_name_length(name) && !(has_user && has_name_length(slash + 1))) {
        fputs("psctl: the name of a job has 1 to 64 bytes\n", stderr);
        return false;
    }
    q->job = name;
    return true;
}

static bool parse_token_option(struct request *q, int c)
{
    switch (c) {
    case OPT_JOB:
        return parse_name(q, optarg);
    case OPT_RIGHTS:
        return token_rights_parse(optarg, &q->wanted.rights);
    case OPT_TTL:
        return parse_time(optarg, "--ttl", &q->wanted.valid);
    case OPT_TOKEN:
        q->cluster.token_file = optarg;
        return true;
    case OPT_TLS:
        q->cluster.tls = optarg;
        return true;
    case OPT_INSECURE:
        q->cluster.insecure = true;
        return true;
    case OPT_CONTEXT:
        q->cluster.context_name = optarg;
        return true;
    default:
        return false;
    }
}

static bool parse_format(struct request *q, const char *word)
{
    if (strcmp(word, "table") == 0) {
        q->format = FORMAT_TABLE;
        return true;
    }
    q->format = FORMAT_JSON;
    if (strcmp(word, "jsonl") == 0) {
        json_use_lines();
    } else if (strcmp(word, "json") != 0) {
        fprintf(stderr, "psctl: -w '%s': give table, json or jsonl\n", word);
        return false;
    }
    return true;
}

static bool parse_option(struct request *q, int c)
{
    switch (c) {
    case 'e':
        q->cluster.endpoint = optarg;
        return true;
    case 'w':
        return parse_format(q, optarg);
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
    case 'b':
        q->top.batch = true;
        return true;
    case 'n':
        return parse_count(optarg, "--count", FRAMES_MAX, &q->top.count);
    case OPT_SORT:
        return top_key_parse(optarg, &q->top.by);
    case 'o':
        q->output = optarg;
        return true;
    case OPT_FOLLOW:
        q->follow = FOLLOW_PAUSE;
        return true;
    case OPT_NO_HEADERS:
        q->has_headings = false;
        return true;
    default:
        return parse_pki_option(&q->pki, c) || parse_token_option(q, c);
    }
}

struct verb_spec {
    const char *name;
    enum verb verb;
    bool has_job;
    /* Parses all words; NULL: parse_words() does. */
    bool (*parse)(struct request *q, int argc, char **argv);
};

static bool parse_token_words(struct request *q, int argc, char **argv);
static bool parse_log_level(struct request *q, int argc, char **argv);
static bool parse_trace_words(struct request *q, int argc, char **argv);
static bool parse_launch_words(struct request *q, int argc, char **argv);

/* Returns NULL if no verb has that name. */
static const struct verb_spec *find_verb(const char *name)
{
    static const struct verb_spec verbs[] = {
        {"status", VERB_STATUS, false, NULL},
        {"jobs", VERB_JOBS, false, NULL},
        {"nodes", VERB_NODES, false, NULL},
        {"keys", VERB_KEYS, true, NULL},
        {"stall", VERB_STALL, true, NULL},
        {"get", VERB_GET, true, NULL},
        {"set", VERB_SET, true, NULL},
        {"bench", VERB_BENCH, false, NULL},
        {"rebalance", VERB_REBALANCE, true, NULL},
        {"token", VERB_TOKENS, false, parse_token_words},
        {"events", VERB_EVENTS, false, NULL},
        {"top", VERB_TOP, false, NULL},
        {"doctor", VERB_DOCTOR, false, NULL},
        {"log-level", VERB_LOG_LEVEL, false, parse_log_level},
        {"trace", VERB_TRACE, true, parse_trace_words},
        /* For pslaunch alone. */
        {"__launch", VERB_LAUNCH, false, parse_launch_words},
    };

    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

/* Parses "token list", "token issue" and "token revoke ID". */
static bool parse_token_words(struct request *q, int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (argc == 2 && strcmp(what, "list") == 0) {
        return true;
    }
    if (argc == 2 && strcmp(what, "issue") == 0) {
        q->verb = VERB_TOKEN_ISSUE;
        if (q->wanted.rights == 0) {
            fputs("psctl: token issue: give --rights, as in read,operate\n",
                  stderr);
        }
        return q->wanted.rights != 0;
    }
    if (argc == 3 && strcmp(what, "revoke") == 0) {
        q->verb = VERB_TOKEN_REVOKE;
        return token_id_parse(argv[2], &q->token_id);
    }
    fputs("psctl: token: give list, issue, or revoke with a number\n", stderr);
    return false;
}

/* Parses "log-level [MEMBER] LEVEL". */
static bool parse_log_level(struct request *q, int argc, char **argv)
{
    int level;

    if (argc != 2 && argc != 3) {
        fputs("psctl: log-level: give a level, or a member and a level\n",
              stderr);
        return false;
    }
    q->member = argc == 3 ? argv[1] : "";
    if (argc == 3 && !has_name_length(q->member)) {
        fputs("psctl: log-level: the name of a member has 1 to 64 bytes\n",
              stderr);
        return false;
    }
    level = ps_log_level_parse(argv[argc - 1]);
    if (level < 0) {
        fprintf(stderr,
                "psctl: log-level '%s': give error, warning, notice, info, "
                "debug or trace\n",
                argv[argc - 1]);
        return false;
    }
    q->log_level = (unsigned)level;
    return true;
}

static bool parse_trace_words(struct request *q, int argc, char **argv)
{
    if (argc != 2) {
        fputs("psctl: trace: give one job\n", stderr);
        return false;
    }
    return parse_name(q, argv[1]);
}

static bool parse_launch_words(struct request *q, int argc, char **argv)
{
    (void)argv;
    return argc == 1 && launch_order_read(&q->order);
}

/* Reads "USER/NAME", "USER/" or "NAME", where a slash ends the user: the job
 * need not exist yet. */
static bool parse_token_request(struct request *q)
{
    const char *slash = q->job != NULL ? strchr(q->job, '/') : NULL;

    q->wanted.job = (struct job_name){.name = q->job != NULL ? q->job : ""};
    if (slash == NULL) {
        return true;
    }
    q->wanted.job.name = slash + 1;
    q->wanted.job.has_owner = true;
    if (!find_user(q->job, (size_t)(slash - q->job), &q->wanted.job.owner)) {
        fprintf(stderr, "psctl: --job '%s': no such user\n", q->job);
        return false;
    }
    return true;
}

/* Parses the verb and its arguments. */
static bool parse_words(struct request *q, int argc, char **argv)
{
    const struct verb_spec *spec;

    if (argc == 0) {
        fputs("psctl: say what you want to know\n\n", stderr);
        help_short(stderr);
        return false;
    }
    spec = find_verb(argv[0]);
    if (spec == NULL) {
        help_no_verb(argv[0]);
        return false;
    }
    q->verb = spec->verb;
    if (spec->parse != NULL) {
        return spec->parse(q, argc, argv);
    }
    if (q->verb == VERB_JOBS && argc == 3 && strcmp(argv[1], "cancel") == 0) {
        if (q->watch != 0) {
            fputs("psctl: --watch: a job is cancelled once; leave it out\n",
                  stderr);
            return false;
        }
        q->verb = VERB_CANCEL;
        return parse_name(q, argv[2]);
    }
    if (q->verb == VERB_SET && (argc == 3 || argc == 4)) {
        return parse_setting(argv[2], argc == 4 ? argv[3] : NULL,
                             &q->setting) &&
               parse_name(q, argv[1]);
    }
    if (q->verb == VERB_REBALANCE && argc != 2) {
        fputs("psctl: rebalance: give one job\n", stderr);
        return false;
    }
    if ((q->verb != VERB_SET && argc == 1) ||
        (q->verb == VERB_JOBS && argc == 2 && strcmp(argv[1], "list") == 0)) {
        return true;
    }
    if (spec->has_job && q->verb != VERB_SET && argc == 2) {
        return parse_name(q, argv[1]);
    }
    fprintf(stderr, "psctl: %s: too many or too few words; see psctl help %s\n",
            argv[0], argv[0]);
    return false;
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

static int query_keys(struct wire *w, const struct job_name *job,
                      struct report *r)
{
    int rc = wire_query(w, PS_QUERY_JOBS, NULL, r); /* For add_job_name(). */

    rc = rc != 0 ? rc : wire_query(w, PS_QUERY_KEYS, job, r);
    return rc != 0 ? rc : wire_query(w, PS_QUERY_SHARES, job, r);
}

static int query_settings(struct wire *w, const struct job_name *job,
                          struct report *r)
{
    int rc = wire_query(w, PS_QUERY_JOBS, NULL, r);

    if (rc == 0 && settings_keep(r, job) == 0 && job != NULL) {
        fprintf(stderr, "psctl: no job '%s' is open; see psctl jobs\n",
                job->name);
        return EXIT_NOJOB;
    }
    return rc;
}

static int run_query(struct wire *w, const struct request *q, struct report *r)
{
    struct job_name name;
    const struct job_name *job = q->job != NULL ? &name : NULL;
    int rc = job != NULL && q->verb != VERB_TOKEN_ISSUE
                 ? job_name_parse(w, q->job, &name)
                 : 0;

    if (rc != 0) {
        return rc;
    }

    switch (q->verb) {
    case VERB_STATUS:
    case VERB_TOP:
    case VERB_DOCTOR:
        return wire_query_status(w, r);
    case VERB_JOBS:
        return wire_query(w, PS_QUERY_JOBS, NULL, r);
    case VERB_GET:
        return query_settings(w, job, r);
    case VERB_NODES:
    case VERB_BENCH:
        return wire_query(w, PS_QUERY_NODES, NULL, r);
    case VERB_KEYS:
        return query_keys(w, job, r);
    case VERB_REBALANCE:
        rc = wire_rebalance(w, job, q->drain_server, q->dry_run, r);
        r->has_migrated = !q->dry_run;
        return rc != 0 ? rc : wire_query(w, PS_QUERY_SHARES, job, r);
    case VERB_STALL:
        return wire_query(w, PS_QUERY_STALL, job, r);
    case VERB_EVENTS:
        return wire_events(w, 0, r);
    case VERB_TOKENS:
        return wire_query(w, PS_QUERY_TOKENS, NULL, r);
    case VERB_TOKEN_ISSUE:
        return wire_token_issue(w, &q->wanted, r);
    case VERB_TOKEN_REVOKE:
        return wire_token_revoke(w, q->token_id, r);
    case VERB_CANCEL:
        return wire_cancel(w, job, q->reason, r);
    case VERB_SET:
        return wire_set(w, job, &q->setting, r);
    case VERB_LOG_LEVEL:
        return wire_log_level(w, q->member, q->log_level, r);
    case VERB_TRACE:
        return trace_run(
            w, job,
            &(struct trace_options){.path = q->output,
                                    .json = q->format == FORMAT_JSON,
                                    .headings = q->has_headings},
            r);
    case VERB_LAUNCH:
        return wire_launch(w, &q->order, r);
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
    char own[PS_SOCKET_PATH_MAX + 1];
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
        ps_runtime_socket("agent.sock", own, sizeof(own));
        o.socket = socket != NULL && socket[0] != '\0' ? socket : own;
    }
    o.timeout = q->timeout;
    return bench_run(&o, q->format == FORMAT_JSON);
}

/* Names the private jobs of this user where no psched is reached; returns the
 * exit code. */
static int report_private(const struct request *q, int rc)
{
    if (rc == EXIT_UNAVAILABLE && q->verb == VERB_STATUS) {
        show_private_jobs(stderr);
    }
    return rc;
}

static int run_command(const struct request *q)
{
    const struct wire_target target = {.endpoint = q->cluster.endpoint,
                                       .token = q->cluster.token,
                                       .tls = q->cluster.tls,
                                       .silence = q->timeout,
                                       .insecure = q->cluster.insecure};
    struct report report = {0};
    struct health health = {0};
    struct wire *w;
    int rc = 0;

    if (q->verb == VERB_EVENTS && q->follow != 0) {
        return events_follow(&target, q->follow, q->format == FORMAT_JSON,
                             q->has_headings);
    }
    if (q->verb == VERB_DOCTOR) {
        return doctor_run(&target, q->after, q->format == FORMAT_JSON);
    }
    if (q->verb == VERB_TOP) {
        struct top_options o = q->top;

        o.pause = q->watch != 0 ? q->watch : WATCH_DEFAULT;
        o.after = q->after;
        o.json = q->format == FORMAT_JSON;
        o.headings = q->has_headings;
        return top_run(&target, &o);
    }
    w = wire_open(&target, &rc);

    if (w == NULL) {
        return report_private(q, rc);
    }
    if (q->verb == VERB_CANCEL || q->verb == VERB_SET ||
        q->verb == VERB_TOKENS || q->verb == VERB_TOKEN_ISSUE ||
        q->verb == VERB_TOKEN_REVOKE || q->verb == VERB_LOG_LEVEL ||
        q->verb == VERB_LAUNCH || (q->verb == VERB_REBALANCE && !q->dry_run)) {
        w = wire_switch_to_local(w);
    }
    rc = run_query(w, q, &report);
    wire_close(w);
    if (rc == 0 && q->verb == VERB_BENCH) {
        rc = run_bench(q, &report);
    } else if (rc == 0 && q->verb != VERB_TRACE) {
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
    return !ps_exit_flush() && rc == 0 ? EXIT_IOERR : rc;
}

/* Repeats the command until a signal; on a terminal each output overwrites the
 * last. */
static int run_watch(const struct request *q)
{
    bool clears = q->format != FORMAT_JSON && isatty(STDOUT_FILENO) == 1;

    for (;;) {
        int rc;

        if (clears) {
            fputs("\033[H\033[2J", stdout);
        }
        rc = run_command(q);
        if (rc == EXIT_USAGE || rc == EXIT_NOJOB || !ps_exit_flush()) {
            return rc;
        }
        if (!clears && q->format != FORMAT_JSON) {
            putchar('\n');
            fflush(stdout);
        }
        wait_for(q->watch);
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
            help_short(stdout);
        } else if (!help_verb(verb)) {
            *ret_exit = EXIT_USAGE;
        }
        return true;
    }
    if (argc > 0 && strcmp(argv[0], "completion") == 0) {
        if (argc != 2 || !completion_print_script(argv[1])) {
            fputs("psctl: completion: give bash, zsh or fish\n", stderr);
            *ret_exit = EXIT_USAGE;
        }
        return true;
    }
    return false;
}

/* Runs verbs on contexts, certificates and errors, which need no scheduler. False: it is
 * another verb. */
static bool run_alone(struct request *q, int argc, char **argv, int *ret_exit)
{
    const char *verb = argc > 0 ? argv[0] : "";

    if (strcmp(verb, "explain") == 0) {
        *ret_exit = explain_run(argc - 1, argv + 1, q->format == FORMAT_JSON,
                                q->has_headings);
        return true;
    }
    if (strcmp(verb, "context") == 0) {
        const struct context_options o = {.endpoint = q->cluster.endpoint,
                                          .tls = q->cluster.tls,
                                          .token = q->cluster.token_file,
                                          .json = q->format == FORMAT_JSON,
                                          .headings = q->has_headings};

        *ret_exit = context_run(&o, argc - 1, argv + 1);
        return true;
    }
    q->pki.json = q->format == FORMAT_JSON;
    q->pki.headings = q->has_headings;
    q->pki.code_time = q->wanted.valid;
    q->pki.timeout = q->timeout;
    if (strcmp(verb, "pki") == 0) {
        *ret_exit = pki_run(&q->pki, argc - 1, argv + 1);
        return true;
    }
    if (strcmp(verb, "enroll") == 0) {
        *ret_exit = pki_enroll(&q->pki, argc - 1);
        return true;
    }
    return false;
}

#define OPTION_COUNT (sizeof(options) / sizeof(options[0]) - 1)

/* The options that are given, as indices of `options`. */
struct given {
    bool is_given[OPTION_COUNT];
};

/* `at`: index of a long option, or -1. */
static void note_option(struct given *g, int c, int at)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (at >= 0 ? i == (size_t)at : options[i].val == c) {
            g->is_given[i] = true;
        }
    }
}

/* False after a message: one belongs to another verb. */
static bool check_options(const struct given *g, int argc, char **argv)
{
    const struct page *p = argc > 0 ? help_find_page(argv[0]) : NULL;

    for (size_t i = 0; p != NULL && i < OPTION_COUNT; i++) {
        if (g->is_given[i] &&
            !help_check_option(p, argc > 1 ? argv[1] : "", options[i].name)) {
            return false;
        }
    }
    return true;
}

/* Parses all options. False: the program ends, with *ret_exit. */
static bool parse_options(struct request *q, struct given *g, int argc,
                          char **argv, int *ret_exit)
{
    int at = -1;
    int c;

    *ret_exit = EXIT_USAGE;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":e:w:hVbn:o:", options, &at)) != -1) {
        note_option(g, c, at);
        at = -1;
        if (c == 'h') {
            q->help = true;
            continue;
        }
        if (c == 'V') {
            printf("psctl %s\nprotocol %u\n", PSKV_VERSION, PS_PROTOCOL);
            *ret_exit = EXIT_HEALTHY;
            return false;
        }
        if (c == ':' || c == '?') {
            fprintf(stderr, "psctl: %s: %s; see --help\n", argv[optind - 1],
                    c == ':' ? "needs a value" : "no such option");
            return false;
        }
        if (!parse_option(q, c)) {
            return false;
        }
    }
    return true;
}

static int run(int argc, char **argv)
{
    struct request q = {
        .timeout = PS_SECONDS(5),
        .after = PS_SECONDS(10),
        .reason = "",
        .bench = {.size = 64u << 20, .keys = 100, .rounds = 50, .workers = 2},
        .pki = {.cluster = "default", .directory = PKI_DEFAULT_DIRECTORY},
        .has_headings = true,
        .wanted = {.valid = PS_SECONDS(3600)}};
    struct given given = {0};
    int rc;

    /* Needed for printable characters of the terminal. */
    (void)setlocale(LC_CTYPE, "");
    if (argc > 1 && strcmp(argv[1], "__complete") == 0) {
        return completion_run(argc - 2, argv + 2);
    }
    if (!parse_options(&q, &given, argc, argv, &rc)) {
        return rc;
    }
    if (!q.help && !check_options(&given, argc - optind, argv + optind)) {
        return EXIT_USAGE;
    }
    if (print_about(&q, argc - optind, argv + optind, &rc)) {
        return rc;
    }
    if (run_alone(&q, argc - optind, argv + optind, &rc)) {
        return rc;
    }
    if (!parse_words(&q, argc - optind, argv + optind)) {
        return EXIT_USAGE;
    }
    if (q.verb != VERB_LAUNCH) { /* pslaunch has warned. */
        warn_unknown_variables();
    }
    if (q.verb == VERB_TOKEN_ISSUE && !parse_token_request(&q)) {
        return EXIT_USAGE;
    }
    rc = cluster_choose(&q.cluster);
    if (rc != 0) {
        return rc;
    }
    return q.watch != 0 && q.verb != VERB_TOP ? run_watch(&q) : run_command(&q);
}

int main(int argc, char **argv)
{
    return ps_exit_with_output("psctl", run(argc, argv));
}
