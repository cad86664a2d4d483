/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes without rounds, at the server machine. */
#include "server_world.h"

#define COUNT 16u

static struct push_options push_of(enum ps_rule rule, uint64_t seq,
                                   const float *data)
{
    return (struct push_options){.key = 1,
                                 .round = seq,
                                 .rule = rule,
                                 .count = COUNT,
                                 .data = data,
                                 .commit_only = true};
}

static void give(struct agent *a, enum ps_rule rule, uint64_t seq, float value)
{
    float data[COUNT];

    for (uint32_t i = 0; i < COUNT; i++) {
        data[i] = value;
    }
    struct push_options o = push_of(rule, seq, data);

    agent_push(a, &o);
}

static void init(struct agent *a, float value)
{
    float data[COUNT];

    for (uint32_t i = 0; i < COUNT; i++) {
        data[i] = value;
    }
    agent_init(a, 1, COUNT, data);
}

/* Fails unless each element of the agent's last value is `value`. */
static void assert_value(const struct agent *a, float value)
{
    float got[COUNT];

    assert_int_equal(a->seen[1].len, sizeof(got));
    memcpy(got, a->seen[1].bytes, sizeof(got));
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(got[i] == value);
    }
}

static float pulled(struct agent *a)
{
    float first;

    agent_pull(a, 1, 0);
    memcpy(&first, a->seen[1].bytes, sizeof(first));
    assert_value(a, first);
    return first;
}

static void repeated_pushes_count_once(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    init(a, 100);
    for (uint64_t seq = 1; seq <= 20; seq++) {
        give(a, PS_RULE_ACCUMULATE, seq, 1);
        assert_int_equal(a->seen[1].commit_version, seq);
        if (seq % 3 == 0) { /* The answer was lost, with the link. */
            agent_disconnect(a);
            agent_drop_link(a);
            agent_dial(a);
            give(a, PS_RULE_ACCUMULATE, seq, 1);
            assert_int_equal(a->seen[1].commit_version, seq);
        }
        give(&w->agents[1], PS_RULE_ACCUMULATE, seq, 1000);
        give(&w->agents[1], PS_RULE_ACCUMULATE, seq, 1000);
    }
    assert_true(pulled(a) == 100 + 20 + 20 * 1000);
    world_free(w);
}

static void pushes_of_a_restarted_agent_count_from_zero(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    init(a, 0);
    give(a, PS_RULE_ACCUMULATE, 1, 1);
    agent_disconnect(a);
    agent_restart(a);
    sched_send_job_state(
        w, &(struct job_options){.version = 2, .phase = PS_JOB_PHASE_RUNNING});
    agent_dial(a);
    give(a, PS_RULE_ACCUMULATE, 1, 10);
    assert_true(pulled(a) == 11);
    world_free(w);
}

static void waiting_pushes_are_summed_or_assigned_in_order(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 4});
    struct ps_server_stats stats;

    (void)state;
    init(&w->agents[0], 0);
    w->hold_compute = true;
    for (uint32_t i = 0; i < 4; i++) {
        give(&w->agents[i], PS_RULE_ACCUMULATE, 1, (float)(i + 1));
        give(&w->agents[i], PS_RULE_ACCUMULATE, 1, 99); /* Known by now. */
    }
    assert_int_equal(w->compute_count,
                     1); /* The first push; the others wait. */
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    assert_int_equal(w->compute_count, 1);
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    assert_int_equal(w->compute_count, 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(w->agents[i].seen[1].commits, i == 0 ? 2 : 1);
        assert_int_equal(w->agents[i].seen[1].commit_version, 1);
    }
    assert_true(pulled(&w->agents[2]) == 10);
    ps_server_stats(w->server, &stats);
    assert_int_equal(stats.unmerged_bytes, 0);
    world_free(w);
}

/* A value is in flight until its frame is acknowledged. Pushes that are applied
 * meanwhile must not change its bytes. */
static void reply_keeps_the_value_of_its_version(void **state)
{
    static const enum ps_rule rules[] = {PS_RULE_ASSIGN, PS_RULE_ACCUMULATE,
                                         PS_RULE_STEP};
    static const struct ps_rec_param param = {.name = "learning_rate",
                                              .value = 1};

    (void)state;
    for (uint32_t r = 0; r < 3; r++) {
        bool steps = rules[r] == PS_RULE_STEP;
        struct world *w = world_new(
            &(struct world_options){.slots = 2,
                                    .params = steps ? &param : NULL,
                                    .params_count = steps ? 1 : 0});
        struct agent *a = &w->agents[0];
        struct agent *b = &w->agents[1];

        init(a, 5);
        a->mute = true;
        agent_pull(a, 1, 0);
        for (uint64_t seq = 1; seq <= 10; seq++) {
            give(b, rules[r], seq, (float)seq);
        }
        a->mute = false;
        agent_disconnect(a);
        agent_dial(a); /* The same frame again, from the window. */
        assert_true(a->resumed);
        assert_int_equal(a->seen[1].values, 1);
        assert_value(a, 5);
        assert_true(pulled(a) == (rules[r] == PS_RULE_ASSIGN ? 10
                                  : steps                    ? 5 - 55
                                                             : 60));
        world_free(w);
    }
}

static void tick(struct agent *a, uint64_t seq, uint64_t clock)
{
    const float data[COUNT] = {0};
    struct push_options o = push_of(PS_RULE_ACCUMULATE, seq, data);

    o.clock = clock;
    agent_push(a, &o);
}

static void all_agents_get_the_raised_clock(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 3});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];
    struct agent *c = &w->agents[2];

    (void)state;
    init(a, 0);
    for (uint64_t i = 1; i <= 5; i++) {
        tick(a, i, i);
        tick(b, i, i > 2 ? i - 2 : 0); /* One of its ranks is behind. */
    }
    assert_int_equal(a->seen[1].clock, 0);
    tick(c, 1, 1);
    tick(c, 2, 2);
    assert_int_equal(a->seen[1].clock, 2);
    assert_int_equal(b->seen[1].clock, 2);
    assert_int_equal(a->seen[1].commit_version, 5);
    tick(c, 3, 3);
    tick(c, 4, 4);
    assert_int_equal(a->seen[1].clock, 3);
    assert_int_equal(c->seen[1].commit_version, 4);

    /* A new process of an agent counts from zero, its ranks do not. */
    agent_disconnect(c);
    agent_restart(c);
    sched_send_job_state(
        w, &(struct job_options){.version = 2, .phase = PS_JOB_PHASE_RUNNING});
    agent_dial(c);
    tick(b, 6, 5);
    assert_int_equal(a->seen[1].clock, 4);
    tick(c, 1, 5);
    assert_int_equal(a->seen[1].clock, 5);
    assert_int_equal(c->seen[1].commit_version, 1);
    a->seen[1].clock = 0;
    assert_true(pulled(a) == 0);
    assert_int_equal(a->seen[1].clock, 5); /* Values carry the clock, too. */
    world_free(w);
}

static void key_with_rounds_refuses_pushes_without_rounds(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    give(a, PS_RULE_ACCUMULATE, 1, 1);
    assert_int_equal(a->seen[1].error, PS_E_NOKEY);
    init(a, 0);
    give(a, PS_RULE_STEP, 1, 1);
    assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
    give(a, PS_RULE_ACCUMULATE, 1, 1);
    give(a, PS_RULE_NONE, 2, 1);
    assert_int_equal(a->seen[1].refusals, 3);
    assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
    assert_true(pulled(a) == 1);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated_pushes_count_once),
        cmocka_unit_test(pushes_of_a_restarted_agent_count_from_zero),
        cmocka_unit_test(waiting_pushes_are_summed_or_assigned_in_order),
        cmocka_unit_test(reply_keeps_the_value_of_its_version),
        cmocka_unit_test(all_agents_get_the_raised_clock),
        cmocka_unit_test(key_with_rounds_refuses_pushes_without_rounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
