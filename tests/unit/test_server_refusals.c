/* SPDX-License-Identifier: Apache-2.0 */
/* Each reason for which a server refuses something temporarily has its own
 * code, so that logs name it. */
#include "server_world.h"

#include "base/limits.h"
#include "base/map.h"
#include "core/part/rows.h"
#include "core/server/inner.h"
#include "core/server/job.h"

#define COUNT 64u
#define WIDTH 32u /* Two rows in these. */

static float data[COUNT + 1];

static struct ps_server_job *job_of(struct world *w)
{
    return ps_map_get(w->server->jobs.by_gen, GEN);
}

/* A message with two parts: one element of key 0, and COUNT of key 1 behind it,
 * which are not aligned, so that they are copied. */
static const struct ps_rec_part two_parts[] = {
    {.key = 0, .round = 1, .dtype = PS_DTYPE_FLOAT16, .count = 1},
    {.key = 1, .round = 1, .dtype = PS_DTYPE_FLOAT32, .count = COUNT},
};

static struct ps_msg push_msg(const struct agent *a,
                              const struct ps_rec_part *parts, uint32_t count,
                              enum ps_rule rule)
{
    return (struct ps_msg){.code = PS_MSG_PUSH,
                           .push = {.gen = GEN,
                                    .slot = a->index,
                                    .incarnation = a->incarnation,
                                    .weight = 1,
                                    .rule = (uint8_t)rule,
                                    .parts = parts,
                                    .parts_count = count}};
}

static struct ps_msg init_msg(const struct agent *a,
                              const struct ps_rec_part *parts, uint32_t count)
{
    return (struct ps_msg){.code = PS_MSG_INIT,
                           .init = {.gen = GEN,
                                    .slot = a->index,
                                    .parts = parts,
                                    .parts_count = count}};
}

static struct ps_rec_rows rows_record(uint32_t key, uint64_t round,
                                      uint32_t count)
{
    return (struct ps_rec_rows){.key = key,
                                .round = round,
                                .dtype = PS_DTYPE_FLOAT32,
                                .row_width = WIDTH,
                                .count = count};
}

static struct ps_msg push_rows_msg(const struct agent *a,
                                   const struct ps_rec_rows *rec)
{
    return (struct ps_msg){.code = PS_MSG_PUSH_ROWS,
                           .push_rows = {.gen = GEN,
                                         .slot = a->index,
                                         .incarnation = a->incarnation,
                                         .weight = 1,
                                         .parts = rec,
                                         .parts_count = 1}};
}

static struct ps_msg pull_rows_msg(const struct agent *a,
                                   const struct ps_rec_rows *rec)
{
    return (struct ps_msg){.code = PS_MSG_PULL_ROWS,
                           .pull_rows = {.gen = GEN,
                                         .slot = a->index,
                                         .request = 1,
                                         .parts = rec,
                                         .parts_count = 1}};
}

static uint64_t block_bytes(uint32_t rows)
{
    return ps_rows_numbers_bytes(rows) +
           ps_rows_data_bytes(rows, WIDTH, PS_DTYPE_FLOAT32);
}

/* Row numbers 0, 1, ..., and zeros behind. */
static void send_block(struct agent *a, const struct ps_msg *msg, uint32_t rows,
                       uint64_t len)
{
    uint8_t *block = ps_calloc(1, len + 1);

    for (uint32_t i = 0; i < rows; i++) {
        memcpy(block + i * sizeof(i), &i, sizeof(i));
    }
    agent_send(a, msg, block, len);
    world_run_until_idle(a->w);
    ps_free(block);
}

static void push_rows(struct agent *a, uint32_t key, uint64_t round,
                      uint32_t rows)
{
    const struct ps_rec_rows rec = rows_record(key, round, rows);
    const struct ps_msg msg = push_rows_msg(a, &rec);

    send_block(a, &msg, rows, rows > 0 ? block_bytes(rows) : 0);
}

static void pull_rows(struct agent *a, uint32_t key, uint64_t least,
                      uint32_t rows)
{
    const struct ps_rec_rows rec = rows_record(key, least, rows);
    const struct ps_msg msg = pull_rows_msg(a, &rec);

    send_block(a, &msg, rows, ps_rows_numbers_bytes(rows));
}

static void expect_refused(struct agent *a, uint32_t key, int error)
{
    assert_true(a->seen[key].refusals > 0);
    assert_int_equal(a->seen[key].error, error);
    a->seen[key].refusals = 0;
}

static void requests_for_a_later_round_are_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_f32(a, 1, 2, 1);
    expect_refused(a, 1, PS_E_FUTURE);
    agent_skip(a, 1, 2);
    expect_refused(a, 1, PS_E_FUTURE);
    pull_rows(a, 2, 0, 1); /* Its init has not arrived yet. */
    expect_refused(a, 2, PS_E_FUTURE);
    agent_init(a, 2, COUNT, data);
    push_rows(a, 2, 2, 1);
    expect_refused(a, 2, PS_E_FUTURE);
    world_free(w);
}

/* All slots have agreed on an attempt that is being merged. */
static void later_attempt_at_a_complete_round_is_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    w->hold_compute = true;
    agent_push_f32(a, 1, 1, 1);
    agent_push_f32(&w->agents[1], 1, 1, 1);
    assert_int_equal(a->seen[1].refusals, 0);
    a->retry = 1;
    agent_push_f32(a, 1, 1, 1);
    expect_refused(a, 1, PS_E_FUTURE);
    world_free(w);
}

static void a_full_table_of_rounds_or_pulls_is_busy(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct ps_store *store = &job_of(w)->store;

    (void)state;
    agent_init(a, 2, COUNT, data);
    store->open_round_count += PS_OPEN_ROUND_SLOTS_MAX / 2;
    agent_push_f32(a, 1, 1, 1);
    expect_refused(a, 1, PS_E_BUSY);
    push_rows(a, 2, 1, 1);
    expect_refused(a, 2, PS_E_BUSY);
    store->open_round_count -= PS_OPEN_ROUND_SLOTS_MAX / 2;
    store->waiting_pull_count += PS_WAITING_PULLS_MAX;
    agent_pull(a, 1, 1);
    expect_refused(a, 1, PS_E_BUSY);
    pull_rows(a, 2, 1, 1);
    expect_refused(a, 2, PS_E_BUSY);
    store->waiting_pull_count -= PS_WAITING_PULLS_MAX;
    world_free(w);
}

static void a_full_table_of_partitions_is_busy(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct ps_store *store = &job_of(w)->store;
    struct ps_map *parts = store->parts;

    (void)state;
    store->parts = ps_map_new();
    for (uint64_t i = 0; i < PS_STORE_PARTS_MAX; i++) {
        ps_map_put(store->parts, UINT64_MAX - i, w);
    }
    agent_push_f32(a, 1, 1, 1);
    expect_refused(a, 1, PS_E_BUSY);
    agent_skip(a, 1, 1);
    expect_refused(a, 1, PS_E_BUSY);
    agent_init(a, 1, 1, data);
    expect_refused(a, 1, PS_E_BUSY);
    agent_pull(a, 1, 0);
    expect_refused(a, 1, PS_E_BUSY);
    pull_rows(a, 1, 0, 0);
    expect_refused(a, 1, PS_E_BUSY);
    ps_map_free(store->parts);
    store->parts = parts;
    world_free(w);
}

static void moved_partition_refuses_requests(void **state)
{
    const struct ps_rec_part part = {.key = 1, .round = 2};
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_f32(a, 1, 1, 1);
    sched_move(w, 1, 1, NULL);
    sched_move_end(w, 1, 1, false, 5);
    a->seen[1].refusals = 0;
    agent_push_f32(a, 1, 2, 1); /* The agent states what it knows of it. */
    expect_refused(a, 1, PS_E_STALE);
    agent_pull(a, 1, 1);
    expect_refused(a, 1, PS_E_STALE);
    agent_init(a, 1, 1, data);
    expect_refused(a, 1, PS_E_MIGRATING);
    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_ABORT_ROUND,
                                .abort_round = {.gen = GEN,
                                                .retry = 1,
                                                .parts = &part,
                                                .parts_count = 1}},
               NULL, 0);
    world_run_until_idle(w);
    expect_refused(a, 1, PS_E_MIGRATING);
    world_free(w);
}

/* Agents know the codec already, this server does not. */
static void encoded_push_before_its_codec_is_refused(void **state)
{
    const struct ps_rec_part part = {.key = 1,
                                     .round = 1,
                                     .dtype = PS_DTYPE_FLOAT32,
                                     .count = 1,
                                     .codec = PS_CODEC_1BIT,
                                     .encoded_bytes = 4};
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];
    const struct ps_msg msg = push_msg(a, &part, 1, PS_RULE_NONE);

    (void)state;
    agent_send(a, &msg, data, 4);
    world_run_until_idle(w);
    expect_refused(a, 1, PS_E_UNCONFIGURED);
    world_free(w);
}

/* The allocation with this number fails; the first one is the payload. */
static void send_without_copy(struct agent *a, const struct ps_msg *msg,
                              uint64_t number)
{
    ps_pool_fail_at(a->w->pool, number);
    agent_send(a, msg, data, 2 + COUNT * sizeof(float));
    world_run_until_idle(a->w);
    assert_int_equal(a->seen[0].refusals, 0);
    expect_refused(a, 1, PS_E_NOMEM);
}

static void request_without_memory_for_a_copy_is_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct ps_msg msg = push_msg(a, two_parts, 2, PS_RULE_NONE);

    (void)state;
    send_without_copy(a, &msg, 2);
    world_free(w);

    w = world_new(&(struct world_options){.slots = 2});
    a = &w->agents[0];
    msg = init_msg(a, two_parts, 2);
    send_without_copy(a, &msg, 2);
    agent_send(a, &msg, data, 2 + COUNT * sizeof(float));
    world_run_until_idle(w);
    assert_int_equal(a->seen[1].refusals, 0);
    msg = push_msg(a, two_parts, 2, PS_RULE_ACCUMULATE);
    send_without_copy(a, &msg, 3); /* The second one: key 0 is applied. */
    world_free(w);
}

static void rows_without_memory_are_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_init(a, 2, COUNT, data);
    ps_pool_fail_at(w->pool, 2);
    push_rows(a, 2, 1, 2);
    expect_refused(a, 2, PS_E_NOMEM);
    ps_pool_fail_at(w->pool, 2);
    pull_rows(a, 2, 0, 2);
    expect_refused(a, 2, PS_E_NOMEM);
    pull_rows(a, 2, 1, 2); /* Waits for version 1. */
    assert_int_equal(a->seen[2].refusals, 0);
    ps_pool_fail_at(w->pool, 1);
    push_rows(a, 2, 1, 0);
    expect_refused(a, 2, PS_E_NOMEM);
    world_free(w);
}

/* A frame whose payload was discarded at its header, for a reason that has
 * passed. */
static void frame_without_payload(struct agent *a, const struct ps_msg *msg,
                                  uint64_t len)
{
    const struct ps_slice none = {.len = len};

    world_event(a->w,
                &(struct ps_event){.now = a->w->now,
                                   .type = PS_EV_MSG,
                                   .conn = a->conn,
                                   .msg = {.msg = msg,
                                           .payload = &none,
                                           .discard_reason = PS_E_NOJOB}});
    world_run_until_idle(a->w);
}

static void request_with_a_discarded_payload_is_refused(void **state)
{
    const struct ps_rec_part part = {.key = 1, .round = 1, .count = 1};
    const struct ps_rec_rows rows = rows_record(2, 1, 1);
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    const struct ps_msg restore = {
        .code = PS_MSG_RESTORE,
        .restore = {
            .gen = GEN, .has_value = true, .parts = &part, .parts_count = 1}};
    struct ps_msg msg = push_msg(a, &part, 1, PS_RULE_NONE);

    (void)state;
    frame_without_payload(a, &msg, 4);
    expect_refused(a, 1, PS_E_DISCARDED);
    msg = init_msg(a, &part, 1);
    frame_without_payload(a, &msg, 4);
    expect_refused(a, 1, PS_E_DISCARDED);
    frame_without_payload(a, &restore, 4);
    expect_refused(a, 1, PS_E_DISCARDED);
    agent_init(a, 1, 1, data);
    msg = push_msg(a, &part, 1, PS_RULE_ACCUMULATE);
    frame_without_payload(a, &msg, 4);
    expect_refused(a, 1, PS_E_DISCARDED);
    agent_init(a, 2, COUNT, data);
    msg = push_rows_msg(a, &rows);
    frame_without_payload(a, &msg, block_bytes(1));
    expect_refused(a, 2, PS_E_DISCARDED);
    msg = pull_rows_msg(a, &rows);
    frame_without_payload(a, &msg, ps_rows_numbers_bytes(1));
    expect_refused(a, 2, PS_E_DISCARDED);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_for_a_later_round_are_refused),
        cmocka_unit_test(later_attempt_at_a_complete_round_is_refused),
        cmocka_unit_test(a_full_table_of_rounds_or_pulls_is_busy),
        cmocka_unit_test(a_full_table_of_partitions_is_busy),
        cmocka_unit_test(moved_partition_refuses_requests),
        cmocka_unit_test(encoded_push_before_its_codec_is_refused),
        cmocka_unit_test(request_without_memory_for_a_copy_is_refused),
        cmocka_unit_test(rows_without_memory_are_refused),
        cmocka_unit_test(request_with_a_discarded_payload_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
