/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to enrol, which strangers send: how they are parsed, and limits on the
 * attempts of one address: connections at a time, and attempts that fail, which
 * are forgotten one by one. Also a limit on lines about them. Reads no clock. */
#pragma once

#include "base/err.h"
#include "base/time.h"
#include "proto/msg_codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

/* Addresses that are remembered. */
#define PKI_LIMIT_SOURCES     256u
/* Connections of one address: a few nodes behind one router. */
#define PKI_LIMIT_CONNECTIONS 8u
#define PKI_LIMIT_FAILURES    10u
/* Time in which one failure is forgotten. Failures are limited for the work of
 * their handshakes alone: a code has 128 random bits and ends with five wrong
 * ones. So a node that tries again every second, with a code that is void, takes
 * nothing from others of its address, behind one router. */
#define PKI_LIMIT_FORGET_TIME PS_MILLIS(500)
/* Lines of a minute. */
#define PKI_LIMIT_LINES       60u
#define PKI_LIMIT_ADDRESS     64u

enum pki_admission {
    PKI_ADMITTED,
    PKI_TOO_MANY_CONNECTIONS,
    PKI_TOO_MANY_FAILURES,
};

struct pki_source {
    char address[PKI_LIMIT_ADDRESS]; /* "": free. */
    uint32_t connections;
    uint32_t failures;
    ps_time counted_at; /* From here on the next failure is being forgotten. */
};

/* Zeroed at first. */
struct pki_limit {
    struct pki_source sources[PKI_LIMIT_SOURCES];
    uint32_t lines;
    uint32_t omitted_lines;
    ps_time lines_since;
};

/* Writes what identifies the source of a connection: an IPv4 address, or the
 * first 64 bits of an IPv6 address, as one host has all of the rest. */
void pki_limit_name(const struct sockaddr *address,
                    char ret_name[PKI_LIMIT_ADDRESS]);

/* Counts a connection, if it is admitted. Up to PKI_LIMIT_SOURCES - 1 of them
 * may be open. */
enum pki_admission pki_limit_begin(struct pki_limit *l, const char *name,
                                   ps_time now);
/* Ends a connection that was admitted. */
void pki_limit_end(struct pki_limit *l, const char *name, bool has_failed,
                   ps_time now);

/* True if a line may be written. *ret_omitted is the number of lines before it
 * that were not. */
bool pki_limit_line(struct pki_limit *l, ps_time now, uint32_t *ret_omitted);

/* Bytes of the longest frame of this message. */
size_t pki_message_bytes(enum ps_msg_code code);
/* Decodes the bytes that have been received so far, of which the frame of a
 * message of this code must be all. PS_E_AGAIN: more bytes are needed; another
 * error: they are malformed. The message borrows from the decoder. */
PS_MUST_USE int pki_message_read(struct ps_decoder *d, enum ps_msg_code code,
                                 const uint8_t *bytes, size_t len,
                                 struct ps_msg *ret_msg);
