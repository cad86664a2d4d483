/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a client: training scalars, and the waits of its threads. */
#include "test_client_fixture.h"

#include "base/limits.h"
#include "client/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 0);
    *state = f;
    return 0;
}

/* Of many reports, the first ones leave at once and the others together. */
static void many_reports_are_few_messages(void **state)
{
    struct fixture *f = *state;
    uint64_t ids[9];
    struct ps_msg m;

    assert_int_equal(psc_report(f->c, "loss", 0.5), 0);
    m = peer_expect(&f->peer, PS_MSG_L_REPORT);
    ids[0] = m.l_report.op_id;
    assert_int_equal(m.l_report.scalars_count, 1);
    assert_string_equal(m.l_report.scalars[0].name, "loss");
    assert_true(m.l_report.scalars[0].value == 0.5);
    assert_int_equal(m.l_report.scalars[0].step, 0);
    for (uint64_t i = 0; i < 100; i++) {
        const struct psc_scalar two[] = {{"loss", (double)i}, {"lr", NAN}};

        assert_int_equal(psc_report_many(f->c, 1000 + i, two, 2), 0);
    }
    for (int i = 1; i < 8; i++) {
        m = peer_expect(&f->peer, PS_MSG_L_REPORT);
        ids[i] = m.l_report.op_id;
        assert_int_equal(m.l_report.scalars_count, 2);
        assert_true(m.l_report.scalars[0].value == i - 1);
    }
    /* Meanwhile the last values are kept. */
    assert_true(peer_is_silent(&f->peer));
    peer_done(&f->peer, ids[0], 0);
    assert_int_equal(psc_dispatch(f->c), 0);
    m = peer_expect(&f->peer, PS_MSG_L_REPORT);
    ids[8] = m.l_report.op_id;
    assert_int_equal(m.l_report.scalars_count, 2);
    assert_true(m.l_report.scalars[0].value == 99);
    assert_int_equal(m.l_report.scalars[0].step, 1099);
    assert_string_equal(m.l_report.scalars[1].name, "lr");
    assert_true(isnan(m.l_report.scalars[1].value));
    for (int i = 1; i < 9; i++) {
        peer_done(&f->peer, ids[i], 0);
    }
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_true(peer_is_silent(&f->peer));
}

static void step_is_the_last_round_begun(void **state)
{
    struct fixture *f = *state;
    float x[N] = {0};
    struct ps_msg_l_op op;
    struct ps_msg m;

    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    op = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, NULL), 0);
    assert_int_equal(psc_report(f->c, "loss", 1), 0);
    m = peer_expect(&f->peer, PS_MSG_L_REPORT);
    assert_int_equal(m.l_report.scalars[0].step, 2);
    peer_done(&f->peer, m.l_report.op_id, 0);
    peer_done(&f->peer, op.op_id, 1);
    assert_int_equal(psc_dispatch(f->c), 0);
    op = peer_expect_op(&f->peer, PS_OP_PUSH);
    peer_done(&f->peer, op.op_id, 2);
    assert_int_equal(psc_dispatch(f->c), 0);
}

static void a_refusal_is_an_error_of_the_next_report(void **state)
{
    struct fixture *f = *state;
    struct ps_msg m;

    assert_int_equal(psc_report(f->c, "extra", 1), 0);
    m = peer_expect(&f->peer, PS_MSG_L_REPORT);
    peer_refuse(&f->peer, m.l_report.op_id, PS_E_FULL,
                "a job has at most 32 scalars");
    assert_int_equal(psc_dispatch(f->c), 0);
    assert_int_equal(psc_report(f->c, "loss", 1), PSC_E_FULL);
    assert_text(peer_detail(f->c),
                "an earlier report failed: a job has at most 32 scalars");
    assert_true(peer_is_silent(&f->peer));
    assert_int_equal(psc_report(f->c, "loss", 1), 0);
    m = peer_expect(&f->peer, PS_MSG_L_REPORT);
    peer_done(&f->peer, m.l_report.op_id, 0);
    assert_int_equal(psc_dispatch(f->c), 0);
}

static void impossible_names_are_refused_by_the_client(void **state)
{
    struct fixture *f = *state;
    const struct psc_scalar half[] = {{"good", 1}, {"not good", 1}};
    char name[16];
    uint32_t sent = 0;
    struct ps_msg m;

    assert_int_equal(psc_report(f->c, "", 1), PSC_E_INVAL);
    assert_int_equal(psc_report_many(f->c, 1, half, 2), PSC_E_INVAL);
    assert_text(peer_detail(f->c),
                "scalar 'not good': a name has 1 to 63 characters: letters, "
                "digits and any of _ . / : -");
    assert_true(peer_is_silent(&f->peer));
    for (uint32_t i = 0; i < PS_SCALARS_MAX; i++) {
        snprintf(name, sizeof(name), "s%u", i);
        assert_int_equal(psc_report(f->c, name, i), 0);
    }
    assert_int_equal(psc_report(f->c, "more", 1), PSC_E_FULL);
    assert_text(peer_detail(f->c),
                "scalar 'more': this worker reports 32 others, and a job has "
                "at most 32");
    while (sent < PS_SCALARS_MAX) {
        m = peer_expect(&f->peer, PS_MSG_L_REPORT);
        sent += m.l_report.scalars_count;
        peer_done(&f->peer, m.l_report.op_id, 0);
        assert_int_equal(psc_dispatch(f->c), 0);
    }
    assert_true(peer_is_silent(&f->peer));
}

static void *leave_main(void *arg)
{
    (void)psc_leave(arg);
    return NULL;
}

static void last_values_are_sent_before_the_departure(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;
    struct ps_msg m;

    for (int i = 0; i < 9; i++) {
        assert_int_equal(psc_report(f->c, "loss", i), 0);
    }
    assert_int_equal(pthread_create(&thread, NULL, leave_main, f->c), 0);
    for (int i = 0; i < 9; i++) {
        m = peer_expect(&f->peer, PS_MSG_L_REPORT);
        assert_true(m.l_report.scalars[0].value == i);
        peer_done(&f->peer, m.l_report.op_id, 0);
    }
    peer_expect(&f->peer, PS_MSG_L_DETACH);
    peer_close_conn(&f->peer);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(psc_report(f->c, "loss", 3), PSC_E_CLOSED);
    psc_close(f->c);
    f->closed = true;
}

static void failure_of_the_job_is_that_of_reports(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(psc_report(f->c, "loss", 1), 0);
    peer_expect(&f->peer, PS_MSG_L_REPORT);
    peer_send(&f->peer,
              &(struct ps_msg){.code = PS_MSG_L_ERROR,
                               .l_error = {.error = PS_E_JOBFAILED,
                                           .text = "rank 1 is lost"}},
              -1);
    peer_close_conn(&f->peer);
    (void)psc_dispatch(f->c);
    assert_int_equal(psc_report(f->c, "loss", 2), PSC_E_JOBFAILED);
    assert_text(peer_detail(f->c), "rank 1 is lost");
}

/* ---------------------------------------------------- waits of its threads */

/* A program in a process of its own, one thread of which waits in a pull; the
 * test is its agent. */
struct program {
    struct peer peer;
    pid_t pid;
    int pipe[2];
    int timeout_ms;                 /* Of the wait. */
    void *(*beside)(void *program); /* Another thread of it; or NULL. */
    uint64_t process;
    uint64_t op_id;
    uint64_t request;
};

static void *wait_in_pull(void *arg)
{
    struct program *g = arg;
    struct peer_call open;
    struct peer_call key;
    struct psc_op *op;

    peer_open_begin(&g->peer, &open, 0, 0);
    PEER_CHECK(pthread_join(open.thread, NULL) == 0 && open.rc == 0);
    peer_key_begin(&key, open.client, "w", PSC_FLOAT32, N);
    PEER_CHECK(pthread_join(key.thread, NULL) == 0 && key.rc == 0);
    PEER_CHECK(psc_pull_start(open.client, key.key, NULL, NULL, &op) == 0);
    PEER_CHECK(psc_op_wait(op, g->timeout_ms) == 0);
    return NULL;
}

/* Its first thread never calls the library. */
static void run_program(struct program *g)
{
    pthread_t waiter;
    pthread_t beside;

    PEER_CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    if (g->beside != NULL) {
        PEER_CHECK(pthread_create(&beside, NULL, g->beside, g) == 0);
    }
    PEER_CHECK(pthread_create(&waiter, NULL, wait_in_pull, g) == 0);
    PEER_CHECK(pthread_join(waiter, NULL) == 0);
    _exit(0);
}

static void begin_program(struct program *g, int timeout_ms,
                          void *(*beside)(void *program))
{
    struct ps_msg m;

    memset(g, 0, sizeof(*g));
    peer_start(&g->peer);
    g->timeout_ms = timeout_ms;
    g->beside = beside;
    assert_int_equal(pipe(g->pipe), 0);
    g->pid = fork();
    assert_true(g->pid >= 0);
    if (g->pid == 0) {
        run_program(g);
    }
    peer_accept(&g->peer);
    m = peer_expect(&g->peer, PS_MSG_L_HELLO);
    g->process = m.l_hello.process;
    peer_welcome(&g->peer);
    m = peer_expect(&g->peer, PS_MSG_L_KEY);
    peer_answer_key(&g->peer, &m.l_key, 40, 0);
    g->op_id = peer_expect_op(&g->peer, PS_OP_PULL).op_id;
}

static void finish_program(struct program *g)
{
    int status;

    peer_done(&g->peer, g->op_id, 0);
    assert_int_equal(waitpid(g->pid, &status, 0), g->pid);
    assert_int_equal(status, 0);
    close(g->pipe[0]);
    close(g->pipe[1]);
    peer_stop(&g->peer);
}

static bool all_threads_sleep(pid_t pid)
{
    char path[64];
    char text[128];
    bool all = true;

    snprintf(path, sizeof(path), "cat /proc/%d/task/*/stat", (int)pid);

    FILE *f = popen(path, "r");

    assert_non_null(f);
    while (fgets(text, sizeof(text), f) != NULL) {
        const char *state = strchr(text, ')');

        /* The end of a long line has no parenthesis. */
        all = all && (state == NULL || state[2] == 'S');
    }
    return pclose(f) == 0 && all;
}

/* Asks when all threads of the program sleep. */
static struct ps_msg_l_wait_state ask_program(struct program *g)
{
    struct ps_msg m;

    for (int i = 0; !all_threads_sleep(g->pid); i++) {
        assert_true(i < 10000);
        sched_yield();
    }
    peer_send(&g->peer,
              &(struct ps_msg){.code = PS_MSG_L_WAIT_QUERY,
                               .l_wait_query = {.request = ++g->request}},
              -1);
    m = peer_expect(&g->peer, PS_MSG_L_WAIT_STATE);
    assert_int_equal(m.l_wait_state.request, g->request);
    return m.l_wait_state;
}

static void *sleep_for_a_time(void *program)
{
    (void)program;
    sleep(100000);
    return NULL;
}

static void *read_pipe(void *program)
{
    const struct program *g = program;
    char byte;

    while (read(g->pipe[0], &byte, 1) == 1) {
    }
    return NULL;
}

static void *call_and_read_pipe(void *program)
{
    waiting_note_caller();
    return read_pipe(program);
}

static void *set_timer(void *program)
{
    const struct itimerval t = {.it_value = {.tv_sec = 100000}};

    (void)program;
    PEER_CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    return NULL;
}

/* It is still only if nothing but the end of the pull lets it go on. */
static void answer_says_whether_the_process_can_go_on(void **state)
{
    static const struct {
        void *(*beside)(void *program);
        int timeout_ms;
        uint8_t still;
    } rows[] = {
        {NULL, PSC_WAIT_FOREVER, PS_STILLNESS_STILL},
        {NULL, 100000000, PS_STILLNESS_MOVING},
        {sleep_for_a_time, PSC_WAIT_FOREVER, PS_STILLNESS_MOVING},
        {read_pipe, PSC_WAIT_FOREVER, PS_STILLNESS_QUIET},
        {call_and_read_pipe, PSC_WAIT_FOREVER, PS_STILLNESS_MOVING},
        {set_timer, PSC_WAIT_FOREVER, PS_STILLNESS_MOVING},
    };
    uint64_t last_process = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ps_msg_l_wait_state at;
        struct program g;

        begin_program(&g, rows[i].timeout_ms, rows[i].beside);
        assert_int_not_equal(g.process, 0);
        assert_int_not_equal(g.process, last_process);
        last_process = g.process;
        at = ask_program(&g);
        if (at.still != rows[i].still) {
            fail_msg("row %zu is %s", i, ps_stillness_name(at.still));
        }
        if (at.still != PS_STILLNESS_MOVING) {
            assert_int_equal(at.ops, 1);
            assert_string_equal(at.does, "in pull of w");
        }
        finish_program(&g);
    }
}

/* A thread that has run is a move, whatever it waits for afterwards. */
static void a_thread_that_has_run_is_a_move(void **state)
{
    struct program g;
    uint64_t moves;

    (void)state;
    begin_program(&g, PSC_WAIT_FOREVER, read_pipe);
    moves = ask_program(&g).moves;
    assert_int_equal(ask_program(&g).moves, moves);
    assert_int_equal(write(g.pipe[1], "x", 1), 1);
    for (int i = 0; ask_program(&g).moves == moves; i++) {
        assert_true(i < 10000);
    }
    finish_program(&g);
}

#define story(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        story(many_reports_are_few_messages),
        story(step_is_the_last_round_begun),
        story(a_refusal_is_an_error_of_the_next_report),
        story(impossible_names_are_refused_by_the_client),
        story(last_values_are_sent_before_the_departure),
        story(failure_of_the_job_is_that_of_reports),
        cmocka_unit_test(answer_says_whether_the_process_can_go_on),
        cmocka_unit_test(a_thread_that_has_run_is_a_move),
    };
    size_t count = sizeof(tests) / sizeof(tests[0]);

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
#if defined(__SANITIZE_THREAD__)
    count -= 2; /* It has a thread that sleeps, and a fork() must not follow. */
#endif
    return _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
}
