/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that an agent may state and that never occur: rounds and steps near
 * the end of 64 bits, widths that change. Sums of them would overflow, or make
 * a job's own key useless. */
#include "server_world.h"

static void put_steps(struct agent *a, uint32_t key, uint64_t steps)
{
    struct ps_rec_part part = {.key = key, .dtype = PS_DTYPE_FLOAT32};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_STATE_PUT,
                                .state_put = {.gen = GEN,
                                              .slot = a->index,
                                              .request = 1,
                                              .which = UINT8_MAX,
                                              .steps = steps,
                                              .parts = &part,
                                              .parts_count = 1}},
               NULL, 0);
    world_run_until_idle(a->w);
}

static void step_counts_near_overflow_are_refused(void **state)
{
    static const struct ps_rec_param rate = {.name = "lr", .value = 0.5};
    static const uint64_t bad[] = {(uint64_t)INT64_MAX - 1, INT64_MAX,
                                   UINT64_MAX, PS_ROUND_MAX + 1};
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = &rate, .params_count = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_init(a, 1, 1, &(float){1});
    for (uint32_t i = 0; i < 4; i++) {
        put_steps(a, 1, bad[i]);
        assert_int_equal(a->states, i + 1);
        assert_int_equal(a->state_error, PS_E_INVAL);
    }
    put_steps(a, 1, PS_ROUND_MAX);
    assert_int_equal(a->state_error, 0);
    agent_push_f32(a, 1, 1, 1); /* A step after it. */
    assert_int_equal(a->seen[1].refusals, 0);
    world_free(w);
}

static void versions_near_overflow_are_refused(void **state)
{
    static const uint64_t bad[] = {UINT64_MAX, UINT64_MAX - 1, INT64_MAX,
                                   PS_ROUND_MAX + 1};
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        agent_restore(a, 1, bad[i], 5, true);
        assert_int_equal(a->seen[1].refusals, i + 1);
        assert_int_equal(a->seen[1].error, PS_E_INVAL);
    }
    agent_push_f32(a, 1, 1, 3);
    assert_true(agent_f32(a, 1) == 3);
    world_free(w);
}

static void pull_rows(struct agent *a, uint32_t key, uint32_t width)
{
    struct ps_rec_rows part = {
        .key = key, .dtype = PS_DTYPE_FLOAT32, .row_width = width, .count = 1};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PULL_ROWS,
                                .pull_rows = {.gen = GEN,
                                              .slot = a->index,
                                              .request = 1,
                                              .parts = &part,
                                              .parts_count = 1}},
               (uint32_t[]){0, 0}, 8);
    world_run_until_idle(a->w);
}

static void row_pull_does_not_make_a_rows_key(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_f32(a, 1, 1, 3);
    pull_rows(a, 1, 1);
    assert_int_equal(a->row_frames, 1);
    agent_push_f32(a, 1, 2, 4);
    assert_int_equal(a->seen[1].refusals, 0);
    assert_true(agent_f32(a, 1) == 4);
    world_free(w);
}

/* Of which not one row fits in a frame, or whose bytes wrap. */
static void impossible_row_width_closes_the_connection(void **state)
{
    static const uint32_t widths[] = {0, 1u << 24, 1u << 30, UINT32_MAX};

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct world *w = world_new(&(struct world_options){.slots = 1});
        struct agent *a = &w->agents[0];

        pull_rows(a, 1, widths[i]);
        assert_int_equal(w->closed_count, 1);
        world_free(w);
    }
}

/* Memory that goes back to the system. */
static uint64_t given_back;

static int get_chunk(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
                     uint64_t *ret_offset)
{
    (void)ctx;
    *ret_tag = 0;
    *ret_offset = 0;
    return ps_pool_map(size, ret_data);
}

static void put_chunk(void *ctx, void *data, size_t size, uint32_t tag)
{
    (void)ctx;
    (void)tag;
    given_back += size;
    ps_pool_unmap(data, size);
}

/* The memory of a job returns to the system soon after its end. */
static void memory_of_an_ended_job_returns_to_the_system(void **state)
{
    const uint32_t count = 4u << 20;
    float *data = ps_calloc(count, sizeof(*data));
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .source = {.get = get_chunk, .put = put_chunk}});
    struct agent *a = &w->agents[0];

    (void)state;
    for (uint32_t key = 0; key < 3; key++) {
        agent_init(a, key, count, data);
    }
    assert_true(ps_pool_used(w->pool) >= 3 * count * sizeof(*data));
    given_back = 0;
    sched_end(w);
    world_run(w, 2 * PS_TRIM_WAIT);
    assert_int_equal(ps_pool_used(w->pool), 0);
    assert_true(given_back >= 3 * count * sizeof(*data));
    ps_free(data);
    world_free(w);
}

/* An unknown partition, encoded with a codec that the job has not declared. */
static void undeclared_codec_of_a_new_partition_is_refused(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 1, .compression = "2bit"});
    struct agent *a = &w->agents[0];
    struct ps_rec_part part = {.key = 7,
                               .round = 1,
                               .dtype = PS_DTYPE_FLOAT32,
                               .count = 1,
                               .codec = PS_CODEC_1BIT,
                               .encoded_bytes = 4};

    (void)state;
    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PUSH,
                                .push = {.gen = GEN,
                                         .incarnation = a->incarnation,
                                         .weight = 1,
                                         .parts = &part,
                                         .parts_count = 1}},
               (uint32_t[]){0}, 4);
    world_run_until_idle(w);
    assert_int_equal(a->seen[7].refusals, 1);
    assert_int_equal(a->seen[7].error, PS_E_MISMATCH);
    world_free(w);
}

/* Rows have rounds, and the pushes that wait for such a partition have none. */
static void rows_are_refused_for_a_key_without_rounds(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct ps_rec_rows part = {.key = 1,
                               .round = 2,
                               .dtype = PS_DTYPE_FLOAT32,
                               .row_width = 1,
                               .count = 1};
    struct {
        uint32_t number[2];
        float row[2];
    } block = {{0, 0}, {5, 0}};

    (void)state;
    agent_init(a, 1, 1, &(float){1});
    agent_push(&w->agents[1],
               &(struct push_options){.key = 1,
                                      .round = 1,
                                      .count = 1,
                                      .data = &(float){2},
                                      .rule = PS_RULE_ACCUMULATE});
    assert_int_equal(w->agents[1].seen[1].refusals, 0);
    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PUSH_ROWS,
                                .push_rows = {.gen = GEN,
                                              .incarnation = a->incarnation,
                                              .weight = 1,
                                              .parts = &part,
                                              .parts_count = 1}},
               &block, sizeof(block));
    world_run_until_idle(w);
    assert_int_equal(a->seen[1].refusals, 1);
    assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
    world_free(w);
}

/* Pushes without rounds step where the job has an optimizer, and else add. */
static void pushes_without_rounds_follow_the_rule_of_the_job(void **state)
{
    struct push_options push = {
        .key = 1, .round = 1, .count = 1, .data = &(float){2}};
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_init(a, 1, 1, &(float){1});
    push.rule = PS_RULE_STEP;
    agent_push(a, &push);
    assert_int_equal(a->seen[1].refusals, 1);
    assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
    push.rule = PS_RULE_ACCUMULATE;
    push.assign = true;
    agent_push(a, &push);
    assert_int_equal(a->seen[1].refusals, 2);
    assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
    push.assign = false;
    agent_push(a, &push);
    assert_int_equal(a->seen[1].refusals, 2);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_counts_near_overflow_are_refused),
        cmocka_unit_test(versions_near_overflow_are_refused),
        cmocka_unit_test(row_pull_does_not_make_a_rows_key),
        cmocka_unit_test(impossible_row_width_closes_the_connection),
        cmocka_unit_test(memory_of_an_ended_job_returns_to_the_system),
        cmocka_unit_test(undeclared_codec_of_a_new_partition_is_refused),
        cmocka_unit_test(rows_are_refused_for_a_key_without_rounds),
        cmocka_unit_test(pushes_without_rounds_follow_the_rule_of_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
