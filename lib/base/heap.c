/* SPDX-License-Identifier: Apache-2.0 */
/* Binary heap of pointers to embedded items. Each item stores its index, so
 * that it can be removed from the middle; a serial number breaks ties, so that
 * equal keys leave in the order of insertion. */
#include "base/heap.h"

#include "base/alloc.h"

#include <assert.h>

static bool is_before(const struct ps_heap_item *a,
                      const struct ps_heap_item *b)
{
    return a->key < b->key || (a->key == b->key && a->order < b->order);
}

static void put_at(struct ps_heap *h, size_t i, struct ps_heap_item *item)
{
    h->items[i] = item;
    item->index = i + 1;
}

static void sift_up(struct ps_heap *h, size_t i, struct ps_heap_item *item)
{
    while (i > 0) {
        size_t parent = (i - 1) / 2;

        if (!is_before(item, h->items[parent])) {
            break;
        }
        put_at(h, i, h->items[parent]);
        i = parent;
    }
    put_at(h, i, item);
}

static void sift_down(struct ps_heap *h, size_t i, struct ps_heap_item *item)
{
    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= h->count) {
            break;
        }
        if (child + 1 < h->count &&
            is_before(h->items[child + 1], h->items[child])) {
            child++;
        }
        if (!is_before(h->items[child], item)) {
            break;
        }
        put_at(h, i, h->items[child]);
        i = child;
    }
    put_at(h, i, item);
}

static void sift(struct ps_heap *h, size_t i, struct ps_heap_item *item)
{
    if (i > 0 && is_before(item, h->items[(i - 1) / 2])) {
        sift_up(h, i, item);
    } else {
        sift_down(h, i, item);
    }
}

void ps_heap_init(struct ps_heap *h)
{
    *h = (struct ps_heap){0};
}

void ps_heap_fini(struct ps_heap *h)
{
    ps_free(h->items);
    *h = (struct ps_heap){0};
}

void ps_heap_push(struct ps_heap *h, struct ps_heap_item *item, uint64_t key)
{
    assert(item->index == 0);
    if (h->count == h->capacity) {
        h->capacity = h->capacity == 0 ? 16 : h->capacity * 2;
        h->items = ps_realloc(h->items, h->capacity * sizeof(void *));
    }
    item->key = key;
    item->order = h->next_order++;
    sift_up(h, h->count++, item);
}

struct ps_heap_item *ps_heap_peek(const struct ps_heap *h)
{
    return h->count == 0 ? NULL : h->items[0];
}

struct ps_heap_item *ps_heap_pop(struct ps_heap *h)
{
    struct ps_heap_item *item = ps_heap_peek(h);

    if (item != NULL) {
        ps_heap_remove(h, item);
    }
    return item;
}

void ps_heap_remove(struct ps_heap *h, struct ps_heap_item *item)
{
    size_t i = item->index - 1;

    assert(item->index != 0 && i < h->count && h->items[i] == item);
    item->index = 0;
    h->count--;
    if (i < h->count) {
        sift(h, i, h->items[h->count]);
    }
}

void ps_heap_update(struct ps_heap *h, struct ps_heap_item *item, uint64_t key)
{
    if (item->index == 0) {
        ps_heap_push(h, item, key);
        return;
    }
    assert(item->index <= h->count && h->items[item->index - 1] == item);
    item->key = key;
    item->order = h->next_order++;
    sift(h, item->index - 1, item);
}
