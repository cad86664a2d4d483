/* SPDX-License-Identifier: Apache-2.0 */
/* Stories of servers that the scheduler has lost, and whose memory outlives their
 * process: those that come back, and those that do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/time.h"
#include "support/world.h"

#include <stdio.h>
#include <string.h>

#define WORKERS 4u

static struct world_options shape(bool optimizer)
{
    return (struct world_options){
        .seed = 11,
        .data_seed = 3,
        .servers = 2,
        .agents = 2,
        .workers = WORKERS,
        .rounds = 6,
        .key_count = 2,
        .key = {{"weight", 5000, PS_DTYPE_FLOAT32},
                {"bias", 70, PS_DTYPE_FLOAT32}},
        .partition_bytes = 4096,
        .optimizer = optimizer,
        .init = optimizer,
        .keep = true,
        .story = true,
    };
}

static void pass(struct world *w, ps_time span)
{
    if (!world_run(w, world_now(w) + span)) {
        fail_msg("%s", world_error(w));
    }
}

/* A world whose workers are held before this round. */
static struct world *begin_world(bool optimizer, uint64_t round)
{
    const struct world_options o = shape(optimizer);
    struct world *w = world_new(&o);

    world_hold_worker(w, WORKERS - 1, round);
    pass(w, PS_SECONDS(1));
    assert_int_equal(world_held_count(w), 1);
    return w;
}

static void expect_story(const struct world *w, const char *text)
{
    if (strstr(world_story(w), text) == NULL) {
        fprintf(stderr, "%s\n", world_story(w));
        fail_msg("'%s' is not in the story above", text);
    }
}

/* All workers end well; returns what they have. */
static uint64_t end_well(struct world *w)
{
    char text[512];
    uint64_t result;

    world_release_worker(w, WORKERS - 1);
    if (!world_run_workers(w, PS_SECONDS(120))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (world_worker_error(w, i, text, sizeof(text)) != 0) {
            fail_msg("rank %u: %s\n%s", i, text, world_story(w));
        }
    }
    result = world_result(w, 0);
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    world_free(w);
    return result;
}

/* All workers end with this error. */
static void end_badly(struct world *w, const char *why)
{
    char text[512] = "";

    world_release_worker(w, WORKERS - 1);
    if (!world_run_workers(w, PS_SECONDS(120))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_not_equal(world_worker_error(w, i, text, sizeof(text)), 0);
        if (strstr(text, why) == NULL) {
            fail_msg("rank %u: %s\n%s", i, text, world_story(w));
        }
    }
    world_free(w);
}

static uint64_t run_alone(bool optimizer)
{
    return end_well(begin_world(optimizer, 3));
}

/* The scheduler takes for dead who is only cut off from all: the same process
 * goes on in its place, in a newer epoch. */
static void a_server_that_was_cut_off_goes_on(void **state)
{
    static const char *const others[] = {"psched", "agent0", "agent1"};
    const uint64_t result = run_alone(true);

    (void)state;
    for (uint64_t round = 1; round <= 5; round += 2) {
        struct world *w = begin_world(true, round);

        for (unsigned i = 0; i < 3; i++) {
            world_cut(w, "server1", others[i], PS_SECONDS(10));
        }
        pass(w, PS_SECONDS(9));
        expect_story(w, "waits for server server1");
        pass(w, PS_SECONDS(3));
        assert_int_equal(end_well(w), result);
    }
}

static void a_server_that_was_stopped_goes_on(void **state)
{
    const uint64_t result = run_alone(true);
    struct world *w = begin_world(true, 3);

    (void)state;
    world_stop_node(w, "server1", PS_SECONDS(10));
    pass(w, PS_SECONDS(9));
    expect_story(w, "waits for server server1");
    pass(w, PS_SECONDS(3));
    expect_story(w, "server server1 is back with its memory");
    assert_int_equal(end_well(w), result);
}

/* It is cut off from the scheduler alone, until its lease is over, and dies. */
static void a_server_dies_while_it_is_cut_off(void **state)
{
    const uint64_t result = run_alone(true);
    struct world *w = begin_world(true, 3);

    (void)state;
    world_lose_witnesses(w);
    world_cut(w, "server1", "psched", PS_SECONDS(10));
    pass(w, PS_SECONDS(5));
    expect_story(w, "waits for server server1");
    world_kill_server(w, 1);
    pass(w, PS_SECONDS(1));
    world_restart_server(w, 1);
    assert_int_equal(end_well(w), result);
}

/* Processes die one after the other, some before they hear of the job. */
static void a_server_dies_again_and_again(void **state)
{
    const uint64_t result = run_alone(true);

    (void)state;
    for (ps_time pause = PS_MICROS(200); pause < PS_MILLIS(200); pause *= 3) {
        struct world *w = begin_world(true, 3);

        for (uint32_t i = 0; i < 12; i++) {
            world_kill_server(w, i % 3 == 0 ? 0 : 1);
            pass(w, pause);
            world_restart_server(w, i % 3 == 0 ? 0 : 1);
            pass(w, pause);
        }
        assert_int_equal(end_well(w), result);
    }
}

static void both_servers_die_at_once(void **state)
{
    (void)state;
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        const uint64_t result = run_alone(optimizer);
        struct world *w = begin_world(optimizer, 4);

        world_kill_server(w, 0);
        world_kill_server(w, 1);
        pass(w, PS_MILLIS(300));
        world_restart_server(w, 1);
        pass(w, PS_SECONDS(5));
        world_restart_server(w, 0);
        assert_int_equal(end_well(w), result);
    }
}

static void a_server_that_does_not_come_back_ends_the_job(void **state)
{
    struct world *w = begin_world(true, 3);

    (void)state;
    world_kill_server(w, 1);
    pass(w, PS_SECONDS(29));
    expect_story(w, "waits for server server1");
    end_badly(w, "server server1 was lost");
}

/* The next process has not got the memory. */
static void a_server_without_its_memory_ends_the_job(void **state)
{
    struct world *w = begin_world(true, 3);

    (void)state;
    world_kill_server(w, 1);
    world_drop_state(w, 1);
    pass(w, PS_SECONDS(1));
    world_restart_server(w, 1);
    end_badly(w, "and came back without it");
}

/* Agents have the values: the other server takes over. */
static void a_server_of_sums_without_its_memory_is_replaced(void **state)
{
    const uint64_t result = run_alone(false);

    (void)state;
    for (uint64_t round = 1; round <= 5; round += 2) {
        struct world *w = begin_world(false, round);

        world_kill_server(w, 1);
        world_drop_state(w, 1);
        pass(w, PS_SECONDS(1));
        world_restart_server(w, 1);
        assert_int_equal(end_well(w), result);
    }
}

static uint32_t count_in_story(const struct world *w, const char *text)
{
    const char *at = world_story(w);
    uint32_t count = 0;

    while ((at = strstr(at, text)) != NULL) {
        at++;
        count++;
    }
    return count;
}

/* Two servers, each the backup of the other, lose their link and nothing else: the
 * job goes on meanwhile, and has two copies again afterwards (rule O18). */
static void backups_that_cannot_be_reached_stop_no_job(void **state)
{
    const uint64_t result = run_alone(true);
    struct world_options o = shape(true);
    struct world *w;
    uint32_t filled;

    (void)state;
    o.replicas = 2;
    w = world_new(&o);
    world_hold_worker(w, WORKERS - 1, 3);
    pass(w, PS_SECONDS(1));
    assert_int_equal(world_held_count(w), 1);
    expect_story(w, "backup filled: server server1, server0");
    world_cut(w, "server0", "server1", PS_SECONDS(30));
    world_release_worker(w, WORKERS - 1);
    world_hold_worker(w, WORKERS - 1, 5);
    pass(w, PS_SECONDS(15));
    assert_int_equal(world_held_count(w), 1);
    expect_story(w, "server server0, server1: the first has not reached");
    filled = count_in_story(w, "backup filled: ");
    pass(w, PS_SECONDS(20));
    assert_int_equal(count_in_story(w, "backup filled: "), filled + 2);
    assert_int_equal(end_well(w), result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backups_that_cannot_be_reached_stop_no_job),
        cmocka_unit_test(a_server_that_was_cut_off_goes_on),
        cmocka_unit_test(a_server_that_was_stopped_goes_on),
        cmocka_unit_test(a_server_dies_while_it_is_cut_off),
        cmocka_unit_test(a_server_dies_again_and_again),
        cmocka_unit_test(both_servers_die_at_once),
        cmocka_unit_test(a_server_that_does_not_come_back_ends_the_job),
        cmocka_unit_test(a_server_without_its_memory_ends_the_job),
        cmocka_unit_test(a_server_of_sums_without_its_memory_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
