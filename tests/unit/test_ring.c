/* SPDX-License-Identifier: Apache-2.0 */
/* The rings between a worker and its agent, both sides in this process. */
#include "proto/ring.h"
#include "proto/ps_samples.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct pair {
    void *memory;
    struct ps_ring_worker worker;
    struct ps_ring_agent agent;
};

static int set_up(void **state)
{
    struct pair *p = calloc(1, sizeof(*p));

    if (posix_memalign(&p->memory, 4096, ps_ring_bytes()) != 0) {
        return -1;
    }
    memset(p->memory, 0, ps_ring_bytes());
    ps_ring_worker_init(&p->worker, p->memory);
    ps_ring_agent_init(&p->agent, p->memory);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct pair *p = *state;

    free(p->memory);
    free(p);
    return 0;
}

static struct ps_msg_l_op op_of(uint64_t n)
{
    return (struct ps_msg_l_op){.op_id = n << 20 | 5,
                                .op = PS_OP_PUSHPULL,
                                .key = (uint32_t)n,
                                .region = 3,
                                .offset = n * 64,
                                .round = n + 1,
                                .priority = -(int32_t)n,
                                .reduce = PS_REDUCE_MEAN,
                                .root = 7};
}

static void expect_op(struct pair *p, uint64_t n)
{
    const struct ps_msg_l_op want = op_of(n);
    struct ps_msg_l_op op;

    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, &op, 1), 1);
    assert_int_equal(op.op_id, want.op_id);
    assert_int_equal(op.op, want.op);
    assert_int_equal(op.key, want.key);
    assert_int_equal(op.region, want.region);
    assert_int_equal(op.offset, want.offset);
    assert_int_equal(op.round, want.round);
    assert_int_equal(op.priority, want.priority);
    assert_int_equal(op.reduce, want.reduce);
    assert_int_equal(op.root, want.root);
}

static void push_op(struct pair *p, uint64_t n)
{
    const struct ps_msg_l_op op = op_of(n);

    assert_true(ps_ring_push_op(&p->worker, &op, 0));
}

static void expect_no_op(struct pair *p)
{
    struct ps_msg_l_op op;

    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, &op, 1), 0);
}

static void operations_leave_the_ring_unchanged_and_in_order(void **state)
{
    struct pair *p = *state;

    expect_no_op(p);
    /* Past the end of the ring several times. */
    for (uint64_t n = 0; n < 5 * PS_RING_OP_SLOTS; n += 3) {
        push_op(p, n);
        push_op(p, n + 1);
        push_op(p, n + 2);
        expect_op(p, n);
        expect_op(p, n + 1);
        expect_op(p, n + 2);
        expect_no_op(p);
    }
}

/* A field of l_op that ring_op lacks would be lost. */
static void all_fields_of_an_operation_are_kept(void **state)
{
    struct pair *p = *state;
    unsigned samples = 0;

    for (size_t i = 0; i < ps_samples_count(); i++) {
        struct ps_msg m = *ps_sample(i);
        char sent[1024];
        char got[1024];

        if (m.code != PS_MSG_L_OP) {
            continue;
        }
        samples++;
        ps_msg_print(&m, sent, sizeof(sent));
        assert_true(ps_ring_push_op(&p->worker, &m.l_op, 0));
        memset(&m.l_op, 0xff, sizeof(m.l_op));
        assert_int_equal(ps_ring_pop_ops(&p->agent, 0, &m.l_op, 1), 1);
        ps_msg_print(&m, got, sizeof(got));
        assert_string_equal(got, sent);
    }
    assert_int_equal(samples, 3);
}

static void operations_are_read_in_batches(void **state)
{
    struct pair *p = *state;
    struct ps_msg_l_op ops[8];
    struct ps_msg_l_op op = op_of(0);

    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, ops, 8), 0);
    for (uint64_t n = 0; n < 11; n++) {
        push_op(p, n);
    }
    op.op_id = 99;
    assert_true(ps_ring_push_op(&p->worker, &op, 1)); /* Behind a frame. */
    op.op = 200;
    assert_true(ps_ring_push_op(&p->worker, &op, 1));
    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, ops, 8), 8);
    for (uint64_t n = 0; n < 8; n++) {
        assert_int_equal(ops[n].op_id, op_of(n).op_id);
    }
    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, ops, 8), 3);
    assert_int_equal(ops[2].op_id, op_of(10).op_id);
    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, ops, 8), 0);
    assert_int_equal(ps_ring_free_op_slots(&p->worker), PS_RING_OP_SLOTS - 2);
    /* Operations before a malformed one still count. */
    assert_int_equal(ps_ring_pop_ops(&p->agent, 1, ops, 8), 1);
    assert_int_equal(ops[0].op_id, 99);
    assert_int_equal(ps_ring_pop_ops(&p->agent, 1, ops, 8), PS_E_PROTO);
}

static void ends_are_read_in_batches(void **state)
{
    struct pair *p = *state;
    struct ps_msg_l_done dones[8];

    assert_int_equal(ps_ring_pop_dones(&p->worker, dones, 8), 0);
    for (uint64_t n = 0; n < 11; n++) {
        assert_true(ps_ring_push_done(&p->agent, n, n + 1));
    }
    assert_int_equal(ps_ring_pop_dones(&p->worker, dones, 8), 8);
    assert_int_equal(dones[7].op_id, 7);
    assert_int_equal(dones[7].version, 8);
    assert_int_equal(ps_ring_pop_dones(&p->worker, dones, 8), 3);
    assert_int_equal(dones[2].op_id, 10);
    assert_int_equal(dones[2].error, 0);
    assert_false(ps_ring_has_done(&p->worker));
}

static void full_ring_refuses_operations(void **state)
{
    struct pair *p = *state;
    const struct ps_msg_l_op op = op_of(1);
    struct ps_msg_l_done done;

    for (uint64_t n = 0; n < PS_RING_OP_SLOTS; n++) {
        push_op(p, n);
    }
    assert_false(ps_ring_push_op(&p->worker, &op, 0));
    assert_int_equal(ps_ring_free_op_slots(&p->worker), 0);
    expect_op(p, 0);
    assert_int_equal(ps_ring_free_op_slots(&p->worker), 1);
    push_op(p, PS_RING_OP_SLOTS);
    assert_false(ps_ring_push_op(&p->worker, &op, 0));

    for (uint64_t n = 0; n < PS_RING_DONE_SLOTS; n++) {
        assert_true(ps_ring_push_done(&p->agent, n, n + 1));
    }
    assert_false(ps_ring_push_done(&p->agent, 1, 1));
    for (uint64_t n = 0; n < PS_RING_DONE_SLOTS; n++) {
        assert_int_equal(ps_ring_pop_dones(&p->worker, &done, 1), 1);
        assert_int_equal(done.op_id, n);
        assert_int_equal(done.version, n + 1);
        assert_int_equal(done.error, 0);
    }
    assert_int_equal(ps_ring_pop_dones(&p->worker, &done, 1), 0);
}

static void expect_piece(struct pair *p, uint64_t op_id, uint64_t bytes)
{
    struct ps_ring_progress piece = {0};

    assert_int_equal(ps_ring_pop_progress(&p->worker, &piece), 1);
    assert_int_equal(piece.op_id, op_id);
    assert_int_equal(piece.bytes, bytes);
}

static void progress_is_dropped_when_its_ring_is_full(void **state)
{
    struct pair *p = *state;
    struct ps_ring_progress piece = {1, 0};

    assert_int_equal(ps_ring_pop_progress(&p->worker, &piece), 0);
    for (uint64_t n = 0; n < PS_RING_PROGRESS_SLOTS; n++) {
        assert_true(ps_ring_push_progress(
            &p->agent, &(struct ps_ring_progress){1, n + 1}));
    }
    piece = (struct ps_ring_progress){1, 12345};
    assert_false(ps_ring_push_progress(&p->agent, &piece));
    expect_piece(p, 1, 1);
    assert_true(ps_ring_push_progress(&p->agent, &piece));
    for (uint64_t n = 1; n < PS_RING_PROGRESS_SLOTS; n++) {
        expect_piece(p, 1, n + 1);
    }
    expect_piece(p, 1, 12345);
    assert_false(ps_ring_has_progress(&p->worker));
}

static void progress_wakes_only_workers_that_ask_for_it(void **state)
{
    struct pair *p = *state;
    const struct ps_ring_progress piece = {1, 1};

    assert_true(ps_ring_worker_sleep(&p->worker, 1, false));
    assert_true(ps_ring_push_progress(&p->agent, &piece));
    assert_false(ps_ring_wake_worker(&p->agent));
    /* A worker that is about to sleep finds it. */
    assert_false(ps_ring_worker_sleep(&p->worker, 1, true));
    expect_piece(p, 1, 1);
    assert_true(ps_ring_worker_sleep(&p->worker, 1, true));
    assert_false(ps_ring_wake_worker(&p->agent));
    assert_true(ps_ring_push_progress(&p->agent, &piece));
    assert_true(ps_ring_wake_worker(&p->agent));
    assert_false(ps_ring_wake_worker(&p->agent));
}

static void counters_of_the_ring_wrap(void **state)
{
    struct pair *p = *state;
    uint32_t *counters[] = {&p->worker.ops_to,        &p->worker.dones_from,
                            &p->agent.ops_from,       &p->agent.dones_to,
                            &p->worker.progress_from, &p->agent.progress_to};
    struct ps_msg_l_done done;
    uint32_t zero = 0;

    /* As after four billion operations: sets the counters of this side; those
     * of the other side follow with its next write. */
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        *counters[i] = zero - 2;
    }
    for (size_t at = 0; at < 4096 / sizeof(zero) && at < 64; at++) {
        uint32_t near_end = zero - 2;

        memcpy((uint8_t *)p->memory + at * sizeof(zero), &near_end,
               sizeof(near_end));
    }
    ps_ring_agent_awake(&p->agent);
    ps_ring_worker_awake(&p->worker);
    for (uint64_t n = 0; n < 5; n++) {
        push_op(p, n);
        assert_true(ps_ring_push_done(&p->agent, n, 1));
        assert_true(ps_ring_push_progress(
            &p->agent, &(struct ps_ring_progress){n, n + 1}));
    }
    for (uint64_t n = 0; n < 5; n++) {
        expect_op(p, n);
        expect_piece(p, n, n + 1);
        assert_int_equal(ps_ring_pop_dones(&p->worker, &done, 1), 1);
        assert_int_equal(done.op_id, n);
    }
    assert_true(ps_ring_worker_sleep(&p->worker, 2, false));
    assert_true(ps_ring_push_done(&p->agent, 9, 1));
    assert_false(ps_ring_wake_worker(&p->agent));
    assert_true(ps_ring_push_done(&p->agent, 9, 1));
    assert_true(ps_ring_wake_worker(&p->agent));
}

static void an_operation_waits_for_the_frames_before_it(void **state)
{
    struct pair *p = *state;
    struct ps_msg_l_op op = op_of(1);

    assert_true(ps_ring_push_op(&p->worker, &op, 3));
    assert_int_equal(ps_ring_pop_ops(&p->agent, 2, &op, 1), 0);
    /* The frame that it waits for will wake. */
    assert_true(ps_ring_agent_sleep(&p->agent, 2));
    assert_false(ps_ring_agent_sleep(&p->agent, 3));
    assert_int_equal(ps_ring_pop_ops(&p->agent, 3, &op, 1), 1);
}

static void waiting_side_is_woken_once(void **state)
{
    struct pair *p = *state;

    push_op(p, 1);
    assert_false(ps_ring_wake_agent(&p->worker)); /* It is awake. */
    assert_false(ps_ring_agent_sleep(&p->agent, 0));
    expect_op(p, 1);
    assert_true(ps_ring_agent_sleep(&p->agent, 0));
    push_op(p, 2);
    assert_true(ps_ring_wake_agent(&p->worker));
    push_op(p, 3);
    assert_false(ps_ring_wake_agent(&p->worker));

    assert_true(ps_ring_push_done(&p->agent, 1, 1));
    assert_false(ps_ring_wake_worker(&p->agent));
    assert_true(ps_ring_has_done(&p->worker));
    assert_false(ps_ring_worker_sleep(&p->worker, 1, false));
    /* For the third from here. */
    assert_true(ps_ring_worker_sleep(&p->worker, 3, false));
    assert_true(ps_ring_push_done(&p->agent, 2, 1));
    assert_false(ps_ring_wake_worker(&p->agent));
    assert_true(ps_ring_push_done(&p->agent, 3, 1));
    assert_true(ps_ring_wake_worker(&p->agent));
    assert_false(ps_ring_wake_worker(&p->agent));
}

static void wait_for_more_ends_than_slots_ends_at_a_full_ring(void **state)
{
    struct pair *p = *state;
    bool woken = false;

    assert_true(
        ps_ring_worker_sleep(&p->worker, 10 * PS_RING_DONE_SLOTS, false));
    for (uint64_t n = 0; n < PS_RING_DONE_SLOTS; n++) {
        assert_true(ps_ring_push_done(&p->agent, n, 1));
        woken = woken || ps_ring_wake_worker(&p->agent);
    }
    assert_true(woken);
}

/* Arbitrary bytes anywhere in the ring: a result or an error, and no access
 * outside. */
static void arbitrary_ring_memory_is_refused_or_decoded(void **state)
{
    struct pair *p = *state;
    struct ps_msg_l_done done;
    struct ps_msg_l_op op;
    bool refused_op = false;
    bool refused_done = false;
    bool refused_piece = false;

    srand(1);
    for (int turn = 0; turn < 2000; turn++) {
        for (int i = 0; i < 20; i++) {
            size_t at = (size_t)rand() % (i % 2 == 0 ? 256 : ps_ring_bytes());

            ((uint8_t *)p->memory)[at] = (uint8_t)rand();
        }
        for (int i = 0; i < 100; i++) {
            int rc = ps_ring_pop_ops(&p->agent, UINT64_MAX, &op, 1);

            assert_true(rc == 0 || rc == 1 || rc == PS_E_PROTO);
            refused_op = refused_op || rc < 0;
            if (rc == 1) {
                assert_true(op.op <= PS_OP_PROGRESS);
                assert_true(op.reduce <= PS_REDUCE_PRODUCT);
            } else {
                break;
            }
        }
        for (int i = 0; i < 100; i++) {
            int rc = ps_ring_pop_dones(&p->worker, &done, 1);

            assert_true(rc == 0 || rc == 1 || rc == PS_E_PROTO);
            refused_done = refused_done || rc < 0;
            if (rc != 1) {
                break;
            }
        }
        for (int i = 0; i < 100; i++) {
            struct ps_ring_progress piece;
            int rc = ps_ring_pop_progress(&p->worker, &piece);

            assert_true(rc == 0 || rc == 1 || rc == PS_E_PROTO);
            refused_piece = refused_piece || rc < 0;
            if (rc != 1) {
                break;
            }
        }
        (void)!ps_ring_push_done(&p->agent, 1, 1);
        (void)ps_ring_push_progress(&p->agent,
                                    &(struct ps_ring_progress){1, 1});
        op = op_of(1);
        (void)!ps_ring_push_op(&p->worker, &op, 0);
        (void)!ps_ring_wake_worker(&p->agent);
        (void)!ps_ring_wake_agent(&p->worker);
        (void)!ps_ring_agent_sleep(&p->agent, 1);
        (void)!ps_ring_worker_sleep(&p->worker, 5, turn % 2 == 0);
    }
    assert_true(refused_op);
    assert_true(refused_piece);
    assert_true(refused_done);
}

static void operations_with_values_outside_enums_are_refused(void **state)
{
    struct pair *p = *state;
    struct ps_msg_l_op op = op_of(1);

    op.op = 200;
    assert_true(ps_ring_push_op(&p->worker, &op, 0));
    assert_int_equal(ps_ring_pop_ops(&p->agent, 0, &op, 1), PS_E_PROTO);
}

/* A worker and an agent in threads of their own, with pipes for l_wake: a lost
 * wake-up leaves both asleep, and the test times out. */
#define ROUNDS 20000u

struct two {
    struct pair *pair;
    int to_agent[2];
    int to_worker[2];
};

static void sleep_at(int fd)
{
    char byte;

    if (read(fd, &byte, 1) != 1) {
        abort();
    }
}

static void wake(int fd)
{
    if (write(fd, "w", 1) != 1) {
        abort();
    }
}

static void *agent_main(void *arg)
{
    struct two *t = arg;
    struct ps_ring_agent *r = &t->pair->agent;
    uint64_t next = 0;

    while (next < ROUNDS) {
        struct ps_msg_l_op op;

        if (ps_ring_pop_ops(r, 0, &op, 1) == 0) {
            if (ps_ring_agent_sleep(r, 0)) {
                sleep_at(t->to_agent[0]);
                ps_ring_agent_awake(r);
            }
            continue;
        }
        if (op.op_id != op_of(next).op_id || op.offset != next * 64 ||
            !ps_ring_push_done(r, op.op_id, next)) {
            abort();
        }
        next++;
        if (ps_ring_wake_worker(r)) {
            wake(t->to_worker[1]);
        }
    }
    return NULL;
}

static void threads_on_both_sides_lose_no_wake(void **state)
{
    struct two t = {.pair = *state};
    struct ps_ring_worker *r = &t.pair->worker;
    pthread_t agent;
    uint64_t given = 0;
    uint64_t ended = 0;

    assert_int_equal(pipe(t.to_agent), 0);
    assert_int_equal(pipe(t.to_worker), 0);
    assert_int_equal(pthread_create(&agent, NULL, agent_main, &t), 0);
    while (ended < ROUNDS) {
        uint64_t batch = 1 + given % 7;
        struct ps_msg_l_done done;

        for (uint64_t i = 0; i < batch && given < ROUNDS; i++) {
            push_op(t.pair, given++);
            if (ps_ring_wake_agent(r)) {
                wake(t.to_agent[1]);
            }
        }
        while (ended < given) {
            if (ps_ring_pop_dones(r, &done, 1) == 0) {
                if (ps_ring_worker_sleep(r, (uint32_t)(given - ended), false)) {
                    sleep_at(t.to_worker[0]);
                    ps_ring_worker_awake(r);
                }
                continue;
            }
            assert_int_equal(done.version, ended);
            ended++;
        }
    }
    assert_int_equal(pthread_join(agent, NULL), 0);
    for (int i = 0; i < 2; i++) {
        close(t.to_agent[i]);
        close(t.to_worker[i]);
    }
}

static void ring_layout_has_whole_pages(void **state)
{
    (void)state;
    assert_int_not_equal(ps_ring_layout(), 0);
    assert_int_equal(ps_ring_bytes() % 4096, 0);
}

#define story(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(operations_leave_the_ring_unchanged_and_in_order),
        story(all_fields_of_an_operation_are_kept),
        story(operations_are_read_in_batches),
        story(ends_are_read_in_batches),
        story(full_ring_refuses_operations),
        story(progress_is_dropped_when_its_ring_is_full),
        story(progress_wakes_only_workers_that_ask_for_it),
        story(counters_of_the_ring_wrap),
        story(an_operation_waits_for_the_frames_before_it),
        story(waiting_side_is_woken_once),
        story(wait_for_more_ends_than_slots_ends_at_a_full_ring),
        story(arbitrary_ring_memory_is_refused_or_decoded),
        story(operations_with_values_outside_enums_are_refused),
        story(threads_on_both_sides_lose_no_wake),
        cmocka_unit_test(ring_layout_has_whole_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
