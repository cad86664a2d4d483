/* SPDX-License-Identifier: Apache-2.0 */
/* Conflicting contributions. Each contribution belongs to an attempt at its
 * round, numbered by `retry`. When two of one attempt ask for different things,
 * the attempt is aborted: all contributors, and later ones, are refused with
 * the next retry number and try again under that (rule R15). Partitions on
 * other servers learn of the abort from the higher number, so the order in
 * which servers receive contributions does not matter (rule R17). */
#include "core/server/conflict.h"

#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/merge_run.h"
#include "core/server/migration.h"
#include "core/server/reply.h"
#include "core/server/session.h"

/* Discards the open round, adds its partition to the refusal, and sends that to
 * the round's contributors. */
static void void_round(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_part *part, int rc,
                       struct ps_server_refusal *refusal)
{
    const struct ps_rec_part rec = {
        .key = part->key,
        .index = part->index,
        .round = part->image.version + 1,
        .dtype = part->image.dtype,
        .count = part->image.count,
    };
    const uint32_t retry = rc == PS_E_MISMATCH ? part->image.retry : 0;
    struct ps_bits contributed;

    ps_bits_init(&contributed, job->slot_count);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&contributed, i);
        }
    }
    /* Before the refusals, so that they carry the credit that this frees. */
    ps_server_merge_discard(st->s, job, part);
    ps_server_refusal_add(refusal, &rec, rc, retry);
    ps_server_refusal_send_to(st, job, &contributed, refusal);
    ps_bits_fini(&contributed);
}

void ps_server_conflict_void(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part,
                             int rc)
{
    struct ps_server_refusal refusal;

    ps_server_refusal_init(&refusal);
    void_round(st, job, part, rc, &refusal);
}

void ps_server_conflict_abort(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint32_t attempt,
                              const struct ps_server_conflict *other)
{
    struct ps_server_refusal refusal;

    part->image.retry = attempt;
    if (part->open_round == NULL) {
        return;
    }
    ps_server_refusal_init(&refusal);
    if (other != NULL) {
        refusal.conflict = *other;
    }
    void_round(st, job, part, PS_E_MISMATCH, &refusal);
}

uint32_t ps_server_conflict_newer_retry(const struct ps_server_job *job,
                                        uint32_t key, uint32_t index,
                                        uint32_t attempt)
{
    const struct ps_part *part = ps_store_find(&job->store, key, index);

    return part != NULL && part->image.retry > attempt ? part->image.retry : 0;
}

int ps_server_conflict_check_retry(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   struct ps_part *part, uint64_t round,
                                   uint32_t attempt)
{
    if (part == NULL || round != part->image.version + 1) {
        return 0;
    }
    if (attempt < part->image.retry) {
        return PS_E_MISMATCH;
    }
    if (attempt > part->image.retry) {
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
    ps_server_conflict_abort(st, job, part, part->image.retry + 1,
                             &(struct ps_server_conflict){.assign = true});
}

void ps_server_conflict_raise(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint64_t round,
                              const struct ps_server_conflict *own,
                              struct ps_server_conflict *ret_others)
{
    const struct ps_open_round *open = part->open_round;

    if (round != part->image.version + 1 ||
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
    ps_server_conflict_abort(st, job, part, part->image.retry + 1, own);
}

void ps_server_on_abort_round(struct ps_server_step *st,
                              struct ps_server_conn *c,
                              const struct ps_msg_abort_round *m)
{
    const struct ps_server_parts parts = {m->parts, m->parts_count, NULL};
    struct ps_server_slot *slot;

    if (m->parts_count > PS_PARTS_MAX) {
        ps_server_session_close_bad(st, c, "it gives up too many parts");
        return;
    }
    slot = ps_server_find_slot_or_refuse(st, c->session, m->gen, m->slot,
                                         &parts);
    for (uint32_t i = 0; slot != NULL && i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        struct ps_store *store = &slot->job->store;
        struct ps_part *part = ps_store_find(store, rec->key, rec->index);

        if (ps_server_migration_involves(slot->job, rec)) {
            const struct ps_server_parts one = {rec, 1, NULL};

            ps_server_refuse_parts(
                st, &(struct ps_server_recipient){c->session, m->gen, slot},
                &one, PS_E_MIGRATING);
            continue;
        }
        if (part == NULL && rec->round == 1 &&
            ps_map_count(store->parts) < PS_STORE_PARTS_MAX) {
            part = ps_store_find_or_add(store, rec->key, rec->index);
        }
        if (ps_server_conflict_check_retry(st, slot->job, part, rec->round,
                                           m->retry) == 0 &&
            ps_server_credit_is_due(st->s, c->session, slot)) {
            ps_server_credit_send(st, c->session, slot);
        }
    }
}
