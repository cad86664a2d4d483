/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>

#include "base/str.h"
#include "core/sched/job/history.h"

#define RANKS 4u

struct table {
    struct ps_account account;
    struct ps_sched_scalars *scalars;
    char text[256];
};

static void begin_table(struct table *t, const struct ps_account_limits *limits)
{
    memset(t, 0, sizeof(*t));
    ps_account_init(&t->account, PS_ACCOUNT_JOB, "job", limits);
}

static int set_value(struct table *t, const char *name, uint32_t rank,
                     uint64_t step, double value)
{
    struct ps_str why;

    ps_str_init(&why, t->text, sizeof(t->text));
    return ps_sched_scalars_set(
        &t->scalars, &t->account, RANKS,
        &(struct ps_rec_rank_scalar){
            .name = name, .rank = rank, .step = step, .value = value},
        PS_SECONDS(1), &why);
}

static void end_table(struct table *t)
{
    ps_account_refund(&t->account, PS_COST_MEMORY,
                      t->account.cost[PS_COST_MEMORY].used);
    ps_account_fini(&t->account);
    ps_sched_scalars_free(t->scalars);
}

static void rows_are_over_the_ranks_that_reported(void **state)
{
    struct ps_rec_job_scalar rows[PS_SCALARS_MAX];
    struct table t;

    (void)state;
    begin_table(&t, NULL);
    assert_int_equal(ps_sched_scalars_rows(NULL, 0, rows), 0);
    assert_int_equal(set_value(&t, "loss", 0, 7, 0.5), 0);
    assert_int_equal(set_value(&t, "loss", 2, 9, 0.25), 0);
    assert_int_equal(set_value(&t, "lr", 2, 9, 0.1), 0);
    /* The last one of a rank counts, whatever its step. */
    assert_int_equal(set_value(&t, "loss", 0, 6, 1), 0);
    assert_int_equal(ps_sched_scalars_rows(t.scalars, PS_SECONDS(3), rows), 2);
    assert_string_equal(rows[0].name, "loss");
    assert_int_equal(rows[0].ranks, 2);
    assert_int_equal(rows[0].nonfinite, 0);
    assert_int_equal(rows[0].step, 9);
    assert_true(rows[0].min == 0.25 && rows[0].max == 1);
    assert_true(rows[0].mean == 0.625);
    assert_int_equal(rows[0].age_ns, PS_SECONDS(2));
    assert_string_equal(rows[1].name, "lr");
    assert_true(rows[1].mean == 0.1);
    end_table(&t);
}

static void a_value_that_is_no_number_is_seen(void **state)
{
    struct ps_rec_job_scalar rows[PS_SCALARS_MAX];
    struct table t;

    (void)state;
    begin_table(&t, NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(set_value(&t, "nan", rank, 1, rank == 1 ? NAN : 1), 0);
        assert_int_equal(
            set_value(&t, "inf", rank, 1, rank == 1 ? INFINITY : 1), 0);
        assert_int_equal(set_value(&t, "max", rank, 1, DBL_MAX), 0);
    }
    assert_int_equal(ps_sched_scalars_rows(t.scalars, PS_SECONDS(1), rows), 3);
    assert_true(isnan(rows[0].min) && isnan(rows[0].mean) &&
                isnan(rows[0].max));
    assert_int_equal(rows[0].nonfinite, 1);
    assert_true(rows[1].min == 1 && isinf(rows[1].mean) && isinf(rows[1].max));
    assert_int_equal(rows[1].nonfinite, 1);
    /* Their sum is infinite, their mean is not. */
    assert_true(rows[2].mean == DBL_MAX);
    end_table(&t);
}

static void a_job_has_a_limited_number_of_names(void **state)
{
    char name[16];
    struct table t;

    (void)state;
    begin_table(&t, NULL);
    assert_int_equal(set_value(&t, "a b", 0, 0, 1), PS_E_INVAL);
    assert_null(t.scalars);
    for (uint32_t i = 0; i < PS_SCALARS_MAX; i++) {
        snprintf(name, sizeof(name), "s%u", i);
        assert_int_equal(set_value(&t, name, 0, 0, i), 0);
    }
    assert_int_equal(set_value(&t, "more", 0, 0, 1), PS_E_FULL);
    assert_string_equal(t.text, "a job has at most 32 scalars");
    assert_int_equal(set_value(&t, "s3", 1, 0, 1), 0);
    end_table(&t);
}

static void the_table_counts_in_the_memory_of_the_job(void **state)
{
    struct ps_account_limits limits = {0};
    struct table t;

    (void)state;
    limits.limit[PS_COST_MEMORY] = (struct ps_account_limit){.max = 100};
    begin_table(&t, &limits);
    assert_int_equal(set_value(&t, "loss", 0, 0, 1), PS_E_FULL);
    assert_non_null(strstr(t.text, "job job has 0 bytes of 100"));
    assert_null(t.scalars);
    end_table(&t);
}

static void scalars_outlive_their_job(void **state)
{
    struct ps_sched_history history = {.ended_count = 0};
    struct ps_sched_job job = {.gen = 7};
    const struct ps_msg_job_row *row;
    struct table t;

    (void)state;
    begin_table(&t, NULL);
    assert_int_equal(set_value(&t, "accuracy", 1, 12, 0.875), 0);
    job.observed.scalars = t.scalars;
    ps_sched_history_add(&history, &job, PS_SECONDS(2));
    end_table(&t);
    row = &ps_sched_history_find(&history, 7)->row->job_row;
    assert_int_equal(row->scalars_count, 1);
    assert_string_equal(row->scalars[0].name, "accuracy");
    assert_true(row->scalars[0].mean == 0.875);
    job = (struct ps_sched_job){.gen = 8};
    ps_sched_history_add(&history, &job, PS_SECONDS(2));
    row = &ps_sched_history_find(&history, 8)->row->job_row;
    assert_int_equal(row->scalars_count, 0);
    ps_sched_history_fini(&history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_over_the_ranks_that_reported),
        cmocka_unit_test(a_value_that_is_no_number_is_seen),
        cmocka_unit_test(a_job_has_a_limited_number_of_names),
        cmocka_unit_test(the_table_counts_in_the_memory_of_the_job),
        cmocka_unit_test(scalars_outlive_their_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
