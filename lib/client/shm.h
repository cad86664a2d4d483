/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that this process shares with its agent. Arenas are sealed memfds, and
 * blocks are allocated from them, so that thousands of small tensors need few
 * descriptors. The allocator's records lie outside the shared memory. Knows
 * nothing of sockets: callbacks announce new and freed arenas. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define PS_SHM_ALIGN 64u

struct ps_shm_arena;

/* A block of an arena. `uses` belongs to the caller: operations that use it. */
struct ps_shm_block {
    struct ps_shm_arena *arena; /* NULL: registered memory. */
    void *data;
    size_t offset; /* Offset in the region, in bytes. */
    size_t size;
    uint32_t region; /* Number of the agent's mapping. */
    uint32_t uses;
    uint32_t used; /* Boolean; free blocks are in the list as well. */
};

struct ps_shm_hooks {
    /* Announces a new arena; an error undoes it. */
    int (*on_made)(void *ctx, uint32_t region, int fd, uint64_t size);
    void (*on_freed)(void *ctx, uint32_t region);
    /* An arena at `data` is about to be unmapped. */
    void (*on_unmap)(void *ctx, const void *data);
    void *ctx;
};

struct ps_shm_buffers;

struct ps_shm {
    struct ps_shm_arena **arenas; /* Sorted by address. */
    size_t count;
    size_t cap;
    size_t next_size; /* Size of the next arena, in bytes; grows. */
    uint32_t next_region;
    struct ps_shm_hooks hooks;
    struct ps_shm_buffers *buffers; /* Registered; NULL: none. */
};

void ps_shm_init(struct ps_shm *s, const struct ps_shm_hooks *hooks);
/* Unmaps everything without calling the hooks. */
void ps_shm_fini(struct ps_shm *s);
/* Calls on_made again for every arena, for a new agent. */
PS_MUST_USE int ps_shm_announce_all(struct ps_shm *s);

/* Allocates a block. PS_E_NOMEM, PS_E_TOOBIG, or the hook's error. */
PS_MUST_USE int ps_shm_get(struct ps_shm *s, size_t size,
                           struct ps_shm_block **ret_block);
void ps_shm_put(struct ps_shm *s, struct ps_shm_block *b);
/* The used block that contains [data, data + size), or NULL. */
struct ps_shm_block *ps_shm_find(const struct ps_shm *s, const void *data,
                                 size_t size);
/* Memory of the caller at `data`, which lies in a file. */
struct ps_shm_mapping {
    void *data;
    size_t size;
    int fd;
    uint64_t device; /* With `inode`: identity of the file. */
    uint64_t inode;
    uint64_t offset; /* Offset of `data` in the file. */
    uint64_t file_size;
};

/* Registers memory of the caller. `m` NULL: operations copy it, and it is only
 * noted. Owns the descriptor when it returns 0. PS_E_EXIST: it overlaps with
 * other registered memory; PS_E_FULL: the limit of files. */
PS_MUST_USE int ps_shm_register(struct ps_shm *s, void *data, size_t size,
                                const struct ps_shm_mapping *m);
/* Block of the registered memory that begins at `data`; NULL: none. */
struct ps_shm_block *ps_shm_registered(const struct ps_shm *s,
                                       const void *data);
/* Forgets the memory, which no operation uses. */
void ps_shm_unregister(struct ps_shm *s, struct ps_shm_block *b);

/* The arena of a block that is not registered memory. */
void *ps_shm_arena_data(const struct ps_shm_block *b, size_t *ret_size);
/* From now on freed blocks of the arena keep their pages: a device uses them by
 * their physical addresses. */
void ps_shm_keep_pages(const struct ps_shm_block *b);

/* Makes a sealed memfd of `size` bytes, zeroed and mapped read-write. The
 * caller owns both. */
PS_MUST_USE int ps_shm_make(size_t size, void **ret_data, int *ret_fd);

/* Maps a foreign descriptor read-only. PS_E_PROTO unless it is a memfd of
 * `size` bytes that cannot shrink. */
PS_MUST_USE int ps_shm_map_foreign(int fd, uint64_t size,
                                   const void **ret_data);
void ps_shm_unmap_foreign(const void *data, uint64_t size);
