/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine with two jobs of one agent: values and computations take
 * turns, and a job alone has neither turns nor limits. */
#include "server_world.h"

#define OTHER     (GEN + 1)
#define OTHER_KEY 100u
#define KEYS      48u
#define COUNT     (32u * 1024u) /* 128 KiB. */
#define SMALL     (8u * 1024u)  /* 32 KiB. */
#define MIB       (1024u * 1024u)

static const struct ps_rec_param rate = {.name = "learning_rate", .value = 1};
static float data[COUNT];

static void send_other_version(struct world *w, enum ps_job_phase phase,
                               uint32_t version, uint32_t weight)
{
    const struct ps_rec_slot slot = {.node = NODE(0),
                                     .incarnation = w->agents[0].incarnation,
                                     .instance = w->agents[0].instance,
                                     .ranks = 1};

    ps_link_send_msg(w->sched,
                     &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                      .job_state = {.gen = OTHER,
                                                    .version = version,
                                                    .name = "other",
                                                    .phase = (uint8_t)phase,
                                                    .weight = weight,
                                                    .slots = &slot,
                                                    .slots_count = 1,
                                                    .optimizer = "sgd",
                                                    .params = &rate,
                                                    .params_count = 1}},
                     w->now, &w->sched_out);
    world_run_until_idle(w);
}

static void send_other_state(struct world *w, enum ps_job_phase phase,
                             uint32_t weight)
{
    send_other_version(w, phase, phase + 1u, weight);
}

static void send_other(struct world *w, uint64_t round, uint32_t count)
{
    struct ps_rec_part part = {
        .key = OTHER_KEY, .round = round, .count = count};
    struct ps_msg m = {.code = PS_MSG_PUSH,
                       .push = {.gen = OTHER,
                                .incarnation = w->agents[0].incarnation,
                                .weight = 1,
                                .needs_value = true,
                                .parts = &part,
                                .parts_count = 1}};

    if (round == 0) {
        m = (struct ps_msg){
            .code = PS_MSG_INIT,
            .init = {.gen = OTHER, .parts = &part, .parts_count = 1}};
    }
    agent_send(&w->agents[0], &m, data, count * sizeof(float));
    world_run_until_idle(w);
}

static void push(struct world *w, uint32_t key, uint64_t round)
{
    agent_push(&w->agents[0],
               &(struct push_options){
                   .key = key, .round = round, .count = COUNT, .data = data});
}

/* The kernel has taken what was handed over for the agent. */
static void drain_conn(struct world *w)
{
    world_event(w, &(struct ps_event){.now = w->now,
                                      .type = PS_EV_SENT,
                                      .conn = w->agents[0].conn});
    world_run_until_idle(w);
}

static uint32_t values_seen(const struct world *w)
{
    uint32_t count = 0;

    for (uint32_t key = 0; key < KEYS; key++) {
        count += w->agents[0].seen[key].values;
    }
    return count;
}

static void values_of_a_job_alone_do_not_wait(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    assert_int_equal(values_seen(w), KEYS); /* 6 MiB; nothing has left. */
    world_free(w);
}

static void small_value_passes_values_of_another_job(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    send_other(w, 0, SMALL);
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    assert_int_equal(values_seen(w), 2 * MIB / sizeof(data));
    send_other(w, 1, SMALL);
    assert_int_equal(w->agents[0].seen[OTHER_KEY].values, 0);
    drain_conn(w);
    assert_int_equal(w->agents[0].seen[OTHER_KEY].values, 1);
    assert_in_range(values_seen(w), 31, 32);
    /* Those of one job leave in order. */
    for (uint32_t key = 0; key < KEYS; key++) {
        assert_int_equal(w->agents[0].seen[key].values, key < values_seen(w));
    }
    drain_conn(w);
    assert_int_equal(values_seen(w), KEYS);
    world_free(w);
}

/* Connects the agent again, by a stream. */
static void redial_by_stream(struct agent *a)
{
    agent_disconnect(a);
    a->is_stream = true;
    agent_dial(a);
}

/* An encrypted value takes long, and a small one of the other job would wait
 * for all that were handed over. */
static void one_value_at_a_time_goes_to_a_stream(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    redial_by_stream(&w->agents[0]);
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    for (uint32_t seen = 1; seen <= KEYS; seen++) {
        assert_int_equal(values_seen(w), seen);
        drain_conn(w);
    }
    world_free(w);
}

/* The other job has three times the weight. */
static void expect_a_quarter(struct world *w)
{
    uint32_t mine;
    uint32_t other;

    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    for (uint64_t round = 1; round <= 20; round++) {
        send_other(w, round, COUNT);
    }
    mine = values_seen(w);
    other = w->agents[0].seen[OTHER_KEY].values;
    drain_conn(w);
    mine = values_seen(w) - mine;
    other = w->agents[0].seen[OTHER_KEY].values - other;
    assert_int_equal(mine + other, 2 * MIB / sizeof(data));
    assert_in_range(other, 11, 13);
}

static void values_share_a_link_by_weight(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 300);
    send_other(w, 0, COUNT);
    expect_a_quarter(w);
    world_free(w);
}

static void values_follow_a_changed_weight(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_version(w, PS_JOB_PHASE_RUNNING, 7, 100);
    send_other(w, 0, COUNT);
    send_other_version(w, PS_JOB_PHASE_RUNNING, 8, 300);
    expect_a_quarter(w);
    world_free(w);
}

static void acknowledgements_let_waiting_values_go(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    drain_conn(w);
    drain_conn(w);
    assert_int_equal(values_seen(w), KEYS);
    world_free(w);
}

static void waiting_values_of_an_ended_job_are_dropped(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    send_other(w, 0, COUNT);
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    for (uint64_t round = 1; round <= 20; round++) {
        send_other(w, round, COUNT);
    }
    send_other_state(w, PS_JOB_PHASE_ENDED, 0);
    assert_int_equal(w->agents[0].seen[OTHER_KEY].values, 0);
    drain_conn(w);
    drain_conn(w);
    drain_conn(w);
    assert_int_equal(w->agents[0].seen[OTHER_KEY].values, 0);
    assert_int_equal(values_seen(w), KEYS);
    world_free(w);
}

static void values_wait_for_a_resumed_connection(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    agent_disconnect(&w->agents[0]);
    agent_dial(&w->agents[0]);
    assert_true(w->agents[0].resumed);
    drain_conn(w);
    drain_conn(w);
    assert_int_equal(values_seen(w), KEYS);
    world_free(w);
}

/* A new session knows nothing of the requests of the old one. */
static void values_that_wait_end_with_the_session(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    uint32_t seen;

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    seen = values_seen(w);
    agent_disconnect(&w->agents[0]);
    agent_drop_link(&w->agents[0]);
    agent_dial(&w->agents[0]);
    assert_false(w->agents[0].resumed);
    drain_conn(w);
    assert_int_equal(values_seen(w), seen);
    world_free(w);
}

static bool computes_other(const struct world *w)
{
    for (uint32_t i = 0; i < w->compute_count; i++) {
        if (w->computes[i]->job.count == SMALL) {
            return true;
        }
    }
    return false;
}

static void computations_of_two_jobs_take_turns(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = &rate, .params_count = 1});
    uint32_t running;

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    send_other(w, 0, SMALL);
    for (uint32_t key = 0; key < KEYS; key++) {
        agent_init(&w->agents[0], key, COUNT, data);
    }
    w->hold_compute = true;
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    running = w->compute_count;
    assert_in_range(running, 8 * MIB / (3 * sizeof(data)),
                    8 * MIB / sizeof(data));
    assert_true(running < KEYS);
    send_other(w, 1, SMALL);
    assert_false(computes_other(w));
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    assert_true(computes_other(w));
    w->hold_compute = false;
    world_run_until_idle(w);
    drain_conn(w);
    drain_conn(w);
    drain_conn(w);
    assert_int_equal(w->agents[0].seen[OTHER_KEY].values, 1);
    assert_int_equal(values_seen(w), KEYS);
    world_free(w);
}

/* The loop needs processors to encrypt and decrypt meanwhile. */
static void one_computation_at_a_time_runs_beside_streams(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = &rate, .params_count = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    redial_by_stream(&w->agents[0]);
    for (uint32_t key = 0; key < KEYS; key++) {
        agent_init(&w->agents[0], key, COUNT, data);
    }
    w->hold_compute = true;
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    assert_int_equal(w->compute_count, 1);
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    assert_int_equal(w->compute_count, 1);
    w->hold_compute = false;
    world_run_until_idle(w);
    world_free(w);
}

static void all_computations_of_a_job_alone_start_at_once(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = &rate, .params_count = 1});

    (void)state;
    for (uint32_t key = 0; key < KEYS; key++) {
        agent_init(&w->agents[0], key, COUNT, data);
    }
    w->hold_compute = true;
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    assert_int_equal(w->compute_count, KEYS);
    w->hold_compute = false;
    world_run_until_idle(w);
    world_free(w);
}

static void end_of_a_job_lets_computations_of_others_start(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = &rate, .params_count = 1});

    (void)state;
    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    send_other(w, 0, SMALL);
    for (uint32_t key = 0; key < KEYS; key++) {
        agent_init(&w->agents[0], key, COUNT, data);
    }
    w->hold_compute = true;
    for (uint32_t key = 0; key < KEYS; key++) {
        push(w, key, 1);
    }
    send_other(w, 1, SMALL);
    sched_end(w); /* The first job. */
    w->hold_compute = false;
    world_run_until_idle(w);
    drain_conn(w);
    assert_int_equal(w->agents[0].seen[OTHER_KEY].values, 1);
    world_free(w);
}

/* Two agents keep pace at 26 MB/s, then the first is far ahead of the second.
 * Returns how long its link paused. */
static ps_time pause_of_link(bool other_pushes)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    ps_time paused;

    send_other_state(w, PS_JOB_PHASE_RUNNING, 0);
    send_other(w, 0, SMALL);
    for (uint64_t round = 1; round <= 20; round++) {
        w->now += PS_MILLIS(10);
        for (uint32_t i = 0; i < 2; i++) {
            agent_push(&w->agents[i], &(struct push_options){.key = 0,
                                                             .round = round,
                                                             .count = COUNT,
                                                             .data = data});
            drain_conn(w);
        }
    }
    if (other_pushes) {
        send_other(w, 1, SMALL);
    }
    paused = w->now;
    for (uint32_t key = 1; key < 8; key++) {
        push(w, key, 1);
    }
    paused = w->now - paused;
    world_free(w);
    return paused;
}

static void pacing_does_not_hold_up_another_job_on_the_link(void **state)
{
    (void)state;
    assert_true(pause_of_link(false) > 0);
    assert_int_equal(pause_of_link(true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_a_job_alone_do_not_wait),
        cmocka_unit_test(small_value_passes_values_of_another_job),
        cmocka_unit_test(one_value_at_a_time_goes_to_a_stream),
        cmocka_unit_test(values_share_a_link_by_weight),
        cmocka_unit_test(values_follow_a_changed_weight),
        cmocka_unit_test(acknowledgements_let_waiting_values_go),
        cmocka_unit_test(waiting_values_of_an_ended_job_are_dropped),
        cmocka_unit_test(values_wait_for_a_resumed_connection),
        cmocka_unit_test(values_that_wait_end_with_the_session),
        cmocka_unit_test(computations_of_two_jobs_take_turns),
        cmocka_unit_test(one_computation_at_a_time_runs_beside_streams),
        cmocka_unit_test(all_computations_of_a_job_alone_start_at_once),
        cmocka_unit_test(end_of_a_job_lets_computations_of_others_start),
        cmocka_unit_test(pacing_does_not_hold_up_another_job_on_the_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
