/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine and its scheduler: one that was restarted, and one that asks
 * what a job waits for. */
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

/* A scheduler that does not know `replicas` makes a job with one copy. */
static void copies_need_a_scheduler_that_knows_them(void **state)
{
    struct bench b;

    (void)state;
    for (uint32_t replicas = 0; replicas <= 2; replicas += 2) {
        const struct sent *s;

        begin_bench(&b, 1, 1);
        assert_int_equal(
            open_other_job(&b, WORKER_CONN + 1,
                           &(struct other_job){.name = "next",
                                               .gen = GEN + 1,
                                               .worker = 2,
                                               .servers = 1,
                                               .asked_replicas = 2,
                                               .replicas = replicas})
                ->replicas,
            2);
        s = find_sent(&b, WORKER_CONN + 1, PS_MSG_REJECT, 0);
        assert_int_equal(s == NULL, replicas == 2);
        assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_WELCOME),
                         replicas / 2);
        if (s != NULL) {
            assert_int_equal(s->packet->msg->reject.error, PS_E_UNSUPPORTED);
            assert_non_null(strstr(s->packet->msg->reject.text,
                                   "replicas: 2 needs a psched of version"));
        }
        end_bench(&b);
    }
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

/* ------------------------------------------------------------------- waits */

/* Two workers of one key; their processes answer. */
static void begin_waits(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    b->answers_waits = true;
    restart_bench(b, 2, 1);
    open_key(b, 0, 1, 16, SERVER_NODE);
    share_region(b, 0, 64);
    share_region(b, 1, 64);
    drop_sent(b);
}

static void enter_barrier(struct bench *b, uint32_t worker, uint64_t number)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){
                    .code = PS_MSG_L_BARRIER,
                    .l_barrier = {.op_id = 500 + number, .number = number}},
                NULL);
}

/* Asks who has not reached a round of key 0. */
static void collect(struct bench *b, uint64_t request, uint64_t round)
{
    static const uint32_t key = 0;

    drop_sent(b);
    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_WAIT_COLLECT,
                                 .wait_collect = {.gen = GEN,
                                                  .request = request,
                                                  .keys = &key,
                                                  .keys_count = 1,
                                                  .rounds = &round,
                                                  .rounds_count = 1}},
                NULL);
}

static void answer_query(struct bench *b, uint32_t worker, uint32_t ops,
                         const char *does)
{
    const struct sent *s = find_sent(b, WORKER_CONN + worker,
                                     PS_MSG_L_WAIT_QUERY, 0);

    assert_non_null(s);
    deliver_msg(
        b, WORKER_CONN + worker,
        &(struct ps_msg){
            .code = PS_MSG_L_WAIT_STATE,
            .l_wait_state = {.request = s->packet->msg->l_wait_query.request,
                             .still = PS_STILLNESS_STILL,
                             .moves = 40 + worker,
                             .ops = ops,
                             .does = does}},
        NULL);
}

static const struct ps_msg_wait_report *sent_wait_report(const struct bench *b)
{
    const struct sent *s = find_sent(b, SCHED_CONN, PS_MSG_WAIT_REPORT, 0);

    return s != NULL ? &s->packet->msg->wait_report : NULL;
}

/* The scheduler acknowledges what it got, or that would be sent again. */
static uint32_t pass_second(struct bench *b)
{
    struct ps_msg ping = {.code = PS_MSG_PING};

    for (uint32_t i = 0; i < b->sent_count; i++) {
        if (b->sent[i].conn == SCHED_CONN && b->sent[i].seq > ping.ack) {
            ping.ack = b->sent[i].seq;
        }
    }
    deliver_msg(b, SCHED_CONN, &ping, NULL);
    drop_sent(b);
    b->now += PS_SECONDS(1);
    feed_tick(b);
    return count_sent(b, SCHED_CONN, PS_MSG_JOB_STILL);
}

static void a_standstill_is_announced_once(void **state)
{
    struct bench b;

    (void)state;
    begin_waits(&b);
    assert_int_equal(pass_second(&b), 0); /* No operation is open. */
    submit_push(&b, 0, 0, 1, 0);
    b.now += PS_MILLIS(999);
    feed_tick(&b);
    assert_null(find_sent(&b, SCHED_CONN, PS_MSG_JOB_STILL, 0));
    b.now += PS_MILLIS(1);
    feed_tick(&b);
    assert_int_equal(find_sent(&b, SCHED_CONN, PS_MSG_JOB_STILL, 0)
                         ->packet->msg->job_still.gen,
                     GEN);
    assert_int_equal(pass_second(&b), 0);
    enter_barrier(&b, 1, 1);
    assert_int_equal(pass_second(&b), 1);
    /* A scheduler that was restarted does not know of it. */
    restart_scheduler(&b);
    deliver_job_state(&b, 2, 1);
    assert_int_equal(pass_second(&b), 1);
    end_bench(&b);
}

static void a_report_has_the_waits_of_each_process(void **state)
{
    const struct ps_msg_wait_report *m;
    struct bench b;

    (void)state;
    begin_waits(&b);
    submit_push(&b, 0, 0, 1, 0);
    enter_barrier(&b, 1, 1);
    collect(&b, 7, 1);
    answer_query(&b, 0, 1, "in pushpull of 0 round 1");
    assert_null(sent_wait_report(&b));
    answer_query(&b, 1, 1, "in barrier 1");
    m = sent_wait_report(&b);
    assert_non_null(m);
    assert_int_equal(m->request, 7);
    assert_int_equal(m->ranks_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(m->ranks[i].rank, i);
        assert_int_equal(m->ranks[i].process, 101 + i);
        assert_int_equal(m->ranks[i].still, PS_STILLNESS_STILL);
        assert_int_equal(m->ranks[i].moves, 40 + i);
        assert_int_equal(m->ranks[i].ops, 1);
    }
    assert_string_equal(m->ranks[0].does, "in pushpull of 0 round 1");
    assert_string_equal(m->ranks[1].does, "in barrier 1");
    assert_int_equal(m->waits_count, 2);
    assert_int_equal(m->waits[0].rank, 0);
    assert_int_equal(m->waits[0].key, 0);
    assert_int_equal(m->waits[0].round, 1);
    assert_int_equal(m->waits[1].rank, 1);
    assert_int_equal(m->waits[1].key, UINT32_MAX);
    assert_int_equal(m->waits[1].round, 1);
    assert_int_equal(m->behind_count, 1);
    assert_int_equal(m->behind[0], 1);
    assert_int_equal(m->jobs_count, 0);
    end_bench(&b);
}

static void no_rank_is_behind_in_a_round_that_all_have_reached(void **state)
{
    struct bench b;

    (void)state;
    begin_waits(&b);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    collect(&b, 7, 1);
    answer_query(&b, 0, 1, "");
    answer_query(&b, 1, 1, "");
    assert_int_equal(sent_wait_report(&b)->behind[0], UINT32_MAX);
    /* None has reached the next one. */
    collect(&b, 8, 2);
    answer_query(&b, 0, 1, "");
    answer_query(&b, 1, 1, "");
    assert_int_equal(sent_wait_report(&b)->behind[0], 0);
    end_bench(&b);
}

/* An init of rank 1 waits for that of rank 0, at whatever agent that is. */
static void an_init_waits_until_one_is_known(void **state)
{
    struct ps_msg_l_op init = {
        .op_id = 3, .op = PS_OP_INIT, .key = 0, .region = 1};
    struct bench b;

    (void)state;
    begin_waits(&b);
    submit_op(&b, 1, init);
    collect(&b, 7, PS_WAITS_FOR_INIT);
    answer_query(&b, 0, 0, "");
    answer_query(&b, 1, 1, "");
    assert_int_equal(sent_wait_report(&b)->waits_count, 1);
    assert_int_equal(sent_wait_report(&b)->waits[0].rank, 1);
    assert_int_equal(sent_wait_report(&b)->waits[0].round, PS_WAITS_FOR_INIT);
    assert_int_not_equal(sent_wait_report(&b)->behind[0], UINT32_MAX);
    submit_op(&b, 0, init);
    collect(&b, 8, PS_WAITS_FOR_INIT);
    answer_query(&b, 0, 1, "");
    answer_query(&b, 1, 1, "");
    assert_int_equal(sent_wait_report(&b)->behind[0], UINT32_MAX);
    end_bench(&b);
}

/* One that does not answer, that counts other operations, that has begun one
 * since, and one that has left. */
static void a_process_that_may_go_on_is_moving(void **state)
{
    const struct ps_msg_wait_report *m;
    struct bench b;

    (void)state;
    begin_waits(&b);
    submit_push(&b, 0, 0, 1, 0);
    enter_barrier(&b, 1, 1);
    collect(&b, 6, 1);
    answer_query(&b, 0, 1, "in pushpull of 0 round 1");
    answer_query(&b, 1, 1, "in barrier 1");
    assert_int_equal(sent_wait_report(&b)->ranks[1].still, PS_STILLNESS_STILL);

    collect(&b, 7, 1);
    answer_query(&b, 0, 1, "in pushpull of 0 round 1");
    b.now += PS_MILLIS(499);
    feed_tick(&b);
    assert_null(sent_wait_report(&b));
    b.now += PS_MILLIS(1);
    feed_tick(&b);
    m = sent_wait_report(&b);
    assert_non_null(m);
    assert_int_equal(m->ranks[0].still, PS_STILLNESS_STILL);
    assert_int_equal(m->ranks[1].still, PS_STILLNESS_MOVING);
    assert_string_equal(m->ranks[1].does, "in barrier 1"); /* By the agent. */

    collect(&b, 8, 1);
    answer_query(&b, 0, 2, "in pushpull of 0 round 1");
    answer_query(&b, 1, 0, "in barrier 1");
    m = sent_wait_report(&b);
    assert_int_equal(m->ranks[0].still, PS_STILLNESS_MOVING);
    assert_int_equal(m->ranks[1].still, PS_STILLNESS_MOVING);

    collect(&b, 9, 1);
    answer_query(&b, 0, 1, "in pushpull of 0 round 1");
    b.now += PS_MILLIS(1);
    submit_push(&b, 1, 0, 1, 0);
    answer_query(&b, 1, 2, "in barrier 1");
    m = sent_wait_report(&b);
    assert_int_equal(m->ranks[0].still, PS_STILLNESS_MOVING);

    collect(&b, 10, 1);
    kill_worker(&b, 0);
    answer_query(&b, 1, 2, "in barrier 1");
    m = sent_wait_report(&b);
    assert_int_equal(m->ranks_count, 1);
    assert_int_equal(m->ranks[0].rank, 1);
    end_bench(&b);
}

/* Which connection a thread reads is not known: any answers for the process, and
 * the job of the other one is named. */
static void a_process_answers_on_any_of_its_connections(void **state)
{
    const struct ps_msg_wait_report *m;
    struct bench b;

    (void)state;
    begin_waits(&b);
    (void)open_other_job(
        &b, WORKER_CONN + 2,
        &(struct other_job){
            .name = "group", .gen = GEN + 1, .worker = 3, .process = 101});
    assert_non_null(find_sent(&b, WORKER_CONN + 2, PS_MSG_L_WELCOME, 0));
    submit_push(&b, 0, 0, 1, 0);
    enter_barrier(&b, 2, 1);
    collect(&b, 7, 1);
    answer_query(&b, 2, 2, "in barrier 1 of job group");
    assert_null(sent_wait_report(&b));
    answer_query(&b, 1, 0, "");
    m = sent_wait_report(&b);
    assert_non_null(m);
    assert_int_equal(m->ranks[0].still, PS_STILLNESS_STILL);
    assert_int_equal(m->ranks[0].ops, 2);
    assert_string_equal(m->ranks[0].does, "in barrier 1 of job group");
    assert_int_equal(m->waits_count, 1); /* Of this job. */
    assert_int_equal(m->jobs_count, 1);
    assert_int_equal(m->jobs[0], GEN + 1);
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
        cmocka_unit_test(copies_need_a_scheduler_that_knows_them),
        cmocka_unit_test(agent_ends_when_it_lost_its_name),
        cmocka_unit_test(departures_are_reported_for_jobs_on_the_node),
        cmocka_unit_test(map_epoch_restarts_with_the_scheduler),
        cmocka_unit_test(a_standstill_is_announced_once),
        cmocka_unit_test(a_report_has_the_waits_of_each_process),
        cmocka_unit_test(no_rank_is_behind_in_a_round_that_all_have_reached),
        cmocka_unit_test(an_init_waits_until_one_is_known),
        cmocka_unit_test(a_process_that_may_go_on_is_moving),
        cmocka_unit_test(a_process_answers_on_any_of_its_connections),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
