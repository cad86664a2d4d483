/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets: stale socket files, peer credentials, the end of the peer's
 * process, and memory received as a descriptor. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_loop;
struct ps_process;

/* Group of a socket file: that of this process. */
#define PS_LOCAL_OWN_GROUP UINT32_MAX

struct ps_local_options {
    unsigned mode; /* Permission bits of the socket file. */
    uint32_t gid;  /* Group of the socket file, or PS_LOCAL_OWN_GROUP. */
    int backlog;
};

/* Binds and listens on `path`. A stale socket file is replaced; of several concurrent callers, one succeeds. PS_E_EXIST: a
 * process listens there, or the file is no socket; PS_E_TOOBIG: the path is
 * longer than the system allows; others, with errno: the system refuses it. */
PS_MUST_USE int ps_local_listen(const char *path,
                                const struct ps_local_options *opt,
                                int *ret_fd);
/* True if the socket is bound to `path`. */
bool ps_local_is_at(int fd, const char *path);
/* Removes the socket file if no process listens on it. */
void ps_local_remove(const char *path);

struct ps_local_peer {
    uint32_t uid;
    uint32_t gid;
    uint32_t pid; /* For logs only: numbers are reused. */
};
PS_MUST_USE int ps_local_peer(int fd, struct ps_local_peer *ret_peer);

/* Maps the memory behind a descriptor from an untrusted peer, with PROT_READ, or
 * with PROT_READ | PROT_WRITE if both sides write, whose content may change at any
 * time. It must be a memfd of exactly `size` > 0 bytes, sealed against shrinking
 * and growing, so that a read never faults. Takes over the descriptor in any case.
 * The buffer unmaps it at its last unref. PS_E_INVAL with the reason in *ret_why,
 * a constant; PS_E_NOMEM, with errno too. */
PS_MUST_USE int ps_local_map(int fd, uint64_t size, int prot,
                             struct ps_buf **ret_buf, const char **ret_why);

/* ---------------------------------------------------------------- unmapping */

/* Unmapping without a wait. The kernel needs about 0.2 s to free a GiB of pages,
 * during which an event loop would serve nobody: the end of one job would be a
 * pause of all others. So a thread of the lowest priority does it. */

/* Unmaps `size` bytes, a mapping of whole pages: before it returns if they are
 * few, else soon after. The caller must not use them any more. A descriptor of
 * the memory is to be closed before, so that the thread is the last to hold it.
 * Any thread may call it. */
void ps_unmap(void *data, size_t size);

/* --------------------------------------------- end of the process of a peer */

/* Watch for the end of the process that made a connection. The socket alone
 * does not show it while a child process holds a copy of the descriptor. */

typedef void (*ps_process_cb)(void *ctx);

/* `ended` runs on the loop, once, when the process at the other end of the Unix
 * socket `fd` has ended; not after ps_process_close(). PS_E_UNSUPPORTED and
 * system errors: it cannot be watched. */
PS_MUST_USE int ps_process_watch(struct ps_loop *l, int fd, ps_process_cb ended,
                                 void *ctx, struct ps_process **ret_process);
void ps_process_close(struct ps_process *p); /* NULL is allowed. */
