/* SPDX-License-Identifier: Apache-2.0 */
/* One try to connect: look the name up, take the first of its addresses that
 * answers. Trying again is the caller's affair. */
#pragma once

#include "base/err.h"
#include "base/time.h"

struct ps_dial;
struct ps_loop;

#define PS_DIAL_DETAIL_MAX 128u

/* `fd` >= 0: connected, the callee's; `detail` is then the peer's numeric
 * address, and otherwise the words of the failure. PS_E_UNREACH, PS_E_TIMEOUT,
 * PS_E_CANCELED, or what the system said. */
typedef void (*ps_dial_cb)(void *ctx, int fd, int rc, const char *detail);

/* A look-up may take this long. */
#define PS_DIAL_LOOKUP_MAX PS_SECONDS(10)

/* `address` is "host:port"; `timeout` begins when it has been looked up. Calls
 * back once, not before it has returned. */
PS_MUST_USE int ps_dial_start(struct ps_loop *l, const char *address,
                              ps_time timeout, ps_dial_cb done, void *ctx,
                              struct ps_dial **ret_dial);
/* Calls back soon, with PS_E_CANCELED unless it had ended already. */
void ps_dial_cancel(struct ps_dial *d);
