/* SPDX-License-Identifier: Apache-2.0 */
/* Backups of the places of jobs with replicas: 2: who is one, from when on it
 * counts, and what follows from a loss. */
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/member/member.h"

#include "sched_world.h"

static struct job start_placed_job(uint32_t servers, bool keep,
                                   enum ps_placement placement)
{
    static const char *const names[] = {"s0", "s1", "s2"};
    struct job j = {.w = world_new()};

    for (uint32_t i = 0; i < servers; i++) {
        j.s[i] = peer_new(j.w, PS_ROLE_SERVER, names[i]);
        j.s[i]->keep = keep;
        connect_peer(j.w, j.s[i]);
    }
    j.a[0] = join_peer(j.w, PS_ROLE_AGENT, "a0");
    j.a[1] = join_peer(j.w, PS_ROLE_AGENT, "a1");
    for (uint64_t i = 0; i < 4; i++) {
        struct ps_msg msg = make_job_open(1 + i % 2, 4, servers, -1);

        msg.job_open.replicas = 2;
        msg.job_open.placement = placement;
        deliver_msg(j.w, j.a[i / 2], msg);
    }
    j.gen = last_job_opened(j.a[0])->gen;
    for (uint32_t i = 0; i < servers; i++) {
        deliver_job_ready(j.w, j.s[i]);
    }
    open_key(j.w, j.a[0], j.gen, 1, "w", 3000000);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    return j;
}

static struct job start_job_on(uint32_t servers, bool keep)
{
    return start_placed_job(servers, keep, PS_PLACEMENT_BALANCED);
}

/* A running job with copies, with a key on both servers. */
static struct job start_copied_job(void)
{
    return start_job_on(2, false);
}

/* The place of a server as the other one knows it; NULL: it has none. */
static const struct ps_rec_place *place_of(const struct job *j,
                                           const struct peer *server,
                                           const struct peer *informed)
{
    const struct ps_msg_job_state *js = last_job_state(informed);

    (void)j;
    for (uint32_t i = 0; i < js->places_count; i++) {
        if (strcmp(js->places[i].name, server->name) == 0) {
            return &js->places[i];
        }
    }
    return NULL;
}

static void deliver_filled(struct job *j, struct peer *server, uint32_t epoch)
{
    deliver_msg(j->w, server,
                (struct ps_msg){
                    .code = PS_MSG_FILLED,
                    .filled = {.gen = j->gen, .epoch = epoch, .percent = 100}});
}

static void fill(struct job *j, struct peer *server)
{
    deliver_filled(j, server, place_of(j, server, server)->epoch);
}

/* Another process of the server says hello. */
static void start_again(struct job *j, struct peer *server)
{
    server->instance += 100;
    server->session += 100;
    server->sent = 0;
    server->received = 0;
    drop_inbox(server);
    connect_peer(j->w, server);
}

/* Another process takes the name of the server, which so is lost. */
static void lose(struct job *j, struct peer *server)
{
    lose_conn(j->w, server);
    start_again(j, server);
}

static void assert_failed(const struct job *j, const char *part)
{
    const struct ps_msg_job_state *js = last_job_state(j->a[0]);

    assert_int_equal(js->phase, PS_JOB_PHASE_FAILED);
    expect_substring(js->reason, part);
}

static void end(struct job *j)
{
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j->w, j->a[i / 2], j->gen, 1 + i % 2, true);
    }
    end_world(j->w);
}

static void servers_of_a_job_are_backups_of_each_other(void **state)
{
    struct job j = start_copied_job();

    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct ps_rec_place *p = place_of(&j, j.s[i], j.s[1 - i]);

        assert_int_equal(p->backup, j.s[1 - i]->node);
        assert_int_equal(p->backup_instance, j.s[1 - i]->instance);
        assert_false(p->filled);
        assert_true(p->epoch > 0);
    }
    assert_int_not_equal(place_of(&j, j.s[0], j.s[0])->number,
                         place_of(&j, j.s[1], j.s[0])->number);
    assert_int_equal(last_job_state(j.s[0])->replicas, 2);
    end(&j);
}

/* The answer to operators about the copies of the only job. */
static const char *copies_shown(struct job *j, struct peer *ctl)
{
    deliver_unsequenced(j->w, ctl,
                        (struct ps_msg){.code = PS_MSG_QUERY,
                                        .query = {.what = PS_QUERY_JOBS}});
    for (uint32_t i = ctl->count; i > 0; i--) {
        const struct ps_msg *msg = ctl->inbox[i - 1].msg;

        if (msg->code == PS_MSG_JOB_ROW && msg->job_row.gen == j->gen) {
            return msg->job_row.copies;
        }
    }
    return NULL;
}

static void deliver_percent(struct job *j, struct peer *server, uint8_t percent)
{
    const uint32_t epoch = place_of(j, server, server)->epoch;

    deliver_msg(
        j->w, server,
        (struct ps_msg){
            .code = PS_MSG_FILLED,
            .filled = {.gen = j->gen, .epoch = epoch, .percent = percent}});
}

static void operators_see_how_far_backups_are_filled(void **state)
{
    struct job j = start_copied_job();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "psctl");

    (void)state;
    assert_string_equal(copies_shown(&j, ctl), "filling 0 %");
    deliver_percent(&j, j.s[0], 80);
    assert_string_equal(copies_shown(&j, ctl), "filling 40 %");
    fill(&j, j.s[0]);
    assert_string_equal(copies_shown(&j, ctl), "filling 50 %");
    /* For displays alone: the backup of this one does not count. */
    deliver_percent(&j, j.s[1], 99);
    lose(&j, j.s[1]);
    assert_failed(&j, "it had the only copy of 1 key of job train");
    end(&j);
}

static void a_backup_that_counts_takes_over(void **state)
{
    struct job j = start_copied_job();
    const uint32_t before = place_of(&j, j.s[0], j.s[0])->epoch;

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    drop_inbox(j.a[0]);
    drop_inbox(j.s[0]);
    lose(&j, j.s[1]);

    const struct ps_msg *opened = last_msg(j.a[0], PS_MSG_KEY_OPENED);

    assert_int_equal(opened->key_opened.request, 0);
    assert_true(opened->key_opened.is_reassigned);
    /* The new process is a spare server, and becomes the backup. */
    const struct ps_rec_place *p = place_of(&j, j.s[0], j.s[0]);

    assert_true(p->epoch > before);
    assert_int_equal(p->backup, j.s[1]->node);
    assert_int_equal(p->backup_instance, j.s[1]->instance);
    assert_false(p->filled);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    end(&j);
}

static void drain(const struct job *j, struct peer *ctl, const char *server)
{
    deliver_job_ready(j->w, j->s[0]);
    deliver_job_ready(j->w, j->s[1]);
    deliver_msg(j->w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_REBALANCE,
                                          .job = "train",
                                          .drain_server = server}});
}

/* Else the partition would have one copy for a while. */
static void a_partition_does_not_move_before_the_backup_counts(void **state)
{
    struct job j = start_copied_job();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");

    (void)state;
    drain(&j, ctl, "s1");
    assert_null(find_msg(j.s[0], PS_MSG_MOVE));
    fill(&j, j.s[1]);
    assert_null(find_msg(j.s[0], PS_MSG_MOVE));
    fill(&j, j.s[0]);
    assert_non_null(find_msg(j.s[0], PS_MSG_MOVE));
    assert_non_null(find_msg(j.s[1], PS_MSG_MOVE));
    end(&j);
}

/* The backup of a lost server may have what had moved away from it, or had been
 * about to move to it: it asks. */
static void a_backup_that_takes_over_asks_for_the_owner(void **state)
{
    struct job j = start_copied_job();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "");
    struct ps_msg moved = {.code = PS_MSG_MOVED,
                           .moved = {.gen = j.gen, .text = ""}};
    const struct ps_msg_move_end *end_msg;
    uint32_t version;

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    drain(&j, ctl, "s1");
    moved.moved.key = last_msg(j.s[1], PS_MSG_MOVE)->move.key;
    moved.moved.index = last_msg(j.s[1], PS_MSG_MOVE)->move.index;
    lose(&j, j.s[1]);
    assert_true(last_job_state(j.s[0])->was_rebalanced);
    version = last_job_state(j.s[0])->version;
    moved.moved.version = version;
    drop_inbox(j.s[0]);
    deliver_msg(j.w, j.s[0], moved);
    end_msg = &last_msg(j.s[0], PS_MSG_MOVE_END)->move_end;
    assert_true(end_msg->is_owner);
    assert_int_equal(end_msg->version, version);
    /* It owns nothing, for it has just been started. */
    drop_inbox(j.s[1]);
    deliver_msg(j.w, j.s[1], moved);
    end_msg = &last_msg(j.s[1], PS_MSG_MOVE_END)->move_end;
    assert_false(end_msg->is_owner);
    /* A key that was removed meanwhile. */
    moved.moved.key = 77;
    drop_inbox(j.s[0]);
    deliver_msg(j.w, j.s[0], moved);
    assert_false(last_msg(j.s[0], PS_MSG_MOVE_END)->move_end.is_owner);
    end(&j);
}

/* A backup of an older file may have been dismissed since (rule G5). */
static void a_backup_of_an_old_file_does_not_take_over(void **state)
{
    struct rows old = {0};
    struct ps_msg hello;
    struct job j;

    (void)state;
    j = start_copied_job();
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    rows_copy(&old, &j.w->rows);
    join_peer(j.w, PS_ROLE_SERVER, "s2");
    const uint32_t epoch = ps_sched_epoch(j.w->sched);

    rows_copy(&j.w->rows, &old);
    rows_fini(&old);
    world_restart_sched(j.w);
    hello = make_hello(j.a[0]);
    hello.hello.epoch = epoch;
    open_peer_conn(j.w, j.a[0]);
    deliver_unsequenced(j.w, j.a[0], hello);
    for (int i = 0; i < 2; i++) {
        drop_inbox(j.s[i]);
        connect_peer(j.w, j.s[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(place_of(&j, j.s[i], j.s[i])->epoch > epoch);
        assert_false(place_of(&j, j.s[i], j.s[i])->filled);
    }
    drop_inbox(j.a[0]);
    connect_peer(j.w, j.a[0]);
    lose(&j, j.s[1]);
    assert_null(find_msg(j.a[0], PS_MSG_KEY_OPENED));
    world_free(j.w);
}

/* The scheduler forgets the lost server before the job, and is restarted. */
static void a_failed_job_has_no_lost_backup(void **state)
{
    struct job j = start_copied_job();

    (void)state;
    deliver_msg(j.w, j.s[0],
                (struct ps_msg){.code = PS_MSG_VALUE_LOST,
                                .value_lost = {.gen = j.gen, .version = 1}});
    assert_failed(&j, "of which there is no other copy");
    lose_conn(j.w, j.s[1]);
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(10));
    assert_int_equal(
        ps_sched_member_count(j.w->sched, PS_ROLE_SERVER, PS_NODE_STATE_GONE),
        1);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, j.s[1]->node);
    PS_MAP_EACH(const struct ps_sched_job, job, j.w->sched->jobs)
    {
        assert_int_equal(job->servers.count, 1);
        assert_int_equal(job->servers.list[0].backup, 0);
    }
    world_free(j.w);
}

static void a_server_that_is_often_lost_is_remembered_once(void **state)
{
    struct job j = start_copied_job();

    (void)state;
    for (int i = 0; i < 20; i++) {
        fill(&j, j.s[0]);
        fill(&j, j.s[1]);
        lose(&j, j.s[1]);
        assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, j.s[1]->node);
    }
    PS_MAP_EACH(const struct ps_sched_job, job, j.w->sched->jobs)
    {
        assert_int_equal(job->servers.removed_count, 1);
    }
    end(&j);
}

/* The process of a server is known to have ended; none follows. */
static void end_server(struct job *j, struct peer *server)
{
    struct ps_member *m = ps_members_get(&j->w->sched->members, server->node);

    m->probe.in_flight = false;
    m->probe.was_reached = true;
    lose_conn(j->w, server);
    feed_event(j->w, (struct ps_event){.type = PS_EV_PROBED,
                                       .dial_failed = {.target = j->w->probed,
                                                       .rc = PS_E_REFUSED}});
    assert_int_equal(
        ps_sched_member_count(j->w->sched, PS_ROLE_SERVER, PS_NODE_STATE_GONE),
        1);
}

static void a_server_that_was_silent_becomes_a_backup(void **state)
{
    struct job j = start_copied_job();
    struct peer *s2 = join_peer(j.w, PS_ROLE_SERVER, "s2");

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    s2->mute = true;
    advance_time(j.w, PS_SECONDS(1));
    assert_int_equal(ps_sched_member_count(j.w->sched, PS_ROLE_SERVER,
                                           PS_NODE_STATE_SUSPECT),
                     1);
    end_server(&j, j.s[1]);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, 0);
    s2->mute = false;
    advance_time(j.w, PS_MILLIS(200));
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, s2->node);
    end(&j);
}

/* A server has no memory for the copies until another job has ended. */
static void a_server_with_free_memory_again_becomes_a_backup(void **state)
{
    struct job j = start_copied_job();
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "psctl");
    struct peer *s2 = peer_new(j.w, PS_ROLE_SERVER, "s2");
    struct ps_msg other = make_job_open(11, 1, 1, -1);
    uint64_t gen;

    (void)state;
    s2->memory = 40u << 20;
    connect_peer(j.w, s2);
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    other.job_open.name = "other";
    deliver_msg(j.w, j.a[0], other);
    gen = last_job_opened(j.a[0])->gen;
    deliver_job_ready(j.w, s2);
    assert_int_equal(last_job_state(s2)->gen, gen);
    open_key(j.w, j.a[0], gen, 2, "v", 3000000);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error, 0);
    end_server(&j, j.s[1]);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, 0);
    /* Nor is it a server of the job. */
    assert_int_equal(last_job_state(s2)->gen, gen);
    assert_int_equal(last_job_state(j.s[0])->places_count, 1);
    assert_string_equal(copies_shown(&j, ctl),
                        "alone 1 of 1, no memory for copies");
    deliver_worker_gone(j.w, j.a[0], gen, 11, true);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, s2->node);
    end(&j);
}

static void a_place_has_its_number_alone(void **state)
{
    struct job j = start_copied_job();
    const uint32_t lost = place_of(&j, j.s[1], j.s[0])->number;

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    lose(&j, j.s[1]);
    assert_true(place_of(&j, j.s[1], j.s[0])->number > lost);
    end(&j);
}

static void a_backup_that_is_being_filled_does_not_take_over(void **state)
{
    struct job j = start_copied_job();

    (void)state;
    fill(&j, j.s[0]);
    lose(&j, j.s[1]);
    assert_failed(&j, "server s1 was lost: another process has taken its name; "
                      "it had the only copy of 1 key of job train");
    end(&j);
}

/* The next process of a server has the memory of its own place alone. */
static void a_backup_that_was_lost_does_not_take_over(void **state)
{
    struct job j = start_job_on(2, true);
    const uint32_t before = place_of(&j, j.s[0], j.s[0])->epoch;

    (void)state;
    fill(&j, j.s[0]);
    lose(&j, j.s[1]);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, 0);
    assert_true(place_of(&j, j.s[0], j.s[0])->epoch > before);
    drop_inbox(j.a[0]);
    lose(&j, j.s[0]); /* The job waits for both. */
    assert_null(find_msg(j.a[0], PS_MSG_KEY_OPENED));
    assert_int_equal(last_job_state(j.s[1])->places_count, 2);
    end(&j);
}

/* A server joins the job as the backup of one that comes back with its memory. */
static void a_server_that_comes_back_gets_a_backup(void **state)
{
    struct job j = start_job_on(2, true);
    struct ps_msg ready = {.code = PS_MSG_JOB_READY};
    const struct ps_msg_job_state *js;

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    end_server(&j, j.s[1]);
    lose(&j, j.s[0]);
    start_again(&j, j.s[1]);
    js = last_job_state(j.s[0]);
    ready.job_ready = (struct ps_msg_job_ready){
        .gen = j.gen,
        .version = js->version,
        .memory = PS_PART_MEMORY_KEPT,
        .epoch = place_of(&j, j.s[0], j.s[0])->epoch};
    deliver_msg(j.w, j.s[0], ready);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, j.s[1]->node);
    assert_int_equal(ps_sched_job_server_of(
                         ps_sched_find_job(j.w->sched, j.gen), j.s[0]->node)
                         ->ready_version,
                     ready.job_ready.version);
    end(&j);
}

/* Its own backup has nothing of what it took over. */
static void a_server_that_took_over_goes_on_alone(void **state)
{
    struct job j = start_job_on(3, false);
    struct ps_rec_place before;

    (void)state;
    for (int i = 0; i < 3; i++) {
        before = *place_of(&j, j.s[i], j.s[i]);
        assert_int_equal(before.backup, j.s[(i + 1) % 3]->node);
        fill(&j, j.s[i]);
    }
    lose(&j, j.s[1]);
    assert_false(place_of(&j, j.s[2], j.s[2])->filled);
    assert_true(place_of(&j, j.s[2], j.s[2])->epoch > before.epoch);
    deliver_filled(&j, j.s[2], before.epoch); /* It was on its way. */
    lose(&j, j.s[2]);
    assert_failed(&j, "server s2 was lost: another process has taken its name; "
                      "it had the only copy of 1 key of job train");
    end(&j);
}

static void only_the_epoch_of_a_place_fills_it(void **state)
{
    struct job j = start_copied_job();

    (void)state;
    fill(&j, j.s[0]);
    deliver_filled(&j, j.s[1], place_of(&j, j.s[1], j.s[1])->epoch - 1);
    lose(&j, j.s[1]);
    assert_failed(&j, "it had the only copy of 1 key of job train");
    end(&j);
}

/* Number of partitions of the job on a server. */
static uint32_t parts_on(const struct job *j, const struct peer *server)
{
    const struct ps_sched_job *job = ps_sched_find_job(j->w->sched, j->gen);
    uint32_t count = 0;

    for (uint32_t i = 0; i < job->keys.count; i++) {
        for (uint32_t p = 0; p < job->keys.list[i]->part_count; p++) {
            count += job->keys.list[i]->parts[p].node == server->node;
        }
    }
    return count;
}

/* A server joins the job as a backup, and dies while it takes it: its next process
 * has nothing of the job, and nothing is lost. */
static void a_server_gets_partitions_when_it_has_taken_the_job(void **state)
{
    struct job j = start_job_on(2, true);

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    lose(&j, j.s[1]);
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, j.s[1]->node);
    open_key(j.w, j.a[0], j.gen, 2, "v", 3000000);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error, 0);
    assert_int_equal(parts_on(&j, j.s[1]), 0);
    lose(&j, j.s[1]);
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    open_key(j.w, j.a[0], j.gen, 3, "u", 3000000);
    assert_true(parts_on(&j, j.s[1]) > 0);
    end(&j);
}

/* Codecs work by partition, so the bits of values depend on the cut. */
static void a_key_is_cut_for_the_servers_that_the_job_asked_for(void **state)
{
    (void)state;
    for (int joins = 0; joins < 2; joins++) {
        struct job j = start_placed_job(2, true, PS_PLACEMENT_MXNET);
        const struct placed before = placed(j.a[0]);

        fill(&j, j.s[0]);
        fill(&j, j.s[1]);
        lose_conn(j.w, j.s[1]);
        if (joins) {
            start_again(&j, j.s[1]);
        } else {
            advance_time(j.w, PS_SECONDS(5)); /* Its lease is over. */
        }
        open_key(j.w, j.a[0], j.gen, 2, "v", 3000000);

        const struct placed after = placed(j.a[0]);

        assert_int_equal(after.m->error, 0);
        assert_int_equal(after.parts, before.parts);
        assert_true(after.parts > 0);
        for (uint32_t i = 0; i < after.parts; i++) {
            assert_int_equal(after.count[i], before.count[i]);
            assert_int_equal(after.node[i], j.s[0]->node);
        }
        end(&j);
    }
}

/* The owner of no value is filled without an answer of the backup. */
static void a_backup_counts_when_it_has_taken_the_job(void **state)
{
    (void)state;
    for (int answers = 0; answers < 2; answers++) {
        struct job j = start_copied_job();
        struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "psctl");

        fill(&j, j.s[0]);
        fill(&j, j.s[1]);
        lose(&j, j.s[1]);
        deliver_job_ready(j.w, j.s[0]);
        fill(&j, j.s[0]);
        fill(&j, j.s[0]);
        assert_string_equal(copies_shown(&j, ctl), "filling 0 %");
        if (answers) {
            deliver_job_ready(j.w, j.s[1]);
            assert_string_equal(copies_shown(&j, ctl), "filling 50 %");
        }
        lose(&j, j.s[0]);
        if (answers) {
            assert_int_equal(last_job_state(j.a[0])->phase,
                             PS_JOB_PHASE_RUNNING);
        } else {
            assert_failed(&j, "it had the only copy of 1 key of job train");
        }
        end(&j);
    }
}

static void a_place_gets_another_backup_after_a_loss(void **state)
{
    struct job j = start_copied_job();
    struct peer *third = join_peer(j.w, PS_ROLE_SERVER, "s2");

    (void)state;
    fill(&j, j.s[0]);
    fill(&j, j.s[1]);
    lose_conn(j.w, j.s[1]);
    advance_time(j.w, PS_SECONDS(5)); /* Its lease is over. */
    assert_int_equal(place_of(&j, j.s[0], j.s[0])->backup, third->node);
    assert_int_equal(place_of(&j, third, third)->backup, j.s[0]->node);
    assert_null(place_of(&j, j.s[1], j.s[0]));
    end(&j);
}

static void a_job_waits_for_its_second_server(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a0");
    struct ps_msg msg = make_job_open(1, 1, 1, -1);

    (void)state;
    msg.job_open.replicas = 2;
    deliver_msg(w, a, msg);
    assert_null(find_msg(s, PS_MSG_JOB_STATE));
    join_peer(w, PS_ROLE_SERVER, "s1");
    assert_int_equal(last_job_state(s)->places_count, 2);
    deliver_worker_gone(w, a, last_job_opened(a)->gen, 1, true);
    end_world(w);
}

static void jobs_without_rounds_have_no_copies(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a0");
    struct ps_msg msg = make_job_open(1, 1, 1, -1);

    (void)state;
    msg.job_open.replicas = 2;
    msg.job_open.mode = PS_MODE_ASYNC;
    msg.job_open.rule = PS_RULE_ACCUMULATE;
    deliver_msg(w, a, msg);
    assert_int_equal(last_job_opened(a)->error, PS_E_UNSUPPORTED);
    expect_substring(last_job_opened(a)->text,
                     "replicas: 2 is for jobs with rounds, and this one has "
                     "mode async");
    msg.job_open.worker = 2;
    msg.job_open.mode = PS_MODE_SYNC;
    msg.job_open.rule = PS_RULE_NONE;
    msg.job_open.replicas = 3;
    deliver_msg(w, a, msg);
    expect_substring(last_job_opened(a)->text,
                     "replicas is 3 and must be 1 or 2");
    end_world(w);
}

static void keys_with_rows_have_no_copies(void **state)
{
    struct job j = start_copied_job();

    (void)state;
    open_kind(j.w, j.a[0], j.gen,
              &(struct ps_msg_key_open){
                  .request = 2, .name = "emb", .count = 64, .row_width = 8});
    expect_substring(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.text,
                     "replicas: 2 is for jobs with rounds and dense keys; key "
                     "'emb' has rows");
    end(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_of_a_job_are_backups_of_each_other),
        cmocka_unit_test(operators_see_how_far_backups_are_filled),
        cmocka_unit_test(a_backup_that_counts_takes_over),
        cmocka_unit_test(a_partition_does_not_move_before_the_backup_counts),
        cmocka_unit_test(a_backup_that_takes_over_asks_for_the_owner),
        cmocka_unit_test(a_backup_of_an_old_file_does_not_take_over),
        cmocka_unit_test(a_failed_job_has_no_lost_backup),
        cmocka_unit_test(a_server_that_is_often_lost_is_remembered_once),
        cmocka_unit_test(a_server_that_was_silent_becomes_a_backup),
        cmocka_unit_test(a_server_with_free_memory_again_becomes_a_backup),
        cmocka_unit_test(a_place_has_its_number_alone),
        cmocka_unit_test(a_backup_that_is_being_filled_does_not_take_over),
        cmocka_unit_test(a_backup_that_was_lost_does_not_take_over),
        cmocka_unit_test(a_server_that_comes_back_gets_a_backup),
        cmocka_unit_test(a_server_that_took_over_goes_on_alone),
        cmocka_unit_test(only_the_epoch_of_a_place_fills_it),
        cmocka_unit_test(a_server_gets_partitions_when_it_has_taken_the_job),
        cmocka_unit_test(a_key_is_cut_for_the_servers_that_the_job_asked_for),
        cmocka_unit_test(a_backup_counts_when_it_has_taken_the_job),
        cmocka_unit_test(a_place_gets_another_backup_after_a_loss),
        cmocka_unit_test(a_job_waits_for_its_second_server),
        cmocka_unit_test(jobs_without_rounds_have_no_copies),
        cmocka_unit_test(keys_with_rows_have_no_copies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
