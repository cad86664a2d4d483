/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/secret.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CUT_MS 4000u

/* Key of this side, or the way to keys of hosts. */
struct secrets {
    secret_find_cb find; /* Server. */
    void *ctx;
    uint32_t place; /* Client. */
    const uint8_t *secret;
};

static void free_secrets(void *parent, void *ptr, CRYPTO_EX_DATA *data,
                         int index, long argl, void *argp)
{
    (void)parent;
    (void)data;
    (void)index;
    (void)argl;
    (void)argp;
    free(ptr);
}

static int secrets_index(void)
{
    static int index = -1;

    if (index < 0) {
        index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, free_secrets);
    }
    return index;
}

static SSL_CTX *context_new(const SSL_METHOD *method, const struct secrets *own)
{
    SSL_CTX *c = SSL_CTX_new(method);
    struct secrets *copy = malloc(sizeof(*copy));

    if (c == NULL || copy == NULL ||
        SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ex_data(c, secrets_index(), copy) != 1) {
        SSL_CTX_free(c);
        free(copy);
        return NULL;
    }
    *copy = *own;
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Messages have lengths: a cut stream is noticed there. */
    SSL_CTX_set_options(c, SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_num_tickets(c, 0);
    return c;
}

static const struct secrets *secrets_of(const SSL *tls)
{
    return SSL_CTX_get_ex_data(SSL_get_SSL_CTX(tls), secrets_index());
}

/* ------------------------------------------------------------------- server */

/* Numbers of hosts are stored as themselves plus one. */
static int place_index(void)
{
    static int index = -1;

    if (index < 0) {
        index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    }
    return index;
}

static unsigned give_secret(SSL *tls, const char *identity, unsigned char *psk,
                            unsigned psk_max)
{
    const struct secrets *s = secrets_of(tls);
    char *end;
    unsigned long place = strtoul(identity, &end, 10);
    const uint8_t *secret = end != identity && *end == '\0' &&
                                    place < UINT32_MAX
                                ? s->find(s->ctx, (uint32_t)place)
                                : NULL;

    if (secret == NULL || psk_max < PS_LAUNCH_SECRET_BYTES ||
        SSL_set_ex_data(tls, place_index(), (void *)(uintptr_t)(place + 1)) !=
            1) {
        return 0; /* The handshake fails. */
    }
    memcpy(psk, secret, PS_LAUNCH_SECRET_BYTES);
    return PS_LAUNCH_SECRET_BYTES;
}

SSL_CTX *secret_server_new(secret_find_cb find, void *ctx)
{
    SSL_CTX *c = context_new(TLS_server_method(),
                             &(struct secrets){.find = find, .ctx = ctx});

    if (c != NULL) {
        SSL_CTX_set_psk_server_callback(c, give_secret);
    }
    return c;
}

SSL *secret_accept(SSL_CTX *server, int fd)
{
    SSL *tls = SSL_new(server);

    if (tls != NULL && SSL_set_fd(tls, fd) != 1) {
        SSL_free(tls);
        return NULL;
    }
    return tls;
}

uint32_t secret_place(const SSL *tls)
{
    return (uint32_t)((uintptr_t)SSL_get_ex_data(tls, place_index()) - 1);
}

/* ------------------------------------------------------------------- client */

static unsigned show_secret(SSL *tls, const char *hint, char *identity,
                            unsigned identity_max, unsigned char *psk,
                            unsigned psk_max)
{
    const struct secrets *s = secrets_of(tls);
    int n = snprintf(identity, identity_max, "%u", s->place);

    (void)hint;
    if (n <= 0 || (unsigned)n >= identity_max ||
        psk_max < PS_LAUNCH_SECRET_BYTES) {
        return 0;
    }
    memcpy(psk, s->secret, PS_LAUNCH_SECRET_BYTES);
    return PS_LAUNCH_SECRET_BYTES;
}

SSL *secret_connect(int fd, uint32_t place,
                    const uint8_t secret[PS_LAUNCH_SECRET_BYTES],
                    struct ps_str *why)
{
    SSL_CTX *c = context_new(
        TLS_client_method(),
        &(struct secrets){.place = place, .secret = secret});
    SSL *tls;

    if (c == NULL) {
        ps_str_add(why, "no memory for TLS");
        return NULL;
    }
    SSL_CTX_set_psk_client_callback(c, show_secret);
    /* A server may choose a certificate in place of the key. With no authority
     * to trust, none is accepted. */
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    tls = SSL_new(c);
    SSL_CTX_free(c); /* The connection has a reference. */
    if (tls == NULL || SSL_set_fd(tls, fd) != 1 || SSL_connect(tls) != 1) {
        const char *reason = ERR_reason_error_string(ERR_peek_error());

        ps_str_addf(why, "pslaunch and this host do not agree on their key: %s",
                    reason != NULL ? reason : "the connection was closed");
        SSL_free(tls);
        return NULL;
    }
    return tls;
}

/* ------------------------------------------------------------------ network */

void secret_watch(int fd)
{
    int on = 1;
    int seconds = 1;
    int probes = 4;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool secret_is_cut(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           info.tcpi_last_ack_recv > CUT_MS;
}
