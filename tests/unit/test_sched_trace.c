/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of a job, as the scheduler gets them from members for a tool. */
#include "sched_world.h"

static void ask_for_trace(struct job *j, struct peer *ctl, uint32_t member,
                          uint64_t first)
{
    drop_inbox(ctl);
    deliver_msg(
        j->w, ctl,
        (struct ps_msg){
            .code = PS_MSG_TRACE_GET,
            .trace_get = {.job = "train", .member = member, .first = first}});
}

static void deliver_entries(struct job *j, struct peer *member,
                            uint64_t request)
{
    const struct ps_rec_trace_entry one = {.round = 6};

    deliver_msg(j->w, member,
                (struct ps_msg){.code = PS_MSG_TRACE_ENTRIES,
                                .trace_entries = {.request = request,
                                                  .now_ns = 4711,
                                                  .first = 5,
                                                  .next = 6,
                                                  .count = 9,
                                                  .entries = &one,
                                                  .entries_count = 1,
                                                  .name = "no matter"}});
}

static int error_of(const struct peer *ctl)
{
    return last_msg(ctl, PS_MSG_QUERY_END)->query_end.error;
}

static void the_first_member_is_the_scheduler(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_trace_entries *e;

    (void)state;
    ask_for_trace(&j, ctl, 0, 0);
    e = &last_msg(ctl, PS_MSG_TRACE_ENTRIES)->trace_entries;
    assert_int_equal(error_of(ctl), 0);
    assert_string_equal(e->name, "sched");
    assert_int_equal(e->role, PS_ROLE_SCHED);
    assert_int_equal(e->servers, 2);
    assert_int_equal(e->agents, 2);
    assert_int_equal(e->now_ns, j.w->now);
    assert_int_equal(e->asked_ns, j.w->now);
    finish_job(&j);
}

static void members_answer_for_one_job_with_two_times(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const ps_time begun = j.w->now;
    struct peer *const members[] = {j.s[0], j.s[1], j.a[0], j.a[1]};
    const struct ps_msg_trace_get *get;
    const struct ps_msg_trace_entries *e;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        ask_for_trace(&j, ctl, i + 1, 5);
        assert_null(find_msg(ctl, PS_MSG_QUERY_END));
        get = &last_msg(members[i], PS_MSG_TRACE_GET)->trace_get;
        assert_int_equal(get->gen, j.gen);
        assert_int_equal(get->first, 5);
        advance_time(j.w, PS_MILLIS(3));
        /* Another member, or another request, is not the answer. */
        deliver_entries(&j, members[(i + 1) % 4], get->request);
        deliver_entries(&j, members[i], get->request + 1);
        assert_null(find_msg(ctl, PS_MSG_QUERY_END));
        deliver_entries(&j, members[i], get->request);
        assert_int_equal(error_of(ctl), 0);
        e = &last_msg(ctl, PS_MSG_TRACE_ENTRIES)->trace_entries;
        assert_string_equal(e->name, members[i]->name);
        assert_int_equal(e->role, members[i]->role);
        assert_int_equal(e->node, members[i]->node);
        assert_int_equal(e->now_ns, 4711);
        assert_int_equal(e->asked_ns, begun + i * PS_MILLIS(3));
        assert_int_equal(e->answered_ns, begun + (i + 1) * PS_MILLIS(3));
        assert_int_equal(e->entries_count, 1);
        assert_int_equal(e->entries[0].round, 6);
        assert_int_equal(e->next, 6);
    }
    finish_job(&j);
}

static void members_that_do_not_answer_end_the_request(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    uint64_t request;

    (void)state;
    ask_for_trace(&j, ctl, 5, 0);
    assert_int_equal(error_of(ctl), PS_E_NOENT);
    ask_for_trace(&j, ctl, UINT32_MAX, 0);
    assert_int_equal(error_of(ctl), PS_E_NOENT);
    ask_for_trace(&j, ctl, 3, 0);
    request = last_msg(j.a[0], PS_MSG_TRACE_GET)->trace_get.request;
    /* One at a time. */
    deliver_msg(j.w, ctl,
                (struct ps_msg){.code = PS_MSG_TRACE_GET,
                                .trace_get = {.job = "train", .member = 3}});
    assert_int_equal(error_of(ctl), PS_E_AGAIN);
    drop_inbox(ctl);
    advance_time(j.w, PS_MILLIS(1900));
    assert_null(find_msg(ctl, PS_MSG_QUERY_END));
    advance_time(j.w, PS_MILLIS(200));
    assert_int_equal(error_of(ctl), PS_E_UNREACH);
    expect_substring(last_msg(ctl, PS_MSG_QUERY_END)->query_end.text,
                     "agent a0 does not answer; the trace lacks it");
    drop_inbox(ctl);
    deliver_entries(&j, j.a[0], request); /* Too late. */
    assert_int_equal(ctl->count, 0);
    lose_conn(j.w, j.a[1]);
    ask_for_trace(&j, ctl, 4, 0);
    assert_int_equal(error_of(ctl), PS_E_UNREACH);
    expect_substring(last_msg(ctl, PS_MSG_QUERY_END)->query_end.text,
                     "agent a1 is not connected");
    connect_peer(j.w, j.a[1]);
    /* A tool that is gone. */
    ask_for_trace(&j, ctl, 3, 0);
    request = last_msg(j.a[0], PS_MSG_TRACE_GET)->trace_get.request;
    lose_conn(j.w, ctl);
    deliver_entries(&j, j.a[0], request);
    advance_time(j.w, PS_SECONDS(3));
    finish_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_member_is_the_scheduler),
        cmocka_unit_test(members_answer_for_one_job_with_two_times),
        cmocka_unit_test(members_that_do_not_answer_end_the_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
