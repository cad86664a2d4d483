/* SPDX-License-Identifier: Apache-2.0 */
/* What systemd wants to be told, without its library. */
#pragma once

#include "base/time.h"

/* Remembers NOTIFY_SOCKET and takes it out of the environment. */
void ps_notify_init(void);
/* Sends "READY=1" and the like; nothing without a service manager. */
void ps_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* How often to say WATCHDOG=1; PS_TIME_NEVER when nobody watches. */
ps_time ps_notify_watchdog(void);
