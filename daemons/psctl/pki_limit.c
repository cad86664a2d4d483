/* SPDX-License-Identifier: Apache-2.0 */
#include "psctl/pki_limit.h"

#include "base/str.h"
#include "proto/frame.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define MINUTE PS_SECONDS(60)

/* Bytes of an address that is an IPv4 one in the form of IPv6. */
#define V4_AT  12u

void pki_limit_name(const struct sockaddr *address,
                    char ret_name[PKI_LIMIT_ADDRESS])
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    const char *text = NULL;

    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof(v4));
        text = inet_ntop(AF_INET, &v4.sin_addr, ret_name, PKI_LIMIT_ADDRESS);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof(v6));
        if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
            text = inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[V4_AT], ret_name,
                             PKI_LIMIT_ADDRESS);
        } else {
            memset(&v6.sin6_addr.s6_addr[8], 0, 8);
            text = inet_ntop(AF_INET6, &v6.sin6_addr, ret_name,
                             PKI_LIMIT_ADDRESS);
        }
    }
    if (text == NULL) {
        ps_str_copy(ret_name, PKI_LIMIT_ADDRESS, "?");
    }
}

static void forget_failures(struct pki_source *s, ps_time now)
{
    uint64_t steps = (now - s->counted_at) / PKI_LIMIT_FORGET_TIME;

    if (steps >= s->failures) {
        s->failures = 0;
        s->counted_at = now;
        return;
    }
    s->failures -= (uint32_t)steps;
    s->counted_at += steps * PKI_LIMIT_FORGET_TIME;
}

/* The source of this name, or else a free one, or that without connections which
 * has not failed for the longest time. */
static struct pki_source *find_source(struct pki_limit *l, const char *name)
{
    struct pki_source *best = NULL;

    for (size_t i = 0; i < PKI_LIMIT_SOURCES; i++) {
        struct pki_source *s = &l->sources[i];

        if (strcmp(s->address, name) == 0) {
            return s;
        }
        if (s->connections == 0 &&
            (best == NULL || s->counted_at < best->counted_at)) {
            best = s;
        }
    }
    return best;
}

enum pki_admission pki_limit_begin(struct pki_limit *l, const char *name,
                                   ps_time now)
{
    struct pki_source *s = find_source(l, name);

    assert(s != NULL);
    if (strcmp(s->address, name) != 0) {
        *s = (struct pki_source){.counted_at = now};
        ps_str_copy(s->address, sizeof(s->address), name);
    }
    forget_failures(s, now);
    if (s->connections == PKI_LIMIT_CONNECTIONS) {
        return PKI_TOO_MANY_CONNECTIONS;
    }
    if (s->failures + s->connections >= PKI_LIMIT_FAILURES) {
        return PKI_TOO_MANY_FAILURES;
    }
    s->connections++;
    return PKI_ADMITTED;
}

void pki_limit_end(struct pki_limit *l, const char *name, bool has_failed,
                   ps_time now)
{
    struct pki_source *s = find_source(l, name);

    assert(s != NULL && s->connections > 0);
    s->connections--;
    forget_failures(s, now);
    s->failures += has_failed;
}

bool pki_limit_line(struct pki_limit *l, ps_time now, uint32_t *ret_omitted)
{
    if (now - l->lines_since >= MINUTE) {
        l->lines_since = now;
        l->lines = 0;
    }
    if (l->lines == PKI_LIMIT_LINES) {
        l->omitted_lines++;
        return false;
    }
    l->lines++;
    *ret_omitted = l->omitted_lines;
    l->omitted_lines = 0;
    return true;
}

/* ----------------------------------------------------------------- messages */

size_t pki_message_bytes(enum ps_msg_code code)
{
    return PS_FRAME_PREFIX + ps_msg_header_max(code);
}

int pki_message_read(struct ps_decoder *d, enum ps_msg_code code,
                     const uint8_t *bytes, size_t len, struct ps_msg *ret_msg)
{
    struct ps_frame_prefix prefix;
    int rc;

    if (len < PS_FRAME_PREFIX) {
        return PS_E_AGAIN;
    }
    rc = ps_frame_parse(bytes, &prefix);
    if (rc == 0) {
        rc = ps_frame_check(&prefix, PS_ROLE_CTL, PS_ROLE_CTL);
    }
    if (rc != 0) {
        return rc;
    }
    if (prefix.code != code || len > PS_FRAME_PREFIX + prefix.header_len) {
        return PS_E_PROTO;
    }
    if (len < PS_FRAME_PREFIX + prefix.header_len) {
        return PS_E_AGAIN;
    }
    return ps_msg_decode(d, code, bytes + PS_FRAME_PREFIX, prefix.header_len,
                         ret_msg);
}
