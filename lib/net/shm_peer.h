/* SPDX-License-Identifier: Apache-2.0 */
/* Peers on the same host: how they find each other, and how one reads what the
 * other points at.
 *
 * A server also listens on a Unix socket in the abstract name space, under its
 * advertised address. That name space belongs to a network name space, as
 * addresses do: who finds somebody there is where the address means the same,
 * and who does not goes by TCP. Only processes of one user (or of root) talk
 * to each other there.
 *
 * On such a connection a payload is not written but pointed at, and the
 * receiver copies it from the sender's memory straight to where it is to lie:
 * once instead of into the kernel and out again. What lies in an arena
 * (net/arena.h) is read through a mapping of it, whose descriptor the sender
 * passes once; what lies elsewhere by process_vm_readv(), where the system lets
 * us: whatever address the peer says, it is the peer's memory that is read and
 * the kernel that checks it. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_SHM_REFS_MAX   4u
/* Arenas of one peer that are mapped at a time. */
#define PS_SHM_ARENAS_MAX 65536u

struct ps_map;
struct ps_buf;

struct ps_shm_ref {
    uint64_t address; /* In the peer's memory, or ps_shm_arena_address(). */
    uint64_t len;
};

/* A place in an arena as an address, which no process has; 0: out of reach. */
uint64_t ps_shm_arena_address(uint32_t arena, uint64_t offset);

/* PS_E_EXIST: somebody listens there already. */
PS_MUST_USE int ps_shm_listen(const char *address, int backlog, int *ret_fd);
/* PS_E_UNREACH: nobody listens there; PS_E_PERM: somebody of another user. */
PS_MUST_USE int ps_shm_dial(const char *address, int *ret_fd);
/* May we talk to who is at the other end? */
bool ps_shm_peer_is_trusted(int fd);

/* The process at the other end, 0: we cannot read its memory. */
uint32_t ps_shm_peer_process(int fd);
/* Maps an arena of the peer for reading; takes over the descriptor. Else
 * PS_E_INVAL or PS_E_NOMEM, and why. */
PS_MUST_USE int ps_shm_map_arena(int arena_fd, struct ps_buf **ret_buf,
                                 const char **ret_why);

/* Who is at the other end, and what of it can be read. */
struct ps_shm_peer {
    int fd;
    uint32_t process;            /* 0: only arenas. */
    const struct ps_map *arenas; /* Of struct ps_buf, by number; NULL: none. */
};
/* Copies the pieces, one behind the other, to `dst`. PS_E_CLOSED: the peer
 * closed its end meanwhile, so it need not have kept them; PS_E_PROTO: they
 * are no memory of the peer's. Undefined bytes in `dst` then. */
PS_MUST_USE int ps_shm_read(const struct ps_shm_peer *peer,
                            const struct ps_shm_ref *pieces, unsigned count,
                            void *dst);
