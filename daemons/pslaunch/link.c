/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* --------------------------------------------------------------------- keys */

#define CUT_MS 4000u

/* `owner` finds keys in the callback of the handshake. */
static SSL_CTX *context_new(const SSL_METHOD *method, void *owner)
{
    SSL_CTX *c = SSL_CTX_new(method);

    if (c == NULL || SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_app_data(c, owner) != 1) {
        SSL_CTX_free(c);
        return NULL;
    }
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Messages have lengths: a cut stream is noticed there. */
    SSL_CTX_set_options(c, SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_num_tickets(c, 0);
    return c;
}

/* Lets the kernel ask once a second whether the other host is there. */
static void watch_host(int fd)
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

/* --------------------------------------------------------------- supervisor */

struct own_secret {
    uint32_t place;
    const uint8_t *secret;
};

static unsigned show_secret(SSL *tls, const char *hint, char *identity,
                            unsigned identity_max, unsigned char *psk,
                            unsigned psk_max)
{
    const struct own_secret *s = SSL_CTX_get_app_data(SSL_get_SSL_CTX(tls));
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
    struct own_secret own = {.place = place, .secret = secret};
    SSL_CTX *c = context_new(TLS_client_method(), &own);
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
    watch_host(fd);
    return tls;
}

/* ----------------------------------------------------------------- listener */

/* Connections before the end of their handshake; one more closes the oldest of
 * the address that has most of them, so that a flood closes only its own. */
#define PENDING_MAX 64u

/* Number of the listener among the events. */
#define LISTENER    UINT32_MAX

struct pending {
    int fd; /* -1: none. */
    SSL *tls;
    struct in6_addr source;
    uint64_t number; /* Connections before it. */
};

struct listener {
    int fd;
    int epoll;
    uint16_t port;
    uint32_t count;
    uint8_t (*secrets)[PS_LAUNCH_SECRET_BYTES];
    SSL_CTX *server;
    struct pending pending[PENDING_MAX];
    uint64_t accepted;
    listener_cb connected;
    void *ctx;
};

/* ------------------------------------------------------------------ opening */

/* Finds the key of the host that `identity` numbers, and notes the number. */
static unsigned give_secret(SSL *tls, const char *identity, unsigned char *psk,
                            unsigned psk_max)
{
    const struct listener *l = SSL_CTX_get_app_data(SSL_get_SSL_CTX(tls));
    char *end;
    unsigned long place = strtoul(identity, &end, 10);
    const uint8_t *secret = end != identity && *end == '\0' &&
                                    place < UINT32_MAX
                                ? listener_secret(l, (uint32_t)place)
                                : NULL;

    if (secret == NULL || psk_max < PS_LAUNCH_SECRET_BYTES ||
        SSL_set_app_data(tls, (void *)(uintptr_t)place) != 1) {
        return 0; /* The handshake fails. */
    }
    memcpy(psk, secret, PS_LAUNCH_SECRET_BYTES);
    return PS_LAUNCH_SECRET_BYTES;
}

/* Binds to an address; NULL: to all of IPv6 and IPv4, or of IPv4 alone. */
static int bind_listener(const char *address)
{
    static const char *const all[] = {"::", "0.0.0.0"};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE};
    const int both = 0;
    int fd = -1;

    for (int i = 0; i < (address == NULL ? 2 : 1) && fd < 0; i++) {
        struct addrinfo *list = NULL;
        const char *host = address != NULL ? address : all[i];

        if (getaddrinfo(host, "0", &hints, &list) != 0) {
            errno = EADDRNOTAVAIL;
            continue;
        }
        fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    0);
        if (fd >= 0 && list->ai_family == AF_INET6) {
            (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &both,
                             sizeof(both));
        }
        if (fd >= 0 && (bind(fd, list->ai_addr, list->ai_addrlen) != 0 ||
                        listen(fd, 128) != 0)) {
            close(fd);
            fd = -1;
        }
        freeaddrinfo(list);
    }
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);

    (void)getsockname(fd, (struct sockaddr *)&sa, &len);
    /* The port has the same offset in both families. */
    return ntohs(((struct sockaddr_in *)&sa)->sin_port);
}

static bool watch(struct listener *l, int fd, uint32_t number, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.u32 = number};

    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) == 0;
}

struct listener *listener_open(const char *address, uint32_t count,
                               listener_cb connected, void *ctx)
{
    struct listener *l = calloc(1, sizeof(*l));

    if (l == NULL) {
        abort();
    }
    *l = (struct listener){.count = count, .connected = connected, .ctx = ctx};
    for (uint32_t i = 0; i < PENDING_MAX; i++) {
        l->pending[i].fd = -1;
    }
    l->secrets = calloc(count, sizeof(*l->secrets));
    l->server = context_new(TLS_server_method(), l);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->fd = bind_listener(address);
    if (l->secrets == NULL || l->server == NULL || l->epoll < 0 || l->fd < 0 ||
        !watch(l, l->fd, LISTENER, EPOLLIN) ||
        RAND_bytes((unsigned char *)l->secrets,
                   (int)(count * sizeof(*l->secrets))) != 1) {
        fprintf(stderr, "pslaunch: cannot listen at %s: %s\n",
                address != NULL ? address : "any address", strerror(errno));
        listener_close(l);
        return NULL;
    }
    SSL_CTX_set_psk_server_callback(l->server, give_secret);
    l->port = port_of(l->fd);
    return l;
}

/* ------------------------------------------------------------------ serving */

static void drop(struct pending *p)
{
    if (p->fd >= 0) {
        SSL_free(p->tls);
        close(p->fd);
    }
    *p = (struct pending){.fd = -1};
}

static void admit(struct listener *l, uint32_t number)
{
    struct pending p = l->pending[number];

    (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, p.fd, NULL);
    l->pending[number] = (struct pending){.fd = -1};
    l->connected(l->ctx, (uint32_t)(uintptr_t)SSL_get_app_data(p.tls), p.fd,
                 p.tls);
}

/* Goes on with the handshake of a connection. */
static void continue_handshake(struct listener *l, uint32_t number)
{
    struct pending *p = &l->pending[number];
    int rc;

    if (p->fd < 0) {
        return; /* Closed for a later one. */
    }
    rc = SSL_accept(p->tls);
    if (rc == 1) {
        admit(l, number);
        return;
    }
    /* Its few bytes fit into the socket, so only input is waited for. */
    if (SSL_get_error(p->tls, rc) != SSL_ERROR_WANT_READ) {
        drop(p);
    }
}

/* Address of a peer; that of IPv4 as IPv6 writes it. */
static struct in6_addr source_of(const struct sockaddr_storage *sa)
{
    struct in6_addr source = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

    if (sa->ss_family == AF_INET6) {
        return ((const struct sockaddr_in6 *)sa)->sin6_addr;
    }
    memcpy(source.s6_addr + 12, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    return source;
}

static uint32_t count_of_source(const struct listener *l,
                                const struct in6_addr *source)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < PENDING_MAX; i++) {
        count += l->pending[i].fd >= 0 &&
                 memcmp(&l->pending[i].source, source, sizeof(*source)) == 0;
    }
    return count;
}

/* A free place, or that of the connection that gives way. */
static uint32_t choose_place(const struct listener *l)
{
    uint32_t chosen = 0;
    uint32_t most = 0;

    for (uint32_t i = 0; i < PENDING_MAX; i++) {
        const struct pending *p = &l->pending[i];
        uint32_t count;

        if (p->fd < 0) {
            return i;
        }
        count = count_of_source(l, &p->source);
        if (count > most ||
            (count == most && p->number < l->pending[chosen].number)) {
            most = count;
            chosen = i;
        }
    }
    return chosen;
}

static void accept_peers(struct listener *l)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);
    int fd;

    while ((fd = accept4(l->fd, (struct sockaddr *)&sa, &len,
                         SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        const uint32_t number = choose_place(l);
        struct pending *p = &l->pending[number];

        drop(p);
        watch_host(fd);
        *p = (struct pending){.fd = fd,
                              .tls = SSL_new(l->server),
                              .source = source_of(&sa),
                              .number = l->accepted++};
        len = sizeof(sa);
        if (p->tls == NULL || SSL_set_fd(p->tls, fd) != 1 ||
            !watch(l, fd, number, EPOLLIN)) {
            drop(p);
        }
    }
}

void listener_serve(struct listener *l)
{
    struct epoll_event events[16];
    int n = epoll_wait(l->epoll, events, 16, 0);

    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 == LISTENER) {
            accept_peers(l);
        } else {
            continue_handshake(l, events[i].data.u32);
        }
    }
}

void listener_close(struct listener *l)
{
    if (l == NULL) {
        return;
    }
    for (uint32_t i = 0; i < PENDING_MAX; i++) {
        drop(&l->pending[i]);
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    if (l->epoll >= 0) {
        close(l->epoll);
    }
    SSL_CTX_free(l->server); /* Connections have references. */
    if (l->secrets != NULL) {
        OPENSSL_cleanse(l->secrets, l->count * sizeof(*l->secrets));
    }
    free(l->secrets);
    free(l);
}

uint16_t listener_port(const struct listener *l)
{
    return l->port;
}

const uint8_t *listener_secret(const struct listener *l, uint32_t place)
{
    return place < l->count ? l->secrets[place] : NULL;
}

int listener_fd(const struct listener *l)
{
    return l->epoll;
}

/* ----------------------------------------------------------------- messages */

/* Bytes read at once. */
#define READ_SIZE 65536u

static void *grow(void *p, size_t size)
{
    p = realloc(p, size);
    if (p == NULL) {
        abort();
    }
    return p;
}

static void set_nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void link_open(struct link *l, int in, int out)
{
    *l = (struct link){.in = in, .out = out, .decoder = ps_decoder_new()};
    if (l->decoder == NULL) {
        abort();
    }
    set_nonblocking(in);
    set_nonblocking(out);
}

void link_open_tls(struct link *l, int fd, SSL *tls)
{
    link_open(l, fd, fd);
    l->tls = tls;
}

bool link_is_cut(const struct link *l)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    return l->tls != NULL && l->in >= 0 &&
           getsockopt(l->in, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           info.tcpi_last_ack_recv > CUT_MS;
}

/* Like read() and write(), with an errno value of -1. */
static ssize_t tls_result(const struct link *l, int rc)
{
    if (rc > 0) {
        return rc;
    }
    switch (SSL_get_error(l->tls, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        ERR_clear_error();
        errno = EPIPE;
        return -1;
    }
}

static ssize_t receive(struct link *l, void *bytes, size_t len)
{
    return l->tls != NULL ? tls_result(l, SSL_read(l->tls, bytes, (int)len))
                          : read(l->in, bytes, len);
}

static ssize_t transmit(struct link *l, const void *bytes, size_t len)
{
    const size_t most = 1u << 20;

    return l->tls != NULL
               ? tls_result(l, SSL_write(l->tls, bytes,
                                         (int)(len < most ? len : most)))
               : write(l->out, bytes, len);
}

void link_close_output(struct link *l)
{
    if (l->out >= 0 && l->out != l->in) {
        close(l->out);
    }
    l->out = -1;
    l->output_offset = l->output_len;
}

void link_close(struct link *l)
{
    link_close_output(l);
    SSL_free(l->tls);
    l->tls = NULL;
    if (l->in >= 0) {
        close(l->in);
        l->in = -1;
    }
    ps_decoder_free(l->decoder);
    free(l->input);
    free(l->output);
    l->decoder = NULL;
    l->input = NULL;
    l->output = NULL;
}

bool link_has_output(const struct link *l)
{
    return link_output_size(l) > 0;
}

size_t link_output_size(const struct link *l)
{
    return l->output_len - l->output_offset;
}

void link_write(struct link *l)
{
    while (link_has_output(l)) {
        ssize_t n = transmit(l, l->output + l->output_offset,
                             link_output_size(l));

        if (n > 0) {
            l->output_offset += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else {
            link_close_output(l);
            return;
        }
    }
    l->output_offset = 0;
    l->output_len = 0;
}

int link_send(struct link *l, const struct ps_msg *msg)
{
    size_t bound = ps_msg_encoded_bound(msg);
    size_t len = 0;
    int rc;

    if (l->out < 0) {
        return 0;
    }
    if (l->output_len + bound > l->output_cap) {
        l->output_cap = 2 * (l->output_len + bound);
        l->output = grow(l->output, l->output_cap);
    }
    rc = ps_msg_encode(msg, PS_PROTOCOL, 0, l->output + l->output_len,
                       l->output_cap - l->output_len, &len);
    if (rc != 0) {
        return rc;
    }
    l->output_len += len;
    link_write(l);
    return 0;
}

/* Handles the complete frames of the input. False: bytes that are none. */
static bool handle_frames(struct link *l, link_message_cb cb, void *ctx)
{
    size_t from = 0;
    bool ok = true;

    while (ok && l->input_len - from >= PS_FRAME_PREFIX) {
        struct ps_frame_prefix p;
        struct ps_msg msg;
        size_t size;

        ok = ps_frame_parse(l->input + from, &p) == 0 &&
             ps_frame_check(&p, PS_ROLE_CTL, PS_ROLE_CTL) == 0;
        size = ok ? PS_FRAME_PREFIX + (size_t)p.header_len : 0;
        if (!ok || l->input_len - from < size) {
            break;
        }
        ok = ps_msg_decode(l->decoder, p.code,
                           l->input + from + PS_FRAME_PREFIX, p.header_len,
                           &msg) == 0 &&
             cb(ctx, &msg);
        from += size;
    }
    memmove(l->input, l->input + from, l->input_len - from);
    l->input_len -= from;
    return ok;
}

static bool read_once(struct link *l, link_message_cb cb, void *ctx)
{
    ssize_t n;

    if (l->input_cap - l->input_len < READ_SIZE) {
        l->input_cap = 2 * (l->input_len + READ_SIZE);
        l->input = grow(l->input, l->input_cap);
    }
    n = receive(l, l->input + l->input_len, READ_SIZE);
    if (n < 0) {
        return errno == EINTR || errno == EAGAIN;
    }
    l->input_len += (size_t)n;
    return n > 0 && handle_frames(l, cb, ctx);
}

bool link_read(struct link *l, link_message_cb cb, void *ctx)
{
    bool ok;

    do {
        ok = read_once(l, cb, ctx);
        /* Bytes that TLS has read ahead make no descriptor readable. */
    } while (ok && l->tls != NULL && SSL_pending(l->tls) > 0);
    return ok;
}
