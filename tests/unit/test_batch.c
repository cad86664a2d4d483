/* SPDX-License-Identifier: Apache-2.0 */
#include "core/part/round.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/alloc.h"

static const struct ps_rec_part *add(struct ps_batch *g, uint32_t key,
                                     const struct ps_slice *slice)
{
    const struct ps_rec_part part = {.key = key, .round = 7};
    const uint32_t place = ps_batch_add(g, &part, slice);

    return &g->parts[place];
}

static void records_and_bytes_stay_in_order(void **state)
{
    struct ps_buf *a = ps_buf_new(64);
    struct ps_buf *b = ps_buf_new(64);
    struct ps_batch g = {0};

    (void)state;
    assert_true(ps_batch_is_empty(&g));
    assert_int_equal(
        add(&g, 1, &(struct ps_slice){.buf = a, .offset = 8, .len = 8})->key,
        1);
    assert_int_equal(
        add(&g, 2, &(struct ps_slice){.buf = b, .offset = 16, .len = 4})->key,
        2);
    assert_int_equal(add(&g, 3, NULL)->round, 7);
    assert_int_equal(g.part_count, 3);
    assert_int_equal(g.slice_count, 2);
    assert_int_equal(g.payload_bytes, 12);
    assert_ptr_equal(g.slices[0].buf, a);
    assert_ptr_equal(g.slices[1].buf, b);
    assert_int_equal(g.parts[1].key, 2);
    ps_buf_unref(a);
    ps_buf_unref(b);
    assert_int_equal(g.slices[1].buf->refs, 1); /* The batch holds it. */
    ps_batch_fini(&g);
    assert_int_equal(ps_alloc_live(), 0);
}

static void adjacent_bytes_are_one_slice(void **state)
{
    struct ps_buf *a = ps_buf_new(64);
    struct ps_batch g = {0};

    (void)state;
    add(&g, 1, &(struct ps_slice){.buf = a, .offset = 0, .len = 8});
    add(&g, 2, NULL); /* Without bytes, so it separates no slices. */
    add(&g, 3, &(struct ps_slice){.buf = a, .offset = 8, .len = 16});
    assert_int_equal(g.slice_count, 1);
    assert_int_equal(g.slices[0].len, 24);
    assert_int_equal(a->refs, 2);
    /* A gap, and a step back. */
    add(&g, 4, &(struct ps_slice){.buf = a, .offset = 32, .len = 8});
    add(&g, 5, &(struct ps_slice){.buf = a, .offset = 24, .len = 8});
    assert_int_equal(g.slice_count, 3);
    assert_int_equal(g.payload_bytes, 40);
    ps_batch_fini(&g);
    assert_int_equal(a->refs, 1);
    ps_buf_unref(a);
}

static void a_frame_limits_records_and_bytes(void **state)
{
    struct ps_buf *a = ps_buf_new(PS_BATCH_FRAME_MAX);
    struct ps_batch g = {0};

    (void)state;
    for (uint32_t i = 0; i < PS_PARTS_MAX; i++) {
        assert_true(ps_batch_has_room(&g, 0));
        add(&g, i, NULL);
    }
    assert_false(ps_batch_has_room(&g, 0));
    ps_batch_clear(&g);
    assert_true(ps_batch_has_room(&g, PS_BATCH_FRAME_MAX));
    add(&g, 1, &(struct ps_slice){.buf = a, .len = PS_BATCH_FRAME_MAX - 4});
    assert_true(ps_batch_has_room(&g, 4));
    assert_false(ps_batch_has_room(&g, 5));
    ps_batch_fini(&g);
    ps_buf_unref(a);
}

static void a_cleared_batch_keeps_its_memory(void **state)
{
    struct ps_buf *a = ps_buf_new(8);
    struct ps_batch g = {0};

    (void)state;
    add(&g, 1, &(struct ps_slice){.buf = a, .len = 8});
    const struct ps_rec_part *parts = g.parts;

    ps_batch_clear(&g);
    assert_true(ps_batch_is_empty(&g));
    assert_int_equal(g.payload_bytes, 0);
    assert_int_equal(a->refs, 1);
    assert_ptr_equal(add(&g, 2, NULL), parts);
    ps_batch_fini(&g);
    ps_batch_fini(&g);
    ps_buf_unref(a);
    assert_int_equal(ps_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_bytes_stay_in_order),
        cmocka_unit_test(adjacent_bytes_are_one_slice),
        cmocka_unit_test(a_frame_limits_records_and_bytes),
        cmocka_unit_test(a_cleared_batch_keeps_its_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
