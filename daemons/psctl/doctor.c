/* SPDX-License-Identifier: Apache-2.0 */
/* psctl doctor, which checks the cluster and this host, and psctl explain, which
 * finds cause and remedy of an error. */
#include "psctl/verbs.h"

#include "base/alloc.h"
#include "base/variables.h"
#include "common/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* Tokens and certificates count in seconds, lines of logs are compared. */
#define CLOCK_SKEW_MAX_S  2.0
/* Share of a limit from which on it is near. */
#define NEAR_LIMIT        0.9
/* limits.connections with its default, and what a daemon has open besides. */
#define DESCRIPTORS_LEAST 4160u
/* Default of Linux; an agent may map half of it. */
#define MAPPINGS_LEAST    65530u

static void add_finding(struct health *d, enum level level, const char *action,
                        const char *text)
{
    struct ps_str s = begin_finding(d, level, action);

    ps_str_add(&s, text);
}

static struct ps_str begin_node(struct health *d, enum level level,
                                const struct ps_msg_node_row *n,
                                const char *action)
{
    struct ps_str s = begin_finding(d, level, action);

    ps_str_addf(&s, "%s ", ps_role_name(n->role));
    add_printable(&s, n->name, 64);
    ps_str_add(&s, " ");
    return s;
}

/* ------------------------------------------------------------------ members */

/* Finds what is near the limit that its option sets. */
static void check_costs(struct health *d, const struct ps_msg_node_row *n)
{
    for (uint32_t i = 0; i < n->costs_count; i++) {
        const struct ps_rec_cost *c = &n->costs[i];
        struct ps_str s;

        if (c->limit == 0 || (double)c->used < NEAR_LIMIT * (double)c->limit) {
            continue;
        }
        s = begin_node(d, LEVEL_PROBLEM, n,
                       "raise the option there, or use less; psctl nodes -w "
                       "json lists what takes it");
        ps_str_addf(&s, "has %" PRIu64 " of %" PRIu64 " of limits.%s.%s",
                    c->used, c->limit, c->kind, c->cost);
        if (c->name[0] != '\0') {
            ps_str_add(&s, " at ");
            add_printable(&s, c->name, 64);
        }
    }
}

static void check_memory(struct health *d, const struct ps_msg_node_row *n)
{
    struct ps_str s;

    /* One that is full is a problem of the cluster. */
    if (n->memory_short || n->state != PS_NODE_STATE_ACTIVE ||
        (double)n->memory_used < NEAR_LIMIT * (double)n->memory_limit ||
        n->memory_limit == 0) {
        return;
    }
    s = begin_node(d, LEVEL_PROBLEM, n,
                   "raise store.memory, add servers and psctl rebalance, or "
                   "end a job");
    ps_str_addf(&s, "has taken %.0f %% of its memory, ",
                100.0 * (double)n->memory_used / (double)n->memory_limit);
    ps_str_add_size(&s, n->memory_used);
    ps_str_add(&s, " of ");
    ps_str_add_size(&s, n->memory_limit);
}

/* Checks what the member has stated, most of it when it registered. */
static void check_facts(struct health *d, const struct ps_msg_node_row *n,
                        const char *version)
{
    double skew = (double)n->clock_skew_ns / 1e9;
    struct ps_str s;

    if (n->state == PS_NODE_STATE_GONE) {
        return;
    }
    if (n->draining) {
        s = begin_node(d, LEVEL_NOTE, n,
                       "start it again if it is to take new jobs");
        ps_str_add(&s, "is shutting down");
    }
    if (n->version[0] != '\0' && strcmp(n->version, version) != 0) {
        s = begin_node(d, LEVEL_PROBLEM, n,
                       "install one version on all hosts, and restart");
        ps_str_add(&s, "has version ");
        add_printable(&s, n->version, 32);
        ps_str_add(&s, ", psched has ");
        add_printable(&s, version, 32);
    }
    if (fabs(skew) > CLOCK_SKEW_MAX_S) {
        s = begin_node(d, LEVEL_PROBLEM, n,
                       "synchronise the clocks of the hosts (chrony or "
                       "systemd-timesyncd), and restart the daemon");
        ps_str_addf(&s, "had a clock %.1f s %s psched's when it registered",
                    fabs(skew), skew < 0 ? "behind" : "ahead of");
    }
    if (n->descriptors != 0 && n->descriptors < DESCRIPTORS_LEAST) {
        s = begin_node(d, LEVEL_PROBLEM, n,
                       "LimitNOFILE=65536 in its unit, or ulimit -n");
        ps_str_addf(&s, "may open %" PRIu64 " descriptors, fewer than %u",
                    n->descriptors, DESCRIPTORS_LEAST);
    }
    if (n->avoids_shm) {
        s = begin_node(
            d, LEVEL_NOTE, n,
            "network.same_host: auto there, unless that is intended");
        ps_str_add(&s, "uses TCP even within its host");
    }
}

static void check_members(struct health *d, const struct rows *rows)
{
    const char *version = "";

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_node_row *n = &rows->row[i]->node_row;

        if (n->role == PS_ROLE_SCHED) {
            version = n->version;
        }
    }
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_node_row *n = &rows->row[i]->node_row;

        check_memory(d, n);
        check_costs(d, n);
        check_facts(d, n, version);
    }
    if (version[0] != '\0' && strcmp(version, PSKV_VERSION) != 0) {
        struct ps_str s = begin_finding(d, LEVEL_PROBLEM,
                                        "install one version on all hosts");

        ps_str_addf(&s, "psctl has version %s, psched has ", PSKV_VERSION);
        add_printable(&s, version, 32);
    }
}

/* Names servers that hold nothing of a job that has lost others. */
static void check_spares(struct health *d, const struct report *r)
{
    size_t count;
    struct job_load *list = make_job_loads(r, &count);

    for (size_t i = 0; i < count; i++) {
        if (list[i].is_spare) {
            struct ps_str s = begin_finding(d, LEVEL_NOTE, "");

            describe_spare(r, &list[i], &s);
        }
    }
    ps_free(list);
}

/* ---------------------------------------------------------------- this host */

/* Looks for the agent of this host's cluster, or for that of PSKV_SOCKET. Jobs
 * of another cluster, such as the daemons of one job, have agents elsewhere.
 * NULL: no scheduler answers at the endpoint. */
static void check_agent(struct health *d, const char *endpoint)
{
    const char *own = getenv("PSKV_SOCKET");
    char place[PS_SOCKET_PATH_MAX + 1];
    struct ps_str s;
    int error;

    if (own == NULL || own[0] == '\0') {
        if (endpoint != NULL &&
            strcmp(endpoint, wire_default_endpoint()) != 0) {
            return;
        }
        ps_runtime_socket("agent.sock", place, sizeof(place));
        own = place;
    }
    error = wire_probe(own);
    if (error == 0 || error == EAGAIN) { /* EAGAIN: many others call it now. */
        s = begin_finding(d, LEVEL_OK, "");
        ps_str_add(&s, "this host has an agent at ");
    } else if (error == EACCES) {
        s = begin_finding(d, LEVEL_PROBLEM,
                          "client.mode and client.group of the agent, or the "
                          "group pskv for this user");
        ps_str_add(&s, "this user has no access to the agent's socket ");
    } else {
        s = begin_finding(d, LEVEL_NOTE,
                          "start psworker-agent if processes train here, or "
                          "set PSKV_SOCKET");
        ps_str_add(&s, "this host has no agent at ");
    }
    add_printable(&s, own, 108);
}

static void check_clock(struct health *d)
{
    struct timex t = {.modes = 0};

    if (adjtimex(&t) == TIME_ERROR || (t.status & STA_UNSYNC) != 0) {
        add_finding(d, LEVEL_NOTE,
                    "run chrony or systemd-timesyncd: certificates, tokens "
                    "and logs need the time",
                    "the clock of this host is not synchronised");
    }
}

static void check_kernel(struct health *d)
{
    struct utsname name;
    unsigned major = 0;
    unsigned minor = 0;

    if (uname(&name) != 0 ||
        sscanf(name.release, "%u.%u", &major, &minor) != 2) {
        return;
    }
    if (major < 6 || (major == 6 && minor < 15)) {
        struct ps_str s = begin_finding(
            d, LEVEL_NOTE,
            "none is needed; docs/operating.md, Network timeouts, has the "
            "difference");

        ps_str_addf(&s,
                    "Linux %u.%u of this host is older than 6.15: jobs go on "
                    "later after the network was down",
                    major, minor);
    }
}

static void check_mappings(struct health *d)
{
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    unsigned count = MAPPINGS_LEAST;

    if (f == NULL) {
        return;
    }
    if (fscanf(f, "%u", &count) == 1 && count < MAPPINGS_LEAST) {
        struct ps_str s = begin_finding(d, LEVEL_PROBLEM,
                                        "sysctl vm.max_map_count=262144");

        ps_str_addf(&s,
                    "a process of this host may map %u regions, fewer than %u",
                    count, MAPPINGS_LEAST);
    }
    (void)fclose(f);
}

/* ------------------------------------------------------------------- output */

static const char *const level_names[] = {
    [LEVEL_OK] = "ok", [LEVEL_NOTE] = "note", [LEVEL_PROBLEM] = "problem"};

static void print_findings(const struct health *d)
{
    for (size_t i = 0; i < d->count; i++) {
        const struct finding *f = &d->list[i];

        printf("%-7s  %s\n", level_names[f->level], f->text);
        if (f->action[0] != '\0') {
            printf("         what to do: %s\n", f->action);
        }
    }
}

static void print_objects(const struct health *d)
{
    json_t *list = json_array();
    json_t *o = json_pack("{s:i, s:b, s:o}", "schema", 1, "healthy",
                          d->problem_count == 0, "findings", list);

    for (size_t i = 0; i < d->count; i++) {
        const struct finding *f = &d->list[i];

        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "level",
                                              level_names[f->level], "text",
                                              f->text, "action", f->action));
    }
    json_print(o);
}

int doctor_run(struct request *q, int count, char **values)
{
    const struct wire_target target = cluster_target(&q->cluster, q->timeout);
    struct report r = {0};
    struct health *d = &r.health;
    int rc = 0;
    struct wire *w = wire_open(&target, &rc);

    (void)count;
    (void)values;
    if (w != NULL) {
        rc = wire_query_status(w, &r);
        rc = rc != 0 ? rc : wire_query(w, PS_QUERY_SHARES, NULL, &r);
        wire_close(w);
    }
    if (rc == 0) {
        struct ps_str s = begin_finding(d, LEVEL_OK, "");

        ps_str_addf(&s, "psched at %s answers", target.endpoint);
        health_check(&r, q->after);
        check_members(d, &r.rows_of[PS_QUERY_NODES]);
        check_spares(d, &r);
    } else {
        add_finding(d, LEVEL_PROBLEM,
                    "the message above; systemctl status psched on its host",
                    "psched does not answer");
    }
    check_agent(d, rc == 0 ? target.endpoint : NULL);
    check_clock(d);
    check_kernel(d);
    check_mappings(d);
    if (q->print.json) {
        print_objects(d);
    } else {
        print_findings(d);
    }
    rc = rc == 0 && d->problem_count > 0 ? EXIT_DEGRADED : rc;
    report_fini(&r);
    return rc;
}

/* ------------------------------------------------------------------ explain */

#define SHOWN_MAX 3u

struct matches {
    const struct ps_explanation *list[SHOWN_MAX];
    size_t fit[SHOWN_MAX];
    size_t count;
};

/* Inserts by fit, the best first. */
static void add_match(struct matches *m, const struct ps_explanation *e,
                      size_t fit)
{
    size_t at = m->count;

    while (at > 0 && m->fit[at - 1] < fit) {
        at--;
    }
    if (at == SHOWN_MAX) {
        return;
    }
    if (m->count < SHOWN_MAX) {
        m->count++;
    }
    for (size_t i = m->count - 1; i > at; i--) {
        m->list[i] = m->list[i - 1];
        m->fit[i] = m->fit[i - 1];
    }
    m->list[at] = e;
    m->fit[at] = fit;
}

/* Finds the texts that a message has; those with far fewer of its letters than
 * the first one are parts of it by chance. */
static void find_texts(const char *message, struct matches *ret)
{
    for (size_t i = 0; i < ps_explanation_count; i++) {
        size_t fit = ps_explanation_fit(&ps_explanations[i], message);

        if (fit >= PS_EXPLANATION_FIT_MIN) {
            add_match(ret, &ps_explanations[i], fit);
        }
    }
    while (ret->count > 1 && ret->fit[ret->count - 1] < ret->fit[0] / 2) {
        ret->count--;
    }
}

/* Finds texts of which the message is a part. */
static void find_part(const char *part, struct matches *ret)
{
    for (size_t i = 0; i < ps_explanation_count; i++) {
        if (strcasestr(ps_explanations[i].text, part) != NULL) {
            add_match(ret, &ps_explanations[i], 0);
        }
    }
}

static void find_matches(const char *message, struct matches *ret)
{
    const struct ps_explanation *e = ps_explain_code(message);

    if (e != NULL) {
        add_match(ret, e, 0);
        return;
    }
    find_texts(message, ret);
    if (ret->count == 0 && strlen(message) >= PS_EXPLANATION_FIT_MIN) {
        find_part(message, ret);
    }
}

static void print_entry(const struct ps_explanation *e)
{
    printf("%s%s%s\n", e->code, e->code[0] != '\0' ? "  " : "", e->text);
    printf("  section     %s\n", e->section);
    printf("  cause       %s\n", e->cause);
    if (e->remedy[0] != '\0') {
        printf("  what to do  %s\n", e->remedy);
    }
}

static void add_json(json_t *list, const struct ps_explanation *e)
{
    json_t *one = json_pack("{s:s, s:s, s:s, s:s, s:s}", "code", e->code,
                            "text", e->text, "section", e->section, "cause",
                            e->cause, "remedy", e->remedy);

    if (one == NULL || json_array_append_new(list, one) != 0) {
        abort(); /* Out of memory. */
    }
}

static void print_json(const struct matches *m, bool all)
{
    json_t *list = json_array();
    json_t *o = json_pack("{s:i, s:o}", "schema", 1, "explanations", list);

    for (size_t i = 0; all && i < ps_explanation_count; i++) {
        add_json(list, &ps_explanations[i]);
    }
    for (size_t i = 0; i < m->count; i++) {
        add_json(list, m->list[i]);
    }
    json_print(o);
}

static void print_list(bool headings)
{
    static const char *const columns[] = {"CODE", "TEXT"};
    struct table t;

    table_init(&t, columns, 2);
    for (size_t i = 0; i < ps_explanation_count; i++) {
        table_text(&t, ps_explanations[i].code);
        table_cell(&t, "%s", ps_explanations[i].text);
    }
    table_print(&t, headings);
    table_fini(&t);
}

int explain_run(struct request *q, int count, char **values)
{
    struct matches m = {.count = 0};
    char message[4096] = "";
    struct ps_str s;

    ps_str_init(&s, message, sizeof(message));
    for (int i = 0; i < count; i++) {
        ps_str_addf(&s, "%s%s", i > 0 ? " " : "", values[i]);
    }
    if (count > 0) {
        find_matches(message, &m);
    }
    if (count > 0 && m.count == 0) {
        char shown[256];

        ps_str_init(&s, shown, sizeof(shown));
        add_printable(&s, message, 60);
        fprintf(stderr,
                "psctl: explain '%s': no such code or text; psctl explain "
                "lists them\n",
                shown);
        return EXIT_FAILED;
    }
    if (q->print.json) {
        print_json(&m, count == 0);
    } else if (count == 0) {
        print_list(!q->print.no_headings);
    }
    for (size_t i = 0; !q->print.json && i < m.count; i++) {
        print_entry(m.list[i]);
    }
    return EXIT_HEALTHY;
}
