/* SPDX-License-Identifier: Apache-2.0 */
/* Credit at its limits: agents that send in different orders never all wait for
 * each other, and refused bytes do not count for ever. */
#include "server_world.h"

#include "base/alloc.h"

/* Small, because sanitizers take long for memory; the smallest frame still
 * travels alone. */
#define FIRST (128u * 1024u)
#define KEYS  3u

struct sender {
    struct agent *agent;
    uint32_t order[KEYS];
    uint32_t next;
    bool commit_only;
};

/* As agents do: a frame begins while there is credit, and may pass it. */
static bool send_one(struct sender *s, uint32_t bytes, const float *data)
{
    struct agent *a = s->agent;

    if (s->next == KEYS || a->sent >= a->credit) {
        return false;
    }
    agent_push(a, &(struct push_options){.key = s->order[s->next++],
                                         .round = 1,
                                         .count = bytes / 4,
                                         .data = data,
                                         .commit_only = s->commit_only});
    return true;
}

/* Both send all that their credit allows, in turns, until neither can. */
static void exchange(const uint32_t order[2][KEYS], uint32_t bytes,
                     bool commit_only)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = FIRST, .credit_first = FIRST});
    struct sender s[2] = {{.agent = &w->agents[0]}, {.agent = &w->agents[1]}};
    float *data = ps_calloc(bytes / 4, 4);
    bool moved = true;

    memcpy(s[0].order, order[0], sizeof(s[0].order));
    memcpy(s[1].order, order[1], sizeof(s[1].order));
    s[0].commit_only = s[1].commit_only = commit_only;
    while (moved) {
        moved = send_one(&s[0], bytes, data);
        moved |= send_one(&s[1], bytes, data);
        world_run(w, PS_MILLIS(300));
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (s[i].next != KEYS) {
            fail_msg("frames of %u bytes: slot %u is stuck at %u of %u", bytes,
                     i, s[i].next, KEYS);
        }
    }
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 0);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 1), 0);
    ps_free(data);
    world_free(w);
}

static void frames_beyond_the_credit_do_not_stop_all_agents(void **state)
{
    const uint32_t order[2][KEYS] = {{0, 1, 2}, {1, 0, 2}};

    (void)state;
    for (uint32_t bytes = FIRST / 2; bytes <= 6 * FIRST; bytes *= 2) {
        exchange(order, bytes, false);
        exchange(order, bytes + 4, true);
    }
}

static void a_full_window_does_not_stop_all_agents(void **state)
{
    const uint32_t order[][2][KEYS] = {
        {{1, 2, 0}, {0, 1, 2}}, {{0, 1, 2}, {1, 2, 0}}, {{2, 1, 0}, {0, 1, 2}}};

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        exchange(order[i], FIRST, true);
        exchange(order[i], FIRST / 2, true);
        exchange(order[i], FIRST, false);
    }
}

/* The server learns of the agent's restart for one job later than for another,
 * which names the new incarnation already. */
static void refused_bytes_do_not_use_up_credit(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = FIRST, .credit_first = FIRST});
    struct agent *a = &w->agents[0];
    float *data = ps_calloc(FIRST / 4 / 4, 4);
    struct push_options o = {.round = 1, .count = FIRST / 4 / 4, .data = data};

    (void)state;
    agent_disconnect(a);
    agent_restart(a);
    sched_send_job_state(
        w, &(struct job_options){
               .gen = GEN + 1, .version = 1, .phase = PS_JOB_PHASE_RUNNING});
    agent_dial(a);
    for (uint32_t i = 0; i < 100; i++) {
        assert_true(a->sent < a->credit);
        agent_push(a, &o);
        assert_int_equal(a->seen[0].error, PS_E_STALE);
    }
    sched_send_job_state(
        w, &(struct job_options){.version = 2, .phase = PS_JOB_PHASE_RUNNING});
    assert_true(a->sent < a->credit);
    agent_push(a, &o);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), FIRST / 4);
    ps_free(data);
    world_free(w);
}

/* A push with the next retry number ends the attempt at its round, whose bytes
 * are free again; its own are not. */
static void a_push_that_ends_an_attempt_is_held(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = FIRST, .credit_first = FIRST});
    struct agent *a = &w->agents[0];
    float *data = ps_calloc(FIRST / 4 / 4, 4);
    const struct push_options o = {
        .round = 1, .count = FIRST / 4 / 4, .data = data};

    (void)state;
    agent_push(a, &o);
    a->retry = 1;
    agent_push(a, &o);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), FIRST / 4);
    assert_true(a->credit + FIRST / 4 <= a->sent + FIRST);
    ps_free(data);
    world_free(w);
}

/* The same for the parts behind the one that ends an attempt. */
static void parts_behind_the_end_of_an_attempt_are_held(void **state)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .credit_window = FIRST, .credit_first = FIRST});
    struct agent *a = &w->agents[0];
    const size_t len = FIRST / 4;
    char *data = ps_calloc(2, len);
    struct ps_rec_part parts[2];

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        parts[i] = (struct ps_rec_part){
            .key = i, .round = 1, .count = (uint32_t)(len / 4)};
    }
    agent_push(a, &(struct push_options){
                      .round = 1, .count = parts[0].count, .data = data});
    a->sent += 2 * len;
    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PUSH,
                                .push = {.gen = GEN,
                                         .incarnation = a->incarnation,
                                         .weight = 1,
                                         .needs_value = true,
                                         .retry = 1,
                                         .parts = parts,
                                         .parts_count = 2}},
               data, 2 * len);
    world_run_until_idle(w);
    assert_int_equal(server_unmerged_bytes(w->server, GEN, 0), 2 * len);
    assert_true(a->credit + 2 * len <= a->sent + FIRST);
    ps_free(data);
    world_free(w);
}

/* Credit is counted for pushes of unknown jobs, too; if these are very many,
 * the counts of a known job stay. */
static void unknown_jobs_leave_the_credit_of_known_ones(void **state)
{
    const uint32_t count = 8192;
    struct world *w = world_new(&(struct world_options){
        .slots = 1, .credit_window = FIRST, .credit_first = FIRST});
    struct agent *a = &w->agents[0];
    struct ps_rec_part part = {.key = 7, .round = 1, .count = 1};
    float *data = ps_calloc(count, 4);
    uint64_t before = 0;

    (void)state;
    for (uint64_t round = 1; round <= 5; round++) {
        if (round == 5) {
            for (uint64_t i = 1; i <= 4 * PS_JOBS_MAX; i++) {
                agent_send(a,
                           &(struct ps_msg){.code = PS_MSG_PUSH,
                                            .push = {.gen = GEN + i,
                                                     .weight = 1,
                                                     .parts = &part,
                                                     .parts_count = 1}},
                           data, 4);
                world_run_until_idle(w);
            }
            assert_int_equal(a->seen[7].refusals, 4 * PS_JOBS_MAX);
            before = a->credit;
            a->credit = 0;
        }
        agent_push(a,
                   &(struct push_options){
                       .key = 1, .round = round, .count = count, .data = data});
    }
    assert_true(before >= 5 * (uint64_t)count * 4);
    assert_true(a->credit > before);
    ps_free(data);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_beyond_the_credit_do_not_stop_all_agents),
        cmocka_unit_test(a_full_window_does_not_stop_all_agents),
        cmocka_unit_test(unknown_jobs_leave_the_credit_of_known_ones),
        cmocka_unit_test(refused_bytes_do_not_use_up_credit),
        cmocka_unit_test(a_push_that_ends_an_attempt_is_held),
        cmocka_unit_test(parts_behind_the_end_of_an_attempt_are_held),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
