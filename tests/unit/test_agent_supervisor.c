/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: for which users it starts supervisors. */
#include "agent_world.h"

#include "base/limits.h"

/* Users that the options name. */
#define ADA   1000u
#define GRACE 1001u

static void begin_launches(struct bench *b,
                           const struct ps_agent_launch_options *launch,
                           bool has_certificate)
{
    memset(b, 0, sizeof(*b));
    b->launch = *launch;
    b->sched_has_certificate = has_certificate;
    restart_bench(b, 1, 1);
}

static void deliver_begin(struct bench *b, uint64_t request, uint32_t uid)
{
    static uint8_t secret[PS_LAUNCH_SECRET_BYTES] = {7};

    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_LAUNCH_BEGIN,
                                 .launch_begin = {.request = request,
                                                  .uid = uid,
                                                  .job = "train",
                                                  .address = "",
                                                  .port = 4000,
                                                  .secret = {secret, 32}}},
                NULL);
}

/* The last answer; NULL: none. */
static const struct ps_msg_launch_begun *answer(const struct bench *b)
{
    const struct ps_msg_launch_begun *last = NULL;
    const struct sent *s;

    for (uint32_t i = 0;
         (s = find_sent(b, SCHED_CONN, PS_MSG_LAUNCH_BEGUN, i)) != NULL; i++) {
        const struct ps_msg_launch_begun *m = &s->packet->msg->launch_begun;

        if (last == NULL || m->request > last->request) {
            last = m;
        }
    }
    return last;
}

static void feed_launched(struct bench *b, uint64_t id, int rc, const char *why)
{
    struct ps_event ev = {.type = PS_EV_LAUNCHED};

    ev.launched.id = id;
    ev.launched.rc = rc;
    ev.launched.why = why;
    feed_event(b, ev);
}

static void feed_ended(struct bench *b, uint64_t id)
{
    struct ps_event ev = {.type = PS_EV_LAUNCH_ENDED};

    ev.launched.id = id;
    feed_event(b, ev);
}

static void only_users_that_the_options_allow_run_here(void **state)
{
    const struct ps_agent_launch_options off = {.uid = ADA};
    const struct ps_agent_launch_options self = {.allow = PS_AGENT_LAUNCH_SELF,
                                                 .uid = ADA};
    const struct ps_agent_launch_options root = {.allow = PS_AGENT_LAUNCH_SELF};
    const struct ps_agent_launch_options any = {
        .allow = PS_AGENT_LAUNCH_SELF, .uid = ADA, .obeys_unproven = true};
    struct ps_agent_launch_options users = {.allow = PS_AGENT_LAUNCH_USERS,
                                            .can_change_user = true,
                                            .users = {ADA, 0},
                                            .user_count = 2};
    struct ps_agent_launch_options weak = users;
    const struct {
        const struct ps_agent_launch_options *launch;
        bool is_proven;
        uint32_t uid;
        const char *refusal;
    } cases[] = {
        {&off, true, ADA, "launch.allow: off"},
        {&self, true, ADA, NULL},
        {&self, true, GRACE, "of its own user 1000 only"},
        {&self, true, 0, "no processes of root"},
        {&root, true, 0, "no processes of root"},
        {&self, false, ADA, "has not proved by a certificate"},
        {&any, false, ADA, NULL},
        {&users, true, ADA, NULL},
        {&users, true, GRACE, "user 1001 is not one of its launch.users"},
        {&users, true, 0, "no processes of root"},
        {&users, false, ADA, "has not proved by a certificate"},
        {&weak, true, ADA, "without the capabilities"},
    };

    (void)state;
    weak.uid = GRACE;
    weak.can_change_user = false;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench b;

        begin_launches(&b, cases[i].launch, cases[i].is_proven);
        deliver_begin(&b, 5, cases[i].uid);
        if (cases[i].refusal != NULL) {
            assert_null(b.order);
            assert_int_equal(answer(&b)->error, PS_E_PERM);
            assert_int_equal(answer(&b)->request, 5);
            assert_non_null(strstr(answer(&b)->text, cases[i].refusal));
        } else {
            assert_null(answer(&b));
            assert_int_equal(b.order->launch_begin.uid, cases[i].uid);
            assert_int_equal(b.order->launch_begin.secret.data[0], 7);
        }
        end_bench(&b);
    }
}

static void supervisors_are_answered_and_counted(void **state)
{
    const struct ps_agent_launch_options users = {
        .allow = PS_AGENT_LAUNCH_USERS,
        .can_change_user = true,
        .users = {ADA, GRACE},
        .user_count = 2};
    struct bench b;
    uint64_t first;

    (void)state;
    begin_launches(&b, &users, true);
    deliver_begin(&b, 1, ADA);
    first = b.launch_id;
    feed_launched(&b, first, 0, "");
    assert_int_equal(answer(&b)->error, 0);
    deliver_begin(&b, 2, ADA);
    feed_launched(&b, b.launch_id, PS_E_IO, "the host has no user 1000");
    assert_int_equal(answer(&b)->error, PS_E_IO);
    assert_non_null(strstr(answer(&b)->text, "has no user"));
    feed_ended(&b, b.launch_id);
    for (uint32_t i = 1; i < PS_LAUNCHES_USER_MAX; i++) {
        deliver_begin(&b, 2 + i, ADA);
        feed_launched(&b, b.launch_id, 0, "");
        assert_int_equal(answer(&b)->error, 0);
    }
    deliver_begin(&b, 1000, ADA);
    assert_int_equal(answer(&b)->error, PS_E_FULL);
    deliver_begin(&b, 1001, GRACE);
    feed_launched(&b, b.launch_id, 0, "");
    assert_int_equal(answer(&b)->error, 0);
    feed_ended(&b, first);
    deliver_begin(&b, 1002, ADA);
    feed_launched(&b, b.launch_id, 0, "");
    assert_int_equal(answer(&b)->request, 1002);
    assert_int_equal(answer(&b)->error, 0);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_users_that_the_options_allow_run_here),
        cmocka_unit_test(supervisors_are_answered_and_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
