/* SPDX-License-Identifier: Apache-2.0 */
/* The client library; the test plays the agent. */
#include "client/psclient.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/err.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"
#include "kernel/kernel.h"
#include "test_client_fixture.h"

/* err.def and psclient.h list the same. */
#define PS_ERR(name, number, text)                                             \
    _Static_assert(PSC_E_##name == -(number), #name);
#include "base/err.def"
#undef PS_ERR
_Static_assert((int)PSC_FLOAT32 == (int)PS_DTYPE_FLOAT32 &&
                   (int)PSC_FLOAT64 == (int)PS_DTYPE_FLOAT64 &&
                   (int)PSC_INT32 == (int)PS_DTYPE_INT32 &&
                   (int)PSC_INT64 == (int)PS_DTYPE_INT64,
               "dtypes");
_Static_assert((int)PSC_PLACEMENT_MXNET == (int)PS_PLACEMENT_MXNET &&
                   (int)PSC_ON_LOSS_FAIL == (int)PS_LOSS_POLICY_FAIL &&
                   (int)PSC_MEAN == (int)PS_REDUCE_MEAN &&
                   (int)PSC_MIN == (int)PS_REDUCE_MIN &&
                   (int)PSC_MAX == (int)PS_REDUCE_MAX &&
                   (int)PSC_PRODUCT == (int)PS_REDUCE_PRODUCT,
               "enums of the wire");

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 0);
    *state = f;
    return 0;
}

/* ---------------------------------------------------------------- opening */

static void hello_has_all_options(void **state)
{
    struct peer p;
    struct peer_call call;
    struct ps_msg m;

    (void)state;
    peer_start(&p);
    peer_open_begin(&p, &call, 0, 0);
    peer_accept(&p);
    m = peer_expect(&p, PS_MSG_L_HELLO);
    assert_int_equal(m.l_hello.protocol, PS_PROTOCOL_LEAST);
    assert_string_equal(m.l_hello.job, "test");
    assert_int_equal(m.l_hello.num_workers, 4);
    assert_int_equal(m.l_hello.num_servers, 1);
    assert_int_equal(m.l_hello.rank, 2);
    assert_int_equal(m.l_hello.big_array_bound, 1000000);
    assert_int_equal(m.l_hello.partition_bytes, 0);
    assert_int_equal(m.l_hello.start_timeout_ns, 120 * 1000000000ull);
    peer_send(&p,
              &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                               .l_welcome = {.rank = 3,
                                             .num_workers = 4,
                                             .local_rank = 1,
                                             .local_size = 2,
                                             .num_servers = 5}},
              -1);
    assert_int_equal(pthread_join(call.thread, NULL), 0);
    assert_int_equal(call.rc, 0);
    assert_int_equal(psc_rank(call.client), 3);
    assert_int_equal(psc_size(call.client), 4);
    assert_int_equal(psc_local_rank(call.client), 1);
    assert_int_equal(psc_local_size(call.client), 2);
    assert_int_equal(psc_num_servers(call.client), 5);
    peer_close(&p, call.client);
    peer_stop(&p);
}

static void text_of_a_rejection_is_reported_verbatim(void **state)
{
    struct peer p;
    struct peer_call call;

    (void)state;
    peer_start(&p);
    peer_open_begin(&p, &call, 0, 0);
    peer_accept(&p);
    peer_expect(&p, PS_MSG_L_HELLO);
    peer_send(&p,
              &(struct ps_msg){.code = PS_MSG_L_ERROR,
                               .l_error = {.error = PS_E_MISMATCH,
                                           .text = "4 workers here, 8 "
                                                   "there"}},
              -1);
    peer_close_conn(&p);
    assert_int_equal(pthread_join(call.thread, NULL), 0);
    assert_int_equal(call.rc, PSC_E_MISMATCH);
    assert_string_equal(call.err, "4 workers here, 8 there");
    peer_stop(&p);
}

static void ask_for_copies(struct psc_options *o)
{
    o->replicas = 2;
}

/* An agent that does not know `replicas` would not pass it on. */
static void copies_need_an_agent_that_knows_them(void **state)
{
    struct peer p;
    struct peer_call call;

    (void)state;
    peer_start(&p);
    p.adjust = ask_for_copies;
    peer_open_begin(&p, &call, 0, 0);
    peer_accept(&p);
    assert_int_equal(peer_expect(&p, PS_MSG_L_HELLO).l_hello.protocol, 2);
    peer_send(&p,
              &(struct ps_msg){.code = PS_MSG_REJECT,
                               .reject = {.error = PS_E_VERSION,
                                          .text = "this agent 1 to 1"}},
              -1);
    peer_close_conn(&p);
    assert_int_equal(pthread_join(call.thread, NULL), 0);
    assert_int_equal(call.rc, PSC_E_VERSION);
    assert_non_null(strstr(call.err, "replicas: 2 needs an agent of version"));
    assert_non_null(strstr(call.err, p.path));
    assert_non_null(strstr(call.err, "is older: upgrade it"));
    assert_non_null(strstr(call.err, "(this agent 1 to 1)"));
    peer_stop(&p);
}

static void error_without_an_agent_names_the_socket(void **state)
{
    struct psc_options o;
    struct psc_client *c = NULL;
    char err[PSC_TEXT_MAX];

    (void)state;
    psc_options_init(&o, sizeof(o));
    o.socket = "/tmp/pskv-there-is-no-such.sock";
    o.connect_timeout_ms = 0;
    assert_int_equal(psc_open(&o, &c, err, sizeof(err)), PSC_E_UNREACH);
    assert_non_null(strstr(err, "/tmp/pskv-there-is-no-such.sock"));
    assert_non_null(strstr(err, "No such file"));
    assert_non_null(strstr(err, "start psworker-agent on this node"));
    assert_null(c);
}

static void client_connects_to_an_agent_that_starts_late(void **state)
{
    struct peer p;
    struct peer_call call;

    (void)state;
    peer_start(&p);
    /* The socket file exists, but no process listens. */
    close(p.listener);
    ps_decoder_free(p.decoder);
    peer_open_begin(&p, &call, 0, 0);
    peer_start(&p);
    peer_accept(&p);
    peer_expect(&p, PS_MSG_L_HELLO);
    peer_send(&p,
              &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                               .l_welcome = {.num_workers = 4}},
              -1);
    assert_int_equal(pthread_join(call.thread, NULL), 0);
    assert_int_equal(call.rc, 0);
    peer_close(&p, call.client);
    peer_stop(&p);
}

static void invalid_options_are_refused_by_the_client(void **state)
{
    struct psc_options o;
    struct psc_client *c = NULL;
    char err[PSC_TEXT_MAX];

    (void)state;
    psc_options_init(&o, sizeof(o));
    o.num_workers = 2;
    o.rank = 2;
    assert_int_equal(psc_open(&o, &c, err, sizeof(err)), PSC_E_INVAL);
    assert_string_equal(err, "rank 2 is out of range: the job has 2 workers");
    o.rank = 1;
    o.job = "";
    assert_int_equal(psc_open(&o, &c, err, sizeof(err)), PSC_E_INVAL);
    o.job = "x";
    o.size = 8;
    assert_int_equal(psc_open(&o, &c, NULL, 0), PSC_E_INVAL);
}

/* ------------------------------------------------------------------- keys */

static void key_is_declared_once(void **state)
{
    struct fixture *f = *state;
    struct peer_call call;
    struct ps_msg m;
    uint32_t again = 99;

    assert_int_equal(
        psc_key(f->c, "w", PSC_FLOAT32, 2, (uint64_t[]){10, N / 10}, &again),
        0);
    assert_int_equal(again, f->key);
    assert_int_equal(
        psc_key(f->c, "w", PSC_FLOAT32, 1, (uint64_t[]){N + 1}, &again),
        PSC_E_MISMATCH);
    assert_detail(f, "key 'w' is float32 of 1001 elements, but was declared "
                     "float32 of 1000 before");
    assert_true(peer_is_silent(&f->peer));

    memset(&call, 0, sizeof(call));
    call.client = f->c;
    call.dtype = PSC_INT64;
    call.count = 3;
    call.number = 12;
    pthread_create(&call.thread, NULL, peer_key_main, &call);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    assert_int_equal(m.l_key.kind, PS_KEY_KIND_INTEGER);
    assert_string_equal(m.l_key.name, "12");
    assert_int_equal(m.l_key.mxnet_key, 12);
    assert_int_equal(m.l_key.dtype, PSC_INT64);
    assert_int_equal(m.l_key.shape_count, 1);
    assert_int_equal(m.l_key.shape[0], 3);
    peer_answer_key(&f->peer, &m.l_key, 41, 0);
    pthread_join(call.thread, NULL);
    assert_int_equal(call.rc, 0);
    assert_int_not_equal(call.key, f->key);
}

struct many {
    struct fixture *f;
    struct psc_key_spec specs[4];
    uint32_t keys[4];
    int rc;
};

static void *declare_many(void *arg)
{
    struct many *m = arg;

    m->rc = psc_keys(m->f->c, m->specs, 4, m->keys);
    return NULL;
}

static void keys_of_one_call_are_declared_together(void **state)
{
    static const uint64_t n = 10;
    struct many m = {
        .f = *state,
        .specs = {{.name = "a", .dtype = PSC_INT32, .ndim = 1, .shape = &n},
                  {.number = 7, .dtype = PSC_FLOAT32, .ndim = 1, .shape = &n},
                  {.name = "a", .dtype = PSC_INT32, .ndim = 1, .shape = &n},
                  {.name = "b", .dtype = PSC_INT32, .ndim = 1, .shape = &n}}};
    static const char *const names[] = {"a", "7", "b"};
    static const enum ps_key_kind kinds[] = {
        PS_KEY_KIND_STRING, PS_KEY_KIND_INTEGER, PS_KEY_KIND_STRING};
    struct ps_msg_l_key asked[3];
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, declare_many, &m), 0);
    /* All requests come before the first answer. */
    for (int i = 0; i < 3; i++) {
        asked[i] = peer_expect(&m.f->peer, PS_MSG_L_KEY).l_key;
        assert_int_equal(asked[i].kind, kinds[i]);
        assert_string_equal(asked[i].name, names[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        peer_answer_key(&m.f->peer, &asked[i], 50 + i, 0);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(m.rc, 0);
    assert_int_equal(m.keys[0], m.keys[2]);
    assert_int_not_equal(m.keys[0], m.keys[1]);
    assert_int_not_equal(m.keys[0], m.keys[3]);

    /* A malformed declaration is named, and the others are unharmed. */
    m.specs[2].dtype = PSC_FLOAT64;
    assert_int_equal(psc_keys(m.f->c, m.specs, 4, m.keys), PSC_E_MISMATCH);
    assert_detail(m.f, "'a'");
    m.specs[2].dtype = PSC_INT32;
    assert_int_equal(psc_keys(m.f->c, m.specs, 4, m.keys), 0);
    assert_int_equal(psc_keys(m.f->c, NULL, 0, NULL), 0);
}

static void refused_key_may_be_declared_again(void **state)
{
    struct fixture *f = *state;
    struct peer_call call;
    struct ps_msg m;

    peer_key_begin(&call, f->c, "b", PSC_FLOAT32, 5);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_KEY_INFO,
                               .l_key_info = {.request = m.l_key.request,
                                              .reattached = m.l_key.reattached,
                                              .error = PS_E_MISMATCH,
                                              .text = "'b' has 6 elements"}},
              -1);
    pthread_join(call.thread, NULL);
    assert_int_equal(call.rc, PSC_E_MISMATCH);
    assert_detail(f, "'b' has 6 elements");

    peer_key_begin(&call, f->c, "b", PSC_FLOAT32, 6);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    assert_int_equal(m.l_key.count, 6);
    peer_answer_key(&f->peer, &m.l_key, 41, 0);
    pthread_join(call.thread, NULL);
    assert_int_equal(call.rc, 0);
}

static void keys_beyond_the_first_table_keep_their_names(void **state)
{
    struct fixture *f = *state;
    uint32_t keys[300];
    void *data[2];
    char name[16];

    for (uint32_t i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "k%u", i);
        keys[i] = peer_key(&f->peer, f->c, name, PSC_INT32, 1, 100 + i, data);
    }
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t again = UINT32_MAX;

        snprintf(name, sizeof(name), "k%u", i);
        assert_int_equal(
            psc_key(f->c, name, PSC_INT32, 1, (uint64_t[]){1}, &again), 0);
        assert_int_equal(again, keys[i]);
    }
    assert_true(peer_is_silent(&f->peer));
}

static void impossible_keys_are_refused_by_the_client(void **state)
{
    struct fixture *f = *state;
    uint64_t huge[] = {UINT64_MAX, 2};
    char name[400];
    uint32_t key;

    assert_int_equal(psc_key(f->c, "x", 9, 1, huge, &key), PSC_E_INVAL);
    assert_int_equal(psc_key(f->c, "x", PSC_FLOAT32, 2, huge, &key),
                     PSC_E_TOOBIG);
    assert_int_equal(psc_key(f->c, "x", PSC_FLOAT32, 17, huge, &key),
                     PSC_E_INVAL);
    assert_int_equal(psc_key(f->c, "", PSC_FLOAT32, 0, NULL, &key),
                     PSC_E_INVAL);
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(psc_key(f->c, name, PSC_FLOAT32, 0, NULL, &key),
                     PSC_E_INVAL);
    assert_int_equal(psc_key_int(f->c, -1, PSC_FLOAT32, 0, NULL, &key),
                     PSC_E_INVAL);
    assert_int_equal(psc_key(f->c, "x", PSC_FLOAT32, 1, (uint64_t[]){0}, &key),
                     PSC_E_INVAL);
    assert_int_equal(psc_keys(f->c,
                              &(struct psc_key_spec){.name = "x", .flags = 4},
                              1, &key),
                     PSC_E_INVAL);
    assert_int_equal(psc_push(f->c, 77, huge), PSC_E_NOKEY);
    assert_true(peer_is_silent(&f->peer));
}

/* ------------------------------------------------------------- the data path */

static void array_in_a_region_is_pushed_without_a_copy(void **state)
{
    struct fixture *f = *state;
    struct psc_stats stats = {.size = sizeof(stats)};
    struct psc_op *op;
    struct ps_msg_l_op m;
    const void *view;
    size_t bytes;
    uint64_t version;
    float *w;

    assert_int_equal(psc_alloc(f->c, N * sizeof(float), (void **)&w), 0);
    assert_int_equal((uintptr_t)w % 64, 0);
    fill(w, 1.5f);
    assert_int_equal(
        psc_pushpull_start(
            f->c, f->key, w, NULL,
            &(struct psc_op_options){.size = sizeof(struct psc_op_options),
                                     .priority = -3,
                                     .reduce = PSC_MEAN},
            &op),
        0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_int_equal(m.key, 40);
    assert_int_equal(m.round, 1);
    assert_int_equal(m.priority, -3);
    assert_int_equal(m.reduce, PS_REDUCE_MEAN);
    assert_memory_equal(peer_op_source(&f->peer, &m), w, N * sizeof(float));
    /* The same memory, not a copy of it. */
    w[7] = 42;
    assert_float_equal(((const float *)peer_op_source(&f->peer, &m))[7], 42, 0);

    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    assert_int_equal(psc_op_view(op, &view, &bytes), PSC_E_AGAIN);
    assert_int_equal(psc_free(f->c, w), PSC_E_AGAIN);
    fill(f->result[1], 9);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    assert_int_equal(psc_op_view(op, &view, &bytes), 0);
    assert_int_equal(bytes, N * sizeof(float));
    assert_memory_equal(view, f->result[1], bytes);
    assert_int_equal(psc_op_version(op, &version), 0);
    assert_int_equal(version, 1);
    psc_op_free(op);
    assert_int_equal(psc_get_stats(f->c, &stats), 0);
    assert_int_equal(stats.bytes_copied, 0);
    assert_int_equal(stats.bytes_given, N * sizeof(float));
    assert_int_equal(stats.bytes_got, N * sizeof(float));
    assert_int_equal(stats.rounds, 1);
    assert_int_equal(psc_free(f->c, w), 0);
    assert_int_equal(psc_free(f->c, w), PSC_E_INVAL);
}

static void array_outside_a_region_is_copied_once_each_way(void **state)
{
    struct fixture *f = *state;
    struct psc_stats stats = {.size = sizeof(stats)};
    float given[N];
    float out[N];
    struct psc_op *op;
    struct ps_msg_l_op m;

    fill(given, 2);
    assert_int_equal(psc_pushpull_start(f->c, f->key, given, out, NULL, &op),
                     0);
    fill(given,
         -1); /* The array may change as soon as the call has returned. */
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_float_equal(((const float *)peer_op_source(&f->peer, &m))[N - 1], 2,
                       0);
    fill(f->result[1], 8);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    assert_float_equal(out[0], 8, 0);
    assert_float_equal(out[N - 1], 8, 0);
    psc_op_free(op);
    assert_int_equal(psc_get_stats(f->c, &stats), 0);
    assert_int_equal(stats.bytes_copied, 2 * N * sizeof(float));
}

static void arrays_of_one_push_are_summed_in_tree_order(void **state)
{
    struct fixture *f = *state;
    float parts[5][N];
    float want[N];
    const void *srcs[5];
    const struct ps_job job = {.op = PS_JOB_SUM,
                               .dtype = PS_DTYPE_FLOAT32,
                               .count = N,
                               .src_count = 5,
                               .src = srcs,
                               .dst = want};
    const struct psc_op_options o = {
        .size = sizeof(o), .src_count = 5, .srcs = srcs};
    struct psc_op *op;
    struct ps_msg_l_op m;

    for (size_t i = 0; i < 5; i++) {
        for (size_t j = 0; j < N; j++) {
            /* The order of additions determines the bits. */
            parts[i][j] = (i % 2 == 0 ? 1e8f : -1e8f) + (float)(j * (i + 1));
        }
        srcs[i] = parts[i];
    }
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_int_equal(psc_push_start(f->c, f->key, NULL, &o, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_memory_equal(peer_op_source(&f->peer, &m), want, sizeof(want));
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
}

#define LARGE (size_t)(6u * 1024 * 1024 / 4)
#define MIB   ((size_t)1 << 20)

struct large {
    uint32_t key;
    float *result[2];
    float *given;
    float *out;
    struct psc_op *op;
    struct ps_msg_l_op m;
};

/* A pushpull of a large array, from and into memory of the program. */
static void begin_large(struct fixture *f, struct large *l)
{
    void *data[2];

    l->key = peer_key(&f->peer, f->c, "large", PSC_FLOAT32, LARGE, 41, data);
    l->result[0] = data[0];
    l->result[1] = data[1];
    l->given = calloc(LARGE, sizeof(float));
    l->out = calloc(LARGE, sizeof(float));
    assert_non_null(l->given);
    assert_non_null(l->out);
    assert_int_equal(
        psc_pushpull_start(f->c, l->key, l->given, l->out, NULL, &l->op), 0);
    l->m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    for (size_t i = 0; i < LARGE; i++) {
        l->result[1][i] = (float)(i + 1);
    }
}

static void end_large(struct large *l)
{
    psc_op_free(l->op);
    free(l->given);
    free(l->out);
}

static void result_is_copied_as_its_partitions_arrive(void **state)
{
    struct fixture *f = *state;
    struct psc_stats stats = {.size = sizeof(stats)};
    struct large l;

    if (!by_ring) {
        return; /* Frames carry ends only. */
    }
    begin_large(f, &l);
    peer_progress(&f->peer, l.m.op_id, 2 * MIB);
    assert_int_equal(psc_op_test(l.op), PSC_E_AGAIN);
    assert_memory_equal(l.out, l.result[1], 2 * MIB);
    assert_float_equal(l.out[2 * MIB / 4], 0, 0);
    /* Malformed reports change nothing: fewer bytes, too many, no operation. */
    peer_progress(&f->peer, l.m.op_id, 1 * MIB);
    peer_progress(&f->peer, l.m.op_id, UINT64_MAX);
    peer_progress(&f->peer, l.m.op_id + 12345, 3 * MIB);
    assert_int_equal(psc_op_test(l.op), PSC_E_AGAIN);
    assert_float_equal(l.out[2 * MIB / 4], 0, 0);
    peer_progress(&f->peer, l.m.op_id, 4 * MIB);
    peer_done(&f->peer, l.m.op_id, 1);
    assert_int_equal(psc_op_wait(l.op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(l.out, l.result[1], LARGE * sizeof(float));
    assert_int_equal(psc_get_stats(f->c, &stats), 0);
    assert_int_equal(stats.bytes_copied, 2 * LARGE * sizeof(float));
    /* A late report is about no operation. */
    peer_progress(&f->peer, l.m.op_id, 5 * MIB);
    assert_int_equal(psc_dispatch(f->c), 0);
    end_large(&l);
}

static void operation_may_fail_within_its_result(void **state)
{
    struct fixture *f = *state;
    struct large l;

    if (!by_ring) {
        return;
    }
    begin_large(f, &l);
    peer_progress(&f->peer, l.m.op_id, 2 * MIB);
    peer_refuse(&f->peer, l.m.op_id, PS_E_JOBFAILED, "no more");
    assert_int_equal(psc_op_wait(l.op, PSC_WAIT_FOREVER), PSC_E_JOBFAILED);
    assert_float_equal(l.out[4 * MIB / 4], 0, 0);
    psc_op_free(l.op);
    assert_int_equal(
        psc_pushpull_start(f->c, l.key, l.given, l.out, NULL, &l.op), 0);
    l.m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    assert_int_equal(l.m.round, 1);
    peer_done(&f->peer, l.m.op_id, 1);
    assert_int_equal(psc_op_wait(l.op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(l.out, l.result[1], LARGE * sizeof(float));
    end_large(&l);
}

/* The agent may read the array again until the round is over. */
static void source_in_place_is_overwritten_after_the_round(void **state)
{
    struct fixture *f = *state;
    struct large l;
    struct psc_op *op;
    float *w;

    if (!by_ring) {
        return;
    }
    begin_large(f, &l);
    peer_done(&f->peer, l.m.op_id, 1);
    assert_int_equal(psc_op_wait(l.op, PSC_WAIT_FOREVER), 0);
    assert_int_equal(psc_alloc(f->c, LARGE * sizeof(float), (void **)&w), 0);
    memset(w, 0, LARGE * sizeof(float));
    assert_int_equal(psc_pushpull_start(f->c, l.key, w, w, NULL, &op), 0);
    l.m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    memcpy(l.result[0], l.result[1], LARGE * sizeof(float));
    peer_progress(&f->peer, l.m.op_id, 4 * MIB);
    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    assert_float_equal(w[0], 0, 0);
    peer_done(&f->peer, l.m.op_id, 2);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    assert_memory_equal(w, l.result[0], LARGE * sizeof(float));
    psc_op_free(op);
    assert_int_equal(psc_free(f->c, w), 0);
    end_large(&l);
}

static void results_alternate_between_two_buffers(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    float out[N];

    fill(f->result[0], 10);
    fill(f->result[1], 11);
    for (uint64_t r = 1; r <= 4; r++) {
        struct ps_msg_l_op m;
        struct psc_op *op;

        assert_int_equal(psc_pushpull_start(f->c, f->key, x, out, NULL, &op),
                         0);
        m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
        assert_int_equal(m.round, r);
        peer_done(&f->peer, m.op_id, r);
        assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
        assert_float_equal(out[5], (r % 2 == 0 ? 10 : 11), 0);
        psc_op_free(op);
    }
}

static void init_of_another_rank_than_the_root_has_no_region(void **state)
{
    struct fixture *f = *state;
    struct psc_op_options o = {.size = sizeof(o), .root = 0};
    float x[N] = {0};
    float out[N];
    struct psc_op *op;
    struct ps_msg_l_op m;

    /* This is rank 2. */
    assert_int_equal(psc_init_start(f->c, f->key, NULL, &o, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_INIT);
    assert_int_equal(m.region, 0);
    assert_int_equal(m.root, 0);
    peer_done(&f->peer, m.op_id, 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);

    assert_int_equal(psc_broadcast_start(f->c, f->key, NULL, out, &o, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_BROADCAST);
    assert_int_equal(m.region, 0);
    assert_int_equal(m.round, 1);
    fill(f->result[1], 3);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    assert_float_equal(out[1], 3, 0);
    psc_op_free(op);

    o.root = 2;
    assert_int_equal(psc_broadcast_start(f->c, f->key, NULL, out, &o, &op),
                     PSC_E_INVAL);
    assert_int_equal(psc_broadcast_start(f->c, f->key, x, out, &o, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_BROADCAST);
    assert_int_not_equal(m.region, 0);
    assert_int_equal(m.round, 2);
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
    o.root = 4;
    assert_int_equal(psc_init_start(f->c, f->key, x, &o, &op), PSC_E_INVAL);
    assert_detail(f, "rank 4");
}

/* ------------------------------------------------------------------- order */

static void a_push_waits_for_earlier_operations(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    float out[N];
    struct psc_op *push[2];
    struct psc_op *pull[2];
    struct ps_msg_l_op m;
    struct ps_msg_l_op n;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &push[i]), 0);
        assert_int_equal(psc_pull_start(f->c, f->key, out, NULL, &pull[i]), 0);
    }
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    n = peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(m.round, 1);
    assert_int_equal(n.round, 1); /* Leaves at once, and names the round. */
    assert_true(n.op_id > m.op_id);
    assert_true(peer_is_silent(&f->peer));

    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(push[0], PSC_WAIT_FOREVER), 0);
    assert_true(peer_is_silent(&f->peer)); /* The pull is still open. */
    peer_done(&f->peer, n.op_id, 1);
    assert_int_equal(psc_op_wait(pull[0], PSC_WAIT_FOREVER), 0);

    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    n = peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(m.round, 2);
    assert_int_equal(n.round, 2);
    peer_done(&f->peer, m.op_id, 2);
    peer_done(&f->peer, n.op_id, 2);
    assert_int_equal(psc_ops_wait(pull, 2, PSC_WAIT_FOREVER), 0);
    assert_int_equal(psc_ops_wait(push, 2, PSC_WAIT_FOREVER), 0);
    for (int i = 0; i < 2; i++) {
        psc_op_free(push[i]);
        psc_op_free(pull[i]);
    }
}

static void keys_do_not_wait_for_each_other(void **state)
{
    struct fixture *f = *state;
    void *data[2];
    uint32_t other = peer_key(&f->peer, f->c, "v", PSC_FLOAT32, N, 41, data);
    float x[N] = {0};
    struct psc_op *ops[2];
    struct ps_msg_l_op a;
    struct ps_msg_l_op b;
    size_t first = 9;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[0]), 0);
    assert_int_equal(psc_push_start(f->c, other, x, NULL, &ops[1]), 0);
    a = peer_expect_op(&f->peer, PS_OP_PUSH);
    b = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(a.key, 40);
    assert_int_equal(b.key, 41);
    peer_done(&f->peer, b.op_id, 1);
    assert_int_equal(psc_ops_wait_any(ops, 2, PSC_WAIT_FOREVER, &first), 0);
    assert_int_equal(first, 1);
    assert_int_equal(psc_op_test(ops[0]), PSC_E_AGAIN);
    peer_done(&f->peer, a.op_id, 1);
    assert_int_equal(psc_ops_wait(ops, 2, PSC_WAIT_FOREVER), 0);
    psc_op_free(ops[0]);
    psc_op_free(ops[1]);
}

static void rank_continues_with_the_round_of_its_former_worker(void **state)
{
    struct fixture *f = *state;
    struct peer_call call;
    struct ps_msg m;
    struct ps_msg_l_op o;
    float x[5] = {0};

    peer_key_begin(&call, f->c, "b", PSC_FLOAT32, 5);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_answer_key(&f->peer, &m.l_key, 41, 812);
    pthread_join(call.thread, NULL);
    assert_int_equal(psc_push_start(f->c, call.key, x, NULL, NULL), 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(o.round, 813);
    peer_done(&f->peer, o.op_id, 813);
}

/* ------------------------------------------------------------- collectives */

/* One round of a small key: the entries of this rank, once the key is declared,
 * and the place of the sum. */
struct small {
    struct ps_msg_l_op op;
    const int64_t *given;
    int64_t *sum;
};

#define SMALL_KEYS 8u

/* Halves of the results of keys as declared, by number from 50 on. */
static int64_t *halves[SMALL_KEYS][2];
static uint32_t small_keys;

static void answer_small_key(struct fixture *f, const char *name)
{
    struct ps_msg m = peer_expect(&f->peer, PS_MSG_L_KEY);
    size_t at = f->peer.arena_used;
    size_t half;

    assert_int_equal(m.l_key.kind, PS_KEY_KIND_COLLECTIVE);
    assert_string_equal(m.l_key.name, name);
    assert_true(small_keys < SMALL_KEYS);
    peer_answer_key(&f->peer, &m.l_key, 50 + small_keys, 0);
    half = (f->peer.arena_used - at) / 2;
    halves[small_keys][0] = (int64_t *)(void *)(f->peer.arena + at);
    halves[small_keys][1] = (int64_t *)(void *)(f->peer.arena + at + half);
    small_keys++;
}

static struct small take_small(struct fixture *f, uint32_t key)
{
    struct small s = {.op = peer_expect_op(&f->peer, PS_OP_PUSHPULL)};

    assert_int_equal(s.op.key, 50 + key);
    s.given = peer_op_source(&f->peer, &s.op);
    s.sum = halves[key][s.op.round & 1];
    return s;
}

/* All ranks make the same request. */
static void meet(struct fixture *f, const struct small *s, int64_t rows)
{
    s->sum[0] = 4 * s->given[0];
    s->sum[1] = 0;
    for (int r = 0; r < 4; r++) {
        s->sum[2 + r] = rows;
    }
    peer_done(&f->peer, s->op.op_id, s->op.round);
}

/* The alltoall has one more round before its data. A broadcast that agrees
 * meanwhile must wait: on a rank where that round ends earlier, the data of the
 * alltoall goes first. */
static void collectives_send_their_data_in_order(void **state)
{
    struct fixture *f = *state;
    const uint64_t rows = 4;
    int64_t x[4] = {0};
    int64_t out[4];
    const struct psc_array array = {.dtype = PSC_INT64,
                                    .ndim = 1,
                                    .dims = &rows,
                                    .src = x,
                                    .out = out,
                                    .out_size = sizeof(out)};
    struct psc_op *all;
    struct psc_op *one;
    struct small s;

    small_keys = 0;
    assert_int_equal(psc_alltoall_start(f->c, NULL, &array, NULL, NULL, &all),
                     0);
    assert_int_equal(psc_bcast_start(f->c, NULL, &array, NULL, &one), 0);
    answer_small_key(f, "meet");
    assert_int_equal(psc_op_test(one), PSC_E_AGAIN);
    s = take_small(f, 0);
    meet(f, &s, 4);
    assert_int_equal(psc_op_test(one), PSC_E_AGAIN);
    answer_small_key(f, "splits");
    s = take_small(f, 0); /* Of the broadcast. */
    meet(f, &s, 4);
    assert_int_equal(psc_op_test(one), PSC_E_AGAIN);
    s = take_small(f, 1);
    assert_true(peer_is_silent(&f->peer));
    for (int i = 0; i < 16; i++) {
        s.sum[i] = 1;
    }
    peer_done(&f->peer, s.op.op_id, s.op.round);
    assert_int_equal(psc_op_test(all), PSC_E_AGAIN);
    answer_small_key(f, "from0.int64.4");
    answer_small_key(f, "from1.int64.4");
    answer_small_key(f, "from2.int64.4");
    answer_small_key(f, "from3.int64.4");
    answer_small_key(f, "copy.int64.4");
    assert_int_equal(psc_op_test(one), PSC_E_AGAIN);
    for (uint32_t k = 2; k < 7; k++) {
        struct ps_msg_l_op m = peer_expect_op(&f->peer, PS_OP_BROADCAST);

        assert_int_equal(m.key, 50 + k);
        halves[k][1][0] = 100 + k;
        halves[k][1][2] = 200 + k;
        peer_done(&f->peer, m.op_id, 1);
    }
    assert_int_equal(psc_op_wait(all, PSC_WAIT_FOREVER), 0);
    assert_int_equal(psc_op_wait(one, PSC_WAIT_FOREVER), 0);
    psc_op_free(all);
    psc_op_free(one);
}

/* Their sum wraps to that of the four rows given here. */
static void rows_with_an_overflowing_sum_are_refused(void **state)
{
    struct fixture *f = *state;
    const int64_t rows[] = {4, INT64_MAX, INT64_MAX, 2};
    const uint64_t count = 4;
    int64_t x[4] = {0};
    int64_t out[4];
    const struct psc_array array = {.dtype = PSC_INT64,
                                    .ndim = 1,
                                    .dims = &count,
                                    .src = x,
                                    .out = out,
                                    .out_size = sizeof(out)};
    struct psc_op *op;
    struct small s;

    small_keys = 0;
    assert_int_equal(psc_allgather_start(f->c, NULL, &array, NULL, &op), 0);
    answer_small_key(f, "meet");
    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    s = take_small(f, 0);
    s.sum[0] = 4 * s.given[0];
    s.sum[1] = 0;
    memcpy(&s.sum[2], rows, sizeof(rows));
    peer_done(&f->peer, s.op.op_id, s.op.round);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_TOOBIG);
    psc_op_free(op);
    peer_close_conn(&f->peer);
}

/* ------------------------------------------------------------------- errors */

static void failed_round_is_contributed_to_again(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *op;
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_refuse(&f->peer, m.op_id, PS_E_NOKEY, "'w' was never initialised");
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_NOKEY);
    assert_detail(f, "'w' was never initialised");
    psc_op_free(op);

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(m.round, 1);
    peer_refuse(&f->peer, m.op_id, -9999, "");
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_JOBFAILED);
    assert_detail(f, "push of 'w', round 1, failed");
    psc_op_free(op);
}

static void the_next_call_returns_a_detached_error(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *op;
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_refuse(&f->peer, m.op_id, PS_E_MISMATCH, "sum here, mean there");
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_int_equal(psc_pull_start(f->c, f->key, x, NULL, &op),
                     PSC_E_MISMATCH);
    assert_detail(f, "an earlier operation on 'w' failed: sum here, mean "
                     "there");
    /* Reported once. */
    assert_int_equal(psc_pull_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PULL);
    peer_done(&f->peer, m.op_id, 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
}

struct waiter {
    pthread_t thread;
    struct psc_op *op;
    int timeout_ms;
    int rc;
    char text[PSC_TEXT_MAX];
};

static void *wait_main(void *arg)
{
    struct waiter *w = arg;

    w->rc = psc_op_wait(w->op, w->timeout_ms);
    return NULL;
}

static void *why_main(void *arg)
{
    struct waiter *w = arg;

    w->rc = psc_op_why(w->op, w->text, sizeof(w->text));
    return NULL;
}

static void because(struct fixture *f, uint64_t op_id, const char *text)
{
    struct ps_msg m = peer_expect(&f->peer, PS_MSG_L_STALL_QUERY);

    assert_int_equal(m.l_stall_query.op_id, op_id);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_STALL_REPLY,
                               .l_stall_reply = {.op_id = op_id, .text = text}},
              -1);
}

static void a_time_limit_names_the_missing_ranks(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct waiter w = {.timeout_ms = 1};
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &w.op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_op_wait(w.op, 0), PSC_E_TIMEOUT);
    assert_detail(f, "push of 'w', round 1, is open");

    pthread_create(&w.thread, NULL, wait_main, &w);
    because(f, m.op_id, "waits for rank 3 (n07), lost for 41 s");
    pthread_join(w.thread, NULL);
    assert_int_equal(w.rc, PSC_E_TIMEOUT);
    assert_detail(f, "push of 'w', round 1, is open for ");
    assert_detail(f, "s: waits for rank 3 (n07), lost for 41 s");

    /* It is still open and can be queried and waited for. */
    pthread_create(&w.thread, NULL, why_main, &w);
    because(f, m.op_id, "rank 3 is back");
    pthread_join(w.thread, NULL);
    assert_int_equal(w.rc, 0);
    assert_non_null(strstr(w.text, "rank 3 is back"));
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(w.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(w.op);
}

/* Each row: a rank, its number on its node, and when it writes its first note. */
static void few_ranks_write_the_first_notes(void **state)
{
    static const struct {
        uint32_t rank;
        uint32_t local_rank;
        int seconds;
    } rows[] = {{0, 0, 30},   {1, 1, 30},   {2, 2, 120},   {63, 7, 120},
                {64, 0, 120}, {64, 1, 480}, {999, 7, 480}, {1, 0, 30}};
    struct fixture *f = *state;
    const struct identity id = f->c->id;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        f->c->id.rank = rows[i].rank;
        f->c->id.local_rank = rows[i].local_rank;
        f->c->options.wait_notes_ms = 0;
        assert_int_equal(wait_note_first_after(f->c),
                         PS_SECONDS(rows[i].seconds));
        /* A time of the user is that of all ranks. */
        f->c->options.wait_notes_ms = 200;
        assert_int_equal(wait_note_first_after(f->c), PS_MILLIS(200));
        f->c->options.wait_notes_ms = -1;
        assert_int_equal(wait_note_first_after(f->c), PS_TIME_NEVER);
    }
    /* Before the welcome, by the rank that the program asked for. */
    f->c->options.wait_notes_ms = 0;
    f->c->id.is_welcomed = false;
    f->c->options.rank = -1;
    assert_int_equal(wait_note_first_after(f->c), PS_SECONDS(30));
    f->c->options.rank = 1;
    assert_int_equal(wait_note_first_after(f->c), PS_SECONDS(30));
    f->c->options.rank = 2;
    assert_int_equal(wait_note_first_after(f->c), PS_SECONDS(120));
    f->c->options.rank = 999;
    assert_int_equal(wait_note_first_after(f->c), PS_SECONDS(480));
    f->c->id = id;
}

static void quiet_client_sends_no_stall_query(void **state)
{
    struct peer p;
    struct peer_call call;
    struct psc_op *op;
    struct ps_msg m;

    (void)state;
    peer_start(&p);
    peer_open_begin(&p, &call, 1, PSC_OPEN_QUIET);
    peer_accept(&p);
    peer_expect(&p, PS_MSG_L_HELLO);
    peer_welcome(&p);
    pthread_join(call.thread, NULL);
    assert_int_equal(call.rc, 0);
    assert_int_equal(psc_barrier_start(call.client, NULL, &op), 0);
    m = peer_expect(&p, PS_MSG_L_BARRIER);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_DEFAULT), PSC_E_TIMEOUT);
    assert_true(peer_is_silent(&p));
    peer_done(&p, m.l_barrier.op_id, 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
    peer_close(&p, call.client);
    peer_stop(&p);
}

static void stall_query_of_a_queued_operation_names_the_first(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *first;
    struct waiter w = {0};
    struct ps_msg_l_op m;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &first), 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &w.op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    pthread_create(&w.thread, NULL, why_main, &w);
    because(f, m.op_id, "round 1 waits for rank 0");
    pthread_join(w.thread, NULL);
    assert_int_equal(w.rc, 0);
    assert_non_null(strstr(w.text, "round 1 waits for rank 0"));
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(first, PSC_WAIT_FOREVER), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(w.op, PSC_WAIT_FOREVER), 0);
    psc_op_free(first);
    psc_op_free(w.op);
}

static void failure_of_the_job_reaches_every_call(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *ops[3];
    void *memory;
    uint32_t key;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[i]), 0);
    }
    peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_ERROR,
                               .l_error = {.error = PS_E_PEERLOST,
                                           .text = "rank 3 (n07) died"}},
              -1);
    peer_close_conn(&f->peer);
    assert_int_equal(psc_ops_wait(ops, 3, PSC_WAIT_FOREVER), PSC_E_PEERLOST);
    assert_detail(f, "rank 3 (n07) died");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(psc_op_wait(ops[i], 0), PSC_E_PEERLOST);
        psc_op_free(ops[i]);
    }
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[0]),
                     PSC_E_PEERLOST);
    assert_int_equal(psc_barrier(f->c), PSC_E_PEERLOST);
    assert_int_equal(psc_key(f->c, "z", PSC_INT32, 0, NULL, &key),
                     PSC_E_PEERLOST);
    assert_detail(f, "rank 3 (n07) died");
    assert_int_equal(psc_alloc(f->c, 100, &memory), PSC_E_PEERLOST);
    assert_int_equal(psc_dispatch(f->c), PSC_E_PEERLOST);
}

static void closed_connection_ends_operations(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *op;

    peer_close_conn(&f->peer);
    /* Writing to the dead socket raises no signal; reading reports the end. */
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_CLOSED);
    assert_detail(f, "the agent closed the connection");
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), PSC_E_CLOSED);
    psc_op_free(op);
}

static void expect_failure(struct fixture *f, const char *part)
{
    float x[N] = {0};

    assert_int_equal(psc_pull(f->c, f->key, x), PSC_E_PROTO);
    assert_detail(f, part);
    peer_close_conn(&f->peer);
}

static void bytes_that_are_no_frame_end_the_client(void **state)
{
    struct fixture *f = *state;

    peer_send_bytes(&f->peer, "HTTP/1.1 200 OK\r\n", 17, -1);
    expect_failure(f, "malformed frame from the agent");
}

static void unexpected_message_ends_the_client(void **state)
{
    struct fixture *f = *state;

    peer_send(&f->peer, &(struct ps_msg){.code = PS_MSG_L_DETACH}, -1);
    expect_failure(f, "malformed frame from the agent");
}

static void end_of_an_unknown_operation_ends_the_client(void **state)
{
    struct fixture *f = *state;

    peer_done(&f->peer, 12345, 1);
    expect_failure(f, "an operation that is not open");
}

static void result_of_an_old_version_ends_the_client(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *op;
    struct ps_msg_l_op m;

    assert_int_equal(psc_pushpull_start(f->c, f->key, x, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    peer_done(&f->peer, m.op_id, 0);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_PROTO);
    psc_op_free(op);
    peer_close_conn(&f->peer);
}

/* Memory that could shrink would kill the reader with SIGBUS. */
static void an_arena_that_could_shrink_is_refused(void **state)
{
    struct fixture *f = *state;
    int fd = peer_memfd(4096, F_SEAL_GROW);

    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_ARENA,
                               .l_arena = {.arena = 8, .size = 4096}},
              fd);
    close(fd);
    expect_failure(f, "cannot map the agent's memory 8");
}

static void an_arena_of_another_size_is_refused(void **state)
{
    struct fixture *f = *state;
    int fd = peer_memfd(4096, F_SEAL_SHRINK);

    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_ARENA,
                               .l_arena = {.arena = 8, .size = 8192}},
              fd);
    close(fd);
    expect_failure(f, "cannot map the agent's memory 8");
}

static void an_arena_without_descriptor_is_refused(void **state)
{
    struct fixture *f = *state;

    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_ARENA,
                               .l_arena = {.arena = 8, .size = 4096}},
              -1);
    expect_failure(f, "malformed");
}

static void results_outside_the_arena_are_refused(void **state)
{
    struct fixture *f = *state;
    struct peer_call call;
    struct ps_msg m;

    peer_key_begin(&call, f->c, "b", PSC_FLOAT32, 1000);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_send(&f->peer,
              &(struct ps_msg){
                  .code = PS_MSG_L_KEY_INFO,
                  .l_key_info = {.request = m.l_key.request,
                                 .reattached = m.l_key.reattached,
                                 .key = 41,
                                 .arena = 7,
                                 .even_offset = 0,
                                 .odd_offset = f->peer.arena_size - 3992}},
              -1);
    pthread_join(call.thread, NULL);
    assert_int_equal(call.rc, PSC_E_PROTO);
    peer_close_conn(&f->peer);
}

/* ----------------------------------------------------------------- handles */

static void freed_operation_does_not_write_its_result(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    float out[N];
    struct psc_op *op;
    struct ps_msg_l_op m;

    fill(out, -7);
    fill(f->result[1], 5);
    assert_int_equal(psc_pushpull_start(f->c, f->key, x, out, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    psc_op_free(op);
    peer_done(&f->peer, m.op_id, 1);
    /* The next round shows that the first one is over. */
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    assert_int_equal(psc_op_test(op), PSC_E_AGAIN);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(m.round, 2);
    peer_done(&f->peer, m.op_id, 2);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    assert_float_equal(out[0], -7, 0);
    psc_op_free(op);
}

struct called {
    int count;
    int rc;
    struct psc_op *op;
};

static void note_call(struct psc_op *op, int rc, void *user)
{
    struct called *k = user;

    k->count++;
    k->rc = rc;
    k->op = op;
    psc_op_free(op);
}

static void callbacks_run_in_dispatch_alone(void **state)
{
    struct fixture *f = *state;
    struct called called = {0};
    const struct psc_op_options o = {
        .size = sizeof(o), .callback = note_call, .user = &called};
    struct pollfd w = {.fd = psc_fd(f->c), .events = POLLIN};
    float x[N] = {0};
    struct psc_op *other;
    struct psc_op *op;
    struct ps_msg_l_op m;
    struct ps_msg_l_op n;

    assert_true(w.fd >= 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, &o, &op), 0);
    assert_int_equal(psc_pull_start(f->c, f->key, x, NULL, &other), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    n = peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(poll(&w, 1, 0), 0);
    assert_int_equal(psc_dispatch(f->c), 0);
    peer_done(&f->peer, m.op_id, 1);
    peer_done(&f->peer, n.op_id, 1);
    assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
    /* Another thread empties the socket; the callback is still due. */
    assert_int_equal(psc_op_wait(other, PSC_WAIT_FOREVER), 0);
    assert_int_equal(called.count, 0);
    assert_int_equal(poll(&w, 1, PEER_LIMIT_MS), 1);
    assert_int_equal(psc_dispatch(f->c), 1);
    assert_int_equal(called.count, 1);
    assert_int_equal(called.rc, 0);
    assert_ptr_equal(called.op, op);
    assert_int_equal(poll(&w, 1, 0), 0);
    psc_op_free(other);
}

/* A program that polls has no callbacks: it tests its operations. */
static void an_end_in_another_call_makes_the_descriptor_readable(void **state)
{
    struct fixture *f = *state;
    struct pollfd w = {.fd = psc_fd(f->c), .events = POLLIN};
    float x[N] = {0};
    struct psc_op *ops[2];
    struct ps_msg_l_op m[2];

    assert_true(w.fd >= 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[0]), 0);
    assert_int_equal(psc_pull_start(f->c, f->key, x, NULL, &ops[1]), 0);
    m[0] = peer_expect_op(&f->peer, PS_OP_PUSH);
    m[1] = peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_int_equal(psc_op_test(ops[0]), PSC_E_AGAIN);
    assert_int_equal(poll(&w, 1, 0), 0);
    peer_done(&f->peer, m[0].op_id, 1);
    peer_done(&f->peer, m[1].op_id, 1);
    assert_int_equal(psc_op_wait(ops[1], PSC_WAIT_FOREVER), 0);
    assert_int_equal(poll(&w, 1, 0), 1);
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_int_equal(psc_op_test(ops[0]), 0);
    assert_int_equal(poll(&w, 1, 0), 0);
    psc_op_free(ops[0]);
    psc_op_free(ops[1]);
}

static void *wait_for_two_main(void *arg)
{
    struct psc_op **ops = arg;

    PEER_CHECK(psc_ops_wait(ops, 2, PSC_WAIT_FOREVER) == 0);
    return NULL;
}

/* Waits until a thread sleeps in a call of the client. */
static void await_sleeper(struct psc_client *c)
{
    const ps_time limit = client_now() + PS_MILLIS(PEER_LIMIT_MS);
    bool sleeps = false;

    while (!sleeps && client_now() < limit) {
        (void)sched_yield();
        assert_int_equal(client_enter(c), 0);
        sleeps = c->progress.wake_threshold > 0;
        client_leave(c);
    }
    assert_true(sleeps);
}

/* The agent has put the end of an operation into the ring, and is about to wake
 * a sleeping thread, when a thread that polls the descriptor dispatches. */
static void dispatch_leaves_a_waiting_thread_to_be_woken(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *ops[2];
    struct ps_msg_l_op m[2];
    pthread_t thread;

    if (!by_ring) {
        return; /* A frame wakes all. */
    }
    assert_true(psc_fd(f->c) >= 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[0]), 0);
    assert_int_equal(psc_pull_start(f->c, f->key, x, NULL, &ops[1]), 0);
    m[0] = peer_expect_op(&f->peer, PS_OP_PUSH);
    m[1] = peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_two_main, ops), 0);
    await_sleeper(f->c);
    /* Wakes it although it waits for another one: that may have a callback. */
    assert_true(ps_ring_push_done(&f->peer.ring, m[0].op_id, 1));
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_true(ps_ring_wake_worker(&f->peer.ring));
    peer_send(&f->peer, &(struct ps_msg){.code = PS_MSG_L_WAKE}, -1);
    peer_done(&f->peer, m[1].op_id, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    psc_op_free(ops[0]);
    psc_op_free(ops[1]);
}

/* This rank has passed six barriers in an earlier life. */
static void barriers_are_numbered_across_workers_of_a_rank(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    struct ps_msg m;

    for (uint64_t n = 7; n <= 9; n++) {
        assert_int_equal(psc_barrier_start(f->c, NULL, &op), 0);
        m = peer_expect(&f->peer, PS_MSG_L_BARRIER);
        assert_int_equal(m.l_barrier.number, n);
        peer_done(&f->peer, m.l_barrier.op_id, 0);
        assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
        psc_op_free(op);
    }
}

/* The agent accepts one barrier of a rank at a time. */
static void barriers_of_a_rank_are_sent_one_by_one(void **state)
{
    struct fixture *f = *state;
    struct psc_op *ops[3];
    struct ps_msg m;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(psc_barrier_start(f->c, NULL, &ops[i]), 0);
    }
    for (uint64_t n = 7; n <= 9; n++) {
        m = peer_expect(&f->peer, PS_MSG_L_BARRIER);
        assert_int_equal(m.l_barrier.number, n);
        assert_true(peer_is_silent(&f->peer));
        if (n == 8) {
            /* It comes again under its number. */
            peer_refuse(&f->peer, m.l_barrier.op_id, PS_E_AGAIN, "");
            assert_int_equal(psc_op_wait(ops[1], PSC_WAIT_FOREVER),
                             PSC_E_AGAIN);
            m = peer_expect(&f->peer, PS_MSG_L_BARRIER);
            assert_int_equal(m.l_barrier.number, 8);
            peer_done(&f->peer, m.l_barrier.op_id, 0);
            assert_int_equal(psc_op_wait(ops[2], PSC_WAIT_FOREVER), 0);
            break;
        }
        peer_done(&f->peer, m.l_barrier.op_id, 0);
        assert_int_equal(psc_op_wait(ops[n - 7], PSC_WAIT_FOREVER), 0);
    }
    for (int i = 0; i < 3; i++) {
        psc_op_free(ops[i]);
    }
}

struct barrier_call {
    pthread_t thread;
    struct psc_client *c;
    int rc;
};

static void *barrier_main(void *arg)
{
    struct barrier_call *b = arg;

    b->rc = psc_barrier(b->c);
    return NULL;
}

static void barrier_continues_after_an_interrupted_wait(void **state)
{
    struct peer p;
    struct barrier_call b;
    struct ps_msg m;
    uint64_t id;

    (void)state;
    peer_start(&p);
    b.c = peer_open(&p, 1);
    pthread_create(&b.thread, NULL, barrier_main, &b);
    m = peer_expect(&p, PS_MSG_L_BARRIER);
    id = m.l_barrier.op_id;
    m = peer_expect(&p, PS_MSG_L_STALL_QUERY);
    assert_int_equal(m.l_stall_query.op_id, id);
    peer_send(&p,
              &(struct ps_msg){
                  .code = PS_MSG_L_STALL_REPLY,
                  .l_stall_reply = {.op_id = id, .text = "rank 0 is missing"}},
              -1);
    pthread_join(b.thread, NULL);
    assert_int_equal(b.rc, PSC_E_TIMEOUT);

    peer_done(&p, id, 0);
    pthread_create(&b.thread, NULL, barrier_main, &b);
    pthread_join(b.thread, NULL);
    assert_int_equal(b.rc, 0);
    assert_true(peer_is_silent(&p));
    peer_close(&p, b.c);
    peer_stop(&p);
}

static void optimizer_is_declared_by_name_and_parameters(void **state)
{
    struct fixture *f = *state;
    const struct psc_param params[] = {{"learning_rate", 0.1},
                                       {"momentum", 0.9}};
    struct psc_op *op;
    struct ps_msg m;

    assert_int_equal(psc_optimizer_start(f->c, "sgd", params, 2, NULL, &op), 0);
    m = peer_expect(&f->peer, PS_MSG_L_OPTIMIZER);
    assert_string_equal(m.l_optimizer.name, "sgd");
    assert_int_equal(m.l_optimizer.params_count, 2);
    assert_string_equal(m.l_optimizer.params[1].name, "momentum");
    assert_true(m.l_optimizer.params[1].value == 0.9);
    peer_refuse(&f->peer, m.l_optimizer.op_id, PS_E_MISMATCH,
                "momentum was 0.8 before");
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_MISMATCH);
    assert_detail(f, "momentum was 0.8 before");
    psc_op_free(op);
    assert_int_equal(psc_optimizer_start(f->c, "sgd", params, 33, NULL, &op),
                     PSC_E_INVAL);
}

/* The agent gets SENT_MAX operations at most; the others wait here. */
static void operations_beyond_the_limit_are_sent_later(void **state)
{
    enum { COUNT = 33000, SENT = 32768 };
    struct fixture *f = *state;
    struct psc_op **ops = calloc(COUNT, sizeof(*ops));
    uint64_t *ids = calloc(COUNT, sizeof(*ids));
    int count = 0;
    int rc = 0;

    assert_non_null(ops);
    assert_non_null(ids);
    for (int i = 0; i < COUNT && rc == 0; i++) {
        rc = psc_pull_start(f->c, f->key, NULL, NULL, &ops[i]);
        while (rc == 0 && count < SENT && !peer_is_silent(&f->peer)) {
            ids[count++] = peer_expect_op(&f->peer, PS_OP_PULL).op_id;
        }
    }
    assert_int_equal(rc, 0);
    assert_int_equal(count, SENT);
    assert_true(peer_is_silent(&f->peer));
    for (int i = 0; i < COUNT; i++) {
        peer_done(&f->peer, ids[i], 0);
        assert_int_equal(psc_op_wait(ops[i], PSC_WAIT_FOREVER), 0);
        while (count < COUNT && !peer_is_silent(&f->peer)) {
            ids[count++] = peer_expect_op(&f->peer, PS_OP_PULL).op_id;
        }
        psc_op_free(ops[i]);
    }
    assert_int_equal(count, COUNT);
    free(ops);
    free(ids);
}

/* -------------------------------------------------------------- processes */

/* True: this process has the client's end of f->peer. */
static bool has_socket(void)
{
    bool any = false;

    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_un peer;
        socklen_t len = sizeof(peer);

        any = any || (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 &&
                      len > offsetof(struct sockaddr_un, sun_path));
    }
    return any;
}

/* `is_bare`: by the system call, which runs no handlers. */
static void check_forked_child(struct fixture *f, bool is_bare, uint64_t round)
{
    float x[N] = {0};
    void *memory;
    struct psc_op *op;
    struct ps_msg_l_op m;
    int status;
    pid_t pid;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_true(has_socket());
    pid = is_bare ? _Fork() : fork();
    if (pid == 0) {
        /* A handler has closed the copy of the socket, which would hide the end
         * of the parent. */
        bool good = has_socket() == is_bare &&
                    psc_push(f->c, f->key, x) == PSC_E_FORKED &&
                    psc_op_wait(op, 0) == PSC_E_FORKED &&
                    psc_op_test(op) == PSC_E_FORKED &&
                    psc_alloc(f->c, 8, &memory) == PSC_E_FORKED &&
                    psc_barrier(f->c) == PSC_E_FORKED &&
                    psc_rank(f->c) == PSC_E_FORKED &&
                    psc_fd(f->c) == PSC_E_FORKED &&
                    psc_dispatch(f->c) == PSC_E_FORKED;

        psc_op_free(op);
        psc_close(f->c);
        _exit(good ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    /* The parent's socket is not affected. */
    assert_true(peer_is_silent(&f->peer));
    peer_done(&f->peer, m.op_id, round);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
}

static void client_is_unusable_in_a_forked_child(void **state)
{
    check_forked_child(*state, false, 1);
    check_forked_child(*state, true, 2);
}

static void close_waits_for_open_operations(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct ps_msg_l_op m;
    pthread_t t;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    pthread_create(&t, NULL, peer_close_main, f->c);
    f->closed = true;
    peer_done(&f->peer, m.op_id, 1);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(m.round, 2);
    peer_done(&f->peer, m.op_id, 2);
    peer_expect(&f->peer, PS_MSG_L_DETACH);
    assert_int_equal(peer_next(&f->peer).code, 0);
    peer_close_conn(&f->peer);
    pthread_join(t, NULL);
}

static void *leave_main(void *arg)
{
    return (void *)(intptr_t)psc_leave(arg);
}

static void regions_and_views_outlive_the_departure(void **state)
{
    struct fixture *f = *state;
    const void *view;
    struct psc_op *op;
    struct ps_msg_l_op m;
    void *rc = NULL;
    float *x;
    pthread_t t;

    assert_int_equal(psc_alloc(f->c, N * sizeof(float), (void **)&x), 0);
    fill(x, 1);
    assert_int_equal(psc_pushpull_start(f->c, f->key, x, NULL, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    fill(f->result[1], 6);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    pthread_create(&t, NULL, leave_main, f->c);
    peer_expect(&f->peer, PS_MSG_L_DETACH);
    peer_close_conn(&f->peer);
    pthread_join(t, &rc);
    assert_null(rc);

    x[N - 1] = 2;
    assert_float_equal(x[0], 1, 0);
    assert_int_equal(psc_op_view(op, &view, NULL), 0);
    assert_float_equal(((const float *)view)[N - 1], 6, 0);
    assert_int_equal(psc_push(f->c, f->key, x), PSC_E_CLOSED);
    assert_detail(f, "this worker has left the job");
    assert_int_equal(psc_leave(f->c), PSC_E_CLOSED);
    assert_int_equal(psc_free(f->c, x), 0);
    psc_op_free(op);
}

static void *await_main(void *arg)
{
    return (void *)(intptr_t)psc_op_wait(arg, PSC_WAIT_FOREVER);
}

static void an_abort_ends_waits_without_a_departure(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;
    void *rc = NULL;
    float *x;
    pthread_t t;

    assert_int_equal(psc_alloc(f->c, N * sizeof(float), (void **)&x), 0);
    fill(x, 1);
    assert_int_equal(psc_pushpull_start(f->c, f->key, x, NULL, NULL, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PUSHPULL);
    pthread_create(&t, NULL, await_main, op);
    assert_int_equal(psc_abort(f->c), 0);
    pthread_join(t, &rc);
    assert_int_equal((intptr_t)rc, PSC_E_CLOSED);
    assert_int_equal(peer_next(&f->peer).code, 0); /* No l_detach. */
    peer_close_conn(&f->peer);

    x[N - 1] = 2;
    assert_float_equal(x[0], 1, 0);
    assert_int_equal(psc_push(f->c, f->key, x), PSC_E_CLOSED);
    assert_detail(f, "this worker has failed and ended its connection");
    assert_int_equal(psc_abort(f->c), 0);
    assert_int_equal(psc_leave(f->c), PSC_E_CLOSED);
    psc_op_free(op);
    assert_int_equal(psc_free(f->c, x), 0);
}

/* ----------------------------------------------------------------- threads */

#define THREADS 4
#define ROUNDS  200

struct worker {
    pthread_t thread;
    struct psc_client *c;
    uint32_t key;
    int errors;
};

/* Round r contributes r everywhere and results in 2 r. */
static void *work_main(void *arg)
{
    struct worker *w = arg;
    float x[N];
    float out[N];

    for (int r = 1; r <= ROUNDS; r++) {
        fill(x, (float)r);
        if (psc_pushpull(w->c, w->key, x, out) != 0 ||
            out[0] != 2.0f * (float)r || out[N - 1] != 2.0f * (float)r) {
            w->errors++;
        }
    }
    return NULL;
}

static void threads_share_a_client(void **state)
{
    struct fixture *f = *state;
    struct worker workers[THREADS];
    float *results[THREADS][2];

    for (uint32_t i = 0; i < THREADS; i++) {
        char name[8];
        void *data[2];

        snprintf(name, sizeof(name), "t%u", i);
        workers[i] = (struct worker){.c = f->c};
        workers[i].key = peer_key(&f->peer, f->c, name, PSC_FLOAT32, N, i,
                                  data);
        results[i][0] = data[0];
        results[i][1] = data[1];
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_create(&workers[i].thread, NULL, work_main, &workers[i]);
    }
    for (int n = 0; n < THREADS * ROUNDS; n++) {
        struct ps_msg_l_op m = peer_expect_op(&f->peer, PS_OP_PUSHPULL);
        const float *given = peer_op_source(&f->peer, &m);
        float *to = results[m.key][m.round & 1];

        for (size_t i = 0; i < N; i++) {
            to[i] = 2 * given[i];
        }
        peer_done(&f->peer, m.op_id, m.round);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].errors, 0);
    }
}

static void *wait_for_two(void *arg)
{
    return psc_ops_wait(arg, 2, PSC_WAIT_FOREVER) == 0 ? arg : NULL;
}

static void *wait_for_one(void *arg)
{
    return psc_op_wait(arg, PSC_WAIT_FOREVER) == 0 ? arg : NULL;
}

/* A thread that waits for several operations sleeps until all have ended, but
 * not if another thread waits for one. */
static void wait_for_several_operations_delays_no_other_thread(void **state)
{
    struct fixture *f = *state;

    for (int turn = 0; turn < 200; turn++) {
        struct psc_op *ops[3];
        uint64_t ids[3];
        pthread_t two;
        pthread_t one;
        void *rc;

        for (int i = 0; i < 3; i++) {
            assert_int_equal(psc_pull_start(f->c, f->key, NULL, NULL, &ops[i]),
                             0);
            ids[i] = peer_expect_op(&f->peer, PS_OP_PULL).op_id;
        }
        assert_int_equal(pthread_create(&two, NULL, wait_for_two, ops), 0);
        assert_int_equal(pthread_create(&one, NULL, wait_for_one, ops[2]), 0);
        peer_done(&f->peer, ids[2], 0);
        assert_int_equal(pthread_join(one, &rc), 0);
        assert_ptr_equal(rc, ops[2]);
        peer_done(&f->peer, ids[0], 0);
        peer_done(&f->peer, ids[1], 0);
        assert_int_equal(pthread_join(two, &rc), 0);
        assert_ptr_equal(rc, ops);
        for (int i = 0; i < 3; i++) {
            psc_op_free(ops[i]);
        }
    }
}

static void *wait_for_three(void *arg)
{
    return psc_ops_wait(arg, 3, PSC_WAIT_FOREVER) == 0 ? arg : NULL;
}

/* Operations on one key end in order: each must end before the next is sent. */
static void wait_for_several_operations_of_one_key_ends(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *ops[3];
    pthread_t three;
    void *rc;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &ops[i]), 0);
    }
    ps_spin_init(&f->c->progress.busy_poll, 0); /* It sleeps at once. */
    assert_int_equal(pthread_create(&three, NULL, wait_for_three, ops), 0);
    for (uint64_t i = 1; i <= 3; i++) {
        struct ps_msg_l_op m = peer_expect_op(&f->peer, PS_OP_PUSH);

        assert_int_equal(m.round, i);
        peer_done(&f->peer, m.op_id, m.round);
    }
    assert_int_equal(pthread_join(three, &rc), 0);
    assert_ptr_equal(rc, ops);
    for (int i = 0; i < 3; i++) {
        psc_op_free(ops[i]);
    }
}

static void ring_with_impossible_counters_ends_the_client(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;

    if (!by_ring) {
        return; /* There is none. */
    }
    assert_int_equal(psc_pull_start(f->c, f->key, NULL, NULL, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PULL);
    memset(f->peer.ring_memory, 0x7f, 256);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), PSC_E_PROTO);
    assert_detail(f, "ring");
    psc_op_free(op);
    peer_close_conn(&f->peer);
}

/* The library does not abort the program for a mistake of its own. */
static void impossible_change_of_state_fails_the_client(void **state)
{
    struct fixture *f = *state;
    struct psc_op *op;

    assert_int_equal(psc_pull_start(f->c, f->key, NULL, NULL, &op), 0);
    peer_expect_op(&f->peer, PS_OP_PULL);
    assert_int_equal(client_enter(f->c), 0);
    op_set_state(op, OP_NEW);
    client_leave(f->c);
    assert_int_equal(psc_op_wait(op, 0), PSC_E_BUG);
    assert_detail(f, "an operation that is sent cannot become new");
    psc_op_free(op);
    peer_close_conn(&f->peer);
}

/* In a wait, too: it may last as long as the program. */
static void
operations_without_handle_are_freed_while_another_is_waited_for(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct psc_op *last;
    uint32_t spare;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    }
    assert_int_equal(psc_pull_start(f->c, f->key, NULL, NULL, &last), 0);
    spare = f->c->ops.spare_count;
    for (uint64_t i = 1; i <= 3; i++) {
        struct ps_msg_l_op m = peer_expect_op(&f->peer, PS_OP_PUSH);

        peer_done(&f->peer, m.op_id, m.round);
        assert_int_equal(psc_op_wait(last, 0), PSC_E_TIMEOUT);
        assert_true(ps_list_empty(&f->c->ops.deferred_free));
        assert_int_equal(f->c->ops.spare_count, spare + i);
    }
    peer_done(&f->peer, peer_expect_op(&f->peer, PS_OP_PULL).op_id, 3);
    assert_int_equal(psc_op_wait(last, PSC_WAIT_FOREVER), 0);
    psc_op_free(last);
}

#define story(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* All of it by messages on the socket or, with "ring", through shared memory.
 */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_has_all_options),
        cmocka_unit_test(text_of_a_rejection_is_reported_verbatim),
        cmocka_unit_test(copies_need_an_agent_that_knows_them),
        cmocka_unit_test(error_without_an_agent_names_the_socket),
        cmocka_unit_test(client_connects_to_an_agent_that_starts_late),
        cmocka_unit_test(invalid_options_are_refused_by_the_client),
        story(key_is_declared_once),
        story(keys_of_one_call_are_declared_together),
        story(refused_key_may_be_declared_again),
        story(keys_beyond_the_first_table_keep_their_names),
        story(impossible_keys_are_refused_by_the_client),
        story(array_in_a_region_is_pushed_without_a_copy),
        story(array_outside_a_region_is_copied_once_each_way),
        story(arrays_of_one_push_are_summed_in_tree_order),
        story(result_is_copied_as_its_partitions_arrive),
        story(operation_may_fail_within_its_result),
        story(source_in_place_is_overwritten_after_the_round),
        story(results_alternate_between_two_buffers),
        story(init_of_another_rank_than_the_root_has_no_region),
        story(a_push_waits_for_earlier_operations),
        story(keys_do_not_wait_for_each_other),
        story(rank_continues_with_the_round_of_its_former_worker),
        story(collectives_send_their_data_in_order),
        story(rows_with_an_overflowing_sum_are_refused),
        story(failed_round_is_contributed_to_again),
        story(the_next_call_returns_a_detached_error),
        story(a_time_limit_names_the_missing_ranks),
        story(few_ranks_write_the_first_notes),
        cmocka_unit_test(quiet_client_sends_no_stall_query),
        story(stall_query_of_a_queued_operation_names_the_first),
        story(failure_of_the_job_reaches_every_call),
        story(closed_connection_ends_operations),
        story(bytes_that_are_no_frame_end_the_client),
        story(unexpected_message_ends_the_client),
        story(end_of_an_unknown_operation_ends_the_client),
        story(result_of_an_old_version_ends_the_client),
        story(an_arena_that_could_shrink_is_refused),
        story(an_arena_of_another_size_is_refused),
        story(an_arena_without_descriptor_is_refused),
        story(results_outside_the_arena_are_refused),
        story(freed_operation_does_not_write_its_result),
        story(callbacks_run_in_dispatch_alone),
        story(an_end_in_another_call_makes_the_descriptor_readable),
        story(dispatch_leaves_a_waiting_thread_to_be_woken),
        story(barriers_are_numbered_across_workers_of_a_rank),
        story(barriers_of_a_rank_are_sent_one_by_one),
        cmocka_unit_test(barrier_continues_after_an_interrupted_wait),
        story(optimizer_is_declared_by_name_and_parameters),
        story(operations_beyond_the_limit_are_sent_later),
        story(client_is_unusable_in_a_forked_child),
        story(close_waits_for_open_operations),
        story(regions_and_views_outlive_the_departure),
        story(an_abort_ends_waits_without_a_departure),
        story(threads_share_a_client),
        story(wait_for_several_operations_delays_no_other_thread),
        story(wait_for_several_operations_of_one_key_ends),
        story(ring_with_impossible_counters_ends_the_client),
        story(impossible_change_of_state_fails_the_client),
        story(operations_without_handle_are_freed_while_another_is_waited_for),
    };

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    return cmocka_run_group_tests_name(by_ring ? "ring" : "socket", tests, NULL,
                                       NULL);
}
