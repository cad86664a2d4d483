/* SPDX-License-Identifier: Apache-2.0 */
/* Active senders and their shares of the window. Time is an argument; the
 * sockets are real, because they report the buffer that was set. */
#include "net/tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SENDERS 3u
/* In a millisecond, each: 24 MB/s together. */
#define BYTES   8000u

struct world {
    struct ps_rcvbuf_tuner f;
    ps_time now;
    struct ps_rcvbuf_share share[SENDERS + 1];
    int fd[SENDERS + 1];
    int peer[SENDERS + 1];
};

static void connect_pair(int *ret_fd, int *ret_peer)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int segment = 1448; /* As of a link; a loopback has longer ones. */
    char byte = 0;

    assert_true(listener >= 0);
    assert_int_equal(setsockopt(listener, IPPROTO_TCP, TCP_MAXSEG, &segment,
                                sizeof(segment)),
                     0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    *ret_peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(*ret_peer >= 0);
    assert_int_equal(connect(*ret_peer, (struct sockaddr *)&a, sizeof(a)), 0);
    *ret_fd = accept(listener, NULL, NULL);
    assert_true(*ret_fd >= 0);
    close(listener);
    /* Both ends have measured a round trip. */
    assert_int_equal(send(*ret_fd, &byte, 1, 0), 1);
    assert_int_equal(recv(*ret_peer, &byte, 1, 0), 1);
}

static void begin_world(struct world *w)
{
    *w = (struct world){.now = PS_SECONDS(1)};
    for (unsigned i = 0; i <= SENDERS; i++) {
        connect_pair(&w->fd[i], &w->peer[i]);
    }
}

static void end(struct world *w)
{
    for (unsigned i = 0; i <= SENDERS; i++) {
        close(w->fd[i]);
        close(w->peer[i]);
    }
}

/* All senders send as much in each millisecond; the last one says `words`
 * bytes. */
static void come(struct world *w, unsigned millis, uint64_t words)
{
    for (unsigned i = 0; i < millis; i++) {
        w->now += PS_MILLIS(1);
        for (unsigned k = 0; k < SENDERS; k++) {
            ps_rcvbuf_tuner_add(&w->f, &w->share[k], w->fd[k], w->now, BYTES);
        }
        if (words > 0) {
            ps_rcvbuf_tuner_add(&w->f, &w->share[SENDERS], w->fd[SENDERS],
                                w->now, words);
        }
    }
}

static void senders_share_the_rate_of_the_link(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w);
    come(&w, 300, 0);
    assert_int_equal(w.f.active_estimate, SENDERS);
    for (unsigned k = 0; k < SENDERS; k++) {
        /* The rate in 8 ms; set again only if it is much more or less. */
        assert_in_range(w.share[k].buffer, 40 * 1024, 96 * 1024);
    }
    end(&w);
}

static void small_frames_make_no_sender(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w);
    come(&w, 300, 200);
    assert_int_equal(w.f.active_estimate, SENDERS);
    assert_int_equal(w.share[SENDERS].buffer, 0);
    end(&w);
}

static void a_sender_that_stopped_is_forgotten(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w);
    come(&w, 300, BYTES);
    assert_int_equal(w.f.active_estimate, SENDERS + 1);
    come(&w, 300, 0);
    assert_int_equal(w.f.active_estimate, SENDERS);
    end(&w);
}

/* A job that pauses: only heartbeats for a long time, then data of all senders
 * at once. */
static void sender_is_kept_during_a_pause(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w);
    come(&w, 300, 0);
    for (unsigned i = 0; i < 20000; i++) {
        w.now += PS_MILLIS(1);
        ps_rcvbuf_tuner_add(&w.f, &w.share[SENDERS], w.fd[SENDERS], w.now, 200);
    }
    assert_int_equal(w.f.active_estimate, 1);
    come(&w, 300, 0);
    assert_int_equal(w.f.active_estimate, SENDERS);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(senders_share_the_rate_of_the_link),
        cmocka_unit_test(small_frames_make_no_sender),
        cmocka_unit_test(a_sender_that_stopped_is_forgotten),
        cmocka_unit_test(sender_is_kept_during_a_pause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
