/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that end the operations of a key. Failures: of a sum, of a server's
 * answer, of memory.
 *
 * Conflicts: ranks ask for different reductions or roots in one round. The
 * attempt is aborted and each local rank is notified of it once: contributors
 * at once, other ranks when they contribute. Later contributions belong to the
 * next retry, whose number tells servers the attempts apart (rule R16).
 *
 * Disagreements: ranks declare a key, or the optimizer or compression of the
 * job, differently. The rank that was refused gets the error as the answer; its
 * peers get it where they wait, or with their next operation (rule K19). */
#include "core/agent/conflict.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/server.h"

#include <string.h>

/* ----------------------------------------------------------------- failure */

void ps_agent_fail_list(struct ps_agent_step *st, struct ps_list *list,
                        int error, const char *text)
{
    struct ps_agent_op *op;

    while ((op = PS_LIST_POP(struct ps_agent_op, node, list)) != NULL) {
        ps_agent_op_end(st, op, 0, error, text);
    }
}

void ps_agent_fail_inits(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text)
{
    ps_agent_fail_list(st, &k->init.ops, error, text);
    for (uint32_t i = 0; k->init.pending_parts > 0 && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->is_init) {
            if (p->state != PS_AGENT_PART_COMPUTING) {
                ps_agent_server_dequeue(st, p);
            }
            p->is_init = false;
            k->init.pending_parts--;
        }
    }
    ps_buf_unref(k->init.array.buf);
    k->init.array = (struct ps_slice){0};
}

void ps_agent_fail_key(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text)
{
    struct ps_agent_op *op;

    ps_agent_fail_inits(st, k, error, text);
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state != PS_AGENT_PART_COMPUTING) {
            ps_agent_server_dequeue(st, p);
        }
        p->requested_version = NO_VERSION;
        ps_agent_encode_round_failed(p);
    }
    for (uint32_t i = 0;
         ps_agent_round_is_open(k) && i < k->job->local_rank_count; i++) {
        op = k->round.contribution[i];
        k->round.contribution[i] = NULL;
        if (op != NULL) {
            k->round.pushed_round[i] = op->round - 1; /* May be retried. */
            ps_agent_op_end(st, op, 0, error, text);
        }
    }
    if (ps_agent_round_is_open(k)) {
        ps_agent_round_set_state(k, PS_AGENT_ROUND_IDLE);
    }
    ps_agent_fail_list(st, &k->pulls, error, text);
    ps_agent_fail_list(st, &k->row_pulls, error, text);
    while ((op = PS_LIST_POP(struct ps_agent_op, node,
                             &k->round.deferred_pushes)) != NULL) {
        if (k->round.pushed_round[op->local_rank] >= op->round) {
            k->round.pushed_round[op->local_rank] = op->round - 1;
        }
        ps_agent_op_end(st, op, 0, error, text);
    }
}

/* --------------------------------------------------------------- conflicts */

void ps_agent_conflict_clear(struct ps_agent_key *k)
{
    if (k->round.conflict != NULL) {
        ps_free(k->round.conflict->notified_retry);
        ps_free(k->round.conflict);
        k->round.conflict = NULL;
    }
}

/* The local rank gets the notice now, or needs none any more. Returns true if
 * it was due. */
static bool settle_notice(struct ps_agent_disagreement *d, uint32_t local_rank)
{
    const bool was_due = d->notice[local_rank] == PS_AGENT_NOTICE_DUE;

    if (was_due) {
        d->notice[local_rank] = PS_AGENT_NOTICE_DONE;
    }
    return was_due;
}

static void settle_all_notices(const struct ps_agent_job *j,
                               struct ps_agent_disagreement *d)
{
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        (void)settle_notice(d, i);
    }
}

/* Aborts the attempt: raises the retry number, marks contributors as notified
 * and fails the open operations of the key. Each local rank is notified of it,
 * and of a disagreement no more. */
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
        struct ps_agent_part *p = &k->parts[i];

        ps_agent_encode_aborted(p);
        if (p->completed_round == k->round.number) {
            p->completed_round--; /* Its value counts in the next attempt. */
        }
    }
    if (k->disagreement != NULL) {
        settle_all_notices(k->job, k->disagreement);
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
                             const struct ps_agent_part *p, uint32_t retry)
{
    const struct ps_agent_key *k = p->key;
    const struct ps_agent_send_queue *f = ps_agent_send_queue_get(
        st, k->job, p->owner_node);
    const struct ps_rec_part rec = {.key = k->number,
                                    .index = p->index,
                                    .round = k->round.number,
                                    .dtype = k->dtype,
                                    .count = p->count};

    ps_agent_server_send_msg(
        st, f->server,
        &(struct ps_msg){.code = PS_MSG_ABORT_ROUND,
                         .abort_round = {.gen = k->job->gen,
                                         .epoch = st->a->servers.map_epoch,
                                         .slot = k->job->slot,
                                         .retry = retry,
                                         .parts = &rec,
                                         .parts_count = 1}});
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
    const struct ps_agent_disagreement *d = k->disagreement;

    if (ps_agent_round_is_open(k) && round == k->round.number &&
        attempt > ps_agent_round_retry(k)) {
        abort_round(st, k,
                    d != NULL && d->asked_round == round ? d->text : text);
    }
}

/* Retry number of the next attempt at the open round, of which servers have to
 * learn; 0: they need not, or pushes tell them. */
static uint32_t announced_retry(const struct ps_agent_key *k)
{
    const struct ps_agent_disagreement *d = k->disagreement;

    if (k->round.state != PS_AGENT_ROUND_COMPLETE) {
        return ps_agent_round_retry(k);
    }
    return d != NULL && d->asked_round == k->round.number &&
                   d->asked_retry > ps_agent_round_retry(k)
               ? d->asked_retry
               : 0;
}

void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node)
{
    const uint32_t retry = announced_retry(k);

    for (uint32_t i = 0; retry != 0 && i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];

        if (p->owner_node != 0 && (node == 0 || p->owner_node == node) &&
            p->committed_version < (int64_t)k->round.number) {
            send_abort_round(st, p, retry);
        }
    }
}

/* ----------------------------------------------------------- disagreements */

void ps_agent_disagreement_free(struct ps_agent_disagreement *d)
{
    if (d != NULL) {
        ps_free(d->notice);
        ps_free(d);
    }
}

static struct ps_agent_disagreement *
get_disagreement(struct ps_agent_disagreement **at,
                 const struct ps_agent_job *j)
{
    if (*at == NULL) {
        *at = ps_calloc(1, sizeof(**at));
        (*at)->notice = ps_calloc(j->local_rank_count, sizeof(*(*at)->notice));
    }
    return *at;
}

static void make_notices_due(const struct ps_agent_job *j,
                             struct ps_agent_disagreement *d, const char *text)
{
    ps_str_copy(d->text, sizeof(d->text), text);
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        if (d->notice[i] == PS_AGENT_NOTICE_DONE) {
            d->notice[i] = PS_AGENT_NOTICE_DUE;
        }
    }
}

static void settle_notices_of(const struct ps_list *list,
                              struct ps_agent_disagreement *d)
{
    PS_LIST_EACH_OF(const struct ps_agent_op, op, node, list)
    {
        (void)settle_notice(d, op->local_rank);
    }
}

/* Ends the attempt at the open round, which waits for a rank that has declared
 * the key otherwise, and the pulls that wait for it. True: it goes on. */
static bool end_attempt(struct ps_agent_step *st, struct ps_agent_key *k,
                        struct ps_agent_disagreement *d)
{
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->round.contribution[i];

        if (op != NULL && op->session == NULL) {
            return true; /* Its process has ended, and would not retry. */
        }
    }
    if (k->round.state == PS_AGENT_ROUND_COMPLETE) {
        /* Servers know whether all slots have contributed: then the attempt
         * counts. Else they refuse it to all. */
        d->asked_round = k->round.number;
        d->asked_retry = ps_agent_round_retry(k) + 1;
        ps_agent_conflict_resend(st, k, 0);
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->round.contribution[i] != NULL) {
            (void)settle_notice(d, i);
        }
    }
    settle_notices_of(&k->pulls, d);
    settle_notices_of(&k->row_pulls, d);
    settle_notices_of(&k->round.deferred_pushes, d);
    /* Nothing of it has left this node, so that it needs no retry number. */
    ps_agent_fail_key(st, k, PS_E_MISMATCH, d->text);
    return false;
}

/* Ends pulls; a push with its pull goes on, because its gradient counts. */
static void end_pulls(struct ps_agent_step *st, struct ps_list *list,
                      struct ps_agent_disagreement *d)
{
    PS_LIST_EACH_SAFE(struct ps_agent_op, op, node, list)
    {
        if (op->kind != PS_OP_PUSHPULL) {
            ps_list_remove(&op->node);
            (void)settle_notice(d, op->local_rank);
            ps_agent_op_end(st, op, 0, PS_E_MISMATCH, d->text);
        }
    }
}

/* Ends the operations that wait for a rank that has declared the key otherwise.
 * True: an init was among them, for which a round has waited that goes on. */
static bool end_waiting_ops(struct ps_agent_step *st, struct ps_agent_key *k,
                            struct ps_agent_disagreement *d)
{
    const bool was_pending = k->init.pending_parts > 0;

    settle_notices_of(&k->init.ops, d);
    ps_agent_fail_inits(st, k, PS_E_MISMATCH, d->text);
    if (k->kind->has_rounds && k->kind->has_results &&
        ps_agent_round_is_open(k)) {
        return end_attempt(st, k, d) && was_pending;
    }
    end_pulls(st, &k->pulls, d);
    end_pulls(st, &k->row_pulls, d);
    return was_pending;
}

bool ps_agent_disagreement_on_msg(struct ps_agent_step *st,
                                  struct ps_agent_job *j,
                                  struct ps_agent_key *k,
                                  const struct ps_msg_disagreement *m)
{
    struct ps_agent_disagreement *d = get_disagreement(
        k != NULL ? &k->disagreement : &j->disagreement, j);

    if (m->number <= d->number) {
        return false; /* Links keep no order. */
    }
    d->number = m->number;
    d->is_elsewhere = *m->text != '\0';
    if (!d->is_elsewhere) {
        if (k == NULL || d->refused_count == 0) {
            settle_all_notices(j, d);
        }
        return false;
    }
    make_notices_due(j, d, m->text);
    return k == NULL || (ps_agent_key_is_open(k) && end_waiting_ops(st, k, d));
}

bool ps_agent_disagreement_end_inits(struct ps_agent_step *st,
                                     struct ps_agent_key *k)
{
    struct ps_agent_disagreement *d = k->job->disagreement;
    const bool was_pending = k->init.pending_parts > 0;

    if (k->kind->is_collective || ps_list_empty(&k->init.ops)) {
        return false;
    }
    settle_notices_of(&k->init.ops, d);
    ps_agent_fail_inits(st, k, PS_E_MISMATCH, d->text);
    return was_pending;
}

static void report_to_scheduler(struct ps_agent_step *st,
                                const struct ps_agent_key *k, const char *text)
{
    ps_agent_uplink_send_msg(
        st, &(struct ps_msg){
                .code = PS_MSG_DISAGREEMENT,
                .disagreement = {.gen = k->job->gen,
                                 .number = ++k->disagreement->report_number,
                                 .kind = k->key_kind,
                                 .name = k->name,
                                 .text = text}});
}

bool ps_agent_disagreement_refuse_key(struct ps_agent_step *st,
                                      struct ps_agent_session *s,
                                      struct ps_agent_key *k, const char *text)
{
    struct ps_agent_disagreement *d = get_disagreement(&k->disagreement,
                                                       k->job);

    if (d->notice[s->local_rank] != PS_AGENT_NOTICE_REFUSED) {
        d->notice[s->local_rank] = PS_AGENT_NOTICE_REFUSED;
        d->refused_count++;
    } else if (strcmp(d->text, text) == 0) {
        return false;
    }
    make_notices_due(k->job, d, text);
    report_to_scheduler(st, k, text);
    return ps_agent_key_is_open(k) && end_waiting_ops(st, k, d);
}

void ps_agent_disagreement_accept_key(struct ps_agent_step *st,
                                      const struct ps_agent_session *s,
                                      struct ps_agent_key *k)
{
    struct ps_agent_disagreement *d = k->disagreement;

    if (d == NULL || d->notice[s->local_rank] != PS_AGENT_NOTICE_REFUSED) {
        return;
    }
    d->notice[s->local_rank] = PS_AGENT_NOTICE_DONE;
    d->refused_count--;
    if (d->refused_count == 0) {
        report_to_scheduler(st, k, "");
    }
    if (d->refused_count == 0 && !d->is_elsewhere) {
        settle_all_notices(k->job, d);
    }
}

void ps_agent_disagreement_answer(struct ps_agent_job *j, uint32_t local_rank,
                                  bool is_refused)
{
    if (is_refused) {
        get_disagreement(&j->disagreement, j)->notice[local_rank] =
            PS_AGENT_NOTICE_REFUSED;
    } else if (j->disagreement != NULL &&
               j->disagreement->notice[local_rank] == PS_AGENT_NOTICE_REFUSED) {
        j->disagreement->notice[local_rank] = PS_AGENT_NOTICE_DONE;
    }
}

static const char *take_notice(struct ps_agent_disagreement *d,
                               uint32_t local_rank)
{
    return d != NULL && settle_notice(d, local_rank) ? d->text : NULL;
}

bool ps_agent_disagreement_reject_op(struct ps_agent_step *st,
                                     struct ps_agent_session *s,
                                     struct ps_agent_key *k,
                                     const struct ps_msg_l_op *m)
{
    const char *text = k->kind->is_collective
                           ? NULL
                           : take_notice(k->job->disagreement, s->local_rank);

    if (text == NULL) {
        text = take_notice(k->disagreement, s->local_rank);
    }
    if (text != NULL) {
        ps_agent_op_reject(st, s, m, PS_E_MISMATCH, "%s", text);
    }
    return text != NULL;
}

/* --------------------------------------------------------------- successors */

/* Key whose open round waits for the local rank; NULL: there is none. */
static struct ps_agent_key *find_awaiting_key(const struct ps_agent_job *j,
                                              uint32_t local_rank)
{
    PS_MAP_EACH(struct ps_agent_key, k, j->keys)
    {
        if (k->kind->has_rounds && k->kind->has_results &&
            !k->kind->is_collective && k->round.state == PS_AGENT_ROUND_OPEN &&
            k->round.contribution[local_rank] == NULL &&
            k->round.number == k->round.pushed_round[local_rank] + 1) {
            return k;
        }
    }
    return NULL;
}

bool ps_agent_conflict_refuse_successor(struct ps_agent_step *st,
                                        struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;
    const struct ps_agent_rank *r = &k->job->local_ranks[op->local_rank];
    struct ps_agent_session *s = op->session;
    struct ps_agent_key *awaiting;

    if (!r->is_resuming || s == NULL || k->kind->is_collective ||
        ps_agent_round_is_open(k)) {
        return false;
    }
    awaiting = find_awaiting_key(k->job, op->local_rank);
    if (awaiting == NULL || awaiting == k) {
        return false;
    }
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_str_addf(&t,
                "rank %u was started again and begins with round %llu of "
                "'%.64s', and the others wait for its round %llu of '%.64s', "
                "in which its predecessor ended: start all ranks again, from a "
                "checkpoint",
                r->rank, (unsigned long long)op->round, k->name,
                (unsigned long long)awaiting->round.number, awaiting->name);
    ps_effects_log_for(st->fx, &k->job->account, PS_LOG_NOTICE, "job %s %s",
                       k->job->name, t.data);
    ps_agent_op_end(st, op, 0, PS_E_MISMATCH, t.data);
    /* The round of that key is open, so that it waits for no init. */
    (void)ps_agent_disagreement_refuse_key(st, s, awaiting, t.data);
    return true;
}
