/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as people write them: "host:port", "[v6]:port", and numbers. */
#pragma once

#include "base/err.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

struct ps_addr {
    char host[PS_ADDRESS_MAX + 1]; /* Without brackets. */
    uint16_t port;
};

/* PS_E_INVAL: no port, no host, or a v6 address without brackets. */
PS_MUST_USE int ps_addr_parse(const char *text, struct ps_addr *ret_addr);
/* "host:port", with brackets around v6. False when it does not fit. */
bool ps_addr_format(const char *host, uint16_t port, char *out, size_t cap);
/* A numeric address and port of a socket; "?" for other families. */
void ps_addr_print(const struct sockaddr *sa, char *out, size_t cap);
/* Its port; 0 for other families. */
uint16_t ps_addr_port(const struct sockaddr *sa);

enum ps_addr_kind {
    PS_ADDR_NAME,     /* Not a number: has to be looked up. */
    PS_ADDR_LOOPBACK, /* 127/8, ::1 */
    PS_ADDR_ANY,      /* 0.0.0.0, :: */
    PS_ADDR_OTHER,
};
enum ps_addr_kind ps_addr_kind(const char *host);

/* The numeric address of a name, or of a number; looks it up, which can take
 * seconds. PS_E_UNREACH: there is none. */
PS_MUST_USE int ps_addr_lookup(const char *host, char *out, size_t cap);

/* Is this name or address, which others dial, one of this machine? Looks names
 * up, which can take seconds; true also for a name that has no address now. */
bool ps_addr_may_be_here(const char *host);

/* The first address of a network interface of this machine, v4 before v6.
 * PS_E_NOENT: it has none, or there is no such interface. */
PS_MUST_USE int ps_addr_of_interface(const char *name, char *out, size_t cap);

/* The address of this machine from which `peer` (numeric or a name) would be
 * reached; asks the routing table, sends nothing. */
PS_MUST_USE int ps_addr_local_for(const struct ps_addr *peer, char *out,
                                  size_t cap);
