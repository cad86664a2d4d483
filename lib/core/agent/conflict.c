/* SPDX-License-Identifier: Apache-2.0 */
/* Conflicts: ranks ask for different reductions or roots in one round. The
 * attempt is aborted and each local rank is notified of it once: contributors
 * at once, other ranks when they contribute. Later contributions belong to the
 * next retry, whose number tells servers the attempts apart (rule R16). */
#include "core/agent/conflict.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/encode.h"
#include "core/agent/fail.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/send_queue.h"

void ps_agent_conflict_clear(struct ps_agent_key *k)
{
    if (k->round.conflict != NULL) {
        ps_free(k->round.conflict->notified_retry);
        ps_free(k->round.conflict);
        k->round.conflict = NULL;
    }
}

/* Aborts the attempt: raises the retry number, marks contributors as notified
 * and fails the open operations of the key. */
static void abort_round(struct ps_agent_step *st, struct ps_agent_key *k,
                        const char *text)
{
    struct ps_agent_conflict *q = k->round.conflict;

    if (q == NULL) {
        q = ps_calloc(1, sizeof(*q));
        q->notified_retry = ps_calloc(k->job->local_rank_count,
                                      sizeof(*q->notified_retry));
        k->round.conflict = q;
    }
    q->retry++;
    ps_str_copy(q->text, sizeof(q->text), text);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->round.contribution[i] != NULL) {
            q->notified_retry[i] = q->retry;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        /* No server merges a push of an aborted attempt. */
        ps_agent_encode_refused(&k->parts[i], k->round.number);
    }
    ps_agent_fail_key(st, k, PS_E_MISMATCH, text);
}

bool ps_agent_conflict_notify_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_conflict *q = k->round.conflict;

    if (q == NULL || op->round != k->round.number ||
        q->notified_retry[op->local_rank] >= q->retry) {
        return false;
    }
    /* One retry for each operation, so that all ranks count alike. */
    q->notified_retry[op->local_rank]++;
    ps_agent_op_end(st, op, 0, PS_E_MISMATCH, q->text);
    return true;
}

/* Rule R18: tells the partition's owner to abort the attempt for all slots,
 * because contributions of other nodes wait there. */
static void send_abort_round(struct ps_agent_step *st,
                             const struct ps_agent_key *k,
                             const struct ps_agent_part *p)
{
    const struct ps_agent_send_queue *f = ps_agent_send_queue_get(
        st, k->job, p->owner_node);
    const struct ps_rec_part rec = {.key = k->number,
                                    .index = p->index,
                                    .round = k->round.number,
                                    .dtype = k->dtype,
                                    .count = p->count};

    ps_link_send_msg(
        f->server->dialer.link,
        &(struct ps_msg){.code = PS_MSG_ABORT_ROUND,
                         .abort_round = {.gen = k->job->gen,
                                         .epoch = st->a->servers.map_epoch,
                                         .slot = k->job->slot,
                                         .retry = k->round.conflict->retry,
                                         .parts = &rec,
                                         .parts_count = 1}},
        st->now, st->fx);
}

void ps_agent_conflict_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                             const char *text)
{
    struct ps_agent_key *k = op->key;

    abort_round(st, k, text);
    k->round.conflict->notified_retry[op->local_rank] =
        k->round.conflict->retry;
    ps_agent_op_end(st, op, 0, PS_E_MISMATCH, text);
    ps_agent_conflict_resend(st, k, 0);
}

void ps_agent_conflict_on_refuse(struct ps_agent_step *st,
                                 struct ps_agent_key *k, uint64_t round,
                                 uint32_t attempt, const char *text)
{
    if (ps_agent_round_is_open(k) && round == k->round.number &&
        attempt > ps_agent_round_retry(k)) {
        abort_round(st, k, text);
    }
}

void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node)
{
    for (uint32_t i = 0;
         k->round.conflict != NULL &&
         k->round.state != PS_AGENT_ROUND_COMPLETE && i < k->part_count;
         i++) {
        const struct ps_agent_part *p = &k->parts[i];

        if (p->owner_node != 0 && (node == 0 || p->owner_node == node) &&
            p->committed_version < (int64_t)k->round.number) {
            send_abort_round(st, k, p);
        }
    }
}
