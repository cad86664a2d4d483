/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetch for rounds of many small keys, whose keys, partitions and operations
 * exceed the processor's cache: each access would wait for memory. These
 * functions prefetch everything that a few operations, or a few parts of a
 * frame, will touch. An address is known only when the object that holds it is
 * loaded, so prefetching proceeds in stages. No state changes. */
#include "core/agent/prefetch.h"

#include "base/prefetch.h"
#include "core/agent/inner.h"

#include <assert.h>

/* Contributions prefetched for one key; more would evict each other. */
#define PREFETCH_RANKS_MAX 16u
#define KEY_HOT_BYTES      (offsetof(struct ps_agent_key, compression) + 64)
#define PART_HOT_BYTES     (offsetof(struct ps_agent_part, encoding.residual))
#define OP_HOT_BYTES       (offsetof(struct ps_agent_op, ticket))

static void prefetch_part(const struct ps_agent_key *k, uint32_t index)
{
    if (index < k->part_count) {
        ps_prefetch(&k->parts[index], PART_HOT_BYTES);
    }
}

static void prefetch_contributions(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->job->local_rank_count && i < PREFETCH_RANKS_MAX;
         i++) {
        ps_prefetch(k->round.contribution[i], OP_HOT_BYTES);
    }
}

void ps_agent_prefetch_ops(const struct ps_agent *a,
                           const struct ps_agent_session *s,
                           const struct ps_msg_l_op *op, uint32_t count)
{
    const struct ps_agent_key *key[PREFETCH_OPS];

    assert(count <= PREFETCH_OPS);
    for (uint32_t i = 0; i < count; i++) {
        key[i] = ps_map_get(s->job->keys, op[i].key);
        ps_prefetch(key[i], KEY_HOT_BYTES);
        if (i < a->spare_ops.count) {
            ps_prefetch(a->spare_ops.ops[a->spare_ops.count - 1 - i],
                        sizeof(struct ps_agent_op));
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k == NULL || k->round.contribution == NULL ||
            k->round.pushed_round == NULL) {
            continue;
        }
        ps_prefetch(&k->round.pushed_round[s->local_rank],
                    sizeof(k->round.pushed_round[0]));
        ps_prefetch(&k->round.contribution[0],
                    k->job->local_rank_count *
                        sizeof(k->round.contribution[0]));
        prefetch_part(k, 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL && ps_agent_round_is_open(k) &&
            k->round.contributed_count + 1 == k->job->local_rank_count) {
            prefetch_contributions(k);
        }
    }
}

void ps_agent_prefetch_parts(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *part, uint32_t count)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);
    const struct ps_agent_key *key[PREFETCH_OPS];

    assert(count <= PREFETCH_OPS);
    if (j == NULL) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        key[i] = ps_map_get(j->keys, part[i].key);
        ps_prefetch(key[i], KEY_HOT_BYTES);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL && k->round.contribution != NULL) {
            ps_prefetch(&k->round.contribution[0],
                        j->local_rank_count * sizeof(k->round.contribution[0]));
            prefetch_part(k, part[i].index);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL && ps_agent_round_is_open(k) &&
            k->round.contribution != NULL) {
            prefetch_contributions(k);
        }
    }
}
