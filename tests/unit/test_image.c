/* SPDX-License-Identifier: Apache-2.0 */
#include "core/part/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "core/part/store.h"

#define COUNT 3u /* Elements. */

static struct ps_slice filled(size_t len, uint8_t first)
{
    struct ps_slice s = {.buf = ps_buf_new(len), .len = len};

    for (size_t i = 0; i < len; i++) {
        s.buf->data[i] = (uint8_t)(first + i);
    }
    return s;
}

/* A partition of a 16-bit type with a value, an accumulated gradient, one state
 * and master weights. */
static struct ps_part *make_part(struct ps_store *st)
{
    struct ps_part *part = ps_store_find_or_add(st, 1, 2);
    struct ps_slice value = filled(COUNT * 2, 10);
    struct ps_slice sum = filled(COUNT * 2, 20);
    struct ps_slice state = filled(COUNT * 4, 30);
    struct ps_slice master = filled(COUNT * 4, 50);

    ps_part_declare(part, PS_DTYPE_FLOAT16, COUNT);
    ps_store_set_value(st, part, 7, &value);
    ps_store_accumulate(st, part, &sum, 4, PS_REDUCE_MEAN);
    ps_store_set_buffer(st, part, PS_PART_BUFFER_STATE_0, &state);
    ps_store_set_buffer(st, part, PS_PART_BUFFER_MASTER, &master);
    part->image.retry = 3;
    part->image.step_offset = -2;
    part->image.name_hash = 99;
    part->image.first_elem = 1000;
    return part;
}

/* An image makes the same partition in another store. */
static void an_installed_image_is_the_same(void **state)
{
    struct ps_store from;
    struct ps_store to;
    struct ps_slice buffers[PS_PART_BUFFERS] = {{0}};
    uint64_t lens[PS_PART_BUFFERS];

    (void)state;
    ps_store_init(&from);
    ps_store_init(&to);
    const struct ps_part *part = make_part(&from);
    const struct ps_image im = ps_image_of(part, lens);

    assert_true(ps_image_is_valid(&im, 2));
    assert_int_equal(ps_image_bytes(lens), from.stored_bytes);
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        buffers[i] = part->buffers[i];
        if (buffers[i].buf != NULL) {
            ps_buf_ref(buffers[i].buf);
        }
    }
    struct ps_part *copy = ps_store_find_or_add(&to, 1, 2);

    ps_store_install(&to, copy, &im, buffers);
    assert_memory_equal(&copy->image, &part->image, sizeof(part->image));
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        assert_int_equal(copy->buffers[i].len, part->buffers[i].len);
        assert_ptr_equal(copy->buffers[i].buf, part->buffers[i].buf);
        assert_null(buffers[i].buf);
    }
    assert_int_equal(to.stored_bytes, from.stored_bytes);
    ps_store_fini(&from);
    ps_store_fini(&to);
}

struct wrong {
    const char *what;
    uint64_t *number; /* 64 bits of the image or of its lengths. */
    uint64_t value;
};

/* Each number of an image by itself. */
static void images_with_a_wrong_number_are_refused(void **state)
{
    struct ps_store st;
    struct ps_rec_part_image im;
    uint64_t lens[PS_PART_BUFFERS];
    struct ps_image m;

    (void)state;
    ps_store_init(&st);
    m = ps_image_of(make_part(&st), lens);
    im = *m.records;
    m.records = &im;
    const struct wrong wrong[] = {
        {"version", &im.version, PS_ROUND_MAX + 1},
        {"value", &lens[PS_PART_BUFFER_VALUE], COUNT * 2 + 1},
        {"accumulated", &lens[PS_PART_BUFFER_ACCUMULATED], COUNT * 2 - 1},
        {"no accumulated", &lens[PS_PART_BUFFER_ACCUMULATED], 0},
        {"encoded", &lens[PS_PART_BUFFER_ENCODED], 4},
        {"state", &lens[PS_PART_BUFFER_STATE_0], COUNT * 2},
        {"master", &lens[PS_PART_BUFFER_MASTER], COUNT * 4 + 4},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const uint64_t right = *wrong[i].number;

        assert_true(ps_image_is_valid(&m, 2));
        *wrong[i].number = wrong[i].value;
        if (ps_image_is_valid(&m, 2)) {
            fail_msg("valid in spite of its number of %s", wrong[i].what);
        }
        *wrong[i].number = right;
    }
    im.step_offset = -(int64_t)im.version - 1;
    assert_false(ps_image_is_valid(&m, 2));
    im.step_offset = (int64_t)PS_ROUND_MAX + 1;
    assert_false(ps_image_is_valid(&m, 2));
    ps_store_fini(&st);
}

static int use(const struct ps_part *part, bool has_optimizer,
               enum ps_image_use to)
{
    const char *text = "";

    return ps_image_check_use(part, has_optimizer, to, &text);
}

/* The table of what each kind of partition allows. */
static void kinds_of_partitions_allow_different_uses(void **state)
{
    struct ps_store st;

    (void)state;
    ps_store_init(&st);
    struct ps_part *part = make_part(&st);

    assert_int_equal(use(part, false, PS_IMAGE_MIGRATE), 0);
    assert_int_equal(use(part, true, PS_IMAGE_MIGRATE), 0);
    assert_int_equal(use(part, false, PS_IMAGE_RESTORE), 0);
    assert_int_equal(use(part, true, PS_IMAGE_RESTORE), PS_E_UNSUPPORTED);
    assert_int_equal(use(NULL, true, PS_IMAGE_RESTORE), PS_E_UNSUPPORTED);
    assert_int_equal(use(part, false, PS_IMAGE_SAVE), PS_E_INVAL);
    assert_int_equal(use(NULL, true, PS_IMAGE_SAVE), PS_E_NOKEY);
    assert_int_equal(use(part, true, PS_IMAGE_SAVE), PS_E_AGAIN);
    ps_store_accumulate(&st, part, &(struct ps_slice){0}, 0, 0);
    assert_int_equal(use(part, true, PS_IMAGE_SAVE), 0);

    ps_part_obtain_rows(part, 2)->row_width = 1;
    assert_int_equal(use(part, true, PS_IMAGE_MIGRATE), PS_E_UNSUPPORTED);
    assert_int_equal(use(part, true, PS_IMAGE_SAVE), 0);
    part->rows->row_width = 0;
    (void)ps_part_obtain_async(part, 2);
    assert_int_equal(use(part, false, PS_IMAGE_MIGRATE), PS_E_UNSUPPORTED);
    assert_int_equal(use(part, false, PS_IMAGE_RESTORE), PS_E_UNSUPPORTED);
    assert_int_equal(use(part, true, PS_IMAGE_SAVE), 0);
    ps_store_fini(&st);
}

/* States, then the master weights of a 16-bit type. */
static void states_and_master_weights_are_saved(void **state)
{
    (void)state;
    assert_int_equal(ps_image_saved_count(PS_DTYPE_FLOAT32, 2), 2);
    assert_int_equal(ps_image_saved_count(PS_DTYPE_BFLOAT16, 2), 3);
    assert_int_equal(ps_image_saved_buffer(1, 2), PS_PART_BUFFER_STATE_1);
    assert_int_equal(ps_image_saved_buffer(2, 2), PS_PART_BUFFER_MASTER);
    assert_int_equal(ps_image_saved_buffer(0, 0), PS_PART_BUFFER_MASTER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_installed_image_is_the_same),
        cmocka_unit_test(images_with_a_wrong_number_are_refused),
        cmocka_unit_test(kinds_of_partitions_allow_different_uses),
        cmocka_unit_test(states_and_master_weights_are_saved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
