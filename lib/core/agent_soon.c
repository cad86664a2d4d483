/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, partitions and operations of a round of many small keys are more than
 * the processor's cache holds, so each look at one waits for memory. Here all
 * that a few operations, or a few parts of a frame, will touch is asked for at
 * once: what is pointed to can only be asked for when the pointer is there, so
 * it goes from stage to stage. Nothing is changed. */
#include "core/agent_inner.h"

#include "base/prefetch.h"

#include <assert.h>

/* More would drive each other out of the cache. */
#define RANKS_MAX  16u
#define KEY_BYTES  (offsetof(struct ps_agent_key, compress) + 64)
#define PART_BYTES (offsetof(struct ps_agent_part, residual))
#define OP_BYTES   (offsetof(struct ps_agent_op, ticket))

static void soon_parts(const struct ps_agent_key *k, uint32_t index)
{
    if (index < k->part_count) {
        ps_prefetch(&k->parts[index], PART_BYTES);
    }
}

static void soon_offers(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->job->local_count && i < RANKS_MAX; i++) {
        ps_prefetch(k->offer[i], OP_BYTES);
    }
}

void ps_agent_soon_ops(const struct ps_agent *a,
                       const struct ps_agent_session *s,
                       const struct ps_msg_l_op *op, uint32_t count)
{
    const struct ps_agent_key *key[OPS_AHEAD];

    assert(count <= OPS_AHEAD);
    for (uint32_t i = 0; i < count; i++) {
        key[i] = ps_map_get(s->job->keys, op[i].key);
        ps_prefetch(key[i], KEY_BYTES);
        if (i < a->spare_op_count) {
            ps_prefetch(a->spare_ops[a->spare_op_count - 1 - i],
                        sizeof(struct ps_agent_op));
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k == NULL || k->offer == NULL || k->pushed == NULL) {
            continue;
        }
        ps_prefetch(&k->pushed[s->local], sizeof(k->pushed[0]));
        ps_prefetch(&k->offer[0], k->job->local_count * sizeof(k->offer[0]));
        soon_parts(k, 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL && k->active && k->offered + 1 == k->job->local_count) {
            soon_offers(k);
        }
    }
}

void ps_agent_soon_ends(const struct ps_agent *a, uint64_t gen,
                        const struct ps_rec_part *part, uint32_t count)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);
    const struct ps_agent_key *key[OPS_AHEAD];

    assert(count <= OPS_AHEAD);
    if (j == NULL) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        key[i] = ps_map_get(j->keys, part[i].key);
        ps_prefetch(key[i], KEY_BYTES);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL && k->offer != NULL) {
            ps_prefetch(&k->offer[0], j->local_count * sizeof(k->offer[0]));
            soon_parts(k, part[i].index);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL && k->active && k->offer != NULL) {
            soon_offers(k);
        }
    }
}
