/* SPDX-License-Identifier: Apache-2.0 */
/* Reattachment of workers that lost their previous agent. Arrays lie in worker
 * memory, and each worker reports, for each of its keys, how many rounds it
 * completed; then it contributes the next round again. Servers recognize a
 * contribution they have by slot and round (rule V18).
 *
 * Rule V16: reports of ranks differ by one round at most, because a rank
 * contributes the next round only after the end of the last. A round that one
 * rank completed is over: contributions of other ranks to it become pulls of
 * its value (rule V17). */
#include "core/agent/reattach.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/agent/barrier.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/placement.h"
#include "core/agent/pull.h"
#include "core/agent/session.h"

#include <assert.h>

void ps_agent_reattach_session(struct ps_agent_step *st,
                               struct ps_agent_session *s)
{
    struct ps_agent_job *j = s->job;
    const struct ps_msg_l_hello *h = &s->hello->l_hello;

    if (h->gen == 0) {
        return;
    }
    j->local_ranks[s->local_rank].entered_barriers = h->completed_barriers;
    ps_agent_barrier_complete(st, j, h->completed_barriers);
}

/* Raises all partitions to the last completed round: each was committed before
 * any rank saw the round's end. */
static void raise_committed(struct ps_agent_key *k)
{
    for (uint32_t i = 0; k->prior_state != NULL &&
                         k->prior_state->max_completed > 0 && i < k->part_count;
         i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->committed_version < (int64_t)k->prior_state->max_completed) {
            p->committed_version = (int64_t)k->prior_state->max_completed;
        }
        p->completed_round = ps_max_u64(p->completed_round,
                                        k->prior_state->max_completed);
    }
}

/* Sends the state of all partitions to their owners once every local rank has
 * reported, as after the loss of a server: an owner may wait for the report of
 * this slot. */
static void send_state_if_reported(struct ps_agent_step *st,
                                   struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (!k->prior_state->reported[i]) {
            return;
        }
    }
    if (ps_agent_key_is_open(k)) {
        ps_agent_placement_report_all(st, k);
    }
}

void ps_agent_reattach_key_opened(struct ps_agent_step *st,
                                  struct ps_agent_key *k)
{
    if (k->prior_state != NULL) {
        raise_committed(k);
        send_state_if_reported(st, k);
    }
}

/* Ends an operation of a completed round. One that needs the value, or the
 * verdict on a skip, becomes a pull. */
static void serve_completed_round(struct ps_agent_step *st,
                                  struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    k->round.pushed_round[op->local_rank] = op->round;
    if (op->send_only || op->kind == PS_OP_PUSH ||
        op->kind == PS_OP_PUSH_ROWS) {
        ps_agent_op_end(st, op, op->round, 0, "");
        return;
    }
    ps_agent_pull_accept_op(st, op);
}

bool ps_agent_reattach_accept_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op)
{
    if (op->key->prior_state == NULL ||
        op->round > op->key->prior_state->max_completed) {
        return false;
    }
    serve_completed_round(st, op);
    return true;
}

/* Cancels the open round, which a reattaching rank reports as completed. That
 * rank had not contributed, so the round was not complete and no partition had
 * been sent. */
static void cancel_open_round(struct ps_agent_step *st, struct ps_agent_key *k)
{
    assert(k->round.state == PS_AGENT_ROUND_OPEN);
    ps_agent_round_set_state(k, PS_AGENT_ROUND_IDLE);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->round.contribution[i];

        k->round.contribution[i] = NULL;
        if (op != NULL) {
            serve_completed_round(st, op);
        }
    }
}

static bool is_report_valid(const struct ps_agent_key *k,
                            const struct ps_agent_session *s, uint64_t pushed)
{
    const struct ps_agent_prior_state *prior = k->prior_state;

    if (s->unreported_keys == 0 || pushed > INT64_MAX - 1 ||
        !k->kind->has_rounds) {
        return false;
    }
    if (prior == NULL) {
        return k->round.pushed_round[s->local_rank] == 0 &&
               (k->round.number == 0 || pushed == 0);
    }
    return !prior->reported[s->local_rank] &&
           k->round.pushed_round[s->local_rank] == 0 &&
           pushed <= prior->min_completed + 1 &&
           prior->max_completed <= pushed + 1;
}

bool ps_agent_reattach_key(struct ps_agent_step *st, struct ps_agent_session *s,
                           struct ps_agent_key *k, uint64_t pushed)
{
    struct ps_agent_prior_state *prior = k->prior_state;

    if (!is_report_valid(k, s, pushed)) {
        ps_agent_session_end(
            st, s, PS_E_INVAL,
            "'%s': rank %u says that it has been in %llu rounds, which cannot "
            "be by what the other ranks on this node say",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)pushed);
        return false;
    }
    if (prior == NULL) {
        prior = ps_calloc(1, sizeof(*prior));
        prior->reported = ps_calloc(k->job->local_rank_count,
                                    sizeof(*prior->reported));
        prior->min_completed = pushed;
        k->prior_state = prior;
    }
    s->unreported_keys--;
    prior->reported[s->local_rank] = true;
    prior->min_completed = ps_min_u64(prior->min_completed, pushed);
    prior->max_completed = ps_max_u64(prior->max_completed, pushed);
    k->round.pushed_round[s->local_rank] = pushed;
    raise_committed(k);
    if (ps_agent_round_is_open(k) && k->round.number <= prior->max_completed) {
        cancel_open_round(st, k);
    }
    k->round.number = ps_max_u64(k->round.number, prior->max_completed);
    send_state_if_reported(st, k);
    return true;
}

void ps_agent_reattach_free(struct ps_agent_key *k)
{
    if (k->prior_state != NULL) {
        ps_free(k->prior_state->reported);
        ps_free(k->prior_state);
        k->prior_state = NULL;
    }
}
