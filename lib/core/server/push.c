/* SPDX-License-Identifier: Apache-2.0 */
/* Acceptance of contributions. A contribution to a round is identified by
 * (generation, partition, round, slot) (rule R2): a duplicate is dropped while
 * the round is open (rule R4) and answered when it is merged (rule R3), so an
 * agent may repeat whatever has not been answered.
 *
 * Memory is taken back from a job whose reserved round is starved (rule Q3):
 * values are copied out of frames that they keep alive, then other open rounds
 * of the job are voided, and agents send their contributions again. */
#include "core/server/kind.h"

#include "base/alloc.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/move.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <string.h>

/* A contribution to the reserved round that finds no memory for this long voids
 * other rounds of the job. */
#define RECLAIM_AFTER PS_MILLIS(100)

/* ------------------------------------------------------------------- rounds */

/* True if the contribution is merged, waiting, or of an aborted attempt. */
static bool is_redundant(const struct ps_part *part,
                         const struct ps_server_contribution *in)
{
    const uint32_t retry = in->push->retry;

    if (part == NULL) {
        return false;
    }
    if (in->rec.round != part->image.version + 1) {
        return in->rec.round <= part->image.version;
    }
    return retry < part->image.retry ||
           (retry == part->image.retry && part->open_round != NULL &&
            ps_round_has_contributed(&part->open_round->round,
                                     in->slot->index));
}

/* 0: take it; PS_CONTRIBUTION_KNOWN; or the refusal, for a conflict with the
 * other slots in `others`. `part` NULL: unknown partition. */
static int check_for_round(struct ps_server_step *st,
                           const struct ps_server_contribution *in,
                           struct ps_part *part,
                           struct ps_server_conflict *others)
{
    const struct ps_server_push *push = in->push;
    struct ps_server_slot *slot = in->slot;
    struct ps_server_job *job = slot->job;
    bool conflict = false;

    int rc = ps_server_move_check_use(slot, &in->rec);

    if (rc != 0) {
        return rc;
    }
    if (part != NULL && in->rec.round <= part->image.version) {
        ps_server_reply_part(st, slot, part, push->needs_value,
                             part->image.version);
        return PS_CONTRIBUTION_KNOWN;
    }
    if (part != NULL && push->retry != part->image.retry) {
        /* These bytes count as held: if they end an attempt, the refusals of
         * that carry credit. */
        slot->unmerged_bytes += in->payload_bytes;
        rc = ps_server_conflict_check_retry(st, job, part, in->rec.round,
                                            push->retry);
        slot->unmerged_bytes -= in->payload_bytes;
    }
    if (rc != 0) {
        return rc;
    }
    if (is_redundant(part, in)) {
        if (push->needs_value) {
            ps_bits_set(&part->open_round->needs_value, slot->index);
        }
        return PS_CONTRIBUTION_KNOWN; /* Answered when the round is merged. */
    }
    rc = push->kind->validate(in, part, &conflict);
    if (conflict) {
        ps_server_conflict_raise(
            st, job, part, in->rec.round,
            &(struct ps_server_conflict){.slots = {slot->index},
                                         .slot_count = 1,
                                         .reduce = push->reduce,
                                         .assign = push->assign},
            others);
    }
    if (rc == 0 && (part == NULL || part->open_round == NULL) &&
        (uint64_t)(job->store.open_round_count + 1) * job->slot_count >
            PS_OPEN_ROUND_SLOTS_MAX) {
        rc = PS_E_BUSY; /* A later try finds fewer open rounds. */
    }
    return rc;
}

static struct ps_open_round *
obtain_open_round(const struct ps_server_contribution *in, struct ps_part *part)
{
    const struct ps_server_push *push = in->push;
    struct ps_server_job *job = in->slot->job;
    struct ps_open_round *open = part->open_round;

    if (open == NULL) {
        open = ps_store_open_round(&job->store, part, push->kind,
                                   job->slot_count);
        open->opened_at = job->server->now;
        job->incomplete_rounds++;
    }
    if (push->weight == 0) {
        if (open->skips.words == NULL) {
            ps_bits_init(&open->skips, job->slot_count);
        }
        ps_bits_set(&open->skips, in->slot->index);
    } else if (!open->has_request) {
        open->has_request = true;
        open->reduce = push->reduce;
        open->assign = push->assign;
    }
    return open;
}

/* Adds the contribution to the partition's round. Takes over the reference of
 * `bytes`. True: the round is complete. */
static bool take_for_round(const struct ps_server_contribution *in,
                           struct ps_part *part, const struct ps_slice *bytes)
{
    const struct ps_server_push *push = in->push;
    struct ps_server_slot *slot = in->slot;
    struct ps_server_job *job = slot->job;
    struct ps_open_round *open;

    part->image.retry = push->retry; /* The same, or higher. */
    open = obtain_open_round(in, part);
    push->kind->record(in, part);
    ps_round_contribute(&open->round, slot->index,
                        bytes->buf != NULL ? bytes : NULL, push->weight);
    ps_buf_unref(bytes->buf);
    if (push->needs_value) {
        ps_bits_set(&open->needs_value, slot->index);
    }
    slot->unmerged_bytes += bytes->len;
    slot->contributed_rounds++;
    if (!ps_round_is_complete(&open->round)) {
        return false;
    }
    job->incomplete_rounds--;
    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].contributed_rounds--;
    }
    ps_server_record(
        job, part,
        &(struct ps_server_profile_event){.kind = PS_TRACE_KIND_GATHER,
                                          .round = in->rec.round,
                                          .begun_at = open->opened_at,
                                          .bytes = open->round.bytes});
    return true;
}

/* -------------------------------------------------------- memory taken back */

/* Copies the value to a buffer of its own. If the frame has no other user it is
 * freed first, which makes room for the copy. */
static void move_out(struct ps_server_job *job, struct ps_slice *v)
{
    struct ps_slice copy = {.buf = ps_buf_new(v->len), .len = v->len};
    const bool last = v->buf->refs == 1;
    struct ps_slice own;

    memcpy(copy.buf->data, ps_slice_data(v), v->len);
    if (last) {
        ps_buf_unref(v->buf);
    }
    if (ps_server_memory_alloc(job, v->len, &own) == 0) {
        memcpy(ps_slice_data(&own), copy.buf->data, v->len);
        ps_buf_unref(copy.buf);
    } else if (last) {
        own = copy; /* The frame is gone; the value stays outside the pool. */
    } else {
        ps_buf_unref(copy.buf);
        return;
    }
    if (!last) {
        ps_buf_unref(v->buf);
    }
    *v = own;
}

/* Copies values out of frames, which they keep alive for a part of their
 * bytes. */
static void compact(struct ps_server_job *job)
{
    PS_MAP_EACH(struct ps_part, part, job->store.parts)
    {
        if (part->merge == NULL && ps_part_value(part)->buf != NULL &&
            ps_pool_cost(ps_part_value(part)->buf->size) >
                ps_pool_cost(ps_part_value(part)->len)) {
            move_out(job, &part->buffers[PS_PART_BUFFER_VALUE]);
        }
    }
}

/* A contribution's payload was discarded. If it is for the reserved round and
 * the slot is starved for long, voids other open rounds of the job. */
static void reclaim_memory(struct ps_server_step *st,
                           const struct ps_server_request *q)
{
    struct ps_server_slot *slot = q->from.slot;
    struct ps_server_job *job = slot->job;
    const uint64_t wanted = ps_pool_cost(q->bytes) * job->slot_count;
    const uint64_t before = ps_pool_share_used(job->pool_share);
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    if (slot->starved_since == 0 ||
        st->now < ps_time_add(slot->starved_since, RECLAIM_AFTER) ||
        !ps_server_memory_serves_next_round(job, q)) {
        return;
    }
    slot->starved_since = st->now;
    compact(job);
    while ((part = ps_map_next(job->store.parts, &c)) != NULL &&
           before - ps_pool_share_used(job->pool_share) < wanted) {
        if (part->open_round != NULL && part->merge == NULL &&
            !ps_server_round_is_complete(part->open_round) &&
            (part->key != job->reserved_round.key ||
             part->index != job->reserved_round.index)) {
            ps_server_conflict_void(st, job, part, PS_E_AGAIN);
        }
    }
}

/* --------------------------------------------------------------- acceptance */

/* The merge, which the last contribution starts, needs them. */
static void record_identity(struct ps_part *part,
                            const struct ps_server_contribution *in)
{
    if (in->name_hash != 0) {
        part->image.name_hash = in->name_hash;
        part->image.first_elem = in->first_elem;
    }
}

/* 0: accepted or known; else the refusal, for a conflict with the other slots
 * in `others`. */
static int accept_contribution(struct ps_server_step *st,
                               const struct ps_server_contribution *in,
                               struct ps_server_conflict *others)
{
    const struct ps_server_contribution_kind *kind = in->push->kind;
    const struct ps_slice *payload = in->push->request->payload;
    struct ps_store *store = &in->slot->job->store;
    struct ps_part *part = ps_store_find(store, in->rec.key, in->rec.index);
    struct ps_slice bytes = {0};

    if (part != NULL) {
        record_identity(part, in);
    }
    if (in->rec.round == 0) {
        return PS_E_INVAL;
    }
    if (part == NULL && in->slot->job->moves.has_moved &&
        !ps_server_job_is_settled(in->slot->job, st->now)) {
        return PS_E_FUTURE; /* Rule E9. */
    }
    int rc = kind->check != NULL ? kind->check(st, in, part)
                                 : check_for_round(st, in, part, others);

    if (rc != 0) {
        return rc == PS_CONTRIBUTION_KNOWN ? 0 : rc;
    }
    if (in->rec.count > 0) {
        if (payload == NULL || payload->buf == NULL) {
            return PS_E_DISCARDED;
        }
        rc = kind->retain(st, in, part, &bytes);
        if (rc != 0) {
            return rc;
        }
    }
    if (part == NULL) {
        part = ps_store_find_or_add(store, in->rec.key, in->rec.index);
        record_identity(part, in);
    }
    ps_server_record(
        in->slot->job, part,
        &(struct ps_server_profile_event){.kind = PS_TRACE_KIND_PUSH,
                                          .slot = in->slot->index,
                                          .round = in->rec.round,
                                          .begun_at = st->now,
                                          .bytes = bytes.len});
    if (kind->take != NULL ? kind->take(st, in, part, &bytes)
                           : take_for_round(in, part, &bytes)) {
        ps_server_merge_start(st, in->slot->job, part);
    }
    return 0;
}

/* ----------------------------------------------------------------- messages */

static struct ps_server_push read_push(const struct ps_server_request *q)
{
    const struct ps_msg_push *m = &q->msg->push;
    const struct ps_msg_push_rows *r = &q->msg->push_rows;

    return q->rows != NULL
               ? (struct ps_server_push){.kind = &ps_server_rows_kind,
                                         .request = q,
                                         .incarnation = r->incarnation,
                                         .weight = r->weight,
                                         .retry = r->retry,
                                         .reduce = r->reduce}
               : (struct ps_server_push){.kind = m->rule != PS_RULE_NONE
                                                     ? &ps_server_async_kind
                                                     : &ps_server_dense_kind,
                                         .request = q,
                                         .incarnation = m->incarnation,
                                         .weight = m->weight,
                                         .retry = m->retry,
                                         .reduce = m->reduce,
                                         .rule = m->rule,
                                         .assign = m->assign,
                                         .needs_value = m->needs_value};
}

/* Makes `in` part `i` of its push, after the part before it. */
static void read_part(struct ps_server_contribution *in, uint32_t i)
{
    const struct ps_server_request *q = in->push->request;
    const struct ps_msg_push *m = &q->msg->push;

    in->offset += in->payload_bytes;
    if (q->rows != NULL) {
        in->rec = ps_server_request_part(q, i);
        in->row_width = q->rows[i].row_width;
        in->payload_bytes = ps_server_rows_block_bytes(&q->rows[i]);
        return;
    }
    in->rec = q->parts[i];
    in->name_hash = i < m->name_hashes_count ? m->name_hashes[i] : 0;
    in->first_elem = i < m->first_elems_count ? m->first_elems[i] : 0;
    in->payload_bytes = ps_part_payload_bytes(&in->rec);
}

/* True if the payload of the contribution is superfluous. */
static bool is_duplicate(const struct ps_server_contribution *in)
{
    const struct ps_part *part = ps_store_find(&in->slot->job->store,
                                               in->rec.key, in->rec.index);

    if (in->push->kind->is_duplicate != NULL) {
        return in->push->kind->is_duplicate(in, part);
    }
    return in->rec.count == 0 || is_redundant(part, in);
}

int ps_server_push_check_payload(struct ps_server *s,
                                 const struct ps_server_request *q)
{
    const struct ps_server_push push = read_push(q);
    struct ps_server_contribution in = {.push = &push, .slot = q->from.slot};

    if (!ps_credit_admits(ps_server_credit_get(s, q->from.session, q->from.gen),
                          q->bytes)) {
        return PS_E_FULL;
    }
    for (uint32_t i = 0; i < q->count; i++) {
        read_part(&in, i);
        if (!is_duplicate(&in)) {
            return 0;
        }
    }
    return PS_E_EXIST;
}

/* Checks what all parts have in common. 0 or the refusal of all. */
static int check_push(const struct ps_server_push *push)
{
    const struct ps_server_request *q = push->request;

    if (q->rc != 0) {
        return q->rc;
    }
    if (push->incarnation != q->from.session->incarnation) {
        return PS_E_STALE;
    }
    if ((push->weight == 0 && q->bytes > 0) || push->weight > PS_WEIGHT_MAX) {
        return PS_E_INVAL;
    }
    return q->discard_reason == PS_E_FULL ? PS_E_FULL : 0;
}

static void accept_contributions(struct ps_server_step *st,
                                 const struct ps_server_push *push)
{
    const struct ps_server_request *q = push->request;
    struct ps_server_slot *slot = q->from.slot;
    struct ps_server_contribution in = {.push = push, .slot = slot};
    struct ps_server_refusal refusal;

    if (q->discard_reason == PS_E_NOMEM) {
        reclaim_memory(st, q);
    }
    ps_server_refusal_begin(st, q, &refusal);
    /* Parts that are not accepted yet count as held: what happens to those before
     * them may be answered with credit. */
    slot->unmerged_bytes += q->bytes;
    for (uint32_t i = 0; i < q->count; i++) {
        read_part(&in, i);
        slot->unmerged_bytes -= in.payload_bytes;
        int rc = accept_contribution(st, &in, &refusal.conflict);

        if (rc == PS_E_NOKEY && !ps_server_job_is_settled(slot->job, st->now)) {
            rc = PS_E_FUTURE;
        }
        if (rc != 0) {
            ps_server_refusal_add(
                &refusal, &in.rec, rc,
                rc == PS_E_MISMATCH
                    ? ps_server_conflict_newer_retry(slot->job, in.rec.key,
                                                     in.rec.index, push->retry)
                    : 0);
        }
    }
    if (refusal.count < q->count) {
        ps_server_credit_push_accepted(q);
    }
    if (refusal.count > 0) {
        ps_server_refusal_send(st, &q->from, &refusal);
    }
}

void ps_server_on_push(struct ps_server_step *st,
                       const struct ps_server_request *q)
{
    const struct ps_server_push push = read_push(q);

    ps_server_credit_on_receive(st->s, q);

    int rc = check_push(&push);

    if (rc != 0) {
        ps_server_refuse(st, q, rc);
        return;
    }
    ps_server_credit_push_ended(q);
    accept_contributions(st, &push);
    ps_server_credit_send_due(st, &q->from);
}
