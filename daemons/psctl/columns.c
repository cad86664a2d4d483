/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of the answers of the scheduler: one list for each answer, from which
 * answer.c makes its table and its JSON, and which the test psctl_answers
 * compares with docs/json.md. A column names a field of the answer's row in
 * proto/messages.toml, whose type it takes from there, and has a title in the
 * table, a name in JSON, or both; where the two orders differ, a field has two
 * columns. Behind the lists of some answers follows what their tables have
 * besides. */
#include "psctl/answer.h"

#include "base/alloc.h"
#include "proto/shape.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define COLUMNS(list)                                                          \
    .columns = (list), .count = sizeof(list) / sizeof((list)[0])
#define COLUMN(title_, json_, field_, unit_)                                   \
    {                                                                          \
        .title = (title_), .json = (json_), .field = (field_),                 \
        .unit = UNIT_##unit_                                                   \
    }
#define ROW(row, which) (&((const struct ps_msg *)(row))->which)

/* ------------------------------------------------------------------ members */

/* The state, or what is more urgent to know of an active member. */
static void add_state(struct ps_str *s, const void *row)
{
    const struct ps_msg_node_row *n = ROW(row, node_row);
    const char *word = n->state != PS_NODE_STATE_ACTIVE
                           ? ps_node_state_name(n->state)
                       : n->unreachable[0] != '\0' ? "unreachable"
                       : n->draining               ? "draining"
                       : n->memory_short           ? "full"
                                         : ps_node_state_name(n->state);

    add_upper(s, word);
}

/* Days until the certificate ends, and whether the kernel protects what is sent
 * with it; "-": there is none. */
static void add_certificate(struct ps_str *s, const void *row)
{
    const struct ps_msg_node_row *n = ROW(row, node_row);
    const int64_t now = (int64_t)time(NULL);

    if (n->certificate_ends == 0 || n->certificate_ends > INT64_MAX / 2) {
        ps_str_add(s, "-");
    } else if ((int64_t)n->certificate_ends <= now) {
        ps_str_add(s, "ENDED");
    } else {
        ps_str_addf(s, "%" PRId64 "d%s",
                    ((int64_t)n->certificate_ends - now) / 86400,
                    n->ktls ? "+kTLS" : "");
    }
}

static bool has_gpu(const void *row)
{
    return ROW(row, node_row)->gpu[0] != '\0';
}

static const struct answer cost_answer = {.object = "cost"};

static const struct column node_columns[] = {
    COLUMN("ROLE", "role", "role", NONE),
    COLUMN(NULL, "node", "node", NONE),
    COLUMN("NAME", "name", "name", NONE),
    COLUMN(NULL, "state", "state", NONE),
    {"STATE", .text = add_state},
    COLUMN(NULL, "incarnation", "incarnation", NONE),
    COLUMN("ADDRESS", "address", "address", NONE),
    COLUMN(NULL, "unreachable", "unreachable", NONE),
    COLUMN(">HEARD", "heard_s", "silent_ns", AGE),
    COLUMN(">ROUNDS", "rounds", "rounds", COUNT),
    COLUMN(">/S", NULL, "rounds_rate", COUNT),
    COLUMN(">IN", "bytes_in", "bytes_in", BYTES),
    COLUMN(">/S", NULL, "in_rate", BYTES),
    COLUMN(">OUT", "bytes_out", "bytes_out", BYTES),
    COLUMN(">/S", NULL, "out_rate", BYTES),
    COLUMN(NULL, "rounds_per_s", "rounds_rate", COUNT),
    COLUMN(NULL, "bytes_in_per_s", "in_rate", BYTES),
    COLUMN(NULL, "bytes_out_per_s", "out_rate", BYTES),
    COLUMN(">HELD", "stored", "stored_bytes", BYTES),
    COLUMN(">RESENT", "resent", "resent", COUNT),
    COLUMN(">WAITING", "waiting", "waiting_requests", COUNT),
    COLUMN(">REFUSED", "refused", "refused", COUNT),
    COLUMN(NULL, "draining", "draining", NONE),
    COLUMN(NULL, "memory", "memory_limit", BYTES),
    COLUMN(NULL, "reserved", "memory_reserved", BYTES),
    COLUMN(NULL, "taken", "memory_used", BYTES),
    COLUMN(NULL, "kept", "memory_kept", BYTES),
    COLUMN(NULL, "full", "memory_short", NONE),
    {">CERTIFICATE", .text = add_certificate},
    COLUMN(NULL, "certificate_ends", "certificate_ends", TIME),
    COLUMN(NULL, "certificate_is_expiring", "certificate_is_expiring", NONE),
    COLUMN("VERSION", "version", "version", NONE),
    COLUMN(NULL, "descriptors", "descriptors", NONE),
    COLUMN(NULL, "clock_skew_s", "clock_skew_ns", AGE),
    COLUMN(NULL, "avoids_shm", "avoids_shm", NONE),
    COLUMN(NULL, "ktls", "ktls", NONE),
    {"GPU", "gpu", "gpu", .holds = has_gpu},
    COLUMN(NULL, "gpu_memory", "gpu_memory", BYTES),
    {">HELD", "gpu_held", "gpu_held", UNIT_BYTES, .holds = has_gpu},
    COLUMN(NULL, "gpu_up", "gpu_up", BYTES),
    COLUMN(NULL, "gpu_down", "gpu_down", BYTES),
    {">UP/S", "gpu_up_per_s", "gpu_up_rate", UNIT_BYTES, .holds = has_gpu},
    {">DOWN/S", "gpu_down_per_s", "gpu_down_rate", UNIT_BYTES,
     .holds = has_gpu},
    {NULL, "costs", "costs", .of = &cost_answer},
};

const struct answer answer_nodes = {"node", "nodes", PS_QUERY_NODES,
                                    PS_MSG_NODE_ROW, COLUMNS(node_columns)};

/* psctl top */

static void add_top_state(struct ps_str *s, const void *row)
{
    const struct ps_msg_node_row *n = ROW(row, node_row);

    ps_str_addf(s, "%s%s", ps_node_state_name(n->state),
                n->draining ? " draining" : "");
}

static void add_memory(struct ps_str *s, const void *row)
{
    const struct ps_msg_node_row *n = ROW(row, node_row);

    if (n->memory_limit > 0) {
        ps_str_addf(s, "%.0f %%",
                    100.0 * (double)n->memory_used / (double)n->memory_limit);
    } else {
        ps_str_add(s, "-");
    }
}

static const struct column top_columns[] = {
    COLUMN("NAME", NULL, "name", NONE),
    COLUMN("ROLE", NULL, "role", NONE),
    {"STATE", .text = add_top_state},
    COLUMN(">ROUNDS/S", NULL, "rounds_rate", COUNT),
    COLUMN(">IN/S", NULL, "in_rate", RATE),
    COLUMN(">OUT/S", NULL, "out_rate", RATE),
    COLUMN(">STORED", NULL, "stored_bytes", BYTES),
    {">MEMORY", .text = add_memory},
    COLUMN(">WAITING", NULL, "waiting_requests", NONE),
    COLUMN(">HEARD", NULL, "silent_ns", AGE),
};

const struct answer answer_top = {.code = PS_MSG_NODE_ROW,
                                  COLUMNS(top_columns)};

/* --------------------------------------------------------------------- jobs */

static void add_workers(struct ps_str *s, const void *row)
{
    const struct ps_msg_job_row *j = ROW(row, job_row);

    ps_str_addf(s, "%u/%u", j->live_workers, j->num_workers);
}

static bool has_round(const void *row)
{
    return ((const struct ps_rec_change *)row)->round != 0;
}

static const struct column lost_columns[] = {
    COLUMN(NULL, "rank", "rank", NONE), COLUMN(NULL, "host", "host", NONE),
    COLUMN(NULL, "node", "node", NONE)};

static const struct answer lost_answer = {.object = "rank",
                                          COLUMNS(lost_columns)};

static const struct column setting_columns[] = {
    COLUMN("NAME", "name", "name", NONE),
    COLUMN(">VALUE", "value", "value", EXACT),
    {">FROM ROUND", "round", "round", .holds = has_round},
};

static const struct answer setting_answer = {.object = "setting",
                                             COLUMNS(setting_columns)};

static const struct column scalar_columns[] = {
    COLUMN("SCALAR", "name", "name", NONE),
    COLUMN(NULL, "ranks", "ranks", NONE),
    COLUMN(NULL, "nonfinite", "nonfinite", NONE),
    COLUMN(NULL, "step", "step", NONE),
    COLUMN(">MEAN", NULL, "mean", NONE),
    COLUMN(">MIN", "min", "min", NONE),
    COLUMN(NULL, "mean", "mean", NONE),
    COLUMN(">MAX", "max", "max", NONE),
    COLUMN(">RANKS", NULL, "ranks", NONE),
    COLUMN(">STEP", NULL, "step", COUNT),
    COLUMN(">AGE", "age_s", "age_ns", AGE),
};

static const struct answer scalar_answer = {.object = "scalar",
                                            COLUMNS(scalar_columns)};

static const struct column job_columns[] = {
    COLUMN(NULL, "gen", "gen", NONE),
    COLUMN("JOB", "name", "name", JOB),
    COLUMN(NULL, "uid", "uid", NONE),
    COLUMN("PHASE", "phase", "phase", UPPER),
    COLUMN("MODE", "mode", "mode", NONE),
    COLUMN(NULL, "on_loss", "on_loss", NONE),
    COLUMN(NULL, "weight", "weight", NONE),
    {">WORKERS", .text = add_workers},
    COLUMN(NULL, "num_workers", "num_workers", NONE),
    COLUMN(NULL, "live", "live_workers", NONE),
    COLUMN(NULL, "ranks_lost", "ranks_lost", NONE),
    {NULL, "lost", "lost_ranks", .of = &lost_answer},
    COLUMN(">NODES", "nodes", "slots", NONE),
    COLUMN(">KEYS", "keys", "keys", COUNT),
    COLUMN(">HELD", "bytes", "bytes", BYTES),
    COLUMN(">BARRIERS", "barriers", "barriers", COUNT),
    COLUMN(">SKIPPED", "skipped", "skipped_steps", COUNT),
    COLUMN(">AGE", "age_s", "age_ns", AGE),
    COLUMN(">WEIGHT", NULL, "weight", NONE),
    COLUMN(">UID", NULL, "uid", NONE),
    COLUMN("COPIES", "copies", "copies", NONE),
    COLUMN("OPTIMIZER", "optimizer", "optimizer", NONE),
    COLUMN("COMPRESSION", "compression", "compression", NONE),
    {NULL, "settings", "settings", .of = &setting_answer},
    {NULL, "scalars", "scalars", .of = &scalar_answer},
    COLUMN("REASON", "reason", "reason", NONE),
    COLUMN(NULL, "standstill", "standstill", NONE),
};

const struct answer answer_jobs = {"job", "jobs", PS_QUERY_JOBS, PS_MSG_JOB_ROW,
                                   COLUMNS(job_columns)};

void show_settings(const struct report *r, bool headings)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    struct job_table t;

    job_table_begin(&t, &setting_answer, "settings");
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;

        job_table_add(
            &t, r, j,
            &(struct ps_rec_change){.name = "weight", .value = j->weight});
        for (uint32_t k = 0; k < j->settings_count; k++) {
            job_table_add(&t, r, j, &j->settings[k]);
        }
    }
    job_table_end(&t, headings);
}

size_t show_scalars(const struct report *r, size_t most, bool headings)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    size_t count = 0;
    struct job_table t;

    job_table_begin(&t, &scalar_answer, "scalars");
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;

        for (uint32_t k = 0; job_is_open(j) && k < j->scalars_count; k++) {
            if (count < most) {
                count++;
                job_table_add(&t, r, j, &j->scalars[k]);
            }
        }
    }
    if (count > 0) {
        putchar('\n');
    }
    job_table_end(&t, count > 0 && headings);
    return count > 0 ? count + 1 + headings : 0;
}

/* --------------------------------------------------------------------- keys */

static const struct column key_columns[] = {
    COLUMN("JOB", "job", "job", JOB),
    COLUMN(NULL, "uid", "uid", NONE),
    COLUMN(">KEY", "key", "key", NONE),
    COLUMN("KIND", "kind", "kind", NONE),
    COLUMN("NAME", "name", "name", NONE),
    COLUMN("DTYPE", "dtype", "dtype", NONE),
    COLUMN(">COUNT", "count", "count", COUNT),
    COLUMN("SERVER", "server", "server", NONE),
    COLUMN(">PARTS", "parts", "parts", COUNT),
    COLUMN(">BYTES", "bytes", "bytes", BYTES),
};

const struct answer answer_keys = {"key", "keys", PS_QUERY_KEYS, PS_MSG_KEY_ROW,
                                   COLUMNS(key_columns)};

/* Bytes of each server of each job, and their ratio to the fair share. */

#define LOAD(member) offsetof(struct job_load, member)

static const struct ps_shape_field load_fields[] = {
    {.name = "job", .type = PS_SHAPE_STR, .offset = LOAD(job)},
    {.name = "uid", .type = PS_SHAPE_U32, .offset = LOAD(uid)},
    {.name = "server", .type = PS_SHAPE_STR, .offset = LOAD(server)},
    {.name = "is_spare", .type = PS_SHAPE_BOOL, .offset = LOAD(is_spare)},
    {.name = "bytes", .type = PS_SHAPE_U64, .offset = LOAD(bytes)},
    {.name = "bytes_after", .type = PS_SHAPE_U64, .offset = LOAD(bytes_after)},
    {.name = "ratio", .type = PS_SHAPE_F64, .offset = LOAD(ratio)},
    {.name = "ratio_after", .type = PS_SHAPE_F64, .offset = LOAD(ratio_after)},
};

static bool is_planned(const void *row)
{
    return ((const struct job_load *)row)->is_planned;
}

static const struct column load_columns[] = {
    COLUMN("JOB", "job", "job", JOB),
    COLUMN(NULL, "uid", "uid", NONE),
    COLUMN("SERVER", "server", "server", NONE),
    COLUMN(NULL, "spare", "is_spare", NONE),
    COLUMN(">BYTES", "bytes", "bytes", BYTES),
    COLUMN(">OF EVEN", "of_even", "ratio", PERCENT),
    {">BYTES THEN", "bytes_then", "bytes_after", UNIT_BYTES,
     .holds = is_planned, .is_optional = true},
    {">OF EVEN THEN", "of_even_then", "ratio_after", UNIT_PERCENT,
     .holds = is_planned, .is_optional = true},
};

static void put_loads(json_t *o, const struct report *r)
{
    json_t *list = json_array();
    size_t count;
    struct job_load *loads = make_job_loads(r, &count);

    for (size_t i = 0; i < count; i++) {
        json_append(list, json_row(&answer_loads, &loads[i]));
    }
    ps_free(loads);
    json_put(o, answer_loads.list, list);
}

const struct answer answer_loads = {.object = "load",
                                    .list = "servers",
                                    .fields = load_fields,
                                    .field_count = sizeof(load_fields) /
                                                   sizeof(load_fields[0]),
                                    COLUMNS(load_columns),
                                    .put = put_loads};

/* Behind an empty line; then a line for each spare server, unless a plan has
 * it. */
static void show_loads(const struct report *r, bool headings)
{
    size_t count;
    struct job_load *list = make_job_loads(r, &count);
    const void **rows = ps_calloc(count + 1, sizeof(*rows));

    for (size_t i = 0; i < count; i++) {
        rows[i] = &list[i];
    }
    if (count > 0) {
        putchar('\n');
        answer_print_list(&answer_loads, r, rows, count, headings);
    }
    for (size_t i = 0; i < count && !r->is_plan; i++) {
        char text[512];
        struct ps_str s;

        if (list[i].is_spare) {
            ps_str_init(&s, text, sizeof(text));
            describe_spare(r, &list[i], &s);
            puts(text);
        }
    }
    ps_free(rows);
    ps_free(list);
}

void show_keys(const struct report *r, bool headings)
{
    answer_print(&answer_keys, r, headings);
    if (headings) {
        show_loads(r, headings);
    }
}

/* --------------------------------------------------------------- migrations */

static const struct column move_columns[] = {
    COLUMN("JOB", "job", "job", NONE),
    COLUMN(">KEY", "key", "key", NONE),
    COLUMN("KIND", "kind", "kind", NONE),
    COLUMN("NAME", "name", "name", NONE),
    COLUMN("FROM", "from", "from", NONE),
    COLUMN("TO", "to", "to", NONE),
    COLUMN(">PARTS", "parts", "parts", COUNT),
    COLUMN(">BYTES", "bytes", "bytes", BYTES),
};

const struct answer answer_moves = {"move", "moves", PS_QUERY_REBALANCE_PLAN,
                                    PS_MSG_MIGRATION_ROW,
                                    COLUMNS(move_columns)};

void show_migrations(const struct report *r, bool headings)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_REBALANCE_PLAN];
    uint64_t parts = 0;
    uint64_t bytes = 0;
    char text[32];

    if (rows->count > 0 || !headings) {
        answer_print(&answer_moves, r, headings);
    }
    if (!headings) {
        return;
    }
    for (size_t i = 0; i < rows->count; i++) {
        parts += rows->row[i]->migration_row.parts;
        bytes += rows->row[i]->migration_row.bytes;
    }
    if (rows->count == 0) {
        puts("the servers are balanced, or no migration would improve the "
             "balance");
    } else {
        format_bytes(bytes, text, sizeof(text));
        printf("%" PRIu64 " partition%s, %s; %s moved\n", parts,
               parts == 1 ? "" : "s", text,
               r->is_plan   ? "nothing was"
               : parts == 1 ? "it was"
                            : "all were");
    }
    show_loads(r, headings);
}

/* ------------------------------------------------------------------- stalls */

static void add_waited_for(struct ps_str *s, const void *row)
{
    describe_missing(ROW(row, stall_row), s);
}

static void add_what(struct ps_str *s, const void *row)
{
    const struct ps_msg_stall_row *w = ROW(row, stall_row);

    add_printable(s,
                  w->ring_count > 0    ? "DIVERGED"
                  : w->what[0] != '\0' ? w->what
                                       : "-",
                  CELL_TEXT_MAX);
}

static json_t *has_diverged(const void *row)
{
    return json_boolean(ROW(row, stall_row)->ring_count > 0);
}

static const struct answer missing_answer = {.object = "missing_rank"};

static const struct column stall_columns[] = {
    COLUMN("JOB", "job", "job", JOB),
    COLUMN(NULL, "uid", "uid", NONE),
    COLUMN(NULL, "what", "what", NONE),
    COLUMN(">WAITED", "waited_s", "waited_ns", AGE),
    COLUMN(">WAITS", "waits", "waiting_ops", NONE),
    {"WHAT", .text = add_what},
    {NULL, "missing", "missing", .of = &missing_answer},
    COLUMN(NULL, "also", "other_causes", NONE),
    {NULL, "diverged", .value = has_diverged, .type = "flag"},
    {NULL, "ring", "ring", .of = &missing_answer},
    {"WAITS FOR", .text = add_waited_for},
};

const struct answer answer_stalls = {"stall", "stalls", PS_QUERY_STALL,
                                     PS_MSG_STALL_ROW, COLUMNS(stall_columns)};

void show_stalls(const struct report *r, bool headings)
{
    if (r->rows_of[PS_QUERY_STALL].count == 0 && headings) {
        puts("no operation waits");
    } else {
        answer_print(&answer_stalls, r, headings);
    }
}

/* ------------------------------------------------------------------- tokens */

static void add_token_id(struct ps_str *s, const void *row)
{
    ps_str_addf(s, "%016" PRIx64, ROW(row, token_row)->id);
}

static void add_token_job(struct ps_str *s, const void *row)
{
    const char *job = ROW(row, token_row)->job;

    add_printable(s, job[0] != '\0' ? job : "*", CELL_TEXT_MAX);
}

static void add_token_rights(struct ps_str *s, const void *row)
{
    const uint32_t rights = ROW(row, token_row)->rights;
    const char *comma = "";

    for (uint32_t right = PS_TOKEN_RIGHT_TRAIN; right <= PS_TOKEN_RIGHT_ADMIN;
         right <<= 1) {
        if ((rights & right) != 0) {
            ps_str_addf(s, "%s%s", comma,
                        ps_token_right_name((enum ps_token_right)right));
            comma = ",";
        }
    }
}

static void add_token_state(struct ps_str *s, const void *row)
{
    ps_str_add(s, ROW(row, token_row)->is_revoked ? "REVOKED" : "VALID");
}

static void add_time(struct ps_str *s, uint64_t seconds)
{
    time_t at = (time_t)seconds;
    struct tm tm;
    char text[32];

    if (seconds < (UINT64_C(1) << 40) && gmtime_r(&at, &tm) != NULL &&
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0) {
        ps_str_add(s, text);
    } else {
        ps_str_addf(s, "%" PRIu64, seconds);
    }
}

static void add_token_end(struct ps_str *s, const void *row)
{
    add_time(s, ROW(row, token_row)->not_after);
}

static bool was_issued_now(const void *row)
{
    return ROW(row, token_row)->text[0] != '\0';
}

static const struct column token_columns[] = {
    {"TOKEN", "id", .text = add_token_id},
    COLUMN(">UID", "uid", "uid", NONE),
    COLUMN(NULL, "job", "job", NONE),
    {"JOB", .text = add_token_job},
    {"RIGHTS", "rights", .text = add_token_rights},
    {"STATE", .text = add_token_state},
    COLUMN(NULL, "issued_at", "issued_at", TIME),
    COLUMN(NULL, "not_after", "not_after", TIME),
    {"EXPIRES", .text = add_token_end},
    COLUMN(NULL, "revoked", "is_revoked", NONE),
    {NULL, "token", "text", .holds = was_issued_now, .is_optional = true},
};

const struct answer answer_tokens = {"token", "tokens", PS_QUERY_TOKENS,
                                     PS_MSG_TOKEN_ROW, COLUMNS(token_columns)};

/* ------------------------------------------------------------------- events */

static double event_time(const struct ps_msg_event_row *e)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
           (double)e->age_ns / 1e9;
}

static void add_event_time(struct ps_str *s, const void *row)
{
    add_time(s, (uint64_t)event_time(ROW(row, event_row)));
}

static json_t *event_time_of(const void *row)
{
    return json_real(event_time(ROW(row, event_row)));
}

static const struct column event_columns[] = {
    COLUMN(NULL, "number", "number", NONE),
    {"TIME", "at", .text = add_event_time, .value = event_time_of,
     .type = "time"},
    COLUMN("OF", "of", "kind", NONE),
    COLUMN("NAME", "name", "name", NONE),
    COLUMN(NULL, "uid", "uid", NONE),
    COLUMN("WHAT", "what", "what", NONE),
    COLUMN(NULL, "bad", "is_bad", NONE),
    COLUMN("DETAIL", "detail", "text", NONE),
};

const struct answer answer_events = {"event", "events", PS_QUERY_EVENTS,
                                     PS_MSG_EVENT_ROW, COLUMNS(event_columns)};

/* ---------------------------------------------------- health, private jobs */

static void put_health(json_t *o, const struct report *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->health.count && i < PROBLEMS_MAX; i++) {
        json_append(list, json_text(r->health.list[i].text));
    }
    json_put(o, "healthy", json_boolean(r->health.count == 0));
    json_put(o, "problems", list);
}

const struct answer answer_health = {.put = put_health};

static void put_private_jobs(json_t *o, const struct report *r)
{
    struct private_job jobs[PRIVATE_MAX];
    const size_t count = list_private_jobs(jobs);
    json_t *list = json_array();

    (void)r;
    for (size_t i = 0; i < count; i++) {
        json_t *one = json_object();

        json_put(one, "name", json_text(jobs[i].name));
        json_put(one, "endpoint", json_text(jobs[i].endpoint));
        json_append(list, one);
    }
    json_put(o, "private_jobs", list);
}

const struct answer answer_private_jobs = {.put = put_private_jobs};

const struct answer *const answers_of_status[] = {
    &answer_health, &answer_nodes,        &answer_jobs,
    &answer_stalls, &answer_private_jobs, NULL};
