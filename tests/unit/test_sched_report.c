/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: training scalars of jobs. */
#include "sched_world.h"

static void send_report(struct job *j, int agent, uint64_t request,
                        const struct ps_rec_rank_scalar *scalars,
                        uint32_t count)
{
    deliver_msg(j->w, j->a[agent],
                (struct ps_msg){.code = PS_MSG_REPORT,
                                .report = {.gen = j->gen,
                                           .request = request,
                                           .scalars = scalars,
                                           .scalars_count = count}});
}

static const struct ps_msg_report_done *last_answer(const struct peer *p)
{
    return &last_msg(p, PS_MSG_REPORT_DONE)->report_done;
}

/* The newest row of a job. */
static const struct ps_msg_job_row *ask_job_row(struct world *w,
                                                struct peer *ctl)
{
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_JOBS, .job = ""}});
    return &last_msg(ctl, PS_MSG_JOB_ROW)->job_row;
}

static void operators_see_the_scalars_of_a_job(void **state)
{
    const struct ps_rec_rank_scalar of_a[] = {
        {.name = "loss", .rank = 0, .step = 10, .value = 0.5},
        {.name = "loss", .rank = 1, .step = 11, .value = 0.75},
        /* A rank of the other agent: ignored. */
        {.name = "loss", .rank = 2, .step = 99, .value = 100},
        {.name = "loss", .rank = 4, .step = 99, .value = 100},
        {.name = "lr", .rank = 0, .step = 10, .value = 0.1},
    };
    const struct ps_rec_rank_scalar of_b[] = {
        {.name = "loss", .rank = 3, .step = 9, .value = 1},
    };
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_job_row *row;

    (void)state;
    assert_int_equal(ask_job_row(j.w, ctl)->scalars_count, 0);
    send_report(&j, 0, 1, of_a, 5);
    send_report(&j, 1, 7, of_b, 1);
    assert_int_equal(last_answer(j.a[0])->request, 1);
    assert_int_equal(last_answer(j.a[0])->refused_count, 0);
    assert_int_equal(last_answer(j.a[1])->request, 7);
    advance_time(j.w, PS_SECONDS(1));
    row = ask_job_row(j.w, ctl);
    assert_int_equal(row->scalars_count, 2);
    assert_string_equal(row->scalars[0].name, "loss");
    assert_int_equal(row->scalars[0].ranks, 3);
    assert_int_equal(row->scalars[0].step, 11);
    assert_true(row->scalars[0].mean == 0.75);
    assert_int_equal(row->scalars[0].age_ns, PS_SECONDS(1));
    assert_string_equal(row->scalars[1].name, "lr");
    assert_int_equal(row->scalars[1].ranks, 1);
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, true);
    }
    /* The last ones of a job are those of its row. */
    advance_time(j.w, PS_SECONDS(1));
    row = ask_job_row(j.w, ctl);
    assert_int_equal(row->phase, PS_JOB_PHASE_ENDED);
    assert_int_equal(row->scalars_count, 2);
    assert_string_equal(row->scalars[0].name, "loss");
    assert_true(row->scalars[0].max == 1);
    assert_int_equal(row->scalars[0].age_ns, PS_SECONDS(2));
    end_world(j.w);
}

static void names_beyond_the_limit_are_refused_by_name(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_rec_rank_scalar list[PS_SCALARS_MAX + 3];
    char names[PS_SCALARS_MAX + 3][16];

    (void)state;
    for (uint32_t i = 0; i < PS_SCALARS_MAX + 3; i++) {
        snprintf(names[i], sizeof(names[i]), "s%u", i);
        list[i] = (struct ps_rec_rank_scalar){.name = names[i], .value = i};
    }
    /* One name of two ranks, and one that is malformed. */
    list[PS_SCALARS_MAX + 1].name = names[PS_SCALARS_MAX];
    list[PS_SCALARS_MAX + 1].rank = 1;
    list[PS_SCALARS_MAX + 2].name = "a\nb";
    send_report(&j, 0, 1, list, PS_SCALARS_MAX + 3);
    assert_int_equal(last_answer(j.a[0])->refused_count, 2);
    assert_string_equal(last_answer(j.a[0])->refused[0].name, "s32");
    assert_string_equal(last_answer(j.a[0])->refused[1].name, "a\nb");
    send_report(&j, 0, 2, list, PS_SCALARS_MAX);
    assert_int_equal(last_answer(j.a[0])->refused_count, 0);
    finish_job(&j);
}

static void reports_of_no_job_end_it_at_the_agent(void **state)
{
    const struct ps_rec_rank_scalar one = {.name = "loss", .value = 1};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct job other = j;

    (void)state;
    other.gen = j.gen + 100;
    send_report(&other, 0, 1, &one, 1);
    assert_int_equal(last_job_state(j.a[0])->gen, other.gen);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_ENDED);
    assert_null(find_msg(j.a[0], PS_MSG_REPORT_DONE));
    finish_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_see_the_scalars_of_a_job),
        cmocka_unit_test(names_beyond_the_limit_are_refused_by_name),
        cmocka_unit_test(reports_of_no_job_end_it_at_the_agent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
