/* SPDX-License-Identifier: Apache-2.0 */
/* Watch for the end of the process that made a connection. The socket alone
 * does not show it while a child process holds a copy of the descriptor. */
#pragma once

#include "base/err.h"

struct ps_loop;
struct ps_process;

typedef void (*ps_process_cb)(void *ctx);

/* `ended` runs on the loop, once, when the process at the other end of the Unix
 * socket `fd` has ended; not after ps_process_close(). PS_E_UNSUPPORTED and
 * system errors: it cannot be watched. */
PS_MUST_USE int ps_process_watch(struct ps_loop *l, int fd, ps_process_cb ended,
                                 void *ctx, struct ps_process **ret_process);
void ps_process_close(struct ps_process *p); /* NULL is allowed. */
