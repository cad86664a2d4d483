/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: members, the start of jobs, losses, and hostile
 * messages. */
#include "sched_world.h"

#include "base/name_hash.h"

/* ------------------------------------------------------------------ start */

static void ranks_do_not_depend_on_the_start_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct world *w = world_new();
        struct peer *p[5];
        struct ps_rng rng;
        struct {
            uint32_t agent;
            uint64_t worker;
            int32_t rank;
        } come[6] = {{2, 1, -1}, {2, 2, -1}, {3, 1, -1},
                     {3, 2, 0},  {4, 1, -1}, {4, 2, 4}};
        uint32_t order[5] = {0, 1, 2, 3, 4};

        print_message("# seed %d\n", (int)seed);
        ps_rng_init(&rng, seed);
        p[0] = peer_new(w, PS_ROLE_SERVER, "s0");
        p[1] = peer_new(w, PS_ROLE_SERVER, "s1");
        p[2] = peer_new(w, PS_ROLE_AGENT, "ab");
        p[3] = peer_new(w, PS_ROLE_AGENT, "aa");
        p[4] = peer_new(w, PS_ROLE_AGENT, "ac");
        for (uint32_t i = 4; i > 0; i--) {
            uint32_t k = (uint32_t)ps_rng_below(&rng, i + 1);
            uint32_t t = order[i];

            order[i] = order[k];
            order[k] = t;
        }
        for (uint32_t i = 0; i < 5; i++) {
            struct peer *q = p[order[i]];

            connect_peer(w, q);
            for (uint32_t k = 6; q->role == PS_ROLE_AGENT && k > 0; k--) {
                /* Second workers first, even. */
                if (come[k - 1].agent == order[i]) {
                    deliver_msg(w, q,
                                make_job_open(come[k - 1].worker, 6, 2,
                                              come[k - 1].rank));
                    assert_int_equal(last_job_opened(q)->error, 0);
                }
            }
        }
        deliver_job_ready(w, p[0]);
        deliver_job_ready(w, p[1]);
        /* 0 and 4 are requested; the others go to aa, ab, ab, ac. */
        const struct ps_msg_job_state *js = last_job_state(p[2]);
        const char *const agents[6] = {"aa", "aa", "ab", "ab", "ac", "ac"};
        const uint64_t workers[6] = {2, 1, 1, 2, 2, 1};

        assert_int_equal(js->phase, PS_JOB_PHASE_RUNNING);
        assert_int_equal(js->slots_count, 3);
        assert_int_equal(js->ranks_count, 6);
        for (uint32_t r = 0; r < 6; r++) {
            const struct ps_rec_rank *rank = &js->ranks[r];
            struct peer *q = agents[r][1] == 'b'   ? p[2]
                             : agents[r][1] == 'a' ? p[3]
                                                   : p[4];

            assert_int_equal(rank->rank, r);
            assert_int_equal(js->slots[rank->slot].node, q->node);
            assert_int_equal(rank->slot, r / 2);
            assert_int_equal(rank->local_rank, r % 2);
            assert_int_equal(rank->worker, workers[r]);
            assert_int_equal(rank->state, PS_RANK_STATE_LIVE);
        }
        assert_int_equal(last_job_state(p[0])->ranks_count, 0);
        assert_int_equal(last_job_state(p[0])->slots_count, 3);
        for (uint32_t i = 0; i < 6; i++) {
            deliver_worker_gone(w, p[come[i].agent], last_job_opened(p[2])->gen,
                                come[i].worker, true);
        }
        assert_int_equal(last_job_state(p[4])->phase, PS_JOB_PHASE_ENDED);
        assert_int_equal(last_job_state(p[0])->phase, PS_JOB_PHASE_ENDED);
        end_world(w);
    }
}

static void a_job_without_servers_runs_on_one_node(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct peer *b = join_peer(w, PS_ROLE_AGENT, "b");

    (void)state;
    deliver_msg(w, a, make_job_open(1, 2, 0, -1));
    deliver_msg(w, b, make_job_open(1, 2, 0, -1));
    assert_int_equal(last_job_opened(b)->error, PS_E_MISMATCH);
    /* The first worker would wait for that one. */
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(a)->reason,
                     "no servers, so all its workers must be on a");
    deliver_worker_gone(w, a, 0, 1, true);
    deliver_msg(w, a, make_job_open(1, 2, 0, -1));
    deliver_msg(w, a, make_job_open(2, 2, 0, -1));
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_RUNNING);
    open_key(w, a, last_job_opened(a)->gen, 5, "x", 100);
    const struct ps_msg *msg = last_msg(a, PS_MSG_KEY_OPENED);

    assert_int_equal(msg->key_opened.error, 0);
    assert_int_equal(msg->key_opened.parts, 1);
    deliver_worker_gone(w, a, 0, 1, true);
    deliver_worker_gone(w, a, 0, 2, true);
    end_world(w);
}

static void incomplete_job_names_missing_ranks_and_servers(void **s)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");

    (void)s;
    join_peer(w, PS_ROLE_SERVER, "s0");
    for (int32_t r = 0; r < 4; r++) {
        if (r != 2) {
            deliver_msg(w, a, make_job_open(10 + (uint64_t)r, 4, 2, r));
        }
    }
    assert_null(find_msg(a, PS_MSG_JOB_STATE));
    advance_time(w, PS_SECONDS(59));
    assert_null(find_msg(a, PS_MSG_JOB_STATE));
    advance_time(w, PS_SECONDS(2));
    const struct ps_msg_job_state *js = last_job_state(a);

    assert_int_equal(js->phase, PS_JOB_PHASE_FAILED);
    expect_substring(js->reason, "have 3/4 workers; missing: rank 2;");
    expect_substring(js->reason, "have 1/2 servers");
    expect_substring(js->reason, "60 s");
    /* Its name is free at once. */
    deliver_msg(w, a, make_job_open(20, 1, 1, -1));
    assert_int_equal(last_job_opened(a)->error, 0);
    assert_true(last_job_opened(a)->gen > js->gen);
    deliver_worker_gone(w, a, js->gen, 10, false);
    deliver_worker_gone(w, a, js->gen, 11, false);
    deliver_worker_gone(w, a, js->gen, 13, false);
    deliver_worker_gone(w, a, 0, 20, true);
    end_world(w);
}

static void missing_ranks_are_named_as_ranges(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct ps_msg msg = make_job_open(1, 100, 0, 50);

    (void)state;
    msg.job_open.start_timeout_ns = PS_SECONDS(5);
    deliver_msg(w, a, msg);
    msg.job_open.worker = 2;
    msg.job_open.rank = -1;
    deliver_msg(w, a, msg);
    advance_time(w, PS_SECONDS(6));
    expect_substring(last_job_state(a)->reason,
                     "have 2/100 workers; missing: ranks "
                     "1-49,51-99");
    expect_substring(last_job_state(a)->reason, "after 5 s");
    deliver_worker_gone(w, a, 0, 1, true);
    deliver_worker_gone(w, a, 0, 2, true);
    end_world(w);
}

static void servers_that_are_not_ready_fail_the_start(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");
    struct peer *t = join_peer(w, PS_ROLE_SERVER, "s1");
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");

    (void)state;
    deliver_msg(w, a, make_job_open(1, 1, 2, -1));
    deliver_job_ready(w, s);
    /* An acknowledgement of a version never sent is ignored. */
    deliver_msg(w, t,
                (struct ps_msg){.code = PS_MSG_JOB_READY,
                                .job_ready = {.gen = last_job_opened(a)->gen,
                                              .version = 99}});
    advance_time(w, PS_SECONDS(61));
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(a)->reason, "server s1");
    assert_null(strstr(last_job_state(a)->reason, "s0"));
    deliver_worker_gone(w, a, 0, 1, false);
    end_world(w);
}

static void jobs_wait_for_servers(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct peer *s;

    (void)state;
    deliver_msg(w, a, make_job_open(1, 1, 1, -1));
    assert_null(find_msg(a, PS_MSG_JOB_STATE));
    s = join_peer(w, PS_ROLE_SERVER, "s");
    assert_int_equal(last_job_state(s)->phase, PS_JOB_PHASE_STARTING);
    deliver_job_ready(w, s);
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_RUNNING);
    deliver_worker_gone(w, a, 0, 1, true);
    end_world(w);
}

/* ----------------------------------------------------------- declarations */

/* Both the worker that is there and the one that joins get the error. */
static void options_of_workers_must_agree(void **state)
{
    static const char *const words[] = {
        "num_workers 4 for rank 1 on a, and a worker on b states 8",
        "num_servers 2 for rank 1 on a, and a worker on b states 1",
        "mode sync for rank 1 on a, and a worker on b states async",
        "on_loss wait for rank 1 on a, and a worker on b states fail",
        "partition_bytes 1048576 for rank 1 on a, and a worker on b states "
        "8192",
        "weight 100 for rank 1 on a, and a worker on b states 300"};

    (void)state;
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct world *w = world_new();
        struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
        struct peer *b = join_peer(w, PS_ROLE_AGENT, "b");
        struct ps_msg msg = make_job_open(2, i == 0 ? 8 : 4, i == 1 ? 1 : 2,
                                          -1);

        msg.job_open.mode = i == 2 ? PS_MODE_ASYNC : PS_MODE_SYNC;
        msg.job_open.on_loss = i == 3 ? PS_LOSS_POLICY_FAIL
                                      : PS_LOSS_POLICY_WAIT;
        msg.job_open.partition_bytes = i == 4 ? 8192 : 0;
        msg.job_open.weight = i == 5 ? 300 : 0;
        deliver_msg(w, a, make_job_open(1, 4, 2, 1));
        deliver_msg(w, b, msg);
        assert_int_equal(last_job_opened(b)->error, PS_E_MISMATCH);
        expect_substring(last_job_opened(b)->text, words[i]);
        assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_FAILED);
        expect_substring(last_job_state(a)->reason, words[i]);
        deliver_worker_gone(w, a, 0, 1, true);
        end_world(w);
    }
}

/* A job that runs has all its workers, and none waits for another one. */
static void a_stray_worker_does_not_end_a_job_that_runs(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    deliver_msg(j.w, j.a[0], make_job_open(9, 8, 2, -1));
    assert_int_equal(last_job_opened(j.a[0])->error, PS_E_MISMATCH);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    finish_job(&j);
}

static void opens_key_as(struct job *j, int agent, uint32_t rank,
                         uint64_t request, uint64_t count)
{
    open_kind(
        j->w, j->a[agent], j->gen,
        &(struct ps_msg_key_open){
            .request = request, .name = "w", .count = count, .rank = rank});
}

static const struct ps_msg_disagreement *last_disagreement(const struct peer *p)
{
    return &last_msg(p, PS_MSG_DISAGREEMENT)->disagreement;
}

static void agents_hear_that_a_key_was_declared_otherwise(void **state)
{
    static const char text[] =
        "key 'w' is float32 with 4 elements for rank 3 on host-b, and float32 "
        "with 2 elements for rank 0 on host-a: all ranks must declare the same";
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_disagreement *m;

    (void)state;
    opens_key_as(&j, 1, 3, 1, 4);
    opens_key_as(&j, 0, 0, 2, 2);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error,
                     PS_E_MISMATCH);
    assert_string_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.text,
                        text);
    assert_null(find_msg(j.a[0], PS_MSG_DISAGREEMENT));
    m = last_disagreement(j.a[1]);
    assert_string_equal(m->name, "w");
    assert_string_equal(m->text, text);
    assert_int_equal(m->number, 1);
    /* The same again is nothing new. */
    opens_key_as(&j, 0, 0, 3, 2);
    assert_int_equal(last_disagreement(j.a[1])->number, 1);
    /* The rank declares what the others have. */
    opens_key_as(&j, 0, 0, 4, 4);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error, 0);
    assert_int_equal(last_disagreement(j.a[1])->number, 2);
    assert_string_equal(last_disagreement(j.a[1])->text, "");
    assert_null(find_msg(j.a[0], PS_MSG_DISAGREEMENT));
    finish_job(&j);
}

/* An agent whose own ranks disagree reports it; agents that have the key open
 * now or later hear it. */
static void an_agent_reports_that_its_ranks_disagree(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg msg = {
        .code = PS_MSG_DISAGREEMENT,
        .disagreement = {
            .gen = j.gen, .number = 1, .name = "w", .text = "0 and 1"}};

    (void)state;
    opens_key_as(&j, 0, 0, 1, 4);
    deliver_msg(j.w, j.a[0], msg);
    assert_null(find_msg(j.a[0], PS_MSG_DISAGREEMENT));
    assert_null(find_msg(j.a[1], PS_MSG_DISAGREEMENT));
    opens_key_as(&j, 1, 2, 1, 4);
    assert_string_equal(last_disagreement(j.a[1])->text, "0 and 1");
    msg.disagreement.text = "";
    msg.disagreement.number = 3;
    deliver_msg(j.w, j.a[0], msg);
    assert_string_equal(last_disagreement(j.a[1])->text, "");
    assert_null(find_msg(j.a[0], PS_MSG_DISAGREEMENT));
    msg.disagreement.text = "late";
    msg.disagreement.number = 2;
    deliver_msg(j.w, j.a[0], msg);
    assert_string_equal(last_disagreement(j.a[1])->text, "");
    msg.disagreement.number = 4;
    /* Of a key that there is not, or of another one's job. */
    msg.disagreement.text = "x";
    msg.disagreement.name = "v";
    deliver_msg(j.w, j.a[0], msg);
    msg.disagreement.gen++;
    deliver_msg(j.w, j.a[0], msg);
    assert_string_equal(last_disagreement(j.a[1])->text, "");
    finish_job(&j);
}

/* Optimizer and compression hold for the whole job: all agents hear it, that of
 * the refused rank too, which may have others. */
static void agents_hear_that_an_optimizer_was_declared_otherwise(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_rec_param p = {.name = "lr", .value = 0.5};
    struct ps_msg msg = {.code = PS_MSG_OPTIMIZER_SET,
                         .optimizer_set = {.gen = j.gen,
                                           .request = 1,
                                           .name = "sgd",
                                           .params = &p,
                                           .params_count = 1,
                                           .rank = 2}};

    (void)state;
    deliver_msg(j.w, j.a[1], msg);
    p.value = 0.25;
    msg.optimizer_set.rank = 0;
    deliver_msg(j.w, j.a[0], msg);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error,
        PS_E_MISMATCH);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(last_disagreement(j.a[i])->name, "");
        expect_substring(last_disagreement(j.a[i])->text,
                         "sgd(lr=0.5), declared by rank 2 on host-b, and rank "
                         "0 on host-a declares sgd(lr=0.25)");
    }
    p.value = 0.5;
    deliver_msg(j.w, j.a[0], msg);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(last_disagreement(j.a[i])->text, "");
        assert_int_equal(last_disagreement(j.a[i])->number, 2);
    }
    finish_job(&j);
}

static void agents_hear_that_a_compression_was_declared_otherwise(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg msg = {
        .code = PS_MSG_COMPRESSION_SET,
        .compression_set = {
            .gen = j.gen, .request = 1, .name = "fp16", .rank = 2}};

    (void)state;
    deliver_msg(j.w, j.a[1], msg);
    msg.compression_set.name = "bf16";
    msg.compression_set.rank = 0;
    deliver_msg(j.w, j.a[0], msg);
    expect_substring(last_disagreement(j.a[1])->text,
                     "fp16(), declared by rank 2 on host-b, and rank 0 on "
                     "host-a declares bf16()");
    finish_job(&j);
}

static void job_open_must_make_sense(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct ps_msg msg = make_job_open(2, 4, 2, -1);

    (void)state;
    deliver_msg(w, a, make_job_open(1, 4, 2, 1));
    msg.job_open.weight = PS_JOB_WEIGHT_MAX + 1;
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    deliver_msg(w, a, make_job_open(2, 4, 2, 1));
    assert_int_equal(last_job_opened(a)->error, PS_E_EXIST);
    deliver_msg(w, a, make_job_open(2, 4, 2, 4));
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    msg = make_job_open(2, 4, 2, -1);
    msg.job_open.name = "two words";
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    deliver_msg(w, a, make_job_open(2, 0, 2, -1));
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    deliver_msg(w, a, make_job_open(2, PS_RANKS_MAX + 1, 2, -1));
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    /* None of these took part. */
    deliver_worker_gone(w, a, 0, 1, true);
    end_world(w);
}

static void repeated_job_open_has_no_further_effect(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    uint64_t gen;

    (void)state;
    deliver_msg(w, a, make_job_open(1, 2, 0, -1));
    gen = last_job_opened(a)->gen;
    deliver_msg(w, a, make_job_open(1, 2, 0, -1));
    assert_int_equal(last_job_opened(a)->error, 0);
    assert_int_equal(last_job_opened(a)->gen, gen);
    assert_null(find_msg(a, PS_MSG_JOB_STATE)); /* Still one of two. */
    deliver_msg(w, a, make_job_open(2, 2, 0, -1));
    assert_int_equal(last_job_state(a)->ranks_count, 2);
    deliver_msg(w, a, make_job_open(2, 2, 0, -1));
    assert_int_equal(last_job_opened(a)->error, 0);
    deliver_msg(w, a, make_job_open(3, 2, 0, -1));
    assert_int_equal(last_job_opened(a)->error, PS_E_FULL);
    deliver_worker_gone(w, a, gen, 1, true);
    deliver_worker_gone(w, a, gen, 2, true);
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_ENDED);
    /* Offered again after the end of the job. */
    struct ps_msg msg = make_job_open(2, 2, 0, -1);

    msg.job_open.gen = gen;
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_NOJOB);
    msg.job_open.gen = 12345;
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_NOJOB);
    end_world(w);
}

static void worker_gone_before_its_job_open_counts(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct ps_msg msg = {.code = PS_MSG_WORKER_GONE,
                         .seq = 2,
                         .worker_gone = {.worker = 5, .text = ""}};

    (void)state;
    deliver_unsequenced(w, a, msg);
    msg = make_job_open(5, 1, 0, -1);
    msg.seq = 1;
    deliver_unsequenced(w, a, msg);
    a->sent = 2;
    assert_int_equal(last_job_opened(a)->error, PS_E_CLOSED);
    assert_int_equal(ps_sched_job_count(w->sched), 0);
    deliver_msg(w, a, make_job_open(6, 1, 0, -1));
    assert_int_equal(last_job_opened(a)->error, 0);
    deliver_worker_gone(w, a, 0, 6, true);
    end_world(w);
}

/* ----------------------------------------------------------------- losses */

static void lost_rank_can_be_taken_by_a_new_worker(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    uint32_t version = last_job_state(j.a[0])->version;

    (void)state;
    deliver_worker_gone(j.w, j.a[1], j.gen, 1, false);
    advance_time(j.w, PS_MILLIS(50));
    assert_true(last_job_state(j.a[0])->version > version);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    assert_int_equal(last_job_state(j.a[0])->ranks[2].state,
                     PS_RANK_STATE_LOST);
    /* A live one cannot be taken, nor this one from elsewhere. */
    deliver_msg(j.w, j.a[1], make_job_open(3, 4, 2, 3));
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_EXIST);
    deliver_msg(j.w, j.a[0], make_job_open(3, 4, 2, 2));
    assert_int_equal(last_job_opened(j.a[0])->error, PS_E_REFUSED);
    expect_substring(last_job_opened(j.a[0])->text, "a1");
    deliver_msg(j.w, j.a[0], make_job_open(3, 4, 2, -1));
    assert_int_equal(last_job_opened(j.a[0])->error, PS_E_FULL);
    deliver_msg(j.w, j.a[1], make_job_open(3, 4, 2, -1));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    advance_time(j.w, PS_MILLIS(50));
    assert_int_equal(last_job_state(j.a[0])->ranks[2].state,
                     PS_RANK_STATE_LIVE);
    assert_int_equal(last_job_state(j.a[0])->ranks[2].worker, 3);
    assert_int_equal(last_job_state(j.a[0])->ranks[2].incarnation, 2);
    assert_int_equal(last_job_state(j.a[0])->ranks[2].slot, 1);
    deliver_worker_gone(j.w, j.a[1], j.gen, 3, true);
    finish_job(&j);
}

/* Agents dial while the scheduler is stopped, and are read when it runs again. */
static void suspension_of_the_scheduler_extends_the_grace(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, false);
    }
    advance_time(j.w, PS_SECONDS(10));
    j.w->now += PS_SECONDS(40);
    advance_time(j.w, PS_SECONDS(1));
    deliver_msg(j.w, j.a[0], make_job_open(7, 4, 2, 0));
    assert_int_equal(last_job_opened(j.a[0])->error, 0);
    deliver_worker_gone(j.w, j.a[0], j.gen, 7, false);
    advance_time(j.w, PS_SECONDS(31));
    finish_job(&j);
}

static void job_without_a_live_rank_ends_after_a_grace(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, false);
    }
    advance_time(j.w, PS_SECONDS(29));
    assert_int_equal(ps_sched_job_count(j.w->sched), 1);
    /* A worker returns: the job does not end. */
    deliver_msg(j.w, j.a[0], make_job_open(7, 4, 2, 0));
    assert_int_equal(last_job_opened(j.a[0])->error, 0);
    advance_time(j.w, PS_SECONDS(40));
    assert_int_equal(ps_sched_job_count(j.w->sched), 1);
    deliver_worker_gone(j.w, j.a[0], j.gen, 7, false);
    advance_time(j.w, PS_SECONDS(31));
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_ENDED);
    expect_substring(last_job_state(j.a[1])->reason, "no live worker for 30 s");
    end_world(j.w);
}

static void policy_fail_names_rank_and_host(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    deliver_worker_gone(j.w, j.a[1], j.gen, 2, false);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(last_job_state(j.a[i])->phase, PS_JOB_PHASE_FAILED);
        assert_int_equal(last_job_state(j.s[i])->phase, PS_JOB_PHASE_FAILED);
        expect_substring(last_job_state(j.a[i])->reason,
                         "rank 3 on a1 was lost");
        expect_substring(last_job_state(j.a[i])->reason, "killed");
    }
    open_key(j.w, j.a[0], j.gen, 9, "w", 10);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error,
                     PS_E_JOBFAILED);
    /* A group of its ranks ends with the same reason. */
    struct ps_msg group = make_job_open(50, 2, 0, -1);

    group.job_open.name = "train/g";
    deliver_msg(j.w, j.a[0], group);
    assert_int_equal(last_job_opened(j.a[0])->error, PS_E_PEERLOST);
    expect_substring(last_job_opened(j.a[0])->text, "rank 3 on a1 was lost");
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    deliver_worker_gone(j.w, j.a[0], j.gen, 2, false);
    assert_int_equal(last_job_state(j.s[0])->phase, PS_JOB_PHASE_FAILED);
    deliver_worker_gone(j.w, j.a[1], j.gen, 1, false);
    assert_int_equal(last_job_state(j.s[0])->phase, PS_JOB_PHASE_ENDED);
    expect_substring(last_job_state(j.a[0])->reason, "rank 3");
    end_world(j.w);
}

/* A group that waits for members when its job fails or ends: none can come. */
static void a_forming_group_ends_with_its_job(void **state)
{
    (void)state;
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        struct job j = start_job(PS_LOSS_POLICY_FAIL);
        struct ps_msg group = make_job_open(50, 4, 2, -1);
        uint64_t i = 0;

        group.job_open.name = "train/g";
        deliver_msg(j.w, j.a[0], group);
        assert_int_equal(last_job_opened(j.a[0])->error, 0);
        while (i < (is_lost ? 1 : 4)) {
            deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, !is_lost);
            i++;
        }
        assert_int_equal(last_job_state(j.a[0])->gen,
                         last_job_opened(j.a[0])->gen);
        assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
        expect_substring(last_job_state(j.a[0])->reason,
                         is_lost ? "rank 0 on a0 was lost"
                                 : "the job of which it is a group has ended");
        deliver_worker_gone(j.w, j.a[0], last_job_opened(j.a[0])->gen, 50,
                            true);
        for (; i < 4; i++) {
            deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, true);
        }
        end_world(j.w);
    }
}

/* The groups of a job go on when a former job of its name ends. */
static void a_group_outlives_a_former_job_of_the_name(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);
    struct ps_msg again = make_job_open(40, 2, 2, -1);
    struct ps_msg group = make_job_open(50, 2, 2, -1);
    uint64_t gen;

    (void)state;
    deliver_worker_gone(j.w, j.a[1], j.gen, 2, false);
    deliver_msg(j.w, j.a[0], again);
    gen = last_job_opened(j.a[0])->gen;
    group.job_open.name = "train/g";
    deliver_msg(j.w, j.a[0], group);
    assert_int_equal(last_job_opened(j.a[0])->error, 0);
    for (uint64_t i = 0; i < 3; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, true);
    }
    assert_int_equal(last_job_state(j.s[0])->phase, PS_JOB_PHASE_ENDED);
    group.job_open.worker = 51;
    deliver_msg(j.w, j.a[0], group);
    assert_int_equal(last_job_opened(j.a[0])->error, 0);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_STARTING);
    deliver_worker_gone(j.w, j.a[0], gen, 40, true);
    gen = last_job_opened(j.a[0])->gen;
    deliver_worker_gone(j.w, j.a[0], gen, 50, true);
    deliver_worker_gone(j.w, j.a[0], gen, 51, true);
    end_world(j.w);
}

/* A message that names an ended job is refused with the reason of that job. */
static void messages_of_an_ended_job_get_its_reason(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct ps_msg msg = make_job_open(1, 2, 0, -1);
    const struct ps_msg_key_opened *m;
    uint64_t gen[2];

    (void)state;
    msg.job_open.on_loss = PS_LOSS_POLICY_FAIL;
    msg.job_open.host = "h";
    deliver_msg(w, a, msg);
    msg.job_open.worker = 2;
    deliver_msg(w, a, msg);
    gen[0] = last_job_opened(a)->gen;
    deliver_worker_gone(w, a, gen[0], 2, false);
    deliver_worker_gone(w, a, gen[0], 1, true);
    deliver_msg(w, a, make_job_open(3, 1, 0, -1));
    gen[1] = last_job_opened(a)->gen;
    deliver_worker_gone(w, a, gen[1], 3, true);
    assert_int_equal(ps_sched_job_count(w->sched), 0);

    open_key(w, a, gen[0], 1, "w", 10);
    m = &last_msg(a, PS_MSG_KEY_OPENED)->key_opened;
    assert_int_equal(m->error, PS_E_JOBFAILED);
    expect_substring(m->text, "rank 1 on a was lost");
    open_key(w, a, gen[1], 2, "w", 10);
    m = &last_msg(a, PS_MSG_KEY_OPENED)->key_opened;
    assert_int_equal(m->error, PS_E_NOJOB);
    assert_string_equal(m->text, "job train has ended");
    open_key(w, a, gen[1] + 1, 3, "w", 10);
    m = &last_msg(a, PS_MSG_KEY_OPENED)->key_opened;
    assert_int_equal(m->error, PS_E_NOJOB);
    expect_substring(m->text, "ended long ago");
    end_world(w);
}

static void a_silent_agent_loses_its_ranks(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    ps_time from = j.w->now;

    (void)state;
    j.a[1]->mute = true;
    advance_time(j.w, PS_MILLIS(600));
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_SUSPECT),
        1);
    j.a[1]->mute = false;
    advance_time(j.w, PS_MILLIS(200));
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_ACTIVE),
        2);
    j.a[1]->mute = true;
    advance_time(j.w, PS_SECONDS(3));
    assert_true(j.w->now - from < PS_SECONDS(4));
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_GONE),
        1);
    assert_int_equal(last_job_state(j.a[0])->ranks[2].state,
                     PS_RANK_STATE_LOST);
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LOST);
    expect_substring(j.w->story, "ranks 2-3 on a1 were lost: agent a1 is gone");
    /* It was only asleep: the same process offers its workers again. */
    j.a[1]->mute = false;
    connect_peer(j.w, j.a[1]);
    assert_false(last_msg(j.a[1], PS_MSG_WELCOME)->welcome.resumed);
    assert_int_equal(last_msg(j.a[1], PS_MSG_WELCOME)->welcome.incarnation, 1);
    for (uint64_t i = 1; i <= 2; i++) {
        struct ps_msg msg = make_job_open(i, 4, 2, -1);

        msg.job_open.gen = j.gen;
        deliver_msg(j.w, j.a[1], msg);
        assert_int_equal(last_job_opened(j.a[1])->error, 0);
    }
    advance_time(j.w, PS_SECONDS(5));
    assert_int_equal(last_job_state(j.a[0])->ranks[2].state,
                     PS_RANK_STATE_LIVE);
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LIVE);
    finish_job(&j);
}

static uint32_t count_gone(const struct world *w, enum ps_role role)
{
    return ps_sched_member_count(w->sched, role, PS_NODE_STATE_GONE);
}

static void gone_members_are_forgotten_unless_a_job_names_them(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *spare = join_peer(j.w, PS_ROLE_SERVER, "spare");
    uint32_t node = spare->node;

    (void)state;
    lose_conn(j.w, spare);
    lose_conn(j.w, j.a[1]);
    advance_time(j.w, PS_SECONDS(290));
    assert_int_equal(count_gone(j.w, PS_ROLE_SERVER), 1);
    assert_int_equal(count_gone(j.w, PS_ROLE_AGENT), 1);
    advance_time(j.w, PS_SECONDS(20));
    assert_int_equal(count_gone(j.w, PS_ROLE_SERVER), 0);
    assert_int_equal(count_gone(j.w, PS_ROLE_AGENT), 1);
    expect_substring(j.w->story, "server spare is forgotten");
    /* It may return; no other member got its number. */
    connect_peer(j.w, spare);
    assert_int_not_equal(spare->node, node);
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, true);
    deliver_worker_gone(j.w, j.a[0], j.gen, 2, true);
    advance_time(j.w, PS_SECONDS(400));
    assert_int_equal(count_gone(j.w, PS_ROLE_AGENT), 0);
    end_world(j.w);
}

static void a_new_process_replaces_the_old_one(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *b = peer_new(j.w, PS_ROLE_AGENT, "a1");
    uint32_t node = j.a[1]->node;

    (void)state;
    /* Not as long as that one lives. */
    connect_peer(j.w, b);
    assert_int_equal(last_msg(b, PS_MSG_REJECT)->reject.error, PS_E_EXIST);
    expect_substring(last_msg(b, PS_MSG_REJECT)->reject.text,
                     "the name 'a1' is that of a running process at test");
    assert_int_equal(b->conn, 0);
    assert_true(j.a[1]->conn != 0);
    j.a[1]->mute = true;
    advance_time(j.w, PS_SECONDS(1));
    connect_peer(j.w, b);
    assert_int_equal(j.a[1]->conn, 0); /* Closed. */
    assert_int_equal(b->node, node);
    assert_int_equal(last_msg(b, PS_MSG_WELCOME)->welcome.incarnation, 2);
    advance_time(j.w, PS_MILLIS(50));
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LOST);
    /* The old process is rejected. */
    connect_peer(j.w, j.a[1]);
    assert_int_equal(last_msg(j.a[1], PS_MSG_REJECT)->reject.error, PS_E_EXIST);
    expect_substring(last_msg(j.a[1], PS_MSG_REJECT)->reject.text, "'a1'");
    assert_int_equal(j.a[1]->conn, 0);
    /* Its workers, restarted, take the ranks. */
    deliver_msg(j.w, b, make_job_open(1, 4, 2, -1));
    assert_int_equal(last_job_opened(b)->error, 0);
    advance_time(j.w, PS_MILLIS(50));
    assert_int_equal(last_job_state(j.a[0])->ranks[2].state,
                     PS_RANK_STATE_LIVE);
    assert_int_equal(last_job_state(j.a[0])->slots[1].incarnation, 2);
    assert_int_equal(last_job_state(j.a[0])->slots[1].node, node);
    deliver_worker_gone(j.w, b, j.gen, 1, true);
    deliver_msg(j.w, b, make_job_open(2, 4, 2, 3));
    deliver_worker_gone(j.w, b, j.gen, 2, true);
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, true);
    deliver_worker_gone(j.w, j.a[0], j.gen, 2, true);
    end_world(j.w);
}

/* ------------------------------------------------------------------ links */

static void invalid_hellos_are_rejected(void **state)
{
    struct world *w = world_new();
    struct peer *p = peer_new(w, PS_ROLE_SERVER, "s0");
    struct {
        int rc;
        const char *text;
    } cases[] = {{PS_E_VERSION, "protocol"}, {PS_E_MISMATCH, "cluster 'c'"},
                 {PS_E_INVAL, "role"},       {PS_E_INVAL, "name"},
                 {PS_E_INVAL, "instance"},   {PS_E_INVAL, "address"}};

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct ps_msg msg = make_hello(p);

        msg.hello.protocol_least = i == 0 ? PS_PROTOCOL + 1 : 1;
        msg.hello.protocol = i == 0 ? PS_PROTOCOL + 3 : PS_PROTOCOL;
        msg.hello.cluster = i == 1 ? "other" : "c";
        msg.hello.role = i == 2 ? PS_ROLE_WORKER : PS_ROLE_SERVER;
        msg.hello.name = i == 3 ? "" : "s0";
        msg.hello.instance = i == 4 ? 0 : 1;
        msg.hello.address = i == 5 ? "" : "h:1";
        open_peer_conn(w, p);
        drop_inbox(p);
        deliver_unsequenced(w, p, msg);
        assert_int_equal(last_msg(p, PS_MSG_REJECT)->reject.error, cases[i].rc);
        expect_substring(last_msg(p, PS_MSG_REJECT)->reject.text,
                         cases[i].text);
        assert_int_equal(p->conn, 0);
    }
    /* Nothing at all, or something else first. */
    open_peer_conn(w, p);
    p->mute = true;
    advance_time(w, PS_SECONDS(4));
    assert_true(p->conn != 0);
    advance_time(w, PS_SECONDS(2));
    assert_int_equal(p->conn, 0);
    p->mute = false;
    open_peer_conn(w, p);
    deliver_unsequenced(w, p, (struct ps_msg){.code = PS_MSG_PING});
    assert_int_equal(p->conn, 0);
    /* A message that its role does not send. */
    connect_peer(w, p);
    assert_true(p->conn != 0);
    deliver_msg(w, p, make_job_open(1, 1, 0, -1));
    assert_int_equal(p->conn, 0);
    assert_int_equal(
        ps_sched_member_count(w->sched, PS_ROLE_SERVER, PS_NODE_STATE_SUSPECT),
        1);
    end_world(w);
}

static void cut_link_resumes_with_its_messages(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *a = j.a[1];

    (void)state;
    advance_time(j.w, PS_MILLIS(200));
    lose_conn(j.w, a);
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_SUSPECT),
        1);
    deliver_barrier_enter(j.w, j.a[0], j.gen, 1, (const uint32_t[]){0, 1}, 2);
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    advance_time(j.w, PS_MILLIS(500));
    drop_inbox(a);
    connect_peer(j.w, a);
    assert_true(last_msg(a, PS_MSG_WELCOME)->welcome.resumed);
    assert_int_equal(last_msg(a, PS_MSG_WELCOME)->welcome.received, a->sent);
    /* Missed messages arrive now. */
    assert_int_equal(last_job_state(a)->ranks[0].state, PS_RANK_STATE_LOST);
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_ACTIVE),
        2);
    finish_job(&j);
}

static void a_welcome_that_was_lost_is_not_resumed(void **state)
{
    struct world *w = world_new();
    struct peer *a = peer_new(w, PS_ROLE_AGENT, "a");

    (void)state;
    connect_peer(w, a);
    assert_false(last_msg(a, PS_MSG_WELCOME)->welcome.resumed);
    lose_conn(w, a); /* It never got that far. */
    a->sent = 500;
    connect_peer(w, a);
    assert_false(last_msg(a, PS_MSG_WELCOME)->welcome.resumed);
    world_free(w);
}

static void workers_not_reported_on_a_new_link_are_lost(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg msg = make_job_open(2, 4, 2, -1);

    (void)state;
    lose_conn(j.w, j.a[1]);
    advance_time(j.w, PS_MILLIS(1500)); /* Longer than the link is kept. */
    drop_inbox(j.a[1]);
    connect_peer(j.w, j.a[1]);
    assert_false(last_msg(j.a[1], PS_MSG_WELCOME)->welcome.resumed);
    assert_int_equal(last_job_state(j.a[1])->phase, PS_JOB_PHASE_RUNNING);
    msg.job_open.gen = j.gen;
    deliver_msg(j.w, j.a[1], msg); /* Worker 2 only. */
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    advance_time(j.w, PS_SECONDS(3));
    assert_int_equal(last_job_state(j.a[0])->ranks[2].state,
                     PS_RANK_STATE_LOST);
    assert_int_equal(last_job_state(j.a[0])->ranks[3].state,
                     PS_RANK_STATE_LIVE);
    /* Rank 2 is lost and cannot detach any more. */
    deliver_msg(j.w, j.a[1], make_job_open(9, 4, 2, 2));
    deliver_worker_gone(j.w, j.a[1], j.gen, 9, true);
    finish_job(&j);
}

static void member_without_acknowledgements_is_disconnected(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    uint64_t asked = 0;

    (void)state;
    while (a->conn != 0) {
        struct ps_msg msg = {
            .code = PS_MSG_KEY_OPEN,
            .seq = ++a->sent,
            .key_open = {.gen = 1, .request = ++asked, .name = "w"}};

        assert_true(asked < 2 * PS_BACKLOG_MAX);
        feed_event(w, (struct ps_event){.type = PS_EV_MSG,
                                        .conn = a->conn,
                                        .msg = {.msg = &msg}});
        drop_inbox(a);
    }
    assert_true(asked > PS_BACKLOG_MAX);
    expect_substring(w->story, "does not acknowledge");
    connect_peer(w, a); /* It may begin afresh. */
    assert_false(last_msg(a, PS_MSG_WELCOME)->welcome.resumed);
    end_world(w);
}

static uint64_t waiting(const struct world *w)
{
    return ps_sched_machine(w->sched).account->cost[PS_COST_OUTPUT].used;
}

/* Without requests, too: maps, job states and placements are sent to it. */
static void unacknowledged_messages_of_a_member_are_bounded(void **state)
{
    struct world *w;
    struct peer *a;
    struct peer *b;
    uint32_t told = 0;

    (void)state;
    world_link_memory = 64u << 10;
    w = world_new();
    world_link_memory = 0;
    a = join_peer(w, PS_ROLE_AGENT, "a");
    a->deaf = true;
    b = join_peer(w, PS_ROLE_SERVER, "b");
    while (a->conn != 0) {
        assert_true(waiting(w) < 3 * (64u << 10));
        assert_true(told++ < 1000);
        b->instance++; /* Restarted: all members get another map. */
        lose_conn(w, b);
        drop_inbox(b);
        connect_peer(w, b);
        drop_inbox(a);
        advance_time(w, PS_MILLIS(100));
    }
    assert_true(told > 10);
    expect_substring(w->story, "node 1 cut off: it does not acknowledge");
    advance_time(
        w, PS_SECONDS(10)); /* The link of the other member is lost, too. */
    assert_int_equal(waiting(w), 0);
    end_world(w);
}

static void suspension_of_the_scheduler_ends_no_lease(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    advance_time(j.w, PS_SECONDS(1));
    j.w->now += PS_SECONDS(60); /* The scheduler's process was stopped. */
    feed_event(j.w, (struct ps_event){.type = PS_EV_TICK});
    advance_time(j.w, PS_SECONDS(1));
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_AGENT, PS_NODE_STATE_ACTIVE),
        2);
    finish_job(&j);
}

static void shutdown_closes_all_connections(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    feed_event(j.w, (struct ps_event){.type = PS_EV_SHUTDOWN});
    assert_int_equal(j.a[0]->conn, 0);
    assert_int_equal(j.s[1]->conn, 0);
    connect_peer(j.w, j.a[0]);
    assert_int_equal(j.a[0]->conn, 0);
    world_free(j.w);
}

/* Its rounds went with the old agent. */
static void rank_does_not_return_at_a_restarted_agent(void **state)
{
    for (int keys = 0; keys < 2; keys++) {
        struct job j = start_job(PS_LOSS_POLICY_WAIT);

        (void)state;
        if (keys == 1) {
            deliver_msg(j.w, j.a[0],
                        (struct ps_msg){.code = PS_MSG_KEY_OPEN,
                                        .key_open = {.gen = j.gen,
                                                     .request = 1,
                                                     .name = "w",
                                                     .dtype = PS_DTYPE_FLOAT32,
                                                     .count = 10}});
        }
        lose_conn(j.w, j.a[1]);
        j.a[1]->instance += 100;
        j.a[1]->session += 100;
        connect_peer(j.w, j.a[1]);
        deliver_msg(j.w, j.a[1], make_job_open(7, 4, 2, 2));
        if (keys == 0) { /* There was no round yet. */
            assert_int_equal(last_job_opened(j.a[1])->error, 0);
        } else {
            assert_int_equal(last_job_opened(j.a[1])->error, PS_E_JOBFAILED);
            assert_non_null(strstr(last_job_opened(j.a[1])->text, "restarted"));
            assert_int_equal(last_job_state(j.a[0])->phase,
                             PS_JOB_PHASE_FAILED);
        }
        world_free(j.w);
    }
}

static struct ps_msg resume_job(const struct job *j, uint64_t worker,
                                int32_t rank)
{
    struct ps_msg msg = make_job_open(worker, 4, 2, rank);

    msg.job_open.gen = j->gen;
    msg.job_open.reattach = true;
    return msg;
}

static void restart(const struct job *j, uint32_t agent)
{
    lose_conn(j->w, j->a[agent]);
    j->a[agent]->instance += 100;
    j->a[agent]->session += 100;
    connect_peer(j->w, j->a[agent]);
}

static void make_key(const struct job *j)
{
    deliver_msg(j->w, j->a[0],
                (struct ps_msg){.code = PS_MSG_KEY_OPEN,
                                .key_open = {.gen = j->gen,
                                             .request = 1,
                                             .name = "w",
                                             .dtype = PS_DTYPE_FLOAT32,
                                             .count = 10}});
}

/* Its rounds are with the processes. */
static void live_worker_reattaches_at_a_new_agent(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_job_state *js;
    uint64_t before;

    (void)state;
    make_key(&j);
    before = last_job_state(j.a[1])->slots[1].incarnation;
    restart(&j, 1);
    deliver_msg(j.w, j.a[1], resume_job(&j, 7, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    deliver_msg(j.w, j.a[1], resume_job(&j, 8, 3));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    deliver_msg(j.w, j.a[1], resume_job(&j, 8, 3)); /* On a fresh link. */
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    advance_time(j.w, PS_SECONDS(1));
    js = last_job_state(j.a[1]);
    assert_int_equal(js->phase, PS_JOB_PHASE_RUNNING);
    assert_int_equal(js->ranks[2].state, PS_RANK_STATE_LIVE);
    assert_int_equal(js->ranks[2].worker, 7);
    assert_int_equal(js->ranks[3].worker, 8);
    assert_int_not_equal(js->slots[1].incarnation, before);
    world_free(j.w);
}

static void invalid_reattach_is_refused(void **state)
{
    const struct {
        int32_t rank;
        uint64_t gen;
        uint32_t uid;
        int error;
    } bad[] = {
        {2, 99, 0, PS_E_NOJOB},  {4, 0, 0, PS_E_INVAL},
        {-1, 0, 0, PS_E_INVAL},  {0, 0, 0, PS_E_REFUSED},
        {2, 0, 4711, PS_E_PERM},
    };
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    make_key(&j);
    restart(&j, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ps_msg msg = resume_job(&j, 10 + i, bad[i].rank);

        msg.job_open.gen += bad[i].gen;
        msg.job_open.uid += bad[i].uid;
        deliver_msg(j.w, j.a[1], msg);
        assert_int_equal(last_job_opened(j.a[1])->error, bad[i].error);
        assert_int_not_equal(last_job_opened(j.a[1])->text[0], 0);
    }
    deliver_msg(j.w, j.a[1], resume_job(&j, 7, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    deliver_msg(j.w, j.a[1], resume_job(&j, 9, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_EXIST);
    /* The agent lives and knows this rank, so a process may not reattach. */
    deliver_worker_gone(j.w, j.a[1], j.gen, 7, false);
    deliver_msg(j.w, j.a[1], resume_job(&j, 20, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_STALE);
    /* A new process may take it, for the same reason. */
    deliver_msg(j.w, j.a[1], make_job_open(21, 4, 2, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    world_free(j.w);
}

/* No process knows the rounds of the rank: neither the agent nor a new worker. */
static void a_worker_that_dies_during_reattach_ends_the_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    make_key(&j);
    restart(&j, 1);
    deliver_msg(j.w, j.a[1], resume_job(&j, 7, 2));
    deliver_msg(j.w, j.a[1],
                (struct ps_msg){.code = PS_MSG_WORKER_GONE,
                                .worker_gone = {.gen = j.gen,
                                                .worker = 7,
                                                .text = "",
                                                .rounds_unknown = true}});
    deliver_msg(j.w, j.a[1], make_job_open(8, 4, 2, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_JOBFAILED);
    expect_substring(last_job_opened(j.a[1])->text, "restarted");
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    world_free(j.w);
}

/* Waiting ranks get an error at last, because no worker has taken the rank. */
static void a_lost_rank_without_a_successor_ends_the_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    deliver_worker_gone(j.w, j.a[1], j.gen, 1, false);
    advance_time(j.w, PS_SECONDS(400));
    /* Another rank is lost and the first one has returned: the time limit of
     * the first is cancelled. */
    deliver_worker_gone(j.w, j.a[1], j.gen, 2, false);
    deliver_msg(j.w, j.a[1], make_job_open(21, 4, 2, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, 0);
    advance_time(j.w, PS_SECONDS(599));
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    advance_time(j.w, PS_SECONDS(2));
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    assert_string_equal(last_job_state(j.a[0])->reason,
                        "rank 3 on a1 was lost 600 s ago, and no process "
                        "has taken it again (registration.rejoin_timeout); "
                        "start the job again");
    world_free(j.w);
}

static void policy_fail_ends_a_job_with_its_agent(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    restart(&j, 1);
    deliver_msg(j.w, j.a[1], resume_job(&j, 7, 2));
    assert_int_equal(last_job_opened(j.a[1])->error, PS_E_PEERLOST);
    expect_substring(last_job_opened(j.a[1])->text,
                     "another process has taken its name");
    world_free(j.w);
}

static struct ps_msg job_named(const char *name, uint64_t worker,
                               uint32_t servers)
{
    struct ps_msg msg = make_job_open(worker, 1, servers, -1);

    msg.job_open.name = name;
    return msg;
}

/* A draining scheduler finishes its jobs and takes no new one. */
static void a_draining_scheduler_takes_no_new_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    feed_event(j.w, (struct ps_event){.type = PS_EV_DRAIN});
    deliver_msg(j.w, j.a[0], job_named("other", 50, 1));
    assert_int_equal(last_job_opened(j.a[0])->error, PS_E_REFUSED);
    assert_non_null(strstr(last_job_opened(j.a[0])->text, "is shutting down"));
    assert_int_equal(ps_sched_job_count(j.w->sched), 1);
    /* The present job continues, and its lost ranks may return. */
    deliver_worker_gone(j.w, j.a[0], j.gen, 1, false);
    deliver_msg(j.w, j.a[0], make_job_open(9, 4, 2, -1));
    assert_int_equal(last_job_opened(j.a[0])->error, 0);
    advance_time(j.w, PS_SECONDS(1));
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    world_free(j.w);
}

static void drain(struct world *w, struct peer *server, bool draining)
{
    deliver_unsequenced(
        w, server,
        (struct ps_msg){.code = PS_MSG_PING, .ping = {.draining = draining}});
}

static void a_draining_server_is_for_no_new_job(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct peer *a = j.a[0];
    uint64_t three;

    (void)state;
    drain(j.w, j.s[1], true);
    assert_non_null(strstr(j.w->story, "server s1 is shutting down"));
    /* Only draining servers are missing: it is refused at once. */
    deliver_msg(j.w, a, job_named("two", 50, 2));
    assert_int_equal(last_job_opened(a)->error, PS_E_REFUSED);
    assert_non_null(
        strstr(last_job_opened(a)->text, "server s1 is shutting down"));
    /* One server is available; it is not the draining one. */
    deliver_msg(j.w, a, job_named("one", 51, 1));
    assert_int_equal(last_job_opened(a)->error, 0);
    assert_int_equal(last_job_state(j.s[0])->phase, PS_JOB_PHASE_STARTING);
    assert_int_equal(last_job_state(j.s[0])->gen, last_job_opened(a)->gen);
    assert_int_equal(last_job_state(j.s[1])->gen, j.gen);
    /* There were never three servers: that job waits, and starts when there
     * are. */
    deliver_msg(j.w, a, job_named("three", 52, 3));
    assert_int_equal(last_job_opened(a)->error, 0);
    three = last_job_opened(a)->gen;
    join_peer(j.w, PS_ROLE_SERVER, "s2");
    assert_int_not_equal(last_job_state(j.s[0])->gen, three);
    drain(j.w, j.s[1], false);
    assert_int_equal(last_job_state(j.s[0])->gen, three);
    assert_int_equal(last_job_state(j.s[1])->gen, three);
    world_free(j.w);
}

static void an_incomplete_job_names_draining_servers(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");
    struct ps_msg msg = make_job_open(1, 1, 2, -1);

    (void)state;
    msg.job_open.start_timeout_ns = PS_MILLIS(300);
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, 0);
    s->mute = true;
    drain(w, s, true);
    advance_time(w, PS_MILLIS(400));
    assert_string_equal(
        last_msg(a, PS_MSG_JOB_STATE)->job_state.reason,
        "job train was not complete after 0.3 s: have 1/1 workers; have 0/2 "
        "servers, and s0 is shutting down: see psctl nodes, start more or ask "
        "for fewer");
    world_free(w);
}

/* ----------------------------------------------------------------- limits */

static void requests_beyond_limits_get_an_error(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct peer *p = peer_new(w, PS_ROLE_SERVER, "");
    struct ps_msg msg = make_job_open(1, 1, PS_SERVERS_MAX + 1, -1);

    (void)state;
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    msg = make_job_open(1, 1, 1, -1);
    msg.job_open.partition_bytes = 100;
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_INVAL);
    /* One job too many. */
    for (uint64_t i = 0; i <= PS_JOBS_MAX; i++) {
        char name[16];

        sprintf(name, "j%d", (int)i);
        msg = make_job_open(i, 1, 1, -1);
        msg.job_open.name = name;
        deliver_msg(w, a, msg);
        assert_int_equal(last_job_opened(a)->error,
                         i < PS_JOBS_MAX ? 0 : PS_E_FULL);
    }
    for (uint64_t i = 0; i < PS_JOBS_MAX; i++) {
        deliver_worker_gone(w, a, 0, i, true);
    }
    /* One worker too many, while a server is waited for. */
    deliver_msg(w, a, make_job_open(100, 1, 1, -1));
    deliver_msg(w, a, make_job_open(101, 1, 1, -1));
    assert_int_equal(last_job_opened(a)->error, PS_E_FULL);
    deliver_worker_gone(w, a, 0, 100, true);
    /* One server too many: refused until another is gone. */
    for (uint32_t i = 0; i <= PS_SERVERS_MAX; i++) {
        sprintf(p->name, "s%d", (int)i);
        p->instance++;
        drop_inbox(p);
        connect_peer(w, p);
        assert_true((find_msg(p, PS_MSG_REJECT) != NULL) ==
                    (i == PS_SERVERS_MAX));
    }
    advance_time(
        w,
        PS_SECONDS(7)); /* Most members are silent: their leases are longer. */
    connect_peer(w, p);
    assert_non_null(find_msg(p, PS_MSG_WELCOME));
    end_world(w);
}

/* ----------------------------------------------------------------- random */

static uint64_t some(struct ps_rng *rng, uint64_t n)
{
    static const uint64_t odd[] = {0, 1, 255, UINT32_MAX, UINT64_MAX, 1000000};

    return ps_rng_chance(rng, 50) ? odd[ps_rng_below(rng, 6)]
                                  : ps_rng_below(rng, n);
}

static struct ps_msg random_msg(struct ps_rng *rng, const struct peer *p)
{
    static const char *const names[] = {"a", "b", "3", "07", "", "x"};
    static const char *const jobs[] = {"j1", "j2", "", "a b"};
    static uint32_t ranks[3];
    static struct ps_rec_param params[2];
    uint64_t gen = some(rng, 12);
    uint8_t bit = (uint8_t)ps_rng_below(rng, 2);

    for (int i = 0; i < 3; i++) {
        ranks[i] = (uint32_t)some(rng, 4);
    }
    params[0] = (struct ps_rec_param){.name = "lr", .value = bit};
    params[1] = (struct ps_rec_param){.name = bit ? "wd" : "lr", .value = 1};
    if (p->role == PS_ROLE_SERVER) {
        return (struct ps_msg){
            .code = PS_MSG_JOB_READY,
            .job_ready = {.gen = gen, .version = (uint32_t)some(rng, 6)}};
    }
    if (p->role == PS_ROLE_CTL) {
        return ps_rng_chance(rng, 100)
                   ? (struct ps_msg){.code = PS_MSG_JOB_CANCEL,
                                     .job_cancel = {.job = jobs[bit]}}
                   : (struct ps_msg){
                         .code = PS_MSG_QUERY,
                         .query = {.what = (uint8_t)ps_rng_below(rng, 4),
                                   .job = jobs[ps_rng_below(rng, 3)]}};
    }
    switch (ps_rng_below(rng, 8)) {
    case 0:
    case 1: {
        struct ps_msg msg = make_job_open(
            some(rng, 6), 1 + (uint32_t)ps_rng_below(rng, 3),
            (uint32_t)ps_rng_below(rng, 3), (int32_t)ps_rng_below(rng, 4) - 1);

        msg.job_open.num_workers = 2;
        msg.job_open.num_servers = 1;
        msg.job_open.name = jobs[ps_rng_below(rng, 4)];
        msg.job_open.gen = ps_rng_chance(rng, 200) ? gen : 0;
        msg.job_open.on_loss = strcmp(msg.job_open.name, "j2") == 0;
        return msg;
    }
    case 2:
        return (struct ps_msg){.code = PS_MSG_WORKER_GONE,
                               .worker_gone = {.gen = bit ? gen : 0,
                                               .worker = some(rng, 6),
                                               .clean = bit}};
    case 3:
        return (struct ps_msg){.code = PS_MSG_KEY_OPEN,
                               .key_open = {.gen = gen,
                                            .request = some(rng, 5),
                                            .kind = bit,
                                            .name = names[ps_rng_below(rng, 6)],
                                            .dtype = PS_DTYPE_FLOAT32,
                                            .count = some(rng, 3) * 300000,
                                            .mxnet_key = -1}};
    case 4:
        return (struct ps_msg){.code = PS_MSG_BARRIER_ENTER,
                               .barrier_enter = {.gen = gen,
                                                 .number = some(rng, 4),
                                                 .ranks = ranks,
                                                 .ranks_count = 3}};
    case 5:
        return (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                               .optimizer_set = {.gen = gen,
                                                 .request = some(rng, 5),
                                                 .name = "sgd",
                                                 .params = params,
                                                 .params_count = 2}};
    case 6:
        return (struct ps_msg){.code = PS_MSG_STALL_QUERY,
                               .stall_query = {.gen = gen,
                                               .request = some(rng, 5),
                                               .key = (uint32_t)some(rng, 3),
                                               .round = some(rng, 5),
                                               .barrier = bit}};
    default:
        return (struct ps_msg){.code = PS_MSG_STALL_REPORT,
                               .stall_report = {.gen = gen,
                                                .request = some(rng, 40),
                                                .ranks = ranks,
                                                .ranks_count = 3,
                                                .waiting_ops = bit,
                                                .key = names[bit],
                                                .round = 3}};
    }
}

static void run_random(uint64_t seed)
{
    static const struct {
        enum ps_role role;
        const char *name;
    } who[] = {{PS_ROLE_SERVER, "s0"}, {PS_ROLE_SERVER, "s1"},
               {PS_ROLE_SERVER, "s2"}, {PS_ROLE_AGENT, "a0"},
               {PS_ROLE_AGENT, "a1"},  {PS_ROLE_AGENT, "a2"},
               {PS_ROLE_CTL, ""}};
    struct world *w = world_new();
    struct ps_rng rng;

    ps_rng_init(&rng, seed);
    for (int i = 0; i < 7; i++) {
        peer_new(w, who[i].role, who[i].name);
    }
    for (int i = 0; i < 3000; i++) {
        struct peer *p = &w->peer[ps_rng_below(&rng, w->peers)];

        if (p->conn == 0) {
            if (ps_rng_chance(&rng, 100)) {
                p->session += ps_rng_below(&rng, 2);
                p->instance += ps_rng_chance(&rng, 300) ? 100 : 0;
                connect_peer(w, p);
            }
        } else if (ps_rng_chance(&rng, 10)) {
            lose_conn(w, p);
        } else if (ps_rng_chance(&rng, 300) && p->role == PS_ROLE_SERVER &&
                   find_msg(p, PS_MSG_JOB_STATE) != NULL) {
            deliver_job_ready(w, p);
        } else {
            deliver_msg(w, p, random_msg(&rng, p));
        }
        if (ps_rng_chance(&rng, 100)) {
            advance_time(w, ps_rng_below(&rng, PS_MILLIS(400)));
        }
        if (ps_rng_chance(&rng, 10)) {
            advance_time(w, ps_rng_below(&rng, PS_SECONDS(4)));
        }
        if (i % 100 == 0) {
            for (uint32_t k = 0; k < w->peers; k++) {
                drop_inbox(&w->peer[k]);
            }
        }
    }
    /* All members end: no job is left after the longest wait, that of a
     * scheduler that hears no member. */
    for (uint32_t k = 0; k < w->peers; k++) {
        if (w->peer[k].conn != 0) {
            lose_conn(w, &w->peer[k]);
        }
    }
    advance_time(w, PS_SECONDS(400));
    end_world(w);
}

static void random_messages_do_no_harm(void **state)
{
    const char *given = getenv("PS_TEST_SEED");
    size_t live = ps_alloc_live();

    (void)state;
    if (given != NULL) {
        run_random(strtoull(given, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= 60; seed++) {
        print_message("# seed %d (again: PS_TEST_SEED=%d)\n", (int)seed,
                      (int)seed);
        run_random(seed);
    }
    assert_int_equal(ps_alloc_live(), live);
}

/* The code of the answer to a job's first worker. */
static int open_named(struct world *w, struct peer *a, const char *name,
                      uint32_t uid)
{
    static uint64_t workers = 100;
    struct ps_msg msg = make_job_open(++workers, 2, 0, -1);

    msg.job_open.name = name;
    msg.job_open.uid = uid;
    deliver_msg(w, a, msg);
    if (last_job_opened(a)->error == 0) {
        deliver_worker_gone(w, a, 0, workers, true);
    }
    return last_job_opened(a)->error;
}

static void groups_belong_to_the_owner_of_their_job(void **state)
{
    char group[PS_NAME_MAX + 1];
    static const char *const cut = "a-name-of-thirty-one-characters";
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a0");
    struct ps_msg msg = make_job_open(1, 2, 0, -1);

    (void)state;
    assert_int_equal(open_named(w, a, "train/g", 8), PS_E_INVAL);
    expect_substring(last_job_opened(a)->text, "a group of job train");
    deliver_msg(w, a, msg);
    assert_int_equal(open_named(w, a, "train/g", 8), PS_E_PERM);
    expect_substring(last_job_opened(a)->text, "belongs to uid 7");
    assert_int_equal(open_named(w, a, "train/g", 7), 0);
    assert_int_equal(open_named(w, a, "train/g/h", 7), PS_E_INVAL);
    assert_int_equal(open_named(w, a, "rain/g", 7), PS_E_INVAL);
    /* A name that psc_group_open() cut. */
    msg = make_job_open(2, 2, 0, -1);
    msg.job_open.name = cut;
    deliver_msg(w, a, msg);
    ps_group_name(cut, "a-group-of-the-job-of-31-characters", group);
    assert_int_equal(open_named(w, a, group, 7), 0);
    assert_int_equal(open_named(w, a, group, 8), PS_E_PERM);
    /* Of a job that begins alike, and that there is not. */
    ps_group_name("a-name-of-thirty-one-and-of-others",
                  "a-group-of-the-job-of-31-characters", group);
    assert_int_equal(open_named(w, a, group, 7), PS_E_INVAL);
    assert_int_equal(open_named(w, a, "a-name-of-thirty-one/g", 7), PS_E_INVAL);
    deliver_worker_gone(w, a, 0, 1, true);
    deliver_worker_gone(w, a, 0, 2, true);
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_belong_to_the_owner_of_their_job),
        cmocka_unit_test(ranks_do_not_depend_on_the_start_order),
        cmocka_unit_test(a_job_without_servers_runs_on_one_node),
        cmocka_unit_test(incomplete_job_names_missing_ranks_and_servers),
        cmocka_unit_test(missing_ranks_are_named_as_ranges),
        cmocka_unit_test(servers_that_are_not_ready_fail_the_start),
        cmocka_unit_test(jobs_wait_for_servers),
        cmocka_unit_test(options_of_workers_must_agree),
        cmocka_unit_test(a_stray_worker_does_not_end_a_job_that_runs),
        cmocka_unit_test(agents_hear_that_a_key_was_declared_otherwise),
        cmocka_unit_test(an_agent_reports_that_its_ranks_disagree),
        cmocka_unit_test(agents_hear_that_an_optimizer_was_declared_otherwise),
        cmocka_unit_test(agents_hear_that_a_compression_was_declared_otherwise),
        cmocka_unit_test(job_open_must_make_sense),
        cmocka_unit_test(repeated_job_open_has_no_further_effect),
        cmocka_unit_test(worker_gone_before_its_job_open_counts),
        cmocka_unit_test(lost_rank_can_be_taken_by_a_new_worker),
        cmocka_unit_test(suspension_of_the_scheduler_extends_the_grace),
        cmocka_unit_test(job_without_a_live_rank_ends_after_a_grace),
        cmocka_unit_test(policy_fail_names_rank_and_host),
        cmocka_unit_test(a_forming_group_ends_with_its_job),
        cmocka_unit_test(a_group_outlives_a_former_job_of_the_name),
        cmocka_unit_test(messages_of_an_ended_job_get_its_reason),
        cmocka_unit_test(a_silent_agent_loses_its_ranks),
        cmocka_unit_test(gone_members_are_forgotten_unless_a_job_names_them),
        cmocka_unit_test(a_new_process_replaces_the_old_one),
        cmocka_unit_test(invalid_hellos_are_rejected),
        cmocka_unit_test(cut_link_resumes_with_its_messages),
        cmocka_unit_test(a_welcome_that_was_lost_is_not_resumed),
        cmocka_unit_test(workers_not_reported_on_a_new_link_are_lost),
        cmocka_unit_test(member_without_acknowledgements_is_disconnected),
        cmocka_unit_test(unacknowledged_messages_of_a_member_are_bounded),
        cmocka_unit_test(suspension_of_the_scheduler_ends_no_lease),
        cmocka_unit_test(shutdown_closes_all_connections),
        cmocka_unit_test(rank_does_not_return_at_a_restarted_agent),
        cmocka_unit_test(live_worker_reattaches_at_a_new_agent),
        cmocka_unit_test(invalid_reattach_is_refused),
        cmocka_unit_test(a_worker_that_dies_during_reattach_ends_the_job),
        cmocka_unit_test(a_lost_rank_without_a_successor_ends_the_job),
        cmocka_unit_test(policy_fail_ends_a_job_with_its_agent),
        cmocka_unit_test(a_draining_scheduler_takes_no_new_job),
        cmocka_unit_test(a_draining_server_is_for_no_new_job),
        cmocka_unit_test(an_incomplete_job_names_draining_servers),
        cmocka_unit_test(requests_beyond_limits_get_an_error),
        cmocka_unit_test(random_messages_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
