/* SPDX-License-Identifier: Apache-2.0 */
/* State of a server machine, for tests: versions, values, credit. */
#pragma once

#include "core/part/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"

/* Version and value (borrowed, NULL: none) of a partition. False: not known to
 * the server. */
static inline bool server_peek(const struct ps_server *s, uint64_t gen,
                               uint32_t key, uint32_t index,
                               uint64_t *ret_version,
                               const struct ps_slice **ret_value)
{
    const struct ps_server_job *job = ps_map_get(s->jobs.by_gen, gen);
    const struct ps_part *part = job != NULL
                                     ? ps_store_find(&job->store, key, index)
                                     : NULL;

    *ret_version = part != NULL ? part->image.version : 0;
    *ret_value = part != NULL && ps_part_has_value(part) ? ps_part_value(part)
                                                         : NULL;
    return part != NULL;
}

/* Push bytes of the slot that are received and not merged. */
static inline uint64_t server_unmerged_bytes(const struct ps_server *s,
                                             uint64_t gen, uint32_t slot)
{
    const struct ps_server_job *job = ps_map_get(s->jobs.by_gen, gen);

    return job != NULL && slot < job->slot_count
               ? job->slots[slot].unmerged_bytes
               : 0;
}

/* Credit of a slot on the present session of its agent's link. */
struct server_credit {
    uint64_t session; /* 0: the server knows no agent of the slot. */
    uint64_t unmerged_bytes;
    uint64_t received_bytes; /* Push bytes since the session began. */
    uint64_t announced_bytes;
    /* A round lacks the slot, and no round of the job is being merged. */
    bool is_awaited;
};

/* False: the job or the slot is not known to the server. */
static inline bool server_peek_credit(const struct ps_server *s, uint64_t gen,
                                      uint32_t slot, struct server_credit *ret)
{
    const struct ps_server_job *job = ps_map_get(s->jobs.by_gen, gen);

    if (job == NULL || slot >= job->slot_count) {
        return false;
    }
    const struct ps_server_slot *known = &job->slots[slot];
    const struct ps_server_session *p = ps_server_slot_session(known);
    struct ps_credit f = {0};

    if (p != NULL) {
        const struct ps_credit *used = ps_map_get(p->credits, gen);

        ps_credit_init(
            &f, &(struct ps_credit_limits){.initial = s->opt.initial_credit,
                                           .window = s->opt.credit_window});
        f = used != NULL ? *used : f;
    }
    *ret = (struct server_credit){
        .session = p != NULL ? p->session_id : 0,
        .unmerged_bytes = known->unmerged_bytes,
        .received_bytes = f.received,
        .announced_bytes = f.announced,
        .is_awaited = known->contributed_rounds < job->incomplete_rounds &&
                      job->merging_rounds == 0,
    };
    return true;
}
