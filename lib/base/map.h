/* SPDX-License-Identifier: Apache-2.0 */
/* Map from u64 to pointer; iterates in order of insertion, so that nothing
 * depends on addresses or on a hash seed. The map owns no values. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ps_map;

struct ps_map *ps_map_new(void);
void ps_map_free(struct ps_map *m); /* NULL is fine. */
/* NULL when absent. */
void *ps_map_get(const struct ps_map *m, uint64_t key);
/* The key must be absent, the value not NULL. */
void ps_map_put(struct ps_map *m, uint64_t key, void *value);
/* Returns what was removed, or NULL. */
void *ps_map_remove(struct ps_map *m, uint64_t key);
size_t ps_map_count(const struct ps_map *m);

/* Iteration: start with a zeroed cursor; NULL at the end. The map may change
 * meanwhile: what is taken before its turn is left out, what is put comes in
 * the end. */
struct ps_map_cursor {
    uint64_t key;
    uint64_t serial; /* Of the next one, at least. */
    uint32_t at;     /* Where it is, most likely. */
};
void *ps_map_next(const struct ps_map *m, struct ps_map_cursor *c);
