/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: requests while a job runs. Keys and their servers,
 * optimizers, barriers, stalls, operators. */
#include "sched_world.h"

#include "base/name_hash.h"

#include <math.h>

/* ---------------------------------------------------------------- servers */

static void keys_are_registered_once(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct placed p;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 600000);
    p = placed(j.a[0]);
    assert_int_equal(p.m->error, 0);
    assert_int_equal(p.m->request, 1);
    assert_int_equal(p.m->key, 0);
    assert_int_equal(p.parts, 3);
    assert_int_equal(p.node[0], j.s[0]->node);
    assert_int_equal(p.node[1], j.s[1]->node);
    assert_int_equal(p.count[0] + p.count[1] + p.count[2], 600000);
    open_key(j.w, j.a[1], j.gen, 9, "w", 600000);
    assert_int_equal(placed(j.a[1]).m->key, 0);
    assert_int_equal(placed(j.a[1]).m->request, 9);
    assert_int_equal(placed(j.a[1]).node[2], p.node[2]);
    open_key(j.w, j.a[1], j.gen, 10, "b", 10);
    assert_int_equal(placed(j.a[1]).m->key, 1);
    /* Fewest bytes: the server without the third part. */
    assert_int_equal(placed(j.a[1]).node[0], j.s[1]->node);
    open_key(j.w, j.a[1], j.gen, 11, "w", 600001);
    assert_int_equal(placed(j.a[1]).m->error, PS_E_MISMATCH);
    expect_substring(placed(j.a[1]).m->text, "600000");
    expect_substring(placed(j.a[1]).m->text, "600001");
    open_key(j.w, j.a[1], j.gen, 12, "", 1);
    assert_int_equal(placed(j.a[1]).m->error, PS_E_INVAL);
    open_kind(j.w, j.a[1], j.gen,
              &(struct ps_msg_key_open){.kind = PS_KEY_KIND_INTEGER,
                                        .request = 12,
                                        .name = "7x",
                                        .count = 1});
    assert_int_equal(placed(j.a[1]).m->error, PS_E_INVAL);
    /* A key of another kind is another key. */
    open_kind(j.w, j.a[1], j.gen,
              &(struct ps_msg_key_open){.kind = PS_KEY_KIND_COLLECTIVE,
                                        .request = 12,
                                        .name = "w",
                                        .count = 1});
    assert_int_equal(placed(j.a[1]).m->error, 0);
    assert_int_equal(placed(j.a[1]).m->key, 2);
    open_key(j.w, j.a[1], j.gen, 13, "e", 0);
    assert_int_equal(placed(j.a[1]).m->error, PS_E_INVAL);
    open_key(j.w, j.a[1], j.gen, 14, "huge", UINT64_MAX);
    assert_int_equal(placed(j.a[1]).m->error, PS_E_TOOBIG);
    open_key(j.w, j.a[1], j.gen + 1, 15, "w", 1);
    assert_int_equal(placed(j.a[1]).m->error, PS_E_NOJOB);
    finish_job(&j);
}

static void set_optimizer(struct job *j, int agent, uint64_t request,
                          const char *name, double lr, double momentum,
                          bool swap)
{
    struct ps_rec_param p[2] = {{.name = "lr", .value = lr},
                                {.name = "momentum", .value = momentum}};

    if (swap) {
        struct ps_rec_param t = p[0];

        p[0] = p[1];
        p[1] = t;
    }
    deliver_msg(j->w, j->a[agent],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j->gen,
                                                  .request = request,
                                                  .name = name,
                                                  .params = p,
                                                  .params_count = 2}});
}

/* A declaration of a key, and the error. */
static int find_key(struct job *j, const char *name, enum ps_if_absent find)
{
    deliver_msg(j->w, j->a[0],
                (struct ps_msg){.code = PS_MSG_KEY_OPEN,
                                .key_open = {.gen = j->gen,
                                             .request = 7,
                                             .name = name,
                                             .dtype = PS_DTYPE_FLOAT32,
                                             .count = 10,
                                             .mxnet_key = -1,
                                             .if_absent = (uint8_t)find}});
    return placed(j->a[0]).m->error;
}

static void queries_create_no_keys(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    assert_int_equal(find_key(&j, "a", PS_IF_ABSENT_FAIL), PS_E_NOKEY);
    expect_substring(placed(j.a[0]).m->text, "key 'a' is not known");
    assert_int_equal(find_key(&j, "a", PS_IF_ABSENT_FAIL), PS_E_NOKEY);
    assert_int_equal(find_key(&j, "a", PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER),
                     0);
    assert_int_equal(find_key(&j, "a", PS_IF_ABSENT_FAIL), 0);
    set_optimizer(&j, 0, 2, "sgd", 0.1, 0.9, false);
    assert_int_equal(find_key(&j, "b", PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER),
                     PS_E_NOKEY);
    assert_int_equal(find_key(&j, "b", PS_IF_ABSENT_CREATE), 0);
    assert_int_equal(find_key(&j, "b", PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER),
                     0);
    finish_job(&j);
}

static void classic_placement_numbers_string_keys_in_order(void **state)
{
    struct world *w = world_new();
    struct peer *s[3] = {join_peer(w, PS_ROLE_SERVER, "s0"),
                         join_peer(w, PS_ROLE_SERVER, "s1"),
                         join_peer(w, PS_ROLE_SERVER, "s2")};
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct ps_msg msg = make_job_open(1, 1, 3, -1);

    (void)state;
    msg.job_open.placement = PS_PLACEMENT_MXNET;
    deliver_msg(w, a, msg);
    for (int i = 0; i < 3; i++) {
        deliver_job_ready(w, s[i]);
    }
    open_kind(w, a, last_job_opened(a)->gen,
              &(struct ps_msg_key_open){.kind = PS_KEY_KIND_INTEGER,
                                        .request = 1,
                                        .name = "5",
                                        .count = 10});
    assert_int_equal(placed(a).node[0], s[2]->node);
    open_key(w, a, last_job_opened(a)->gen, 1, "first", 10); /* 0 */
    assert_int_equal(placed(a).node[0], s[0]->node);
    open_key(w, a, last_job_opened(a)->gen, 1, "second",
             10); /* 9973 mod 3 = 1 */
    assert_int_equal(placed(a).node[0], s[1]->node);
    open_key(w, a, last_job_opened(a)->gen, 1, "large", 1000000);
    assert_int_equal(placed(a).node[0], s[0]->node);
    assert_int_equal(placed(a).parts, 6); /* Cut at 1 MiB. */
    deliver_worker_gone(w, a, 0, 1, true);
    end_world(w);
}

static void only_partitions_of_a_lost_server_are_reassigned(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct placed before;
    struct placed after;
    uint32_t epoch = ps_sched_epoch(j.w->sched);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "small", 5); /* On s0, to stay. */
    open_key(j.w, j.a[0], j.gen, 2, "w", 2000000);
    before = placed(j.a[0]);
    drop_inbox(j.a[1]);
    drop_inbox(j.a[0]);
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(3));
    assert_true(ps_sched_epoch(j.w->sched) > epoch);
    assert_int_equal(last_msg(j.a[1], PS_MSG_MAP)->map.servers_count, 1);
    assert_int_equal(count_msgs(j.a[0], PS_MSG_KEY_OPENED), 1);
    after = placed(j.a[1]);
    assert_int_equal(after.m->request, 0);
    assert_int_equal(after.m->epoch, ps_sched_epoch(j.w->sched));
    assert_int_equal(after.parts, before.parts);
    for (uint32_t i = 0; i < after.parts; i++) {
        assert_int_equal(after.count[i], before.count[i]);
        assert_int_equal(after.node[i], j.s[0]->node);
    }
    /* It returns with the job's data: it gets the end of the job. */
    j.s[1]->mute = false;
    connect_peer(j.w, j.s[1]);
    drop_inbox(j.s[1]);
    deliver_msg(j.w, j.s[1],
                (struct ps_msg){.code = PS_MSG_JOB_READY,
                                .job_ready = {.gen = j.gen, .version = 3}});
    assert_int_equal(last_job_state(j.s[1])->phase, PS_JOB_PHASE_ENDED);
    assert_int_equal(last_job_state(j.s[1])->gen, j.gen);
    /* An agent that lost its link learns the new placement. */
    lose_conn(j.w, j.a[1]);
    j.a[1]->session++;
    drop_inbox(j.a[1]);
    connect_peer(j.w, j.a[1]);
    assert_int_equal(placed(j.a[1]).m->request, 0);
    for (uint64_t i = 1; i <= 2; i++) {
        struct ps_msg msg = make_job_open(i, 4, 2, -1);

        msg.job_open.gen = j.gen;
        deliver_msg(j.w, j.a[1], msg);
    }
    finish_job(&j);
}

/* A name hash identifies its key at servers and in residuals. */
static void key_with_the_name_hash_of_another_is_refused(void **state)
{
    const char *const names[] = {"0TXHjEAhZdF", "SoTBqo6DJYH"};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    assert_int_equal(ps_name_hash(PS_KEY_KIND_STRING, names[0]),
                     ps_name_hash(PS_KEY_KIND_STRING, names[1]));
    open_key(j.w, j.a[0], j.gen, 1, names[0], 10);
    assert_int_equal(placed(j.a[0]).m->error, 0);
    open_key(j.w, j.a[0], j.gen, 2, names[1], 10);
    assert_int_equal(placed(j.a[0]).m->error, PS_E_EXIST);
    expect_substring(placed(j.a[0]).m->text,
                     "key 'SoTBqo6DJYH' has the name hash of key "
                     "'0TXHjEAhZdF': give it another name");
    open_key(j.w, j.a[1], j.gen, 3, names[0], 10);
    assert_int_equal(placed(j.a[1]).m->error, 0);
    assert_int_equal(placed(j.a[1]).m->key, 0);
    finish_job(&j);
}

/* Placements of one job do not delay heartbeats and other jobs. */
static void placements_of_many_keys_are_sent_in_slices(void **state)
{
    const uint32_t keys = 3000;
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    uint32_t epoch = ps_sched_epoch(j.w->sched);
    char name[32];

    (void)state;
    for (uint32_t i = 0; i < keys; i++) {
        snprintf(name, sizeof(name), "%u", i);
        open_key(j.w, j.a[0], j.gen, i + 1, name, 10);
    }
    drop_inbox(j.a[0]);
    drop_inbox(j.a[1]);
    j.w->placements_most = 0;
    while (ps_sched_epoch(j.w->sched) == epoch) {
        feed_event(j.w, (struct ps_event){.type = PS_EV_TICK});
        for (int i = 0; i < 2; i++) {
            deliver_unsequenced(j.w, j.a[i],
                                (struct ps_msg){.code = PS_MSG_PING});
        }
        deliver_unsequenced(j.w, j.s[0], (struct ps_msg){.code = PS_MSG_PING});
        j.w->now += BEAT;
    }
    while (j.w->machine.ops->deadline(j.w->machine.self) <= j.w->now + 1) {
        j.w->now++;
        feed_event(j.w, (struct ps_event){.type = PS_EV_TICK});
        for (int i = 0; i < 2; i++) { /* They acknowledge. */
            deliver_unsequenced(j.w, j.a[i],
                                (struct ps_msg){.code = PS_MSG_PING});
        }
    }
    assert_in_range(j.w->placements_most, 256, PS_PLACEMENTS_SENT_MAX);
    assert_int_equal(count_msgs(j.a[0], PS_MSG_KEY_OPENED), keys / 2);
    assert_int_equal(count_msgs(j.a[1], PS_MSG_KEY_OPENED), keys / 2);
    for (uint32_t i = 0; i < j.a[1]->count; i++) {
        const struct ps_msg *m = j.a[1]->inbox[i].msg;

        if (m->code == PS_MSG_KEY_OPENED) {
            assert_true(m->key_opened.epoch > epoch);
        }
    }
    /* An agent that lost its link learns them again, in slices, too. */
    lose_conn(j.w, j.a[1]);
    j.a[1]->session++;
    drop_inbox(j.a[1]);
    j.w->placements_most = 0;
    connect_peer(j.w, j.a[1]);
    while (j.w->machine.ops->deadline(j.w->machine.self) <= j.w->now + 1) {
        j.w->now++;
        feed_event(j.w, (struct ps_event){.type = PS_EV_TICK});
        deliver_unsequenced(j.w, j.a[1], (struct ps_msg){.code = PS_MSG_PING});
    }
    assert_in_range(j.w->placements_most, 256, PS_PLACEMENTS_SENT_MAX);
    assert_int_equal(count_msgs(j.a[1], PS_MSG_KEY_OPENED), keys / 2);
    for (uint64_t i = 1; i <= 2; i++) {
        struct ps_msg msg = make_job_open(i, 4, 2, -1);

        msg.job_open.gen = j.gen;
        deliver_msg(j.w, j.a[1], msg);
    }
    finish_job(&j);
}

static void a_lost_server_with_weights_fails_the_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_rec_param p = {.name = "lr", .value = 0.1};

    (void)state;
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j.gen,
                                                  .request = 1,
                                                  .name = "sgd",
                                                  .params = &p,
                                                  .params_count = 1}});
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    lose_conn(j.w, j.s[1]);
    advance_time(j.w, PS_SECONDS(3));
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(j.a[1])->reason, "server s1 was lost");
    /* The request for the optimizer was answered, too. */
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error,
        PS_E_JOBFAILED);
    finish_job(&j);
}

static void loss_of_the_last_server_fails_the_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    j.s[0]->mute = true;
    advance_time(j.w, PS_SECONDS(3));
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_RUNNING);
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(3));
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(j.a[1])->reason, "server s1 was lost");
    finish_job(&j);
}

/* -------------------------------------------------------------- optimizer */

static const struct ps_msg_optimizer_done *
tune_key(struct job *j, int agent, double lr_mult, uint64_t round)
{
    struct ps_rec_tuning t = {
        .name_hash = 42, .lr_mult = lr_mult, .wd_mult = 1, .round = round};
    const struct ps_msg *done;

    drop_inbox(j->a[agent]);
    deliver_msg(j->w, j->a[agent],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_TUNE,
                                .optimizer_tune = {.gen = j->gen,
                                                   .request = 9,
                                                   .tunings = &t,
                                                   .tunings_count = 1}});
    done = find_msg(j->a[agent], PS_MSG_OPTIMIZER_DONE);
    return done != NULL ? &done->optimizer_done : NULL;
}

static void multipliers_change_for_all_servers(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_optimizer_done *d;
    const struct ps_msg_job_state *seen;

    (void)state;
    d = tune_key(&j, 0, 2, 5);
    assert_int_equal(d->error, PS_E_INVAL);
    expect_substring(d->text, "has no optimizer that could be changed");
    set_optimizer(&j, 0, 2, "sgd", 0.1, 0.9, false);
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    d = tune_key(&j, 0, 2, 0);
    expect_substring(d->text, "rounds count from 1");
    d = tune_key(&j, 0, -2, 5);
    expect_substring(d->text, "must be finite and not negative");
    assert_null(tune_key(&j, 0, 2, 5));
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    seen = last_job_state(j.s[1]);
    assert_int_equal(seen->tunings_count, 1);
    assert_true(seen->tunings[0].lr_mult == 2);
    assert_int_equal(seen->tunings[0].round, 5);
    /* The same of another worker: answered at once. Another one: refused. */
    assert_int_equal(tune_key(&j, 1, 2, 5)->error, 0);
    d = tune_key(&j, 1, 3, 5);
    assert_int_equal(d->error, PS_E_MISMATCH);
    expect_substring(d->text, "has lr_mult 2 and wd_mult 1 from round 5 on, "
                              "and now 3 and 1 are requested");
    /* The declaration is what it was. */
    set_optimizer(&j, 1, 6, "sgd", 0.1, 0.9, false);
    assert_int_equal(
        last_msg(j.a[1], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    finish_job(&j);
}

static void set_profile(struct job *j, uint64_t request, uint8_t mode)
{
    deliver_msg(
        j->w, j->a[0],
        (struct ps_msg){
            .code = PS_MSG_PROFILE_SET,
            .profile_set = {.gen = j->gen, .request = request, .mode = mode}});
}

static void get_profile(struct job *j, uint64_t request, uint32_t server)
{
    deliver_msg(j->w, j->a[0],
                (struct ps_msg){.code = PS_MSG_TRACE_GET,
                                .trace_get = {.gen = j->gen,
                                              .request = request,
                                              .member = server + 1,
                                              .first = 6}});
}

static void recordings_begin_and_end_on_all_servers(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    set_profile(&j, 1, PS_PROFILE_MODE_PAUSED); /* Of nothing. */
    assert_int_equal(last_job_state(j.s[0])->profile_mode, PS_PROFILE_MODE_OFF);
    set_profile(&j, 2, PS_PROFILE_MODE_ON);
    assert_int_equal(last_job_state(j.s[0])->profile_mode, PS_PROFILE_MODE_ON);
    assert_int_equal(last_job_state(j.s[1])->profile_number, 1);
    deliver_job_ready(j.w, j.s[0]);
    drop_inbox(j.a[0]);
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.request, 2);
    set_profile(&j, 3, PS_PROFILE_MODE_PAUSED);
    set_profile(&j, 4, PS_PROFILE_MODE_ON);
    assert_int_equal(last_job_state(j.s[1])->profile_number, 1);
    set_profile(&j, 5, PS_PROFILE_MODE_OFF);
    set_profile(&j, 6, PS_PROFILE_MODE_ON);
    assert_int_equal(last_job_state(j.s[1])->profile_number, 2);
    finish_job(&j);
}

static void recordings_are_read_through_the_scheduler(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_rec_trace_entry e = {.round = 3, .bytes = 12};
    struct ps_msg answer = {.code = PS_MSG_TRACE_ENTRIES,
                            .trace_entries = {.gen = j.gen,
                                              .first = 6,
                                              .count = 7,
                                              .next = 7,
                                              .entries = &e,
                                              .entries_count = 1}};
    const struct ps_msg *m;

    (void)state;
    get_profile(&j, 6, 2);
    expect_substring(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.text,
        "has 2 servers, and none of rank 2");
    get_profile(&j, 7, 1);
    get_profile(&j, 7, 1); /* Again. */
    m = last_msg(j.s[1], PS_MSG_TRACE_GET);
    assert_int_equal(m->trace_get.first, 6);
    assert_true(m->trace_get.recording);
    answer.trace_entries.request = m->trace_get.request;
    deliver_msg(j.w, j.s[0], answer); /* Not the one that was asked. */
    assert_null(find_msg(j.a[0], PS_MSG_TRACE_ENTRIES));
    deliver_msg(j.w, j.s[1], answer);
    deliver_msg(j.w, j.s[1], answer);
    assert_int_equal(count_msgs(j.a[0], PS_MSG_TRACE_ENTRIES), 1);
    m = last_msg(j.a[0], PS_MSG_TRACE_ENTRIES);
    assert_int_equal(m->trace_entries.request, 7);
    assert_string_equal(m->trace_entries.name, "s1");
    assert_int_equal(m->trace_entries.entries[0].round, 3);
    /* A lost server takes its recording along. */
    get_profile(&j, 8, 1);
    drop_inbox(j.a[0]);
    lose_conn(j.w, j.s[1]);
    advance_time(j.w, PS_SECONDS(3));
    m = last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE);
    assert_int_equal(m->optimizer_done.request, 8);
    expect_substring(m->optimizer_done.text, "its recording with it");
    finish_job(&j);
}

static void an_optimizer_is_declared_once(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_optimizer_done *d;

    (void)state;
    set_optimizer(&j, 0, 1, "nonsense", 0.1, 0.9, false);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error,
        PS_E_UNSUPPORTED);
    drop_inbox(j.a[0]);
    set_optimizer(&j, 0, 2, "sgd", 0.1, 0.9, false);
    set_optimizer(&j, 0, 2, "sgd", 0.1, 0.9, false); /* Again. */
    set_optimizer(&j, 1, 5, "sgd", 0.1, 0.9, true);
    assert_string_equal(last_job_state(j.s[0])->optimizer, "sgd");
    assert_int_equal(last_job_state(j.s[0])->params_count, 2);
    deliver_job_ready(j.w, j.s[0]);
    assert_null(find_msg(j.a[0], PS_MSG_OPTIMIZER_DONE));
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(count_msgs(j.a[0], PS_MSG_OPTIMIZER_DONE), 1);
    d = &last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done;
    assert_int_equal(d->error, 0);
    assert_int_equal(d->request, 2);
    assert_int_equal(
        last_msg(j.a[1], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    /* The same one later: answered at once. Another one: refused, with both
     * named. */
    set_optimizer(&j, 1, 6, "sgd", 0.1, 0.9, false);
    d = &last_msg(j.a[1], PS_MSG_OPTIMIZER_DONE)->optimizer_done;
    assert_int_equal(d->request, 6);
    assert_int_equal(d->error, 0);
    set_optimizer(&j, 1, 7, "sgd", 0.2, 0.9, false);
    d = &last_msg(j.a[1], PS_MSG_OPTIMIZER_DONE)->optimizer_done;
    assert_int_equal(d->request, 7);
    assert_int_equal(d->error, PS_E_MISMATCH);
    expect_substring(d->text, "sgd(lr=0.1, momentum=0.9)");
    expect_substring(d->text, "sgd(lr=0.2, momentum=0.9)");
    finish_job(&j);
}

static void set_compression(struct job *j, int agent, uint64_t request,
                            const char *name)
{
    deliver_msg(j->w, j->a[agent],
                (struct ps_msg){.code = PS_MSG_COMPRESSION_SET,
                                .compression_set = {.gen = j->gen,
                                                    .request = request,
                                                    .name = name}});
}

static void open_sum(struct job *j, int agent, uint64_t request)
{
    open_kind(j->w, j->a[agent], j->gen,
              &(struct ps_msg_key_open){.kind = PS_KEY_KIND_COLLECTIVE,
                                        .request = request,
                                        .name = "sum.float32.10",
                                        .count = 10});
}

/* Keys of collectives may exist before; none of them is compressed. */
static void compression_is_declared_before_keys_of_values(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_sum(&j, 0, 1);
    set_compression(&j, 0, 2, "2bit");
    assert_string_equal(last_job_state(j.s[0])->compression, "2bit");
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    open_sum(&j, 1, 1);
    assert_null(placed(j.a[1]).m->compression);
    open_key(j.w, j.a[1], j.gen, 2, "w", 10);
    assert_string_equal(placed(j.a[1]).m->compression, "2bit");
    finish_job(&j);
}

static void compression_after_a_key_of_values_is_refused(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_optimizer_done *d;

    (void)state;
    open_sum(&j, 0, 1);
    open_key(j.w, j.a[0], j.gen, 2, "w", 10);
    set_compression(&j, 0, 3, "2bit");
    d = &last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done;
    assert_int_equal(d->error, PS_E_INVAL);
    expect_substring(d->text, "job train has 1 keys already; declare "
                              "compression before the first of them");
    finish_job(&j);
}

/* Sends a server's norms of a partition: the squares add up to `square` and
 * `weight`. */
static void say_squares(struct job *j, uint32_t server, uint32_t index,
                        uint64_t round, uint32_t square, uint32_t weight)
{
    deliver_msg(j->w, j->s[server],
                (struct ps_msg){.code = PS_MSG_NORM_PART,
                                .norm_part = {.gen = j->gen,
                                              .key = 0,
                                              .index = index,
                                              .round = round,
                                              .stage = PS_STAGE_GRADIENT,
                                              .first_digit = 34, /* Of ones. */
                                              .digits = &square,
                                              .digits_count = 1,
                                              .weight_first_digit = 34,
                                              .weight_digits = &weight,
                                              .weight_digits_count = 1}});
}

static void norm_covers_all_partitions(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_norm_result *n;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    const struct placed p = placed(j.a[0]);
    uint32_t of[2] = {0}; /* A partition of each server. */

    assert_true(p.parts >= 2);
    for (uint32_t i = 0; i < p.parts; i++) {
        of[p.node[i] == j.s[0]->node ? 0 : 1] = i;
    }
    for (uint64_t round = 3; round <= 4; round++) {
        uint32_t total = 0;

        drop_inbox(j.s[0]);
        drop_inbox(j.s[1]);
        say_squares(&j, 1, of[0], round, 7, 7); /* Not its own. */
        say_squares(&j, 0, p.parts, round, 7, 7);
        for (uint32_t i = 0; i < p.parts; i++) {
            const uint32_t server = p.node[i] == j.s[0]->node ? 0 : 1;

            assert_null(find_msg(j.s[0], PS_MSG_NORM_RESULT));
            say_squares(&j, server, i, round, i + 1, 10);
            total += i + 1;
            if (i + 1 < p.parts) { /* Again: it counts once. */
                say_squares(&j, server, i, round, i + 1, 10);
            }
        }
        for (uint32_t server = 0; server < 2; server++) {
            assert_int_equal(count_msgs(j.s[server], PS_MSG_NORM_RESULT), 1);
            n = &last_msg(j.s[server], PS_MSG_NORM_RESULT)->norm_result;
            assert_int_equal(n->gen, j.gen);
            assert_int_equal(n->round, round);
            assert_int_equal(n->stage, PS_STAGE_GRADIENT);
            assert_true(n->square_sum == total);
            assert_true(n->weight_square_sum == 10 * p.parts);
        }
        /* A repeated request gets the same answer, and no other server gets
         * it. */
        say_squares(&j, 1, of[1], round, 1, 1);
        assert_int_equal(count_msgs(j.s[0], PS_MSG_NORM_RESULT), 1);
        assert_int_equal(count_msgs(j.s[1], PS_MSG_NORM_RESULT), 2);
        n = &last_msg(j.s[1], PS_MSG_NORM_RESULT)->norm_result;
        assert_true(n->square_sum == total);
        /* The former result is kept for a server that lacks it. */
        say_squares(&j, 1, of[1], round - 1, 1, 1);
        if (round == 3) {
            assert_int_equal(count_msgs(j.s[1], PS_MSG_NORM_RESULT), 2);
        } else {
            assert_int_equal(count_msgs(j.s[1], PS_MSG_NORM_RESULT), 3);
            n = &last_msg(j.s[1], PS_MSG_NORM_RESULT)->norm_result;
            assert_int_equal(n->round, round - 1);
            assert_true(n->square_sum == total);
        }
        /* Requests before that were answered long ago. */
        say_squares(&j, 1, of[1], round - 2, 1, 1);
        assert_int_equal(count_msgs(j.s[1], PS_MSG_NORM_RESULT),
                         round == 3 ? 2 : 3);
    }
    say_squares(&j, 0, of[0], 5, 1, 1); /* Open, when the job ends. */
    finish_job(&j);
}

static const struct ps_msg_norm_result *norms_of(const struct peer *p)
{
    return &last_msg(p, PS_MSG_NORM_RESULT)->norm_result;
}

static void global_norm_waits_for_every_key(void **state)
{
    static const struct ps_rec_param params[] = {{"clip_global_norm", 1},
                                                 {"skip_nonfinite", 1}};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const uint32_t ones[] = {9, 16};
    const char *const names[] = {"a", "b", "late"};
    uint32_t on[3];

    (void)state;
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j.gen,
                                                  .request = 1,
                                                  .name = "sgd",
                                                  .params = params,
                                                  .params_count = 2}});
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    for (uint32_t key = 0; key < 3; key++) {
        open_kind(j.w, j.a[0], j.gen,
                  &(struct ps_msg_key_open){.kind = key == 3
                                                        ? PS_KEY_KIND_COLLECTIVE
                                                        : PS_KEY_KIND_STRING,
                                            .request = key + 1,
                                            .name = names[key],
                                            .count = 10});
        on[key] = placed(j.a[0]).node[0] == j.s[0]->node ? 0 : 1;
    }
    for (uint64_t round = 1; round <= 2; round++) {
        drop_inbox(j.s[0]);
        drop_inbox(j.s[1]);
        for (uint32_t key = 0; key < 3; key++) {
            struct ps_msg msg = {
                .code = PS_MSG_NORM_PART,
                .norm_part = {.gen = j.gen,
                              .key = key,
                              .round = round + 5 * key, /* Each has its own. */
                              .stage = PS_STAGE_GRADIENT,
                              .nonfinite_count = round == 2 && key == 1,
                              .first_digit = 34,
                              .digits = &ones[key % 2],
                              .digits_count = 1}};

            assert_null(find_msg(j.s[0], PS_MSG_NORM_RESULT));
            assert_null(find_msg(j.s[1], PS_MSG_NORM_RESULT));
            deliver_msg(j.w, j.s[on[key]], msg);
            if (key < 2) {
                deliver_msg(j.w, j.s[on[key]], msg); /* It counts once. */
            }
        }
        assert_int_equal(count_msgs(j.s[0], PS_MSG_NORM_RESULT) +
                             count_msgs(j.s[1], PS_MSG_NORM_RESULT),
                         3);
        assert_true(norms_of(j.s[on[2]])->global_square_sum == 9 + 16 + 9);
        assert_true(norms_of(j.s[on[2]])->square_sum == 9);
        assert_int_equal(norms_of(j.s[on[2]])->round, round + 10);
        assert_int_equal(norms_of(j.s[on[0]])->nonfinite_count, round == 2);
    }
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "ctl");

    deliver_unsequenced(j.w, ctl,
                        (struct ps_msg){.code = PS_MSG_QUERY,
                                        .query = {.what = PS_QUERY_JOBS}});
    assert_int_equal(last_msg(ctl, PS_MSG_JOB_ROW)->job_row.skipped_steps, 3);
    finish_job(&j);
}

static void norms_need_rounds(void **state)
{
    struct world *w = world_new();
    struct peer *server = join_peer(w, PS_ROLE_SERVER, "s0");
    struct peer *agent = join_peer(w, PS_ROLE_AGENT, "a0");
    struct ps_msg open = make_job_open(1, 1, 1, -1);

    (void)state;
    open.job_open.mode = PS_MODE_ASYNC;
    deliver_msg(w, agent, open);
    deliver_job_ready(w, server);
    deliver_msg(
        w, agent,
        (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                        .optimizer_set = {.gen = last_job_opened(agent)->gen,
                                          .request = 1,
                                          .name = "lamb"}});
    const struct ps_msg_optimizer_done *d =
        &last_msg(agent, PS_MSG_OPTIMIZER_DONE)->optimizer_done;

    assert_int_equal(d->error, PS_E_UNSUPPORTED);
    expect_substring(d->text, "job train is async and has no rounds");
    deliver_worker_gone(w, agent, last_job_opened(agent)->gen, 1, true);
    end_world(w);
}

/* --------------------------------------------------------------- barriers */

static void barriers_open_when_all_ranks_are_there(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const uint32_t low[] = {0, 1};
    const uint32_t high[] = {2, 3};

    (void)state;
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, low, 2);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, low, 2);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, high, 2); /* Not its ranks. */
    deliver_barrier_enter(j.w, j.a[1], j.gen, 1, high, 1);
    assert_null(find_msg(j.a[0], PS_MSG_BARRIER_DONE));
    deliver_barrier_enter(j.w, j.a[1], j.gen, 1, &high[1], 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            last_msg(j.a[i], PS_MSG_BARRIER_DONE)->barrier_done.number, 1);
    }
    /* Sent again on a fresh link. */
    drop_inbox(j.a[0]);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, low, 2);
    assert_int_equal(last_msg(j.a[0], PS_MSG_BARRIER_DONE)->barrier_done.number,
                     1);
    /* A rank that has left is not waited for; a lost one is. */
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, true);
    deliver_worker_gone(j.w, j.a[1], j.gen, 1, false);
    drop_inbox(j.a[0]);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 2, &low[1], 1);
    deliver_barrier_enter(j.w, j.a[1], j.gen, 2, &high[1], 1);
    assert_null(find_msg(j.a[0], PS_MSG_BARRIER_DONE));
    deliver_msg(j.w, j.a[1], make_job_open(8, 4, 2, 2));
    deliver_barrier_enter(j.w, j.a[1], j.gen, 2, high, 1);
    assert_int_equal(last_msg(j.a[0], PS_MSG_BARRIER_DONE)->barrier_done.number,
                     2);
    deliver_worker_gone(j.w, j.a[1], j.gen, 8, true);
    finish_job(&j);
}

/* ------------------------------------------------------------------ stall */

static void query_stall(struct job *j, uint64_t request, bool barrier,
                        uint64_t round)
{
    deliver_msg(j->w, j->a[0],
                (struct ps_msg){.code = PS_MSG_STALL_QUERY,
                                .stall_query = {.gen = j->gen,
                                                .request = request,
                                                .key = 0,
                                                .round = round,
                                                .barrier = barrier}});
}

static void report(struct job *j, int agent, const uint32_t *ranks,
                   uint32_t count)
{
    uint64_t ask =
        last_msg(j->a[agent], PS_MSG_STALL_COLLECT)->stall_collect.request;

    deliver_msg(
        j->w, j->a[agent],
        (struct ps_msg){.code = PS_MSG_STALL_REPORT,
                        .stall_report = {.gen = j->gen,
                                         .request = ask,
                                         .ranks = ranks,
                                         .ranks_count = count,
                                         .waiting_ops = 2,
                                         .key = "w",
                                         .round = 17,
                                         .waited_ns = PS_SECONDS(agent + 1)}});
}

static void missing_ranks_are_named_with_state_and_host(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const uint32_t ranks[] = {3, 1};
    const struct ps_msg_stall_reply *m;
    uint64_t late;

    (void)state;
    deliver_worker_gone(j.w, j.a[1], j.gen, 2, false);
    query_stall(&j, 44, false, 17);
    query_stall(&j, 44, false, 17); /* Again: one answer. */
    assert_int_equal(
        last_msg(j.a[1], PS_MSG_STALL_COLLECT)->stall_collect.round, 17);
    report(&j, 0, NULL, 0);
    assert_null(find_msg(j.a[0], PS_MSG_STALL_REPLY));
    report(&j, 1, ranks, 2); /* 1 is not its rank. */
    assert_int_equal(count_msgs(j.a[0], PS_MSG_STALL_REPLY), 1);
    m = &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;
    assert_int_equal(m->request, 44);
    assert_int_equal(m->total, 1);
    assert_int_equal(m->missing[0].rank, 3);
    assert_int_equal(m->missing[0].state, PS_RANK_STATE_LOST);
    assert_string_equal(m->missing[0].host, "host-b");
    assert_string_equal(m->missing[0].node, "a1");
    /* An agent that does not report: a second, then all its ranks. */
    query_stall(&j, 45, false, 18);
    report(&j, 0, (const uint32_t[]){0}, 1);
    advance_time(j.w, PS_MILLIS(900));
    assert_int_equal(last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply.request,
                     44);
    advance_time(j.w, PS_MILLIS(200));
    m = &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;
    assert_int_equal(m->request, 45);
    assert_int_equal(m->total, 3);
    assert_int_equal(m->missing[0].rank, 0);
    assert_int_equal(m->missing[2].rank, 3);
    /* A late report does not count for another query. */
    query_stall(&j, 49, false, 19);
    report(&j, 0, NULL, 0);
    late = last_msg(j.a[1], PS_MSG_STALL_COLLECT)->stall_collect.request - 1;
    deliver_msg(
        j.w, j.a[1],
        (struct ps_msg){.code = PS_MSG_STALL_REPORT,
                        .stall_report = {.gen = j.gen, .request = late}});
    assert_int_equal(last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply.request,
                     45);
    report(&j, 1, NULL, 0);
    assert_int_equal(last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply.request,
                     49);
    /* At a barrier, agents only add what the processes do. */
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, (const uint32_t[]){0, 1}, 2);
    query_stall(&j, 46, true, 1);
    report(&j, 0, NULL, 0);
    report(&j, 1, NULL, 0);
    m = &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;
    assert_int_equal(m->request, 46);
    assert_int_equal(m->total, 2);
    assert_int_equal(m->missing[0].rank, 2);
    /* An unknown job has no missing ranks. */
    j.gen++;
    query_stall(&j, 47, false, 1);
    assert_int_equal(last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply.total,
                     0);
    j.gen--;
    query_stall(&j, 48, false, 1); /* Parked when the job ends. */
    finish_job(&j);
}

/* Reports that an agent has its ranks' contributions and, if `unheard` is not
 * NULL, hears nothing of a server. */
static void report_unheard(struct job *j, int agent, const char *unheard)
{
    uint64_t ask =
        last_msg(j->a[agent], PS_MSG_STALL_COLLECT)->stall_collect.request;

    deliver_msg(j->w, j->a[agent],
                (struct ps_msg){.code = PS_MSG_STALL_REPORT,
                                .stall_report = {.gen = j->gen,
                                                 .request = ask,
                                                 .unheard = unheard,
                                                 .waiting_ops = 2,
                                                 .key = "w"}});
}

/* One agent that a server does not hear from keeps its ranks from the round; a
 * server that is silent to all does not. */
static void ranks_that_are_cut_off_from_a_server_are_missing(void **state)
{
    static const char silent[] = "a message from server s0";
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_stall_reply *m;

    (void)state;
    query_stall(&j, 44, false, 17);
    report_unheard(&j, 0, NULL);
    report_unheard(&j, 1, silent);
    m = &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;
    assert_int_equal(m->request, 44);
    assert_int_equal(m->total, 2);
    assert_int_equal(m->missing[0].rank, 2);
    assert_int_equal(m->missing[1].rank, 3);
    assert_string_equal(m->other_causes, silent);
    query_stall(&j, 45, false, 17);
    report_unheard(&j, 0, silent);
    report_unheard(&j, 1, silent);
    m = &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;
    assert_int_equal(m->request, 45);
    assert_int_equal(m->total, 0);
    assert_string_equal(m->other_causes, silent);
    /* The other has not contributed, so it asks nothing of the server. */
    query_stall(&j, 46, false, 17);
    report(&j, 0, (const uint32_t[]){0, 1}, 2);
    report_unheard(&j, 1, silent);
    m = &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;
    assert_int_equal(m->request, 46);
    assert_int_equal(m->total, 2);
    assert_int_equal(m->missing[0].rank, 0);
    finish_job(&j);
}

/* The scheduler asks every second for the longest wait and its ranks. */
static void a_round_fails_that_needs_a_rank_that_has_left(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const uint32_t left = 3;
    const uint32_t live = 2;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 10);
    open_key(j.w, j.a[1], j.gen, 1, "w", 10);
    advance_time(j.w, PS_SECONDS(3));
    assert_null(find_msg(j.a[0], PS_MSG_STALL_COLLECT));
    deliver_worker_gone(j.w, j.a[1], j.gen, 2, true);
    for (int turn = 0; turn < 3; turn++) {
        advance_time(j.w, PS_MILLIS(1001));
        assert_true(
            last_msg(j.a[1], PS_MSG_STALL_COLLECT)->stall_collect.oldest);
        report(&j, 0, NULL, 0);
        report(&j, 1, NULL, 0);
        assert_int_equal(
            last_msg(j.a[1], PS_MSG_STALL_COLLECT)->stall_collect.round, 17);
        report(&j, 0, NULL, 0);
        if (turn == 0) {
            report(&j, 1, &live, 1); /* It may come yet. */
        } else if (turn == 1) {
            advance_time(j.w, PS_SECONDS(1)); /* Silence proves nothing. */
        } else {
            assert_int_equal(
                last_msg(j.a[0], PS_MSG_JOB_STATE)->job_state.phase,
                PS_JOB_PHASE_RUNNING);
            report(&j, 1, &left, 1);
        }
    }
    assert_int_equal(last_msg(j.a[0], PS_MSG_JOB_STATE)->job_state.phase,
                     PS_JOB_PHASE_FAILED);
    assert_string_equal(last_msg(j.a[0], PS_MSG_JOB_STATE)->job_state.reason,
                        "rank 3 on a1 has left job train in good order, "
                        "and key w round 17 needs it: all ranks must make the "
                        "same rounds, or call join()");
    finish_job(&j);
}

static void send_query(struct world *w, struct peer *ctl, enum ps_query what,
                       const char *job)
{
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = (uint8_t)what, .job = job}});
}

/* Reports what an agent waits for longest. */
static void report_wait(struct job *j, int agent, const char *key,
                        uint64_t round)
{
    uint64_t ask =
        last_msg(j->a[agent], PS_MSG_STALL_COLLECT)->stall_collect.request;

    deliver_msg(
        j->w, j->a[agent],
        (struct ps_msg){.code = PS_MSG_STALL_REPORT,
                        .stall_report = {.gen = j->gen,
                                         .request = ask,
                                         .waiting_ops = 2,
                                         .key = key,
                                         .round = round,
                                         .waited_ns = PS_SECONDS(9 - agent)}});
}

/* Ranks 0 and 1 wait in one round for ranks 2 and 3, which wait in another one
 * for them: two rows. */
static void
both_sides_of_ranks_that_wait_for_each_other_are_listed(void **state)
{
    static const uint32_t first[] = {0, 1};
    static const uint32_t last[] = {2, 3};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_stall_row *row;

    (void)state;
    for (uint32_t key = 1; key <= 2; key++) {
        open_key(j.w, j.a[0], j.gen, key, key == 1 ? "a" : "b", 10);
        open_key(j.w, j.a[1], j.gen, key, key == 1 ? "a" : "b", 10);
    }
    send_query(j.w, ctl, PS_QUERY_STALL, "train");
    report_wait(&j, 0, "b", 5);
    report_wait(&j, 1, "a", 6);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_STALL_COLLECT)->stall_collect.round, 5);
    report(&j, 0, NULL, 0);
    report(&j, 1, last, 2);
    row = &last_msg(ctl, PS_MSG_STALL_ROW)->stall_row;
    assert_string_equal(row->what, "key b round 5");
    assert_int_equal(row->missing_count, 2);
    assert_int_equal(row->missing[0].rank, 2);
    assert_null(find_msg(ctl, PS_MSG_QUERY_END));
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_STALL_COLLECT)->stall_collect.round, 6);
    report(&j, 0, first, 2);
    report(&j, 1, NULL, 0);
    row = &last_msg(ctl, PS_MSG_STALL_ROW)->stall_row;
    assert_string_equal(row->what, "key a round 6");
    assert_int_equal(row->missing_count, 2);
    assert_int_equal(row->missing[0].rank, 0);
    assert_int_equal(row->waited_ns, PS_SECONDS(8));
    assert_non_null(find_msg(ctl, PS_MSG_QUERY_END));
    /* Two rounds that wait for the same ranks: the longer wait alone. */
    send_query(j.w, ctl, PS_QUERY_STALL, "train");
    report_wait(&j, 0, "b", 5);
    report_wait(&j, 1, "a", 6);
    for (int wait = 0; wait < 2; wait++) {
        report(&j, 0, NULL, 0);
        report(&j, 1, last, 1);
    }
    assert_int_equal(count_msgs(ctl, PS_MSG_STALL_ROW), 1);
    assert_non_null(find_msg(ctl, PS_MSG_QUERY_END));
    finish_job(&j);
}

/* A round that waits for the norm of all keys lacks keys, not ranks. */
static void keys_missing_in_the_global_norm_are_named(void **state)
{
    static const struct ps_rec_param clip = {"clip_global_norm", 1};
    static const char *const names[] = {"w", "b", "c",       "sum",
                                        "d", "e", "f\x1b[m", "g"};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const uint32_t keys = sizeof(names) / sizeof(names[0]);
    const uint32_t one = 1;
    uint32_t on[8];

    (void)state;
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j.gen,
                                                  .request = 1,
                                                  .name = "sgd",
                                                  .params = &clip,
                                                  .params_count = 1}});
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    for (uint32_t key = 0; key < keys; key++) {
        open_kind(j.w, j.a[0], j.gen,
                  &(struct ps_msg_key_open){.kind = key == 3
                                                        ? PS_KEY_KIND_COLLECTIVE
                                                        : PS_KEY_KIND_STRING,
                                            .request = key + 1,
                                            .name = names[key],
                                            .count = 10});
        on[key] = placed(j.a[0]).node[0] == j.s[0]->node ? 0 : 1;
    }
    query_stall(&j, 1, false, 17);
    report(&j, 0, NULL, 0);
    report(&j, 1, NULL, 0);
    assert_string_equal(
        last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply.other_causes, "");
    for (uint32_t key = 0; key < keys; key++) {
        if (key == 3) {
            continue; /* Of a collective: it has no gradient. */
        }
        deliver_msg(j.w, j.s[on[key]],
                    (struct ps_msg){.code = PS_MSG_NORM_PART,
                                    .norm_part = {.gen = j.gen,
                                                  .key = key,
                                                  .round = 17,
                                                  .stage = PS_STAGE_GRADIENT,
                                                  .first_digit = 34,
                                                  .digits = &one,
                                                  .digits_count = 1}});
        query_stall(&j, key + 2, false, 17);
        report(&j, 0, NULL, 0);
        report(&j, 1, NULL, 0);
        const struct ps_msg_stall_reply *m =
            &last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply;

        assert_int_equal(m->request, key + 2);
        assert_int_equal(m->total, 0);
        if (key == 0) {
            assert_string_equal(m->other_causes,
                                "gradients of b, c, d, e and 2 more, "
                                "for the norm of all keys");
            send_query(j.w, ctl, PS_QUERY_STALL, "train");
            report(&j, 0, NULL, 0);
            report(&j, 1, NULL, 0); /* w has waited longest. */
            report(&j, 0, NULL, 0);
            report(&j, 1, NULL, 0);
            assert_string_equal(
                last_msg(ctl, PS_MSG_STALL_ROW)->stall_row.other_causes,
                m->other_causes);
        } else if (key == 5) {
            assert_string_equal(m->other_causes,
                                "gradients of f\\x1b[m, g, for "
                                "the norm of all keys");
        } else if (key == 7) {
            assert_string_equal(m->other_causes,
                                ""); /* The answer is in flight. */
        }
    }
    finish_job(&j);
}

/* -------------------------------------------------------------- operators */

static void operators_see_nodes_and_jobs(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_job_row *row;

    (void)state;
    advance_time(j.w, PS_MILLIS(500));
    send_query(j.w, ctl, PS_QUERY_NODES, "");
    assert_int_equal(count_msgs(ctl, PS_MSG_NODE_ROW), 5);
    assert_string_equal(last_msg(ctl, PS_MSG_NODE_ROW)->node_row.name, "a1");
    assert_int_equal(last_msg(ctl, PS_MSG_NODE_ROW)->node_row.rounds, 7);
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.epoch, 2);
    assert_string_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.cluster,
                        "c");
    send_query(j.w, ctl, PS_QUERY_JOBS, "");
    row = &last_msg(ctl, PS_MSG_JOB_ROW)->job_row;
    assert_string_equal(row->name, "train");
    assert_int_equal(row->live_workers, 4);
    assert_int_equal(row->phase, PS_JOB_PHASE_RUNNING);
    send_query(j.w, ctl, PS_QUERY_KEYS, "unknown");
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error,
                     PS_E_NOJOB);
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, true);
    }
    send_query(j.w, ctl, PS_QUERY_JOBS, "");
    row = &last_msg(ctl, PS_MSG_JOB_ROW)->job_row;
    assert_string_equal(row->name, "train");
    assert_int_equal(row->phase, PS_JOB_PHASE_ENDED);
    /* Only the newest are kept. */
    for (uint64_t i = 0; i < 20; i++) {
        deliver_msg(j.w, j.a[0], make_job_open(100 + i, 1, 0, -1));
        deliver_worker_gone(j.w, j.a[0], 0, 100 + i, true);
    }
    send_query(j.w, ctl, PS_QUERY_JOBS, "");
    assert_int_equal(count_msgs(ctl, PS_MSG_JOB_ROW), 16);
    end_world(j.w);
}

static void key_rows_are_sent_as_the_connection_drains(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    uint32_t turns = 0;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        char name[16];

        sprintf(name, "k%d", (int)i);
        open_key(j.w, j.a[0], j.gen, i, name, i == 0 ? 600000 : 10);
    }
    send_query(j.w, ctl, PS_QUERY_KEYS, "train");
    while (find_msg(ctl, PS_MSG_QUERY_END) == NULL) {
        assert_true(++turns < 100);
        assert_true(count_msgs(ctl, PS_MSG_KEY_ROW) <= 260 * turns);
        feed_event(j.w, (struct ps_event){.type = PS_EV_SENT,
                                          .conn = ctl->conn,
                                          .sent = {.queued = 1 << 20}});
        feed_event(j.w, (struct ps_event){.type = PS_EV_SENT,
                                          .conn = ctl->conn,
                                          .sent = {.queued = 0}});
    }
    assert_int_equal(count_msgs(ctl, PS_MSG_KEY_ROW), 1001);
    assert_string_equal(last_msg(ctl, PS_MSG_KEY_ROW)->key_row.name, "k999");
    send_query(j.w, ctl, PS_QUERY_KEYS,
               ""); /* The tool disconnects in the middle. */
    lose_conn(j.w, ctl);
    finish_job(&j);
}

/* A job on 3 servers of which the first has 1500 keys and the others none. */
struct lean {
    struct world *w;
    struct peer *s[3];
    struct peer *a;
    struct peer *ctl;
    uint64_t gen;
};

static struct lean lean_new(void)
{
    struct lean l = {.w = world_new()};
    struct ps_msg msg = make_job_open(1, 1, 3, -1);

    l.s[0] = join_peer(l.w, PS_ROLE_SERVER, "s0");
    l.s[1] = join_peer(l.w, PS_ROLE_SERVER, "s1");
    l.s[2] = join_peer(l.w, PS_ROLE_SERVER, "s2");
    l.a = join_peer(l.w, PS_ROLE_AGENT, "a");
    l.ctl = join_peer(l.w, PS_ROLE_CTL, "");
    msg.job_open.placement = PS_PLACEMENT_MXNET;
    deliver_msg(l.w, l.a, msg);
    for (int i = 0; i < 6; i++) { /* Of the start, and of the run. */
        deliver_job_ready(l.w, l.s[i % 3]);
    }
    l.gen = last_job_opened(l.a)->gen;
    for (uint64_t i = 0; i < 1500; i++) {
        char name[16];

        sprintf(name, "%d", 3 * (int)i);
        open_kind(l.w, l.a, l.gen,
                  &(struct ps_msg_key_open){.kind = PS_KEY_KIND_INTEGER,
                                            .request = i,
                                            .name = name,
                                            .count = 10});
    }
    return l;
}

static void lean_finish(struct lean *l)
{
    deliver_worker_gone(l->w, l->a, 0, 1, true);
    end_world(l->w);
}

static void take_more(const struct lean *l)
{
    feed_event(l->w, (struct ps_event){.type = PS_EV_SENT,
                                       .conn = l->ctl->conn,
                                       .sent = {.queued = 0}});
}

static void operators_see_the_plan_of_a_rebalance(void **state)
{
    struct lean l = lean_new();
    const struct ps_msg_migration_row *row;
    uint32_t turns = 0;

    (void)state;
    send_query(l.w, l.ctl, PS_QUERY_SHARES, "");
    assert_int_equal(count_msgs(l.ctl, PS_MSG_SHARE_ROW), 3);
    assert_string_equal(last_msg(l.ctl, PS_MSG_SHARE_ROW)->share_row.server,
                        "s2");
    assert_int_equal(last_msg(l.ctl, PS_MSG_SHARE_ROW)->share_row.bytes, 0);
    send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "");
    assert_int_equal(last_msg(l.ctl, PS_MSG_QUERY_END)->query_end.error,
                     PS_E_INVAL);
    send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "unknown");
    assert_int_equal(last_msg(l.ctl, PS_MSG_QUERY_END)->query_end.error,
                     PS_E_NOJOB);
    send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "train");
    while (find_msg(l.ctl, PS_MSG_QUERY_END) == NULL) {
        assert_true(++turns < 100);
        assert_int_equal(count_msgs(l.ctl, PS_MSG_MIGRATION_ROW), 256 * turns);
        take_more(&l);
    }
    assert_int_equal(last_msg(l.ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    /* 525 that stay are within 5 % of 500. */
    assert_int_equal(count_msgs(l.ctl, PS_MSG_MIGRATION_ROW), 975);
    row = &last_msg(l.ctl, PS_MSG_MIGRATION_ROW)->migration_row;
    assert_string_equal(row->job, "train");
    assert_string_equal(row->from, "s0");
    assert_int_equal(row->parts, 1);
    assert_int_equal(row->bytes, 40);
    lean_finish(&l);
}

static void migrations_end_with_their_job(void **state)
{
    struct lean l = lean_new();
    const struct ps_msg_query_end *end;

    (void)state;
    send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "train");
    deliver_msg(
        l.w, l.ctl,
        (struct ps_msg){.code = PS_MSG_QUERY, .query = {.job = "train"}});
    end = &last_msg(l.ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, PS_E_AGAIN); /* One at a time. */
    join_peer(l.w, PS_ROLE_SERVER, "s3");     /* A new epoch does no harm. */
    deliver_worker_gone(l.w, l.a, 0, 1, true);
    drop_inbox(l.ctl);
    take_more(&l);
    end = &last_msg(l.ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, PS_E_AGAIN);
    expect_substring(end->text, "ended");
    end_world(l.w);

    l = lean_new();
    send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "train");
    lose_conn(l.w, l.ctl); /* In the middle of it. */
    lean_finish(&l);

    l = lean_new();
    send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "train");
    lean_finish(&l); /* And with the scheduler. */
}

/* A plan for very many partitions takes much memory. Without it the operator
 * gets an error, and the plan is freed. */
static void a_plan_without_memory_is_refused(void **state)
{
    struct lean l = lean_new();
    struct ps_msg rebalance = {
        .code = PS_MSG_QUERY,
        .query = {.what = PS_QUERY_REBALANCE, .job = "train"}};
    const struct ps_msg_query_end *end;
    uint32_t refusals = 0;

    (void)state;
    for (uint64_t n = 1; n < 60; n++) {
        drop_inbox(l.ctl);
        ps_alloc_fail_at(n, 0);
        send_query(l.w, l.ctl, PS_QUERY_REBALANCE_PLAN, "train");
        ps_alloc_fail_at(0, 0);
        while (find_msg(l.ctl, PS_MSG_QUERY_END) == NULL) {
            take_more(&l);
        }
        end = &last_msg(l.ctl, PS_MSG_QUERY_END)->query_end;
        if (end->error != 0) {
            assert_int_equal(end->error, PS_E_NOMEM);
            expect_substring(end->text,
                             "no memory to plan for 1500 partitions");
            refusals++;
        }
    }
    assert_int_equal(refusals, 5);
    drop_inbox(l.ctl);
    ps_alloc_fail_at(300, 0); /* While moves are added. */
    deliver_msg(l.w, l.ctl, rebalance);
    ps_alloc_fail_at(0, 0);
    end = &last_msg(l.ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, PS_E_NOMEM);
    assert_null(find_msg(l.s[0], PS_MSG_MOVE));
    deliver_msg(l.w, l.ctl, rebalance);
    assert_non_null(find_msg(l.s[0], PS_MSG_MOVE));
    lean_finish(&l);
}

/* Report of a server about the move that it has a part in. */
static void deliver_moved(const struct job *j, struct peer *from,
                          bool is_filled, int error)
{
    const struct ps_msg_move *m = &last_msg(from, PS_MSG_MOVE)->move;

    deliver_msg(j->w, from,
                (struct ps_msg){.code = PS_MSG_MOVED,
                                .moved = {.move = m->move,
                                          .gen = m->gen,
                                          .key = m->key,
                                          .index = m->index,
                                          .is_filled = is_filled,
                                          .error = error,
                                          .text = error != 0 ? "no" : ""}});
}

static void drain_s1(const struct job *j, struct peer *ctl)
{
    deliver_msg(j->w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_REBALANCE,
                                          .job = "train",
                                          .drain_server = "s1"}});
}

/* The old owner of a partition that has moved dies with others there: agents get
 * the move and the losses in different epochs, because they accept only the first
 * placement of an epoch. */
static void a_move_before_a_loss_has_its_own_epoch(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    struct placed p;
    uint32_t epoch = 0;
    uint32_t placements = 0;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    drop_inbox(j.a[1]);
    drain_s1(&j, ctl);
    deliver_moved(&j, j.s[1], true, 0);
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(3));
    for (uint32_t i = 0; i < j.a[1]->count; i++) {
        if (j.a[1]->inbox[i].msg->code == PS_MSG_KEY_OPENED) {
            assert_true(j.a[1]->inbox[i].msg->key_opened.epoch > epoch);
            epoch = j.a[1]->inbox[i].msg->key_opened.epoch;
            placements++;
        }
    }
    assert_int_equal(placements, 2);
    p = placed(j.a[1]);
    assert_int_equal(p.m->epoch, ps_sched_epoch(j.w->sched));
    for (uint32_t i = 0; i < p.parts; i++) {
        assert_int_equal(p.node[i], j.s[0]->node);
    }
    finish_job(&j);
}

/* A server is lost before or after the source of a move from s1 to s0 has said that
 * the target has the partition. Before, the partition stays at the source, and is
 * lost with it; after, it is the target's. The job has no optimizer: agents have
 * what a silent server had. */
static void lose_at(bool is_filled, bool loses_source, bool keeps)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    struct peer *lost = j.s[loses_source];
    struct peer *other = j.s[!loses_source];
    const struct ps_msg_query_end *end;
    const struct ps_msg_move_end *m;
    struct placed p;

    if (keeps) {
        lost->keep = true;
        lose_conn(j.w, lost);
        connect_peer(j.w, lost); /* The last hello counts. */
    }
    open_key(j.w, j.a[0], j.gen, 1, "a", 10);
    open_key(j.w, j.a[0], j.gen, 2, "b", 20);
    drain_s1(&j, ctl);
    assert_int_equal(last_msg(j.s[0], PS_MSG_MOVE)->move.target, j.s[0]->node);
    if (is_filled) {
        deliver_moved(&j, j.s[1], true, 0);
    }
    lost->mute = true;
    advance_time(j.w, PS_SECONDS(3));
    m = &last_msg(other, PS_MSG_MOVE_END)->move_end;
    assert_int_equal(m->is_owner, loses_source == is_filled);
    end = &last_msg(ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, is_filled ? 0 : PS_E_AGAIN);
    if (!is_filled) {
        expect_substring(end->text, loses_source
                                        ? "the source server was lost"
                                        : "the target server was lost");
    }
    p = placed(j.a[0]);
    assert_int_equal(p.node[0], other->node);
    finish_job(&j);
}

static void a_move_ends_when_a_server_of_it_is_lost(void **state)
{
    (void)state;
    for (int source = 0; source < 2; source++) {
        lose_at(false, source, false);
        lose_at(true, source, false);
    }
    lose_at(false, true, true);
}

/* The source cannot send it; the operator gets the reason. */
static void a_move_that_the_source_cannot_make_is_given_up(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_query_end *end;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "a", 10);
    open_key(j.w, j.a[0], j.gen, 2, "b", 20);
    drain_s1(&j, ctl);
    deliver_moved(&j, j.s[1], false, PS_E_IO);
    assert_true(last_msg(j.s[1], PS_MSG_MOVE_END)->move_end.is_owner);
    assert_false(last_msg(j.s[0], PS_MSG_MOVE_END)->move_end.is_owner);
    end = &last_msg(ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, PS_E_AGAIN);
    expect_substring(end->text, "stayed where they were: no");
    finish_job(&j);
}

/* A server on a fresh link hears of its moves again. */
static void moves_are_repeated_on_a_fresh_link(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "a", 10);
    open_key(j.w, j.a[0], j.gen, 2, "b", 20);
    drain_s1(&j, ctl);
    for (int i = 0; i < 2; i++) {
        const uint64_t number = last_msg(j.s[i], PS_MSG_MOVE)->move.move;

        lose_conn(j.w, j.s[i]);
        drop_inbox(j.s[i]);
        j.s[i]->session++;
        connect_peer(j.w, j.s[i]);
        assert_int_equal(last_msg(j.s[i], PS_MSG_MOVE)->move.move, number);
    }
    deliver_moved(&j, j.s[1], true, 0);
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    finish_job(&j);
}

/* By the state of the job that is on its way the source may take the partition over
 * from another server: it knows that state when the move begins. */
static void
a_move_begins_when_both_servers_know_the_state_of_the_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "a", 10);
    open_key(j.w, j.a[0], j.gen, 2, "b", 20);
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    advance_time(j.w, PS_MILLIS(50));
    drain_s1(&j, ctl);
    deliver_job_ready(j.w, j.s[0]);
    assert_null(find_msg(j.s[0], PS_MSG_MOVE));
    assert_null(find_msg(j.s[1], PS_MSG_MOVE));
    deliver_job_ready(j.w, j.s[1]);
    assert_non_null(find_msg(j.s[0], PS_MSG_MOVE));
    assert_non_null(find_msg(j.s[1], PS_MSG_MOVE));
    finish_job(&j);
}

/* Partitions do not move while a server of the job is of a version that would not
 * send them. */
static void older_servers_move_no_partitions(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_query_end *end;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "a", 10);
    open_key(j.w, j.a[0], j.gen, 2, "b", 20);
    lose_conn(j.w, j.s[1]);
    j.s[1]->is_older = true;
    connect_peer(j.w, j.s[1]);
    drain_s1(&j, ctl);
    end = &last_msg(ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, PS_E_UNSUPPORTED);
    expect_substring(end->text, "server s1 is of a version that does not move "
                                "partitions to another server itself; upgrade");
    assert_null(find_msg(j.s[1], PS_MSG_MOVE));
    finish_job(&j);
}

/* Moves of one key to different servers are different rows. */
static void plan_has_a_row_for_each_pair_of_servers(void **state)
{
    struct world *w = world_new();
    struct peer *s[3];
    struct peer *a;
    struct peer *ctl;
    uint32_t parts = 0;

    (void)state;
    s[0] = join_peer(w, PS_ROLE_SERVER, "s0");
    s[1] = join_peer(w, PS_ROLE_SERVER, "s1");
    s[2] = join_peer(w, PS_ROLE_SERVER, "s2");
    a = join_peer(w, PS_ROLE_AGENT, "a");
    ctl = join_peer(w, PS_ROLE_CTL, "");
    deliver_msg(w, a, make_job_open(1, 1, 3, -1));
    for (int i = 0; i < 3; i++) {
        deliver_job_ready(w, s[i]);
    }
    open_key(w, a, last_job_opened(a)->gen, 1, "w", 3000000);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_REBALANCE_PLAN,
                                          .job = "train",
                                          .drain_server = "s0"}});
    assert_int_equal(count_msgs(ctl, PS_MSG_MIGRATION_ROW), 2);
    for (uint32_t i = 0; i < ctl->count; i++) {
        const struct ps_msg *m = ctl->inbox[i].msg;

        if (m->code == PS_MSG_MIGRATION_ROW) {
            assert_string_equal(m->migration_row.from, "s0");
            parts += m->migration_row.parts;
        }
    }
    assert_int_equal(parts, 4); /* Of 12. */
    deliver_worker_gone(w, a, 0, 1, true);
    end_world(w);
}

static void bytes_of_a_moved_partition_count_at_its_owner(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "a", 10);
    open_key(j.w, j.a[0], j.gen, 2, "b", 20);
    deliver_msg(j.w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_REBALANCE,
                                          .job = "train",
                                          .drain_server = "s1"}});
    deliver_moved(&j, j.s[1], true, 0);
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    send_query(j.w, ctl, PS_QUERY_SHARES, "");
    for (uint32_t i = 0; i < ctl->count; i++) {
        const struct ps_msg *m = ctl->inbox[i].msg;

        if (m->code == PS_MSG_SHARE_ROW) {
            assert_int_equal(m->share_row.bytes,
                             strcmp(m->share_row.server, "s0") == 0 ? 120 : 0);
        }
    }
    assert_int_equal(count_msgs(ctl, PS_MSG_SHARE_ROW), 2);
    finish_job(&j);
}

/* A lost server has dropped the job: the same process gets no partition of it,
 * a new process of that name does. */
static void lost_server_gets_no_partition_until_it_restarts(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    for (int restarts = 0; restarts < 2; restarts++) {
        j.s[1]->mute = true;
        advance_time(j.w, PS_SECONDS(3));
        j.s[1]->mute = false;
        if (j.s[1]->conn != 0) {
            lose_conn(j.w, j.s[1]);
        }
        j.s[1]->instance += (uint64_t)restarts;
        connect_peer(j.w, j.s[1]);
        send_query(j.w, ctl, PS_QUERY_REBALANCE_PLAN, "train");
        assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
        assert_int_equal(count_msgs(ctl, PS_MSG_MIGRATION_ROW), restarts);
    }
    finish_job(&j);
}

static const struct ps_msg *nth_msg(const struct peer *p, enum ps_msg_code code,
                                    uint32_t n)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->inbox[i].msg->code == code && n-- == 0) {
            return p->inbox[i].msg;
        }
    }
    fail_msg("%s has too few of %s", p->name, ps_msg_name(code));
    return NULL;
}

/* ------------------------------------------------- ranks that wait for each
 * other */

/* Reports of both agents of a job of four ranks: 0 and 1 are in barrier 1, 2 and
 * 3 in round 17 of the key. */
struct standstill {
    uint8_t still; /* Of all ranks. */
    uint64_t moves;
    uint64_t round;      /* Of the key that ranks 2 and 3 wait for. */
    bool none_is_behind; /* No rank lacks that round. */
};

static void report_waits(struct job *j, const struct standstill *s)
{
    for (uint32_t agent = 0; agent < 2; agent++) {
        const struct ps_msg_wait_collect *c =
            &last_msg(j->a[agent], PS_MSG_WAIT_COLLECT)->wait_collect;
        struct ps_rec_rank_wait ranks[2];
        struct ps_rec_open_wait waits[2];
        uint32_t behind = agent == 0 && !s->none_is_behind ? 0 : UINT32_MAX;

        for (uint32_t i = 0; i < 2; i++) {
            ranks[i] = (struct ps_rec_rank_wait){
                .rank = 2 * agent + i,
                .pid = 100 + 2 * agent + i,
                .process = 7 + 2 * agent + i,
                .still = s->still,
                .moves = s->moves,
                .ops = 1,
                .does = agent == 0 ? "in barrier 1"
                                   : "in pushpull of w round 17"};
            waits[i] = (struct ps_rec_open_wait){
                .rank = 2 * agent + i,
                .key = agent == 0 ? UINT32_MAX : 0,
                .round = agent == 0 ? 1 : s->round};
        }
        deliver_msg(
            j->w, j->a[agent],
            (struct ps_msg){.code = PS_MSG_WAIT_REPORT,
                            .wait_report = {.gen = j->gen,
                                            .request = c->request,
                                            .ranks = ranks,
                                            .ranks_count = 2,
                                            .waits = waits,
                                            .waits_count = 2,
                                            .behind = &behind,
                                            .behind_count = c->keys_count}});
    }
}

/* One look: both questions get the answers, the second one `second`. */
static void look(struct job *j, const struct standstill *first,
                 const struct standstill *second)
{
    uint64_t before =
        last_msg(j->a[0], PS_MSG_WAIT_COLLECT)->wait_collect.request;
    const struct ps_msg_wait_collect *c;

    report_waits(j, first);
    c = &last_msg(j->a[0], PS_MSG_WAIT_COLLECT)->wait_collect;
    if (c->request != before) {
        assert_int_equal(c->keys_count, 1);
        assert_int_equal(c->keys[0], 0);
        assert_int_equal(c->rounds[0], first->round);
        report_waits(j, second);
    }
}

static const char *standstill_of(struct job *j, struct peer *ctl)
{
    send_query(j->w, ctl, PS_QUERY_JOBS, "");
    return last_msg(ctl, PS_MSG_JOB_ROW)->job_row.standstill;
}

/* Begins a job whose ranks 0 and 1 are in a barrier, and the first look. */
static struct job start_standstill(void)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    open_key(j.w, j.a[0], j.gen, 1, "w", 10);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, (const uint32_t[]){0, 1}, 2);
    deliver_msg(
        j.w, j.a[0],
        (struct ps_msg){.code = PS_MSG_JOB_STILL, .job_still = {.gen = j.gen}});
    return j;
}

static const struct standstill ring = {
    .still = PS_STILLNESS_STILL, .moves = 5, .round = 17};

static void ranks_that_wait_for_each_other_fail(void **state)
{
    struct job j = start_standstill();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_stall_row *row;

    (void)state;
    look(&j, &ring, &ring);
    assert_string_equal(standstill_of(&j, ctl),
                        "DIVERGED: ranks 0-1 are in barrier 1, ranks 2-3 in "
                        "pushpull of w round 17");
    assert_int_equal(ps_sched_diverged_count(j.w->sched), 1);
    send_query(j.w, ctl, PS_QUERY_STALL, "");
    row = &nth_msg(ctl, PS_MSG_STALL_ROW, 0)->stall_row;
    assert_int_equal(row->ring_count, 4);
    assert_string_equal(row->ring[3].node, "a1");
    assert_int_equal(row->ring[3].pid, 103);
    assert_string_equal(row->ring[3].does, "in pushpull of w round 17");
    /* The same while the next look is under way. */
    advance_time(j.w, PS_SECONDS(1));
    send_query(j.w, ctl, PS_QUERY_STALL, "");
    row = &last_msg(ctl, PS_MSG_STALL_ROW)->stall_row;
    assert_int_equal(row->ring_count, 4);
    look(&j, &ring, &ring);
    advance_time(j.w, PS_MILLIS(1));
    for (int second = 2; second < 31; second++) {
        assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
        advance_time(j.w, PS_SECONDS(1));
        look(&j, &ring, &ring);
        advance_time(j.w, PS_MILLIS(1));
    }
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(j.a[0])->reason,
                     "pushpull of w round 17; no rank has gone on for 30 s: "
                     "all ranks must make the same calls in the same order");
    finish_job(&j);
}

/* One answer that differs, and there is no ring. */
static void a_ring_needs_every_rank_to_stand_still(void **state)
{
    static const struct standstill others[] = {
        {.still = PS_STILLNESS_MOVING, .moves = 5, .round = 17},
        {.still = PS_STILLNESS_STILL, .moves = 6, .round = 17},
        {.still = PS_STILLNESS_STILL, .moves = 5, .round = 18},
        {.still = PS_STILLNESS_STILL, .moves = 5, .round = 0},
        {.still = PS_STILLNESS_STILL,
         .moves = 5,
         .round = 17,
         .none_is_behind = true},
        {.still = PS_STILLNESS_QUIET, .moves = 5, .round = 17},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct job j = start_standstill();
        struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

        look(&j, &ring, &others[i]);
        assert_string_equal(standstill_of(&j, ctl), "");
        assert_int_equal(ps_sched_diverged_count(j.w->sched), 0);
        finish_job(&j);
    }
}

/* A rank that moves ends what was a ring, and its time begins again. */
static void a_rank_that_goes_on_ends_the_ring(void **state)
{
    static const struct standstill moved = {
        .still = PS_STILLNESS_STILL, .moves = 6, .round = 17};
    struct job j = start_standstill();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    look(&j, &ring, &ring);
    assert_string_not_equal(standstill_of(&j, ctl), "");
    for (int second = 1; second < 29; second++) {
        advance_time(j.w, PS_SECONDS(1));
        look(&j, &ring, &ring);
    }
    for (int second = 29; second < 58; second++) {
        advance_time(j.w, PS_SECONDS(1));
        look(&j, &moved, &moved);
        advance_time(j.w, PS_MILLIS(1));
        assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    }
    finish_job(&j);
}

/* After three looks in which a rank moves, and at once if an operation ended. */
static void a_ring_that_has_ended_is_shown_no_longer(void **state)
{
    static const struct standstill others[] = {
        {.still = PS_STILLNESS_MOVING, .moves = 5, .round = 17},
        {.still = PS_STILLNESS_MOVING, .moves = 5, .round = 18},
    };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job j = start_standstill();
        struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
        int looks = 0;

        look(&j, &ring, &ring);
        assert_int_equal(ps_sched_diverged_count(j.w->sched), 1);
        while (ps_sched_diverged_count(j.w->sched) > 0) {
            advance_time(j.w, PS_SECONDS(1) << looks);
            look(&j, &others[i], &others[i]);
            assert_true(++looks <= 3);
        }
        assert_int_equal(looks, i == 0 ? 3 : 1);
        assert_string_equal(standstill_of(&j, ctl), "");
        assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
        finish_job(&j);
    }
}

/* A quiet process could call the library for the first time. */
static void quiet_ranks_fail_only_after_the_whole_time(void **state)
{
    static const struct standstill quiet = {
        .still = PS_STILLNESS_QUIET, .moves = 5, .round = 17};
    struct job j = start_standstill();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    look(&j, &quiet, &quiet);
    for (int second = 1; second < 31; second++) {
        assert_string_equal(standstill_of(&j, ctl), "");
        advance_time(j.w, PS_SECONDS(1));
        look(&j, &quiet, &quiet);
        advance_time(j.w, PS_MILLIS(1));
    }
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    finish_job(&j);
}

static void operators_see_the_waits_of_a_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_stall_row *row;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 10);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, (const uint32_t[]){0}, 1);
    advance_time(j.w, PS_SECONDS(1));
    send_query(j.w, ctl, PS_QUERY_STALL, "");
    assert_true(last_msg(j.a[0], PS_MSG_STALL_COLLECT)->stall_collect.oldest);
    report(&j, 0, NULL, 0);
    report(&j, 1, NULL, 0); /* Waits longest, for round 17 of w. */
    assert_false(last_msg(j.a[0], PS_MSG_STALL_COLLECT)->stall_collect.oldest);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_STALL_COLLECT)->stall_collect.round, 17);
    report(&j, 0, (const uint32_t[]){1}, 1);
    assert_null(find_msg(ctl, PS_MSG_QUERY_END));
    advance_time(j.w, PS_MILLIS(1100));
    row = &nth_msg(ctl, PS_MSG_STALL_ROW, 0)->stall_row;
    assert_string_equal(row->what, "barrier 1");
    assert_int_equal(row->missing_count, 3);
    assert_int_equal(row->waited_ns, PS_MILLIS(2000));
    row = &last_msg(ctl, PS_MSG_STALL_ROW)->stall_row;
    assert_string_equal(row->what, "key w round 17");
    assert_int_equal(row->waiting_ops, 4);
    assert_int_equal(row->waited_ns, PS_SECONDS(2));
    assert_int_equal(row->missing_count, 3); /* 1, and those of a1. */
    assert_int_equal(row->missing[0].rank, 1);
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    send_query(j.w, ctl, PS_QUERY_STALL, "train");
    lose_conn(j.w, ctl); /* In the middle of it. */
    advance_time(j.w, PS_SECONDS(2));
    finish_job(&j);
}

static void cancelled_job_frees_its_memory(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 1000000);
    set_optimizer(&j, 0, 2, "sgd", 0.1, 0.9, false);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, (const uint32_t[]){0}, 1);
    query_stall(&j, 3, false, 1);
    assert_true(ps_sched_residue(j.w->sched) > 0);
    deliver_msg(
        j.w, ctl,
        (struct ps_msg){.code = PS_MSG_JOB_CANCEL,
                        .job_cancel = {.job = "train", .reason = "enough"}});
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(j.a[1])->reason, "enough");
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error,
        PS_E_JOBFAILED);
    assert_non_null(find_msg(j.a[0], PS_MSG_STALL_REPLY));
    deliver_msg(j.w, ctl,
                (struct ps_msg){.code = PS_MSG_JOB_CANCEL,
                                .job_cancel = {.job = "train"}});
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error,
                     PS_E_NOJOB);
    /* The job ends even if agents never report the end of its workers. */
    advance_time(j.w, PS_SECONDS(31));
    assert_int_equal(last_job_state(j.s[1])->phase, PS_JOB_PHASE_ENDED);
    end_world(j.w);
}

/* Sends `msg` as a tool of user `uid`; the answer must have this code. */
static void change_as(struct world *w, uint32_t uid, bool by_tcp, int rc,
                      struct ps_msg msg)
{
    struct peer *ctl = peer_new(w, PS_ROLE_CTL, "");
    const struct ps_msg_query_end *end;

    ctl->uid = uid;
    ctl->by_tcp = by_tcp;
    connect_peer(w, ctl);
    deliver_msg(w, ctl, msg);
    end = &last_msg(ctl, PS_MSG_QUERY_END)->query_end;
    assert_int_equal(end->error, rc);
    if (rc == PS_E_PERM) {
        expect_substring(end->text,
                         "not allowed: job 'train' belongs to user 7; ");
    }
    lose_conn(w, ctl);
    drop_inbox(ctl);
    ps_free(ctl->inbox);
    *ctl = (struct peer){0};
    w->peers--;
}

static void jobs_are_changed_by_their_owners(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg changes[] = {
        {.code = PS_MSG_JOB_CANCEL, .job_cancel = {.job = "train"}},
        {.code = PS_MSG_JOB_SET,
         .job_set = {.job = "train", .name = "lr", .value = 1, .round = 1}},
        {.code = PS_MSG_QUERY,
         .query = {.what = PS_QUERY_REBALANCE, .job = "train"}},
        {.code = PS_MSG_JOB_SET,
         .job_set = {.job = "train", .name = "weight", .value = 7}},
    };
    struct ps_msg *cancel = &changes[0];

    (void)state;
    for (int i = 0; i < 4; i++) {
        change_as(j.w, 8, false, PS_E_PERM, changes[i]);
        change_as(j.w, 7, true, PS_E_PERM, changes[i]);
        change_as(j.w, 0, true, PS_E_PERM, changes[i]);
    }
    change_as(j.w, 8, true, 0,
              (struct ps_msg){
                  .code = PS_MSG_QUERY,
                  .query = {.what = PS_QUERY_REBALANCE_PLAN, .job = "train"}});
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_RUNNING);
    change_as(j.w, 7, false, 0, changes[2]);
    change_as(j.w, 55, false, 0, changes[2]); /* The scheduler's own. */
    change_as(j.w, 0, false, 0, *cancel);
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_FAILED);
    finish_job(&j);
}

/* Opens a job named "train" of one worker of user `uid`; its generation. */
static uint64_t open_train(struct world *w, struct peer *agent, uint64_t worker,
                           uint32_t uid)
{
    struct ps_msg msg = make_job_open(worker, 1, 0, -1);

    msg.job_open.uid = uid;
    deliver_msg(w, agent, msg);
    assert_int_equal(last_job_opened(agent)->error, 0);
    return last_job_opened(agent)->gen;
}

/* Cancels "train", of `owner` if that is not 0, as a tool of user `uid`; an
 * error has `text`. */
static void cancel_train(struct world *w, uint32_t uid, bool by_tcp,
                         uint32_t owner, int rc, const char *text)
{
    struct peer *ctl = peer_new(w, PS_ROLE_CTL, "");

    ctl->uid = uid;
    ctl->by_tcp = by_tcp;
    connect_peer(w, ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_JOB_CANCEL,
                                .job_cancel = {.job = "train",
                                               .has_owner = owner != 0,
                                               .owner = owner}});
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, rc);
    if (rc != 0) {
        expect_substring(last_msg(ctl, PS_MSG_QUERY_END)->query_end.text, text);
    }
    lose_conn(w, ctl);
    drop_inbox(ctl);
    ps_free(ctl->inbox);
    *ctl = (struct peer){0};
    w->peers--;
}

static void users_with_one_job_name_have_two_jobs(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a0");
    uint64_t theirs;
    uint64_t mine;

    (void)state;
    mine = open_train(w, a, 1, 7);
    theirs = open_train(w, a, 2, 8);
    assert_true(mine != theirs);
    assert_int_equal(ps_sched_job_count(w->sched), 2);
    /* Without the owner the name is of no use to others. */
    cancel_train(w, 0, false, 0, PS_E_INVAL,
                 "several users have a job 'train': 7, 8; name one of them, as "
                 "in 8/train");
    cancel_train(w, 7, true, 0, PS_E_INVAL, "several users");
    cancel_train(w, 8, false, 7, PS_E_PERM,
                 "not allowed: job 'train' belongs to user 7; ");
    cancel_train(w, 8, false, 9, PS_E_NOJOB, "no job 'train' of uid 9 is");
    /* The tool's own user is meant first. */
    cancel_train(w, 8, false, 0, 0, NULL);
    assert_int_equal(last_job_state(a)->gen, theirs);
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_FAILED);
    cancel_train(w, 8, false, 0, PS_E_PERM, "belongs to user 7");
    cancel_train(w, 0, false, 7, 0, NULL);
    assert_int_equal(last_job_state(a)->gen, mine);
    deliver_worker_gone(w, a, 0, 1, true);
    deliver_worker_gone(w, a, 0, 2, true);
    end_world(w);
}

/* The newest round of any server decides whether a change came in time. */
static void late_change_is_reported_to_the_operator(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    set_optimizer(&j, 0, 2, "sgd", 0.1, 0.9, false);
    for (uint64_t round = 7; round <= 8; round++) {
        const struct ps_msg_query_end *end;

        drop_inbox(ctl);
        deliver_msg(j.w, ctl,
                    (struct ps_msg){.code = PS_MSG_JOB_SET,
                                    .job_set = {.job = "train",
                                                .name = "lr",
                                                .value = 1,
                                                .round = round}});
        for (uint64_t i = 0; i < 2; i++) {
            const struct ps_msg_job_state *js = last_job_state(j.s[i]);

            assert_null(find_msg(ctl, PS_MSG_QUERY_END));
            deliver_msg(j.w, j.s[i],
                        (struct ps_msg){.code = PS_MSG_JOB_READY,
                                        .job_ready = {.gen = js->gen,
                                                      .version = js->version,
                                                      .round = 7 - i}});
        }
        end = &last_msg(ctl, PS_MSG_QUERY_END)->query_end;
        assert_int_equal(end->error, round == 7 ? PS_E_STALE : 0);
        if (round == 7) {
            expect_substring(end->text, "a key was at round 7 already");
        }
    }
    finish_job(&j);
}

static void set_weight(struct world *w, struct peer *ctl, double weight,
                       uint64_t round)
{
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_JOB_SET,
                                .job_set = {.job = "train",
                                            .name = "weight",
                                            .value = weight,
                                            .round = round}});
}

static uint32_t shown_weight(struct world *w, struct peer *ctl)
{
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_JOBS}});
    return last_msg(ctl, PS_MSG_JOB_ROW)->job_row.weight;
}

static void an_operator_changes_the_weight_of_a_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    uint32_t version = last_job_state(j.s[0])->version;
    struct ps_msg msg;

    (void)state;
    set_weight(j.w, ctl, 300, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(last_job_state(j.s[i])->weight, 300);
        assert_int_equal(last_job_state(j.a[i])->weight, 300);
        assert_int_equal(last_job_state(j.s[i])->version, version + 1);
        assert_null(find_msg(ctl, PS_MSG_QUERY_END));
        /* No round of a key is late for it. */
        deliver_msg(j.w, j.s[i],
                    (struct ps_msg){.code = PS_MSG_JOB_READY,
                                    .job_ready = {.gen = j.gen,
                                                  .version = version + 1,
                                                  .round = 7}});
    }
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    assert_int_equal(shown_weight(j.w, ctl), 300);
    assert_non_null(strstr(j.w->story, "set to weight 300 by an operator at"));
    /* That it has already. */
    set_weight(j.w, ctl, 300, 0);
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    assert_int_equal(last_job_state(j.s[0])->version, version + 1);
    /* A rank that comes back says the weight of the start. */
    deliver_worker_gone(j.w, j.a[1], j.gen, 1, false);
    msg = make_job_open(3, 4, 2, 2);
    msg.job_open.weight = 300;
    deliver_msg(j.w, j.a[1], msg);
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_MISMATCH);
    expect_substring(last_job_opened(j.a[1])->text,
                     "weight 100 for rank 0 on host-a, and rank 2 on "
                     "a1 states 300");
    deliver_msg(j.w, j.a[1], make_job_open(3, 4, 2, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    advance_time(j.w, PS_MILLIS(50));
    assert_int_equal(last_job_state(j.a[1])->weight, 300);
    deliver_worker_gone(j.w, j.a[1], j.gen, 3, true);
    finish_job(&j);
}

static void a_weight_is_a_number_that_holds_at_once(void **state)
{
    static const double wrong[] = {0,     -1, 0.5, 1.5, PS_JOB_WEIGHT_MAX + 1,
                                   1e300, NAN};
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        set_weight(j.w, ctl, wrong[i], 0);
        assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error,
                         PS_E_INVAL);
        expect_substring(last_msg(ctl, PS_MSG_QUERY_END)->query_end.text,
                         "must be a whole number, 1 to 1000");
    }
    set_weight(j.w, ctl, 300, 5);
    expect_substring(last_msg(ctl, PS_MSG_QUERY_END)->query_end.text,
                     "takes effect at once");
    assert_int_equal(shown_weight(j.w, ctl), PS_JOB_WEIGHT_DEFAULT);
    assert_null(strstr(j.w->story, "by an operator"));
    finish_job(&j);
}

static void the_weight_of_a_forming_job_is_that_of_its_start(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct peer *ctl = join_peer(w, PS_ROLE_CTL, "");

    (void)state;
    deliver_msg(w, a, make_job_open(1, 2, 0, -1));
    set_weight(w, ctl, 500, 0);
    assert_int_equal(last_msg(ctl, PS_MSG_QUERY_END)->query_end.error, 0);
    assert_null(find_msg(a, PS_MSG_JOB_STATE));
    assert_int_equal(shown_weight(w, ctl), 500);
    deliver_msg(w, a, make_job_open(2, 2, 0, -1));
    assert_int_equal(last_job_opened(a)->error, 0);
    assert_int_equal(last_job_state(a)->weight, 500);
    deliver_worker_gone(w, a, 0, 1, true);
    deliver_worker_gone(w, a, 0, 2, true);
    end_world(w);
}

static void lost_ranks_are_counted_in_the_job_row(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    const struct ps_msg_job_row *row;

    (void)state;
    send_query(j.w, ctl, PS_QUERY_JOBS, "");
    assert_int_equal(last_msg(ctl, PS_MSG_JOB_ROW)->job_row.ranks_lost, 0);
    deliver_worker_gone(j.w, j.a[0], j.gen, 2, false);
    deliver_worker_gone(j.w, j.a[1], j.gen, 1,
                        true); /* It left: it is not lost. */
    send_query(j.w, ctl, PS_QUERY_JOBS, "");
    row = &last_msg(ctl, PS_MSG_JOB_ROW)->job_row;
    assert_int_equal(row->live_workers, 2);
    assert_int_equal(row->ranks_lost, 1);
    assert_int_equal(row->lost_ranks_count, 1);
    assert_int_equal(row->lost_ranks[0].rank, 1);
    assert_string_equal(row->lost_ranks[0].host, "host-a");
    send_query(j.w, ctl, PS_QUERY_JOBS,
               ""); /* And in the history of the job. */
    finish_job(&j);
}

static void control_connections_of_a_user_are_limited(void **state)
{
    struct world *w = world_new();
    struct peer *p = peer_new(w, PS_ROLE_CTL, "");

    (void)state;
    p->uid = 7;
    for (uint32_t i = 0; i <= PS_CONTROL_USER_MAX; i++) {
        drop_inbox(p);
        connect_peer(w, p);
        assert_true((find_msg(p, PS_MSG_REJECT) != NULL) ==
                    (i == PS_CONTROL_USER_MAX));
        assert_true((find_msg(p, PS_MSG_WELCOME) != NULL) ==
                    (i < PS_CONTROL_USER_MAX));
    }
    expect_substring(last_msg(p, PS_MSG_REJECT)->reject.text,
                     "user 7 has 32 tools");
    for (uint32_t uid = 0; uid < 9; uid += 8) {
        drop_inbox(p);
        p->uid = uid;
        connect_peer(w, p);
        assert_non_null(find_msg(p, PS_MSG_WELCOME));
    }
    end_world(w);
}

static void members_are_rejected_at_the_socket_of_tools(void **state)
{
    struct world *w = world_new();
    struct peer *p = peer_new(w, PS_ROLE_CTL, "ps0");

    (void)state;
    open_peer_conn(w, p);
    p->role = PS_ROLE_SERVER;
    deliver_unsequenced(w, p, make_hello(p));
    assert_int_equal(last_msg(p, PS_MSG_REJECT)->reject.error, PS_E_PERM);
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_registered_once),
        cmocka_unit_test(queries_create_no_keys),
        cmocka_unit_test(classic_placement_numbers_string_keys_in_order),
        cmocka_unit_test(only_partitions_of_a_lost_server_are_reassigned),
        cmocka_unit_test(key_with_the_name_hash_of_another_is_refused),
        cmocka_unit_test(placements_of_many_keys_are_sent_in_slices),
        cmocka_unit_test(a_lost_server_with_weights_fails_the_job),
        cmocka_unit_test(loss_of_the_last_server_fails_the_job),
        cmocka_unit_test(multipliers_change_for_all_servers),
        cmocka_unit_test(recordings_begin_and_end_on_all_servers),
        cmocka_unit_test(recordings_are_read_through_the_scheduler),
        cmocka_unit_test(an_optimizer_is_declared_once),
        cmocka_unit_test(compression_is_declared_before_keys_of_values),
        cmocka_unit_test(compression_after_a_key_of_values_is_refused),
        cmocka_unit_test(norm_covers_all_partitions),
        cmocka_unit_test(global_norm_waits_for_every_key),
        cmocka_unit_test(norms_need_rounds),
        cmocka_unit_test(keys_missing_in_the_global_norm_are_named),
        cmocka_unit_test(barriers_open_when_all_ranks_are_there),
        cmocka_unit_test(missing_ranks_are_named_with_state_and_host),
        cmocka_unit_test(ranks_that_are_cut_off_from_a_server_are_missing),
        cmocka_unit_test(a_round_fails_that_needs_a_rank_that_has_left),
        cmocka_unit_test(
            both_sides_of_ranks_that_wait_for_each_other_are_listed),
        cmocka_unit_test(operators_see_nodes_and_jobs),
        cmocka_unit_test(key_rows_are_sent_as_the_connection_drains),
        cmocka_unit_test(operators_see_the_plan_of_a_rebalance),
        cmocka_unit_test(migrations_end_with_their_job),
        cmocka_unit_test(a_plan_without_memory_is_refused),
        cmocka_unit_test(a_move_before_a_loss_has_its_own_epoch),
        cmocka_unit_test(a_move_ends_when_a_server_of_it_is_lost),
        cmocka_unit_test(a_move_that_the_source_cannot_make_is_given_up),
        cmocka_unit_test(moves_are_repeated_on_a_fresh_link),
        cmocka_unit_test(older_servers_move_no_partitions),
        cmocka_unit_test(
            a_move_begins_when_both_servers_know_the_state_of_the_job),
        cmocka_unit_test(plan_has_a_row_for_each_pair_of_servers),
        cmocka_unit_test(bytes_of_a_moved_partition_count_at_its_owner),
        cmocka_unit_test(lost_server_gets_no_partition_until_it_restarts),
        cmocka_unit_test(operators_see_the_waits_of_a_job),
        cmocka_unit_test(ranks_that_wait_for_each_other_fail),
        cmocka_unit_test(a_ring_needs_every_rank_to_stand_still),
        cmocka_unit_test(a_rank_that_goes_on_ends_the_ring),
        cmocka_unit_test(a_ring_that_has_ended_is_shown_no_longer),
        cmocka_unit_test(quiet_ranks_fail_only_after_the_whole_time),
        cmocka_unit_test(cancelled_job_frees_its_memory),
        cmocka_unit_test(jobs_are_changed_by_their_owners),
        cmocka_unit_test(users_with_one_job_name_have_two_jobs),
        cmocka_unit_test(late_change_is_reported_to_the_operator),
        cmocka_unit_test(an_operator_changes_the_weight_of_a_job),
        cmocka_unit_test(a_weight_is_a_number_that_holds_at_once),
        cmocka_unit_test(the_weight_of_a_forming_job_is_that_of_its_start),
        cmocka_unit_test(lost_ranks_are_counted_in_the_job_row),
        cmocka_unit_test(control_connections_of_a_user_are_limited),
        cmocka_unit_test(members_are_rejected_at_the_socket_of_tools),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
