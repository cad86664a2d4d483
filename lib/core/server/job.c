/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: look-ups of jobs and their slots, and what is recorded of a job.
 *
 * A recording of a job is a part of the server's trace: the entries that were
 * added while it ran have its number. It stays readable when it has ended, until
 * the next one begins or the job ends; newer entries of the trace, those of other
 * jobs included, replace its oldest ones. */
#include "core/server/job.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/base/peer.h"
#include "core/server/inner.h"

struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot)
{
    struct ps_server_session *p = ps_map_get(
        slot->job->server->sessions.by_node, slot->agent_node);

    return p != NULL && p->incarnation == slot->incarnation ? p : NULL;
}

const struct ps_server_slot *ps_server_job_slot_of(const struct ps_server *s,
                                                   const struct ps_msg_hello *m)
{
    PS_MAP_EACH(const struct ps_server_job, job, s->jobs.by_gen)
    {
        for (uint32_t i = 0; i < job->slot_count; i++) {
            const struct ps_server_slot *slot = &job->slots[i];

            if (slot->agent_node == m->node &&
                slot->incarnation == m->incarnation &&
                slot->instance == m->instance) {
                return slot;
            }
        }
    }
    return NULL;
}

/* --------------------------------------------------------------- recordings */

/* Number of the recording in entries of the trace; never 0. */
static uint16_t mark_of(const struct ps_server_profile *p)
{
    return (uint16_t)(1 + p->number % UINT16_MAX);
}

static uint64_t entries_so_far(const struct ps_server *s)
{
    return s->opt.trace != NULL ? s->opt.trace->count : 0;
}

void ps_server_profile_set(struct ps_server_job *job, uint8_t mode,
                           uint32_t number)
{
    struct ps_server_profile *p = &job->profile;

    if (number != p->number) {
        p->number = number;
        p->begun_at = job->server->now;
        p->entries_before = entries_so_far(job->server);
    }
    p->mode = mode;
}

void ps_server_record(struct ps_server_job *job, const struct ps_part *part,
                      const struct ps_server_profile_event *e)
{
    const struct ps_server_profile *p = &job->profile;

    ps_trace_add(
        job->server->opt.trace,
        &(struct ps_trace_entry){
            .begun_at = e->begun_at,
            .ended_at = job->server->now,
            .gen = job->gen,
            .round = e->round,
            .bytes = e->bytes,
            .key = part->key,
            .index = part->index,
            .peer = e->slot,
            .kind = (uint8_t)e->kind,
            .recording = p->mode == PS_PROFILE_MODE_ON ? mark_of(p) : 0});
}

bool ps_server_job_is_newer(const struct ps_server_job *job,
                            const struct ps_server_backup_part *p)
{
    const struct ps_part *own = ps_store_find(&job->store, p->part->key,
                                              p->part->index);

    return own == NULL || !ps_part_has_value(own) ||
           (p->number != 0 && p->part->image.version > own->image.version);
}

bool ps_server_job_backs_up(const struct ps_server_job *job, uint32_t key,
                            uint32_t index)
{
    if (job->copies.backups == NULL) {
        return false;
    }
    PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
    {
        const struct ps_server_backup_part *p = ps_map_get(
            b->parts, ps_part_id(key, index));

        if (p != NULL && ps_server_job_is_newer(job, p)) {
            return true;
        }
    }
    return false;
}

bool ps_server_job_takes_over(const struct ps_server_job *job)
{
    if (job->copies.backups == NULL) {
        return false;
    }
    PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
    {
        if (b->lost_version != 0) {
            return true;
        }
    }
    return false;
}

uint64_t ps_server_job_stored_bytes(const struct ps_server_job *job)
{
    uint64_t bytes = job->store.stored_bytes;

    if (job->copies.backups != NULL) {
        PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
        {
            bytes += b->store.stored_bytes;
        }
    }
    return bytes;
}

void ps_server_read_recording(const struct ps_server *s,
                              const struct ps_msg_trace_get *m,
                              struct ps_rec_trace_entry *list,
                              struct ps_msg_trace_entries *ret)
{
    const struct ps_server_job *job = ps_map_get(s->jobs.by_gen, m->gen);
    const struct ps_server_profile *p = job != NULL ? &job->profile : NULL;
    struct ps_msg_trace_get of = *m;

    if (p == NULL || p->number == 0) {
        *ret = (struct ps_msg_trace_entries){
            .gen = m->gen, .request = m->request, .role = PS_ROLE_SCHED};
        return;
    }
    of.first = p->entries_before +
               ps_min_u64(m->first, entries_so_far(s) - p->entries_before);
    ps_trace_read(s->opt.trace, &of, mark_of(p), s->now, list, ret);
    for (uint32_t i = 0; i < ret->entries_count; i++) {
        const ps_time begun = ps_max_u64(list[i].begun_ns, p->begun_at);

        list[i].duration_ns -= ps_min_u64(begun - list[i].begun_ns,
                                          list[i].duration_ns);
        list[i].begun_ns = begun - p->begun_at;
    }
    ret->first -= p->entries_before;
    ret->next -= p->entries_before;
    ret->count -= p->entries_before;
}
