/* SPDX-License-Identifier: Apache-2.0 */
/* Placement of a key's partitions on servers. When a new placement gives a
 * partition to another owner, the agent sends it the newest local version (rule
 * V2) and then everything that is not committed (rule V3). */
#include "core/agent/placement.h"

#include "base/alloc.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/opt_state.h"
#include "core/agent/part.h"
#include "core/agent/server.h"
#include "proto/ps_fixed.h"

/* False: no such record. */
static bool read_placement_part(const struct ps_slice *payload, uint32_t i,
                                struct ps_fixed_placement_part *ret_row)
{
    return ps_fixed_get_placement_part(
        ps_slice_data(payload) + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
        ret_row);
}

bool ps_agent_placement_covers(const struct ps_agent_key *k,
                               const struct ps_msg_key_opened *m,
                               const struct ps_slice *payload)
{
    uint64_t total = 0;

    if (m->parts == 0 || m->parts > PS_KEY_PARTS_MAX || payload == NULL ||
        payload->buf == NULL ||
        payload->len != PS_FIXED_PLACEMENT_PART_BYTES * (size_t)m->parts) {
        return false;
    }
    for (uint32_t i = 0; i < m->parts; i++) {
        struct ps_fixed_placement_part row;

        if (!read_placement_part(payload, i, &row) ||
            !k->kind->part_fits_frame(k, row.count)) {
            return false;
        }
        total += row.count;
    }
    return total == k->count;
}

int ps_agent_placement_build(struct ps_agent_key *k,
                             const struct ps_msg_key_opened *m,
                             const struct ps_slice *payload)
{
    uint64_t first = 0;

    k->parts = ps_try_calloc(m->parts, sizeof(*k->parts));
    if (k->parts == NULL) {
        return PS_E_NOMEM;
    }
    k->part_count = m->parts;
    for (uint32_t i = 0; i < m->parts; i++) {
        struct ps_agent_part *p = &k->parts[i];
        struct ps_fixed_placement_part row;

        if (!read_placement_part(payload, i, &row)) {
            return PS_E_INVAL;
        }
        p->key = k;
        p->index = i;
        p->owner_node = row.node;
        p->count = row.count;
        p->first_elem = first;
        p->committed_version = NO_VERSION;
        p->local_version = NO_VERSION;
        p->skipped_version = NO_VERSION;
        p->server_version = NO_VERSION;
        p->requested_version = NO_VERSION;
        p->lent_version = NO_VERSION;
        first += p->count;
    }
    return 0;
}

/* ---------------------------------------------------------------- takeover */

void ps_agent_placement_send_state(struct ps_agent_step *st,
                                   struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, k->job,
                                                            p->owner_node);
    struct ps_rec_part rec = {
        .key = k->number,
        .index = p->index,
        .round = p->local_version != NO_VERSION ? (uint64_t)p->local_version
                 : p->committed_version != NO_VERSION
                     ? (uint64_t)p->committed_version
                     : 0,
        .dtype = k->dtype,
        .count = p->local_version != NO_VERSION ? p->count : 0,
        .all_skipped = p->local_version != NO_VERSION &&
                       p->local_version == p->skipped_version};
    struct ps_msg m = {
        .code = PS_MSG_RESTORE,
        .restore = {.gen = k->job->gen,
                    .epoch = k->placement_epoch,
                    .slot = k->job->slot,
                    .has_value = p->local_version != NO_VERSION,
                    .parts = &rec,
                    .parts_count = 1,
                    .has_committed = p->committed_version != NO_VERSION,
                    .committed_version = p->committed_version != NO_VERSION &&
                                                 k->kind->has_rounds
                                             ? (uint64_t)p->committed_version
                                             : 0}};
    struct ps_slice value = {0};

    p->must_resend_state = false;
    if (p->local_version != NO_VERSION) {
        value.buf = k->results;
        value.offset = k->result_offset[p->local_version & 1] +
                       p->first_elem * ps_dtype_size(k->dtype);
        value.len = ps_agent_part_bytes(p);
    }
    ps_link_send(f->server->dialer.link,
                 ps_packet_new(&m, &value, value.buf == NULL ? 0 : 1), st->now,
                 st->fx);
}

void ps_agent_placement_report_all(struct ps_agent_step *st,
                                   struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].owner_node != 0) {
            k->parts[i].owner_changed = true;
            ps_agent_placement_send_state(st, &k->parts[i]);
        }
    }
}

/* Rule A5: ends a frame of the owner that is being read into the results. A
 * previous owner could otherwise change a value that workers read. */
static void recall_results(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                           p->owner_node);

    if (p->lent_version != NO_VERSION && s != NULL) {
        ps_dialer_drop_all(&s->dialer, st->now, st->fx);
    }
    p->lent_version = NO_VERSION;
}

static void change_part_owner(struct ps_agent_step *st, struct ps_agent_part *p,
                              uint32_t node)
{
    struct ps_agent_key *k = p->key;
    bool open = p->state != PS_AGENT_PART_IDLE;

    open = k->kind->on_owner_lost(st, p, open);
    ps_agent_server_dequeue(st, p);
    recall_results(st, p);
    p->owner_node = node;
    p->requested_version = NO_VERSION;
    p->owner_changed = true;
    ps_agent_placement_send_state(st, p);
    ps_agent_opt_state_reset_part(st, p);
    if (open && (p->is_init || (k->round.state == PS_AGENT_ROUND_COMPLETE))) {
        ps_agent_server_enqueue(st, p);
    }
}

void ps_agent_placement_apply(struct ps_agent_step *st, struct ps_agent_key *k,
                              const struct ps_msg_key_opened *m,
                              const struct ps_slice *payload)
{
    struct ps_fixed_placement_part row;

    if (m->epoch <= k->placement_epoch || m->parts != k->part_count ||
        !ps_agent_placement_covers(k, m, payload)) {
        return;
    }
    k->placement_epoch = m->epoch;
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (!read_placement_part(payload, i, &row) ||
            k->parts[i].count != row.count) {
            return; /* Partition sizes never change. */
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (read_placement_part(payload, i, &row) && row.node != 0 &&
            row.node != k->parts[i].owner_node) {
            change_part_owner(st, &k->parts[i], row.node);
        }
    }
    ps_agent_conflict_resend(st, k, 0);
    k->kind->advance(st, k);
}

/* ------------------------------------ placements of keys that are not open */

static void pending_placement_free(struct ps_agent_pending_placement *e)
{
    ps_buf_unref(e->table);
    ps_free(e);
}

void ps_agent_placement_drop_deferred(struct ps_agent_job *j)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_pending_placement *e;

    while ((e = ps_map_next(j->pending_placements, &c)) != NULL) {
        pending_placement_free(e);
    }
}

void ps_agent_placement_defer(struct ps_agent_job *j,
                              const struct ps_msg_key_opened *m,
                              const struct ps_slice *payload)
{
    struct ps_agent_pending_placement *e = ps_map_get(j->pending_placements,
                                                      m->key);

    if (ps_list_empty(&j->openings.keys) || payload == NULL ||
        payload->buf == NULL || (e != NULL && e->epoch >= m->epoch)) {
        return; /* No key is opening, or the placement is not newer. */
    }
    if (e != NULL) {
        pending_placement_free(ps_map_remove(j->pending_placements, m->key));
    }
    e = ps_calloc(1, sizeof(*e));
    e->epoch = m->epoch;
    e->part_count = m->parts;
    e->table = ps_buf_ref(payload->buf);
    ps_map_put(j->pending_placements, m->key, e);
}

void ps_agent_placement_apply_deferred(struct ps_agent_step *st,
                                       struct ps_agent_key *k)
{
    struct ps_agent_pending_placement *e = ps_map_remove(
        k->job->pending_placements, k->number);

    if (e != NULL) {
        struct ps_msg_key_opened m = {.epoch = e->epoch,
                                      .parts = e->part_count};
        struct ps_slice table = {.buf = e->table, .len = e->table->size};

        ps_agent_placement_apply(st, k, &m, &table);
        pending_placement_free(e);
    }
}
