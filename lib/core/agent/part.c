/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of keys, and the contributions of the local ranks to the open round:
 * states, sizes, look-up by the names that messages give, weight, bytes that are
 * ready, and the sources of a sum. Nothing here sends, ends or fails anything. */
#include "core/agent/part.h"

#include "base/num.h"
#include "base/prefetch.h"
#include "base/state_table.h"
#include "core/agent/inner.h"

#include <assert.h>
#include <string.h>

/* Alignment, in bytes, of results of at least this size. */
#define RESULT_ALIGN 4096u

/* --------------------------------------------------- states of a partition */

static const uint32_t part_successors[] = {
    /* SENT at once if one rank contributes, or a small sum is made in the step.
     * IDLE: dequeued without having been queued. */
    [PS_AGENT_PART_IDLE] = PS_STATE_BIT(PS_AGENT_PART_IDLE) |
                           PS_STATE_BIT(PS_AGENT_PART_QUEUED) |
                           PS_STATE_BIT(PS_AGENT_PART_COMPUTING) |
                           PS_STATE_BIT(PS_AGENT_PART_SENT),
    [PS_AGENT_PART_QUEUED] = PS_STATE_BIT(PS_AGENT_PART_IDLE),
    /* IDLE: the result is not needed any more, or the owner changed. */
    [PS_AGENT_PART_COMPUTING] = PS_STATE_BIT(PS_AGENT_PART_SENT) |
                                PS_STATE_BIT(PS_AGENT_PART_IDLE),
    /* QUEUED again on a new link, or for another server. */
    [PS_AGENT_PART_SENT] = PS_STATE_BIT(PS_AGENT_PART_IDLE) |
                           PS_STATE_BIT(PS_AGENT_PART_BACKOFF) |
                           PS_STATE_BIT(PS_AGENT_PART_QUEUED),
    [PS_AGENT_PART_BACKOFF] = PS_STATE_BIT(PS_AGENT_PART_QUEUED) |
                              PS_STATE_BIT(PS_AGENT_PART_IDLE),
};

/* The contribution of a node to a partition, at the agent. */
static const struct ps_state_table part_states = {
    .name = "partition",
    .count = sizeof(part_successors) / sizeof(part_successors[0]),
    .allowed = part_successors,
};

void ps_agent_part_set_state(struct ps_agent_part *p,
                             enum ps_agent_part_state to)
{
    ps_state_change(&part_states, &p->state, (uint8_t)to);
}

/* ------------------------------------------------------------------- sizes */

uint64_t ps_agent_key_bytes(const struct ps_agent_key *k)
{
    return k->count * ps_dtype_size(k->dtype);
}

uint64_t ps_agent_part_bytes(const struct ps_agent_part *p)
{
    return p->count * (uint64_t)ps_dtype_size(p->key->dtype);
}

struct ps_slice ps_agent_part_slice(const struct ps_agent_part *p,
                                    const struct ps_slice *array)
{
    const size_t size = ps_dtype_size(p->key->dtype);

    return (struct ps_slice){.buf = array->buf,
                             .offset = array->offset + p->first_elem * size,
                             .len = p->count * size};
}

struct ps_slice ps_agent_part_result(const struct ps_agent_part *p,
                                     uint64_t version)
{
    const struct ps_agent_key *k = p->key;

    return ps_agent_part_slice(
        p, &(struct ps_slice){.buf = k->results,
                              .offset = k->result_offset[version & 1]});
}

uint64_t ps_agent_key_result_bytes(uint64_t bytes)
{
    return 2 * ps_round_up(bytes, bytes >= RESULT_ALIGN ? RESULT_ALIGN : 64);
}

uint64_t ps_agent_key_own_bytes(const struct ps_agent_key *k, uint32_t parts)
{
    const struct ps_agent_own_bytes *own = &k->kind->own;

    return own->key + k->job->local_rank_count * own->rank + parts * own->part;
}

bool ps_agent_part_fits_frame(const struct ps_agent_key *k, uint32_t count)
{
    /* In jobs without servers, dense partitions never travel. */
    return k->job->config.num_servers == 0 ||
           count * (uint64_t)ps_dtype_state_size(k->dtype) <= PS_PAYLOAD_MAX;
}

/* ----------------------------------------------------------------- look-up */

struct ps_agent_part *
ps_agent_part_find_any_dtype(const struct ps_agent_job *j,
                             const struct ps_rec_part *rec)
{
    struct ps_agent_key *k = j == NULL ? NULL : ps_map_get(j->keys, rec->key);

    return k != NULL && rec->index < k->part_count ? &k->parts[rec->index]
                                                   : NULL;
}

struct ps_agent_part *
ps_agent_part_find_owned(const struct ps_agent_job *j,
                         const struct ps_agent_server *server,
                         const struct ps_rec_part *rec)
{
    struct ps_agent_part *p = ps_agent_part_find_any_dtype(j, rec);

    if (p != NULL && rec->dtype != p->key->dtype) {
        return NULL;
    }
    return p != NULL && p->owner_node == server->node ? p : NULL;
}

void ps_agent_part_skip(struct ps_agent_part *p, uint64_t version)
{
    struct ps_agent_key *k = p->key;

    if ((int64_t)version <= p->skipped_version) {
        return;
    }
    p->skipped_version = (int64_t)version;
    if (p->owner_node != 0 && k->kind->has_results &&
        k->round.state == PS_AGENT_ROUND_COMPLETE &&
        k->round.op == PS_OP_SKIP && version == k->round.number &&
        p->local_version == (int64_t)version - 1) {
        /* A skipped round repeats the value before it. The copy saves a pull,
         * and is the value that a new owner restores. */
        const struct ps_slice to = ps_agent_part_result(p, version);
        const struct ps_slice from = ps_agent_part_result(p, version - 1);

        memcpy(ps_slice_data(&to), ps_slice_data(&from), to.len);
        p->local_version = (int64_t)version;
    }
}

/* ------------------------------------------------------- states of a round */

static const uint32_t round_successors[] = {
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
    .count = sizeof(round_successors) / sizeof(round_successors[0]),
    .allowed = round_successors,
};

void ps_agent_round_set_state(struct ps_agent_key *k,
                              enum ps_agent_round_state to)
{
    ps_state_change(&round_states, &k->round.state, (uint8_t)to);
}

/* ----------------------------------------------------------- contributions */

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

bool ps_agent_contribution_is_needed(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return k->round.state == PS_AGENT_ROUND_COMPLETE &&
           p->completed_round < k->round.number &&
           ps_agent_contribution_is_ready(p);
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

    if (op == NULL || op->array.buf == NULL ||
        (k->round.op == PS_OP_BROADCAST &&
         k->job->local_ranks[local].rank != k->round.root)) {
        return false;
    }
    *ret = ps_agent_part_slice(p, &op->array);
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

/* ---------------------------------------------------------------- prefetch */

/* For rounds of many small keys, whose keys, partitions and operations exceed the
 * processor's cache: each access would wait for memory. These functions prefetch
 * everything that a few operations, or a few parts of a frame, will touch. An
 * address is known only when the object that holds it is loaded, so prefetching
 * proceeds in stages. No state changes. */

/* Contributions prefetched for one key; more would evict each other. */
#define PREFETCH_RANKS_MAX 16u
#define KEY_HOT_BYTES      (offsetof(struct ps_agent_key, compression) + 64)
#define PART_HOT_BYTES     (offsetof(struct ps_agent_part, encoding.residual))
#define OP_HOT_BYTES       (offsetof(struct ps_agent_op, ticket))

/* Prefetches the rounds of the keys, which are loaded, with the partition of
 * each index. `contributes`: the contributions are read if one more completes
 * the round. */
static void prefetch_rounds(const struct ps_agent_key *const *key,
                            const uint32_t *index, uint32_t count,
                            bool contributes)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];

        if (k != NULL) {
            ps_prefetch(&k->round.contribution[0],
                        k->job->local_rank_count *
                            sizeof(k->round.contribution[0]));
        }
        if (k != NULL && index[i] < k->part_count) {
            ps_prefetch(&k->parts[index[i]], PART_HOT_BYTES);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_agent_key *k = key[i];
        const uint32_t ranks = k == NULL ? 0 : k->job->local_rank_count;

        if (k == NULL || !ps_agent_round_is_open(k) ||
            (contributes && k->round.contributed_count + 1 != ranks)) {
            continue;
        }
        for (uint32_t n = 0; n < ranks && n < PREFETCH_RANKS_MAX; n++) {
            ps_prefetch(k->round.contribution[n], OP_HOT_BYTES);
        }
    }
}

void ps_agent_prefetch_ops(const struct ps_agent *a,
                           const struct ps_agent_session *s,
                           const struct ps_msg_l_op *op, uint32_t count)
{
    static const uint32_t first[PREFETCH_OPS];
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
        if (key[i] != NULL) {
            ps_prefetch(&key[i]->round.pushed_round[s->local_rank],
                        sizeof(key[i]->round.pushed_round[0]));
        }
    }
    prefetch_rounds(key, first, count, true);
}

void ps_agent_prefetch_parts(const struct ps_agent_job *j,
                             const struct ps_rec_part *part, uint32_t count)
{
    const struct ps_agent_key *key[PREFETCH_OPS];
    uint32_t index[PREFETCH_OPS];

    assert(count <= PREFETCH_OPS);
    for (uint32_t i = 0; i < count; i++) {
        key[i] = j == NULL ? NULL : ps_map_get(j->keys, part[i].key);
        index[i] = part[i].index;
        ps_prefetch(key[i], KEY_HOT_BYTES);
    }
    prefetch_rounds(key, index, count, false);
}
