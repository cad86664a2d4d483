/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"

#define KEYS 500

/* Reference: the keys in order of insertion. */
struct reference {
    uint64_t keys[KEYS];
    size_t count;
};

static int values[KEYS];

static size_t position(const struct reference *r, uint64_t key)
{
    size_t i = 0;

    while (i < r->count && r->keys[i] != key) {
        i++;
    }
    return i;
}

static void reference_remove(struct reference *r, size_t i)
{
    memmove(&r->keys[i], &r->keys[i + 1],
            (r->count - i - 1) * sizeof(r->keys[0]));
    r->count--;
}

/* Spread over all bits, so that the hash has something to do. */
static uint64_t key_of(uint64_t i)
{
    return i << 40 | i;
}

static void expect(const struct ps_map *m, const struct reference *r)
{
    struct ps_map_cursor c = {0};
    size_t i = 0;

    assert_int_equal(ps_map_count(m), r->count);
    for (void *v = ps_map_next(m, &c); v != NULL; v = ps_map_next(m, &c)) {
        assert_true(i < r->count);
        assert_int_equal(c.key, r->keys[i]);
        assert_ptr_equal(v, &values[r->keys[i] & 0xffff]);
        i++;
    }
    assert_int_equal(i, r->count);
    assert_null(ps_map_next(m, &c));
}

static void map_keeps_the_order_of_insertion(void **state)
{
    struct reference r = {.count = 0};
    struct ps_map *m = ps_map_new();
    struct ps_rng rng;

    (void)state;
    ps_rng_init(&rng, 3);
    for (int step = 0; step < 20000; step++) {
        uint64_t i = ps_rng_below(&rng, KEYS);
        size_t at = position(&r, key_of(i));

        if (at < r.count) {
            assert_ptr_equal(ps_map_get(m, key_of(i)), &values[i]);
            assert_ptr_equal(ps_map_remove(m, key_of(i)), &values[i]);
            reference_remove(&r, at);
        } else {
            assert_null(ps_map_get(m, key_of(i)));
            assert_null(ps_map_remove(m, key_of(i)));
            ps_map_put(m, key_of(i), &values[i]);
            r.keys[r.count++] = key_of(i);
        }
        if (step % 500 == 0) {
            expect(m, &r);
        }
    }
    expect(m, &r);
    ps_map_free(m);
    assert_int_equal(ps_alloc_live(), 0);
}

static void walker_may_remove_the_returned_entry(void **state)
{
    struct reference r = {.count = 0};
    struct ps_map *m = ps_map_new();
    struct ps_map_cursor c = {0};

    (void)state;
    for (uint64_t i = 0; i < KEYS; i++) {
        ps_map_put(m, i, &values[i]);
        if (i % 3 != 0) {
            r.keys[r.count++] = i;
        }
    }
    for (void *v = ps_map_next(m, &c); v != NULL; v = ps_map_next(m, &c)) {
        if (c.key % 3 == 0) {
            assert_ptr_equal(ps_map_remove(m, c.key), v);
        }
    }
    expect(m, &r);
    ps_map_free(m);
}

/* Removes any, adds more, until all entries have moved. */
static void walker_may_change_the_map(void **state)
{
    struct ps_map *m = ps_map_new();
    struct ps_map_cursor c = {0};
    uint64_t want = 0;
    uint64_t next = 10;

    (void)state;
    for (uint64_t i = 0; i < 10; i++) {
        ps_map_put(m, i, &values[i]);
    }
    for (void *v = ps_map_next(m, &c); v != NULL; v = ps_map_next(m, &c)) {
        assert_int_equal(c.key, want);
        assert_ptr_equal(v, &values[want]);
        if (want < 100) {
            /* Every other one never has its turn. */
            assert_ptr_equal(ps_map_remove(m, want + 1), &values[want + 1]);
            assert_ptr_equal(ps_map_remove(m, want), &values[want]);
            for (int i = 0; i < 3; i++, next++) {
                ps_map_put(m, next, &values[next]);
            }
        }
        want += want < 100 ? 2 : 1;
    }
    assert_int_equal(want, next);
    ps_map_free(m);
    assert_int_equal(ps_alloc_live(), 0);
}

static void map_accepts_extreme_keys(void **state)
{
    struct ps_map *m = ps_map_new();

    (void)state;
    ps_map_put(m, 0, &values[0]);
    ps_map_put(m, UINT64_MAX, &values[1]);
    assert_ptr_equal(ps_map_get(m, 0), &values[0]);
    assert_ptr_equal(ps_map_get(m, UINT64_MAX), &values[1]);
    assert_null(ps_map_get(m, UINT32_MAX));
    ps_map_free(m);
    ps_map_free(NULL);
    assert_int_equal(ps_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_keeps_the_order_of_insertion),
        cmocka_unit_test(walker_may_remove_the_returned_entry),
        cmocka_unit_test(walker_may_change_the_map),
        cmocka_unit_test(map_accepts_extreme_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
