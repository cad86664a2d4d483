/* SPDX-License-Identifier: Apache-2.0 */
/* Two links and a channel between them that loses, duplicates and reorders
 * frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "core/link/link.h"
#include "support/sanitized.h"

#define NUMBERS 3000u /* Messages each side sends in a random run. */
#define FRAMES  65536u
#define RUNS    (PS_TEST_SANITIZED ? 6u : 40u)

struct frame {
    ps_time at;
    uint64_t conn;
    uint64_t seq;
    uint64_t ack;
    uint32_t to;
    struct ps_packet *packet;
};

struct end {
    struct ps_link *link;
    struct ps_effects fx;
    uint64_t next;                  /* Number of its next message, from 1. */
    uint8_t delivered[NUMBERS + 1]; /* In this session. */
    uint32_t delivered_count;
};

struct world {
    struct ps_rng rng;
    struct end end[2];
    struct frame *frames;
    uint32_t frame_count;
    uint64_t conn;
    uint32_t harm; /* Per mille, of each kind. */
    ps_time now;
};

static void world_init(struct world *w, uint64_t seed, uint32_t harm)
{
    const struct ps_link_options opt = {.counts_payload = true};

    memset(w, 0, sizeof(*w));
    ps_rng_init(&w->rng, seed);
    w->harm = harm;
    w->frames = ps_alloc(FRAMES * sizeof(*w->frames));
    for (int i = 0; i < 2; i++) {
        w->end[i].link = ps_link_new(&opt, &w->rng);
        w->end[i].next = 1;
        ps_effects_init(&w->end[i].fx);
    }
}

static void drop_frames(struct world *w)
{
    for (uint32_t i = 0; i < w->frame_count; i++) {
        ps_packet_unref(w->frames[i].packet);
    }
    w->frame_count = 0;
}

static void world_fini(struct world *w)
{
    drop_frames(w);
    for (int i = 0; i < 2; i++) {
        ps_link_free(w->end[i].link);
        ps_effects_fini(&w->end[i].fx);
    }
    ps_free(w->frames);
}

static void put_in_flight(struct world *w, uint32_t from, const struct ps_fx *f)
{
    assert_true(w->frame_count < FRAMES);
    w->frames[w->frame_count++] = (struct frame){
        .at = w->now + PS_MICROS(100) +
              (ps_rng_chance(&w->rng, w->harm)
                   ? ps_rng_below(&w->rng, PS_MILLIS(300))
                   : 0),
        .conn = f->send.conn,
        .seq = f->send.seq,
        .ack = f->send.ack,
        .to = 1 - from,
        .packet = ps_packet_ref(f->send.packet),
    };
}

/* Effects of one end go to the channel. */
static void flush(struct world *w, uint32_t from)
{
    struct ps_effects *fx = &w->end[from].fx;

    for (uint32_t i = 0; i < fx->count; i++) {
        assert_int_equal(fx->items[i].type, PS_FX_SEND);
        if (!ps_rng_chance(&w->rng, w->harm)) {
            put_in_flight(w, from, &fx->items[i]);
        }
        if (ps_rng_chance(&w->rng, w->harm)) {
            put_in_flight(w, from, &fx->items[i]);
        }
    }
    ps_effects_clear(fx);
}

static void send_number(struct world *w, uint32_t from)
{
    struct end *e = &w->end[from];
    const struct ps_msg msg = {
        .code = PS_MSG_WORKER_GONE,
        .worker_gone = {.worker = e->next++},
    };

    ps_link_send_msg(e->link, &msg, w->now, &e->fx);
    flush(w, from);
}

static void deliver(struct world *w, const struct frame *f)
{
    struct end *e = &w->end[f->to];
    struct ps_msg msg = *f->packet->msg;
    bool is_new;

    if (f->conn != w->conn) {
        return; /* Of a connection that is gone. */
    }
    msg.seq = f->seq;
    msg.ack = f->ack;
    is_new = ps_link_is_new(e->link, f->seq);
    if (ps_link_receive(e->link, &msg, w->now, &e->fx)) {
        assert_true(is_new);
        assert_int_equal(msg.code, PS_MSG_WORKER_GONE);
        assert_false(e->delivered[msg.worker_gone.worker]);
        e->delivered[msg.worker_gone.worker] = 1;
        e->delivered_count++;
    } else {
        assert_true(f->seq == 0 || !is_new || msg.code == PS_MSG_ACK);
    }
    assert_true(ps_link_unacked(w->end[1 - f->to].link) <= NUMBERS);
    flush(w, f->to);
}

/* Handles the next frame or deadline. False: there is none. */
static bool turn(struct world *w)
{
    ps_time best = PS_TIME_NEVER;
    uint32_t which = 0;

    for (uint32_t i = 0; i < w->frame_count; i++) {
        if (w->frames[i].at < best) {
            best = w->frames[i].at;
            which = i;
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        ps_time due = ps_link_deadline(w->end[i].link);

        if (due < best) {
            w->now = due > w->now ? due : w->now;
            ps_link_tick(w->end[i].link, w->now, &w->end[i].fx);
            flush(w, i);
            return true;
        }
    }
    if (best == PS_TIME_NEVER) {
        return false;
    }
    struct frame f = w->frames[which];

    memmove(&w->frames[which], &w->frames[which + 1],
            (w->frame_count - which - 1) * sizeof(f));
    w->frame_count--;
    w->now = f.at > w->now ? f.at : w->now;
    deliver(w, &f);
    ps_packet_unref(f.packet);
    return true;
}

static void cut(struct world *w)
{
    w->conn = 0;
    ps_link_close(w->end[0].link);
    ps_link_close(w->end[1].link);
    drop_frames(w);
}

/* As hello and welcome do it. */
static void join(struct world *w, bool resumed)
{
    static uint64_t conns;
    uint64_t received[2];

    w->conn = ++conns;
    for (int i = 0; i < 2; i++) {
        received[i] = ps_link_received(w->end[i].link);
        if (!resumed) {
            w->end[i].next = 1;
            w->end[i].delivered_count = 0;
            memset(w->end[i].delivered, 0, sizeof(w->end[i].delivered));
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        ps_link_open(w->end[i].link, w->conn, resumed, received[1 - i], w->now,
                     &w->end[i].fx);
        flush(w, i);
    }
}

static void run_one(uint64_t seed)
{
    struct world w;
    uint32_t turns = 0;

    world_init(&w, seed, seed % 4 == 0 ? 0 : 100);
    join(&w, false);
    while (w.end[0].delivered_count < NUMBERS ||
           w.end[1].delivered_count < NUMBERS) {
        assert_true(++turns < 10000000);
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t burst = ps_rng_chance(&w.rng, 5) ? 1500 : 1;

            while (burst-- > 0 && w.end[i].next <= NUMBERS) {
                send_number(&w, i);
            }
        }
        if (ps_rng_chance(&w.rng, 1)) {
            cut(&w);
            if (w.end[0].next <= NUMBERS) {
                send_number(&w, 0); /* Kept until there is a connection. */
            }
            join(&w, !ps_rng_chance(&w.rng, 100));
        }
        turn(&w);
    }
    /* At the end everything is acknowledged and nothing is due. */
    while (turn(&w)) {
        assert_true(++turns < 10000000);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ps_link_unacked(w.end[i].link), 0);
        assert_int_equal(ps_link_memory(w.end[i].link), 0);
        assert_int_equal(ps_link_received(w.end[i].link), NUMBERS);
        assert_true(ps_link_deadline(w.end[i].link) == PS_TIME_NEVER);
    }
    world_fini(&w);
}

static void messages_arrive_once_over_a_faulty_channel(void **state)
{
    const char *given = getenv("PS_TEST_SEED");
    size_t live = ps_alloc_live();

    (void)state;
    if (given != NULL) {
        run_one(strtoull(given, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        print_message("# seed %d (again: PS_TEST_SEED=%d)\n", (int)seed,
                      (int)seed);
        run_one(seed);
    }
    assert_int_equal(ps_alloc_live(), live);
}

static uint32_t sends(struct ps_effects *fx, uint64_t *ret_seq,
                      uint64_t *ret_ack)
{
    uint32_t count = fx->count;

    if (count > 0) {
        *ret_seq = fx->items[count - 1].send.seq;
        *ret_ack = fx->items[count - 1].send.ack;
    }
    ps_effects_clear(fx);
    return count;
}

static bool receive(struct end *e, uint64_t seq, uint64_t ack, ps_time now)
{
    const struct ps_msg msg = {
        .code = PS_MSG_WORKER_GONE, .seq = seq, .ack = ack};

    return ps_link_receive(e->link, &msg, now, &e->fx);
}

static void acknowledgement_is_sent_alone_after_a_delay(void **state)
{
    struct world w;
    struct end *e = &w.end[0];
    uint64_t seq;
    uint64_t ack;

    (void)state;
    world_init(&w, 1, 0);
    join(&w, false);
    drop_frames(&w);
    assert_true(receive(e, 1, 0, 0));
    assert_int_equal(sends(&e->fx, &seq, &ack), 0);
    assert_true(ps_link_deadline(e->link) == PS_MILLIS(20));
    send_number(&w, 0); /* Carries it. */
    assert_int_equal(w.frames[0].ack, 1);
    assert_true(ps_link_deadline(e->link) >= PS_SECONDS(1));
    assert_true(receive(e, 2, 1, 0));
    ps_link_tick(e->link, PS_MILLIS(19), &e->fx);
    assert_int_equal(sends(&e->fx, &seq, &ack), 0);
    ps_link_tick(e->link, PS_MILLIS(20), &e->fx);
    assert_int_equal(sends(&e->fx, &seq, &ack), 1);
    assert_int_equal(seq, 0);
    assert_int_equal(ack, 2);
    assert_true(ps_link_deadline(e->link) == PS_TIME_NEVER);
    /* Many at once: not later than the 64th. */
    for (uint64_t i = 3; i <= 65; i++) {
        assert_true(receive(e, i, 1, PS_MILLIS(21)));
        assert_int_equal(sends(&e->fx, &seq, &ack), 0);
    }
    assert_true(receive(e, 66, 1, PS_MILLIS(21)));
    assert_int_equal(sends(&e->fx, &seq, &ack), 1);
    assert_int_equal(ack, 66);
    /* A duplicate: now. */
    assert_false(receive(e, 5, 1, PS_MILLIS(22)));
    assert_true(ps_link_deadline(e->link) == PS_MILLIS(22));
    ps_link_tick(e->link, PS_MILLIS(22), &e->fx);
    assert_int_equal(sends(&e->fx, &seq, &ack), 1);
    world_fini(&w);
}

static void session_is_resumable_after_its_first_message(void **state)
{
    struct world w;
    struct end *e = &w.end[0];
    const struct ps_msg ack = {.code = PS_MSG_ACK};

    (void)state;
    world_init(&w, 1, 0);
    assert_false(ps_link_is_resumable(e->link));
    ps_link_open(e->link, 1, false, 0, 0, &e->fx);
    assert_false(ps_link_is_resumable(e->link));
    assert_false(ps_link_receive(e->link, &ack, 0, &e->fx));
    assert_true(ps_link_is_resumable(e->link));
    ps_link_close(e->link);
    ps_link_open(e->link, 2, true, 0, 0, &e->fx);
    assert_true(ps_link_is_resumable(e->link));
    ps_link_open(e->link, 3, false, 0, 0, &e->fx);
    assert_false(ps_link_is_resumable(e->link));
    world_fini(&w);
}

static void a_fresh_open_drops_kept_frames(void **state)
{
    struct world w;
    struct end *e = &w.end[0];

    (void)state;
    world_init(&w, 1, 0);
    join(&w, false);
    send_number(&w, 0);
    send_number(&w, 0);
    assert_int_equal(ps_link_unacked(e->link), 2);
    cut(&w);
    assert_true(ps_link_deadline(e->link) == PS_TIME_NEVER);
    join(&w, true);
    assert_int_equal(w.frame_count, 2);
    assert_int_equal(ps_link_resent(e->link), 2);
    cut(&w);
    join(&w, false);
    assert_int_equal(w.frame_count, 0);
    assert_int_equal(ps_link_unacked(e->link), 0);
    send_number(&w, 0);
    assert_int_equal(w.frames[0].seq, 1);
    world_fini(&w);
}

/* A payload of an ended job is not sent again; an empty message takes its
 * number, so that later ones are delivered and all are acknowledged. */
static void payload_of_an_ended_job_keeps_its_sequence_number(void **state)
{
    struct ps_slice slice = {.buf = ps_buf_new(64), .len = 64};
    uint64_t memory;
    struct world w;

    (void)state;
    world_init(&w, 1, 0);
    join(&w, false);
    for (uint64_t i = 1; i <= 3; i++) {
        const struct ps_msg msg = {.code = PS_MSG_WORKER_GONE,
                                   .worker_gone = {.gen = i, .worker = i}};

        ps_link_send(w.end[0].link, ps_packet_new(&msg, &slice, 1), w.now,
                     &w.end[0].fx);
    }
    ps_buf_unref(slice.buf);
    flush(&w, 0);
    drop_frames(&w); /* All are lost. */
    memory = ps_link_memory(w.end[0].link);
    ps_link_drop_payloads(w.end[0].link, 2);
    assert_true(ps_link_memory(w.end[0].link) > memory / 3 * 2);
    assert_true(ps_link_memory(w.end[0].link) <= memory - 64);
    assert_int_equal(ps_link_unacked(w.end[0].link), 3);
    while (turn(&w)) {
    }
    assert_int_equal(w.end[1].delivered_count, 2);
    assert_int_equal(w.end[1].delivered[2], 0);
    assert_int_equal(ps_link_received(w.end[1].link), 3);
    assert_int_equal(ps_link_unacked(w.end[0].link), 0);
    world_fini(&w);
}

/* Unacknowledged messages count as the peer's output, others do not. */
static void memory_counts_until_it_is_acknowledged(void **state)
{
    const struct ps_msg msg = {.code = PS_MSG_ACK};
    struct ps_account ledger;
    struct ps_link_options opt = {.ledger = &ledger, .peer = "node 5"};
    struct ps_effects fx;
    struct ps_rng rng;
    struct ps_rec_cost shown[PS_COSTS_SHOWN_MAX];

    (void)state;
    ps_account_init(&ledger, PS_ACCOUNT_DAEMON, "d", NULL);
    ps_effects_init(&fx);
    ps_rng_init(&rng, 1);
    for (int with = 0; with < 2; with++) {
        struct ps_slice slice = {.buf = ps_buf_new(4096), .len = 4096};
        const uint64_t *used = &ledger.cost[PS_COST_OUTPUT].used;
        struct ps_link *l;
        uint64_t one;

        opt.counts_payload = with != 0;
        l = ps_link_new(&opt, &rng);
        ps_link_open(l, 1, false, 0, 1, &fx);
        ps_link_send(l, ps_packet_new(&msg, &slice, 1), 1, &fx);
        one = *used;
        assert_in_range(one, with * 4096 + 64, with * 4096 + 1024);
        assert_int_equal(ps_link_memory(l), one);
        for (unsigned i = 2; i <= 3000; i++) { /* More than is under way. */
            ps_link_send(l, ps_packet_new(&msg, &slice, 1), 1, &fx);
            assert_int_equal(*used, i * one);
        }
        ps_buf_unref(slice.buf);
        assert_int_equal(ps_ledger_records(&ledger, shown), 2);
        assert_string_equal(shown[1].kind, "peer");
        assert_string_equal(shown[1].name, "node 5");
        assert_string_equal(shown[1].cost, "output");
        assert_false(ps_link_receive(
            l, &(struct ps_msg){.code = PS_MSG_ACK, .ack = 500}, 2, &fx));
        assert_int_equal(*used, 2500 * one);
        ps_link_open(l, 2, true, 600, 3, &fx);
        assert_int_equal(*used, 2400 * one);
        ps_link_open(l, 3, false, 0, 4, &fx);
        assert_int_equal(*used, 0);
        ps_link_send_msg(l, &msg, 5, &fx);
        assert_true(*used > 0);
        ps_link_free(l);
        assert_int_equal(*used, 0);
    }
    ps_effects_fini(&fx);
    ps_account_fini(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acknowledgement_is_sent_alone_after_a_delay),
        cmocka_unit_test(session_is_resumable_after_its_first_message),
        cmocka_unit_test(a_fresh_open_drops_kept_frames),
        cmocka_unit_test(payload_of_an_ended_job_keeps_its_sequence_number),
        cmocka_unit_test(memory_counts_until_it_is_acknowledged),
        cmocka_unit_test(messages_arrive_once_over_a_faulty_channel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
