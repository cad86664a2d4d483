/* SPDX-License-Identifier: Apache-2.0 */
/* A client's life in which the n-th allocation fails, for every n: calls return
 * PSC_E_NOMEM, and the process is unharmed. */
#include "client/psclient.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test_client_agent.h"
#include "support/sanitized.h"

#define CAN_FAIL (!PS_TEST_SANITIZED)

/* Allocations of this thread until one fails; 0: none does. */
static _Thread_local unsigned long fail_at;

#if CAN_FAIL
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *p, size_t size);

static bool fails(void)
{
    if (fail_at == 0 || --fail_at > 0) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *p, size_t size)
{
    return fails() ? NULL : __libc_realloc(p, size);
}
#endif

#define KEYS_MAX 16u

struct served {
    size_t at;
    size_t half;
    uint64_t version;
};

/* An agent of one worker: its contribution is the sum. */
static void *serve(void *arg)
{
    struct peer *p = arg;
    struct served keys[KEYS_MAX] = {0};
    uint32_t key_count = 0;

    peer_accept(p);
    for (;;) {
        struct ps_msg m = peer_next(p);
        struct served *k;

        switch ((int)m.code) {
        case 0:
        case PS_MSG_L_DETACH:
            peer_close_conn(p);
            return NULL;
        case PS_MSG_L_HELLO:
            peer_send(p,
                      &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                                       .l_welcome = {.num_workers = 1,
                                                     .local_size = 1,
                                                     .num_servers = 1}},
                      -1);
            break;
        case PS_MSG_L_KEY:
            PEER_CHECK(key_count < KEYS_MAX);
            keys[key_count].at = p->arena_used;
            peer_answer_key(p, &m.l_key, key_count, 0);
            keys[key_count].half = (p->arena_used - keys[key_count].at) / 2;
            key_count++;
            break;
        case PS_MSG_L_OP:
            PEER_CHECK(m.l_op.key < key_count);
            k = &keys[m.l_op.key];
            if (m.l_op.op == PS_OP_PUSH || m.l_op.op == PS_OP_PUSHPULL ||
                m.l_op.op == PS_OP_BROADCAST) {
                k->version = m.l_op.round;
                memcpy(p->arena + k->at + (k->version & 1) * k->half,
                       peer_op_source(p, &m.l_op), k->half);
            }
            if (m.l_op.op == PS_OP_SKIP) {
                k->version = m.l_op.round;
                peer_send(p,
                          &(struct ps_msg){
                              .code = PS_MSG_L_DONE,
                              .l_done = {.op_id = m.l_op.op_id,
                                         .version = k->version,
                                         .all_skipped = m.l_op.round > 1}},
                          -1);
                break;
            }
            peer_done(p, m.l_op.op_id, k->version);
            break;
        case PS_MSG_L_BARRIER:
            peer_done(p, m.l_barrier.op_id, 0);
            break;
        default:
            break; /* A region that goes. */
        }
    }
}

#define COUNT 1024

/* Returns 0 on success; else the first failure. */
static int rounds(struct psc_client *c)
{
    float x[COUNT];
    float y[COUNT];
    const void *srcs[] = {x, y};
    const struct psc_op_options two = {
        .size = sizeof(two), .src_count = 2, .srcs = srcs};
    struct psc_op *ops[4] = {NULL};
    void *shared = NULL;
    uint32_t key;
    int rc = psc_key(c, "w", PSC_FLOAT32, 1, (uint64_t[]){COUNT}, &key);

    for (size_t i = 0; i < COUNT; i++) {
        x[i] = 1;
        y[i] = 2;
    }
    rc = rc != 0 ? rc : psc_init(c, key, x);
    rc = rc != 0 ? rc : psc_alloc(c, sizeof(x), &shared);
    if (rc == 0) {
        memcpy(shared, x, sizeof(x));
    }
    rc = rc != 0 ? rc : psc_push_start(c, key, shared, NULL, &ops[0]);
    rc = rc != 0 ? rc : psc_push_start(c, key, NULL, &two, &ops[1]);
    rc = rc != 0 ? rc : psc_pull_start(c, key, y, NULL, &ops[2]);
    rc = rc != 0 ? rc : psc_barrier_start(c, NULL, &ops[3]);
    if (psc_ops_wait(ops, 4, PSC_WAIT_FOREVER) != 0 && rc == 0) {
        rc = psc_ops_wait(ops, 4, 0);
    }
    for (size_t i = 0; i < 4; i++) {
        psc_op_free(ops[i]);
    }
    if (rc == 0) {
        assert_float_equal(y[COUNT - 1], 3, 0);
    }
    assert_int_equal(psc_free(c, shared), 0);
    return rc;
}

static int collectives(struct psc_client *c)
{
    float x[COUNT] = {[COUNT - 1] = 5};
    float y[COUNT] = {0};
    uint64_t dims[] = {4, COUNT / 4};
    const struct psc_array array = {.dtype = PSC_FLOAT32,
                                    .ndim = 2,
                                    .dims = dims,
                                    .src = x,
                                    .out = y,
                                    .out_size = sizeof(y)};
    const struct psc_array view = {
        .dtype = PSC_FLOAT32, .ndim = 2, .dims = dims, .src = x};
    const struct psc_piece pieces[] = {{x, y, 24}, {x + 24, y + 24, 1000}};
    const struct psc_pieces group = {PSC_FLOAT32, 2, pieces};
    struct psc_op *ops[7] = {NULL};
    uint32_t key;
    int rc = psc_key(c, "w", PSC_FLOAT32, 1, (uint64_t[]){COUNT}, &key);

    rc = rc != 0 ? rc : psc_allreduce_start(c, "a", &array, NULL, &ops[0]);
    rc = rc != 0 ? rc
                 : psc_allreduce_many_start(c, NULL, &group, NULL, &ops[1]);
    rc = rc != 0 ? rc : psc_bcast_start(c, NULL, &array, NULL, &ops[2]);
    rc = rc != 0 ? rc : psc_allgather_start(c, NULL, &view, NULL, &ops[3]);
    rc = rc != 0 ? rc : psc_reducescatter_start(c, NULL, &array, NULL, &ops[4]);
    rc = rc != 0 ? rc : psc_alltoall_start(c, NULL, &view, NULL, NULL, &ops[5]);
    rc = rc != 0 ? rc : psc_join_start(c, NULL, &ops[6]);
    if (psc_ops_wait(ops, 7, PSC_WAIT_FOREVER) != 0 && rc == 0) {
        rc = psc_ops_wait(ops, 7, 0);
    }
    for (size_t i = 0; rc == 0 && i < 7; i++) {
        const void *data;
        size_t bytes;

        if (i == 3 || i == 5) {
            assert_int_equal(psc_op_view(ops[i], &data, &bytes), 0);
            assert_int_equal(bytes, sizeof(x));
            assert_memory_equal(data, x, sizeof(x));
        }
    }
    for (size_t i = 0; i < 7; i++) {
        psc_op_free(ops[i]);
    }
    if (rc == 0) {
        assert_memory_equal(x, y, sizeof(x));
    }
    return rc;
}

static int life(unsigned long n, int (*work)(struct psc_client *c))
{
    struct psc_client *c = NULL;
    struct psc_options o;
    struct peer p;
    pthread_t t;
    int rc;

    peer_start(&p);
    psc_options_init(&o, sizeof(o));
    o.socket = p.path;
    assert_int_equal(pthread_create(&t, NULL, serve, &p), 0);
    fail_at = n;
    rc = psc_open(&o, &c, NULL, 0);
    if (rc == 0) {
        rc = work(c);
        psc_close(c);
    }
    n = fail_at;
    fail_at = 0;
    if (c == NULL) {
        /* The client may have failed before it opened the socket. */
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        memcpy(a.sun_path, p.path, strlen(p.path) + 1);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        close(fd);
    }
    assert_int_equal(pthread_join(t, NULL), 0);
    peer_stop(&p);
    if (n > 0) {
        assert_int_equal(rc, 0); /* Nothing failed. */
        return 1;
    }
    /* A failed allocation of a text has no other effect. */
    assert_true(rc == 0 || rc == PSC_E_NOMEM);
    return 0;
}

/* The agent dies at this message. True: the allocation that had to fail was
 * reached. */
static bool second_life(unsigned long n, unsigned at, bool by_ring)
{
    const struct agent_death death = {at, AGENT_DIES_DONE};
    struct psc_client *c = NULL;
    struct psc_options o;
    struct agent a;
    int rc;

    agent_start(&a, by_ring, &death, 1);
    psc_options_init(&o, sizeof(o));
    o.socket = a.peer.path;
    o.on_loss = PSC_ON_LOSS_WAIT;
    o.agent_retry_ms = PEER_LIMIT_MS;
    fail_at = n;
    rc = psc_open(&o, &c, NULL, 0);
    if (rc == 0) {
        rc = rounds(c);
        psc_close(c);
    }
    n = fail_at;
    fail_at = 0;
    agent_stop(&a);
    assert_true(rc == 0 || (n == 0 && rc == PSC_E_NOMEM));
    return n == 0;
}

static void every_allocation_may_fail_on_the_way_to_the_next_agent(void **state)
{
    (void)state;
    for (unsigned at = 3; at < 9; at++) {
        unsigned long n = 1;

        while (second_life(n, at, at % 2 == 0)) {
            n++;
        }
        assert_true(n > 20);
    }
}

static void every_allocation_may_fail(void **state)
{
    unsigned long n = 1;

    (void)state;
    while (life(n, rounds) == 0) {
        n++;
    }
    /* More than a handful were there to fail. */
    assert_true(n > 15);
}

static void every_allocation_of_collectives_may_fail(void **state)
{
    unsigned long n = 1;

    (void)state;
    while (life(n, collectives) == 0) {
        n++;
    }
    assert_true(n > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_allocation_of_collectives_may_fail),
        cmocka_unit_test(
            every_allocation_may_fail_on_the_way_to_the_next_agent),
    };

    if (!CAN_FAIL) {
        /* cmocka's own skip() is a failure in TAP. */
        puts("1..0 # SKIP the sanitizer has the allocator to itself");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
