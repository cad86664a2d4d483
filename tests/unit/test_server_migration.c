/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations of partitions, as stories: each server is a world of its own, and
 * the test plays the scheduler between them. */
#include "server_world.h"

#include "core/part/store.h"

#define KEY     1u
#define BUFFERS PS_PART_BUFFERS

struct move_options {
    uint64_t move;
    uint64_t at;
    uint32_t most;
    uint64_t gen; /* 0: the job's. */
};

static void sched_read(struct world *w, const struct move_options *o)
{
    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){.code = PS_MSG_PART_READ,
                         .part_read = {.migration = o->move,
                                       .gen = o->gen != 0 ? o->gen : GEN,
                                       .key = KEY,
                                       .offset = o->at,
                                       .max_bytes = o->most}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
}

static void sched_write(struct world *w, const struct ps_msg *piece,
                        const void *data, size_t len)
{
    struct ps_slice s = {.len = len};

    if (len > 0) {
        s.buf = ps_buf_new(len);
        memcpy(s.buf->data, data, len);
    }
    ps_link_send(w->sched, ps_packet_new(piece, &s, len > 0 ? 1 : 0), w->now,
                 &w->sched_out);
    ps_buf_unref(s.buf);
    world_run_until_idle(w);
}

static void sched_part_end(struct world *w, uint64_t move, bool yours,
                           uint32_t epoch)
{
    uint32_t dones = w->part_ack_count;

    ps_link_send_msg(w->sched,
                     &(struct ps_msg){.code = PS_MSG_PART_END,
                                      .part_end = {.migration = move,
                                                   .gen = GEN,
                                                   .key = KEY,
                                                   .is_owner = yours,
                                                   .epoch = epoch}},
                     w->now, &w->sched_out);
    world_run_until_idle(w);
    assert_int_equal(w->part_ack_count, dones + 1);
    assert_true(w->last_part_ack.is_end_ack);
    assert_int_equal(w->last_part_ack.migration, move);
}

/* Reads the whole partition in chunks of `most` bytes; returns their number. */
static uint32_t carry(struct world *from, struct world *to, uint64_t move,
                      uint32_t most)
{
    uint64_t have = 0;
    uint64_t total = 0;
    uint32_t count = 0;

    do {
        uint32_t pieces = from->chunk_count;

        sched_read(from, &(struct move_options){
                             .move = move, .at = have, .most = most});
        assert_int_equal(from->chunk_count, pieces + 1);
        const struct ps_msg_part_chunk *m = &from->last_chunk->part_chunk;

        assert_int_equal(m->error, 0);
        assert_int_equal(m->offset, have);
        total = 0;
        for (uint32_t i = 0; i < m->buffer_bytes_count; i++) {
            total += m->buffer_bytes[i];
        }
        sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
        assert_false(to->last_part_ack.is_end_ack);
        assert_int_equal(to->last_part_ack.error, 0);
        assert_int_equal(to->last_part_ack.received_bytes,
                         have + from->chunk_len);
        have = to->last_part_ack.received_bytes;
        count++;
    } while (have < total);
    return count;
}

static struct world *server(void)
{
    return world_new(&(struct world_options){.slots = 2});
}

static void push_both(struct world *w, uint64_t round, float a, float b)
{
    agent_push_f32(&w->agents[0], KEY, round, a);
    agent_push_f32(&w->agents[1], KEY, round, b);
}

/* Contributions to the open round are not transferred: they are void at the old
 * owner, and the new one has the version before it. */
static void migration_voids_contributions_to_the_open_round(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    agent_push_f32(&from->agents[0], KEY, 2, 10);
    assert_int_equal(carry(from, to, 1, 3), 2);
    agent_push_f32(&from->agents[1], KEY, 2, 20); /* Complete, but frozen. */
    assert_int_equal(from->agents[0].seen[KEY].value_version, 1);
    agent_pull(&to->agents[0], KEY, 1); /* Not its own yet. */
    assert_int_equal(to->agents[0].seen[KEY].error, PS_E_MIGRATING);
    agent_push_f32(&to->agents[1], KEY, 2, 20);
    assert_int_equal(to->agents[1].seen[KEY].error, PS_E_MIGRATING);
    assert_int_equal(to->agents[0].seen[KEY].values, 0);

    sched_part_end(to, 1, true, 5);
    assert_int_equal(to->last_part_ack.error, 0);
    sched_part_end(from, 1, false, 5);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(from->agents[i].seen[KEY].error, PS_E_STALE);
        assert_int_equal(from->agents[i].seen[KEY].value_version, 1);
    }
    /* An agent with the old placement does not create the partition again at
     * the old owner. */
    agent_push_f32(&from->agents[0], KEY, 2, 10);
    assert_int_equal(from->agents[0].seen[KEY].error, PS_E_STALE);

    agent_pull(&to->agents[1], KEY, 1);
    assert_true(agent_f32(&to->agents[1], KEY) == 5);
    push_both(to, 2, 10, 20);
    assert_int_equal(to->agents[0].seen[KEY].value_version, 2);
    assert_true(agent_f32(&to->agents[0], KEY) == 30);
    world_free(from);
    world_free(to);
}

static void abandoned_migration_changes_no_value(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    sched_read(from, &(struct move_options){.move = 1, .most = 3});
    sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
    assert_int_equal(to->last_part_ack.received_bytes, 3);
    assert_true(ps_pool_used(to->pool) > 0);
    push_both(from, 2, 10, 20);
    assert_int_equal(from->agents[1].seen[KEY].value_version, 1);

    sched_part_end(to, 1, false, 5);
    assert_int_equal(ps_pool_used(to->pool), 0);
    /* Pushes that arrived meanwhile are merged now. */
    sched_part_end(from, 1, true, 5);
    assert_int_equal(from->agents[1].seen[KEY].value_version, 2);
    assert_true(agent_f32(&from->agents[1], KEY) == 30);
    /* Repeated after a cut: no further effect. */
    sched_part_end(from, 1, true, 5);
    sched_part_end(to, 1, false, 5);
    push_both(from, 3, 1, 1);
    assert_int_equal(from->agents[0].seen[KEY].value_version, 3);
    world_free(from);
    world_free(to);
}

static void partition_migrates_back_to_its_first_owner(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    carry(from, to, 1, 1024);
    sched_part_end(to, 1, true, 5);
    sched_part_end(from, 1, false, 5);
    push_both(to, 2, 10, 20);

    assert_int_equal(carry(to, from, 2, 1024), 1);
    /* A late message of the first migration changes nothing. */
    uint32_t pieces = from->chunk_count;

    sched_read(from, &(struct move_options){.move = 1, .most = 1024});
    assert_int_equal(from->chunk_count, pieces);
    sched_part_end(from, 1, false, 5);
    sched_part_end(from, 2, true, 6);
    assert_int_equal(from->last_part_ack.error, 0);
    sched_part_end(to, 2, false, 6);
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
 * that placement before the old owner gets the end of the migration. */
static void old_owner_continues_when_the_new_one_is_lost(void **state)
{
    struct world *from = server();
    struct world *to = server();
    struct agent *a = from->agents;
    const float five = 5;

    (void)state;
    push_both(from, 1, 2, 3);
    carry(from, to, 1, 1024);
    sched_part_end(to, 1, true, 5);
    restore_at(&a[0], 6, 1, &five);
    assert_int_equal(a[0].seen[KEY].error, PS_E_STALE);
    sched_part_end(from, 1, false, 5);
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

/* The new owner knows where the partition begins in its array. */
static void a_migrated_partition_keeps_its_place(void **state)
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
    carry(from, to, 1, 1024);
    assert_true(from->last_chunk->part_chunk.image[0].first_elem == first);
    sched_part_end(to, 1, true, 5);
    sched_read(to, &(struct move_options){.move = 2, .most = 1024});
    assert_true(to->last_chunk->part_chunk.image[0].first_elem == first);
    world_free(from);
    world_free(to);
}

/* A piece is read when the merge under way has ended, and is of its result. */
static void a_piece_waits_for_the_end_of_a_merge(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    from->hold_compute = true;
    push_both(from, 1, 2, 3);
    assert_int_equal(from->compute_count, 1);
    sched_read(from, &(struct move_options){.move = 1, .most = 1024});
    assert_int_equal(from->chunk_count, 0);
    world_computed(from, 0, 0);
    world_run_until_idle(from);
    assert_int_equal(from->chunk_count, 1);
    assert_int_equal(from->last_chunk->part_chunk.image[0].version, 1);
    assert_int_equal(from->chunk_len, 4);
    assert_true(*(const float *)(const void *)from->chunk_data == 5);
    sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
    sched_part_end(to, 1, true, 5);
    agent_pull(&to->agents[0], KEY, 1);
    assert_true(agent_f32(&to->agents[0], KEY) == 5);
    world_free(from);
    world_free(to);
}

static void migration_continues_after_a_lack_of_memory(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    ps_pool_fail_at(from->pool, 1);
    sched_read(from, &(struct move_options){.move = 1, .most = 1024});
    assert_int_equal(from->last_chunk->part_chunk.error, PS_E_NOMEM);
    assert_int_equal(from->chunk_len, 0);
    sched_read(from, &(struct move_options){.move = 1, .most = 1024});
    assert_int_equal(from->last_chunk->part_chunk.error, 0);
    for (int i = 0; i < 2; i++) {
        ps_pool_fail_at(to->pool, 1);
        sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
        assert_int_equal(to->last_part_ack.error, PS_E_NOMEM);
        assert_int_equal(to->last_part_ack.received_bytes, 0);
    }
    assert_int_equal(ps_pool_used(to->pool), 0);
    ps_pool_fail_at(to->pool, 0);
    sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
    assert_int_equal(to->last_part_ack.error, 0);
    sched_part_end(to, 1, true, 5);
    assert_int_equal(to->last_part_ack.error, 0);
    world_free(from);
    world_free(to);
}

/* Each is refused without a trace, and a good one after it is taken. */
static void malformed_pieces_are_refused(void **state)
{
    static const struct {
        uint64_t lens[8];
        uint32_t lens_count;
        uint8_t dtype;
        uint32_t count;
        uint8_t codec;
        size_t len;
        uint64_t rounds;
        uint32_t clocks;
        bool no_image;
    } bad[] = {
        {.lens = {4}, .lens_count = 3, .count = 1},
        {.lens = {8}, .lens_count = BUFFERS, .count = 1},
        {.lens = {0, 0, 8}, .lens_count = BUFFERS, .count = 1},
        {.lens = {4, 0, 0, 8}, .lens_count = BUFFERS, .count = 1},
        {.lens = {4, 8}, .lens_count = BUFFERS, .count = 1},
        {.lens = {4, 8}, .lens_count = BUFFERS, .count = 1, .codec = 200},
        {.lens = {4, 4096}, .lens_count = BUFFERS, .count = 1, .codec = 1},
        {.lens = {UINT64_MAX}, .lens_count = BUFFERS, .count = UINT32_MAX},
        {.lens = {4, 0, 0, 4},
         .lens_count = BUFFERS,
         .count = 1,
         .dtype = PS_DTYPE_INT32},
        {.lens = {4}, .lens_count = BUFFERS, .count = 1, .len = 8},
        {.lens = {4}, .lens_count = BUFFERS, .count = 1, .rounds = 1},
        {.lens = {4}, .lens_count = BUFFERS, .count = 1, .clocks = 3},
        {.lens = {4}, .lens_count = BUFFERS, .count = 1, .no_image = true},
    };
    struct world *w = server();
    const float five = 5;
    uint8_t data[8] = {0};
    uint64_t move = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ps_rec_part_image image = {.has_dtype = true,
                                          .dtype = bad[i].dtype,
                                          .count = bad[i].count,
                                          .codec = bad[i].codec,
                                          .version = 1,
                                          .accumulated_rounds = bad[i].rounds};
        struct ps_rec_part_clock clocks[3] = {0};
        struct ps_msg m = {
            .code = PS_MSG_PART_CHUNK,
            .part_chunk = {.migration = ++move,
                           .gen = GEN,
                           .key = KEY,
                           .text = "",
                           .image = &image,
                           .image_count = bad[i].no_image ? 0 : 1,
                           .clocks = clocks,
                           .clocks_count = bad[i].clocks,
                           .buffer_bytes = (uint64_t *)bad[i].lens,
                           .buffer_bytes_count = bad[i].lens_count}};

        sched_write(w, &m, data, bad[i].len);
        assert_int_equal(w->last_part_ack.error, PS_E_PROTO);
        assert_int_equal(w->last_part_ack.received_bytes, 0);
        /* And it received nothing that would be its own. */
        sched_part_end(w, move, true, 5);
        assert_int_equal(w->last_part_ack.error, PS_E_PROTO);
        sched_part_end(w, move, false, 5);
        assert_int_equal(ps_pool_used(w->pool), 0);
    }
    uint64_t lens[8] = {4};
    struct ps_rec_part_image image = {
        .has_dtype = true, .count = 1, .version = 1};
    struct ps_msg good = {.code = PS_MSG_PART_CHUNK,
                          .part_chunk = {.migration = ++move,
                                         .gen = GEN,
                                         .key = KEY,
                                         .text = "",
                                         .image = &image,
                                         .image_count = 1,
                                         .buffer_bytes = lens,
                                         .buffer_bytes_count = BUFFERS}};

    sched_write(w, &good, &five, sizeof(five));
    sched_write(w, &good, data,
                sizeof(five)); /* Again: the partition is there. */
    assert_int_equal(w->last_part_ack.received_bytes, 4);
    assert_int_equal(w->last_part_ack.error, 0);
    sched_part_end(w, move, true, 5);
    agent_pull(&w->agents[0], KEY, 1);
    assert_true(agent_f32(&w->agents[0], KEY) == 5);
    world_free(w);
}

/* Messages of a link may overtake each other: a part_read or a part_chunk that
 * comes after the end of its migration must not begin it again. */
static void late_messages_of_a_migration_change_nothing(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    carry(from, to, 1, 1024);
    sched_part_end(from, 1, true, 5); /* Given up: the partition stays. */
    sched_part_end(to, 1, false, 5);
    uint32_t chunks = from->chunk_count;

    sched_read(from, &(struct move_options){.move = 1, .most = 1024});
    assert_int_equal(from->chunk_count, chunks);
    sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
    push_both(from, 2, 20, 30);
    assert_true(agent_f32(&from->agents[0], KEY) == 50);
    push_both(to, 1, 4, 5); /* Its own since the loss of the other, say. */
    assert_int_equal(to->agents[0].seen[KEY].error, 0);

    /* The end can overtake all messages of its migration. */
    chunks = from->chunk_count;
    sched_part_end(from, 2, true, 5);
    sched_read(from, &(struct move_options){.move = 2, .most = 1024});
    assert_int_equal(from->chunk_count, chunks);
    push_both(from, 3, 200, 300);
    assert_true(agent_f32(&from->agents[0], KEY) == 500);

    /* The next migration is not touched by this. */
    carry(from, to, 3, 1024);
    sched_part_end(to, 3, true, 6);
    sched_part_end(from, 3, false, 6);
    agent_pull(&to->agents[0], KEY, 3);
    assert_true(agent_f32(&to->agents[0], KEY) == 500);
    world_free(from);
    world_free(to);
}

static void migrations_end_with_their_job(void **state)
{
    struct world *from = server();
    struct world *to = server();

    (void)state;
    push_both(from, 1, 2, 3);
    sched_read(from, &(struct move_options){.move = 1, .most = 2});
    sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
    sched_end(from);
    sched_end(to);
    assert_int_equal(ps_server_residue(from->server), 0);
    assert_int_equal(ps_pool_used(to->pool), 0);
    sched_read(from, &(struct move_options){.move = 1, .at = 2, .most = 2});
    assert_int_equal(from->chunk_count, 1);
    sched_write(to, from->last_chunk, from->chunk_data, from->chunk_len);
    assert_int_equal(to->part_ack_count, 1);
    sched_part_end(to, 1, true, 5);
    world_free(from);
    world_free(to);
}

/* Without rounds a partition is never at rest, so it cannot migrate. */
static void partitions_without_rounds_do_not_migrate(void **state)
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
    sched_read(w, &(struct move_options){.move = 1, .most = 1024});
    assert_int_equal(w->last_chunk->part_chunk.error, PS_E_UNSUPPORTED);
    assert_true(strstr(w->last_chunk->part_chunk.text, "cannot be moved") !=
                NULL);
    sched_part_end(w, 1, true, 5);
    world_free(w);
}

/* An image has the pushes that are in its value: none counts twice. */
static void clocks_of_an_image_tell_pushes_that_it_has(void **state)
{
    struct world *w = server();
    const float five = 5;
    const float one = 1;
    uint64_t lens[BUFFERS] = {4};
    struct ps_rec_part_image image = {
        .has_dtype = true, .count = 1, .version = 2};
    struct ps_rec_part_clock clocks[2] = {
        {.incarnation = w->agents[0].incarnation, .applied_seq = 2}};
    const struct ps_msg chunk = {.code = PS_MSG_PART_CHUNK,
                                 .part_chunk = {.migration = 1,
                                                .gen = GEN,
                                                .key = KEY,
                                                .text = "",
                                                .image = &image,
                                                .image_count = 1,
                                                .clocks = clocks,
                                                .clocks_count = 2,
                                                .buffer_bytes = lens,
                                                .buffer_bytes_count = BUFFERS}};

    (void)state;
    sched_write(w, &chunk, &five, sizeof(five));
    sched_part_end(w, 1, true, 5);
    assert_int_equal(w->last_part_ack.error, 0);
    for (uint64_t number = 1; number <= 3; number++) {
        agent_push(&w->agents[0],
                   &(struct push_options){.key = KEY,
                                          .round = number,
                                          .count = 1,
                                          .data = &one,
                                          .rule = PS_RULE_ACCUMULATE});
    }
    agent_pull(&w->agents[0], KEY, 3);
    assert_true(agent_f32(&w->agents[0], KEY) == 6);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(migration_voids_contributions_to_the_open_round),
        cmocka_unit_test(abandoned_migration_changes_no_value),
        cmocka_unit_test(partition_migrates_back_to_its_first_owner),
        cmocka_unit_test(old_owner_continues_when_the_new_one_is_lost),
        cmocka_unit_test(a_migrated_partition_keeps_its_place),
        cmocka_unit_test(a_piece_waits_for_the_end_of_a_merge),
        cmocka_unit_test(migration_continues_after_a_lack_of_memory),
        cmocka_unit_test(malformed_pieces_are_refused),
        cmocka_unit_test(late_messages_of_a_migration_change_nothing),
        cmocka_unit_test(migrations_end_with_their_job),
        cmocka_unit_test(partitions_without_rounds_do_not_migrate),
        cmocka_unit_test(clocks_of_an_image_tell_pushes_that_it_has),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
