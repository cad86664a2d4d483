/* SPDX-License-Identifier: Apache-2.0 */
/* A contribution is reported while it is copied. A page in the middle of the
 * array stops the copying thread until the test lets it continue. Results of
 * collectives are copied while the rest of them is in flight. */
#include "client/psclient.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "test_client_agent.h"

#define MIB   (1024u * 1024u)
#define BYTES (7u * MIB) /* 2, 4, 6, and the rest. */
#define STOP  (5u * MIB) /* In the third piece. */
#define PAGE  4096u
#define COUNT (BYTES / sizeof(float))

/* The page that cannot be read, and two pipes: one reports the access, the
 * other lets the reader continue. */
static struct {
    uint8_t *page;
    int met[2];
    int free_[2];
} stop;

static void on_fault(int number, siginfo_t *info, void *context)
{
    uint8_t *at = info->si_addr;
    char byte = 0;

    (void)context;
    if (at < stop.page || at >= stop.page + PAGE) {
        signal(number, SIG_DFL);
        return;
    }
    if (write(stop.met[1], &byte, 1) != 1 ||
        read(stop.free_[0], &byte, 1) != 1 ||
        mprotect(stop.page, PAGE, PROT_READ | PROT_WRITE) != 0) {
        abort();
    }
}

static void await_stop(void)
{
    char byte;

    assert_int_equal(read(stop.met[0], &byte, 1), 1);
}

static void let_go(void)
{
    assert_int_equal(write(stop.free_[1], "", 1), 1);
}

struct fixture {
    struct peer peer;
    struct psc_client *c;
    uint32_t key;
    float *result[2];
    float *given;
    float *out;
    struct sigaction before;
    struct psc_op *op;
    pthread_t thread;
    int rc;
};

static void fail_on_loss(struct psc_options *o)
{
    o->on_loss = PSC_ON_LOSS_FAIL;
}

static int begin_fixture(void **state, void (*adjust)(struct psc_options *o))
{
    struct fixture *f = calloc(1, sizeof(*f));
    void *data[2];

    peer_start(&f->peer);
    f->peer.accepts_ring = true;
    f->peer.adjust = adjust;
    f->c = peer_open(&f->peer, 0);
    peer_send_arena(&f->peer, (size_t)4 * BYTES);
    f->key = peer_key(&f->peer, f->c, "w", PSC_FLOAT32, COUNT, 40, data);
    f->result[0] = data[0];
    f->result[1] = data[1];
    f->given = mmap(NULL, BYTES + PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    f->out = malloc(BYTES);
    assert_true(f->given != MAP_FAILED && f->out != NULL);
    for (size_t i = 0; i < COUNT; i++) {
        f->given[i] = (float)i;
        f->result[0][i] = (float)(2 * i);
        f->result[1][i] = (float)(3 * i);
    }
    stop.page = (uint8_t *)f->given + STOP;
    assert_int_equal(pipe(stop.met), 0);
    assert_int_equal(pipe(stop.free_), 0);
    *state = f;
    return 0;
}

static int set_up(void **state)
{
    return begin_fixture(state, fail_on_loss);
}

static int set_up_patient(void **state)
{
    return begin_fixture(state, NULL);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 2; i++) {
        close(stop.met[i]);
        close(stop.free_[i]);
    }
    psc_op_free(f->op);
    peer_end(&f->peer, f->c);
    munmap(f->given, BYTES + PAGE);
    free(f->out);
    free(f);
    return 0;
}

static void *start_main(void *arg)
{
    struct fixture *f = arg;

    f->rc = psc_pushpull_start(f->c, f->key, f->given, f->out, NULL, &f->op);
    return NULL;
}

static void *push_main(void *arg)
{
    struct fixture *f = arg;

    f->rc = psc_push_start(f->c, f->key, f->given, NULL, NULL);
    return NULL;
}

/* Returns when the copy has met the page. */
static void start_and_stop(struct fixture *f, void *(*main)(void *))
{
    const struct sigaction catch = {.sa_sigaction = on_fault,
                                    .sa_flags = SA_SIGINFO};

    /* cmocka has a handler of its own for the time of a test. */
    sigaction(SIGSEGV, &catch, &f->before);
    assert_int_equal(mprotect(stop.page, PAGE, PROT_NONE), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, main, f), 0);
    await_stop();
}

static void go_on(struct fixture *f)
{
    let_go();
    assert_int_equal(pthread_join(f->thread, NULL), 0);
    sigaction(SIGSEGV, &f->before, NULL);
    assert_int_equal(f->rc, 0);
}

static void take_more(struct fixture *f, uint64_t op_id, uint64_t bytes)
{
    struct ps_msg_l_op m = peer_expect_op(&f->peer, PS_OP_PROGRESS);

    assert_int_equal(m.op_id, op_id);
    assert_int_equal(m.key, 40);
    assert_int_equal(m.offset, bytes);
}

/* An operation up to the page that stops it. */
static struct ps_msg_l_op take_half(struct fixture *f, enum ps_op kind)
{
    struct ps_msg_l_op m = peer_expect_op(&f->peer, kind);

    assert_true(m.streaming);
    take_more(f, m.op_id, 2 * MIB);
    take_more(f, m.op_id, 4 * MIB);
    assert_memory_equal(peer_op_source(&f->peer, &m), f->given, 4 * MIB);
    assert_true(peer_is_silent(&f->peer));
    return m;
}

/* An ordinary round, after any earlier operation. */
static void run_round(struct fixture *f, uint64_t round)
{
    struct ps_msg_l_op m;

    psc_op_free(f->op);
    start_main(f);
    assert_int_equal(f->rc, 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_true(m.streaming);
    assert_int_equal(m.round, round);
    for (uint64_t at = 2 * MIB; at < BYTES; at += 2 * MIB) {
        take_more(f, m.op_id, at);
    }
    take_more(f, m.op_id, BYTES);
    assert_memory_equal(peer_op_source(&f->peer, &m), f->given, BYTES);
    peer_done(&f->peer, m.op_id, round);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(f->out, f->result[round & 1], BYTES);
}

static void agent_gets_the_progress_of_each_piece(void **state)
{
    struct fixture *f = *state;
    struct psc_stats stats = {.size = sizeof(stats)};
    struct ps_msg_l_op m;

    start_and_stop(f, start_main);
    m = take_half(f, PS_OP_PUSHPULL);
    go_on(f);
    take_more(f, m.op_id, 6 * MIB);
    take_more(f, m.op_id, BYTES);
    assert_memory_equal(peer_op_source(&f->peer, &m), f->given, BYTES);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(f->out, f->result[1], BYTES);
    assert_int_equal(psc_get_stats(f->c, &stats), 0);
    assert_int_equal(stats.bytes_copied, 2 * BYTES);
    assert_int_equal(stats.bytes_given, BYTES);
    run_round(f, 2);
}

/* Results may come while the rest is copied: into the same array, too. */
static void results_may_arrive_during_the_copy(void **state)
{
    struct fixture *f = *state;
    float *own = f->out;
    struct ps_msg_l_op m;

    f->out = f->given;
    start_and_stop(f, start_main);
    m = take_half(f, PS_OP_PUSHPULL);
    peer_progress(&f->peer, m.op_id, 2 * MIB);
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_memory_equal(f->given, f->result[1], 2 * MIB);
    go_on(f);
    take_more(f, m.op_id, 6 * MIB);
    take_more(f, m.op_id, BYTES);
    for (size_t i = 0; i < COUNT; i++) {
        own[i] = (float)i;
    }
    assert_memory_equal(peer_op_source(&f->peer, &m), own, BYTES);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(f->given, f->result[1], BYTES);
    f->out = own;
}

static void operation_may_fail_during_its_copy(void **state)
{
    struct fixture *f = *state;
    struct ps_msg_l_op m;

    start_and_stop(f, start_main);
    m = take_half(f, PS_OP_PUSHPULL);
    peer_refuse(&f->peer, m.op_id, PS_E_MISMATCH, "they disagree");
    assert_int_equal(psc_dispatch(f->c), 0);
    go_on(f);
    assert_int_equal(psc_op_test(f->op), PSC_E_MISMATCH);
    assert_detail(f, "they disagree");
    assert_true(peer_is_silent(&f->peer));
    run_round(f, 1);
}

static void a_detached_operation_may_fail_during_its_copy(void **state)
{
    struct fixture *f = *state;
    struct ps_msg_l_op m;

    start_and_stop(f, push_main);
    m = take_half(f, PS_OP_PUSH);
    peer_refuse(&f->peer, m.op_id, PS_E_MISMATCH, "they disagree");
    assert_int_equal(psc_dispatch(f->c), 0);
    go_on(f);
    push_main(
        f); /* Returns the error of the earlier one, and starts nothing. */
    assert_int_equal(f->rc, PSC_E_MISMATCH);
    assert_detail(f, "they disagree");
    run_round(f, 1);
}

static void end_of_an_operation_during_its_copy_fails_the_client(void **state)
{
    struct fixture *f = *state;
    struct ps_msg_l_op m;

    start_and_stop(f, start_main);
    m = take_half(f, PS_OP_PUSHPULL);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_dispatch(f->c), PSC_E_PROTO);
    go_on(f);
    assert_int_equal(psc_op_test(f->op), PSC_E_PROTO);
    assert_detail(f, "was copying its array");
    peer_close_conn(&f->peer);
}

static void connection_may_close_during_the_copy(void **state)
{
    struct fixture *f = *state;

    start_and_stop(f, start_main);
    take_half(f, PS_OP_PUSHPULL);
    peer_close_conn(&f->peer);
    assert_int_equal(psc_dispatch(f->c), PSC_E_CLOSED);
    go_on(f);
    assert_int_equal(psc_op_test(f->op), PSC_E_CLOSED);
}

/* A round that the next one has to wait for. */
static struct ps_msg_l_op hold_key(struct fixture *f, struct psc_op **ret_op)
{
    struct ps_msg_l_op m;

    assert_int_equal(
        psc_pushpull_start(f->c, f->key, f->given, NULL, NULL, ret_op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    for (int i = 0; i < 4; i++) {
        peer_expect_op(&f->peer, PS_OP_PROGRESS);
    }
    return m;
}

static void let_key_go(struct fixture *f, const struct ps_msg_l_op *m,
                       struct psc_op *op)
{
    assert_true(peer_is_silent(&f->peer));
    peer_done(&f->peer, m->op_id, m->round);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
}

/* A queued push reports progress once it is sent. */
static void queued_push_reports_progress_once_it_is_sent(void **state)
{
    struct fixture *f = *state;
    struct ps_msg_l_op m;
    struct psc_op *op;
    struct ps_msg_l_op first = hold_key(f, &op);

    start_and_stop(f, start_main);
    let_key_go(f, &first, op);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_true(m.streaming);
    assert_int_equal(m.round, 2);
    assert_true(peer_is_silent(&f->peer));
    go_on(f);
    take_more(f, m.op_id, 6 * MIB);
    take_more(f, m.op_id, BYTES);
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(f->out, f->result[0], BYTES);
}

/* A complete array needs no progress report. */
static void queued_push_of_a_complete_array_reports_no_progress(void **state)
{
    struct fixture *f = *state;
    struct ps_msg_l_op m;
    struct psc_op *op;
    struct ps_msg_l_op first = hold_key(f, &op);

    start_main(f);
    let_key_go(f, &first, op);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_false(m.streaming);
    assert_true(peer_is_silent(&f->peer));
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
}

/* A result that would overwrite elements that are not copied yet. */
static void results_do_not_overwrite_uncopied_elements(void **state)
{
    struct fixture *f = *state;
    float *own = f->out;
    float *copy = malloc(BYTES);
    struct ps_msg_l_op m;

    assert_non_null(copy);
    memcpy(copy, f->given, BYTES);
    f->out = f->given + 1;
    start_main(f);
    assert_int_equal(f->rc, 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_false(m.streaming);
    assert_memory_equal(peer_op_source(&f->peer, &m), copy, BYTES);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(f->out, f->result[1], BYTES);
    f->out = own;
    free(copy);
}

/* In a job that survives the death of a worker, the agent must not have half of
 * its array. */
static void job_that_survives_losses_does_not_stream(void **state)
{
    struct fixture *f = *state;
    struct ps_msg_l_op m;

    start_and_stop(f, start_main);
    assert_true(peer_is_silent(&f->peer));
    go_on(f);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_false(m.streaming);
    assert_memory_equal(peer_op_source(&f->peer, &m), f->given, BYTES);
    assert_true(peer_is_silent(&f->peer));
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(f->op, PSC_WAIT_FOREVER), 0);
}

/* ------------------------------------------------------------ collectives */

static int half_is_there[2]; /* The agent says so, */
static int all_may_come[2];  /* and waits for this. */

static void tell_half(struct agent *a, const struct ps_msg_l_op *m,
                      size_t bytes)
{
    char byte;

    if (bytes < BYTES) {
        return; /* Its AGREE. */
    }
    peer_progress(&a->peer, m->op_id, 2 * MIB);
    PEER_CHECK(write(half_is_there[1], "", 1) == 1);
    PEER_CHECK(read(all_may_come[0], &byte, 1) == 1);
}

/* Returns the number of bytes read: 0 or 1. */
static int read_now(int fd)
{
    struct pollfd w = {.fd = fd, .events = POLLIN};
    char byte;

    return poll(&w, 1, 1) == 1 && read(fd, &byte, 1) == 1;
}

struct gather {
    float *given;
    float *out;
    const struct psc_array *array;
};

static int start_sum(struct psc_client *c, const struct gather *g,
                     struct psc_op **ret_op)
{
    return psc_allreduce_start(c, NULL, g->array, NULL, ret_op);
}

static int start_copy(struct psc_client *c, const struct gather *g,
                      struct psc_op **ret_op)
{
    return psc_bcast_start(c, NULL, g->array, NULL, ret_op);
}

static int start_mean(struct psc_client *c, const struct gather *g,
                      struct psc_op **ret_op)
{
    const struct psc_coll_options o = {.size = sizeof(o), .postscale = 0.5};

    return psc_allreduce_start(c, NULL, g->array, &o, ret_op);
}

/* Returns the bytes of its result that are copied after a progress report of 2
 * MiB. */
static void gather(int (*start)(struct psc_client *c, const struct gather *g,
                                struct psc_op **ret_op),
                   bool in_pieces, float factor)
{
    const uint64_t dims[] = {COUNT};
    struct psc_array array = {.dtype = PSC_FLOAT32, .ndim = 1, .dims = dims};
    struct gather g = {malloc(BYTES), calloc(1, BYTES), &array};
    struct psc_options o;
    struct psc_client *c;
    struct psc_op *op;
    struct agent a;

    assert_true(g.given != NULL && g.out != NULL);
    array.src = g.given;
    array.out = g.out;
    for (size_t i = 0; i < COUNT; i++) {
        g.given[i] = (float)(i % 1000 + 1);
    }
    assert_int_equal(pipe(half_is_there), 0);
    assert_int_equal(pipe(all_may_come), 0);
    agent_on_result = tell_half;
    agent_start(&a, true, NULL, 0);
    psc_options_init(&o, sizeof(o));
    o.socket = a.peer.path;
    assert_int_equal(psc_open(&o, &c, NULL, 0), 0);
    assert_int_equal(start(c, &g, &op), 0);
    while (read_now(half_is_there[0]) == 0) {
        assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    }
    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    assert_true((g.out[2 * MIB / 4 - 1] != 0) == in_pieces);
    assert_float_equal(g.out[2 * MIB / 4], 0, 0);
    assert_int_equal(write(all_may_come[1], "", 1), 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    for (size_t i = 0; i < COUNT; i++) {
        if (g.out[i] != g.given[i] * factor) {
            fail_msg("element %zu is %f", i, (double)g.out[i]);
        }
    }
    psc_op_free(op);
    psc_close(c);
    agent_stop(&a);
    agent_on_result = NULL;
    for (int i = 0; i < 2; i++) {
        close(half_is_there[i]);
        close(all_may_come[i]);
    }
    free(g.given);
    free(g.out);
}

static void results_of_collectives_arrive_in_pieces(void **state)
{
    (void)state;
    gather(start_sum, true, 1);
    gather(start_copy, true, 1);
    gather(start_mean, false, 0.5f); /* It is computed at the end. */
}

#define GROW(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        GROW(agent_gets_the_progress_of_each_piece),
        GROW(results_may_arrive_during_the_copy),
        GROW(operation_may_fail_during_its_copy),
        GROW(a_detached_operation_may_fail_during_its_copy),
        GROW(end_of_an_operation_during_its_copy_fails_the_client),
        GROW(connection_may_close_during_the_copy),
        GROW(queued_push_reports_progress_once_it_is_sent),
        GROW(queued_push_of_a_complete_array_reports_no_progress),
        GROW(results_do_not_overwrite_uncopied_elements),
        cmocka_unit_test(results_of_collectives_arrive_in_pieces),
        cmocka_unit_test_setup_teardown(
            job_that_survives_losses_does_not_stream, set_up_patient,
            tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
