/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared with other processes: a few large memfds, sealed in size, that
 * feed a pool. A process that receives the descriptor can map an arena for
 * reading only. The tag of a buffer is the number of its arena, from 1 and
 * never used again; its offset counts from the start of the arena. Segments are
 * writable on both sides and outlive this process. */
#pragma once

#include "base/err.h"
#include "base/pool.h"

#include <stddef.h>
#include <stdint.h>

/* Size limit of one arena, unless a single request is larger. */
#define PS_ARENA_SIZE (64u * 1024u * 1024u)

struct ps_arenas;

struct ps_arenas *ps_arenas_new(void);
/* Requires that the pool is freed. NULL is allowed. */
void ps_arenas_free(struct ps_arenas *a);
/* Source whose arenas serve one pool only: no two pools share an arena. */
struct ps_pool_source ps_arenas_source(struct ps_arenas *a);
/* Source of anonymous memory (tag 0), which gets larger pages, until
 * ps_arenas_enable_sharing(); of arenas after that. For a pool that outlives
 * its users: arenas are small while there are few, so that a block in use pins
 * little free memory around it. */
struct ps_pool_source ps_arenas_lazy_source(struct ps_arenas *a);
void ps_arenas_enable_sharing(struct ps_arenas *a);
/* Adds an arena of which no pool is made here, and returns its number. Takes over
 * the descriptor, which peers get: it must permit reading only. */
uint32_t ps_arenas_add(struct ps_arenas *a, int fd, uint64_t size);
/* Descriptor of an arena, borrowed, and its size. PS_E_NOENT. */
PS_MUST_USE int ps_arenas_fd(const struct ps_arenas *a, uint32_t arena,
                             int *ret_fd, uint64_t *ret_size);
/* Creates a zeroed segment of `size` bytes, sealed in size, which every holder
 * of its descriptor can write; a descriptor that a peer keeps open outlives
 * this process. The tag of the buffer is the segment's number, drawn at random
 * so that it differs from those of other processes. PS_E_NOMEM. */
PS_MUST_USE int ps_arenas_create_segment(struct ps_arenas *a, size_t size,
                                         struct ps_buf **ret_buf);
/* Maps a segment received from an untrusted peer; the tag is a number drawn
 * here. Takes over the descriptor. Errors as ps_local_map(). */
PS_MUST_USE int ps_arenas_adopt_segment(struct ps_arenas *a, int fd,
                                        uint64_t size, struct ps_buf **ret_buf,
                                        const char **ret_why);
/* Descriptor of a segment, borrowed. PS_E_NOENT. */
PS_MUST_USE int ps_arenas_segment_fd(const struct ps_arenas *a, uint32_t number,
                                     int *ret_fd);
/* Number of arenas freed so far. A sender that has announced arenas to a peer
 * checks them again when it changes. */
uint64_t ps_arenas_freed_count(const struct ps_arenas *a);
