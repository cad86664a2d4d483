/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions to a round, and their sum by the kernel in the order of the
 * definition, for any order of arrival and any skips. */
#include "core/part/round.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The definition of the order: a binary counter over the contributors. */
struct term {
    bool given;
    float value;
    unsigned level;
};

static struct term combine(struct term a, struct term b)
{
    struct term r = {
        .given = a.given || b.given,
        .value = a.given && b.given ? a.value + b.value
                 : a.given          ? a.value
                                    : b.value,
        .level = a.level + 1,
    };

    return r;
}

static struct term naive(const struct term *leaf, uint32_t count)
{
    struct term stack[64];
    uint32_t depth = 0;

    for (uint32_t i = 0; i < count; i++) {
        stack[depth] = leaf[i];
        stack[depth].level = 0;
        depth++;
        while (depth > 1 && stack[depth - 1].level == stack[depth - 2].level) {
            stack[depth - 2] = combine(stack[depth - 2], stack[depth - 1]);
            depth--;
        }
    }
    while (depth > 1) {
        stack[depth - 2] = combine(stack[depth - 2], stack[depth - 1]);
        depth--;
    }
    return stack[0];
}

static struct ps_slice slice_of(float value)
{
    struct ps_slice s = {
        .buf = ps_buf_new(sizeof(value)),
        .len = sizeof(value),
    };

    memcpy(s.buf->data, &value, sizeof(value));
    return s;
}

static void offer(struct ps_round *r, uint32_t place, const struct term *t)
{
    if (!t->given) {
        assert_true(ps_round_contribute(r, place, NULL, 1));
        return;
    }
    struct ps_slice s = slice_of(t->value);

    assert_true(ps_round_contribute(r, place, &s, 1));
    ps_buf_unref(s.buf);
}

static float sum(const struct ps_round *r)
{
    struct ps_compute *c = ps_compute_new(1, r->nonempty, 0);
    float out = 0;

    ps_round_add_sources(r, c);
    assert_int_equal(c->job.src_count, r->nonempty);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = PS_DTYPE_FLOAT32;
    c->job.count = 1;
    c->job.dst = &out;
    assert_int_equal(ps_kernel_run(&c->job), 0);
    ps_compute_free(c);
    return out;
}

static void check_order(const struct term *leaf, uint32_t count,
                        struct ps_rng *rng)
{
    uint32_t order[64];
    struct ps_round r;

    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)ps_rng_below(rng, i);
        uint32_t t = order[i - 1];

        order[i - 1] = order[j];
        order[j] = t;
    }
    ps_round_init(&r, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_false(ps_round_is_complete(&r));
        offer(&r, order[i], &leaf[order[i]]);
    }
    assert_true(ps_round_is_complete(&r));

    struct term want = naive(leaf, count);
    if (want.given) {
        float got = sum(&r);

        assert_memory_equal(&got, &want.value, sizeof(got));
    } else {
        assert_null(ps_round_first_nonempty(&r));
    }
    ps_round_fini(&r);
}

static const float mixture[] = {1e8f, 1, -1e8f, 1e-8f, 3, -7e7f, 0.1f};

static void sums_of_all_subsets_of_nine_slots_match_the_tree(void **state)
{
    size_t live = ps_alloc_live();
    struct term leaf[16];
    struct ps_rng rng;

    (void)state;
    ps_rng_init(&rng, 1);
    for (uint32_t count = 1; count <= 9; count++) {
        for (uint32_t mask = 0; mask < 1u << count; mask++) {
            for (uint32_t i = 0; i < count; i++) {
                leaf[i].given = (mask >> i & 1) != 0;
                leaf[i].value = mixture[i % 7] * (float)(i + 1);
            }
            check_order(leaf, count, &rng);
        }
    }
    assert_int_equal(ps_alloc_live(), live);
}

static void sums_of_random_slots_match_the_tree(void **state)
{
    struct term leaf[64];

    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct ps_rng rng;

        ps_rng_init(&rng, seed);
        uint32_t count = 1 + (uint32_t)ps_rng_below(&rng, 64);
        uint32_t empty = (uint32_t)ps_rng_below(&rng, 1000);

        for (uint32_t i = 0; i < count; i++) {
            leaf[i].given = !ps_rng_chance(&rng, empty);
            leaf[i].value = mixture[ps_rng_below(&rng, 7)] *
                            (float)(1 + ps_rng_below(&rng, 100));
        }
        check_order(leaf, count, &rng);
    }
}

/* The example of round.h, with numbers whose sum depends on the order. */
static void empty_subtree_is_replaced_by_its_sibling(void **state)
{
    const float v[5] = {1e8f, 0, 1, -1e8f, 0.5f};
    volatile float inner = v[2] + v[3];
    volatile float perfect = v[0] + inner;
    float want = perfect + v[4];
    struct ps_round r;

    (void)state;
    ps_round_init(&r, 5);
    for (uint32_t i = 0; i < 5; i++) {
        offer(&r, i, &(struct term){.given = i != 1, .value = v[i]});
    }
    float got = sum(&r);
    assert_memory_equal(&got, &want, sizeof(got));
    ps_round_fini(&r);
}

static void slot_counts_once_in_a_round(void **state)
{
    size_t live = ps_alloc_live();
    struct ps_slice s = slice_of(7);
    struct ps_round r;

    (void)state;
    ps_round_init(&r, 3);
    assert_true(ps_round_contribute(&r, 1, &s, 4));
    assert_int_equal(s.buf->refs, 2);
    assert_false(ps_round_contribute(&r, 1, &s, 4));
    assert_false(ps_round_contribute(&r, 1, NULL, 4));
    assert_int_equal(s.buf->refs, 2);
    assert_int_equal(r.nonempty, 1);
    assert_int_equal(r.weight, 4);
    assert_int_equal(r.bytes, 4);
    assert_true(ps_round_contribute(&r, 0, NULL, 9));
    assert_false(ps_round_contribute(&r, 0, &s, 9));
    assert_int_equal(r.weight, 4);
    assert_true(ps_round_has_contributed(&r, 0));
    assert_true(ps_round_has_contributed(&r, 1));
    assert_false(ps_round_has_contributed(&r, 2));
    assert_false(ps_round_is_complete(&r));
    assert_ptr_equal(ps_round_first_nonempty(&r)->buf, s.buf);
    ps_round_fini(&r);
    assert_int_equal(s.buf->refs, 1);
    ps_buf_unref(s.buf);
    assert_int_equal(ps_alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_all_subsets_of_nine_slots_match_the_tree),
        cmocka_unit_test(sums_of_random_slots_match_the_tree),
        cmocka_unit_test(empty_subtree_is_replaced_by_its_sibling),
        cmocka_unit_test(slot_counts_once_in_a_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
