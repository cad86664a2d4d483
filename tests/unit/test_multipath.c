/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of a link: choice, records, handshake, dials, and acknowledgements
 * ahead of data. */
#include "core/link/output.h"
#include "core/link/path.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define LARGE 20000u

/* A link with two connections, as one side sees it. */
struct bench {
    struct ps_multipath mp;
    struct ps_path main;
    struct ps_path more;
    struct ps_effects fx;
    ps_time now;
};

static void init_bench(struct bench *b, enum ps_role self, uint32_t connections)
{
    memset(b, 0, sizeof(*b));
    b->now = PS_SECONDS(5);
    ps_effects_init(&b->fx);
    ps_multipath_init(&b->mp, &(struct ps_multipath_options){
                                  .self = self, .connections = connections});
    ps_path_open(&b->main, &b->mp, 1,
                 self == PS_ROLE_AGENT ? "10.0.0.1:9" : NULL);
}

static void end_bench(struct bench *b)
{
    ps_path_fini(&b->more);
    ps_path_fini(&b->main);
    ps_effects_fini(&b->fx);
}

/* The connection that sends a message with `len` bytes of payload. */
static struct ps_path_choice send_msg(struct ps_path *p, const struct ps_msg *m,
                                      size_t len)
{
    struct ps_slice slice = {.buf = len > 0 ? ps_buf_new(len) : NULL,
                             .len = len};
    struct ps_packet *packet = ps_packet_new(m, &slice, len > 0);
    struct ps_msg msg = *m;
    struct ps_path_choice choice = ps_path_choose(p, &msg, packet);

    ps_packet_unref(packet);
    ps_buf_unref(slice.buf);
    return choice;
}

static struct ps_path *send_value(struct bench *b, uint64_t seq, size_t len)
{
    return send_msg(&b->main,
                    &(struct ps_msg){.code = PS_MSG_VALUE, .seq = seq}, len)
        .path;
}

static enum ps_path_verdict receive(struct bench *b, struct ps_path *p,
                                    const struct ps_msg *msg)
{
    return ps_path_receive(p, msg, b->now, &b->fx);
}

static const struct ps_msg welcome = {
    .code = PS_MSG_WELCOME,
    .welcome = {.protocol = 1, .name = "", .features = PS_FEATURE_SUBFLOW}};

static struct ps_msg hello_of(uint64_t session, uint64_t features)
{
    return (struct ps_msg){.code = PS_MSG_HELLO,
                           .hello = {.protocol = PS_PROTOCOL,
                                     .protocol_least = PS_PROTOCOL_LEAST,
                                     .node = 3,
                                     .instance = 4,
                                     .session = session,
                                     .features = features,
                                     .name = "",
                                     .cluster = "",
                                     .address = ""}};
}

/* A server whose link has one subflow. */
static void join_two(struct bench *b)
{
    struct ps_msg first = hello_of(9, 0);
    struct ps_msg second = hello_of(9, PS_FEATURE_SUBFLOW);

    init_bench(b, PS_ROLE_SERVER, 0);
    assert_int_equal(receive(b, &b->main, &first), PS_PATH_DELIVER);
    (void)send_msg(&b->main, &welcome, 0);
    ps_path_open(&b->more, &b->mp, 2, NULL);
    assert_int_equal(receive(b, &b->more, &second), PS_PATH_JOINED);
    assert_int_equal(b->fx.count, 1);
    assert_int_equal(b->fx.items[0].send.conn, 2);
    assert_int_equal(b->fx.items[0].send.packet->msg->code, PS_MSG_WELCOME);
    assert_int_equal(ps_path_machine_conn(&b->more), 1);
    ps_effects_clear(&b->fx);
}

static void large_frames_take_the_shortest_queue(void **state)
{
    struct bench b;

    (void)state;
    join_two(&b);
    b.main.queued = 1;
    assert_ptr_equal(send_value(&b, 1, LARGE), &b.more);
    b.more.queued = 2;
    assert_ptr_equal(send_value(&b, 2, LARGE), &b.main);
    b.main.queued =
        2; /* Of equally long queues, the one with fewer sent bytes. */
    assert_ptr_equal(send_value(&b, 3, 2 * LARGE), &b.main);
    assert_ptr_equal(send_value(&b, 4, LARGE), &b.more);
    b.main.queued = 100;
    assert_ptr_equal(send_value(&b, 5, 100), &b.main);   /* Small. */
    assert_ptr_equal(send_value(&b, 4, LARGE), &b.main); /* Resent. */
    assert_ptr_equal(send_value(&b, 0, LARGE), &b.main); /* No number. */
    end_bench(&b);
}

static void the_main_connection_sends_frames_of_a_closed_one(void **state)
{
    struct bench b;

    (void)state;
    join_two(&b);
    b.main.queued = 1;
    for (uint64_t seq = 1; seq <= 40; seq++) {
        assert_ptr_equal(send_value(&b, seq, LARGE), &b.more);
    }
    /* An acknowledgement of frames that were never sent releases none. */
    assert_int_equal(
        receive(&b, &b.main, &(struct ps_msg){.code = PS_MSG_ACK, .ack = 41}),
        PS_PATH_DELIVER);
    assert_int_equal(
        receive(&b, &b.more,
                &(struct ps_msg){.code = PS_MSG_PUSH, .seq = 1, .ack = 38}),
        PS_PATH_DELIVER);
    assert_false(ps_path_closed(&b.more, b.now, &b.fx));
    assert_int_equal(b.fx.count, 2);
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(b.fx.items[i].send.conn, 1);
        assert_int_equal(b.fx.items[i].send.seq, 39 + i);
    }
    assert_true(ps_path_closed(&b.main, b.now, &b.fx));
    end_bench(&b);
}

static void subflows_end_with_the_main_connection(void **state)
{
    struct bench b;

    (void)state;
    join_two(&b);
    assert_ptr_equal((b.main.queued = 1, send_value(&b, 1, LARGE)), &b.more);
    assert_true(ps_path_closed(&b.main, b.now, &b.fx));
    assert_int_equal(b.fx.count, 1);
    assert_int_equal(b.fx.items[0].type, PS_FX_CLOSE);
    assert_int_equal(b.fx.items[0].close.conn, 2);
    assert_int_equal(ps_path_machine_conn(&b.more), 0);
    assert_int_equal(
        receive(&b, &b.more, &(struct ps_msg){.code = PS_MSG_PUSH, .seq = 1}),
        PS_PATH_DROP);
    assert_false(ps_path_closed(&b.more, b.now, &b.fx));
    assert_int_equal(b.fx.count, 1);
    end_bench(&b);
}

/* `hello` on a further connection is refused. */
static void expect_refused(struct bench *b, const struct ps_msg *hello)
{
    struct ps_path p;

    ps_path_open(&p, &b->mp, 7, NULL);
    assert_int_equal(receive(b, &p, hello), PS_PATH_DROP);
    assert_int_equal(b->fx.count, 1);
    assert_int_equal(b->fx.items[0].close.conn, 7);
    assert_int_equal(b->fx.items[0].close.rc, PS_E_STALE);
    ps_effects_clear(&b->fx);
    ps_path_fini(&p);
}

static void a_subflow_names_its_link(void **state)
{
    struct ps_path others[PS_LINK_CONNECTIONS_MAX];
    struct ps_msg hello = hello_of(9, PS_FEATURE_SUBFLOW);
    struct ps_msg other = hello;
    struct bench b;

    (void)state;
    join_two(&b);
    other.hello.session = 10;
    expect_refused(&b, &other);
    other = hello;
    other.hello.instance = 5;
    expect_refused(&b, &other);
    other = hello;
    other.hello.node = 4;
    expect_refused(&b, &other);
    other = hello;
    other.hello.protocol = PS_PROTOCOL_LEAST - 1;
    expect_refused(&b, &other);
    /* Frames without a number depend on order. */
    assert_int_equal(
        receive(&b, &b.more, &(struct ps_msg){.code = PS_MSG_PING}),
        PS_PATH_DROP);
    assert_int_equal(b.fx.items[0].close.rc, PS_E_PROTO);
    ps_effects_clear(&b.fx);
    for (uint32_t i = 0; i < PS_LINK_CONNECTIONS_MAX - 2; i++) {
        ps_path_open(&others[i], &b.mp, 10 + i, NULL);
        assert_int_equal(receive(&b, &others[i], &hello), PS_PATH_JOINED);
    }
    ps_effects_clear(&b.fx);
    expect_refused(&b, &hello);
    /* A link that is being closed accepts none. */
    ps_path_fini(&others[0]);
    ps_path_finish(&b.main, &b.fx);
    assert_int_equal(b.fx.count, PS_LINK_CONNECTIONS_MAX - 2);
    ps_effects_clear(&b.fx);
    expect_refused(&b, &hello);
    end_bench(&b);
}

/* Dials of subflows since the last call; the effects are cleared. */
static uint32_t count_dials(struct bench *b)
{
    uint32_t dials = 0;

    ps_multipath_tick(&b->mp, b->now, &b->fx);
    for (uint32_t i = 0; i < b->fx.count; i++) {
        dials += b->fx.items[i].type == PS_FX_DIAL &&
                 b->fx.items[i].dial.subflow_of == 1;
    }
    ps_effects_clear(&b->fx);
    return dials;
}

/* The number of a link's session is no secret to other members, the key of a
 * certificate is. */
static void a_subflow_has_the_certificate_of_its_link(void **state)
{
    static const struct ps_peer_identity own = {PS_ROLE_AGENT, "c", "a1"};
    static const struct ps_peer_identity same = {PS_ROLE_AGENT, "c", "a1"};
    static const struct ps_peer_identity other = {PS_ROLE_AGENT, "c", "a2"};
    const struct ps_peer_identity *const strangers[] = {&other, NULL};
    struct ps_msg hello = hello_of(9, PS_FEATURE_SUBFLOW);
    struct bench b;

    (void)state;
    join_two(&b);
    b.main.peer = &own;
    for (size_t i = 0; i < 2; i++) {
        struct ps_path p;

        ps_path_open(&p, &b.mp, 7, NULL);
        p.peer = strangers[i];
        assert_int_equal(receive(&b, &p, &hello), PS_PATH_DROP);
        assert_int_equal(b.fx.count, 1);
        assert_int_equal(b.fx.items[0].close.conn, 7);
        assert_int_equal(b.fx.items[0].close.rc, PS_E_PERM);
        ps_effects_clear(&b.fx);
        ps_path_fini(&p);
    }
    struct ps_path p;

    ps_path_open(&p, &b.mp, 8, NULL);
    p.peer = &same;
    assert_int_equal(receive(&b, &p, &hello), PS_PATH_JOINED);
    ps_path_fini(&p);
    end_bench(&b);
}

static void dialled_subflows_replace_failed_ones_later(void **state)
{
    struct ps_msg hello = hello_of(9, 0);
    struct bench b;

    (void)state;
    init_bench(&b, PS_ROLE_AGENT, 2);
    (void)send_msg(&b.main, &hello, 0);
    assert_int_equal(count_dials(&b), 0);
    assert_int_equal(receive(&b, &b.main, &welcome), PS_PATH_DELIVER);
    assert_int_equal(count_dials(&b), 1);
    assert_int_equal(count_dials(&b), 0);
    for (ps_time wait = PS_MILLIS(100); wait < PS_SECONDS(10); wait *= 2) {
        const ps_time due = wait < PS_SECONDS(5) ? wait : PS_SECONDS(5);

        ps_path_dial_failed(&b.main, b.now);
        assert_int_equal(b.mp.deadline, b.now + due);
        b.now += due - 1;
        assert_int_equal(count_dials(&b), 0);
        b.now += 1;
        assert_int_equal(count_dials(&b), 1);
    }
    assert_true(ps_path_join(&b.more, 2, &b.main, &b.fx));
    assert_int_equal(b.fx.count, 1);
    assert_int_equal(b.fx.items[0].send.packet->msg->hello.features,
                     PS_FEATURE_SUBFLOW);
    ps_effects_clear(&b.fx);
    b.main.queued = 1; /* Not welcomed yet. */
    assert_ptr_equal(send_value(&b, 1, LARGE), &b.main);
    assert_int_equal(receive(&b, &b.more, &welcome), PS_PATH_DROP);
    assert_ptr_equal(send_value(&b, 2, LARGE), &b.more);
    /* The wait begins again at the shortest. */
    assert_false(ps_path_closed(&b.more, b.now, &b.fx));
    assert_int_equal(b.mp.deadline, b.now + PS_MILLIS(100));
    end_bench(&b);
}

static int lend_memory(void *self, ps_conn_id conn, const struct ps_msg *msg,
                       uint64_t len, struct ps_slice *ret_slice)
{
    (void)msg;
    assert_int_equal(conn, 1);
    *ret_slice = (struct ps_slice){.buf = ps_buf_ref(self), .len = len};
    return 0;
}

static void no_subflow_begins_while_memory_is_borrowed(void **state)
{
    static const struct ps_machine_ops ops = {.payload = lend_memory};
    const struct ps_msg value = {.code = PS_MSG_VALUE, .seq = 1};
    struct ps_buf *memory = ps_buf_new(64);
    const struct ps_machine m = {.ops = &ops, .self = memory};
    struct ps_msg hello = hello_of(9, 0);
    struct ps_slice slice;
    struct bench b;

    (void)state;
    init_bench(&b, PS_ROLE_AGENT, 0);
    (void)send_msg(&b.main, &hello, 0);
    assert_int_equal(receive(&b, &b.main, &welcome), PS_PATH_DELIVER);
    assert_int_equal(count_dials(&b), 0); /* One connection is enough. */
    assert_int_equal(ps_path_payload(&b.main, &m, &value, 64, &slice), 0);
    assert_ptr_equal(slice.buf, memory);
    ps_multipath_set_threads(&b.mp, 3, b.now);
    assert_int_equal(count_dials(&b), 0);
    b.now += PS_MILLIS(100);
    assert_int_equal(receive(&b, &b.main, &value), PS_PATH_DELIVER);
    ps_buf_unref(slice.buf);
    assert_int_equal(count_dials(&b), 2);
    assert_int_equal(ps_path_payload(&b.main, &m, &value, 64, &slice), 0);
    assert_ptr_not_equal(slice.buf, memory);
    ps_buf_unref(slice.buf);
    ps_buf_unref(memory);
    end_bench(&b);
}

static void late_acknowledgements_are_sent_first(void **state)
{
    struct ps_msg value = {.code = PS_MSG_VALUE, .seq = 1, .ack = 5};
    struct bench b;

    (void)state;
    join_two(&b);
    b.main.queued = 64 * 1024 - 1;
    assert_false(send_msg(&b.main, &value, 0).acks_ahead);
    b.main.queued++;
    value.seq++;
    assert_false(send_msg(&b.main, &value, 0).acks_ahead); /* The same. */
    value.ack++;
    assert_true(send_msg(&b.main, &value, 0).acks_ahead);
    value.ack++;
    b.main.by_reference = true; /* Few bytes in fact. */
    assert_false(send_msg(&b.main, &value, 0).acks_ahead);
    b.main.by_reference = false;
    const struct ps_path_choice alone = send_msg(
        &b.main, &(struct ps_msg){.code = PS_MSG_ACK, .ack = 9}, 0);

    assert_false(alone.acks_ahead);
    assert_true(alone.is_urgent);
    end_bench(&b);
}

static void a_stalled_subflow_ends_while_the_first_works(void **state)
{
    struct bench b;

    (void)state;
    join_two(&b);
    assert_false(ps_path_on_unacked(&b.main, 1, &b.fx));
    assert_false(ps_path_on_unacked(&b.more, PS_PATH_UNACKED_MAX, &b.fx));
    assert_int_equal(b.fx.count, 0);
    assert_false(ps_path_on_unacked(&b.main, 0, &b.fx));
    assert_false(ps_path_on_unacked(&b.more, PS_PATH_UNACKED_MAX - 1, &b.fx));
    assert_int_equal(b.fx.count, 0);
    assert_false(ps_path_on_unacked(&b.more, PS_PATH_UNACKED_MAX, &b.fx));
    assert_int_equal(b.fx.items[0].close.conn, 2);
    /* The machine knows the main connection only. */
    assert_true(ps_path_on_unacked(&b.main, PS_PATH_UNACKED_MAX, &b.fx));
    end_bench(&b);
}

static void add_pre_handshake(struct ps_pre_handshake *p,
                              struct ps_pre_handshake_conn *c, ps_conn_id id,
                              uint64_t source, struct ps_effects *fx)
{
    *c = (struct ps_pre_handshake_conn){.id = id, .source = source};
    ps_pre_handshake_add(p, c, fx);
}

/* A source with many connections closes its own ones only. */
static void a_flood_of_one_source_closes_none_of_others(void **state)
{
    struct ps_pre_handshake_conn flood[40];
    struct ps_pre_handshake_conn others[2];
    struct ps_pre_handshake p;
    struct ps_effects fx;

    (void)state;
    ps_effects_init(&fx);
    ps_pre_handshake_init(&p, 8);
    add_pre_handshake(&p, &others[0], 1, 1, &fx);
    for (ps_conn_id i = 0; i < 40; i++) {
        if (i == 20) { /* One of another source closes the oldest of all. */
            add_pre_handshake(&p, &others[1], 2, 3, &fx);
            assert_int_equal(fx.count, 1);
            assert_int_equal(fx.items[0].close.conn, 1);
            ps_pre_handshake_remove(&p, &others[0]);
            ps_effects_clear(&fx);
        }
        add_pre_handshake(&p, &flood[i], 100 + i, 2, &fx);
        assert_int_equal(fx.count, i >= 7);
        if (i >= 7) {
            assert_true(fx.items[0].close.conn >= 100);
            ps_pre_handshake_remove(&p, &flood[fx.items[0].close.conn - 100]);
            ps_effects_clear(&fx);
        }
    }
    assert_true(ps_list_linked(&others[1].node));
    assert_int_equal(p.count, 8);
    ps_effects_fini(&fx);
}

static void the_oldest_without_a_handshake_makes_room(void **state)
{
    struct ps_pre_handshake_conn conn[4];
    struct ps_pre_handshake p;
    struct ps_effects fx;

    (void)state;
    ps_effects_init(&fx);
    ps_pre_handshake_init(&p, 2);
    add_pre_handshake(&p, &conn[0], 1, 0, &fx);
    add_pre_handshake(&p, &conn[1], 2, 0, &fx);
    assert_int_equal(fx.count, 0);
    ps_pre_handshake_remove(&p, &conn[0]); /* It has said hello. */
    add_pre_handshake(&p, &conn[2], 3, 0, &fx);
    assert_int_equal(fx.count, 0);
    add_pre_handshake(&p, &conn[3], 4, 0, &fx);
    assert_int_equal(fx.count, 1);
    assert_int_equal(fx.items[0].close.conn, 2);
    assert_int_equal(fx.items[0].close.rc, PS_E_FULL);
    ps_pre_handshake_remove(&p, &conn[1]);
    ps_pre_handshake_remove(&p, &conn[1]);
    assert_int_equal(p.count, 2);
    ps_effects_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_frames_take_the_shortest_queue),
        cmocka_unit_test(the_main_connection_sends_frames_of_a_closed_one),
        cmocka_unit_test(subflows_end_with_the_main_connection),
        cmocka_unit_test(a_subflow_names_its_link),
        cmocka_unit_test(a_subflow_has_the_certificate_of_its_link),
        cmocka_unit_test(dialled_subflows_replace_failed_ones_later),
        cmocka_unit_test(no_subflow_begins_while_memory_is_borrowed),
        cmocka_unit_test(late_acknowledgements_are_sent_first),
        cmocka_unit_test(a_stalled_subflow_ends_while_the_first_works),
        cmocka_unit_test(the_oldest_without_a_handshake_makes_room),
        cmocka_unit_test(a_flood_of_one_source_closes_none_of_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
