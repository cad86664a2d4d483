/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: cancelled pulls. */
#include "agent_world.h"

static void submit_cancel(struct bench *b, uint32_t worker, uint32_t key,
                          uint64_t op_id)
{
    submit_op(
        b, worker,
        (struct ps_msg_l_op){.op_id = op_id, .op = PS_OP_CANCEL, .key = key});
}

static void submit_pull(struct bench *b, uint32_t worker, uint64_t op_id,
                        uint64_t round)
{
    submit_op(b, worker,
              (struct ps_msg_l_op){
                  .op_id = op_id, .op = PS_OP_PULL, .key = 0, .round = round});
}

/* Result of a worker's operation; 1: it is open. */
static int find_result(const struct bench *b, uint32_t worker, uint64_t op_id)
{
    const struct sent *s;

    for (uint32_t n = 0;
         (s = find_sent(b, WORKER_CONN + worker, PS_MSG_L_DONE, n)) != NULL;
         n++) {
        if (s->packet->msg->l_done.op_id == op_id) {
            return s->packet->msg->l_done.error;
        }
    }
    return 1;
}

static void a_waiting_pull_is_cancelled(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    submit_pull(&b, 0, 501, 0);
    submit_pull(&b, 1, 501, 0);
    submit_pull(&b, 0, 502, 0);
    submit_cancel(&b, 0, 0, 501);
    assert_int_equal(find_result(&b, 0, 501), PS_E_CANCELED);
    assert_int_equal(find_result(&b, 0, 502), 1);
    /* That of the same number of another worker waits on. */
    assert_int_equal(find_result(&b, 1, 501), 1);
    submit_cancel(&b, 0, 0, 501);
    submit_cancel(&b, 0, 0, 777);
    submit_cancel(&b, 0, 99, 502);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    submit_cancel(&b, 0, 0, 502);
    submit_cancel(&b, 1, 0, 501);
    assert_int_equal(find_result(&b, 0, 502), PS_E_CANCELED);
    assert_int_equal(find_result(&b, 1, 501), PS_E_CANCELED);
    end_bench(&b);
}

static void pushes_are_not_cancelled(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 1, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 64);
    share_region(&b, 1, 64);
    submit_push(&b, 0, 0, 1, 0);
    submit_cancel(&b, 0, 0, 1);
    assert_int_equal(find_result(&b, 0, 1), 1);
    submit_push(&b, 1, 0, 1, 0);
    run_computations(&b);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 1);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_pull_is_cancelled),
        cmocka_unit_test(pushes_are_not_cancelled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
