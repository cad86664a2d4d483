/* SPDX-License-Identifier: Apache-2.0 */
/* What is special about Unix sockets: a file that can be left over, a peer
 * whose user the kernel knows, and memory that arrives as a descriptor. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Binds and listens on `path` with these permission bits. A socket file that
 * nobody listens on any more is replaced; of several that do so at once, one
 * succeeds. PS_E_EXIST: somebody listens there, or it is no socket;
 * PS_E_TOOBIG: the path is longer than the system takes; others, with errno:
 * the system refuses it. */
PS_MUST_USE int ps_local_listen(const char *path, unsigned mode, int backlog,
                                int *ret_fd);
/* Removes the file when nobody listens on it any more. */
void ps_local_remove(const char *path);

struct ps_local_peer {
    uint32_t uid;
    uint32_t gid;
    uint32_t pid; /* For humans: numbers are used again. */
};
PS_MUST_USE int ps_local_peer(int fd, struct ps_local_peer *ret_peer);

/* Maps the memory behind a descriptor from a stranger, read-only. It must be a
 * memfd of exactly `size` > 0 bytes that can neither shrink nor grow any more,
 * so that reading it can never fault. Takes over the descriptor in any case.
 * The buffer unmaps it at its last unref. PS_E_INVAL with the reason in
 * *ret_why, a constant; PS_E_NOMEM, with errno too. */
PS_MUST_USE int ps_local_map(int fd, uint64_t size, struct ps_buf **ret_buf,
                             const char **ret_why);
/* The same, to be written by both sides: whatever is read there may change at
 * any time. */
PS_MUST_USE int ps_local_map_shared(int fd, uint64_t size,
                                    struct ps_buf **ret_buf,
                                    const char **ret_why);
