/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine; the test plays scheduler, server and workers. The
 * simulator has whole clusters; these tests check what only the effects show:
 * places of bytes, the order of frames, and what waits. */
#include "agent_world.h"

/* -------------------------------------------------------------------- tests */

/* A value that was in flight when its partition moved may be older than the one
 * that workers read already: its payload is discarded. */
static void late_value_of_a_held_version_is_discarded(void **state)
{
    struct ps_rec_part part = {
        .round = 1, .dtype = PS_DTYPE_FLOAT32, .count = 8192};
    struct ps_msg late = {
        .code = PS_MSG_VALUE,
        .value = {.gen = GEN, .epoch = 1, .parts = &part, .parts_count = 1}};
    struct ps_slice at;
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 2, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 2 * 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    deliver_value(&b, 0, 0, 1, 8192, 5, 1u << 30);
    late.seq = b.server_seq + 1;
    assert_int_equal(b.machine.ops->payload(b.machine.self, SERVER_CONN, &late,
                                            8192 * 4, &at),
                     PS_E_STALE);
    deliver_value(&b, 0, 1, 1, 8192, 5, 1u << 30);
    assert_non_null(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0));
    late.seq = b.server_seq + 1;
    assert_int_equal(b.machine.ops->payload(b.machine.self, SERVER_CONN, &late,
                                            8192 * 4, &at),
                     PS_E_STALE);
    end_bench(&b);
}

static void push_of_one_worker_is_sent_from_its_region(void **state)
{
    struct bench b;
    const struct sent *s;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 2, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 2 * 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    assert_int_equal(b.computation_count, 0);
    for (uint32_t i = 0; i < 2; i++) {
        s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, i);
        assert_non_null(s);
        assert_int_equal(s->packet->slice_count, 1);
        assert_ptr_equal(ps_slice_data(&s->packet->slices[0]),
                         b.region[0]->data + i * 8192 * 4);
        assert_int_equal(s->packet->payload_len, 8192 * 4);
        assert_int_equal(s->packet->msg->push.parts[0].round, 1);
    }
    deliver_value(&b, 0, 1, 1, 8192, 5, 1u << 30);
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0));
    deliver_value(&b, 0, 0, 1, 8192, 5, 1u << 30);
    assert_non_null(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0));
    end_bench(&b);
}

static void contributions_are_summed_once_in_rank_order(void **state)
{
    struct bench b;
    const struct sent *s;

    (void)state;
    begin_bench(&b, 3, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t w = 0; w < 3; w++) {
        share_region(&b, w, 8192 * 4);
    }
    submit_push(&b, 2, 0, 1, 0);
    submit_push(&b, 0, 0, 1, 0);
    assert_int_equal(b.computation_count, 0); /* Rank 1 has not contributed. */
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(b.computation_count, 1);
    for (uint32_t w = 0; w < 3; w++) {
        assert_ptr_equal(b.computations[0]->job.src[w], b.region[w]->data);
    }
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    run_computations(&b);
    s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->push.weight, 3);
    assert_true(((const float *)(const void *)ps_slice_data(
                    &s->packet->slices[0]))[9] == 6.0f);
    end_bench(&b);
}

/* Of a bench whose job is described. */
static void grow(struct bench *b, uint32_t workers, uint32_t servers)
{
    restart_bench(b, workers, servers);
    open_key(b, 0, 3, 8192, servers == 0 ? 0 : SERVER_NODE);
    feed_tick(b);
    if (servers > 0) {
        connect_server(b, false, 0);
    }
    for (uint32_t w = 0; w < workers; w++) {
        share_region(b, w, (size_t)3 * 8192 * 4);
    }
}

static void begin_growing(struct bench *b, uint32_t workers, uint32_t servers)
{
    memset(b, 0, sizeof(*b));
    b->fails_on_loss = true;
    grow(b, workers, servers);
}

static void copied_partitions_are_pushed(void **state)
{
    const uint64_t each = 8192 * 4;
    struct bench b;

    (void)state;
    begin_growing(&b, 1, 1);
    submit_streaming_push(&b, 0, 0, 1, each - 1);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
    submit_progress(&b, 0, 0, 1, 2 * each + 100);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct sent *s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, i);

        assert_int_equal(s->packet->msg->push.parts[0].index, i);
        assert_int_equal(s->packet->msg->push.parts[0].round, 1);
    }
    deliver_value(&b, 0, 0, 1, 8192, 5, 1u << 30);
    deliver_value(&b, 0, 1, 1, 8192, 5, 1u << 30);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    submit_progress(&b, 0, 0, 1, 3 * each);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    deliver_value(&b, 0, 2, 1, 8192, 5, 1u << 30);
    assert_int_equal(last_op_done(&b, 0)->error, 0);
    assert_int_equal(last_op_done(&b, 0)->version, 1);
    /* A late report is about an ended operation. */
    submit_progress(&b, 0, 0, 1, 3 * each);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    submit_push(&b, 0, 0, 2, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 6);
    end_bench(&b);
}

static void trace_has_the_way_of_a_push(void **state)
{
    static const uint8_t kinds[] = {PS_TRACE_KIND_SEND,  PS_TRACE_KIND_SEND,
                                    PS_TRACE_KIND_SEND,  PS_TRACE_KIND_VALUE,
                                    PS_TRACE_KIND_VALUE, PS_TRACE_KIND_VALUE,
                                    PS_TRACE_KIND_OP};
    struct bench b = {.trace = ps_trace_new(), .fails_on_loss = true};
    const struct ps_trace_entry *e = b.trace->entries;

    (void)state;
    restart_bench(&b, 1, 1);
    open_key(&b, 0, 3, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, (size_t)3 * 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    b.now += 1000;
    for (uint32_t i = 0; i < 3; i++) {
        deliver_value(&b, 0, i, 1, 8192, 5, 1u << 30);
    }
    assert_int_equal(b.trace->count, 7);
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(e[i].kind, kinds[i]);
        assert_int_equal(e[i].gen, GEN);
        assert_int_equal(e[i].key, 0);
        assert_int_equal(e[i].round, 1);
        assert_int_equal(e[i].index, i < 6 ? i % 3 : 0);
        assert_int_equal(e[i].peer, i < 6 ? SERVER_NODE : 0);
        assert_int_equal(e[i].bytes, i < 6 ? 8192 * 4 : 3 * 8192 * 4);
    }
    assert_int_equal(e[6].ended_at - e[6].begun_at, 1000);
    end_bench(&b);
    ps_trace_free(b.trace);
}

/* A partition leaves when the slowest rank has copied it; a rank whose array is
 * complete delays nothing. */
static void partitions_wait_for_the_slowest_copy(void **state)
{
    const uint64_t each = 8192 * 4;
    struct bench b;

    (void)state;
    begin_growing(&b, 3, 0);
    submit_streaming_push(&b, 0, 0, 1, 3 * each);
    submit_streaming_push(&b, 1, 0, 1, 2 * each);
    assert_int_equal(b.computation_count, 0); /* Rank 2 has not contributed. */
    submit_push(&b, 2, 0, 1, 0);
    assert_int_equal(b.computation_count, 2);
    run_computations(&b);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    submit_progress(&b, 1, 0, 1, 3 * each);
    assert_int_equal(b.computation_count, 1);
    run_computations(&b);
    for (uint32_t w = 0; w < 3; w++) {
        assert_int_equal(last_op_done(&b, w)->version, 1);
    }
    end_bench(&b);
}

/* An unfinished init delays partitions; at its end exactly the copied ones
 * leave. */
static void end_of_an_init_releases_copied_partitions(void **state)
{
    const uint64_t each = 8192 * 4;
    struct bench b;

    (void)state;
    begin_growing(&b, 1, 1);
    deliver_msg(
        &b, WORKER_CONN,
        &(struct ps_msg){.code = PS_MSG_L_OP,
                         .l_op = {.op_id = 9, .op = PS_OP_INIT, .region = 1}},
        NULL);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct ps_msg_init *m =
            &find_sent(&b, SERVER_CONN, PS_MSG_INIT, i)->packet->msg->init;
        const uint32_t index = m->parts[0].index;

        assert_int_equal(m->first_elems_count, index == 0 ? 0 : 1);
        assert_true(index == 0 || m->first_elems[0] == index * 8192);
    }
    submit_streaming_push(&b, 0, 0, 1, each);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
    for (uint32_t i = 0; i < 3; i++) {
        deliver_commit(&b, 0, i, 0, 8192, 0);
    }
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 1);
    submit_progress(&b, 0, 0, 1, 3 * each);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    end_bench(&b);
}

/* Half of a gradient never counts: in jobs that survive a worker, arrays are
 * contributed when complete. */
static void streaming_needs_a_job_that_fails_on_loss(void **state)
{
    static const struct ps_msg_l_op senseless[] = {
        {.op = PS_OP_INIT, .region = 1},
        {.op = PS_OP_PULL, .region = 1},
        {.op = PS_OP_PUSHPULL, .round = 1}, /* Without an array. */
        {.op = PS_OP_SKIP, .round = 1},
    };
    struct bench b;

    (void)state;
    begin_growing(&b, 1, 1);
    for (uint32_t i = 0; i < 4; i++) {
        struct ps_msg m = {.code = PS_MSG_L_OP, .l_op = senseless[i]};

        m.l_op.op_id = i + 1;
        m.l_op.streaming = true;
        deliver_msg(&b, WORKER_CONN, &m, NULL);
        assert_int_equal(last_op_done(&b, 0)->op_id, i + 1);
        assert_true(last_op_done(&b, 0)->error == PS_E_UNSUPPORTED ||
                    last_op_done(&b, 0)->error == PS_E_INVAL);
    }
    end_bench(&b);
    begin_bench(&b, 1, 1); /* The job's policy is wait. */
    open_key(&b, 0, 3, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, (size_t)3 * 8192 * 4);
    submit_streaming_push(&b, 0, 0, 1, 0);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_UNSUPPORTED);
    assert_non_null(strstr(last_op_done(&b, 0)->text, "on_loss fail alone"));
    submit_push(&b, 0, 0, 1, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    end_bench(&b);
}

static void impossible_copy_progress_ends_the_session(void **state)
{
    const uint64_t all = (uint64_t)3 * 8192 * 4;
    const uint64_t bad[] = {0, 100, all + 1, UINT64_MAX};
    struct bench b;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const struct sent *s;

        begin_growing(&b, 2, 0);
        submit_progress(&b, 0, 0, 1, 5);     /* Unknown operation, */
        submit_progress(&b, 0, 12345, 1, 5); /* or key. */
        submit_streaming_push(&b, 0, 0, 1, 100);
        submit_progress(&b, 1, 0, 1, 500); /* Operation of another worker. */
        assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
        submit_progress(&b, 0, 0, 1, bad[i]);
        s = find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0);
        assert_non_null(s);
        assert_non_null(strstr(s->packet->msg->l_error.text, "rank 0 reports"));
        assert_null(find_sent(&b, WORKER_CONN + 1, PS_MSG_L_ERROR, 0));
        end_bench(&b);
    }
}

/* A worker that leaves or stops during a copy is named. */
static void stall_query_names_a_worker_that_copies(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 0);
    submit_push(&b, 1, 0, 1, 0);
    submit_streaming_push(&b, 0, 0, 1, 0);
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_STALL_COLLECT,
            .stall_collect = {.gen = GEN, .request = 3, .key = 0, .round = 1}},
        NULL);
    s = find_sent(&b, SCHED_CONN, PS_MSG_STALL_REPORT, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->stall_report.ranks_count, 1);
    assert_int_equal(s->packet->msg->stall_report.ranks[0], 0);
    deliver_msg(&b, WORKER_CONN, &(struct ps_msg){.code = PS_MSG_L_DETACH},
                NULL);
    kill_worker(&b, 0);
    s = find_sent(&b, SCHED_CONN, PS_MSG_WORKER_GONE, 0);
    assert_non_null(s);
    assert_false(s->packet->msg->worker_gone.clean);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 0);
    end_bench(&b);
}

/* A round that fails during a copy is contributed again from its beginning. */
static void round_that_fails_during_a_copy_is_repeated(void **state)
{
    const uint64_t each = 8192 * 4;
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 0);
    submit_streaming_push(&b, 0, 0, 1, 2 * each);
    deliver_msg(&b, WORKER_CONN + 1,
                &(struct ps_msg){.code = PS_MSG_L_OP,
                                 .l_op = {.op_id = 1,
                                          .op = PS_OP_PUSHPULL,
                                          .region = 1,
                                          .round = 1,
                                          .reduce = PS_REDUCE_MAX}},
                NULL);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_MISMATCH);
    assert_int_equal(last_op_done(&b, 1)->error, PS_E_MISMATCH);
    submit_progress(&b, 0, 0, 1, 3 * each);
    assert_int_equal(b.computation_count, 0);
    submit_streaming_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(b.computation_count, 0);
    submit_progress(&b, 0, 0, 1, each);
    assert_int_equal(b.computation_count, 1);
    submit_progress(&b, 0, 0, 1, 3 * each);
    run_computations(&b);
    assert_int_equal(last_op_done(&b, 1)->version, 1);
    end_bench(&b);
}

static void partitions_of_higher_priority_are_sent_first(void **state)
{
    struct bench b;
    struct ps_event drained = {.type = PS_EV_SENT, .conn = SERVER_CONN};

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 6, 262144, SERVER_NODE); /* 1 MiB each */
    open_key(&b, 1, 1, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 6u << 20);
    submit_push(&b, 0, 0, 1, -5);
    /* Two of them fill the hand-over limit. */
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 2);
    submit_push(&b, 0, 1, 1, 7);
    feed_event(&b, drained);
    assert_true(count_sent(&b, SERVER_CONN, PS_MSG_PUSH) > 3);
    assert_int_equal(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 2)
                         ->packet->msg->push.parts[0]
                         .key,
                     1);
    end_bench(&b);
}

static void pushes_stop_at_the_credit(void **state)
{
    struct bench b;
    struct ps_event drained = {.type = PS_EV_SENT, .conn = SERVER_CONN};

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 12, 262144, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 12u << 20);
    submit_push(&b, 0, 0, 1, 0);
    for (int i = 0; i < 12; i++) {
        feed_event(&b, drained);
    }
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH),
                     PS_CREDIT_INITIAL >> 20);
    deliver_msg(&b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_CREDIT,
                                 .credit = {.gen = GEN, .credit = 7u << 20}},
                NULL);
    for (int i = 0; i < 12; i++) {
        feed_event(&b, drained);
    }
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 7);
    end_bench(&b);
}

static void partitions_of_small_keys_share_frames(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    for (uint32_t k = 0; k < 1000; k++) {
        open_key(&b, k, 1, 256, SERVER_NODE);
    }
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 1024);
    drop_sent(&b);
    for (uint32_t k = 0; k < 1000; k++) {
        submit_push(&b, 0, k, 1, 0);
    }
    feed_tick(&b);
    assert_true(count_sent(&b, SERVER_CONN, PS_MSG_PUSH) <= 5);
    assert_true(count_sent(&b, SERVER_CONN, PS_MSG_PUSH) >= 4);
    end_bench(&b);
}

static void operations(struct bench *b, ps_conn_id conn, uint32_t count)
{
    struct ps_event ev = {.type = PS_EV_OPS, .conn = conn};
    struct ps_msg_l_op ops[100] = {0};

    for (uint32_t k = 0; k < count; k++) {
        ops[k].op_id = 1000 + k;
        ops[k].op = PS_OP_PUSHPULL;
        ops[k].key = k;
        ops[k].region = 1;
        ops[k].round = 1;
    }
    ev.ops.op = ops;
    ev.ops.count = count;
    feed_event(b, ev);
}

/* Each operation is handled as a message: a malformed one affects no other. */
static void malformed_operation_of_a_batch_fails_alone(void **state)
{
    struct bench b;
    const struct sent *s;
    uint32_t parts = 0;

    (void)state;
    begin_bench(&b, 2, 1);
    for (uint32_t k = 0; k < 50; k++) {
        open_key(&b, k < 20 ? k : k + 1, 1, 256, SERVER_NODE);
    }
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 1024);
    share_region(&b, 1, 1024);
    drop_sent(&b);
    for (uint32_t i = 0; i < 2; i++) {
        operations(&b, WORKER_CONN + i, 51); /* There is no key 20. */
        assert_int_equal(count_sent(&b, WORKER_CONN + i, PS_MSG_L_DONE), 1);
        s = find_sent(&b, WORKER_CONN + i, PS_MSG_L_DONE, 0);
        assert_int_equal(s->packet->msg->l_done.op_id, 1020);
        assert_int_equal(s->packet->msg->l_done.error, PS_E_NOKEY);
    }
    run_computations(&b);
    feed_tick(&b);
    for (uint32_t i = 0; i < count_sent(&b, SERVER_CONN, PS_MSG_PUSH); i++) {
        s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, i);
        parts += s->packet->msg->push.parts_count;
    }
    assert_int_equal(parts, 50);
    /* A worker before its welcome is rejected, once. */
    open_conn(&b, WORKER_CONN + 7, PS_CONN_LOCAL, 0);
    operations(&b, WORKER_CONN + 7, 40);
    assert_int_equal(count_sent(&b, WORKER_CONN + 7, PS_MSG_REJECT), 1);
    assert_int_equal(count_sent(&b, WORKER_CONN + 7, PS_MSG_L_DONE), 0);
    /* An unknown connection gets no reply. */
    operations(&b, WORKER_CONN + 8, 40);
    end_bench(&b);
}

static void check_sums(const struct sent *s, uint32_t *seen)
{
    const struct ps_msg_push *m = &s->packet->msg->push;
    uint32_t slice = 0;
    size_t at = 0;

    /* Sums of successive partitions are adjacent. */
    assert_true(s->packet->slice_count <= 4);
    for (uint32_t i = 0; i < m->parts_count; i++, (*seen)++) {
        const float *sum =
            (const float *)(const void *)(ps_slice_data(
                                              &s->packet->slices[slice]) +
                                          at);

        assert_int_equal(m->parts[i].key, *seen);
        for (uint32_t j = 0; j < m->parts[i].count; j++) {
            assert_true(sum[j] == 3.0F * (float)j);
        }
        at += m->parts[i].count * sizeof(float);
        assert_true(at <= s->packet->slices[slice].len);
        if (at == s->packet->slices[slice].len) {
            slice++;
            at = 0;
        }
    }
    assert_int_equal(slice, s->packet->slice_count);
}

/* Sums below a limit are computed within the event, into one block. */
static void small_sums_share_one_block(void **state)
{
    struct bench b;
    uint32_t seen = 0;

    (void)state;
    inline_sum_max = 3 * 1024;
    begin_bench(&b, 2, 1);
    inline_sum_max = 0;
    for (uint32_t k = 0; k < 600; k++) {
        open_key(&b, k, 1, 256, SERVER_NODE);
    }
    open_key(&b, 600, 1, 257, SERVER_NODE);
    open_key(&b, 601, 1, 256, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t i = 0; i < 2; i++) {
        share_region(&b, i, 2048);
        for (uint32_t j = 0; j < 512; j++) {
            ((float *)(void *)b.region[i]->data)[j] = (float)((i + 1) * j);
        }
    }
    drop_sent(&b);
    for (uint32_t k = 0; k < 600; k++) {
        submit_push(&b, 0, k, 1, 0);
        submit_push(&b, 1, k, 1, 0);
    }
    feed_tick(&b);
    assert_int_equal(b.computation_count, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    for (uint32_t i = 0; i < 3; i++) {
        check_sums(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, i), &seen);
    }
    assert_int_equal(seen, 600);
    /* A larger sum is a compute job; one without memory is retried. */
    submit_push(&b, 0, 600, 1, 0);
    submit_push(&b, 1, 600, 1, 0);
    assert_int_equal(b.computation_count, 1);
    drop_sent(&b);
    ps_pool_fail_at(b.scratch_pool, 1);
    submit_push(&b, 0, 601, 1, 0);
    submit_push(&b, 1, 601, 1, 0);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
    b.now += PS_MILLIS(5);
    feed_tick(&b);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 1);
    seen = 601;
    check_sums(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0), &seen);
    end_bench(&b);
}

static void init(struct bench *b, uint32_t worker, uint32_t key)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_OP,
                                 .l_op = {.op_id = key + 1,
                                          .op = PS_OP_INIT,
                                          .key = key,
                                          .region = worker == 0 ? 1 : 0}},
                NULL);
}

/* Pulls for the value of an init, as many as a link takes, do not delay it. */
static void full_link_continues_after_an_acknowledgement(void **state)
{
    struct ps_msg ack = {.code = PS_MSG_ACK};
    struct ps_event ev = {.type = PS_EV_MSG, .conn = SERVER_CONN};
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    for (uint32_t k = 0; k <= PS_LINK_IN_FLIGHT_MAX; k++) {
        open_key(&b, k, 1, 256, SERVER_NODE);
        drop_sent(&b);
    }
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 1024);
    drop_sent(&b);
    for (uint32_t k = 0; k <= PS_LINK_IN_FLIGHT_MAX; k++) {
        init(&b, 1, k);
    }
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL),
                     PS_LINK_IN_FLIGHT_MAX);
    init(&b, 0, 0);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 0);
    /* Only an acknowledgement arrives. */
    ack.ack = PS_LINK_IN_FLIGHT_MAX;
    ev.msg.msg = &ack;
    feed_event(&b, ev);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 1);
    end_bench(&b);
}

static void unanswered_pushes_are_repeated_on_a_new_link(void **state)
{
    struct bench b;
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = SERVER_CONN};

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 2, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 2 * 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    deliver_value(&b, 0, 0, 1, 8192, 5, 1u << 30);
    closed.closed.rc = PS_E_CLOSED;
    feed_event(&b, closed);
    drop_sent(&b);
    b.now += PS_SECONDS(2);
    feed_tick(&b);
    b.server_seq = 0;
    connect_server(&b, false, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH),
                     1); /* Not part 0. */
    assert_int_equal(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0)
                         ->packet->msg->push.parts[0]
                         .index,
                     1);
    end_bench(&b);
}

/* The link is replaced by a new session. */
static void lose_link(struct bench *b)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = SERVER_CONN};

    closed.closed.rc = PS_E_CLOSED;
    feed_event(b, closed);
    drop_sent(b);
    b->now += PS_SECONDS(2);
    feed_tick(b);
    b->server_seq = 0;
    connect_server(b, false, 0);
}

/* A value arrives while its partition is summed again, and the next round, with
 * arrays at another place, begins before or after the end of that sum. */
static void overtake(bool before)
{
    const size_t bytes = 2 * 8192 * 4;
    struct bench b;

    begin_bench(&b, 2, 1);
    open_key(&b, 0, 2, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        share_region(&b, w, 2 * bytes);
        memset(b.region[w]->data + bytes, 0, bytes);
        submit_push(&b, w, 0, 1, 0);
    }
    run_computations(&b);
    lose_link(&b);
    assert_int_equal(b.computation_count, 2);
    deliver_value(&b, 0, 0, 1, 8192, 5, 1u << 30);
    deliver_value(&b, 0, 1, 1, 8192, 5, 1u << 30);
    assert_non_null(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0));
    if (!before) {
        run_computations(&b);
    }
    for (uint32_t w = 0; w < 2; w++) {
        deliver_msg(&b, WORKER_CONN + w,
                    &(struct ps_msg){.code = PS_MSG_L_OP,
                                     .l_op = {.op_id = 2,
                                              .op = PS_OP_PUSHPULL,
                                              .region = 1,
                                              .offset = bytes,
                                              .round = 2}},
                    NULL);
    }
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct sent *s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, i);
        float sum;

        assert_int_equal(s->packet->msg->push.parts[0].round, 2);
        memcpy(&sum, ps_slice_data(&s->packet->slices[0]), sizeof(sum));
        assert_true(sum == 0);
    }
    end_bench(&b);
}

static void next_round_begins_beside_a_repeated_sum(void **state)
{
    (void)state;
    overtake(true);
    overtake(false);
}

/* Partitions that are copied when the repeated sum ends leave then, others when
 * they are copied. */
static void copied_partitions_wait_for_a_repeated_sum(void **state)
{
    const uint64_t each = 8192 * 4;
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    lose_link(&b);
    assert_int_equal(b.computation_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        deliver_value(&b, 0, i, 1, 8192, 5, 1u << 30);
    }
    assert_int_equal(last_op_done(&b, 0)->version, 1);
    submit_streaming_push(&b, 0, 0, 2, each);
    submit_push(&b, 1, 0, 2, 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 1);
    submit_progress(&b, 0, 0, 2, 3 * each);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, i)
                             ->packet->msg->push.parts[0]
                             .round,
                         2);
    }
    end_bench(&b);
}

static void refuse(struct bench *b, uint32_t key, uint32_t index,
                   uint64_t round)
{
    struct ps_rec_part part = {.key = key, .index = index, .round = round};

    deliver_msg(b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_REFUSE,
                                 .refuse = {.gen = GEN,
                                            .epoch = 1,
                                            .credit = 1u << 30,
                                            .error = PS_E_MISMATCH,
                                            .text = "",
                                            .parts = &part,
                                            .parts_count = 1}},
                NULL);
}

/* Fails unless one code was pushed for the partition, of 8192 elements with
 * these bits. */
static const uint8_t *expect_code(const struct bench *b, uint32_t index,
                                  uint8_t byte)
{
    const uint8_t *code = NULL;
    const struct sent *s;

    for (uint32_t n = 0;
         (s = find_sent(b, SERVER_CONN, PS_MSG_PUSH, n)) != NULL; n++) {
        for (uint32_t i = 0; i < s->packet->msg->push.parts_count; i++) {
            if (s->packet->msg->push.parts[i].index == index) {
                assert_null(code);
                code = ps_slice_data(&s->packet->slices[i]);
                assert_int_equal(s->packet->slices[i].len, 8192 / 4);
            }
        }
    }
    assert_non_null(code);
    for (uint32_t i = 0; i < 8192 / 4; i++) {
        assert_int_equal(code[i], byte);
    }
    return code;
}

/* A job with compression and a key of a kind, of partitions with 8192 elements
 * each. */
static void begin_encoding_of(struct bench *b, uint8_t kind, uint32_t parts)
{
    begin_bench(b, 1, 1);
    b->uses_compression = true;
    b->key_kind = kind;
    open_key(b, 0, parts, 8192, SERVER_NODE);
    feed_tick(b);
    connect_server(b, false, 0);
    share_region(b, 0, (uint64_t)parts * 8192 * 4);
}

static void begin_encoding(struct bench *b, uint32_t parts)
{
    begin_encoding_of(b, PS_KEY_KIND_STRING, parts);
}

/* Gradients of 1, threshold 2: two rounds make one code of 2, and a failed
 * round between them changes nothing. */
static void failed_round_keeps_the_residual(void **state)
{
    struct bench b;

    (void)state;
    begin_encoding(&b, 2);
    submit_push(&b, 0, 0, 1, 0);
    run_computations(&b);
    feed_tick(&b);
    (void)expect_code(&b, 0, 0x00);
    refuse(&b, 0, 0, 1);
    assert_int_equal(
        find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0)->packet->msg->l_done.error,
        PS_E_MISMATCH);
    drop_sent(&b);
    submit_push(&b, 0, 0, 1, 0);
    assert_int_equal(b.computation_count,
                     1); /* Part 1 may have been counted. */
    run_computations(&b);
    feed_tick(&b);
    for (uint32_t i = 0; i < 2; i++) {
        deliver_value(&b, 0, i, 1, 8192, 0, 1u << 30);
    }
    drop_sent(&b);
    submit_push(&b, 0, 0, 2, 0);
    run_computations(&b);
    feed_tick(&b);
    (void)expect_code(&b, 0, 0xff);
    (void)expect_code(&b, 1, 0xff);
    end_bench(&b);
}

/* The sums of collectives are exact, in a job with compression, too. */
static void a_collective_is_not_encoded(void **state)
{
    const struct ps_rec_part *part;
    struct bench b;

    (void)state;
    begin_encoding_of(&b, PS_KEY_KIND_COLLECTIVE, 1);
    submit_push(&b, 0, 0, 1, 0);
    run_computations(&b);
    feed_tick(&b);
    part = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0)->packet->msg->push.parts;
    assert_int_equal(part->codec, 0);
    assert_int_equal(part->encoded_bytes, 0);
    end_bench(&b);
}

static void refuse_part(struct bench *b, const struct ps_rec_part *part,
                        int error)
{
    deliver_msg(b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_REFUSE,
                                 .refuse = {.gen = GEN,
                                            .epoch = 1,
                                            .credit = 1u << 30,
                                            .error = error,
                                            .text = "",
                                            .parts = part,
                                            .parts_count = 1}},
                NULL);
}

/* The server refuses a pushed part. */
static void refuse_pushed(struct bench *b, const struct ps_rec_part *part)
{
    refuse_part(b, part, PS_E_NOKEY);
}

/* Two workers push two partitions; the first is refused, and `ret_late` is the
 * push of the second. */
static void begin_refused(struct bench *b, bool async,
                          struct ps_rec_part *ret_late)
{
    struct ps_rec_part first;

    memset(b, 0, sizeof(*b));
    b->is_async = async;
    restart_bench(b, 2, 1);
    open_key(b, 0, 2, 8192, SERVER_NODE);
    feed_tick(b);
    connect_server(b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        struct ps_msg_l_op op = pushpull_op(0, 1);

        share_region(b, w, 2 * 8192 * 4);
        op.op = PS_OP_PUSH;
        submit_op(b, w, op);
    }
    run_computations(b);
    feed_tick(b);
    assert_int_equal(count_sent(b, SERVER_CONN, PS_MSG_PUSH), 2);
    first =
        find_sent(b, SERVER_CONN, PS_MSG_PUSH, 0)->packet->msg->push.parts[0];
    *ret_late =
        find_sent(b, SERVER_CONN, PS_MSG_PUSH, 1)->packet->msg->push.parts[0];
    drop_sent(b);
    refuse_pushed(b, &first);
    assert_int_equal(last_op_done(b, 0)->error, PS_E_NOKEY);
    drop_sent(b);
}

/* The remaining parts of a refused round are refused too, possibly after the
 * next operations have arrived. */
static void late_refusal_of_a_push_does_not_fail_an_init(void **state)
{
    struct ps_rec_part late;
    struct bench b;

    (void)state;
    begin_refused(&b, false, &late);
    init(&b, 1, 0);
    init(&b, 0, 0);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 2);
    refuse_pushed(&b, &late);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    for (uint32_t i = 0; i < 2; i++) {
        deliver_value(&b, 0, i, 0, 8192, 1, 1u << 30);
    }
    assert_int_equal(last_op_done(&b, 0)->error, 0);
    assert_int_equal(last_op_done(&b, 1)->error, 0);
    end_bench(&b);
}

static void late_refusal_does_not_fail_the_next_attempt(void **state)
{
    struct ps_rec_part late, again;
    struct bench b;

    (void)state;
    begin_refused(&b, false, &late);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    feed_tick(&b);
    again =
        find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 1)->packet->msg->push.parts[0];
    refuse_pushed(&b, &late);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    refuse_pushed(&b, &again);
    assert_int_equal(last_op_done(&b, 1)->error, PS_E_NOKEY);
    end_bench(&b);
}

/* The same for inits. */
static void late_refusal_of_an_init_does_not_fail_the_next(void **state)
{
    struct ps_rec_part late, again;
    struct bench b;

    (void)state;
    begin_refused(&b, false, &late);
    init(&b, 0, 0);
    feed_tick(&b);
    late =
        find_sent(&b, SERVER_CONN, PS_MSG_INIT, 1)->packet->msg->init.parts[0];
    again =
        find_sent(&b, SERVER_CONN, PS_MSG_INIT, 0)->packet->msg->init.parts[0];
    drop_sent(&b);
    refuse_pushed(&b, &again);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOKEY);
    drop_sent(&b);
    init(&b, 0, 0);
    feed_tick(&b);
    again =
        find_sent(&b, SERVER_CONN, PS_MSG_INIT, 1)->packet->msg->init.parts[0];
    refuse_pushed(&b, &late);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    refuse_pushed(&b, &again);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOKEY);
    end_bench(&b);
}

/* The same for pushes without rounds. */
static void late_refusal_does_not_fail_the_next_push(void **state)
{
    struct ps_rec_part late;
    struct bench b;

    (void)state;
    begin_refused(&b, true, &late); /* The other worker's push leaves now. */
    refuse_pushed(&b, &late);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 0);
    end_bench(&b);
}

/* A pull without rounds is open, and its answer on the way, when a push is
 * refused for now. The next pull waits for that push: the answer, of before the
 * push, is not for it. */
static void refusal_of_a_push_does_not_end_an_open_pull(void **state)
{
    struct ps_msg_l_op op = pushpull_op(0, 0);
    struct ps_rec_part part;
    struct bench b = {.is_async = true};

    (void)state;
    restart_bench(&b, 1, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 64);
    op.op = PS_OP_PULL;
    submit_op(&b, 0, op);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL), 1);
    op = pushpull_op(0, 1);
    submit_op(&b, 0, op);
    run_computations(&b);
    feed_tick(&b);
    part =
        find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0)->packet->msg->push.parts[0];
    refuse_part(&b, &part, PS_E_NOJOB);
    b.now += PS_SECONDS(1);
    feed_tick(&b);
    feed_tick(&b); /* A small partition leaves with the batch. */
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 2);
    deliver_commit(&b, 0, 0, 1, 16, false);
    deliver_value(&b, 0, 0, 1, 16, 7, 1u << 30);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL), 2);
    deliver_value(&b, 0, 0, 2, 16, 8, 1u << 30);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 2);
    end_bench(&b);
}

/* The agent of an ssp job asks a server that it has linked to for the clocks of
 * the partitions, and one is refused, because the server does not know the job
 * yet. A pull that waits for the clock has nothing to send itself. */
static void a_refused_request_for_a_clock_is_repeated(void **state)
{
    const struct ps_rec_part part = {
        .index = 1, .dtype = PS_DTYPE_FLOAT32, .count = 16};
    const struct ps_msg_pull *again;
    struct bench b = {.is_async = true, .is_ssp = true};

    (void)state;
    restart_bench(&b, 1, 1);
    open_key(&b, 0, 2, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL), 2);
    drop_sent(&b);
    refuse_part(&b, &part, PS_E_NOJOB);
    b.now += PS_SECONDS(1);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL), 1);
    again = &find_sent(&b, SERVER_CONN, PS_MSG_PULL, 0)->packet->msg->pull;
    assert_int_equal(again->parts[0].index, 1);
    end_bench(&b);
}

/* A repeated init leaves out the parts that a server has stored. */
static void init_repeats_only_its_refused_parts(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        struct ps_rec_part part;
        struct bench b = {.is_async = async != 0};

        restart_bench(&b, 1, 1);
        open_key(&b, 0, 2, 8192, SERVER_NODE);
        feed_tick(&b);
        connect_server(&b, false, 0);
        share_region(&b, 0, 2 * 8192 * 4);
        init(&b, 0, 0);
        feed_tick(&b);
        part = find_sent(&b, SERVER_CONN, PS_MSG_INIT, 0)
                   ->packet->msg->init.parts[0];
        refuse_pushed(&b, &part);
        assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOKEY);
        deliver_commit(&b, 0, 1, 0, 8192, 0);
        drop_sent(&b);
        init(&b, 0, 0);
        feed_tick(&b);
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 1);
        end_bench(&b);
    }
}

/* A code that a server may have counted stays the node's contribution to that
 * round. */
static void sent_encoding_is_repeated_on_a_new_link(void **state)
{
    struct bench b;
    const uint8_t *first;

    (void)state;
    begin_encoding(&b, 1);
    submit_push(&b, 0, 0, 1, 0);
    run_computations(&b);
    feed_tick(&b);
    first = expect_code(&b, 0, 0x00);
    lose_link(&b);
    feed_tick(&b);
    assert_int_equal(b.computation_count, 0);
    assert_ptr_equal(expect_code(&b, 0, 0x00), first);
    end_bench(&b);
}

/* Only sums have residuals. */
static void sums_and_means_are_encoded(void **state)
{
    (void)state;
    for (uint8_t reduce = PS_REDUCE_SUM; reduce <= PS_REDUCE_PRODUCT;
         reduce++) {
        struct ps_msg_l_op op = pushpull_op(0, 1);
        const struct sent *s;
        struct bench b;

        begin_encoding(&b, 1);
        op.reduce = reduce;
        submit_op(&b, 0, op);
        run_computations(&b);
        feed_tick(&b);
        s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0);
        assert_non_null(s);
        assert_int_equal(s->packet->msg->push.parts[0].codec != PS_CODEC_NONE,
                         reduce == PS_REDUCE_SUM || reduce == PS_REDUCE_MEAN);
        end_bench(&b);
    }
}

static void placement_before_the_reply_is_kept(void **state)
{
    struct ps_rec_server server = {.node = SERVER_NODE + 2,
                                   .name = "ps1",
                                   .incarnation = 1,
                                   .address = "ps1:1",
                                   .state = PS_NODE_STATE_ACTIVE};
    uint32_t record[2] = {SERVER_NODE + 2, 8192};
    struct ps_buf *table = ps_buf_new(8);
    struct ps_slice payload = {.buf = table, .len = 8};
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    deliver_msg(&b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 1,
                                           .name = "0",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = 8192,
                                           .mxnet_key = -1}},
                NULL);
    memcpy(table->data, record, 8);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                                 .key_opened = {.gen = GEN,
                                                .text = "",
                                                .key = 0,
                                                .epoch = 2,
                                                .parts = 1}},
                &payload);
    ps_buf_unref(table);
    open_key(&b, 0, 1, 8192, SERVER_NODE); /* The answer, of epoch 1. */
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = 2, .servers = &server, .servers_count = 1}},
        NULL);
    b.now += PS_MILLIS(20);
    feed_tick(&b);
    assert_int_equal(b.dialled_node, SERVER_NODE + 2);
    end_bench(&b);
}

static void conflict_is_reported_to_its_local_ranks(void **state)
{
    struct bench b;
    const struct sent *s;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    share_region(&b, 0, 8192 * 4);
    share_region(&b, 1, 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    deliver_msg(&b, WORKER_CONN + 1,
                &(struct ps_msg){.code = PS_MSG_L_OP,
                                 .l_op = {.op_id = 5,
                                          .op = PS_OP_PUSHPULL,
                                          .key = 0,
                                          .region = 1,
                                          .round = 1,
                                          .reduce = PS_REDUCE_MEAN}},
                NULL);
    s = find_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->l_done.error, PS_E_MISMATCH);
    assert_non_null(strstr(s->packet->msg->l_done.text, "mean"));
    /* So does the first rank; the server is notified, because other slots wait
     * there. */
    s = find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->l_done.error, PS_E_MISMATCH);
    end_bench(&b);
}

static void ask_key(struct bench *b, uint32_t worker, enum ps_if_absent find)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 3,
                                           .name = "q",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = 10,
                                           .mxnet_key = -1,
                                           .if_absent = (uint8_t)find}},
                NULL);
}

static void no_such_key(struct bench *b, uint64_t request)
{
    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                                 .key_opened = {.gen = GEN,
                                                .request = request,
                                                .error = PS_E_NOKEY,
                                                .text = "no"}},
                NULL);
}

/* The declaration that creates a key answers queries whether it exists. */
static void declaration_answers_queries_for_its_key(void **state)
{
    static const enum ps_if_absent found[] = {
        PS_IF_ABSENT_FAIL, PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER,
        PS_IF_ABSENT_CREATE};
    struct bench b;
    uint64_t request = 0;

    (void)state;
    begin_bench(&b, 2, 1);
    ask_key(&b, 0, PS_IF_ABSENT_FAIL);
    ask_key(&b, 1, PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER);
    ask_key(&b, 0, PS_IF_ABSENT_FAIL);
    ask_key(&b, 0, PS_IF_ABSENT_CREATE);
    ask_key(&b, 1, PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 3);
    for (unsigned i = 0; i < 3; i++) {
        const struct ps_msg_key_open *m = &find_sent(&b, SCHED_CONN,
                                                     PS_MSG_KEY_OPEN, i)
                                               ->packet->msg->key_open;

        assert_int_equal(m->if_absent, found[i]);
        assert_true(m->request > request);
        request = m->request;
        if (i < 2) {
            no_such_key(&b, request); /* Too late. */
        }
    }
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, 0));
    no_such_key(&b, request);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO), 3);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_KEY_INFO), 2);
    assert_int_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, 0)
                         ->packet->msg->l_key_info.error,
                     PS_E_NOKEY);
    end_bench(&b);
}

static void malformed_operations_fail_alone(void **state)
{
    static const struct {
        uint32_t key;
        uint32_t region;
        uint64_t offset;
        uint64_t round;
        uint16_t root;
        int error;
    } bad[] = {
        {9, 1, 0, 1, 0, PS_E_NOKEY},
        {0, 7, 0, 1, 0, PS_E_INVAL},
        {0, 1, 4, 1, 0, PS_E_INVAL},              /* One element too far. */
        {0, 1, UINT64_MAX - 3, 1, 0, PS_E_INVAL}, /* Wraps. */
        {0, 1, 0, 2, 0, PS_E_INVAL},              /* Not its round. */
        {0, 1, 0, 0, 0, PS_E_INVAL},
        {0, 0, 0, 1, 0, PS_E_INVAL}, /* No contribution. */
        {0, 1, 0, 1, 99, PS_E_INVAL},
    };
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    share_region(&b, 0, 8192 * 4);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct sent *s;

        drop_sent(&b);
        deliver_msg(&b, WORKER_CONN,
                    &(struct ps_msg){.code = PS_MSG_L_OP,
                                     .l_op = {.op_id = i + 1,
                                              .op = PS_OP_PUSHPULL,
                                              .key = bad[i].key,
                                              .region = bad[i].region,
                                              .offset = bad[i].offset,
                                              .round = bad[i].round,
                                              .root = bad[i].root}},
                    NULL);
        s = find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0);
        assert_non_null(s);
        assert_int_equal(s->packet->msg->l_done.error, bad[i].error);
        assert_true(strlen(s->packet->msg->l_done.text) > 10);
        assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
    }
    end_bench(&b);
}

static void skip_adds_no_contribution(void **state)
{
    struct bench b;
    const struct sent *s;
    const float *sum;

    (void)state;
    begin_bench(&b, 3, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 8192 * 4);
    share_region(&b, 2, 8192 * 4);
    /* A skip may come first and does not fix the kind of the round. */
    submit_skip(&b, 1, 0, 1);
    for (uint32_t i = 0; i < 3; i += 2) {
        deliver_msg(&b, WORKER_CONN + i,
                    &(struct ps_msg){.code = PS_MSG_L_OP,
                                     .l_op = {.op_id = 1,
                                              .op = PS_OP_PUSHPULL,
                                              .key = 0,
                                              .region = 1,
                                              .round = 1,
                                              .samples = 5 + i,
                                              .reduce = PS_REDUCE_MEAN}},
                    NULL);
    }
    run_computations(&b);
    s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->push.weight, 5 + 7);
    assert_int_equal(s->packet->msg->push.reduce, PS_REDUCE_MEAN);
    sum = (const float *)(const void *)ps_slice_data(&s->packet->slices[0]);
    assert_true(sum[0] == 1 + 3);
    /* An all_skipped mark is ignored if a local rank contributed (rule R23). */
    deliver_commit(&b, 0, 0, 1, 8192, 1);
    deliver_value(&b, 0, 0, 1, 8192, 4, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(last_op_done(&b, i)->error, 0);
        assert_int_equal(last_op_done(&b, i)->version, 1);
        assert_false(last_op_done(&b, i)->all_skipped);
    }
    end_bench(&b);
}

static void commit_of_a_skip_tells_whether_all_ranks_skipped(void **state)
{
    struct bench b;
    const struct sent *s;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 2, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint64_t r = 1; r <= 3; r++) {
        drop_sent(&b);
        submit_skip(&b, 1, 0, r);
        assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
        submit_skip(&b, 0, 0, r);
        feed_tick(&b);
        s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0);
        assert_non_null(s);
        assert_int_equal(s->packet->msg->push.weight, 0);
        assert_int_equal(s->packet->msg->push.parts_count, 2);
        assert_int_equal(s->packet->msg->push.parts[1].count, 0);
        assert_int_equal(s->packet->slice_count, 0);
        assert_false(s->packet->msg->push.needs_value);
        deliver_commit(&b, 0, 1, r, 8192, r > 1);
        assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
        /* The second round had failed half way on another node, and a server
         * has counted a part. */
        deliver_commit(&b, 0, 0, r, 8192, r == 3);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(last_op_done(&b, i)->error, 0);
            assert_int_equal(last_op_done(&b, i)->version, r);
            assert_int_equal(last_op_done(&b, i)->all_skipped, r == 3);
        }
    }
    end_bench(&b);
}

/* The value of a skipped round is also that of the next version, for pulls and
 * for a new owner. */
static void value_of_a_skipped_round_has_the_next_version(void **state)
{
    struct bench b;
    const struct sent *s;
    uint32_t record[2] = {SERVER_NODE + 1, 8192};
    struct ps_rec_server server = {.node = SERVER_NODE + 1,
                                   .name = "ps1",
                                   .incarnation = 1,
                                   .address = "ps1:1",
                                   .state = PS_NODE_STATE_ACTIVE};
    struct ps_buf *table = ps_buf_new(8);
    struct ps_slice payload = {.buf = table, .len = table->size};

    (void)state;
    memcpy(table->data, record, 8);
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    deliver_value(&b, 0, 0, 1, 8192, 9, 0);
    submit_skip(&b, 0, 0, 2);
    deliver_commit(&b, 0, 0, 2, 8192, 1);
    assert_true(last_op_done(&b, 0)->all_skipped);
    drop_sent(&b);
    deliver_msg(
        &b, WORKER_CONN,
        &(struct ps_msg){
            .code = PS_MSG_L_OP,
            .l_op = {.op_id = 5, .op = PS_OP_PULL, .key = 0, .round = 2}},
        NULL);
    assert_int_equal(last_op_done(&b, 0)->version, 2);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PULL, 0));
    /* The new owner gets it. */
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = 2, .servers = &server, .servers_count = 1}},
        NULL);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                                 .key_opened = {.gen = GEN,
                                                .text = "",
                                                .key = 0,
                                                .epoch = 2,
                                                .parts = 1,
                                                .compression = ""}},
                &payload);
    ps_buf_unref(table);
    feed_tick(&b);
    assert_int_equal(b.dialled_node, SERVER_NODE + 1);
    open_conn(&b, SERVER_CONN + 1, PS_CONN_DIALLED, SERVER_NODE + 1);
    deliver_welcome(&b, SERVER_CONN + 1, false, 0);
    s = find_sent(&b, SERVER_CONN + 1, PS_MSG_RESTORE, 0);
    assert_non_null(s);
    assert_true(s->packet->msg->restore.has_value);
    assert_int_equal(s->packet->msg->restore.parts[0].round, 2);
    assert_true(s->packet->msg->restore.parts[0].all_skipped);
    assert_true(*(const float *)(const void *)ps_slice_data(
                    &s->packet->slices[0]) == 9);
    end_bench(&b);
}

static void malformed_skip_is_refused(void **state)
{
    static const struct ps_msg_l_op bad[] = {
        {.key = 9, .round = 1},
        {.key = 0, .round = 2},
        {.key = 0, .round = 1, .region = 1},
        {.key = 0, .round = 1, .row_count = 3},
    };
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    share_region(&b, 0, 8192 * 4);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ps_msg m = {.code = PS_MSG_L_OP, .l_op = bad[i]};

        m.l_op.op = PS_OP_SKIP;
        m.l_op.op_id = i + 1;
        deliver_msg(&b, WORKER_CONN, &m, NULL);
        assert_int_equal(last_op_done(&b, 0)->op_id, i + 1);
        assert_int_equal(last_op_done(&b, 0)->error,
                         i == 0 ? PS_E_NOKEY : PS_E_INVAL);
        assert_true(strlen(last_op_done(&b, 0)->text) > 10);
    }
    end_bench(&b);
}

static void skipped_round_without_servers_keeps_the_value(void **state)
{
    struct bench b;
    struct ps_buf *region;

    (void)state;
    begin_bench(&b, 2, 0);
    open_key(&b, 0, 2, 8192, 0);
    share_region(&b, 0, 2 * 8192 * 4);
    region = b.region[0];
    /* No value exists yet. */
    for (uint32_t i = 0; i < 2; i++) {
        submit_skip(&b, i, 0, 1);
    }
    assert_int_equal(b.computation_count, 0);
    assert_true(last_op_done(&b, 0)->all_skipped &&
                last_op_done(&b, 1)->all_skipped);
    submit_push(&b, 0, 0, 2, 0);
    submit_skip(&b, 1, 0, 2);
    run_computations(&b);
    assert_int_equal(last_op_done(&b, 1)->version, 2);
    assert_false(last_op_done(&b, 1)->all_skipped);
    for (uint32_t i = 0; i < 2; i++) {
        submit_skip(&b, i, 0, 3);
    }
    assert_int_equal(b.computation_count, 2);
    /* It is copied from the place of version 2 to that of version 3. */
    assert_int_equal(b.computations[0]->job.src_count, 1);
    assert_memory_equal(b.computations[0]->job.src[0], region->data, 8192 * 4);
    run_computations(&b);
    assert_int_equal(last_op_done(&b, 0)->version, 3);
    assert_true(last_op_done(&b, 0)->all_skipped &&
                last_op_done(&b, 1)->all_skipped);
    end_bench(&b);
}

static void a_root_that_has_joined_is_named(void **state)
{
    (void)state;
    for (uint32_t servers = 0; servers < 2; servers++) {
        struct bench b;

        begin_bench(&b, 2, servers);
        open_key(&b, 0, 1, 8192, servers == 0 ? 0 : SERVER_NODE);
        feed_tick(&b);
        if (servers == 1) {
            connect_server(&b, false, 0);
        }
        deliver_msg(&b, WORKER_CONN,
                    &(struct ps_msg){.code = PS_MSG_L_OP,
                                     .l_op = {.op_id = 1,
                                              .op = PS_OP_BROADCAST,
                                              .key = 0,
                                              .round = 1,
                                              .root = 1}},
                    NULL);
        submit_skip(&b, 1, 0, 1);
        feed_tick(&b);
        if (servers == 1) {
            struct ps_rec_part part = {.key = 0, .round = 1};

            assert_non_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
            deliver_msg(&b, SERVER_CONN,
                        &(struct ps_msg){.code = PS_MSG_REFUSE,
                                         .refuse = {.gen = GEN,
                                                    .epoch = 1,
                                                    .error = PS_E_MISMATCH,
                                                    .text = "",
                                                    .parts = &part,
                                                    .parts_count = 1,
                                                    .conflict_assign = true,
                                                    .retry = 1}},
                        NULL);
        }
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(last_op_done(&b, i)->error, PS_E_MISMATCH);
            assert_non_null(
                strstr(last_op_done(&b, i)->text, "rank 1 has joined"));
        }
        end_bench(&b);
    }
}

static void deliver_conflict(struct bench *b, uint64_t round, uint32_t retry)
{
    struct ps_rec_part part = {.key = 0, .round = round};

    deliver_msg(b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_REFUSE,
                                 .refuse = {.gen = GEN,
                                            .epoch = 1,
                                            .error = PS_E_MISMATCH,
                                            .text = "so it is",
                                            .parts = &part,
                                            .parts_count = 1,
                                            .retry = retry}},
                NULL);
}

/* If a higher retry number arrived first, the server does not know the
 * conflicting sides. The refusals of all partitions are one conflict of that
 * round. */
static void refusals_of_one_conflict_count_once(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 64);
    submit_push(&b, 0, 0, 1, 0);
    feed_tick(&b);
    assert_non_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    deliver_conflict(&b, 1, 1);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_MISMATCH);
    assert_non_null(strstr(last_op_done(&b, 0)->text, ": so it is"));
    deliver_conflict(&b, 1, 2); /* Nothing is open. */
    submit_push(&b, 0, 0, 1, 0);
    deliver_conflict(&b, 1, 1);
    deliver_conflict(&b, 2, 2);
    deliver_value(&b, 0, 0, 1, 16, 1, 1u << 30);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 2);
    assert_int_equal(last_op_done(&b, 0)->error, 0);
    end_bench(&b);
}

/* As in failed_round_keeps_the_residual(): the server of partition 1 has merged what
 * the aborted attempt has sent, and says so before the next one begins, or after
 * that. */
static void a_merged_encoding_of_an_aborted_attempt_counts(void **state)
{
    (void)state;
    for (uint32_t late = 0; late < 2; late++) {
        struct bench b;

        begin_encoding(&b, 2);
        submit_push(&b, 0, 0, 1, 0);
        run_computations(&b);
        feed_tick(&b);
        deliver_conflict(&b, 1, 1);
        assert_int_equal(last_op_done(&b, 0)->error, PS_E_MISMATCH);
        if (!late) {
            deliver_value(&b, 0, 1, 1, 8192, 0, 1u << 30);
        }
        drop_sent(&b);
        submit_push(&b, 0, 0, 1, 0);
        assert_int_equal(b.computation_count, 1 + late);
        run_computations(&b);
        feed_tick(&b);
        (void)expect_code(&b, 0, 0x00);
        if (late) {
            deliver_value(&b, 0, 1, 1, 8192, 0, 1u << 30);
        }
        deliver_value(&b, 0, 0, 1, 8192, 0, 1u << 30);
        assert_int_equal(last_op_done(&b, 0)->error, 0);
        drop_sent(&b);
        submit_push(&b, 0, 0, 2, 0);
        run_computations(&b);
        feed_tick(&b);
        (void)expect_code(&b, 0, 0xff);
        (void)expect_code(&b, 1, 0xff);
        end_bench(&b);
    }
}

static void round_without_servers_ends_at_the_agent(void **state)
{
    struct bench b;
    const struct sent *info;
    const struct sent *done;

    (void)state;
    begin_bench(&b, 2, 0);
    open_key(&b, 0, 2, 8192, 0);
    info = find_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, 0);
    assert_non_null(info);
    share_region(&b, 0, 2 * 8192 * 4);
    share_region(&b, 1, 2 * 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(b.computation_count, 2);
    run_computations(&b);
    done = find_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE, 0);
    assert_non_null(done);
    assert_int_equal(done->packet->msg->l_done.version, 1);
    end_bench(&b);
}

#define MIB_FLOATS (1024u * 1024u / 4u)

static void progress_of_a_result_is_reported_to_workers(void **state)
{
    struct bench b;
    struct ps_compute *last;

    (void)state;
    begin_bench(&b, 2, 0);
    open_key(&b, 0, 8, MIB_FLOATS, 0);
    share_region(&b, 0, 8u << 20);
    share_region(&b, 1, 8u << 20);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(b.computation_count, 8);
    /* The first part is late: no progress beyond it is reported. */
    last = b.computations[0];
    memmove(b.computations, b.computations + 1,
            4 * sizeof(struct ps_compute *));
    b.computations[4] = last;
    run_computations(&b);
    for (uint32_t w = 0; w < 2; w++) {
        assert_int_equal(b.progress_count[w], 2);
        assert_int_equal(b.progress[w][0], 5u << 20);
        assert_int_equal(b.progress[w][1], 7u << 20);
        /* The end reports the rest. */
        assert_int_equal(count_sent(&b, WORKER_CONN + w, PS_MSG_L_DONE), 1);
    }
    end_bench(&b);
}

static void push_without_a_pull_gets_no_progress(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 0);
    open_key(&b, 0, 8, MIB_FLOATS, 0);
    share_region(&b, 0, 8u << 20);
    share_region(&b, 1, 8u << 20);
    submit_push(&b, 0, 0, 1, 0);
    deliver_msg(
        &b, WORKER_CONN + 1,
        &(struct ps_msg){
            .code = PS_MSG_L_OP,
            .l_op = {.op_id = 1, .op = PS_OP_PUSH, .region = 1, .round = 1}},
        NULL);
    run_computations(&b);
    assert_int_equal(b.progress_count[0], 3);
    assert_int_equal(b.progress_count[1], 0);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

/* Values arrive in any order; progress counts the bytes without a gap. */
static void progress_follows_the_order_of_partitions(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 6, MIB_FLOATS, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 6u << 20);
    submit_push(&b, 0, 0, 1, 0);
    deliver_value(&b, 0, 1, 1, MIB_FLOATS, 1, 1u << 30);
    deliver_value(&b, 0, 3, 1, MIB_FLOATS, 1, 1u << 30);
    assert_int_equal(b.progress_count[0], 0);
    deliver_value(&b, 0, 0, 1, MIB_FLOATS, 1, 1u << 30);
    assert_int_equal(b.progress_count[0], 1);
    assert_int_equal(b.progress[0][0], 2u << 20);
    deliver_value(&b, 0, 2, 1, MIB_FLOATS, 1, 1u << 30);
    assert_int_equal(b.progress_count[0], 2);
    assert_int_equal(b.progress[0][1], 4u << 20);
    end_bench(&b);
}

static void ended_job_frees_its_memory(void **state)
{
    struct bench b;
    struct ps_event closed = {.type = PS_EV_CLOSED};

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 4, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 4 * 8192 * 4);
    share_region(&b, 1, 4 * 8192 * 4);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0); /* Sums are under way. */
    assert_true(b.computation_count > 0);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = GEN,
                                               .version = 2,
                                               .name = "job",
                                               .phase = PS_JOB_PHASE_FAILED,
                                               .reason = "rank 1 on n2 died",
                                               .optimizer = ""}},
                NULL);
    for (uint32_t w = 0; w < 2; w++) {
        const struct sent *s = find_sent(&b, WORKER_CONN + w, PS_MSG_L_ERROR,
                                         0);

        assert_non_null(s);
        assert_string_equal(s->packet->msg->l_error.text, "rank 1 on n2 died");
        closed.conn = WORKER_CONN + w;
        feed_event(&b, closed);
    }
    run_computations(&b);
    drop_sent(&b);
    assert_int_equal(ps_agent_residue(b.agent), 0);
    assert_int_equal(ps_pool_used(b.scratch_pool), 0);
    end_bench(&b);
}

/* Worker 1 starts another job, with key 0 of as many floats on the server. */
static void start_other_job(struct bench *b, uint32_t floats)
{
    const uint32_t record[2] = {SERVER_NODE, floats};
    struct ps_buf *table = ps_buf_new(sizeof(record));
    struct ps_slice payload = {.buf = table, .len = table->size};
    const struct sent *asked;

    (void)open_other_job(
        b, WORKER_CONN + 1,
        &(struct other_job){
            .name = "other", .gen = GEN + 1, .worker = 2, .servers = 1});
    deliver_msg(b, WORKER_CONN + 1,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 1,
                                           .name = "0",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = floats,
                                           .mxnet_key = -1}},
                NULL);
    asked = find_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN,
                      count_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN) - 1);
    assert_int_equal(asked->packet->msg->key_open.gen, GEN + 1);
    memcpy(table->data, record, sizeof(record));
    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .ack = asked->seq,
            .key_opened = {.gen = GEN + 1,
                           .request = asked->packet->msg->key_open.request,
                           .text = "",
                           .epoch = 1,
                           .parts = 1,
                           .compression = ""}},
        &payload);
    ps_buf_unref(table);
}

/* The next connection of the link does not repeat pushes of a job that is over,
 * and repeats those of others. */
static void pushes_of_an_ended_job_are_dropped(void **state)
{
    const struct ps_msg_job_state end = {.gen = GEN + 1,
                                         .version = 2,
                                         .name = "other",
                                         .phase = PS_JOB_PHASE_ENDED,
                                         .reason = "",
                                         .optimizer = ""};
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    start_other_job(&b, 8192);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        share_region(&b, w, 8192 * 4);
        submit_push(&b, w, 0, 1, 0);
    }
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 2);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE, .job_state = end},
                NULL);
    feed_event(
        &b, (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN + 1});
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    drop_sent(&b);
    b.now += PS_SECONDS(2);
    feed_tick(&b);
    connect_server(&b, true, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 1);
    assert_int_equal(
        find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0)->packet->msg->push.gen, GEN);
    end_bench(&b);
}

/* Two reattached workers; rank 1 saw the end of round 5, rank 0 did not. */
static void begin_resumed(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    b->reattaches = true;
    b->pushed_rounds[0] = 4;
    b->pushed_rounds[1] = 5;
    restart_bench(b, 2, 1);
    open_key(b, 0, 1, 16, SERVER_NODE);
    share_region(b, 0, 64);
    share_region(b, 1, 64);
    feed_tick(b);
    connect_server(b, false, 0);
}

static void ranks_continue_at_a_new_agent(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_resumed(&b);
    assert_true(find_sent(&b, SCHED_CONN, PS_MSG_JOB_OPEN, 0)
                    ->packet->msg->job_open.reattach);
    assert_int_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_WELCOME, 0)
                         ->packet->msg->l_welcome.completed_barriers,
                     3);
    s = find_sent(&b, WORKER_CONN + 1, PS_MSG_L_KEY_INFO, 0);
    assert_int_equal(s->packet->msg->l_key_info.pushed_round, 5);
    /* Round 5 is over: rank 0 gets its value without a contribution. */
    submit_push(&b, 0, 0, 5, 0);
    submit_push(&b, 1, 0, 6, 0);
    feed_tick(&b);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    s = find_sent(&b, SERVER_CONN, PS_MSG_PULL, 0);
    assert_int_equal(s->packet->msg->pull.parts[0].round, 5);
    deliver_value(&b, 0, 0, 5, 16, 2.5f, 1 << 20);
    s = find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0);
    assert_int_equal(s->packet->msg->l_done.version, 5);
    assert_null(find_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE, 0));
    /* The next round is an ordinary one. */
    submit_push(&b, 0, 0, 6, 0);
    run_computations(&b);
    feed_tick(&b);
    s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0);
    assert_int_equal(s->packet->msg->push.parts[0].round, 6);
    deliver_value(&b, 0, 0, 6, 16, 3, 1 << 20);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 2);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

/* Rank 1 has completed round 5 and left; nobody tells the new agent. */
static void a_round_that_a_rank_completed_before_it_left_is_over(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    memset(&b, 0, sizeof(b));
    b.reattaches = true;
    b.left = 1;
    b.pushed_rounds[0] = 4;
    restart_bench(&b, 1, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    share_region(&b, 0, 64);
    feed_tick(&b);
    connect_server(&b, false, 0);
    s = find_sent(&b, SERVER_CONN, PS_MSG_RESTORE, 0);
    assert_int_equal(s->packet->msg->restore.committed_version, 4);
    submit_push(&b, 0, 0, 5, 0);
    feed_tick(&b);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    s = find_sent(&b, SERVER_CONN, PS_MSG_PULL, 0);
    assert_int_equal(s->packet->msg->pull.parts[0].round, 5);
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0));
    deliver_value(&b, 0, 0, 5, 16, 2.5f, 1 << 20);
    s = find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0);
    assert_int_equal(s->packet->msg->l_done.version, 5);
    /* It contributes to no further round. */
    submit_push(&b, 0, 0, 6, 0);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL), 1);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

/* A reattached rank reports that a barrier is open at which another rank waits;
 * that rank's barrier ends. */
static void barrier_passed_by_one_rank_ends_for_all(void **state)
{
    struct ps_event closed = {.type = PS_EV_CLOSED, .conn = WORKER_CONN + 1};
    struct ps_rec_slot slot = {
        .node = AGENT_NODE, .incarnation = 1, .ranks = 2};
    struct ps_rec_rank ranks[2] = {
        {.worker = 1, .state = PS_RANK_STATE_LIVE, .incarnation = 1},
        {.rank = 1,
         .worker = 3,
         .local_rank = 1,
         .state = PS_RANK_STATE_LIVE,
         .incarnation = 2}};
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_resumed(&b); /* Both have passed barrier 3. */
    deliver_msg(&b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_BARRIER,
                                 .l_barrier = {.op_id = 5, .number = 4}},
                NULL);
    feed_event(&b, closed);
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0));

    open_conn(&b, WORKER_CONN + 2, PS_CONN_LOCAL, 0);
    deliver_msg(&b, WORKER_CONN + 2,
                &(struct ps_msg){.code = PS_MSG_L_HELLO,
                                 .l_hello = {.protocol = PS_PROTOCOL,
                                             .job = "job",
                                             .num_workers = 2,
                                             .num_servers = 1,
                                             .rank = 1,
                                             .gen = GEN,
                                             .completed_barriers = 4}},
                NULL);
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){.code = PS_MSG_JOB_OPENED,
                         .job_opened = {.worker = 3, .text = "", .gen = GEN}},
        NULL);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = GEN,
                                               .version = 2,
                                               .name = "job",
                                               .phase = PS_JOB_PHASE_RUNNING,
                                               .num_workers = 2,
                                               .num_servers = 1,
                                               .slots = &slot,
                                               .slots_count = 1,
                                               .ranks = ranks,
                                               .ranks_count = 2,
                                               .reason = "",
                                               .optimizer = ""}},
                NULL);
    assert_non_null(find_sent(&b, WORKER_CONN + 2, PS_MSG_L_WELCOME, 0));
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    /* So does the scheduler's, which may go on from a file without it. */
    s = find_sent(&b, SCHED_CONN, PS_MSG_BARRIER_ENTER,
                  count_sent(&b, SCHED_CONN, PS_MSG_BARRIER_ENTER) - 1);
    assert_true(s->packet->msg->barrier_enter.is_open);
    assert_int_equal(s->packet->msg->barrier_enter.number, 4);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_BARRIER_DONE,
                                 .barrier_done = {.gen = GEN, .number = 4}},
                NULL);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

/* The rank that received the result is the last to report. */
static void late_report_of_a_completed_round_ends_it(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    memset(&b, 0, sizeof(b));
    b.reattaches = true;
    b.pushed_rounds[0] = 4;
    b.pushed_rounds[1] = 4;
    restart_bench(&b, 3, 1);
    b.workers = 2; /* Rank 2 has not reported yet. */
    open_key(&b, 0, 1, 16, SERVER_NODE);
    share_region(&b, 0, 64);
    share_region(&b, 1, 64);
    feed_tick(&b);
    connect_server(&b, false, 0);
    submit_push(&b, 0, 0, 5, 0);
    submit_push(&b, 1, 0, 5, 0);
    feed_tick(&b);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PULL, 0));
    drop_sent(&b);
    deliver_msg(&b, WORKER_CONN + 2,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 1,
                                           .name = "0",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = 16,
                                           .mxnet_key = -1,
                                           .reattached = true,
                                           .pushed_round = 5}},
                NULL);
    feed_tick(&b);
    /* The server may wait for the report of this node. */
    s = find_sent(&b, SERVER_CONN, PS_MSG_RESTORE, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->restore.committed_version, 5);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    assert_non_null(find_sent(&b, SERVER_CONN, PS_MSG_PULL, 0));
    deliver_value(&b, 0, 0, 5, 16, 2.5f, 1 << 20);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

/* The old agent's pushes are merged, and the new one gets the commit, before
 * the ranks here have contributed to that round again. */
static void operation_of_a_merged_round_ends_without_a_push(void **state)
{
    struct bench b;

    (void)state;
    begin_resumed(&b);
    submit_push(&b, 1, 0, 6, 0);
    deliver_value(&b, 0, 0, 6, 16, 3, 1 << 20);
    assert_null(find_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE, 0));
    submit_push(&b, 0, 0, 5, 0); /* The value here is newer. */
    submit_push(&b, 0, 0, 6, 0);
    feed_tick(&b);
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 2);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

static void say_key(struct bench *b, uint32_t worker, uint64_t pushed)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 9,
                                           .name = "0",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = 16,
                                           .mxnet_key = -1,
                                           .reattached = true,
                                           .pushed_round = pushed}},
                NULL);
}

/* Rounds that no correct worker reports: one rank's report twice, or ranks that
 * differ by more than a round. */
static void impossible_completed_rounds_end_the_session(void **state)
{
    for (int i = 0; i < 3; i++) {
        const struct sent *s;
        struct bench b;

        (void)state;
        memset(&b, 0, sizeof(b));
        b.reattaches = true;
        b.pushed_rounds[0] = 7;
        restart_bench(&b, 2, 1);
        b.workers = 1;
        open_key(&b, 0, 1, 16, SERVER_NODE);
        if (i == 0) {
            say_key(&b, 0, 7); /* Twice. */
        } else {
            say_key(&b, 1,
                    i == 1 ? 5 : 9); /* Ranks differ by one round at most. */
        }
        s = find_sent(&b, WORKER_CONN + (i > 0), PS_MSG_L_ERROR, 0);
        assert_non_null(s);
        assert_int_equal(s->packet->msg->l_error.error, PS_E_INVAL);
        end_bench(&b);
    }
}

static void
a_worker_that_dies_before_its_report_leaves_rounds_unknown(void **state)
{
    for (int said = 0; said < 2; said++) {
        struct bench b;

        (void)state;
        memset(&b, 0, sizeof(b));
        b.reattaches = true;
        restart_bench(&b, 1, 1);
        if (said == 1) {
            open_key(&b, 0, 1, 16, SERVER_NODE);
        }
        feed_event(
            &b, (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN});
        assert_int_equal(find_sent(&b, SCHED_CONN, PS_MSG_WORKER_GONE, 0)
                             ->packet->msg->worker_gone.rounds_unknown,
                         said == 0);
        end_bench(&b);
    }
}

/* ----------------------------------------------- what outlives an agent */

/* One worker with keys of codec 2bit reattaches to a new agent after `pushed`
 * rounds. */
static void begin_with_residuals(struct bench *b, uint64_t pushed, size_t given)
{
    struct ps_event ev = {.type = PS_EV_RESIDUAL_SEGMENT, .conn = WORKER_CONN};

    memset(b, 0, sizeof(*b));
    b->reattaches = true;
    b->pushed_rounds[0] = pushed;
    restart_bench(b, 1, 1);
    b->uses_compression = true;
    ev.region.region = 5;
    ev.region.buf = ps_buf_wrap(segment_memory, given, NULL, NULL);
    ev.region.buf->tag = 6;
    feed_event(b, ev);
    ps_buf_unref(ev.region.buf);
}

static void run_code(struct bench *b, uint64_t round, uint8_t byte)
{
    drop_sent(b);
    submit_push(b, 0, 0, round, 0);
    run_computations(b);
    feed_tick(b);
    (void)expect_code(b, 0, byte);
}

/* Runs an agent that encodes round 1, and ends the round if asked. */
static size_t leave_behind(bool ended)
{
    struct bench b;
    size_t size;

    memset(segment_memory, 0, sizeof(segment_memory));
    begin_encoding(&b, 1);
    submit_push(&b, 0, 0, 1, 0);
    run_computations(&b);
    feed_tick(&b);
    (void)expect_code(&b, 0, 0x00);
    size = find_sent(&b, WORKER_CONN, PS_MSG_L_RESIDUAL_SEGMENT, 0)
               ->packet->msg->l_residual_segment.size;
    if (ended) {
        deliver_value(&b, 0, 0, 1, 8192, 0, 1u << 30);
    }
    end_bench(&b);
    return size;
}

static void residuals_outlive_the_agent(void **state)
{
    for (int ended = 0; ended < 2; ended++) {
        size_t size = leave_behind(ended != 0);
        struct bench b;

        (void)state;
        begin_with_residuals(&b, (uint64_t)ended, size);
        open_key(&b, 0, 1, 8192, SERVER_NODE);
        feed_tick(&b);
        connect_server(&b, false, 0);
        share_region(&b, 0, 8192 * 4);
        if (ended == 0) {
            run_code(&b, 1, 0x00); /* The same bytes. */
            deliver_value(&b, 0, 0, 1, 8192, 0, 1u << 30);
        }
        run_code(&b, 2, 0xff);
        assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_RESIDUAL_SEGMENT, 0));
        end_bench(&b);
    }
}

/* Any byte of the segment can be wrong, because workers can write it. */
static void damaged_residual_segment_is_refused(void **state)
{
    size_t size = leave_behind(true);
    uint8_t whole[256];

    (void)state;
    memcpy(whole, segment_memory, sizeof(whole));
    /* Every byte of the header and of the first record. */
    for (size_t i = 0; i < 128; i++) {
        const struct sent *s;
        struct bench b;

        memcpy(segment_memory, whole, sizeof(whole));
        segment_memory[i] ^= 0xa5;
        begin_with_residuals(&b, 1, size);
        s = find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0);
        if (i < 24 || (i >= 64 && i < 72)) {
            assert_non_null(s);
            assert_int_equal(s->packet->msg->l_error.error, PS_E_INVAL);
        }
        if (s == NULL) { /* Another job's segment, or none. */
            open_key(&b, 0, 1, 8192, SERVER_NODE);
            feed_tick(&b);
            connect_server(&b, false, 0);
            share_region(&b, 0, 8192 * 4);
            submit_push(&b, 0, 0, 2, 0);
            run_computations(&b);
            feed_tick(&b);
            assert_non_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
        }
        end_bench(&b);
    }
    memcpy(segment_memory, whole, sizeof(whole));
    for (size_t given = 1; given < size; given += given) {
        struct bench b;

        begin_with_residuals(&b, 1, given);
        assert_non_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
        end_bench(&b);
    }
}

/* Validated copies count, not later writes of the worker. */
static void residual_headers_are_read_once(void **state)
{
    size_t size = leave_behind(true);
    struct bench b;

    (void)state;
    begin_with_residuals(&b, 1, size);
    memset(segment_memory, 0xff, 128); /* The header and the first record's. */
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 8192 * 4);
    run_code(&b, 2, 0xff);
    end_bench(&b);
}

/* An earlier agent, with other codec parameters, left a record of the same
 * partition. */
static void newest_residual_record_of_a_partition_counts(void **state)
{
    const size_t start = PS_FIXED_RESIDUAL_SEGMENT_BYTES;
    const size_t record = PS_FIXED_RESIDUAL_RECORD_BYTES +
                          2 * (size_t)8192 * sizeof(float);
    struct ps_fixed_residual_segment head;
    struct ps_fixed_residual_record older;
    struct bench b;

    (void)state;
    (void)leave_behind(true);
    assert_true(ps_fixed_get_residual_segment(segment_memory, &head));
    assert_int_equal(head.used, start + record);
    memcpy(segment_memory + start + record, segment_memory + start, record);
    assert_true(ps_fixed_get_residual_record(segment_memory + start, &older));
    assert_int_equal(older.round_tag >> 1, 1);
    older.codec_hash++;
    older.round_tag = 0;
    ps_fixed_put_residual_record(segment_memory + start, &older);
    head.used += record;
    head.size += record;
    ps_fixed_put_residual_segment(segment_memory, &head);
    begin_with_residuals(&b, 1, head.size);
    open_key(&b, 0, 1, 8192, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 8192 * 4);
    run_code(&b, 2, 0xff);
    end_bench(&b);
}

/* ------------------------------------------------------------ disagreements */

static void deliver_disagreement(struct bench *b, const char *key,
                                 uint32_t number, const char *text)
{
    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_DISAGREEMENT,
                                 .disagreement = {.gen = GEN,
                                                  .number = number,
                                                  .name = key,
                                                  .text = text}},
                NULL);
}

static void submit_init(struct bench *b, uint32_t worker, uint64_t id)
{
    submit_op(b, worker,
              (struct ps_msg_l_op){.op_id = id,
                                   .op = PS_OP_INIT,
                                   .key = 0,
                                   .region = worker == 0 ? 1 : 0});
}

static void expect_notice(const struct bench *b, uint32_t worker,
                          const char *text)
{
    assert_int_equal(last_op_done(b, worker)->error, PS_E_MISMATCH);
    assert_string_equal(last_op_done(b, worker)->text, text);
}

/* A rank that waits is notified at once, another one with its next operation, and
 * each once: the following ones are accepted. */
static void
ranks_are_notified_once_that_a_key_was_declared_otherwise(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_init(&b, 1, 7);
    deliver_disagreement(&b, "0", 1, "both");
    expect_notice(&b, 1, "both");
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    submit_push(&b, 0, 0, 1, 0);
    expect_notice(&b, 0, "both");
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_ABORT_ROUND), 0);
    deliver_disagreement(&b, "0", 1, "both");
    submit_push(&b, 0, 0, 1, 0);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

/* Commits that arrive after that are those of an init that has failed. */
static void an_init_that_was_sent_fails_as_a_whole(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_init(&b, 0, 7);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 3);
    deliver_commit(&b, 0, 0, 0, 8192, 0);
    deliver_disagreement(&b, "0", 1, "both");
    expect_notice(&b, 0, "both");
    deliver_commit(&b, 0, 1, 0, 8192, 0);
    submit_init(&b, 0, 8);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 4);
    deliver_commit(&b, 0, 2, 0, 8192, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL), 1);
    end_bench(&b);
}

/* All declare the same again before a rank was notified. */
static void ranks_that_agree_again_are_not_notified(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    deliver_disagreement(&b, "0", 1, "both");
    deliver_disagreement(&b, "0", 3, "");
    deliver_disagreement(&b, "0", 2, "late");
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    end_bench(&b);
}

/* A round that waits for a rank without the key is aborted by the servers, which
 * know whether all slots have contributed: then the attempt counts, and the ranks
 * are notified with their next operation. */
static void
rounds_are_aborted_if_a_rank_declares_their_key_otherwise(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    deliver_disagreement(&b, "0", 1, "both");
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_ABORT_ROUND), 3);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    deliver_conflict(&b, 1, 1);
    expect_notice(&b, 0, "both");
    expect_notice(&b, 1, "both");
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 6);
    assert_int_equal(
        find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 5)->packet->msg->push.retry, 1);
    end_bench(&b);
}

/* Nothing of a round that waits for a rank of this node has left it. */
static void
rounds_of_one_node_end_if_a_rank_declares_their_key_otherwise(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_push(&b, 0, 0, 1, 0);
    deliver_disagreement(&b, "0", 1, "both");
    expect_notice(&b, 0, "both");
    submit_push(&b, 1, 0, 1, 0);
    expect_notice(&b, 1, "both");
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    assert_int_equal(
        find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 2)->packet->msg->push.retry, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_ABORT_ROUND), 0);
    end_bench(&b);
}

static void declare_as(struct bench *b, uint32_t worker, uint64_t count)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = count,
                                           .name = "0",
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = count,
                                           .mxnet_key = -1}},
                NULL);
}

/* The agent finds that two of its ranks disagree, and tells the scheduler, for
 * those of other nodes. */
static void ranks_of_one_node_disagree(void **state)
{
    static const char text[] =
        "key '0' is float32 with 24576 elements for rank 0, and float32 with 5 "
        "elements for rank 2: all ranks must declare the same";
    struct bench b;

    (void)state;
    begin_growing(&b, 3, 1);
    submit_init(&b, 1, 7);
    declare_as(&b, 2, 5);
    assert_string_equal(find_sent(&b, WORKER_CONN + 2, PS_MSG_L_KEY_INFO, 1)
                            ->packet->msg->l_key_info.text,
                        text);
    expect_notice(&b, 1, text);
    assert_string_equal(find_sent(&b, SCHED_CONN, PS_MSG_DISAGREEMENT, 0)
                            ->packet->msg->disagreement.text,
                        text);
    declare_as(&b, 2, 24576);
    assert_string_equal(find_sent(&b, SCHED_CONN, PS_MSG_DISAGREEMENT, 1)
                            ->packet->msg->disagreement.text,
                        "");
    submit_push(&b, 0, 0, 1, 0);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    end_bench(&b);
}

/* A round that waits for an init goes on without it: a rank that was refused may
 * take part in it. */
static void a_round_goes_on_when_its_init_fails(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_init(&b, 0, 7);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
    deliver_disagreement(&b, "", 1, "two optimizers");
    expect_notice(&b, 0, "two optimizers");
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
    end_bench(&b);
}

/* The same for the ranks' declarations of the key itself: a push of an async job,
 * and a round to which a lost process has contributed. */
static void pushes_go_on_when_the_init_of_a_disputed_key_fails(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        struct bench b = {.is_async = async != 0};

        grow(&b, 2, 1);
        submit_init(&b, 0, 7);
        submit_push(&b, 0, 0, 1, 0);
        submit_push(&b, 1, 0, 1, 0);
        if (!b.is_async) {
            feed_event(&b, (struct ps_event){.type = PS_EV_CLOSED,
                                             .conn = WORKER_CONN + 1});
        }
        run_computations(&b);
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
        deliver_disagreement(&b, "0", 1, "both");
        run_computations(&b);
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3);
        end_bench(&b);
    }
}

/* An array whose init has failed is no value: the worker may change it. */
static void a_failed_init_without_servers_sets_no_value(void **state)
{
    (void)state;
    for (int pushes = 0; pushes < 2; pushes++) {
        struct bench b;

        begin_growing(&b, 2, 0);
        submit_init(&b, 0, 7);
        assert_true(b.computation_count > 0);
        for (uint32_t w = 0; pushes > 0 && w < 2; w++) {
            submit_push(&b, w, 0, 1, 0);
        }
        declare_as(&b, 1, 5);
        assert_int_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_DONE, 0)
                             ->packet->msg->l_done.error,
                         PS_E_MISMATCH);
        run_computations(&b);
        if (pushes > 0) {
            assert_int_equal(last_op_done(&b, 0)->error, 0);
            assert_int_equal(last_op_done(&b, 1)->version, 1);
        } else {
            submit_init(&b, 0, 8);
            assert_true(b.computation_count > 0);
            run_computations(&b);
            assert_int_equal(last_op_done(&b, 0)->error, 0);
        }
        end_bench(&b);
    }
}

/* Optimizer and compression hold for all keys. */
static void ranks_are_notified_once_that_the_optimizer_differs(void **state)
{
    struct bench b;

    (void)state;
    begin_growing(&b, 2, 1);
    submit_init(&b, 1, 7);
    deliver_disagreement(&b, "", 1, "two optimizers");
    expect_notice(&b, 1, "two optimizers");
    submit_push(&b, 0, 0, 1, 0);
    expect_notice(&b, 0, "two optimizers");
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_ABORT_ROUND), 0);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    assert_int_equal(count_sent(&b, WORKER_CONN + 1, PS_MSG_L_DONE), 1);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_value_of_a_held_version_is_discarded),
        cmocka_unit_test(push_of_one_worker_is_sent_from_its_region),
        cmocka_unit_test(contributions_are_summed_once_in_rank_order),
        cmocka_unit_test(copied_partitions_are_pushed),
        cmocka_unit_test(trace_has_the_way_of_a_push),
        cmocka_unit_test(partitions_wait_for_the_slowest_copy),
        cmocka_unit_test(end_of_an_init_releases_copied_partitions),
        cmocka_unit_test(streaming_needs_a_job_that_fails_on_loss),
        cmocka_unit_test(
            ranks_are_notified_once_that_a_key_was_declared_otherwise),
        cmocka_unit_test(an_init_that_was_sent_fails_as_a_whole),
        cmocka_unit_test(a_round_goes_on_when_its_init_fails),
        cmocka_unit_test(pushes_go_on_when_the_init_of_a_disputed_key_fails),
        cmocka_unit_test(a_failed_init_without_servers_sets_no_value),
        cmocka_unit_test(ranks_that_agree_again_are_not_notified),
        cmocka_unit_test(
            rounds_are_aborted_if_a_rank_declares_their_key_otherwise),
        cmocka_unit_test(
            rounds_of_one_node_end_if_a_rank_declares_their_key_otherwise),
        cmocka_unit_test(ranks_of_one_node_disagree),
        cmocka_unit_test(ranks_are_notified_once_that_the_optimizer_differs),
        cmocka_unit_test(impossible_copy_progress_ends_the_session),
        cmocka_unit_test(stall_query_names_a_worker_that_copies),
        cmocka_unit_test(round_that_fails_during_a_copy_is_repeated),
        cmocka_unit_test(partitions_of_higher_priority_are_sent_first),
        cmocka_unit_test(pushes_stop_at_the_credit),
        cmocka_unit_test(partitions_of_small_keys_share_frames),
        cmocka_unit_test(small_sums_share_one_block),
        cmocka_unit_test(malformed_operation_of_a_batch_fails_alone),
        cmocka_unit_test(full_link_continues_after_an_acknowledgement),
        cmocka_unit_test(unanswered_pushes_are_repeated_on_a_new_link),
        cmocka_unit_test(next_round_begins_beside_a_repeated_sum),
        cmocka_unit_test(copied_partitions_wait_for_a_repeated_sum),
        cmocka_unit_test(failed_round_keeps_the_residual),
        cmocka_unit_test(a_merged_encoding_of_an_aborted_attempt_counts),
        cmocka_unit_test(a_collective_is_not_encoded),
        cmocka_unit_test(late_refusal_of_a_push_does_not_fail_an_init),
        cmocka_unit_test(late_refusal_does_not_fail_the_next_attempt),
        cmocka_unit_test(late_refusal_of_an_init_does_not_fail_the_next),
        cmocka_unit_test(late_refusal_does_not_fail_the_next_push),
        cmocka_unit_test(refusal_of_a_push_does_not_end_an_open_pull),
        cmocka_unit_test(a_refused_request_for_a_clock_is_repeated),
        cmocka_unit_test(init_repeats_only_its_refused_parts),
        cmocka_unit_test(sent_encoding_is_repeated_on_a_new_link),
        cmocka_unit_test(sums_and_means_are_encoded),
        cmocka_unit_test(placement_before_the_reply_is_kept),
        cmocka_unit_test(conflict_is_reported_to_its_local_ranks),
        cmocka_unit_test(declaration_answers_queries_for_its_key),
        cmocka_unit_test(malformed_operations_fail_alone),
        cmocka_unit_test(skip_adds_no_contribution),
        cmocka_unit_test(commit_of_a_skip_tells_whether_all_ranks_skipped),
        cmocka_unit_test(value_of_a_skipped_round_has_the_next_version),
        cmocka_unit_test(malformed_skip_is_refused),
        cmocka_unit_test(skipped_round_without_servers_keeps_the_value),
        cmocka_unit_test(a_root_that_has_joined_is_named),
        cmocka_unit_test(refusals_of_one_conflict_count_once),
        cmocka_unit_test(round_without_servers_ends_at_the_agent),
        cmocka_unit_test(ranks_continue_at_a_new_agent),
        cmocka_unit_test(a_round_that_a_rank_completed_before_it_left_is_over),
        cmocka_unit_test(barrier_passed_by_one_rank_ends_for_all),
        cmocka_unit_test(late_report_of_a_completed_round_ends_it),
        cmocka_unit_test(operation_of_a_merged_round_ends_without_a_push),
        cmocka_unit_test(impossible_completed_rounds_end_the_session),
        cmocka_unit_test(
            a_worker_that_dies_before_its_report_leaves_rounds_unknown),
        cmocka_unit_test(progress_of_a_result_is_reported_to_workers),
        cmocka_unit_test(push_without_a_pull_gets_no_progress),
        cmocka_unit_test(progress_follows_the_order_of_partitions),
        cmocka_unit_test(residuals_outlive_the_agent),
        cmocka_unit_test(damaged_residual_segment_is_refused),
        cmocka_unit_test(residual_headers_are_read_once),
        cmocka_unit_test(newest_residual_record_of_a_partition_counts),
        cmocka_unit_test(ended_job_frees_its_memory),
        cmocka_unit_test(pushes_of_an_ended_job_are_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
