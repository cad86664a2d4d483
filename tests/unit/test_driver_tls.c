/* SPDX-License-Identifier: Apache-2.0 */
/* Two drivers with TLS between them: an agent dials a server, both with small
 * machines that record what they see. */
#include "driver/driver.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "crypto/tls.h"
#include "net/io_pool.h"
#include "net/loop.h"
#include "net/socket.h"
#include "net/tls.h"
#include "proto/msg_codec.h"
#include "support/certs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define STORY_MAX 4096
#define LARGE     (3u * 1024 * 1024)

static char dir[] = "/tmp/pskv-driver-XXXXXX";
static char lines[STORY_MAX]; /* Warnings of both drivers. */

/* One driver with its loop. */
struct side {
    struct ps_loop *loop;
    struct ps_io_pool *io_pool;
    struct ps_tls_gate *gate;
    struct ps_driver *driver;
    struct ps_listener *listener;
    struct ps_loop_timer turn;
    char address[PS_ADDRESS_MAX + 1]; /* Dialled at the next tick; "": none. */
    char story[STORY_MAX];
    uint8_t *payload;
    size_t pushed;
    bool is_closed;
};

struct world {
    struct side server;
    struct side agent;
};

static void note(struct side *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct side *s, const char *fmt, ...)
{
    size_t len = strlen(s->story);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s->story + len, sizeof(s->story) - len, fmt, ap);
    va_end(ap);
}

static void log_line(void *ctx, enum ps_log_level level, uint64_t kind,
                     const char *text)
{
    size_t len = strlen(lines);

    (void)ctx;
    (void)kind;
    if (level <= PS_LOG_WARNING) {
        snprintf(lines + len, sizeof(lines) - len, "%s\n", text);
    }
}

/* ------------------------------------------------------------------ machine */

static void send_push(ps_conn_id conn, struct ps_effects *fx)
{
    static const struct ps_rec_part part = {.dtype = PS_DTYPE_INT32,
                                            .count = LARGE / 4};
    const struct ps_msg push = {
        .code = PS_MSG_PUSH,
        .push = {.gen = 1, .parts = &part, .parts_count = 1}};
    struct ps_slice slice = {.buf = ps_buf_new(LARGE), .len = LARGE};
    uint8_t *bytes = slice.buf->data;

    for (size_t i = 0; i < LARGE; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 255);
    }
    ps_effects_send(fx, conn, 1, 0, ps_packet_new(&push, &slice, 1));
    ps_buf_unref(slice.buf);
}

static void on_open(struct side *s, const struct ps_event *ev,
                    struct ps_effects *fx)
{
    const struct ps_peer_identity *id = ev->open.identity;
    const struct ps_msg hello = {.code = PS_MSG_HELLO,
                                 .hello = {.protocol = PS_PROTOCOL,
                                           .protocol_least = PS_PROTOCOL_LEAST,
                                           .role = PS_ROLE_AGENT,
                                           .name = "a",
                                           .cluster = "c",
                                           .instance = 1,
                                           .session = 4}};

    note(s, "open %s %s\n",
         ev->open.kind == PS_CONN_DIALLED ? "dialled" : "accepted",
         id != NULL ? id->name : "plain");
    if (ev->open.kind == PS_CONN_DIALLED) {
        ps_effects_send_msg(fx, ev->conn, &hello);
    }
}

static void on_msg(struct side *s, const struct ps_event *ev,
                   struct ps_effects *fx)
{
    const struct ps_msg welcome = {.code = PS_MSG_WELCOME,
                                   .welcome = {.protocol = 1, .name = "s"}};

    switch (ev->msg.msg->code) {
    case PS_MSG_HELLO:
        note(s, "hello\n");
        ps_effects_send_msg(fx, ev->conn, &welcome);
        break;
    case PS_MSG_WELCOME:
        note(s, "welcome\n");
        send_push(ev->conn, fx);
        break;
    case PS_MSG_REJECT:
        note(s, "rejected %s\n", ev->msg.msg->reject.text);
        break;
    case PS_MSG_PUSH:
        s->pushed = ev->msg.payload->len;
        s->payload = malloc(s->pushed);
        memcpy(s->payload, ps_slice_data(ev->msg.payload), s->pushed);
        break;
    default:
        break;
    }
}

static int step_side(void *self, const struct ps_event *ev,
                     struct ps_effects *fx)
{
    struct side *s = self;

    switch (ev->type) {
    case PS_EV_TICK:
        ps_effects_dial(fx, 3, s->address, 0);
        s->address[0] = '\0';
        break;
    case PS_EV_OPEN:
        on_open(s, ev, fx);
        break;
    case PS_EV_DIAL_FAILED:
        note(s, "dial failed %s %s\n", ps_err_name(ev->dial_failed.rc),
             ev->dial_failed.why);
        break;
    case PS_EV_MSG:
        on_msg(s, ev, fx);
        break;
    case PS_EV_CERTIFICATE:
        note(s, "certificate ends %llu%s\n",
             (unsigned long long)ev->certificate.at,
             ev->certificate.is_expiring ? " soon" : "");
        break;
    case PS_EV_CLOSED:
        note(s, "closed %s\n", ps_err_name(ev->closed.rc));
        break;
    default:
        break;
    }
    return 0;
}

static ps_time deadline(const void *self)
{
    return ((const struct side *)self)->address[0] != '\0' ? 0 : PS_TIME_NEVER;
}

static int payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                   uint64_t len, struct ps_slice *ret_slice)
{
    (void)self;
    (void)conn;
    (void)msg;
    *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    return 0;
}

static const struct ps_machine_ops machine = {
    .step = step_side, .deadline = deadline, .payload = payload};

/* -------------------------------------------------------------------- world */

static void on_failed(void *ctx, int rc)
{
    (void)ctx;
    (void)rc;
    fail();
}

static void on_closed(void *ctx)
{
    ((struct side *)ctx)->is_closed = true;
}

static void turn_ended(struct ps_loop_timer *t)
{
    (void)t;
}

/* One turn of a loop, which waits for a millisecond at most. */
static void side_turn(struct side *s)
{
    s->turn.due = turn_ended;
    ps_loop_timer_set(s->loop, &s->turn, ps_loop_now(s->loop) + PS_MILLIS(1));
    ps_loop_step(s->loop);
}

#define RUN(w, condition)                                                      \
    do {                                                                       \
        while (!(condition)) {                                                 \
            side_turn(&(w)->server);                                           \
            side_turn(&(w)->agent);                                            \
        }                                                                      \
    } while (0)

struct wish {
    const char *server; /* Files of its certificate; NULL: no TLS. */
    const char *agent;
    bool io_threads;
};

static void begin_side(struct side *s, enum ps_role self, const char *file,
                       const struct wish *wish)
{
    struct ps_tls_context *context = NULL;
    struct ps_driver_options opt = {.machine = {.ops = &machine, .self = s},
                                    .self = self,
                                    .scheduler = "127.0.0.1:1",
                                    .limits = {.linger_timeout = PS_MILLIS(10)},
                                    .link_connections = 1,
                                    .on_failed = on_failed,
                                    .ctx = s};

    memset(s, 0, sizeof(*s));
    assert_int_equal(ps_loop_new(&s->loop), 0);
    opt.loop = s->loop;
    if (wish->io_threads) {
        assert_int_equal(
            ps_io_pool_new(&(struct ps_io_pool_options){.loop = s->loop,
                                                        .threads = 1,
                                                        .threads_max = 1},
                           &s->io_pool),
            0);
        opt.io_pool = s->io_pool;
    }
    if (file != NULL) {
        assert_int_equal(
            ps_tls_gate_new(&(struct ps_tls_gate_options){.loop = s->loop},
                            &s->gate),
            0);
        context = certs_load(dir, file);
        opt.tls = (struct ps_driver_tls){.gate = s->gate, .context = context};
    }
    s->driver = ps_driver_new(&opt);
    ps_tls_context_unref(context);
}

static void accepted(void *ctx, int fd)
{
    ps_driver_accept(((struct side *)ctx)->driver, fd);
}

static char server_address[64];

static void dial_server(struct world *w)
{
    snprintf(w->agent.address, sizeof(w->agent.address), "%s", server_address);
}

static void begin_world(struct world *w, const struct wish *wish)
{
    uint16_t port;
    int fd;

    lines[0] = '\0';
    ps_log_set(log_line, NULL, PS_LOG_WARNING);
    begin_side(&w->server, PS_ROLE_SERVER, wish->server, wish);
    begin_side(&w->agent, PS_ROLE_AGENT, wish->agent, wish);
    assert_int_equal(ps_listen_tcp("127.0.0.1", 0, 8, &fd, &port), 0);
    snprintf(server_address, sizeof(server_address), "127.0.0.1:%u",
             (unsigned)port);
    assert_int_equal(ps_listener_open(w->server.loop, fd, accepted, &w->server,
                                      &w->server.listener),
                     0);
    dial_server(w);
}

static void end_side(struct side *s)
{
    ps_listener_close(s->listener);
    ps_driver_close(s->driver, on_closed);
    while (!s->is_closed) {
        side_turn(s);
    }
    ps_driver_free(s->driver);
    ps_tls_gate_free(s->gate);
    ps_io_pool_free(s->io_pool);
    ps_loop_free(s->loop);
    free(s->payload);
}

static void end(struct world *w)
{
    end_side(&w->agent);
    end_side(&w->server);
    ps_log_set(NULL, NULL, PS_LOG_WARNING);
    assert_int_equal(ps_alloc_live(), 0);
}

static bool told(const struct side *s, const char *text)
{
    return strstr(s->story, text) != NULL;
}

/* -------------------------------------------------------------------- tests */

static void push_arrives(const struct wish *wish, const char *peer)
{
    char expected[64];
    struct world w;

    begin_world(&w, wish);
    RUN(&w, w.server.pushed > 0);
    assert_int_equal(w.server.pushed, LARGE);
    for (size_t i = 0; i < LARGE; i++) {
        if (w.server.payload[i] != (uint8_t)(i * 7 + i / 255)) {
            fail_msg("byte %zu differs", i);
        }
    }
    snprintf(expected, sizeof(expected), "open accepted %s\n", peer);
    assert_true(told(&w.server, expected));
    assert_string_equal(lines, "");
    end(&w);
}

static void frames_arrive_over_tls_with_the_name_of_the_peer(void **state)
{
    (void)state;
    push_arrives(&(struct wish){.server = "server", .agent = "agent"}, "a");
}

static void io_threads_move_payloads_over_tls(void **state)
{
    (void)state;
    push_arrives(&(struct wish){.server = "server",
                                .agent = "agent",
                                .io_threads = true},
                 "a");
}

static int connect_server(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    sa.sin_port = htons((uint16_t)atoi(strchr(server_address, ':') + 1));
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

/* The hello arrives with the end of the handshake, in one read. */
static void input_that_came_with_the_handshake_is_read(void **state)
{
    const struct ps_msg hello = {.code = PS_MSG_HELLO,
                                 .hello = {.protocol = PS_PROTOCOL,
                                           .protocol_least = PS_PROTOCOL_LEAST,
                                           .role = PS_ROLE_AGENT,
                                           .name = "a",
                                           .cluster = "c",
                                           .instance = 1}};
    uint8_t frame[1024];
    struct ps_tls_context *context;
    struct ps_tls_session *s;
    char text[256];
    struct ps_str why;
    struct world w;
    int rc;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server", .agent = "agent"});
    w.agent.address[0] = '\0';
    context = certs_load(dir, "agent");
    ps_str_init(&why, text, sizeof(text));
    int fd = connect_server();

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    s = ps_tls_session_new(context, fd, true);

    while ((rc = ps_tls_session_handshake(s, &why)) == PS_E_AGAIN) {
        side_turn(&w.server);
    }
    assert_int_equal(rc, 0);

    struct iovec iov = {.iov_base = frame};

    assert_int_equal(ps_msg_encode(&hello, PS_PROTOCOL, 0, frame, sizeof(frame),
                                   &iov.iov_len),
                     0);
    assert_int_equal(ps_tls_session_write(s, &iov, 1), iov.iov_len);
    RUN(&w, told(&w.server, "hello"));
    ps_tls_session_free(s);
    ps_tls_context_unref(context);
    close(fd);
    end(&w);
}

static void accepting_side_refuses_a_peer_by_its_certificate(void **state)
{
    static const struct {
        const char *file;
        const char *why;
    } cases[] = {
        {"ctl", "its certificate is of role ctl, not server or agent "
                "(ps://c/ctl/o)"},
        {"foreign", "its certificate is of cluster 'd', not 'c' "
                    "(ps://d/agent/a)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char expected[256];
        struct world w;

        /* An agent of another cluster refuses the server first. */
        begin_world(&w,
                    &(struct wish){.server = "server", .agent = cases[i].file});
        RUN(&w,
            strstr(lines, "refused") != NULL || told(&w.agent, "dial failed"));
        if (strcmp(cases[i].file, "foreign") == 0) {
            RUN(&w, told(&w.agent, "dial failed"));
            assert_true(told(&w.agent,
                             "dial failed PS_E_PERM its certificate is of "
                             "cluster 'c', not 'd' (ps://c/server/s)"));
            end(&w);
            continue;
        }
        RUN(&w, told(&w.agent, "rejected"));
        snprintf(expected, sizeof(expected), "rejected %s\n", cases[i].why);
        assert_true(told(&w.agent, expected));
        snprintf(expected, sizeof(expected), "reason=\"%s\"", cases[i].why);
        assert_non_null(strstr(lines, expected));
        assert_non_null(strstr(lines, "connection refused peer=127.0.0.1:"));
        assert_string_equal(w.server.story, "");
        end(&w);
    }
}

static void dialling_side_refuses_a_peer_that_is_no_server(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, &(struct wish){.server = "agent", .agent = "agent"});
    RUN(&w, told(&w.agent, "dial failed"));
    assert_string_equal(w.agent.story,
                        "dial failed PS_E_PERM its certificate is of role "
                        "agent, not server (ps://c/agent/a)\n");
    end(&w);
}

static void sides_without_tls_are_refused(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server"});
    RUN(&w, strstr(lines, "refused") != NULL && told(&w.agent, "rejected"));
    assert_non_null(strstr(lines, "reason=\"it does not use TLS\""));
    assert_true(told(&w.agent, "rejected connections here are encrypted"));
    assert_string_equal(w.server.story, "");
    end(&w);

    begin_world(&w, &(struct wish){.agent = "agent"});
    RUN(&w, told(&w.agent, "dial failed"));
    assert_true(told(&w.agent, "dial failed PS_E_REFUSED") ||
                told(&w.agent, "dial failed PS_E_VERSION"));
    end(&w);
}

static void revoke_agent(struct side *s)
{
    const uint64_t serial = 7;
    struct certs_authority *a = certs_read(dir);
    char paths[4][64];
    char text[512];
    struct ps_tls_context *context;
    struct ps_str why;

    certs_revoke(a, &serial, 1, dir);
    certs_free(a);
    ps_str_init(&why, text, sizeof(text));
    snprintf(paths[0], sizeof(paths[0]), "%s/ca.crt", dir);
    snprintf(paths[1], sizeof(paths[1]), "%s/server.crt", dir);
    snprintf(paths[2], sizeof(paths[2]), "%s/server.key", dir);
    snprintf(paths[3], sizeof(paths[3]), "%s/crl.pem", dir);
    assert_int_equal(
        ps_tls_context_new(&(struct ps_tls_source){.ca = paths[0],
                                                   .certificate = paths[1],
                                                   .key = paths[2],
                                                   .crl = paths[3]},
                           &context, &why),
        0);
    ps_driver_set_tls(s->driver, context);
    ps_tls_context_unref(context);
}

static void connection_of_a_revoked_peer_is_cut(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server", .agent = "agent"});
    RUN(&w, w.server.pushed > 0);
    revoke_agent(&w.server);
    RUN(&w, told(&w.server, "closed") && told(&w.agent, "closed"));
    assert_true(told(&w.server, "closed PS_E_PERM"));
    assert_non_null(strstr(
        lines, "reason=\"its certificate is revoked (ps://c/agent/a)\""));
    assert_true(told(&w.agent, "rejected its certificate is revoked"));

    /* It does not come back. */
    lines[0] = '\0';
    dial_server(&w);
    RUN(&w, strstr(lines, "connection refused") != NULL);
    assert_non_null(strstr(
        lines, "reason=\"its certificate is revoked (ps://c/agent/a)\""));
    end(&w);
}

/* A reload during the handshake counts, too. */
static void
handshake_that_began_with_an_older_list_is_checked_again(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server", .agent = "agent"});
    /* The first bytes of the agent are on their way. */
    while (w.agent.address[0] != '\0') {
        side_turn(&w.agent);
    }
    for (int i = 0; i < 3; i++) {
        side_turn(&w.agent);
    }
    side_turn(&w.server);
    revoke_agent(&w.server);
    RUN(&w, strstr(lines, "its certificate is revoked") != NULL);
    end(&w);
}

static void context_that_accepts_the_peer_cuts_nothing(void **state)
{
    struct ps_tls_context *context;
    struct world w;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server", .agent = "agent"});
    RUN(&w, told(&w.agent, "welcome"));
    context = certs_load(dir, "server");
    ps_driver_set_tls(w.server.driver, context);
    ps_tls_context_unref(context);
    RUN(&w, w.server.pushed > 0);
    assert_false(told(&w.server, "closed"));
    assert_string_equal(lines, "");
    end(&w);
}

/* Within seconds, and it does not come back. */
static void connection_ends_with_the_certificate_of_its_peer(void **state)
{
    struct certs_authority *a = certs_read(dir);
    struct world w;

    (void)state;
    certs_issue(
        a,
        &(struct certs_wish){.uri = "ps://c/agent/a", .serial = 10, .ends = 3},
        dir, "brief");
    certs_free(a);
    begin_world(&w, &(struct wish){.server = "server", .agent = "brief"});
    RUN(&w, w.server.pushed > 0);
    assert_false(told(&w.server, "closed"));
    RUN(&w, told(&w.server, "closed") && told(&w.agent, "closed"));
    assert_true(told(&w.server, "closed PS_E_PERM"));
    assert_true(told(&w.agent, "rejected its certificate has expired"));
    assert_non_null(strstr(
        lines, "reason=\"its certificate has expired (ps://c/agent/a)\""));
    lines[0] = '\0';
    dial_server(&w);
    RUN(&w, strstr(lines, "connection refused") != NULL);
    assert_non_null(
        strstr(lines, "reason=\"its certificate has expired: it ended 20"));
    assert_non_null(strstr(lines, "; is the clock right? (ps://c/agent/a)\""));
    end(&w);
}

static void machine_learns_the_end_of_the_certificate(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server", .agent = "agent"});
    ps_driver_report_certificate(
        w.server.driver,
        &(struct ps_certificate_end){.at = 1800000000, .is_expiring = true});
    assert_string_equal(w.server.story, "certificate ends 1800000000 soon\n");
    end(&w);
}

/* The peer is silent: both ends wait for the handshake when they are closed. */
static void close_ends_handshakes(void **state)
{
    struct world w;
    uint16_t port;
    int silent;
    int listening;

    (void)state;
    begin_world(&w, &(struct wish){.server = "server", .agent = "agent"});
    assert_int_equal(ps_listen_tcp("127.0.0.1", 0, 8, &listening, &port), 0);
    snprintf(w.agent.address, sizeof(w.agent.address), "127.0.0.1:%u",
             (unsigned)port);
    silent = connect_server();
    for (int i = 0; i < 5; i++) {
        side_turn(&w.server);
        side_turn(&w.agent);
    }
    end(&w);
    close(silent);
    close(listening);
}

static int make_certificates(void **state)
{
    static const struct {
        const char *uri;
        const char *file;
        uint64_t serial;
    } rows[] = {{"ps://c/server/s", "server", 6},
                {"ps://c/agent/a", "agent", 7},
                {"ps://c/ctl/o", "ctl", 8},
                {"ps://d/agent/a", "foreign", 9}};
    struct certs_authority *a;

    (void)state;
    assert_non_null(mkdtemp(dir));
    a = certs_new("test authority");
    certs_write(a, dir);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        certs_issue(
            a,
            &(struct certs_wish){.uri = rows[i].uri, .serial = rows[i].serial},
            dir, rows[i].file);
    }
    certs_free(a);
    return 0;
}

static int remove_certificates(void **state)
{
    static const char *const files[] = {"ca",  "server",  "agent",
                                        "ctl", "foreign", "brief"};
    char path[64];

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s.crt", dir, files[i]);
        (void)remove(path);
        snprintf(path, sizeof(path), "%s/%s.key", dir, files[i]);
        (void)remove(path);
    }
    snprintf(path, sizeof(path), "%s/crl.pem", dir);
    (void)remove(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_arrive_over_tls_with_the_name_of_the_peer),
        cmocka_unit_test(io_threads_move_payloads_over_tls),
        cmocka_unit_test(input_that_came_with_the_handshake_is_read),
        cmocka_unit_test(accepting_side_refuses_a_peer_by_its_certificate),
        cmocka_unit_test(dialling_side_refuses_a_peer_that_is_no_server),
        cmocka_unit_test(sides_without_tls_are_refused),
        cmocka_unit_test(connection_of_a_revoked_peer_is_cut),
        cmocka_unit_test(
            handshake_that_began_with_an_older_list_is_checked_again),
        cmocka_unit_test(context_that_accepts_the_peer_cuts_nothing),
        cmocka_unit_test(connection_ends_with_the_certificate_of_its_peer),
        cmocka_unit_test(machine_learns_the_end_of_the_certificate),
        cmocka_unit_test(close_ends_handshakes),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* As the daemons. */
    return cmocka_run_group_tests(tests, make_certificates,
                                  remove_certificates);
}
