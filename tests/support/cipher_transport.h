/* SPDX-License-Identifier: Apache-2.0 */
/* A transport that conceals the bytes of a TCP connection, in the way of one
 * that encrypts: it reads what the socket has to a buffer of its own, hands out
 * a part at a time, and writes from a buffer of its own. The cipher is none to
 * trust: each byte is changed by the same mask, so that a test can speak it
 * over a plain descriptor. */
#pragma once

#include "net/transport.h"

#include <stdint.h>

extern const struct ps_transport_ops cipher_transport;

/* State of the transport of a new connection, which frees it. */
void *cipher_new(void);
/* Conceals bytes, or reveals them. */
void cipher_apply(uint8_t *bytes, size_t len);
