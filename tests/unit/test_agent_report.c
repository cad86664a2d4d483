/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: training scalars of its ranks. */
#include "agent_world.h"

#include "base/limits.h"

static void submit_report(struct bench *b, uint32_t worker, uint64_t op_id,
                          const char *name, double value)
{
    const struct ps_rec_scalar one = {
        .name = name, .step = op_id, .value = value};

    deliver_msg(
        b, WORKER_CONN + worker,
        &(struct ps_msg){
            .code = PS_MSG_L_REPORT,
            .l_report = {.op_id = op_id, .scalars = &one, .scalars_count = 1}},
        NULL);
}

/* The n-th report of the agent, or NULL; its link sends some again. */
static const struct ps_msg_report *find_report(const struct bench *b,
                                               uint32_t n)
{
    const struct sent *s;
    uint64_t last = 0;

    for (uint32_t i = 0;
         (s = find_sent(b, SCHED_CONN, PS_MSG_REPORT, i)) != NULL; i++) {
        if (s->packet->msg->report.request > last && n-- == 0) {
            return &s->packet->msg->report;
        }
        if (s->packet->msg->report.request > last) {
            last = s->packet->msg->report.request;
        }
    }
    return NULL;
}

static const struct ps_msg_report *sent_report(const struct bench *b,
                                               uint32_t n)
{
    const struct ps_msg_report *m = find_report(b, n);

    assert_non_null(m);
    return m;
}

static uint32_t reports_sent(const struct bench *b)
{
    uint32_t n = 0;

    while (find_report(b, n) != NULL) {
        n++;
    }
    return n;
}

static void answer_report(struct bench *b, const struct ps_msg_report_done *m)
{
    struct ps_msg msg = {.code = PS_MSG_REPORT_DONE, .report_done = *m};

    msg.report_done.gen = GEN;
    if (msg.report_done.text == NULL) {
        msg.report_done.text = "";
    }
    deliver_msg(b, SCHED_CONN, &msg, NULL);
}

/* The end of a worker's operation; NULL: it is open. */
static const struct ps_msg_l_done *find_done(const struct bench *b,
                                             uint32_t worker, uint64_t op_id)
{
    const struct sent *s;

    for (uint32_t n = 0;
         (s = find_sent(b, WORKER_CONN + worker, PS_MSG_L_DONE, n)) != NULL;
         n++) {
        if (s->packet->msg->l_done.op_id == op_id) {
            return &s->packet->msg->l_done;
        }
    }
    return NULL;
}

static void let_time_pass(struct bench *b, ps_time how_long)
{
    const ps_time end = b->now + how_long;

    while (b->now < end) {
        ps_time due = b->machine.ops->deadline(b->machine.self);

        b->now = due < end ? due : end;
        feed_tick(b);
    }
}

/* The timeline of a job has no reports. */
static void reports_are_no_entries_of_the_trace(void **state)
{
    struct bench b = {.trace = ps_trace_new()};

    (void)state;
    restart_bench(&b, 1, 1);
    submit_report(&b, 0, 1, "loss", 0.5);
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 0)->request});
    assert_non_null(find_done(&b, 0, 1));
    assert_int_equal(b.trace->count, 0);
    end_bench(&b);
    ps_trace_free(b.trace);
}

static void reports_of_ranks_travel_together(void **state)
{
    const struct ps_msg_report *m;
    struct bench b;

    (void)state;
    begin_bench(&b, 3, 1);
    submit_report(&b, 0, 1, "loss", 0.5);
    /* The first one leaves at once. */
    assert_int_equal(reports_sent(&b), 1);
    m = sent_report(&b, 0);
    assert_int_equal(m->gen, GEN);
    assert_int_equal(m->scalars_count, 1);
    assert_string_equal(m->scalars[0].name, "loss");
    assert_int_equal(m->scalars[0].rank, 0);
    assert_int_equal(m->scalars[0].step, 1);
    assert_true(m->scalars[0].value == 0.5);
    assert_null(find_done(&b, 0, 1));
    submit_report(&b, 1, 1, "loss", 0.25);
    submit_report(&b, 2, 1, "lr", 0.1);
    let_time_pass(&b, PS_SECONDS(1));
    assert_int_equal(reports_sent(&b), 1); /* The first has no answer. */
    answer_report(&b, &(struct ps_msg_report_done){.request = m->request});
    assert_int_equal(find_done(&b, 0, 1)->error, 0);
    assert_null(find_done(&b, 1, 1));
    assert_int_equal(reports_sent(&b), 2);
    m = sent_report(&b, 1);
    assert_int_equal(m->scalars_count, 2);
    assert_string_equal(m->scalars[0].name, "loss");
    assert_int_equal(m->scalars[0].rank, 1);
    assert_string_equal(m->scalars[1].name, "lr");
    answer_report(&b, &(struct ps_msg_report_done){.request = m->request});
    assert_non_null(find_done(&b, 1, 1));
    assert_non_null(find_done(&b, 2, 1));
    end_bench(&b);
}

static void reports_keep_an_interval(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    submit_report(&b, 0, 1, "loss", 1);
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 0)->request});
    for (uint64_t op = 2; op < 10; op++) {
        submit_report(&b, 0, op, "loss", (double)op);
    }
    assert_int_equal(reports_sent(&b), 1);
    let_time_pass(&b, PS_MILLIS(240));
    assert_int_equal(reports_sent(&b), 1);
    let_time_pass(&b, PS_MILLIS(20));
    assert_int_equal(reports_sent(&b), 2);
    assert_int_equal(sent_report(&b, 1)->scalars_count, 1);
    assert_true(sent_report(&b, 1)->scalars[0].value == 9);
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 1)->request});
    for (uint64_t op = 2; op < 10; op++) {
        assert_non_null(find_done(&b, 0, op));
    }
    /* With nothing new there is nothing to send. */
    let_time_pass(&b, PS_SECONDS(2));
    assert_int_equal(reports_sent(&b), 2);
    end_bench(&b);
}

static void refused_names_are_errors_of_their_ranks(void **state)
{
    const struct ps_rec_scalar_name refused = {.name = "extra"};
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    submit_report(&b, 0, 1, "loss", 1);
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 0)->request});
    submit_report(&b, 0, 2, "loss", 1);
    submit_report(&b, 1, 2, "extra", 1);
    let_time_pass(&b, PS_SECONDS(1));
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 1)->request,
                          .refused = &refused,
                          .refused_count = 1,
                          .text = "a job has at most 32 scalars"});
    assert_int_equal(find_done(&b, 0, 2)->error, 0);
    assert_int_equal(find_done(&b, 1, 2)->error, PS_E_FULL);
    assert_string_equal(find_done(&b, 1, 2)->text,
                        "scalar 'extra' of job job is refused: a job has at "
                        "most 32 scalars");
    /* The agent remembers it. */
    submit_report(&b, 0, 3, "extra", 1);
    assert_int_equal(find_done(&b, 0, 3)->error, PS_E_FULL);
    let_time_pass(&b, PS_SECONDS(1));
    assert_int_equal(reports_sent(&b), 2);
    end_bench(&b);
}

static void an_operation_that_waits_with_a_refused_name_ends(void **state)
{
    const struct ps_rec_scalar_name refused = {.name = "extra"};
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    submit_report(&b, 0, 1, "extra", 1);
    submit_report(&b, 1, 1, "extra", 1);
    answer_report(
        &b, &(struct ps_msg_report_done){.request = sent_report(&b, 0)->request,
                                         .refused = &refused,
                                         .refused_count = 1,
                                         .text = "no"});
    assert_int_equal(find_done(&b, 0, 1)->error, PS_E_FULL);
    assert_int_equal(find_done(&b, 1, 1)->error, PS_E_FULL);
    end_bench(&b);
}

static void names_of_a_node_are_limited(void **state)
{
    char name[16];
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    for (uint32_t i = 0; i < PS_SCALARS_MAX; i++) {
        snprintf(name, sizeof(name), "s%u", i);
        submit_report(&b, 0, 1 + i, name, 1);
    }
    submit_report(&b, 0, 100, "more", 1);
    assert_int_equal(find_done(&b, 0, 100)->error, PS_E_FULL);
    assert_string_equal(find_done(&b, 0, 100)->text,
                        "scalar 'more' of job job is refused: a job has at "
                        "most 32 scalars");
    submit_report(&b, 0, 101, "a b", 1);
    assert_int_equal(find_done(&b, 0, 101)->error, PS_E_INVAL);
    end_bench(&b);
}

static void a_fresh_link_gets_all_scalars(void **state)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = SCHED_CONN};
    uint64_t former;
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    submit_report(&b, 0, 1, "loss", 1);
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 0)->request});
    submit_report(&b, 1, 1, "lr", 2);
    let_time_pass(&b, PS_MILLIS(300));
    former = sent_report(&b, 1)->request;
    feed_event(&b, closed);
    b.now += PS_SECONDS(1);
    feed_tick(&b);
    drop_sent(&b);
    b.sched_seq = 0;
    open_conn(&b, SCHED_CONN, PS_CONN_DIALLED, 0);
    deliver_welcome(&b, SCHED_CONN, false, 0);
    assert_int_equal(reports_sent(&b), 1);
    assert_int_equal(sent_report(&b, 0)->scalars_count, 2);
    answer_report(&b, &(struct ps_msg_report_done){.request = former});
    assert_null(find_done(&b, 1, 1));
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 0)->request});
    assert_int_equal(find_done(&b, 1, 1)->error, 0);
    end_bench(&b);
}

static void open_reports_end_with_their_worker(void **state)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = WORKER_CONN};
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    submit_report(&b, 0, 1, "loss", 1);
    submit_report(&b, 0, 2, "loss", 2);
    feed_event(&b, closed);
    answer_report(&b, &(struct ps_msg_report_done){
                          .request = sent_report(&b, 0)->request});
    let_time_pass(&b, PS_SECONDS(1));
    /* The last value is that of the rank. */
    assert_true(sent_report(&b, 1)->scalars[0].value == 2);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_are_no_entries_of_the_trace),
        cmocka_unit_test(reports_of_ranks_travel_together),
        cmocka_unit_test(reports_keep_an_interval),
        cmocka_unit_test(refused_names_are_errors_of_their_ranks),
        cmocka_unit_test(an_operation_that_waits_with_a_refused_name_ends),
        cmocka_unit_test(names_of_a_node_are_limited),
        cmocka_unit_test(a_fresh_link_gets_all_scalars),
        cmocka_unit_test(open_reports_end_with_their_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
