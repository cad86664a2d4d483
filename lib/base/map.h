/* SPDX-License-Identifier: Apache-2.0 */
/* Map from u64 to pointer with iteration in order of insertion, so that nothing
 * depends on addresses or on a hash seed. The map does not own values. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ps_map;

struct ps_map *ps_map_new(void);
void ps_map_free(struct ps_map *m); /* NULL: no effect. */
/* Returns the value; NULL: absent. */
void *ps_map_get(const struct ps_map *m, uint64_t key);
/* The key must be absent and the value not NULL. */
void ps_map_put(struct ps_map *m, uint64_t key, void *value);
/* Returns the removed value; NULL: absent. */
void *ps_map_remove(struct ps_map *m, uint64_t key);
size_t ps_map_count(const struct ps_map *m);

/* Iteration: start with a zeroed cursor; NULL at the end. The map may change in
 * between: removed entries are left out, new ones come last. */
struct ps_map_cursor {
    uint64_t key;
    uint64_t serial; /* Least serial of the next entry. */
    uint32_t at;     /* Index of the next entry if no entry has moved. */
};
void *ps_map_next(const struct ps_map *m, struct ps_map_cursor *c);
/* Loop over the values, each of `type`, with a cursor of its own. */
#define PS_MAP_EACH(type, value, map)                                          \
    for (struct ps_map_cursor value##_cursor = {0},                            \
                              *value##_at = &value##_cursor;                   \
         value##_at != NULL; value##_at = NULL)                                \
        for (type * value; (value = ps_map_next(map, value##_at)) != NULL;)
