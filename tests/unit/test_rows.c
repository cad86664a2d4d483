/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of several contributors: merged numbers, and sums by row in the order of
 * the tree over contributors, without the missing ones. */
#include "core/round/rows.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "core/round/round.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define PLACES_MAX 40u

/* The levels that core/round gives the same leaves. */
static void rows_have_the_levels_of_their_rounds(void **state)
{
    struct ps_rng rng;

    (void)state;
    ps_rng_init(&rng, 1);
    for (int i = 0; i < 2000; i++) {
        uint32_t places = 1 + (uint32_t)ps_rng_below(&rng, PLACES_MAX);
        uint32_t place[PLACES_MAX];
        uint8_t level[PLACES_MAX];
        struct ps_round r;
        struct ps_compute *c;
        uint32_t count = 0;

        ps_round_init(&r, places);
        for (uint32_t p = 0; p < places; p++) {
            struct ps_slice s = {.buf = ps_buf_new(4), .len = 4};
            bool gives = ps_rng_below(&rng, 3) > 0;

            ps_round_contribute(&r, p, gives ? &s : NULL, 1);
            ps_buf_unref(s.buf);
            if (gives) {
                place[count++] = p;
            }
        }
        c = ps_compute_new(1, places, 0);
        ps_round_add_sources(&r, c);
        ps_row_levels(place, count, places, level);
        assert_int_equal(c->job.src_count, count);
        assert_memory_equal(c->level, level, count);
        ps_compute_free(c);
        ps_round_fini(&r);
    }
}

static void numbers_must_ascend(void **state)
{
    (void)state;
    assert_true(ps_rows_are_valid(NULL, 0, 0));
    assert_true(ps_rows_are_valid((uint32_t[]){0, 3, 9}, 3, 10));
    assert_false(ps_rows_are_valid((uint32_t[]){0, 3, 10}, 3, 10));
    assert_false(ps_rows_are_valid((uint32_t[]){0, 3, 3}, 3, 10));
    assert_false(ps_rows_are_valid((uint32_t[]){4, 3, 9}, 3, 10));
    assert_int_equal(ps_rows_lower_bound((uint32_t[]){2, 4, 6}, 3, 4), 1);
    assert_int_equal(ps_rows_lower_bound((uint32_t[]){2, 4, 6}, 3, 5), 2);
    assert_int_equal(ps_rows_lower_bound((uint32_t[]){2, 4, 6}, 3, 7), 3);
}

/* Three contributors over 6 rows of 2: 0 contributes rows 1 and 4, 1 none, 2
 * rows 0, 1 and 5. */
static const uint32_t first[] = {1, 4};
static const float first_data[] = {1e8f, 1, 2, 3};
static const uint32_t third[] = {0, 1, 5};
static const float third_data[] = {7, 8, -1e8f, 10, 11, 12};

static struct ps_compute *plan(uint32_t all)
{
    struct ps_compute *c = ps_compute_new(1, 3, 0);
    struct ps_rows_sum s;
    uint32_t both[5];
    uint32_t rows;

    ps_rows_sum_init(&s, PS_DTYPE_FLOAT32, 2, 3);
    ps_rows_sum_add(&s, 0, first, 2, first_data);
    ps_rows_sum_add(&s, 1, NULL, 0, NULL);
    ps_rows_sum_add(&s, 2, third, 3, third_data);
    assert_int_equal(ps_rows_sum_union(&s, both, &rows), 0);
    assert_int_equal(rows, 4);
    assert_memory_equal(both, ((uint32_t[]){0, 1, 4, 5}), 16);
    for (uint64_t n = 3; n <= 5; n++) { /* Allocations by size of the rows. */
        ps_alloc_fail_at(n, 0);
        assert_int_equal(ps_rows_sum_plan(&s, all, c, &rows), PS_E_NOMEM);
    }
    assert_int_equal(ps_rows_sum_plan(&s, all, c, &rows), 0);
    assert_int_equal(rows, 4);
    ps_rows_sum_fini(&s);
    c->job.op = PS_JOB_SUM;
    return c;
}

static void rows_are_summed_alone(void **state)
{
    const float want[] = {7, 8, 0, 11, 2, 3, 11, 12};
    size_t live = ps_alloc_live();
    struct ps_compute *c = plan(0);
    float out[8];

    (void)state;
    ps_rows_plan_compact(c);
    c->job.dst = out;
    assert_int_equal(c->job.count, 8);
    /* In ranges whose borders are inside of rows. */
    assert_int_equal(ps_kernel_run_range(&c->job, 0, 3), 0);
    assert_int_equal(ps_kernel_run_range(&c->job, 3, 8), 0);
    assert_memory_equal(out, want, sizeof(want));
    ps_compute_free(c);
    assert_int_equal(ps_alloc_live(), live);
}

static void rows_without_contribution_are_zero(void **state)
{
    const float want[] = {7, 8, 0, 11, 0, 0, 0, 0, 2, 3, 11, 12};
    struct ps_compute *c = plan(6);
    float out[12];

    (void)state;
    memset(out, 0x55, sizeof(out));
    c->job.dst = out;
    assert_int_equal(c->job.count, 12);
    assert_int_equal(ps_kernel_run(&c->job), 0);
    assert_memory_equal(out, want, sizeof(want));
    ps_compute_free(c);
}

static void a_step_leaves_other_rows_alone(void **state)
{
    float w[12];
    struct ps_compute *c = plan(0);

    (void)state;
    for (int i = 0; i < 12; i++) {
        w[i] = 100;
    }
    c->job.op = PS_JOB_SGD;
    c->job.sgd = (struct ps_sgd){.lr = 1, .rescale = 1};
    c->job.dst = w;
    c->job.weight = w;
    assert_int_equal(ps_kernel_run(&c->job), 0);
    assert_memory_equal(
        w, ((float[]){93, 92, 100, 89, 100, 100, 100, 100, 98, 97, 89, 88}),
        sizeof(w));
    ps_compute_free(c);
}

/* Squares are those of a row's sum over all contributors. */
static void a_step_with_squares_of_rows_adds_contributors(void **state)
{
    const float g[] = {7, 8, 0, 11, 2, 3, 11, 12};
    const uint32_t row[] = {0, 1, 4, 5};
    float w[12];
    float x[12] = {0};
    struct ps_compute *c = plan(0);

    (void)state;
    for (int i = 0; i < 12; i++) {
        w[i] = 100;
    }
    c->job.op = PS_JOB_STEP;
    c->job.step = (struct ps_step){
        .kind = PS_STEP_GROUP_ADAGRAD, .lr = 1, .rescale = 1};
    c->job.dst = w;
    c->job.weight = w;
    c->job.states[0] = x;
    assert_int_equal(ps_kernel_run(&c->job), 0);
    for (int i = 0; i < 8; i++) {
        const float *of = &g[i / 2 * 2];
        const float mean = (of[0] * of[0] + of[1] * of[1]) / 2;
        const uint32_t at = row[i / 2] * 2 + (uint32_t)i % 2;

        assert_true(x[at] == mean);
        assert_true(w[at] == 100 - g[i] / sqrtf(mean));
    }
    assert_true(w[4] == 100 && w[7] == 100);
    ps_compute_free(c);
}

static void malformed_row_jobs_are_refused(void **state)
{
    struct ps_compute *c = plan(0);
    struct ps_row_job rows = *c->job.rows;
    struct ps_job job = c->job;
    float out[12];

    (void)state;
    job.dst = out;
    job.rows = &rows;
    job.count = 9; /* Not the elements of its rows. */
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job.count = 8;
    rows.row_width = 0;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    rows = *c->job.rows;
    rows.source_count = PS_ROW_SOURCES_MAX + 1;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    rows = *c->job.rows;
    rows.all_rows = 6;
    job.count = 12;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL); /* No zeros. */
    ps_compute_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_levels_of_their_rounds),
        cmocka_unit_test(numbers_must_ascend),
        cmocka_unit_test(rows_are_summed_alone),
        cmocka_unit_test(rows_without_contribution_are_zero),
        cmocka_unit_test(a_step_leaves_other_rows_alone),
        cmocka_unit_test(a_step_with_squares_of_rows_adds_contributors),
        cmocka_unit_test(malformed_row_jobs_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
