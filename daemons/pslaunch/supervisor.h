/* SPDX-License-Identifier: Apache-2.0 */
/* The side of a host: `pslaunch --supervise`. */
#pragma once

#include <openssl/types.h>

/* Time without a message after which a side counts as gone, and between
 * messages that show life. A connection that ends is noticed at once; this is
 * for networks that fall silent. */
#define LEASE_MS 20000u
#define BEAT_MS  2000u
/* Between looks whether a connection by TCP is cut. */
#define LOOK_MS  500u

/* Starts and ends processes as messages on standard input say, and reports on
 * standard output. Kills all of them when standard input ends. Returns the
 * exit code. */
int supervise(void);
/* Connection to pslaunch in place of standard input and output; taken over. To
 * be called before supervise(). */
void supervisor_connect(int fd, SSL *tls);
