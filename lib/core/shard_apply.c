/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes without rounds: each is applied once, in order of arrival, by a step
 * of the optimizer, by adding it, or by taking it as the value. One
 * computation at a time for a partition, so a value is never half of one push.
 * A push is known by (generation, partition, slot, incarnation, number): its
 * agent has at most one on its way to a partition, so what comes with a number
 * that was here is answered when that is applied, and dropped. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/num.h"

/* What is known of the slot's pushes. An agent that was restarted counts
 * from the beginning. */
static struct ps_applied *applied_of(struct ps_part *part,
                                     const struct ps_shard_slot *slot)
{
    struct ps_applied *a;

    if (part->applied == NULL) {
        part->applied = ps_calloc(slot->job->slot_count,
                                  sizeof(*part->applied));
    }
    a = &part->applied[slot->index];
    if (a->incarnation != slot->incarnation) {
        /* What its ranks have pushed stays so. */
        *a = (struct ps_applied){.incarnation = slot->incarnation,
                                 .clock = a->clock};
    }
    return a;
}

bool ps_shard_apply_is_known(const struct ps_shard_job *job,
                             const struct ps_msg_push *m,
                             const struct ps_rec_part *rec)
{
    const struct ps_part *part = ps_store_find(&job->store, rec->key,
                                               rec->index);

    return part != NULL && part->applied != NULL && m->slot < job->slot_count &&
           part->applied[m->slot].incarnation == m->incarnation &&
           rec->round <= part->applied[m->slot].taken;
}

static int check(const struct ps_shard_job *job, const struct ps_part *part,
                 const struct ps_msg_push *m, const struct ps_rec_part *rec)
{
    if (rec->count == 0 || rec->codec != PS_PRESS_NONE) {
        return PS_E_INVAL;
    }
    if (part == NULL || !ps_part_has_value(part)) {
        return PS_E_NOKEY;
    }
    if ((m->rule == PS_RULE_STEP) != job->optimizes || m->assign ||
        !ps_part_fits(part, rec->dtype, rec->count) || part->width != 0 ||
        (part->applied == NULL && (part->open != NULL || part->version > 0))) {
        return PS_E_MISMATCH;
    }
    if (m->rule == PS_RULE_STEP &&
        (!ps_dtype_is_real(rec->dtype) || ps_optim_needs_rows(&job->optim))) {
        return PS_E_UNSUPPORTED;
    }
    return 0;
}

/* Can this one be applied together with what is being gathered? */
static bool joins(const struct ps_part *part, const struct ps_apply *a)
{
    const struct ps_open *open = part->open;

    return open->rule == PS_RULE_ACCUMULATE && a->rule == open->rule &&
           !ps_round_has(&open->round, a->slot);
}

/* Takes the first that waits, and when pushes are added all that wait with
 * it: a sum is a sum. */
static void go_on(struct ps_shard_step *st, struct ps_shard_job *job,
                  struct ps_part *part)
{
    struct ps_list_node *n = ps_list_first(&part->waiting);

    if (part->open != NULL || n == NULL) {
        return;
    }
    struct ps_open *open = ps_store_open(&job->store, part, job->slot_count);

    open->rule = PS_CONTAINER(n, struct ps_apply, node)->rule;
    open->reduce = PS_REDUCE_SUM;
    while (n != NULL) {
        struct ps_apply *a = PS_CONTAINER(n, struct ps_apply, node);

        n = ps_list_next(&part->waiting, n);
        if (ps_list_empty(&part->applying) || joins(part, a)) {
            ps_list_remove(&a->node);
            ps_list_push_back(&part->applying, &a->node);
            ps_round_offer(&open->round, a->slot, &a->given, 1);
            ps_buf_unref(a->given.buf);
            a->given.buf = NULL; /* The round has it now. */
        }
    }
    ps_shard_merge_start(st, job, part);
}

int ps_shard_apply_take(struct ps_shard_step *st, struct ps_shard_slot *slot,
                        const struct ps_msg_push *m,
                        const struct ps_rec_part *rec,
                        const struct ps_slice *payload, uint64_t offset)
{
    struct ps_shard_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    struct ps_slice given;
    int rc = check(job, part, m, rec);

    if (rc != 0) {
        return rc;
    }
    struct ps_applied *known = applied_of(part, slot);

    if (rec->round <= known->done) {
        ps_shard_answer(st, slot, part, false, rec->round);
        return 0;
    }
    if (rec->round <= known->taken) {
        return 0; /* Answered when it is applied. */
    }
    if (payload == NULL || payload->buf == NULL ||
        ps_shard_parts_take(job, payload, offset, rec, &given) != 0) {
        return PS_E_FUTURE; /* To be sent again. */
    }
    struct ps_apply *a = ps_calloc(1, sizeof(*a));

    a->slot = slot->index;
    a->rule = m->rule;
    a->incarnation = slot->incarnation;
    a->seq = rec->round;
    a->clock = rec->clock;
    a->given = given;
    known->taken = rec->round;
    slot->held += given.len;
    ps_list_push_back(&part->waiting, &a->node);
    go_on(st, job, part);
    return 0;
}

/* True: the slowest has gone on. */
static bool set_clock(const struct ps_shard_job *job, struct ps_part *part)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < job->slot_count && least > part->clock; i++) {
        least = ps_min_u64(least, part->applied[i].clock);
    }
    if (least <= part->clock) {
        return false;
    }
    part->clock = least;
    return true;
}

void ps_shard_apply_made(struct ps_shard_step *st, struct ps_shard_job *job,
                         struct ps_part *part)
{
    bool slowest = false;
    struct ps_bits told;
    struct ps_list_node *n;

    PS_LIST_EACH(m, &part->applying)
    {
        const struct ps_apply *a = PS_CONTAINER(m, const struct ps_apply, node);
        struct ps_applied *known = &part->applied[a->slot];

        slowest = slowest || known->clock == part->clock;
        known->clock = ps_max_u64(known->clock, a->clock);
    }
    slowest = slowest && set_clock(job, part);
    ps_bits_init(&told, job->slot_count);

    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].held -= part->open->round.part[i].len;
    }
    ps_store_close(&job->store, part);
    while ((n = ps_list_pop(&part->applying)) != NULL) {
        struct ps_apply *a = PS_CONTAINER(n, struct ps_apply, node);
        struct ps_shard_slot *slot = &job->slots[a->slot];
        struct ps_applied *known = &part->applied[a->slot];

        if (a->incarnation == known->incarnation) {
            known->done = a->seq;
        }
        if (a->incarnation == slot->incarnation) {
            ps_shard_answer(st, slot, part, false, a->seq);
            ps_bits_set(&told, a->slot);
        }
        ps_store_apply_free(a);
    }
    for (uint32_t i = 0; slowest && i < job->slot_count; i++) {
        const struct ps_applied *known = &part->applied[i];
        struct ps_shard_slot *slot = &job->slots[i];

        if (!ps_bits_get(&told, i)) { /* A pull may wait there for this. */
            ps_shard_answer(
                st, slot, part, false,
                known->incarnation == slot->incarnation ? known->done : 0);
        }
    }
    ps_bits_fini(&told);
    ps_shard_credit_dirty(job);
    go_on(st, job, part);
}

void ps_shard_apply_drop(struct ps_shard_job *job, struct ps_part *part)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&part->applying)) != NULL) {
        ps_store_apply_free(PS_CONTAINER(n, struct ps_apply, node));
    }
    while ((n = ps_list_pop(&part->waiting)) != NULL) {
        struct ps_apply *a = PS_CONTAINER(n, struct ps_apply, node);

        job->slots[a->slot].held -= a->given.len;
        ps_store_apply_free(a);
    }
}
