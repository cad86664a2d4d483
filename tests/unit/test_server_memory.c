/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine where memory is short: admitted jobs complete their
 * rounds, whatever other jobs do, and none waits behind a frame without memory. */
#include "server_world.h"

#define KIB   UINT64_C(1024)
#define COUNT 4096u /* 16 KiB. */
#define OTHER (GEN + 1)

static float data[32768];

static void tell_room(struct world *w, uint64_t gen, uint64_t bytes,
                      uint64_t rounds)
{
    ps_link_send_msg(w->sched,
                     &(struct ps_msg){.code = PS_MSG_JOB_QUOTA,
                                      .job_quota = {.gen = gen,
                                                    .version = 1,
                                                    .bytes = bytes,
                                                    .round_bytes = rounds}},
                     w->now, &w->sched_out);
    world_run_until_idle(w);
}

/* A job of the agents 5 and 6. */
static void start_other(struct world *w)
{
    struct ps_rec_slot slots[2];

    for (uint32_t i = 0; i < 2; i++) {
        slots[i] = (struct ps_rec_slot){
            .node = NODE(5 + i), .incarnation = 1, .ranks = 1};
    }
    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                         .job_state = {.gen = OTHER,
                                       .version = 1,
                                       .name = "other",
                                       .phase = PS_JOB_PHASE_RUNNING,
                                       .slots = slots,
                                       .slots_count = 2,
                                       .optimizer = ""}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
}

static void push_other(struct agent *a, uint32_t key, uint64_t round)
{
    struct ps_rec_part part = {.key = key, .round = round, .count = COUNT};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PUSH,
                                .push = {.gen = OTHER,
                                         .slot = a->index - 5,
                                         .incarnation = 1,
                                         .weight = 1,
                                         .parts = &part,
                                         .parts_count = 1}},
               data, COUNT * sizeof(float));
    world_run_until_idle(a->w);
}

/* True: it was taken. */
static bool push(struct agent *a, uint32_t key, uint64_t round)
{
    const uint32_t before = a->seen[key].refusals;

    agent_push(a, &(struct push_options){.key = key,
                                         .round = round,
                                         .count = COUNT,
                                         .data = data,
                                         .commit_only = true});
    if (a->seen[key].refusals == before) {
        return true;
    }
    assert_int_equal(a->seen[key].error, PS_E_AGAIN);
    return false;
}

/* Eight slots, eight partitions of 16 KiB, and only the memory that the job was
 * admitted with: each value twice, and two rounds of all slots. Agents
 * contribute in different orders, and repeat refused parts. */
static void rounds_complete_with_memory_for_two_rounds(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 8, .memory = 512 * KIB});
    bool taken[8][8];
    uint32_t tries = 0;

    (void)state;
    tell_room(w, GEN, 512 * KIB, 256 * KIB);
    for (uint64_t round = 1; round <= 5; round++) {
        uint32_t left = 64;

        memset(taken, 0, sizeof(taken));
        while (left > 0) {
            for (uint32_t i = 0; i < 8; i++) {
                for (uint32_t k = 0; k < 8; k++) {
                    const uint32_t key = (k + i) % 8;

                    if (!taken[i][key] && push(&w->agents[i], key, round)) {
                        taken[i][key] = true;
                        left--;
                    }
                }
            }
            assert_true(++tries < 100);
        }
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(w->agents[i / 8].seen[i % 8].commit_version,
                             round);
        }
    }
    world_free(w);
}

/* No round of the first job is complete, and its agents have filled the free
 * memory of the server: frames of another job on the same links do not wait,
 * and find the memory that it was admitted with. */
static void job_without_memory_delays_no_other_job(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 8, .memory = 640 * KIB});
    uint32_t refused = 0;
    ps_time began;

    (void)state;
    start_other(w);
    tell_room(w, GEN, 512 * KIB, 256 * KIB);
    tell_room(w, OTHER, 128 * KIB, 64 * KIB);
    began = w->now;
    for (uint32_t i = 0; i < 7; i++) {
        for (uint32_t key = 0; key < 8; key++) {
            refused += !push(&w->agents[i], key, 1);
        }
    }
    assert_true(refused > 20);
    /* Each agent's connection paused once, briefly. */
    assert_true(w->now - began <= 7 * PS_MILLIS(10));
    assert_non_null(strstr(w->last_log, "job job: no memory for 16384 bytes"));
    for (uint64_t round = 1; round <= 10; round++) {
        began = w->now;
        for (uint32_t key = 0; key < 2; key++) {
            push_other(&w->agents[5], key, round);
            assert_false(push(&w->agents[5], 7, 1));
            push_other(&w->agents[6], key, round);
        }
        assert_int_equal(w->now, began);
        for (uint32_t key = 0; key < 2; key++) {
            uint64_t version;
            const struct ps_slice *value;

            assert_true(
                server_peek(w->server, OTHER, key, 0, &version, &value));
            assert_int_equal(version, round);
        }
    }
    world_run(w, PS_MILLIS(600));
    assert_true(w->memory_short);
    world_run(w, PS_SECONDS(4));
    assert_false(w->memory_short);
    world_free(w);
}

/* One slot has filled the server with halves of rounds. The other slot's half
 * of a round gets its memory from the others, which are then sent again. */
static void round_takes_memory_from_incomplete_rounds(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 2, .memory = 260 * KIB});
    struct agent *a = &w->agents[0];
    uint32_t back = 0;

    (void)state;
    tell_room(w, GEN, 260 * KIB, 0);
    agent_init(a, 20, 1, &(float){1}); /* A key without a round. */
    for (uint32_t key = 0; key < 16; key++) {
        assert_true(push(a, key, 1));
    }
    assert_int_equal(ps_pool_used(w->pool), 260 * KIB);
    assert_false(push(&w->agents[1], 3, 1));
    world_run(w, PS_MILLIS(200));
    assert_false(push(&w->agents[1], 3, 1));
    for (uint32_t key = 0; key < 16; key++) {
        back += a->seen[key].refusals == 1 && a->seen[key].error == PS_E_AGAIN;
    }
    assert_int_equal(back, 2);
    assert_int_equal(a->seen[3].refusals, 0);
    for (uint32_t key = 3; key < 16; key++) {
        assert_true(push(&w->agents[1], key, 1));
        assert_int_equal(a->seen[key].commit_version,
                         a->seen[key].refusals == 0 ? 1 : 0);
    }
    world_free(w);
}

/* One frame with the first keys, at most 5, of `data`. */
static void push_keys(struct agent *a, uint32_t round, uint32_t count)
{
    struct ps_rec_part part[5];

    for (uint32_t key = 0; key < count; key++) {
        part[key] = (struct ps_rec_part){
            .key = key, .round = round, .count = COUNT};
    }
    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PUSH,
                                .push = {.gen = GEN,
                                         .incarnation = a->incarnation,
                                         .weight = 1,
                                         .parts = part,
                                         .parts_count = count}},
               data, count * COUNT * sizeof(float));
}

/* Each frame contributes to one key less than the frame before, so one value of
 * each remains: five values keep five frames alive. */
static void values_are_copied_from_frames_if_memory_is_short(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 1, .memory = 256 * KIB});
    struct agent *a = &w->agents[0];

    (void)state;
    tell_room(w, GEN, 256 * KIB, 32 * KIB);
    for (uint32_t round = 1; round <= 5; round++) {
        push_keys(a, round, 6 - round);
        world_run_until_idle(w);
    }
    assert_true(push(a, 5, 1));
    assert_int_equal(ps_pool_used(w->pool), 256 * KIB);
    assert_false(push(a, 0, 6));
    world_run(w, PS_MILLIS(200));
    (void)push(a, 0, 6);
    assert_true(push(a, 0, 6));
    assert_int_equal(ps_pool_used(w->pool), 96 * KIB);
    world_free(w);
}

/* Version of a key here, and the value of all its elements. */
static float value_of(struct world *w, uint32_t key, uint64_t *ret_version)
{
    const struct ps_slice *value;
    const float *at;

    assert_true(server_peek(w->server, GEN, key, 0, ret_version, &value));
    assert_int_equal(value->len, COUNT * sizeof(float));
    at = (const float *)(const void *)ps_slice_data(value);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(at[i] == at[0]);
    }
    return at[0];
}

/* The same, while the pool refuses one of the copies, whose frame is freed by
 * then. */
static void values_survive_copies_without_memory(void **state)
{
    (void)state;
    for (uint32_t refused = 1; refused <= 8; refused++) {
        struct world *w = world_new(
            &(struct world_options){.slots = 1, .memory = 256 * KIB});
        struct agent *a = &w->agents[0];

        tell_room(w, GEN, 256 * KIB, 32 * KIB);
        for (uint32_t round = 1; round <= 5; round++) {
            for (uint32_t key = 0; key < 5; key++) {
                for (uint32_t i = 0; i < COUNT; i++) {
                    data[key * COUNT + i] = (float)(10 * round + key);
                }
            }
            push_keys(a, round, 6 - round);
            world_run_until_idle(w);
        }
        memset(data, 0, sizeof(data));
        assert_true(push(a, 5, 1));
        assert_false(push(a, 0, 6));
        world_run(w, PS_MILLIS(200));
        ps_pool_fail_at(w->pool, refused);
        (void)push(a, 0, 6);
        ps_pool_fail_at(w->pool, 0);
        for (uint32_t n = 0; n < 3; n++) {
            (void)push(a, 6 + n, 1); /* Takes memory that is free. */
        }
        for (uint32_t key = 1; key < 5; key++) {
            uint64_t version;

            assert_true(value_of(w, key, &version) ==
                        (float)(10 * version + key));
            assert_int_equal(version, 5 - key);
        }
        world_free(w);
    }
    memset(data, 0, sizeof(data));
}

/* One slot has filled its window with a later round; the other has credit only
 * for that round, which finds no memory. The slot that the next round lacks may
 * send, although it has as many unmerged bytes as the other. */
static void slot_that_the_next_round_lacks_has_credit(void **state)
{
    const uint64_t cost = ps_pool_cost(PS_CREDIT_INITIAL);
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = PS_CREDIT_INITIAL, .memory = 6 * cost});
    struct push_options o = {.round = 1,
                             .count = PS_CREDIT_INITIAL / sizeof(float),
                             .data = ps_calloc(1, PS_CREDIT_INITIAL),
                             .commit_only = true};
    bool gave = false;

    (void)state;
    tell_room(w, GEN, 6 * cost, 5 * cost);
    o.key = 1;
    agent_push(&w->agents[1], &o);
    o.key = 3; /* Free memory is for the next round, and this is it. */
    agent_push(&w->agents[0], &o);
    assert_int_equal(w->agents[0].seen[3].refusals, 0);
    for (uint32_t i = 0; i < 10; i++) {
        if (w->agents[0].sent < w->agents[0].credit) {
            o.key = 1;
            agent_push(&w->agents[0], &o);
        }
        if (!gave && w->agents[1].sent < w->agents[1].credit) {
            o.key = 3;
            agent_push(&w->agents[1], &o);
            gave = true;
        }
        world_run(w, PS_MILLIS(300));
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(w->agents[i].seen[3].commit_version, 1);
        assert_int_equal(w->agents[i].seen[1].commit_version, 1);
    }
    ps_free((void *)o.data);
    world_free(w);
}

/* Values take all the memory: parts that can never have any are refused with a
 * text. */
static void parts_that_can_never_have_memory_fail_with_a_text(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 2, .memory = 512 * KIB});
    struct agent *a = &w->agents[0];
    uint32_t key = 0;

    (void)state;
    for (; a->seen[key].refusals == 0; key++) {
        assert_true(key < 33);
        agent_init(a, key, COUNT, data);
        if (a->seen[key].refusals > 0) {
            break;
        }
    }
    assert_int_equal(key, 32);
    assert_int_equal(a->seen[key].error, PS_E_AGAIN);
    world_run(w, PS_SECONDS(3));
    agent_init(a, key, COUNT, data);
    assert_int_equal(a->seen[key].error, PS_E_FULL);
    assert_string_equal(a->text,
                        "job job needs 16.0 KiB more there, and 512.0 KiB of "
                        "512.0 KiB are taken (store.memory)");
    world_free(w);
}

/* The state of the second key finds no memory, and never will. */
static void step_that_can_never_have_memory_fails_with_a_text(void **state)
{
    const struct ps_rec_param params[] = {{.name = "lr", .value = 0.1},
                                          {.name = "momentum", .value = 0.9}};
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .memory = 512 * KIB, .params = params, .params_count = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_init(a, 0, 32768, data);
    agent_init(a, 1, 32768, data);
    for (uint32_t key = 0; key < 2; key++) {
        agent_push(a, &(struct push_options){.key = key,
                                             .round = 1,
                                             .count = 32768,
                                             .data = data,
                                             .commit_only = true});
    }
    assert_int_equal(a->seen[0].commit_version, 1);
    assert_int_equal(a->seen[1].refusals, 0);
    world_run(w, PS_SECONDS(1));
    assert_int_equal(a->seen[1].refusals, 0);
    world_run(w, PS_SECONDS(3));
    assert_int_equal(a->seen[1].error, PS_E_FULL);
    assert_non_null(strstr(a->text, "job job needs 128.0 KiB more there"));
    world_free(w);
}

static const struct ps_rec_cost *shown(struct world *w, const char *kind,
                                       const char *name, const char *cost)
{
    static struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    const uint32_t count = ps_ledger_records(w->machine.account, list);

    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(list[i].kind, kind) == 0 &&
            strcmp(list[i].name, name) == 0 &&
            strcmp(list[i].cost, cost) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

/* Partitions cost a place in a table each, also where they have no value. */
static void partitions_of_a_job_are_charged_and_reported(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    for (uint32_t key = 0; key < 8; key++) {
        assert_true(push(&w->agents[0], key, 1));
    }
    world_run(w, 2 * PS_LEDGER_REPORT_INTERVAL);
    assert_int_equal(shown(w, "job", "job", "partitions")->used, 8);
    assert_int_equal(shown(w, "daemon", "s0", "partitions")->used, 8);
    assert_in_range(shown(w, "job", "job", "memory")->used, 8 * (16 * KIB + 64),
                    8 * 18 * KIB);
    assert_int_equal(shown(w, "job", "job", "memory")->used,
                     shown(w, "daemon", "s0", "memory")->used);
    sched_send_job_state(
        w, &(struct job_options){.version = 2, .phase = PS_JOB_PHASE_ENDED});
    world_run(w, 2 * PS_LEDGER_REPORT_INTERVAL);
    assert_null(shown(w, "job", "job", "partitions"));
    assert_int_equal(shown(w, "daemon", "s0", "partitions")->used, 0);
    assert_int_equal(shown(w, "daemon", "s0", "memory")->used, 0);
    world_free(w);
}

/* Not at once: the next job may need it. */
static void memory_of_an_ended_job_goes_back_to_the_system(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    push(&w->agents[0], 1, 1);
    sched_end(w);
    world_run(w, PS_TRIM_WAIT / 2);
    assert_false(ps_pool_trim_some(w->pool, 0));
    world_run(w, PS_TRIM_WAIT);
    assert_true(ps_pool_trim_some(w->pool, 0));
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_complete_with_memory_for_two_rounds),
        cmocka_unit_test(job_without_memory_delays_no_other_job),
        cmocka_unit_test(partitions_of_a_job_are_charged_and_reported),
        cmocka_unit_test(round_takes_memory_from_incomplete_rounds),
        cmocka_unit_test(values_are_copied_from_frames_if_memory_is_short),
        cmocka_unit_test(values_survive_copies_without_memory),
        cmocka_unit_test(slot_that_the_next_round_lacks_has_credit),
        cmocka_unit_test(parts_that_can_never_have_memory_fail_with_a_text),
        cmocka_unit_test(step_that_can_never_have_memory_fails_with_a_text),
        cmocka_unit_test(memory_of_an_ended_job_goes_back_to_the_system),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
