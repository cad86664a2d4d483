/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong counts, and operations in an order that no library has: a worker may
 * send any of them. Each is refused in words, and nothing is computed, copied
 * or allocated by a number that has not been checked. */
#include "agent_world.h"

static struct ps_msg_l_op rows_op(enum ps_op kind, uint32_t rows)
{
    return (struct ps_msg_l_op){.op_id = rows,
                                .op = kind,
                                .region = 1,
                                .rows = rows,
                                .round = kind == PS_OP_PUSH_ROWS};
}

/* A key of 8 rows of `width`, and a region that says it has `size` bytes. */
static void begin_rows(struct bench *b, uint32_t width, size_t size)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN};

    memset(b, 0, sizeof(*b));
    b->width = width;
    begin_again(b, 1, 1);
    open_key(b, 0, 1, 8 * width, SERVER_NODE);
    tick(b);
    link_server(b, false, 0);
    b->region[0] = ps_buf_new(4096);
    memset(b->region[0]->data, 0, 4096);
    b->region[0]->size = size; /* What lies behind must not be read. */
    ev.region.region = 1;
    ev.region.buf = b->region[0];
    step(b, ev);
}

static void rows_beyond_the_key_are_refused_unread(void **state)
{
    static const uint32_t counts[] = {
        UINT32_MAX,     9,           1u << 10,   1u << 30,
        (1u << 30) + 1, 0x7fffffffu, 0xfffffffeu};
    static const enum ps_op kinds[] = {PS_OP_PUSH_ROWS, PS_OP_PULL_ROWS};

    (void)state;
    for (uint32_t width = 1; width <= 64; width *= 64) {
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            for (int k = 0; k < 2; k++) {
                struct bench b;

                /* As a sparse file: larger than what the numbers take. */
                begin_rows(&b, width, (size_t)1 << 46);
                operate(&b, 0, rows_op(kinds[k], counts[i]));
                assert_int_equal(last_done(&b, 0)->error, PS_E_INVAL);
                assert_non_null(strstr(last_done(&b, 0)->text, "has 8 rows"));
                assert_null(find(&b, SERVER_CONN, PS_MSG_PUSH_ROWS, 0));
                /* The same rank goes on. */
                operate(&b, 0, rows_op(PS_OP_PUSH_ROWS, 1));
                assert_int_equal(b.compute_count, 1);
                compute_all(&b);
                end(&b);
            }
        }
    }
}

static void no_key_is_larger_than_its_partitions_can_be(void **state)
{
    static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 4,
                                      (UINT64_C(1) << 62), UINT64_C(1) << 50};
    struct bench b;

    (void)state;
    begin(&b, 1, 1);
    for (uint32_t i = 0; i < 4; i++) {
        const struct sent *s;

        say(&b, WORKER_CONN,
            &(struct ps_msg){.code = PS_MSG_L_KEY,
                             .l_key = {.request = i,
                                       .name = "s:k",
                                       .dtype = PS_DTYPE_FLOAT32,
                                       .count = counts[i],
                                       .classic = -1}},
            NULL);
        s = find(&b, WORKER_CONN, PS_MSG_L_KEY_INFO, i);
        assert_non_null(s);
        assert_true(s->parcel->msg->l_key_info.error != 0);
        assert_int_equal(count(&b, SCHED_CONN, PS_MSG_KEY_OPEN), 0);
    }
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_beyond_the_key_are_refused_unread),
        cmocka_unit_test(no_key_is_larger_than_its_partitions_can_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
