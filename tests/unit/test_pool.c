/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/num.h"
#include "base/rng.h"

#define MIB ((size_t)1024 * 1024)

/* A source that counts, and fails on request. */
struct source {
    size_t held;
    size_t limit; /* 0: none. */
    unsigned gets;
    uint32_t next_tag;
};

static int source_get(void *ctx, size_t size, void **ret_data,
                      uint32_t *ret_tag, uint64_t *ret_offset)
{
    struct source *s = ctx;

    if (s->limit != 0 && s->held + size > s->limit) {
        return PS_E_NOMEM;
    }
    s->held += size;
    s->gets++;
    *ret_data = aligned_alloc(4096, ps_round_up(size, 4096));
    *ret_tag = ++s->next_tag;
    *ret_offset = 1000000;
    return 0;
}

static void source_put(void *ctx, void *data, size_t size, uint32_t tag)
{
    struct source *s = ctx;

    assert_in_range(tag, 1, s->next_tag);
    assert_true(s->held >= size);
    s->held -= size;
    free(data);
}

static struct ps_pool *pool_on(struct source *s, uint64_t budget)
{
    return ps_pool_new(&(struct ps_pool_options){
        .budget = budget,
        .source = {.get = source_get, .put = source_put, .ctx = s}});
}

static struct ps_buf *get(struct ps_pool *p, size_t size)
{
    struct ps_buf *b = NULL;

    assert_int_equal(ps_pool_get(p, size, &b), 0);
    assert_int_equal(b->size, size);
    assert_int_equal(b->refs, 1);
    assert_int_equal((uintptr_t)b->data % 64, 0);
    return b;
}

/* Many buffers of all sizes at once: none overlap. */
static void buffers_do_not_overlap(void **state)
{
    struct ps_pool *p = ps_pool_new(&(struct ps_pool_options){.budget = 0});
    struct ps_buf *bufs[200] = {NULL};
    struct ps_rng rng;

    (void)state;
    ps_rng_init(&rng, 5);
    for (int step = 0; step < 4000; step++) {
        size_t i = (size_t)ps_rng_below(&rng, 200);
        uint8_t mark = (uint8_t)i;

        if (bufs[i] == NULL) {
            size_t most = (size_t)64 << ps_rng_below(&rng, 14);

            bufs[i] = get(p, (size_t)ps_rng_below(&rng, most));
            memset(bufs[i]->data, mark, bufs[i]->size);
            continue;
        }
        for (size_t at = 0; at < bufs[i]->size; at += 61) {
            assert_int_equal(bufs[i]->data[at], mark);
        }
        assert_true(bufs[i]->size == 0 ||
                    bufs[i]->data[bufs[i]->size - 1] == mark);
        ps_buf_unref(bufs[i]);
        bufs[i] = NULL;
        if (step % 500 == 0) {
            ps_pool_trim(p);
        }
    }
    for (size_t i = 0; i < 200; i++) {
        ps_buf_unref(bufs[i]);
    }
    assert_int_equal(ps_pool_used(p), 0);
    ps_pool_free(p);
    assert_int_equal(ps_alloc_live(), 0);
}

static void buffers_waste_at_most_a_quarter(void **state)
{
    struct ps_pool *p = ps_pool_new(&(struct ps_pool_options){.budget = 0});

    (void)state;
    for (size_t size = 4096; size < 8 * MIB; size += size / 37 + 1) {
        struct ps_buf *b = get(p, size);

        assert_in_range(ps_pool_used(p), size, size + size / 4 + 1);
        ps_buf_unref(b);
        ps_pool_trim(p);
    }
    for (size_t size = 4096; size <= 8 * MIB; size *= 2) {
        struct ps_buf *b = get(p, size);

        assert_int_equal(ps_pool_used(p), size);
        ps_buf_unref(b);
    }
    ps_pool_free(p);
}

static void steady_use_takes_no_new_memory(void **state)
{
    struct source s = {0};
    struct ps_pool *p = pool_on(&s, 0);
    unsigned gets;

    (void)state;
    for (int round = 0; round < 3; round++) {
        struct ps_buf *a = get(p, 5 * MIB);
        struct ps_buf *b = get(p, 3000);

        if (round == 0) {
            gets = s.gets;
        }
        assert_int_equal(s.gets, gets);
        ps_buf_unref(a);
        ps_buf_unref(b);
    }
    assert_int_equal(gets, 2);
    ps_pool_free(p);
    assert_int_equal(s.held, 0);
}

static void small_buffers_share_a_slab(void **state)
{
    struct source s = {0};
    struct ps_pool *p = pool_on(&s, 0);
    struct ps_buf *bufs[256];

    (void)state;
    for (int i = 0; i < 256; i++) {
        bufs[i] = get(p, 4096);
        assert_int_equal(bufs[i]->tag, 1);
        assert_int_equal(bufs[i]->offset, 1000000 + (uint64_t)i * 4096);
    }
    assert_int_equal(s.gets, 1);
    struct ps_buf *next = get(p, 4096);

    assert_int_equal(next->tag, 2);
    assert_int_equal(s.held, 2 * MIB);
    ps_buf_unref(next);
    for (int i = 1; i < 256; i++) {
        ps_buf_unref(bufs[i]);
    }
    /* One piece of the first slab is still out, so only the other goes. */
    ps_pool_trim(p);
    assert_int_equal(s.held, MIB);
    ps_buf_unref(bufs[0]);
    ps_pool_trim(p);
    assert_int_equal(s.held, 0);
    ps_pool_free(p);
}

static void allocation_beyond_the_budget_is_an_error(void **state)
{
    struct ps_pool *p = ps_pool_new(&(struct ps_pool_options){.budget = MIB});
    struct ps_buf *a = get(p, MIB / 2);
    struct ps_buf *b = get(p, MIB / 2);
    struct ps_buf *c = NULL;

    (void)state;
    assert_int_equal(ps_pool_get(p, 1, &c), PS_E_NOMEM);
    assert_null(c);
    ps_buf_unref(b);
    assert_int_equal(ps_pool_get(p, MIB / 2 + 1, &c), PS_E_NOMEM);
    c = get(p, MIB / 2);
    assert_int_equal(ps_pool_used(p), MIB);
    assert_int_equal(ps_pool_peak(p), MIB);
    ps_buf_unref(a);
    ps_buf_unref(c);
    assert_int_equal(ps_pool_used(p), 0);
    assert_int_equal(ps_pool_peak(p), MIB);
    ps_pool_free(p);
}

static void absurd_sizes_are_refused(void **state)
{
    struct ps_pool *p = ps_pool_new(&(struct ps_pool_options){.budget = 0});
    struct ps_buf *b = NULL;

    (void)state;
    assert_int_equal(ps_pool_get(p, SIZE_MAX, &b), PS_E_NOMEM);
    assert_int_equal(ps_pool_get(p, SIZE_MAX / 2 + 1, &b), PS_E_NOMEM);
    assert_int_equal(ps_pool_get(p, ((size_t)1 << 46) + 1, &b), PS_E_NOMEM);
    assert_int_equal(ps_pool_used(p), 0);
    ps_buf_unref(get(p, 0));
    ps_pool_free(p);
}

/* Cached memory of one class must not starve another. */
static void cached_memory_is_freed_for_another_class(void **state)
{
    struct source s = {.limit = 4 * MIB};
    struct ps_pool *p = pool_on(&s, 4 * MIB);
    struct ps_buf *bufs[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        bufs[i] = get(p, MIB);
    }
    for (int i = 0; i < 4; i++) {
        ps_buf_unref(bufs[i]);
    }
    assert_int_equal(s.held, 4 * MIB);
    ps_buf_unref(get(p, 4 * MIB));
    /* The same if only the source sets the limit. */
    ps_pool_free(p);
    p = pool_on(&s, 0);
    ps_buf_unref(get(p, 3 * MIB));
    ps_buf_unref(get(p, 4 * MIB));
    ps_pool_free(p);
    assert_int_equal(s.held, 0);
}

static void failed_source_leaves_the_pool_unchanged(void **state)
{
    struct source s = {.limit = MIB};
    struct ps_pool *p = pool_on(&s, 0);
    struct ps_buf *b = NULL;
    struct ps_buf *small = get(p, 100);

    (void)state;
    assert_int_equal(ps_pool_get(p, 2 * MIB, &b), PS_E_NOMEM);
    assert_null(b);
    assert_int_equal(ps_pool_used(p), 4096);
    ps_buf_unref(small);
    ps_pool_free(p);
    assert_int_equal(s.held, 0);
    assert_int_equal(ps_alloc_live(), 0);
}

static void injected_fault_fails_the_nth_allocation(void **state)
{
    struct ps_pool *p = ps_pool_new(&(struct ps_pool_options){.budget = 0});
    struct ps_buf *b = NULL;

    (void)state;
    ps_pool_fail_at(p, 2);
    ps_buf_unref(get(p, 10));
    assert_int_equal(ps_pool_get(p, 10, &b), PS_E_NOMEM);
    ps_buf_unref(get(p, 10));
    ps_pool_fail_at(p, 1);
    ps_pool_fail_at(p, 0);
    ps_buf_unref(get(p, 10));
    ps_pool_free(p);
    ps_pool_free(NULL);
}

static void large_buffers_begin_at_a_huge_page(void **state)
{
    struct ps_pool *p = ps_pool_new(&(struct ps_pool_options){.budget = 0});

    (void)state;
    for (size_t size = 2 * MIB; size < 12 * MIB; size += 700000) {
        struct ps_buf *b = get(p, size);

        assert_int_equal((uintptr_t)b->data % (2 * MIB), 0);
        b->data[0] = 1;
        b->data[size - 1] = 1;
        ps_buf_unref(b);
    }
    ps_pool_free(p);
}

/* A share counts until the last of its buffers is back, its owner gone or not. */
static void shares_of_a_pool_count_their_own_buffers(void **state)
{
    struct ps_pool *p = ps_pool_new(
        &(struct ps_pool_options){.budget = 64 * 1024});
    struct ps_pool_share *share = ps_pool_share_new();
    struct ps_buf *a;
    struct ps_buf *b;
    struct ps_buf *c;

    (void)state;
    assert_int_equal(ps_pool_get_for(p, 100, share, &a), 0);
    assert_int_equal(ps_pool_get_for(p, 10000, share, &b), 0);
    assert_int_equal(ps_pool_get(p, 10000, &c), 0);
    assert_int_equal(ps_pool_share_used(share), 4096 + ps_pool_cost(10000));
    assert_int_equal(ps_pool_get_for(p, 1 << 20, share, &b), PS_E_NOMEM);
    assert_int_equal(ps_pool_share_used(share), 4096 + ps_pool_cost(10000));
    ps_buf_unref(a);
    assert_int_equal(ps_pool_share_used(share), ps_pool_cost(10000));
    ps_pool_share_unref(share);
    ps_buf_unref(b);
    ps_buf_unref(c);
    ps_pool_share_unref(NULL);
    ps_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_do_not_overlap),
        cmocka_unit_test(buffers_waste_at_most_a_quarter),
        cmocka_unit_test(steady_use_takes_no_new_memory),
        cmocka_unit_test(small_buffers_share_a_slab),
        cmocka_unit_test(allocation_beyond_the_budget_is_an_error),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(cached_memory_is_freed_for_another_class),
        cmocka_unit_test(failed_source_leaves_the_pool_unchanged),
        cmocka_unit_test(injected_fault_fails_the_nth_allocation),
        cmocka_unit_test(shares_of_a_pool_count_their_own_buffers),
        cmocka_unit_test(large_buffers_begin_at_a_huge_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
