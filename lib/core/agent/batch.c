/* SPDX-License-Identifier: Apache-2.0 */
/* Frames with partitions for servers: one partition, or a batch of small ones
 * of one job that leaves at the next tick, when it is full, or when a partition
 * comes that does not belong to it. */
#include "core/agent/inner.h"

#include "base/alloc.h"

#include <assert.h>

/* Lists of the message of a frame. */
struct frame {
    const struct ps_agent_batch_head *head;
    struct ps_rec_part *parts;
    struct ps_rec_rows *row_parts;
    uint64_t *name_hashes;
    uint32_t part_count;
    const struct ps_slice *slices;
    uint32_t slice_count;
};

static void send_frame(struct ps_agent_step *st, struct ps_agent_server *s,
                       const struct frame *g)
{
    const struct ps_agent_batch_head *h = g->head;
    struct ps_agent *a = st->a;
    struct ps_msg m = {.code = h->msg_code};
    struct ps_packet *packet;

    if (h->msg_code == PS_MSG_PUSH_ROWS) {
        m.push_rows.gen = h->job->gen;
        m.push_rows.epoch = a->map_epoch;
        m.push_rows.slot = h->job->slot;
        m.push_rows.incarnation = a->uplink.incarnation;
        m.push_rows.weight = h->weight;
        m.push_rows.reduce = h->reduce;
        m.push_rows.retry = h->retry;
        m.push_rows.parts = g->row_parts;
        m.push_rows.parts_count = g->part_count;
    } else if (h->msg_code == PS_MSG_INIT) {
        m.init.gen = h->job->gen;
        m.init.epoch = a->map_epoch;
        m.init.slot = h->job->slot;
        m.init.parts = g->parts;
        m.init.parts_count = g->part_count;
        m.init.name_hashes = g->name_hashes;
        m.init.name_hashes_count = h->has_name_hashes ? g->part_count : 0;
    } else {
        m.push.gen = h->job->gen;
        m.push.epoch = a->map_epoch;
        m.push.slot = h->job->slot;
        m.push.incarnation = a->uplink.incarnation;
        m.push.weight = h->weight;
        m.push.reduce = h->reduce;
        m.push.rule = h->rule;
        m.push.assign = h->assign;
        m.push.needs_value = h->needs_value;
        m.push.retry = h->retry;
        m.push.parts = g->parts;
        m.push.parts_count = g->part_count;
        m.push.name_hashes = g->name_hashes;
        m.push.name_hashes_count = h->has_name_hashes ? g->part_count : 0;
    }
    packet = ps_packet_new(&m, g->slices, g->slice_count);
    s->unsent += packet->payload_len;
    a->stats.bytes_out += packet->payload_len;
    ps_link_send(s->dialer.link, packet, st->now, st->fx);
}

void ps_agent_batch_send_alone(struct ps_agent_step *st,
                               struct ps_agent_server *s,
                               const struct ps_agent_batch_head *h,
                               struct ps_agent_batch_item *item)
{
    send_frame(st, s,
               &(struct frame){.head = h,
                               .parts = &item->part,
                               .row_parts = &item->rows,
                               .name_hashes = &item->name_hash,
                               .part_count = 1,
                               .slices = item->slice,
                               .slice_count = item->slice == NULL ? 0 : 1});
}

static void clear_batch(struct ps_agent_batch *g)
{
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->part_count = 0;
    g->slice_count = 0;
    g->payload_bytes = 0;
}

void ps_agent_batch_flush(struct ps_agent_step *st, struct ps_agent_server *s)
{
    struct ps_agent_batch *g = &s->batch;

    if (g->part_count == 0) {
        return;
    }
    send_frame(st, s,
               &(struct frame){.head = &g->head,
                               .parts = g->parts,
                               .row_parts = g->row_parts,
                               .name_hashes = g->name_hashes,
                               .part_count = g->part_count,
                               .slices = g->slices,
                               .slice_count = g->slice_count});
    clear_batch(g);
}

void ps_agent_batch_drop(struct ps_agent_batch *g, const struct ps_agent_job *j)
{
    if (g->part_count > 0 && g->head.job == j) {
        clear_batch(g);
    }
}

void ps_agent_batch_fini(struct ps_agent_batch *g)
{
    assert(g->part_count == 0);
    ps_free(g->parts);
    ps_free(g->row_parts);
    ps_free(g->name_hashes);
    ps_free(g->slices);
}

static bool is_same_head(const struct ps_agent_batch_head *g,
                         const struct ps_agent_batch_head *h)
{
    return g->msg_code == h->msg_code && g->job == h->job &&
           g->reduce == h->reduce && g->rule == h->rule &&
           g->assign == h->assign && g->needs_value == h->needs_value &&
           g->weight == h->weight && g->retry == h->retry &&
           g->has_name_hashes == h->has_name_hashes;
}

/* Returns true if a partition of `bytes` can leave with those of the batch. */
static bool fits_batch(const struct ps_agent_batch *g,
                       const struct ps_agent_batch_head *h,
                       const struct ps_agent_batch_item *item, uint64_t bytes)
{
    return is_same_head(&g->head, h) && g->part_count < PS_PARTS_MAX &&
           /* The server requires aligned elements. */
           g->payload_bytes % ps_dtype_size(item->part.dtype) == 0 &&
           g->payload_bytes + bytes <= PS_BATCH_FRAME_MAX;
}

/* Adds the slice to those of the batch, as one if they are adjacent. */
static void add_slice(struct ps_agent_batch *g, const struct ps_slice *slice)
{
    if (g->slice_count > 0 &&
        ps_slice_is_adjacent(&g->slices[g->slice_count - 1], slice)) {
        g->slices[g->slice_count - 1].len += slice->len;
        return;
    }
    g->slices[g->slice_count] = *slice;
    ps_buf_ref(slice->buf);
    g->slice_count++;
}

void ps_agent_batch_add(struct ps_agent_step *st, struct ps_agent_server *s,
                        const struct ps_agent_batch_head *h,
                        const struct ps_agent_batch_item *item)
{
    struct ps_agent_batch *g = &s->batch;
    const uint64_t bytes = item->slice == NULL ? 0 : item->slice->len;

    if (g->part_count > 0 && !fits_batch(g, h, item, bytes)) {
        ps_agent_batch_flush(st, s);
    }
    if (g->parts == NULL) {
        g->parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->parts));
        g->row_parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->row_parts));
        g->name_hashes = ps_calloc(PS_PARTS_MAX, sizeof(*g->name_hashes));
        g->slices = ps_calloc(PS_PARTS_MAX, sizeof(*g->slices));
    }
    if (g->part_count == 0) {
        g->head = *h;
    }
    g->row_parts[g->part_count] = item->rows;
    g->name_hashes[g->part_count] = item->name_hash;
    g->parts[g->part_count++] = item->part;
    if (item->slice != NULL) {
        add_slice(g, item->slice);
    }
    g->payload_bytes += bytes;
    st->a->must_flush = true;
}
