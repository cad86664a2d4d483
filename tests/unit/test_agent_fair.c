/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine with two jobs that send to one server: each gets its share
 * of the link by weight, whatever the sizes of its partitions, and the order
 * within a job stays that of priority. */
#include "agent_world.h"

#define OTHER (GEN + 1)
#define KIB   1024u
#define MIB   (1024u * 1024u)
#define SMALL 1024u        /* Floats of a partition of 4 KiB. */
#define LARGE (256u * KIB) /* Floats of a partition of 1 MiB. */

static const char *name_of(uint32_t worker)
{
    return worker == 1 ? "other" : "third";
}

static struct other_job job_of(uint32_t worker, uint32_t weight)
{
    return (struct other_job){.name = name_of(worker),
                              .gen = GEN + worker,
                              .worker = worker + 1,
                              .servers = 1,
                              .weight = weight};
}

/* Worker `worker` starts another job, with key 0 of `parts` partitions of
 * `each` floats on the server. */
static void start_job_of(struct bench *b, uint32_t worker, uint32_t weight,
                         uint32_t parts, uint32_t each)
{
    const struct other_job job = job_of(worker, weight);
    const ps_conn_id conn = WORKER_CONN + worker;
    struct ps_buf *table = ps_buf_new(PS_FIXED_PLACEMENT_PART_BYTES *
                                      (size_t)parts);
    struct ps_slice payload = {.buf = table, .len = table->size};
    const struct sent *asked;

    for (uint32_t i = 0; i < parts; i++) {
        ps_fixed_put_placement_part(
            table->data + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
            &(struct ps_fixed_placement_part){.node = SERVER_NODE,
                                              .count = each});
    }
    assert_int_equal(open_other_job(b, conn, &job)->weight, weight);
    deliver_msg(b, conn,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 1,
                                           .name = "0",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = (uint64_t)parts * each,
                                           .mxnet_key = -1}},
                NULL);
    asked = find_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN,
                      count_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN) - 1);
    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .ack = asked->seq,
            .key_opened = {.gen = job.gen,
                           .request = asked->packet->msg->key_open.request,
                           .text = "",
                           .epoch = 1,
                           .parts = parts,
                           .compression = ""}},
        &payload);
    ps_buf_unref(table);
}

static void start_other(struct bench *b, uint32_t weight, uint32_t parts,
                        uint32_t each)
{
    start_job_of(b, 1, weight, parts, each);
}

/* Two jobs have pushed; the server is not connected yet. */
static void begin_two(struct bench *b, uint32_t parts, uint32_t each,
                      uint32_t weight, uint32_t other_parts,
                      uint32_t other_each)
{
    begin_bench(b, 1, 1);
    open_key(b, 0, parts, each, SERVER_NODE);
    start_other(b, weight, other_parts, other_each);
    feed_tick(b);
    share_region(b, 0, (size_t)parts * each * 4);
    share_region(b, 1, (size_t)other_parts * other_each * 4);
    submit_push(b, 0, 0, 1, 0);
    submit_push(b, 1, 0, 1, 0);
}

/* Payload bytes of the pushes of a job that have left; checks that partitions
 * left in ascending order. */
static uint64_t pushed_bytes(struct bench *b, uint64_t gen)
{
    uint64_t bytes = 0;
    uint32_t next = 0;

    feed_tick(b); /* The last batch. */
    for (uint32_t i = 0; i < b->sent_count; i++) {
        const struct ps_msg *m = b->sent[i].packet->msg;

        if (m->code != PS_MSG_PUSH || m->push.gen != gen) {
            continue;
        }
        bytes += b->sent[i].packet->payload_len;
        for (uint32_t k = 0; k < m->push.parts_count; k++) {
            assert_int_equal(m->push.parts[k].index, next);
            next++;
        }
    }
    return bytes;
}

/* The kernel has taken all that was handed over. */
static void drain_conn(struct bench *b)
{
    feed_event(b, (struct ps_event){.type = PS_EV_SENT, .conn = SERVER_CONN});
}

static void small_partitions_keep_their_share_beside_large_ones(void **state)
{
    struct bench b;

    (void)state;
    begin_two(&b, 512, SMALL, 0, 4, LARGE);
    connect_server(&b, false, 0);
    /* Turn by turn it would be 4 KiB for each MiB. */
    assert_true(pushed_bytes(&b, GEN) >= 600 * KIB);
    assert_true(pushed_bytes(&b, OTHER) >= 1 * MIB);
    while (pushed_bytes(&b, GEN) < 2 * MIB) {
        drain_conn(&b);
    }
    /* No more than its share, and the turn and the item under way. */
    assert_true(pushed_bytes(&b, OTHER) <= 4 * MIB);
    for (unsigned i = 0; i < 4; i++) {
        drain_conn(&b);
    }
    assert_int_equal(pushed_bytes(&b, OTHER), 4 * MIB);
    end_bench(&b);
}

/* The other job has three times the weight. */
static void expect_a_quarter(struct bench *b)
{
    uint64_t mine = pushed_bytes(b, GEN);
    uint64_t other = pushed_bytes(b, OTHER);

    assert_in_range(other * 10, mine * 25, mine * 36);
    assert_true(mine > 0);
}

static void shares_of_a_link_follow_the_weights(void **state)
{
    struct bench b;

    (void)state;
    begin_two(&b, 1024, SMALL, 300, 1024, SMALL);
    connect_server(&b, false, 0);
    expect_a_quarter(&b);
    end_bench(&b);
}

static void partitions_follow_a_changed_weight(void **state)
{
    struct bench b;

    (void)state;
    begin_two(&b, 1024, SMALL, 0, 1024, SMALL);
    const struct other_job other = job_of(1, 300);

    deliver_other_state(&b, &other, 2);
    connect_server(&b, false, 0);
    expect_a_quarter(&b);
    end_bench(&b);
}

static void job_that_waits_for_credit_takes_no_turn_and_returns(void **state)
{
    struct bench b;

    (void)state;
    begin_two(&b, 1024, SMALL, 0, 8, LARGE);
    connect_server(&b, false, 0);
    for (unsigned i = 0; i < 16; i++) {
        drain_conn(&b);
    }
    assert_int_equal(pushed_bytes(&b, GEN), 4 * MIB);
    assert_int_equal(pushed_bytes(&b, OTHER), PS_CREDIT_INITIAL);
    deliver_msg(&b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_CREDIT,
                                 .credit = {.gen = OTHER, .credit = 7 * MIB}},
                NULL);
    drain_conn(&b);
    drain_conn(&b);
    assert_int_equal(pushed_bytes(&b, OTHER), 7 * MIB);
    end_bench(&b);
}

/* The kernel has taken all but `bytes` of what was handed over. */
static void leave_unsent(struct bench *b, uint64_t bytes)
{
    feed_event(b, (struct ps_event){.type = PS_EV_SENT,
                                    .conn = SERVER_CONN,
                                    .sent = {.queued = bytes}});
}

/* An encrypted partition takes long, and a small one of the other job would
 * wait for all that were handed over. */
static void stream_of_two_jobs_is_handed_one_partition(void **state)
{
    struct bench b;

    (void)state;
    begin_two(&b, 4, SMALL, 0, 4, LARGE);
    b.server_is_stream = true;
    connect_server(&b, false, 0);
    assert_true(pushed_bytes(&b, GEN) + pushed_bytes(&b, OTHER) <=
                MIB + 64 * KIB);
    for (unsigned i = 0; pushed_bytes(&b, OTHER) < 4 * MIB; i++) {
        const uint64_t before = pushed_bytes(&b, OTHER);

        assert_true(i < 8);
        leave_unsent(&b, 64 * KIB);
        assert_int_equal(pushed_bytes(&b, OTHER), before);
        leave_unsent(&b, 64 * KIB - 1);
        assert_true(pushed_bytes(&b, OTHER) <= before + MIB);
    }
    assert_int_equal(pushed_bytes(&b, GEN), 4 * 4 * SMALL);
    end_bench(&b);
}

/* The partitions of a job alone wait without turns. */
static void job_that_waits_has_turns_when_another_begins(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 512, SMALL, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 2 * MIB);
    leave_unsent(&b, 2 * MIB);
    submit_push(&b, 0, 0, 1, 0);
    start_other(&b, 0, 512, SMALL);
    share_region(&b, 1, 2 * MIB);
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(pushed_bytes(&b, GEN) + pushed_bytes(&b, OTHER), 0);
    leave_unsent(&b, 0);
    assert_true(pushed_bytes(&b, GEN) >= 900 * KIB);
    assert_true(pushed_bytes(&b, OTHER) >= 900 * KIB);
    end_bench(&b);
}

/* Payload bytes of the pushes of a key that have left, without the last
 * batch. */
static uint64_t pushed_bytes_of_key(const struct bench *b, uint64_t gen,
                                    uint32_t key)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < b->sent_count; i++) {
        const struct ps_msg *m = b->sent[i].packet->msg;

        if (m->code == PS_MSG_PUSH && m->push.gen == gen &&
            m->push.parts[0].key == key) {
            bytes += b->sent[i].packet->payload_len;
        }
    }
    return bytes;
}

static void end_other(struct bench *b)
{
    kill_worker(b, 1);
    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = OTHER,
                                               .version = 2,
                                               .name = "other",
                                               .phase = PS_JOB_PHASE_ENDED,
                                               .reason = "",
                                               .optimizer = ""}},
                NULL);
}

/* Bytes sent beside another job do not count once that has ended. */
static void job_left_alone_keeps_no_debt(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 4, LARGE, SERVER_NODE);
    open_key(&b, 1, 1024, SMALL, SERVER_NODE);
    start_other(&b, 0, 1024, SMALL);
    feed_tick(&b);
    share_region(&b, 0, 4 * MIB);
    share_region(&b, 1, 4 * MIB);
    connect_server(&b, false, 0);
    deliver_msg(&b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_CREDIT,
                                 .credit = {.gen = GEN, .credit = 1u << 30}},
                NULL);
    leave_unsent(&b, 2 * MIB);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    leave_unsent(&b, 2 * MIB - 1); /* Room for one item. */
    assert_int_equal(pushed_bytes_of_key(&b, GEN, 0), MIB);
    end_other(&b);
    for (unsigned i = 0; i < 4; i++) {
        leave_unsent(&b, 0);
    }
    assert_int_equal(pushed_bytes_of_key(&b, GEN, 0), 4 * MIB);

    leave_unsent(&b, 2 * MIB);
    start_job_of(&b, 2, 0, 1024, SMALL);
    share_region(&b, 2, 4 * MIB);
    submit_push(&b, 2, 0, 1, 0);
    submit_push(&b, 0, 1, 1, 0);
    assert_int_equal(pushed_bytes_of_key(&b, GEN, 1), 0);
    assert_int_equal(pushed_bytes_of_key(&b, GEN + 2, 0), 0);
    leave_unsent(&b, 0);
    assert_true(pushed_bytes_of_key(&b, GEN, 1) >= 900 * KIB);
    assert_true(pushed_bytes_of_key(&b, GEN + 2, 0) >= 900 * KIB);
    end_bench(&b);
}

static void priority_orders_partitions_of_its_own_job_alone(void **state)
{
    struct bench b;
    uint32_t urgent = 0;
    uint64_t before = 0;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 512, SMALL, SERVER_NODE);
    open_key(&b, 1, 16, SMALL, SERVER_NODE);
    start_other(&b, 0, 512, SMALL);
    feed_tick(&b);
    share_region(&b, 0, 2 * MIB);
    share_region(&b, 1, 2 * MIB);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 0, 1, 1, 1000);
    submit_push(&b, 1, 0, 1, 0);
    connect_server(&b, false, 0);
    feed_tick(&b);
    for (uint32_t i = 0; i < b.sent_count && urgent < 16; i++) {
        const struct ps_msg *m = b.sent[i].packet->msg;

        if (m->code == PS_MSG_PUSH && m->push.gen == GEN) {
            for (uint32_t k = 0; k < m->push.parts_count; k++) {
                urgent += m->push.parts[k].key == 1;
                before += urgent < 16 && m->push.parts[k].key == 0;
            }
        }
    }
    assert_int_equal(urgent, 16);
    assert_int_equal(before, 0);
    /* The other job sends as much all the same. */
    drain_conn(&b);
    assert_true(pushed_bytes(&b, OTHER) >= 900 * KIB);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_partitions_keep_their_share_beside_large_ones),
        cmocka_unit_test(shares_of_a_link_follow_the_weights),
        cmocka_unit_test(partitions_follow_a_changed_weight),
        cmocka_unit_test(job_that_waits_for_credit_takes_no_turn_and_returns),
        cmocka_unit_test(stream_of_two_jobs_is_handed_one_partition),
        cmocka_unit_test(job_that_waits_has_turns_when_another_begins),
        cmocka_unit_test(job_left_alone_keeps_no_debt),
        cmocka_unit_test(priority_orders_partitions_of_its_own_job_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
