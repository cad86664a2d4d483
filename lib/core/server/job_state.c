/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of a server: their state from the scheduler, and their end, which frees
 * all that they have. A computation of an ended job keeps its own memory alive;
 * its result is dropped. */
#include "core/server/job_state.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/optim/optim.h"
#include "core/server/credit.h"
#include "core/server/hello.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/migration.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <string.h>

void ps_server_job_init(struct ps_server *s)
{
    s->jobs.by_gen = ps_map_new();
    ps_list_init(&s->jobs.credit_check);
}

/* ------------------------------------------------------------- end of a job */

static void job_free(struct ps_server *s, struct ps_server_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(job->store.parts, &c)) != NULL) {
        ps_server_merge_discard(s, job, part);
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        ps_server_reply_drop(&job->slots[i]);
    }
    if (ps_list_linked(&job->node)) {
        ps_list_remove(&job->node);
    }
    ps_fair_deactivate(&s->merges.fair, &job->merge_flow);
    ps_server_migration_free_all(job);
    ps_store_fini(&job->store);
    ps_map_free(job->norm_waits);
    ps_tunings_fini(&job->tunings);
    ps_server_profile_fini(&job->profile);
    ps_map_remove(s->jobs.by_gen, job->gen);
    ps_pool_share_unref(job->pool_share);
    ps_account_set_used(&job->account, PS_COST_PARTITIONS, 0);
    ps_account_set_used(&job->account, PS_COST_MEMORY, 0);
    ps_account_fini(&job->account);
    ps_free(job->slots);
    ps_free(job);
}

void ps_server_job_fini(struct ps_server *s)
{
    struct ps_map_cursor c = {0};
    struct ps_server_job *job;

    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
        job_free(s, job);
    }
    ps_map_free(s->jobs.by_gen);
}

static bool job_has_ended(const struct ps_server *s, uint64_t gen)
{
    for (uint32_t i = 0; i < PS_ENDED_JOBS_MAX; i++) {
        if (s->jobs.ended[i] == gen) {
            return true;
        }
    }
    return false;
}

static bool is_payload_of_job(void *ctx, const struct ps_msg *m)
{
    const struct ps_server_job *job = ctx;

    switch (m->code) {
    case PS_MSG_VALUE:
        return m->value.gen == job->gen;
    case PS_MSG_ROWS:
        return m->rows.gen == job->gen;
    case PS_MSG_STATE:
        return m->state.gen == job->gen;
    default:
        return false; /* No payload. */
    }
}

/* Values on their way to the job's agents are not sent again. */
static void drop_unacked_values(struct ps_server_job *job)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = ps_server_slot_session(&job->slots[i]);

        if (p != NULL) {
            ps_server_session_drop_replies(&p->turns, job->gen);
            ps_link_drop_payloads(p->link, is_payload_of_job, job);
        }
    }
}

static void end_job(struct ps_server_step *st, const struct ps_msg_job_state *m)
{
    struct ps_server *s = st->s;
    struct ps_server_job *job = ps_server_job_find(s, m->gen);

    if (!job_has_ended(s, m->gen)) {
        s->jobs.ended[s->jobs.next_ended] = m->gen;
        s->jobs.next_ended = (s->jobs.next_ended + 1) % PS_ENDED_JOBS_MAX;
    }
    if (job != NULL) {
        const char *reason = m->reason != NULL ? m->reason : "";
        char text[PS_TEXT_MAX + 1];
        struct ps_str why;

        ps_str_init(&why, text, sizeof(text));
        ps_str_add_escaped(&why, reason, strlen(reason), PS_TEXT_MAX);
        ps_effects_log_for(st->fx, &job->account, PS_LOG_INFO, "job %s %s%s%s",
                           job->name, ps_job_phase_name(m->phase),
                           text[0] == '\0' ? "" : ": ", text);
        drop_unacked_values(job);
        job_free(s, job);
        ps_server_memory_trim_later(s);
    }
}

/* ---------------------------------------------------------------- job_state */

static struct ps_server_job *job_new(struct ps_server *s,
                                     const struct ps_msg_job_state *m)
{
    struct ps_server_job *job = ps_calloc(1, sizeof(*job));
    struct ps_str name;

    job->server = s;
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
    job->pool_share = ps_pool_share_new();
    ps_account_init(&job->account, PS_ACCOUNT_JOB, job->name, NULL);
    ps_account_add_parent(&job->account, &s->account);
    job->norm_waits = ps_map_new();
    ps_list_init(&job->waiting_merges);
    ps_map_put(s->jobs.by_gen, job->gen, job);
    if (ps_map_count(s->jobs.by_gen) == 2) {
        ps_server_session_begin_turns(s);
    }
    return job;
}

/* Sets the agent of the slot. A restarted agent has forgotten its requests, so
 * its pulls and batched replies are dropped; its contributions stay. */
static void update_slot(struct ps_server_slot *slot,
                        const struct ps_rec_slot *r)
{
    if (slot->agent_node == r->node && slot->incarnation == r->incarnation) {
        return;
    }
    slot->agent_node = r->node;
    slot->incarnation = r->incarnation;
    slot->instance = r->instance;
    ps_str_copy(slot->name, sizeof(slot->name), r->name != NULL ? r->name : "");
    ps_server_reply_drop(slot);
    ps_store_remove_slot_pulls(&slot->job->store, slot->index);
}

/* NULL if the state is valid, else the reason to reject it. */
static const char *job_state_error(const struct ps_server *s,
                                   const struct ps_server_job *job,
                                   const struct ps_msg_job_state *m)
{
    if (m->slots_count == 0 || m->slots_count > PS_SLOTS_MAX) {
        return "it has no slots, or too many";
    }
    if (job != NULL && job->slot_count != m->slots_count) {
        return "the number of its slots has changed";
    }
    if (job == NULL && ps_map_count(s->jobs.by_gen) >= PS_JOBS_MAX) {
        return "too many jobs";
    }
    return NULL;
}

static bool add_optim_changes(struct ps_optim *o,
                              const struct ps_msg_job_state *m)
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

void ps_server_job_send_ready(struct ps_server_step *st,
                              const struct ps_server_job *job)
{
    if (!ps_uplink_is_connected(&st->s->uplink)) {
        return; /* on_new_session() sends it. */
    }
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_JOB_READY,
                             .job_ready = {.gen = job->gen,
                                           .version = job->version,
                                           .round = job->newest_version}});
}

void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m)
{
    struct ps_server *s = st->s;
    struct ps_server_job *job = ps_server_job_find(s, m->gen);
    const char *optimizer = m->optimizer != NULL ? m->optimizer : "";
    struct ps_optim optim = {0};
    struct ps_compression compress = {0};
    char text[256];

    switch ((enum ps_job_phase)m->phase) {
    case PS_JOB_PHASE_FORMING:
        return;
    case PS_JOB_PHASE_STARTING:
    case PS_JOB_PHASE_RUNNING:
        break;
    case PS_JOB_PHASE_FAILED:
    case PS_JOB_PHASE_ENDED:
        end_job(st, m);
        return;
    }
    if (job_has_ended(s, m->gen)) {
        return; /* Sent before the end, arrived after it. */
    }
    if (job != NULL && m->version <= job->version) {
        /* The scheduler may ask again. */
        ps_server_job_send_ready(st, job);
        return;
    }
    const char *why = job_state_error(s, job, m);
    if (why == NULL && *optimizer != '\0' &&
        ps_optim_parse(optimizer, m->params, m->params_count, &optim) != 0) {
        why = "its optimizer is not known here";
    }
    if (why == NULL && *optimizer != '\0' && !add_optim_changes(&optim, m)) {
        why = "the changes of its optimizer are invalid";
    }
    if (why == NULL && ps_tunings_check(m->tunings, m->tunings_count, text,
                                        sizeof(text)) != 0) {
        why = "the multipliers of its keys are invalid";
    }
    if (why == NULL &&
        ps_compression_parse(m->compression, m->compression_params,
                             m->compression_params_count, &compress, text,
                             sizeof(text)) != 0) {
        why = "its compression is not known here";
    }
    if (why != NULL) {
        ps_effects_log(st->fx, PS_LOG_ERROR, "job %llu not taken: %s",
                       (unsigned long long)m->gen, why);
        return;
    }
    if (job == NULL) {
        job = job_new(s, m);
        ps_effects_log_for(st->fx, &job->account, PS_LOG_INFO,
                           "job %s taken, %u slots", job->name,
                           job->slot_count);
    }
    job->version = m->version;
    job->weight = m->weight;
    job->has_optimizer = *optimizer != '\0';
    job->optim = optim;
    ps_tunings_set(&job->tunings, m->tunings, m->tunings_count);
    job->compression = compress;
    ps_server_profile_set(job, m->profile_mode, m->profile_number);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        update_slot(&job->slots[i], &m->slots[i]);
    }
    job->may_be_exhausted = true;
    ps_server_credit_mark_job(job);
    ps_server_job_send_ready(st, job);
    ps_server_hello_verify_all(st);
}

void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);

    if (job != NULL && m->version > job->quota.version) {
        job->quota = (struct ps_server_quota){.version = m->version,
                                              .bytes = m->bytes,
                                              .round_bytes = m->round_bytes};
    }
}
