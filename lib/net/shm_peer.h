/* SPDX-License-Identifier: Apache-2.0 */
/* Same-host peers: discovery, and access to referenced payloads.
 *
 * A server also listens on a Unix socket in the abstract name space, under its
 * advertised address. That name space belongs to a network name space, as
 * addresses do: a peer that finds the name means the same address, and any
 * other uses TCP. Only processes of one user (or of root) connect to each other
 * there.
 *
 * On such a connection a payload is sent by reference, and the receiver copies
 * it from the sender's memory straight to its destination: one copy instead of
 * two through the kernel. Memory in an arena (net/arena.h) is read through a
 * mapping of it, whose descriptor the sender passes once; other memory by
 * process_vm_readv(), where the system permits it: whatever address the peer
 * sends, the kernel checks it and only the peer's memory is read. */
#pragma once

#include "base/err.h"

#include <stdbool.h>

/* Listens under the name of `address`. PS_E_EXIST: the name is in use. */
PS_MUST_USE int ps_shm_listen(const char *address, int backlog, int *ret_fd);
/* PS_E_UNREACH: nothing listens there; PS_E_PERM: another user's process
 * does. */
PS_MUST_USE int ps_shm_dial(const char *address, int *ret_fd);
/* True if the process at the other end has this process's user or root. */
bool ps_shm_peer_is_trusted(int fd);
