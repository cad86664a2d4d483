/* SPDX-License-Identifier: Apache-2.0 */
/* Services of the system and of the service manager: listening sockets
 * that are open before it starts (the protocol of sd_listen_fds(3)), systemd's
 * notifications, both without its library; memory that other processes of its
 * user cannot read; and texts for operators, why a daemon cannot listen. */
#pragma once

#include "base/err.h"
#include "base/time.h"

#include <stdbool.h>

/* Advice after ps_listen_tcp() or ps_local_listen() failed with `rc` and
 * `errnum` in errno. Never NULL. */
const char *ps_advice_tcp(int rc, int errnum);
const char *ps_advice_local(int rc, int errnum);

struct ps_str;

struct ps_activation {
    int tcp_fd;   /* -1: none; so are the others. */
    int local_fd; /* Unix socket. */
    int state_fd; /* Of name PS_KEEPER_NAME in the manager's store. */
};

/* Takes the descriptors that LISTEN_PID and LISTEN_FDS announce, and unsets
 * both. The caller owns the descriptors, which are not inherited further. PS_E_INVAL,
 * with the cause in `why`: a descriptor is not a listening TCP or Unix socket,
 * or is the second of its kind. */
PS_MUST_USE int ps_activation_take(struct ps_activation *ret_sockets,
                                   struct ps_str *why);

/* Reads NOTIFY_SOCKET and the watchdog's variables, and unsets them. */
void ps_notify_init(void);
/* Sends "READY=1" and the like; no-op without a service manager. */
void ps_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Has the service manager store the descriptor under this name, in place of what
 * it has of that name; -1: in place of nothing. False: there is no manager with a
 * store. */
bool ps_notify_store(const char *name, int fd);
/* Interval of WATCHDOG=1; PS_TIME_NEVER: no watchdog. */
ps_time ps_notify_watchdog(void);

/* Turns off core dumps, and reading of this process's memory by others without
 * CAP_SYS_PTRACE (ptrace, /proc/PID/mem, process_vm_readv); for the rest of the
 * process's life. The kernel gives the files of /proc/PID to root meanwhile.
 * False, with errno: the system refuses. */
bool ps_private_memory(void);
