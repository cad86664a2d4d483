/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions. One counts by its identity (generation, partition, round,
 * slot): what comes twice is dropped while the round is open and answered when
 * it is merged, so an agent may send again whatever it has not heard of. */
#include "core/shard_inner.h"

#include "base/alloc.h"

#include <string.h>

/* A slice of a frame is kept as it is when it is at least this share of it. */
#define KEEP_SHARE 4u

bool ps_shard_parts_bytes(const struct ps_rec_part *part, uint32_t count,
                          uint64_t *ret_bytes)
{
    uint64_t total = 0; /* 256 parts of 2^35 bytes do not overflow. */

    for (uint32_t i = 0; i < count; i++) {
        /* A code stands for elements, and is never much longer than these. */
        if (ps_dtype_size(part[i].dtype) == 0 ||
            (part[i].codec != PS_PRESS_NONE &&
             (part[i].dtype != PS_DTYPE_FLOAT32 || part[i].count == 0 ||
              part[i].bytes > 4 * (uint64_t)part[i].count + 8))) {
            return false;
        }
        total += ps_part_payload(&part[i]);
    }
    *ret_bytes = total;
    return true;
}

int ps_shard_parts_take(struct ps_shard_job *job,
                        const struct ps_slice *payload, uint64_t offset,
                        const struct ps_rec_part *part,
                        struct ps_slice *ret_slice)
{
    size_t size = ps_dtype_size(part->dtype);
    struct ps_slice in = {
        .buf = payload->buf,
        .offset = payload->offset + offset,
        .len = ps_part_payload(part),
    };
    struct ps_buf *copy;

    if ((uintptr_t)ps_slice_data(&in) % size == 0 &&
        (in.buf->size <= PS_FUSE_FRAME_MAX ||
         in.len >= in.buf->size / KEEP_SHARE)) {
        ps_buf_ref(in.buf);
        *ret_slice = in;
        return 0;
    }
    int rc = ps_shard_room_take(job, in.len, &copy);
    if (rc != 0) {
        return rc;
    }
    memcpy(copy->data, ps_slice_data(&in), in.len);
    *ret_slice = (struct ps_slice){.buf = copy, .len = in.len};
    return 0;
}

/* Is this contribution known already, merged or waiting? */
static bool is_known(const struct ps_part *part, uint64_t round, uint32_t slot,
                     uint32_t attempt)
{
    return part != NULL && ps_shard_attempt_knows(part, round, slot, attempt);
}

bool ps_shard_push_is_known(const struct ps_shard_job *job,
                            const struct ps_msg_push *m)
{
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];

        if (m->rule != PS_RULE_NONE) {
            if (!ps_shard_apply_is_known(job, m, rec)) {
                return false;
            }
            continue;
        }
        if (rec->count > 0 &&
            !is_known(ps_store_find(&job->store, rec->key, rec->index),
                      rec->round, m->slot, m->attempt)) {
            return false;
        }
    }
    return true;
}

/* A slot whose ranks all pass asks for nothing that could differ from what
 * others ask for. 0 or a PS_E_*. */
static int check_pass(const struct ps_shard_job *job,
                      const struct ps_part *part, const struct ps_rec_part *rec)
{
    if (rec->round > (part != NULL ? part->version : 0) + 1) {
        return PS_E_FUTURE;
    }
    if (part == NULL) {
        return ps_map_count(job->store.parts) < PS_STORE_PARTS_MAX
                   ? 0
                   : PS_E_FUTURE;
    }
    return ps_part_fits(part, rec->dtype, 0) && part->width == 0 &&
                   part->applied == NULL &&
                   (part->open == NULL || !part->open->rows)
               ? 0
               : PS_E_MISMATCH;
}

/* Does the contribution agree with the partition and with the round under
 * way? 0 or a PS_E_*. */
static int check(const struct ps_shard_job *job, const struct ps_part *part,
                 const struct ps_msg_push *m, const struct ps_rec_part *rec)
{
    uint64_t version = part != NULL ? part->version : 0;
    bool steps = job->optimizes && !m->assign;

    if (rec->round > version + 1) {
        return PS_E_FUTURE;
    }
    if (rec->codec != PS_PRESS_NONE) {
        if (job->compress.press.kind == PS_PRESS_NONE) {
            return PS_E_FUTURE; /* Others have heard of it before us. */
        }
        if (rec->codec != job->compress.press.kind || m->assign ||
            m->reduce > PS_REDUCE_MEAN) {
            return PS_E_MISMATCH;
        }
    }
    if (steps && (!ps_dtype_is_real(rec->dtype) || m->reduce > PS_REDUCE_MEAN ||
                  ps_optim_needs_rows(&job->optim))) {
        return PS_E_UNSUPPORTED;
    }
    if (steps && part != NULL && part->gathered.buf != NULL &&
        part->gathered_reduce != m->reduce) {
        return PS_E_MISMATCH;
    }
    if (steps && (part == NULL || !ps_part_has_value(part))) {
        return PS_E_NOKEY;
    }
    if (part == NULL) {
        return ps_map_count(job->store.parts) < PS_STORE_PARTS_MAX
                   ? 0
                   : PS_E_FUTURE;
    }
    if (!ps_part_fits(part, rec->dtype, rec->count) || part->width != 0 ||
        part->applied != NULL) {
        return PS_E_MISMATCH;
    }
    if (part->open != NULL &&
        (part->open->rows ||
         (part->open->settled && (part->open->reduce != m->reduce ||
                                  part->open->assign != m->assign)))) {
        return PS_E_MISMATCH;
    }
    if (part->open != NULL && part->open->round.given > 0 && rec->count > 0 &&
        (part->open->coded != (rec->codec != PS_PRESS_NONE) ||
         part->open->salt != rec->salt)) {
        return PS_E_MISMATCH;
    }
    return 0;
}

/* A code is one that the job has declared, and whole. */
static int check_code(struct ps_shard_step *st, const struct ps_shard_job *job,
                      const struct ps_rec_part *rec,
                      const struct ps_slice *bytes)
{
    char why[200];

    if (rec->codec == PS_PRESS_NONE) {
        return 0;
    }
    int rc = ps_press_check(&job->compress.press, ps_slice_data(bytes),
                            bytes->len, rec->count, why, sizeof(why));

    if (rc != 0) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "job %s: a code of partition %u of key %u is broken: "
                        "%s",
                        job->name, rec->index, rec->key, why);
        return PS_E_INVAL;
    }
    return 0;
}

void ps_shard_push_passes(const struct ps_shard_job *job, struct ps_open *open,
                          uint32_t slot)
{
    if (open->passes == NULL) {
        open->passes = ps_calloc(job->slot_count, 1);
    }
    open->passes[slot] = 1;
}

static struct ps_open *open_round(struct ps_shard_job *job,
                                  struct ps_part *part,
                                  const struct ps_msg_push *m)
{
    struct ps_open *open = part->open;

    if (open == NULL) {
        open = ps_store_open(&job->store, part, job->slot_count);
        job->lacking++;
    }
    if (m->ranks == 0) {
        ps_shard_push_passes(job, open, m->slot);
    } else if (!open->settled) {
        open->settled = true;
        open->reduce = m->reduce;
        open->assign = m->assign;
    }
    return open;
}

/* One part of a push. `offset` is where its bytes lie in the payload. 0 when
 * it was taken or was known, else why it is refused; `others` is filled when it
 * differs from theirs. */
static int take(struct ps_shard_step *st, struct ps_shard_slot *slot,
                const struct ps_msg_push *m, const struct ps_rec_part *rec,
                const struct ps_slice *payload, uint64_t offset,
                struct ps_shard_side *others)
{
    struct ps_shard_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    struct ps_slice bytes = {0};

    if (rec->round == 0) {
        return PS_E_INVAL;
    }
    if (m->rule != PS_RULE_NONE) {
        return ps_shard_apply_take(st, slot, m, rec, payload, offset);
    }
    if (ps_shard_move_bars(job, rec)) {
        return PS_E_FUTURE;
    }
    if (part != NULL && rec->round <= part->version) {
        ps_shard_answer(st, slot, part, m->want, part->version);
        return 0;
    }
    int rc = ps_shard_attempt_check(st, job, part, rec->round, m->attempt);
    if (rc != 0) {
        return rc;
    }
    if (is_known(part, rec->round, slot->index, m->attempt)) {
        if (m->want) {
            ps_bits_set(&part->open->want, slot->index);
        }
        return 0; /* Answered when the round is merged. */
    }
    rc = m->ranks == 0 ? check_pass(job, part, rec) : check(job, part, m, rec);
    if (rc == PS_E_MISMATCH && m->ranks != 0 && part != NULL &&
        part->width == 0 && part->applied == NULL &&
        ps_part_fits(part, rec->dtype, rec->count)) {
        ps_shard_attempt_disagree(st, job, part, rec->round,
                                  &(struct ps_shard_side){.slot = {slot->index},
                                                          .count = 1,
                                                          .reduce = m->reduce,
                                                          .assign = m->assign},
                                  others);
    }
    if (rc != 0) {
        return rc;
    }
    if ((part == NULL || part->open == NULL) &&
        (uint64_t)(job->store.open_count + 1) * job->slot_count >
            PS_OPEN_PLACES_MAX) {
        return PS_E_FUTURE; /* A later try finds fewer of them. */
    }
    if (rec->count > 0) {
        if (payload == NULL || payload->buf == NULL) {
            return PS_E_FUTURE; /* Known when it came, and not any more. */
        }
        if (ps_shard_parts_take(job, payload, offset, rec, &bytes) != 0) {
            return PS_E_FUTURE;
        }
        rc = check_code(st, job, rec, &bytes);
        if (rc != 0) {
            ps_buf_unref(bytes.buf);
            return rc;
        }
    }
    part = ps_store_obtain(&job->store, rec->key, rec->index);
    ps_part_declare(part, rec->dtype, rec->count);
    part->attempt = m->attempt; /* It is at least what was there. */

    struct ps_open *open = open_round(job, part, m);

    if (rec->count > 0) {
        open->coded = rec->codec != PS_PRESS_NONE;
        open->salt = rec->salt;
    }
    ps_round_offer(&open->round, slot->index, bytes.buf != NULL ? &bytes : NULL,
                   m->ranks);
    ps_buf_unref(bytes.buf);
    if (m->want) {
        ps_bits_set(&open->want, slot->index);
    }
    slot->held += bytes.len;
    slot->present++;
    if (ps_round_complete(&open->round)) {
        job->lacking--;
        for (uint32_t i = 0; i < job->slot_count; i++) {
            job->slots[i].present--;
        }
        ps_shard_merge_start(st, job, part);
    }
    return 0;
}

static void take_all(struct ps_shard_step *st, const struct ps_shard_conn *c,
                     struct ps_shard_slot *slot, const struct ps_msg_push *m,
                     const struct ps_slice *payload)
{
    struct ps_shard_refusal refusal;
    uint64_t offset = 0;
    uint64_t total;

    ps_shard_refusal_init(&refusal);
    if (c->thrown == PS_E_NOMEM &&
        ps_shard_parts_bytes(m->parts, m->parts_count, &total)) {
        ps_shard_refusal_short(st, &refusal, slot, total);
    }
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        int rc = take(st, slot, m, rec, payload, offset, &refusal.side);

        if (rc != 0) {
            ps_shard_refusal_add(
                &refusal, rec, rc,
                rc == PS_E_MISMATCH
                    ? ps_shard_attempt_over(slot->job, rec->key, rec->index,
                                            m->attempt)
                    : 0);
        }
        offset += ps_part_payload(rec);
    }
    ps_shard_refusal_send(st, c->peer, m->gen, slot, &refusal);
}

/* Before the parts are taken, because the last one starts the merge. */
static void take_labels(struct ps_shard_job *job, const struct ps_msg_push *m)
{
    for (uint32_t i = 0; i < m->parts_count && i < m->labels_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

        if (part != NULL) {
            part->label = m->labels[i];
        }
    }
}

void ps_shard_push(struct ps_shard_step *st, struct ps_shard_conn *c,
                   const struct ps_msg *msg, const struct ps_slice *payload)
{
    const struct ps_msg_push *m = &msg->push;
    const struct ps_shard_parts parts = {m->parts, m->parts_count, payload};
    struct ps_shard_peer *p = c->peer;
    struct ps_shard_slot *slot = NULL;
    uint64_t total;

    if (m->parts_count > PS_PARTS_MAX ||
        !ps_shard_parts_bytes(m->parts, m->parts_count, &total) ||
        (total > 0) != (payload != NULL) || c->thrown == PS_E_PROTO ||
        (payload != NULL && payload->buf != NULL && payload->len != total)) {
        ps_shard_peer_cut(st, c, "a push and its payload do not agree");
        return;
    }
    ps_flow_receive(ps_shard_credit_flow(st->s, p, m->gen), total);

    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    if (job == NULL) {
        ps_shard_refuse(st, p, m->gen, NULL, &parts, PS_E_NOJOB);
        return;
    }
    int rc = ps_shard_job_slot(job, p, m->slot, &slot);
    if (rc == 0 && m->incarnation != p->incarnation) {
        rc = PS_E_STALE;
    }
    if (rc == 0 && ((m->ranks == 0 && total > 0) || m->ranks > PS_WEIGHT_MAX)) {
        rc = PS_E_INVAL;
    }
    if (rc == 0 && c->thrown == PS_E_FULL) {
        rc = PS_E_FULL;
    }
    if (rc != 0) {
        ps_shard_refuse(st, p, m->gen, slot, &parts, rc);
        return;
    }
    ps_shard_credit_dirty(job);
    ps_shard_credit_end(slot, total);
    if (c->thrown == PS_E_NOMEM) {
        ps_shard_room_make(st, slot, msg, total);
    }
    take_labels(job, m);
    take_all(st, c, slot, m, payload);
    take_labels(job, m); /* Of those that were not there. */
    ps_shard_credit_tell(st, p, slot);
}
