/* SPDX-License-Identifier: Apache-2.0 */
/* A client that loses its agent and finds the next one; the test plays both. */
#include "client/psclient.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "test_client_agent.h"
#include "test_client_fixture.h"

#define LONG_ 60000 /* agent_retry_ms: never over within a test. */

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, LONG_);
    *state = f;
    return 0;
}

static int set_up_in_a_hurry(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 150);
    *state = f;
    return 0;
}

static unsigned resumes(struct fixture *f)
{
    struct psc_stats s = {.size = sizeof(s)};

    assert_int_equal(psc_get_stats(f->c, &s), 0);
    return s.resumes;
}

/* The socket exists, and no process listens. */
static void away(struct fixture *f)
{
    close(f->peer.listener);
    f->peer.listener = -1;
    peer_close_conn(&f->peer);
}

static void listen_again(struct fixture *f)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    unlink(f->peer.path);
    memcpy(a.sun_path, f->peer.path, strlen(f->peer.path) + 1);
    f->peer.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->peer.listener, (struct sockaddr *)&a, sizeof(a)),
                     0);
    assert_int_equal(listen(f->peer.listener, 8), 0);
}

/* The client makes progress only in its calls, so a thread calls it. */
static void *keep_calling(void *arg)
{
    struct psc_op *op = arg;

    PEER_CHECK(psc_op_wait(op, PSC_WAIT_FOREVER) == 0);
    return NULL;
}

static pthread_t waiter(struct psc_op *op)
{
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, keep_calling, op), 0);
    return t;
}

/* The next agent answers the declaration of 'w' with number 70. */
static void answer_w(struct fixture *f, uint64_t pushed)
{
    struct ps_msg m = peer_expect(&f->peer, PS_MSG_L_KEY);
    size_t at = f->peer.arena_used;

    assert_string_equal(m.l_key.name, "w");
    assert_true(m.l_key.reattached);
    assert_int_equal(m.l_key.pushed_round, pushed);
    assert_int_equal(m.l_key.dtype, PSC_FLOAT32);
    assert_int_equal(m.l_key.count, N);
    assert_int_equal(m.l_key.shape_count, 1);
    assert_int_equal(m.l_key.shape[0], N);
    peer_answer_key(&f->peer, &m.l_key, 70, pushed);
    f->result[0] = (float *)(void *)(f->peer.arena + at);
    f->result[1] = f->result[0] + (f->peer.arena_used - at) / 8;
}

/* The end of a test that has left the client without an agent. */
static void *close_main(void *arg)
{
    psc_close(arg);
    return NULL;
}

static void come_back_and_close(struct fixture *f)
{
    pthread_t t;
    struct ps_msg m;

    listen_again(f);
    assert_int_equal(pthread_create(&t, NULL, close_main, f->c), 0);
    peer_accept_reattach(&f->peer);
    peer_welcome(&f->peer);
    answer_w(f, 0);
    m = peer_next(&f->peer);
    if (m.code == PS_MSG_L_OP) {
        peer_done(&f->peer, m.l_op.op_id, m.l_op.round);
        m = peer_next(&f->peer);
    }
    assert_int_equal(m.code, PS_MSG_L_DETACH);
    peer_close_conn(&f->peer);
    pthread_join(t, NULL);
    f->closed = true;
}

/* ------------------------------------------------------------------- going on */

static void open_operations_are_sent_again_in_order(void **state)
{
    struct fixture *f = *state;
    const struct psc_param rate = {"learning_rate", 0.5};
    const struct psc_op_options first = {.size = sizeof(first), .priority = 3};
    struct ps_msg_l_hello h;
    struct ps_msg_l_op o;
    struct peer_call call;
    struct psc_op *ops[6];
    struct ps_msg m;
    uint64_t declared;
    uint64_t barrier;
    float *given;
    float out[N];
    pthread_t t;

    assert_int_equal(psc_alloc(f->c, sizeof(out), (void **)&given), 0);
    fill(given, 1);
    assert_int_equal(psc_push_start(f->c, f->key, given, NULL, &ops[0]), 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, o.op_id, 1);
    assert_int_equal(psc_op_wait(ops[0], PSC_WAIT_FOREVER), 0);
    psc_op_free(ops[0]);

    /* Round 2, a pull after it, and one round that waits. */
    fill(given, 2);
    assert_int_equal(psc_push_start(f->c, f->key, given, &first, &ops[0]), 0);
    assert_int_equal(psc_pull_start(f->c, f->key, out, NULL, &ops[1]), 0);
    assert_int_equal(psc_pushpull_start(f->c, f->key, out, out, NULL, &ops[2]),
                     0);
    assert_int_equal(psc_optimizer_start(f->c, "sgd", &rate, 1, NULL, &ops[3]),
                     0);
    assert_int_equal(psc_barrier_start(f->c, NULL, &ops[4]), 0);
    assert_int_equal(psc_barrier_start(f->c, NULL, &ops[5]), 0);
    peer_key_begin(&call, f->c, "z", PSC_FLOAT32, 5);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_expect_op(&f->peer, PS_OP_PULL);
    declared = peer_expect(&f->peer, PS_MSG_L_OPTIMIZER).l_optimizer.op_id;
    assert_int_equal(peer_expect(&f->peer, PS_MSG_L_BARRIER).l_barrier.number,
                     7);
    peer_expect(&f->peer, PS_MSG_L_KEY);

    h = peer_accept_reattach(&f->peer);
    assert_int_equal(h.gen, 1);
    assert_int_equal(h.rank, 2);
    assert_int_equal(h.reattach_keys, 1);
    assert_int_equal(h.completed_barriers, 6);
    assert_int_equal(h.num_workers, 4);
    assert_string_equal(h.job, "test");
    assert_true(peer_is_silent(&f->peer));
    peer_welcome(&f->peer);

    m = peer_expect(&f->peer, PS_MSG_L_OPTIMIZER);
    assert_int_equal(m.l_optimizer.op_id, declared);
    assert_string_equal(m.l_optimizer.name, "sgd");
    assert_string_equal(m.l_optimizer.params[0].name, "learning_rate");
    assert_float_equal(m.l_optimizer.params[0].value, 0.5, 0);
    peer_done(&f->peer, declared, 0);
    answer_w(f, 1);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    assert_string_equal(m.l_key.name, "z");
    assert_false(m.l_key.reattached);
    peer_answer_key(&f->peer, &m.l_key, 71, 0);
    m = peer_expect(&f->peer, PS_MSG_L_BARRIER);
    assert_int_equal(m.l_barrier.number, 7);
    barrier = m.l_barrier.op_id;
    pthread_join(call.thread, NULL);
    assert_int_equal(call.rc, 0);

    t = waiter(ops[2]);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(o.key, 70);
    assert_int_equal(o.round, 2);
    assert_int_equal(o.priority, 3);
    assert_float_equal(((const float *)peer_op_source(&f->peer, &o))[N - 1], 2,
                       0);
    peer_done(&f->peer, o.op_id, 2);
    o = peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(o.round, 2);
    fill(f->result[0], 8);
    peer_done(&f->peer, o.op_id, 2);
    o = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_int_equal(o.round, 3);
    fill(f->result[1], 9);
    peer_done(&f->peer, o.op_id, 3);
    pthread_join(t, NULL);
    t = waiter(ops[5]);
    peer_done(&f->peer, barrier, 7);
    m = peer_expect(&f->peer, PS_MSG_L_BARRIER);
    assert_int_equal(m.l_barrier.number, 8);
    peer_done(&f->peer, m.l_barrier.op_id, 8);
    pthread_join(t, NULL);
    assert_int_equal(psc_ops_wait(ops, 6, PSC_WAIT_FOREVER), 0);
    assert_float_equal(out[N - 1], 9, 0);
    assert_int_equal(resumes(f), 1);
    for (int i = 0; i < 6; i++) {
        psc_op_free(ops[i]);
    }
}

static void ended_operations_are_not_sent_again(void **state)
{
    struct fixture *f = *state;
    struct psc_op *ops[2];
    struct ps_msg_l_op o;
    float x[N];
    float out[N];
    pthread_t t;

    fill(x, 1);
    assert_int_equal(psc_pushpull_start(f->c, f->key, x, out, NULL, &ops[0]),
                     0);
    assert_int_equal(psc_barrier_start(f->c, NULL, &ops[1]), 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    /* Its last messages, not read yet. */
    fill(f->result[1], 4);
    peer_done(&f->peer, o.op_id, 1);
    peer_done(&f->peer, peer_expect(&f->peer, PS_MSG_L_BARRIER).l_barrier.op_id,
              7);
    peer_close_conn(&f->peer);
    assert_int_equal(psc_ops_wait(ops, 2, PSC_WAIT_FOREVER), 0);
    assert_float_equal(out[N - 1], 4, 0);
    psc_op_free(ops[0]);
    psc_op_free(ops[1]);

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[0]), 0);
    t = waiter(ops[0]);
    assert_int_equal(peer_accept_reattach(&f->peer).completed_barriers, 7);
    peer_welcome(&f->peer);
    answer_w(f, 1);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(o.round, 2);
    peer_done(&f->peer, o.op_id, 2);
    pthread_join(t, NULL);
    psc_op_free(ops[0]);
}

static void views_outlive_their_agent(void **state)
{
    struct fixture *f = *state;
    struct psc_op *ops[3];
    struct ps_msg_l_op o;
    const void *views[3];
    float x[N];
    pthread_t t;

    fill(x, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            psc_pushpull_start(f->c, f->key, x, NULL, NULL, &ops[i]), 0);
        t = waiter(ops[i]);
        if (i > 0) { /* Every agent lives for one round. */
            peer_accept_reattach(&f->peer);
            peer_welcome(&f->peer);
            answer_w(f, (uint64_t)i);
        }
        o = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
        assert_int_equal(o.round, i + 1);
        fill(f->result[(i + 1) & 1], 10 + (float)i);
        peer_done(&f->peer, o.op_id, (uint64_t)i + 1);
        pthread_join(t, NULL);
        assert_int_equal(psc_op_view(ops[i], &views[i], NULL), 0);
    }
    for (int i = 0; i < 3; i++) {
        const void *again;

        assert_int_equal(psc_op_view(ops[i], &again, NULL), 0);
        assert_ptr_equal(again, views[i]);
        assert_float_equal(((const float *)again)[N - 1], 10 + (float)i, 0);
    }
    /* In any order. */
    psc_op_free(ops[1]);
    assert_float_equal(((const float *)views[0])[0], 10, 0);
    psc_op_free(ops[0]);
    psc_op_free(ops[2]);
}

struct ended {
    int count;
    int rc;
};

static void note_end(struct psc_op *op, int rc, void *user)
{
    struct ended *e = user;

    e->count++;
    e->rc = rc;
    psc_op_free(op);
}

/* A loop that polls the descriptor and dispatches needs nothing else. */
static void descriptor_of_a_client_signals_a_due_dial(void **state)
{
    struct fixture *f = *state;
    struct ended ended = {0};
    const struct psc_op_options o = {
        .size = sizeof(o), .callback = note_end, .user = &ended};
    struct pollfd w = {.fd = psc_fd(f->c), .events = POLLIN};
    struct pollfd in = {.events = POLLIN};
    char text[PSC_TEXT_MAX];
    struct psc_op *op;
    struct ps_msg_l_op m;
    float x[N] = {0};

    assert_int_equal(psc_push_start(f->c, f->key, x, &o, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    away(f);
    for (int i = 0; i < 3;
         i++) { /* The close is noticed; two attempts to dial. */
        assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
        assert_int_equal(psc_dispatch(f->c), 0);
    }
    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    assert_int_equal(psc_op_why(op, text, sizeof(text)), 0);
    assert_text(text, "was lost");
    assert_text(text, f->peer.path);
    assert_text(text, "Connection refused");
    listen_again(f);
    in.fd = f->peer.listener;
    while (poll(&in, 1, 0) == 0) {
        assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
        assert_int_equal(psc_dispatch(f->c), 0);
    }
    peer_accept_reattach(&f->peer);
    assert_int_equal(psc_op_why(op, text, sizeof(text)), 0);
    assert_text(text, "has not yet taken this worker up");
    assert_int_equal(poll(&w, 1, 0), 0); /* It does not dial any more. */
    peer_welcome(&f->peer);
    assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_int_equal(psc_op_why(op, text, sizeof(text)), 0);
    assert_text(text, "has not yet taken the key up");
    answer_w(f, 0);
    while (peer_is_silent(&f->peer)) { /* Not all of it comes at once. */
        assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
        assert_int_equal(psc_dispatch(f->c), 0);
    }
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, m.op_id, m.round);
    while (ended.count == 0) {
        assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
        assert_true(psc_dispatch(f->c) >= 0);
    }
    assert_int_equal(ended.rc, 0);
    assert_int_equal(poll(&w, 1, 0), 0);
    assert_int_equal(resumes(f), 1);
}

static void a_time_limit_holds_without_an_agent(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    struct ps_msg_l_op m;
    float x[N] = {0};
    pthread_t t;
    uint32_t key;
    void *memory;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    away(f);
    assert_int_equal(psc_op_wait(op, 30), PSC_E_TIMEOUT);
    assert_detail(f, "push of 'w'");
    assert_detail(f, "was lost");
    /* Calls that need no agent still succeed. */
    assert_int_equal(psc_key(f->c, "w", PSC_FLOAT32, 1, (uint64_t[]){N}, &key),
                     0);
    assert_int_equal(key, f->key);
    assert_int_equal(psc_alloc(f->c, (size_t)64 << 20, &memory), 0);
    assert_int_equal(psc_free(f->c, memory), 0);

    t = waiter(op);
    listen_again(f);
    peer_accept_reattach(&f->peer);
    peer_welcome(&f->peer);
    answer_w(f, 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, m.op_id, m.round);
    pthread_join(t, NULL);
    psc_op_free(op);
}

static void *ask_why_main(void *arg)
{
    char text[PSC_TEXT_MAX];

    PEER_CHECK(psc_op_why(arg, text, sizeof(text)) == 0);
    PEER_CHECK(strstr(text, "was lost") != NULL);
    return NULL;
}

static void stall_query_without_an_agent_is_answered_by_the_client(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    float x[N] = {0};
    pthread_t t;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    assert_int_equal(pthread_create(&t, NULL, ask_why_main, op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_expect(&f->peer, PS_MSG_L_STALL_QUERY);
    away(f);
    pthread_join(t, NULL);
    psc_op_free(op);
    come_back_and_close(f);
}

/* ------------------------------------------------------------- losing again */

static void client_survives_the_loss_of_the_next_agent(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    struct ps_msg_l_op m;
    float *given;
    pthread_t t;

    assert_int_equal(psc_alloc(f->c, N * sizeof(float), (void **)&given), 0);
    fill(given, 5);
    assert_int_equal(psc_push_start(f->c, f->key, given, NULL, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    t = waiter(op);
    peer_drop_shared(&f->peer);
    peer_accept(&f->peer); /* Sends nothing. */
    peer_accept_reattach(&f->peer);
    peer_accept_reattach(&f->peer); /* Between l_hello and l_welcome. */
    peer_welcome(&f->peer);
    peer_expect(&f->peer, PS_MSG_L_KEY);
    assert_int_equal(peer_accept_reattach(&f->peer).reattach_keys, 1);
    peer_welcome(&f->peer);
    answer_w(f, 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(peer_accept_reattach(&f->peer).reattach_keys, 1);
    peer_welcome(&f->peer);
    answer_w(f, 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(m.round, 1);
    assert_float_equal(((const float *)peer_op_source(&f->peer, &m))[0], 5, 0);
    peer_done(&f->peer, m.op_id, 1);
    pthread_join(t, NULL);
    psc_op_free(op);
    assert_int_equal(resumes(f), 3);
}

static void a_rank_that_does_not_return_is_named(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    float x[N] = {0};

    away(f);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_CLOSED);
    assert_detail(f, "the agent closed the connection");
    assert_detail(f, f->peer.path);
    assert_detail(f, "for 0.1 s: Connection refused");
    psc_op_free(op);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), PSC_E_CLOSED);
    assert_int_equal(psc_dispatch(f->c), PSC_E_CLOSED);
    listen_again(f);
}

static void expect_end(struct fixture *f, int rc, const char *part)
{
    float x[N] = {0};

    assert_int_equal(psc_pull(f->c, f->key, x), rc);
    assert_detail(f, part);
}

static void *pull_main(void *arg)
{
    struct fixture *f = arg;
    float x[N];

    (void)psc_pull(f->c, f->key, x);
    return NULL;
}

static void refusal_of_the_next_agent_ends_the_client(void **state)
{
    struct fixture *f = *state;
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, pull_main, f), 0);
    peer_expect_op(&f->peer, PS_OP_PULL);
    peer_accept_reattach(&f->peer);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_REJECT,
                               .reject = {.error = PS_E_PEERLOST,
                                          .text = "rank 3 did not come back"}},
              -1);
    peer_close_conn(&f->peer);
    pthread_join(t, NULL);
    expect_end(f, PSC_E_PEERLOST, "rank 3 did not come back");
}

static void refusal_of_a_key_by_the_next_agent_ends_the_client(void **state)
{
    struct fixture *f = *state;
    struct ps_msg m;
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, pull_main, f), 0);
    peer_expect_op(&f->peer, PS_OP_PULL);
    peer_accept_reattach(&f->peer);
    peer_welcome(&f->peer);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_KEY_INFO,
                               .l_key_info = {.request = m.l_key.request,
                                              .reattached = m.l_key.reattached,
                                              .error = PS_E_NOMEM,
                                              .text = "64 GiB are used"}},
              -1);
    pthread_join(t, NULL);
    expect_end(f, PSC_E_NOMEM, "the key 'w': 64 GiB are used");
    peer_close_conn(&f->peer);
}

static void welcome_with_another_rank_ends_the_client(void **state)
{
    struct fixture *f = *state;
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, pull_main, f), 0);
    peer_expect_op(&f->peer, PS_OP_PULL);
    peer_accept_reattach(&f->peer);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                               .l_welcome = {.gen = 1,
                                             .rank = 1,
                                             .num_workers = 4,
                                             .local_size = 2,
                                             .num_servers = 1}},
              -1);
    pthread_join(t, NULL);
    expect_end(f, PSC_E_PROTO, "takes rank 2 of 4 for rank 1 of 4");
    peer_close_conn(&f->peer);
}

static void second_welcome_ends_the_client(void **state)
{
    struct fixture *f = *state;

    peer_welcome(&f->peer);
    expect_end(f, PSC_E_PROTO, "takes rank 2");
    peer_close_conn(&f->peer);
}

static void reply_for_an_unknown_key_ends_the_client(void **state)
{
    struct fixture *f = *state;

    peer_send(
        &f->peer,
        &(struct ps_msg){.code = PS_MSG_L_KEY_INFO,
                         .l_key_info = {.request = f->key, .reattached = true}},
        -1);
    expect_end(f, PSC_E_PROTO, "a key that was not declared again");
    peer_close_conn(&f->peer);
}

/* ------------------------------------------------------------------ leaving */

/* The other ranks would wait for a lost rank. */
static void departure_is_reported_to_the_next_agent(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct ps_msg_l_op o;
    pthread_t t;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(pthread_create(&t, NULL, close_main, f->c), 0);
    peer_accept_reattach(&f->peer);
    peer_welcome(&f->peer);
    answer_w(f, 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, o.op_id, 1);
    peer_expect(&f->peer, PS_MSG_L_DETACH);
    peer_close_conn(&f->peer);
    pthread_join(t, NULL);
    f->closed = true;
}

static void leave_soon(struct psc_options *o)
{
    o->close_timeout_ms = 20;
}

static int set_up_to_leave_soon(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->peer.adjust = leave_soon;
    fixture_begin(f, LONG_);
    *state = f;
    return 0;
}

static void departure_ends_without_an_agent(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    float x[N] = {0};

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    away(f);
    assert_int_equal(psc_leave(f->c), 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_CLOSED);
    assert_detail(f, "left the job");
    psc_op_free(op);
    listen_again(f);
}

struct op_wait {
    struct psc_op *op;
    int rc;
};

static void *wait_main(void *arg)
{
    struct op_wait *w = arg;

    w->rc = psc_op_wait(w->op, PSC_WAIT_FOREVER);
    return NULL;
}

static void *leave_main(void *arg)
{
    (void)psc_leave(arg);
    return NULL;
}

/* One thread sleeps for the ring while another one, which leaves, learns that
 * the agent is lost. */
static void departure_from_a_lost_agent_leaves_a_reader_its_ring(void **state)
{
    struct fixture *f = *state;
    struct op_wait w = {NULL, 0};
    float x[N] = {0};
    pthread_t reader;
    pthread_t leaver;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &w.op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(pthread_create(&reader, NULL, wait_main, &w), 0);
    /* The answer is of the reader. */
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_WAIT_QUERY,
                               .l_wait_query = {.request = 1}},
              -1);
    peer_expect(&f->peer, PS_MSG_L_WAIT_STATE);
    assert_int_equal(pthread_create(&leaver, NULL, leave_main, f->c), 0);
    peer_expect(&f->peer, PS_MSG_L_DETACH);
    peer_close_conn(&f->peer);
    pthread_join(leaver, NULL);
    pthread_join(reader, NULL);
    assert_int_equal(w.rc, PSC_E_CLOSED);
    assert_detail(f, "left the job");
    psc_op_free(w.op);
}

/* ------------------------------------------------------- who has no next one */

static void fail_at_once(struct psc_options *o)
{
    o->on_loss = PSC_ON_LOSS_FAIL;
}

static void be_async(struct psc_options *o)
{
    o->mode = PSC_MODE_ASYNC;
    o->rule = PSC_RULE_ACCUMULATE;
}

static void never_retry(struct psc_options *o)
{
    o->agent_retry_ms = 0;
}

static void jobs_without_reattach_end_with_their_agent(void **state)
{
    void (*const adjusts[])(struct psc_options *) = {fail_at_once, be_async,
                                                     never_retry};

    (void)state;
    for (size_t i = 0; i < sizeof(adjusts) / sizeof(adjusts[0]); i++) {
        struct psc_client *c;
        struct peer p;

        peer_start(&p);
        p.accepts_ring = by_ring;
        p.retry_ms = LONG_;
        p.adjust = adjusts[i];
        c = peer_open(&p, 0);
        peer_close_conn(&p);
        assert_int_equal(psc_barrier(c), PSC_E_CLOSED);
        psc_close(c);
        peer_stop(&p);
    }
}

/* -------------------------------------------------------------- kept memory */

static int leave_memory(struct fixture *f, uint32_t number, char fill)
{
    int fd = peer_memfd(4096, F_SEAL_SHRINK);

    assert_int_equal(write(fd, &fill, 1), 1);
    peer_send(&f->peer,
              &(struct ps_msg){
                  .code = PS_MSG_L_RESIDUAL_SEGMENT,
                  .l_residual_segment = {.segment = number, .size = 4096}},
              fd);
    return fd;
}

static void take_memory(struct fixture *f, uint32_t number, char fill)
{
    struct ps_msg m = peer_expect(&f->peer, PS_MSG_L_RESIDUAL_SEGMENT);
    char c = 0;

    assert_int_equal(m.l_residual_segment.segment, number);
    assert_int_equal(m.l_residual_segment.size, 4096);
    assert_true(f->peer.fd_in >= 0);
    assert_int_equal(pread(f->peer.fd_in, &c, 1, 0), 1);
    assert_int_equal(c, fill);
    close(f->peer.fd_in);
    f->peer.fd_in = -1;
}

static void residual_segments_are_sent_to_the_next_agent(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    float x[N] = {0};
    struct ps_msg_l_op o;
    pthread_t t;
    int kept;

    close(leave_memory(f, 1, 'a'));
    close(leave_memory(f, 2, 'b'));
    kept = leave_memory(f, 1, 'c'); /* Instead of the first. */
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    t = waiter(op);
    for (int i = 0; i < 2; i++) {
        peer_accept_reattach(&f->peer);
        peer_welcome(&f->peer);
        if (i == 0) {
            take_memory(f, 1, 'c');
        } else { /* Once, under its new name. */
            take_memory(f, 7, 'c');
        }
        take_memory(f, 2, 'b');
        peer_send(&f->peer,
                  &(struct ps_msg){
                      .code = PS_MSG_L_RESIDUAL_SEGMENT,
                      .l_residual_segment = {.segment = 7, .size = 4096}},
                  kept);
    }
    close(kept);
    answer_w(f, 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, o.op_id, 1);
    pthread_join(t, NULL);
    psc_op_free(op);
}

static void too_many_residual_segments_are_refused(void **state)
{
    struct fixture *f = *state;

    for (uint32_t i = 0; i < 65; i++) {
        close(leave_memory(f, i, 'x'));
    }
    expect_end(f, PSC_E_PROTO, "more than 64 residual segments");
    peer_close_conn(&f->peer);
}

/* -------------------------------------------------- an agent dies everywhere */

#define COUNT 64

static void check_ops(struct psc_op **ops, size_t count)
{
    assert_int_equal(psc_ops_wait(ops, count, PSC_WAIT_FOREVER), 0);
    for (size_t i = 0; i < count; i++) {
        psc_op_free(ops[i]);
        ops[i] = NULL;
    }
}

static void rounds(struct psc_client *c)
{
    const struct psc_param rate = {"learning_rate", 0.5};
    float x[COUNT];
    float y[COUNT];
    const void *srcs[] = {x, y};
    const struct psc_op_options two = {
        .size = sizeof(two), .src_count = 2, .srcs = srcs};
    struct psc_op *ops[5] = {NULL};
    uint32_t keys[2];
    void *shared;

    for (size_t i = 0; i < COUNT; i++) {
        x[i] = 1;
        y[i] = 2;
    }
    assert_int_equal(psc_optimizer_set(c, "sgd", &rate, 1), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(psc_key(c, i == 0 ? "a" : "b", PSC_FLOAT32, 1,
                                 (uint64_t[]){COUNT}, &keys[i]),
                         0);
        assert_int_equal(psc_init(c, keys[i], x), 0);
    }
    assert_int_equal(psc_alloc(c, sizeof(x), &shared), 0);
    memcpy(shared, x, sizeof(x));
    assert_int_equal(psc_push_start(c, keys[0], shared, NULL, &ops[0]), 0);
    assert_int_equal(psc_push_start(c, keys[0], NULL, &two, &ops[1]), 0);
    assert_int_equal(psc_pull_start(c, keys[0], y, NULL, &ops[2]), 0);
    assert_int_equal(psc_barrier_start(c, NULL, &ops[3]), 0);
    assert_int_equal(psc_pushpull_start(c, keys[1], x, x, NULL, &ops[4]), 0);
    check_ops(ops, 5);
    assert_float_equal(y[COUNT - 1], 3, 0);
    assert_float_equal(x[COUNT - 1], 1, 0);
    assert_int_equal(psc_barrier(c), 0);
    assert_int_equal(psc_free(c, shared), 0);
}

static void collectives(struct psc_client *c)
{
    float x[COUNT] = {[COUNT - 1] = 5};
    float y[3][COUNT] = {{0}};
    uint64_t dims[] = {4, COUNT / 4};
    const struct psc_array view = {
        .dtype = PSC_FLOAT32, .ndim = 2, .dims = dims, .src = x};
    struct psc_array arrays[2] = {view, view};
    struct psc_op *ops[4] = {NULL};
    const void *data;
    size_t bytes;

    arrays[0].out = y[0];
    arrays[1].out = y[1];
    assert_int_equal(psc_allreduce_start(c, "a", &arrays[0], NULL, &ops[0]), 0);
    assert_int_equal(psc_bcast_start(c, NULL, &arrays[1], NULL, &ops[1]), 0);
    assert_int_equal(psc_alltoall_start(c, NULL, &view, NULL, NULL, &ops[2]),
                     0);
    assert_int_equal(psc_allreduce_start(c, "v", &view, NULL, &ops[3]), 0);
    assert_int_equal(psc_ops_wait(ops, 4, PSC_WAIT_FOREVER), 0);
    for (size_t i = 2; i < 4; i++) {
        assert_int_equal(psc_op_view(ops[i], &data, &bytes), 0);
        assert_int_equal(bytes, sizeof(x));
        assert_memory_equal(data, x, sizeof(x));
    }
    check_ops(ops, 4);
    assert_memory_equal(x, y[0], sizeof(x));
    assert_memory_equal(x, y[1], sizeof(x));
}

/* False: no agent died. */
static bool life(const struct agent_death *deaths, unsigned count,
                 void (*work)(struct psc_client *c))
{
    struct agent a;
    struct psc_client *c;
    struct psc_options o;
    unsigned died;

    agent_start(&a, by_ring, deaths, count);
    psc_options_init(&o, sizeof(o));
    o.socket = a.peer.path;
    o.on_loss = PSC_ON_LOSS_WAIT;
    o.agent_retry_ms = LONG_;
    assert_int_equal(psc_open(&o, &c, NULL, 0), 0);
    work(c);
    psc_close(c);
    died = agent_stop(&a);
    assert_int_equal(a.byes, 1);
    return died > 0;
}

static void die_everywhere(void (*work)(struct psc_client *c))
{
    for (int how = 0; how < AGENT_DEATHS; how++) {
        unsigned at = 2; /* The first message is l_hello. */

        for (bool died = true; died; at++) {
            const struct agent_death once = {at, (enum agent_death_point)how};

            died = life(&once, 1, work);
            if (died && how == AGENT_DIES_DONE) {
                const struct agent_death twice[] = {
                    once, {at + 2 + at % 5, AGENT_DIES_DONE}};

                life(twice, 2, work);
            }
        }
        assert_true(at > 12);
    }
}

static void agent_may_die_at_every_message(void **state)
{
    (void)state;
    die_everywhere(rounds);
}

static void agent_may_die_at_every_message_of_collectives(void **state)
{
    (void)state;
    die_everywhere(collectives);
}

struct laborer {
    pthread_t thread;
    struct psc_client *c;
    int number;
};

static void *labor(void *arg)
{
    struct laborer *l = arg;
    float x[COUNT];
    char name[8];
    uint32_t key;

    snprintf(name, sizeof(name), "k%d", l->number);
    PEER_CHECK(psc_key(l->c, name, PSC_FLOAT32, 1, (uint64_t[]){COUNT}, &key) ==
               0);
    for (int i = 0; i < 40; i++) {
        for (size_t j = 0; j < COUNT; j++) {
            x[j] = (float)(i * 10 + l->number);
        }
        PEER_CHECK(psc_pushpull(l->c, key, x, x) == 0);
        PEER_CHECK(x[COUNT - 1] == (float)(i * 10 + l->number));
    }
    return NULL;
}

static void labor_together(struct psc_client *c)
{
    struct laborer l[4];

    for (int i = 0; i < 4; i++) {
        l[i].c = c;
        l[i].number = i;
        assert_int_equal(pthread_create(&l[i].thread, NULL, labor, &l[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(l[i].thread, NULL);
    }
}

static void threads_lose_their_agent_together(void **state)
{
    struct agent_death deaths[6];

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        deaths[i] = (struct agent_death){
            25 * (i + 1), (enum agent_death_point)(i % AGENT_DEATHS)};
    }
    assert_true(life(deaths, 6, labor_together));
}

#define story(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        story(open_operations_are_sent_again_in_order),
        story(ended_operations_are_not_sent_again),
        story(views_outlive_their_agent),
        story(descriptor_of_a_client_signals_a_due_dial),
        story(a_time_limit_holds_without_an_agent),
        story(stall_query_without_an_agent_is_answered_by_the_client),
        story(client_survives_the_loss_of_the_next_agent),
        cmocka_unit_test_setup_teardown(a_rank_that_does_not_return_is_named,
                                        set_up_in_a_hurry, tear_down),
        story(refusal_of_the_next_agent_ends_the_client),
        story(refusal_of_a_key_by_the_next_agent_ends_the_client),
        story(welcome_with_another_rank_ends_the_client),
        story(second_welcome_ends_the_client),
        story(reply_for_an_unknown_key_ends_the_client),
        story(departure_is_reported_to_the_next_agent),
        cmocka_unit_test_setup_teardown(departure_ends_without_an_agent,
                                        set_up_to_leave_soon, tear_down),
        cmocka_unit_test_setup_teardown(
            departure_from_a_lost_agent_leaves_a_reader_its_ring,
            set_up_to_leave_soon, tear_down),
        cmocka_unit_test(jobs_without_reattach_end_with_their_agent),
        story(residual_segments_are_sent_to_the_next_agent),
        story(too_many_residual_segments_are_refused),
        cmocka_unit_test(agent_may_die_at_every_message),
        cmocka_unit_test(agent_may_die_at_every_message_of_collectives),
        cmocka_unit_test(threads_lose_their_agent_together),
    };

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    return cmocka_run_group_tests_name(by_ring ? "ring" : "socket", tests, NULL,
                                       NULL);
}
