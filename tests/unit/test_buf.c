/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"

static void buffer_is_freed_with_its_last_reference(void **state)
{
    struct ps_buf *b = ps_buf_new(1000);

    (void)state;
    assert_int_equal((uintptr_t)b->data % 64, 0);
    assert_int_equal(b->size, 1000);
    memset(b->data, 7, b->size);
    assert_ptr_equal(ps_buf_ref(b), b);
    ps_buf_unref(b);
    assert_int_equal(ps_alloc_live(), 1);
    assert_int_equal(b->data[999], 7);
    ps_buf_unref(b);
    ps_buf_unref(NULL);
    assert_int_equal(ps_alloc_live(), 0);
}

static void buffers_of_every_size_are_aligned(void **state)
{
    (void)state;
    for (size_t size = 0; size < 300; size++) {
        struct ps_buf *b = ps_buf_new(size);

        assert_int_equal((uintptr_t)b->data % 64, 0);
        memset(b->data, 1, size);
        ps_buf_unref(b);
    }
    assert_int_equal(ps_alloc_live(), 0);
}

static void count(void *ctx)
{
    ++*(int *)ctx;
}

static void owner_of_a_buffer_is_notified_once(void **state)
{
    uint8_t memory[16];
    int calls = 0;
    struct ps_buf *b = ps_buf_wrap(memory, sizeof(memory), count, &calls);

    (void)state;
    assert_ptr_equal(b->data, memory);
    ps_buf_ref(b);
    ps_buf_ref(b);
    ps_buf_unref(b);
    ps_buf_unref(b);
    assert_int_equal(calls, 0);
    ps_buf_unref(b);
    assert_int_equal(calls, 1);

    b = ps_buf_wrap(memory, sizeof(memory), NULL, NULL);
    ps_buf_unref(b);
    assert_int_equal(ps_alloc_live(), 0);
}

static void slice_points_into_its_buffer(void **state)
{
    struct ps_buf *b = ps_buf_new(10);
    struct ps_slice s = {.buf = b, .offset = 4, .len = 6};

    (void)state;
    assert_ptr_equal(ps_slice_data(&s), b->data + 4);
    ps_buf_unref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_is_freed_with_its_last_reference),
        cmocka_unit_test(buffers_of_every_size_are_aligned),
        cmocka_unit_test(owner_of_a_buffer_is_notified_once),
        cmocka_unit_test(slice_points_into_its_buffer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
