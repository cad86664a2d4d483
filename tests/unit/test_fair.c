/* SPDX-License-Identifier: Apache-2.0 */
/* Fair queueing: shares by weight whatever the sizes of items, no starvation,
 * nothing kept from idle times. */
#include "core/part/fair.h"

#include "base/limits.h"
#include "base/list.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define FLOWS 3

struct flow {
    struct ps_fair_flow flow;
    uint32_t weight;
    uint64_t item_bytes;
    uint64_t cost_served;
    uint64_t items_served;
    uint64_t waited; /* Cost of others since the last item. */
    uint64_t waited_max;
};

struct bench {
    struct ps_fair fair;
    struct flow flows[FLOWS];
};

static void begin_bench(struct bench *b)
{
    *b = (struct bench){0};
    ps_fair_init(&b->fair);
}

static void end_bench(struct bench *b)
{
    for (unsigned i = 0; i < FLOWS; i++) {
        ps_fair_deactivate(&b->fair, &b->flows[i].flow);
    }
    ps_fair_fini(&b->fair);
}

static void add_backlog(struct bench *b, unsigned i, uint32_t weight,
                        uint64_t bytes)
{
    b->flows[i].weight = weight;
    b->flows[i].item_bytes = bytes;
    ps_fair_activate(&b->fair, &b->flows[i].flow);
}

/* Serves the flow whose turn it is; returns it. */
static struct flow *serve_flow(struct bench *b)
{
    struct flow *w = PS_CONTAINER(ps_fair_next(&b->fair), struct flow, flow);
    const uint64_t cost = w->item_bytes + PS_FAIR_ITEM_COST;

    ps_fair_charge(&b->fair, &w->flow, w->weight, w->item_bytes);
    w->cost_served += cost;
    w->items_served++;
    w->waited = 0;
    for (unsigned i = 0; i < FLOWS; i++) {
        struct flow *other = &b->flows[i];

        if (other != w && ps_fair_is_active(&other->flow)) {
            other->waited += cost;
            if (other->waited > other->waited_max) {
                other->waited_max = other->waited;
            }
        }
    }
    return w;
}

static void serve_bytes(struct bench *b, uint64_t cost)
{
    uint64_t served = 0;

    while (served < cost) {
        served += serve_flow(b)->item_bytes + PS_FAIR_ITEM_COST;
    }
}

/* Checks that flow 0 got `part` of `whole` of the service of flows 0 and 1,
 * to 2 %. */
static void assert_share(const struct bench *b, uint64_t part, uint64_t whole)
{
    const uint64_t all = b->flows[0].cost_served + b->flows[1].cost_served;
    const uint64_t mine = b->flows[0].cost_served * whole;

    assert_true(mine > all * part * 98 / 100);
    assert_true(mine < all * part * 102 / 100);
}

static void equal_weights_get_equal_bytes_of_any_sizes(void **state)
{
    static const uint64_t sizes[][2] = {
        {4096, 4096}, {4096, 1 << 20}, {1 << 20, 4096}, {100, 4 << 20}};
    struct bench b;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        begin_bench(&b);
        add_backlog(&b, 0, 100, sizes[i][0]);
        add_backlog(&b, 1, 100, sizes[i][1]);
        serve_bytes(&b, 1ull << 30);
        assert_share(&b, 1, 2);
        end_bench(&b);
    }
}

static void service_is_in_proportion_to_weights(void **state)
{
    static const uint32_t weights[][2] = {
        {100, 300}, {1, 3}, {1000, 1}, {250, 750}, {0, 100}};
    static const uint64_t sizes[][2] = {
        {4096, 4096}, {4096, 1 << 20}, {1 << 20, 4096}};
    struct bench b;

    (void)state;
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            const uint64_t mine = ps_fair_weight(weights[i][0]);
            const uint64_t other = ps_fair_weight(weights[i][1]);

            begin_bench(&b);
            add_backlog(&b, 0, weights[i][0], sizes[k][0]);
            add_backlog(&b, 1, weights[i][1], sizes[k][1]);
            serve_bytes(&b, 8ull << 30);
            assert_share(&b, mine, mine + other);
            end_bench(&b);
        }
    }
}

static void small_items_are_charged_for_more_than_their_bytes(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    add_backlog(&b, 0, 100, 4);
    add_backlog(&b, 1, 100, 1 << 20);
    serve_bytes(&b, 1ull << 30);
    /* By bytes alone it would be 262,144 items for each large one. */
    assert_true(b.flows[0].items_served < 600 * b.flows[1].items_served);
    end_bench(&b);
}

static void no_flow_waits_longer_than_turns_of_the_others(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    add_backlog(&b, 0, 100, 4096);
    add_backlog(&b, 1, 100, 1 << 20);
    add_backlog(&b, 2, 100, 64);
    serve_bytes(&b, 1ull << 30);
    for (unsigned i = 0; i < FLOWS; i++) {
        assert_true(b.flows[i].items_served > 0);
    }
    /* A large item is paid back before the next one. */
    assert_true(b.flows[0].waited_max <=
                (1 << 20) + 4 * (PS_FAIR_TURN + 4096 + PS_FAIR_ITEM_COST));
    end_bench(&b);
}

static void least_weight_does_not_starve(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    add_backlog(&b, 0, 1, 4096);
    add_backlog(&b, 1, 1000, 4096);
    serve_bytes(&b, 64ull << 20);
    assert_true(b.flows[0].items_served >= 5);
    end_bench(&b);
}

static void flow_that_was_idle_is_next_but_has_saved_nothing(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    add_backlog(&b, 0, 100, 1 << 20);
    serve_bytes(&b, 1ull << 30); /* Alone: takes nothing from others. */
    add_backlog(&b, 1, 100, 1 << 20);
    (void)serve_flow(&b);
    (void)serve_flow(&b);
    assert_true(b.flows[1].items_served >= 1);
    b.flows[0].cost_served = 0;
    b.flows[1].cost_served = 0;
    serve_bytes(&b, 1ull << 30);
    assert_share(&b, 1, 2);
    /* Idle, while others compete: */
    ps_fair_deactivate(&b.fair, &b.flows[1].flow);
    add_backlog(&b, 2, 100, 4096);
    serve_bytes(&b, 1ull << 30);
    add_backlog(&b, 1, 100, 1 << 20);
    ps_fair_deactivate(&b.fair, &b.flows[2].flow);
    b.flows[0].cost_served = 0;
    b.flows[1].cost_served = 0;
    serve_bytes(&b, 1ull << 30);
    assert_share(&b, 1, 2);
    end_bench(&b);
}

static void flow_that_comes_and_goes_pays_for_its_service(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    add_backlog(&b, 0, 100, 1 << 20);
    add_backlog(&b, 1, 100, 4096);
    /* Flow 0 leaves after each item, and is back before the next decision. */
    for (unsigned i = 0; i < 100000; i++) {
        if (serve_flow(&b) == &b.flows[0]) {
            ps_fair_deactivate(&b.fair, &b.flows[0].flow);
            ps_fair_activate(&b.fair, &b.flows[0].flow);
        }
    }
    assert_share(&b, 1, 2);
    end_bench(&b);
}

static void all_idle_begins_a_new_period(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    add_backlog(&b, 0, 1, 64 << 20);
    add_backlog(&b, 1, 1, 64 << 20);
    serve_bytes(&b, 1ull << 36);
    ps_fair_deactivate(&b.fair, &b.flows[0].flow);
    ps_fair_deactivate(&b.fair, &b.flows[1].flow);
    add_backlog(&b, 1, 100, 4096);
    assert_int_equal(b.flows[1].flow.item.key, 0);
    add_backlog(&b, 0, 100, 4096);
    assert_int_equal(b.flows[0].flow.item.key, 0);
    end_bench(&b);
}

static void random_loads_get_their_shares(void **state)
{
    struct ps_rng rng;
    struct bench b;

    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        uint64_t weight[2];

        ps_rng_init(&rng, seed);
        begin_bench(&b);
        for (unsigned i = 0; i < 2; i++) {
            weight[i] = 20 + ps_rng_next(&rng) % 981;
            add_backlog(&b, i, (uint32_t)weight[i], 1);
        }
        for (uint64_t served = 0; served < 8ull << 30;) {
            for (unsigned i = 0; i < 2; i++) {
                b.flows[i].item_bytes = ps_rng_next(&rng) % (1 << 20);
            }
            served += serve_flow(&b)->item_bytes;
        }
        assert_share(&b, weight[0], weight[0] + weight[1]);
        end_bench(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_weights_get_equal_bytes_of_any_sizes),
        cmocka_unit_test(service_is_in_proportion_to_weights),
        cmocka_unit_test(small_items_are_charged_for_more_than_their_bytes),
        cmocka_unit_test(no_flow_waits_longer_than_turns_of_the_others),
        cmocka_unit_test(least_weight_does_not_starve),
        cmocka_unit_test(flow_that_was_idle_is_next_but_has_saved_nothing),
        cmocka_unit_test(flow_that_comes_and_goes_pays_for_its_service),
        cmocka_unit_test(all_idle_begins_a_new_period),
        cmocka_unit_test(random_loads_get_their_shares),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
