/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"

#define ITEMS 300u

struct thing {
    struct ps_heap_item item;
    uint64_t key;
    uint64_t order; /* Of the last push or update. */
    bool in;
};

static int compare(const void *a, const void *b)
{
    const struct thing *x = *(const struct thing *const *)a;
    const struct thing *y = *(const struct thing *const *)b;

    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->order < y->order ? -1 : 1;
}

/* Items must leave the heap as a stable sort orders them. */
static void drain_and_compare(struct ps_heap *h, struct thing *things)
{
    struct thing *sorted[ITEMS];
    size_t count = 0;

    for (size_t i = 0; i < ITEMS; i++) {
        if (things[i].in) {
            sorted[count++] = &things[i];
        }
    }
    qsort(sorted, count, sizeof(void *), compare);
    assert_int_equal(h->count, count);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(ps_heap_peek(h), &sorted[i]->item);
        assert_ptr_equal(ps_heap_pop(h), &sorted[i]->item);
        assert_false(ps_heap_linked(&sorted[i]->item));
        sorted[i]->in = false;
    }
    assert_null(ps_heap_pop(h));
    assert_null(ps_heap_peek(h));
}

static void heap_agrees_with_a_stable_sort(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct thing things[ITEMS];
        struct ps_heap h;
        struct ps_rng rng;
        uint64_t order = 0;

        memset(things, 0, sizeof(things));
        ps_rng_init(&rng, seed);
        ps_heap_init(&h);
        for (int step = 0; step < 2000; step++) {
            struct thing *t = &things[ps_rng_below(&rng, ITEMS)];
            /* Few keys, so that equal ones are common. */
            uint64_t key = ps_rng_below(&rng, 20);

            if (t->in && ps_rng_chance(&rng, 400)) {
                ps_heap_remove(&h, &t->item);
                t->in = false;
                continue;
            }
            if (t->in || ps_rng_chance(&rng, 500)) {
                ps_heap_update(&h, &t->item, key);
            } else {
                ps_heap_push(&h, &t->item, key);
            }
            t->in = true;
            t->key = key;
            t->order = order++;
            assert_true(ps_heap_linked(&t->item));
        }
        drain_and_compare(&h, things);
        ps_heap_fini(&h);
    }
    assert_int_equal(ps_alloc_live(), 0);
}

static void equal_keys_leave_in_order_of_insertion(void **state)
{
    struct thing things[100];
    struct ps_heap h;

    (void)state;
    memset(things, 0, sizeof(things));
    ps_heap_init(&h);
    for (size_t i = 0; i < 100; i++) {
        ps_heap_push(&h, &things[i].item, 5);
    }
    ps_heap_update(&h, &things[0].item, 5);
    for (size_t i = 1; i < 100; i++) {
        assert_ptr_equal(ps_heap_pop(&h), &things[i].item);
    }
    assert_ptr_equal(ps_heap_pop(&h), &things[0].item);
    ps_heap_fini(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_agrees_with_a_stable_sort),
        cmocka_unit_test(equal_keys_leave_in_order_of_insertion),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
