/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define CONNS 6

/* A daemon with a few connections; the last event and close. */
struct bench {
    struct ps_account account;
    struct ps_machine machine;
    struct ps_machine_ops ops;
    uint64_t
        kept[CONNS + 1]; /* Memory that the machine keeps, by connection. */
    struct ps_output output;
    struct ps_output_conn conn[CONNS];
    struct ps_output_close close;
};

static uint64_t kept_memory(const void *self, ps_conn_id conn)
{
    return ((const struct bench *)self)->kept[conn];
}

static void begin_bench(struct bench *b, uint64_t caller, uint64_t link,
                        uint64_t total)
{
    *b = (struct bench){0};
    ps_account_init(&b->account, PS_ACCOUNT_DAEMON, "server0", NULL);
    b->ops.peer_memory = kept_memory;
    b->machine = (struct ps_machine){
        .ops = &b->ops, .self = b, .account = &b->account};
    ps_output_init(&b->output,
                   &(struct ps_output_options){.self = PS_ROLE_SERVER,
                                               .machine = &b->machine,
                                               .caller = caller,
                                               .link = link,
                                               .total = total,
                                               .evict_min = 1000});
}

static void add(struct bench *b, uint32_t i, enum ps_conn_kind kind,
                uint32_t uid)
{
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = i + 1};

    ev.open.kind = kind;
    ev.open.uid = uid;
    ev.open.peer = "peer";
    ps_output_add(&b->output, &b->conn[i], &ev);
}

static uint64_t sum(const struct bench *b)
{
    assert_int_equal(b->account.cost[PS_COST_OUTPUT].used,
                     b->output.total.cost[PS_COST_OUTPUT].used);
    return b->output.total.cost[PS_COST_OUTPUT].used;
}

/* Number of the connection that is closed when `i` queues `bytes`, until they
 * count; -1: none. */
static int update(struct bench *b, uint32_t i, uint64_t bytes)
{
    if (!ps_output_update(&b->conn[i], bytes, &b->close)) {
        assert_int_equal(b->conn[i].account.cost[PS_COST_OUTPUT].used, bytes);
        return -1;
    }
    assert_int_equal(b->close.rc, PS_E_FULL);
    assert_true(b->close.conn->is_closing);
    assert_int_equal(b->close.conn->account.cost[PS_COST_OUTPUT].used, 0);
    return (int)(b->close.conn - b->conn);
}

static void end_bench(struct bench *b)
{
    for (uint32_t i = 0; i < CONNS; i++) {
        ps_output_remove(&b->conn[i]); /* Also those never added. */
        ps_output_remove(&b->conn[i]);
    }
    assert_int_equal(sum(b), 0);
    ps_output_fini(&b->output);
    ps_account_fini(&b->account);
}

static void connection_beyond_its_own_limit_is_closed(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 100, 1000, 10000);
    add(&b, 0, PS_CONN_LOCAL, 1000);
    add(&b, 1, PS_CONN_DIALLED, 0);
    assert_int_equal(update(&b, 1, 1000), -1);
    assert_int_equal(update(&b, 0, 100), -1);
    assert_int_equal(sum(&b), 1100);
    assert_int_equal(update(&b, 0, 60), -1);
    assert_int_equal(sum(&b), 1060);
    /* Another one that holds more is not the offender. */
    assert_int_equal(update(&b, 0, 101), 0);
    assert_string_equal(b.close.text,
                        "peer does not read: session peer has 60 bytes of 100 "
                        "bytes of queued output and needs 41 bytes more "
                        "(limits.output)");
    assert_int_equal(sum(&b), 1000);
    assert_int_equal(update(&b, 1, 1001), 1);
    assert_int_equal(sum(&b), 0);
    end_bench(&b);
}

static void limit_of_a_daemon_applies_after_its_hello(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 100, 1000, 10000);
    for (uint32_t i = 0; i < 3; i++) {
        add(&b, i, PS_CONN_ACCEPTED, 0);
    }
    assert_int_equal(update(&b, 0, 101), 0);
    ps_output_on_hello(&b.conn[1], PS_ROLE_AGENT);
    assert_int_equal(update(&b, 1, 1000), -1);
    ps_output_on_hello(&b.conn[2], PS_ROLE_CTL);
    assert_null(b.conn[1].user);
    assert_non_null(b.conn[2].user);
    assert_int_equal(update(&b, 2, 101), 2);
    end_bench(&b);
}

static void heaviest_connection_of_a_user_is_closed(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1000, 4000, 4000); /* A user has a quarter. */
    add(&b, 0, PS_CONN_DIALLED, 0);
    add(&b, 1, PS_CONN_LOCAL, 7);
    add(&b, 2, PS_CONN_LOCAL, 7);
    add(&b, 3, PS_CONN_LOCAL, 8);
    assert_int_equal(ps_map_count(b.output.users), 2);
    assert_int_equal(update(&b, 0, 1500), -1);
    assert_int_equal(update(&b, 3, 900), -1);
    assert_int_equal(update(&b, 1, 600), -1);
    assert_int_equal(update(&b, 2, 400), -1);
    assert_int_equal(update(&b, 2, 500), 1);
    assert_non_null(
        strstr(b.close.text, "user 7 has 1000 bytes of 1000 bytes"));
    assert_int_equal(update(&b, 2, 500), -1);
    ps_output_remove(&b.conn[1]);
    assert_int_equal(ps_map_count(b.output.users), 2);
    ps_output_remove(&b.conn[2]);
    assert_int_equal(ps_map_count(b.output.users), 1);
    assert_int_equal(sum(&b), 2400);
    end_bench(&b);
}

static void heaviest_connection_of_all_is_closed(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 1000, 2000, 3000);
    for (uint32_t i = 0; i < 4; i++) {
        add(&b, i, PS_CONN_DIALLED, 0);
    }
    assert_int_equal(update(&b, 0, 900), -1);
    assert_int_equal(update(&b, 1, 1200), -1);
    assert_int_equal(update(&b, 2, 900), -1);
    assert_int_equal(update(&b, 3, 100), 1);
    assert_non_null(strstr(b.close.text, "limits.output_total"));
    assert_int_equal(update(&b, 3, 100), -1);
    /* With its new request it is the heaviest itself. */
    assert_int_equal(update(&b, 3, 2000), 3);
    assert_int_equal(sum(&b), 1800);
    end_bench(&b);
}

static void error_texts_are_short_from_a_quarter_on(void **state)
{
    struct ps_msg done = {.code = PS_MSG_L_DONE};
    struct bench b;

    (void)state;
    begin_bench(&b, 400, 4000, 10000);
    add(&b, 0, PS_CONN_LOCAL, 7);
    done.l_done.text = "the text";
    done.l_done.error = PS_E_FULL;
    assert_int_equal(update(&b, 0, 100), -1);
    ps_output_shorten(&b.conn[0], &done);
    assert_string_equal(done.l_done.text, "the text");
    assert_int_equal(update(&b, 0, 101), -1);
    done.l_done.error = 0;
    ps_output_shorten(&b.conn[0], &done);
    assert_string_equal(done.l_done.text, "the text");
    done.l_done.error = PS_E_FULL;
    ps_output_shorten(&b.conn[0], &done);
    assert_string_equal(done.l_done.text,
                        "others failed before it, and say why");
    end_bench(&b);
}

static void heaviest_connection_ends_when_memory_is_used_up(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b, 0, 0, 0);
    for (uint32_t i = 0; i < 4; i++) {
        add(&b, i, i == 0 ? PS_CONN_LOCAL : PS_CONN_DIALLED, 7);
    }
    assert_int_equal(update(&b, 0, 10), -1);
    assert_int_equal(update(&b, 1, 3u << 20), -1);
    assert_int_equal(update(&b, 2, 5u << 20), -1);
    assert_int_equal(update(&b, 3, 999), -1);
    b.kept[1] = 4u << 20;
    ps_output_finish(&b.conn[2]); /* It ends anyhow. */
    assert_true(ps_output_evict(&b.output, &b.close));
    assert_ptr_equal(b.close.conn, &b.conn[0]);
    assert_int_equal(b.close.rc, PS_E_NOMEM);
    assert_string_equal(b.close.text,
                        "this server is out of memory, and this connection "
                        "holds most of it: 4 MiB");
    assert_true(ps_output_is_evicting(&b.output));
    ps_output_remove(&b.conn[0]);
    assert_false(ps_output_is_evicting(&b.output));
    assert_true(ps_output_evict(&b.output, &b.close));
    assert_ptr_equal(b.close.conn, &b.conn[1]);
    ps_output_remove(&b.conn[1]);
    /* The last one holds little. */
    assert_false(ps_output_evict(&b.output, &b.close));
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connection_beyond_its_own_limit_is_closed),
        cmocka_unit_test(limit_of_a_daemon_applies_after_its_hello),
        cmocka_unit_test(heaviest_connection_of_a_user_is_closed),
        cmocka_unit_test(heaviest_connection_of_all_is_closed),
        cmocka_unit_test(error_texts_are_short_from_a_quarter_on),
        cmocka_unit_test(heaviest_connection_ends_when_memory_is_used_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
