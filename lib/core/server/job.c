/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: look-ups of jobs and their slots, and what is recorded of a job.
 *
 * A recording is a ring of events, and its memory grows with them up to
 * PS_PROFILE_EVENTS_MAX. It stays readable when it has ended, until the next
 * one begins or the job ends. */
#include "core/server/job.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/inner.h"

struct ps_server_job *ps_server_job_find(const struct ps_server *s,
                                         uint64_t gen)
{
    return ps_map_get(s->jobs.by_gen, gen);
}

int ps_server_job_find_slot(struct ps_server_job *job,
                            const struct ps_server_session *p, uint32_t slot,
                            struct ps_server_slot **ret_slot)
{
    if (slot >= job->slot_count) {
        return PS_E_INVAL;
    }
    if (job->slots[slot].agent_node != p->agent_node) {
        return PS_E_PERM;
    }
    if (job->slots[slot].incarnation != p->incarnation) {
        return PS_E_STALE;
    }
    *ret_slot = &job->slots[slot];
    return 0;
}

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
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;

    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
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

#define CAPACITY_MIN 1024u

void ps_server_profile_fini(struct ps_server_profile *p)
{
    ps_free(p->events);
    *p = (struct ps_server_profile){0};
}

void ps_server_profile_set(struct ps_server_job *job, uint8_t mode,
                           uint32_t number)
{
    struct ps_server_profile *p = &job->profile;

    if (number != p->number) {
        ps_server_profile_fini(p);
        p->number = number;
        p->begun_at = job->server->now;
    }
    p->mode = mode;
}

/* Room for one more event. The ring grows while it is full for the first
 * time, so its events are in order. */
static void reserve_event(struct ps_server_profile *p)
{
    if (p->count == p->capacity && p->capacity < PS_PROFILE_EVENTS_MAX) {
        p->capacity = p->capacity == 0 ? CAPACITY_MIN : 2 * p->capacity;
        p->events = ps_realloc(p->events, p->capacity * sizeof(p->events[0]));
    }
}

static void add_event(struct ps_server_job *job, const struct ps_part *part,
                      const struct ps_server_profile_event *e)
{
    struct ps_server_profile *p = &job->profile;
    const ps_time now = job->server->now;
    const ps_time since = ps_max_u64(e->begun_at, p->begun_at);

    reserve_event(p);
    p->events[p->count++ % p->capacity] = (struct ps_rec_profile_event){
        .kind = (uint8_t)e->kind,
        .name_hash = part->image.name_hash,
        .index = part->index,
        .slot = e->slot,
        .round = e->round,
        .start_ns = since - p->begun_at,
        .duration_ns = now - since,
        .bytes = e->bytes,
    };
}

_Static_assert((int)PS_PROFILE_KIND_PUSH == (int)PS_TRACE_KIND_PUSH &&
                   (int)PS_PROFILE_KIND_GATHER == (int)PS_TRACE_KIND_GATHER &&
                   (int)PS_PROFILE_KIND_MERGE == (int)PS_TRACE_KIND_MERGE &&
                   (int)PS_PROFILE_KIND_STEP == (int)PS_TRACE_KIND_STEP &&
                   (int)PS_PROFILE_KIND_PULL == (int)PS_TRACE_KIND_PULL,
               "kinds of both have the same numbers");

void ps_server_record(struct ps_server_job *job, const struct ps_part *part,
                      const struct ps_server_profile_event *e)
{
    const ps_time now = job->server->now;
    /* Its first byte is only known to have come after the event before. */
    const bool is_arrival = e->kind == PS_PROFILE_KIND_PUSH;

    ps_trace_add(
        job->server->opt.trace,
        &(struct ps_trace_entry){.begun_at = is_arrival ? now : e->begun_at,
                                 .ended_at = now,
                                 .gen = job->gen,
                                 .round = e->round,
                                 .bytes = e->bytes,
                                 .key = part->key,
                                 .index = part->index,
                                 .peer = e->slot,
                                 .kind = (uint8_t)e->kind});
    if (ps_server_job_is_recorded(job)) {
        add_event(job, part, e);
    }
}

void ps_server_on_profile_get(struct ps_server_step *st,
                              const struct ps_msg_profile_get *m)
{
    const struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    const struct ps_server_profile none = {0};
    const struct ps_server_profile *p = job != NULL ? &job->profile : &none;
    const uint64_t oldest = p->count - ps_min_u64(p->count, p->capacity);
    const uint64_t first = ps_min_u64(ps_max_u64(m->first, oldest), p->count);
    const uint32_t count = p->capacity == 0
                               ? 0
                               : (uint32_t)ps_min_u64(p->count - first,
                                                      PS_PROFILE_READ_MAX);
    struct ps_rec_profile_event *events = ps_calloc(count + 1u,
                                                    sizeof(*events));

    for (uint32_t i = 0; i < count; i++) {
        events[i] = p->events[(first + i) % p->capacity];
    }
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_PROFILE_EVENTS,
                             .profile_events = {.gen = m->gen,
                                                .request = m->request,
                                                .agent = m->agent,
                                                .server = st->s->opt.name,
                                                .first = first,
                                                .count = p->count,
                                                .events = events,
                                                .events_count = count}});
    ps_free(events);
}
