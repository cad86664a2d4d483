/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "core/sched/place/place.h"

#define SERVERS 8u
#define PIECES  4000u

struct job {
    uint64_t bytes[SERVERS];
    uint32_t servers;
    struct ps_balance_part piece[PIECES];
    uint32_t count;
};

static void add_part(struct job *j, uint32_t server, uint64_t bytes)
{
    j->piece[j->count++] = (struct ps_balance_part){.source = server,
                                                    .bytes = bytes};
    j->bytes[server] += bytes;
}

static uint32_t plan(struct job *j)
{
    uint32_t moved;

    assert_int_equal(
        ps_balance_plan(j->piece, j->count, j->bytes, j->servers, &moved), 0);
    return moved;
}

/* Checks that the result agrees with the moves. Returns the bytes that move. */
static uint64_t check_books(const struct job *j, uint32_t moved)
{
    uint64_t is[SERVERS] = {0};
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < j->count; i++) {
        const struct ps_balance_part *p = &j->piece[i];

        assert_true(p->target < j->servers);
        is[p->target] += p->bytes;
        bytes += p->target != p->source ? p->bytes : 0;
        moved -= p->target != p->source;
    }
    assert_int_equal(moved, 0);
    assert_memory_equal(is, j->bytes, sizeof(is));
    return bytes;
}

static bool is_even(const struct job *j)
{
    uint64_t all = 0;

    for (uint32_t i = 0; i < j->servers; i++) {
        all += j->bytes[i];
    }
    for (uint32_t i = 0; i < j->servers; i++) {
        double share = (double)j->bytes[i] * j->servers / (double)all;

        if (share < 0.95 || share > 1.05) {
            return false;
        }
    }
    return true;
}

static void balanced_servers_keep_their_parts(void **state)
{
    struct job j = {.servers = 3};

    (void)state;
    assert_int_equal(plan(&j), 0);
    add_part(&j, 0, 100);
    add_part(&j, 1, 104);
    add_part(&j, 2, 96);
    assert_int_equal(plan(&j), 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(j.piece[i].target, i);
    }
    j.servers = 0;
    j.count = 0;
    assert_int_equal(plan(&j), 0);
}

static void partitions_of_one_server_move_to_empty_ones(void **state)
{
    struct job j = {.servers = 3};

    (void)state;
    for (int i = 0; i < 300; i++) {
        add_part(&j, 1, 1000);
    }
    /* No more than balance requires, less the tolerance. */
    uint32_t moved = plan(&j);

    assert_true(moved >= 190 && moved <= 200);
    check_books(&j, moved);
    assert_true(is_even(&j));
}

static void large_partitions_move_first(void **state)
{
    struct job j = {.servers = 2};

    (void)state;
    for (int i = 0; i < 100; i++) {
        add_part(&j, 0, 1);
    }
    add_part(&j, 0, 100);
    /* One move suffices, instead of a hundred. */
    assert_int_equal(plan(&j), 1);
    assert_int_equal(j.piece[100].target, 1);
    check_books(&j, 1);
}

static void plan_moves_the_least_bytes(void **state)
{
    struct job j = {.servers = 4};
    struct ps_rng rng;
    uint64_t over = 0;
    uint64_t all = 0;

    (void)state;
    ps_rng_init(&rng, 5);
    for (uint32_t i = 0; i < PIECES; i++) {
        uint64_t at = ps_rng_below(&rng, 10);

        add_part(&j, at < 4 ? (uint32_t)at : 2, 64 + ps_rng_below(&rng, 4000));
    }
    for (uint32_t i = 0; i < 4; i++) {
        all += j.bytes[i];
    }
    for (uint32_t i = 0; i < 4; i++) {
        over += j.bytes[i] > all / 4 ? j.bytes[i] - all / 4 : 0;
    }
    uint32_t moved = plan(&j);

    assert_true(moved > 0);
    assert_true(check_books(&j, moved) <= over);
    assert_true(is_even(&j));
}

static void one_large_partition_leaves_other_servers_even(void **state)
{
    struct job j = {.servers = 3};

    (void)state;
    add_part(&j, 0, 1000);
    for (int i = 0; i < 100; i++) {
        add_part(&j, 1, 2);
    }
    uint32_t moved = plan(&j);

    check_books(&j, moved);
    assert_int_equal(j.piece[0].target, 0);
    assert_true(j.bytes[1] >= 95 && j.bytes[1] <= 105);
    assert_int_equal(j.bytes[0], 1000);
    /* Two parts that would only change places stay, too. */
    j = (struct job){.servers = 2};
    add_part(&j, 0, 10);
    add_part(&j, 1, 7);
    assert_int_equal(plan(&j), 0);
}

/* Random inputs: the result agrees with the moves, servers never differ more
 * than before, and they are balanced if every part is small against the
 * tolerance. */
static void no_plan_increases_the_imbalance(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct job j = {.servers = 1};
        struct ps_rng rng;
        uint64_t most = 0;
        uint64_t after = 0;
        uint64_t all = 0;
        uint64_t largest = 0;

        ps_rng_init(&rng, seed);
        j.servers += (uint32_t)ps_rng_below(&rng, SERVERS);
        uint64_t size = 1 + ps_rng_below(&rng, 1000000);
        uint32_t n = (uint32_t)ps_rng_below(&rng, 500);
        uint32_t on = 1 + (uint32_t)ps_rng_below(&rng, j.servers);

        for (uint32_t i = 0; i < n; i++) {
            uint64_t bytes = 1 + ps_rng_below(&rng, size);

            add_part(&j, (uint32_t)ps_rng_below(&rng, on), bytes);
            largest = bytes > largest ? bytes : largest;
            all += bytes;
        }
        for (uint32_t i = 0; i < j.servers; i++) {
            most = j.bytes[i] > most ? j.bytes[i] : most;
        }
        check_books(&j, plan(&j));
        for (uint32_t i = 0; i < j.servers; i++) {
            after = j.bytes[i] > after ? j.bytes[i] : after;
        }
        if (after > most ||
            (largest * j.servers * 20 <= all && n > 0 && !is_even(&j))) {
            fail_msg("seed %d: %u pieces on %u servers", (int)seed, n,
                     j.servers);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balanced_servers_keep_their_parts),
        cmocka_unit_test(partitions_of_one_server_move_to_empty_ones),
        cmocka_unit_test(large_partitions_move_first),
        cmocka_unit_test(plan_moves_the_least_bytes),
        cmocka_unit_test(one_large_partition_leaves_other_servers_even),
        cmocka_unit_test(no_plan_increases_the_imbalance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
