/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine, as stories. */
#include "server_world.h"

/* ---------------------------------------------------------------- counting */

static void rounds_count_every_slot_once(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 3});
    struct ps_server_stats stats;

    (void)state;
    for (uint64_t r = 1; r <= 50; r++) {
        for (uint32_t i = 0; i < 3; i++) {
            agent_push_i64(&w->agents[i], 7, r, (int64_t)(r * 10 + i));
        }
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(w->agents[i].seen[7].value_version, r);
            assert_int_equal(w->agents[i].seen[7].values, r);
            assert_int_equal(agent_i64(&w->agents[i], 7), r * 30 + 3);
        }
    }
    ps_server_stats(w->server, &stats);
    assert_int_equal(stats.rounds, 50);
    assert_int_equal(stats.bytes_in, 50 * 3 * 8);
    assert_int_equal(stats.bytes_out, 50 * 3 * 8);
    assert_int_equal(stats.stored_bytes, 8);
    assert_int_equal(stats.unmerged_bytes, 0);
    world_free(w);
}

static void record(struct world *w, uint32_t version, uint8_t mode,
                   uint32_t number)
{
    sched_send_job_state(w, &(struct job_options){.version = version,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .profile_mode = mode,
                                                  .profile_number = number});
}

static const struct ps_msg_trace_entries *recording(struct world *w,
                                                    uint64_t first)
{
    ps_link_send_msg(w->sched,
                     &(struct ps_msg){.code = PS_MSG_TRACE_GET,
                                      .trace_get = {.gen = GEN,
                                                    .request = 7,
                                                    .first = first,
                                                    .recording = true}},
                     w->now, &w->sched_out);
    world_run_until_idle(w);
    assert_non_null(w->trace_entries);
    assert_int_equal(w->trace_entries->trace_entries.request, 7);
    return &w->trace_entries->trace_entries;
}

static void push_round(struct world *w, uint64_t round)
{
    agent_push_i64(&w->agents[0], 7, round, 1);
    w->now += 10;
    agent_push_i64(&w->agents[1], 7, round, 2);
}

/* Two contributions, the wait for the second one, the sum. */
static void recording_is_a_part_of_the_trace(void **state)
{
    static const uint8_t kinds[] = {PS_TRACE_KIND_PUSH, PS_TRACE_KIND_PUSH,
                                    PS_TRACE_KIND_GATHER, PS_TRACE_KIND_MERGE};
    struct world *w = world_new(&(struct world_options){.slots = 2});
    const struct ps_msg_trace_entries *got;
    uint64_t round = 0;

    (void)state;
    push_round(w, ++round);
    got = recording(w, 0);
    assert_int_equal(got->count, 0);
    assert_int_equal(got->role, PS_ROLE_SCHED); /* It can be encoded. */
    record(w, 10, PS_PROFILE_MODE_ON, 1);
    w->now += 5;
    push_round(w, ++round);
    got = recording(w, 0);
    assert_int_equal(got->count, 4);
    assert_int_equal(got->next, 4);
    assert_int_equal(got->entries_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(got->entries[i].kind, kinds[i]);
        assert_int_equal(got->entries[i].round, 2);
    }
    assert_int_equal(got->entries[0].begun_ns, 5);
    assert_int_equal(got->entries[1].peer, 1);
    assert_int_equal(got->entries[1].key, 7);
    assert_int_equal(got->entries[2].duration_ns, 10);
    assert_int_equal(got->entries[2].bytes, 16);
    assert_int_equal(recording(w, 3)->first, 3);
    assert_int_equal(recording(w, 9)->entries_count, 0);
    /* A pause, whose entries are looked at, and what follows it. */
    record(w, 11, PS_PROFILE_MODE_PAUSED, 1);
    push_round(w, ++round);
    got = recording(w, 0);
    assert_int_equal(got->count, 8);
    assert_int_equal(got->next, 8);
    assert_int_equal(got->entries_count, 4);
    record(w, 12, PS_PROFILE_MODE_ON, 1);
    push_round(w, ++round);
    got = recording(w, 0);
    assert_int_equal(got->entries_count, 8);
    assert_int_equal(got->entries[4].round, 4);
    record(w, 13, PS_PROFILE_MODE_ON, 2);
    assert_int_equal(recording(w, 0)->count, 0);
    world_free(w);
}

static void recording_keeps_the_last_entries(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    const struct ps_msg_trace_entries *got;
    uint64_t round = 0;

    (void)state;
    record(w, 10, PS_PROFILE_MODE_ON, 1);
    while (round < PS_TRACE_ENTRIES / 4 + 10) {
        push_round(w, ++round);
    }
    got = recording(w, 0);
    assert_int_equal(got->count, 4 * round);
    assert_int_equal(got->first, got->count - PS_TRACE_ENTRIES);
    assert_int_equal(got->next, got->first + PS_TRACE_READ_MAX);
    assert_int_equal(got->entries_count, PS_TRACE_READ_MAX);
    got = recording(w, got->count - 1);
    assert_int_equal(got->entries_count, 1);
    assert_int_equal(got->entries[0].round, round);
    world_free(w);
}

/* Without a recording, too. */
static void trace_has_every_round(void **state)
{
    static const uint8_t kinds[] = {PS_TRACE_KIND_PUSH, PS_TRACE_KIND_PUSH,
                                    PS_TRACE_KIND_GATHER, PS_TRACE_KIND_MERGE};
    struct world *w = world_new(&(struct world_options){.slots = 2});
    const struct ps_trace_entry *e = w->trace->entries;

    (void)state;
    push_round(w, 1);
    push_round(w, 2);
    assert_int_equal(w->trace->count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(e[i].kind, kinds[i % 4]);
        assert_int_equal(e[i].gen, GEN);
        assert_int_equal(e[i].key, 7);
        assert_int_equal(e[i].round, 1 + i / 4);
    }
    assert_int_equal(e[0].peer, 0);
    assert_int_equal(e[1].peer, 1);
    assert_int_equal(e[2].ended_at - e[2].begun_at, 10);
    assert_int_equal(e[2].bytes, 16);
    world_free(w);
}

static void round_waits_for_the_last_slot_before_its_commit(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct push_options o = {
        .key = 1,
        .round = 1,
        .count = 1,
        .data = &(float){2},
        .commit_only = true,
    };

    (void)state;
    agent_push(&w->agents[1], &o);
    agent_push(&w->agents[1], &o);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 1), 4);
    assert_int_equal(w->agents[1].seen[1].commits, 0);
    assert_int_equal(ps_server_residue(w->server), 2);
    agent_push_f32(&w->agents[0], 1, 1, 3);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 1), 0);
    assert_int_equal(w->agents[1].seen[1].commits, 1);
    assert_int_equal(w->agents[1].seen[1].commit_version, 1);
    assert_int_equal(w->agents[1].seen[1].values, 0);
    assert_true(agent_f32(&w->agents[0], 1) == 5);
    world_free(w);
}

static void push_repeated_on_a_new_link_counts_once(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_i64(a, 3, 1, 40);
    agent_disconnect(a);
    agent_drop_link(a);
    agent_dial(a);
    assert_false(a->resumed);
    agent_push_i64(a, 3, 1, 40);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 8);
    agent_push_i64(&w->agents[1], 3, 1, 2);
    assert_int_equal(agent_i64(a, 3), 42);
    assert_int_equal(a->seen[3].values, 1);

    /* The answer may be lost with the link as well. */
    agent_disconnect(a);
    agent_drop_link(a);
    agent_dial(a);
    agent_push_i64(a, 3, 1, 40);
    assert_int_equal(a->seen[3].values, 2);
    assert_int_equal(agent_i64(a, 3), 42);
    world_free(w);
}

static void resumed_link_repeats_a_lost_reply(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_i64(a, 3, 1, 40);
    a->mute = true;
    agent_push_i64(&w->agents[1], 3, 1, 2);
    assert_int_equal(a->seen[3].values, 0);
    agent_disconnect(a);
    a->mute = false;
    agent_dial(a);
    assert_true(a->resumed);
    assert_int_equal(a->seen[3].values, 1);
    assert_int_equal(agent_i64(a, 3), 42);
    world_free(w);
}

/* The agent has not seen the welcome of the new session, so the link cannot be
 * resumed. */
static void a_link_is_not_resumed_when_its_welcome_was_lost(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_i64(a, 3, 1, 40);
    agent_disconnect(a);
    agent_drop_link(a);
    a->mute = true;
    agent_dial(a);
    agent_disconnect(a);
    a->mute = false;
    agent_dial(a);
    assert_false(a->resumed);
    agent_push_i64(a, 3, 2, 41);
    assert_int_equal(agent_i64(a, 3), 41);
    world_free(w);
}

static void repeated_push_during_a_merge_is_dropped(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    w->hold_compute = true;
    agent_push_i64(a, 3, 1, 40);
    agent_push_i64(&w->agents[1], 3, 1, 2);
    assert_int_equal(w->compute_count, 1);
    agent_push_i64(a, 3, 1, 40);
    agent_push_i64(a, 3, 2, 1); /* A round too early. */
    assert_int_equal(a->seen[3].error, PS_E_FUTURE);
    assert_int_equal(w->compute_count, 1);
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    assert_int_equal(agent_i64(a, 3), 42);
    assert_int_equal(a->seen[3].values, 1);
    world_free(w);
}

/* --------------------------------------------------------------- numbers */

static void result_does_not_depend_on_arrival_order(void **state)
{
    static const float v[4] = {1e8f, 1, -1e8f, 1e-8f};
    volatile float left = v[0] + v[1];
    volatile float right = v[2] + v[3];
    float want = left + right;
    struct world *w = world_new(&(struct world_options){.slots = 4});
    uint64_t round = 0;

    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        uint32_t order[4] = {code & 3, code >> 2 & 3, code >> 4 & 3,
                             code >> 6 & 3};
        uint32_t mask = 0;

        for (uint32_t i = 0; i < 4; i++) {
            mask |= 1u << order[i];
        }
        if (mask != 15) {
            continue;
        }
        round++;
        for (uint32_t i = 0; i < 4; i++) {
            agent_push_f32(&w->agents[order[i]], 0, round, v[order[i]]);
        }
        for (uint32_t i = 0; i < 4; i++) {
            float got = agent_f32(&w->agents[i], 0);

            assert_memory_equal(&got, &want, sizeof(got));
        }
    }
    assert_int_equal(round, 24);
    world_free(w);
}

static void sgd_with_momentum_follows_its_formula(void **state)
{
    static const struct ps_rec_param params[] = {
        {"learning_rate", 0.1}, {"momentum", 0.9},       {"wd", 0.01},
        {"rescale_grad", 0.5},  {"clip_gradient", 1.25},
    };
    const float lr = 0.1f, mu = 0.9f, wd = 0.01f, rescale = 0.5f;
    float weight[2] = {1, -2};
    float momentum[2] = {0, 0};
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .params = params, .params_count = 5});

    (void)state;
    agent_init(&w->agents[0], 0, 2, weight);
    for (uint64_t r = 1; r <= 5; r++) {
        float grad[2] = {(float)r, -0.25f * (float)r};

        for (uint32_t i = 0; i < 2; i++) {
            agent_push(&w->agents[i],
                       &(struct push_options){
                           .key = 0, .round = r, .count = 2, .data = grad});
        }
        for (uint32_t j = 0; j < 2; j++) {
            float g = rescale * (grad[j] + grad[j]);

            g = g > 1.25f ? 1.25f : g < -1.25f ? -1.25f : g;
            momentum[j] = mu * momentum[j] - lr * wd * weight[j] - lr * g;
            weight[j] = weight[j] + momentum[j];
            for (uint32_t i = 0; i < 2; i++) {
                float got;

                memcpy(&got, &w->agents[i].seen[0].bytes[4 * j], 4);
                assert_float_equal(got, weight[j], 1e-6);
            }
        }
    }
    struct ps_server_stats stats;

    ps_server_stats(w->server, &stats);
    assert_int_equal(stats.stored_bytes, 16); /* Weights and momentum. */
    world_free(w);
}

static void push_ranks(struct agent *a, uint64_t round, float value,
                       uint32_t ranks, enum ps_reduce reduce)
{
    agent_push(a, &(struct push_options){.key = 1,
                                         .round = round,
                                         .count = 1,
                                         .data = &value,
                                         .weight = ranks,
                                         .reduce = reduce});
}

static void a_step_may_take_several_rounds(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 1}, {"accumulate", 3}};
    static const float first = 100;
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .params = params, .params_count = 2});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];
    struct ps_server_stats stats;
    float want = first;

    (void)state;
    agent_init(a, 1, 1, &first);
    for (uint64_t r = 1; r <= 6; r++) {
        push_ranks(a, r, (float)r, 1, PS_REDUCE_SUM);
        push_ranks(b, r, 10, 1, PS_REDUCE_SUM);
        want -= r == 3 ? 1 + 2 + 3 + 30 : r == 6 ? 4 + 5 + 6 + 30 : 0;
        assert_int_equal(a->seen[1].value_version, r);
        assert_true(agent_f32(a, 1) == want);
        assert_true(agent_f32(b, 1) == want);
        ps_server_stats(w->server, &stats);
        assert_int_equal(stats.stored_bytes, r % 3 == 0 ? 4 : 8);
    }
    /* A mean is over all contributions to these rounds. */
    push_ranks(a, 7, 8, 3, PS_REDUCE_MEAN);
    push_ranks(b, 7, 8, 1, PS_REDUCE_MEAN);
    push_ranks(a, 8, 8, 1, PS_REDUCE_SUM); /* Not in the middle. */
    assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
    a->retry = b->retry = 1;
    push_ranks(a, 8, 8, 1, PS_REDUCE_MEAN);
    push_ranks(b, 8, 0, 1, PS_REDUCE_MEAN);
    a->retry = b->retry = 0;
    assert_true(agent_f32(a, 1) == want);
    push_ranks(a, 9, 0, 1, PS_REDUCE_MEAN);
    push_ranks(b, 9, 0, 1, PS_REDUCE_MEAN);
    assert_true(agent_f32(a, 1) == want - 24.0F / 8);
    world_free(w);
}

static const struct ps_rec_param lars[] = {{"lr", 1}, {"eta", 0.5}};

/* Two slots have contributed 1 each to key 1, whose value is 2. */
static struct world *world_that_asks(void)
{
    static const float first = 2;
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .params = lars, .params_count = 2, .optimizer = "lars"});

    agent_init(&w->agents[0], 1, 1, &first);
    push_ranks(&w->agents[0], 1, 1, 1, PS_REDUCE_SUM);
    push_ranks(&w->agents[1], 1, 1, 1, PS_REDUCE_SUM);
    return w;
}

static void a_step_waits_for_norms(void **state)
{
    struct world *w = world_that_asks();
    struct agent *a = &w->agents[0];
    struct ps_msg_norm_result norms = {.gen = GEN,
                                       .key = 1,
                                       .round = 1,
                                       .stage = PS_STAGE_GRADIENT,
                                       .square_sum = 16,
                                       .weight_square_sum = 64};
    struct ps_msg_norm_result other = norms;

    (void)state;
    assert_int_equal(w->norm_part_count, 1);
    assert_int_equal(w->last_norm_part.gen, GEN);
    assert_int_equal(w->last_norm_part.key, 1);
    assert_int_equal(w->last_norm_part.index, 0);
    assert_int_equal(w->last_norm_part.round, 1);
    assert_int_equal(w->last_norm_part.stage, PS_STAGE_GRADIENT);
    assert_true(w->square == 4 && w->weight_square == 4);
    assert_int_equal(a->seen[1].values, 0);
    /* Summed contributions use no credit. */
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 1), 0);
    push_ranks(a, 1, 1, 1, PS_REDUCE_SUM); /* Again: it counts once. */
    other.key = 2;
    sched_send_norm_result(w, &other);
    other = norms;
    other.round = 2;
    sched_send_norm_result(w, &other);
    other = norms;
    other.stage = PS_STAGE_DIRECTION;
    sched_send_norm_result(w, &other);
    other = norms;
    other.gen++;
    sched_send_norm_result(w, &other);
    assert_int_equal(a->seen[1].values, 0);
    sched_send_norm_result(w, &norms);
    /* eta 8 / 4 is 1. */
    assert_int_equal(a->seen[1].value_version, 1);
    assert_true(agent_f32(a, 1) == 0);
    sched_send_norm_result(w, &norms);
    assert_int_equal(a->seen[1].values, 1);
    assert_int_equal(w->norm_part_count, 1);
    world_free(w);
}

static void squares_are_sent_again_to_a_restarted_scheduler(void **state)
{
    struct world *w = world_that_asks();

    (void)state;
    world_closed(w, w->sched_conn);
    world_run(w, PS_SECONDS(1));
    assert_true(w->up_resumed);
    assert_int_equal(w->norm_part_count, 1);
    world_closed(w, w->sched_conn);
    w->up_session = 0;
    ps_link_free(w->sched);
    w->sched = NULL;
    world_run(w, PS_SECONDS(1));
    assert_int_equal(w->norm_part_count, 2);
    assert_true(w->square == 4);
    sched_send_norm_result(
        w, &(struct ps_msg_norm_result){.gen = GEN,
                                        .key = 1,
                                        .round = 1,
                                        .stage = PS_STAGE_GRADIENT,
                                        .square_sum = 4,
                                        .weight_square_sum = 4});
    assert_true(agent_f32(&w->agents[1], 1) == 1);
    world_free(w);
}

static void a_job_ends_while_it_waits_for_norms(void **state)
{
    struct world *w = world_that_asks();

    (void)state;
    sched_end(w);
    assert_int_equal(ps_server_residue(w->server), 0);
    sched_send_norm_result(
        w, &(struct ps_msg_norm_result){
               .gen = GEN, .key = 1, .round = 1, .stage = PS_STAGE_GRADIENT});
    assert_int_equal(w->agents[0].seen[1].values, 0);
    world_free(w);
}

/* It moves away before the norms are known: no step waits for them. */
static void moved_partition_takes_no_step_with_late_norms(void **state)
{
    struct world *w = world_that_asks();

    (void)state;
    sched_move(w, 1, 1, NULL);
    sched_move_end(w, 1, 1, false, 5);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_STALE);
    sched_send_norm_result(
        w, &(struct ps_msg_norm_result){
               .gen = GEN, .key = 1, .round = 1, .stage = PS_STAGE_GRADIENT});
    assert_int_equal(w->agents[0].seen[1].values, 0);
    world_free(w);
}

static void an_optimizer_needs_a_value_and_floats(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 0.1}};
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = params, .params_count = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_f32(a, 0, 1, 1);
    assert_int_equal(a->seen[0].error, PS_E_NOKEY);
    agent_push_i64(a, 1, 1, 1);
    assert_int_equal(a->seen[1].error, PS_E_UNSUPPORTED);
    /* A broadcast is no step, and replaces the value. */
    agent_push(a, &(struct push_options){.key = 0,
                                         .round = 1,
                                         .count = 1,
                                         .data = &(float){8},
                                         .assign = true});
    assert_true(agent_f32(a, 0) == 8);
    agent_push_f32(a, 0, 2, 10);
    assert_true(agent_f32(a, 0) == 7);
    assert_int_equal(ps_server_residue(w->server), 1);
    world_free(w);
}

static void mean_divides_by_the_contributing_ranks(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 3});

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        agent_push(&w->agents[i], &(struct push_options){
                                      .key = 0,
                                      .round = 1,
                                      .dtype = PS_DTYPE_INT64,
                                      .count = i == 1 ? 0 : 1,
                                      .data = &(int64_t){17},
                                      .weight = i + 1,
                                      .reduce = PS_REDUCE_MEAN,
                                  });
    }
    /* 34 by 1 + 3 ranks; the slot that skipped has no weight. */
    assert_int_equal(agent_i64(&w->agents[1], 0), 8);
    world_free(w);
}

static void broadcast_takes_the_value_of_its_root(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 4});

    (void)state;
    for (uint64_t r = 1; r <= 4; r++) {
        for (uint32_t i = 0; i < 4; i++) {
            agent_push(&w->agents[i], &(struct push_options){
                                          .key = 2,
                                          .round = r,
                                          .count = i == r - 1 ? 1 : 0,
                                          .data = &(float){(float)r},
                                          .assign = true,
                                      });
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_true(agent_f32(&w->agents[i], 2) == (float)r);
        }
    }
    world_free(w);
}

static void round_of_empty_contributions_keeps_the_value(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    for (uint64_t r = 1; r <= 2; r++) {
        for (uint32_t i = 0; i < 2; i++) {
            agent_push(&w->agents[i],
                       &(struct push_options){.key = 2, .round = r});
        }
        assert_int_equal(w->agents[0].seen[2].commit_version, r);
        assert_int_equal(w->agents[0].seen[2].values, 0);
    }
    for (uint64_t r = 3; r <= 4; r++) {
        for (uint32_t i = 0; i < 2; i++) {
            agent_push(&w->agents[i],
                       &(struct push_options){.key = 2,
                                              .round = r,
                                              .count = r == 3 ? 1 : 0,
                                              .data = &(float){4}});
        }
        assert_int_equal(w->agents[1].seen[2].value_version, r);
        assert_true(agent_f32(&w->agents[1], 2) == 8);
    }
    world_free(w);
}

/* All slots; value 0 is a skip. Every order of arrival has the same result. */
static void skip_does_not_change_the_result(void **state)
{
    static const uint8_t order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                       {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const struct {
        enum ps_reduce reduce;
        int64_t give[3];
        int64_t want;
    } cases[] = {
        {PS_REDUCE_SUM, {5, 0, 7}, 12},    {PS_REDUCE_MEAN, {0, 40, 1}, 41 / 5},
        {PS_REDUCE_MEAN, {0, 0, 9}, 9},    {PS_REDUCE_MIN, {0, 3, 4}, 3},
        {PS_REDUCE_MAX, {-3, -4, 0}, -3},  {PS_REDUCE_PRODUCT, {0, 6, 7}, 42},
        {PS_REDUCE_PRODUCT, {0, 0, 7}, 7},
    };

    (void)state;
    for (uint32_t o = 0; o < 6; o++) {
        struct world *w = world_new(&(struct world_options){.slots = 3});

        for (uint32_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
            for (uint32_t i = 0; i < 3; i++) {
                const uint32_t who = order[o][i];
                const int64_t give = cases[n].give[who];

                /* Slot 1 has four ranks. */
                agent_push(
                    &w->agents[who],
                    &(struct push_options){.key = 1,
                                           .round = n + 1,
                                           .dtype = PS_DTYPE_INT64,
                                           .count = give != 0,
                                           .data = &give,
                                           .weight = who == 1 ? 4 : 1,
                                           /* Its request is ignored. */
                                           .reduce = give != 0 ? cases[n].reduce
                                                               : PS_REDUCE_MAX,
                                           .skips = give == 0});
            }
            for (uint32_t i = 0; i < 3; i++) {
                assert_int_equal(w->agents[i].seen[1].value_version, n + 1);
                assert_int_equal(agent_i64(&w->agents[i], 1), cases[n].want);
                assert_false(w->agents[i].seen[1].all_skipped);
            }
        }
        assert_int_equal(ps_server_residue(w->server), 1);
        world_free(w);
    }
}

static void round_that_all_skip_keeps_the_value(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];

    (void)state;
    agent_push_f32(a, 2, 1, 3);
    agent_push_f32(b, 2, 1, 4);
    assert_false(a->seen[2].all_skipped);
    agent_skip(a, 2, 2);
    assert_int_equal(a->seen[2].commits, 0);
    agent_skip(b, 2, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(w->agents[i].seen[2].commit_version, 2);
        assert_true(w->agents[i].seen[2].all_skipped);
    }
    /* The reply was lost, and the skip is sent again. */
    b->seen[2].all_skipped = false;
    agent_disconnect(b);
    agent_drop_link(b);
    agent_dial(b);
    agent_skip(b, 2, 2);
    assert_int_equal(b->seen[2].commit_version, 2);
    assert_true(b->seen[2].all_skipped);
    agent_pull(b, 2, 2);
    assert_int_equal(b->seen[2].value_version, 2);
    assert_true(b->seen[2].all_skipped);
    assert_true(agent_f32(b, 2) == 7);
    /* The next one is a round like others. */
    agent_push_f32(b, 2, 3, 1);
    agent_skip(a, 2, 3);
    assert_int_equal(a->seen[2].commit_version, 3);
    assert_false(a->seen[2].all_skipped);
    assert_true(agent_f32(b, 2) == 1);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
    world_free(w);
}

/* A key without a value has rounds, too. */
static void first_round_can_be_skipped_by_all(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        agent_skip(&w->agents[i], 3, 1);
    }
    assert_int_equal(w->agents[0].seen[3].commit_version, 1);
    assert_true(w->agents[0].seen[3].all_skipped);
    for (uint32_t i = 0; i < 2; i++) {
        agent_push_f32(&w->agents[i], 3, 2, 2);
    }
    assert_true(agent_f32(&w->agents[1], 3) == 4);
    world_free(w);
}

/* Adam counts its steps, and its first ones are larger for it. */
static void round_that_all_skip_is_no_optimizer_step(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 1}};
    static const float first = 100;
    float weight[2][3];

    (void)state;
    for (uint32_t passes = 0; passes < 2; passes++) {
        struct world *w = world_new(
            &(struct world_options){.slots = 2,
                                    .params = params,
                                    .params_count = 1,
                                    .optimizer = "adam"});
        uint64_t round = 0;

        agent_init(&w->agents[0], 1, 1, &first);
        for (uint32_t step = 0; step < 3; step++) {
            for (uint32_t n = 0; n < passes * 5; n++) {
                round++;
                agent_skip(&w->agents[1], 1, round);
                agent_skip(&w->agents[0], 1, round);
                assert_true(w->agents[0].seen[1].all_skipped);
            }
            round++;
            push_ranks(&w->agents[0], round, 1 + (float)step, 1, PS_REDUCE_SUM);
            agent_skip(&w->agents[1], 1, round);
            assert_int_equal(w->agents[0].seen[1].value_version, round);
            weight[passes][step] = agent_f32(&w->agents[0], 1);
        }
        world_free(w);
    }
    assert_true(weight[0][2] != first);
    assert_memory_equal(weight[0], weight[1], sizeof(weight[0]));
}

static void round_that_all_skip_is_not_accumulated(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 1}, {"accumulate", 2}};
    static const float first = 100;
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .params = params, .params_count = 2});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];

    (void)state;
    agent_init(a, 1, 1, &first);
    push_ranks(a, 1, 8, 1, PS_REDUCE_MEAN);
    push_ranks(b, 1, 4, 1, PS_REDUCE_MEAN);
    agent_skip(a, 1, 2);
    agent_skip(b, 1, 2);
    assert_true(a->seen[1].all_skipped);
    push_ranks(a, 3, 3, 1, PS_REDUCE_MEAN);
    assert_true(agent_f32(a, 1) == first);
    agent_skip(b, 1, 3);
    assert_int_equal(a->seen[1].value_version, 3);
    assert_true(agent_f32(a, 1) == first - 15.0F / 3);
    world_free(w);
}

static void skip_of_the_root_fails_the_broadcast(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 3});

    (void)state;
    /* The second time another rank of its node requests the value. */
    for (uint32_t attempt = 0; attempt < 2; attempt++) {
        for (uint32_t i = 0; i < 3; i++) {
            const bool passes = i == 1 && attempt == 0;

            w->agents[i].retry = attempt;
            agent_push(&w->agents[i], &(struct push_options){.key = 1,
                                                             .round = 1,
                                                             .assign = !passes,
                                                             .skips = passes});
        }
        for (uint32_t i = 0; i < 3; i++) {
            const struct seen *s = &w->agents[i].seen[1];

            assert_int_equal(s->refusals, attempt + 1);
            assert_int_equal(s->error, PS_E_MISMATCH);
            assert_int_equal(s->retry, attempt + 1);
            assert_true(s->assign);
            assert_int_equal(s->conflict_slot_count, 0);
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        w->agents[i].retry = 2;
    }
    /* Others may broadcast without it. */
    for (uint32_t i = 0; i < 3; i++) {
        agent_push(&w->agents[i], &(struct push_options){.key = 1,
                                                         .round = 1,
                                                         .count = i == 2,
                                                         .data = &(float){5},
                                                         .assign = i != 1,
                                                         .skips = i == 1});
        assert_int_equal(server_unmerged_bytes(w->server, GEN, i), 0);
    }
    assert_true(agent_f32(&w->agents[1], 1) == 5);
    world_free(w);
}

static void skip_is_no_side_of_a_conflict(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 4});

    (void)state;
    agent_skip(&w->agents[3], 1, 1);
    push_ranks(&w->agents[0], 1, 1, 1, PS_REDUCE_SUM);
    push_ranks(&w->agents[2], 1, 1, 1, PS_REDUCE_MEAN);
    for (uint32_t i = 0; i < 4; i++) {
        const struct seen *s = &w->agents[i].seen[1];

        assert_int_equal(s->refusals, i == 1 ? 0 : 1);
        if (i != 1) {
            assert_int_equal(s->conflict_slot_count, 1);
            assert_int_equal(s->conflict_slots[0], i == 2 ? 0 : 2);
        }
    }
    world_free(w);
}

/* One agent knows that all skipped, the other does not; their server is lost. */
static void takeover_keeps_that_all_ranks_skipped(void **state)
{
    (void)state;
    for (uint32_t late = 0; late < 2; late++) {
        struct world *w = world_new(&(struct world_options){.slots = 2});
        struct agent *a = &w->agents[0];
        struct agent *b = &w->agents[1];
        struct ps_rec_part part = {
            .key = 1, .round = 6, .count = 1, .all_skipped = true};
        const struct ps_msg resume = {.code = PS_MSG_RESTORE,
                                      .restore = {.gen = GEN,
                                                  .slot = a->index,
                                                  .has_value = true,
                                                  .parts = &part,
                                                  .parts_count = 1}};

        agent_restore(b, 1, 5, 50, true);
        if (late == 0) {
            agent_skip(b, 1, 6);
            assert_int_equal(b->seen[1].commits, 0);
        }
        agent_send(a, &resume, &(float){50}, sizeof(float));
        world_run_until_idle(w);
        if (late == 1) {
            agent_skip(b, 1, 6);
        }
        assert_int_equal(b->seen[1].commit_version, 6);
        assert_true(b->seen[1].all_skipped);
        agent_push_f32(a, 1, 7, 3);
        agent_skip(b, 1, 7);
        assert_int_equal(b->seen[1].commit_version, 7);
        assert_false(b->seen[1].all_skipped);
        assert_true(agent_f32(a, 1) == 3);
        world_free(w);
    }
}

static void skip_with_a_payload_is_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    agent_push(&w->agents[0], &(struct push_options){.key = 1,
                                                     .round = 1,
                                                     .count = 1,
                                                     .data = &(float){5},
                                                     .skips = true});
    assert_int_equal(w->agents[0].seen[1].error, PS_E_INVAL);
    agent_skip(&w->agents[0], 1, 3);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_FUTURE);
    agent_skip(&w->agents[0], 1, 1);
    assert_int_equal(w->agents[0].seen[1].commit_version, 1);
    world_free(w);
}

static void float64_and_int32_are_summed(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    double f64 = 0.1;
    int32_t i32 = 1 << 30;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        agent_push(&w->agents[i],
                   &(struct push_options){.key = 0,
                                          .round = 1,
                                          .dtype = PS_DTYPE_FLOAT64,
                                          .count = 1,
                                          .data = &f64});
        agent_push(&w->agents[i],
                   &(struct push_options){.key = 1,
                                          .round = 1,
                                          .dtype = PS_DTYPE_INT32,
                                          .count = 1,
                                          .data = &(int32_t){i32 / 2}});
    }
    double want = 0.1 + 0.1;

    assert_memory_equal(w->agents[0].seen[0].bytes, &want, 8);
    assert_memory_equal(w->agents[0].seen[1].bytes, &i32, 4);
    world_free(w);
}

/* ---------------------------------------------------------- small frames */

/* Many partitions in one frame; with a float of odd count before doubles, so
 * that these lie at odd addresses. */
static void small_partitions_share_frames(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct ps_rec_part parts[64];
    uint8_t data[64 * 12];

    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        bool wide = i % 2 == 1;

        parts[i] = (struct ps_rec_part){
            .key = i,
            .round = 1,
            .dtype = wide ? PS_DTYPE_FLOAT64 : PS_DTYPE_FLOAT32,
            .count = 1,
        };
    }
    size_t len = 0;

    for (uint32_t i = 0; i < 64; i++) {
        float f = (float)i;
        double d = (double)i;
        size_t size = ps_dtype_size(parts[i].dtype);

        memcpy(data + len, size == 4 ? (void *)&f : (void *)&d, size);
        len += size;
    }
    for (uint32_t i = 0; i < 2; i++) {
        agent_send(&w->agents[i],
                   &(struct ps_msg){.code = PS_MSG_PUSH,
                                    .push = {.gen = GEN,
                                             .slot = i,
                                             .incarnation = 1,
                                             .weight = 1,
                                             .needs_value = true,
                                             .parts = parts,
                                             .parts_count = 64}},
                   data, len);
        world_run_until_idle(w);
    }
    for (uint32_t i = 0; i < 64; i++) {
        const struct seen *s = &w->agents[1].seen[i];

        assert_int_equal(s->value_version, 1);
        if (i % 2 == 1) {
            double d;

            memcpy(&d, s->bytes, sizeof(d));
            assert_true(d == 2.0 * i);
        } else {
            assert_true(agent_f32(&w->agents[1], i) == 2.0f * (float)i);
        }
    }
    /* Each computation ended in an event of its own, and still few frames. */
    assert_true(w->agents[1].value_frames <= 2);
    world_free(w);
}

/* More answers at one moment than a frame may have parts or bytes. */
static void replies_fill_frames_up_to_their_limits(void **state)
{
    const uint32_t count = PS_BATCH_PART_MAX / 4;
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];
    float *data = ps_calloc(count * 20, 4);
    struct ps_rec_part parts[128];

    (void)state;
    for (uint64_t r = 1; r <= 6; r++) {
        for (uint32_t i = 0; i < 128; i++) {
            parts[i] = (struct ps_rec_part){.key = i, .round = r, .count = 1};
        }
        agent_send(a,
                   &(struct ps_msg){.code = PS_MSG_PUSH,
                                    .push = {.gen = GEN,
                                             .incarnation = 1,
                                             .weight = 1,
                                             .needs_value = r <= 3,
                                             .parts = parts,
                                             .parts_count = 128}},
                   data, 128 * sizeof(float));
    }
    world_run_until_idle(w);
    assert_int_equal(a->value_frames, 2); /* 256 and 128. */
    for (uint32_t i = 0; i < 128; i++) {
        assert_int_equal(a->seen[i].values, 3);
        assert_int_equal(a->seen[i].commits, 3);
        assert_int_equal(a->seen[i].commit_version, 6);
    }
    world_free(w);

    w = world_new(&(struct world_options){.slots = 1});
    a = &w->agents[0];
    for (uint32_t i = 0; i < 20; i++) {
        parts[i] = (struct ps_rec_part){.key = i, .round = 1, .count = count};
    }
    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PUSH,
                                .push = {.gen = GEN,
                                         .incarnation = 1,
                                         .weight = 1,
                                         .needs_value = true,
                                         .parts = parts,
                                         .parts_count = 20}},
               data, 20 * PS_BATCH_PART_MAX);
    world_run_until_idle(w);
    assert_int_equal(a->value_frames, 2); /* 16 fill a frame. */
    assert_int_equal(a->seen[19].values, 1);
    ps_free(data);
    world_free(w);
}

/* ------------------------------------------------------------ pull, init */

static void pull_waits_for_the_init_of_its_key(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];

    (void)state;
    agent_pull(b, 5, 0);
    agent_pull(b, 5, 0);
    assert_int_equal(ps_server_residue(w->server), 2);
    assert_int_equal(b->seen[5].values, 0);
    agent_init(a, 5, 1, &(float){9});
    assert_int_equal(a->seen[5].commits, 1);
    assert_int_equal(a->seen[5].commit_version, 0);
    assert_int_equal(b->seen[5].values, 1);
    assert_true(agent_f32(b, 5) == 9);

    /* The first init counts; the second gets a commit. */
    agent_init(b, 5, 1, &(float){10});
    assert_int_equal(b->seen[5].commits, 1);
    agent_pull(a, 5, 0);
    assert_true(agent_f32(a, 5) == 9);

    /* A pull waits for a newer version and is answered once. */
    agent_pull(a, 5, 1);
    assert_int_equal(a->seen[5].values, 1);
    agent_push_f32(a, 5, 1, 1);
    agent_push(b, &(struct push_options){.key = 5,
                                         .round = 1,
                                         .count = 1,
                                         .data = &(float){1},
                                         .commit_only = true});
    assert_int_equal(a->seen[5].values, 2);
    assert_true(agent_f32(a, 5) == 2);
    assert_int_equal(b->seen[5].values, 1);
    assert_int_equal(ps_server_residue(w->server), 1);
    world_free(w);
}

static void pulls_wait_for_the_newest_requested_version(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_pull(a, 5, 2);
    agent_pull(a, 5, 1);
    agent_push(a, &(struct push_options){.key = 5,
                                         .round = 1,
                                         .count = 1,
                                         .data = &(float){1},
                                         .commit_only = true});
    assert_int_equal(a->seen[5].values, 0);
    agent_push(a, &(struct push_options){.key = 5,
                                         .round = 2,
                                         .count = 1,
                                         .data = &(float){2},
                                         .commit_only = true});
    assert_int_equal(a->seen[5].values, 1);
    assert_int_equal(a->seen[5].value_version, 2);
    world_free(w);
}

static void pulls_of_a_restarted_agent_are_dropped(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_pull(a, 5, 0);
    agent_push_i64(a, 6, 1, 30);
    agent_disconnect(a);
    agent_restart(a);
    sched_send_job_state(
        w, &(struct job_options){.version = 2, .phase = PS_JOB_PHASE_RUNNING});
    agent_dial(a);
    agent_init(&w->agents[1], 5, 1, &(float){9});
    assert_int_equal(a->seen[5].values, 0);
    /* Its earlier push stays, and counts once with the push that it sends
     * again. */
    agent_push_i64(a, 6, 1, 30);
    agent_push_i64(&w->agents[1], 6, 1, 12);
    assert_int_equal(agent_i64(a, 6), 42);
    world_free(w);
}

/* -------------------------------------------------------------- takeover */

/* One agent holds version 5, the other 6, to which the first contributed; the
 * second has pushed round 7. */
static void takeover_event(struct world *w, uint32_t event)
{
    switch (event) {
    case 0:
        agent_restore(&w->agents[0], 1, 5, 50, true);
        break;
    case 1:
        agent_restore(&w->agents[1], 1, 6, 60, true);
        break;
    case 2:
        agent_push_f32(&w->agents[0], 1, 6, 1);
        break;
    case 3:
        agent_push_f32(&w->agents[1], 1, 7, 2);
        break;
    case 4:
        agent_pull(&w->agents[0], 1, 6);
        break;
    }
}

static void takeover_does_not_depend_on_message_order(void **state)
{
    uint32_t orders = 0;

    (void)state;
    for (uint32_t code = 0; code < 3125; code++) {
        uint32_t order[5];
        uint32_t mask = 0;

        for (uint32_t i = 0, c = code; i < 5; i++, c /= 5) {
            order[i] = c % 5;
            mask |= 1u << order[i];
        }
        if (mask != 31) {
            continue;
        }
        orders++;
        struct world *w = world_new(&(struct world_options){.slots = 2});

        for (uint32_t i = 0; i < 5; i++) {
            takeover_event(w, order[i]);
        }
        /* Messages that were early are sent again. */
        takeover_event(w, 2);
        takeover_event(w, 3);
        assert_int_equal(w->agents[0].seen[1].value_version, 6);
        assert_true(agent_f32(&w->agents[0], 1) == 60);
        agent_push_f32(&w->agents[0], 1, 7, 4);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(w->agents[i].seen[1].value_version, 7);
            assert_true(agent_f32(&w->agents[i], 1) == 6);
        }
        assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
        assert_int_equal(server_unmerged_bytes(w->server, GEN, 1), 0);
        assert_int_equal(ps_server_residue(w->server), 1);
        world_free(w);
    }
    assert_int_equal(orders, 120);
}

static void restored_version_replaces_a_pending_merge(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    uint64_t version;
    const struct ps_slice *value;

    (void)state;
    w->hold_compute = true;
    agent_push_f32(&w->agents[0], 1, 1, 1);
    agent_push_f32(&w->agents[1], 1, 1, 2);
    assert_int_equal(w->compute_count, 1);
    agent_restore(&w->agents[0], 1, 1, 3, true);
    assert_int_equal(w->agents[1].seen[1].values, 1);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
    world_computed(w, 0, 0);
    world_run_until_idle(w);
    assert_int_equal(w->agents[1].seen[1].values, 1);
    assert_true(server_peek(w->server, GEN, 1, 0, &version, &value));
    assert_int_equal(version, 1);
    assert_true(*(const float *)(void *)ps_slice_data(value) == 3);
    world_free(w);
}

/* A round of three slots in two partitions: in any order of arrival, all get
 * the conflict once for each attempt, and the next attempt is merged. */
static void conflict_reaches_all_slots_once_an_attempt(void **state)
{
    static const uint8_t order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                       {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    (void)state;
    for (uint32_t o = 0; o < 6; o++) {
        struct world *w = world_new(&(struct world_options){.slots = 3});

        for (uint32_t i = 0; i < 3; i++) {
            /* It got the conflict from another server first. */
            const bool ahead = o % 2 == 1 && i == 2;
            struct agent *a = &w->agents[order[o][i]];

            a->retry = ahead;
            agent_push(
                a, &(struct push_options){.key = 1,
                                          .round = 1,
                                          .count = 1,
                                          .data = &(float){1},
                                          .reduce = order[o][i] == 1 && !ahead
                                                        ? PS_REDUCE_MAX
                                                        : PS_REDUCE_SUM});
        }
        for (uint32_t i = 0; i < 3; i++) {
            struct agent *a = &w->agents[i];
            const bool ahead = a->retry == 1;

            assert_int_equal(a->seen[1].refusals, ahead ? 0 : 1);
            if (ahead) {
                continue;
            }
            assert_int_equal(a->seen[1].error, PS_E_MISMATCH);
            assert_int_equal(a->seen[1].retry, 1);
            a->retry = 1;
            agent_push_f32(a, 1, 1, 1);
        }
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(w->agents[i].seen[1].value_version, 1);
            assert_true(agent_f32(&w->agents[i], 1) == 3);
            assert_int_equal(server_unmerged_bytes(w->server, GEN, i), 0);
            w->agents[i].retry = 0; /* Of the next round it is the first. */
            agent_push_f32(&w->agents[i], 1, 2, 2);
        }
        assert_true(agent_f32(&w->agents[0], 1) == 6);
        assert_int_equal(ps_server_residue(w->server), 1);
        world_free(w);
    }
}

static void an_abort_ends_the_attempt_for_all(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];

    (void)state;
    for (int first = 0; first < 2; first++) {
        const uint32_t key = first ? 1 : 2;
        const struct ps_rec_part part = {.key = key, .round = 1};
        const struct ps_msg m = {
            .code = PS_MSG_ABORT_ROUND,
            .abort_round = {
                .gen = GEN, .retry = 1, .parts = &part, .parts_count = 1}};

        a->retry = b->retry = 0;
        if (first) {
            agent_push_f32(b, key, 1, 1);
        }
        agent_send(a, &m, NULL, 0);
        world_run_until_idle(w);
        if (!first) {
            agent_push_f32(b, key, 1, 1);
        }
        assert_int_equal(b->seen[key].error, PS_E_MISMATCH);
        assert_int_equal(b->seen[key].retry, 1);
        a->retry = b->retry = 1;
        agent_push_f32(a, key, 1, 1);
        agent_push_f32(b, key, 1, 1);
        assert_true(agent_f32(b, key) == 2);
    }
    world_free(w);
}

/* A committed version without a holder is lost only when all slots have
 * reported. */
static void version_is_lost_when_no_slot_reports_its_value(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    agent_restore_committed(&w->agents[0], 1, 4);
    agent_restore(&w->agents[1], 1, 4, 3, true); /* It has it. */
    assert_int_equal(w->value_lost_count, 0);
    agent_restore_committed(&w->agents[0], 2, 4);
    agent_restore_committed(&w->agents[0], 2, 4);
    assert_int_equal(w->value_lost_count, 0);
    agent_restore(&w->agents[1], 2, 3, 3, true);
    assert_int_equal(w->value_lost_count, 1);
    world_free(w);
}

static void lost_value_is_reported_when_the_uplink_resumes(void **st)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)st;
    world_closed(w, w->sched_conn);
    agent_restore_committed(&w->agents[0], 1, 4);
    agent_restore_committed(&w->agents[1], 1, 4);
    assert_int_equal(w->value_lost_count, 0);
    world_run(w, PS_SECONDS(1));
    assert_true(w->up_resumed);
    assert_int_equal(w->value_lost_count, 1);
    world_free(w);
}

static void takeover_with_an_optimizer_is_refused(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 0.1}};
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = params, .params_count = 1});

    (void)state;
    agent_restore(&w->agents[0], 1, 4, 3, true);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_UNSUPPORTED);
    assert_non_null(strstr(w->agents[0].text, "on a server that is lost"));
    world_free(w);
}

/* An agent that does not know yet of the optimizer sends its value. */
static void restore_of_a_version_that_is_there_changes_nothing(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 1}};
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .params = params, .params_count = 1});
    const float zero = 0;

    (void)state;
    agent_init(&w->agents[0], 1, 1, &zero);
    agent_push_f32(&w->agents[0], 1, 1, 2);
    assert_int_equal(w->agents[0].seen[1].value_version, 1);
    for (uint64_t version = 0; version <= 1; version++) {
        agent_restore(&w->agents[0], 1, version, 3, true);
        assert_int_equal(w->agents[0].seen[1].error, 0);
    }
    agent_push_f32(&w->agents[0], 1, 2, 5);
    assert_int_equal(w->agents[0].seen[1].value_version, 2);
    assert_true(agent_f32(&w->agents[0], 1) == -7);
    world_free(w);
}

/* ---------------------------------------------------------------- credit */

/* Small, because sanitizers take long for large memory; a frame of its own. */
#define PART  (32u * 1024u)
#define PARTS 32u
#define FIRST (8u * PART)

static float *part_data(void)
{
    return ps_calloc(PART / 4, 4);
}

static void push_part(struct agent *a, uint32_t key, uint64_t round,
                      const float *data)
{
    agent_push(
        a, &(struct push_options){
               .key = key, .round = round, .count = PART / 4, .data = data});
}

/* All agents send in the same order: none runs further ahead than the window
 * and one frame. */
static void lead_of_an_agent_is_limited_by_the_window(void **state)
{
    const uint64_t window = 2 * FIRST;
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = window, .credit_first = FIRST});
    struct agent *fast = &w->agents[0];
    struct agent *slow = &w->agents[1];
    float *data = part_data();
    uint32_t sent = 0;

    (void)state;
    while (sent < PARTS && fast->sent < fast->credit) {
        push_part(fast, sent++, 1, data);
    }
    assert_int_equal(sent, window / PART);
    for (uint32_t k = 0; k < PARTS; k++) {
        push_part(slow, k, 1, data);
        assert_int_equal(slow->seen[k].value_version, 1);
        while (sent < PARTS && fast->sent < fast->credit) {
            push_part(fast, sent++, 1, data);
        }
        assert_true(server_unmerged_bytes(w->server, GEN, 0) < window + PART);
        assert_true(ps_pool_used(w->pool) < window + (k + 4) * PART + 2 * PART);
    }
    assert_int_equal(sent, PARTS);
    ps_free(data);
    world_free(w);
}

/* More than an agent may be ahead of the others that send. */
#define FAR (512u * 1024u)

static void push_far(struct agent *a, uint32_t key, uint64_t round,
                     const float *data)
{
    agent_push(a,
               &(struct push_options){
                   .key = key, .round = round, .count = FAR / 4, .data = data});
}

/* Requests memory for the next part of an agent, and releases it. */
static int may_read(struct world *w, const struct agent *a, uint32_t slot)
{
    struct ps_rec_part part = {.key = 100, .round = 1, .count = FAR / 4};
    struct ps_msg msg = {
        .code = PS_MSG_PUSH,
        .seq = 1000,
        .push = {.gen = GEN,
                 .slot = slot,
                 .incarnation = 1,
                 .weight = 1,
                 .parts = &part,
                 .parts_count = 1},
    };
    struct ps_slice s = {0};
    int rc = w->machine.ops->payload(w->machine.self, a->conn, &msg, FAR, &s);

    ps_buf_unref(s.buf);
    return rc;
}

/* A slot that is ahead leaves the link to the others, while they use it. */
static void agent_ahead_of_the_others_is_paused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 3});
    float *data = ps_calloc(FAR / 4, 4);

    (void)state;
    /* Alone, it need not wait. */
    push_far(&w->agents[0], 0, 1, data);
    push_far(&w->agents[0], 1, 1, data);
    assert_int_equal(may_read(w, &w->agents[0], 0), 0);
    push_far(&w->agents[1], 0, 1, data);
    assert_int_equal(may_read(w, &w->agents[0], 0), PS_E_AGAIN);
    assert_int_equal(may_read(w, &w->agents[1], 1), 0);
    /* The third has begun: both wait for it, and it waits for none. */
    assert_int_equal(may_read(w, &w->agents[2], 2), 0);
    assert_int_equal(may_read(w, &w->agents[1], 1), PS_E_AGAIN);
    assert_int_equal(may_read(w, &w->agents[2], 2), 0);
    push_far(&w->agents[2], 0, 1, data); /* Round 0 is complete. */
    assert_int_equal(may_read(w, &w->agents[1], 1), 0);
    assert_int_equal(may_read(w, &w->agents[0], 0), PS_E_AGAIN);
    /* Silence of the others ends the wait: the machine has a deadline. */
    for (int i = 0; i < 2; i++) {
        ps_time at = w->machine.ops->deadline(w->machine.self);

        if (may_read(w, &w->agents[0], 0) == 0) {
            break;
        }
        assert_true(at < w->now + PS_SECONDS(1));
        w->now = at > w->now ? at : w->now;
        world_event(w, &(struct ps_event){.now = w->now, .type = PS_EV_TICK});
    }
    world_run_until_idle(w);
    assert_int_equal(may_read(w, &w->agents[0], 0), 0);
    ps_free(data);
    world_free(w);
}

/* A slot of which all is refused may wait for what the paused link brings. */
static void a_slot_that_is_refused_pauses_no_other(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    float *data = ps_calloc(FAR / 4, 4);
    const ps_time begin = w->now;

    (void)state;
    push_far(&w->agents[0], 0, 1, data);
    push_far(&w->agents[0], 1, 1, data);
    push_far(&w->agents[1], 0, 1, data);
    assert_int_equal(may_read(w, &w->agents[0], 0), PS_E_AGAIN);
    while (may_read(w, &w->agents[0], 0) != 0) {
        agent_push_f32(&w->agents[1], 2, 2, 1);
        assert_int_equal(w->agents[1].seen[2].error, PS_E_FUTURE);
        w->now += PS_MILLIS(5);
        world_event(w, &(struct ps_event){.now = w->now, .type = PS_EV_TICK});
        assert_true(w->now < begin + PS_SECONDS(5));
    }
    ps_free(data);
    world_free(w);
}

struct sender {
    uint32_t order[PARTS];
    uint32_t next;
};

static bool try_send(struct agent *a, struct sender *s, const float *data)
{
    if (s->next == PARTS || a->conn == 0 || a->sent >= a->credit) {
        return false;
    }
    push_part(a, s->order[s->next++], 1, data);
    return true;
}

static void credit_story(uint64_t seed)
{
    uint32_t slots = 2 + (uint32_t)(seed % 3);
    struct world *w = world_new(&(struct world_options){
        .slots = slots, .credit_window = FIRST, .credit_first = FIRST});
    struct sender senders[AGENTS_MAX] = {0};
    float *data = part_data();
    struct ps_rng rng;
    uint32_t idle = 0;

    ps_rng_init(&rng, seed);
    for (uint32_t i = 0; i < slots; i++) {
        for (uint32_t k = 0; k < PARTS; k++) {
            uint32_t j = (uint32_t)ps_rng_below(&rng, k + 1);

            senders[i].order[k] = senders[i].order[j];
            senders[i].order[j] = k;
        }
    }
    w->hold_compute = ps_rng_chance(&rng, 500);
    while (idle < 200) {
        uint32_t i = (uint32_t)ps_rng_below(&rng, slots);
        uint64_t before = w->agents[i].credit;
        bool moved = try_send(&w->agents[i], &senders[i], data);

        assert_true(w->agents[i].credit >= before);
        if (w->compute_count > 0 && (!moved || ps_rng_chance(&rng, 300))) {
            world_computed(w, (uint32_t)ps_rng_below(&rng, w->compute_count),
                           0);
            world_run_until_idle(w);
            moved = true;
        }
        if (ps_rng_chance(&rng, 20)) {
            /* A new session offers again all that is not merged. */
            struct agent *a = &w->agents[i];

            agent_disconnect(a);
            agent_drop_link(a);
            agent_dial(a);
            senders[i].next = 0;
            moved = true;
        }
        idle = moved ? 0 : idle + 1;
    }
    for (uint32_t i = 0; i < slots; i++) {
        if (senders[i].next != PARTS) {
            fail_msg("seed %llu: slot %u is stuck at %u of %u",
                     (unsigned long long)seed, i, senders[i].next, PARTS);
        }
        assert_int_equal(server_unmerged_bytes(w->server, GEN, i), 0);
        for (uint32_t k = 0; k < PARTS; k++) {
            assert_int_equal(w->agents[i].seen[k].value_version, 1);
        }
    }
    ps_free(data);
    world_free(w);
}

static void credit_never_stops_all_agents(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        credit_story(seed);
    }
}

static void credit_of_a_new_session_starts_at_zero(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .credit_window = FIRST, .credit_first = FIRST});
    struct agent *a = &w->agents[0];
    float *data = part_data();

    (void)state;
    for (uint64_t r = 1; r <= 20; r++) {
        push_part(a, 0, r, data);
        assert_int_equal(a->credit, a->sent + FIRST);
    }
    agent_disconnect(a);
    agent_dial(a);
    assert_true(a->resumed);
    push_part(a, 0, 21, data);
    assert_int_equal(a->credit, a->sent + FIRST);
    agent_disconnect(a);
    agent_drop_link(a);
    agent_dial(a);
    assert_int_equal(a->sent, 0);
    push_part(a, 0, 22, data);
    assert_int_equal(a->credit, PART + FIRST);
    ps_free(data);
    world_free(w);
}

static void push_beyond_the_credit_is_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = PS_CREDIT_INITIAL});
    struct agent *a = &w->agents[0];
    uint32_t count = 8u * 1024 * 1024;
    float *data = ps_calloc(count, 4);
    struct push_options o = {.round = 1, .count = count, .data = data};
    uint64_t limit = PS_CREDIT_INITIAL + PS_PAYLOAD_MAX;

    (void)state;
    for (o.key = 0; o.key < 6; o.key++) {
        agent_push(a, &o);
        assert_true(server_unmerged_bytes(w->server, GEN, 0) < limit);
    }
    assert_int_equal(a->seen[0].refusals, 0);
    assert_int_equal(a->seen[5].error, PS_E_FULL);
    ps_free(data);
    world_free(w);
}

/* ---------------------------------------------------------------- memory */

static void merge_without_memory_is_retried(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct ps_rec_part parts[2] = {
        {.key = 0, .round = 1, .count = 1},
        {.key = 1, .round = 1, .count = 1},
    };
    float data[2] = {1, 2};

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        agent_send(&w->agents[i],
                   &(struct ps_msg){.code = PS_MSG_PUSH,
                                    .push = {.gen = GEN,
                                             .slot = i,
                                             .incarnation = 1,
                                             .weight = 1,
                                             .needs_value = true,
                                             .parts = parts,
                                             .parts_count = 2}},
                   data, sizeof(data));
        if (i == 1) {
            /* The frame, and the first result; not the second. */
            ps_pool_fail_at(w->pool, 3);
        }
        world_run_until_idle(w);
    }
    assert_int_equal(w->agents[0].seen[0].values, 1);
    assert_int_equal(w->agents[0].seen[1].values, 0);
    assert_non_null(strstr(w->last_log, "no memory"));
    world_run(w, PS_MILLIS(50));
    assert_int_equal(w->agents[0].seen[1].values, 1);
    assert_true(agent_f32(&w->agents[0], 1) == 4);
    world_free(w);
}

static void payload_without_memory_is_retried(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];
    struct ps_rec_part part = {.key = 0, .round = 1, .count = 1};
    struct ps_msg msg = {
        .code = PS_MSG_PUSH,
        .seq = 1,
        .push = {.gen = GEN,
                 .incarnation = 1,
                 .weight = 1,
                 .parts = &part,
                 .parts_count = 1},
    };
    struct ps_slice s;

    (void)state;
    ps_pool_fail_at(w->pool, 1);
    assert_int_equal(
        w->machine.ops->payload(w->machine.self, a->conn, &msg, 4, &s),
        PS_E_AGAIN);
    assert_int_equal(
        w->machine.ops->payload(w->machine.self, a->conn, &msg, 4, &s), 0);
    assert_int_equal(s.len, 4);
    ps_buf_unref(s.buf);
    world_free(w);
}

/* Messages of a link may overtake each other: the server had no part in the job
 * when the scheduler sent that, and has one again. */
static void an_end_of_before_does_not_count(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    sched_send_job_state(
        w, &(struct job_options){.version = 5, .phase = PS_JOB_PHASE_RUNNING});
    agent_push_f32(&w->agents[0], 1, 1, 2);
    sched_send_job_state(
        w, &(struct job_options){.version = 4, .phase = PS_JOB_PHASE_ENDED});
    agent_push_f32(&w->agents[0], 1, 2, 3);
    assert_int_equal(w->agents[0].seen[1].value_version, 2);
    sched_end(w);
    assert_int_equal(ps_server_residue(w->server), 0);
    world_free(w);
}

static void ended_job_frees_its_memory(void **state)
{
    size_t live = ps_alloc_live();
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    w->hold_compute = true;
    for (uint32_t k = 0; k < 4; k++) {
        agent_push_f32(&w->agents[0], k, 1, 1);
        agent_push_f32(&w->agents[1], k, 1, 1);
    }
    agent_push_f32(&w->agents[0], 10, 1, 1); /* Half a round. */
    agent_pull(&w->agents[1], 11, 3);
    assert_int_equal(w->compute_count, 4);
    world_computed(w, 0, 0); /* Its replies are in a batch now. */
    sched_end(w);
    assert_int_equal(ps_server_residue(w->server), 0);
    while (w->compute_count > 0) {
        world_computed(w, 0, 0);
    }
    world_run(w, PS_SECONDS(1)); /* Everything is acknowledged. */
    assert_int_equal(ps_pool_used(w->pool), 0);

    /* An older state that arrives late does not bring it back. */
    sched_send_job_state(
        w, &(struct job_options){.version = 5, .phase = PS_JOB_PHASE_RUNNING});
    agent_push_f32(&w->agents[0], 0, 1, 1);
    assert_int_equal(w->agents[0].seen[0].error, PS_E_NOJOB);
    assert_int_equal(ps_server_residue(w->server), 0);
    world_free(w);
    assert_int_equal(ps_alloc_live(), live);
}

static void failed_merge_is_refused_to_all_slots(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    w->hold_compute = true;
    agent_push_f32(&w->agents[0], 0, 1, 1);
    agent_push_f32(&w->agents[1], 0, 1, 1);
    world_computed(w, 0, PS_E_BUG);
    world_run_until_idle(w);
    assert_int_equal(w->agents[0].seen[0].error, PS_E_BUG);
    assert_int_equal(w->agents[1].seen[0].refusals, 1);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
    world_free(w);
}

/* ---------------------------------------------------------- who may what */

static void push_before_its_job_is_refused_with_credit(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .credit_first = FIRST, .no_job = true});
    struct agent *a = &w->agents[0];
    float *data = part_data();

    (void)state;
    /* Refused bytes count as sent, so they must raise the credit. */
    for (uint32_t i = 0; i < 3 * FIRST / PART; i++) {
        assert_true(a->sent < a->credit);
        push_part(a, 0, 1, data);
        assert_int_equal(a->seen[0].error, PS_E_NOJOB);
    }
    sched_send_job_state(
        w, &(struct job_options){.version = 1, .phase = PS_JOB_PHASE_RUNNING});
    assert_true(a->sent < a->credit);
    push_part(a, 0, 1, data);
    assert_int_equal(a->seen[0].value_version, 1);
    ps_free(data);
    world_free(w);
}

static void malformed_requests_fail_only_their_sender(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *b = &w->agents[1];
    struct ps_server_stats stats;
    float two[2] = {1, 1};

    (void)state;
    agent_push_f32(a, 0, 0, 1);
    assert_int_equal(a->seen[0].error, PS_E_INVAL);
    agent_push_f32(a, 0, 2, 1);
    assert_int_equal(a->seen[0].error, PS_E_FUTURE);
    agent_push_f32(a, 0, 1, 1);
    assert_int_equal(a->seen[0].refusals, 2);

    struct push_options bad[] = {
        {.key = 0, .round = 1, .count = 2, .data = two},
        {.key = 0,
         .round = 1,
         .dtype = PS_DTYPE_INT32,
         .count = 1,
         .data = two},
        {.key = 0,
         .round = 1,
         .count = 1,
         .data = two,
         .reduce = PS_REDUCE_MEAN},
        {.key = 0, .round = 1, .count = 1, .data = two, .assign = true},
    };
    for (uint32_t i = 0; i < 4; i++) {
        agent_push(b, &bad[i]);
        assert_int_equal(b->seen[0].refusals, i + 1);
        assert_int_equal(b->seen[0].error, PS_E_MISMATCH);
    }
    agent_init(b, 0, 2, two);
    assert_int_equal(b->seen[0].refusals, 5);
    assert_int_equal(b->seen[0].error, PS_E_MISMATCH);
    agent_init(b, 9, 0, two);
    assert_int_equal(b->seen[9].error, PS_E_INVAL);

    /* Another one's slot, and one that is not there. */
    b->index = 0;
    agent_push_f32(b, 3, 1, 1);
    b->index = 7;
    agent_push_f32(b, 3, 1, 1);
    b->index = 1;
    ps_server_stats(w->server, &stats);
    assert_int_equal(stats.refused_frames, 2);
    assert_int_equal(b->seen[3].refusals, 0);
    assert_int_equal(b->seen[3].value_version, 0);

    assert_int_equal(w->closed_count, 0);
    /* Both sides of a conflict were refused. */
    assert_int_equal(a->seen[0].refusals, 3);
    a->retry = b->retry = 1;
    agent_push_f32(a, 0, 1, 1);
    agent_push_f32(b, 0, 1, 4);
    assert_true(agent_f32(a, 0) == 5);
    assert_int_equal(a->seen[0].refusals, 3);
    world_free(w);
}

static void parts_and_payload_must_agree(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct ps_rec_part part = {.key = 0, .round = 1, .count = 3};
    uint8_t bytes[64] = {0};
    static const uint16_t codes[] = {PS_MSG_PUSH, PS_MSG_INIT, PS_MSG_RESTORE};

    (void)state;
    for (uint32_t i = 0; i < 9; i++) {
        struct ps_msg msg = {.code = codes[i / 3]};
        size_t len = i % 3 == 0 ? 0 : i % 3 == 1 ? 8 : 16;

        if (msg.code == PS_MSG_PUSH) {
            msg.push = (struct ps_msg_push){.gen = GEN,
                                            .incarnation = 1,
                                            .weight = 1,
                                            .parts = &part,
                                            .parts_count = 1};
        } else if (msg.code == PS_MSG_INIT) {
            msg.init = (struct ps_msg_init){
                .gen = GEN, .parts = &part, .parts_count = 1};
        } else {
            msg.restore = (struct ps_msg_restore){.gen = GEN,
                                                  .has_value = true,
                                                  .parts = &part,
                                                  .parts_count = 1};
        }
        agent_send(a, &msg, bytes, len);
        world_run_until_idle(w);
        assert_int_equal(w->closed_count, i + 1);
        assert_int_equal(a->conn, 0);
        assert_non_null(strstr(w->last_log, "do not match the payload"));
        agent_restart(a);
        sched_send_job_state(
            w, &(struct job_options){.version = 2 + i,
                                     .phase = PS_JOB_PHASE_RUNNING});
        agent_dial(a);
        assert_true(a->conn != 0);
    }
    assert_int_equal(ps_server_residue(w->server), 0);
    assert_int_equal(ps_pool_used(w->pool), 0);
    world_free(w);
}

/* Role, cluster and name are those of the certificate. */
static void hello_that_the_certificate_contradicts_is_refused(void **state)
{
    static const struct {
        struct ps_peer_identity identity;
        const char *why; /* NULL: accepted. */
    } cases[] = {
        {{PS_ROLE_SERVER, "test", "agent"}, "of role server, not agent"},
        {{PS_ROLE_AGENT, "test", "other"}, "of 'other', not 'agent'"},
        {{PS_ROLE_AGENT, "other", "agent"}, "of cluster 'other', not 'test'"},
        {{PS_ROLE_AGENT, "test", "agent"}, NULL},
    };
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    sched_send_job_state(
        w, &(struct job_options){.version = 1, .phase = PS_JOB_PHASE_RUNNING});
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        a->identity = &cases[i].identity;
        agent_dial(a);
        assert_int_equal(a->rejected, cases[i].why != NULL ? PS_E_PERM : 0);
        assert_int_equal(a->conn == 0, cases[i].why != NULL);
        assert_true(cases[i].why == NULL ||
                    strstr(w->last_log, cases[i].why) != NULL);
    }
    world_free(w);
}

/* Node, incarnation and instance are not enough to resume the session of an
 * agent with a certificate. Connections without one come from this host. */
static void a_session_stays_with_its_certificate(void **state)
{
    static const struct ps_peer_identity own = {PS_ROLE_AGENT, "test", "agent"};
    static const struct ps_peer_identity other = {PS_ROLE_AGENT, "test",
                                                  "other"};
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    sched_send_job_state(
        w, &(struct job_options){.version = 1, .phase = PS_JOB_PHASE_RUNNING});
    agent_dial(a);
    assert_true(a->conn != 0);
    a->identity = &own;
    agent_dial(a);
    assert_true(a->conn != 0);

    struct ps_msg hello = agent_hello_msg(a);

    hello.hello.name = "other";
    a->identity = &other;
    agent_open(a);
    world_frame(w, a->conn, &hello, NULL, 0);
    world_run_until_idle(w);
    assert_int_equal(a->rejected, PS_E_PERM);
    assert_non_null(strstr(w->last_log, "its certificate is of 'other'"));
    a->identity = &own;
    agent_dial(a);
    assert_int_equal(a->rejected, 0);
    world_free(w);
}

/* Messages for slot 0 from an agent that has another one. */
static const struct ps_rec_part of_lies_part = {
    .key = 0, .round = 1, .dtype = PS_DTYPE_FLOAT32, .count = 1};
static const struct ps_rec_part of_lies_bare = {.key = 0, .round = 1};
static const struct ps_rec_rows of_lies_rows = {.key = 0,
                                                .round = 1,
                                                .dtype = PS_DTYPE_FLOAT32,
                                                .row_width = 1,
                                                .count = 1};
static const float lied = 666;
static const uint64_t lied_row[2] = {0, 0};
static const struct {
    struct ps_msg msg;
    const void *data;
    size_t len;
} lies_of_agents[] = {
    {{.code = PS_MSG_PUSH,
      .push =
          {.gen = GEN, .weight = 1, .parts = &of_lies_part, .parts_count = 1}},
     &lied,
     4},
    {{.code = PS_MSG_INIT,
      .init = {.gen = GEN, .parts = &of_lies_part, .parts_count = 1}},
     &lied,
     4},
    {{.code = PS_MSG_RESTORE,
      .restore = {.gen = GEN,
                  .has_value = true,
                  .parts = &of_lies_part,
                  .parts_count = 1}},
     &lied,
     4},
    {{.code = PS_MSG_STATE_PUT,
      .state_put = {.gen = GEN, .parts = &of_lies_part, .parts_count = 1}},
     &lied,
     4},
    {{.code = PS_MSG_PUSH_ROWS,
      .push_rows =
          {.gen = GEN, .weight = 1, .parts = &of_lies_rows, .parts_count = 1}},
     lied_row,
     16},
    {{.code = PS_MSG_PULL_ROWS,
      .pull_rows = {.gen = GEN, .parts = &of_lies_rows, .parts_count = 1}},
     lied_row,
     8},
    {{.code = PS_MSG_PULL,
      .pull = {.gen = GEN, .parts = &of_lies_bare, .parts_count = 1}},
     NULL,
     0},
    {{.code = PS_MSG_ABORT_ROUND,
      .abort_round =
          {.gen = GEN, .retry = 9, .parts = &of_lies_bare, .parts_count = 1}},
     NULL,
     0},
    {{.code = PS_MSG_STATE_GET,
      .state_get = {.gen = GEN, .parts = &of_lies_bare, .parts_count = 1}},
     NULL,
     0},
};

/* Messages of an agent for the slot of another one (rule A4). */
static void messages_for_slots_of_others_are_refused(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *liar = &w->agents[1];
    const uint32_t count = sizeof(lies_of_agents) / sizeof(lies_of_agents[0]);
    struct ps_server_stats stats;

    (void)state;
    agent_push_f32(a, 0, 1, 1);
    for (uint32_t i = 0; i < PS_MISUSE_MAX; i++) {
        assert_int_not_equal(liar->conn, 0);
        agent_send(liar, &lies_of_agents[i % count].msg,
                   lies_of_agents[i % count].data,
                   lies_of_agents[i % count].len);
        world_run_until_idle(w);
        ps_server_stats(w->server, &stats);
        assert_int_equal(stats.refused_frames, i + 1);
    }
    assert_int_equal(liar->conn, 0);
    assert_non_null(strstr(w->last_log, " is closed: it sent 16 messages about "
                                        "objects of others"));
    assert_int_equal(a->seen[0].refusals, 0);
    agent_dial(liar);
    agent_push_f32(liar, 0, 1, 2);
    assert_true(agent_f32(a, 0) == 3);
    assert_true(agent_f32(liar, 0) == 3);
    world_free(w);
}

static void invalid_hellos_are_rejected_with_a_reason(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *x = &w->agents[5];
    static const int errors[] = {PS_E_MISMATCH, PS_E_PERM,    PS_E_PERM,
                                 PS_E_VERSION,  PS_E_VERSION, 0};

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct ps_msg hello = agent_hello_msg(x);

        agent_open(x);
        switch (i) {
        case 0:
            hello.hello.cluster = "other\n";
            break;
        case 1:
            hello.hello.role = PS_ROLE_CTL;
            break;
        case 2:
            hello.hello.node = 0;
            break;
        case 3:
            hello.hello.protocol_least = PS_PROTOCOL + 1;
            break;
        case 4:
            hello.hello.protocol = PS_PROTOCOL_LEAST - 1;
            break;
        case 5:
            hello = (struct ps_msg){.code = PS_MSG_PULL};
            break;
        }
        x->rejected = 0;
        world_frame(w, x->conn, &hello, NULL, 0);
        world_run_until_idle(w);
        assert_int_equal(x->rejected, errors[i]);
        assert_int_equal(x->conn, 0);
        assert_int_equal(w->closed_count, i + 1);
    }
    /* A connection without a hello. */
    agent_open(x);
    world_run(w, PS_SECONDS(11));
    assert_int_equal(x->conn, 0);
    assert_non_null(strstr(w->last_log, "hello in time"));
    world_free(w);
}

static void a_second_hello_or_a_late_one_closes_the_connection(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    struct ps_msg hello = agent_hello_msg(a);

    world_frame(w, a->conn, &hello, NULL, 0);
    world_run_until_idle(w);
    assert_int_equal(a->conn, 0);
    agent_dial(a);
    agent_send(a, &(struct ps_msg){.code = PS_MSG_VALUE}, NULL, 0);
    world_run_until_idle(w);
    assert_int_equal(a->conn, 0);
    assert_int_equal(w->closed_count, 2);
    world_free(w);
}

/* The scheduler names this start of agent 0, in a newer state of the job. */
static void name_start(struct world *w, const struct agent *named,
                       uint32_t version)
{
    struct agent *a = &w->agents[0];
    const uint64_t incarnation = a->incarnation;
    const uint64_t instance = a->instance;

    a->incarnation = named->incarnation;
    a->instance = named->instance;
    sched_send_job_state(w,
                         &(struct job_options){.version = version,
                                               .phase = PS_JOB_PHASE_RUNNING});
    a->incarnation = incarnation;
    a->instance = instance;
}

static void newer_incarnation_replaces_the_older(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *twin = &w->agents[6];

    (void)state;
    twin->index = 0;
    twin->incarnation = 2;
    name_start(w, twin, 2);
    agent_dial(twin);
    assert_true(twin->conn != 0);
    assert_int_equal(a->conn, 0);
    agent_push_f32(twin, 0, 1, 1);
    agent_push_f32(&w->agents[1], 0, 1, 1);
    assert_int_equal(twin->seen[0].value_version, 1);
    agent_dial(a);
    assert_int_equal(a->rejected, PS_E_STALE);
    assert_int_equal(a->conn, 0);
    assert_true(twin->conn != 0);
    /* Another process that claims the same incarnation. */
    a->incarnation = 2;
    agent_dial(a);
    assert_int_equal(a->rejected, PS_E_EXIST);
    world_free(w);
}

/* Contributions of the older process before the hello of the newer one do not
 * count: its workers have continued without it. */
static void push_of_an_older_incarnation_is_stale(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *twin = &w->agents[6];

    (void)state;
    twin->index = 0;
    twin->incarnation = 2;
    name_start(w, twin, 2);
    agent_push_f32(a, 0, 1, 1);
    assert_int_equal(a->seen[0].error, PS_E_STALE);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
    agent_push_f32(&w->agents[1], 0, 1, 1);
    assert_int_equal(w->agents[1].seen[0].value_version, 0);
    world_free(w);
}

/* The agent asks again, possibly for something else. */
static void requests_of_the_former_link_are_not_answered(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    const float ones[2] = {1, 1};
    struct push_options o = {
        .key = 0, .round = 1, .count = 1, .data = ones, .commit_only = true};

    (void)state;
    agent_pull(a, 0, 1);
    agent_disconnect(a);
    agent_drop_link(a);
    agent_dial(a);
    assert_false(a->resumed);
    agent_push(a, &o);
    agent_push(&w->agents[1], &o);
    assert_int_equal(a->seen[0].commits, 1);
    assert_int_equal(a->seen[0].values, 0);
    world_free(w);
}

/* A hello may arrive before the scheduler has named its agent. */
static void hello_waits_until_the_scheduler_names_its_agent(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *twin = &w->agents[6];

    (void)state;
    twin->index = 0;
    twin->incarnation = 2;
    twin->resumed = true;
    agent_dial(twin);
    world_run(w, PS_SECONDS(1));
    assert_true(twin->conn != 0 && a->conn != 0);
    assert_true(twin->resumed); /* No welcome. */
    name_start(w, twin, 2);
    assert_false(twin->resumed);
    assert_int_equal(a->conn, 0);
    agent_push_f32(twin, 0, 1, 1);
    agent_push_f32(&w->agents[1], 0, 1, 1);
    assert_int_equal(twin->seen[0].value_version, 1);
    world_run(w, PS_SECONDS(5));
    assert_true(twin->conn != 0);
    world_free(w);
}

/* Any peer that opens a connection can send anything: a process that the
 * scheduler has not named replaces no agent, whatever numbers it sends. */
static void an_unnamed_process_replaces_no_agent(void **state)
{
    static const struct {
        uint32_t index;
        uint64_t incarnation;
        uint64_t instance;
    } claims[] = {
        {0, 2, 77},          /* A newer start. */
        {0, UINT64_MAX, 77}, /* The newest that there can be. */
        {0, 2, 1000},        /* With the number of the older one. */
        {4, 1, 77},          /* A node that has no part in any job. */
    };
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *liar = &w->agents[6];

    (void)state;
    for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
        liar->index = claims[i].index;
        liar->incarnation = claims[i].incarnation;
        liar->instance = claims[i].instance;
        liar->resumed = true;
        agent_dial(liar);
        agent_push_f32(&w->agents[0], 0, i + 1, 1);
        agent_push_f32(&w->agents[1], 0, i + 1, 1);
        assert_int_equal(w->agents[0].seen[0].value_version, i + 1);
        world_run(w, PS_SECONDS(3));
        assert_int_equal(liar->rejected, PS_E_AGAIN);
        assert_int_equal(liar->conn, 0);
        assert_true(liar->resumed);
        assert_true(w->agents[0].conn != 0);
    }
    assert_non_null(strstr(w->last_log, "has not named node 14"));
    /* A message of such a peer while it waits closes its connection. */
    agent_dial(liar);
    struct ps_msg hello = agent_hello_msg(liar);

    world_frame(w, liar->conn, &hello, NULL, 0);
    world_run_until_idle(w);
    assert_int_equal(liar->conn, 0);
    world_free(w);
}

/* An agent that knows the numbers of another node, and has a certificate of its
 * own name, does not act for that node (rule H9a). */
static void a_node_has_the_name_that_the_scheduler_states(void **state)
{
    static const struct ps_peer_identity other = {PS_ROLE_AGENT, "test",
                                                  "other"};
    static const char *const why = "node 10 is 'agent', not 'other'";
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];
    struct agent *liar = &w->agents[6];

    (void)state;
    liar->index = a->index;
    liar->name = "other";
    liar->identity = &other;
    liar->incarnation = a->incarnation;
    liar->instance = a->instance;
    agent_dial(liar); /* There is a session of the node. */
    assert_int_equal(liar->rejected, PS_E_PERM);
    assert_non_null(strstr(w->last_log, why));
    assert_true(a->conn != 0);
    w->last_log[0] = '\0';
    liar->incarnation++;
    agent_dial(liar); /* The scheduler names the process later. */
    assert_true(liar->conn != 0);
    name_start(w, liar, 2);
    assert_int_equal(liar->rejected, PS_E_PERM);
    assert_non_null(strstr(w->last_log, why));
    w->last_log[0] = '\0';
    agent_dial(liar); /* The scheduler has named the process. */
    assert_int_equal(liar->rejected, PS_E_PERM);
    assert_non_null(strstr(w->last_log, why));
    a->incarnation++;
    agent_drop_link(a);
    agent_dial(a);
    assert_int_equal(a->rejected, 0);
    world_free(w);
}

/* An older scheduler states no names. */
static void an_agent_without_a_stated_name_is_accepted(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_disconnect(a);
    agent_restart(a);
    a->name = "any";
    sched_send_job_state(w, &(struct job_options){.version = 2,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .without_names = true});
    agent_dial(a);
    assert_int_equal(a->rejected, 0);
    assert_true(a->conn != 0);
    world_free(w);
}

static void newer_connection_replaces_the_older(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_f32(a, 0, 1, 1);
    assert_int_equal(a->seen[0].value_version, 1);
    /* The agent noticed a cut that the server did not. */
    ps_link_close(a->link);
    agent_dial(a);
    assert_true(a->resumed);
    assert_int_equal(w->closed_count, 1);
    agent_push_f32(a, 0, 2, 2);
    assert_int_equal(a->seen[0].value_version, 2);
    world_free(w);
}

static void disconnected_link_is_kept_for_30_seconds(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];

    (void)state;
    agent_push_f32(a, 0, 1, 1);
    world_run(w, PS_SECONDS(1));
    agent_disconnect(a);
    world_run(w, PS_SECONDS(29));
    agent_dial(a);
    assert_true(a->resumed);
    world_run(w, PS_SECONDS(1));
    agent_disconnect(a);
    world_run(w, PS_SECONDS(31));
    agent_dial(a);
    assert_false(a->resumed);
    world_free(w);
}

/* ------------------------------------------------------------- scheduler */

static void the_scheduler_is_dialled_until_it_answers(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 0, .no_job = true});

    (void)state;
    w->sched_silent = true;
    w->dials = 0;
    world_closed(w, w->sched_conn);
    world_run_until_idle(w);
    assert_false(ps_server_is_ready(w->server));
    world_run(w, PS_SECONDS(20));
    assert_in_range(w->dials, 10, 30); /* 0.1 s, doubling to 2 s. */
    w->sched_silent = false;
    world_run(w, PS_SECONDS(3));
    assert_true(ps_server_is_ready(w->server));
    assert_true(w->up_resumed);
    world_free(w);
}

static void scheduler_without_replies_is_dialled_again(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 0, .no_job = true});
    ps_conn_id conn = w->sched_conn;

    (void)state;
    world_run(w, PS_SECONDS(10));
    assert_in_range(w->pings, 20, 22);
    w->dials = 0;
    w->sched_conn = 0; /* Nothing arrives there any more. */
    w->sched_silent = true;
    world_run(w, PS_SECONDS(5));
    assert_false(ps_server_is_ready(w->server));
    assert_true(conn != 0);
    assert_true(w->dials > 0);
    assert_non_null(strstr(w->last_log, "it is silent"));
    world_free(w);
}

static void jobs_are_reported_again_on_a_new_uplink(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    assert_int_equal(w->job_ready_count, 1);
    world_closed(w, w->sched_conn);
    w->up_session = 0;
    ps_link_free(w->sched);
    w->sched = NULL;
    world_run(w, PS_SECONDS(1));
    assert_true(ps_server_is_ready(w->server));
    assert_false(w->up_resumed);
    assert_int_equal(w->job_ready_count, 2);
    assert_int_equal(w->ready_gen, GEN);
    /* On a new session it reports its jobs again. */
    sched_send_job_state(
        w, &(struct job_options){.version = 1, .phase = PS_JOB_PHASE_RUNNING});
    assert_int_equal(w->job_ready_count, 3);
    world_free(w);
}

static void draining_is_reported_with_heartbeats(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});
    uint32_t pings;

    (void)state;
    world_run(w, PS_SECONDS(1));
    assert_true(w->pings > 0 && !w->draining);
    pings = w->pings;
    world_event(w, &(struct ps_event){.now = w->now, .type = PS_EV_DRAIN});
    world_run_until_idle(w);
    assert_int_equal(w->pings, pings + 1); /* At once. */
    assert_true(w->draining);
    assert_int_equal(w->closed_count, 0);
    w->draining = false;
    world_run(w, PS_SECONDS(2));
    assert_true(w->pings > pings + 1 && w->draining);
    world_free(w);
}

/* Also after its connection has closed: the member may dial again and again. */
static void witness_reports_the_last_message_of_an_agent(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    struct agent *a = &w->agents[0];
    struct ps_msg ask = {.code = PS_MSG_PING_REQ,
                         .ping_req = {.node = agent_hello_msg(a).hello.node,
                                      .incarnation = a->incarnation}};

    (void)state;
    agent_push_f32(a, 0, 1, 1);
    w->now += PS_MILLIS(200);
    agent_disconnect(a);
    w->now += PS_MILLIS(100);
    world_frame(w, w->sched_conn, &ask, NULL, 0);
    world_run_until_idle(w);
    assert_int_equal(w->ping_ack_count, 1);
    assert_int_equal(w->last_ping_ack.node, ask.ping_req.node);
    assert_int_equal(w->last_ping_ack.silent_ns, PS_MILLIS(300));
    ask.ping_req.incarnation++; /* Nothing is known of that member. */
    world_frame(w, w->sched_conn, &ask, NULL, 0);
    world_run_until_idle(w);
    assert_int_equal(w->ping_ack_count, 1);
    world_free(w);
}

static void a_shutdown_closes_all_connections(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    world_event(w, &(struct ps_event){.now = w->now, .type = PS_EV_SHUTDOWN});
    world_run_until_idle(w);
    assert_int_equal(w->closed_count, 3);
    assert_false(ps_server_is_ready(w->server));
    w->dials = 0;
    world_run(w, PS_SECONDS(10));
    assert_int_equal(w->dials, 0);
    agent_open(&w->agents[0]);
    assert_int_equal(w->agents[0].conn, 0);
    world_free(w);
}

static void tell_epoch(struct world *w, uint32_t epoch)
{
    ps_link_send_msg(
        w->sched, &(struct ps_msg){.code = PS_MSG_MAP, .map = {.epoch = epoch}},
        w->now, &w->sched_out);
    world_run(w, PS_SECONDS(1));
    assert_int_equal(w->epoch, epoch);
}

static void map_epoch_restarts_with_the_scheduler(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    tell_epoch(w, 40);
    w->restarts++;
    ps_link_free(w->sched);
    w->sched = NULL;
    world_closed(w, w->sched_conn);
    world_run(w, PS_SECONDS(1));
    assert_non_null(w->sched);
    tell_epoch(w, 2);
    world_free(w);
}

/* A restarted process waits until the scheduler declares its predecessor dead;
 * of two processes configured with one name, the second ends. */
static void server_ends_when_its_name_stays_taken(void **state)
{
    struct world *w = ps_calloc(1, sizeof(*w));
    struct ps_server_options so = {.name = "s0",
                                   .cluster = "test",
                                   .address = "127.0.0.1:7002",
                                   .sched_address = "127.0.0.1:7000",
                                   .instance = 77,
                                   .dial_backoff_min = PS_MILLIS(100),
                                   .dial_backoff_max = PS_SECONDS(1)};

    (void)state;
    w->pool = so.pool = ps_pool_new(&(struct ps_pool_options){0});
    ps_effects_init(&w->fx);
    ps_effects_init(&w->sched_out);
    w->now = PS_SECONDS(1);
    w->refuses_name = true;
    w->server = ps_server_new(&so, w->now);
    w->machine = ps_server_machine(w->server);
    world_run(w, PS_SECONDS(50));
    assert_true(w->dials > 40);
    assert_false(ps_server_is_ready(w->server));
    w->may_fail = true;
    while (w->rc == 0) {
        assert_true(w->now < PS_SECONDS(70));
        world_run(w, PS_MILLIS(1));
    }
    assert_int_equal(w->rc, PS_E_CONFIG);
    assert_non_null(strstr(w->last_log, "the name is taken"));
    world_free(w);
}

static void server_ends_when_it_lost_its_name(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    w->refuses_name = w->may_fail = true;
    world_closed(w, w->sched_conn);
    for (uint32_t i = 0; w->rc == 0; i++) {
        assert_true(i < 1000);
        world_run(w, PS_MILLIS(1));
    }
    assert_int_equal(w->rc, PS_E_CONFIG);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_count_every_slot_once),
        cmocka_unit_test(recording_is_a_part_of_the_trace),
        cmocka_unit_test(recording_keeps_the_last_entries),
        cmocka_unit_test(trace_has_every_round),
        cmocka_unit_test(round_waits_for_the_last_slot_before_its_commit),
        cmocka_unit_test(push_repeated_on_a_new_link_counts_once),
        cmocka_unit_test(resumed_link_repeats_a_lost_reply),
        cmocka_unit_test(a_link_is_not_resumed_when_its_welcome_was_lost),
        cmocka_unit_test(repeated_push_during_a_merge_is_dropped),
        cmocka_unit_test(result_does_not_depend_on_arrival_order),
        cmocka_unit_test(sgd_with_momentum_follows_its_formula),
        cmocka_unit_test(a_step_may_take_several_rounds),
        cmocka_unit_test(a_step_waits_for_norms),
        cmocka_unit_test(squares_are_sent_again_to_a_restarted_scheduler),
        cmocka_unit_test(a_job_ends_while_it_waits_for_norms),
        cmocka_unit_test(moved_partition_takes_no_step_with_late_norms),
        cmocka_unit_test(an_optimizer_needs_a_value_and_floats),
        cmocka_unit_test(mean_divides_by_the_contributing_ranks),
        cmocka_unit_test(broadcast_takes_the_value_of_its_root),
        cmocka_unit_test(round_of_empty_contributions_keeps_the_value),
        cmocka_unit_test(skip_does_not_change_the_result),
        cmocka_unit_test(round_that_all_skip_keeps_the_value),
        cmocka_unit_test(first_round_can_be_skipped_by_all),
        cmocka_unit_test(round_that_all_skip_is_no_optimizer_step),
        cmocka_unit_test(round_that_all_skip_is_not_accumulated),
        cmocka_unit_test(skip_of_the_root_fails_the_broadcast),
        cmocka_unit_test(skip_is_no_side_of_a_conflict),
        cmocka_unit_test(takeover_keeps_that_all_ranks_skipped),
        cmocka_unit_test(skip_with_a_payload_is_refused),
        cmocka_unit_test(float64_and_int32_are_summed),
        cmocka_unit_test(small_partitions_share_frames),
        cmocka_unit_test(replies_fill_frames_up_to_their_limits),
        cmocka_unit_test(pull_waits_for_the_init_of_its_key),
        cmocka_unit_test(pulls_wait_for_the_newest_requested_version),
        cmocka_unit_test(pulls_of_a_restarted_agent_are_dropped),
        cmocka_unit_test(takeover_does_not_depend_on_message_order),
        cmocka_unit_test(restored_version_replaces_a_pending_merge),
        cmocka_unit_test(conflict_reaches_all_slots_once_an_attempt),
        cmocka_unit_test(an_abort_ends_the_attempt_for_all),
        cmocka_unit_test(version_is_lost_when_no_slot_reports_its_value),
        cmocka_unit_test(lost_value_is_reported_when_the_uplink_resumes),
        cmocka_unit_test(takeover_with_an_optimizer_is_refused),
        cmocka_unit_test(restore_of_a_version_that_is_there_changes_nothing),
        cmocka_unit_test(agent_ahead_of_the_others_is_paused),
        cmocka_unit_test(a_slot_that_is_refused_pauses_no_other),
        cmocka_unit_test(lead_of_an_agent_is_limited_by_the_window),
        cmocka_unit_test(credit_never_stops_all_agents),
        cmocka_unit_test(credit_of_a_new_session_starts_at_zero),
        cmocka_unit_test(push_beyond_the_credit_is_refused),
        cmocka_unit_test(merge_without_memory_is_retried),
        cmocka_unit_test(payload_without_memory_is_retried),
        cmocka_unit_test(an_end_of_before_does_not_count),
        cmocka_unit_test(ended_job_frees_its_memory),
        cmocka_unit_test(failed_merge_is_refused_to_all_slots),
        cmocka_unit_test(push_before_its_job_is_refused_with_credit),
        cmocka_unit_test(malformed_requests_fail_only_their_sender),
        cmocka_unit_test(parts_and_payload_must_agree),
        cmocka_unit_test(hello_that_the_certificate_contradicts_is_refused),
        cmocka_unit_test(a_session_stays_with_its_certificate),
        cmocka_unit_test(messages_for_slots_of_others_are_refused),
        cmocka_unit_test(invalid_hellos_are_rejected_with_a_reason),
        cmocka_unit_test(a_second_hello_or_a_late_one_closes_the_connection),
        cmocka_unit_test(newer_incarnation_replaces_the_older),
        cmocka_unit_test(push_of_an_older_incarnation_is_stale),
        cmocka_unit_test(requests_of_the_former_link_are_not_answered),
        cmocka_unit_test(hello_waits_until_the_scheduler_names_its_agent),
        cmocka_unit_test(a_node_has_the_name_that_the_scheduler_states),
        cmocka_unit_test(an_agent_without_a_stated_name_is_accepted),
        cmocka_unit_test(an_unnamed_process_replaces_no_agent),
        cmocka_unit_test(newer_connection_replaces_the_older),
        cmocka_unit_test(disconnected_link_is_kept_for_30_seconds),
        cmocka_unit_test(the_scheduler_is_dialled_until_it_answers),
        cmocka_unit_test(scheduler_without_replies_is_dialled_again),
        cmocka_unit_test(jobs_are_reported_again_on_a_new_uplink),
        cmocka_unit_test(draining_is_reported_with_heartbeats),
        cmocka_unit_test(witness_reports_the_last_message_of_an_agent),
        cmocka_unit_test(a_shutdown_closes_all_connections),
        cmocka_unit_test(map_epoch_restarts_with_the_scheduler),
        cmocka_unit_test(server_ends_when_its_name_stays_taken),
        cmocka_unit_test(server_ends_when_it_lost_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
