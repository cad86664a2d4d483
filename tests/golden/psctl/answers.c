/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what psctl prints of given rows, for each verb with an answer: as a
 * table with and without headings, and as JSON. Times are fixed: see the
 * functions of the linker's --wrap. With --fields, prints the fields of objects
 * in JSON with their types, "OBJECT FIELD TYPE". answers.py compares the one with
 * answers.txt, the other with docs/json.md. */
#include "psctl/verbs.h"

#include "base/alloc.h"
#include "proto/shape.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define NOW 1800000000

time_t __wrap_time(time_t *ret);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret);

time_t __wrap_time(time_t *ret)
{
    if (ret != NULL) {
        *ret = NOW;
    }
    return NOW;
}

int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
    (void)id;
    *ret = (struct timespec){.tv_sec = NOW, .tv_nsec = 250000000};
    return 0;
}

static void add_row(struct report *r, enum ps_query what,
                    const struct ps_msg *row)
{
    struct rows *rows = &r->rows_of[what];

    rows->row = ps_realloc(rows->row, (rows->count + 1) * sizeof(rows->row[0]));
    rows->row[rows->count++] = ps_msg_dup(row);
}

static void add_nodes(struct report *r)
{
    struct ps_rec_cost cost = {.kind = "job",
                               .name = "digits",
                               .cost = "memory",
                               .used = 1000,
                               .peak = 2000,
                               .limit = 3000,
                               .refused = 4};
    struct ps_msg m = {.code = PS_MSG_NODE_ROW,
                       .node_row = {.role = PS_ROLE_SERVER,
                                    .node = 3,
                                    .name = "ps\033[0m",
                                    .state = PS_NODE_STATE_ACTIVE,
                                    .incarnation = UINT64_MAX,
                                    .address = "10.0.0.1:9100",
                                    .silent_ns = 1234567890,
                                    .rounds = 1234567,
                                    .rounds_rate = 999,
                                    .bytes_in = 999499,
                                    .in_rate = 1,
                                    .bytes_out = 99949999,
                                    .out_rate = 12345678901,
                                    .stored_bytes = 4096,
                                    .resent = 10000,
                                    .waiting_requests = 7,
                                    .refused = 1,
                                    .certificate_ends = NOW + 40 * 86400,
                                    .ktls = true,
                                    .version = "1.0",
                                    .clock_skew_ns = -2500000000,
                                    .unreachable = "",
                                    .gpu = "NVIDIA H200",
                                    .gpu_held = 1u << 30,
                                    .gpu_up_rate = 5,
                                    .gpu_down_rate = 6,
                                    .costs = &cost,
                                    .costs_count = 1}};

    add_row(r, PS_QUERY_NODES, &m);
    m.node_row.name = "ps1";
    m.node_row.gpu = "";
    m.node_row.ktls = false;
    m.node_row.draining = true;
    m.node_row.costs_count = 0;
    add_row(r, PS_QUERY_NODES, &m);
    m.node_row.draining = false;
    m.node_row.memory_short = true;
    m.node_row.certificate_ends = NOW - 1;
    add_row(r, PS_QUERY_NODES, &m);
    m.node_row.unreachable = "no route";
    m.node_row.certificate_ends = 0;
    add_row(r, PS_QUERY_NODES, &m);
    m.node_row.role = PS_ROLE_AGENT;
    m.node_row.state = PS_NODE_STATE_GONE;
    m.node_row.silent_ns = UINT64_C(3 * 86400 * 1000000000);
    add_row(r, PS_QUERY_NODES, &m);
}

static void add_jobs(struct report *r)
{
    struct ps_rec_missing_rank lost = {.rank = 1,
                                       .state = PS_RANK_STATE_LOST,
                                       .host = "h1",
                                       .node = "n1",
                                       .does = ""};
    struct ps_rec_job_scalar scalars[] = {{.name = "loss",
                                           .ranks = 2,
                                           .step = 10,
                                           .min = 0.25,
                                           .mean = 0.5,
                                           .max = 1e300,
                                           .age_ns = 1500000000},
                                          {.name = "acc",
                                           .ranks = 2,
                                           .nonfinite = 1,
                                           .min = -__builtin_inf(),
                                           .mean = __builtin_nan(""),
                                           .max = __builtin_inf()}};
    struct ps_rec_change settings[] = {
        {.name = "learning_rate", .value = 0.1},
        {.name = "wd", .value = 1.0 / 3, .round = 12}};
    struct ps_msg m = {.code = PS_MSG_JOB_ROW,
                       .job_row = {.gen = 5,
                                   .name = "digits",
                                   .uid = 0,
                                   .phase = PS_JOB_PHASE_RUNNING,
                                   .mode = PS_MODE_SYNC,
                                   .on_loss = PS_LOSS_POLICY_WAIT,
                                   .num_workers = 4,
                                   .live_workers = 3,
                                   .slots = 1,
                                   .keys = 12345,
                                   .bytes = 1u << 31,
                                   .barriers = 1000,
                                   .age_ns = PS_SECONDS(75),
                                   .optimizer = "sgd",
                                   .reason = "",
                                   .compression = "",
                                   .ranks_lost = 1,
                                   .lost_ranks = &lost,
                                   .lost_ranks_count = 1,
                                   .weight = 100,
                                   .scalars = scalars,
                                   .scalars_count = 2,
                                   .settings = settings,
                                   .settings_count = 2,
                                   .standstill = "",
                                   .copies = ""}};

    add_row(r, PS_QUERY_JOBS, &m);
    m.job_row.uid = 4000000000; /* A second user's job of that name. */
    m.job_row.settings_count = 0;
    m.job_row.scalars_count = 0;
    m.job_row.phase = PS_JOB_PHASE_FAILED;
    m.job_row.reason = "a rank was lost";
    add_row(r, PS_QUERY_JOBS, &m);
}

static void add_keys(struct report *r)
{
    struct ps_msg key = {.code = PS_MSG_KEY_ROW,
                         .key_row = {.job = "digits",
                                     .key = 3,
                                     .name = "w\303\244",
                                     .count = 1000000,
                                     .server = "ps0",
                                     .parts = 1024,
                                     .bytes = 4000000}};
    struct ps_msg share = {
        .code = PS_MSG_SHARE_ROW,
        .share_row = {.job = "digits", .server = "ps0", .bytes = 3000000}};
    struct ps_msg move = {.code = PS_MSG_MIGRATION_ROW,
                          .migration_row = {.job = "digits",
                                            .key = 3,
                                            .name = "w",
                                            .from = "ps0",
                                            .to = "ps2",
                                            .parts = 10,
                                            .bytes = 1000000}};

    add_row(r, PS_QUERY_KEYS, &key);
    add_row(r, PS_QUERY_SHARES, &share);
    share.share_row.server = "ps1";
    share.share_row.spare = true;
    share.share_row.bytes = 0;
    add_row(r, PS_QUERY_SHARES, &share);
    add_row(r, PS_QUERY_REBALANCE_PLAN, &move);
}

static void add_others(struct report *r)
{
    struct ps_rec_missing_rank ranks[] = {{.rank = 1,
                                           .state = PS_RANK_STATE_LIVE,
                                           .host = "h1",
                                           .node = "n1",
                                           .pid = 4711,
                                           .does = "in barrier 2"},
                                          {.rank = 2,
                                           .state = PS_RANK_STATE_LOST,
                                           .host = "h2",
                                           .node = "",
                                           .does = ""}};
    struct ps_msg stall = {.code = PS_MSG_STALL_ROW,
                           .stall_row = {.job = "digits",
                                         .what = "key 3 round 8",
                                         .waited_ns = PS_SECONDS(4000),
                                         .waiting_ops = 2,
                                         .missing = ranks,
                                         .missing_count = 2,
                                         .other_causes = ""}};
    struct ps_msg token = {
        .code = PS_MSG_TOKEN_ROW,
        .token_row = {.id = 0xabc,
                      .job = "",
                      .uid = 7,
                      .rights = PS_TOKEN_RIGHT_READ | PS_TOKEN_RIGHT_ADMIN,
                      .issued_at = NOW,
                      .not_after = NOW + 60,
                      .text = ""}};
    struct ps_msg event = {.code = PS_MSG_EVENT_ROW,
                           .event_row = {.number = 9,
                                         .age_ns = PS_SECONDS(90),
                                         .kind = PS_EVENT_KIND_JOB,
                                         .name = "digits",
                                         .uid = 5,
                                         .what = "FAILED",
                                         .is_bad = true,
                                         .text = "\377"}};

    add_row(r, PS_QUERY_STALL, &stall);
    stall.stall_row.ring = ranks;
    stall.stall_row.ring_count = 2;
    stall.stall_row.other_causes = "a cut";
    add_row(r, PS_QUERY_STALL, &stall);
    add_row(r, PS_QUERY_TOKENS, &token);
    token.token_row.is_revoked = true;
    token.token_row.job = "digits";
    add_row(r, PS_QUERY_TOKENS, &token);
    add_row(r, PS_QUERY_EVENTS, &event);
}

static void print_table(const struct form *f, const struct report *r,
                        bool headings)
{
    if (f->show != NULL) {
        f->show(r, headings);
    } else if (f->answers != NULL) {
        answer_print(f->answers[0], r, headings);
    }
}

static void print_all(const char *title, struct report *r, bool is_plan)
{
    static const struct {
        const char *words;
        const char *verb;
        size_t form;
    } answers[] = {{"status", "status", 0},   {"nodes", "nodes", 0},
                   {"jobs", "jobs", 0},       {"get", "get", 0},
                   {"keys", "keys", 0},       {"rebalance", "rebalance", 0},
                   {"stall", "stall", 0},     {"token list", "token", 0},
                   {"events", "events", 0},   {"token issue", "token", 1},
                   {"jobs cancel", "jobs", 1}};

    ps_free(r->health.list);
    r->health = (struct health){.list = NULL};
    health_check(r, PS_SECONDS(10));
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        const struct form *f =
            &find_verb(answers[i].verb)->forms[answers[i].form];

        r->is_plan = is_plan && strcmp(answers[i].verb, "rebalance") == 0;
        printf("==== %s: %s\n", title, answers[i].words);
        print_table(f, r, true);
        printf("---- no headings\n");
        print_table(f, r, false);
        printf("---- json\n");
        answer_print_json(f->answers, r);
    }
}

/* ------------------------------------------------------------------- fields */

static const char *type_of(const struct ps_shape_field *f, enum unit unit)
{
    return f->type == PS_SHAPE_BOOL                       ? "flag"
           : f->type == PS_SHAPE_STR || f->values != NULL ? "text"
           : f->type == PS_SHAPE_F64                      ? "number"
           : unit == UNIT_AGE                             ? "seconds"
           : unit == UNIT_BYTES                           ? "bytes"
           : unit == UNIT_TIME                            ? "time"
                                                          : "count";
}

static void print_fields(const struct answer *a,
                         const struct ps_shape_field *fields, size_t count)
{
    for (size_t i = 0; a->columns == NULL && i < count; i++) {
        printf("%s %s %s\n", a->object, fields[i].name,
               type_of(&fields[i], UNIT_NONE));
    }
    for (size_t i = 0; i < a->count; i++) {
        const struct column *c = &a->columns[i];
        const struct ps_shape_field *f = NULL;

        for (size_t k = 0; c->field != NULL && k < count; k++) {
            f = strcmp(fields[k].name, c->field) == 0 ? &fields[k] : f;
        }
        if (c->json == NULL) {
            continue;
        }
        printf("%s %s %s%s%s\n", a->object, c->json,
               c->of != NULL     ? "list of "
               : c->type != NULL ? c->type
               : f == NULL       ? "text"
                                 : type_of(f, c->unit),
               c->of != NULL ? c->of->object : "",
               c->is_optional ? " optional" : "");
        if (c->of != NULL) {
            print_fields(c->of, f->record->fields, f->record->field_count);
        }
    }
}

static int print_all_fields(void)
{
    static const struct answer *const all[] = {
        &answer_nodes, &answer_jobs,   &answer_keys,   &answer_loads,
        &answer_moves, &answer_stalls, &answer_tokens, &answer_events};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const struct ps_shape_msg *m = ps_shape_of(all[i]->code);

        print_fields(all[i], m != NULL ? m->fields : all[i]->fields,
                     m != NULL ? m->field_count : all[i]->field_count);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct ps_msg end = {.code = PS_MSG_QUERY_END,
                               .query_end = {.text = "",
                                             .cluster = "lab",
                                             .epoch = 12,
                                             .uptime_ns = PS_SECONDS(100)}};
    struct report r = {.end = ps_msg_dup(&end)};

    if (argc > 1 && strcmp(argv[1], "--fields") == 0) {
        report_fini(&r);
        return print_all_fields();
    }
    print_all("no rows", &r, false);
    add_nodes(&r);
    add_jobs(&r);
    add_keys(&r);
    add_others(&r);
    print_all("rows", &r, true);
    show_scalars(&r, 10, true);
    json_use_lines();
    print_all("on lines", &r, false);
    show_scalars(&r, 1, false);
    report_fini(&r);
    return 0;
}
