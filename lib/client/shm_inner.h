/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas of shared memory, for shm.c and shm_buffer.c only. */
#pragma once

#include <stdbool.h>

#include "client/shm.h"

struct ps_shm_arena {
    uint8_t *data;
    size_t size;
    int fd; /* Kept for the next agent. */
    uint32_t region;
    bool keeps_pages;             /* See ps_shm_keep_pages(). */
    uint32_t used;                /* Blocks in use. */
    struct ps_shm_block **blocks; /* Sorted by offset, without gaps. */
    size_t count;
    size_t cap;
    size_t first_free;  /* No block with a lower index is free. */
    size_t search_hint; /* Index of the block found last. */
};

/* Announces memory of `size` bytes by a copy of the descriptor. */
PS_MUST_USE int ps_shm_announce(const struct ps_shm *s, uint32_t region, int fd,
                                uint64_t size);
/* As ps_shm_find(), in registered buffers. */
struct ps_shm_block *ps_shm_find_buffer(const struct ps_shm *s,
                                        const void *data, size_t size);
PS_MUST_USE int ps_shm_announce_buffers(const struct ps_shm *s);
void ps_shm_free_buffers(struct ps_shm *s);
