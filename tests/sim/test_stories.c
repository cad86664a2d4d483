/* SPDX-License-Identifier: Apache-2.0 */
/* Stories: one thing fails at a known moment, and the cluster does what
 * docs/protocol.md says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/time.h"
#include "proto/ps_msg.h"
#include "support/world.h"

#include <string.h>

static struct world_options four_workers(void)
{
    struct world_options o = {
        .seed = 7,
        .data_seed = 7,
        .servers = 2,
        .agents = 2,
        .workers = 4,
        .rounds = 6,
        .key_count = 2,
        .key = {{"weight", 5000, PS_DTYPE_FLOAT32},
                {"3", 70, PS_DTYPE_INT64, 0, PS_KEY_KIND_INTEGER}},
        .partition_bytes = 4096,
        .on_loss = PS_LOSS_POLICY_WAIT,
    };

    return o;
}

static void all_well(struct world *w, uint32_t workers)
{
    char text[512];

    if (!world_run_workers(w, PS_SECONDS(60))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    for (uint32_t i = 0; i < workers; i++) {
        if (world_worker_error(w, i, text, sizeof(text)) != 0) {
            fail_msg("rank %u: %s\n%s", i, text, world_story(w));
        }
    }
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
}

/* Runs the world to its end. The result is that of the first run, which
 * `*first` keeps; 0: this is the first. */
static void all_well_with_result(struct world *w, uint64_t *first)
{
    all_well(w, 4);
    if (*first == 0) {
        *first = world_result(w, 0);
    }
    assert_int_equal(world_result(w, 0), *first);
}

static void expect_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("'%s' is not in:\n%s", part, text);
    }
}

/* The loss of server 1 ends all workers with an error that says `part`. */
static void expect_server_loss_error(struct world *w, const char *part)
{
    char text[512];

    world_kill_server(w, 1);
    world_run(w, PS_SECONDS(5));
    for (uint32_t i = 0; i < 4; i++) {
        if (world_worker_error(w, i, text, sizeof(text)) == 0) {
            fail_msg("rank %u has no error\n%s", i, world_story(w));
        }
        expect_in(text, part);
    }
}

/* The job outlives the loss of server 1 while rank 3 waits with its push. */
static void lose_server_in_round(struct world *w, uint64_t round)
{
    world_hold_worker(w, 3, round);
    world_run(w, PS_SECONDS(1));
    world_kill_server(w, 1);
    world_run(w, PS_SECONDS(4));
    world_release_worker(w, 3);
    all_well(w, 4);
    expect_in(world_story(w), "GONE");
}

static void job_trains_and_frees_its_memory(void **state)
{
    struct world_options o = four_workers();
    struct world *w = world_new(&o);

    (void)state;
    all_well(w, 4);
    world_free(w);
}

static void the_same_seed_is_the_same_run(void **state)
{
    struct world_options o = four_workers();
    uint64_t hash[2];

    (void)state;
    o.faults = (struct world_faults){.loss = 100,
                                     .duplicate = 100,
                                     .reorder = 100,
                                     .cut = 10,
                                     .until = PS_SECONDS(2)};
    for (int i = 0; i < 2; i++) {
        struct world *w = world_new(&o);

        all_well(w, 4);
        hash[i] = world_trace_hash(w);
        world_free(w);
    }
    assert_int_equal(hash[0], hash[1]);
}

static void another_network_gives_the_same_bits(void **state)
{
    struct world_options o = four_workers();
    uint64_t first = 0;

    (void)state;
    o.optimizer = true;
    o.init = true;
    o.key[1].dtype = PS_DTYPE_FLOAT64;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world *w;

        o.seed = seed;
        w = world_new(&o);
        all_well_with_result(w, &first);
        world_free(w);
    }
}

static void one_and_three_servers_give_the_same_bits(void **state)
{
    struct world_options o = four_workers();
    uint64_t first = 0;

    (void)state;
    for (uint32_t servers = 1; servers <= 3; servers++) {
        struct world *w;

        o.servers = servers;
        w = world_new(&o);
        all_well_with_result(w, &first);
        world_free(w);
    }
}

static void agent_without_servers_merges_rounds(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.servers = 0;
    o.agents = 1;
    o.init = true;
    w = world_new(&o);
    all_well(w, 4);
    world_free(w);
}

static void cut_link_resumes_with_its_messages(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    world_cut(w, "agent0", "server0", PS_MILLIS(30));
    world_run(w, PS_MILLIS(1020));
    world_release_worker(w, 3);
    all_well(w, 4);
    world_free(w);
}

static void several_connections_give_the_same_bits(void **state)
{
    struct world_options o = four_workers();
    uint64_t first = 0;

    (void)state;
    o.optimizer = true;
    o.init = true;
    o.key[1].dtype = PS_DTYPE_FLOAT64;
    for (uint32_t connections = 1; connections <= 4; connections++) {
        struct world *w;

        o.connections = connections;
        w = world_new(&o);
        all_well_with_result(w, &first);
        assert_int_equal(world_subflow_frames(w) > 0, connections > 1);
        world_free(w);
    }
}

/* The checker requires that the main connection sends again what the cut one
 * had. */
static void frames_of_a_cut_subflow_are_resent_on_the_main(void **state)
{
    struct world_options o = four_workers();
    struct world *w;
    uint64_t frames;

    (void)state;
    o.story = true;
    o.connections = 3;
    w = world_new(&o);
    world_hold_worker(w, 1, 3);
    world_run(w, PS_SECONDS(1));
    frames = world_subflow_frames(w);
    world_hold_frames(w, "server0", "agent0", PS_MSG_VALUE);
    world_release_worker(w, 1);
    world_run(w, PS_MILLIS(1010));
    assert_true(world_subflow_frames(w) > frames);
    assert_true(world_cut_subflow(w, "agent0", "server0"));
    assert_true(world_cut_subflow(w, "agent0", "server0"));
    assert_false(world_cut_subflow(w, "agent0", "server0"));
    world_run(w, PS_MILLIS(1200));
    world_release_frames(w, "agent0", PS_MSG_VALUE);
    all_well(w, 4);
    /* New subflows are dialled in place of the cut ones. */
    assert_false(strstr(world_story(w), "connection lost"));
    world_free(w);
}

static void acknowledgements_arrive_before_data(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.key[0].count = 50000;
    o.late_min = 3000; /* Less than a partition. */
    w = world_new(&o);
    all_well(w, 4);
    assert_true(world_acks_ahead(w) > 0);
    world_free(w);
    o.late_min = 0;
    w = world_new(&o);
    all_well(w, 4);
    assert_int_equal(world_acks_ahead(w), 0);
    world_free(w);
}

static void repeated_pushes_on_a_new_link_count_once(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    world_cut(w, "agent0", "server0", PS_MILLIS(900)); /* link_linger: 100 ms */
    world_run(w, PS_MILLIS(2500));
    world_release_worker(w, 3);
    all_well(w, 4); /* The checker knows the exact sums. */
    world_free(w);
}

static void ranks_that_diverge_are_named(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    o.diverge_round = 2;
    w = world_new(&o);
    world_run(w, PS_SECONDS(4));
    expect_in(world_story(w),
              "DIVERGED: rank 0 is in a barrier, ranks 1-3 in a "
              "round");
    assert_false(world_worker_done(w, 0));
    world_run(w, PS_SECONDS(40));
    expect_in(world_story(w), "no rank has gone on for 30");
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_true(world_worker_done(w, rank));
    }
    world_free(w);
}

/* A rank that is busy, for however long, is no part of a ring. */
static void a_busy_rank_is_no_ring(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    o.barrier_every = 0;
    o.diverge_round = 3;
    w = world_new(&o);
    world_hold_worker(w, 3, 2);
    world_run(w, PS_SECONDS(60));
    assert_null(strstr(world_story(w), "DIVERGED"));
    world_release_worker(w, 3);
    world_run(w, PS_SECONDS(64));
    expect_in(world_story(w), "DIVERGED");
    world_free(w);
}

static void lost_worker_is_named_and_can_return(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    world_kill_worker(w, 3);
    world_run(w, PS_MILLIS(1500));
    assert_false(world_worker_done(w, 0));
    world_query_stall(w, 0);
    world_run(w, PS_SECONDS(3));
    expect_in(world_stall_reply(w, 0), "rank 3");
    expect_in(world_stall_reply(w, 0), "on agent1");
    expect_in(world_stall_reply(w, 0), "round 3");
    world_hold_worker(w, 3, 0);
    world_restart_worker(w, 3);
    all_well(w, 4);
    world_free(w);
}

static void policy_fail_names_the_lost_rank_to_every_rank(void **state)
{
    struct world_options o = four_workers();
    struct world *w;
    char text[512];

    (void)state;
    o.on_loss = PS_LOSS_POLICY_FAIL;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    world_kill_worker(w, 3);
    world_run(w, PS_MILLIS(1200));
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(world_worker_done(w, i));
        assert_int_not_equal(world_worker_error(w, i, text, sizeof(text)), 0);
        expect_in(text, "rank 3");
        expect_in(text, "on agent1");
    }
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    world_free(w);
}

static void a_lost_server_moves_its_partitions(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    w = world_new(&o);
    lose_server_in_round(w, 3);
    world_free(w);
}

/* The other server has the partitions, and the round ends, within 0.15 s:
 * refusals by a server that has not received the map cost one RESEND_WAIT, and
 * no timer of half a second or more delays the round. */
static void round_continues_soon_after_the_loss_of_a_server(void **state)
{
    struct world_options o = four_workers();

    (void)state;
    for (o.seed = 1; o.seed <= 24; o.seed++) {
        struct world *w = world_new(&o);
        ps_time killed_at;

        world_hold_worker(w, 3, 3);
        world_run(w, PS_SECONDS(1));
        world_release_worker(w, 3);
        world_run(w, world_now(w) + PS_MICROS(o.seed * 400));
        killed_at = world_now(w);
        world_kill_server(w, (uint32_t)o.seed % 2);
        assert_true(world_run_workers(w, PS_SECONDS(60)));
        assert_in_range(world_now(w) - killed_at, 0, PS_MILLIS(150));
        all_well(w, 4);
        world_free(w);
    }
}

/* Encoded contributions of a round in progress go to the new owner unchanged,
 * and later rounds include their residuals. */
static void a_moved_partition_keeps_its_residuals(void **state)
{
    struct world_options o = four_workers();
    uint64_t value[2][2][7] = {0};

    (void)state;
    o.key[1].dtype = PS_DTYPE_FLOAT32;
    o.compress.name = "topk";
    o.compress.param[0] = (struct ps_rec_param){.name = "k", .value = 0.1};
    o.compress.param[1] = (struct ps_rec_param){.name = "momentum",
                                                .value = 0.5};
    o.compress.params = 2;
    o.story = true;
    for (int lost = 0; lost < 2; lost++) {
        struct world *w = world_new(&o);

        world_hold_worker(w, 3, 3);
        world_run(w, PS_SECONDS(1));
        if (lost) {
            world_kill_server(w, 1);
        }
        world_run(w, PS_SECONDS(4));
        world_release_worker(w, 3);
        all_well(w, 4);
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t v = 1; v <= o.rounds; v++) {
                assert_true(world_value(w, 0, i, v, &value[lost][i][v]));
            }
        }
        world_free(w);
    }
    assert_memory_equal(value[0], value[1], sizeof(value[0]));
}

static void loss_of_a_server_with_weights_fails_the_job(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.optimizer = true;
    o.init = true;
    o.key[1].dtype = PS_DTYPE_FLOAT64;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    expect_server_loss_error(w, "server1");
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    world_free(w);
}

/* Ranks that use nothing of the server wait for those that do. */
static void loss_of_a_server_with_values_fails_an_async_job(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.mode = PS_MODE_ASYNC;
    o.init = true;
    o.barrier_every = o.rounds;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    expect_server_loss_error(w, "a server was lost with the value of");
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    world_free(w);
}

/* A partition of rows migrates away from a server and comes back to it when the
 * new owner is lost: its rows are lost, and every rank gets the error. */
static void rows_lost_with_their_new_owner_fail_the_job(void **state)
{
    struct world_options o = four_workers();
    struct world *w;
    char text[512];

    (void)state;
    o.key[0].width = 50;
    o.init = true;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    world_rebalance(w, "server1");
    world_run(w, PS_SECONDS(2));
    world_kill_server(w, 0);
    world_run(w, PS_SECONDS(5));
    world_release_worker(w, 3);
    world_run(w, PS_SECONDS(10));
    for (uint32_t i = 0; i < 4; i++) {
        if (world_worker_error(w, i, text, sizeof(text)) == 0) {
            fail_msg("rank %u heard nothing\n%s", i, world_story(w));
        }
        expect_in(text, "lost");
    }
    world_free(w);
}

static void run_for(struct world *w, ps_time length)
{
    world_run(w, world_now(w) + length);
}

/* A stall query of the worker is answered within two seconds. */
static void expect_stall_reply(struct world *w, uint32_t rank, const char *part)
{
    world_query_stall(w, rank);
    run_for(w, PS_SECONDS(2));
    expect_in(world_stall_reply(w, rank), part);
    assert_null(
        strstr(world_stall_reply(w, rank), "every rank has done its part"));
}

/* All ranks but rank 3 have pushed; rank 0, on agent0, waits. */
static struct world *all_have_pushed_but_one(struct world_options *o)
{
    struct world *w = world_new(o);

    world_hold_worker(w, 3, 3);
    run_for(w, PS_SECONDS(1));
    return w;
}

static void stall_reply_names_the_missing_connection(void **state)
{
    struct world_options o = four_workers();
    struct world *w = all_have_pushed_but_one(&o);

    (void)state;
    world_cut(w, "agent1", "server1", PS_SECONDS(10));
    world_release_worker(w, 3);
    run_for(w, PS_SECONDS(1));
    /* agent0 learns only by a query that agent1 lacks a connection. */
    for (uint32_t worker = 0; worker < 4; worker += 3) {
        expect_stall_reply(w, worker, "; missing: rank 2 on agent1");
        expect_in(world_stall_reply(w, worker), ", rank 3 on agent1");
        expect_in(world_stall_reply(w, worker),
                  "; and a connection of agent agent1 to server server1 at "
                  "server1:1 (last tried ");
    }
    all_well(w, 4);
    world_free(w);
}

static void stall_reply_names_the_silent_server(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.key_count = 1;
    w = all_have_pushed_but_one(&o);
    world_stop_node(w, "server0", PS_MILLIS(1900));
    world_release_worker(w, 3);
    run_for(w, PS_MILLIS(1500));
    expect_stall_reply(
        w, 0, "; missing: a message from server server0, which agent ");
    expect_in(world_stall_reply(w, 0), " last heard 1.");
    all_well(w, 4);
    world_free(w);
}

static void
a_wait_names_the_agent_that_the_scheduler_does_not_hear(void **state)
{
    struct world_options o = four_workers();
    struct world *w = all_have_pushed_but_one(&o);

    (void)state;
    world_cut(w, "psched", "agent1", PS_SECONDS(10));
    run_for(w, PS_SECONDS(5));
    expect_stall_reply(
        w, 0, "a message from agent agent1, which the scheduler last heard ");
    world_release_worker(w, 3);
    all_well(w, 4);
    world_free(w);
}

/* All ranks have pushed, and the replies are held back by the network. */
static void stall_reply_names_servers_that_owe_replies(void **state)
{
    static const char *const servers[] = {"server0", "server1"};
    struct world_options o = four_workers();
    struct world *w = all_have_pushed_but_one(&o);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        world_hold_frames(w, servers[i], "agent0", PS_MSG_VALUE);
        world_hold_frames(w, servers[i], "agent0", PS_MSG_COMMIT);
    }
    world_release_worker(w, 3);
    run_for(w, PS_SECONDS(1));
    expect_stall_reply(w, 0, "; no rank is missing, awaited: server server");
    world_release_frames(w, "agent0", PS_MSG_VALUE);
    world_release_frames(w, "agent0", PS_MSG_COMMIT);
    all_well(w, 4);
    world_free(w);
}

/* The other server takes the partitions over; no operation waits for the lost
 * one, and no agent dials it. */
static void stall_reply_does_not_name_a_gone_server(void **state)
{
    struct world_options o = four_workers();
    struct world *w;
    size_t told;

    (void)state;
    o.story = true;
    w = all_have_pushed_but_one(&o);
    world_kill_server(w, 1);
    run_for(w, PS_SECONDS(1));
    told = strlen(world_story(w));
    expect_stall_reply(w, 0, "rank 3");
    assert_null(strstr(world_stall_reply(w, 0), "server1"));
    run_for(w, PS_SECONDS(20));
    assert_null(strstr(world_story(w) + told, "server1 at"));
    world_release_worker(w, 3);
    all_well(w, 4);
    world_free(w);
}

/* The network between the scheduler and a member is cut for much longer than a
 * lease; the member's links to others work. Training continues, even if a server
 * has state of which there is no other copy, and no member is declared dead. */
static void
a_member_that_exchanges_data_with_others_is_not_given_up(void **state)
{
    static const char *const names[] = {"server0", "server1", "agent0",
                                        "agent1"};

    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        struct world_options o = four_workers();
        struct world *w;

        o.seed = 100 + i;
        o.story = true;
        o.rounds = 30;
        o.think_time = PS_SECONDS(1);
        if (i < 4) {
            o.optimizer = true;
            o.init = true;
            o.key[1].dtype = PS_DTYPE_FLOAT64;
        } else {
            o.on_loss = PS_LOSS_POLICY_FAIL;
        }
        w = world_new(&o);
        run_for(w, PS_SECONDS(1));
        world_cut(w, "psched", names[i % 4], PS_SECONDS(20));
        all_well(w, 4);
        assert_true(world_now(w) > PS_SECONDS(5));
        expect_in(world_story(w), "is not given up");
        assert_null(strstr(world_story(w), "GONE"));
        world_free(w);
    }
}

/* A server is declared dead while it exchanges messages with agents. One agent
 * has sent its state to the new owner and then gets a commit of the old one for
 * a round whose value it does not request; another agent never gets that commit.
 * Agents ignore messages of the old owner: otherwise a value would be lost that
 * they can still make again. */
static void messages_of_an_old_owner_are_ignored(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    o.key_count = 3;
    o.key[2] = (struct world_key){"one", 6000, PS_DTYPE_FLOAT32, 0,
                                  PS_KEY_KIND_STRING};
    o.collectives = true; /* In round 3 only rank 3 requests its value. */
    w = world_new(&o);
    world_hold_worker(w, 3, 3);
    world_run(w, PS_SECONDS(1));
    for (uint32_t i = 0; i < 2; i++) {
        const char *agent = i == 0 ? "agent0" : "agent1";

        world_hold_frames(w, "psched", agent, PS_MSG_MAP);
        world_hold_frames(w, "psched", agent, PS_MSG_KEY_OPENED);
    }
    world_hold_frames(w, "server1", "agent1", PS_MSG_VALUE);
    world_hold_frames(w, "server1", "agent1", PS_MSG_COMMIT);
    world_lose_witnesses(w);
    world_cut(w, "psched", "server1", PS_SECONDS(10));
    while (world_now(w) < PS_SECONDS(5) &&
           strstr(world_story(w), "GONE") == NULL) {
        run_for(w, PS_MILLIS(1));
    }
    expect_in(world_story(w), "server1 incarnation 1: not heard");
    run_for(w, PS_MILLIS(10));
    world_cut(w, "agent0", "server0", PS_MILLIS(40));
    run_for(w, PS_MILLIS(2));
    world_release_frames(w, "agent0", PS_MSG_KEY_OPENED);
    run_for(w, PS_MILLIS(3));
    world_release_worker(w, 3);
    run_for(w, PS_MILLIS(90));
    world_release_frames(w, "agent1", PS_MSG_MAP);
    world_release_frames(w, "agent1", PS_MSG_KEY_OPENED);
    run_for(w, PS_MILLIS(50));
    world_release_frames(w, "agent0", PS_MSG_MAP);
    all_well(w, 4);
    world_free(w);
}

/* A partition migrates, both owners reply, and one reply is late: it must not
 * overwrite the newer value that is in its place by then. */
static void late_value_does_not_replace_a_newer_one(void **state)
{
    (void)state;
    for (uint64_t seed = 60; seed < 80; seed++) {
        struct world_options o = four_workers();
        struct world *w;

        o.seed = seed;
        o.servers = 3;
        o.agents = 1;
        o.workers = 3;
        o.rounds = 12;
        o.epochs = 3;
        o.key[0] = (struct world_key){"a", 9000, PS_DTYPE_FLOAT32, 0,
                                      PS_KEY_KIND_STRING};
        o.key[1] = (struct world_key){"b", 9000, PS_DTYPE_FLOAT32, 0,
                                      PS_KEY_KIND_STRING};
        o.partition_bytes = 18000; /* Too large for a batch. */
        o.faults = (struct world_faults){.loss = 100,
                                         .duplicate = 100,
                                         .reorder = 100,
                                         .partition = 6,
                                         .rebalance = 60,
                                         .until = PS_SECONDS(4)};
        w = world_new(&o);
        all_well(w, 3);
        world_free(w);
    }
}

/* No rank has pushed yet: the initial rows are lost. */
static void loss_of_initial_rows_fails_the_job(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.key[0].width = 50;
    o.init = true;
    o.story = true;
    w = world_new(&o);
    for (uint32_t i = 0; i < 4; i++) {
        world_hold_worker(w, i, 1);
    }
    world_run(w, PS_SECONDS(1));
    expect_server_loss_error(w, "lost");
    world_free(w);
}

static void a_small_window_never_stops_all_agents(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.key_count = 4;
    o.key[1] = (struct world_key){"b", 20000, PS_DTYPE_FLOAT32, 0,
                                  PS_KEY_KIND_STRING};
    o.key[2] = (struct world_key){"c", 30000, PS_DTYPE_FLOAT32, 0,
                                  PS_KEY_KIND_STRING};
    o.key[3] = (struct world_key){"d", 40000, PS_DTYPE_FLOAT32, 0,
                                  PS_KEY_KIND_STRING};
    o.credit_window = 8192;
    w = world_new(&o);
    all_well(w, 4);
    world_free(w);
}

/* Half of the partitions move at once while frames are lost, so each agent sends
 * them in another order: with their windows used up, the agents have contributed
 * to different rounds, each of which lacks the other agent. Without the loss of
 * a server their orders are the same, and rounds end before windows are full. */
static void rounds_end_after_half_of_the_partitions_move(void **state)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world_options o = four_workers();
        struct world *w;

        o.seed = seed;
        o.data_seed = seed;
        o.workers = 2;
        o.rounds = 8;
        o.placement = PS_PLACEMENT_BALANCED;
        o.key_count = 8;
        for (uint32_t i = 0; i < 8; i++) {
            o.key[i] = (struct world_key){names[i], 20000, PS_DTYPE_FLOAT32, 0,
                                          PS_KEY_KIND_STRING};
        }
        o.initial_credit = 4096;
        o.credit_window = 32 * 4096; /* Partitions fill it exactly. */
        o.faults = (struct world_faults){
            .loss = 100, .reorder = 100, .until = PS_SECONDS(4)};
        w = world_new(&o);
        world_run(w, PS_MILLIS(170));
        world_kill_server(w, (uint32_t)seed % 2);
        all_well(w, 2);
        world_free(w);
    }
}

/* Ranks without further data skip, up to a round that all skip; then another
 * epoch begins. The contributions are the same wherever they are summed. */
static void ranks_without_data_skip_until_all_do(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 3; n++) {
        uint64_t first = 0;

        for (uint32_t servers = n == 2 ? 0 : 1; servers <= 3; servers++) {
            struct world_options o = four_workers();
            struct world *w;

            o.servers = servers;
            o.agents = n == 2 && servers == 0 ? 1 : 2;
            o.rounds = 9;
            o.epochs = 3;
            o.mean = n != 0;
            o.optimizer = n == 1;
            o.init = n == 1;
            o.key[1].dtype = n == 1 ? PS_DTYPE_FLOAT64 : PS_DTYPE_INT64;
            w = world_new(&o);
            all_well(w, 4);
            if (servers == 1) {
                first = world_result(w, 0);
            }
            assert_true(servers == 0 || world_result(w, 0) == first);
            world_free(w);
        }
    }
}

static void a_server_is_lost_while_ranks_have_joined(void **state)
{
    (void)state;
    /* Before, in and after the round that all ranks skip, the fifth. */
    for (uint64_t round = 3; round <= 6; round++) {
        struct world_options o = four_workers();
        struct world *w;

        o.rounds = 10;
        o.epochs = 2;
        o.story = true;
        w = world_new(&o);
        lose_server_in_round(w, round);
        world_free(w);
    }
}

static void a_partition_moves_while_ranks_have_joined(void **state)
{
    (void)state;
    for (uint64_t round = 3; round <= 6; round++) {
        struct world_options o = four_workers();
        struct world *w;

        o.rounds = 10;
        o.epochs = 2;
        o.optimizer = true;
        o.init = true;
        o.accumulate = 2;
        o.key[1].dtype = PS_DTYPE_FLOAT64;
        w = world_new(&o);
        world_hold_worker(w, 3, round);
        world_run(w, PS_SECONDS(1));
        world_rebalance(w, "server1");
        world_run(w, PS_SECONDS(2));
        world_release_worker(w, 3);
        all_well(w, 4);
        world_free(w);
    }
}

/* One agent is cut off from the scheduler meanwhile, and hears of it later. */
static void the_weight_changes_while_a_job_trains(void **state)
{
    struct world_options o = four_workers();
    struct world *w;

    (void)state;
    o.story = true;
    w = world_new(&o);
    world_hold_worker(w, 3, 4);
    world_run(w, PS_SECONDS(1));
    world_cut(w, "psched", "agent0", PS_MILLIS(1400));
    world_set_weight(w, 300);
    world_run(w, PS_SECONDS(2));
    expect_in(world_story(w), "weight 300, was 100");
    world_set_weight(w, 1);
    world_release_worker(w, 3);
    all_well(w, 4);
    expect_in(world_story(w), "weight 1, was 300");
    world_free(w);
}

/* The scheduler has the scalars of all ranks although a link is cut and answers
 * are late. */
static void scalars_reach_the_scheduler_through_faults(void **state)
{
    struct world_options o = four_workers();
    double sum = 0;
    struct world *w;

    (void)state;
    o.reports = true;
    o.rounds = 8;
    w = world_new(&o);
    world_hold_worker(w, 3, 4);
    world_run(w, PS_MILLIS(900));
    world_cut(w, "psched", "agent0", PS_MILLIS(1400));
    world_run(w, PS_SECONDS(3));
    assert_int_equal(world_scalar(w, "begun", &sum), 4);
    assert_true(sum == 0 + 1 + 2 + 3);
    world_hold_frames(w, "psched", "agent1", PS_MSG_REPORT_DONE);
    world_release_worker(w, 3);
    world_run(w, PS_SECONDS(6));
    /* The second rank there waits for the answer to the first. */
    assert_true(world_scalar(w, "ended", &sum) >= 3);
    assert_int_equal(world_scalar(w, "round", &sum), 4);
    assert_true(sum >= 3 * 8);
    world_release_frames(w, "agent1", PS_MSG_REPORT_DONE);
    all_well(w, 4);
    world_free(w);
}

/* Partitions migrate to a server that is lost at once, and so come back; some or
 * all agents are cut from the scheduler meanwhile and see neither change. */
static void partition_returns_before_agents_get_its_placements(void **state)
{
    (void)state;
    for (uint32_t unheard = 0; unheard < 4; unheard++) {
        struct world_options o = four_workers();
        struct world *w;

        o.story = true;
        w = world_new(&o);
        for (uint32_t rank = 0; rank < 4; rank++) {
            world_hold_worker(w, rank, 4);
        }
        world_run(w, PS_SECONDS(1));
        if (unheard % 2 != 0) {
            world_cut(w, "psched", "agent0", PS_MILLIS(1400));
        }
        if (unheard / 2 != 0) {
            world_cut(w, "psched", "agent1", PS_MILLIS(1400));
        }
        world_rebalance(w, "server1");
        world_run(w, PS_MILLIS(1500));
        expect_in(world_story(w), "rebalanced:");
        world_kill_server(w, 0);
        world_run(w, PS_SECONDS(3));
        for (uint32_t rank = 0; rank < 4; rank++) {
            world_release_worker(w, rank);
        }
        all_well(w, 4);
        world_free(w);
    }
}

/* All ranks in the round get the error, and ranks that broadcast get the joined
 * root's number. */
static void a_root_that_has_joined_is_an_error(void **state)
{
    (void)state;
    for (uint32_t agents = 0; agents <= 4; agents++) {
        struct world_options o = four_workers();
        struct world *w;
        char text[512];
        uint32_t named = 0;

        o.servers = agents == 0 ? 0 : 2;
        o.agents = agents == 0 ? 1 : agents;
        o.rounds = 8;
        o.epochs = 1;
        o.collectives = true;
        o.lone_root = true;
        w = world_new(&o);
        if (!world_run_workers(w, PS_SECONDS(60))) {
            fail_msg("%s", world_error(w));
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(world_worker_error(w, i, text, sizeof(text)),
                             PS_E_MISMATCH);
            expect_in(text, "has joined and cannot be the root");
            named += strstr(text, " from a rank ") == NULL;
        }
        assert_true(named > 0);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_trains_and_frees_its_memory),
        cmocka_unit_test(the_same_seed_is_the_same_run),
        cmocka_unit_test(another_network_gives_the_same_bits),
        cmocka_unit_test(one_and_three_servers_give_the_same_bits),
        cmocka_unit_test(agent_without_servers_merges_rounds),
        cmocka_unit_test(cut_link_resumes_with_its_messages),
        cmocka_unit_test(several_connections_give_the_same_bits),
        cmocka_unit_test(frames_of_a_cut_subflow_are_resent_on_the_main),
        cmocka_unit_test(acknowledgements_arrive_before_data),
        cmocka_unit_test(repeated_pushes_on_a_new_link_count_once),
        cmocka_unit_test(ranks_that_diverge_are_named),
        cmocka_unit_test(a_busy_rank_is_no_ring),
        cmocka_unit_test(lost_worker_is_named_and_can_return),
        cmocka_unit_test(policy_fail_names_the_lost_rank_to_every_rank),
        cmocka_unit_test(a_lost_server_moves_its_partitions),
        cmocka_unit_test(round_continues_soon_after_the_loss_of_a_server),
        cmocka_unit_test(a_moved_partition_keeps_its_residuals),
        cmocka_unit_test(loss_of_a_server_with_weights_fails_the_job),
        cmocka_unit_test(loss_of_a_server_with_values_fails_an_async_job),
        cmocka_unit_test(rows_lost_with_their_new_owner_fail_the_job),
        cmocka_unit_test(stall_reply_names_the_missing_connection),
        cmocka_unit_test(stall_reply_names_the_silent_server),
        cmocka_unit_test(
            a_wait_names_the_agent_that_the_scheduler_does_not_hear),
        cmocka_unit_test(stall_reply_names_servers_that_owe_replies),
        cmocka_unit_test(stall_reply_does_not_name_a_gone_server),
        cmocka_unit_test(
            a_member_that_exchanges_data_with_others_is_not_given_up),
        cmocka_unit_test(messages_of_an_old_owner_are_ignored),
        cmocka_unit_test(late_value_does_not_replace_a_newer_one),
        cmocka_unit_test(loss_of_initial_rows_fails_the_job),
        cmocka_unit_test(a_small_window_never_stops_all_agents),
        cmocka_unit_test(rounds_end_after_half_of_the_partitions_move),
        cmocka_unit_test(ranks_without_data_skip_until_all_do),
        cmocka_unit_test(a_server_is_lost_while_ranks_have_joined),
        cmocka_unit_test(a_partition_moves_while_ranks_have_joined),
        cmocka_unit_test(partition_returns_before_agents_get_its_placements),
        cmocka_unit_test(the_weight_changes_while_a_job_trains),
        cmocka_unit_test(scalars_reach_the_scheduler_through_faults),
        cmocka_unit_test(a_root_that_has_joined_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
