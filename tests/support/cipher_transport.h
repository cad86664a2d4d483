/* SPDX-License-Identifier: Apache-2.0 */
/* A transport that conceals the bytes of a TCP connection, in the way of one
 * that encrypts: it reads the socket into a buffer of its own, returns a part
 * at a time, and writes from a buffer of its own. The cipher is not secure:
 * each byte is changed by the same mask, so that a test can use it over a plain
 * descriptor. */
#pragma once

#include "net/transport.h"

#include <stdint.h>

extern const struct ps_transport_ops cipher_transport;

/* Returns the state of a new connection's transport, which frees it. */
void *cipher_new(void);
/* Conceals bytes, or reveals them. */
void cipher_apply(uint8_t *bytes, size_t len);
