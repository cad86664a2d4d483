/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of values into memory of GPUs. They are part of the round: it ends when
 * they are made, so the results are not overwritten meanwhile. A copy that fails
 * costs its workers time, not the round: the value lies in the results. */
#include "core/agent/deliver.h"

#include "base/alloc.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"

#include <assert.h>

/* Memory of a GPU for the value of a local rank; NULL: none, or its worker is
 * gone. */
static struct ps_agent_op *delivered_op(const struct ps_agent_key *k,
                                        uint32_t local)
{
    struct ps_agent_op *op = k->round.contribution[local];

    return op != NULL && op->session != NULL && op->out.buf != NULL ? op : NULL;
}

static uint32_t count_outs(const struct ps_agent_key *k)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        count += delivered_op(k, i) != NULL;
    }
    return count;
}

void ps_agent_deliver_part(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;
    const uint64_t at = p->first_elem * ps_dtype_size(k->dtype);
    const uint64_t bytes = ps_agent_part_bytes(p);
    const uint32_t count = count_outs(k);
    struct ps_agent_computation *run;
    struct ps_compute *c;

    if (count == 0) {
        return;
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = ++st->a->last.token;
    run->part = p;
    run->is_delivery = true;
    run->round_starts = k->round.starts;
    c = ps_compute_new(run->token, 1, count);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)k->dtype;
    c->job.count = p->count;
    ps_compute_add_src(
        c,
        &(struct ps_slice){.buf = k->results,
                           .offset = k->result_offset[k->round.number & 1] + at,
                           .len = bytes},
        0);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = delivered_op(k, i);

        if (op != NULL) {
            ps_compute_add_out(c,
                               &(struct ps_slice){.buf = op->out.buf,
                                                  .offset = op->out.offset + at,
                                                  .len = bytes},
                               count);
        }
    }
    ps_map_put(st->a->computations, run->token, run);
    k->round.deliveries++;
    ps_effects_compute(st->fx, c);
}

struct ps_agent_key *ps_agent_deliver_end(struct ps_agent_computation *run,
                                          int error)
{
    struct ps_agent_key *k = run->part == NULL ? NULL : run->part->key;

    if (k != NULL && (k->round.state != PS_AGENT_ROUND_COMPLETE ||
                      k->round.starts != run->round_starts)) {
        k = NULL;
    }
    ps_free(run);
    if (k == NULL) {
        return NULL;
    }
    assert(k->round.deliveries > 0);
    k->round.deliveries--;
    for (uint32_t i = 0; error != 0 && i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = delivered_op(k, i);

        if (op != NULL) {
            op->is_undelivered = true;
        }
    }
    return k;
}
