/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine and a scheduler that was restarted. */
#include "agent_world.h"

/* Another process of the scheduler answers, without state. */
static void restart_scheduler(struct bench *b)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = SCHED_CONN};

    feed_event(b, closed);
    b->now += PS_SECONDS(1);
    feed_tick(b); /* It is dialled. */
    drop_sent(b);
    b->sched_restarts++;
    b->sched_seq = 0;
    open_conn(b, SCHED_CONN, PS_CONN_DIALLED, 0);
    deliver_welcome(b, SCHED_CONN, false, 0);
}

/* One worker waits for the other, which is in no call: both get the reason that
 * the first answer to an offer names. */
static void job_unknown_to_the_scheduler_fails_with_a_reason(void **state)
{
    const char *const text = "the scheduler was restarted and does not know "
                             "job 'job'; start the job again";
    struct ps_event closed = {.type = PS_EV_CLOSED};
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    share_region(&b, 0, 64);
    submit_push(&b, 0, 0, 1, 0);
    restart_scheduler(&b);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_JOB_OPEN), 2);
    for (uint32_t w = 0; w < 2; w++) {
        const struct ps_msg_job_open *m = &find_sent(&b, SCHED_CONN,
                                                     PS_MSG_JOB_OPEN, w)
                                               ->packet->msg->job_open;

        assert_int_equal(m->gen, GEN);
        assert_string_equal(m->name, "job");
        deliver_msg(&b, SCHED_CONN,
                    &(struct ps_msg){.code = PS_MSG_JOB_OPENED,
                                     .job_opened = {.worker = w + 1,
                                                    .error = PS_E_JOBFAILED,
                                                    .text = text,
                                                    .gen = GEN}},
                    NULL);
    }
    /* Links keep no order: a state from before the error comes after it. */
    deliver_job_state(&b, 2, 1);
    for (uint32_t w = 0; w < 2; w++) {
        const struct sent *s = find_sent(&b, WORKER_CONN + w, PS_MSG_L_ERROR,
                                         0);

        assert_non_null(s);
        assert_string_equal(s->packet->msg->l_error.text, text);
        assert_int_equal(s->packet->msg->l_error.error, PS_E_JOBFAILED);
        assert_int_equal(count_sent(&b, WORKER_CONN + w, PS_MSG_L_ERROR), 1);
        closed.conn = WORKER_CONN + w;
        feed_event(&b, closed);
    }
    assert_int_equal(ps_agent_residue(b.agent), 0);
    end_bench(&b);
}

/* Links keep no order: the end of the job may come before the refusal. */
static void the_end_of_a_job_names_its_cause(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    deliver_msg(&b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_BARRIER,
                                 .l_barrier = {.op_id = 5, .number = 1}},
                NULL);
    restart_scheduler(&b);
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                         .job_state = {.gen = GEN,
                                       .version = UINT32_MAX,
                                       .name = "",
                                       .phase = PS_JOB_PHASE_ENDED,
                                       .reason = "the scheduler was restarted",
                                       .optimizer = ""}},
        NULL);
    assert_string_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0)
                            ->packet->msg->l_error.text,
                        "job 'job' is over: the scheduler was restarted");
    end_bench(&b);
}

/* Links keep no order: a state from before the end may come after it, while a
 * worker of the next job waits for its first state. */
static void late_state_of_an_ended_job_is_ignored(void **state)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = WORKER_CONN};
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = GEN,
                                               .version = UINT32_MAX,
                                               .name = "",
                                               .phase = PS_JOB_PHASE_ENDED,
                                               .reason = "",
                                               .optimizer = ""}},
                NULL);
    feed_event(&b, closed);
    open_conn(&b, WORKER_CONN + 1, PS_CONN_LOCAL, 0);
    deliver_msg(&b, WORKER_CONN + 1,
                &(struct ps_msg){.code = PS_MSG_L_HELLO,
                                 .l_hello = {.protocol = PS_PROTOCOL,
                                             .job = "next",
                                             .num_workers = 1,
                                             .rank = -1}},
                NULL);
    assert_int_equal(ps_agent_residue(b.agent), 1);
    deliver_job_state(&b, 3, 1);
    assert_int_equal(ps_agent_residue(b.agent), 1);
    end_bench(&b);
}

/* A job that is never complete fails before its ranks have slots. */
static void a_job_that_fails_before_it_has_slots_ends_its_sessions(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_conn(&b, WORKER_CONN + 1, PS_CONN_LOCAL, 0);
    deliver_msg(&b, WORKER_CONN + 1,
                &(struct ps_msg){.code = PS_MSG_L_HELLO,
                                 .l_hello = {.protocol = PS_PROTOCOL,
                                             .job = "next",
                                             .num_workers = 2,
                                             .rank = -1}},
                NULL);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){
                    .code = PS_MSG_JOB_OPENED,
                    .job_opened = {.worker = 2, .text = "", .gen = GEN + 1}},
                NULL);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = GEN + 1,
                                               .version = 1,
                                               .name = "next",
                                               .phase = PS_JOB_PHASE_FAILED,
                                               .reason = "rank 1 is missing",
                                               .optimizer = ""}},
                NULL);
    s = find_sent(&b, WORKER_CONN + 1, PS_MSG_REJECT, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->reject.error, PS_E_JOBFAILED);
    assert_string_equal(s->packet->msg->reject.text, "rank 1 is missing");
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
    end_bench(&b);
}

/* A job on this node without a live process is reported by its departures, so
 * that it ends; other departures are not reported to a new scheduler. */
static void departures_are_reported_for_jobs_on_the_node(void **state)
{
    struct ps_event closed = {.type = PS_EV_CLOSED};
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_conn(&b, WORKER_CONN + 2, PS_CONN_LOCAL, 0);
    deliver_msg(&b, WORKER_CONN + 2,
                &(struct ps_msg){.code = PS_MSG_L_HELLO,
                                 .l_hello = {.protocol = PS_PROTOCOL,
                                             .job = "other",
                                             .num_workers = 1,
                                             .rank = -1}},
                NULL);
    for (uint32_t i = 0; i < 3; i++) {
        closed.conn = WORKER_CONN + i;
        feed_event(&b, closed);
    }
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_WORKER_GONE), 3);
    restart_scheduler(&b);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_WORKER_GONE), 2);
    s = find_sent(&b, SCHED_CONN, PS_MSG_WORKER_GONE, 0);
    assert_int_equal(s->packet->msg->worker_gone.gen, GEN);
    assert_int_equal(ps_agent_residue(b.agent), 1);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = GEN,
                                               .version = UINT32_MAX,
                                               .name = "",
                                               .phase = PS_JOB_PHASE_ENDED,
                                               .reason = "",
                                               .optimizer = ""}},
                NULL);
    assert_int_equal(ps_agent_residue(b.agent), 0);
    end_bench(&b);
}

static void map_epoch_restarts_with_the_scheduler(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    deliver_map_epoch(&b, 40);
    restart_scheduler(&b);
    deliver_map_epoch(&b, 2);
    b.now += PS_SECONDS(1);
    drop_sent(&b);
    feed_tick(&b);
    assert_int_equal(
        find_sent(&b, SCHED_CONN, PS_MSG_PING, 0)->packet->msg->ping.epoch, 2);
    end_bench(&b);
}

/* The scheduler is dialled until it answers a hello. */
static void refuse_name(struct bench *b)
{
    static const struct ps_msg m = {
        .code = PS_MSG_REJECT,
        .reject = {.error = PS_E_EXIST, .text = "the name is taken"}};
    struct ps_event ev = {.type = PS_EV_MSG, .conn = SCHED_CONN};

    b->now += PS_SECONDS(1);
    feed_tick(b);
    drop_sent(b);
    open_conn(b, SCHED_CONN, PS_CONN_DIALLED, 0);
    ev.msg.msg = &m;
    feed_event(b, ev);
}

/* Another process was given the name while this one was not heard. */
static void agent_ends_when_it_lost_its_name(void **state)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = SCHED_CONN};
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    b.may_fail = true;
    feed_event(&b, closed);
    refuse_name(&b);
    assert_int_equal(b.rc, PS_E_CONFIG);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_unknown_to_the_scheduler_fails_with_a_reason),
        cmocka_unit_test(the_end_of_a_job_names_its_cause),
        cmocka_unit_test(late_state_of_an_ended_job_is_ignored),
        cmocka_unit_test(
            a_job_that_fails_before_it_has_slots_ends_its_sessions),
        cmocka_unit_test(agent_ends_when_it_lost_its_name),
        cmocka_unit_test(departures_are_reported_for_jobs_on_the_node),
        cmocka_unit_test(map_epoch_restarts_with_the_scheduler),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
