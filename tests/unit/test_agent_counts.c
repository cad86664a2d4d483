/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong counts, and operations in an order that the library never produces: a
 * worker may send any of them. Each is refused with a text, and no number is
 * used before it is checked. */
#include "agent_world.h"

#include "base/alloc.h"

static struct ps_msg_l_op rows_op(enum ps_op kind, uint32_t rows)
{
    return (struct ps_msg_l_op){.op_id = rows,
                                .op = kind,
                                .region = 1,
                                .row_count = rows,
                                .round = kind == PS_OP_PUSH_ROWS};
}

/* A key of 8 rows of `width`, and a region with a stated size of `size` bytes. */
static void begin_rows(struct bench *b, uint32_t width, size_t size)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN};

    memset(b, 0, sizeof(*b));
    b->row_width = width;
    restart_bench(b, 1, 1);
    open_key(b, 0, 1, 8 * width, SERVER_NODE);
    feed_tick(b);
    connect_server(b, false, 0);
    b->region[0] = ps_buf_new(4096);
    memset(b->region[0]->data, 0, 4096);
    b->region[0]->size = size; /* Memory behind it must not be read. */
    ev.region.region = 1;
    ev.region.buf = b->region[0];
    feed_event(b, ev);
}

static void row_counts_beyond_the_key_are_refused(void **state)
{
    static const uint32_t counts[] = {
        UINT32_MAX,     9,           1u << 10,   1u << 30,
        (1u << 30) + 1, 0x7fffffffu, 0xfffffffeu};
    static const enum ps_op kinds[] = {PS_OP_PUSH_ROWS, PS_OP_PULL_ROWS};

    (void)state;
    for (uint32_t width = 1; width <= 64; width *= 64) {
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            for (int k = 0; k < 2; k++) {
                struct bench b;

                /* As a sparse file: larger than what the numbers take. */
                begin_rows(&b, width, (size_t)1 << 46);
                submit_op(&b, 0, rows_op(kinds[k], counts[i]));
                assert_int_equal(last_op_done(&b, 0)->error, PS_E_INVAL);
                assert_non_null(
                    strstr(last_op_done(&b, 0)->text, "has 8 rows"));
                assert_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH_ROWS, 0));
                /* The same rank goes on. */
                submit_op(&b, 0, rows_op(PS_OP_PUSH_ROWS, 1));
                assert_int_equal(b.computation_count, 1);
                run_computations(&b);
                end_bench(&b);
            }
        }
    }
}

/* A block with fewer rows than stated is copied only up to the first invalid
 * number, and numbers beyond the budget are not copied at all. */
static void row_numbers_are_checked_while_they_are_copied(void **state)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN};

    (void)state;
    for (uint64_t max = 0; max <= 256u << 20; max += 256u << 20) {
        struct bench b;

        memset(&b, 0, sizeof(b));
        b.row_width = 1;
        b.memory_max = max;
        restart_bench(&b, 1, 1);
        open_key(&b, 0, 256, 4u << 20, SERVER_NODE);
        feed_tick(&b);
        connect_server(&b, false, 0);
        b.region[0] = ps_buf_new(4096);
        memset(b.region[0]->data, 0, 4096);
        b.region[0]->size = (size_t)1 << 46;
        ev.region.region = 1;
        ev.region.buf = b.region[0];
        feed_event(&b, ev);
        submit_op(&b, 0, rows_op(PS_OP_PULL_ROWS, 1u << 30));
        assert_int_equal(last_op_done(&b, 0)->error,
                         max == 0 ? PS_E_INVAL : PS_E_FULL);
        assert_non_null(
            strstr(last_op_done(&b, 0)->text,
                   max == 0 ? "must ascend" : "limits.user.memory"));
        for (uint32_t i = 0; i < 1000; i++) { /* All is given back. */
            submit_op(&b, 0, rows_op(PS_OP_PULL_ROWS, 1));
            submit_op(&b, 0, rows_op(PS_OP_PULL_ROWS, 2));
        }
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PULL_ROWS), 1000);
        end_bench(&b);
    }
}

/* Requests for 65,536 partitions take a megabyte. */
static void row_pulls_without_memory_are_refused(void **state)
{
    uint32_t refusals = 0;
    struct bench b;

    (void)state;
    begin_rows(&b, 1, 4096);
    for (uint64_t n = 1; n < 20; n++) {
        uint32_t done = count_sent(&b, WORKER_CONN, PS_MSG_L_DONE);

        ps_alloc_fail_at(n, 0);
        submit_op(&b, 0, rows_op(PS_OP_PULL_ROWS, 1));
        ps_alloc_fail_at(0, 0);
        if (count_sent(&b, WORKER_CONN, PS_MSG_L_DONE) > done) {
            assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOMEM);
            refusals++;
        }
    }
    assert_int_equal(refusals, 1);
    end_bench(&b);
}

static void key_beyond_the_partition_limit_is_refused(void **state)
{
    static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 4,
                                      (UINT64_C(1) << 62), UINT64_C(1) << 50};
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    for (uint32_t i = 0; i < 4; i++) {
        const struct sent *s;

        deliver_msg(&b, WORKER_CONN,
                    &(struct ps_msg){.code = PS_MSG_L_KEY,
                                     .l_key = {.request = i,
                                               .name = "k",
                                               .dtype = PS_DTYPE_FLOAT32,
                                               .count = counts[i],
                                               .mxnet_key = -1}},
                    NULL);
        s = find_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, i);
        assert_non_null(s);
        assert_true(s->packet->msg->l_key_info.error != 0);
        assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 0);
    }
    end_bench(&b);
}

/* ------------------------------------------------------------------- orders */

#define PARTS 3u
#define EACH  8192u

static void compute_one(struct bench *b)
{
    struct ps_compute *c = b->computations[0];
    struct ps_event ev = {.type = PS_EV_COMPUTED};

    assert_true(b->computation_count > 0);
    memmove(b->computations, b->computations + 1,
            --b->computation_count * sizeof(b->computations[0]));
    ev.computed.token = c->token;
    ev.computed.rc = ps_kernel_run(&c->job);
    ps_compute_free(c);
    feed_event(b, ev);
}

static void refuse(struct bench *b, uint32_t index, uint64_t round)
{
    struct ps_rec_part part = {.index = index, .round = round};

    deliver_msg(b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_REFUSE,
                                 .refuse = {.gen = GEN,
                                            .epoch = 1,
                                            .credit = 1u << 30,
                                            .error = PS_E_NOKEY,
                                            .text = "",
                                            .parts = &part,
                                            .parts_count = 1}},
                NULL);
}

static void init(struct bench *b, uint32_t worker)
{
    submit_op(b, worker,
              (struct ps_msg_l_op){
                  .op_id = 900 + worker, .op = PS_OP_INIT, .region = 1});
}

static uint32_t inits_of(const struct bench *b, uint32_t index)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < count_sent(b, SERVER_CONN, PS_MSG_INIT); i++) {
        const struct sent *s = find_sent(b, SERVER_CONN, PS_MSG_INIT, i);

        n += s->packet->msg->init.parts[0].index == index;
    }
    return n;
}

/* Two ranks pushed without an init; the first sum was refused for that, and the
 * other sums still run. */
static void begin_refused(struct bench *b)
{
    open_key(b, 0, PARTS, EACH, SERVER_NODE);
    feed_tick(b);
    connect_server(b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        share_region(b, w, (size_t)PARTS * EACH * 4);
    }
    submit_push(b, 0, 0, 1, 0);
    submit_push(b, 1, 0, 1, 0);
    assert_int_equal(b->computation_count, PARTS);
    compute_one(b);
    assert_int_equal(count_sent(b, SERVER_CONN, PS_MSG_PUSH), 1);
    refuse(b, 0, 1);
    for (uint32_t w = 0; w < 2; w++) {
        assert_int_equal(last_op_done(b, w)->error, PS_E_NOKEY);
    }
}

/* All partitions get their init, each once, and the round continues. */
static void expect_goes_on(struct bench *b)
{
    run_computations(b);
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_int_equal(inits_of(b, i), 1);
        deliver_value(b, 0, i, 0, EACH, 7, 1u << 30);
    }
    for (uint32_t w = 0; w < 2; w++) {
        assert_int_equal(last_op_done(b, w)->op_id, 900 + w);
        assert_int_equal(last_op_done(b, w)->error, 0);
    }
    drop_sent(b);
    submit_push(b, 0, 0, 1, 0);
    submit_push(b, 1, 0, 1, 0);
    run_computations(b);
    assert_int_equal(count_sent(b, SERVER_CONN, PS_MSG_PUSH), PARTS);
    for (uint32_t i = 0; i < PARTS; i++) {
        deliver_value(b, 0, i, 1, EACH, 8, 1u << 30);
    }
    assert_int_equal(last_op_done(b, 1)->error, 0);
}

static void an_init_waits_for_sums_of_a_failed_round(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    begin_refused(&b);
    init(&b, 0);
    init(&b, 1);
    assert_int_equal(inits_of(&b, 0), 1); /* The only idle one. */
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 1);
    expect_goes_on(&b);
    end_bench(&b);
}

/* Another node's init arrives first. */
static void value_of_another_node_ends_a_delayed_init(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    begin_refused(&b);
    init(&b, 0);
    init(&b, 1);
    for (uint32_t i = 0; i < PARTS; i++) {
        deliver_value(&b, 0, i, 0, EACH, 7, 1u << 30);
    }
    assert_int_equal(last_op_done(&b, 0)->op_id, 900);
    assert_int_equal(last_op_done(&b, 0)->error, 0);
    /* The next round begins while sums of the failed one still run. */
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    drop_sent(&b);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), 0);
    for (uint32_t i = 0; i < PARTS; i++) {
        deliver_value(&b, 0, i, 1, EACH, 8, 1u << 30);
    }
    assert_int_equal(last_op_done(&b, 1)->error, 0);
    run_computations(&b);
    end_bench(&b);
}

/* Pushes of the next round come before the init is made. */
static void a_push_behind_an_init_waits_for_it(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    begin_refused(&b);
    init(&b, 0);
    init(&b, 1);
    drop_sent(&b);
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_INIT), PARTS - 1);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
    for (uint32_t i = 0; i < PARTS; i++) {
        deliver_value(&b, 0, i, 0, EACH, 7, 1u << 30);
    }
    run_computations(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), PARTS);
    for (uint32_t i = 0; i < PARTS; i++) {
        deliver_value(&b, 0, i, 1, EACH, 8, 1u << 30);
    }
    for (uint32_t w = 0; w < 2; w++) {
        assert_int_equal(last_op_done(&b, w)->op_id, 1);
        assert_int_equal(last_op_done(&b, w)->error, 0);
    }
    end_bench(&b);
}

/* One rank that sends its next round twice while the last one is open does not
 * count for two. */
static void repeated_push_of_a_rank_counts_once(void **state)
{
    struct ps_msg_l_op twice = pushpull_op(0, 2);
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, PARTS, EACH, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        share_region(&b, w, (size_t)PARTS * EACH * 4);
    }
    submit_push(&b, 0, 0, 1, 0);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    submit_push(&b, 0, 0, 2, 0);
    twice.op_id = 77;
    submit_op(&b, 0, twice);
    twice.round = 4; /* And not for two of the next round. */
    twice.op_id = 78;
    submit_op(&b, 0, twice);
    drop_sent(&b);
    for (uint32_t i = 0; i < PARTS; i++) {
        deliver_value(&b, 0, i, 1, EACH, 8, 1u << 30);
    }
    assert_int_equal(last_op_done(&b, 0)->op_id, 77);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_INVAL);
    assert_non_null(strstr(last_op_done(&b, 0)->text, "its next round is 3"));
    assert_int_equal(b.computation_count, 0);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 0);
    submit_push(&b, 1, 0, 2, 0);
    assert_int_equal(b.computation_count, PARTS);
    run_computations(&b);
    end_bench(&b);
}

/* The kernel refuses the job: the round fails with a text, and the next one
 * succeeds. */
static void a_sum_that_fails_ends_its_round(void **state)
{
    (void)state;
    for (uint32_t servers = 0; servers < 2; servers++) {
        struct ps_event ev = {.type = PS_EV_COMPUTED};
        const float *at[PARTS];
        struct bench b;

        begin_bench(&b, 2, servers);
        open_key(&b, 0, PARTS, EACH, servers == 0 ? 0 : SERVER_NODE);
        feed_tick(&b);
        if (servers > 0) {
            connect_server(&b, false, 0);
        }
        for (uint32_t w = 0; w < 2; w++) {
            share_region(&b, w, (size_t)PARTS * EACH * 4);
        }
        submit_push(&b, 0, 0, 1, 0);
        submit_push(&b, 1, 0, 1, 0);
        for (uint32_t i = 0; i < PARTS; i++) {
            at[i] = b.computations[i]->job.dst;
        }
        ev.computed.token = b.computations[0]->token;
        ev.computed.rc = PS_E_INVAL;
        ps_compute_free(b.computations[0]);
        memmove(b.computations, b.computations + 1,
                --b.computation_count * sizeof(b.computations[0]));
        feed_event(&b, ev);
        for (uint32_t w = 0; w < 2; w++) {
            assert_int_equal(last_op_done(&b, w)->error, PS_E_INVAL);
            assert_non_null(
                strstr(last_op_done(&b, w)->text, "could not be computed"));
        }
        /* With other arrays, while sums of the old ones still run. */
        for (uint32_t i = 0; i < PARTS * EACH; i++) {
            ((float *)(void *)b.region[0]->data)[i] = 5;
        }
        compute_one(&b);
        for (uint32_t i = 0; i < PARTS * EACH; i++) {
            ((float *)(void *)b.region[0]->data)[i] = 9;
        }
        submit_push(&b, 0, 0, 1, 0);
        submit_push(&b, 1, 0, 1, 0);
        run_computations(&b);
        for (uint32_t i = 0; servers == 0 && i < PARTS; i++) {
            assert_true(at[i][0] == 11);
            assert_true(at[i][EACH - 1] == 11);
        }
        for (uint32_t i = 0; servers > 0 && i < PARTS; i++) {
            deliver_value(&b, 0, i, 1, EACH, 8, 1u << 30);
        }
        assert_int_equal(last_op_done(&b, 1)->error, 0);
        assert_int_equal(last_op_done(&b, 1)->version, 1);
        end_bench(&b);
    }
}

/* The partition has moved and waits in the queue of its new owner: it leaves
 * that queue when its round fails. */
static void a_sum_that_fails_after_its_partition_moved(void **state)
{
    struct ps_event ev = {.type = PS_EV_COMPUTED};
    const uint32_t record[2] = {SERVER_NODE + 1, EACH};
    struct ps_buf *table = ps_buf_new(sizeof(record));
    struct ps_slice payload = {.buf = table, .len = table->size};
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, EACH, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        share_region(&b, w, EACH * 4);
        submit_push(&b, w, 0, 1, 0);
    }
    memcpy(table->data, record, sizeof(record));
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                         .key_opened = {.gen = GEN, .epoch = 2, .parts = 1}},
        &payload);
    ps_buf_unref(table);
    ev.computed.token = b.computations[0]->token;
    ev.computed.rc = PS_E_INVAL;
    feed_event(&b, ev);
    ps_compute_free(b.computations[0]);
    b.computation_count = 0;
    assert_int_equal(last_op_done(&b, 1)->error, PS_E_INVAL);
    end_bench(&b); /* Queues are empty. */
}

/* The same without rounds; the init comes before or after the push fails. */
static void an_async_init_waits_for_sums_that_failed(void **state)
{
    (void)state;
    for (int before = 0; before < 2; before++) {
        struct bench b = {.is_async = true};

        restart_bench(&b, 2, 1);
        open_key(&b, 0, PARTS, EACH, SERVER_NODE);
        feed_tick(&b);
        connect_server(&b, false, 0);
        for (uint32_t w = 0; w < 2; w++) {
            share_region(&b, w, (size_t)PARTS * EACH * 4);
        }
        /* The second and third push wait for the first, and are one sum
         * then. */
        submit_push(&b, 0, 0, 1, 0);
        submit_push(&b, 0, 0, 2, 0);
        submit_push(&b, 1, 0, 1, 0);
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), PARTS);
        refuse(&b, 0, 1);
        assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOKEY);
        assert_int_equal(b.computation_count, PARTS);
        compute_one(&b);
        for (int i = 0; i < 2; i++) {
            if (i == before) {
                refuse(&b, 0, 2);
                assert_int_equal(b.computation_count, PARTS - 1);
            } else {
                init(&b, 0);
                init(&b, 1);
            }
        }
        run_computations(&b);
        for (uint32_t i = 0; i < PARTS; i++) {
            assert_int_equal(inits_of(&b, i), 1);
        }
        end_bench(&b);
    }
}

/* An earlier init was refused for one partition; the others have values. */
static void an_async_init_in_part_waits_for_a_push(void **state)
{
    struct bench b;

    (void)state;
    memset(&b, 0, sizeof(b));
    b.is_async = true;
    restart_bench(&b, 2, 1);
    open_key(&b, 0, PARTS, EACH, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t w = 0; w < 2; w++) {
        share_region(&b, w, (size_t)PARTS * EACH * 4);
    }
    init(&b, 0);
    deliver_commit(&b, 0, 0, 0, EACH, 0);
    refuse(&b, 1, 0);
    assert_int_equal(last_op_done(&b, 0)->error, PS_E_NOKEY);
    submit_push(&b, 1, 0, 1, 0);
    init(&b, 0);
    assert_int_equal(inits_of(&b, 1), 1);
    refuse(&b, 1, 1);
    assert_int_equal(last_op_done(&b, 1)->error, PS_E_NOKEY);
    assert_int_equal(inits_of(&b, 0), 1);
    assert_int_equal(inits_of(&b, 1), 2);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_counts_beyond_the_key_are_refused),
        cmocka_unit_test(row_numbers_are_checked_while_they_are_copied),
        cmocka_unit_test(row_pulls_without_memory_are_refused),
        cmocka_unit_test(key_beyond_the_partition_limit_is_refused),
        cmocka_unit_test(an_init_waits_for_sums_of_a_failed_round),
        cmocka_unit_test(value_of_another_node_ends_a_delayed_init),
        cmocka_unit_test(a_push_behind_an_init_waits_for_it),
        cmocka_unit_test(repeated_push_of_a_rank_counts_once),
        cmocka_unit_test(a_sum_that_fails_ends_its_round),
        cmocka_unit_test(a_sum_that_fails_after_its_partition_moved),
        cmocka_unit_test(an_async_init_waits_for_sums_that_failed),
        cmocka_unit_test(an_async_init_in_part_waits_for_a_push),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
