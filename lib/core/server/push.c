/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions. A contribution is identified by (generation, partition, round,
 * slot): a duplicate is dropped while the round is open and answered when it is
 * merged, so an agent may repeat whatever has not been answered. */
#include "core/server/inner.h"

#include "base/alloc.h"

#include <string.h>

/* The inverse of the least share of a frame that is kept without a copy. */
#define ZERO_COPY_SHARE 4u

bool ps_server_parts_bytes(const struct ps_rec_part *part, uint32_t count,
                           uint64_t *ret_bytes)
{
    uint64_t total = 0; /* 256 parts of 2^35 bytes do not overflow. */

    for (uint32_t i = 0; i < count; i++) {
        /* Encoded elements are never much longer than plain ones. */
        if (ps_dtype_size(part[i].dtype) == 0 ||
            (part[i].codec != PS_CODEC_NONE &&
             (part[i].dtype != PS_DTYPE_FLOAT32 || part[i].count == 0 ||
              part[i].encoded_bytes > 4 * (uint64_t)part[i].count + 8))) {
            return false;
        }
        total += ps_part_payload_bytes(&part[i]);
    }
    *ret_bytes = total;
    return true;
}

int ps_server_parts_retain(struct ps_server_job *job,
                           const struct ps_slice *payload, uint64_t offset,
                           const struct ps_rec_part *part,
                           struct ps_slice *ret_slice)
{
    size_t size = ps_dtype_size(part->dtype);
    struct ps_slice in = {
        .buf = payload->buf,
        .offset = payload->offset + offset,
        .len = ps_part_payload_bytes(part),
    };
    struct ps_buf *copy;

    if ((uintptr_t)ps_slice_data(&in) % size == 0 &&
        (in.buf->size <= PS_BATCH_FRAME_MAX ||
         in.len >= in.buf->size / ZERO_COPY_SHARE)) {
        ps_buf_ref(in.buf);
        *ret_slice = in;
        return 0;
    }
    int rc = ps_server_memory_alloc(job, in.len, &copy);
    if (rc != 0) {
        return rc;
    }
    memcpy(copy->data, ps_slice_data(&in), in.len);
    *ret_slice = (struct ps_slice){.buf = copy, .len = in.len};
    return 0;
}

/* True if the contribution is merged, waiting, or of an aborted attempt. */
static bool is_redundant(const struct ps_part *part, uint64_t round,
                         uint32_t slot, uint32_t attempt)
{
    return part != NULL &&
           ps_server_conflict_is_redundant(part, round, slot, attempt);
}

bool ps_server_push_is_duplicate(const struct ps_server_job *job,
                                 const struct ps_msg_push *m)
{
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];

        if (m->rule != PS_RULE_NONE) {
            if (!ps_server_async_is_duplicate(job, m, rec)) {
                return false;
            }
            continue;
        }
        if (rec->count > 0 &&
            !is_redundant(ps_store_find(&job->store, rec->key, rec->index),
                          rec->round, m->slot, m->retry)) {
            return false;
        }
    }
    return true;
}

/* Checks a skip against the partition. A skip asks for nothing that could
 * conflict with other slots. 0 or a PS_E_*. */
static int check_skip(const struct ps_server_job *job,
                      const struct ps_part *part, const struct ps_rec_part *rec)
{
    if (rec->round > (part != NULL ? part->version : 0) + 1) {
        return PS_E_FUTURE;
    }
    if (part == NULL) {
        return ps_map_count(job->store.parts) < PS_STORE_PARTS_MAX ? 0
                                                                   : PS_E_BUSY;
    }
    return ps_part_matches(part, rec->dtype, 0) && part->row_width == 0 &&
                   part->async_slots == NULL &&
                   (part->open_round == NULL || !part->open_round->is_rows)
               ? 0
               : PS_E_MISMATCH;
}

/* Checks a contribution against the partition and its open round. 0 or a
 * PS_E_*. */
static int check_push_part(const struct ps_server_job *job,
                           const struct ps_part *part,
                           const struct ps_msg_push *m,
                           const struct ps_rec_part *rec)
{
    uint64_t version = part != NULL ? part->version : 0;
    bool steps = job->has_optimizer && !m->assign;

    if (rec->round > version + 1) {
        return PS_E_FUTURE;
    }
    if (rec->codec != PS_CODEC_NONE) {
        if (job->compression.codec.kind == PS_CODEC_NONE) {
            return PS_E_UNCONFIGURED; /* job_state is still on its way here. */
        }
        if (rec->codec != job->compression.codec.kind || m->assign ||
            m->reduce > PS_REDUCE_MEAN) {
            return PS_E_MISMATCH;
        }
    }
    if (steps && (!ps_dtype_is_real(rec->dtype) || m->reduce > PS_REDUCE_MEAN ||
                  ps_optim_needs_rows(&job->optim))) {
        return PS_E_UNSUPPORTED;
    }
    if (steps && part != NULL && part->accumulated.buf != NULL &&
        part->accumulated_reduce != m->reduce) {
        return PS_E_MISMATCH;
    }
    if (steps && (part == NULL || !ps_part_has_value(part))) {
        return PS_E_NOKEY;
    }
    if (part == NULL) {
        return ps_map_count(job->store.parts) < PS_STORE_PARTS_MAX ? 0
                                                                   : PS_E_BUSY;
    }
    if (!ps_part_matches(part, rec->dtype, rec->count) ||
        part->row_width != 0 || part->async_slots != NULL) {
        return PS_E_MISMATCH;
    }
    if (part->open_round != NULL &&
        (part->open_round->is_rows ||
         (part->open_round->has_request &&
          (part->open_round->reduce != m->reduce ||
           part->open_round->assign != m->assign)))) {
        return PS_E_MISMATCH;
    }
    if (part->open_round != NULL && part->open_round->round.nonempty > 0 &&
        rec->count > 0 &&
        (part->open_round->is_encoded != (rec->codec != PS_CODEC_NONE) ||
         part->open_round->rng_key != rec->rng_key)) {
        return PS_E_MISMATCH;
    }
    return 0;
}

/* Checks that encoded bytes are complete and of the job's codec. */
static int check_encoded(struct ps_server_step *st, struct ps_server_job *job,
                         const struct ps_rec_part *rec,
                         const struct ps_slice *bytes)
{
    char why[200];

    if (rec->codec == PS_CODEC_NONE) {
        return 0;
    }
    int rc = ps_codec_check(&job->compression.codec, ps_slice_data(bytes),
                            bytes->len, rec->count, why, sizeof(why));

    if (rc != 0) {
        ps_effects_log_for(
            st->fx, &job->account, PS_LOG_WARNING,
            "job %s: a code of partition %u of key %u is broken: "
            "%s",
            job->name, rec->index, rec->key, why);
        return PS_E_INVAL;
    }
    return 0;
}

void ps_server_push_mark_skipped(const struct ps_server_job *job,
                                 struct ps_open_round *open, uint32_t slot)
{
    if (open->skips == NULL) {
        open->skips = ps_calloc(job->slot_count, 1);
    }
    open->skips[slot] = 1;
}

static struct ps_open_round *obtain_open_round(struct ps_server_job *job,
                                               struct ps_part *part,
                                               const struct ps_msg_push *m)
{
    struct ps_open_round *open = part->open_round;

    if (open == NULL) {
        open = ps_store_open_round(&job->store, part, job->slot_count);
        job->incomplete_rounds++;
    }
    if (m->weight == 0) {
        ps_server_push_mark_skipped(job, open, m->slot);
    } else if (!open->has_request) {
        open->has_request = true;
        open->reduce = m->reduce;
        open->assign = m->assign;
    }
    return open;
}

/* Accepts one part of a push, whose bytes lie at `offset` in the payload. 0:
 * accepted or known; else the refusal, for a conflict with the other slots in
 * `others`. */
static int accept_push_part(struct ps_server_step *st,
                            struct ps_server_slot *slot,
                            const struct ps_msg_push *m,
                            const struct ps_rec_part *rec,
                            const struct ps_slice *payload, uint64_t offset,
                            struct ps_server_conflict *others)
{
    struct ps_server_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    struct ps_slice bytes = {0};

    if (rec->round == 0) {
        return PS_E_INVAL;
    }
    if (m->rule != PS_RULE_NONE) {
        return ps_server_async_accept(st, slot, m, rec, payload, offset);
    }
    int rc = ps_server_migration_check_use(slot, rec);
    if (rc != 0) {
        return rc;
    }
    if (part != NULL && rec->round <= part->version) {
        ps_server_reply_part(st, slot, part, m->needs_value, part->version);
        return 0;
    }
    rc = ps_server_conflict_check_retry(st, job, part, rec->round, m->retry);
    if (rc != 0) {
        return rc;
    }
    if (is_redundant(part, rec->round, slot->index, m->retry)) {
        if (m->needs_value) {
            ps_bits_set(&part->open_round->needs_value, slot->index);
        }
        return 0; /* Answered when the round is merged. */
    }
    rc = m->weight == 0 ? check_skip(job, part, rec)
                        : check_push_part(job, part, m, rec);
    if (rc == PS_E_MISMATCH && m->weight != 0 && part != NULL &&
        part->row_width == 0 && part->async_slots == NULL &&
        ps_part_matches(part, rec->dtype, rec->count)) {
        ps_server_conflict_raise(
            st, job, part, rec->round,
            &(struct ps_server_conflict){.slots = {slot->index},
                                         .slot_count = 1,
                                         .reduce = m->reduce,
                                         .assign = m->assign},
            others);
    }
    if (rc != 0) {
        return rc;
    }
    if ((part == NULL || part->open_round == NULL) &&
        (uint64_t)(job->store.open_round_count + 1) * job->slot_count >
            PS_OPEN_ROUND_SLOTS_MAX) {
        return PS_E_BUSY; /* A later try finds fewer open rounds. */
    }
    if (rec->count > 0) {
        if (payload == NULL || payload->buf == NULL) {
            return PS_E_DISCARDED;
        }
        rc = ps_server_parts_retain(job, payload, offset, rec, &bytes);
        if (rc != 0) {
            return rc;
        }
        rc = check_encoded(st, job, rec, &bytes);
        if (rc != 0) {
            ps_buf_unref(bytes.buf);
            return rc;
        }
    }
    part = ps_store_find_or_add(&job->store, rec->key, rec->index);
    ps_part_declare(part, rec->dtype, rec->count);
    part->retry = m->retry; /* The same, or higher. */

    struct ps_open_round *open = obtain_open_round(job, part, m);

    if (rec->count > 0) {
        open->is_encoded = rec->codec != PS_CODEC_NONE;
        open->rng_key = rec->rng_key;
    }
    ps_round_contribute(&open->round, slot->index,
                        bytes.buf != NULL ? &bytes : NULL, m->weight);
    ps_buf_unref(bytes.buf);
    if (m->needs_value) {
        ps_bits_set(&open->needs_value, slot->index);
    }
    slot->unmerged_bytes += bytes.len;
    slot->contributed_rounds++;
    if (ps_round_is_complete(&open->round)) {
        job->incomplete_rounds--;
        for (uint32_t i = 0; i < job->slot_count; i++) {
            job->slots[i].contributed_rounds--;
        }
        ps_server_merge_start(st, job, part);
    }
    return 0;
}

static void accept_push_parts(struct ps_server_step *st,
                              const struct ps_server_conn *c,
                              struct ps_server_slot *slot,
                              const struct ps_msg_push *m,
                              const struct ps_slice *payload)
{
    struct ps_server_refusal refusal;
    uint64_t offset = 0;
    uint64_t total;

    ps_server_refusal_init(&refusal);
    if (c->discard_reason == PS_E_NOMEM &&
        ps_server_parts_bytes(m->parts, m->parts_count, &total)) {
        ps_server_refusal_set_starved(st, &refusal, slot, total);
    }
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        int rc = accept_push_part(st, slot, m, rec, payload, offset,
                                  &refusal.conflict);

        if (rc != 0) {
            ps_server_refusal_add(
                &refusal, rec, rc,
                rc == PS_E_MISMATCH
                    ? ps_server_conflict_newer_retry(slot->job, rec->key,
                                                     rec->index, m->retry)
                    : 0);
        }
        offset += ps_part_payload_bytes(rec);
    }
    ps_server_refusal_send(st, c->session, m->gen, slot, &refusal);
}

/* Stores the key hashes in the partitions that exist. Needed before the last
 * contribution, which starts the merge. */
static void record_name_hashes(struct ps_server_job *job,
                               const struct ps_msg_push *m)
{
    for (uint32_t i = 0; i < m->parts_count && i < m->name_hashes_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

        if (part != NULL) {
            part->name_hash = m->name_hashes[i];
        }
    }
}

void ps_server_on_push(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg, const struct ps_slice *payload)
{
    const struct ps_msg_push *m = &msg->push;
    const struct ps_server_parts parts = {m->parts, m->parts_count, payload};
    struct ps_server_session *p = c->session;
    struct ps_server_slot *slot = NULL;
    uint64_t total;

    if (m->parts_count > PS_PARTS_MAX ||
        !ps_server_parts_bytes(m->parts, m->parts_count, &total) ||
        (total > 0) != (payload != NULL) || c->discard_reason == PS_E_PROTO ||
        (payload != NULL && payload->buf != NULL && payload->len != total)) {
        ps_server_session_close_bad(st, c,
                                    "a push and its payload do not agree");
        return;
    }
    ps_credit_on_receive(ps_server_credit_get(st->s, p, m->gen), total);

    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    if (job == NULL) {
        ps_server_refuse_parts(st, p, m->gen, NULL, &parts, PS_E_NOJOB);
        return;
    }
    int rc = ps_server_job_find_slot(job, p, m->slot, &slot);
    if (rc == 0 && m->incarnation != p->incarnation) {
        rc = PS_E_STALE;
    }
    if (rc == 0 &&
        ((m->weight == 0 && total > 0) || m->weight > PS_WEIGHT_MAX)) {
        rc = PS_E_INVAL;
    }
    if (rc == 0 && c->discard_reason == PS_E_FULL) {
        rc = PS_E_FULL;
    }
    if (rc != 0) {
        ps_server_refuse_parts(st, p, m->gen, slot, &parts, rc);
        return;
    }
    ps_server_credit_mark_job(job);
    ps_server_credit_push_ended(slot, total);
    if (c->discard_reason == PS_E_NOMEM) {
        ps_server_memory_reclaim(st, slot, msg, total);
    }
    record_name_hashes(job, m);
    accept_push_parts(st, c, slot, m, payload);
    record_name_hashes(job, m); /* For new partitions. */
    ps_server_credit_send_if_due(st, p, slot);
}
