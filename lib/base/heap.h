/* SPDX-License-Identifier: Apache-2.0 */
/* Binary heap of embedded items: least key first, first-in first-out among
 * equal keys. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_heap_item {
    uint64_t key;
    uint64_t order; /* Serial number, set by the heap. */
    size_t index;   /* Position + 1; 0: not in a heap. */
};

struct ps_heap {
    struct ps_heap_item **items;
    size_t count;
    size_t capacity;
    uint64_t next_order;
};

void ps_heap_init(struct ps_heap *h);
/* Items still in the heap must not be used again. */
void ps_heap_fini(struct ps_heap *h);
void ps_heap_push(struct ps_heap *h, struct ps_heap_item *item, uint64_t key);
struct ps_heap_item *ps_heap_peek(const struct ps_heap *h);
struct ps_heap_item *ps_heap_pop(struct ps_heap *h);
/* Least key; UINT64_MAX: the heap is empty. */
static inline uint64_t ps_heap_least(const struct ps_heap *h)
{
    return h->count == 0 ? UINT64_MAX : h->items[0]->key;
}
/* The item must be in the heap. */
void ps_heap_remove(struct ps_heap *h, struct ps_heap_item *item);
/* Changes the key and moves the item behind those with an equal key. Pushes it
 * if it is in no heap. */
void ps_heap_update(struct ps_heap *h, struct ps_heap_item *item, uint64_t key);

static inline bool ps_heap_linked(const struct ps_heap_item *item)
{
    return item->index != 0;
}
