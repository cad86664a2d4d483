/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of a server: what the scheduler says of them, and their end, at which
 * everything of them goes at once. What is still being computed for a job
 * that has ended keeps its own memory alive and is dropped when it comes. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/optim.h"

#include <string.h>

struct ps_shard_job *ps_shard_job_find(const struct ps_shard *s, uint64_t gen)
{
    return ps_map_get(s->jobs, gen);
}

int ps_shard_job_slot(struct ps_shard_job *job, const struct ps_shard_peer *p,
                      uint32_t slot, struct ps_shard_slot **ret_slot)
{
    if (slot >= job->slot_count) {
        return PS_E_INVAL;
    }
    if (job->slots[slot].number != p->number) {
        return PS_E_PERM;
    }
    if (job->slots[slot].incarnation != p->incarnation) {
        return PS_E_STALE;
    }
    *ret_slot = &job->slots[slot];
    return 0;
}

struct ps_shard_peer *ps_shard_job_peer(const struct ps_shard_slot *slot)
{
    struct ps_shard_peer *p = ps_map_get(slot->job->shard->peers, slot->number);

    return p != NULL && p->incarnation == slot->incarnation ? p : NULL;
}

bool ps_shard_job_names(const struct ps_shard *s, const struct ps_msg_hello *m)
{
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *job;

    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        for (uint32_t i = 0; i < job->slot_count; i++) {
            const struct ps_shard_slot *slot = &job->slots[i];

            if (slot->number == m->node &&
                slot->incarnation == m->incarnation &&
                slot->instance == m->instance) {
                return true;
            }
        }
    }
    return false;
}

/* ---------------------------------------------------------------- the end */

void ps_shard_job_free(struct ps_shard *s, struct ps_shard_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(job->store.parts, &c)) != NULL) {
        ps_shard_merge_drop(s, job, part);
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        ps_shard_answer_drop(&job->slots[i]);
    }
    if (ps_list_linked(&job->node)) {
        ps_list_remove(&job->node);
    }
    ps_shard_moves_free(job);
    ps_store_fini(&job->store);
    ps_map_free(job->asking);
    ps_tunings_fini(&job->tunings);
    ps_map_take(s->jobs, job->gen);
    ps_pool_share_unref(job->share);
    ps_account_set(&job->account, PS_COST_PARTITIONS, 0);
    ps_account_set(&job->account, PS_COST_MEMORY, 0);
    ps_account_fini(&job->account);
    ps_free(job->slots);
    ps_free(job);
}

static bool has_ended(const struct ps_shard *s, uint64_t gen)
{
    for (uint32_t i = 0; i < PS_ENDED_MAX; i++) {
        if (s->ended[i] == gen) {
            return true;
        }
    }
    return false;
}

static bool is_of_job(void *ctx, const struct ps_msg *m)
{
    const struct ps_shard_job *job = ctx;

    switch (m->code) {
    case PS_MSG_VALUE:
        return m->value.gen == job->gen;
    case PS_MSG_ROWS:
        return m->rows.gen == job->gen;
    case PS_MSG_STATE:
        return m->state.gen == job->gen;
    default:
        return false; /* Carries nothing. */
    }
}

/* What is on its way to the job's agents is not sent again. */
static void drop_values(struct ps_shard_job *job)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        const struct ps_shard_peer *p = ps_shard_job_peer(&job->slots[i]);

        if (p != NULL) {
            ps_link_drop(p->link, is_of_job, job);
        }
    }
}

static void end(struct ps_shard_step *st, const struct ps_msg_job_state *m)
{
    struct ps_shard *s = st->s;
    struct ps_shard_job *job = ps_shard_job_find(s, m->gen);

    if (!has_ended(s, m->gen)) {
        s->ended[s->ended_next] = m->gen;
        s->ended_next = (s->ended_next + 1) % PS_ENDED_MAX;
    }
    if (job != NULL) {
        const char *reason = m->reason != NULL ? m->reason : "";
        char text[PS_TEXT_MAX + 1];
        struct ps_str why;

        ps_str_init(&why, text, sizeof(text));
        ps_str_add_escaped(&why, reason, strlen(reason), PS_TEXT_MAX);
        ps_effects_note(st->fx, PS_LOG_INFO, "job %s %s%s%s", job->name,
                        ps_job_phase_name(m->phase),
                        text[0] == '\0' ? "" : ": ", text);
        drop_values(job);
        ps_shard_job_free(s, job);
        s->trim_at = ps_time_add(st->now, PS_TRIM_WAIT);
    }
}

/* ----------------------------------------------------------------- taking */

static struct ps_shard_job *job_new(struct ps_shard *s,
                                    const struct ps_msg_job_state *m)
{
    struct ps_shard_job *job = ps_calloc(1, sizeof(*job));
    struct ps_str name;

    job->shard = s;
    job->gen = m->gen;
    ps_str_init(&name, job->name, sizeof(job->name));
    if (m->name != NULL) {
        ps_str_add_escaped(&name, m->name, strlen(m->name), PS_NAME_MAX);
    }
    job->slot_count = m->slots_count;
    job->slots = ps_calloc(job->slot_count, sizeof(*job->slots));
    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].job = job;
        job->slots[i].index = i;
    }
    ps_store_init(&job->store);
    job->share = ps_pool_share_new();
    ps_account_init(&job->account, PS_ACCOUNT_JOB, job->name, NULL);
    ps_account_join(&job->account, &s->account);
    job->asking = ps_map_new();
    ps_map_put(s->jobs, job->gen, job);
    return job;
}

/* An agent that was restarted has forgotten what it waited for, and what
 * was gathered for it is nobody's. What it had pushed before it died stays. */
static void take_slot(struct ps_shard_slot *slot, const struct ps_rec_slot *r)
{
    if (slot->number == r->node && slot->incarnation == r->incarnation) {
        return;
    }
    slot->number = r->node;
    slot->incarnation = r->incarnation;
    slot->instance = r->instance;
    ps_shard_answer_drop(slot);
    ps_store_unpark_slot(&slot->job->store, slot->index);
}

void ps_shard_job_forget(struct ps_shard *s, const struct ps_shard_peer *p)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_job *job;

    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        for (uint32_t i = 0; i < job->slot_count; i++) {
            struct ps_shard_slot *slot = &job->slots[i];

            if (slot->number == p->number &&
                slot->incarnation == p->incarnation) {
                ps_shard_answer_drop(slot);
                ps_store_unpark_slot(&job->store, i);
            }
        }
    }
}

/* NULL when the state makes sense, else why not. */
static const char *objection(const struct ps_shard *s,
                             const struct ps_shard_job *job,
                             const struct ps_msg_job_state *m)
{
    if (m->slots_count == 0 || m->slots_count > PS_SLOTS_MAX) {
        return "it has no slots, or too many";
    }
    if (job != NULL && job->slot_count != m->slots_count) {
        return "the number of its slots has changed";
    }
    if (job == NULL && ps_map_count(s->jobs) >= PS_JOBS_MAX) {
        return "too many jobs";
    }
    return NULL;
}

static bool take_changes(struct ps_optim *o, const struct ps_msg_job_state *m)
{
    char why[1];

    for (uint32_t i = 0; i < m->changes_count; i++) {
        struct ps_rec_change c = m->changes[i];

        if (i >= PS_CHANGES_MAX ||
            ps_optim_check_change(m->optimizer, &c, &c.name, why,
                                  sizeof(why)) != 0) {
            return false;
        }
        ps_changes_add(&o->changes, &c);
    }
    return true;
}

void ps_shard_job_state(struct ps_shard_step *st,
                        const struct ps_msg_job_state *m)
{
    struct ps_shard *s = st->s;
    struct ps_shard_job *job = ps_shard_job_find(s, m->gen);
    const char *optimizer = m->optimizer != NULL ? m->optimizer : "";
    struct ps_optim optim = {0};
    struct ps_compress compress = {0};
    char text[256];

    switch ((enum ps_job_phase)m->phase) {
    case PS_JOB_PHASE_FORMING:
        return;
    case PS_JOB_PHASE_STARTING:
    case PS_JOB_PHASE_RUNNING:
        break;
    case PS_JOB_PHASE_FAILED:
    case PS_JOB_PHASE_ENDED:
        end(st, m);
        return;
    }
    if (has_ended(s, m->gen)) {
        return; /* Sent before the end, and overtaken by it. */
    }
    if (job != NULL && m->version <= job->version) {
        ps_shard_up_ready(st, job); /* The scheduler may ask again. */
        return;
    }
    const char *why = objection(s, job, m);
    if (why == NULL && *optimizer != '\0' &&
        ps_optim_parse(optimizer, m->params, m->params_count, &optim) != 0) {
        why = "its optimizer is not known here";
    }
    if (why == NULL && *optimizer != '\0' && !take_changes(&optim, m)) {
        why = "the changes of its optimizer make no sense";
    }
    if (why == NULL && ps_tunings_check(m->tunings, m->tunings_count, text,
                                        sizeof(text)) != 0) {
        why = "the multipliers of its keys make no sense";
    }
    if (why == NULL && ps_compress_parse(m->compression, m->compression_params,
                                         m->compression_params_count, &compress,
                                         text, sizeof(text)) != 0) {
        why = "its compression is not known here";
    }
    if (why != NULL) {
        ps_effects_note(st->fx, PS_LOG_ERROR, "job %llu not taken: %s",
                        (unsigned long long)m->gen, why);
        return;
    }
    if (job == NULL) {
        job = job_new(s, m);
        ps_effects_note(st->fx, PS_LOG_INFO, "job %s taken, %u slots",
                        job->name, job->slot_count);
    }
    job->version = m->version;
    job->optimizes = *optimizer != '\0';
    job->optim = optim;
    ps_tunings_set(&job->tunings, m->tunings, m->tunings_count);
    job->compress = compress;
    for (uint32_t i = 0; i < job->slot_count; i++) {
        take_slot(&job->slots[i], &m->slots[i]);
    }
    ps_shard_credit_dirty(job);
    ps_shard_up_ready(st, job);
    ps_shard_peer_named(st);
}

void ps_shard_job_room(struct ps_shard_step *st,
                       const struct ps_msg_job_room *m)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);

    if (job != NULL && m->number > job->room.number) {
        job->room = (struct ps_shard_room){
            .number = m->number, .bytes = m->bytes, .rounds = m->rounds};
    }
}
