/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls: values and rows that agents request, now or when their version is
 * made. Pulls of rows wait for the end of a computation that writes them. */
#include "core/server/pull.h"

#include "base/alloc.h"
#include "core/part/rows.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/kind.h"
#include "core/server/memory.h"
#include "core/server/move.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <string.h>

/* --------------------------------------------------------------------- rows */

/* PS_E_NOMEM: nothing is sent. */
static int send_rows(struct ps_server_step *st,
                     const struct ps_server_slot *slot,
                     const struct ps_part *part, const struct ps_row_pull *w)
{
    const uint32_t *row = w->row_numbers.buf == NULL
                              ? NULL
                              : (const uint32_t *)(const void *)ps_slice_data(
                                    &w->row_numbers);
    uint32_t count = w->row_count;
    struct ps_server_session *p = ps_server_slot_session(slot);
    size_t bytes = w->row_width * ps_dtype_size(part->image.dtype);
    uint64_t len = ps_rows_data_bytes(count, w->row_width, part->image.dtype);
    struct ps_slice slice = {0};
    struct ps_rec_rows rec = {
        .key = part->key,
        .index = part->index,
        .round = part->image.version,
        .dtype = part->image.dtype,
        .row_width = w->row_width,
        .count = count,
    };
    struct ps_msg m = {.code = PS_MSG_ROWS,
                       .rows = {.gen = slot->job->gen,
                                .epoch = st->s->epoch,
                                .request = w->request,
                                .parts = &rec,
                                .parts_count = 1,
                                .all_skipped = part->image.all_skipped}};

    if (p == NULL) {
        return 0; /* The agent asks again after it connects. */
    }
    if (len > 0) {
        int rc = ps_server_memory_alloc(slot->job, len, &slice);

        if (rc != 0) {
            return rc;
        }
        memset(slice.buf->data + len - 8, 0, 8); /* Padding. */
        for (uint32_t i = 0; i < count; i++) {
            memcpy(slice.buf->data + i * bytes,
                   ps_slice_data(ps_part_value(part)) + row[i] * bytes, bytes);
        }
    }
    ps_server_session_send_payload(st, p, slot->job,
                                   ps_packet_new(&m, &slice, len > 0 ? 1 : 0));
    ps_buf_unref(slice.buf);
    return 0;
}

/* True if the partition has the version and no computation writes its rows. */
static bool is_readable(const struct ps_part *part, uint64_t least)
{
    return part->image.version >= least && part->merge == NULL;
}

/* Replies to a pull of rows that has waited. */
static void reply_waiting_rows(struct ps_server_step *st,
                               struct ps_server_slot *slot,
                               const struct ps_part *part,
                               const struct ps_waiting_pull *p)
{
    const struct ps_rec_rows rec = {.key = part->key,
                                    .index = part->index,
                                    .round = p->min_version,
                                    .dtype = part->image.dtype,
                                    .count = p->rows->row_count};

    if (send_rows(st, slot, part, p->rows) != 0) {
        ps_server_refuse(
            st,
            &(struct ps_server_request){
                .from = {ps_server_slot_session(slot), slot->job->gen, slot},
                .rows = &rec,
                .count = 1},
            PS_E_NOMEM);
    }
}

/* ------------------------------------------------------------------- values */

static void record_pull(struct ps_server_job *job, const struct ps_part *part,
                        uint32_t slot, ps_time since)
{
    ps_server_record(job, part,
                     &(struct ps_server_profile_event){
                         .kind = PS_TRACE_KIND_PULL,
                         .slot = slot,
                         .round = part->image.version,
                         .begun_at = since,
                         .bytes = part->image.count *
                                  (uint64_t)ps_dtype_size(part->image.dtype)});
}

void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *up_to_date)
{
    if (!ps_part_has_value(part)) {
        return;
    }
    PS_LIST_EACH_SAFE(struct ps_waiting_pull, p, node, &part->waiting_pulls)
    {
        if (p->rows != NULL ? !is_readable(part, p->min_version)
                            : p->min_version > part->image.version) {
            continue;
        }
        if (p->rows != NULL) {
            reply_waiting_rows(st, &job->slots[p->slot], part, p);
        } else {
            record_pull(job, part, p->slot, p->since);
            if (up_to_date == NULL || !ps_bits_get(up_to_date, p->slot)) {
                ps_server_reply_part(st, &job->slots[p->slot], part, true,
                                     part->image.version);
            }
        }
        ps_store_remove_pull(&job->store, p);
    }
}

static int accept_pull_part(struct ps_server_step *st,
                            struct ps_server_slot *slot,
                            const struct ps_rec_part *rec)
{
    struct ps_store *store = &slot->job->store;
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);

    int rc = ps_server_move_check_use(slot, rec);

    if (rc != 0) {
        return rc;
    }
    if (part != NULL && ps_part_has_value(part) &&
        part->image.version >= rec->round) {
        record_pull(slot->job, part, slot->index, st->now);
        ps_server_reply_part(st, slot, part, true, part->image.version);
        return 0;
    }
    if (store->waiting_pull_count >= PS_WAITING_PULLS_MAX ||
        ps_store_lacks_room(store, part)) {
        return PS_E_BUSY;
    }
    if (part != NULL && part->image.all_skipped &&
        part->image.version >= rec->round) {
        /* No value exists yet; the commit tells the agent that all ranks
         * skipped. */
        ps_server_reply_part(st, slot, part, false, part->image.version);
    }
    part = ps_store_find_or_add(store, rec->key, rec->index);
    ps_store_add_pull(store, part,
                      &(struct ps_waiting_pull){.slot = slot->index,
                                                .min_version = rec->round,
                                                .since = st->now},
                      NULL);
    return 0;
}

void ps_server_on_pull(struct ps_server_step *st,
                       const struct ps_server_request *q)
{
    struct ps_server_refusal refusal;

    ps_server_refusal_init(&refusal);
    for (uint32_t i = 0; i < q->count; i++) {
        int rc = accept_pull_part(st, q->from.slot, &q->parts[i]);

        if (rc != 0) {
            ps_server_refusal_add(&refusal, &q->parts[i], rc, 0);
        }
    }
    ps_server_refusal_send(st, &q->from, &refusal);
}

/* ------------------------------------------------------------ pulls of rows */

static int accept_row_pull(struct ps_server_step *st,
                           const struct ps_server_request *q)
{
    struct ps_server_slot *slot = q->from.slot;
    const struct ps_rec_rows *rec = q->rows;
    const struct ps_slice *payload = q->payload;
    struct ps_store *store = &slot->job->store;
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);
    const struct ps_waiting_pull pull = {
        .slot = slot->index, .min_version = rec->round, .since = st->now};
    struct ps_row_pull w = {.request = q->msg->pull_rows.request,
                            .row_count = rec->count,
                            .row_width = rec->row_width};
    const struct ps_rec_part in = ps_server_request_part(q, 0);
    int rc = part != NULL && ps_part_has_value(part)
                 ? ps_server_rows_check(part, &in, rec->row_width)
                 : 0;
    struct ps_buf *buf = NULL;

    if (rc != 0) {
        return rc;
    }
    if (rec->count > 0 && (payload == NULL || payload->buf == NULL)) {
        return PS_E_DISCARDED;
    }
    if (store->waiting_pull_count >= PS_WAITING_PULLS_MAX ||
        ps_store_lacks_room(store, part)) {
        return PS_E_BUSY;
    }
    if (rec->count > 0) {
        w.row_numbers = *payload;
        if (!ps_rows_are_valid(
                (const uint32_t *)(const void *)ps_slice_data(payload),
                rec->count,
                part != NULL && ps_part_has_value(part)
                    ? part->image.count / rec->row_width
                    : UINT32_MAX)) {
            return PS_E_INVAL;
        }
        buf = ps_buf_ref(payload->buf);
    }
    part = ps_store_find_or_add(store, rec->key, rec->index);
    if (!ps_part_has_value(part)) {
        /* Without a value the number of rows is not known, so row numbers
         * cannot be checked: the agent asks again. */
        if (rec->count > 0) {
            ps_buf_unref(buf);
            ps_store_remove_if_empty(store, part);
            return PS_E_FUTURE;
        }
        ps_store_add_pull(store, part, &pull, &w);
        return 0;
    }
    if (is_readable(part, rec->round)) {
        rc = send_rows(st, slot, part, &w);
        ps_buf_unref(buf);
        return rc;
    }
    ps_store_add_pull(store, part, &pull, &w); /* Takes over the reference. */
    return 0;
}

void ps_server_on_pull_rows(struct ps_server_step *st,
                            const struct ps_server_request *q)
{
    int rc = accept_row_pull(st, q);

    if (rc != 0) {
        ps_server_refuse(st, q, rc);
    }
}
