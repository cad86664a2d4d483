/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "core/link/window.h"

#define MAX PS_LINK_IN_FLIGHT_MAX

static struct ps_rng rng;

static void start(struct ps_window *w)
{
    ps_rng_init(&rng, 1);
    ps_window_init(w, PS_SECONDS(1), PS_SECONDS(5), &rng);
}

static void push(struct ps_window *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_msg msg = {.code = PS_MSG_PONG};

        ps_window_push(w, ps_packet_new(&msg, NULL, 0), 0);
    }
}

/* Sends what the window allows; returns the count and the last number. */
static uint32_t pump(struct ps_window *w, ps_time now, uint64_t *ret_last)
{
    uint32_t count = 0;
    uint64_t seq;

    while (ps_window_next(w, now, &seq) != NULL) {
        *ret_last = seq;
        count++;
    }
    return count;
}

static uint32_t due(struct ps_window *w, ps_time now)
{
    uint32_t count = 0;
    uint64_t seq = 0;

    while (ps_window_due(w, now, &seq) != NULL) {
        count++;
    }
    return count;
}

static void packets_beyond_the_window_wait_in_order(void **state)
{
    struct ps_window w;
    uint64_t last = 0;

    (void)state;
    start(&w);
    push(&w, MAX + 10);
    assert_int_equal(pump(&w, 0, &last), MAX);
    assert_int_equal(last, MAX);
    assert_int_equal(w.count, MAX + 10);
    assert_true(ps_window_ack(&w, 3, 0));
    assert_int_equal(pump(&w, 0, &last), 3);
    assert_int_equal(last, MAX + 3);
    assert_true(ps_window_ack(&w, MAX + 3, 0));
    assert_int_equal(pump(&w, 0, &last), 7);
    assert_true(ps_window_ack(&w, MAX + 10, 0));
    assert_int_equal(w.count, 0);
    assert_true(w.deadline == PS_TIME_NEVER);
    ps_window_fini(&w);
}

static void invalid_acknowledgements_are_ignored(void **state)
{
    struct ps_window w;
    uint64_t last;

    (void)state;
    start(&w);
    push(&w, 3);
    assert_int_equal(pump(&w, 0, &last), 3);
    push(&w, 1); /* Number 4, never sent. */
    assert_false(ps_window_ack(&w, 0, 0));
    assert_false(ps_window_ack(&w, 4, 0));
    assert_false(ps_window_ack(&w, UINT64_MAX, 0));
    assert_int_equal(w.count, 4);
    assert_true(ps_window_ack(&w, 2, 0));
    assert_false(ps_window_ack(&w, 2, 0));
    assert_false(ps_window_ack(&w, 1, 0));
    assert_int_equal(w.count, 2);
    ps_window_fini(&w);
}

static void retries_back_off_to_the_maximum(void **state)
{
    struct ps_window w;
    const ps_time least[] = {
        PS_SECONDS(1), PS_SECONDS(2), PS_SECONDS(4),
        PS_SECONDS(5), PS_SECONDS(5),
    };
    ps_time now = PS_SECONDS(100);
    uint64_t last;

    (void)state;
    start(&w);
    push(&w, 1);
    assert_int_equal(pump(&w, now, &last), 1);
    for (size_t i = 0; i < sizeof(least) / sizeof(least[0]); i++) {
        ps_time wait = w.deadline - now;

        assert_true(wait >= least[i]);
        assert_true(wait <= least[i] + least[i] / 4);
        assert_int_equal(due(&w, w.deadline - 1), 0);
        now = w.deadline;
        assert_int_equal(due(&w, now), 1);
    }
    ps_window_fini(&w);
}

static void progress_delays_retransmission(void **state)
{
    struct ps_window w;
    uint64_t last;
    ps_time now = 0;

    (void)state;
    start(&w);
    push(&w, 20);
    assert_int_equal(pump(&w, now, &last), 20);
    /* One of them every 900 ms: never a second without any. */
    for (uint64_t ack = 1; ack < 20; ack++) {
        now += PS_MILLIS(900);
        assert_int_equal(due(&w, now), 0);
        assert_true(ps_window_ack(&w, ack, now));
    }
    assert_int_equal(due(&w, now + PS_MILLIS(999)), 0);
    assert_int_equal(due(&w, now + PS_MILLIS(1251)), 1);
    ps_window_fini(&w);
}

/* The timeout counts from the last time with a connection. */
static void frames_still_being_written_are_not_sent_again(void **state)
{
    struct ps_window_entry *e;
    struct ps_window w;
    uint64_t seq;

    (void)state;
    start(&w);
    push(&w, 2);
    assert_non_null(ps_window_next(&w, 0, &seq));
    e = ps_window_next(&w, 0, &seq);
    assert_non_null(e);
    e->packet->writers = 1;
    assert_int_equal(due(&w, PS_MILLIS(1251)), 1); /* The one before it. */
    assert_int_equal(due(&w, PS_SECONDS(9)), 1);
    assert_true(ps_window_ack(&w, 1, PS_SECONDS(9)));
    assert_int_equal(due(&w, PS_SECONDS(12)), 0);
    e->packet->writers = 0;
    assert_int_equal(due(&w, PS_MILLIS(12999)), 0);
    assert_int_equal(due(&w, PS_MILLIS(13251)), 1);
    ps_window_fini(&w);
}

static void rewind_sends_all_packets_again(void **state)
{
    struct ps_window w;
    uint64_t last = 0;
    uint64_t seq;

    (void)state;
    start(&w);
    push(&w, 5);
    assert_int_equal(pump(&w, 0, &last), 5);
    assert_true(ps_window_ack(&w, 2, 0));
    ps_window_rewind(&w);
    assert_true(w.deadline == PS_TIME_NEVER);
    assert_non_null(ps_window_next(&w, 0, &seq));
    assert_int_equal(seq, 3);
    /* The peer had all 4: frames about to be sent again are dropped. */
    assert_true(ps_window_ack(&w, 4, 0));
    assert_non_null(ps_window_next(&w, 0, &seq));
    assert_int_equal(seq, 5);
    ps_window_reset(&w);
    push(&w, 1);
    assert_non_null(ps_window_next(&w, 0, &seq));
    assert_int_equal(seq, 1);
    ps_window_fini(&w);
}

static void fini_frees_all_packets(void **state)
{
    size_t live = ps_alloc_live();
    struct ps_window w;
    uint64_t last;

    (void)state;
    start(&w);
    push(&w, 3000);
    pump(&w, 0, &last);
    ps_window_ack(&w, 500, 0);
    ps_window_fini(&w);
    assert_int_equal(ps_alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packets_beyond_the_window_wait_in_order),
        cmocka_unit_test(invalid_acknowledgements_are_ignored),
        cmocka_unit_test(retries_back_off_to_the_maximum),
        cmocka_unit_test(progress_delays_retransmission),
        cmocka_unit_test(frames_still_being_written_are_not_sent_again),
        cmocka_unit_test(rewind_sends_all_packets_again),
        cmocka_unit_test(fini_frees_all_packets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
