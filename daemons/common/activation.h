/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets that a service manager opens before it starts the daemon:
 * the protocol of sd_listen_fds(3), without its library. */
#pragma once

#include "base/err.h"

struct ps_str;

struct ps_activation {
    int tcp_fd;   /* -1: none; so is the other. */
    int local_fd; /* Unix socket. */
};

/* Takes the sockets that LISTEN_PID and LISTEN_FDS announce, and unsets both.
 * The caller owns the descriptors, which are not inherited further. PS_E_INVAL,
 * with the cause in `why`: a descriptor is not a listening TCP or Unix socket,
 * or is the second of its kind. */
PS_MUST_USE int ps_activation_take(struct ps_activation *ret_sockets,
                                   struct ps_str *why);
