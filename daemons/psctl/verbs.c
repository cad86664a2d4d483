/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of psctl, from which all that a verb needs is made, and what each
 * does: how its words and options are read, how psched is asked. */
#include "psctl/verbs.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOW_PAUSE PS_SECONDS(1)
#define FRAMES_MAX   1000000000u

/* ------------------------------------------------------------------ options */

bool time_parse(const char *text, const char *what, ps_time *ret)
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

bool count_parse(const char *text, const char *what, uint32_t most,
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

static bool read_format(struct request *q, const char *value)
{
    q->print.json = strcmp(value, "table") != 0;
    if (strcmp(value, "jsonl") == 0) {
        json_use_lines();
    } else if (q->print.json && strcmp(value, "json") != 0) {
        fprintf(stderr, "psctl: -w '%s': give table, json or jsonl\n", value);
        return false;
    }
    return true;
}

static bool read_watch(struct request *q, const char *value)
{
    q->watch = WATCH_DEFAULT;
    return value == NULL || time_parse(value, "--watch", &q->watch);
}

static bool read_follow(struct request *q, const char *value)
{
    (void)value;
    q->follow = FOLLOW_PAUSE;
    return true;
}

static bool read_round(struct request *q, const char *value)
{
    char *end;
    long long n = strtoll(value, &end, 10);

    if (end == value || *end != '\0' || n < 1) {
        fprintf(stderr, "psctl: --round '%s': give a number from 1 on\n",
                value);
        return false;
    }
    q->setting.round = (uint64_t)n;
    return true;
}

static bool read_size(struct request *q, const char *value)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},
                 {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                 {"B", 1}};
    char *end;
    double n = strtod(value, &end);

    for (size_t i = 0; end != value && i < sizeof(units) / sizeof(units[0]);
         i++) {
        if (strcmp(end, units[i].name) == 0) {
            n *= units[i].bytes;
            end += strlen(end);
        }
    }
    if (end == value || *end != '\0' || !(n >= 4) ||
        n > (double)BENCH_BYTES_MAX) {
        fprintf(stderr,
                "psctl: --size '%s': give bytes, such as 65536, 64K, 64MiB "
                "or 64MB, of at most 64G\n",
                value);
        return false;
    }
    q->bench.size = (uint64_t)n;
    return true;
}

static bool read_host(struct request *q, const char *value)
{
    struct pki_options *o = &q->pki;

    if (o->host_count == PS_PKI_HOSTS_MAX || !ps_pki_is_host(value)) {
        fprintf(stderr,
                "psctl: --host: give at most %u names of DNS or addresses\n",
                PS_PKI_HOSTS_MAX);
        return false;
    }
    o->hosts[o->host_count++] = value;
    return true;
}

static bool has_name_length(const char *name)
{
    return name[0] != '\0' && strlen(name) <= PS_NAME_MAX;
}

static bool read_off(struct request *q, const char *value)
{
    if (!has_name_length(value)) {
        fputs("psctl: --off: the name of a server has 1 to 64 bytes\n", stderr);
        return false;
    }
    q->drain_server = value;
    return true;
}

static bool read_sort(struct request *q, const char *value)
{
    return top_key_parse(value, &q->top.by);
}

static bool read_job_name(struct request *q, const char *name)
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

/* Reads [JOB]. */
static bool read_job(struct request *q, int count, char **values)
{
    return count == 0 || read_job_name(q, values[0]);
}

static bool read_rights(struct request *q, const char *text)
{
    static const enum ps_token_right all[] = {
        PS_TOKEN_RIGHT_TRAIN, PS_TOKEN_RIGHT_READ, PS_TOKEN_RIGHT_OPERATE,
        PS_TOKEN_RIGHT_ADMIN};
    uint32_t rights = 0;

    for (const char *word = text;; word++) {
        size_t len = strcspn(word, ",");
        uint32_t right = 0;

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
            const char *name = ps_token_right_name(all[i]);

            if (strlen(name) == len && strncmp(name, word, len) == 0) {
                right = all[i];
            }
        }
        if (right == 0) {
            fprintf(stderr,
                    "psctl: --rights '%s': give one or more of train, "
                    "read, operate and admin, with commas between\n",
                    text);
            return false;
        }
        rights |= right;
        word += len;
        if (*word == '\0') {
            q->wanted.rights = rights;
            return true;
        }
    }
}

static bool read_help(struct request *q, const char *value)
{
    (void)value;
    q->about = ABOUT_HELP;
    return true;
}

static bool read_version(struct request *q, const char *value)
{
    (void)value;
    q->about = ABOUT_VERSION;
    return true;
}

/* ------------------------------------------------------- jobs: cancel and set */

static int ask_cancel(struct wire *w, struct request *q,
                      const struct job_name *job, struct report *r)
{
    const struct ps_msg cancel = {.code = PS_MSG_JOB_CANCEL,
                                  .job_cancel = {.job = job->name,
                                                 .reason = q->reason,
                                                 .has_owner = job->has_owner,
                                                 .owner = job->owner}};

    return wire_ask(w, &cancel, PS_MSG_QUERY_END, NULL, r);
}

static int ask_settings(struct wire *w, struct request *q,
                        const struct job_name *job, struct report *r)
{
    int rc = wire_query(w, PS_QUERY_JOBS, NULL, r);

    (void)q;
    if (rc == 0 && settings_keep(r, job) == 0 && job != NULL) {
        fprintf(stderr, "psctl: no job '%s' is open; see psctl jobs\n",
                job->name);
        return EXIT_NOJOB;
    }
    return rc;
}

/* A weight holds at once. */
static bool read_weight(const char *value, struct setting *s)
{
    uint32_t weight = 0;

    if (s->round != 0) {
        fputs("psctl: set: a weight takes effect at once; leave --round out\n",
              stderr);
        return false;
    }
    if (!count_parse(value, "set: weight", PS_JOB_WEIGHT_MAX, &weight)) {
        return false;
    }
    s->value = weight;
    return true;
}

/* Reads JOB, and NAME VALUE or NAME=VALUE. */
static bool read_setting(struct request *q, int count, char **values)
{
    struct setting *s = &q->setting;
    const char *text = values[1];
    const char *value = count == 3 ? values[2] : strchr(text, '=');
    const size_t len = count == 3 ? strlen(text) : strcspn(text, "=");
    char *end = NULL;

    value += count != 3 && value != NULL;
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
        return read_weight(value, s) && read_job_name(q, values[0]);
    }
    if (s->round == 0) {
        fputs("psctl: set: give --round, the first round that has the value\n",
              stderr);
        return false;
    }
    return read_job_name(q, values[0]);
}

static int ask_set(struct wire *w, struct request *q,
                   const struct job_name *job, struct report *r)
{
    const struct ps_msg set = {.code = PS_MSG_JOB_SET,
                               .job_set = {.job = job->name,
                                           .has_owner = job->has_owner,
                                           .owner = job->owner,
                                           .name = q->setting.name,
                                           .value = q->setting.value,
                                           .round = q->setting.round}};

    return wire_ask(w, &set, PS_MSG_QUERY_END, NULL, r);
}

static int ask_rebalance(struct wire *w, struct request *q,
                         const struct job_name *job, struct report *r)
{
    int rc = wire_rebalance(w, job, q->drain_server, q->dry_run, r);

    r->is_plan = q->dry_run;
    return rc != 0 ? rc : wire_query(w, PS_QUERY_SHARES, job, r);
}

/* ------------------------------------------------------- stalls, events, logs */

static bool has_problems(const struct request *q, const struct report *r)
{
    (void)q;
    return r->health.count > 0;
}

static bool has_bad_stall(const struct request *q, const struct report *r)
{
    const struct rows *stalls = &r->rows_of[PS_QUERY_STALL];

    for (size_t i = 0; i < stalls->count; i++) {
        if (stall_is_problem(&stalls->row[i]->stall_row, q->after)) {
            return true;
        }
    }
    return false;
}

/* Reads "[MEMBER] LEVEL". */
static bool read_log_level(struct request *q, int count, char **values)
{
    const char *word = values[count - 1];
    int level = ps_log_level_parse(word);

    q->member = count == 2 ? values[0] : "";
    if (count == 2 && !has_name_length(q->member)) {
        fputs("psctl: log-level: the name of a member has 1 to 64 bytes\n",
              stderr);
        return false;
    }
    if (level < 0) {
        fprintf(stderr,
                "psctl: log-level '%s': give error, warning, notice, info, "
                "debug or trace\n",
                word);
        return false;
    }
    q->log_level = (unsigned)level;
    return true;
}

static int ask_log_level(struct wire *w, struct request *q,
                         const struct job_name *job, struct report *r)
{
    const struct ps_msg set = {
        .code = PS_MSG_LOG_LEVEL,
        .log_level = {.member = q->member, .level = (uint8_t)q->log_level}};

    (void)job;
    return wire_ask(w, &set, PS_MSG_QUERY_END, NULL, r);
}

/* ------------------------------------------------------------------- tokens */

/* Reads --job "USER/NAME", "USER/" or "NAME", where a slash ends the user: the
 * job need not exist yet. */
static bool read_issue(struct request *q, int count, char **values)
{
    const char *slash = q->job != NULL ? strchr(q->job, '/') : NULL;

    (void)count;
    (void)values;
    if (q->wanted.rights == 0) {
        fputs("psctl: token issue: give --rights, as in read,operate\n",
              stderr);
        return false;
    }
    q->wanted.job = (struct job_name){.name = q->job != NULL ? q->job : ""};
    if (slash != NULL) {
        q->wanted.job.name = slash + 1;
        q->wanted.job.has_owner = true;
        if (!find_user(q->job, (size_t)(slash - q->job),
                       &q->wanted.job.owner)) {
            fprintf(stderr, "psctl: --job '%s': no such user\n", q->job);
            return false;
        }
    }
    q->job = NULL; /* It need not exist yet. */
    return true;
}

static int ask_issue(struct wire *w, struct request *q,
                     const struct job_name *job, struct report *r)
{
    const struct token_request *t = &q->wanted;
    const struct ps_msg issue = {
        .code = PS_MSG_TOKEN_ISSUE,
        .token_issue = {.job = t->job.name,
                        .has_owner = t->job.has_owner,
                        .owner = t->job.owner,
                        .rights = t->rights,
                        .valid_s = t->valid / PS_SECONDS(1)}};

    (void)job;
    return wire_ask(w, &issue, PS_MSG_TOKEN_ROW, &r->rows_of[PS_QUERY_TOKENS],
                    r);
}

/* The token alone, for a file. */
static void show_token(const struct report *r, bool headings)
{
    (void)headings;
    if (r->rows_of[PS_QUERY_TOKENS].count > 0) {
        puts(r->rows_of[PS_QUERY_TOKENS].row[0]->token_row.text);
    }
}

static bool read_revoke(struct request *q, int count, char **values)
{
    const char *text = values[0];

    (void)count;
    q->token_id = strtoull(text, NULL, 16);
    if (strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16) {
        return true;
    }
    fprintf(stderr,
            "psctl: token revoke '%s': give the number of a token, 16 digits "
            "as psctl token list prints them\n",
            text);
    return false;
}

static int ask_revoke(struct wire *w, struct request *q,
                      const struct job_name *job, struct report *r)
{
    const struct ps_msg revoke = {.code = PS_MSG_TOKEN_REVOKE,
                                  .token_revoke = {.id = q->token_id}};

    (void)job;
    return wire_ask(w, &revoke, PS_MSG_QUERY_END, NULL, r);
}

/* ------------------------------------------------ verbs with their own output */

/* A trace has been printed by then. */
static int end_trace(const struct request *q, const struct report *r)
{
    (void)q;
    (void)r;
    return EXIT_HEALTHY;
}

static int run_help(struct request *q, int count, char **values)
{
    (void)q;
    if (count == 0) {
        help_short(stdout);
        return EXIT_HEALTHY;
    }
    return help_verb(values[0]) ? EXIT_HEALTHY : EXIT_USAGE;
}

static int run_completion(struct request *q, int count, char **values)
{
    (void)count;
    (void)values;
    return completion_print_script(q->form->words) ? EXIT_HEALTHY : EXIT_USAGE;
}

/* -------------------------------------------------------------------- tables */

#define AT(member) offsetof(struct request, member)
#define OWN(name_, help_, read_)                                               \
    .name = (name_), .help = (help_), .read = (read_)
#define VALUE(name_, help_, kind_, member)                                     \
    .name = (name_), .help = (help_), .kind = FLAG_##kind_, .offset = AT(member)
#define UP_TO(name_, help_, max_, member)                                      \
    .name = (name_), .help = (help_), .kind = FLAG_COUNT, .max = (max_),       \
    .offset = AT(member)

#define WATCH OWN("--watch[=TIME]", "repeat every 2s", read_watch)
#define AFTER                                                                  \
    VALUE("--after TIME", "count only longer waits (default 10s)", TIME, after)

#define ASKS(...)                                                              \
    .asks = {__VA_ARGS__},                                                     \
    .ask_count = sizeof((const int[]){__VA_ARGS__}) / sizeof(int)
#define ANSWERS(...)                                                           \
    .answers = (const struct answer *const[])                                  \
    {                                                                          \
        __VA_ARGS__, NULL                                                      \
    }
#define WORDS(words_, help_) .words = (words_), .help = (help_)

const struct verb verbs[] = {
    {.name = "status",
     .group = GROUP_LOOK,
     .forms = {{WORDS("", "one screen: members, jobs, what is wrong"),
                .access = ACCESS_ANY,
                ASKS(PS_QUERY_NODES, PS_QUERY_JOBS, PS_QUERY_STALL),
                .answers = answers_of_status, .show = show_status,
                .is_bad = has_problems}},
     .text = "Each line with an exclamation mark is a problem; then "
             "the\n"
             "exit code is 3. Lost ranks, servers that are gone, jobs that "
             "wait for\n"
             "too long or have lost their second copy.\n",
     .flags = {{WATCH}, {AFTER}}},
    {.name = "jobs",
     .group = GROUP_LOOK,
     .forms = {{WORDS("[list]", "jobs, also those that ended lately"),
                .access = ACCESS_ANY, ASKS(PS_QUERY_JOBS),
                ANSWERS(&answer_jobs)},
               {WORDS("cancel NAME",
                      "end a job; its workers get an error that says so"),
                .access = ACCESS_USER, .read = read_job, .ask = ask_cancel}},
     .text = "COPIES is of jobs with replicas: 2: two; filling 40 %, of what "
             "backups\n"
             "have to get; or alone 1 of 3, servers without a backup.\n\n"
             "'cancel' ends a job: its workers get an error that says so. It "
             "is for\n"
             "the owner of the job, root and the user of psched, on psched's "
             "host.\n",
     .flags = {{WATCH},
               {VALUE("--reason TEXT", "for the workers' error", TEXT, reason),
                .of = "cancel"}}},
    {.name = "nodes",
     .group = GROUP_LOOK,
     .forms = {{WORDS("", "servers and agents, with totals and rates"),
                .access = ACCESS_ANY, ASKS(PS_QUERY_NODES),
                ANSWERS(&answer_nodes)}},
     .text = "Rates are means over the last seconds.\n",
     .flags = {{WATCH}}},
    {.name = "keys",
     .group = GROUP_LOOK,
     .forms = {{WORDS("[JOB]",
                      "keys, which server holds how much, and how even"),
                .access = ACCESS_ANY, .read = read_job,
                ASKS(PS_QUERY_JOBS, PS_QUERY_KEYS, PS_QUERY_SHARES),
                ANSWERS(&answer_keys, &answer_loads), .show = show_keys}},
     .text =
         "100 % of even is what a server would hold if all held the same.\n",
     .flags = {{WATCH}}},
    {.name = "stall",
     .group = GROUP_LOOK,
     .forms = {{WORDS("[JOB]", "waiting operations, since when, missing ranks"),
                .access = ACCESS_ANY, .read = read_job, ASKS(PS_QUERY_STALL),
                ANSWERS(&answer_stalls), .show = show_stalls,
                .is_bad = has_bad_stall}},
     .text = "The exit code is 3 where a rank is lost or a wait is too long.\n",
     .flags = {{WATCH}, {AFTER}}},
    {.name = "get",
     .group = GROUP_LOOK,
     .forms = {{WORDS(
                    "[JOB]",
                    "weight of running jobs, and numbers of their optimizers"),
                .access = ACCESS_ANY, .read = read_job, .ask = ask_settings,
                ANSWERS(&answer_jobs), .show = show_settings}},
     .text =
         "Numbers that a job has not declared have their defaults. One with a\n"
         "round holds for each key from that round on.\n"},
    {.name = "set",
     .group = GROUP_CHANGE,
     .forms = {{WORDS("JOB NAME VALUE", "change a number of a job's optimizer"),
                .access = ACCESS_USER, .read = read_setting, .ask = ask_set},
               {WORDS("JOB weight N",
                      "change a job's share beside others, 1 to 1000"),
                .access = ACCESS_USER, .read = read_setting, .ask = ask_set},
               {WORDS("JOB NAME=VALUE", NULL), .access = ACCESS_USER,
                .read = read_setting, .ask = ask_set}},
     .text =
         "NAME is learning_rate (lr), wd, rescale_grad or clip_gradient, also\n"
         "NAME=VALUE. A weight takes effect at once, until the job ends. It is "
         "for "
         "the\n"
         "owner of the job, root and the user of psched, on psched's host.\n",
     .flags = {{OWN("--round N",
                    "first round of each key with NAME's value; not of weight",
                    read_round)}}},
    {.name = "rebalance",
     .group = GROUP_CHANGE,
     .forms =
         {{WORDS("JOB", "move partitions until servers are within 5 % of even"),
           .access = ACCESS_USER, .read = read_job, .ask = ask_rebalance,
           ANSWERS(&answer_moves, &answer_loads), .show = show_migrations}},
     .text = "The job continues meanwhile. Only for the owner of the job, root "
             "and\n"
             "the user of psched, on psched's host.\n",
     .flags = {{OWN("--off SERVER",
                    "move all that the job has there to its others", read_off)},
               {VALUE("--dry-run", "print the plan alone", TRUE, dry_run)}}},
    {.name = "token",
     .group = GROUP_SET_UP,
     .forms =
         {{WORDS("list", "tokens that you may revoke"), .access = ACCESS_USER,
           ASKS(PS_QUERY_TOKENS), ANSWERS(&answer_tokens)},
          {WORDS("issue", "print a token: rights of yours that its holder has"),
           .access = ACCESS_USER, .read = read_issue, .ask = ask_issue,
           ANSWERS(&answer_tokens), .show = show_token},
          {WORDS("revoke NUMBER", "end a token at once"), .access = ACCESS_USER,
           .read = read_revoke, .ask = ask_revoke}},
     .text = "A token hands on rights of a user: train, read, operate, admin.\n"
             "It is issued on psched's host, to that user and to operators. "
             "Write it\n"
             "to a file of mode 600, and give that with --token or "
             "$PSKV_TOKEN_FILE.\n",
     .flags = {{OWN("--rights LIST", "needed: train,read,operate,admin",
                    read_rights),
                .of = "issue"},
               {OWN("--job [USER/]NAME", "that job alone; else all of the user",
                    read_job_name),
                .of = "issue"},
               {VALUE("--ttl TIME", "how long it is valid, default 1h",
                      TIME, wanted.valid),
                .of = "issue"}}},
    {.name = "bench",
     .group = GROUP_CHECK,
     .forms = {{WORDS("", "push and pull in a job of its own from this node"),
                .access = ACCESS_ANY, ASKS(PS_QUERY_NODES),
                .finish = bench_run}},
     .text = "Says how long a round takes, in milliseconds, GB/s and keys a "
             "second.\n",
     .flags = {{OWN("--size BYTES", "of all keys together, e.g. 64M (default)",
                    read_size)},
               {UP_TO("--keys N", "default 100", BENCH_KEYS_MAX, bench.keys)},
               {UP_TO("--rounds N", "default 50", BENCH_ROUNDS_MAX,
                      bench.rounds)},
               {UP_TO("--workers N", "processes, default 2", BENCH_WORKERS_MAX,
                      bench.workers)},
               {VALUE("--socket PATH",
                      "this node's agent; else $PSKV_SOCKET, else as workers",
                      TEXT, bench.socket)}}},
    {.name = "pki",
     .group = GROUP_SET_UP,
     .forms =
         {{WORDS("init",
                 "make the authority that signs a cluster's certificates"),
           .pki = pki_init},
          {WORDS("issue ROLE NAME",
                 "make key and certificate of sched, server, agent or ctl"),
           .pki = pki_issue},
          {WORDS("renew ROLE NAME", "replace a certificate before it ends"),
           .pki = pki_renew},
          {WORDS("revoke NAME|SERIAL", "refuse a member from now on"),
           .pki = pki_revoke},
          {WORDS("code ROLE NAME",
                 "print a one-time code, with which a node enrols"),
           .pki = pki_code},
          {WORDS("serve", "exchange codes for certificates, until Ctrl-C"),
           .pki = pki_serve},
          {WORDS("show", "certificates, and when they end"), .pki = pki_show}},
     .text =
         "No scheduler takes part. 'issue' and 'renew' write ca.crt, crl.pem,\n"
         "ROLE.crt and ROLE.key, which daemons read.\n"
         "The exit code of 'show' is 3 if a certificate ends soon.\n",
     .flags = {{VALUE("--cluster NAME", "the cluster (default 'default')", TEXT,
                      pki.cluster),
                .of = "init"},
               {VALUE("--dir DIR",
                      "the authority's folder (" PKI_DEFAULT_DIRECTORY ")",
                      TEXT, pki.directory)},
               {VALUE("--out DIR", "the node's folder (" PKI_DEFAULT_OUTPUT ")",
                      TEXT, pki.output),
                .of = "issue|renew|revoke"},
               {VALUE("--directory DIR", "the same", TEXT, pki.output),
                .of = "issue|renew|revoke"},
               {OWN("--host NAME",
                    "name or address of the node's host; repeatable",
                    read_host),
                .of = "issue|renew|code"},
               {UP_TO("--days N", "validity: 365, of an authority 3650",
                      PKI_DAYS_MAX, pki.days),
                .of = "init|issue|renew|code"},
               {VALUE("--owner USER", "to whom the node's files belong",
                      TEXT, pki.owner),
                .of = "issue|renew|revoke"},
               {VALUE("--force", "replace files and certificates that exist",
                      TRUE, pki.force),
                .of = "init|issue|renew|code"},
               {VALUE("--ttl TIME", "how long it is valid, default 1h",
                      TIME, wanted.valid),
                .of = "code"},
               {VALUE("--listen HOST:PORT", "default " PKI_DEFAULT_LISTEN,
                      TEXT, pki.listen),
                .of = "serve"}}},
    {.name = "enroll",
     .group = GROUP_SET_UP,
     .forms = {{WORDS("",
                      "get a certificate for this node with a one-time code"),
                .pki = pki_enroll}},
     .text =
         "Makes a key, sends its public part to 'psctl pki serve', whose "
         "authority\n"
         "the code names, and writes ca.crt, crl.pem, ROLE.crt and ROLE.key.\n",
     .flags =
         {{VALUE("--server HOST[:PORT]",
                 "where psctl pki serve listens; needed", TEXT, pki.server)},
          {VALUE("--code CODE",
                 "of psctl pki code; -: from standard input; needed", TEXT,
                 pki.code)},
          {VALUE("--out DIR", "the node's folder (" PKI_DEFAULT_OUTPUT ")",
                 TEXT, pki.output)},
          {VALUE("--directory DIR", "the same", TEXT, pki.output)},
          {VALUE("--owner USER", "to whom the node's files belong", TEXT,
                 pki.owner)},
          {VALUE("--force", "replace files that exist", TRUE, pki.force)}}},
    {.name = "top",
     .group = GROUP_LOOK,
     .forms = {{WORDS("",
                      "the cluster, its jobs and busiest members, refreshed"),
                .access = ACCESS_ANY, .run = top_run}},
     .text = "On a terminal until q; n, t, r, m change the order. Elsewhere, "
             "and with "
             "--batch, each output follows\n"
             "the last one, separated by an empty line.\n",
     .flags = {{VALUE("-b, --batch", "no control of the terminal", TRUE,
                      top.batch)},
               {UP_TO("-n, --count N", "end after N outputs", FRAMES_MAX,
                      top.count)},
               {OWN("--sort KEY", "name (default), traffic, rounds or memory",
                    read_sort)},
               {WATCH},
               {AFTER}}},
    {.name = "doctor",
     .group = GROUP_CHECK,
     .forms = {{WORDS("",
                      "check the cluster and this host, and say what to do"),
                .access = ACCESS_ANY, .run = doctor_run}},
     .text = "Versions, clocks, certificates, members, memory and limits, "
             "jobs; this\n"
             "host's agent, clock and kernel. The exit code is 3 if there is a "
             "problem.\n",
     .flags = {{AFTER}}},
    {.name = "log-level",
     .group = GROUP_CHANGE,
     .forms =
         {{WORDS("LEVEL", "change what all members write to their logs, now"),
           .access = ACCESS_USER, .read = read_log_level, .ask = ask_log_level},
          {WORDS("MEMBER LEVEL", "the same for members of this name"),
           .access = ACCESS_USER, .read = read_log_level,
           .ask = ask_log_level}},
     .text =
         "LEVEL is error, warning, notice, info, debug or trace. It holds "
         "until a\n"
         "member starts again or reads its options again (SIGHUP). It is for\n"
         "root, the user of psched and users of control.operators.\n"},
    {.name = "trace",
     .group = GROUP_LOOK,
     .forms = {{WORDS("JOB", "what a job's members did lately, and for which "
                             "rank others wait"),
                .access = ACCESS_ANY, .read = read_job, .ask = trace_ask,
                .finish = end_trace}},
     .text =
         "Collects the last 16384 entries of each member, on all hosts, with "
         "their\n"
         "clocks compared. FILE is JSON for ui.perfetto.dev and "
         "chrome://tracing.\n"
         "The exit code is 3 if a member did not answer.\n",
     .flags = {{VALUE("-o, --output FILE", "write a timeline", TEXT, output)}}},
    {.name = "events",
     .group = GROUP_LOOK,
     .forms = {{WORDS("", "what happened lately to members and jobs"),
                .access = ACCESS_ANY, .ask = events_ask,
                ANSWERS(&answer_events)}},
     .text =
         "States of servers and agents, phases of jobs, ranks lost and taken\n"
         "again, partitions moved, changes by users; the last 512.\n",
     .flags = {{OWN("--follow", "then print events as they happen",
                    read_follow)}}},
    {.name = "explain",
     .group = GROUP_CHECK,
     .forms = {{WORDS("[CODE|MESSAGE]",
                      "cause and remedy of an error or of a line in a log"),
                .has_rest = true, .run = explain_run}},
     .text = "CODE is that of an entry, such as PSKV-0042, or the name or "
             "number of\n"
             "an error, such as PSC_E_NOMEM or 2. A message is copied as it "
             "is, in\n"
             "quotes. Without either: all codes. No scheduler takes part.\n"},
    {.name = "help",
     .group = GROUP_NONE,
     .forms = {{WORDS("[VERB]", "this, or more about one verb"),
                .run = run_help},
               {WORDS("all", "all verbs with their words, and all options"),
                .run = run_help}},
     .text = ""},
    {.name = "context",
     .group = GROUP_SET_UP,
     .forms =
         {{WORDS("[list]", "clusters that have a name"), .run = context_list},
          {WORDS("use NAME", "the cluster of commands without -e; -: none"),
           .run = context_use},
          {WORDS("set NAME", "keep -e, --tls and --token under a name"),
           .run = context_set},
          {WORDS("remove NAME", "forget a name"), .run = context_remove}},
     .text =
         "'set' changes the parts of a context that are given; an empty text\n"
         "removes one. They are kept in pskv/contexts.json in "
         "$XDG_CONFIG_HOME,\n"
         "else ~/.config. $PSKV_CONTEXT names one in place of 'use'. No "
         "scheduler\n"
         "takes part.\n"},
    {.name = "completion",
     .group = GROUP_SET_UP,
     .forms = {{WORDS("bash", "a script that completes words in this shell"),
                .run = run_completion},
               {WORDS("zsh", "the same for zsh"), .run = run_completion},
               {WORDS("fish", "the same for fish"), .run = run_completion}},
     .text =
         "In bash: source <(psctl completion bash), in zsh, after compinit:\n"
         "source <(psctl completion zsh), in fish: psctl completion fish | "
         "source\n"},
};

const size_t verb_count = sizeof(verbs) / sizeof(verbs[0]);

const struct flag general_flags[] = {
    {VALUE("-e, --endpoint HOST:PORT|unix:PATH",
           "the scheduler; else that of --context, else\n"
           "$PSKV_SCHED, else $DMLC_PS_ROOT_URI and\n"
           "$DMLC_PS_ROOT_PORT, else the context in use, else\n"
           "its socket in $XDG_RUNTIME_DIR/pskv or /run/pskv,\n"
           "else 127.0.0.1:9091",
           TEXT, cluster.endpoint)},
    {VALUE("--context NAME", "a cluster of psctl context, without variables",
           TEXT, cluster.context_name)},
    {OWN("-w, --write FORMAT",
         "table (for people), json (for programs) or jsonl\n"
         "(the same on one line)",
         read_format)},
    {VALUE("--timeout TIME",
           "how long the scheduler may be silent, e.g. 500ms\n"
           "or 5s (default)",
           TIME, timeout)},
    {VALUE("--no-headers", "rows alone", TRUE, print.no_headings)},
    {VALUE("--token FILE", "a token; else $PSKV_TOKEN_FILE, $PSKV_TOKEN_FD",
           TEXT, cluster.token_file)},
    {VALUE("--tls FOLDER", "a certificate for TCP (ctl.crt); else $PSKV_TLS",
           TEXT, cluster.tls)},
    {VALUE("--insecure", "send the token over plain TCP to another host, too",
           TRUE, cluster.insecure)},
    {OWN("-h, --help", "this, or help of the verb", read_help)},
    {OWN("-V, --version", "versions of psctl and of its protocol",
         read_version)},
};

const size_t general_flag_count = sizeof(general_flags) /
                                  sizeof(general_flags[0]);

const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < verb_count; i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

struct flag_name flag_name_of(const struct flag *f)
{
    struct flag_name n = {.word = f->name};

    if (n.word[1] != '-') {
        n.letter = n.word[1];
        n.word += strlen("-x, ");
    }
    n.len = strcspn(n.word, " [");
    n.value = n.word[n.len] == ' ' ? n.word + n.len + 1 : NULL;
    return n;
}

bool form_next_word(const char **form, const char **ret_word, size_t *ret_len)
{
    const char *word = *form + strspn(*form, " [");

    *ret_word = word;
    *ret_len = strcspn(word, " ]");
    *form = word + *ret_len + (word[*ret_len] == ']');
    return *ret_len > 0;
}

bool form_is_literal(const char *word)
{
    return word[0] >= 'a' && word[0] <= 'z';
}
