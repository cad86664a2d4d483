/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/listener.h"

#include "pslaunch/secret.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

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

static const uint8_t *find_secret(void *ctx, uint32_t place)
{
    return listener_secret(ctx, place);
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
    l->server = secret_server_new(find_secret, l);
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
    l->connected(l->ctx, secret_place(p.tls), p.fd, p.tls);
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
        secret_watch(fd);
        *p = (struct pending){.fd = fd,
                              .tls = secret_accept(l->server, fd),
                              .source = source_of(&sa),
                              .number = l->accepted++};
        len = sizeof(sa);
        if (p->tls == NULL || !watch(l, fd, number, EPOLLIN)) {
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
