/* SPDX-License-Identifier: Apache-2.0 */
/* Finds problems for an operator: silent members, full or unreachable servers,
 * jobs with lost ranks or long waits. */
#include "psctl/answer.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

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

static struct ps_str begin_problem(struct health *h, char *scratch, size_t cap)
{
    struct ps_str s;

    if (h->count < PROBLEMS_MAX) {
        ps_str_init(&s, h->problems[h->count++], sizeof(h->problems[0]));
    } else {
        h->omitted_count++;
        ps_str_init(&s, scratch, cap);
    }
    return s;
}

/* Reports a server without memory for contributions of a job. */
static void check_memory(const struct ps_msg_node_row *n, struct health *h)
{
    char scratch[8];
    struct ps_str s;

    if (!n->memory_short || n->state != PS_NODE_STATE_ACTIVE) {
        return;
    }
    s = begin_problem(h, scratch, sizeof(scratch));
    ps_str_add(&s, "server ");
    ps_str_add_escaped(&s, n->name, strlen(n->name), 64);
    ps_str_add(&s, " is full: ");
    ps_str_add_size(&s, n->memory_used);
    ps_str_add(&s, " of ");
    ps_str_add_size(&s, n->memory_limit);
    ps_str_add(&s, " are taken (store.memory)");
}

static void check_reach(const struct ps_msg_node_row *n, struct health *h)
{
    char scratch[8];
    struct ps_str s;

    if (n->state != PS_NODE_STATE_ACTIVE || n->unreachable[0] == '\0') {
        return;
    }
    s = begin_problem(h, scratch, sizeof(scratch));
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
    char scratch[8];
    struct ps_str s;

    if (!n->certificate_is_expiring || n->state == PS_NODE_STATE_GONE) {
        return;
    }
    s = begin_problem(h, scratch, sizeof(scratch));
    ps_str_addf(&s, "certificate of %s ", ps_role_name(n->role));
    add_printable(&s, n->name, 64);
    ps_str_add(&s, " ends soon; see psctl nodes, and renew it by psctl pki");
}

bool is_missed(const struct ps_msg_node_row *n)
{
    return n->state == PS_NODE_STATE_SUSPECT ||
           (n->state == PS_NODE_STATE_GONE && !n->draining &&
            n->silent_ns < GONE_PROBLEM_MAX);
}

static void check_nodes(const struct report *r, struct health *h)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_NODES];
    size_t servers = 0;
    char scratch[8];

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_node_row *n = &rows->row[i]->node_row;
        char age[32];
        struct ps_str s;

        if (n->role == PS_ROLE_SERVER && n->state == PS_NODE_STATE_ACTIVE) {
            servers++;
        }
        check_memory(n, h);
        check_reach(n, h);
        check_certificate(n, h);
        if (!is_missed(n)) {
            continue;
        }
        s = begin_problem(h, scratch, sizeof(scratch));
        format_age(n->silent_ns, age, sizeof(age));
        ps_str_addf(&s, "%s ", ps_role_name(n->role));
        add_printable(&s, n->name, 64);
        ps_str_addf(&s, " is %s, last heard %s ago",
                    ps_node_state_name(n->state), age);
    }
    if (servers == 0) {
        struct ps_str s = begin_problem(h, scratch, sizeof(scratch));

        ps_str_add(&s, "no active server");
    }
}

/* Reports why a job cannot go on, or begin. */
static void check_standstill(const struct report *r,
                             const struct ps_msg_job_row *j, struct health *h)
{
    char scratch[8];
    struct ps_str s;

    if (!job_is_open(j) || j->standstill[0] == '\0') {
        return;
    }
    s = begin_problem(h, scratch, sizeof(scratch));
    ps_str_add(&s, "job ");
    add_job_name(&s, r, j->name, j->uid);
    ps_str_add(&s, strncmp(j->standstill, "DIVERGED", 8) == 0 ? " is " : " ");
    add_printable(&s, j->standstill, 512);
}

/* Reports jobs that stand still; and those with lost ranks, which may train on
 * without them or stall without a visible wait. */
static void check_jobs(const struct report *r, struct health *h)
{
    enum { SHOWN = 8 };
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    char scratch[8];

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;
        uint32_t shown = j->lost_ranks_count < SHOWN ? j->lost_ranks_count
                                                     : SHOWN;
        struct ps_str s;

        check_standstill(r, j, h);
        if (!job_is_open(j) || j->ranks_lost == 0) {
            continue;
        }
        s = begin_problem(h, scratch, sizeof(scratch));
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
    char scratch[8];

    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_stall_row *row = &rows->row[i]->stall_row;
        struct ps_str s;
        char age[32];

        if (!stall_is_problem(row, after) || row->ring_count > 0) {
            continue; /* A ring is in the row of its job. */
        }
        format_age(row->waited_ns, age, sizeof(age));
        s = begin_problem(h, scratch, sizeof(scratch));
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
    memset(&r->health, 0, sizeof(r->health));
    check_nodes(r, &r->health);
    check_jobs(r, &r->health);
    check_stalls(r, after, &r->health);
}
