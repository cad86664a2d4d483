/* SPDX-License-Identifier: Apache-2.0 */
/* Address functions over inet_pton(), getaddrinfo() and getifaddrs(). */
#include "net/addr.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int parse_port(const char *text, uint16_t *ret_port)
{
    unsigned port = 0;

    if (text[0] == '\0' || strlen(text) > 5) {
        return PS_E_INVAL;
    }
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9') {
            return PS_E_INVAL;
        }
        port = port * 10 + (unsigned)(*p - '0');
    }
    if (port > UINT16_MAX) {
        return PS_E_INVAL;
    }
    *ret_port = (uint16_t)port;
    return 0;
}

int ps_addr_parse(const char *text, struct ps_addr *ret_addr)
{
    struct ps_addr a = {0};
    const char *host = text;
    const char *colon = strrchr(text, ':');
    size_t len;

    if (colon == NULL || parse_port(colon + 1, &a.port) != 0) {
        return PS_E_INVAL;
    }
    len = (size_t)(colon - text);
    if (text[0] == '[') {
        if (len < 3 || text[len - 1] != ']') {
            return PS_E_INVAL;
        }
        host = text + 1;
        len -= 2;
    } else if (memchr(text, ':', len) != NULL) {
        return PS_E_INVAL;
    }
    if (len == 0 || len >= sizeof(a.host)) {
        return PS_E_INVAL;
    }
    memcpy(a.host, host, len);
    *ret_addr = a;
    return 0;
}

bool ps_addr_format(const char *host, uint16_t port, char *out, size_t cap)
{
    struct ps_str s;

    ps_str_init(&s, out, cap);
    ps_str_addf(&s, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host,
                (unsigned)port);
    return !s.truncated;
}

void ps_addr_print(const struct sockaddr *sa, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";
    uint16_t port = 0;

    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;

        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
        port = ntohs(v4->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;

        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
        port = ntohs(v6->sin6_port);
    }
    (void)ps_addr_format(host, port, out, cap);
}

uint64_t ps_addr_source(const struct sockaddr *sa)
{
    const struct in6_addr *v6;
    uint64_t number = 0;

    if (sa->sa_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr);
    }
    if (sa->sa_family != AF_INET6) {
        return 0;
    }
    v6 = &((const struct sockaddr_in6 *)sa)->sin6_addr;
    for (size_t i = 0; i < 8; i++) {
        number = number << 8 |
                 v6->s6_addr[IN6_IS_ADDR_V4MAPPED(v6) ? 8 + i : i];
    }
    /* Without the 0xffff in front of an IPv4 address. */
    return IN6_IS_ADDR_V4MAPPED(v6) ? number & UINT32_MAX : number;
}

bool ps_addr_is_same_host(const struct sockaddr *own,
                          const struct sockaddr *peer)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)peer)->sin6_addr;

    if (own->sa_family != peer->sa_family) {
        return false;
    }
    if (peer->sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(v6)) {
        return IN6_IS_ADDR_LOOPBACK(v6) ||
               IN6_ARE_ADDR_EQUAL(
                   v6, &((const struct sockaddr_in6 *)own)->sin6_addr);
    }
    const uint64_t v4 = ps_addr_source(peer);

    return v4 >> 24 == IN_LOOPBACKNET || v4 == ps_addr_source(own);
}

enum ps_addr_kind ps_addr_kind(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (inet_pton(AF_INET, host, &v4) == 1) {
        uint32_t n = ntohl(v4.s_addr);

        if (n == INADDR_ANY) {
            return PS_ADDR_ANY;
        }
        return n >> 24 == 127 ? PS_ADDR_LOOPBACK : PS_ADDR_OTHER;
    }
    if (inet_pton(AF_INET6, host, &v6) == 1) {
        if (IN6_IS_ADDR_UNSPECIFIED(&v6)) {
            return PS_ADDR_ANY;
        }
        return IN6_IS_ADDR_LOOPBACK(&v6) ? PS_ADDR_LOOPBACK : PS_ADDR_OTHER;
    }
    return PS_ADDR_NAME;
}

int ps_addr_local_for(const struct ps_addr *peer, char *out, size_t cap)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    char service[8];
    int rc = PS_E_UNREACH;

    snprintf(service, sizeof(service), "%u", (unsigned)peer->port);
    if (getaddrinfo(peer->host, service, &hints, &found) != 0) {
        return PS_E_UNREACH;
    }
    for (struct addrinfo *ai = found; ai != NULL && rc != 0; ai = ai->ai_next) {
        struct sockaddr_storage self = {0};
        socklen_t len = sizeof(self);
        int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0) {
            continue;
        }
        if (connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
            getsockname(fd, (struct sockaddr *)&self, &len) == 0 &&
            getnameinfo((struct sockaddr *)&self, len, out, (socklen_t)cap,
                        NULL, 0, NI_NUMERICHOST) == 0) {
            rc = 0;
        }
        close(fd);
    }
    freeaddrinfo(found);
    return rc;
}

int ps_addr_lookup(const char *host, char *out, size_t cap)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = 0;

    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return PS_E_UNREACH;
    }
    if (getnameinfo(found->ai_addr, found->ai_addrlen, out, (socklen_t)cap,
                    NULL, 0, NI_NUMERICHOST) != 0) {
        rc = PS_E_UNREACH;
    }
    freeaddrinfo(found);
    return rc;
}

static bool address_in(const struct ifaddrs *all, const char *name, int family,
                       socklen_t len, char *out, size_t cap)
{
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (strcmp(i->ifa_name, name) == 0 && i->ifa_addr != NULL &&
            i->ifa_addr->sa_family == family &&
            getnameinfo(i->ifa_addr, len, out, (socklen_t)cap, NULL, 0,
                        NI_NUMERICHOST) == 0) {
            return true;
        }
    }
    return false;
}

int ps_addr_of_interface(const char *name, char *out, size_t cap)
{
    struct ifaddrs *all = NULL;
    bool found;

    if (getifaddrs(&all) != 0) {
        return ps_err_from_errno(errno);
    }
    found =
        address_in(all, name, AF_INET, sizeof(struct sockaddr_in), out, cap) ||
        address_in(all, name, AF_INET6, sizeof(struct sockaddr_in6), out, cap);
    freeifaddrs(all);
    return found ? 0 : PS_E_NOENT;
}

bool ps_addr_may_be_here(const char *host)
{
    struct ps_addr peer = {.port = 9}; /* Any port. */
    char own[PS_ADDRESS_MAX + 1];

    if (ps_addr_lookup(host, peer.host, sizeof(peer.host)) != 0) {
        return true;
    }
    if (ps_addr_kind(peer.host) != PS_ADDR_OTHER) {
        return true;
    }
    /* A machine reaches each of its own addresses from that same address. */
    return ps_addr_local_for(&peer, own, sizeof(own)) == 0 &&
           strcmp(own, peer.host) == 0;
}
