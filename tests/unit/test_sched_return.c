/* SPDX-License-Identifier: Apache-2.0 */
/* Places of a job, and servers whose memory outlives their process: the job
 * waits for the next process, and goes on when that has the memory. */
#include "core/sched/member/member.h"

#include "sched_world.h"

/* Result of the latest probe of a server's address. */
static void feed_probe(struct job *j, int rc)
{
    feed_event(j->w, (struct ps_event){
                         .type = PS_EV_PROBED,
                         .dial_failed = {.target = j->w->probed, .rc = rc}});
}

/* A job with a key on both servers, which keep their memory. */
static struct job start_kept_job(bool has_optimizer)
{
    struct job j = {.w = world_new()};
    const struct ps_rec_param p = {.name = "lr", .value = 0.1};

    for (uint32_t i = 0; i < 2; i++) {
        j.s[i] = peer_new(j.w, PS_ROLE_SERVER, i == 0 ? "s0" : "s1");
        j.s[i]->keep = true;
        connect_peer(j.w, j.s[i]);
        feed_probe(&j, 0);
    }
    j.a[0] = join_peer(j.w, PS_ROLE_AGENT, "a0");
    j.a[1] = join_peer(j.w, PS_ROLE_AGENT, "a1");
    for (uint64_t i = 0; i < 4; i++) {
        deliver_msg(j.w, j.a[i / 2], make_job_open(1 + i % 2, 4, 2, -1));
    }
    j.gen = last_job_opened(j.a[0])->gen;
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    if (has_optimizer) {
        deliver_msg(j.w, j.a[0],
                    (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                    .optimizer_set = {.gen = j.gen,
                                                      .request = 1,
                                                      .name = "sgd",
                                                      .params = &p,
                                                      .params_count = 1}});
    }
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    return j;
}

static const struct ps_rec_place *place_of(const struct job *j, int server)
{
    const struct ps_msg_job_state *js = last_job_state(j->s[server]);

    assert_int_equal(js->places_count, 2);
    return &js->places[server];
}

/* Another process of the server says hello. */
static void start_again(struct job *j, int server)
{
    struct peer *s = j->s[server];

    s->instance += 100;
    s->session += 100;
    s->sent = 0;
    s->received = 0;
    drop_inbox(s);
    connect_peer(j->w, s);
}

static void deliver_memory(struct job *j, int server,
                           enum ps_part_memory memory, uint32_t epoch)
{
    const struct ps_msg_job_state *js = last_job_state(j->s[server]);

    deliver_msg(j->w, j->s[server],
                (struct ps_msg){.code = PS_MSG_JOB_READY,
                                .job_ready = {.gen = js->gen,
                                              .version = js->version,
                                              .memory = (uint8_t)memory,
                                              .epoch = epoch}});
}

/* The process of s1 ends, after its address was reached. */
static void kill_server(struct job *j)
{
    lose_conn(j->w, j->s[1]);
    feed_probe(j, PS_E_REFUSED);
}

static const char *phase_reason(const struct job *j)
{
    const struct ps_msg_job_state *js = last_job_state(j->a[0]);

    return js->phase == PS_JOB_PHASE_FAILED ? js->reason : "";
}

static const char *standstill(struct job *j)
{
    struct peer *ctl = peer_new(j->w, PS_ROLE_CTL, "ctl");

    connect_peer(j->w, ctl);
    deliver_msg(j->w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_JOBS}});
    return last_msg(ctl, PS_MSG_JOB_ROW)->job_row.standstill;
}

static void places_name_the_processes_and_go_to_servers_alone(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct ps_rec_place *p = place_of(&j, i);

        assert_int_equal(p->node, j.s[i]->node);
        assert_string_equal(p->name, j.s[i]->name);
        assert_int_equal(p->instance, j.s[i]->instance);
        assert_true(p->epoch > 0 && p->epoch <= ps_sched_epoch(j.w->sched));
        assert_true(p->incarnation > 0);
    }
    assert_int_equal(last_job_state(j.a[0])->places_count, 0);
    finish_job(&j);
}

static void a_server_that_comes_back_with_its_memory_goes_on(void **state)
{
    struct job j = start_kept_job(true);
    const uint32_t before = place_of(&j, 1)->epoch;
    const uint32_t other = place_of(&j, 0)->epoch;

    (void)state;
    drop_inbox(j.a[0]);
    kill_server(&j);
    assert_int_equal(last_msg(j.a[0], PS_MSG_MAP)->map.servers_count, 1);
    advance_time(j.w, PS_SECONDS(12));
    expect_substring(standstill(&j),
                     "waits for server s1, which has the only copy of 1 key "
                     "(18 s left)");
    start_again(&j, 1);
    assert_true(place_of(&j, 1)->epoch > before);
    assert_int_equal(place_of(&j, 1)->instance, j.s[1]->instance);
    assert_int_equal(place_of(&j, 0)->epoch, other);
    assert_int_equal(last_msg(j.a[0], PS_MSG_MAP)->map.servers_count, 2);
    /* It has memory of the job, and does not know the job yet. */
    deliver_msg(
        j.w, j.s[1],
        (struct ps_msg){.code = PS_MSG_JOB_READY, .job_ready = {.gen = j.gen}});
    expect_substring(standstill(&j), "waits for server s1");
    /* Of an earlier epoch, before it has taken the place. */
    deliver_memory(&j, 1, PS_PART_MEMORY_NEW, before);
    expect_substring(standstill(&j), "waits for server s1");
    deliver_memory(&j, 1, PS_PART_MEMORY_KEPT, place_of(&j, 1)->epoch);
    assert_string_equal(standstill(&j), "");
    advance_time(j.w, PS_SECONDS(60));
    assert_string_equal(phase_reason(&j), "");
    assert_int_equal(count_msgs(j.a[0], PS_MSG_KEY_OPENED), 0);
    expect_substring(j.w->story, "is back with its memory after 12.0 s");
    finish_job(&j);
}

/* Its hello is the first sign of its predecessor's death. */
static void the_next_process_may_come_before_the_loss_is_noticed(void **state)
{
    struct job j = start_kept_job(true);
    const uint32_t before = place_of(&j, 1)->epoch;

    (void)state;
    lose_conn(j.w, j.s[1]);
    start_again(&j, 1);
    assert_true(place_of(&j, 1)->epoch > before);
    deliver_memory(&j, 1, PS_PART_MEMORY_KEPT, place_of(&j, 1)->epoch);
    advance_time(j.w, PS_SECONDS(60));
    assert_string_equal(phase_reason(&j), "");
    finish_job(&j);
}

/* The same process, which was only cut off, has what it had. */
static void a_process_that_was_cut_off_keeps_its_place(void **state)
{
    struct job j = start_kept_job(true);
    const uint32_t before = place_of(&j, 1)->epoch;
    const uint32_t version = last_job_state(j.s[1])->version;

    (void)state;
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(5));
    expect_substring(standstill(&j), "waits for server s1");
    j.s[1]->mute = false;
    drop_inbox(j.s[1]);
    connect_peer(j.w, j.s[1]);
    /* A state that is not newer would be ignored. */
    assert_true(last_job_state(j.s[1])->version > version);
    assert_true(place_of(&j, 1)->epoch > before);
    deliver_memory(&j, 1, PS_PART_MEMORY_KEPT, place_of(&j, 1)->epoch);
    advance_time(j.w, PS_SECONDS(60));
    assert_string_equal(phase_reason(&j), "");
    finish_job(&j);
}

static void a_server_without_its_memory_is_lost(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    kill_server(&j);
    start_again(&j, 1);
    deliver_memory(&j, 1, PS_PART_MEMORY_NEW, place_of(&j, 1)->epoch);
    expect_substring(phase_reason(&j), "server s1 was lost: ");
    expect_substring(phase_reason(&j),
                     "; it had the only copy of 1 key of job train, and came "
                     "back without it");
    /* It forgets the job. */
    assert_int_equal(last_job_state(j.s[1])->phase, PS_JOB_PHASE_ENDED);
    finish_job(&j);
}

/* It does not know places. */
static void a_server_of_an_earlier_version_is_lost(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    kill_server(&j);
    j.s[1]->keep = false;
    start_again(&j, 1);
    deliver_memory(&j, 1, PS_PART_MEMORY_NONE, 0);
    expect_substring(phase_reason(&j), "and came back without it");
    finish_job(&j);
}

static void a_server_that_does_not_come_back_in_time_is_lost(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    kill_server(&j);
    advance_time(j.w, PS_SECONDS(29));
    assert_string_equal(phase_reason(&j), "");
    advance_time(j.w, PS_SECONDS(2));
    expect_substring(phase_reason(&j),
                     "; it had the only copy of 1 key of job train, and did "
                     "not come back within 30 s");
    finish_job(&j);
}

/* A process that dies again before it is ready begins no new wait. */
static void the_wait_is_for_all_processes_together(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    kill_server(&j);
    for (int i = 0; i < 7; i++) {
        assert_string_equal(phase_reason(&j), "");
        advance_time(j.w, PS_SECONDS(4));
        start_again(&j, 1);
        lose_conn(j.w, j.s[1]);
    }
    advance_time(j.w, PS_SECONDS(4));
    expect_substring(phase_reason(&j), "did not come back within 30 s");
    finish_job(&j);
}

static void without_a_keeper_a_job_does_not_wait(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    lose_conn(j.w, j.s[1]);
    j.s[1]->keep = false; /* The last hello counts. */
    connect_peer(j.w, j.s[1]);
    kill_server(&j);
    expect_substring(phase_reason(&j),
                     "; it had the only copy of 1 key of job train; a server "
                     "comes back with it that is started with --keep, or by "
                     "its unit");
    finish_job(&j);
}

/* A job without keys on one server, which keeps its memory. `runs`: it has taken
 * the job. */
static struct job start_empty_job(bool runs)
{
    struct job j = {.w = world_new()};

    j.s[0] = peer_new(j.w, PS_ROLE_SERVER, "s0");
    j.s[0]->keep = true;
    connect_peer(j.w, j.s[0]);
    feed_probe(&j, 0);
    j.a[0] = join_peer(j.w, PS_ROLE_AGENT, "a0");
    j.a[1] = join_peer(j.w, PS_ROLE_AGENT, "a1");
    for (uint64_t i = 0; i < 4; i++) {
        deliver_msg(j.w, j.a[i / 2], make_job_open(1 + i % 2, 4, 1, -1));
    }
    j.gen = last_job_opened(j.a[0])->gen;
    if (runs) {
        deliver_job_ready(j.w, j.s[0]);
    }
    lose_conn(j.w, j.s[0]);
    feed_probe(&j, PS_E_REFUSED);
    return j;
}

/* Agents have the values: the job waits for a process, not for a host. */
static void without_an_optimizer_a_silent_server_is_replaced(void **state)
{
    struct job j = start_kept_job(false);

    (void)state;
    open_key(j.w, j.a[1], j.gen, 1, "w", 2000000);
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(5));
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.request,
                     0);
    assert_string_equal(standstill(&j), "");
    assert_string_equal(phase_reason(&j), "");
    finish_job(&j);
}

/* As long as it is the only one that the job can have. */
static void
without_an_optimizer_a_silent_server_may_be_the_only_one(void **state)
{
    struct job j = start_empty_job(true);

    (void)state;
    start_again(&j, 0);
    feed_probe(&j, 0);
    deliver_memory(&j, 0, PS_PART_MEMORY_KEPT,
                   last_job_state(j.s[0])->places[0].epoch);
    open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
    lose_conn(j.w, j.s[0]);
    advance_time(j.w, PS_SECONDS(5));
    assert_string_equal(phase_reason(&j), "");
    expect_substring(standstill(&j),
                     "waits for server s0, which has the only copy of 1 key");
    start_again(&j, 0);
    deliver_memory(&j, 0, PS_PART_MEMORY_KEPT,
                   last_job_state(j.s[0])->places[0].epoch);
    advance_time(j.w, PS_SECONDS(60));
    assert_string_equal(phase_reason(&j), "");
    assert_string_equal(standstill(&j), "");
    finish_job(&j);
}

static void without_an_optimizer_others_take_over_in_the_end(void **state)
{
    struct job j = start_kept_job(false);

    (void)state;
    drop_inbox(j.a[0]);
    kill_server(&j);
    assert_int_equal(count_msgs(j.a[0], PS_MSG_KEY_OPENED), 0);
    start_again(&j, 1);
    deliver_memory(&j, 1, PS_PART_MEMORY_NEW, place_of(&j, 1)->epoch);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.request,
                     0);
    assert_int_equal(last_job_state(j.s[1])->phase, PS_JOB_PHASE_ENDED);
    assert_string_equal(phase_reason(&j), "");
    finish_job(&j);
}

/* Declarations wait, and new keys may be placed there meanwhile. */
static void a_declaration_waits_for_the_server(void **state)
{
    struct job j = start_kept_job(false);
    const struct ps_rec_param p = {.name = "lr", .value = 0.1};

    (void)state;
    kill_server(&j);
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){.code = PS_MSG_OPTIMIZER_SET,
                                .optimizer_set = {.gen = j.gen,
                                                  .request = 1,
                                                  .name = "sgd",
                                                  .params = &p,
                                                  .params_count = 1}});
    deliver_job_ready(j.w, j.s[0]);
    assert_null(find_msg(j.a[0], PS_MSG_OPTIMIZER_DONE));
    open_key(j.w, j.a[0], j.gen, 2, "more", 2000000);
    assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error, 0);
    expect_substring(standstill(&j), "the only copy of 2 keys");
    start_again(&j, 1);
    deliver_job_ready(j.w, j.s[0]);
    assert_null(find_msg(j.a[0], PS_MSG_OPTIMIZER_DONE));
    deliver_memory(&j, 1, PS_PART_MEMORY_KEPT, place_of(&j, 1)->epoch);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    finish_job(&j);
}

/* Nothing is lost with it, so its next process need not have the job. */
static void a_job_without_keys_waits_for_its_only_server(void **state)
{
    static const enum ps_part_memory memories[] = {PS_PART_MEMORY_NEW,
                                                   PS_PART_MEMORY_KEPT};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct job j = start_empty_job(i / 2 == 1);

        assert_string_equal(phase_reason(&j), "");
        expect_substring(j.w->story, "waits for server s0, the only one that "
                                     "it can have, for 30 s: ");
        expect_substring(standstill(&j),
                         "waits for server s0, the only one that it can have "
                         "(30 s left)");
        start_again(&j, 0);
        deliver_memory(&j, 0, memories[i % 2],
                       last_job_state(j.s[0])->places[0].epoch);
        advance_time(j.w, PS_SECONDS(60));
        assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
        open_key(j.w, j.a[0], j.gen, 1, "w", 2000000);
        assert_int_equal(last_msg(j.a[0], PS_MSG_KEY_OPENED)->key_opened.error,
                         0);
        finish_job(&j);
    }
}

static void a_job_without_a_server_fails_in_the_end(void **state)
{
    struct job j = start_empty_job(true);

    (void)state;
    advance_time(j.w, PS_SECONDS(31));
    expect_substring(phase_reason(&j), "server s0 was lost: ");
    expect_substring(phase_reason(&j), "; there is no other");
    finish_job(&j);
}

static void a_job_without_keys_takes_another_server(void **state)
{
    struct job j = start_empty_job(true);
    struct peer *other;

    (void)state;
    start_again(&j, 0);
    feed_probe(&j, 0);
    deliver_memory(&j, 0, PS_PART_MEMORY_KEPT,
                   last_job_state(j.s[0])->places[0].epoch);
    other = join_peer(j.w, PS_ROLE_SERVER, "s1");
    feed_probe(&j, 0);
    lose_conn(j.w, j.s[0]);
    feed_probe(&j, PS_E_REFUSED);
    assert_string_equal(phase_reason(&j), "");
    assert_string_equal(standstill(&j), "");
    assert_string_equal(last_job_state(other)->places[0].name, "s1");
    finish_job(&j);
}

/* A member is forgotten some time after its death, but not while a job waits
 * for it; the name keeps its node number. */
static void the_end_of_the_job_ends_the_wait(void **state)
{
    struct job j = start_kept_job(true);

    (void)state;
    kill_server(&j);
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j.w, j.a[i / 2], j.gen, 1 + i % 2, true);
    }
    assert_int_equal(ps_sched_job_count(j.w->sched), 0);
    start_again(&j, 1);
    assert_null(find_msg(j.s[1], PS_MSG_JOB_STATE));
    end_world(j.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_name_the_processes_and_go_to_servers_alone),
        cmocka_unit_test(a_server_that_comes_back_with_its_memory_goes_on),
        cmocka_unit_test(the_next_process_may_come_before_the_loss_is_noticed),
        cmocka_unit_test(a_process_that_was_cut_off_keeps_its_place),
        cmocka_unit_test(a_server_without_its_memory_is_lost),
        cmocka_unit_test(a_server_of_an_earlier_version_is_lost),
        cmocka_unit_test(a_server_that_does_not_come_back_in_time_is_lost),
        cmocka_unit_test(the_wait_is_for_all_processes_together),
        cmocka_unit_test(without_a_keeper_a_job_does_not_wait),
        cmocka_unit_test(without_an_optimizer_a_silent_server_is_replaced),
        cmocka_unit_test(
            without_an_optimizer_a_silent_server_may_be_the_only_one),
        cmocka_unit_test(without_an_optimizer_others_take_over_in_the_end),
        cmocka_unit_test(a_declaration_waits_for_the_server),
        cmocka_unit_test(a_job_without_keys_waits_for_its_only_server),
        cmocka_unit_test(a_job_without_a_server_fails_in_the_end),
        cmocka_unit_test(a_job_without_keys_takes_another_server),
        cmocka_unit_test(the_end_of_the_job_ends_the_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
