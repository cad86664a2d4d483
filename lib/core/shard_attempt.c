/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that disagree about a round. What a slot gives belongs to an attempt
 * at the round. When two of one attempt ask for different things it is over:
 * all who took part in it hear so, and those who come with it later, too; when
 * they try again they count one more. Partitions on other servers learn of it
 * from the higher number, so it does not matter which of them saw whom first. */
#include "core/shard_inner.h"

void ps_shard_attempt_void(struct ps_shard_step *st, struct ps_shard_job *job,
                           struct ps_part *part, uint32_t attempt,
                           const struct ps_shard_side *other)
{
    const struct ps_rec_part rec = {
        .key = part->key,
        .index = part->index,
        .round = part->version + 1,
        .dtype = part->dtype,
        .count = part->count,
    };
    struct ps_shard_refusal refusal;
    struct ps_bits told;

    part->attempt = attempt;
    if (part->open == NULL) {
        return;
    }
    ps_bits_init(&told, job->slot_count);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has(&part->open->round, i)) {
            ps_bits_set(&told, i);
        }
    }
    /* First, so that the refusals carry the credit that this sets free. */
    ps_shard_merge_drop(st->s, job, part);
    ps_shard_refusal_init(&refusal);
    if (other != NULL) {
        refusal.side = *other;
    }
    ps_shard_refusal_add(&refusal, &rec, PS_E_MISMATCH, attempt);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_shard_peer *p = ps_shard_job_peer(&job->slots[i]);

        if (p != NULL && ps_bits_get(&told, i)) {
            ps_shard_refusal_send(st, p, job->gen, &job->slots[i], &refusal);
        }
    }
    ps_bits_fini(&told);
}

uint32_t ps_shard_attempt_over(const struct ps_shard_job *job, uint32_t key,
                               uint32_t index, uint32_t attempt)
{
    const struct ps_part *part = ps_store_find(&job->store, key, index);

    return part != NULL && part->attempt > attempt ? part->attempt : 0;
}

bool ps_shard_attempt_knows(const struct ps_part *part, uint64_t round,
                            uint32_t slot, uint32_t attempt)
{
    if (round != part->version + 1) {
        return round <= part->version;
    }
    return attempt < part->attempt ||
           (attempt == part->attempt && part->open != NULL &&
            ps_round_has(&part->open->round, slot));
}

int ps_shard_attempt_check(struct ps_shard_step *st, struct ps_shard_job *job,
                           struct ps_part *part, uint64_t round,
                           uint32_t attempt)
{
    if (part == NULL || round != part->version + 1) {
        return 0;
    }
    if (attempt < part->attempt) {
        return PS_E_MISMATCH;
    }
    if (attempt > part->attempt) {
        if (part->open != NULL && (part->open->rule != PS_RULE_NONE ||
                                   ps_round_complete(&part->open->round))) {
            return PS_E_FUTURE; /* Here all have agreed. */
        }
        ps_shard_attempt_void(st, job, part, attempt, NULL);
    }
    return 0;
}

void ps_shard_attempt_rootless(struct ps_shard_step *st,
                               struct ps_shard_job *job, struct ps_part *part)
{
    ps_shard_attempt_void(st, job, part, part->attempt + 1,
                          &(struct ps_shard_side){.assign = true});
}

void ps_shard_attempt_disagree(struct ps_shard_step *st,
                               struct ps_shard_job *job, struct ps_part *part,
                               uint64_t round, const struct ps_shard_side *mine,
                               struct ps_shard_side *ret_others)
{
    const struct ps_open *open = part->open;

    if (round != part->version + 1 ||
        (open != NULL && ps_round_complete(&open->round))) {
        return;
    }
    if (open != NULL && ret_others->count == 0) {
        for (uint32_t i = 0;
             i < open->round.size && ret_others->count < PS_SIDE_MAX; i++) {
            if (ps_round_has(&open->round, i) &&
                (open->passes == NULL || open->passes[i] == 0)) {
                ret_others->slot[ret_others->count++] = i;
            }
        }
        ret_others->reduce = open->reduce;
        ret_others->assign = open->assign;
    }
    ps_shard_attempt_void(st, job, part, part->attempt + 1, mine);
}
