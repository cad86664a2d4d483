/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that this process shares with its agent: arenas are sealed memfds,
 * and arrays are cut from them, so that thousands of small tensors cost few
 * descriptors. What is used and free is kept outside the shared memory. Knows
 * nothing of sockets: who makes an arena is told of it through a callback. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define PS_SHM_ALIGN 64u

struct ps_shm_arena;

/* A used piece. `uses` belongs to the caller: operations that name it. */
struct ps_shm_block {
    struct ps_shm_arena *arena;
    size_t offset; /* In the arena. */
    size_t size;
    uint32_t uses;
    uint32_t used; /* Bool; free pieces lie between used ones. */
};

struct ps_shm_hooks {
    /* A new arena: its number, its descriptor, which the callee owns when it
     * returns 0, and its size. An error undoes the arena. */
    int (*on_made)(void *ctx, uint32_t region, int fd, uint64_t size);
    void (*on_freed)(void *ctx, uint32_t region);
    void *ctx;
};

struct ps_shm {
    struct ps_shm_arena **arenas; /* By address. */
    size_t count;
    size_t cap;
    size_t next_size; /* Of the next arena: they grow. */
    uint32_t next_region;
    struct ps_shm_hooks hooks;
};

void ps_shm_init(struct ps_shm *s, const struct ps_shm_hooks *hooks);
/* Unmaps everything without a word to the hooks. */
void ps_shm_fini(struct ps_shm *s);
/* Says `made` of every arena once more, for who has not heard of them. */
PS_MUST_USE int ps_shm_announce_all(struct ps_shm *s);

/* PS_E_NOMEM, PS_E_TOOBIG, or what the hook said. */
PS_MUST_USE int ps_shm_get(struct ps_shm *s, size_t size,
                           struct ps_shm_block **ret_block);
void ps_shm_put(struct ps_shm *s, struct ps_shm_block *b);
/* The used piece that holds all of [data, data + size), or NULL. */
struct ps_shm_block *ps_shm_find(const struct ps_shm *s, const void *data,
                                 size_t size);
void *ps_shm_data(const struct ps_shm_block *b);
uint32_t ps_shm_region(const struct ps_shm_block *b);

/* A sealed memfd of `size` bytes, all zero, mapped to read and write. The
 * caller owns both. */
PS_MUST_USE int ps_shm_make(size_t size, void **ret_data, int *ret_fd);

/* What a foreign descriptor must be before it is mapped: a memfd that cannot
 * shrink, of `size` bytes. PS_E_PROTO otherwise. Maps it read-only. */
PS_MUST_USE int ps_shm_map_foreign(int fd, uint64_t size,
                                   const void **ret_data);
void ps_shm_unmap_foreign(const void *data, uint64_t size);
