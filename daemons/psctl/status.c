/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a cluster on one screen. */
#include "psctl/answer.h"

#include <stdio.h>
#include <string.h>

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

    format_count(t->rounds, rounds, sizeof(rounds));
    format_bytes(t->bytes_in, in, sizeof(in));
    format_bytes(t->bytes_out, out, sizeof(out));
    format_bytes(t->stored_bytes, held, sizeof(held));
    printf("servers  %s rounds of partitions, %s in, %s out, %s held\n", rounds,
           in, out, held);
    format_count(t->rounds_rate, rounds, sizeof(rounds));
    format_bytes(t->in_rate, in, sizeof(in));
    format_bytes(t->out_rate, out, sizeof(out));
    printf("now      %s rounds/s, %s/s in, %s/s out\n", rounds, in, out);
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
        char text[32];

        if (!job_is_open(j) || count == most) {
            continue;
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
        table_cell(&t, "%s", ps_mode_name(j->mode));
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
    char name[4 * 64 + 4];
    char up[32];
    struct ps_str s;

    ps_str_init(&s, name, sizeof(name));
    ps_str_add_escaped(&s, end->cluster, strlen(end->cluster), 64);
    format_age(end->uptime_ns, up, sizeof(up));
    printf("cluster  %s  psched up %s  epoch %u  %zu agent%s  %zu server%s  "
           "%zu job%s\n",
           name, up, end->epoch, t.agents, plural(t.agents), t.servers,
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
    for (size_t i = 0; i < r->health.count; i++) {
        printf("  ! %s\n", r->health.problems[i]);
    }
    if (r->health.omitted_count > 0) {
        printf("  ! and %zu more\n", r->health.omitted_count);
    }
    show_private_jobs(stdout);
}
