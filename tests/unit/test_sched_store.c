/* SPDX-License-Identifier: Apache-2.0 */
/* A scheduler that ends and goes on from its file (rules G). */
#include "sched_world.h"

#include "proto/row.h"

/* All members of the job dial again, and offer what they have. */
static void come_back(struct job *j)
{
    for (uint32_t i = 0; i < 2; i++) {
        drop_inbox(j->s[i]);
        drop_inbox(j->a[i]);
        connect_peer(j->w, j->s[i]);
        connect_peer(j->w, j->a[i]);
    }
    for (uint64_t i = 0; i < 4; i++) {
        struct ps_msg m = make_job_open(1 + i % 2, 4, 2, -1);

        m.job_open.gen = j->gen;
        deliver_msg(j->w, j->a[i / 2], m);
        assert_int_equal(last_job_opened(j->a[i / 2])->error, 0);
    }
}

static void declare_sgd(struct job *j, uint32_t rank)
{
    const struct ps_rec_param params[] = {{.name = "lr", .value = 0.5},
                                          {.name = "momentum", .value = 0.9}};

    deliver_msg(j->w, j->a[rank / 2],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j->gen,
                                                  .request = 70 + rank,
                                                  .name = "sgd",
                                                  .params = params,
                                                  .params_count = 2,
                                                  .rank = rank}});
    deliver_job_ready(j->w, j->s[0]);
    deliver_job_ready(j->w, j->s[1]);
}

static const struct ps_msg_key_opened *key_of(const struct job *j,
                                              uint32_t agent, const char *name)
{
    open_key(j->w, j->a[agent], j->gen, 9, name, 3u << 20);
    return &last_msg(j->a[agent], PS_MSG_KEY_OPENED)->key_opened;
}

static void a_job_goes_on(void **state)
{
    struct job j;
    uint32_t node[4];
    uint64_t store;
    uint32_t epoch;
    uint32_t version;
    uint32_t parts;

    (void)state;
    j = start_job(PS_LOSS_POLICY_WAIT);
    declare_sgd(&j, 0);
    parts = key_of(&j, 0, "w")->parts;
    assert_int_equal(parts, 12);
    store = last_msg(j.a[0], PS_MSG_WELCOME)->welcome.store;
    assert_true(store != 0);
    epoch = ps_sched_epoch(j.w->sched);
    version = last_job_state(j.s[0])->version;
    for (uint32_t i = 0; i < 2; i++) {
        node[i] = j.s[i]->node;
        node[2 + i] = j.a[i]->node;
    }
    world_restart_sched(j.w);
    assert_int_equal(ps_sched_epoch(j.w->sched), epoch);
    assert_int_equal(ps_sched_job_count(j.w->sched), 1);
    assert_int_equal(ps_sched_member_count(j.w->sched, PS_ROLE_SERVER,
                                           PS_NODE_STATE_SUSPECT),
                     2);
    come_back(&j);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(j.s[i]->node, node[i]);
        assert_int_equal(j.a[i]->node, node[2 + i]);
        assert_true(last_msg(j.a[i], PS_MSG_WELCOME)->welcome.store == store);
        assert_int_equal(last_msg(j.a[i], PS_MSG_WELCOME)->welcome.incarnation,
                         1);
    }
    /* Rule G6: servers first. */
    assert_null(find_msg(j.a[0], PS_MSG_JOB_STATE));
    assert_true(last_job_state(j.s[0])->version > version);
    version = last_job_state(j.s[0])->version;
    assert_string_equal(last_job_state(j.s[0])->optimizer, "sgd");
    deliver_job_ready(j.w, j.s[0]);
    assert_null(find_msg(j.a[0], PS_MSG_JOB_STATE));
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(last_job_state(j.a[0])->version, version);
    assert_int_equal(last_job_state(j.a[1])->ranks_count, 4);
    assert_int_equal(ps_sched_epoch(j.w->sched), epoch);
    /* The key is the same one, and declarations are compared with the first. */
    assert_int_equal(key_of(&j, 1, "w")->key, 0);
    assert_int_equal(key_of(&j, 1, "w")->parts, parts);
    assert_int_equal(key_of(&j, 1, "v")->key, 1);
    declare_sgd(&j, 3);
    assert_int_equal(
        last_msg(j.a[1], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    finish_job(&j);
}

static void a_job_that_ended_is_told_so(void **state)
{
    struct job j;

    (void)state;
    j = start_job(PS_LOSS_POLICY_FAIL);
    (void)key_of(&j, 0, "w");
    assert_int_equal(rows_count(&j.w->rows, PS_SCHED_ROW_KEY), 1);
    assert_int_equal(rows_count(&j.w->rows, PS_SCHED_ROW_RANK), 4);
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    for (uint32_t i = 1; i < 4; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, true);
    }
    assert_int_equal(rows_count(&j.w->rows, PS_SCHED_ROW_STATE), 0);
    assert_int_equal(rows_count(&j.w->rows, PS_SCHED_ROW_KEY), 0);
    assert_int_equal(rows_count(&j.w->rows, PS_SCHED_ROW_RANK), 0);
    assert_int_equal(rows_count(&j.w->rows, PS_SCHED_ROW_ENDED), 1);
    world_restart_sched(j.w);
    drop_inbox(j.a[1]);
    connect_peer(j.w, j.a[1]);
    struct ps_msg m = make_job_open(1, 4, 2, -1);

    m.job_open.gen = j.gen;
    deliver_msg(j.w, j.a[1], m);
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_JOBFAILED);
    expect_substring(last_job_opened(j.a[1])->text, "rank 0 on a0 was lost");
    end_world(j.w);
}

/* The process before may have stored the end, and notified nobody. */
static void agents_hear_of_a_failed_job_at_once(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_FAILED);
    world_restart_sched(j.w);
    drop_inbox(j.a[1]);
    connect_peer(j.w, j.a[1]);
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(j.a[1])->reason, "rank 0 on a0 was lost");
    world_free(j.w);
}

/* A worker is offered as a new one, because its agent had not heard of the start
 * of the job, and the job has failed in between. Another job of the name would
 * have a worker that the agent counts for the former. */
static void a_worker_of_a_failed_job_opens_no_other(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);
    struct ps_msg m = make_job_open(2, 4, 2, -1);

    (void)state;
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    world_restart_sched(j.w);
    drop_inbox(j.a[1]);
    connect_peer(j.w, j.a[1]);
    m.job_open.on_loss = PS_LOSS_POLICY_FAIL;
    m.job_open.reoffer = true;
    deliver_msg(j.w, j.a[1], m);
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_JOBFAILED);
    expect_substring(last_job_opened(j.a[1])->text, "rank 0 on a0 was lost");
    assert_int_equal(ps_sched_job_count(j.w->sched), 1);
    m.job_open.worker = 5; /* Of the next start. */
    m.job_open.reoffer = false;
    deliver_msg(j.w, j.a[1], m);
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    assert_int_equal(ps_sched_job_count(j.w->sched), 2);
    world_free(j.w);
}

/* Limits may be lower now than when the keys were declared. */
static void keys_of_the_file_are_not_refused_for_a_limit(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_account_limit *keys =
        &world_limits[PS_ACCOUNT_JOB].limit[PS_COST_KEYS];

    (void)state;
    (void)key_of(&j, 0, "w");
    (void)key_of(&j, 0, "v");
    *keys = (struct ps_account_limit){.max = 1, .option = "limits.job.keys"};
    world_restart_sched(j.w);
    come_back(&j);
    assert_int_equal(key_of(&j, 0, "w")->error, 0);
    assert_int_equal(key_of(&j, 0, "u")->error, PS_E_FULL);
    finish_job(&j);
    *keys = (struct ps_account_limit){0};
}

/* A key of rows, which no server has any more. */
static void a_failed_job_needs_no_server(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){.code = PS_MSG_KEY_OPEN,
                                .key_open = {.gen = j.gen,
                                             .request = 3,
                                             .name = "rows",
                                             .count = 64,
                                             .row_width = 4}});
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error, 0);
    for (int i = 0; i < 2; i++) {
        lose_conn(j.w, j.s[i]);
        j.s[i]->mute = true;
    }
    advance_time(j.w, PS_SECONDS(10));
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    world_restart_sched(j.w);
    assert_int_equal(ps_sched_job_count(j.w->sched), 1);
    world_free(j.w);
}

static void members_that_do_not_return_are_lost(void **state)
{
    struct job j;

    (void)state;
    j = start_job(PS_LOSS_POLICY_WAIT);
    world_restart_sched(j.w);
    drop_inbox(j.a[0]);
    connect_peer(j.w, j.s[0]);
    connect_peer(j.w, j.s[1]);
    connect_peer(j.w, j.a[0]);
    for (uint64_t i = 1; i <= 2; i++) {
        struct ps_msg m = make_job_open(i, 4, 2, -1);

        m.job_open.gen = j.gen;
        deliver_msg(j.w, j.a[0], m);
    }
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    advance_time(j.w, PS_SECONDS(9));
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LIVE);
    advance_time(j.w, PS_SECONDS(5));
    assert_int_equal(last_job_state(j.a[0])->ranks[1].state,
                     PS_RANK_STATE_LIVE);
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LOST);
    /* And again: a rank that is LOST stays so, and the agent is GONE. */
    world_restart_sched(j.w);
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_GONE),
        1);
    come_back(&j);
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    advance_time(j.w, PS_SECONDS(1));
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LIVE);
    finish_job(&j);
}

/* The time to come back is over for a member that has dialled (rule D9). */
static void members_that_have_returned_have_their_lease(void **state)
{
    struct job j;

    (void)state;
    j = start_job(PS_LOSS_POLICY_WAIT);
    world_restart_sched(j.w);
    come_back(&j);
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    advance_time(j.w, PS_SECONDS(1));
    j.a[1]->mute = true;
    advance_time(j.w, PS_MILLIS(2100));
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_GONE),
        1);
    world_free(j.w);
}

static void barriers_go_on(void **state)
{
    struct job j;

    (void)state;
    j = start_job(PS_LOSS_POLICY_WAIT);
    for (uint32_t rank = 0; rank < 4; rank++) {
        deliver_barrier_enter(j.w, j.a[rank / 2], j.gen, 1, &rank, 1);
    }
    assert_int_equal(last_msg(j.a[0], PS_MSG_BARRIER_DONE)->barrier_done.number,
                     1);
    world_restart_sched(j.w);
    come_back(&j);
    /* a1 has not heard that it is open, and a0 has passed it. */
    deliver_barrier_enter(j.w, j.a[1], j.gen, 1, (uint32_t[]){2, 3}, 2);
    assert_null(find_msg(j.a[1], PS_MSG_BARRIER_DONE));
    deliver_msg(
        j.w, j.a[0],
        (struct ps_msg){
            .code = PS_MSG_BARRIER_ENTER,
            .barrier_enter = {.gen = j.gen, .number = 1, .is_open = true}});
    assert_int_equal(last_msg(j.a[1], PS_MSG_BARRIER_DONE)->barrier_done.number,
                     1);
    finish_job(&j);
}

static void deliver_square(struct job *j, uint32_t server, uint32_t key,
                           uint64_t round, enum ps_stage stage, uint64_t number)
{
    const uint32_t one = 1;

    deliver_msg(j->w, j->s[server],
                (struct ps_msg){.code = PS_MSG_NORM_PART,
                                .norm_part = {.gen = j->gen,
                                              .key = key,
                                              .index = server,
                                              .round = round,
                                              .stage = (uint8_t)stage,
                                              .number = number,
                                              .first_digit = 34, /* Ones. */
                                              .digits = &one,
                                              .digits_count = 1}});
}

static void deliver_norms(struct job *j, uint32_t server, uint32_t key,
                          uint64_t round, enum ps_stage stage, double sum,
                          uint64_t number)
{
    deliver_msg(j->w, j->s[server],
                (struct ps_msg){.code = PS_MSG_NORM_RESULT,
                                .norm_result = {.gen = j->gen,
                                                .key = key,
                                                .round = round,
                                                .stage = (uint8_t)stage,
                                                .square_sum = sum,
                                                .global_square_sum = sum,
                                                .number = number}});
}

static void set_optimizer(const struct job *j, const char *optimizer,
                          const char *param)
{
    const struct ps_rec_param p = {.name = param, .value = 1};

    deliver_msg(j->w, j->a[0],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j->gen,
                                                  .request = 70,
                                                  .name = optimizer,
                                                  .params = &p,
                                                  .params_count = 1}});
    deliver_job_ready(j->w, j->s[0]);
    deliver_job_ready(j->w, j->s[1]);
}

/* The key has a partition on each server. */
static void open_on_both(const struct job *j, const char *name)
{
    struct placed at;

    open_key(j->w, j->a[0], j->gen, 9, name, 2u << 18);
    at = placed(j->a[0]);
    assert_int_equal(at.parts, 2);
    assert_int_equal(at.node[0], j->s[0]->node);
    assert_int_equal(at.node[1], j->s[1]->node);
}

static struct job start_with_norms(const char *optimizer, const char *param,
                                   uint32_t keys)
{
    static const char *const names[] = {"a", "b"};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    set_optimizer(&j, optimizer, param);
    for (uint32_t key = 0; key < keys; key++) {
        open_on_both(&j, names[key]);
    }
    return j;
}

static struct job restart_with_norms(const char *optimizer, const char *param,
                                     uint32_t keys)
{
    struct job j = start_with_norms(optimizer, param, keys);

    world_restart_sched(j.w);
    come_back(&j);
    return j;
}

static const struct ps_msg_norm_result *norms_at(const struct job *j,
                                                 uint32_t server)
{
    return &last_msg(j->s[server], PS_MSG_NORM_RESULT)->norm_result;
}

/* Rule G10: one server has made the step, and another lacks the norms of it, of
 * one stage or of two, in whatever order messages come. */
static void norms_of_the_scheduler_before_go_on(void **state)
{
    struct job j = restart_with_norms("lamb", "skip_nonfinite", 1);

    (void)state;
    deliver_norms(&j, 0, 0, 5, PS_STAGE_DIRECTION, 40, 0);
    deliver_square(&j, 1, 0, 5, PS_STAGE_GRADIENT, 0);
    assert_int_equal(norms_at(&j, 1)->stage, PS_STAGE_DIRECTION);
    deliver_norms(&j, 0, 0, 5, PS_STAGE_GRADIENT, 30, 0);
    assert_int_equal(norms_at(&j, 1)->stage, PS_STAGE_GRADIENT);
    assert_true(norms_at(&j, 1)->square_sum == 30);
    /* One before that is known does not take its place. */
    deliver_norms(&j, 0, 0, 4, PS_STAGE_DIRECTION, 20, 0);
    deliver_square(&j, 1, 0, 5, PS_STAGE_GRADIENT, 0);
    assert_true(norms_at(&j, 1)->square_sum == 30);
    deliver_square(&j, 1, 0, 5, PS_STAGE_DIRECTION, 0);
    assert_true(norms_at(&j, 1)->square_sum == 40);
    /* The sum of a stage that was answered takes no more parts. */
    deliver_square(&j, 1, 0, 6, PS_STAGE_GRADIENT, 0);
    deliver_norms(&j, 0, 0, 6, PS_STAGE_GRADIENT, 50, 0);
    assert_true(norms_at(&j, 1)->square_sum == 50);
    /* Nor does that of a stage that a server has left. */
    deliver_square(&j, 1, 0, 7, PS_STAGE_GRADIENT, 0);
    deliver_square(&j, 0, 0, 7, PS_STAGE_DIRECTION, 0);
    deliver_norms(&j, 0, 0, 7, PS_STAGE_GRADIENT, 60, 0);
    assert_true(norms_at(&j, 1)->square_sum == 60);
    deliver_square(&j, 1, 0, 7, PS_STAGE_DIRECTION, 0);
    assert_int_equal(norms_at(&j, 1)->stage, PS_STAGE_DIRECTION);
    assert_true(norms_at(&j, 0)->square_sum == 2);
    finish_job(&j);
}

static void norms_of_all_keys_are_of_one_job(void **state)
{
    struct job j = start_with_norms("sgd", "clip_global_norm", 2);
    struct job other = j;
    struct ps_msg open = make_job_open(11, 1, 2, -1);

    (void)state;
    open.job_open.name = "other";
    deliver_msg(j.w, j.a[0], open);
    other.gen = last_job_opened(j.a[0])->gen;
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    set_optimizer(&other, "sgd", "clip_global_norm");
    open_on_both(&other, "a");
    for (uint32_t server = 0; server < 2; server++) {
        deliver_square(&j, server, 0, 1, PS_STAGE_GRADIENT, 0);
        deliver_square(&other, server, 0, 1, PS_STAGE_GRADIENT, 0);
    }
    for (uint32_t server = 0; server < 2; server++) {
        assert_int_equal(norms_at(&j, server)->gen, other.gen);
        assert_true(norms_at(&j, server)->global_square_sum == 2);
        deliver_square(&j, server, 1, 1, PS_STAGE_GRADIENT, 0);
    }
    for (uint32_t server = 0; server < 2; server++) {
        assert_int_equal(norms_at(&j, server)->gen, j.gen);
        assert_true(norms_at(&j, server)->global_square_sum == 4);
    }
    deliver_worker_gone(j.w, j.a[0], other.gen, 11, true);
    finish_job(&j);
}

/* A key that has stepped with the last norm of all keys waits for the next one,
 * and one that has not waits for the last one, of which a server has the
 * result. */
static void norms_of_all_keys_go_on(void **state)
{
    struct job j = restart_with_norms("sgd", "clip_global_norm", 2);

    (void)state;
    for (uint32_t server = 0; server < 2; server++) {
        deliver_square(&j, server, 1, 5, PS_STAGE_GRADIENT, 3); /* Lags. */
    }
    for (uint32_t server = 0; server < 2; server++) {
        deliver_square(&j, server, 0, 6, PS_STAGE_GRADIENT, 4);
        assert_null(find_msg(j.s[server], PS_MSG_NORM_RESULT));
    }
    deliver_norms(&j, 0, 0, 5, PS_STAGE_GRADIENT, 30, 4);
    for (uint32_t server = 0; server < 2; server++) {
        /* That of key 0 for a server that lacks it, and that of key 1. */
        assert_int_equal(count_msgs(j.s[server], PS_MSG_NORM_RESULT), 2);
        assert_int_equal(norms_at(&j, server)->key, 1);
        assert_int_equal(norms_at(&j, server)->number, 4);
        assert_true(norms_at(&j, server)->global_square_sum == 30);
    }
    for (uint32_t server = 0; server < 2; server++) {
        deliver_square(&j, server, 1, 6, PS_STAGE_GRADIENT, 4);
    }
    for (uint32_t server = 0; server < 2; server++) {
        assert_int_equal(count_msgs(j.s[server], PS_MSG_NORM_RESULT), 4);
        assert_int_equal(norms_at(&j, server)->number, 5);
        assert_true(norms_at(&j, server)->global_square_sum == 4);
    }
    finish_job(&j);
}

static void an_old_file_is_noticed(void **state)
{
    struct rows old = {0};
    struct job j;
    struct ps_msg hello;
    uint32_t epoch;

    (void)state;
    j = start_job(PS_LOSS_POLICY_WAIT);
    rows_copy(&old, &j.w->rows);
    join_peer(j.w, PS_ROLE_SERVER, "s2");
    epoch = ps_sched_epoch(j.w->sched);
    rows_copy(&j.w->rows, &old);
    rows_fini(&old);
    world_restart_sched(j.w);
    assert_true(ps_sched_epoch(j.w->sched) < epoch);
    hello = make_hello(j.a[0]);
    hello.hello.epoch = epoch;
    open_peer_conn(j.w, j.a[0]);
    deliver_unsequenced(j.w, j.a[0], hello);
    expect_substring(j.w->story,
                     "state.file is older than the cluster (epoch 2, agent a0 "
                     "knows 3)");
    assert_int_equal(ps_sched_epoch(j.w->sched), epoch + 1);
    come_back(&j);
    finish_job(&j);
}

/* The optimizer was declared after the copy was made: servers would go on without
 * it. */
static void a_job_that_is_newer_than_the_file_fails(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const uint32_t before = last_job_state(j.s[0])->version;
    struct rows old = {0};

    (void)state;
    rows_copy(&old, &j.w->rows);
    declare_sgd(&j, 0);
    assert_int_equal(last_job_state(j.s[0])->version, before + 1);
    rows_copy(&j.w->rows, &old);
    rows_fini(&old);
    world_restart_sched(j.w);
    for (int i = 0; i < 2; i++) {
        drop_inbox(j.s[i]);
        drop_inbox(j.a[i]);
        connect_peer(j.w, j.s[i]);
        connect_peer(j.w, j.a[i]);
    }
    deliver_msg(
        j.w, j.s[1],
        (struct ps_msg){.code = PS_MSG_JOB_READY,
                        .job_ready = {.gen = j.gen, .version = before}});
    assert_null(find_msg(j.a[0], PS_MSG_JOB_STATE));
    deliver_msg(
        j.w, j.s[0],
        (struct ps_msg){.code = PS_MSG_JOB_READY,
                        .job_ready = {.gen = j.gen, .version = before + 1}});
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    assert_string_equal(last_job_state(j.a[0])->reason,
                        "state.file is older than job train, of which server "
                        "s0 knows more: what has changed in between is not "
                        "known; start the job again");
    world_free(j.w);
}

/* Epochs would begin at 0 again. */
static void an_epoch_that_no_scheduler_reaches_is_refused(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg hello;

    (void)state;
    world_restart_sched(j.w);
    hello = make_hello(j.a[0]);
    hello.hello.epoch = UINT32_MAX;
    open_peer_conn(j.w, j.a[0]);
    deliver_unsequenced(j.w, j.a[0], hello);
    assert_int_equal(last_msg(j.a[0], PS_MSG_REJECT)->reject.error, PS_E_INVAL);
    assert_int_equal(ps_sched_epoch(j.w->sched), 2);
    come_back(&j);
    finish_job(&j);
}

static void a_member_of_another_process_is_no_sign_of_an_old_file(void **state)
{
    struct job j;
    struct ps_msg hello;

    (void)state;
    j = start_job(PS_LOSS_POLICY_WAIT);
    world_restart_sched(j.w);
    join_peer(j.w, PS_ROLE_SERVER, "s2");
    hello = make_hello(j.a[0]);
    open_peer_conn(j.w, j.a[0]);
    hello.hello.epoch = 2;
    deliver_unsequenced(j.w, j.a[0], hello);
    lose_conn(j.w, j.a[0]);
    open_peer_conn(j.w, j.a[0]);
    hello.hello.epoch = 3;
    deliver_unsequenced(j.w, j.a[0], hello);
    assert_null(strstr(j.w->story, "state.file is older"));
    come_back(&j);
    finish_job(&j);
}

/* ------------------------------------------------------------ hostile files */

/* A file with a job of each kind of row. */
static struct job with_all_rows(void)
{
    struct job j;

    j = start_job(PS_LOSS_POLICY_WAIT);
    declare_sgd(&j, 0);
    (void)key_of(&j, 0, "w");
    (void)key_of(&j, 0, "v");
    deliver_worker_gone(j.w, j.a[1], j.gen, 2, false);
    advance_time(j.w, PS_SECONDS(1));
    return j;
}

/* A scheduler that reads the rows and runs for a while. True: it took them. */
static bool takes(struct world *w, struct ps_str *why)
{
    bool ok;

    world_end_sched(w);
    ok = world_begin_sched(w, why) == 0;
    assert_true(ok == (why->len == 0));
    if (ok) {
        advance_time(w, PS_SECONDS(20));
    }
    return ok;
}

static void files_without_a_row_are_refused(void **state)
{
    struct job j = with_all_rows();
    struct rows all = {0};

    (void)state;
    rows_copy(&all, &j.w->rows);
    for (uint32_t i = 0; i < all.count; i++) {
        const uint8_t kind = all.list[i].key.kind;
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
        struct ps_fx fx = {.type = PS_FX_STORE};
        struct ps_store_row row = {
            .kind = kind, .a = all.list[i].key.a, .b = all.list[i].key.b};

        fx.store.rows = &row;
        fx.store.count = 1;
        rows_copy(&j.w->rows, &all);
        rows_apply(&j.w->rows, &fx);
        assert_int_equal(j.w->rows.count, all.count - 1);
        /* Of keys the last ones may be missing, and declarations. */
        assert_int_equal(takes(j.w, &why),
                         kind == PS_SCHED_ROW_OPTIMIZER ||
                             (kind == PS_SCHED_ROW_KEY && row.b == 1));
    }
    rows_fini(&all);
    world_free(j.w);
}

static void files_with_a_changed_byte_do_no_harm(void **state)
{
    struct job j = with_all_rows();
    struct rows all = {0};
    uint32_t refused = 0;
    uint32_t tried = 0;

    (void)state;
    rows_copy(&all, &j.w->rows);
    world_file_is_hostile = true;
    for (uint32_t i = 0; i < all.count; i++) {
        for (size_t at = 0; at < all.list[i].len; at += 3) {
            struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

            rows_copy(&j.w->rows, &all);
            j.w->rows.list[i].bytes[at] ^= (uint8_t)(1u << at % 8);
            refused += !takes(j.w, &why);
            tried++;
        }
    }
    world_file_is_hostile = false;
    assert_true(tried > 300 && refused > tried / 3);
    rows_fini(&all);
    world_free(j.w);
}

static void files_of_others_are_refused(void **state)
{
    struct job j = with_all_rows();
    struct row *meta = rows_find(
        &j.w->rows, (struct ps_sched_row_key){PS_SCHED_ROW_META, 0, 0});
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_msg m = {.code = PS_MSG_ROW_META,
                       .row_meta = {.layout = PS_SCHED_STORE_LAYOUT,
                                    .store = 5,
                                    .cluster = "other"}};

    (void)state;
    ps_free(meta->bytes);
    assert_int_equal(ps_row_encode(&m, NULL, 0, &meta->bytes, &meta->len), 0);
    assert_false(takes(j.w, &why));
    expect_substring(why.data, "it is of cluster 'other', not of 'c'");
    ps_str_init(&why, why.data, why.cap);
    m.row_meta.cluster = "c";
    m.row_meta.layout = 7;
    ps_free(meta->bytes);
    assert_int_equal(ps_row_encode(&m, NULL, 0, &meta->bytes, &meta->len), 0);
    assert_false(takes(j.w, &why));
    expect_substring(why.data, "it has layout 7");
    world_free(j.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_on),
        cmocka_unit_test(a_job_that_ended_is_told_so),
        cmocka_unit_test(agents_hear_of_a_failed_job_at_once),
        cmocka_unit_test(a_worker_of_a_failed_job_opens_no_other),
        cmocka_unit_test(keys_of_the_file_are_not_refused_for_a_limit),
        cmocka_unit_test(a_failed_job_needs_no_server),
        cmocka_unit_test(members_that_do_not_return_are_lost),
        cmocka_unit_test(members_that_have_returned_have_their_lease),
        cmocka_unit_test(barriers_go_on),
        cmocka_unit_test(norms_of_the_scheduler_before_go_on),
        cmocka_unit_test(norms_of_all_keys_are_of_one_job),
        cmocka_unit_test(norms_of_all_keys_go_on),
        cmocka_unit_test(an_old_file_is_noticed),
        cmocka_unit_test(a_job_that_is_newer_than_the_file_fails),
        cmocka_unit_test(an_epoch_that_no_scheduler_reaches_is_refused),
        cmocka_unit_test(a_member_of_another_process_is_no_sign_of_an_old_file),
        cmocka_unit_test(files_without_a_row_are_refused),
        cmocka_unit_test(files_with_a_changed_byte_do_no_harm),
        cmocka_unit_test(files_of_others_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
