/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes of TLS over sockets, with their limits. */
#include "base/alloc.h"
#include "crypto/tls.h"
#include "net/loop.h"
#include "net/tls.h"
#include "support/certs.h"
#include "support/run_until.h"

#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/pskv-gate-XXXXXX";

struct side {
    struct ps_tls_handshake handshake;
    int rc;
    bool is_done;
    char why[PS_TLS_WHY_MAX];
};

struct world {
    struct ps_loop *loop;
    struct ps_tls_gate *gate;
    struct ps_tls_context *server;
    struct ps_tls_context *agent;
};

static void begin_world(struct world *w, struct ps_tls_gate_options opt)
{
    assert_int_equal(ps_loop_new(&w->loop), 0);
    opt.loop = w->loop;
    assert_int_equal(ps_tls_gate_new(&opt, &w->gate), 0);
    w->server = certs_load(dir, "server");
    w->agent = certs_load(dir, "agent");
}

static void end_world(struct world *w)
{
    ps_tls_gate_free(w->gate);
    ps_tls_context_unref(w->server);
    ps_tls_context_unref(w->agent);
    ps_loop_free(w->loop);
    assert_int_equal(ps_alloc_live(), 0);
}

static void on_done(struct ps_tls_handshake *h, int rc, const char *why)
{
    struct side *s = h->ctx;

    assert_false(s->is_done);
    s->is_done = true;
    s->rc = rc;
    snprintf(s->why, sizeof(s->why), "%s", why);
}

static void submit_from(struct world *w, struct side *s, int fd, bool dialled,
                        uint64_t source)
{
    memset(s, 0, sizeof(*s));
    s->handshake.fd = fd;
    s->handshake.dialled = dialled;
    s->handshake.source = source;
    s->handshake.done = on_done;
    s->handshake.ctx = s;
    ps_tls_gate_submit(w->gate, dialled ? w->agent : w->server, &s->handshake);
}

static void submit(struct world *w, struct side *s, int fd, bool dialled)
{
    submit_from(w, s, fd, dialled, 0);
}

static void make_pair(int fd[2])
{
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd),
        0);
}

static void end_side(struct side *s)
{
    ps_tls_session_free(s->handshake.session);
    close(s->handshake.fd);
}

static void handshakes_of_both_sides_complete(void **state)
{
    struct side sides[2][20];
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_tls_gate_options){.timeout = PS_SECONDS(60)});
    for (size_t i = 0; i < 20; i++) {
        int fd[2];

        make_pair(fd);
        submit(&w, &sides[0][i], fd[0], false);
        submit(&w, &sides[1][i], fd[1], true);
    }
    for (size_t i = 0; i < 20; i++) {
        RUN_UNTIL(&w, sides[0][i].is_done && sides[1][i].is_done);
        for (size_t j = 0; j < 2; j++) {
            assert_int_equal(sides[j][i].rc, 0);
            assert_string_equal(
                ps_tls_session_peer(sides[j][i].handshake.session)->name,
                j == 0 ? "a" : "s");
            end_side(&sides[j][i]);
        }
    }
    end_world(&w);
}

static void silent_peer_is_refused_in_time(void **state)
{
    struct side s;
    struct world w;
    int fd[2];

    (void)state;
    begin_world(&w, (struct ps_tls_gate_options){.timeout = PS_MILLIS(20)});
    make_pair(fd);
    submit(&w, &s, fd[0], false);
    RUN_UNTIL(&w, s.is_done);
    assert_int_equal(s.rc, PS_E_TIMEOUT);
    assert_string_equal(s.why, "no handshake of TLS in time");
    end_side(&s);
    close(fd[1]);
    end_world(&w);
}

static void oldest_handshake_makes_room(void **state)
{
    struct side s[4];
    struct world w;
    int fd[4][2];

    (void)state;
    begin_world(&w, (struct ps_tls_gate_options){.accepted_max = 2});
    for (size_t i = 0; i < 4; i++) {
        make_pair(fd[i]);
        submit(&w, &s[i], fd[i][0], false);
    }
    RUN_UNTIL(&w, s[0].is_done && s[1].is_done);
    assert_int_equal(s[0].rc, PS_E_FULL);
    assert_int_equal(s[1].rc, PS_E_FULL);
    assert_false(s[2].is_done || s[3].is_done);
    ps_tls_gate_cancel(w.gate, &s[2].handshake);
    ps_tls_gate_cancel(w.gate, &s[3].handshake);
    ps_tls_gate_cancel(w.gate, &s[3].handshake);
    RUN_UNTIL(&w, s[2].is_done && s[3].is_done);
    assert_int_equal(s[2].rc, PS_E_CANCELED);
    for (size_t i = 0; i < 4; i++) {
        end_side(&s[i]);
        close(fd[i][1]);
    }
    end_world(&w);
}

/* A source with a quarter of the places ends its own handshakes only. */
static void a_flood_of_one_source_ends_none_of_others(void **state)
{
    struct side s[12];
    struct world w;
    int fd[12][2];

    (void)state;
    begin_world(&w, (struct ps_tls_gate_options){.accepted_max = 4});
    for (size_t i = 0; i < 12; i++) {
        make_pair(fd[i]);
        submit_from(&w, &s[i], fd[i][0], false, i == 0 ? 1 : 2);
    }
    for (size_t i = 1; i < 9; i++) {
        RUN_UNTIL(&w, s[i].is_done);
        assert_int_equal(s[i].rc, PS_E_FULL);
    }
    assert_false(s[0].is_done);
    ps_tls_gate_cancel(w.gate, &s[0].handshake);
    for (size_t i = 9; i < 12; i++) {
        assert_false(s[i].is_done);
        ps_tls_gate_cancel(w.gate, &s[i].handshake);
    }
    RUN_UNTIL(&w,
              s[0].is_done && s[9].is_done && s[10].is_done && s[11].is_done);
    for (size_t i = 0; i < 12; i++) {
        end_side(&s[i]);
        close(fd[i][1]);
    }
    end_world(&w);
}

/* Halts the thread while it ends the handshake of `held_fd`. */
static _Atomic int held_fd = -1;
static sem_t is_held;
static sem_t may_go_on;

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *ev)
{
    if (op == EPOLL_CTL_DEL && fd == held_fd) {
        held_fd = -1;
        sem_post(&is_held);
        sem_wait(&may_go_on);
    }
    return (int)syscall(SYS_epoll_ctl, epoll, op, fd, ev);
}

/* The thread ends canceled handshakes while others begin and are canceled. */
static void handshake_may_be_canceled_before_it_has_begun(void **state)
{
    struct side s[2];
    struct world w;
    int fd[2][2];

    (void)state;
    sem_init(&is_held, 0, 0);
    sem_init(&may_go_on, 0, 0);
    begin_world(&w, (struct ps_tls_gate_options){.timeout = PS_SECONDS(60)});
    make_pair(fd[0]);
    make_pair(fd[1]);
    for (int round = 0; round < 3; round++) {
        held_fd = fd[0][0];
        submit(&w, &s[0], fd[0][0], false);
        ps_tls_gate_cancel(w.gate, &s[0].handshake);
        assert_int_equal(sem_wait(&is_held), 0);
        submit(&w, &s[1], fd[1][0], false);
        ps_tls_gate_cancel(w.gate, &s[1].handshake);
        sem_post(&may_go_on);
        RUN_UNTIL(&w, s[0].is_done && s[1].is_done);
        assert_int_equal(s[0].rc, PS_E_CANCELED);
        assert_int_equal(s[1].rc, PS_E_CANCELED);
    }
    /* Their number is right: another one has its place. */
    submit(&w, &s[0], fd[0][0], false);
    submit(&w, &s[1], fd[0][1], true);
    RUN_UNTIL(&w, s[0].is_done && s[1].is_done);
    assert_string_equal(s[0].why, "");
    assert_int_equal(s[0].rc, 0);
    assert_int_equal(s[1].rc, 0);
    end_side(&s[0]);
    end_side(&s[1]);
    close(fd[1][0]);
    close(fd[1][1]);
    end_world(&w);
}

static void probe_is_no_failure_of_a_handshake(void **state)
{
    static const char bytes[] = "PS\1\1 a peer without TLS";
    struct side s;
    struct world w;
    int fd[2];

    (void)state;
    begin_world(&w, (struct ps_tls_gate_options){0});
    make_pair(fd);
    close(fd[1]);
    submit(&w, &s, fd[0], false);
    RUN_UNTIL(&w, s.is_done);
    assert_int_equal(s.rc, PS_E_CLOSED);
    end_side(&s);
    make_pair(fd);
    submit(&w, &s, fd[0], false);
    assert_int_equal(write(fd[1], bytes, sizeof(bytes)), sizeof(bytes));
    RUN_UNTIL(&w, s.is_done);
    assert_int_equal(s.rc, PS_E_VERSION);
    assert_string_equal(s.why, "it does not use TLS");
    end_side(&s);
    close(fd[1]);
    /* A listener without TLS, or a daemon that ends. */
    make_pair(fd);
    close(fd[1]);
    submit(&w, &s, fd[0], true);
    RUN_UNTIL(&w, s.is_done);
    assert_int_equal(s.rc, PS_E_REFUSED);
    end_side(&s);
    end_world(&w);
}

static int make_certificates(void **state)
{
    struct certs_authority *a;

    (void)state;
    assert_non_null(mkdtemp(dir));
    a = certs_new("test authority");
    certs_write(a, dir);
    certs_issue(a, &(struct certs_wish){.uri = "ps://c/server/s"}, dir,
                "server");
    certs_issue(a, &(struct certs_wish){.uri = "ps://c/agent/a"}, dir, "agent");
    certs_free(a);
    return 0;
}

static int remove_certificates(void **state)
{
    static const char *const files[] = {"ca", "server", "agent"};
    char path[64];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s.crt", dir, files[i]);
        (void)remove(path);
        snprintf(path, sizeof(path), "%s/%s.key", dir, files[i]);
        (void)remove(path);
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handshakes_of_both_sides_complete),
        cmocka_unit_test(silent_peer_is_refused_in_time),
        cmocka_unit_test(oldest_handshake_makes_room),
        cmocka_unit_test(a_flood_of_one_source_ends_none_of_others),
        cmocka_unit_test(handshake_may_be_canceled_before_it_has_begun),
        cmocka_unit_test(probe_is_no_failure_of_a_handshake),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* As the daemons. */
    return cmocka_run_group_tests(tests, make_certificates,
                                  remove_certificates);
}
