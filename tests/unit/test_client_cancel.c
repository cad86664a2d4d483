/* SPDX-License-Identifier: Apache-2.0 */
/* The client: cancelled operations. */
#include "test_client_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 0);
    *state = f;
    return 0;
}

static void expect_canceled(struct psc_op *op)
{
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_CANCELED);
    psc_op_free(op);
}

/* The next push of the key takes its place, and its memory is free. */
static void a_queued_push_is_as_if_not_started(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op[4];
    struct ps_msg_l_op m;
    void *shared;

    assert_int_equal(psc_alloc(f->c, N * sizeof(float), &shared), 0);
    fill(shared, 2);
    for (int i = 0; i < 4; i++) {
        float x[N];

        fill(x, (float)i);
        assert_int_equal(
            psc_push_start(f->c, f->key, i == 2 ? shared : x, NULL, &op[i]), 0);
    }
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_free(f->c, shared), PSC_E_AGAIN);
    assert_int_equal(psc_op_cancel(op[2]), 0);
    assert_int_equal(psc_free(f->c, shared), 0);
    assert_int_equal(psc_op_test(op[2]), PSC_E_CANCELED);
    assert_text(peer_detail(f->c), "push of 'w'");
    assert_int_equal(psc_op_cancel(op[1]), 0);
    expect_canceled(op[1]);
    expect_canceled(op[2]);
    assert_true(peer_is_silent(&f->peer));
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op[0], PSC_WAIT_FOREVER), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(m.round, 2);
    assert_true(((const float *)peer_op_source(&f->peer, &m))[0] == 3);
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(op[3], PSC_WAIT_FOREVER), 0);
    psc_op_free(op[0]);
    psc_op_free(op[3]);
    assert_true(peer_is_silent(&f->peer));
}

/* Whether the agent ends it for the cancellation or with a result. */
static void a_waiting_pull_ends_and_writes_nothing(void **state)
{
    struct fixture *f = *state;

    for (int ends_well = 0; ends_well < 2; ends_well++) {
        float out[N] = {0};
        struct psc_op *pull;
        struct psc_op *push;
        struct ps_msg_l_op m;
        struct ps_msg_l_op cancel;

        fill(f->result[0], 7);
        fill(f->result[1], 7);
        assert_int_equal(psc_pull_start(f->c, f->key, out, NULL, &pull), 0);
        m = peer_expect_op(&f->peer, PS_OP_PULL);
        assert_int_equal(psc_push_start(f->c, f->key, out, NULL, &push), 0);
        assert_int_equal(psc_op_cancel(pull), 0);
        cancel = peer_expect_op(&f->peer, PS_OP_CANCEL);
        assert_int_equal(cancel.op_id, m.op_id);
        assert_int_equal(cancel.key, 40);
        assert_int_equal(psc_op_test(pull), PSC_E_AGAIN);
        assert_int_equal(psc_op_cancel(pull), 0); /* Once is enough. */
        assert_true(peer_is_silent(&f->peer));
        if (ends_well) {
            peer_done(&f->peer, m.op_id, m.round);
        } else {
            peer_refuse(&f->peer, m.op_id, PS_E_CANCELED, "");
        }
        expect_canceled(pull);
        assert_true(out[0] == 0 && out[N - 1] == 0);
        /* The push that waited for it goes on. */
        m = peer_expect_op(&f->peer, PS_OP_PUSH);
        peer_done(&f->peer, m.op_id, m.round);
        assert_int_equal(psc_op_wait(push, PSC_WAIT_FOREVER), 0);
        psc_op_free(push);
    }
}

static void operations_that_the_agent_has_are_refused(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *push;
    struct psc_op *barrier[2];
    struct ps_msg_l_op m;
    struct ps_msg b;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &push), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_op_cancel(push), PSC_E_REFUSED);
    assert_text(peer_detail(f->c),
                "push of 'w', round 1, cannot be cancelled: the agent has it, "
                "and the other ranks may depend on it");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(psc_barrier_start(f->c, NULL, &barrier[i]), 0);
    }
    b = peer_expect(&f->peer, PS_MSG_L_BARRIER);
    assert_int_equal(psc_op_cancel(barrier[0]), PSC_E_REFUSED);
    assert_int_equal(psc_op_cancel(barrier[1]), 0);
    expect_canceled(barrier[1]);
    peer_done(&f->peer, b.l_barrier.op_id, b.l_barrier.number);
    assert_int_equal(psc_op_wait(barrier[0], PSC_WAIT_FOREVER), 0);
    assert_int_equal(psc_barrier_start(f->c, NULL, &barrier[1]), 0);
    b = peer_expect(&f->peer, PS_MSG_L_BARRIER);
    assert_int_equal(b.l_barrier.number, 8);
    peer_done(&f->peer, b.l_barrier.op_id, b.l_barrier.number);
    assert_int_equal(psc_op_wait(barrier[1], PSC_WAIT_FOREVER), 0);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(push, PSC_WAIT_FOREVER), 0);
    psc_op_free(push);
    psc_op_free(barrier[0]);
    psc_op_free(barrier[1]);
}

static void note_rc(struct psc_op *op, int rc, void *user)
{
    (void)op;
    *(int *)user = rc;
}

static void each_state_has_its_answer(void **state)
{
    struct fixture *f = *state;
    int seen = 1;
    const struct psc_op_options o = {
        .size = sizeof(o), .callback = note_rc, .user = &seen};
    const uint64_t dims = 4;
    float x[N] = {0};
    const struct psc_array a = {
        .dtype = PSC_FLOAT32, .ndim = 1, .dims = &dims, .src = x, .out = x};
    struct psc_op *op;
    struct psc_op *queued;
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_push_start(f->c, f->key, x, &o, &queued), 0);
    peer_done(&f->peer, m.op_id, 1);
    /* It has ended, although no call has noticed that. */
    assert_int_equal(psc_op_cancel(op), PSC_E_NOENT);
    assert_text(peer_detail(f->c), "cannot be cancelled: it has ended");
    psc_op_free(op);
    /* That was sent then. */
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_op_cancel(queued), PSC_E_REFUSED);
    assert_int_equal(psc_push_start(f->c, f->key, x, &o, &op), 0);
    assert_int_equal(psc_op_cancel(op), 0);
    assert_int_equal(psc_dispatch(f->c), 1);
    assert_int_equal(seen, PSC_E_CANCELED);
    psc_op_free(op);
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(queued, PSC_WAIT_FOREVER), 0);
    psc_op_free(queued);
    assert_int_equal(psc_allreduce_start(f->c, NULL, &a, NULL, &op), 0);
    assert_int_equal(psc_op_cancel(op), PSC_E_REFUSED);
    assert_text(peer_detail(f->c), "all ranks take part in a collective");
    psc_op_free(op);
    peer_close_conn(&f->peer); /* The collective is open. */
}

static void *wait_main(void *arg)
{
    return (void *)(intptr_t)psc_op_wait(arg, PSC_WAIT_FOREVER);
}

static void a_pull_of_a_lost_agent_is_not_sent_again(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *pull;
    struct psc_op *push;
    struct ps_msg_l_op o;
    pthread_t thread;
    struct ps_msg m;
    void *rc;

    assert_int_equal(psc_pull_start(f->c, f->key, x, NULL, &pull), 0);
    peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(psc_op_cancel(pull), 0);
    peer_expect_op(&f->peer, PS_OP_CANCEL);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &push), 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_main, push), 0);
    peer_accept_reattach(&f->peer);
    peer_welcome(&f->peer);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_answer_key(&f->peer, &m.l_key, 40, 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    expect_canceled(pull);
    peer_done(&f->peer, o.op_id, 1);
    assert_int_equal(pthread_join(thread, &rc), 0);
    assert_null(rc);
    psc_op_free(push);
}

/* A push that an agent has had may be part of a sum, although that agent is
 * lost. */
static void a_push_of_a_lost_agent_is_refused(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *push[2];
    struct ps_msg_l_op o;
    pthread_t thread;
    struct ps_msg m;
    void *rc;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &push[i]), 0);
    }
    peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(pthread_create(&thread, NULL, wait_main, push[0]), 0);
    peer_accept_reattach(&f->peer);
    assert_int_equal(psc_op_cancel(push[0]), PSC_E_REFUSED);
    assert_text(peer_detail(f->c), "an agent that was lost had it");
    assert_int_equal(psc_op_cancel(push[1]), 0);
    expect_canceled(push[1]);
    peer_welcome(&f->peer);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_answer_key(&f->peer, &m.l_key, 40, 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, o.op_id, 1);
    assert_int_equal(pthread_join(thread, &rc), 0);
    assert_null(rc);
    psc_op_free(push[0]);
}

static int set_up_reattach(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 60000);
    *state = f;
    return 0;
}

#define story(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        story(a_queued_push_is_as_if_not_started),
        story(a_waiting_pull_ends_and_writes_nothing),
        story(operations_that_the_agent_has_are_refused),
        story(each_state_has_its_answer),
        cmocka_unit_test_setup_teardown(
            a_pull_of_a_lost_agent_is_not_sent_again, set_up_reattach,
            tear_down),
        cmocka_unit_test_setup_teardown(a_push_of_a_lost_agent_is_refused,
                                        set_up_reattach, tear_down),
    };

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
