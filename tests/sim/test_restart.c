/* SPDX-License-Identifier: Apache-2.0 */
/* Stories of a scheduler that dies and is restarted without its memory: rounds
 * continue meanwhile; then every rank gets an error that says why its job has
 * ended, and no daemon keeps state of the job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/time.h"
#include "support/sanitized.h"
#include "support/world.h"

#include <stdio.h>
#include <string.h>

#define WORKERS 6u
/* Limit from the restart of the scheduler to the errors of all ranks. */
#define WITHIN  PS_SECONDS(5)

static struct world_options six_workers(uint64_t seed)
{
    struct world_options o = {
        .seed = seed,
        .data_seed = seed,
        .servers = 2,
        .agents = 3,
        .workers = WORKERS,
        .rounds = 20,
        .key_count = 2,
        .key = {{"weight", 5000, PS_DTYPE_FLOAT32},
                {"3", 70, PS_DTYPE_INT64, 0, PS_KEY_KIND_INTEGER}},
        .partition_bytes = 4096,
        .on_loss = seed % 2 == 0 ? PS_LOSS_POLICY_WAIT : PS_LOSS_POLICY_FAIL,
        .story = true,
    };

    return o;
}

/* Runs the world for a time. */
static void run_for(struct world *w, ps_time span)
{
    if (!world_run(w, world_now(w) + span)) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
}

static void expect_words(struct world *w)
{
    char text[512];

    if (!world_run_workers(w, WITHIN)) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (world_worker_error(w, i, text, sizeof(text)) == 0 ||
            strstr(text, "the scheduler was restarted and does not know") ==
                NULL) {
            fail_msg("rank %u: '%s'\n%s", i, text, world_story(w));
        }
    }
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
}

/* All ranks but the last wait at a barrier or in a round; the last is in no
 * call. All get the error. */
static void restart_of_the_scheduler_reaches_all_ranks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct world_options o = six_workers(seed);
        struct world *w;

        o.barrier_every = seed % 4 < 2 ? 3 : 0;
        w = world_new(&o);
        world_hold_worker(w, WORKERS - 1, 4);
        run_for(w, PS_SECONDS(1));
        world_kill_sched(w);
        run_for(w, PS_SECONDS(2));
        world_restart_sched(w);
        expect_words(w);
        world_free(w);
    }
}

/* Members are cut off for a while, so that they register in another order. */
static void members_register_again_in_any_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world_options o = six_workers(seed);
        static const char *const names[] = {"server0", "server1", "agent0",
                                            "agent1", "agent2"};
        struct world *w = world_new(&o);

        world_hold_worker(w, WORKERS - 1, 4);
        run_for(w, PS_SECONDS(1));
        world_kill_sched(w);
        for (uint64_t i = 0; i < 5; i++) {
            world_cut(w, "psched", names[(i * 3 + seed) % 5],
                      PS_MILLIS(200 * (i + 1)));
        }
        world_restart_sched(w);
        expect_words(w);
        world_free(w);
    }
}

static void loss_of_scheduler_and_server_reaches_all_ranks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world_options o = six_workers(seed);
        struct world *w = world_new(&o);

        world_hold_worker(w, WORKERS - 1, 4);
        run_for(w, PS_SECONDS(1));
        world_kill_sched(w);
        world_kill_server(w, 1);
        world_release_worker(w, WORKERS - 1);
        run_for(w, PS_SECONDS(1));
        world_restart_sched(w);
        expect_words(w);
        world_free(w);
    }
}

/* Operations that wait only for other ranks end before the scheduler is
 * back. */
static void rounds_end_without_a_scheduler(void **state)
{
    struct world_options o = six_workers(2);
    struct world *w;
    uint64_t hash;

    (void)state;
    w = world_new(&o);
    world_hold_worker(w, WORKERS - 1, 4);
    run_for(w, PS_SECONDS(1));
    assert_false(world_value(w, 0, 0, 10, &hash));
    world_kill_sched(w);
    world_release_worker(w, WORKERS - 1);
    run_for(w, PS_SECONDS(2));
    assert_true(world_value(w, 0, 0, 10, &hash));
    /* The workers have left; the next scheduler gets no report of them. */
    world_restart_sched(w);
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    world_free(w);
}

static struct world *world_that_opens(uint64_t seed)
{
    struct world_options o = six_workers(seed);

    o.agents = 2;
    o.workers = 4;
    o.rounds = 3;
    return world_new(&o);
}

/* Returns the number of ranks that get an error. */
static uint32_t restart_at(uint64_t seed, ps_time at)
{
    struct world *w = world_that_opens(seed);
    uint32_t errors = 0;
    char text[512];

    run_for(w, at);
    world_kill_sched(w);
    if (seed > 2) { /* One agent, then the other registers first. */
        world_cut(w, "psched", seed == 3 ? "agent0" : "agent1", PS_MILLIS(200));
    }
    world_restart_sched(w);
    run_for(w, WITHIN);
    for (uint32_t i = 0; i < 4; i++) {
        if (!world_worker_done(w, i)) {
            fail_msg("restart at %.6f s: rank %u waits\n%s", (double)at / 1e9,
                     i, world_story(w));
        }
        if (world_worker_error(w, i, text, sizeof(text)) == 0) {
            continue;
        }
        errors++;
        if (strstr(text, "the scheduler was restarted") == NULL) {
            fail_msg("restart at %.6f s: rank %u: '%s'\n%s", (double)at / 1e9,
                     i, text, world_story(w));
        }
    }
    if (errors != 0 && errors != 4) {
        fail_msg("restart at %.6f s: %u ranks end\n%s", (double)at / 1e9,
                 errors, world_story(w));
    }
    if (!world_drain(w, world_now(w) + PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    world_free(w);
    return errors;
}

/* At each step from the first hello to the first rounds the job survives a
 * restart, or all of its ranks get the error. */
static void restart_during_opening_keeps_or_fails_the_job(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (PS_TEST_SANITIZED ? 1 : 4); seed++) {
        struct world *w = world_that_opens(seed);
        uint64_t steps = 0;
        uint32_t survived = 0;
        uint32_t ended = 0;

        while (world_now(w) < PS_MILLIS(500) &&
               strstr(world_story(w), "connected") == NULL) {
            run_for(w, PS_MICROS(1));
            if (world_steps(w) != steps) {
                steps = world_steps(w);
                if (restart_at(seed, world_now(w)) == 0) {
                    survived++;
                } else {
                    ended++;
                }
            }
        }
        assert_true(survived > 50);
        assert_true(ended > 0);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart_of_the_scheduler_reaches_all_ranks),
        cmocka_unit_test(members_register_again_in_any_order),
        cmocka_unit_test(loss_of_scheduler_and_server_reaches_all_ranks),
        cmocka_unit_test(rounds_end_without_a_scheduler),
        cmocka_unit_test(restart_during_opening_keeps_or_fails_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
