/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted connections between pslaunch and supervisors that are tasks of an
 * array job: TLS 1.3 with a key of 32 random bytes for each host, which they have
 * from a file of the user, and no certificates. Both sides prove that they have
 * it. */
#pragma once

#include "base/limits.h"
#include "base/str.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stdint.h>

/* Finds the key of a host (PS_LAUNCH_SECRET_BYTES); NULL: there is none. */
typedef const uint8_t *(*secret_find_cb)(void *ctx, uint32_t place);

/* Side of pslaunch, for all hosts. NULL: no memory. */
SSL_CTX *secret_server_new(secret_find_cb find, void *ctx);
/* A connection by TCP whose handshake is to be made by SSL_accept(). */
SSL *secret_accept(SSL_CTX *server, int fd);
/* Number of the host whose key the connection has. */
uint32_t secret_place(const SSL *tls);

/* Side of the supervisor: makes the handshake on a socket that blocks. NULL
 * after the reason is appended to `why`. */
SSL *secret_connect(int fd, uint32_t place,
                    const uint8_t secret[PS_LAUNCH_SECRET_BYTES],
                    struct ps_str *why);

/* Lets the kernel ask once a second whether the other host is there. */
void secret_watch(int fd);
/* True if the other host has answered nothing for 4 seconds: it is gone, or the
 * network is. A process that is only slow does not matter. */
bool secret_is_cut(int fd);
