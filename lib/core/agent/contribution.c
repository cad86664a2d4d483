/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions of the local ranks to the open round of a key: their weight,
 * their bytes that are ready, and the sources of a partition. */
#include "core/agent/contribution.h"

#include "base/state_table.h"
#include "core/agent/inner.h"

/* ------------------------------------------------------------------ states */

static const char *const state_names[] = {
    [PS_AGENT_ROUND_IDLE] = "IDLE",
    [PS_AGENT_ROUND_OPEN] = "OPEN",
    [PS_AGENT_ROUND_COMPLETE] = "COMPLETE",
};

static const uint32_t successors[] = {
    /* A local rank contributes. */
    [PS_AGENT_ROUND_IDLE] = PS_STATE_BIT(PS_AGENT_ROUND_OPEN),
    /* COMPLETE: all local ranks have contributed. IDLE: the round failed, or a
     * reattaching rank has completed it. */
    [PS_AGENT_ROUND_OPEN] = PS_STATE_BIT(PS_AGENT_ROUND_COMPLETE) |
                            PS_STATE_BIT(PS_AGENT_ROUND_IDLE),
    /* The round has ended or failed. */
    [PS_AGENT_ROUND_COMPLETE] = PS_STATE_BIT(PS_AGENT_ROUND_IDLE),
};

/* The round of a key, or the push of an async key, at the agent. */
static const struct ps_state_table round_states = {
    .name = "local round",
    .states = state_names,
    .count = sizeof(state_names) / sizeof(state_names[0]),
    .allowed = successors,
};

void ps_agent_round_set_state(struct ps_agent_key *k,
                              enum ps_agent_round_state to)
{
    ps_state_change(&round_states, &k->round.state, (uint8_t)to);
}

/* --------------------------------------------------------------- open round */

uint64_t ps_agent_contribution_weight(const struct ps_agent_key *k)
{
    uint64_t weight = 0;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->round.contribution[i];

        if (op != NULL && op->kind != PS_OP_SKIP) {
            weight += k->round.reduce == PS_REDUCE_MEAN ? op->samples : 1;
        }
    }
    return weight;
}

bool ps_agent_contribution_is_ready(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;
    uint64_t end = (p->first_elem + p->count) * ps_dtype_size(k->dtype);

    for (uint32_t i = 0;
         k->round.streaming_count > 0 && i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->round.contribution[i];

        if (op != NULL && ps_agent_op_is_streaming(op) &&
            op->bytes_ready < end) {
            return false;
        }
    }
    return true;
}

bool ps_agent_contribution_awaits_rank(const struct ps_agent_key *k,
                                       uint32_t local, uint64_t round)
{
    const struct ps_agent_op *op = k->round.contribution[local];

    return k->round.pushed_round[local] < round ||
           (op != NULL && op->round <= round && ps_agent_op_is_streaming(op));
}

bool ps_agent_contribution_source(const struct ps_agent_part *p, uint32_t local,
                                  struct ps_slice *ret)
{
    const struct ps_agent_key *k = p->key;
    const struct ps_agent_op *op = k->round.contribution[local];
    size_t size = ps_dtype_size(k->dtype);

    if (op == NULL || op->array.buf == NULL ||
        (k->round.op == PS_OP_BROADCAST &&
         k->job->local_ranks[local].rank != k->round.root)) {
        return false;
    }
    *ret = (struct ps_slice){.buf = op->array.buf,
                             .offset = op->array.offset + p->first_elem * size,
                             .len = p->count * size};
    return true;
}

uint32_t ps_agent_contribution_sources(const struct ps_agent_part *p,
                                       struct ps_slice *slices)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < p->key->job->local_rank_count; i++) {
        count += ps_agent_contribution_source(p, i, &slices[count]);
    }
    return count;
}

bool ps_agent_contribution_all_skipped(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; k->round.op == PS_OP_SKIP && i < k->part_count; i++) {
        if (k->parts[i].skipped_version != (int64_t)k->round.number) {
            return false;
        }
    }
    return k->round.op == PS_OP_SKIP;
}
