/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the trace of a job, member by member. Each answer has three times:
 * those at which the scheduler asked and got it, and one of the member's clock
 * between them. So the answer that came back fastest tells how far the clocks
 * are apart, with an error of half the time that it took.
 *
 * Then finds the rank for which the others wait. In each round of a key, the rank
 * that begins last delays all others, by the time since the last but one began.
 * Each rank's delays are added up: a rank that is slow on its own pays for most
 * rounds, while equal ranks take turns. */
#include "psctl/trace.h"
#include "psctl/verbs.h"

#include "base/alloc.h"
#include "base/num.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Answers that are asked for to compare clocks, besides those with entries. */
#define CLOCK_PROBES 4

static void trace_fini(struct trace *t)
{
    for (uint32_t i = 0; i < t->member_count; i++) {
        ps_free(t->members[i].entries);
        ps_free(t->members[i].span_names);
    }
    ps_free(t->members);
    ps_free(t->key_names);
}

int64_t trace_begin(const struct trace_member *m,
                    const struct ps_rec_trace_entry *e)
{
    return (int64_t)e->begun_ns - m->offset_ns;
}

const char *trace_key_name(const struct trace *t, uint32_t key, char *buffer,
                           size_t cap)
{
    struct ps_str s;

    if (key < t->key_count && t->key_names[key] != NULL) {
        return t->key_names[key];
    }
    ps_str_init(&s, buffer, cap);
    ps_str_addf(&s, "key %" PRIu32, key);
    return buffer;
}

/* ------------------------------------------------------------------ collect */

static void append_entries(struct trace_member *m,
                           const struct ps_msg_trace_entries *e)
{
    if (m->count + e->entries_count > m->capacity) {
        m->capacity = 2 * m->capacity + e->entries_count;
        m->entries = ps_realloc(m->entries,
                                m->capacity * sizeof(m->entries[0]));
    }
    if (e->entries_count > 0) {
        memcpy(m->entries + m->count, e->entries,
               e->entries_count * sizeof(m->entries[0]));
        m->count += e->entries_count;
    }
}

/* Takes the names of spans; an answer has those of the ones before, and more. */
static void take_span_names(struct trace_member *m,
                            const struct ps_msg_trace_entries *e)
{
    if (e->span_names_count <= m->span_name_count) {
        return;
    }
    m->span_names = ps_realloc(m->span_names,
                               e->span_names_count * sizeof(m->span_names[0]));
    while (m->span_name_count < e->span_names_count) {
        ps_str_copy(m->span_names[m->span_name_count], sizeof(m->span_names[0]),
                    e->span_names[m->span_name_count].name);
        m->span_name_count++;
    }
}

/* Keeps the offset of the fastest answer. */
static void compare_clocks(struct trace_member *m,
                           const struct ps_msg_trace_entries *e)
{
    const uint64_t took = e->answered_ns - e->asked_ns;
    const uint64_t middle = e->asked_ns + took / 2;

    if (e->answered_ns >= e->asked_ns && took / 2 <= m->error_ns) {
        m->error_ns = took / 2;
        m->offset_ns = (int64_t)(e->now_ns - middle);
    }
}

/* Requests of one trace. */
struct reader {
    struct wire *wire;
    const struct job_name *job;
    struct report *report;
    struct rows rows; /* Of the last answer; owned. */
};

static void forget_answer(struct reader *rd)
{
    for (size_t i = 0; i < rd->rows.count; i++) {
        ps_msg_free(rd->rows.row[i]);
    }
    rd->rows.count = 0;
}

/* Gets one answer of a member; *ret_answer holds until the next one. */
static int ask_member(struct reader *rd, uint32_t member, uint64_t first,
                      const struct ps_msg_trace_entries **ret_answer)
{
    const struct ps_msg get = {.code = PS_MSG_TRACE_GET,
                               .trace_get = {.job = rd->job->name,
                                             .has_owner = rd->job->has_owner,
                                             .owner = rd->job->owner,
                                             .member = member,
                                             .first = first}};
    int rc;

    forget_answer(rd);
    rc = wire_ask(rd->wire, &get, PS_MSG_TRACE_ENTRIES, &rd->rows, rd->report);
    if (rc == 0 && rd->rows.count != 1) {
        fputs("psctl: psched sent no trace\n", stderr);
        return EXIT_FAILED;
    }
    if (rc == 0) {
        *ret_answer = &rd->rows.row[0]->trace_entries;
    }
    return rc;
}

/* Takes name and clock of the member; *ret_count is the number of its entries so
 * far. */
static int identify_member(struct reader *rd, struct trace *t, uint32_t member,
                           uint64_t *ret_count)
{
    struct trace_member *m = &t->members[member];
    const struct ps_msg_trace_entries *e;

    m->error_ns = UINT64_MAX;
    for (int i = 0; i < CLOCK_PROBES; i++) {
        int rc = ask_member(rd, member, UINT64_MAX, &e);

        if (rc != 0) {
            return rc;
        }
        compare_clocks(m, e);
        (void)ps_str_copy(m->name, sizeof(m->name), e->name);
        m->role = e->role;
        m->node = e->node;
        *ret_count = e->count;
    }
    return 0;
}

/* Fills a member with at most its last `entries_max` entries. */
static int collect_member(struct reader *rd, struct trace *t, uint32_t member,
                          uint64_t entries_max)
{
    struct trace_member *m = &t->members[member];
    const struct ps_msg_trace_entries *e;
    uint64_t count = 0;
    int rc = identify_member(rd, t, member, &count);
    uint64_t next = count - ps_min_u64(count, entries_max);

    while (rc == 0 && next < count) {
        rc = ask_member(rd, member, next, &e);
        if (rc == 0 && e->next <= next) {
            fputs("psctl: psched repeats a trace\n", stderr);
            rc = EXIT_FAILED;
        } else if (rc == 0) {
            compare_clocks(m, e);
            append_entries(m, e);
            take_span_names(m, e);
            next = e->next;
        }
    }
    m->is_missing = rc != 0;
    return rc;
}

/* Counts the members of the job, as the scheduler knows them. */
static int count_members(struct reader *rd, struct trace *t)
{
    const struct ps_msg_trace_entries *e;
    int rc = ask_member(rd, 0, UINT64_MAX, &e);

    if (rc == 0) {
        t->server_count = (uint32_t)ps_min_u64(e->servers, PS_SERVERS_MAX);
        t->member_count = 1 + t->server_count +
                          (uint32_t)ps_min_u64(e->agents, PS_SLOTS_MAX);
        t->members = ps_calloc(t->member_count, sizeof(t->members[0]));
    }
    return rc;
}

static void index_keys(struct trace *t, const struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_key_row *k = &rows->row[i]->key_row;

        if (k->key < PS_KEYS_MAX && k->key >= t->key_count) {
            t->key_count = k->key + 1;
        }
    }
    t->key_names = ps_calloc(t->key_count + 1, sizeof(t->key_names[0]));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_key_row *k = &rows->row[i]->key_row;

        if (k->key < t->key_count) {
            t->key_names[k->key] = k->name;
        }
    }
}

static int collect_members(struct reader *rd, struct trace *t)
{
    bool is_complete = true;
    int rc = count_members(rd, t);

    for (uint32_t i = 0; rc == 0 && i < t->member_count; i++) {
        t->members[i].slot = i > t->server_count ? i - 1 - t->server_count : 0;
        rc = collect_member(rd, t, i, TRACE_ENTRIES_MAX / t->member_count);
        if (rc == EXIT_FAILED && i > 0) {
            is_complete = false; /* Said on standard error. */
            rc = 0;
        }
    }
    return rc != 0 ? rc : is_complete ? EXIT_HEALTHY : EXIT_DEGRADED;
}

/* Collects the trace of a job. Returns an exit code: EXIT_DEGRADED if some
 * members have not answered. */
static int trace_collect(struct wire *w, const struct job_name *job,
                         struct report *r, struct trace *ret)
{
    struct reader rd = {.wire = w, .job = job, .report = r};
    int rc = wire_query(w, PS_QUERY_KEYS, job, r);

    *ret = (struct trace){.job = job->name};
    if (rc == 0) {
        index_keys(ret, &r->rows_of[PS_QUERY_KEYS]);
        rc = collect_members(&rd, ret);
    }
    forget_answer(&rd);
    ps_free(rd.rows.row);
    return rc;
}

/* --------------------------------------------------------------------- lags */

/* Waits of all other ranks of a job for one. */
struct trace_lag {
    uint32_t rank;
    const char *node;    /* Name of its agent; borrowed. */
    uint32_t rounds;     /* That it and another rank took part in. */
    uint32_t last;       /* In which it began last. */
    uint64_t cost_ns;    /* By which it was later than all others, in sum. */
    uint64_t longest_ns; /* In one round. */
};

/* The slowest rank stands out if its cost is this many times that of any other,
 * and so long in the mean of its rounds. */
#define TIMES_OTHERS 2u
#define LEAST_MEAN   PS_MICROS(200)

/* Begin of one rank's part in a round. */
struct arrival {
    uint32_t key;
    uint64_t round;
    uint32_t rank;
    uint32_t member;
    int64_t begin;
};

static bool is_part_of_round(const struct ps_rec_trace_entry *e)
{
    return e->kind == PS_TRACE_KIND_OP && e->key != UINT32_MAX &&
           e->round > 0 && e->peer < PS_RANKS_MAX &&
           (e->op == PS_OP_PUSH || e->op == PS_OP_PUSHPULL ||
            e->op == PS_OP_PUSH_ROWS || e->op == PS_OP_BROADCAST);
}

/* By key, round, rank, then begin. */
static int compare_arrivals(const void *left, const void *right)
{
    const struct arrival *a = left;
    const struct arrival *b = right;
    int c = ps_compare_u64(a->key, b->key);

    c = c != 0 ? c : ps_compare_u64(a->round, b->round);
    c = c != 0 ? c : ps_compare_u64(a->rank, b->rank);
    return c != 0 ? c : (a->begin > b->begin) - (a->begin < b->begin);
}

static struct arrival *list_arrivals(const struct trace *t, size_t *ret_count)
{
    struct arrival *list;
    size_t capacity = 1;
    size_t count = 0;

    for (uint32_t i = 0; i < t->member_count; i++) {
        capacity += t->members[i].count;
    }
    list = ps_calloc(capacity, sizeof(*list));
    for (uint32_t i = 0; i < t->member_count; i++) {
        const struct trace_member *m = &t->members[i];

        for (uint32_t k = 0; k < m->count; k++) {
            const struct ps_rec_trace_entry *e = &m->entries[k];

            if (is_part_of_round(e)) {
                list[count++] = (struct arrival){.key = e->key,
                                                 .round = e->round,
                                                 .rank = e->peer,
                                                 .member = i,
                                                 .begin = trace_begin(m, e)};
            }
        }
    }
    qsort(list, count, sizeof(*list), compare_arrivals);
    *ret_count = count;
    return list;
}

/* Adds one round, of `n` arrivals that are sorted by rank. */
static void add_round(const struct trace *t, struct trace_lag *lags,
                      const struct arrival *round, size_t n)
{
    const struct arrival *last = NULL;
    const struct arrival *before = NULL;
    struct trace_lag *lag;
    uint64_t cost;

    for (size_t i = 0; i < n; i++) {
        if (i > 0 && round[i].rank == round[i - 1].rank) {
            return; /* An attempt was repeated: its times mean nothing. */
        }
        if (last == NULL || round[i].begin >= last->begin) {
            before = last;
            last = &round[i];
        } else if (before == NULL || round[i].begin > before->begin) {
            before = &round[i];
        }
    }
    if (n < 2) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        lag = &lags[round[i].rank];
        lag->node = t->members[round[i].member].name;
        lag->rounds++;
    }
    lag = &lags[last->rank];
    cost = (uint64_t)(last->begin - before->begin);
    lag->last++;
    lag->cost_ns += cost;
    lag->longest_ns = ps_max_u64(lag->longest_ns, cost);
}

/* Drops ranks without a round; returns the number of the others. */
static size_t pack_lags(struct trace_lag *lags)
{
    size_t count = 0;

    for (uint32_t rank = 0; rank < PS_RANKS_MAX; rank++) {
        if (lags[rank].rounds > 0) {
            lags[rank].rank = rank;
            lags[count++] = lags[rank];
        }
    }
    return count;
}

static const struct trace_lag *find_slowest(const struct trace_lag *lags,
                                            size_t count)
{
    const struct trace_lag *most = NULL;
    uint64_t second = 0;

    for (size_t i = 0; i < count; i++) {
        if (most == NULL || lags[i].cost_ns > most->cost_ns) {
            second = most != NULL ? most->cost_ns : 0;
            most = &lags[i];
        } else {
            second = ps_max_u64(second, lags[i].cost_ns);
        }
    }
    return most != NULL && most->cost_ns > TIMES_OTHERS * second &&
                   most->cost_ns >= LEAST_MEAN * most->rounds
               ? most
               : NULL;
}

/* The lags of all ranks, sorted by rank, for the caller to free. *ret_slowest is
 * the one that stands out; NULL: none does. */
static struct trace_lag *trace_lags(const struct trace *t, size_t *ret_count,
                                    const struct trace_lag **ret_slowest)
{
    /* By rank, at first. */
    struct trace_lag *lags = ps_calloc(PS_RANKS_MAX, sizeof(*lags));
    size_t arrivals;
    struct arrival *list = list_arrivals(t, &arrivals);

    for (size_t i = 0, n; i < arrivals; i += n) {
        n = 1;
        while (i + n < arrivals && list[i + n].key == list[i].key &&
               list[i + n].round == list[i].round) {
            n++;
        }
        add_round(t, lags, &list[i], n);
    }
    ps_free(list);
    *ret_count = pack_lags(lags);
    *ret_slowest = find_slowest(lags, *ret_count);
    return lags;
}

/* --------------------------------------------------------------------- show */

static void add_ms(struct table *t, uint64_t ns)
{
    table_cell(t, "%.1f", (double)ns / 1e6);
}

static void show_lags(const struct trace_lag *lags, size_t count,
                      const struct trace_lag *slowest, bool headings)
{
    static const char *const names[] = {">RANK", "NODE",     ">ROUNDS",
                                        ">LAST", ">COST MS", ">LONGEST MS"};
    struct table t;

    table_init(&t, names, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < count; i++) {
        table_cell(&t, "%" PRIu32, lags[i].rank);
        table_text(&t, lags[i].node);
        table_cell(&t, "%" PRIu32, lags[i].rounds);
        table_cell(&t, "%" PRIu32, lags[i].last);
        add_ms(&t, lags[i].cost_ns);
        add_ms(&t, lags[i].longest_ns);
    }
    table_print(&t, headings);
    table_fini(&t);
    if (slowest != NULL) {
        struct ps_str s = PS_STR_ROOM(4 * PS_NAME_MAX + 1);

        add_printable(&s, slowest->node, PS_NAME_MAX);
        printf("rank %" PRIu32 " (%s) is the slowest: last in %" PRIu32
               " of %" PRIu32 " rounds, in which the others waited %.1f ms for "
               "it\n",
               slowest->rank, s.data, slowest->last, slowest->rounds,
               (double)slowest->cost_ns / 1e6);
    } else {
        puts(count > 0 ? "no rank is slower than the others"
                       : "the trace has no round of two ranks");
    }
}

static json_t *lag_of(const struct trace_lag *l)
{
    return json_pack("{s:I, s:o, s:I, s:I, s:f, s:f}", "rank",
                     (json_int_t)l->rank, "node", json_text(l->node), "rounds",
                     (json_int_t)l->rounds, "last", (json_int_t)l->last,
                     "cost_s", (double)l->cost_ns / 1e9, "longest_s",
                     (double)l->longest_ns / 1e9);
}

static json_t *member_of(const struct trace_member *m)
{
    return json_pack("{s:s, s:o, s:I, s:f, s:f, s:b}", "role",
                     ps_role_name(m->role), "name", json_text(m->name),
                     "entries", (json_int_t)m->count, "clock_s",
                     (double)m->offset_ns / 1e9, "clock_error_s",
                     m->is_missing ? 0.0 : (double)m->error_ns / 1e9, "missing",
                     (int)m->is_missing);
}

static void show_as_json(const struct trace *t,
                         const struct trace_file_figures *f,
                         const struct trace_lag *lags, size_t count,
                         const struct trace_lag *slowest)
{
    json_t *members = json_array();
    json_t *ranks = json_array();

    for (uint32_t i = 0; i < t->member_count; i++) {
        json_array_append_new(members, member_of(&t->members[i]));
    }
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(ranks, lag_of(&lags[i]));
    }
    json_print(
        json_pack("{s:i, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "schema", 1,
                  "job", json_text(t->job), "events", (json_int_t)f->events,
                  "flows", (json_int_t)f->flows, "bytes", (json_int_t)f->bytes,
                  "members", members, "ranks", ranks, "slowest",
                  slowest != NULL ? json_integer(slowest->rank) : json_null()));
}

int trace_ask(struct wire *w, struct request *q, const struct job_name *job,
              struct report *r)
{
    struct trace_file_figures figures = {0};
    const struct trace_lag *slowest = NULL;
    struct trace_lag *lags;
    struct trace t;
    size_t count;
    int rc = trace_collect(w, job, r, &t);

    if (rc == EXIT_HEALTHY || rc == EXIT_DEGRADED) {
        const int written = q->output != NULL
                                ? trace_file_write(&t, q->output, &figures)
                                : 0;

        rc = written != 0 ? written : rc;
        lags = trace_lags(&t, &count, &slowest);
        if (q->print.json) {
            show_as_json(&t, &figures, lags, count, slowest);
        } else {
            show_lags(lags, count, slowest, !q->print.no_headings);
        }
        ps_free(lags);
    }
    trace_fini(&t);
    return rc;
}
