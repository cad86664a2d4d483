/* SPDX-License-Identifier: Apache-2.0 */
/* The port at which supervisors that are tasks of an array job reach pslaunch. It
 * is open only until all of them have connected. A connection counts when it has
 * proved the key of its host; any other is closed without an answer. */
#pragma once

#include "base/limits.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stdint.h>

struct listener;

/* The supervisor of a host has connected; `fd` and `tls` are the callee's. */
typedef void (*listener_cb)(void *ctx, uint32_t place, int fd, SSL *tls);

/* Listens at a free port of `address`, NULL: all addresses, for the supervisors
 * of `count` hosts, with a key for each. NULL after a message on standard
 * error. */
struct listener *listener_open(const char *address, uint32_t count,
                               listener_cb connected, void *ctx);
/* NULL is allowed. */
void listener_close(struct listener *l);
uint16_t listener_port(const struct listener *l);
const uint8_t *listener_secret(const struct listener *l, uint32_t place);
/* Descriptor that is readable when listener_serve() has something to do. */
int listener_fd(const struct listener *l);
void listener_serve(struct listener *l);
