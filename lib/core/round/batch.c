/* SPDX-License-Identifier: Apache-2.0 */
#include "core/round/batch.h"

#include "base/alloc.h"

#include <assert.h>

#define FIRST_CAPACITY 4u

/* Most batches have one partition or a few, so the memory grows with them. */
static void grow(struct ps_batch *g)
{
    g->capacity = g->capacity == 0 ? FIRST_CAPACITY : 2 * g->capacity;
    g->parts = ps_realloc(g->parts, g->capacity * sizeof(*g->parts));
    g->slices = ps_realloc(g->slices, g->capacity * sizeof(*g->slices));
}

/* Appends the slice, or makes the last one longer. */
static void add_slice(struct ps_batch *g, const struct ps_slice *slice)
{
    if (g->slice_count > 0 &&
        ps_slice_is_adjacent(&g->slices[g->slice_count - 1], slice)) {
        g->slices[g->slice_count - 1].len += slice->len;
    } else {
        g->slices[g->slice_count++] = *slice;
        ps_buf_ref(slice->buf);
    }
    g->payload_bytes += slice->len;
}

uint32_t ps_batch_add(struct ps_batch *g, const struct ps_rec_part *part,
                      const struct ps_slice *slice)
{
    assert(ps_batch_has_room(g, slice != NULL ? slice->len : 0));
    if (g->part_count == g->capacity) {
        grow(g);
    }
    if (slice != NULL) {
        add_slice(g, slice);
    }
    g->parts[g->part_count] = *part;
    return g->part_count++;
}

void ps_batch_clear(struct ps_batch *g)
{
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->part_count = 0;
    g->slice_count = 0;
    g->payload_bytes = 0;
}

void ps_batch_fini(struct ps_batch *g)
{
    ps_batch_clear(g);
    ps_free(g->parts);
    ps_free(g->slices);
    g->parts = NULL;
    g->slices = NULL;
    g->capacity = 0;
}
