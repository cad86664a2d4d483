/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the server machine, for the ping to the scheduler, for the process
 * that runs it, and for tests. */
#include "core/server/stats.h"

#include "core/server/inner.h"
#include "core/server/job.h"

bool ps_server_is_ready(const struct ps_server *s)
{
    return ps_uplink_is_connected(&s->uplink);
}

uint64_t ps_server_residue(const struct ps_server *s)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;
    uint64_t n = 0;

    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
        n += ps_map_count(job->store.parts) + job->store.open_round_count +
             job->store.waiting_pull_count;
    }
    return n;
}

void ps_server_stats(const struct ps_server *s, struct ps_server_stats *ret)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;
    const struct ps_server_session *p;

    *ret = (struct ps_server_stats){
        .rounds = s->rounds,
        .bytes_in = s->bytes_in,
        .bytes_out = s->bytes_out,
        .resent = s->sessions.resent + ps_link_resent(s->uplink.dialer.link),
        .refused_parts = s->replies.refused_parts,
        .refused_frames = s->sessions.refused_frames,
    };
    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
        ret->stored_bytes += job->store.stored_bytes;
        ret->waiting_requests += job->store.open_round_count +
                                 job->store.waiting_pull_count;
        for (uint32_t i = 0; i < job->slot_count; i++) {
            ret->unmerged_bytes += job->slots[i].unmerged_bytes;
        }
    }
    c = (struct ps_map_cursor){0};
    while ((p = ps_map_next(s->sessions.by_node, &c)) != NULL) {
        ret->resent += ps_link_resent(p->link);
    }
}

bool ps_server_peek(const struct ps_server *s, uint64_t gen, uint32_t key,
                    uint32_t index, uint64_t *ret_version,
                    const struct ps_slice **ret_value)
{
    const struct ps_server_job *job = ps_server_job_find(s, gen);
    const struct ps_part *part = job != NULL
                                     ? ps_store_find(&job->store, key, index)
                                     : NULL;

    if (part == NULL) {
        return false;
    }
    *ret_version = part->image.version;
    *ret_value = ps_part_has_value(part) ? ps_part_value(part) : NULL;
    return true;
}

uint64_t ps_server_unmerged_bytes(const struct ps_server *s, uint64_t gen,
                                  uint32_t slot)
{
    const struct ps_server_job *job = ps_server_job_find(s, gen);

    return job != NULL && slot < job->slot_count
               ? job->slots[slot].unmerged_bytes
               : 0;
}

bool ps_server_peek_credit(const struct ps_server *s, uint64_t gen,
                           uint32_t slot, struct ps_server_slot_credit *ret)
{
    const struct ps_server_job *job = ps_server_job_find(s, gen);

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
    *ret = (struct ps_server_slot_credit){
        .session = p != NULL ? p->session_id : 0,
        .unmerged_bytes = known->unmerged_bytes,
        .received_bytes = f.received,
        .announced_bytes = f.announced,
        .is_awaited = known->contributed_rounds < job->incomplete_rounds &&
                      job->merging_rounds == 0,
    };
    return true;
}
