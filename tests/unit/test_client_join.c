/* SPDX-License-Identifier: Apache-2.0 */
/* join and the rounds of keys; the test plays the agent, over the socket and by
 * the ring. */
#include "client/psclient.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "test_client_peer.h"

#define N     10
#define RANKS 4

/* Keys 40 and 41 on the wire are the program's, 50 is that of AGREE. */
#define W     40u
#define B     41u
#define MEET  50u

struct fixture {
    struct peer peer;
    struct psc_client *c;
    uint32_t w;
    uint32_t b;
    int64_t *meet[2]; /* Place of the sums of the ranks' entries. */
};

static bool by_ring;

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    void *data[2];

    PEER_CHECK(f != NULL);
    peer_start(&f->peer);
    f->peer.accepts_ring = by_ring;
    f->c = peer_open(&f->peer, 0);
    f->w = peer_key(&f->peer, f->c, "w", PSC_FLOAT32, N, W, data);
    f->b = peer_key(&f->peer, f->c, "b", PSC_FLOAT32, N, B, data);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    peer_end(&f->peer, f->c);
    free(f);
    return 0;
}

/* All ranks have joined; with the same keys, or one of them with others. */
static void all_have_joined(struct fixture *f, const struct ps_msg_l_op *m,
                            bool same)
{
    const int64_t *given = peer_op_source(&f->peer, m);
    int64_t *sum = f->meet[m->round & 1];

    sum[0] = RANKS * given[0] + (same ? 0 : 1);
    sum[1] = 0;
    for (int r = 0; r < RANKS; r++) {
        sum[2 + r] = r == 2 ? -1 : -2;
    }
    peer_done(&f->peer, m->op_id, m->round);
}

static struct ps_msg_l_op take_skip(struct fixture *f, uint32_t key,
                                    uint64_t round)
{
    struct ps_msg_l_op m = peer_expect_op(&f->peer, PS_OP_SKIP);

    assert_int_equal(m.key, key);
    assert_int_equal(m.round, round);
    assert_int_equal(m.region, 0);
    assert_int_equal(m.row_count, 0);
    return m;
}

static void pass_done(struct fixture *f, const struct ps_msg_l_op *m)
{
    peer_done(&f->peer, m->op_id, m->round);
    assert_int_equal(psc_dispatch(f->c), 0);
}

static void complete_all_skipped(struct fixture *f, const struct ps_msg_l_op *m)
{
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_DONE,
                               .l_done = {.op_id = m->op_id,
                                          .version = m->round,
                                          .all_skipped = true}},
              -1);
    assert_int_equal(psc_dispatch(f->c), 0);
}

/* A join, the round of AGREE in which the ranks learn which of them have
 * joined, and the skips of both keys. */
struct joined {
    struct psc_op *op;
    struct ps_msg_l_op meet;
    struct ps_msg_l_op w;
    struct ps_msg_l_op b;
};

static void answer_meet(struct fixture *f, const struct ps_msg_l_key *k)
{
    size_t at = f->peer.arena_used;
    size_t half;

    peer_answer_key(&f->peer, k, MEET, 0);
    half = (f->peer.arena_used - at) / 2;
    f->meet[0] = (int64_t *)(void *)(f->peer.arena + at);
    f->meet[1] = (int64_t *)(void *)(f->peer.arena + at + half);
    assert_int_equal(psc_dispatch(f->c), 0);
}

static struct joined join(struct fixture *f, uint64_t round)
{
    const bool first = f->meet[0] == NULL;
    struct joined j = {0};
    struct ps_msg ask = {0};

    assert_int_equal(psc_join_start(f->c, NULL, &j.op), 0);
    if (first) {
        ask = peer_expect(&f->peer, PS_MSG_L_KEY);
        assert_int_equal(ask.l_key.kind, PS_KEY_KIND_COLLECTIVE);
        assert_string_equal(ask.l_key.name, "meet");
    } else {
        j.meet = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    }
    j.w = take_skip(f, W, round);
    j.b = take_skip(f, B, round);
    if (first) {
        answer_meet(f, &ask.l_key);
        j.meet = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    }
    assert_int_equal(j.meet.key, MEET);
    return j;
}

static void expect_push(struct fixture *f, uint32_t key, uint32_t wire,
                        uint64_t round)
{
    float x[N] = {0};
    struct psc_op *op;
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(m.key, wire);
    assert_int_equal(m.round, round);
    peer_done(&f->peer, m.op_id, round);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
}

/* ------------------------------------------------------------------ stories */

static void a_joined_rank_skips_until_all_have_joined(void **state)
{
    struct fixture *f = *state;
    uint64_t last = 99;

    for (uint64_t n = 0; n < 10; n += 5) { /* Rounds of an epoch. */
        struct joined j;

        expect_push(f, f->w, W, n + 1);
        expect_push(f, f->b, B, n + 1);
        j = join(f, n + 2);
        assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
        pass_done(f, &j.w);
        j.w = take_skip(f, W, n + 3);
        pass_done(f, &j.b);
        j.b = take_skip(f, B, n + 3);
        assert_true(peer_is_silent(&f->peer));

        /* One key ends, then AGREE, then the other key. */
        complete_all_skipped(f, &j.w);
        all_have_joined(f, &j.meet, true);
        assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
        pass_done(f, &j.b);
        j.b = take_skip(f, B, n + 4);
        assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
        complete_all_skipped(f, &j.b);
        assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), 0);
        assert_int_equal(psc_op_version(j.op, &last), 0);
        assert_int_equal(last, 2);
        psc_op_free(j.op);

        expect_push(f, f->w, W, n + 4);
        expect_push(f, f->w, W, n + 5);
        expect_push(f, f->b, B, n + 5);
    }
}

static void join_may_end_with_the_agreement_of_ranks(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);

    complete_all_skipped(f, &j.w);
    complete_all_skipped(f, &j.b);
    assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
    assert_true(peer_is_silent(&f->peer));
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(j.op);
    expect_push(f, f->w, W, 2);
}

static void skips_follow_earlier_pushes(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *join_op;
    struct ps_msg ask;
    struct ps_msg_l_op push;
    struct ps_msg_l_op meet;
    struct ps_msg_l_op w;
    struct ps_msg_l_op b;

    assert_int_equal(psc_push_start(f->c, f->w, x, NULL, NULL), 0);
    assert_int_equal(psc_push_start(f->c, f->w, x, NULL, NULL), 0);
    push = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_join_start(f->c, NULL, &join_op), 0);
    ask = peer_expect(&f->peer, PS_MSG_L_KEY);
    b = take_skip(f, B, 1);
    answer_meet(f, &ask.l_key);
    meet = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    pass_done(f, &push);
    push = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_true(peer_is_silent(&f->peer));
    pass_done(f, &push);
    w = take_skip(f, W, 3);
    complete_all_skipped(f, &w);
    complete_all_skipped(f, &b);
    all_have_joined(f, &meet, true);
    assert_int_equal(psc_op_wait(join_op, PSC_WAIT_FOREVER), 0);
    psc_op_free(join_op);
}

static void a_joined_rank_contributes_nothing(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *op = NULL;
    struct joined j = join(f, 1);
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, f->w, x, NULL, &op), PSC_E_INVAL);
    assert_detail(f, "'w': this rank has joined; it takes part in rounds again "
                     "once all ranks have joined");
    assert_int_equal(psc_pushpull_start(f->c, f->w, x, x, NULL, &op),
                     PSC_E_INVAL);
    assert_int_equal(psc_broadcast_start(f->c, f->b, x, x, NULL, &op),
                     PSC_E_INVAL);
    assert_null(op);
    assert_true(peer_is_silent(&f->peer));

    /* A pull is not a contribution. */
    assert_int_equal(psc_pull_start(f->c, f->w, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PULL);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);

    complete_all_skipped(f, &j.w);
    complete_all_skipped(f, &j.b);
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(j.op);
}

static void a_conflict_of_others_does_not_end_the_join(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);

    peer_refuse(&f->peer, j.w.op_id, PS_E_MISMATCH, "sum here, mean there");
    assert_int_equal(psc_dispatch(f->c), 0);
    j.w = take_skip(f, W, 1);
    assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
    complete_all_skipped(f, &j.w);
    complete_all_skipped(f, &j.b);
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(j.op);
}

/* Another push to it gets the same error. */
static void a_key_without_a_value_has_no_rounds(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);

    peer_refuse(&f->peer, j.b.op_id, PS_E_NOKEY, "'b' was never initialised");
    assert_int_equal(psc_dispatch(f->c), 0);
    complete_all_skipped(f, &j.w);
    assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
    assert_true(peer_is_silent(&f->peer));
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(j.op);
    expect_push(f, f->b, B, 1);
    expect_push(f, f->w, W, 2);
}

/* Other ranks wait for the skip, so the client must fail visibly. */
static void failed_skip_ends_the_client(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct joined j = join(f, 1);

    pass_done(f, &j.b);
    take_skip(f, B, 2);
    peer_refuse(&f->peer, j.w.op_id, PS_E_TOOBIG, "'w' is too big");
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), PSC_E_TOOBIG);
    assert_detail(f, "'w' is too big");
    psc_op_free(j.op);
    assert_int_equal(psc_push(f->c, f->w, x), PSC_E_TOOBIG);
    assert_detail(f, "join cannot go on: 'w' is too big");
    peer_close_conn(&f->peer);
}

static void a_failed_job_ends_the_join(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);

    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_ERROR,
                               .l_error = {.error = PS_E_MISMATCH,
                                           .text = "rank 3 (n07) died"}},
              -1);
    peer_close_conn(&f->peer);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), PSC_E_MISMATCH);
    assert_detail(f, "rank 3 (n07) died");
    psc_op_free(j.op);
}

static void closed_connection_ends_the_join(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);

    /* Only the skips are left. */
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
    peer_close_conn(&f->peer);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), PSC_E_CLOSED);
    psc_op_free(j.op);
}

static void join_with_differing_keys_names_the_ranks(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);
    struct ps_msg ask;
    struct ps_msg_l_op m;
    char *say;
    size_t at;

    complete_all_skipped(f, &j.w);
    all_have_joined(f, &j.meet, false);
    assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
    ask = peer_expect(&f->peer, PS_MSG_L_KEY);
    assert_string_equal(ask.l_key.name, "differ");
    at = f->peer.arena_used;
    peer_answer_key(&f->peer, &ask.l_key, 51, 0);
    assert_int_equal(psc_op_test(j.op), PSC_E_AGAIN);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_int_equal(m.key, 51);
    /* This rank's record, and that of a rank with more declared keys. */
    say = (char *)f->peer.arena + at + (f->peer.arena_used - at) / 2;
    for (int r = 0; r < RANKS; r++) {
        const char *mine = peer_op_source(&f->peer, &m);

        for (int i = 0; i < RANKS && mine[0] == '\0'; i++) {
            mine += 192;
        }
        snprintf(say + r * 192, 192, "%s",
                 r == 2 ? "join with 3 keys declared" : mine);
    }
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), PSC_E_MISMATCH);
    assert_detail(f, "rank 0, 1, 3: join with 2 keys declared (");
    assert_detail(f, "; rank 2: join with 3 keys declared");
    psc_op_free(j.op);
    /* Operations at the agent end on their own. */
    pass_done(f, &j.b);
    assert_true(peer_is_silent(&f->peer));
}

static void freed_join_continues(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *op;
    struct joined j = join(f, 1);

    psc_op_free(j.op);
    pass_done(f, &j.w);
    j.w = take_skip(f, W, 2);
    assert_int_equal(psc_push_start(f->c, f->w, x, NULL, &op), PSC_E_INVAL);
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_dispatch(f->c), 0);
    complete_all_skipped(f, &j.b);
    complete_all_skipped(f, &j.w);
    expect_push(f, f->w, W, 3);
    expect_push(f, f->b, B, 2);
}

/* After a time limit the next call waits for the same join. */
static void second_join_waits_for_the_first(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op = NULL;
    struct joined j = join(f, 1);

    assert_int_equal(psc_join_start(f->c, NULL, &op), PSC_E_INVAL);
    assert_detail(f, "this rank has joined, and waits for the others");
    psc_op_free(j.op);
    assert_int_equal(psc_join_start(f->c, NULL, &op), 0);
    assert_true(peer_is_silent(&f->peer));
    complete_all_skipped(f, &j.w);
    complete_all_skipped(f, &j.b);
    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    all_have_joined(f, &j.meet, true);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
}

struct waiter {
    pthread_t thread;
    struct psc_op *op;
    int rc;
    char text[PSC_TEXT_MAX];
};

static void *why_main(void *arg)
{
    struct waiter *w = arg;

    w->rc = psc_op_why(w->op, w->text, sizeof(w->text));
    return NULL;
}

/* After AGREE, the join waits for a skip. */
static void stall_query_of_a_join_names_its_key(void **state)
{
    struct fixture *f = *state;
    struct joined j = join(f, 1);
    struct waiter w = {.op = j.op};
    struct ps_msg m;

    all_have_joined(f, &j.meet, true);
    complete_all_skipped(f, &j.w);
    assert_int_equal(pthread_create(&w.thread, NULL, why_main, &w), 0);
    m = peer_expect(&f->peer, PS_MSG_L_STALL_QUERY);
    assert_int_equal(m.l_stall_query.op_id, j.b.op_id);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_STALL_REPLY,
                               .l_stall_reply = {.op_id = j.b.op_id,
                                                 .text = "round 1 of 'b' waits "
                                                         "for rank 3"}},
              -1);
    assert_int_equal(pthread_join(w.thread, NULL), 0);
    assert_int_equal(w.rc, 0);
    assert_non_null(strstr(w.text, "join is open for "));
    assert_non_null(strstr(w.text, "round 1 of 'b' waits for rank 3"));
    complete_all_skipped(f, &j.b);
    assert_int_equal(psc_op_wait(j.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(j.op);
}

#define story(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* All of it by messages on the socket or, with "ring", through shared memory.
 */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        story(a_joined_rank_skips_until_all_have_joined),
        story(join_may_end_with_the_agreement_of_ranks),
        story(skips_follow_earlier_pushes),
        story(a_joined_rank_contributes_nothing),
        story(a_conflict_of_others_does_not_end_the_join),
        story(a_key_without_a_value_has_no_rounds),
        story(failed_skip_ends_the_client),
        story(a_failed_job_ends_the_join),
        story(closed_connection_ends_the_join),
        story(join_with_differing_keys_names_the_ranks),
        story(freed_join_continues),
        story(second_join_waits_for_the_first),
        story(stall_query_of_a_join_names_its_key),
    };

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    return cmocka_run_group_tests_name(by_ring ? "ring" : "socket", tests, NULL,
                                       NULL);
}
