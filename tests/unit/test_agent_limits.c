/* SPDX-License-Identifier: Apache-2.0 */
/* Costs that the agent counts, the accounts that they are charged to, and the
 * effect of reached limits. */
#include "agent_world.h"

#include "base/alloc.h"

static void limit(enum ps_account_kind kind, enum ps_cost cost, uint64_t max)
{
    agent_limits[kind].limit[cost] = (struct ps_account_limit){
        .max = max, .option = "limits.test"};
}

static void no_limits(void)
{
    memset(agent_limits, 0, sizeof(agent_limits));
}

static uint64_t used(const struct bench *b, enum ps_cost cost)
{
    return b->machine.account->cost[cost].used;
}

static void ask_for_key(struct bench *b, uint32_t worker, uint32_t number,
                        uint64_t elements)
{
    char name[32];

    snprintf(name, sizeof(name), "%u", number);
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = number + 1,
                                           .name = name,
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = elements,
                                           .mxnet_key = -1}},
                NULL);
}

static const struct ps_msg_l_key_info *last_info(const struct bench *b)
{
    return &find_sent(b, WORKER_CONN, PS_MSG_L_KEY_INFO,
                      count_sent(b, WORKER_CONN, PS_MSG_L_KEY_INFO) - 1)
                ->packet->msg->l_key_info;
}

/* Returns the most log lines counted in an account of this kind. */
static uint64_t lines_of(const struct bench *b, enum ps_account_kind kind)
{
    uint64_t most = 0;

    PS_LIST_EACH(n, &b->machine.account->descendants)
    {
        const struct ps_account *a = PS_CONTAINER(n, struct ps_account, node);

        if (a->kind == kind && a->cost[PS_COST_LOG_LINES].used > most) {
            most = a->cost[PS_COST_LOG_LINES].used;
        }
    }
    return most;
}

static void log_lines_are_charged_to_session_job_and_user(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    limit(PS_ACCOUNT_JOB, PS_COST_KEYS, 1);
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    assert_int_equal(lines_of(&b, PS_ACCOUNT_SESSION), 0);
    ask_for_key(&b, 0, 1, 16);
    ask_for_key(&b, 0, 2, 16);
    assert_int_equal(last_info(&b)->error, PS_E_FULL);
    assert_int_equal(lines_of(&b, PS_ACCOUNT_SESSION), 2);
    assert_int_equal(lines_of(&b, PS_ACCOUNT_JOB), 2);
    assert_int_equal(lines_of(&b, PS_ACCOUNT_USER), 2);
    kill_worker(&b, 0); /* A line of its own. */
    assert_int_equal(lines_of(&b, PS_ACCOUNT_SESSION), 0);
    assert_int_equal(lines_of(&b, PS_ACCOUNT_JOB), 3);
    assert_int_equal(used(&b, PS_COST_LOG_LINES), 3);
    end_bench(&b);
}

static void a_key_that_is_refused_is_closed_at_the_scheduler(void **state)
{
    struct bench b;
    const struct ps_msg_key_close *close;

    (void)state;
    no_limits();
    limit(PS_ACCOUNT_JOB, PS_COST_PARTITIONS, 3);
    begin_bench(&b, 1, 1);
    open_key(&b, 5, 2, 100, SERVER_NODE);
    assert_int_equal(last_info(&b)->error, 0);
    assert_int_equal(used(&b, PS_COST_PARTITIONS), 2);
    uint64_t memory = used(&b, PS_COST_MEMORY);

    assert_true(memory > 2 * 2 * 100 * sizeof(float));
    open_key(&b, 6, 2, 100, SERVER_NODE);
    assert_int_equal(last_info(&b)->error, PS_E_FULL);
    assert_non_null(strstr(last_info(&b)->text,
                           "key '6': job job has 2 of 3 partitions and needs "
                           "2 more (limits.test)"));
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_CLOSE), 1);
    close =
        &find_sent(&b, SCHED_CONN, PS_MSG_KEY_CLOSE, 0)->packet->msg->key_close;
    assert_int_equal(close->gen, GEN);
    assert_int_equal(close->key, 6);
    assert_int_equal(close->request,
                     find_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN, 1)
                         ->packet->msg->key_open.request);
    /* Nothing of it is left. */
    assert_int_equal(used(&b, PS_COST_PARTITIONS), 2);
    assert_int_equal(used(&b, PS_COST_KEYS), 1);
    assert_int_equal(used(&b, PS_COST_MEMORY), memory);
    open_key(&b, 7, 1, 100, SERVER_NODE);
    assert_int_equal(last_info(&b)->error, 0);
    end_bench(&b);
}

static void keys_beyond_a_limit_are_not_declared(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    limit(PS_ACCOUNT_USER, PS_COST_MEMORY, 1 << 20);
    limit(PS_ACCOUNT_JOB, PS_COST_KEYS, 1);
    begin_bench(&b, 1, 1);
    ask_for_key(&b, 0, 1, 1 << 18);
    assert_int_equal(last_info(&b)->error, PS_E_NOMEM);
    assert_non_null(strstr(last_info(&b)->text,
                           "no memory for two results of 1048576 bytes on this "
                           "node: user 1000 has "));
    ask_for_key(&b, 0, 2, 8);
    ask_for_key(&b, 0, 3, 8);
    assert_int_equal(last_info(&b)->error, PS_E_FULL);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 1);
    end_bench(&b);
}

static void region_is_charged_until_its_last_operation_ends(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    begin_bench(&b, 2, 1);
    open_key(&b, 1, 1, 256, SERVER_NODE);
    share_region(&b, 0, 4096);
    assert_int_equal(used(&b, PS_COST_REGIONS), 1);
    assert_int_equal(used(&b, PS_COST_MAPPED), 4096);
    submit_op(
        &b, 0,
        (struct ps_msg_l_op){
            .op_id = 1, .op = PS_OP_PUSH, .region = 1, .key = 1, .round = 1});
    assert_int_equal(used(&b, PS_COST_OPERATIONS), 1);
    deliver_msg(&b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_REGION_GONE,
                                 .l_region_gone = {.region = 1}},
                NULL);
    assert_int_equal(used(&b, PS_COST_REGIONS), 1);
    /* Its worker dies: the round has the array, and the user pays. */
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN});
    assert_int_equal(used(&b, PS_COST_OPERATIONS), 0);
    assert_int_equal(used(&b, PS_COST_SESSIONS), 1);
    assert_int_equal(used(&b, PS_COST_REGIONS), 1);
    end_bench(&b);
}

/* Unmapping all at once would delay all workers for milliseconds. */
static void regions_of_a_session_are_freed_in_slices(void **state)
{
    enum { REGIONS = 1000 };
    struct ps_buf *buf = ps_buf_new(4096);
    struct bench b;
    uint32_t before = REGIONS + 1;

    (void)state;
    no_limits();
    begin_bench(&b, 1, 1);
    for (uint32_t i = 0; i < REGIONS; i++) {
        struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN};

        ev.region.region = i + 1;
        ev.region.buf = buf;
        feed_event(&b, ev);
    }
    assert_int_equal(buf->refs, REGIONS + 1);
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN});
    assert_int_equal(used(&b, PS_COST_SESSIONS), 0);
    assert_in_range(buf->refs, REGIONS / 2, REGIONS);
    while (buf->refs > 1) {
        assert_in_range(before - buf->refs, 1, 64);
        assert_int_equal(used(&b, PS_COST_REGIONS), buf->refs - 1);
        before = buf->refs;
        b.now += PS_MILLIS(1);
        assert_true(b.machine.ops->deadline(b.machine.self) <= b.now);
        feed_tick(&b);
    }
    assert_int_equal(used(&b, PS_COST_MAPPED), 0);
    end_bench(&b);
    ps_buf_unref(buf);
}

/* Unmapping many results at once would delay other jobs. */
static void results_of_an_ended_job_are_freed_in_slices(void **state)
{
    struct bench b;
    uint32_t turns = 0;

    (void)state;
    no_limits();
    begin_bench(&b, 1, 1);
    for (uint32_t key = 0; key < 4; key++) {
        open_key(&b, key, 16, 1 << 20, SERVER_NODE); /* Twice 64 MiB. */
    }
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = GEN,
                                               .version = 2,
                                               .name = "job",
                                               .phase = PS_JOB_PHASE_ENDED,
                                               .reason = "",
                                               .optimizer = ""}},
                NULL);
    kill_worker(&b, 0);
    while (ps_agent_residue(b.agent) > 0) {
        assert_true(b.machine.ops->deadline(b.machine.self) <=
                    b.now + PS_MILLIS(1));
        b.now += PS_MILLIS(1);
        feed_tick(&b);
        turns++;
    }
    assert_int_equal(turns, 3); /* One is left with the job. */
    end_bench(&b);
}

static void ask_why(struct bench *b, uint64_t op_id)
{
    deliver_msg(b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_STALL_QUERY,
                                 .l_stall_query = {.op_id = op_id}},
                NULL);
}

static void answer_query(struct bench *b, uint32_t n)
{
    const struct sent *q = find_sent(b, SCHED_CONN, PS_MSG_STALL_QUERY, n);

    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_STALL_REPLY,
            .ack = q->seq,
            .stall_reply = {.gen = GEN,
                            .request = q->packet->msg->stall_query.request,
                            .other_causes = ""}},
        NULL);
}

static void open_stall_queries_are_limited(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    limit(PS_ACCOUNT_SESSION, PS_COST_QUERIES, 10);
    begin_bench(&b, 2, 1);
    for (uint32_t i = 0; i < 12; i++) {
        open_key(&b, i, 1, 256, SERVER_NODE);
        submit_op(&b, 0,
                  (struct ps_msg_l_op){.op_id = i,
                                       .op = PS_OP_BROADCAST,
                                       .key = i,
                                       .root = 1,
                                       .round = 1});
    }
    for (uint32_t i = 0; i < 100; i++) {
        ask_why(&b, 0);
    }
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_STALL_QUERY), 1);
    for (uint32_t i = 1; i < 12; i++) {
        ask_why(&b, i);
    }
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_STALL_QUERY),
                     PS_QUERIES_SENT_MAX);
    assert_int_equal(used(&b, PS_COST_QUERIES), 10);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY), 2);
    assert_non_null(strstr(find_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY, 0)
                               ->packet->msg->l_stall_reply.text,
                           "has 10 of 10 open queries (limits.test)"));
    /* Each answer lets the next query leave, until all are answered. */
    for (uint32_t i = 0; i < 10; i++) {
        answer_query(&b, i);
    }
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_STALL_QUERY), 10);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY), 12);
    assert_int_equal(used(&b, PS_COST_QUERIES), 0);
    end_bench(&b);
}

/* The worker waits no longer than five seconds. */
static void a_silent_scheduler_is_answered_for(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 256, SERVER_NODE);
    submit_op(&b, 0,
              (struct ps_msg_l_op){
                  .op_id = 5, .op = PS_OP_BROADCAST, .root = 1, .round = 1});
    ask_why(&b, 5);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_STALL_QUERY), 1);
    b.now += PS_MILLIS(2400);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY), 0);
    assert_true(b.machine.ops->deadline(b.machine.self) <=
                b.now + PS_MILLIS(100));
    b.now += PS_MILLIS(100);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY), 1);
    assert_non_null(strstr(find_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY, 0)
                               ->packet->msg->l_stall_reply.text,
                           "round 1 has waited 2.5 s; the scheduler at "
                           "psched:1 "));
    assert_int_equal(used(&b, PS_COST_QUERIES), 0);
    answer_query(&b, 0); /* Too late. */
    feed_tick(&b);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY), 1);
    end_bench(&b);
}

static void stall_query_without_scheduler_is_answered(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 256, SERVER_NODE);
    submit_op(&b, 0,
              (struct ps_msg_l_op){
                  .op_id = 5, .op = PS_OP_BROADCAST, .root = 1, .round = 1});
    feed_event(&b, (struct ps_event){
                       .type = PS_EV_CLOSED,
                       .conn = SCHED_CONN,
                       .closed = {.rc = PS_E_PERM, .why = "it is refused"}});
    ask_why(&b, 5);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_STALL_QUERY), 0);
    assert_non_null(strstr(find_sent(&b, WORKER_CONN, PS_MSG_L_STALL_REPLY, 0)
                               ->packet->msg->l_stall_reply.text,
                           "; the scheduler at psched:1 is not connected and "
                           "knows what else is missing: it is refused"));
    end_bench(&b);
}

static void process_beyond_the_query_rate_is_disconnected(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 256, SERVER_NODE);
    submit_op(&b, 0,
              (struct ps_msg_l_op){
                  .op_id = 1, .op = PS_OP_BROADCAST, .root = 1, .round = 1});
    /* The scheduler is disconnected, and the library queries now and then. */
    for (uint32_t i = 0; i < 3 * PS_QUERIES_RATE_MAX; i++) {
        ask_why(&b, 1);
        b.now += PS_MILLIS(2);
    }
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
    for (uint32_t i = 0; i < 3 * PS_QUERIES_RATE_MAX; i++) {
        ask_why(&b, 1);
    }
    assert_non_null(strstr(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0)
                               ->packet->msg->l_error.text,
                           "more than 1000 stall queries in a second"));
    end_bench(&b);
}

/* The last of many operations takes long to find: its queries count more
 * against the rate limit. */
static void query_of_many_operations_counts_by_its_cost(void **state)
{
    const uint32_t ops = 10000;
    uint32_t asked = 0;
    struct bench b;

    (void)state;
    no_limits();
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 256, SERVER_NODE);
    share_region(&b, 0, 1024);
    submit_push(&b, 0, 0, 1,
                0); /* Operation 1; the other rank has not contributed. */
    for (uint32_t i = 2; i <= ops; i++) {
        submit_op(
            &b, 0,
            (struct ps_msg_l_op){.op_id = i, .op = PS_OP_PULL, .round = 1});
        drop_sent(&b);
    }
    assert_int_equal(used(&b, PS_COST_OPERATIONS), ops);
    ask_why(&b, 1);
    ask_why(&b, ops);
    while (find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0) == NULL) {
        assert_true(++asked <= PS_QUERIES_RATE_MAX);
        ask_why(&b, ops + asked); /* None of them. */
    }
    assert_in_range(asked, 20, 30); /* 1,000 by 40. */
    end_bench(&b);
}

static void queries_of_a_dead_worker_are_dropped(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    begin_bench(&b, 2, 1);
    for (uint32_t i = 0; i < 8; i++) {
        open_key(&b, i, 1, 256, SERVER_NODE);
        submit_op(&b, 0,
                  (struct ps_msg_l_op){.op_id = i,
                                       .op = PS_OP_BROADCAST,
                                       .key = i,
                                       .root = 1,
                                       .round = 1});
        ask_why(&b, i);
    }
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN});
    assert_int_equal(used(&b, PS_COST_QUERIES), 0);
    for (uint32_t i = 0; i < PS_QUERIES_SENT_MAX; i++) {
        answer_query(&b, i);
    }
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_STALL_QUERY),
                     PS_QUERIES_SENT_MAX);
    end_bench(&b);
}

/* Memory of an agent with records of one name hash, of `different` partitions. */
static struct ps_buf *make_piece(uint32_t records, uint32_t different)
{
    const size_t each = PS_FIXED_RESIDUAL_RECORD_BYTES + 2 * 64;
    const size_t size = PS_FIXED_RESIDUAL_SEGMENT_BYTES + records * each;
    struct ps_buf *b = ps_buf_new(size);
    uint8_t *at = b->data + PS_FIXED_RESIDUAL_SEGMENT_BYTES;

    memset(b->data, 0, size);
    ps_fixed_put_residual_segment(b->data,
                                  &(struct ps_fixed_residual_segment){
                                      .size = size, .used = size, .id = 9});
    for (uint32_t i = 0; i < records; i++, at += each) {
        ps_fixed_put_residual_record(
            at, &(struct ps_fixed_residual_record){.name_hash = 1,
                                                   .index = i % different,
                                                   .count = 1,
                                                   .vector_count = 2});
    }
    return b;
}

static void bring_piece(struct bench *b, struct ps_buf *piece)
{
    struct ps_event ev = {.type = PS_EV_RESIDUAL_SEGMENT, .conn = WORKER_CONN};

    ev.region.region = 1;
    ev.region.buf = piece;
    feed_event(b, ev);
}

static void lack_region(struct bench *b, uint32_t number, int rc)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN};

    ev.region.region = number;
    ev.region.rc = rc;
    ev.region.why = "memfd cannot be mapped";
    feed_event(b, ev);
}

/* Its operations are refused with a text; others continue. */
static void region_without_memory_fails_only_its_operations(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    limit(PS_ACCOUNT_SESSION, PS_COST_REGIONS, 3);
    memset(&b, 0, sizeof(b));
    restart_bench(&b, 1, 1);
    open_key(&b, 0, 1, 4, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 16);
    lack_region(&b, 2, PS_E_NOMEM);
    lack_region(&b, 3, PS_E_NOMEM);
    assert_int_equal(used(&b, PS_COST_REGIONS), 3);

    struct ps_msg_l_op op = pushpull_op(0, 1);

    op.region = 2;
    submit_op(&b, 0, op);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOMEM);
    assert_string_equal(last_op_done(&b, 0)->text,
                        "region 2: memfd cannot be mapped");
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
    submit_op(&b, 0, pushpull_op(0, 1)); /* From region 1. */
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    assert_int_equal(used(&b, PS_COST_OPERATIONS), 1);

    /* It counts as a region until it is released. */
    deliver_msg(&b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_REGION_GONE,
                                 .l_region_gone = {.region = 2}},
                NULL);
    assert_int_equal(used(&b, PS_COST_REGIONS), 2);
    lack_region(&b, 2, PS_E_NOMEM);
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
    lack_region(&b, 4, PS_E_NOMEM);
    assert_int_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0)
                         ->packet->msg->l_error.error,
                     PS_E_FULL);
    end_bench(&b);
}

static void an_invalid_descriptor_ends_its_session(void **state)
{
    struct bench b;

    (void)state;
    no_limits();
    memset(&b, 0, sizeof(b));
    restart_bench(&b, 1, 1);
    lack_region(&b, 2, PS_E_INVAL);
    assert_string_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0)
                            ->packet->msg->l_error.text,
                        "memfd cannot be mapped");
    end_bench(&b);
}

/* A list for each name hash took minutes for records of one hash, without
 * service for any worker. */
static void residual_records_with_equal_hashes_are_read(void **state)
{
    struct ps_buf *piece = make_piece(400000, 400000);
    struct bench b;

    (void)state;
    no_limits();
    memset(&b, 0, sizeof(b));
    b.reattaches = true;
    restart_bench(&b, 1, 1);
    bring_piece(&b, piece);
    assert_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
    assert_true(used(&b, PS_COST_MEMORY) > piece->size);
    assert_int_equal(used(&b, PS_COST_MAPPED), piece->size);
    end_bench(&b);
    ps_buf_unref(piece);
}

/* Records of one partition and of many: each costs one look-up. */
static void too_many_residual_records_end_the_session(void **state)
{
    (void)state;
    no_limits();
    limit(PS_ACCOUNT_JOB, PS_COST_PARTITIONS, 500);
    for (uint32_t different = 1; different <= 1001; different += 1000) {
        struct ps_buf *piece = make_piece(1001, different);
        struct bench b;

        memset(&b, 0, sizeof(b));
        b.reattaches = true;
        restart_bench(&b, 1, 1);
        bring_piece(&b, piece);
        assert_non_null(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0));
        end_bench(&b);
        ps_buf_unref(piece);
    }
}

static void residual_records_are_charged_as_memory(void **state)
{
    struct ps_buf *piece = make_piece(1000, 1000);
    struct bench b;

    (void)state;
    no_limits();
    limit(PS_ACCOUNT_USER, PS_COST_MEMORY, piece->size + 10000);
    memset(&b, 0, sizeof(b));
    b.reattaches = true;
    restart_bench(&b, 1, 1);
    bring_piece(&b, piece);
    assert_non_null(strstr(find_sent(&b, WORKER_CONN, PS_MSG_L_ERROR, 0)
                               ->packet->msg->l_error.text,
                           "of memory"));
    end_bench(&b);
    assert_int_equal(piece->refs, 1);
    ps_buf_unref(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_lines_are_charged_to_session_job_and_user),
        cmocka_unit_test(a_key_that_is_refused_is_closed_at_the_scheduler),
        cmocka_unit_test(keys_beyond_a_limit_are_not_declared),
        cmocka_unit_test(region_is_charged_until_its_last_operation_ends),
        cmocka_unit_test(regions_of_a_session_are_freed_in_slices),
        cmocka_unit_test(results_of_an_ended_job_are_freed_in_slices),
        cmocka_unit_test(open_stall_queries_are_limited),
        cmocka_unit_test(a_silent_scheduler_is_answered_for),
        cmocka_unit_test(stall_query_without_scheduler_is_answered),
        cmocka_unit_test(process_beyond_the_query_rate_is_disconnected),
        cmocka_unit_test(query_of_many_operations_counts_by_its_cost),
        cmocka_unit_test(queries_of_a_dead_worker_are_dropped),
        cmocka_unit_test(region_without_memory_fails_only_its_operations),
        cmocka_unit_test(an_invalid_descriptor_ends_its_session),
        cmocka_unit_test(residual_records_with_equal_hashes_are_read),
        cmocka_unit_test(too_many_residual_records_end_the_session),
        cmocka_unit_test(residual_records_are_charged_as_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
