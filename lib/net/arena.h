/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is shared with other processes: a few large memfds, sealed in
 * size, from which a pool is fed. Whoever gets a descriptor can map it for
 * reading only. The tag of a buffer is the arena's number, never used again,
 * and its offset counts from the arena's start. Numbers begin at 1. */
#pragma once

#include "base/err.h"
#include "base/pool.h"

#include <stddef.h>
#include <stdint.h>

/* The most of one, unless more is asked for at a time. */
#define PS_ARENA_SIZE (64u * 1024u * 1024u)

struct ps_arenas;

struct ps_arenas *ps_arenas_new(void);
/* The pool must be gone. NULL is fine. */
void ps_arenas_free(struct ps_arenas *a);
/* Each source has arenas of its own: what one pool gets never lies in an
 * arena of another. */
struct ps_pool_source ps_arenas_source(struct ps_arenas *a);
/* Anonymous memory (tag 0), which has larger pages, until somebody is there to
 * share it with: arenas after ps_arenas_enable_sharing(). For a pool that outlasts its
 * users: arenas are small as long as there are few, so that one with a piece in
 * use keeps little of what was given back around it. */
struct ps_pool_source ps_arenas_lazy_source(struct ps_arenas *a);
void ps_arenas_enable_sharing(struct ps_arenas *a);
/* The descriptor of an arena, still ours, and its size. PS_E_NOENT. */
PS_MUST_USE int ps_arenas_fd(const struct ps_arenas *a, uint32_t arena,
                             int *ret_fd, uint64_t *ret_size);
/* Memory of `size` bytes, zeros, sealed in size, that whoever gets a descriptor
 * can write as well: what it keeps open outlives this process. The tag of the
 * buffer is its number, drawn at random, so that it is not that of what another
 * process has made. PS_E_NOMEM. */
PS_MUST_USE int ps_arenas_create_segment(struct ps_arenas *a, size_t size,
                                         struct ps_buf **ret_buf);
/* Such memory, from a stranger; the tag is a number of ours. Takes over the
 * descriptor. Else as ps_local_map. */
PS_MUST_USE int ps_arenas_adopt_segment(struct ps_arenas *a, int fd,
                                        uint64_t size, struct ps_buf **ret_buf,
                                        const char **ret_why);
/* The descriptor of that, still ours. PS_E_NOENT. */
PS_MUST_USE int ps_arenas_segment_fd(const struct ps_arenas *a, uint32_t number,
                                     int *ret_fd);
/* How many arenas have been freed: who has told others of some looks again
 * when this changes. */
uint64_t ps_arenas_freed_count(const struct ps_arenas *a);
