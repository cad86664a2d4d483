/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: many declarations at once are asked for a few at a time,
 * so that what other jobs say to the scheduler does not wait behind them. */
#include "agent_world.h"

#define MANY 1500u

static void declare(struct bench *b, uint32_t number)
{
    char name[16];

    snprintf(name, sizeof(name), "s:%u", number);
    say(b, WORKER_CONN,
        &(struct ps_msg){.code = PS_MSG_L_KEY,
                         .l_key = {.request = 1 + number,
                                   .name = name,
                                   .dtype = PS_DTYPE_FLOAT32,
                                   .count = 16,
                                   .classic = -1}},
        NULL);
}

/* The scheduler answers the i-th question. */
static void refuse(struct bench *b, uint32_t i)
{
    const struct sent *s = find(b, SCHED_CONN, PS_MSG_KEY_OPEN, i);

    say(b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .ack = s->seq,
            .key_opened = {.gen = GEN,
                           .request = s->parcel->msg->key_open.request,
                           .error = PS_E_FULL,
                           .text = "no"}},
        NULL);
}

static void declarations_go_a_few_at_a_time(void **state)
{
    struct bench b;

    (void)state;
    begin(&b, 1, 1);
    forget_sent(&b);
    for (uint32_t i = 0; i < MANY; i++) {
        declare(&b, i);
    }
    assert_int_equal(count(&b, SCHED_CONN, PS_MSG_KEY_OPEN), PS_KEYS_ASKED_MAX);
    /* In their order, each when another one is answered. */
    for (uint32_t i = 0; i < MANY; i++) {
        char name[16];
        uint32_t asked = i + PS_KEYS_ASKED_MAX;

        snprintf(name, sizeof(name), "s:%u", i);
        assert_string_equal(find(&b, SCHED_CONN, PS_MSG_KEY_OPEN, i)
                                ->parcel->msg->key_open.name,
                            name);
        assert_int_equal(count(&b, SCHED_CONN, PS_MSG_KEY_OPEN),
                         asked < MANY ? asked : MANY);
        refuse(&b, i);
    }
    assert_int_equal(count(&b, WORKER_CONN, PS_MSG_L_KEY_INFO), MANY);
    declare(&b, MANY);
    assert_int_equal(count(&b, SCHED_CONN, PS_MSG_KEY_OPEN), MANY + 1);
    end(&b);
}

/* What a worker that is gone had declared costs the scheduler nothing more. */
static void nobody_asks_for_who_is_gone(void **state)
{
    struct bench b;

    (void)state;
    begin(&b, 2, 1);
    forget_sent(&b);
    for (uint32_t i = 0; i < MANY; i++) {
        declare(&b, i);
    }
    step(&b, (struct ps_event){.type = PS_EV_CLOSED, .conn = WORKER_CONN});
    refuse(&b, 0);
    refuse(&b, 1);
    assert_int_equal(count(&b, SCHED_CONN, PS_MSG_KEY_OPEN), PS_KEYS_ASKED_MAX);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(declarations_go_a_few_at_a_time),
        cmocka_unit_test(nobody_asks_for_who_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
