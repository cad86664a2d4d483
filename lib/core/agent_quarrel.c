/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that disagree about a round. Each of them hears so, once for each
 * attempt: those who took part in it at once, others when they come. What is
 * offered after that is of the next attempt, which servers tell from the one
 * that is over (shard_attempt.c). */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

uint32_t ps_agent_quarrel_attempt(const struct ps_agent_key *k)
{
    return k->quarrel != NULL ? k->quarrel->attempt : 0;
}

void ps_agent_quarrel_end(struct ps_agent_key *k)
{
    if (k->quarrel != NULL) {
        ps_free(k->quarrel->told);
        ps_free(k->quarrel);
        k->quarrel = NULL;
    }
}

/* The attempt is over: fails what is open. */
static void raise_one(struct ps_agent_step *st, struct ps_agent_key *k,
                      const char *text)
{
    struct ps_agent_quarrel *q = k->quarrel;

    if (q == NULL) {
        q = ps_calloc(1, sizeof(*q));
        q->told = ps_calloc(k->job->local_count, sizeof(*q->told));
        k->quarrel = q;
    }
    q->attempt++;
    ps_str_copy(q->text, sizeof(q->text), text);
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        if (k->offer[i] != NULL) {
            q->told[i] = q->attempt;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        /* No server merges what was given to such an attempt. */
        ps_agent_code_refused(&k->parts[i], k->round);
    }
    ps_agent_round_fail(st, k, PS_E_MISMATCH, text);
}

bool ps_agent_quarrel_tells(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_quarrel *q = k->quarrel;

    if (q == NULL || op->round != k->round ||
        q->told[op->local] >= q->attempt) {
        return false;
    }
    q->told[op->local]++; /* Once for each: all count alike. */
    ps_agent_op_done(st, op, 0, PS_E_MISMATCH, q->text);
    return true;
}

/* Those of other nodes wait at the servers. */
static void tell(struct ps_agent_step *st, const struct ps_agent_key *k,
                 const struct ps_agent_part *p)
{
    const struct ps_agent_flow *f = ps_agent_flow_get(st, k->job, p->node);
    const struct ps_rec_part rec = {.key = k->number,
                                    .index = p->index,
                                    .round = k->round,
                                    .dtype = k->dtype,
                                    .count = p->count};

    ps_link_tell(f->server->caller.link,
                 &(struct ps_msg){.code = PS_MSG_GIVE_UP,
                                  .give_up = {.gen = k->job->gen,
                                              .epoch = st->a->epoch,
                                              .slot = k->job->slot,
                                              .attempt = k->quarrel->attempt,
                                              .parts = &rec,
                                              .parts_count = 1}},
                 st->now, st->fx);
}

void ps_agent_quarrel_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                            const char *text)
{
    struct ps_agent_key *k = op->key;

    raise_one(st, k, text);
    k->quarrel->told[op->local] = k->quarrel->attempt;
    ps_agent_op_done(st, op, 0, PS_E_MISMATCH, text);
    ps_agent_quarrel_again(st, k, 0);
}

void ps_agent_quarrel_refused(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint64_t round, uint32_t attempt,
                              const char *text)
{
    if (k->active && round == k->round &&
        attempt > ps_agent_quarrel_attempt(k)) {
        raise_one(st, k, text);
    }
}

void ps_agent_quarrel_again(struct ps_agent_step *st, struct ps_agent_key *k,
                            uint32_t node)
{
    for (uint32_t i = 0;
         k->quarrel != NULL && !k->complete && i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];

        if (p->node != 0 && (node == 0 || p->node == node) &&
            p->committed < (int64_t)k->round) {
            tell(st, k, p);
        }
    }
}
