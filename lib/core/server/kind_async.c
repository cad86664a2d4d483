/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes of async and ssp jobs. Each is applied once, in order of arrival: by
 * an optimizer step, by adding it to the value, or by replacing the value. A
 * partition has one computation at a time, so no value has half of a push. A
 * push is identified by (generation, partition, slot, incarnation, number). Its
 * agent has at most one in flight to a partition, so a duplicate is dropped,
 * and answered when the push is applied. */
#include "core/server/kind.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/reply.h"

/* Returns the clock of the slot's pushes, reset if the agent was restarted: its
 * numbers then begin again. */
static struct ps_rec_part_clock *obtain_clock(struct ps_part *part,
                                              const struct ps_server_slot *slot)
{
    struct ps_part_async *async = ps_part_obtain_async(part,
                                                       slot->job->slot_count);
    struct ps_rec_part_clock *known = &async->clocks[slot->index];

    if (known->incarnation != slot->incarnation) {
        known->incarnation = slot->incarnation;
        known->applied_seq = 0; /* The pushes of its ranks still count. */
        async->received_seqs[slot->index] = 0;
    }
    return known;
}

static bool async_is_duplicate(const struct ps_server_contribution *in,
                               const struct ps_part *part)
{
    const uint32_t slot = in->slot->index;

    return part != NULL && part->async != NULL &&
           part->async->clocks[slot].incarnation == in->push->incarnation &&
           in->rec.round <= part->async->received_seqs[slot];
}

static int validate_async(const struct ps_server_contribution *in,
                          const struct ps_part *part)
{
    const struct ps_server_job *job = in->slot->job;
    const struct ps_server_push *m = in->push;
    const struct ps_rec_part *rec = &in->rec;

    if (rec->count == 0 || rec->codec != PS_CODEC_NONE) {
        return PS_E_INVAL;
    }
    if (part == NULL || !ps_part_has_value(part)) {
        return PS_E_NOKEY;
    }
    if ((m->rule == PS_RULE_STEP) != job->has_optimizer || m->assign ||
        !ps_part_matches(part, rec->dtype, rec->count) ||
        ps_part_is_rows(part) ||
        (part->async == NULL &&
         (part->open_round != NULL || part->image.version > 0))) {
        return PS_E_MISMATCH;
    }
    if (m->rule == PS_RULE_STEP &&
        (!ps_dtype_is_real(rec->dtype) || ps_optim_needs_rows(&job->optim))) {
        return PS_E_UNSUPPORTED;
    }
    return 0;
}

/* True if the push can be summed with those being applied. */
static bool can_apply_together(const struct ps_part *part,
                               const struct ps_async_push *a)
{
    const struct ps_open_round *open = part->open_round;

    return open->rule == PS_RULE_ACCUMULATE && a->rule == open->rule &&
           !ps_round_has_contributed(&open->round, a->slot);
}

/* Opens a round of the first queued push. If pushes are added, all queued ones
 * (one of each slot) are summed in the same computation. False: none is queued,
 * or some are being applied. */
static bool start_queued_pushes(struct ps_server_job *job, struct ps_part *part)
{
    struct ps_part_async *async = part->async;
    const struct ps_async_push *first = PS_LIST_FIRST(
        struct ps_async_push, node, &async->queued_pushes);

    if (part->open_round != NULL || first == NULL) {
        return false;
    }
    struct ps_open_round *open = ps_store_open_round(
        &job->store, part, &ps_server_async_kind, job->slot_count);

    open->rule = first->rule;
    open->has_request = true;
    open->reduce = PS_REDUCE_SUM;
    PS_LIST_EACH_SAFE(struct ps_async_push, a, node, &async->queued_pushes)
    {
        if (ps_list_empty(&async->applying_pushes) ||
            can_apply_together(part, a)) {
            ps_list_remove(&a->node);
            ps_list_push_back(&async->applying_pushes, &a->node);
            ps_round_contribute(&open->round, a->slot, &a->payload, 1);
            ps_buf_unref(a->payload.buf);
            a->payload = (struct ps_slice){0}; /* Moved to the round. */
        }
    }
    return true;
}

static int check_async(struct ps_server_step *st,
                       const struct ps_server_contribution *in,
                       struct ps_part *part)
{
    const struct ps_rec_part *rec = &in->rec;
    const int rc = validate_async(in, part);

    if (rc != 0) {
        return rc;
    }
    const struct ps_rec_part_clock *known = obtain_clock(part, in->slot);

    if (rec->round <= known->applied_seq) {
        ps_server_reply_part(st, in->slot, part, false, rec->round);
        return PS_CONTRIBUTION_KNOWN;
    }
    if (rec->round <= part->async->received_seqs[in->slot->index]) {
        return PS_CONTRIBUTION_KNOWN; /* Replied to when applied. */
    }
    return 0;
}

static bool take_async(struct ps_server_step *st,
                       const struct ps_server_contribution *in,
                       struct ps_part *part, const struct ps_slice *bytes)
{
    struct ps_server_slot *slot = in->slot;
    struct ps_async_push *a = ps_calloc(1, sizeof(*a));

    a->slot = slot->index;
    a->rule = in->push->rule;
    a->incarnation = slot->incarnation;
    a->seq = in->rec.round;
    a->clock = in->rec.clock;
    a->payload = *bytes;
    (void)obtain_clock(part, slot);
    part->async->received_seqs[slot->index] = a->seq;
    slot->unmerged_bytes += bytes->len;
    ps_list_push_back(&part->async->queued_pushes, &a->node);
    (void)st;
    return start_queued_pushes(slot->job, part);
}

/* Raises the partition's clock to the least of all slots; false: no change. */
static bool advance_clock(struct ps_part_async *async)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < async->slot_count && least > async->clock; i++) {
        least = ps_min_u64(least, async->clocks[i].clock);
    }
    if (least <= async->clock) {
        return false;
    }
    async->clock = least;
    return true;
}

static bool async_applied(struct ps_server_step *st, struct ps_server_job *job,
                          struct ps_part *part)
{
    struct ps_part_async *async = part->async;
    bool slowest = false;
    struct ps_bits replied;
    struct ps_async_push *a;

    PS_LIST_EACH_OF(const struct ps_async_push, m, node,
                    &async->applying_pushes)
    {
        struct ps_rec_part_clock *known = &async->clocks[m->slot];

        slowest = slowest || known->clock == async->clock;
        known->clock = ps_max_u64(known->clock, m->clock);
    }
    slowest = slowest && advance_clock(async);
    ps_bits_init(&replied, job->slot_count);

    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].unmerged_bytes -=
            part->open_round->round.contributions[i].len;
    }
    ps_store_close_round(&job->store, part);
    while ((a = PS_LIST_POP(struct ps_async_push, node,
                            &async->applying_pushes)) != NULL) {
        struct ps_server_slot *slot = &job->slots[a->slot];
        struct ps_rec_part_clock *known = &async->clocks[a->slot];

        if (a->incarnation == known->incarnation) {
            known->applied_seq = a->seq;
        }
        if (a->incarnation == slot->incarnation) {
            ps_server_reply_part(st, slot, part, false, a->seq);
            ps_bits_set(&replied, a->slot);
        }
        ps_async_push_free(a);
    }
    for (uint32_t i = 0; slowest && i < job->slot_count; i++) {
        const struct ps_rec_part_clock *known = &async->clocks[i];
        struct ps_server_slot *slot = &job->slots[i];

        /* Its agent may have a pull that waits for the clock. */
        if (!ps_bits_get(&replied, i)) {
            ps_server_reply_part(st, slot, part, false,
                                 known->incarnation == slot->incarnation
                                     ? known->applied_seq
                                     : 0);
        }
    }
    ps_bits_fini(&replied);
    ps_server_credit_mark_job(job);
    return start_queued_pushes(job, part);
}

static void drop_async(struct ps_server_job *job, struct ps_part *part)
{
    struct ps_part_async *async = part->async;
    struct ps_async_push *a;

    while ((a = PS_LIST_POP(struct ps_async_push, node,
                            &async->applying_pushes)) != NULL ||
           (a = PS_LIST_POP(struct ps_async_push, node,
                            &async->queued_pushes)) != NULL) {
        job->slots[a->slot].unmerged_bytes -= a->payload.len;
        ps_async_push_free(a);
    }
}

const struct ps_server_contribution_kind ps_server_async_kind = {
    .is_duplicate = async_is_duplicate,
    .check = check_async,
    .retain = ps_server_dense_retain,
    .take = take_async,
    .applied = async_applied,
    .drop = drop_async,
};
