/* SPDX-License-Identifier: Apache-2.0 */
/* Output for users: one screen for status, a table for every other verb. */
#include "psctl/psctl.h"

#include "base/alloc.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void cell_age(struct table *t, uint64_t ns)
{
    char text[32];

    format_age(ns, text, sizeof(text));
    table_cell(t, "%s", text);
}

static void cell_bytes(struct table *t, uint64_t bytes)
{
    char text[32];

    format_bytes(bytes, text, sizeof(text));
    table_cell(t, "%s", text);
}

static void cell_count(struct table *t, uint64_t n)
{
    char text[32];

    format_count(n, text, sizeof(text));
    table_cell(t, "%s", text);
}

static void cell_job(struct table *t, const struct report *r, const char *name,
                     uint32_t uid)
{
    char text[600];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    add_job_name(&s, r, name, uid);
    table_cell(t, "%s", text);
}

static void cell_upper(struct table *t, const char *word)
{
    char text[32];
    size_t i;

    for (i = 0; word[i] != '\0' && i + 1 < sizeof(text); i++) {
        text[i] = (char)toupper((unsigned char)word[i]);
    }
    text[i] = '\0';
    table_cell(t, "%s", text);
}

static void print_table(struct table *t, bool headings)
{
    table_print(t, headings);
    table_fini(t);
}

/* -------------------------------------------------------------------- nodes */

/* Days until the certificate ends, and whether the kernel protects what is sent
 * with it; "-": there is none. */
static void cell_certificate(struct table *t, const struct ps_msg_node_row *n)
{
    const int64_t now = (int64_t)time(NULL);

    if (n->certificate_ends == 0 || n->certificate_ends > INT64_MAX / 2) {
        table_cell(t, "-");
    } else if ((int64_t)n->certificate_ends <= now) {
        table_cell(t, "ENDED");
    } else {
        table_cell(t, "%" PRId64 "d%s",
                   ((int64_t)n->certificate_ends - now) / 86400,
                   n->ktls ? "+kTLS" : "");
    }
}

/* The GPU on which the member computes. */
static void add_gpu_cells(struct table *t, const struct ps_msg_node_row *n)
{
    if (n->gpu[0] == '\0') {
        for (int i = 0; i < 4; i++) {
            table_cell(t, "-");
        }
        return;
    }
    table_text(t, n->gpu);
    cell_bytes(t, n->gpu_held);
    cell_bytes(t, n->gpu_up_rate);
    cell_bytes(t, n->gpu_down_rate);
}

static bool any_has_gpu(const struct rows *rows)
{
    bool has = false;

    for (size_t i = 0; i < rows->count && !has; i++) {
        has = rows->row[i]->node_row.gpu[0] != '\0';
    }
    return has;
}

static void show_nodes(const struct rows *rows, bool headings)
{
    const bool has_gpus = any_has_gpu(rows);
    static const char *const names[] = {
        "ROLE",         "NAME",  "STATE",   "ADDRESS",  ">HEARD",
        ">ROUNDS",      ">/S",   ">IN",     ">/S",      ">OUT",
        ">/S",          ">HELD", ">RESENT", ">WAITING", ">REFUSED",
        ">CERTIFICATE", "GPU",   ">HELD",   ">UP/S",    ">DOWN/S",
    };
    struct table t;

    table_init(&t, names, has_gpus ? COUNT(names) : COUNT(names) - 4);
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_node_row *n = &rows->row[i]->node_row;

        table_cell(&t, "%s", ps_role_name(n->role));
        table_text(&t, n->name);
        cell_upper(&t, n->state != PS_NODE_STATE_ACTIVE
                           ? ps_node_state_name(n->state)
                       : n->unreachable[0] != '\0' ? "unreachable"
                       : n->draining               ? "draining"
                       : n->memory_short           ? "full"
                                         : ps_node_state_name(n->state));
        table_text(&t, n->address);
        cell_age(&t, n->silent_ns);
        cell_count(&t, n->rounds);
        cell_count(&t, n->rounds_rate);
        cell_bytes(&t, n->bytes_in);
        cell_bytes(&t, n->in_rate);
        cell_bytes(&t, n->bytes_out);
        cell_bytes(&t, n->out_rate);
        cell_bytes(&t, n->stored_bytes);
        cell_count(&t, n->resent);
        cell_count(&t, n->waiting_requests);
        cell_count(&t, n->refused);
        cell_certificate(&t, n);
        if (has_gpus) {
            add_gpu_cells(&t, n);
        }
    }
    print_table(&t, headings);
}

/* --------------------------------------------------------------------- jobs */

static void show_jobs(const struct report *r, bool headings)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    static const char *const names[] = {
        "JOB",     "PHASE", "MODE",      ">WORKERS",    ">NODES",
        ">KEYS",   ">HELD", ">BARRIERS", ">SKIPPED",    ">AGE",
        ">WEIGHT", ">UID",  "OPTIMIZER", "COMPRESSION", "REASON",
    };
    struct table t;

    table_init(&t, names, COUNT(names));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;

        cell_job(&t, r, j->name, j->uid);
        cell_upper(&t, ps_job_phase_name(j->phase));
        table_cell(&t, "%s", ps_mode_name(j->mode));
        table_cell(&t, "%u/%u", j->live_workers, j->num_workers);
        table_cell(&t, "%u", j->slots);
        cell_count(&t, j->keys);
        cell_bytes(&t, j->bytes);
        cell_count(&t, j->barriers);
        cell_count(&t, j->skipped_steps);
        cell_age(&t, j->age_ns);
        table_cell(&t, "%u", j->weight);
        table_cell(&t, "%u", j->uid);
        table_text(&t, j->optimizer);
        table_text(&t, j->compression);
        table_text(&t, j->reason);
    }
    print_table(&t, headings);
}

/* --------------------------------------------------------------------- keys */

static void cell_share(struct table *t, const struct job_load *l,
                       uint64_t bytes)
{
    table_cell(t, "%.1f %%", 100 * job_load_ratio(l, bytes));
}

/* Prints the bytes of each server of each job, and their ratio to the fair
 * share. */
static void show_loads(const struct report *r, bool headings, bool moves)
{
    static const char *const names[] = {
        "JOB", "SERVER", ">BYTES", ">OF EVEN", ">BYTES THEN", ">OF EVEN THEN"};
    size_t count;
    struct job_load *list = make_job_loads(r, &count);
    struct table t;

    table_init(&t, names, moves ? COUNT(names) : COUNT(names) - 2);
    for (size_t i = 0; i < count; i++) {
        cell_job(&t, r, list[i].job, list[i].uid);
        table_text(&t, list[i].server);
        cell_bytes(&t, list[i].bytes);
        cell_share(&t, &list[i], list[i].bytes);
        if (moves) {
            cell_bytes(&t, list[i].bytes_after);
            cell_share(&t, &list[i], list[i].bytes_after);
        }
    }
    if (count > 0) {
        putchar('\n');
        table_print(&t, headings);
    }
    table_fini(&t);
    for (size_t i = 0; i < count && !moves; i++) {
        char text[512];
        struct ps_str s;

        if (list[i].is_spare) {
            ps_str_init(&s, text, sizeof(text));
            describe_spare(r, &list[i], &s);
            puts(text);
        }
    }
    ps_free(list);
}

static void show_keys(const struct report *r, bool headings)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_KEYS];
    static const char *const names[] = {
        "JOB",    ">KEY",   "KIND",   "NAME",   "DTYPE",
        ">COUNT", "SERVER", ">PARTS", ">BYTES",
    };
    struct table t;

    table_init(&t, names, COUNT(names));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_key_row *k = &rows->row[i]->key_row;

        cell_job(&t, r, k->job, k->uid);
        table_cell(&t, "%u", k->key);
        table_cell(&t, "%s", ps_key_kind_name(k->kind));
        table_text(&t, k->name);
        table_cell(&t, "%s", ps_dtype_name(k->dtype));
        cell_count(&t, k->count);
        table_text(&t, k->server);
        cell_count(&t, k->parts);
        cell_bytes(&t, k->bytes);
    }
    print_table(&t, headings);
    if (headings) {
        show_loads(r, headings, false);
    }
}

/* ---------------------------------------------------------------- rebalance */

static void show_migrations(const struct report *r, bool headings)
{
    static const char *const names[] = {"JOB",  ">KEY", "KIND",   "NAME",
                                        "FROM", "TO",   ">PARTS", ">BYTES"};
    const struct rows *rows = &r->rows_of[PS_QUERY_REBALANCE_PLAN];
    uint64_t parts = 0;
    uint64_t bytes = 0;
    char text[32];
    struct table t;

    table_init(&t, names, COUNT(names));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_migration_row *m = &rows->row[i]->migration_row;

        table_text(&t, m->job);
        table_cell(&t, "%u", m->key);
        table_cell(&t, "%s", ps_key_kind_name(m->kind));
        table_text(&t, m->name);
        table_text(&t, m->from);
        table_text(&t, m->to);
        cell_count(&t, m->parts);
        cell_bytes(&t, m->bytes);
        parts += m->parts;
        bytes += m->bytes;
    }
    if (rows->count > 0 || !headings) {
        table_print(&t, headings);
    }
    table_fini(&t);
    if (!headings) {
        return;
    }
    if (rows->count == 0) {
        puts("the servers are balanced, or no migration would improve the "
             "balance");
    } else {
        format_bytes(bytes, text, sizeof(text));
        printf("%" PRIu64 " partition%s, %s; %s moved\n", parts,
               parts == 1 ? "" : "s", text,
               !r->has_migrated ? "nothing was"
               : parts == 1     ? "it was"
                                : "all were");
    }
    show_loads(r, headings, !r->has_migrated);
}

/* -------------------------------------------------------------------- stall */

static void show_stalls(const struct report *r, bool headings)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_STALL];
    static const char *const names[] = {"JOB", ">WAITED", ">WAITS", "WHAT",
                                        "WAITS FOR"};
    struct table t;

    if (rows->count == 0 && headings) {
        puts("nothing is waited for");
        return;
    }
    table_init(&t, names, COUNT(names));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_stall_row *row = &rows->row[i]->stall_row;
        char missing[1024];
        struct ps_str s;

        ps_str_init(&s, missing, sizeof(missing));
        describe_missing(row, &s);
        cell_job(&t, r, row->job, row->uid);
        cell_age(&t, row->waited_ns);
        table_cell(&t, "%u", row->waiting_ops);
        table_text(&t, row->ring_count > 0 ? "DIVERGED" : row->what);
        table_cell(&t, "%s", missing);
    }
    print_table(&t, headings);
}

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
        cell_bytes(&t, j->bytes);
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

static void show_status(const struct report *r, const struct health *h)
{
    struct totals t = compute_totals(r);

    show_summary(r);
    show_open_jobs(r, SIZE_MAX);
    if (t.ended + t.failed > 0) {
        printf("before   %zu job%s ended, %zu failed; see `psctl jobs`\n",
               t.ended, plural(t.ended), t.failed);
    }
    for (size_t i = 0; i < h->count; i++) {
        printf("  ! %s\n", h->problems[i]);
    }
    if (h->omitted_count > 0) {
        printf("  ! and %zu more\n", h->omitted_count);
    }
}

void show_table(enum verb verb, const struct report *r, const struct health *h,
                bool headings)
{
    switch (verb) {
    case VERB_STATUS:
        show_status(r, h);
        show_private_jobs(stdout);
        break;
    case VERB_NODES:
        show_nodes(&r->rows_of[PS_QUERY_NODES], headings);
        break;
    case VERB_JOBS:
        show_jobs(r, headings);
        break;
    case VERB_GET:
        show_settings(r, headings);
        break;
    case VERB_KEYS:
        show_keys(r, headings);
        break;
    case VERB_STALL:
        show_stalls(r, headings);
        break;
    case VERB_REBALANCE:
        show_migrations(r, headings);
        break;
    case VERB_TOKENS:
        show_tokens(&r->rows_of[PS_QUERY_TOKENS], headings);
        break;
    case VERB_TOKEN_ISSUE: /* The token alone, for a file. */
        if (r->rows_of[PS_QUERY_TOKENS].count > 0) {
            puts(r->rows_of[PS_QUERY_TOKENS].row[0]->token_row.text);
        }
        break;
    case VERB_EVENTS:
        show_events(r, headings);
        break;
    case VERB_TOP: /* Shown by functions of their own. */
    case VERB_DOCTOR:
    case VERB_LOG_LEVEL:
    case VERB_LAUNCH:
    case VERB_TRACE:
    case VERB_TOKEN_REVOKE:
    case VERB_CANCEL:
    case VERB_SET:
    case VERB_BENCH:
        break;
    }
}
