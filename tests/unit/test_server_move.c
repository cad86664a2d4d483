/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of partitions, as stories: each server is a world of its own, and the test
 * plays the scheduler, and carries copies from one world to the other. */
#include "server_world.h"

#include "core/part/store.h"
#include "core/server/move.h"

#define KEY    1u
#define SOURCE 2 /* Agent of the target's world that is the source. */

static struct world *server_with(const struct world_options *opt)
{
    struct world *w = world_new(opt);

    sched_send_map(w);
    w->agents[SOURCE].is_owner = true;
    return w;
}

static struct world *server(void)
{
    return server_with(&(struct world_options){.slots = 2});
}

static void push_both(struct world *w, uint64_t round, float a, float b)
{
    agent_push_f32(&w->agents[0], KEY, round, a);
    agent_push_f32(&w->agents[1], KEY, round, b);
}

/* The target's world gets the last copy that the source's peer got. */
static void carry(struct world *from, struct world *to)
{
    const struct peer *p = &from->peer;
    struct agent *source = &to->agents[SOURCE];
    struct ps_msg m = {.code = PS_MSG_COPY, .copy = p->last};
    bool any = false;

    if (source->conn == 0) {
        agent_dial(source);
        assert_int_equal(source->rejected, 0);
    }
    for (uint8_t i = 0; i < PS_PART_BUFFERS; i++) {
        if (p->lens[i] > 0) {
            m.copy.buffer = i;
            agent_send(source, &m, p->data[i], p->lens[i]);
            any = true;
        }
    }
    if (!any) {
        agent_send(source, &m, NULL, 0);
    }
    world_run(to, PS_MILLIS(1));
}

/* A whole move until the scheduler may complete it. */
static void fill(struct world *from, struct world *to, uint64_t number)
{
    const uint32_t told = from->moved_count;

    sched_move(to, number, KEY, &to->agents[SOURCE]);
    sched_move(from, number, KEY, NULL);
    assert_int_equal(from->peer.last.move, number);
    carry(from, to);
    assert_int_equal(to->agents[SOURCE].copied_number, from->peer.last.number);
    assert_int_equal(from->moved_count, told);
    peer_confirm(&from->peer);
    assert_int_equal(from->moved_count, told + 1);
    assert_true(from->last_moved.is_filled);
    assert_int_equal(from->last_moved.move, number);
}

static void complete(struct world *from, struct world *to, uint64_t number,
                     uint32_t epoch)
{
    sched_move_end(to, number, KEY, true, epoch);
    sched_move_end(from, number, KEY, false, epoch);
}

/* Contributions to the open round are not copied: they are void at the old owner,
 * and the new one has the version before it. */
static void a_move_voids_contributions_to_the_open_round(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    agent_push_f32(&from->agents[0], KEY, 2, 10);
    fill(from, to, 1);
    agent_pull(&to->agents[0], KEY, 1); /* Not its own yet. */
    assert_int_equal(to->agents[0].seen[KEY].error, PS_E_MIGRATING);
    agent_push_f32(&to->agents[1], KEY, 2, 20);
    assert_int_equal(to->agents[1].seen[KEY].error, PS_E_MIGRATING);
    assert_int_equal(to->agents[0].seen[KEY].values, 0);

    complete(from, to, 1, 5);
    assert_int_equal(from->agents[0].seen[KEY].error, PS_E_STALE);
    assert_int_equal(from->agents[0].seen[KEY].value_version, 1);
    /* An agent with the old placement does not create the partition again at
     * the old owner. */
    agent_push_f32(&from->agents[1], KEY, 2, 10);
    assert_int_equal(from->agents[1].seen[KEY].error, PS_E_STALE);

    agent_pull(&to->agents[1], KEY, 1);
    assert_true(agent_f32(&to->agents[1], KEY) == 5);
    push_both(to, 2, 10, 20);
    assert_int_equal(to->agents[0].seen[KEY].value_version, 2);
    assert_true(agent_f32(&to->agents[0], KEY) == 30);
    world_free(from);
    world_free(to);
}

/* The old owner goes on. From the first confirmation of its newest version on it
 * answers what the new one has, and nothing else. */
static void
replies_wait_for_the_new_owner_once_it_has_the_partition(void **state)
{
    struct world *from = server();
    struct seen *seen = &from->agents[0].seen[KEY];

    (void)state;
    push_both(from, 1, 2, 3);
    sched_move(from, 1, KEY, NULL);
    push_both(from, 2, 10, 20); /* The copy of version 1 is on its way. */
    assert_int_equal(seen->value_version, 2);
    peer_confirm(&from->peer);
    assert_int_equal(from->moved_count, 0);
    assert_int_equal(from->peer.image.version, 2);
    peer_confirm(&from->peer);
    assert_int_equal(from->moved_count, 1);

    push_both(from, 3, 100, 200);
    assert_int_equal(seen->value_version, 2);
    agent_pull(&from->agents[1], KEY, 3);
    assert_int_equal(from->agents[1].seen[KEY].value_version, 2);
    assert_int_equal(from->peer.image.version, 3);
    peer_confirm(&from->peer);
    assert_int_equal(seen->value_version, 3);
    assert_int_equal(from->agents[1].seen[KEY].value_version, 3);
    assert_int_equal(from->moved_count, 1);

    /* The scheduler does not know of version 4, and nobody else has seen it. */
    push_both(from, 4, 1, 1);
    assert_int_equal(seen->value_version, 3);
    sched_move_end(from, 1, KEY, false, 5);
    assert_int_equal(seen->value_version, 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(from->agents[i].seen[KEY].error, PS_E_STALE);
    }
    world_free(from);
}

/* While rounds are merged, copies that fill a target have a tenth of the time. */
static void copies_that_fill_leave_the_time_to_rounds(void **state)
{
    struct world *from = server();
    uint32_t copies;

    (void)state;
    push_both(from, 1, 2, 3);
    for (int i = 0; i < 2; i++) {
        agent_push_f32(&from->agents[i], KEY + 1, 1, 1);
        agent_push_f32(&from->agents[i], KEY + 2, 1, 1);
        agent_push_f32(&from->agents[i], KEY + 3, 1, 1);
    }
    /* Nothing is merged meanwhile: the next one leaves at once. */
    sched_move(from, 1, KEY, NULL);
    world_run(from, PS_MILLIS(10));
    peer_confirm(&from->peer);
    copies = from->peer.copies;
    sched_move(from, 2, KEY + 1, NULL);
    assert_int_equal(from->peer.copies, copies + 1);

    for (int i = 0; i < 2; i++) {
        agent_push_f32(&from->agents[i], KEY + 3, 2, 1);
    }
    world_run(from, PS_MILLIS(10));
    peer_confirm(&from->peer);
    sched_move(from, 3, KEY + 2, NULL);
    world_run(from, PS_MILLIS(80));
    assert_int_equal(from->peer.copies, copies + 1);
    /* Replies wait for what is no filling any more. */
    for (int i = 0; i < 2; i++) {
        agent_push_f32(&from->agents[i], KEY + 1, 2, 1);
    }
    assert_int_equal(from->peer.copies, copies + 2);
    peer_confirm(&from->peer);
    world_run(from, PS_MILLIS(20));
    assert_int_equal(from->peer.copies, copies + 3);
    world_free(from);
}

static void a_move_that_is_given_up_changes_no_value(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    assert_true(ps_pool_used(to->pool) > 0);
    push_both(from, 2, 10, 20);
    assert_int_equal(from->agents[1].seen[KEY].value_version, 1);

    sched_move_end(to, 1, KEY, false, 5);
    assert_int_equal(ps_pool_used(to->pool), 0);
    /* The round that waited for the target is answered. */
    sched_move_end(from, 1, KEY, true, 5);
    assert_int_equal(from->agents[1].seen[KEY].value_version, 2);
    assert_true(agent_f32(&from->agents[1], KEY) == 30);
    /* Repeated: no further effect. */
    sched_move_end(from, 1, KEY, true, 5);
    sched_move_end(to, 1, KEY, false, 5);
    push_both(from, 3, 1, 1);
    assert_int_equal(from->agents[0].seen[KEY].value_version, 3);
    world_free(from);
    world_free(to);
}

static void a_partition_moves_back_to_its_first_owner(void **state)
{
    struct world *from = server();
    struct world *to = server();
    uint32_t copies;

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    complete(from, to, 1, 5);
    push_both(to, 2, 10, 20);

    fill(to, from, 2);
    /* A late message of the first move changes nothing. */
    copies = from->peer.copies;
    sched_move(from, 1, KEY, NULL);
    assert_int_equal(from->peer.copies, copies);
    sched_move_end(from, 1, KEY, false, 5);
    complete(to, from, 2, 6);
    agent_pull(&from->agents[1], KEY, 2);
    assert_true(agent_f32(&from->agents[1], KEY) == 30);
    push_both(from, 3, 1, 1);
    assert_int_equal(from->agents[0].seen[KEY].value_version, 3);
    world_free(from);
    world_free(to);
}

/* The state of an agent whose placement has this epoch. */
static void restore_at(struct agent *a, uint32_t epoch, uint64_t version,
                       const float *value)
{
    struct ps_rec_part part = {
        .key = KEY, .round = version, .count = value != NULL};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_RESTORE,
                                .restore = {.gen = GEN,
                                            .epoch = epoch,
                                            .slot = a->index,
                                            .has_value = value != NULL,
                                            .parts = &part,
                                            .parts_count = 1,
                                            .committed_version = version}},
               value, value != NULL ? sizeof(*value) : 0);
    world_run_until_idle(a->w);
}

/* The new owner is lost at once: the old one is the owner again. Agents get
 * that placement before the old owner gets the end of the move. */
static void old_owner_continues_when_the_new_one_is_lost(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *a = from->agents;
    const float five = 5;

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    sched_move_end(to, 1, KEY, true, 5);
    restore_at(&a[0], 6, 1, &five);
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
    sched_move_end(from, 1, KEY, false, 5);
    restore_at(&a[0], 5, 1, &five); /* Not there yet. */
    agent_push_f32(&a[0], KEY, 2, 10);
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);

    /* Agent 1 has not received epoch 5 and sees no change: it is asked for its
     * state. */
    a[1].seen[KEY].error = 0;
    restore_at(&a[0], 6, 1, NULL);
    assert_int_equal(a[1].seen[KEY].error, PS_E_STALE);
    /* The server has not received it either: its map is older. */
    assert_int_equal(a[1].seen[KEY].epoch, 6);
    a[0].seen[KEY].error = 0;
    agent_pull(&a[0], KEY, 1);
    assert_int_equal(a[0].seen[KEY].error, 0);
    a[1].seen[KEY].error = 0;
    agent_push_f32(&a[1], KEY, 2, 20);
    assert_int_equal(a[1].seen[KEY].error, PS_E_STALE);
    restore_at(&a[1], 6, 1, &five);
    assert_int_equal(a[0].seen[KEY].values, 2);
    push_both(from, 2, 10, 20);
    assert_int_equal(a[1].seen[KEY].value_version, 2);
    assert_true(agent_f32(&a[1], KEY) == 30);
    world_free(from);
    world_free(to);
}

/* The source is lost before the target hears of the move, and the partition becomes
 * the target's, which makes versions of it. */
static void a_move_does_not_begin_after_the_loss_of_its_source(void **state)
{
    struct world *to = server();
    struct agent *a = to->agents;

    (void)state;
    restore_at(&a[0], 6, 0, NULL);
    restore_at(&a[1], 6, 0, NULL);
    push_both(to, 1, 2, 3);
    assert_int_equal(a[1].seen[KEY].value_version, 1);
    sched_move_at(to, 1, KEY, &a[SOURCE], 5);
    agent_pull(&a[1], KEY, 1);
    sched_move_end(to, 1, KEY, false, 6);
    push_both(to, 2, 10, 20);
    assert_int_equal(a[0].seen[KEY].error, 0);
    assert_int_equal(a[1].seen[KEY].error, 0);
    assert_int_equal(a[1].seen[KEY].value_version, 2);

    /* It leaves, and is about to come back when the other server is lost. */
    sched_move_at(to, 2, KEY, NULL, 6);
    sched_move_end(to, 2, KEY, false, 7);
    restore_at(&a[0], 9, 0, NULL);
    restore_at(&a[1], 9, 0, NULL);
    push_both(to, 1, 2, 3);
    sched_move_at(to, 3, KEY, &a[SOURCE], 8);
    sched_move_end(to, 3, KEY, false, 9);
    push_both(to, 2, 10, 20);
    assert_int_equal(a[1].seen[KEY].value_version, 2);

    /* One of a newer placement begins. */
    sched_move_at(to, 4, KEY, &a[SOURCE], 9);
    a[0].seen[KEY].error = 0;
    agent_pull(&a[0], KEY, 2);
    assert_int_equal(a[0].seen[KEY].error, PS_E_MIGRATING);
    world_free(to);
}

/* The new owner knows where the partition begins in its array. */
static void a_moved_partition_keeps_its_place(void **state)
{
    struct world *from = server();
    struct world *to = server();
    const uint64_t hash = 6;
    const uint64_t first = 70000;
    const float zero = 0;
    struct ps_rec_part part = {.key = KEY, .count = 1};

    (void)state;
    agent_send(&from->agents[0],
               &(struct ps_msg){.code = PS_MSG_INIT,
                                .init = {.gen = GEN,
                                         .parts = &part,
                                         .parts_count = 1,
                                         .name_hashes = (uint64_t *)&hash,
                                         .name_hashes_count = 1,
                                         .first_elems = (uint64_t *)&first,
                                         .first_elems_count = 1}},
               &zero, sizeof(zero));
    world_run_until_idle(from);
    fill(from, to, 1);
    complete(from, to, 1, 5);
    sched_move(to, 2, KEY, NULL);
    assert_true(to->peer.image.first_elem == first);
    world_free(from);
    world_free(to);
}

/* A key that nobody has given a value yet moves, too. */
static void a_partition_without_a_value_moves(void **state)
{
    struct world *from = server();
    struct world *to = server();
    const float five = 5;

    (void)state;
    fill(from, to, 1);
    agent_init(&from->agents[0], KEY, 1, &five);
    assert_int_equal(from->agents[0].seen[KEY].error, PS_E_MIGRATING);
    complete(from, to, 1, 5);
    agent_init(&to->agents[0], KEY, 1, &five);
    agent_pull(&to->agents[1], KEY, 0);
    assert_true(agent_f32(&to->agents[1], KEY) == 5);
    world_free(from);
    world_free(to);
}

/* Agents that know the next placement send an init to the target before it has
 * heard of the end of the move, which was given up: its copy is dropped then. */
static void the_target_of_a_move_answers_no_init_by_its_copy(void **state)
{
    struct world *from = server();
    struct world *to = server();
    const struct seen *seen = &to->agents[0].seen[KEY];
    const float five = 5;

    (void)state;
    agent_init(&from->agents[0], KEY, 1, &five);
    sched_move(to, 1, KEY, &to->agents[SOURCE]);
    sched_move(from, 1, KEY, NULL);
    carry(from, to);
    agent_init(&to->agents[0], KEY, 1, &five);
    assert_int_equal(seen->commits, 0);
    assert_int_equal(seen->error, PS_E_MIGRATING);

    sched_move_end(to, 1, KEY, false, 5);
    agent_init(&to->agents[0], KEY, 1, &five);
    assert_int_equal(seen->commits, 1);
    agent_pull(&to->agents[1], KEY, 0);
    assert_true(agent_f32(&to->agents[1], KEY) == 5);
    world_free(from);
    world_free(to);
}

/* A copy leaves when the merge under way has ended, and is of its result. */
static void a_copy_waits_for_the_end_of_a_merge(void **state)
{
    struct world *from = server();

    (void)state;
    from->hold_compute = true;
    push_both(from, 1, 2, 3);
    assert_int_equal(from->compute_count, 1);
    sched_move(from, 1, KEY, NULL);
    assert_int_equal(from->peer.copies, 0);
    world_computed(from, 0, 0);
    world_run_until_idle(from);
    assert_int_equal(from->peer.copies, 1);
    assert_int_equal(from->peer.image.version, 1);
    assert_true(*(const float *)(const void *)from->peer.data[0] == 5);
    world_free(from);
}

/* The scheduler counts norms that the owner reports. So a partition moves between
 * two steps that need them, and begins none before the end. */
static void
a_step_with_norms_is_not_under_way_when_a_partition_has_moved(void **state)
{
    static const struct ps_rec_param params[] = {{"lr", 0.1},
                                                 {"clip_global_norm", 1}};

    const float zero = 0;
    struct world *from = server_with(&(struct world_options){
        .slots = 2, .params = params, .params_count = 2});
    struct ps_msg_norm_result result = {
        .gen = GEN, .key = KEY, .round = 1, .stage = PS_STAGE_GRADIENT};

    (void)state;
    agent_init(&from->agents[0], KEY, 1, &zero);
    sched_move(from, 1, KEY, NULL);
    push_both(from, 1, 2, 3);
    assert_int_equal(from->norm_part_count, 1);
    peer_confirm(&from->peer);
    assert_int_equal(from->moved_count, 0);
    sched_send_norm_result(from, &result);
    assert_int_equal(from->peer.image.version, 1);
    peer_confirm(&from->peer);
    assert_int_equal(from->moved_count, 1);
    assert_int_equal(from->agents[0].seen[KEY].value_version, 1);

    push_both(from, 2, 2, 3);
    assert_int_equal(from->norm_part_count, 1);
    sched_move_end(from, 1, KEY, true, 5);
    assert_int_equal(from->norm_part_count, 2);
    world_free(from);
}

/* Messages of a link may overtake each other: a move that comes after its end must
 * not begin. */
static void late_messages_of_a_move_change_nothing(void **state)
{
    struct world *from = server();
    struct world *to = server();
    uint32_t copies;

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    sched_move_end(from, 1, KEY, true, 5); /* Given up: the partition stays. */
    sched_move_end(to, 1, KEY, false, 5);
    copies = from->peer.copies;
    sched_move(from, 1, KEY, NULL);
    assert_int_equal(from->peer.copies, copies);
    carry(from, to);
    sched_move(to, 1, KEY, &to->agents[SOURCE]);
    push_both(from, 2, 20, 30);
    assert_true(agent_f32(&from->agents[0], KEY) == 50);
    push_both(to, 1, 4, 5); /* Its own since the loss of the other, say. */
    assert_int_equal(to->agents[0].seen[KEY].error, 0);

    /* The end can overtake all messages of its move. */
    copies = from->peer.copies;
    sched_move_end(from, 2, KEY, true, 5);
    sched_move(from, 2, KEY, NULL);
    assert_int_equal(from->peer.copies, copies);
    push_both(from, 3, 200, 300);
    assert_true(agent_f32(&from->agents[0], KEY) == 500);

    /* The next move is not touched by this; what the target had is void. */
    fill(from, to, 3);
    complete(from, to, 3, 6);
    agent_pull(&to->agents[0], KEY, 3);
    assert_true(agent_f32(&to->agents[0], KEY) == 500);
    world_free(from);
    world_free(to);
}

/* The end of a move is later than the begin of the next one. */
static void the_next_move_ends_the_one_before(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    push_both(from, 2, 10, 20);
    sched_move(from, 2, KEY, NULL); /* It was given up. */
    assert_int_equal(from->agents[0].seen[KEY].value_version, 2);
    sched_move(from, 3, KEY, &from->agents[SOURCE]); /* It was completed. */
    agent_pull(&from->agents[0], KEY, 1);
    assert_int_equal(from->agents[0].seen[KEY].error, PS_E_MIGRATING);
    sched_move_end(from, 2, KEY, false, 6);
    agent_pull(&from->agents[0], KEY, 1);
    assert_int_equal(from->agents[0].seen[KEY].error, PS_E_MIGRATING);
    world_free(from);
    world_free(to);
}

/* The next move, which is given up, is all that the old owner hears of the end of
 * the one before: the partition is still away. */
static void a_partition_stays_away_when_its_move_back_is_given_up(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *a = from->agents;
    const float five = 5;

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    sched_move_at(from, 2, KEY, &a[SOURCE], 5); /* It was completed. */
    sched_move_end(from, 1, KEY, false, 5);
    sched_move_end(from, 2, KEY, false, 6);
    agent_push_f32(&a[0], KEY, 2, 10);
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
    a[0].seen[KEY].error = 0;
    restore_at(&a[0], 5, 1, &five);
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
    /* It comes back without a move. */
    a[0].seen[KEY].error = 0;
    restore_at(&a[0], 6, 1, &five);
    assert_int_equal(a[0].seen[KEY].error, 0);
    world_free(from);
    world_free(to);
}

/* Of a message for another process of the server. */
static void a_move_of_another_process_does_not_begin(void **state)
{
    struct world *from = server();

    (void)state;
    push_both(from, 1, 2, 3);
    ps_link_send_msg(
        from->sched,
        &(struct ps_msg){.code = PS_MSG_MOVE,
                         .move = {.move = 1,
                                  .gen = GEN,
                                  .key = KEY,
                                  .source = from->server->uplink.node,
                                  .source_instance = 78,
                                  .target = PEER_NODE,
                                  .target_instance = PEER_INSTANCE}},
        from->now, &from->sched_out);
    world_run_until_idle(from);
    assert_int_equal(from->peer.copies, 0);
    world_free(from);
}

static void moves_end_with_their_job(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    push_both(from, 2, 2, 3);
    sched_end(from);
    sched_end(to);
    assert_int_equal(ps_server_residue(from->server), 0);
    assert_int_equal(ps_pool_used(to->pool), 0);
    sched_move_end(from, 1, KEY, false, 5);
    sched_move_end(to, 1, KEY, true, 5);
    sched_move(from, 2, KEY, NULL);
    world_free(from);
    world_free(to);
}

/* Without rounds a partition has clocks, which copies have not. */
static void partitions_without_rounds_do_not_move(void **state)
{
    struct world *w = server();
    const float one = 1;

    (void)state;
    agent_init(&w->agents[0], KEY, 1, &one);
    agent_push(&w->agents[0], &(struct push_options){.key = KEY,
                                                     .round = 1,
                                                     .count = 1,
                                                     .data = &one,
                                                     .rule = PS_RULE_ACCUMULATE,
                                                     .clock = 1});
    sched_move(w, 1, KEY, NULL);
    assert_int_equal(w->last_moved.error, PS_E_UNSUPPORTED);
    assert_false(w->last_moved.is_filled);
    assert_non_null(strstr(w->moved_text, "cannot be moved"));
    assert_int_equal(w->peer.copies, 0);
    sched_move_end(w, 1, KEY, true, 5);
    agent_pull(&w->agents[0], KEY, 1);
    assert_true(agent_f32(&w->agents[0], KEY) == 2);
    world_free(w);
}

/* Rule M8: it has not heard of all agents what they know. */
static void a_partition_that_has_just_come_back_does_not_move(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *a = from->agents;
    const float five = 5;

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    sched_move_end(from, 1, KEY, false, 5);
    restore_at(&a[0], 6, 1, &five);
    sched_move(from, 2, KEY, NULL);
    assert_int_equal(from->last_moved.error, PS_E_AGAIN);
    assert_int_equal(from->last_moved.move, 2);
    sched_move_end(from, 2, KEY, true, 6);
    agent_push_f32(&a[1], KEY, 2, 10);
    assert_int_equal(a[1].seen[KEY].error, PS_E_STALE);
    a[1].seen[KEY].error = 0;
    restore_at(&a[1], 6, 1, &five);
    agent_push_f32(&a[1], KEY, 2, 10);
    assert_int_equal(a[1].seen[KEY].error, 0);
    sched_move(from, 3, KEY, NULL);
    assert_int_equal(from->last_moved.move, 2); /* It has begun. */
    world_free(from);
    world_free(to);
}

/* Each closes the connection of the other server, and leaves nothing. */
static void malformed_copies_are_refused(void **state)
{
    static const struct {
        uint64_t lens[8];
        uint32_t lens_count;
        uint8_t dtype;
        uint32_t count;
        uint8_t codec;
        size_t len;
        uint64_t rounds;
        bool no_image;
        bool no_number;
    } bad[] = {
        {.lens = {4}, .lens_count = 3, .count = 1, .len = 4},
        {.lens = {8}, .lens_count = PS_PART_BUFFERS, .count = 1, .len = 8},
        {.lens = {0, 0, 8}, .lens_count = PS_PART_BUFFERS, .count = 1},
        {.lens = {4, 8}, .lens_count = PS_PART_BUFFERS, .count = 1, .len = 4},
        {.lens = {4, 8},
         .lens_count = PS_PART_BUFFERS,
         .count = 1,
         .codec = 200,
         .len = 4},
        {.lens = {UINT64_MAX},
         .lens_count = PS_PART_BUFFERS,
         .count = UINT32_MAX,
         .len = 4},
        {.lens = {4, 0, 0, 4},
         .lens_count = PS_PART_BUFFERS,
         .count = 1,
         .dtype = PS_DTYPE_INT32,
         .len = 4},
        {.lens = {4}, .lens_count = PS_PART_BUFFERS, .count = 1, .len = 8},
        {.lens = {4},
         .lens_count = PS_PART_BUFFERS,
         .count = 1,
         .rounds = 1,
         .len = 4},
        {.lens = {4},
         .lens_count = PS_PART_BUFFERS,
         .count = 1,
         .no_image = true,
         .len = 4},
        {.lens = {4},
         .lens_count = PS_PART_BUFFERS,
         .count = 1,
         .no_number = true,
         .len = 4},
    };
    const uint8_t data[8] = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct world *w = server();
        struct agent *source = &w->agents[SOURCE];
        const struct ps_rec_part_image image = {
            .has_dtype = true,
            .dtype = bad[i].dtype,
            .count = bad[i].count,
            .codec = bad[i].codec,
            .version = 1,
            .accumulated_rounds = bad[i].rounds};

        sched_move(w, 1, KEY, source);
        agent_dial(source);
        agent_send(
            source,
            &(struct ps_msg){.code = PS_MSG_COPY,
                             .copy = {.gen = GEN,
                                      .move = 1,
                                      .key = KEY,
                                      .number = bad[i].no_number ? 0 : 1,
                                      .image = &image,
                                      .image_count = bad[i].no_image ? 0 : 1,
                                      .buffer_bytes = bad[i].lens,
                                      .buffer_bytes_count = bad[i].lens_count}},
            data, bad[i].len);
        world_run(w, PS_MILLIS(1));
        assert_int_equal(source->conn, 0);
        assert_int_equal(source->copied_number, 0);
        assert_int_equal(ps_pool_used(w->pool), 0);
        sched_move_end(w, 1, KEY, false, 5);
        world_free(w);
    }
}

/* A copy counts for the move that it names, of the process that is its source. */
static void copies_of_other_moves_do_not_count(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *source = &to->agents[SOURCE];
    struct agent *other = &to->agents[3];

    (void)state;
    push_both(from, 1, 2, 3);
    sched_move(from, 1, KEY, NULL);
    sched_move(to, 2, KEY, source);
    carry(from, to);
    assert_int_equal(source->copied_number, 0);

    /* Another server that has a link here. */
    other->is_owner = true;
    sched_move(to, 3, KEY + 1, other);
    agent_dial(other);
    assert_int_equal(other->rejected, 0);
    from->peer.last.move = 2;
    agent_send(other,
               &(struct ps_msg){.code = PS_MSG_COPY, .copy = from->peer.last},
               from->peer.data[0], 4);
    world_run(to, PS_MILLIS(1));
    assert_int_equal(other->copied_number, 0);
    assert_int_equal(ps_pool_used(to->pool), 0);
    carry(from, to);
    assert_int_equal(source->copied_number, from->peer.last.number);
    world_free(from);
    world_free(to);
}

/* A server that nobody has named as a source gets no link. */
static void a_server_without_a_move_is_rejected(void **state)
{
    struct world *to = server();
    struct agent *source = &to->agents[SOURCE];

    (void)state;
    agent_dial(source);
    world_run(to, PS_SECONDS(3));
    assert_int_not_equal(source->rejected, 0);
    world_free(to);
}

/* The scheduler that completed the move has ended, and servers ask the next
 * one. */
static void servers_ask_a_new_scheduler_for_the_end(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    fill(from, to, 1);
    to->last_moved.is_filled = true;
    for (int i = 0; i < 2; i++) {
        struct world *w = i == 0 ? from : to;
        const uint32_t told = w->moved_count;

        world_closed(w, w->sched_conn);
        ps_link_free(w->sched); /* The session is lost. */
        w->sched = NULL;
        world_run(w, PS_SECONDS(3));
        assert_int_equal(w->moved_count, told + 1);
        assert_int_equal(w->last_moved.move, 1);
        assert_int_equal(w->last_moved.is_filled, i == 0);
    }
    /* Until the answer the old owner answers nothing that the new one lacks. */
    push_both(from, 2, 10, 20);
    assert_int_equal(from->agents[0].seen[KEY].value_version, 1);
    complete(from, to, 1, 5);
    agent_pull(&to->agents[1], KEY, 1);
    assert_true(agent_f32(&to->agents[1], KEY) == 5);
    world_free(from);
    world_free(to);
}

/* A place of this server, with the peer as its backup, and one of the source. */
static void name_backup(struct world *w, uint32_t version, uint32_t epoch)
{
    const struct agent *source = &w->agents[SOURCE];
    const struct ps_rec_place places[] = {{.epoch = epoch,
                                           .node = w->server->uplink.node,
                                           .name = "s0",
                                           .incarnation = 1,
                                           .instance = 77,
                                           .number = 1,
                                           .backup = PEER_NODE,
                                           .backup_instance = PEER_INSTANCE},
                                          {.epoch = epoch,
                                           .node = NODE(SOURCE),
                                           .name = "agent",
                                           .incarnation = source->incarnation,
                                           .instance = source->instance,
                                           .number = 2}};

    sched_send_job_state(w, &(struct job_options){.version = version,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .place = places,
                                                  .place_count = 2,
                                                  .replicas = 2});
}

/* The source is lost, and this server may have taken over what moves. */
static void a_move_of_a_lost_source_does_not_begin(void **state)
{
    struct world *to = server();
    const struct ps_rec_place own = {.epoch = 6,
                                     .node = to->server->uplink.node,
                                     .name = "s0",
                                     .incarnation = 1,
                                     .instance = 77,
                                     .number = 1};

    (void)state;
    push_both(to, 1, 2, 3);
    sched_send_job_state(
        to, &(struct job_options){
                .version = 2, .phase = PS_JOB_PHASE_RUNNING, .place = &own});
    sched_move(to, 1, KEY, &to->agents[SOURCE]);
    sched_move_end(to, 1, KEY, false, 6);
    push_both(to, 2, 10, 20);
    assert_int_equal(to->agents[0].seen[KEY].value_version, 2);
    world_free(to);
}

/* The new owner confirms what its own backup has. If the move is given up, the
 * backup forgets it, too. */
static void
a_copy_is_confirmed_when_the_backup_of_the_target_has_it(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *source = &to->agents[SOURCE];

    (void)state;
    name_backup(to, 2, 5);
    assert_int_equal(to->filled_count, 1);
    push_both(from, 1, 2, 3);
    sched_move(to, 1, KEY, source);
    sched_move(from, 1, KEY, NULL);
    carry(from, to);
    assert_int_equal(source->copied_number, 0);
    assert_int_equal(to->peer.last.move, 0);
    assert_int_equal(to->peer.image.version, 1);
    peer_confirm(&to->peer);
    world_run(to, PS_MILLIS(1));
    assert_int_equal(source->copied_number, from->peer.last.number);

    sched_move_end(to, 1, KEY, false, 6);
    assert_int_equal(to->peer.image.version, 0);
    assert_int_equal(to->peer.lens[PS_PART_BUFFER_VALUE], 0);
    peer_confirm(&to->peer);
    world_free(from);
    world_free(to);
}

/* The place of the other server, with this one as the backup. */
static struct ps_rec_place backed_up(const struct world *w)
{
    const struct agent *other = &w->agents[SOURCE];

    return (struct ps_rec_place){.epoch = 5,
                                 .node = NODE(SOURCE),
                                 .name = "agent",
                                 .incarnation = other->incarnation,
                                 .instance = other->instance,
                                 .number = 20,
                                 .backup = w->server->uplink.node,
                                 .backup_instance = 77};
}

static void send_place(struct world *w, uint32_t version,
                       const struct ps_rec_place *place)
{
    sched_send_job_state(w, &(struct job_options){.version = version,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .place = place,
                                                  .replicas = 2,
                                                  .was_rebalanced = true});
}

/* The owner of a place whose backup is here gets to a version, and this server a
 * copy of it. */
static void back_up(struct world *from, struct world *to)
{
    const struct ps_rec_place place = backed_up(to);

    send_place(to, 2, &place);
    push_both(from, 1, 2, 3);
    sched_move(from, 90, KEY, NULL);
    from->peer.last.move = 0;
    from->peer.last.epoch = 5;
    carry(from, to);
    assert_int_not_equal(to->agents[SOURCE].copied_number, 0);
}

/* The lost server may have sent away what is here of it, or it may never have got
 * it: the scheduler knows. Until it answers no agent uses the partition. */
static void
a_backup_asks_for_owners_of_partitions_of_a_lost_server(void **state)
{
    for (int is_owner = 0; is_owner < 2; is_owner++) {
        struct world *from = server();
        struct world *to = server();
        struct agent *a = to->agents;

        (void)state;
        back_up(from, to);
        send_place(to, 3, NULL);
        assert_int_equal(to->moved_count, 1);
        assert_int_equal(to->last_moved.version, 3);
        assert_false(to->last_moved.is_filled);
        from->peer.last.move = 90; /* The lost process sends more. */
        peer_confirm(&from->peer);
        push_both(from, 2, 20, 30);
        from->peer.last.move = 0;
        from->peer.last.epoch = 5;
        assert_int_equal(from->peer.image.version, 2);
        carry(from, to);
        agent_pull(&a[0], KEY, 1);
        assert_int_equal(a[0].seen[KEY].error, PS_E_MIGRATING);
        agent_restore_committed(&a[0], KEY, 1);
        assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
        /* An answer to another question, and the next state of the job. */
        to->last_moved.version = 2;
        sched_answer(to, is_owner == 0);
        send_place(to, 4, NULL);
        agent_pull(&a[0], KEY, 1);
        assert_int_equal(a[0].seen[KEY].error, PS_E_MIGRATING);
        /* A new session of the link. */
        world_closed(to, to->sched_conn);
        ps_link_free(to->sched);
        to->sched = NULL;
        world_run(to, PS_SECONDS(3));
        assert_int_equal(to->moved_count, 2);
        assert_int_equal(to->last_moved.version, 3);

        sched_answer(to, is_owner == 1);
        if (is_owner == 1) {
            assert_true(ps_pool_used(to->pool) > 0);
            agent_pull(&a[1], KEY, 1);
            assert_true(agent_f32(&a[1], KEY) == 5);
        } else {
            assert_int_equal(ps_pool_used(to->pool), 0);
        }
        sched_move_end(from, 90, KEY, true, 5);
        world_free(from);
        world_free(to);
    }
}

/* It counts for nobody as long as the partition may be one that it lacks. */
static void a_backup_counts_when_all_that_was_taken_over_is_there(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct ps_rec_place own = {.epoch = 7,
                               .node = to->server->uplink.node,
                               .name = "s0",
                               .incarnation = 1,
                               .instance = 77,
                               .number = 1,
                               .backup = PEER_NODE,
                               .backup_instance = PEER_INSTANCE};

    (void)state;
    back_up(from, to);
    send_place(to, 3, &own);
    assert_int_equal(to->filled_count, 0);
    sched_answer(to, true);
    assert_int_equal(to->filled_count, 0);
    assert_int_equal(to->peer.image.version, 1);
    peer_confirm(&to->peer);
    assert_int_equal(to->filled_count, 1);
    sched_move_end(from, 90, KEY, true, 5);
    world_free(from);
    world_free(to);
}

/* The scheduler moves the partition on, and that is heard first. */
static void a_move_away_says_that_the_partition_was_taken_over(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    back_up(from, to);
    send_place(to, 3, NULL);
    sched_move(to, 91, KEY, NULL);
    assert_int_equal(to->peer.image.version, 1);
    sched_answer(to, true);
    peer_confirm(&to->peer);
    assert_true(to->last_moved.is_filled);
    sched_move_end(to, 91, KEY, true, 9);
    agent_pull(&to->agents[1], KEY, 1);
    assert_true(agent_f32(&to->agents[1], KEY) == 5);
    sched_move_end(from, 90, KEY, true, 5);
    world_free(from);
    world_free(to);
}

/* The backup of the source is the target, and the source is lost: what it sent for
 * the backup counts, if the move was not completed. */
static void a_backup_takes_a_partition_over_that_was_moving_to_it(void **state)
{
    for (int is_completed = 0; is_completed < 2; is_completed++) {
        struct world *from = server();
        struct world *to = server();
        struct agent *source = &to->agents[SOURCE];
        const struct ps_rec_place place = backed_up(to);

        (void)state;
        send_place(to, 2, &place);
        push_both(from, 1, 2, 3);
        sched_move(to, 1, KEY, source);
        sched_move(from, 1, KEY, NULL);
        carry(from, to);
        from->peer.last.move = 0;
        from->peer.last.epoch = 5;
        carry(from, to);
        from->peer.last.move = 1;
        peer_confirm(&from->peer);
        push_both(from, 2, 10, 20);
        from->peer.last.move = 0;
        from->peer.last.epoch = 5;
        carry(from, to);
        send_place(to, 3, NULL);
        /* The end of the move says which of the two counts. */
        assert_int_equal(to->moved_count, 0);
        to->last_moved.version = 3; /* It has asked before the move began. */
        to->last_moved.key = KEY;
        sched_answer(to, false);
        sched_move_end(to, 1, KEY, is_completed == 1, 6);
        assert_int_equal(to->moved_count, 1);
        sched_answer(to, true);
        agent_pull(&to->agents[0], KEY, 1);
        assert_true(agent_f32(&to->agents[0], KEY) == 30);
        push_both(to, 3, 1, 2);
        assert_int_equal(to->agents[0].seen[KEY].value_version, 3);
        world_free(from);
        world_free(to);
    }
}

/* The source is the backup of the target, which may have owned the partition before
 * it was lost. The source has made a version that was answered to nobody; the
 * target's counts. */
static void a_source_takes_over_a_version_of_its_lost_target(void **state)
{
    struct world *target = server();
    struct world *w = server();
    struct ps_rec_place places[] = {{.epoch = 5,
                                     .node = w->server->uplink.node,
                                     .name = "s0",
                                     .incarnation = 1,
                                     .instance = 77,
                                     .number = 1},
                                    backed_up(w)};
    struct job_options job = {.version = 2,
                              .phase = PS_JOB_PHASE_RUNNING,
                              .place = places,
                              .place_count = 2,
                              .replicas = 2,
                              .was_rebalanced = true};
    struct agent *a = w->agents;

    (void)state;
    sched_send_job_state(w, &job);
    push_both(w, 1, 2, 3);
    sched_move(w, 1, KEY, NULL);
    /* Here node SOURCE is the target. */
    ps_server_move_find(ps_map_get(w->server->jobs.by_gen, GEN), KEY, 0)
        ->target = NODE(SOURCE);
    peer_confirm(&w->peer);
    assert_true(w->last_moved.is_filled);
    push_both(w, 2, 10, 20);
    assert_int_equal(a[0].seen[KEY].value_version, 1);

    push_both(target, 1, 2, 3);
    push_both(target, 2, 100, 200);
    sched_move(target, 90, KEY, NULL);
    target->peer.last.move = 0;
    target->peer.last.epoch = 5;
    carry(target, w);
    job.version = 3;
    job.place_count = 1;
    sched_send_job_state(w, &job);
    sched_move_end(w, 1, KEY, true, 6); /* As the placement is by now. */
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
    assert_int_equal(a[0].seen[KEY].value_version, 1);
    sched_answer(w, true);
    agent_pull(&a[0], KEY, 2);
    assert_true(agent_f32(&a[0], KEY) == 300);
    sched_move_end(target, 90, KEY, true, 5);
    world_free(target);
    world_free(w);
}

/* A target hears of the end of its move before it hears of the loss of the source,
 * of which it is the backup: the scheduler that it asks knows the placement alone.
 * The copies of the backup count. */
static void
the_end_of_a_move_is_heard_before_the_loss_of_its_source(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *a = to->agents;

    (void)state;
    back_up(from, to);
    sched_move(to, 1, KEY, &a[SOURCE]);
    sched_move_end(to, 1, KEY, true, 6);
    agent_restore_committed(&a[0], KEY, 1);
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
    assert_int_equal(to->value_lost_count, 0);
    send_place(to, 3, NULL);
    sched_answer(to, true);
    agent_pull(&a[1], KEY, 1);
    assert_true(agent_f32(&a[1], KEY) == 5);
    sched_move_end(from, 90, KEY, true, 5);
    world_free(from);
    world_free(to);
}

/* A scheduler of before moves partitions itself; it gets the reason. */
static void a_scheduler_that_reads_partitions_is_refused(void **state)
{
    struct world *w = server();

    (void)state;
    push_both(w, 1, 2, 3);
    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){.code = PS_MSG_PART_READ,
                         .part_read = {.migration = 3, .gen = GEN, .key = KEY}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
    assert_int_equal(w->refused_read->code, PS_MSG_PART_CHUNK);
    assert_int_equal(w->refused_read->part_chunk.migration, 3);
    assert_int_equal(w->refused_read->part_chunk.error, PS_E_UNSUPPORTED);
    assert_non_null(strstr(w->refused_read->part_chunk.text, "upgrade psched"));
    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){
            .code = PS_MSG_PART_CHUNK,
            .part_chunk = {.migration = 4, .gen = GEN, .key = KEY, .text = ""}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
    assert_int_equal(w->refused_read->part_ack.error, PS_E_UNSUPPORTED);
    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){.code = PS_MSG_PART_END,
                         .part_end = {.migration = 3, .gen = GEN, .key = KEY}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
    assert_int_equal(w->refused_read->code, PS_MSG_PART_ACK);
    assert_true(w->refused_read->part_ack.is_end_ack);
    assert_int_equal(w->refused_read->part_ack.error, 0);
    push_both(w, 2, 2, 3);
    assert_int_equal(w->agents[0].seen[KEY].value_version, 2);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_move_voids_contributions_to_the_open_round),
        cmocka_unit_test(
            replies_wait_for_the_new_owner_once_it_has_the_partition),
        cmocka_unit_test(copies_that_fill_leave_the_time_to_rounds),
        cmocka_unit_test(a_move_that_is_given_up_changes_no_value),
        cmocka_unit_test(a_partition_moves_back_to_its_first_owner),
        cmocka_unit_test(old_owner_continues_when_the_new_one_is_lost),
        cmocka_unit_test(a_move_does_not_begin_after_the_loss_of_its_source),
        cmocka_unit_test(a_moved_partition_keeps_its_place),
        cmocka_unit_test(a_partition_without_a_value_moves),
        cmocka_unit_test(the_target_of_a_move_answers_no_init_by_its_copy),
        cmocka_unit_test(a_copy_waits_for_the_end_of_a_merge),
        cmocka_unit_test(
            a_step_with_norms_is_not_under_way_when_a_partition_has_moved),
        cmocka_unit_test(late_messages_of_a_move_change_nothing),
        cmocka_unit_test(the_next_move_ends_the_one_before),
        cmocka_unit_test(a_partition_stays_away_when_its_move_back_is_given_up),
        cmocka_unit_test(a_move_of_another_process_does_not_begin),
        cmocka_unit_test(moves_end_with_their_job),
        cmocka_unit_test(partitions_without_rounds_do_not_move),
        cmocka_unit_test(a_partition_that_has_just_come_back_does_not_move),
        cmocka_unit_test(malformed_copies_are_refused),
        cmocka_unit_test(copies_of_other_moves_do_not_count),
        cmocka_unit_test(a_server_without_a_move_is_rejected),
        cmocka_unit_test(servers_ask_a_new_scheduler_for_the_end),
        cmocka_unit_test(
            a_copy_is_confirmed_when_the_backup_of_the_target_has_it),
        cmocka_unit_test(
            a_backup_asks_for_owners_of_partitions_of_a_lost_server),
        cmocka_unit_test(a_backup_counts_when_all_that_was_taken_over_is_there),
        cmocka_unit_test(a_move_away_says_that_the_partition_was_taken_over),
        cmocka_unit_test(a_backup_takes_a_partition_over_that_was_moving_to_it),
        cmocka_unit_test(a_source_takes_over_a_version_of_its_lost_target),
        cmocka_unit_test(
            the_end_of_a_move_is_heard_before_the_loss_of_its_source),
        cmocka_unit_test(a_move_of_a_lost_source_does_not_begin),
        cmocka_unit_test(a_scheduler_that_reads_partitions_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
