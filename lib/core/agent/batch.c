/* SPDX-License-Identifier: Apache-2.0 */
/* Frames with partitions for servers: one partition, or a batch of small ones
 * of one job that leaves at the next tick, when it is full, or when a partition
 * comes that does not belong to it. */
#include "core/agent/batch.h"

#include "base/alloc.h"
#include "core/agent/inner.h"

#include <assert.h>

/* Number of first_elems that are sent: none if all are 0. */
static uint32_t first_elems_count(const struct ps_agent_batch *g)
{
    for (uint32_t i = 0; g->head.has_name_hashes && i < g->parts.part_count;
         i++) {
        if (g->first_elems[i] != 0) {
            return g->parts.part_count;
        }
    }
    return 0;
}

static void send_frame(struct ps_agent_step *st, struct ps_agent_server *s,
                       const struct ps_agent_batch *g)
{
    const struct ps_agent_batch_head *h = &g->head;
    struct ps_agent *a = st->a;
    struct ps_msg m = {.code = h->msg_code};
    struct ps_packet *packet;

    if (h->msg_code == PS_MSG_PUSH_ROWS) {
        m.push_rows.gen = h->job->gen;
        m.push_rows.epoch = a->servers.map_epoch;
        m.push_rows.slot = h->job->slot;
        m.push_rows.incarnation = a->uplink.incarnation;
        m.push_rows.weight = h->weight;
        m.push_rows.reduce = h->reduce;
        m.push_rows.retry = h->retry;
        m.push_rows.parts = g->row_parts;
        m.push_rows.parts_count = g->parts.part_count;
    } else if (h->msg_code == PS_MSG_INIT) {
        m.init.gen = h->job->gen;
        m.init.epoch = a->servers.map_epoch;
        m.init.slot = h->job->slot;
        m.init.parts = g->parts.parts;
        m.init.parts_count = g->parts.part_count;
        m.init.name_hashes = g->name_hashes;
        m.init.name_hashes_count = h->has_name_hashes ? g->parts.part_count : 0;
        m.init.first_elems = g->first_elems;
        m.init.first_elems_count = first_elems_count(g);
    } else {
        m.push.gen = h->job->gen;
        m.push.epoch = a->servers.map_epoch;
        m.push.slot = h->job->slot;
        m.push.incarnation = a->uplink.incarnation;
        m.push.weight = h->weight;
        m.push.reduce = h->reduce;
        m.push.rule = h->rule;
        m.push.assign = h->assign;
        m.push.needs_value = h->needs_value;
        m.push.retry = h->retry;
        m.push.parts = g->parts.parts;
        m.push.parts_count = g->parts.part_count;
        m.push.name_hashes = g->name_hashes;
        m.push.name_hashes_count = h->has_name_hashes ? g->parts.part_count : 0;
        m.push.first_elems = g->first_elems;
        m.push.first_elems_count = first_elems_count(g);
    }
    packet = ps_packet_new(&m, g->parts.slices, g->parts.slice_count);
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
               &(struct ps_agent_batch){
                   .head = *h,
                   .parts = {.parts = &item->part,
                             .slices = (struct ps_slice *)item->slice,
                             .part_count = 1,
                             .slice_count = item->slice == NULL ? 0 : 1},
                   .name_hashes = &item->name_hash,
                   .first_elems = &item->first_elem,
                   .row_parts = &item->rows});
}

void ps_agent_batch_flush(struct ps_agent_step *st, struct ps_agent_server *s)
{
    struct ps_agent_batch *g = &s->batch;

    if (!ps_batch_is_empty(&g->parts)) {
        send_frame(st, s, g);
        ps_batch_clear(&g->parts);
    }
}

void ps_agent_batch_drop(struct ps_agent_batch *g, const struct ps_agent_job *j)
{
    if (g->head.job == j) {
        ps_batch_clear(&g->parts);
    }
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
    return is_same_head(&g->head, h) && ps_batch_has_room(&g->parts, bytes) &&
           /* The server requires aligned elements. */
           g->parts.payload_bytes % ps_dtype_size(item->part.dtype) == 0;
}

void ps_agent_batch_add(struct ps_agent_step *st, struct ps_agent_server *s,
                        const struct ps_agent_batch_head *h,
                        const struct ps_agent_batch_item *item)
{
    struct ps_agent_batch *g = &s->batch;
    const uint64_t bytes = item->slice == NULL ? 0 : item->slice->len;

    if (!ps_batch_is_empty(&g->parts) && !fits_batch(g, h, item, bytes)) {
        ps_agent_batch_flush(st, s);
    }
    if (g->row_parts == NULL) {
        g->row_parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->row_parts));
        g->name_hashes = ps_calloc(PS_PARTS_MAX, sizeof(*g->name_hashes));
        g->first_elems = ps_calloc(PS_PARTS_MAX, sizeof(*g->first_elems));
    }
    if (ps_batch_is_empty(&g->parts)) {
        g->head = *h;
    }
    const uint32_t place = ps_batch_add(&g->parts, &item->part, item->slice);

    g->row_parts[place] = item->rows;
    g->name_hashes[place] = item->name_hash;
    g->first_elems[place] = item->first_elem;
    st->a->must_flush = true;
}
