/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a cluster: names of jobs as users write and read them, the balance
 * of servers, problems that an operator has to look at, and the screen of psctl
 * status. */
#include "psctl/answer.h"

#include "base/alloc.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ names of jobs */

bool find_user(const char *text, size_t len, uint32_t *ret_uid)
{
    char name[65];
    const struct passwd *user;
    unsigned long uid;
    char *end;

    if (len == 0 || len >= sizeof(name)) {
        return false;
    }
    memcpy(name, text, len);
    name[len] = '\0';
    user = getpwnam(name);
    if (user != NULL) {
        *ret_uid = user->pw_uid;
        return true;
    }
    errno = 0;
    uid = strtoul(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end != '\0' || errno != 0 ||
        uid >= UINT32_MAX) {
        return false;
    }
    *ret_uid = (uint32_t)uid;
    return true;
}

static bool has_open_job(const struct rows *jobs, const char *name)
{
    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        if (job_is_open(j) && strcmp(j->name, name) == 0) {
            return true;
        }
    }
    return false;
}

int job_name_parse(struct wire *w, const char *text, struct job_name *ret)
{
    const char *slash = strchr(text, '/');
    struct report report = {0};
    uint32_t owner;
    int rc;

    *ret = (struct job_name){.name = text};
    if (slash == NULL || !find_user(text, (size_t)(slash - text), &owner)) {
        return 0;
    }
    rc = wire_query(w, PS_QUERY_JOBS, NULL, &report);
    if (rc == 0 && !has_open_job(&report.rows_of[PS_QUERY_JOBS], text)) {
        *ret = (struct job_name){
            .name = slash + 1, .has_owner = true, .owner = owner};
    }
    report_fini(&report);
    return rc;
}

static bool is_name_shared(const struct report *r, const char *name,
                           uint32_t uid)
{
    const struct rows *jobs = &r->rows_of[PS_QUERY_JOBS];
    const struct rows *stalls = &r->rows_of[PS_QUERY_STALL];

    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        if (j->uid != uid && strcmp(j->name, name) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < stalls->count; i++) {
        const struct ps_msg_stall_row *s = &stalls->row[i]->stall_row;

        if (s->uid != uid && strcmp(s->job, name) == 0) {
            return true;
        }
    }
    return false;
}

void add_job_name(struct ps_str *s, const struct report *r, const char *name,
                  uint32_t uid)
{
    if (is_name_shared(r, name, uid)) {
        const struct passwd *user = getpwuid(uid);

        if (user != NULL) {
            add_printable(s, user->pw_name, 64);
        } else {
            ps_str_addf(s, "%u", uid);
        }
        ps_str_add(s, "/");
    }
    add_printable(s, name, 64);
}

void cell_job(struct table *t, const struct report *r, const char *name,
              uint32_t uid)
{
    struct ps_str s = PS_STR_ROOM(600);

    add_job_name(&s, r, name, uid);
    table_cell(t, "%s", s.data);
}

size_t list_private_jobs(struct private_job list[PRIVATE_MAX])
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char folder[sizeof(list->endpoint)];
    size_t count = 0;
    struct dirent *d;
    DIR *dir = NULL;

    if (run != NULL && snprintf(folder, sizeof(folder), "%s/pskv/jobs", run) <
                           (int)sizeof(folder)) {
        dir = opendir(folder);
    }
    while (dir != NULL && count < PRIVATE_MAX && (d = readdir(dir)) != NULL) {
        struct private_job *job = &list[count];

        if (d->d_name[0] != '.' &&
            snprintf(job->endpoint, sizeof(job->endpoint), "unix:%s/%s", folder,
                     d->d_name) < (int)sizeof(job->endpoint) &&
            wire_probe(job->endpoint + 5) == 0) {
            ps_str_copy(job->name, sizeof(job->name), d->d_name);
            count++;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

void show_private_jobs(FILE *out)
{
    struct private_job jobs[PRIVATE_MAX];
    const size_t count = list_private_jobs(jobs);

    for (size_t i = 0; i < count; i++) {
        fprintf(out,
                "private  job %s has daemons of its own: psctl -e %s status\n",
                jobs[i].name, jobs[i].endpoint);
    }
}

static bool is_wanted(const struct ps_msg_job_row *j,
                      const struct job_name *job)
{
    return job_is_open(j) &&
           (job == NULL || (strcmp(j->name, job->name) == 0 &&
                            (!job->has_owner || job->owner == j->uid)));
}

size_t settings_keep(struct report *r, const struct job_name *job)
{
    struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    size_t kept = 0;

    for (size_t i = 0; i < rows->count; i++) {
        struct ps_msg *row = rows->row[i];

        if (is_wanted(&row->job_row, job)) {
            rows->row[i] = rows->row[kept];
            rows->row[kept++] = row;
        }
    }
    while (rows->count > kept) {
        ps_msg_free(rows->row[--rows->count]);
    }
    return kept;
}

/* ------------------------------------------------------------------ balance */

/* Migrations are of one job only. */
static struct job_load *find_load(struct job_load *list, size_t count,
                                  const char *job, const char *server)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].job, job) == 0 &&
            strcmp(list[i].server, server) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

/* Requires that rows of a job are adjacent. */
static void set_ratios(struct job_load *list, size_t count)
{
    size_t end;

    for (size_t first = 0; first < count; first = end) {
        double all = 0;
        double share;

        for (end = first; end < count && list[end].uid == list[first].uid &&
                          strcmp(list[end].job, list[first].job) == 0;
             end++) {
            all += (double)list[end].bytes;
        }
        share = all / (double)(end - first);
        for (size_t i = first; i < end; i++) {
            struct job_load *l = &list[i];

            l->ratio = share > 0 ? (double)l->bytes / share : 1;
            l->ratio_after = share > 0 ? (double)l->bytes_after / share : 1;
        }
    }
}

static size_t add_migration_targets(struct job_load *list, size_t count,
                                    const struct rows *moves)
{
    for (size_t i = 0; i < moves->count; i++) {
        const struct ps_msg_migration_row *row = &moves->row[i]->migration_row;

        if (find_load(list, count, row->job, row->to) == NULL) {
            list[count++] = (struct job_load){.job = row->job,
                                              .uid = count > 0 ? list[0].uid
                                                               : 0,
                                              .server = row->to};
        }
    }
    return count;
}

struct job_load *make_job_loads(const struct report *r, size_t *ret_count)
{
    const struct rows *shares = &r->rows_of[PS_QUERY_SHARES];
    const struct rows *moves = &r->rows_of[PS_QUERY_REBALANCE_PLAN];
    struct job_load *list = ps_calloc(shares->count + moves->count + 1,
                                      sizeof(*list));
    size_t count = shares->count;

    for (size_t i = 0; i < shares->count; i++) {
        const struct ps_msg_share_row *row = &shares->row[i]->share_row;

        list[i] = (struct job_load){.job = row->job,
                                    .uid = row->uid,
                                    .server = row->server,
                                    .bytes = row->bytes,
                                    .is_spare = row->spare,
                                    .bytes_after = row->bytes};
    }
    /* Migrations are of one job only. */
    count = add_migration_targets(list, count, moves);
    for (size_t i = 0; i < moves->count; i++) {
        const struct ps_msg_migration_row *row = &moves->row[i]->migration_row;
        struct job_load *from = find_load(list, count, row->job, row->from);
        struct job_load *to = find_load(list, count, row->job, row->to);

        /* The scheduler is not trusted: skips inconsistent rows. */
        if (from != NULL && to != NULL && from->bytes_after >= row->bytes) {
            from->bytes_after -= row->bytes;
            to->bytes_after += row->bytes;
        }
    }
    set_ratios(list, count);
    for (size_t i = 0; i < count; i++) {
        list[i].is_planned = r->is_plan;
    }
    *ret_count = count;
    return list;
}

static bool has_rounds(const struct report *r, const struct job_load *l)
{
    const struct rows *jobs = &r->rows_of[PS_QUERY_JOBS];

    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        if (job_is_open(j) && j->uid == l->uid &&
            strcmp(j->name, l->job) == 0) {
            return j->mode == PS_MODE_SYNC;
        }
    }
    return true;
}

/* Appends that a spare server holds nothing, and the verb that changes it. */
void describe_spare(const struct report *r, const struct job_load *spare,
                    struct ps_str *out)
{
    ps_str_add(out, "job ");
    add_job_name(out, r, spare->job, spare->uid);
    ps_str_add(out, " lacks a server, and ");
    add_printable(out, spare->server, 64);
    ps_str_add(out, " holds nothing of it: ");
    if (has_rounds(r, spare)) {
        ps_str_add(out, "psctl rebalance ");
        add_job_name(out, r, spare->job, spare->uid);
        ps_str_add(out, " moves its share there");
    } else {
        ps_str_add(out, "keys of an async or ssp job stay where they are");
    }
}

/* ----------------------------------------------------------------- problems */

/* A member gone for longer is not a problem any more. */
#define GONE_PROBLEM_MAX PS_SECONDS(3600)

void report_fini(struct report *r)
{
    for (int q = 0; q < QUERY_KINDS; q++) {
        for (size_t i = 0; i < r->rows_of[q].count; i++) {
            ps_msg_free(r->rows_of[q].row[i]);
        }
        ps_free(r->rows_of[q].row);
    }
    ps_free(r->health.list);
    if (r->end != NULL) {
        ps_msg_free(r->end);
    }
}

bool job_is_open(const struct ps_msg_job_row *j)
{
    return j->phase != PS_JOB_PHASE_ENDED && j->phase != PS_JOB_PHASE_FAILED;
}

bool stall_is_problem(const struct ps_msg_stall_row *s, ps_time after)
{
    for (uint32_t i = 0; i < s->missing_count; i++) {
        if (s->missing[i].state != PS_RANK_STATE_LIVE) {
            return true;
        }
    }
    return s->ring_count > 0 || s->waited_ns >= after;
}

/* Adds "rank 3 on n07 (lost)", or "rank 3 on n07 (pid 4711, in barrier 2)", to a
 * list. */
static void add_rank(const struct ps_rec_missing_rank *w, bool state,
                     uint32_t i, struct ps_str *out)
{
    const char *node = w->node[0] != '\0' ? w->node : w->host;

    ps_str_addf(out, "%srank %u", i == 0 ? "" : ", ", w->rank);
    if (node[0] != '\0') {
        ps_str_add(out, " on ");
        add_printable(out, node, 64);
    }
    if (state && w->state != PS_RANK_STATE_LIVE) {
        ps_str_addf(out, " (%s)", ps_rank_state_name(w->state));
    } else if (w->pid != 0) {
        ps_str_addf(out, " (pid %u, ", w->pid);
        add_printable(out, w->does, 160);
        ps_str_add(out, ")");
    }
}

static void add_ranks(const struct ps_rec_missing_rank *list, uint32_t count,
                      struct ps_str *out)
{
    enum { SHOWN = 8 };

    for (uint32_t i = 0; i < count; i++) {
        if (i == SHOWN) {
            ps_str_addf(out, " and %u more", count - i);
            return;
        }
        add_rank(&list[i], true, i, out);
    }
}

void describe_missing(const struct ps_msg_stall_row *s, struct ps_str *out)
{
    if (s->ring_count > 0) {
        ps_str_add(out, "each other: ");
        add_ranks(s->ring, s->ring_count, out);
        if (s->other_causes[0] != '\0') {
            ps_str_add(out, "; ");
            add_printable(out, s->other_causes, 512);
        }
        return;
    }
    if (s->other_causes[0] != '\0') {
        add_printable(out, s->other_causes, 512);
        ps_str_add(out, s->missing_count > 0 ? "; " : "");
    } else if (s->missing_count == 0) {
        ps_str_add(out, "nobody: servers or the network");
    }
    add_ranks(s->missing, s->missing_count, out);
}

struct ps_str begin_finding(struct health *h, enum level level,
                            const char *action)
{
    struct finding *f;
    struct ps_str s;

    h->list = ps_realloc(h->list, (h->count + 1) * sizeof(*h->list));
    f = &h->list[h->count++];
    f->level = level;
    f->action = action;
    h->problem_count += level == LEVEL_PROBLEM;
    ps_str_init(&s, f->text, sizeof(f->text));
    return s;
}

/* Reports a server without memory for contributions of a job. */
static void check_memory(const struct ps_msg_node_row *n, struct health *h)
{
    struct ps_str s;

    if (!n->memory_short || n->state != PS_NODE_STATE_ACTIVE) {
        return;
    }
    s = begin_finding(h, LEVEL_PROBLEM,
                      "raise store.memory, add servers and psctl rebalance, or "
                      "end a job");
    ps_str_add(&s, "server ");
    add_printable(&s, n->name, 64);
    ps_str_add(&s, " is full: ");
    ps_str_add_size(&s, n->memory_used);
    ps_str_add(&s, " of ");
    ps_str_add_size(&s, n->memory_limit);
    ps_str_add(&s, " are taken (store.memory)");
}

static void check_reach(const struct ps_msg_node_row *n, struct health *h)
{
    struct ps_str s;

    if (n->state != PS_NODE_STATE_ACTIVE || n->unreachable[0] == '\0') {
        return;
    }
    s = begin_finding(h, LEVEL_PROBLEM,
                      "listen.address and advertise.address there, and "
                      "firewalls");
    ps_str_add(&s, "server ");
    add_printable(&s, n->name, 64);
    ps_str_add(&s, " is UNREACHABLE from psched at ");
    add_printable(&s, n->address, 80);
    ps_str_add(&s, " (");
    add_printable(&s, n->unreachable, 80);
    ps_str_add(&s, "); see listen.address and advertise.address there");
}

static void check_certificate(const struct ps_msg_node_row *n, struct health *h)
{
    struct ps_str s;

    if (!n->certificate_is_expiring || n->state == PS_NODE_STATE_GONE) {
        return;
    }
    s = begin_finding(h, LEVEL_PROBLEM,
                      "psctl pki renew, copy the files, systemctl reload");
    ps_str_addf(&s, "certificate of %s ", ps_role_name(n->role));
    add_printable(&s, n->name, 64);
    ps_str_add(&s, " ends soon; see psctl nodes, and renew it by psctl pki");
}

/* True if the member is silent, or gone within the last hour, but not if it was
 * stopped in good order. */
static bool is_missed(const struct ps_msg_node_row *n)
{
    return n->state == PS_NODE_STATE_SUSPECT ||
           (n->state == PS_NODE_STATE_GONE && !n->draining &&
            n->silent_ns < GONE_PROBLEM_MAX);
}

static void check_nodes(const struct report *r, struct health *h)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_NODES];
    size_t servers = 0;

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_node_row *n = &rows->row[i]->node_row;
        char age[32];
        struct ps_str s;

        servers += n->role == PS_ROLE_SERVER &&
                   n->state == PS_NODE_STATE_ACTIVE && !n->draining;
        check_memory(n, h);
        check_reach(n, h);
        check_certificate(n, h);
        if (!is_missed(n)) {
            continue;
        }
        s = begin_finding(h, LEVEL_PROBLEM,
                          "its host, its log, and the network between it and "
                          "psched; psctl events has the reason");
        format_age(n->silent_ns, age, sizeof(age));
        ps_str_addf(&s, "%s ", ps_role_name(n->role));
        add_printable(&s, n->name, 64);
        ps_str_addf(&s, " is %s, last heard %s ago",
                    ps_node_state_name(n->state), age);
    }
    if (servers == 0) {
        struct ps_str s = begin_finding(
            h, LEVEL_PROBLEM, "start psserver, on this host or another one");

        ps_str_add(&s, "the cluster has no active server");
    }
}

/* True if the text begins so. */
static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static const char *standstill_action(const char *standstill)
{
    if (begins_with(standstill, "DIVERGED")) {
        return "all ranks must make the same calls in the same order; psctl "
               "stall shows their processes";
    }
    return begins_with(standstill, "waits for server")
               ? "a server that systemd or pslaunch has started comes back by "
                 "itself; else start it on the same host as before"
               : "start more servers, or ask for fewer";
}

/* Reports why a job cannot go on, or begin. */
static void check_standstill(const struct report *r,
                             const struct ps_msg_job_row *j, struct health *h)
{
    const bool is_ring = begins_with(j->standstill, "DIVERGED");
    struct ps_str s;

    if (!job_is_open(j) || j->standstill[0] == '\0') {
        return;
    }
    s = begin_finding(h, LEVEL_PROBLEM, standstill_action(j->standstill));
    ps_str_add(&s, "job ");
    add_job_name(&s, r, j->name, j->uid);
    ps_str_add(&s, is_ring ? " is " : " ");
    add_printable(&s, j->standstill, 512);
}

/* Reports a job with copies whose next loss may end it. */
static void check_copies(const struct report *r, const struct ps_msg_job_row *j,
                         struct health *h)
{
    static const char alone[] = "alone ";
    struct ps_str s;

    if (!job_is_open(j) || strncmp(j->copies, alone, strlen(alone)) != 0) {
        return;
    }
    s = begin_finding(h, LEVEL_PROBLEM,
                      "start psserver on another host, or give servers more "
                      "store.memory");
    ps_str_add(&s, "job ");
    add_job_name(&s, r, j->name, j->uid);
    ps_str_add(&s, " has no backup for ");
    add_printable(&s, j->copies + strlen(alone), 80);
    ps_str_add(&s, " servers (replicas: 2): no other server fits");
}

/* Reports jobs that stand still; and those with lost ranks, which may train on
 * without them or stall without a visible wait. */
static void check_jobs(const struct report *r, struct health *h)
{
    enum { SHOWN = 8 };
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;
        uint32_t shown = j->lost_ranks_count < SHOWN ? j->lost_ranks_count
                                                     : SHOWN;
        struct ps_str s;

        check_standstill(r, j, h);
        check_copies(r, j, h);
        if (!job_is_open(j) || j->ranks_lost == 0) {
            continue;
        }
        s = begin_finding(
            h, LEVEL_PROBLEM,
            "psctl jobs cancel, and start all ranks again from a checkpoint; a "
            "rank that is started alone goes on only if it begins with the "
            "round in which it ended (psctl stall)");
        ps_str_add(&s, "job ");
        add_job_name(&s, r, j->name, j->uid);
        ps_str_addf(&s, " has lost %u of %u ranks: ", j->ranks_lost,
                    j->num_workers);
        for (uint32_t k = 0; k < shown; k++) {
            add_rank(&j->lost_ranks[k], false, k, &s);
        }
        if (j->ranks_lost > shown) {
            ps_str_addf(&s, " and %u more", j->ranks_lost - shown);
        }
    }
}

static void check_stalls(const struct report *r, ps_time after,
                         struct health *h)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_STALL];

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_stall_row *row = &rows->row[i]->stall_row;
        struct ps_str s;
        char age[32];

        if (!stall_is_problem(row, after) || row->ring_count > 0) {
            continue; /* A ring is in the row of its job. */
        }
        format_age(row->waited_ns, age, sizeof(age));
        s = begin_finding(h, LEVEL_PROBLEM, "look at what is missing");
        ps_str_add(&s, "job ");
        add_job_name(&s, r, row->job, row->uid);
        ps_str_addf(&s, " has waited %s: ", age);
        add_printable(&s, row->what, 80);
        ps_str_add(&s, " waits for ");
        describe_missing(row, &s);
    }
}

void health_check(struct report *r, ps_time after)
{
    check_nodes(r, &r->health);
    check_jobs(r, &r->health);
    check_stalls(r, after, &r->health);
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ------------------------------------------------------------------- status */

struct totals {
    size_t servers;
    size_t agents;
    size_t jobs;
    size_t ended;
    size_t failed;
    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t stored_bytes;
    uint64_t kept_bytes;
    uint64_t rounds_rate;
    uint64_t in_rate;
    uint64_t out_rate;
};

static struct totals compute_totals(const struct report *r)
{
    const struct rows *nodes = &r->rows_of[PS_QUERY_NODES];
    const struct rows *jobs = &r->rows_of[PS_QUERY_JOBS];
    struct totals t = {0};

    for (size_t i = 0; i < nodes->count; i++) {
        const struct ps_msg_node_row *n = &nodes->row[i]->node_row;

        if (n->state == PS_NODE_STATE_GONE) {
            continue;
        }
        if (n->role == PS_ROLE_SERVER) {
            t.servers++;
            t.rounds += n->rounds;
            t.bytes_in += n->bytes_in;
            t.bytes_out += n->bytes_out;
            t.stored_bytes += n->stored_bytes;
            t.kept_bytes += n->memory_kept;
            t.rounds_rate += n->rounds_rate;
            t.in_rate += n->in_rate;
            t.out_rate += n->out_rate;
        } else if (n->role == PS_ROLE_AGENT) {
            t.agents++;
        }
    }
    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        t.jobs += job_is_open(j);
        t.ended += j->phase == PS_JOB_PHASE_ENDED;
        t.failed += j->phase == PS_JOB_PHASE_FAILED;
    }
    return t;
}

static void show_traffic(const struct totals *t)
{
    char rounds[32];
    char in[32];
    char out[32];
    char held[32];
    char kept[32];

    format_count(t->rounds, rounds, sizeof(rounds));
    format_bytes(t->bytes_in, in, sizeof(in));
    format_bytes(t->bytes_out, out, sizeof(out));
    format_bytes(t->stored_bytes, held, sizeof(held));
    format_bytes(t->kept_bytes, kept, sizeof(kept));
    printf("servers  %s rounds of partitions, %s in, %s out, %s held", rounds,
           in, out, held);
    if (t->kept_bytes > 0) {
        printf(", %s in state memory", kept);
    }
    putchar('\n');
    format_count(t->rounds_rate, rounds, sizeof(rounds));
    format_bytes(t->in_rate, in, sizeof(in));
    format_bytes(t->out_rate, out, sizeof(out));
    printf("now      %s rounds of partitions/s, %s/s in, %s/s out\n", rounds,
           in, out);
}

void show_open_jobs(const struct report *r, size_t most)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    struct table t;
    static const char *const none[] = {"", "", "", ">", ">", ">", ">", ">", ""};
    size_t count = 0;

    table_init(&t, none, COUNT(none));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;
        struct ps_str mode = PS_STR_ROOM(160);
        char text[32];

        if (!job_is_open(j) || count == most) {
            continue;
        }
        ps_str_add(&mode, ps_mode_name(j->mode));
        if (j->copies[0] != '\0') {
            ps_str_add(&mode, ", copies: ");
            add_printable(&mode, j->copies, 80);
        }
        count++;
        table_cell(&t, "job    ");
        cell_job(&t, r, j->name, j->uid);
        cell_upper(&t, ps_job_phase_name(j->phase));
        table_cell(&t, "%u/%u workers", j->live_workers, j->num_workers);
        table_cell(&t, "%u node%s", j->slots, plural(j->slots));
        table_cell(&t, "%u key%s", j->keys, plural(j->keys));
        format_bytes(j->bytes, text, sizeof(text));
        table_cell(&t, "%s", text);
        format_age(j->age_ns, text, sizeof(text));
        table_cell(&t, "%s", text);
        table_cell(&t, "%s", mode.data);
    }
    if (count > 0) {
        table_print(&t, false);
    }
    table_fini(&t);
}

void show_summary(const struct report *r)
{
    struct totals t = compute_totals(r);
    const struct ps_msg_query_end *end = &r->end->query_end;
    char up[32];
    struct ps_str s = PS_STR_ROOM(4 * 64 + 4);

    ps_str_add_escaped(&s, end->cluster, strlen(end->cluster), 64);
    format_age(end->uptime_ns, up, sizeof(up));
    printf("cluster  %s  psched up %s  epoch %u  %zu agent%s  %zu server%s  "
           "%zu job%s\n",
           s.data, up, end->epoch, t.agents, plural(t.agents), t.servers,
           plural(t.servers), t.jobs, plural(t.jobs));
    show_traffic(&t);
}

void show_status(const struct report *r, bool headings)
{
    struct totals t = compute_totals(r);

    (void)headings;
    show_summary(r);
    show_open_jobs(r, SIZE_MAX);
    if (t.ended + t.failed > 0) {
        printf("before   %zu job%s ended, %zu failed; see `psctl jobs`\n",
               t.ended, plural(t.ended), t.failed);
    }
    for (size_t i = 0; i < r->health.count && i < PROBLEMS_MAX; i++) {
        printf("  ! %s\n", r->health.list[i].text);
    }
    if (r->health.count > PROBLEMS_MAX) {
        printf("  ! and %zu more\n", r->health.count - PROBLEMS_MAX);
    }
    show_private_jobs(stdout);
}
