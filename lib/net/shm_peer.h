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
#include "proto/ps_fixed.h"

#include <stdbool.h>
#include <stdint.h>

/* Limit on mapped arenas of one peer. */
#define PS_SHM_ARENAS_MAX 65536u

struct ps_map;
struct ps_buf;

/* Listens under the name of `address`. PS_E_EXIST: the name is in use. */
PS_MUST_USE int ps_shm_listen(const char *address, int backlog, int *ret_fd);
/* PS_E_UNREACH: nothing listens there; PS_E_PERM: another user's process
 * does. */
PS_MUST_USE int ps_shm_dial(const char *address, int *ret_fd);
/* True if the process at the other end has this process's user or root. */
bool ps_shm_peer_is_trusted(int fd);

/* Process at the other end; 0: its memory is not readable. */
uint32_t ps_shm_peer_process(int fd);
/* Maps an arena of the peer for reading; takes over the descriptor. PS_E_INVAL
 * or PS_E_NOMEM, with the reason in *ret_why. */
PS_MUST_USE int ps_shm_map_arena(int arena_fd, struct ps_buf **ret_buf,
                                 const char **ret_why);

/* Access to the memory of a peer. */
struct ps_shm_peer {
    int fd;
    uint32_t process; /* 0: only arenas are readable. */
    /* struct ps_buf by arena number; NULL: none. */
    const struct ps_map *arenas;
};
/* Copies the referenced pieces, one behind the other, to `dst`. PS_E_CLOSED:
 * the peer closed its end meanwhile and may have reused the memory; PS_E_PROTO:
 * not memory of the peer. `dst` is undefined after an error. */
PS_MUST_USE int ps_shm_read(const struct ps_shm_peer *peer,
                            const struct ps_fixed_shm_ref *pieces,
                            unsigned count, void *dst);
