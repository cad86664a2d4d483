/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that had another agent before. Their arrays are memory of their
 * own, and what an agent must know of rounds they know as well: each says, for
 * each of its keys, how many rounds it has heard the end of, and offers the
 * next one again. Servers know what they have got of it by its identity.
 *
 * One rank may have heard the end of a round when the agent died and another
 * one not: the round is over then, whatever the latter still offers of it, and
 * its value is asked for instead. They are never further apart, because a rank
 * offers the next round only after that end. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

#include <assert.h>

void ps_agent_resume_seat(struct ps_agent_session *s)
{
    struct ps_agent_job *j = s->job;
    const struct ps_msg_l_hello *h = &s->hello->l_hello;

    if (h->gen == 0) {
        return;
    }
    j->local[s->local].barriers = h->barriers;
    j->barriers_open = ps_max_u64(j->barriers_open, h->barriers);
}

/* What all partitions have reached. */
static void set_made(struct ps_agent_key *k)
{
    for (uint32_t i = 0;
         k->past != NULL && k->past->most > 0 && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->committed < (int64_t)k->past->most) {
            p->committed = (int64_t)k->past->most;
        }
        p->reached = ps_max_u64(p->reached, k->past->most);
    }
}

/* Servers hear what is known here, as after a loss of one: this agent may be
 * the one of which they wait to hear. */
static void state_all(struct ps_agent_step *st, struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        if (!k->past->said[i]) {
            return;
        }
    }
    for (uint32_t i = 0; k->open && i < k->part_count; i++) {
        if (k->parts[i].node != 0) {
            ps_agent_key_resume(st, &k->parts[i]);
        }
    }
}

void ps_agent_resume_opened(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (k->past != NULL) {
        set_made(k);
        state_all(st, k);
    }
}

/* The round is over: what the rank still wants of it is its value, or to hear
 * whether all have passed. */
static void look_back(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    k->pushed[op->local] = op->round;
    if (op->aside || op->kind == PS_OP_PUSH || op->kind == PS_OP_PUSH_ROWS) {
        ps_agent_op_done(st, op, op->round, 0, "");
        return;
    }
    ps_agent_pull_take(st, op);
}

bool ps_agent_resume_takes(struct ps_agent_step *st, struct ps_agent_op *op)
{
    if (op->key->past == NULL || op->round > op->key->past->most) {
        return false;
    }
    look_back(st, op);
    return true;
}

/* Ranks have offered a round of which one that comes now knows the end. That
 * one does not offer it, so it has not gone on its way. */
static void close_round(struct ps_agent_step *st, struct ps_agent_key *k)
{
    assert(!k->complete);
    k->active = false;
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        struct ps_agent_op *op = k->offer[i];

        k->offer[i] = NULL;
        if (op != NULL) {
            look_back(st, op);
        }
    }
}

static bool makes_sense(const struct ps_agent_key *k,
                        const struct ps_agent_session *s, uint64_t pushed)
{
    const struct ps_agent_past *past = k->past;

    if (s->keys_left == 0 || pushed > INT64_MAX - 1 || k->async) {
        return false;
    }
    if (past == NULL) {
        return k->pushed[s->local] == 0 && (k->round == 0 || pushed == 0);
    }
    return !past->said[s->local] && k->pushed[s->local] == 0 &&
           pushed <= past->least + 1 && past->most <= pushed + 1;
}

bool ps_agent_resume_key(struct ps_agent_step *st, struct ps_agent_session *s,
                         struct ps_agent_key *k, uint64_t pushed)
{
    struct ps_agent_past *past = k->past;

    if (!makes_sense(k, s, pushed)) {
        ps_agent_session_end(
            st, s, PS_E_INVAL,
            "'%s': rank %u says that it has been in %llu rounds, which cannot "
            "be by what the other ranks on this node say",
            k->name, k->job->local[s->local].rank, (unsigned long long)pushed);
        return false;
    }
    if (past == NULL) {
        past = ps_calloc(1, sizeof(*past));
        past->said = ps_calloc(k->job->local_count, sizeof(*past->said));
        past->least = pushed;
        k->past = past;
    }
    s->keys_left--;
    past->said[s->local] = true;
    past->least = ps_min_u64(past->least, pushed);
    past->most = ps_max_u64(past->most, pushed);
    k->pushed[s->local] = pushed;
    set_made(k);
    if (k->active && k->round <= past->most) {
        close_round(st, k);
    }
    k->round = ps_max_u64(k->round, past->most);
    state_all(st, k);
    return true;
}

/* What the other agent had sent may have been merged since, and a server tells
 * the agent that is there now. */
void ps_agent_resume_made(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t round = k->round;

    for (uint32_t i = 0; k->past != NULL && i < k->part_count && k->complete &&
                         k->round == round;
         i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->reached < round && p->committed >= (int64_t)round && !p->init) {
            ps_agent_round_reached(st, p);
        }
    }
}

void ps_agent_resume_forget(struct ps_agent_key *k)
{
    if (k->past != NULL) {
        ps_free(k->past->said);
        ps_free(k->past);
        k->past = NULL;
    }
}
