/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine with one job: its pushes do not enter fair queueing. */
#include "agent_world.h"
#include "fair_unused.h"

#define EACH (64u * 1024u) /* Floats of a partition of 256 KiB. */

static void push_of_a_job_alone_takes_no_turn(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 2, 1);
    open_key(&b, 0, 3, EACH, SERVER_NODE);
    share_region(&b, 0, 3 * EACH * 4);
    share_region(&b, 1, 3 * EACH * 4);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint64_t round = 1; round <= 2; round++) {
        submit_push(&b, 0, 0, round, 0);
        submit_push(&b, 1, 0, round, 0);
        run_computations(&b);
        feed_event(&b,
                   (struct ps_event){.type = PS_EV_SENT, .conn = SERVER_CONN});
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), 3 * round);
        for (uint32_t i = 0; i < 3; i++) {
            deliver_value(&b, 0, i, round, EACH, 3, round << 30);
        }
        assert_int_equal(last_op_done(&b, 1)->version, round);
    }
    end_bench(&b);
}

static void partitions_wait_for_credit_without_turns(void **state)
{
    const uint32_t parts = 24; /* 6 MiB; the first credit is 4 MiB. */
    const uint32_t first = PS_CREDIT_INITIAL / (EACH * 4);
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, parts, EACH, SERVER_NODE);
    share_region(&b, 0, (size_t)parts * EACH * 4);
    submit_push(&b, 0, 0, 1, 0);
    feed_tick(&b);
    connect_server(&b, false, 0);
    for (uint32_t i = 0; i < parts; i++) {
        feed_event(&b,
                   (struct ps_event){.type = PS_EV_SENT, .conn = SERVER_CONN});
    }
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), first);
    deliver_msg(&b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_CREDIT,
                                 .credit = {.gen = GEN, .credit = 1u << 30}},
                NULL);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PUSH), parts);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(push_of_a_job_alone_takes_no_turn),
        cmocka_unit_test(partitions_wait_for_credit_without_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
