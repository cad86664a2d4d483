/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/limits.h"
#include "core/part/rows.h"
#include "core/sched/place/place.h"

#define MIB (1024u * 1024u)

struct table {
    struct ps_place_server server[8];
    uint32_t count;
    struct ps_place_part *parts;
    uint32_t part_count;
};

static void table_init(struct table *t, uint32_t servers)
{
    memset(t, 0, sizeof(*t));
    t->count = servers;
    for (uint32_t i = 0; i < servers; i++) {
        t->server[i].node = 100 + i;
    }
}

/* Places a key of a job with these servers, all of which get partitions. */
static int place(struct table *t, struct ps_place_request key)
{
    key.servers = t->count;
    ps_free(t->parts);
    t->parts = NULL;
    t->part_count = 0;
    return ps_place_request(&key, t->server, t->count, &t->parts,
                            &t->part_count);
}

static uint64_t elements_of(const struct table *t, uint32_t node)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < t->part_count; i++) {
        n += t->parts[i].node == node ? t->parts[i].count : 0;
    }
    return n;
}

static struct ps_place_request classic(uint64_t count, uint64_t number)
{
    return (struct ps_place_request){
        .policy = PS_PLACEMENT_MXNET,
        .count = count,
        .element_bytes = 4,
        .partition_bytes = 16 * MIB,
        .big_array_bound = 1000000,
        .mxnet_key = number,
    };
}

static void classic_small_keys_go_where_the_formula_says(void **state)
{
    struct table t;

    (void)state;
    table_init(&t, 3);
    assert_int_equal(place(&t, classic(999999, 5)), 0);
    assert_int_equal(t.part_count, 1);
    assert_int_equal(t.parts[0].node, 102); /* 49865 mod 3 = 2 */
    assert_int_equal(t.parts[0].count, 999999);
    /* Beyond what 32 bits hold: 2147483647 * 9973 mod 3 = 1 * 1 mod 3. */
    assert_int_equal(place(&t, classic(6, 2147483647)), 0);
    assert_int_equal(t.parts[0].node, 101);
    assert_int_equal(place(&t, classic(6, UINT64_MAX)), 0);
    assert_int_equal(t.parts[0].node, 100);
    ps_free(t.parts);
}

static void classic_large_keys_are_cut_as_the_formula_says(void **state)
{
    const uint64_t seven[] = {205714, 205715, 205714, 205714,
                              205714, 205715, 205714};
    struct table t;

    (void)state;
    table_init(&t, 3);
    assert_int_equal(place(&t, classic(1000000, 5)), 0);
    assert_int_equal(t.part_count, 3);
    assert_int_equal(t.parts[0].count, 333333);
    assert_int_equal(t.parts[1].count, 333334);
    assert_int_equal(t.parts[2].count, 333333);
    ps_free(t.parts);
    table_init(&t, 7);
    assert_int_equal(place(&t, classic(1440000, 0)), 0);
    assert_int_equal(t.part_count, 7);
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(t.parts[i].node, 100 + i);
        assert_int_equal(t.parts[i].count, seven[i]);
        assert_int_equal(t.server[i].bytes, seven[i] * 4);
    }
    assert_int_equal(place(&t, classic(1000001, 0)), 0);
    assert_int_equal(t.part_count, 7);
    ps_free(t.parts);
    /* Half away from zero, and partitions on the same server. */
    table_init(&t, 2);
    struct ps_place_request key = classic(1000001, 0);

    key.partition_bytes = MIB;
    assert_int_equal(place(&t, key), 0);
    assert_int_equal(elements_of(&t, 100), 500001);
    assert_int_equal(elements_of(&t, 101), 500000);
    assert_int_equal(t.part_count, 4);
    assert_int_equal(t.parts[0].count, MIB / 4);
    ps_free(t.parts);
}

/* Codecs work by partition: what was lost before a key was opened must not change
 * the bits of its values. */
static void a_key_is_cut_for_all_servers_of_its_job(void **state)
{
    static const uint32_t sizes[] = {0, MIB};

    (void)state;
    for (uint32_t i = 0; i < 4 * 2 * 2; i++) {
        const uint32_t there = i % 4;
        struct ps_place_request key = classic(3000001, 1);
        struct table all;
        struct table t;

        key.policy = i / 4 % 2 == 0 ? PS_PLACEMENT_MXNET
                                    : PS_PLACEMENT_BALANCED;
        key.partition_bytes = sizes[i / 8];
        table_init(&all, 4);
        assert_int_equal(place(&all, key), 0);
        table_init(&t, 1 + there);
        key.servers = 4;
        assert_int_equal(
            ps_place_request(&key, t.server, t.count, &t.parts, &t.part_count),
            0);
        assert_int_equal(t.part_count, all.part_count);
        for (uint32_t n = 0; n < t.part_count; n++) {
            assert_int_equal(t.parts[n].count, all.parts[n].count);
            assert_in_range(t.parts[n].node, 100, 100 + there);
        }
        for (uint32_t n = 0; n < t.count; n++) {
            assert_int_equal(t.server[n].bytes, 4 * elements_of(&t, 100 + n));
            assert_true(t.server[n].bytes > 0);
        }
        ps_free(all.parts);
        ps_free(t.parts);
    }
}

/* One that is not split has an owner, too. */
static void a_small_key_goes_to_a_server_that_is_there(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < 9; number++) {
        struct ps_place_request key = classic(10, number);
        struct table t;

        table_init(&t, 2);
        key.servers = 7;
        assert_int_equal(
            ps_place_request(&key, t.server, t.count, &t.parts, &t.part_count),
            0);
        assert_int_equal(t.part_count, 1);
        assert_int_equal(t.parts[0].node, 100 + number * 9973 % 7 % 2);
        ps_free(t.parts);
    }
}

/* A few hundred keys as a network has them. */
static void balanced_servers_differ_by_less_than_five_percent(void **state)
{
    struct table t;
    uint64_t low = UINT64_MAX;
    uint64_t high = 0;

    (void)state;
    table_init(&t, 7);
    for (uint64_t i = 0; i < 300; i++) {
        struct ps_place_request key = {
            .policy = PS_PLACEMENT_BALANCED,
            .count = 1 + i * i * 11,
            .element_bytes = i % 5 == 0 ? 8 : 4,
            .partition_bytes = MIB,
        };

        assert_int_equal(place(&t, key), 0);
        uint64_t sum = 0;

        for (uint32_t j = 0; j < t.part_count; j++) {
            assert_true(t.parts[j].count > 0);
            assert_true(t.parts[j].count * key.element_bytes <= MIB);
            sum += t.parts[j].count;
            if (j + 1 < t.part_count) {
                assert_int_equal(t.parts[j].count % 64, 0);
            }
        }
        assert_int_equal(sum, key.count);
    }
    for (uint32_t i = 0; i < 7; i++) {
        low = t.server[i].bytes < low ? t.server[i].bytes : low;
        high = t.server[i].bytes > high ? t.server[i].bytes : high;
    }
    assert_true(high - low <= high / 20);
    ps_free(t.parts);
}

static void equal_keys_go_to_the_least_loaded_server_then_by_name(void **state)
{
    const struct ps_place_request key = {.policy = PS_PLACEMENT_BALANCED,
                                         .count = 10,
                                         .element_bytes = 4,
                                         .partition_bytes = MIB};
    struct table t;

    (void)state;
    table_init(&t, 3);
    t.server[0].load = 1000;
    assert_int_equal(place(&t, key), 0);
    assert_int_equal(t.parts[0].node, 101);
    assert_int_equal(place(&t, key), 0);
    assert_int_equal(t.parts[0].node, 102);
    assert_int_equal(place(&t, key), 0);
    assert_int_equal(t.parts[0].node, 100);
    ps_free(t.parts);
}

/* Without a size each server gets the same number of pieces. */
static void partitions_of_a_key_have_even_sizes(void **state)
{
    const struct {
        uint64_t count;
        uint32_t servers;
        uint32_t pieces; /* Of each server. */
    } cases[] = {
        {5000000, 8, 65},     /* A wave is a 64th, or a little less. */
        {5000000, 1, 65},     /* So it is with one. */
        {65536, 1, 1},        /* A wave of 256 KiB. */
        {1000000, 8, 16},     /* No pieces below 32 KiB. */
        {100u << 20, 2, 200}, /* None above 1 MiB. */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t pieces[8] = {0};
        uint64_t sum = 0;
        struct table t;

        table_init(&t, cases[i].servers);
        assert_int_equal(place(&t,
                               (struct ps_place_request){
                                   .policy = PS_PLACEMENT_BALANCED,
                                   .count = cases[i].count,
                                   .element_bytes = 4,
                               }),
                         0);
        for (uint32_t k = 0; k < t.part_count; k++) {
            pieces[t.parts[k].node - 100]++;
            sum += t.parts[k].count;
            assert_true(t.parts[k].count * 4 <= MIB);
        }
        assert_int_equal(sum, cases[i].count);
        for (uint32_t k = 0; k < cases[i].servers; k++) {
            assert_in_range(pieces[k], cases[i].pieces - 1, cases[i].pieces);
        }
        ps_free(t.parts);
    }
}

static void without_servers_the_agent_has_all(void **state)
{
    struct table t;

    (void)state;
    table_init(&t, 0);
    assert_int_equal(place(&t, classic(3000000, 1)), 0);
    assert_int_equal(elements_of(&t, 0), 3000000);
    ps_free(t.parts);
}

static void too_many_parts_are_refused(void **state)
{
    struct ps_place_request key = classic(0, 1);
    struct table t;

    (void)state;
    table_init(&t, 2);
    key.partition_bytes = 4096; /* 1,024 elements. */
    key.count = UINT64_C(1024) * PS_KEY_PARTS_MAX + 1;
    assert_int_equal(place(&t, key), PS_E_TOOBIG);
    key.count = UINT64_MAX;
    assert_int_equal(place(&t, key), PS_E_TOOBIG);
    assert_int_equal(t.server[0].bytes, 0);
    key.policy = PS_PLACEMENT_BALANCED;
    key.count = UINT64_C(1024) * PS_KEY_PARTS_MAX;
    assert_int_equal(place(&t, key), 0);
    assert_int_equal(t.part_count, PS_KEY_PARTS_MAX);
    ps_free(t.parts);
}

/* All rows of a partition, with their numbers and optimizer state, fit into a
 * frame, for any width, type and requested size. */
static void rows_of_a_part_fit_in_a_frame(void **state)
{
    static const uint8_t dtypes[] = {PS_DTYPE_UINT8, PS_DTYPE_FLOAT16,
                                     PS_DTYPE_FLOAT32, PS_DTYPE_FLOAT64};
    static const uint32_t widths[] = {1,      3,       64,      65,     262145,
                                      524287, 1048577, 4194303, 8388605};
    static const uint32_t sizes[] = {0, 4096, 1u << 20, 16u << 20};
    struct table t;

    (void)state;
    table_init(&t, 3);
    for (uint32_t i = 0; i < 4 * 9 * 4 * 2; i++) {
        const uint8_t dtype = dtypes[i % 4];
        const uint64_t width = widths[i / 4 % 9];
        const uint64_t element = ps_dtype_size(dtype);
        const uint64_t rows = 3 + (UINT64_C(200) << 20) / (width * element);
        const struct ps_place_request key = {
            .policy = i % 2 == 0 ? PS_PLACEMENT_BALANCED : PS_PLACEMENT_MXNET,
            .count = width * rows,
            .element_bytes = (uint32_t)element,
            .partition_bytes = sizes[i / 36 % 4],
            .big_array_bound = 1000000,
            .row_width = (uint32_t)width,
            .max_rows = ps_rows_per_frame((uint32_t)width, dtype),
        };
        int rc = place(&t, key);

        assert_true(rc == 0 || rc == PS_E_TOOBIG);
        for (uint32_t j = 0; j < t.part_count; j++) {
            uint32_t n = t.parts[j].count / (uint32_t)width;

            assert_int_equal(t.parts[j].count % width, 0);
            assert_true(ps_rows_numbers_bytes(n) +
                            ps_rows_data_bytes(n, (uint32_t)width, dtype) <=
                        PS_PAYLOAD_MAX);
            assert_true(t.parts[j].count * ps_dtype_state_size(dtype) <=
                        PS_PAYLOAD_MAX);
        }
    }
    ps_free(t.parts);
}

static void only_partitions_of_a_lost_server_move(void **state)
{
    struct ps_place_part before[64];
    struct table t;
    uint32_t lost = 0;

    (void)state;
    table_init(&t, 4);
    assert_int_equal(place(&t,
                           (struct ps_place_request){
                               .policy = PS_PLACEMENT_BALANCED,
                               .count = 50 * (MIB / 4) + 17,
                               .element_bytes = 4,
                               .partition_bytes = MIB,
                           }),
                     0);
    assert_int_equal(t.part_count, 51);
    memcpy(before, t.parts, t.part_count * sizeof(before[0]));
    /* Node 101 goes: the others are 100, 102, 103. */
    memmove(&t.server[1], &t.server[2], 2 * sizeof(t.server[0]));
    t.count = 3;
    for (uint32_t i = 0; i < t.part_count; i++) {
        lost += before[i].node == 101;
    }
    assert_int_equal(
        ps_place_reassign(t.parts, t.part_count, 4, 101, t.server, t.count),
        lost);
    for (uint32_t i = 0; i < t.part_count; i++) {
        assert_int_not_equal(t.parts[i].node, 101);
        assert_int_equal(t.parts[i].count, before[i].count);
        if (before[i].node != 101) {
            assert_int_equal(t.parts[i].node, before[i].node);
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t.server[i].bytes,
                         elements_of(&t, t.server[i].node) * 4);
        assert_true(elements_of(&t, t.server[i].node) >= 16 * (MIB / 4));
    }
    ps_free(t.parts);
}

/* Element counts of the arrays of known nets. */
struct net {
    uint64_t count[512];
    uint32_t arrays;
    uint64_t all;
};

static void array(struct net *n, uint64_t count)
{
    n->count[n->arrays++] = count;
    n->all += count;
}

/* A layer with weights and two arrays of its width. */
static void normed(struct net *n, uint64_t weights, uint64_t width)
{
    array(n, weights);
    array(n, width);
    array(n, width);
}

static void make_resnet50(struct net *n)
{
    static const int blocks[] = {3, 4, 6, 3};
    uint64_t in = 64;

    normed(n, 64 * 3 * 49, 64);
    for (int s = 0; s < 4; s++) {
        uint64_t mid = (uint64_t)64 << s;

        for (int b = 0; b < blocks[s]; b++) {
            normed(n, mid * in, mid);
            normed(n, mid * mid * 9, mid);
            normed(n, mid * 4 * mid, mid * 4);
            if (b == 0) {
                normed(n, mid * 4 * in, mid * 4);
            }
            in = mid * 4;
        }
    }
    array(n, 1000 * 2048);
    array(n, 1000);
    assert_int_equal(n->all, 25557032);
}

static void make_vgg16(struct net *n)
{
    static const uint64_t width[] = {3,   64,  64,  128, 128, 256, 256,
                                     256, 512, 512, 512, 512, 512, 512};
    static const uint64_t full[] = {25088, 4096, 4096, 1000};

    for (int i = 0; i < 13; i++) {
        array(n, width[i] * width[i + 1] * 9);
        array(n, width[i + 1]);
    }
    for (int i = 0; i < 3; i++) {
        array(n, full[i] * full[i + 1]);
        array(n, full[i + 1]);
    }
    assert_int_equal(n->all, 138357544);
}

static void make_bert_large(struct net *n)
{
    const uint64_t h = 1024;

    array(n, 30522 * h);
    array(n, 512 * h);
    normed(n, 2 * h, h);
    for (int layer = 0; layer < 24; layer++) {
        for (int i = 0; i < 4; i++) {
            array(n, h * h);
            array(n, h);
        }
        array(n, h);
        array(n, h);
        array(n, 4 * h * h);
        array(n, 4 * h);
        array(n, 4 * h * h);
        normed(n, h, h);
    }
    array(n, h * h);
    array(n, h);
    assert_int_equal(n->all, 335141888);
}

static void keys_of_known_models_are_spread_evenly(void **state)
{
    static void (*const make[])(struct net * n) = {make_resnet50, make_vgg16,
                                                   make_bert_large};
    static const uint32_t servers[] = {3, 7, 8};

    (void)state;
    for (int m = 0; m < 9; m++) {
        struct net n = {0};
        struct table t;

        make[m / 3](&n);
        table_init(&t, servers[m % 3]);
        for (uint32_t i = 0; i < n.arrays; i++) {
            struct ps_place_request key = {
                .policy = PS_PLACEMENT_BALANCED,
                .count = n.count[i],
                .element_bytes = 4,
                .partition_bytes = MIB,
            };

            assert_int_equal(place(&t, key), 0);
        }
        const double even = (double)n.all * 4 / t.count;
        double least = even;
        double most = even;

        for (uint32_t i = 0; i < t.count; i++) {
            double is = (double)t.server[i].bytes;

            least = is < least ? is : least;
            most = is > most ? is : most;
            assert_true(is > even * 0.95 && is < even * 1.05);
        }
        print_message("%u arrays on %u servers: %+.2f to %+.2f %% of even\n",
                      n.arrays, t.count, 100 * (least / even - 1),
                      100 * (most / even - 1));
        ps_free(t.parts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classic_small_keys_go_where_the_formula_says),
        cmocka_unit_test(classic_large_keys_are_cut_as_the_formula_says),
        cmocka_unit_test(a_key_is_cut_for_all_servers_of_its_job),
        cmocka_unit_test(a_small_key_goes_to_a_server_that_is_there),
        cmocka_unit_test(balanced_servers_differ_by_less_than_five_percent),
        cmocka_unit_test(equal_keys_go_to_the_least_loaded_server_then_by_name),
        cmocka_unit_test(partitions_of_a_key_have_even_sizes),
        cmocka_unit_test(without_servers_the_agent_has_all),
        cmocka_unit_test(too_many_parts_are_refused),
        cmocka_unit_test(rows_of_a_part_fit_in_a_frame),
        cmocka_unit_test(only_partitions_of_a_lost_server_move),
        cmocka_unit_test(keys_of_known_models_are_spread_evenly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
