/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: a hello against the certificate of its peer, and
 * messages against what their sender has a part in. */
#include "sched_world.h"

#include "proto/ps_fixed.h"

static void expect(const struct ps_peer_identity *identity, enum ps_role role,
                   const char *reason)
{
    struct world *w = world_new();
    struct peer *p = peer_new(w, role, "n1");

    p->identity = identity;
    p->by_tcp = true;
    connect_peer(w, p);
    if (reason == NULL) {
        assert_int_not_equal(p->conn, 0);
        assert_non_null(last_msg(p, PS_MSG_WELCOME));
    } else {
        assert_string_equal(last_msg(p, PS_MSG_REJECT)->reject.text, reason);
        assert_int_equal(last_msg(p, PS_MSG_REJECT)->reject.error, PS_E_PERM);
    }
    world_free(w);
}

static void hello_agrees_with_the_certificate(void **state)
{
    const struct ps_peer_identity agent = {PS_ROLE_AGENT, "c", "n1"};
    const struct ps_peer_identity server = {PS_ROLE_SERVER, "c", "n1"};
    const struct ps_peer_identity ctl = {PS_ROLE_CTL, "c", "operator"};
    const struct ps_peer_identity other_name = {PS_ROLE_AGENT, "c", "n2"};
    const struct ps_peer_identity other_cluster = {PS_ROLE_AGENT, "d", "n1"};

    (void)state;
    expect(NULL, PS_ROLE_AGENT, NULL);
    expect(&agent, PS_ROLE_AGENT, NULL);
    expect(&server, PS_ROLE_SERVER, NULL);
    expect(&ctl, PS_ROLE_CTL, NULL);
    expect(&agent, PS_ROLE_SERVER,
           "its certificate is of role agent, not server");
    expect(&agent, PS_ROLE_CTL, "its certificate is of role agent, not ctl");
    expect(&ctl, PS_ROLE_AGENT, "its certificate is of role ctl, not agent");
    expect(&other_name, PS_ROLE_AGENT, "its certificate is of 'n2', not 'n1'");
    expect(&other_cluster, PS_ROLE_AGENT,
           "its certificate is of cluster 'd', not 'c'");
}

/* Servers compare them with what an agent says (rule H9a). */
static void servers_learn_the_names_of_agents(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_job_state *m = last_job_state(j.s[0]);

    (void)state;
    assert_int_equal(m->slots_count, 2);
    for (uint32_t i = 0; i < m->slots_count; i++) {
        assert_string_equal(m->slots[i].name, j.a[i]->name);
        assert_true(m->slots[i].instance != 0);
    }
    m = last_job_state(j.a[0]);
    assert_string_equal(m->slots[1].name, "");
    assert_int_equal(m->slots[1].instance, 0);
    finish_job(&j);
}

/* Generation of the first job of a scheduler. */
#define FIRST_GEN 1u

static const struct ps_rec_param lr = {.name = "lr", .value = 1};
static const uint32_t rank = 0;
static const struct ps_msg of_agent[] = {
    {.code = PS_MSG_KEY_OPEN,
     .key_open = {.gen = FIRST_GEN, .request = 1, .name = "mine", .count = 1}},
    {.code = PS_MSG_KEY_CLOSE, .key_close = {.gen = FIRST_GEN, .request = 1}},
    {.code = PS_MSG_BARRIER_ENTER,
     .barrier_enter =
         {.gen = FIRST_GEN, .number = 1, .ranks = &rank, .ranks_count = 1}},
    {.code = PS_MSG_OPTIMIZER_SET,
     .optimizer_set =
         {.gen = FIRST_GEN, .name = "sgd", .params = &lr, .params_count = 1}},
    {.code = PS_MSG_OPTIMIZER_CHANGE,
     .optimizer_change = {.gen = FIRST_GEN, .name = "lr", .value = 9}},
    {.code = PS_MSG_OPTIMIZER_TUNE, .optimizer_tune = {.gen = FIRST_GEN}},
    {.code = PS_MSG_COMPRESSION_SET,
     .compression_set = {.gen = FIRST_GEN, .name = "2bit"}},
    {.code = PS_MSG_PROFILE_SET,
     .profile_set = {.gen = FIRST_GEN, .mode = PS_PROFILE_MODE_ON}},
    {.code = PS_MSG_TRACE_GET, .trace_get = {.gen = FIRST_GEN}},
    {.code = PS_MSG_REPORT, .report = {.gen = FIRST_GEN}},
    {.code = PS_MSG_STALL_QUERY, .stall_query = {.gen = FIRST_GEN}},
    {.code = PS_MSG_STALL_REPORT, .stall_report = {.gen = FIRST_GEN}},
};
static const struct ps_msg of_server[] = {
    {.code = PS_MSG_JOB_READY,
     .job_ready = {.gen = FIRST_GEN, .version = 1, .round = 9}},
    {.code = PS_MSG_NORM_PART, .norm_part = {.gen = FIRST_GEN, .round = 1}},
    {.code = PS_MSG_VALUE_LOST, .value_lost = {.gen = FIRST_GEN, .version = 1}},
};

/* Messages about a job, from members of the right role that have no part in
 * it (rule A6). */
static void messages_about_jobs_of_others_are_refused(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *agent = join_peer(j.w, PS_ROLE_AGENT, "a9");
    struct peer *server = join_peer(j.w, PS_ROLE_SERVER, "s9");
    const uint32_t from_agent = sizeof(of_agent) / sizeof(of_agent[0]);
    const uint32_t from_server = sizeof(of_server) / sizeof(of_server[0]);

    (void)state;
    assert_int_equal(j.gen, FIRST_GEN);
    open_key(j.w, j.a[0], j.gen, 5, "theirs", 4);
    drop_inbox(j.s[0]);
    drop_inbox(j.a[0]);
    for (uint32_t i = 0; i < from_agent; i++) {
        deliver_msg(j.w, agent, of_agent[i]);
        assert_int_equal(ps_sched_refused_frames(j.w->sched), i + 1);
    }
    for (uint32_t i = 0; i < from_server; i++) {
        deliver_msg(j.w, server, of_server[i]);
        assert_int_equal(ps_sched_refused_frames(j.w->sched),
                         from_agent + i + 1);
    }
    expect_substring(j.w->story, "agent a9 sent a message (key_open) about job "
                                 "train, which is not its own");
    expect_substring(j.w->story, "server s9 sent a message (job_ready)");
    /* The job has seen nothing of it. */
    assert_null(find_msg(j.a[0], PS_MSG_STALL_COLLECT));
    assert_null(find_msg(j.s[0], PS_MSG_JOB_STATE));
    assert_null(find_msg(j.a[0], PS_MSG_JOB_STATE));
    /* Each of the two connections ends at PS_MISUSE_MAX. */
    for (uint32_t i = from_agent; i < PS_MISUSE_MAX; i++) {
        assert_int_not_equal(agent->conn, 0);
        deliver_msg(j.w, agent, of_agent[1]);
    }
    assert_int_equal(agent->conn, 0);
    assert_int_not_equal(server->conn, 0);
    finish_job(&j);
}

/* A server of the job that does not own the partition cannot fail the job. */
static void messages_about_partitions_of_others_are_refused(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_fixed_placement_part row;
    const struct inbox_entry *opened;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 5, "one", 4);
    opened = &j.a[0]->inbox[j.a[0]->count - 1];
    assert_int_equal(opened->msg->code, PS_MSG_KEY_OPENED);
    assert_true(ps_fixed_get_placement_part(
        ps_slice_data(&opened->packet->slices[0]), &row));

    struct peer *other = j.s[0]->node == row.node ? j.s[1] : j.s[0];
    const struct ps_msg m = {.code = PS_MSG_VALUE_LOST,
                             .value_lost = {.gen = j.gen,
                                            .key = opened->msg->key_opened.key,
                                            .version = 1}};

    deliver_msg(j.w, other, m);
    assert_int_equal(ps_sched_refused_frames(j.w->sched), 1);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    finish_job(&j);
}

/* An answer that only `right` may give: refused from `other`, then taken, and
 * no offence when it comes again. `taken`: code of what follows it at `to`. */
static void check_answer(struct job *j, struct peer *right, struct peer *other,
                         struct ps_msg answer, const struct peer *to,
                         enum ps_msg_code taken)
{
    const uint64_t refused = ps_sched_refused_frames(j->w->sched);
    const uint32_t before = count_msgs(to, taken);

    deliver_msg(j->w, other, answer);
    assert_int_equal(ps_sched_refused_frames(j->w->sched), refused + 1);
    assert_int_equal(count_msgs(to, taken), before);
    deliver_msg(j->w, right, answer);
    deliver_msg(j->w, right, answer);
    assert_int_equal(ps_sched_refused_frames(j->w->sched), refused + 1);
    assert_int_equal(count_msgs(to, taken), before + 1);
}

/* The partition moves from s1 to s0. Nobody but the source ends that, and by its
 * number, of this partition. */
static void check_reports_of_a_move(struct job *j, struct peer *ctl)
{
    struct ps_msg moved = {.code = PS_MSG_MOVED};
    const uint64_t refused = ps_sched_refused_frames(j->w->sched);
    const struct ps_msg_move *m;
    struct peer *outsider;

    open_key(j->w, j->a[0], j->gen, 1, "w", 2000000);
    deliver_msg(j->w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_REBALANCE,
                                          .job = "train",
                                          .drain_server = "s1"}});
    m = &last_msg(j->s[1], PS_MSG_MOVE)->move;
    assert_int_equal(m->source, j->s[1]->node);
    assert_int_equal(m->target, j->s[0]->node);
    assert_int_equal(last_msg(j->s[0], PS_MSG_MOVE)->move.move, m->move);
    moved.moved = (struct ps_msg_moved){.move = m->move,
                                        .gen = m->gen,
                                        .key = m->key,
                                        .index = m->index,
                                        .is_filled = true,
                                        .text = ""};
    outsider = join_peer(j->w, PS_ROLE_SERVER, "s9");
    deliver_msg(j->w, outsider, moved);
    assert_int_equal(ps_sched_refused_frames(j->w->sched), refused + 1);
    deliver_msg(j->w, j->s[0], moved);
    moved.moved.index++;
    deliver_msg(j->w, j->s[1], moved);
    moved.moved.index--;
    moved.moved.is_filled = false;
    deliver_msg(j->w, j->s[1], moved);
    assert_null(find_msg(j->s[0], PS_MSG_MOVE_END));
    assert_null(find_msg(j->s[1], PS_MSG_MOVE_END));
    moved.moved.is_filled = true;
    deliver_msg(j->w, j->s[1], moved);
    assert_true(last_msg(j->s[0], PS_MSG_MOVE_END)->move_end.is_owner);
    assert_false(last_msg(j->s[1], PS_MSG_MOVE_END)->move_end.is_owner);
    /* Asked again, it says what the placement says, not what the server has. */
    for (int i = 0; i < 2; i++) {
        drop_inbox(j->s[i]);
        deliver_msg(j->w, j->s[i], moved);
        assert_int_equal(last_msg(j->s[i], PS_MSG_MOVE_END)->move_end.is_owner,
                         i == 0);
    }
}

/* Answers to open requests, from members of the right role that were not asked
 * (rule A6). */
static void answers_to_requests_of_others_are_refused(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    struct ps_msg answer;

    (void)state;
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){
                    .code = PS_MSG_TRACE_GET,
                    .trace_get = {.gen = j.gen, .request = 7, .member = 2}});
    answer = (struct ps_msg){
        .code = PS_MSG_TRACE_ENTRIES,
        .trace_entries = {
            .gen = j.gen,
            .request = last_msg(j.s[1], PS_MSG_TRACE_GET)->trace_get.request,
            .name = "s0"}};
    check_answer(&j, j.s[1], j.s[0], answer, j.a[0], PS_MSG_TRACE_ENTRIES);
    /* Whose entries they are is not what the server says. */
    assert_string_equal(
        last_msg(j.a[0], PS_MSG_TRACE_ENTRIES)->trace_entries.name, "s1");

    deliver_msg(j.w, ctl,
                (struct ps_msg){.code = PS_MSG_TRACE_GET,
                                .trace_get = {.job = "train", .member = 1}});
    answer = (struct ps_msg){
        .code = PS_MSG_TRACE_ENTRIES,
        .trace_entries = {
            .request = last_msg(j.s[0], PS_MSG_TRACE_GET)->trace_get.request,
            .name = ""}};
    check_answer(&j, j.s[0], j.a[0], answer, ctl, PS_MSG_TRACE_ENTRIES);

    check_reports_of_a_move(&j, ctl);
    finish_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_about_jobs_of_others_are_refused),
        cmocka_unit_test(messages_about_partitions_of_others_are_refused),
        cmocka_unit_test(answers_to_requests_of_others_are_refused),
        cmocka_unit_test(servers_learn_the_names_of_agents),
        cmocka_unit_test(hello_agrees_with_the_certificate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
