/* SPDX-License-Identifier: Apache-2.0 */
/* I/O tasks over many sockets and few threads. Their use by connections is
 * tested in tests/conformance/conn_suite.c. */
#include "net/io_pool.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "net/loop.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define PAIRS   24
#define LEN_MAX (300u * 1024u)

struct one {
    struct ps_io_task move;
    struct iovec iov[2];
    uint8_t *bytes;
    size_t len;
    unsigned done;
};

/* Two sockets that face each other; each sends and receives. */
struct pair {
    struct ps_io_socket sockets[2];
    struct one in[2];
    struct one out[2];
};

struct world {
    struct ps_loop *loop;
    struct ps_io_pool *movers;
    struct pair pairs[PAIRS];
    unsigned last_part_ack;
};

static struct world w;

static void done(struct ps_io_task *m)
{
    struct one *o = PS_CONTAINER(m, struct one, move);

    o->done++;
    w.last_part_ack++;
}

static void begin_world(unsigned count)
{
    const struct ps_io_pool_options opt = {
        .loop = NULL, .threads = count, .threads_max = count};
    struct ps_io_pool_options mine = opt;

    memset(&w, 0, sizeof(w));
    assert_int_equal(ps_loop_new(&w.loop), 0);
    mine.loop = w.loop;
    assert_int_equal(ps_io_pool_new(&mine, &w.movers), 0);
    assert_int_equal(ps_io_pool_threads(w.movers), count);
    for (unsigned i = 0; i < PAIRS; i++) {
        int fd[2];

        assert_int_equal(
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
        for (unsigned j = 0; j < 2; j++) {
            w.pairs[i].sockets[j].fd = fd[j];
            w.pairs[i].in[j].bytes = calloc(1, LEN_MAX);
            w.pairs[i].out[j].bytes = calloc(1, LEN_MAX);
        }
    }
}

static void end_world(void)
{
    for (unsigned i = 0; i < PAIRS; i++) {
        for (unsigned j = 0; j < 2; j++) {
            close(w.pairs[i].sockets[j].fd);
            free(w.pairs[i].in[j].bytes);
            free(w.pairs[i].out[j].bytes);
        }
    }
    ps_io_pool_free(w.movers);
    ps_loop_free(w.loop);
    assert_int_equal(ps_alloc_live(), 0);
}

static void start(struct ps_io_socket *s, struct one *o, bool out, size_t len,
                  size_t first)
{
    o->len = len;
    o->iov[0] = (struct iovec){o->bytes, first};
    o->iov[1] = (struct iovec){o->bytes + first, len - first};
    o->move.iov = o->iov;
    o->move.count = 2;
    o->move.is_send = out;
    o->move.bytes_min = len;
    o->move.done = done;
    ps_io_task_submit(w.movers, s, &o->move);
}

static void run_until(unsigned count)
{
    while (w.last_part_ack < count) {
        assert_true(ps_loop_step(w.loop) || w.last_part_ack >= count);
    }
    assert_int_equal(w.last_part_ack, count);
}

static void expect_moved(const struct one *in, const struct one *out)
{
    assert_int_equal(in->move.error, 0);
    assert_int_equal(out->move.error, 0);
    assert_int_equal(in->move.bytes_done, in->len);
    assert_int_equal(out->move.bytes_done, out->len);
    assert_memory_equal(in->bytes, out->bytes, in->len);
}

static void transfers_deliver_all_bytes(void **state)
{
    struct ps_rng rng;
    unsigned moves = 0;

    (void)state;
    ps_rng_init(&rng, 1);
    begin_world(3);
    for (unsigned round = 1; round <= 5; round++) {
        for (unsigned i = 0; i < PAIRS; i++) {
            struct pair *p = &w.pairs[i];

            for (unsigned j = 0; j < 2; j++) {
                size_t len = 1 + ps_rng_below(&rng, LEN_MAX);

                memset(p->out[j].bytes, (int)(round * 16 + i + j), len);
                start(&p->sockets[j], &p->out[j], true, len,
                      ps_rng_below(&rng, len));
                start(&p->sockets[1 - j], &p->in[1 - j], false, len,
                      ps_rng_below(&rng, len));
                moves += 2;
            }
        }
        run_until(moves);
        for (unsigned i = 0; i < PAIRS; i++) {
            expect_moved(&w.pairs[i].in[0], &w.pairs[i].out[1]);
            expect_moved(&w.pairs[i].in[1], &w.pairs[i].out[0]);
            assert_int_equal(w.pairs[i].in[0].done, round);
        }
    }
    end_world();
}

/* Each ends once, complete or taken back, and its socket can be closed. */
static void transfers_are_cancelled(void **state)
{
    struct ps_rng rng;
    unsigned complete = 0;

    (void)state;
    ps_rng_init(&rng, 2);
    for (unsigned round = 0; round < 20; round++) {
        begin_world(2);
        for (unsigned i = 0; i < PAIRS; i++) {
            struct pair *p = &w.pairs[i];

            /* The last is never answered. */
            start(&p->sockets[0], &p->out[0], true, LEN_MAX, 1);
            start(&p->sockets[1], &p->in[1], false, LEN_MAX, LEN_MAX);
            start(&p->sockets[0], &p->in[0], false, LEN_MAX, 1);
        }
        if (round % 2 == 1) {
            (void)ps_loop_step(w.loop);
        }
        for (unsigned i = 0; i < PAIRS; i++) {
            struct pair *p = &w.pairs[i];

            if (p->in[0].done == 0) {
                ps_io_task_cancel(&p->in[0].move);
                ps_io_task_cancel(&p->in[0].move);
            }
            if (ps_rng_below(&rng, 2) == 0 && p->out[0].done == 0) {
                ps_io_task_cancel(&p->out[0].move);
            }
        }
        while (w.last_part_ack < 3 * PAIRS) {
            for (unsigned i = 0; i < PAIRS; i++) {
                struct pair *p = &w.pairs[i];

                if (p->out[0].done == 1 && p->out[0].move.error != 0 &&
                    p->in[1].done == 0) {
                    ps_io_task_cancel(&p->in[1].move);
                }
            }
            (void)ps_loop_step(w.loop);
        }
        for (unsigned i = 0; i < PAIRS; i++) {
            struct pair *p = &w.pairs[i];

            assert_int_equal(p->in[0].done, 1);
            assert_int_equal(p->in[0].move.error, ECANCELED);
            assert_int_equal(p->in[1].done, 1);
            assert_int_equal(p->out[0].done, 1);
            if (p->out[0].move.error == 0 && p->in[1].move.error == 0) {
                expect_moved(&p->in[1], &p->out[0]);
                complete++;
            }
        }
        end_world();
    }
    assert_in_range(complete, 1, 20 * PAIRS - 1);
}

static void end_and_error_of_a_transfer_are_reported(void **state)
{
    struct pair *p = &w.pairs[0];

    (void)state;
    begin_world(1);
    start(&p->sockets[0], &p->in[0], false, 1000, 1000);
    start(&p->sockets[0], &p->out[0], true, LEN_MAX, 1);
    assert_int_equal(write(p->sockets[1].fd, "abc", 3), 3);
    close(p->sockets[1].fd);
    run_until(2);
    assert_true(p->in[0].move.peer_ended || p->in[0].move.error == ECONNRESET);
    assert_int_equal(p->in[0].move.bytes_done, 3);
    assert_memory_equal(p->in[0].bytes, "abc", 3);
    assert_true(p->out[0].move.error == EPIPE ||
                p->out[0].move.error == ECONNRESET);
    p->sockets[1].fd = dup(p->sockets[0].fd);
    end_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_deliver_all_bytes),
        cmocka_unit_test(transfers_are_cancelled),
        cmocka_unit_test(end_and_error_of_a_transfer_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
