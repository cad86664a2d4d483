/* SPDX-License-Identifier: Apache-2.0 */
/* Conflicting contributions. Each contribution belongs to an attempt at its
 * round, numbered by `retry`. When two of one attempt ask for different things,
 * the attempt is aborted: all contributors, and later ones, are refused with
 * the next retry number and try again under that (rule R15). Partitions on
 * other servers learn of the abort from the higher number, so the order in
 * which servers receive contributions does not matter (rule R17). */
#include "core/server/inner.h"

void ps_server_conflict_abort(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint32_t attempt,
                              const struct ps_server_conflict *other)
{
    const struct ps_rec_part rec = {
        .key = part->key,
        .index = part->index,
        .round = part->version + 1,
        .dtype = part->dtype,
        .count = part->count,
    };
    struct ps_server_refusal refusal;
    struct ps_bits told;

    part->retry = attempt;
    if (part->open_round == NULL) {
        return;
    }
    ps_bits_init(&told, job->slot_count);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&told, i);
        }
    }
    /* Before the refusals, so that they carry the credit that this frees. */
    ps_server_merge_discard(st->s, job, part);
    ps_server_refusal_init(&refusal);
    if (other != NULL) {
        refusal.conflict = *other;
    }
    ps_server_refusal_add(&refusal, &rec, PS_E_MISMATCH, attempt);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = ps_server_slot_session(&job->slots[i]);

        if (p != NULL && ps_bits_get(&told, i)) {
            ps_server_refusal_send(st, p, job->gen, &job->slots[i], &refusal);
        }
    }
    ps_bits_fini(&told);
}

uint32_t ps_server_conflict_newer_retry(const struct ps_server_job *job,
                                        uint32_t key, uint32_t index,
                                        uint32_t attempt)
{
    const struct ps_part *part = ps_store_find(&job->store, key, index);

    return part != NULL && part->retry > attempt ? part->retry : 0;
}

bool ps_server_conflict_is_redundant(const struct ps_part *part, uint64_t round,
                                     uint32_t slot, uint32_t attempt)
{
    if (round != part->version + 1) {
        return round <= part->version;
    }
    return attempt < part->retry ||
           (attempt == part->retry && part->open_round != NULL &&
            ps_round_has_contributed(&part->open_round->round, slot));
}

int ps_server_conflict_check_retry(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   struct ps_part *part, uint64_t round,
                                   uint32_t attempt)
{
    if (part == NULL || round != part->version + 1) {
        return 0;
    }
    if (attempt < part->retry) {
        return PS_E_MISMATCH;
    }
    if (attempt > part->retry) {
        if (part->open_round != NULL &&
            (part->open_round->rule != PS_RULE_NONE ||
             ps_round_is_complete(&part->open_round->round))) {
            return PS_E_FUTURE; /* All slots have agreed. */
        }
        ps_server_conflict_abort(st, job, part, attempt, NULL);
    }
    return 0;
}

void ps_server_conflict_no_root(struct ps_server_step *st,
                                struct ps_server_job *job, struct ps_part *part)
{
    ps_server_conflict_abort(st, job, part, part->retry + 1,
                             &(struct ps_server_conflict){.assign = true});
}

void ps_server_conflict_raise(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint64_t round,
                              const struct ps_server_conflict *mine,
                              struct ps_server_conflict *ret_others)
{
    const struct ps_open_round *open = part->open_round;

    if (round != part->version + 1 ||
        (open != NULL && ps_round_is_complete(&open->round))) {
        return;
    }
    if (open != NULL && ret_others->slot_count == 0) {
        for (uint32_t i = 0; i < open->round.size &&
                             ret_others->slot_count < PS_CONFLICT_SLOTS_MAX;
             i++) {
            if (ps_round_has_contributed(&open->round, i) &&
                (open->skips == NULL || open->skips[i] == 0)) {
                ret_others->slots[ret_others->slot_count++] = i;
            }
        }
        ret_others->reduce = open->reduce;
        ret_others->assign = open->assign;
    }
    ps_server_conflict_abort(st, job, part, part->retry + 1, mine);
}
