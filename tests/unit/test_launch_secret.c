/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the connection from an agent's supervisor to pslaunch have to
 * know the key of the host: no certificate stands in for it. */
#include "pslaunch/secret.h"
#include "support/certs.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLACES = 2 };

static uint8_t secrets[PLACES][PS_LAUNCH_SECRET_BYTES] = {{1}, {2}};

static const uint8_t *find_secret(void *ctx, uint32_t place)
{
    (void)ctx;
    return place < PLACES ? secrets[place] : NULL;
}

struct server {
    SSL_CTX *context;
    int fd;
    bool is_open;
    uint32_t place;
};

static void *serve(void *arg)
{
    struct server *s = arg;
    SSL *tls = secret_accept(s->context, s->fd);
    char byte;

    s->is_open = tls != NULL && SSL_accept(tls) == 1;
    if (s->is_open) {
        /* A client that refuses this side says so behind its handshake. */
        s->is_open = SSL_read(tls, &byte, 1) == 1;
        s->place = secret_place(tls);
    }
    shutdown(s->fd, SHUT_RDWR);
    SSL_free(tls);
    return NULL;
}

/* True if a client with the key has a connection to the server. */
static bool connects(struct server *s, uint32_t place,
                     const uint8_t key[PS_LAUNCH_SECRET_BYTES])
{
    char text[256] = "";
    struct ps_str why;
    pthread_t thread;
    int fds[2];
    SSL *tls;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    s->fd = fds[0];
    assert_int_equal(pthread_create(&thread, NULL, serve, s), 0);
    ps_str_init(&why, text, sizeof(text));
    tls = secret_connect(fds[1], place, key, &why);
    if (tls != NULL) {
        (void)SSL_write(tls, "", 1); /* The server may have gone. */
    } else {
        assert_non_null(strstr(text, "do not agree on their key"));
    }
    SSL_free(tls);
    shutdown(fds[1], SHUT_RDWR);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(tls != NULL, s->is_open);
    return s->is_open;
}

static void hosts_connect_with_their_keys_alone(void **state)
{
    static const uint8_t wrong[PS_LAUNCH_SECRET_BYTES] = {3};
    struct server s = {.context = secret_server_new(find_secret, NULL)};

    (void)state;
    assert_non_null(s.context);
    for (uint32_t i = 0; i < PLACES; i++) {
        assert_true(connects(&s, i, secrets[i]));
        assert_int_equal(s.place, i);
    }
    assert_false(connects(&s, 0, secrets[1]));
    assert_false(connects(&s, 1, wrong));
    assert_false(connects(&s, PLACES, secrets[0]));
    SSL_CTX_free(s.context);
}

static void a_server_with_a_certificate_is_refused(void **state)
{
    char dir[] = "/tmp/pskv-secret-XXXXXX";
    char path[64];
    struct certs_authority *a = certs_new("any");
    struct server s = {.context = SSL_CTX_new(TLS_server_method())};

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
    assert_false(connects(&s, 0, secrets[0]));
    SSL_CTX_free(s.context);
    certs_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_connect_with_their_keys_alone),
        cmocka_unit_test(a_server_with_a_certificate_is_refused),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
