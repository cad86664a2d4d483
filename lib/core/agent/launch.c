/* SPDX-License-Identifier: Apache-2.0 */
/* Start of a partition of a complete round or of an init: it is queued for its
 * server, or in a job without servers summed into the results. */
#include "core/agent/launch.h"

#include "base/alloc.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/server.h"
#include "core/round/round.h"

/* Without servers: newest value, which a skipped round repeats. */
static struct ps_slice previous_value(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return (struct ps_slice){.buf = k->results,
                             .offset = k->result_offset[p->local_version & 1] +
                                       p->first_elem * ps_dtype_size(k->dtype),
                             .len = ps_agent_part_bytes(p)};
}

/* Without servers: computes the partition directly into the results. Returns
 * true if it has the version without a computation. */
static bool compute_locally(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent *a = st->a;
    struct ps_agent_key *k = p->key;
    size_t size = ps_dtype_size(k->dtype);
    uint64_t version = p->is_init ? 0 : k->round.number;
    struct ps_slice one = {.buf = k->init.array.buf,
                           .offset = k->init.array.offset +
                                     p->first_elem * size,
                           .len = p->count * size};
    const bool sums = !p->is_init && k->round.op != PS_OP_BROADCAST &&
                      k->round.op != PS_OP_SKIP;
    struct ps_slice *slices = &one;
    uint32_t count = 1;
    struct ps_agent_computation *run;
    struct ps_compute *c;

    if (!p->is_init && k->round.op == PS_OP_SKIP) {
        ps_agent_part_skip(p, version);
        if (p->local_version !=
            (int64_t)version - 1) { /* No value exists yet. */
            p->committed_version = (int64_t)version;
            return true;
        }
        one = previous_value(p);
    } else if (!p->is_init) {
        slices = ps_calloc(k->job->local_rank_count, sizeof(*slices));
        count = ps_agent_contribution_sources(p, slices);
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = ++a->last.token;
    run->part = p;
    run->version = (int64_t)version;
    run->round_starts = k->round.starts;
    c = ps_compute_new(run->token, count, 1);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)k->dtype;
    c->job.fold = sums ? ps_round_fold(k->round.reduce) : PS_FOLD_SUM;
    c->job.count = p->count;
    c->job.divide_by = sums && k->round.reduce == PS_REDUCE_MEAN
                           ? k->round.weight
                           : 1;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = k->results->data + k->result_offset[version & 1] +
                 p->first_elem * size;
    ps_compute_pin(c, k->results);
    ps_map_put(a->computations, run->token, run);
    ps_agent_part_set_state(p, PS_AGENT_PART_COMPUTING);
    a->stats.bytes_summed += count * p->count * size;
    ps_effects_compute(st->fx, c);
    if (slices != &one) {
        ps_free(slices);
    }
    return false;
}

bool ps_agent_launch_part(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->owner_node == 0) {
        return compute_locally(st, p);
    }
    ps_agent_send_enqueue(st, p);
    return false;
}
