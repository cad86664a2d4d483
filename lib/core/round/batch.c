/* SPDX-License-Identifier: Apache-2.0 */
#include "core/round/batch.h"

#include "base/alloc.h"

#include <assert.h>

/* Appends the slice, or makes the last one longer. */
static void add_slice(struct ps_batch *g, const struct ps_slice *slice)
{
    if (g->slices == NULL) {
        g->slices = ps_calloc(PS_PARTS_MAX, sizeof(*g->slices));
    }
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
    if (g->parts == NULL) {
        g->parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->parts));
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
}
