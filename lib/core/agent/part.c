/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of keys: the states of a node's contribution to one, sizes, and
 * look-up by the names that messages give. */
#include "core/agent/part.h"

#include "base/num.h"
#include "base/state_table.h"
#include "core/agent/inner.h"

#include <string.h>

/* Alignment, in bytes, of results of at least this size. */
#define RESULT_ALIGN 4096u

/* ------------------------------------------------------------------ states */

static const char *const state_names[] = {
    [PS_AGENT_PART_IDLE] = "IDLE",           [PS_AGENT_PART_QUEUED] = "QUEUED",
    [PS_AGENT_PART_COMPUTING] = "COMPUTING", [PS_AGENT_PART_SENT] = "SENT",
    [PS_AGENT_PART_BACKOFF] = "BACKOFF",
};

static const uint32_t successors[] = {
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
    .states = state_names,
    .count = sizeof(state_names) / sizeof(state_names[0]),
    .allowed = successors,
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

uint64_t ps_agent_key_result_bytes(uint64_t bytes)
{
    return 2 * ps_round_up(bytes, bytes >= RESULT_ALIGN ? RESULT_ALIGN : 64);
}

/* ----------------------------------------------------------------- look-up */

struct ps_agent_part *
ps_agent_part_find_any_dtype(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *rec)
{
    struct ps_agent_job *j = ps_agent_job_find(a, gen);
    struct ps_agent_key *k = j == NULL ? NULL : ps_map_get(j->keys, rec->key);

    return k != NULL && rec->index < k->part_count ? &k->parts[rec->index]
                                                   : NULL;
}

struct ps_agent_part *ps_agent_part_find(const struct ps_agent *a, uint64_t gen,
                                         const struct ps_rec_part *rec)
{
    struct ps_agent_part *p = ps_agent_part_find_any_dtype(a, gen, rec);

    return p != NULL && rec->dtype == p->key->dtype ? p : NULL;
}

struct ps_agent_part *
ps_agent_part_find_owned(const struct ps_agent *a,
                         const struct ps_agent_server *server, uint64_t gen,
                         const struct ps_rec_part *rec)
{
    struct ps_agent_part *p = ps_agent_part_find(a, gen, rec);

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
        const uint64_t at = p->first_elem * ps_dtype_size(k->dtype);

        memcpy(k->results->data + k->result_offset[version & 1] + at,
               k->results->data + k->result_offset[(version - 1) & 1] + at,
               ps_agent_part_bytes(p));
        p->local_version = (int64_t)version;
    }
}
