/* SPDX-License-Identifier: Apache-2.0 */
/* One dial: resolves the name and connects to the first of its addresses that
 * answers. The caller retries. */
#pragma once

#include "base/err.h"
#include "base/time.h"

struct ps_dial;
struct ps_loop;

#define PS_DIAL_DETAIL_MAX 128u

/* `fd` >= 0: connected, owned by the callee; `detail` is the peer's numeric
 * address. Else `detail` is the text of the failure. PS_E_UNREACH,
 * PS_E_TIMEOUT, PS_E_CANCELED, or a system error. */
typedef void (*ps_dial_cb)(void *ctx, int fd, int rc, const char *detail);

/* Time limit of the look-up. */
#define PS_DIAL_LOOKUP_MAX PS_SECONDS(10)

/* Dials `address`, "host:port"; `timeout` counts from the end of the look-up.
 * Calls back once, never before it returns. */
PS_MUST_USE int ps_dial_start(struct ps_loop *l, const char *address,
                              ps_time timeout, ps_dial_cb done, void *ctx,
                              struct ps_dial **ret_dial);
/* Calls back soon, with PS_E_CANCELED unless the dial had ended. */
void ps_dial_cancel(struct ps_dial *d);
