/* SPDX-License-Identifier: Apache-2.0 */
#include "base/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define ITEMS 20

struct thing {
    int number;
    struct ps_list_node node;
};

static struct thing *thing_of(struct ps_list_node *n)
{
    return PS_CONTAINER(n, struct thing, node);
}

static void expect(const struct ps_list *l, const int *numbers, size_t count)
{
    size_t i = 0;

    PS_LIST_EACH(n, l)
    {
        assert_true(i < count);
        assert_int_equal(thing_of(n)->number, numbers[i]);
        i++;
    }
    assert_int_equal(i, count);
    assert_int_equal(ps_list_empty(l), count == 0);
    assert_true(count == 0 ? ps_list_first(l) == NULL
                           : thing_of(ps_list_first(l))->number == numbers[0]);
}

/* Against an array of numbers: push at either end or before one, remove from
 * anywhere. */
static void list_agrees_with_an_array(void **state)
{
    struct thing things[ITEMS];
    int numbers[ITEMS] = {0};
    size_t count = 0;
    struct ps_list l;
    struct ps_rng rng;

    (void)state;
    memset(things, 0, sizeof(things));
    ps_list_init(&l);
    ps_rng_init(&rng, 1);
    for (int step = 0; step < 3000; step++) {
        int i = (int)ps_rng_below(&rng, ITEMS);
        struct thing *t = &things[i];

        t->number = i;
        if (ps_list_linked(&t->node)) {
            size_t at = 0;

            while (numbers[at] != i) {
                at++;
            }
            memmove(&numbers[at], &numbers[at + 1],
                    (count - at - 1) * sizeof(numbers[0]));
            count--;
            ps_list_remove(&t->node);
            assert_false(ps_list_linked(&t->node));
        } else if (count > 0 && ps_rng_chance(&rng, 300)) {
            size_t at = ps_rng_below(&rng, count);

            ps_list_insert(&things[numbers[at]].node, &t->node);
            memmove(&numbers[at + 1], &numbers[at],
                    (count - at) * sizeof(numbers[0]));
            numbers[at] = i;
            count++;
        } else if (ps_rng_chance(&rng, 500)) {
            numbers[count++] = i;
            ps_list_push_back(&l, &t->node);
        } else {
            memmove(&numbers[1], &numbers[0], count * sizeof(numbers[0]));
            numbers[0] = i;
            count++;
            ps_list_push_front(&l, &t->node);
        }
        expect(&l, numbers, count);
    }
}

static void pop_drains_in_order(void **state)
{
    struct thing things[4] = {
        {.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
    struct ps_list moved;
    struct ps_list l;

    (void)state;
    ps_list_init(&l);
    ps_list_init(&moved);
    ps_list_move_all(&moved, &l);
    for (int i = 0; i < 4; i++) {
        ps_list_push_back(i < 2 ? &l : &moved, &things[i].node);
    }
    ps_list_move_all(&moved, &l);
    assert_true(ps_list_empty(&moved));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(thing_of(ps_list_pop(&l))->number, i);
        assert_false(ps_list_linked(&things[i].node));
    }
    assert_null(ps_list_pop(&l));
}

/* The loops over the structs see each entry once, also when the body removes
 * it. */
static void loops_over_structs_see_each_entry(void **state)
{
    struct thing things[4] = {
        {.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
    const int odd[] = {1, 3};
    struct ps_list l;
    int sum = 0;

    (void)state;
    ps_list_init(&l);
    assert_null(PS_LIST_FIRST(struct thing, node, &l));
    assert_null(PS_LIST_POP(struct thing, node, &l));
    for (int i = 0; i < 4; i++) {
        ps_list_push_back(&l, &things[i].node);
    }
    PS_LIST_EACH_OF(const struct thing, t, node, &l)
    {
        sum += 1 << t->number;
    }
    assert_int_equal(sum, 15);
    PS_LIST_EACH_SAFE(struct thing, t, node, &l)
    {
        if (t->number % 2 == 0) {
            ps_list_remove(&t->node);
        }
    }
    expect(&l, odd, 2);
    assert_ptr_equal(PS_LIST_FIRST(struct thing, node, &l), &things[1]);
    assert_ptr_equal(PS_LIST_POP(struct thing, node, &l), &things[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_agrees_with_an_array),
        cmocka_unit_test(pop_drains_in_order),
        cmocka_unit_test(loops_over_structs_see_each_entry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
