/* SPDX-License-Identifier: Apache-2.0 */
/* Binary heap of embedded items: least key first, first-in first-out among
 * equal keys. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_heap_item {
    uint64_t key;
    uint64_t order; /* Set by the heap. */
    size_t index;   /* Position + 1; 0: not in a heap. */
};

struct ps_heap {
    struct ps_heap_item **items;
    size_t count;
    size_t capacity;
    uint64_t next_order;
};

void ps_heap_init(struct ps_heap *h);
void ps_heap_fini(struct ps_heap *h); /* Items must be gone or forgotten. */
void ps_heap_push(struct ps_heap *h, struct ps_heap_item *item, uint64_t key);
struct ps_heap_item *ps_heap_peek(const struct ps_heap *h);
struct ps_heap_item *ps_heap_pop(struct ps_heap *h);
/* Asserts membership. */
void ps_heap_remove(struct ps_heap *h, struct ps_heap_item *item);
/* Change the key; the item goes behind equals. Pushes it when it is out. */
void ps_heap_update(struct ps_heap *h, struct ps_heap_item *item, uint64_t key);

static inline bool ps_heap_linked(const struct ps_heap_item *item)
{
    return item->index != 0;
}
