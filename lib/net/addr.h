/* SPDX-License-Identifier: Apache-2.0 */
/* Parses, prints, classifies and resolves "host:port" and "[v6]:port"
 * addresses. */
#pragma once

#include "base/err.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

struct ps_addr {
    char host[PS_ADDRESS_MAX + 1]; /* Name or number, without brackets. */
    uint16_t port;
};

/* Splits "host:port". PS_E_INVAL: no port, no host, or a v6 address without
 * brackets. */
PS_MUST_USE int ps_addr_parse(const char *text, struct ps_addr *ret_addr);
/* Writes "host:port", with brackets around v6. False when it does not fit. */
bool ps_addr_format(const char *host, uint16_t port, char *out, size_t cap);
/* Writes the numeric address and port of a socket; "?" for other families. */
void ps_addr_print(const struct sockaddr *sa, char *out, size_t cap);
/* A number of the host, by which connections of one host are counted together:
 * of its IPv4 address, in IPv6 form too, or of the first 64 bits of its IPv6
 * address, of which a host can have all the others. 0 for other families. */
uint64_t ps_addr_source(const struct sockaddr *sa);

/* True if the two addresses of a socket, its own and its peer's, are those of
 * one host: a loopback address, or twice the same. */
bool ps_addr_is_same_host(const struct sockaddr *own,
                          const struct sockaddr *peer);

enum ps_addr_kind {
    PS_ADDR_NAME,     /* A name, which needs a look-up. */
    PS_ADDR_LOOPBACK, /* 127/8, ::1 */
    PS_ADDR_ANY,      /* 0.0.0.0, :: */
    PS_ADDR_OTHER,
};
enum ps_addr_kind ps_addr_kind(const char *host);

/* Resolves a name or number to its numeric address; blocks for seconds at
 * worst. PS_E_UNREACH: there is no address. */
PS_MUST_USE int ps_addr_lookup(const char *host, char *out, size_t cap);

/* True if this name or address, which other hosts dial, may be one of this
 * machine; true also for a name without an address. Resolves names and blocks
 * for seconds at worst. */
bool ps_addr_may_be_here(const char *host);

/* First address of a network interface of this machine, v4 before v6.
 * PS_E_NOENT: no such interface, or it has no address. */
PS_MUST_USE int ps_addr_of_interface(const char *name, char *out, size_t cap);

/* Address of this machine from which `peer` (numeric or a name) is reached, by
 * the routing table; sends nothing. */
PS_MUST_USE int ps_addr_local_for(const struct ps_addr *peer, char *out,
                                  size_t cap);
