/* SPDX-License-Identifier: Apache-2.0 */
/* The client's training scalars. */
#include "test_client_fixture.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

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
    };

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
