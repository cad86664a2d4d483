/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of the server. A large value goes at once, in a frame of its own, so
 * that its receiver can keep it in place. Small values and commits are batched
 * by slot (rule C6) and go at the next tick, which is due at once, after all
 * messages that have arrived. Values are not copied: frames refer to the stored
 * bytes. */
#include "core/server/reply.h"

#include "base/str.h"
#include "core/server/copies.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/session.h"

#include <assert.h>

struct ps_rec_part ps_server_part_record(const struct ps_part *part,
                                         uint64_t version)
{
    return (struct ps_rec_part){
        .key = part->key,
        .index = part->index,
        .round = version,
        .dtype = part->image.dtype,
        .count = part->image.count,
        .all_skipped = part->image.all_skipped &&
                       version == part->image.version,
        .clock = part->async != NULL ? part->async->clock : 0,
    };
}

/* Sends values, or commits of versions. */
static void send_batch(struct ps_server_step *st,
                       const struct ps_server_recipient *to,
                       const struct ps_batch *g, bool has_values)
{
    const uint64_t credit = ps_server_credit_announce(st->s, to);

    if (has_values) {
        const struct ps_msg m = {.code = PS_MSG_VALUE,
                                 .value = {.gen = to->gen,
                                           .epoch = st->s->epoch,
                                           .credit = credit,
                                           .parts = g->parts,
                                           .parts_count = g->part_count}};

        ps_server_session_send_payload(
            st, to->session, to->slot->job,
            ps_packet_new(&m, g->slices, g->slice_count));
    } else {
        const struct ps_msg m = {.code = PS_MSG_COMMIT,
                                 .commit = {.gen = to->gen,
                                            .epoch = st->s->epoch,
                                            .credit = credit,
                                            .parts = g->parts,
                                            .parts_count = g->part_count}};

        ps_server_session_send(st, to->session, ps_packet_new(&m, NULL, 0));
    }
}

/* ------------------------------------------------------------------ batches */

static void flush_batch(struct ps_server_step *st,
                        const struct ps_server_recipient *to,
                        struct ps_batch *g)
{
    if (!ps_batch_is_empty(g)) {
        send_batch(st, to, g, g == &to->slot->value_batch);
        ps_batch_fini(g);
    }
}

void ps_server_reply_part(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_part *part, bool want,
                          uint64_t version)
{
    const struct ps_server_recipient to = {ps_server_slot_session(slot),
                                           slot->job->gen, slot};
    const bool has_value = want && ps_part_has_value(part);
    struct ps_batch *g = has_value ? &slot->value_batch : &slot->commit_batch;
    struct ps_rec_part rec = ps_server_part_record(
        part, has_value ? part->image.version : version);
    struct ps_slice bytes = {0};

    if (to.session == NULL) {
        return; /* The agent asks again after it connects. */
    }
    if (ps_server_copies_defer_reply(slot, part, want)) {
        return; /* Rule O11. */
    }
    if (has_value) {
        bytes = part->buffers[PS_PART_BUFFER_ENCODED];
    }
    if (bytes.buf != NULL) {
        rec.codec = part->image.codec;
        rec.encoded_bytes = (uint32_t)bytes.len;
    } else if (has_value) {
        bytes = part->buffers[PS_PART_BUFFER_VALUE];
    }
    if (bytes.len > PS_BATCH_PART_MAX || st->s->opt.unbatched) {
        struct ps_batch one = {.parts = &rec,
                               .slices = &bytes,
                               .part_count = 1,
                               .slice_count = has_value ? 1 : 0};

        send_batch(st, &to, &one, has_value);
        return;
    }
    if (!ps_batch_has_room(g, bytes.len)) {
        flush_batch(st, &to, g);
    }
    ps_batch_add(g, &rec, has_value ? &bytes : NULL);
    if (!ps_list_linked(&slot->list_node)) { /* Sent at the next tick. */
        ps_list_push_back(&st->s->replies.batching_slots, &slot->list_node);
        st->s->replies.flush_at = ps_time_min(st->s->replies.flush_at, st->now);
    }
}

void ps_server_reply_init(struct ps_server *s)
{
    ps_list_init(&s->replies.batching_slots);
    s->replies.flush_at = PS_TIME_NEVER;
}

void ps_server_reply_flush(struct ps_server_step *st)
{
    struct ps_server_slot *slot;

    while ((slot = PS_LIST_POP(struct ps_server_slot, list_node,
                               &st->s->replies.batching_slots)) != NULL) {
        const struct ps_server_recipient to = {ps_server_slot_session(slot),
                                               slot->job->gen, slot};

        if (to.session != NULL) {
            flush_batch(st, &to, &slot->value_batch);
            flush_batch(st, &to, &slot->commit_batch);
        } else {
            ps_batch_fini(&slot->value_batch);
            ps_batch_fini(&slot->commit_batch);
        }
    }
    st->s->replies.flush_at = PS_TIME_NEVER;
}

void ps_server_reply_drop(struct ps_server_slot *slot)
{
    ps_server_copies_drop_replies(slot);
    ps_batch_fini(&slot->value_batch);
    ps_batch_fini(&slot->commit_batch);
    if (ps_list_linked(&slot->list_node)) {
        ps_list_remove(&slot->list_node);
    }
}

/* ----------------------------------------------------------------- refusals */

static const char *refusal_text(int rc)
{
    switch (rc) {
    case PS_E_NOKEY:
        return "the key was never initialised: an optimizer, and a push that "
               "is applied when it arrives, need a value to begin with";
    case PS_E_MISMATCH:
        return "element type, length, reduction or assignment differ from "
               "those of the round's other contributions";
    case PS_E_FULL:
        return "more was sent than the credit allows";
    case PS_E_UNSUPPORTED:
        return "the optimizer does not take this push: it takes sums and means "
               "of real numbers, of rows only without accumulation and norms "
               "of whole arrays; groupadagrad takes rows alone";
    case PS_E_INVAL:
        return "the message is malformed, or a code in it is broken";
    case PS_E_PERM:
        return "the slot belongs to another agent";
    default:
        return "";
    }
}

void ps_server_refusal_init(struct ps_server_refusal *r)
{
    r->count = 0;
    r->conflict.slot_count = 0;
    r->conflict.reduce = PS_REDUCE_SUM;
    r->conflict.assign = false;
    r->epoch = 0;
    r->text_rc = 0;
}

void ps_server_refusal_begin(struct ps_server_step *st,
                             const struct ps_server_request *q,
                             struct ps_server_refusal *r)
{
    struct ps_str why;

    ps_server_refusal_init(r);
    if (q->discard_reason == PS_E_NOMEM) {
        ps_str_init(&why, r->text, sizeof(r->text));
        r->text_rc = ps_server_memory_refusal(st, q->from.slot, q->bytes, &why);
    }
}

void ps_server_refusal_set_text(struct ps_server_refusal *r, int rc,
                                const char *text)
{
    r->text_rc = rc;
    (void)ps_str_copy(r->text, sizeof(r->text), text);
}

void ps_server_refusal_add(struct ps_server_refusal *r,
                           const struct ps_rec_part *part, int rc,
                           uint32_t attempt)
{
    assert(r->count < PS_PARTS_MAX); /* The most that a message has. */
    r->parts[r->count] = *part;
    r->rcs[r->count] = rc == PS_E_DISCARDED && r->text_rc != 0 ? r->text_rc
                                                               : rc;
    r->retries[r->count] = attempt;
    r->count++;
}

/* Sends one message for each run of equal errors; usually one. The refusal of
 * contributions to an aborted attempt names the conflicting side (rule R15). */
void ps_server_refusal_send(struct ps_server_step *st,
                            const struct ps_server_recipient *to,
                            const struct ps_server_refusal *r)
{
    for (uint32_t at = 0, end; at < r->count; at = end) {
        const uint32_t retry = r->retries[at];
        const int rc = retry != 0 ? PS_E_MISMATCH : r->rcs[at];

        end = at + 1;
        while (end < r->count && r->rcs[end] == r->rcs[at] &&
               r->retries[end] == retry) {
            end++;
        }
        struct ps_msg m = {
            .code = PS_MSG_REFUSE,
            .refuse = {.gen = to->gen,
                       .epoch = r->epoch > st->s->epoch ? r->epoch
                                                        : st->s->epoch,
                       .credit = ps_server_credit_announce(st->s, to),
                       .error = rc,
                       .text = rc == r->text_rc ? r->text : refusal_text(rc),
                       .parts = &r->parts[at],
                       .parts_count = end - at,
                       .retry = retry},
        };

        if (retry != 0) {
            m.refuse.conflict_slots = r->conflict.slots;
            m.refuse.conflict_slots_count = r->conflict.slot_count;
            m.refuse.conflict_reduce = r->conflict.reduce;
            m.refuse.conflict_assign = r->conflict.assign;
        }
        st->s->replies.refused_parts += m.refuse.parts_count;
        ps_server_session_send(st, to->session, ps_packet_new(&m, NULL, 0));
    }
}

void ps_server_refusal_send_to(struct ps_server_step *st,
                               const struct ps_server_job *job,
                               const struct ps_bits *slots,
                               const struct ps_server_refusal *r)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = slots == NULL || ps_bits_get(slots, i)
                                          ? ps_server_slot_session(
                                                &job->slots[i])
                                          : NULL;

        if (p != NULL) {
            ps_server_refusal_send(
                st, &(struct ps_server_recipient){p, job->gen, &job->slots[i]},
                r);
        }
    }
}

void ps_server_refuse(struct ps_server_step *st,
                      const struct ps_server_request *q, int rc)
{
    struct ps_server_refusal refusal;

    ps_server_refusal_init(&refusal);
    for (uint32_t i = 0; i < q->count; i++) {
        const struct ps_rec_part rec = ps_server_request_part(q, i);

        ps_server_refusal_add(&refusal, &rec, rc, 0);
    }
    ps_server_refusal_send(st, &q->from, &refusal);
}
