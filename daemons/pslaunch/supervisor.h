/* SPDX-License-Identifier: Apache-2.0 */
/* The side of a host: `pslaunch --supervise`. */
#pragma once

/* Time without a message after which a side counts as gone, and between
 * messages that show life. A connection that ends is noticed at once; this is
 * for networks that fall silent. */
#define LEASE_MS 20000u
#define BEAT_MS  2000u

/* Starts and ends processes as messages on standard input say, and reports on
 * standard output. Kills all of them when standard input ends. Returns the
 * exit code. */
int supervise(void);
