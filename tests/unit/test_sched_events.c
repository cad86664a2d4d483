/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the scheduler, as psctl events gets them. */
#include "sched_world.h"

#include "core/sched/inner.h"

static void query_events(struct world *w, struct peer *ctl, uint64_t after)
{
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){
                    .code = PS_MSG_QUERY,
                    .query = {.what = PS_QUERY_EVENTS, .after_event = after}});
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
}

/* "kind name what[!][: text]" of each event, one a line. */
static void print_events(const struct peer *ctl, struct ps_str *out)
{
    for (uint32_t i = 0; i < ctl->count; i++) {
        const struct ps_msg_event_row *e = &ctl->inbox[i].msg->event_row;

        if (ctl->inbox[i].msg->code != PS_MSG_EVENT_ROW) {
            continue;
        }
        ps_str_addf(out, "%s %s %s%s%s%s\n", ps_event_kind_name(e->kind),
                    e->name, e->what, e->is_bad ? "!" : "",
                    e->text[0] != '\0' ? ": " : "", e->text);
    }
}

static void expect_events(const struct peer *ctl, const char *expected)
{
    char text[4096];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    print_events(ctl, &s);
    assert_string_equal(text, expected);
}

static void events_tell_the_story_of_members_and_jobs(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_event_row *last;

    (void)state;
    query_events(j.w, ctl, 1);
    expect_events(ctl, "server s0 active\n"
                       "server s1 active\n"
                       "agent a0 active\n"
                       "agent a1 active\n"
                       "job train forming: 4 workers, 2 servers\n"
                       "job train starting\n"
                       "job train running\n");
    last = &last_msg(ctl, PS_MSG_EVENT_ROW)->event_row;
    assert_int_equal(last->number, 8);
    deliver_worker_gone(j.w, j.a[0], j.gen, 2, false);
    lose_conn(j.w, j.a[1]);
    advance_time(j.w, PS_SECONDS(3));
    query_events(j.w, ctl, 8);
    expect_events(ctl, "rank train lost!: rank 1 on a0 was lost: killed\n"
                       "agent a1 suspect!: connection lost\n"
                       "agent a1 gone!: not heard for 2.0 s\n"
                       "rank train lost!: ranks 2-3 on a1 were lost: agent "
                       "a1 is gone: not heard for 2.0 s\n");
    last = &last_msg(ctl, PS_MSG_EVENT_ROW)->event_row;
    assert_true(last->age_ns > PS_MILLIS(500) && last->age_ns < PS_SECONDS(3));
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, true);
    advance_time(j.w, PS_SECONDS(61));
    end_world(j.w);
}

static void the_first_event_is_the_start(void **state)
{
    struct world *w = world_new();
    struct peer *ctl = join_peer(w, PS_ROLE_CTL, "");

    (void)state;
    query_events(w, ctl, 0);
    assert_int_equal(count_msgs(ctl, PS_MSG_EVENT_ROW), 1);
    assert_string_equal(last_msg(ctl, PS_MSG_EVENT_ROW)->event_row.what,
                        "started");
    assert_int_equal(last_msg(ctl, PS_MSG_EVENT_ROW)->event_row.number, 1);
    /* A number of an earlier scheduler is greater than any. */
    query_events(w, ctl, 1000);
    assert_int_equal(count_msgs(ctl, PS_MSG_EVENT_ROW), 0);
    end_world(w);
}

static void the_oldest_events_make_room(void **state)
{
    struct world *w = world_new();
    struct peer *agent = join_peer(w, PS_ROLE_AGENT, "a0");
    struct peer *ctl = join_peer(w, PS_ROLE_CTL, "");

    (void)state;
    /* Several events each. */
    for (uint64_t i = 0; i < PS_SCHED_EVENTS_MAX; i++) {
        deliver_msg(w, agent, make_job_open(100 + i, 1, 0, -1));
        deliver_worker_gone(w, agent, 0, 100 + i, true);
        drop_inbox(agent);
    }
    query_events(w, ctl, 0);
    assert_int_equal(count_msgs(ctl, PS_MSG_EVENT_ROW), PS_SCHED_EVENTS_MAX);
    assert_true(last_msg(ctl, PS_MSG_EVENT_ROW)->event_row.number >
                2 * PS_SCHED_EVENTS_MAX);
    assert_int_equal(ctl->inbox[0].msg->event_row.number + PS_SCHED_EVENTS_MAX -
                         1,
                     last_msg(ctl, PS_MSG_EVENT_ROW)->event_row.number);
    end_world(w);
}

static void facts_of_members_are_in_their_rows(void **state)
{
    struct world *w = world_new();
    struct peer *server = peer_new(w, PS_ROLE_SERVER, "s0");
    struct peer *ctl = join_peer(w, PS_ROLE_CTL, "");
    struct ps_msg hello = make_hello(server);
    const struct ps_msg_node_row *row;

    (void)state;
    open_peer_conn(w, server);
    hello.hello.version = "9.9";
    hello.hello.descriptors = 1024;
    /* The scheduler's clock is 1000 s after 1970 at time 0. */
    hello.hello.wall_ns = PS_SECONDS(1000) + w->now - PS_SECONDS(7);
    hello.hello.avoids_shm = true;
    hello.hello.ktls = true;
    deliver_unsequenced(w, server, hello);
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_NODES}});
    row = &last_msg(ctl, PS_MSG_NODE_ROW)->node_row;
    assert_string_equal(row->name, "s0");
    assert_string_equal(row->version, "9.9");
    assert_int_equal(row->descriptors, 1024);
    assert_int_equal(row->clock_skew_ns, -(int64_t)PS_SECONDS(7));
    assert_true(row->avoids_shm);
    assert_true(row->ktls);
    row = &ctl->inbox[0].msg->node_row;
    assert_int_equal(row->role, PS_ROLE_SCHED);
    assert_string_equal(row->version, "1.0");
    assert_true(row->ktls);
    end_world(w);
}

/* The result of log_level. */
static int set_log_level(struct world *w, struct peer *ctl, const char *member,
                         enum ps_verbosity level)
{
    w->log_level = -1;
    for (uint32_t i = 0; i < w->peers; i++) {
        drop_inbox(&w->peer[i]);
    }
    deliver_msg(w, ctl,
                (struct ps_msg){
                    .code = PS_MSG_LOG_LEVEL,
                    .log_level = {.member = member, .level = (uint8_t)level}});
    return last_msg(ctl, PS_MSG_QUERY_END)->query_end.error;
}

static bool has_log_level(const struct peer *p, enum ps_verbosity level)
{
    const struct ps_msg *m = find_msg(p, PS_MSG_LOG_LEVEL);

    return m != NULL && m->log_level.level == (uint8_t)level;
}

static void log_levels_reach_connected_members(void **state)
{
    struct world *w = world_new();
    struct peer *s0 = join_peer(w, PS_ROLE_SERVER, "s0");
    struct peer *s1 = join_peer(w, PS_ROLE_SERVER, "s1");
    struct peer *a0 = join_peer(w, PS_ROLE_AGENT, "a0");
    struct peer *ctl = join_peer(w, PS_ROLE_CTL, "");

    (void)state;
    assert_int_equal(set_log_level(w, ctl, "", PS_VERBOSITY_DEBUG), 0);
    assert_true(has_log_level(s0, PS_VERBOSITY_DEBUG));
    assert_true(has_log_level(s1, PS_VERBOSITY_DEBUG));
    assert_true(has_log_level(a0, PS_VERBOSITY_DEBUG));
    assert_int_equal(w->log_level, PS_VERBOSITY_DEBUG);
    assert_int_equal(set_log_level(w, ctl, "s1", PS_VERBOSITY_ERROR), 0);
    assert_true(has_log_level(s1, PS_VERBOSITY_ERROR));
    assert_null(find_msg(s0, PS_MSG_LOG_LEVEL));
    assert_null(find_msg(a0, PS_MSG_LOG_LEVEL));
    assert_int_equal(w->log_level, -1);
    assert_int_equal(set_log_level(w, ctl, "s2", PS_VERBOSITY_ERROR),
                     PS_E_NOENT);
    lose_conn(w, s1);
    assert_int_equal(set_log_level(w, ctl, "s1", PS_VERBOSITY_ERROR),
                     PS_E_UNREACH);
    assert_int_equal(set_log_level(w, ctl, "", PS_VERBOSITY_INFO), 0);
    assert_true(has_log_level(s0, PS_VERBOSITY_INFO));
    end_world(w);
}

static void log_levels_are_for_operators(void **state)
{
    struct world *w = world_new();
    struct peer *s0 = join_peer(w, PS_ROLE_SERVER, "s0");
    struct peer *ctl;

    (void)state;
    for (int i = 0; i < 3; i++) {
        ctl = peer_new(w, PS_ROLE_CTL, "");
        ctl->by_tcp = i == 0;
        ctl->uid = i == 1 ? 8 : 9; /* User 9 is an operator. */
        connect_peer(w, ctl);
        assert_int_equal(set_log_level(w, ctl, "", PS_VERBOSITY_DEBUG),
                         i == 2 ? 0 : PS_E_PERM);
        assert_int_equal(w->log_level, i == 2 ? PS_VERBOSITY_DEBUG : -1);
        assert_int_equal(find_msg(s0, PS_MSG_LOG_LEVEL) != NULL, i == 2);
    }
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_tell_the_story_of_members_and_jobs),
        cmocka_unit_test(the_first_event_is_the_start),
        cmocka_unit_test(the_oldest_events_make_room),
        cmocka_unit_test(facts_of_members_are_in_their_rows),
        cmocka_unit_test(log_levels_reach_connected_members),
        cmocka_unit_test(log_levels_are_for_operators),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
