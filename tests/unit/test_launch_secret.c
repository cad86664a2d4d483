/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the connection from a supervisor to pslaunch have to
 * know the key of the host: no certificate stands in for it. */
#include "pslaunch/link.h"
#include "support/certs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLACES = 2 };

/* A supervisor that connects to a listener, in a thread of its own. */
struct supervisor {
    uint16_t port;
    uint32_t place;
    const uint8_t *key;
    atomic_bool has_ended;
    bool is_open;
    char why[256];
};

/* A connection to the listener from an address of this host. */
static int connect_from(const char *address, uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET, address, &from.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void *connect_supervisor(void *arg)
{
    struct supervisor *s = arg;
    int fd = connect_from("127.0.0.1", s->port);
    struct ps_str why;
    SSL *tls;

    ps_str_init(&why, s->why, sizeof(s->why));
    tls = secret_connect(fd, s->place, s->key, &why);
    s->is_open = tls != NULL;
    SSL_free(tls);
    close(fd);
    atomic_store(&s->has_ended, true);
    return NULL;
}

static void connected(void *ctx, uint32_t place, int fd, SSL *tls)
{
    uint32_t *ret_place = ctx;

    *ret_place = place;
    SSL_free(tls);
    close(fd);
}

/* The host whose supervisor the listener takes this one for; PLACES: none. */
static uint32_t joins(struct listener *l, uint32_t *joined, uint32_t place,
                      const uint8_t *key)
{
    struct supervisor s = {
        .port = listener_port(l), .place = place, .key = key};
    struct pollfd p = {.fd = listener_fd(l), .events = POLLIN};
    pthread_t thread;

    *joined = PLACES;
    assert_int_equal(pthread_create(&thread, NULL, connect_supervisor, &s), 0);
    while (!atomic_load(&s.has_ended) || poll(&p, 1, 0) > 0) {
        if (poll(&p, 1, 10) > 0) {
            listener_serve(l);
        }
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(s.is_open, *joined != PLACES);
    assert_int_equal(s.is_open,
                     strstr(s.why, "do not agree on their key") == NULL);
    return *joined;
}

static void hosts_connect_with_their_keys_alone(void **state)
{
    static const uint8_t wrong[PS_LAUNCH_SECRET_BYTES] = {3};
    uint32_t joined;
    struct listener *l = listener_open("127.0.0.1", PLACES, connected, &joined);

    (void)state;
    assert_non_null(l);
    for (uint32_t i = 0; i < PLACES; i++) {
        assert_int_equal(joins(l, &joined, i, listener_secret(l, i)), i);
    }
    assert_int_equal(joins(l, &joined, 0, listener_secret(l, 1)), PLACES);
    assert_int_equal(joins(l, &joined, 1, wrong), PLACES);
    assert_int_equal(joins(l, &joined, PLACES, listener_secret(l, 0)), PLACES);
    assert_null(listener_secret(l, PLACES));
    listener_close(l);
}

/* A server with a certificate in place of the key. */
struct server {
    SSL_CTX *context;
    int fd;
    bool is_open;
};

static void *serve(void *arg)
{
    struct server *s = arg;
    SSL *tls = SSL_new(s->context);
    char byte;

    /* A client that refuses this side says so behind its handshake. */
    s->is_open = tls != NULL && SSL_set_fd(tls, s->fd) == 1 &&
                 SSL_accept(tls) == 1 && SSL_read(tls, &byte, 1) == 1;
    shutdown(s->fd, SHUT_RDWR);
    SSL_free(tls);
    return NULL;
}

static void a_server_with_a_certificate_is_refused(void **state)
{
    static const uint8_t key[PS_LAUNCH_SECRET_BYTES] = {1};
    char dir[] = "/tmp/pskv-secret-XXXXXX";
    char path[64];
    char text[256];
    struct ps_str why;
    struct certs_authority *a = certs_new("any");
    struct server s = {.context = SSL_CTX_new(TLS_server_method())};
    pthread_t thread;
    int fds[2];

    (void)state;
    assert_non_null(mkdtemp(dir));
    certs_issue(a, &(struct certs_wish){.serial = 1}, dir, "any");
    (void)snprintf(path, sizeof(path), "%s/any.crt", dir);
    assert_int_equal(
        SSL_CTX_use_certificate_file(s.context, path, SSL_FILETYPE_PEM), 1);
    unlink(path);
    (void)snprintf(path, sizeof(path), "%s/any.key", dir);
    assert_int_equal(
        SSL_CTX_use_PrivateKey_file(s.context, path, SSL_FILETYPE_PEM), 1);
    unlink(path);
    rmdir(dir);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    s.fd = fds[0];
    assert_int_equal(pthread_create(&thread, NULL, serve, &s), 0);
    ps_str_init(&why, text, sizeof(text));
    assert_null(secret_connect(fds[1], 0, key, &why));
    assert_non_null(strstr(text, "do not agree on their key"));
    shutdown(fds[1], SHUT_RDWR);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(s.is_open);
    close(fds[0]);
    close(fds[1]);
    SSL_CTX_free(s.context);
    certs_free(a);
}

static void never_connected(void *ctx, uint32_t place, int fd, SSL *tls)
{
    (void)ctx;
    (void)place;
    (void)fd;
    (void)tls;
    fail();
}

static void serve_all(struct listener *l)
{
    struct pollfd p = {.fd = listener_fd(l), .events = POLLIN};

    while (poll(&p, 1, 0) > 0) {
        listener_serve(l);
    }
}

static bool is_closed(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

/* Of 300 connections of one address, the listener keeps those that have places;
 * two of another address, which came first, stay. */
static void a_flood_of_one_address_closes_only_its_own(void **state)
{
    struct listener *l = listener_open("127.0.0.1", 1, never_connected, NULL);
    int others[2];
    int flood[300];
    int kept = 0;

    (void)state;
    assert_non_null(l);
    for (int i = 0; i < 2; i++) {
        others[i] = connect_from("127.0.0.2", listener_port(l));
        serve_all(l);
    }
    for (int i = 0; i < 300; i++) {
        flood[i] = connect_from("127.0.0.3", listener_port(l));
        serve_all(l);
    }
    for (int i = 0; i < 300; i++) {
        kept += !is_closed(flood[i]);
        close(flood[i]);
    }
    assert_int_equal(kept, 62);
    for (int i = 0; i < 2; i++) {
        assert_false(is_closed(others[i]));
        close(others[i]);
    }
    listener_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_connect_with_their_keys_alone),
        cmocka_unit_test(a_server_with_a_certificate_is_refused),
        cmocka_unit_test(a_flood_of_one_address_closes_only_its_own),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
