/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. */
#pragma once

#include "base/time.h"

ps_time client_now(void);
/* PS_TIME_NEVER for a negative limit. */
ps_time client_deadline(int timeout_ms);
/* Milliseconds until the deadline, rounded up, so that a wait does not end just
 * before it. -1: PS_TIME_NEVER. */
int client_ms_until(ps_time deadline);
