/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: which keys are taken, and that nothing stays of those
 * that are not. */
#include "sched_world.h"

static const struct ps_msg_key_opened *answer(const struct peer *p)
{
    return &last(p, PS_MSG_KEY_OPENED)->key_opened;
}

static uint32_t server_of(const struct peer *p)
{
    for (uint32_t i = p->count; i > 0; i--) {
        if (p->inbox[i - 1].msg->code == PS_MSG_KEY_OPENED) {
            uint32_t node;

            memcpy(&node, ps_slice_data(&p->inbox[i - 1].parcel->slice[0]),
                   sizeof(node));
            return node;
        }
    }
    return 0;
}

static void close_key(const struct job *j, uint32_t agent, uint32_t key,
                      uint64_t request)
{
    say(j->w, j->a[agent],
        (struct ps_msg){
            .code = PS_MSG_KEY_CLOSE,
            .key_close = {.gen = j->gen, .key = key, .request = request}});
}

/* ----------------------------------------------------------------- undoing */

/* Of a key that its agent had no memory for nothing stays: neither its name
 * nor its weight in the placement of the keys of others. */
static void a_key_that_no_agent_takes_is_undone(void **state)
{
    struct job j = running(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "s:huge", 250000);
    assert_int_equal(answer(j.a[0])->error, 0);
    assert_int_equal(server_of(j.a[0]), j.s[0]->node);
    close_key(&j, 0, 0, 1);
    /* The first server has nothing again. */
    open_key(j.w, j.a[1], j.gen, 1, "s:b", 10);
    assert_int_equal(answer(j.a[1])->error, 0);
    assert_int_equal(answer(j.a[1])->key, 1);
    assert_int_equal(server_of(j.a[1]), j.s[0]->node);
    /* The name may mean another array now. */
    open_key(j.w, j.a[0], j.gen, 2, "s:huge", 20);
    assert_int_equal(answer(j.a[0])->error, 0);
    assert_int_equal(answer(j.a[0])->key, 2);
    /* The job, two keys, two servers that have something of it. */
    assert_int_equal(ps_sched_residue(j.w->sched), 1 + 2 + 2);
    finish(&j);
}

static void a_key_that_another_agent_has_stays(void **state)
{
    struct job j = running(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "s:w", 100);
    open_key(j.w, j.a[1], j.gen, 1, "s:w", 100);
    close_key(&j, 0, 0, 1);
    open_key(j.w, j.a[0], j.gen, 2, "s:w", 101);
    assert_int_equal(answer(j.a[0])->error, PS_E_MISMATCH);
    close_key(&j, 0, 0, 1); /* It has none that it could close. */
    open_key(j.w, j.a[0], j.gen, 3, "s:w", 100);
    assert_int_equal(answer(j.a[0])->key, 0);
    close_key(&j, 0, 0, 3);
    close_key(&j, 1, 0, 1);
    close_key(&j, 1, 0, 1);
    close_key(&j, 1, 7, 1);
    open_key(j.w, j.a[1], j.gen, 2, "s:w", 101);
    assert_int_equal(answer(j.a[1])->error, 0);
    finish(&j);
}

/* Links keep no order. */
static void a_close_that_is_late_closes_nothing(void **state)
{
    struct job j = running(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "s:w", 100);
    open_key(j.w, j.a[0], j.gen, 5, "s:w", 100);
    close_key(&j, 0, 0, 1);
    open_key(j.w, j.a[1], j.gen, 1, "s:w", 101);
    assert_int_equal(answer(j.a[1])->error, PS_E_MISMATCH);
    close_key(&j, 0, 0, 5);
    open_key(j.w, j.a[1], j.gen, 2, "s:w", 101);
    assert_int_equal(answer(j.a[1])->error, 0);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_that_no_agent_takes_is_undone),
        cmocka_unit_test(a_key_that_another_agent_has_stays),
        cmocka_unit_test(a_close_that_is_late_closes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
