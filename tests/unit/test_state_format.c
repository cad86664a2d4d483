/* SPDX-License-Identifier: Apache-2.0 */
/* Files of an optimizer's state are read as they were written, and no others. */
#include "client/state_format.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/name_hash.h"

#include <cmocka.h>

static const float means[] = {1, 2, 3};

struct image {
    char *bytes;
    size_t len;
};

static int set_up(void **state)
{
    struct image *m = calloc(1, sizeof(*m));
    struct state_stream s = {.file = open_memstream(&m->bytes, &m->len)};

    assert_non_null(s.file);
    state_put_start(
        &s, &(struct ps_fixed_state_file){.optimizer = "sgd", .key_count = 1});
    state_put_key(&s,
                  &(struct ps_fixed_state_file_key){.kind = PS_KEY_KIND_INTEGER,
                                                    .dtype = PS_DTYPE_FLOAT32,
                                                    .buffer_count = 1,
                                                    .count = 3,
                                                    .steps = 9,
                                                    .name = "17"});
    state_put_buffer(&s, means, sizeof(means));
    state_put_end(&s);
    assert_int_equal(fclose(s.file), 0);
    assert_false(s.has_failed);
    *state = m;
    return 0;
}

static int tear_down(void **state)
{
    struct image *m = *state;

    free(m->bytes);
    free(m);
    return 0;
}

/* Reads the first `len` bytes of the image; true: they are a whole file. */
static bool read_image(const struct image *m, size_t len)
{
    struct state_stream s = {.file = fmemopen(m->bytes, len, "rb")};
    struct ps_fixed_state_file start;
    struct ps_fixed_state_file_key key;
    float data[3];
    bool good;

    assert_non_null(s.file);
    good = state_get_start(&s, &start) && start.key_count == 1 &&
           state_get_key(&s, &key);
    if (good) {
        state_get_buffer(&s, data, sizeof(data));
        good = state_get_end(&s) && memcmp(data, means, sizeof(data)) == 0;
    }
    fclose(s.file);
    return good;
}

static void a_written_file_is_read_back(void **state)
{
    const struct image *m = *state;
    struct state_stream s = {.file = fmemopen(m->bytes, m->len, "rb")};
    struct ps_fixed_state_file start;
    struct ps_fixed_state_file_key key;

    assert_int_equal(m->len, PS_FIXED_STATE_FILE_BYTES +
                                 PS_FIXED_STATE_FILE_KEY_BYTES + 16 +
                                 PS_FIXED_STATE_FILE_END_BYTES);
    assert_memory_equal(m->bytes, "pskvopt2sgd", 12);
    assert_true(state_get_start(&s, &start));
    assert_string_equal((const char *)start.optimizer, "sgd");
    assert_true(state_get_key(&s, &key));
    assert_int_equal(key.kind, PS_KEY_KIND_INTEGER);
    assert_int_equal(key.dtype, PS_DTYPE_FLOAT32);
    assert_int_equal(key.count, 3);
    assert_int_equal(key.steps, 9);
    assert_string_equal((const char *)key.name, "17");
    fclose(s.file);
    assert_true(read_image(m, m->len));
}

static void other_files_and_damaged_ones_are_refused(void **state)
{
    const struct image *m = *state;
    struct ps_fixed_state_file start;
    struct state_stream s = {0};

    for (size_t i = 0; i < m->len; i++) {
        m->bytes[i] = (char)(m->bytes[i] ^ 0x40);
        assert_false(read_image(m, m->len));
        m->bytes[i] = (char)(m->bytes[i] ^ 0x40);
        assert_true(i == 0 || !read_image(m, i));
    }
    m->bytes[7] = '1'; /* Another format. */
    s.file = fmemopen(m->bytes, m->len, "rb");
    assert_false(state_get_start(&s, &start));
    fclose(s.file);
}

static void a_name_without_an_end_is_refused(void **state)
{
    const struct image *m = *state;

    memset(m->bytes + PS_FIXED_STATE_FILE_BYTES +
               offsetof(struct ps_fixed_state_file_key, name),
           'x', 256);
    assert_false(read_image(m, m->len));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_written_file_is_read_back, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            other_files_and_damaged_ones_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_name_without_an_end_is_refused,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
