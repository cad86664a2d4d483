/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: of many declarations, a few at a time are open with the
 * scheduler, so that messages of other jobs do not wait behind them. */
#include "agent_world.h"

#define MANY 1500u

static void declare(struct bench *b, uint32_t number)
{
    char name[16];

    snprintf(name, sizeof(name), "%u", number);
    deliver_msg(b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 1 + number,
                                           .name = name,
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = 16,
                                           .mxnet_key = -1}},
                NULL);
}

/* The scheduler answers the i-th key_open. */
static void refuse(struct bench *b, uint32_t i)
{
    const struct sent *s = find_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN, i);

    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){
                    .code = PS_MSG_KEY_OPENED,
                    .ack = s->seq,
                    .key_opened = {.gen = GEN,
                                   .request = s->packet->msg->key_open.request,
                                   .error = PS_E_FULL,
                                   .text = "no"}},
                NULL);
}

static void declare_as(struct bench *b, const char *name)
{
    deliver_msg(b, WORKER_CONN,
                &(struct ps_msg){.code = PS_MSG_L_KEY,
                                 .l_key = {.request = 1,
                                           .name = name,
                                           .dtype = PS_DTYPE_FLOAT32,
                                           .count = 16,
                                           .mxnet_key = -1}},
                NULL);
}

/* These names have the same FNV-1a hash. */
static void keys_with_equal_hashes_are_distinct(void **state)
{
    const char *const names[] = {"7mohtcOFVz", "c1E51sSEyx"};
    struct bench b;

    (void)state;
    for (uint32_t first = 0; first < 2; first++) {
        begin_bench(&b, 1, 1);
        drop_sent(&b);
        declare_as(&b, names[0]);
        declare_as(&b, names[1]);
        assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 2);
        refuse(&b, first);
        /* The other key is still known and was requested once. */
        declare_as(&b, names[1 - first]);
        assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 2);
        refuse(&b, 1 - first);
        assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO), 3);
        /* Nothing is left of either. */
        declare_as(&b, names[0]);
        declare_as(&b, names[1]);
        assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 4);
        end_bench(&b);
    }
}

static void concurrent_declarations_are_limited(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    drop_sent(&b);
    for (uint32_t i = 0; i < MANY; i++) {
        declare(&b, i);
    }
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN),
                     PS_KEY_OPENS_MAX);
    /* In order, each when an earlier one is answered. */
    for (uint32_t i = 0; i < MANY; i++) {
        char name[16];
        uint32_t asked = i + PS_KEY_OPENS_MAX;

        snprintf(name, sizeof(name), "%u", i);
        assert_string_equal(find_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN, i)
                                ->packet->msg->key_open.name,
                            name);
        assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN),
                         asked < MANY ? asked : MANY);
        refuse(&b, i);
    }
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO), MANY);
    declare(&b, MANY);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN), MANY + 1);
    end_bench(&b);
}

/* Declarations of a worker that has left cost the scheduler nothing more. */
static void declarations_of_departed_workers_are_dropped(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    drop_sent(&b);
    for (uint32_t i = 0; i < MANY; i++) {
        declare(&b, i);
    }
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN});
    refuse(&b, 0);
    refuse(&b, 1);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN),
                     PS_KEY_OPENS_MAX);
    end_bench(&b);
}

/* A server that gets a partition back after a loss refuses its pushes until an
 * agent has sent a restore of the newer placement. */
static void expect_report_after(int error)
{
    struct ps_rec_part part = {.key = 0, .round = 1};
    const struct sent *s;
    struct bench b;

    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 64);
    submit_push(&b, 0, 0, 1, 0);
    feed_tick(&b);
    assert_non_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    assert_null(find_sent(&b, SERVER_CONN, PS_MSG_RESTORE, 0));
    drop_sent(&b);
    deliver_msg(&b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_REFUSE,
                                 .refuse = {.gen = GEN,
                                            .epoch = 1,
                                            .credit = 1u << 30,
                                            .error = error,
                                            .text = "",
                                            .parts = &part,
                                            .parts_count = 1}},
                NULL);
    b.now += PS_SECONDS(1);
    feed_tick(&b);
    feed_tick(&b);
    s = find_sent(&b, SERVER_CONN, PS_MSG_RESTORE, 0);
    assert_non_null(s);
    assert_int_equal(s->packet->msg->restore.epoch, 1);
    assert_false(s->packet->msg->restore.has_value);
    assert_false(s->packet->msg->restore.has_committed);
    assert_non_null(find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0));
    end_bench(&b);
}

static void key_moved_before_opening_is_reported(void **state)
{
    static const int passing[] = {
        PS_E_STALE,        PS_E_NOJOB,     PS_E_FUTURE,
        PS_E_BUSY,         PS_E_NOMEM,     PS_E_MIGRATING,
        PS_E_UNCONFIGURED, PS_E_DISCARDED, PS_E_AGAIN,
    };

    (void)state;
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        expect_report_after(passing[i]);
    }
}

/* An agent that opens a key after its partitions got another owner reports
 * that it knows no version: the owner waits for the reports of all slots before
 * it declares a version lost. */
static void opening_a_reassigned_key_reports_its_state(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    b.keys_are_reassigned = true;
    open_key(&b, 0, 2, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t i = 0; i < 2; i++) {
        s = find_sent(&b, SERVER_CONN, PS_MSG_RESTORE, i);
        assert_non_null(s);
        assert_int_equal(s->packet->msg->restore.parts[0].index, i);
        assert_int_equal(s->packet->msg->restore.epoch, 1);
        assert_false(s->packet->msg->restore.has_value);
        assert_false(s->packet->msg->restore.has_committed);
    }
    end_bench(&b);
}

/* A placement that names no parts, or has no table, opens nothing. */
static void a_placement_without_its_table_is_refused(void **state)
{
    struct bench b;

    (void)state;
    for (uint32_t parts = 0; parts < 3; parts++) {
        begin_bench(&b, 1, 1);
        declare(&b, 0);
        deliver_msg(
            &b, SCHED_CONN,
            &(struct ps_msg){
                .code = PS_MSG_KEY_OPENED,
                .key_opened = {.gen = GEN,
                               .request = find_sent(&b, SCHED_CONN,
                                                    PS_MSG_KEY_OPEN, 0)
                                              ->packet->msg->key_open.request,
                               .text = "",
                               .epoch = 1,
                               .parts = parts}},
            NULL);
        assert_int_not_equal(find_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, 0)
                                 ->packet->msg->l_key_info.error,
                             0);
        end_bench(&b);
    }
}

/* A scheduler with an older file counts keys from there. */
static void a_number_that_another_key_has_is_refused(void **state)
{
    const uint32_t record[2] = {SERVER_NODE, 16};
    struct ps_slice table = {.buf = ps_buf_new(sizeof(record)),
                             .len = sizeof(record)};
    const struct ps_msg *info;
    struct bench b;

    (void)state;
    memcpy(table.buf->data, record, sizeof(record));
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    drop_sent(&b);
    declare(&b, 7);
    deliver_msg(
        &b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .key_opened = {.gen = GEN,
                           .request = find_sent(&b, SCHED_CONN, PS_MSG_KEY_OPEN,
                                                0)
                                          ->packet->msg->key_open.request,
                           .text = "",
                           .epoch = 1,
                           .parts = 1}},
        &table);
    info = find_sent(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, 0)->packet->msg;
    assert_int_equal(info->l_key_info.error, PS_E_PROTO);
    assert_non_null(strstr(info->l_key_info.text, "is that of key '0'"));
    ps_buf_unref(table.buf);
    end_bench(&b);
}

/* The server answers a request for optimizer state with all elements `v`. */
static void answer_state(struct bench *b, uint32_t n, uint32_t index, float v)
{
    const struct sent *s = find_sent(b, SERVER_CONN, PS_MSG_STATE_GET, n);
    struct ps_rec_part part = {
        .index = index, .dtype = PS_DTYPE_FLOAT32, .count = 256};
    struct ps_slice payload = {.buf = ps_buf_new(1024), .len = 1024};

    for (uint32_t i = 0; i < 256; i++) {
        ((float *)(void *)payload.buf->data)[i] = v;
    }
    deliver_msg(
        b, SERVER_CONN,
        &(struct ps_msg){.code = PS_MSG_STATE,
                         .state = {.gen = GEN,
                                   .request = s->packet->msg->state_get.request,
                                   .text = "",
                                   .steps = 5,
                                   .buffers = 1,
                                   .parts = &part,
                                   .parts_count = 1}},
        &payload);
    ps_buf_unref(payload.buf);
}

static void optimizer_state_ends_with_its_last_partition(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 2, 256, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 2048);
    deliver_msg(
        &b, WORKER_CONN,
        &(struct ps_msg){.code = PS_MSG_L_OPTIMIZER_STATE,
                         .l_optimizer_state = {.op_id = 9, .region = 1}},
        NULL);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_STATE_GET), 2);
    answer_state(&b, 0, 0, 7);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    answer_state(&b, 1, 1, 8);
    assert_int_equal(last_op_done(&b, 0)->error, 0);
    assert_int_equal(last_op_done(&b, 0)->version, 5 * 8 + 1);
    assert_true(((float *)(void *)b.region[0]->data)[255] == 7);
    assert_true(((float *)(void *)b.region[0]->data)[256] == 8);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_with_equal_hashes_are_distinct),
        cmocka_unit_test(concurrent_declarations_are_limited),
        cmocka_unit_test(declarations_of_departed_workers_are_dropped),
        cmocka_unit_test(key_moved_before_opening_is_reported),
        cmocka_unit_test(opening_a_reassigned_key_reports_its_state),
        cmocka_unit_test(a_placement_without_its_table_is_refused),
        cmocka_unit_test(a_number_that_another_key_has_is_refused),
        cmocka_unit_test(optimizer_state_ends_with_its_last_partition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
