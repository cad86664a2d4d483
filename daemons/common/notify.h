/* SPDX-License-Identifier: Apache-2.0 */
/* systemd notification protocol, without its library. */
#pragma once

#include "base/time.h"

/* Reads NOTIFY_SOCKET and the watchdog's variables, and unsets them. */
void ps_notify_init(void);
/* Sends "READY=1" and the like; no-op without a service manager. */
void ps_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Interval of WATCHDOG=1; PS_TIME_NEVER: no watchdog. */
ps_time ps_notify_watchdog(void);
