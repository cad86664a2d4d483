/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup of jobs, and the state of a job as sent to daemons. job_state holds
 * all that a daemon must know of a job; each new version goes to all its
 * servers and agents. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "base/name_hash.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <string.h>

/* Rank changes within this time are sent in one state. */
#define COALESCE_TIME PS_MILLIS(20)

struct ps_sched_job *ps_sched_find_job(const struct ps_sched *s, uint64_t gen)
{
    return ps_map_get(s->jobs, gen);
}

struct ps_sched_job *ps_sched_find_open_job(const struct ps_sched *s,
                                            uint32_t uid, const char *name)
{
    PS_MAP_EACH(struct ps_sched_job, j, s->jobs)
    {
        if (ps_sched_job_is_open(j) && j->uid == uid &&
            strcmp(j->name, name) == 0) {
            return j;
        }
    }
    return NULL;
}

const struct ps_sched_job *ps_sched_find_parent_job(const struct ps_sched *s,
                                                    const char *name,
                                                    uint32_t uid)
{
    const size_t len = (size_t)(strrchr(name, '/') - name);
    const struct ps_sched_job *best = NULL;
    int best_rank = 0;

    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        const int rank = (ps_sched_job_is_open(j) ? 2 : 0) + (j->uid == uid);

        /* The parent of a group of a group is the latter. */
        if (rank > best_rank && strlen(j->name) >= len &&
            ps_group_name_is_of(name, j->name)) {
            best = j;
            best_rank = rank;
        }
    }
    return best;
}

/* Appends "job 'x'"; an invalid name is left out. */
static void append_job_name(struct ps_str *out, const char *name)
{
    if (ps_str_is_name(name, PS_NAME_MAX)) {
        ps_str_addf(out, "job '%s'", name);
    } else {
        ps_str_add(out, "this job");
    }
}

int ps_sched_job_end_reason(const struct ps_sched *s, uint64_t gen,
                            const char *name, struct ps_str *ret)
{
    const struct ps_sched_ended_job *p = ps_sched_history_find(&s->history,
                                                               gen);

    if (p != NULL && p->row->job_row.reason[0] != '\0') {
        ps_str_add(ret, p->row->job_row.reason);
        return PS_E_JOBFAILED;
    }
    if (p != NULL) {
        ps_str_addf(ret, "job %s has ended", p->row->job_row.name);
        return PS_E_NOJOB;
    }
    /* Generations of this scheduler are above its base, those of earlier ones
     * are not. */
    if (gen <= s->opt.generation_base) {
        ps_str_add(ret, "the scheduler was restarted and does not know ");
        append_job_name(ret, name);
        ps_str_add(ret, "; start the job again");
        return PS_E_JOBFAILED;
    }
    append_job_name(ret, name);
    ps_str_add(ret, " ended long ago; start the job again");
    return PS_E_NOJOB;
}

int ps_sched_job_check_agent(const struct ps_sched *s,
                             const struct ps_sched_job *j, uint64_t gen,
                             const struct ps_member *agent, struct ps_str *why)
{
    if (j == NULL) {
        return ps_sched_job_end_reason(s, gen, NULL, why);
    }
    if (!ps_sched_job_is_open(j)) {
        ps_str_add(why, j->reason);
        return PS_E_JOBFAILED;
    }
    if (ps_sched_job_slot_of(j, agent->node) == j->slot_count) {
        ps_str_addf(why, "agent %s has no worker in job %s", agent->name,
                    j->name);
        return PS_E_REFUSED;
    }
    return 0;
}

/* ------------------------------------------------------------------ state */

/* Places of the job; the caller frees the list. */
static struct ps_rec_place *list_places(const struct ps_sched_job *j)
{
    struct ps_rec_place *places = ps_alloc((j->servers.count + 1u) *
                                           sizeof(*places));

    for (uint32_t i = 0; i < j->servers.count; i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];

        places[i] = (struct ps_rec_place){
            .epoch = on->epoch,
            .node = on->node,
            .name = on->name,
            .incarnation = on->incarnation,
            .instance = on->instance,
            .number = on->number,
            .backup = on->backup,
            .backup_instance = on->backup_instance,
            .filled = on->is_filled,
        };
    }
    return places;
}

/* True if some partition has had another owner before. */
static bool has_moved(const struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->keys.count; i++) {
        if (j->keys.list[i] != NULL && j->keys.list[i]->is_reassigned) {
            return true;
        }
    }
    return false;
}

static struct ps_packet *make_job_state(const struct ps_sched_job *j,
                                        bool with_ranks)
{
    struct ps_rec_slot *slots = ps_alloc((j->slot_count + 1u) * sizeof(*slots));
    struct ps_rec_rank *ranks = ps_alloc((j->workers.count + 1u) *
                                         sizeof(*ranks));
    struct ps_rec_place *places = list_places(j);
    const struct ps_sched_optimizer *o = &j->optimizer;
    uint32_t rank_count = 0;
    struct ps_packet *p;

    for (uint32_t i = 0; i < j->slot_count; i++) {
        slots[i] = (struct ps_rec_slot){
            .node = j->slots[i].agent_node,
            .incarnation = j->slots[i].incarnation,
            .ranks = j->slots[i].ranks,
            /* Hidden from agents: with it, one could impersonate another at a
             * server. */
            .instance = with_ranks ? 0 : j->slots[i].instance,
            .name = with_ranks ? "" : j->slots[i].agent_name,
        };
    }
    if (with_ranks && ps_sched_job_has_started(j)) {
        for (; rank_count < j->workers.count; rank_count++) {
            const struct ps_sched_worker *w = &j->workers.list[rank_count];

            ranks[rank_count] = (struct ps_rec_rank){
                .rank = rank_count,
                .slot = w->slot,
                .worker = w->worker_id,
                .local_rank = w->local_rank,
                .state = w->state,
                .incarnation = w->incarnation,
            };
        }
    }
    p = ps_packet_new(
        &(struct ps_msg){
            .code = PS_MSG_JOB_STATE,
            .job_state =
                {
                    .gen = j->gen,
                    .version = j->version,
                    .name = j->name,
                    .phase = j->phase,
                    .mode = j->opt.mode,
                    .rule = j->opt.rule,
                    .staleness = j->opt.staleness,
                    .on_loss = j->opt.on_loss,
                    .weight = j->weight,
                    .num_workers = j->opt.num_workers,
                    .num_servers = j->opt.num_servers,
                    .slots = slots,
                    .slots_count = j->slot_count,
                    .ranks = ranks,
                    .ranks_count = rank_count,
                    .reason = j->reason,
                    .optimizer = o->declared.name,
                    .params = o->declared.params,
                    .params_count = o->declared.param_count,
                    .tunings = o->tunings.list,
                    .tunings_count = with_ranks ? 0 : o->tunings.count,
                    .changes = o->changes.list,
                    .changes_count = with_ranks ? 0 : o->changes.count,
                    .profile_mode = j->observed.profile.mode,
                    .profile_number = j->observed.profile.number,
                    .compression = j->compression.name,
                    .compression_params = j->compression.params,
                    .compression_params_count = j->compression.param_count,
                    /* Hidden from agents, as the instances of slots. */
                    .places = places,
                    .places_count = with_ranks ? 0 : j->servers.count,
                    .replicas = j->opt.replicas,
                    .has_moved = has_moved(j),
                    .was_rebalanced = j->keys.were_rebalanced,
                }},
        NULL, 0);
    ps_free(slots);
    ps_free(ranks);
    ps_free(places);
    return p;
}

struct ps_packet *ps_sched_job_state(const struct ps_sched_job *j)
{
    return make_job_state(j, false);
}

void ps_sched_job_send_state(struct ps_sched_step *st, struct ps_sched_job *j,
                             struct ps_member *m)
{
    ps_sched_send(st, m, make_job_state(j, m->role == PS_ROLE_AGENT));
}

void ps_sched_job_publish(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const struct ps_members *t = &st->s->members;
    struct ps_packet *p;

    j->version++;
    j->publish_at = PS_TIME_NEVER;
    j->store.awaits_servers = false; /* They have heard of it, or are lost. */
    ps_sched_store_job(st->s, j);
    p = make_job_state(j, false);
    for (uint32_t i = 0; i < j->servers.count; i++) {
        ps_sched_send(st, ps_members_get(t, j->servers.list[i].node),
                      ps_packet_ref(p));
    }
    ps_packet_unref(p);
    p = make_job_state(j, true);
    for (uint32_t i = 0; i < j->agent_count; i++) {
        ps_sched_send(st, ps_members_get(t, j->agents[i]), ps_packet_ref(p));
    }
    ps_packet_unref(p);
}

void ps_sched_job_announce_restored(struct ps_sched_step *st,
                                    struct ps_sched_job *j)
{
    if (!j->store.awaits_servers ||
        ps_sched_job_ready_version(j) < j->version) {
        return;
    }
    j->store.awaits_servers = false;
    for (uint32_t i = 0; i < j->agent_count; i++) {
        struct ps_member *m = ps_members_get(&st->s->members, j->agents[i]);

        if (m != NULL) {
            ps_sched_job_send_state(st, j, m);
        }
    }
}

void ps_sched_job_publish_later(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    j->publish_at = ps_time_min(j->publish_at,
                                ps_time_add(st->now, COALESCE_TIME));
    ps_sched_store_job(st->s, j);
}

void ps_sched_job_send_ended(struct ps_sched_step *st, struct ps_member *m,
                             uint64_t gen, uint32_t version)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (ps_sched_find_job(st->s, gen) == NULL) {
        (void)ps_sched_job_end_reason(st->s, gen, NULL, &why);
    }
    ps_sched_send_msg(
        st, m,
        &(struct ps_msg){
            .code = PS_MSG_JOB_STATE,
            .job_state =
                {
                    .gen = gen,
                    .version = version < UINT32_MAX ? version + 1 : version,
                    .phase = PS_JOB_PHASE_ENDED,
                    .reason = why.data,
                },
        });
}

/* ----------------------------------------------------------- disagreements */

/* Declarations of ranks that contradict each other. The scheduler refuses the
 * later one. The ranks of the earlier one would wait for a rank that does not
 * take part, so their agents are notified, which end their calls with the same
 * text (rule K19). */

void ps_sched_add_rank_text(const struct ps_sched_job *j, uint32_t rank,
                            struct ps_str *s)
{
    if (rank >= j->workers.count) {
        ps_str_add(s, "another rank");
        return;
    }
    ps_str_addf(s, "rank %u on %s", rank, j->workers.list[rank].host);
}

static struct ps_sched_disagreement *
get_disagreement(struct ps_sched_disagreement **at, uint32_t size)
{
    if (*at == NULL) {
        *at = ps_calloc(1, sizeof(**at));
        ps_bits_init(&(*at)->refused, size);
    }
    return *at;
}

/* Begins or changes a disagreement of `size` slots or ranks, of which `party`
 * was refused. False: nothing is new. */
static bool begin_disagreement(struct ps_sched_disagreement **at, uint32_t size,
                               uint32_t party, const char *text)
{
    struct ps_sched_disagreement *d = get_disagreement(at, size);

    if (party >= size ||
        (!ps_bits_set(&d->refused, party) && strcmp(d->text, text) == 0)) {
        return false;
    }
    d->number++;
    ps_str_copy(d->text, sizeof(d->text), text);
    return true;
}

/* True: `party` was the last that had been refused. */
static bool remove_refused(struct ps_sched_disagreement *d, uint32_t party)
{
    if (d == NULL || party >= d->refused.size ||
        !ps_bits_clear(&d->refused, party) || d->refused.count > 0) {
        return false;
    }
    d->number++;
    *d->text = '\0';
    return true;
}

/* Sends the state of the disagreement about `k`, or, if NULL, about the whole
 * job. */
static void send_to_slot(struct ps_sched_step *st, const struct ps_sched_job *j,
                         const struct ps_sched_key *k, uint32_t slot)
{
    const struct ps_sched_disagreement *d = k != NULL ? k->disagreement
                                                      : j->workers.disagreement;

    ps_sched_send_msg(
        st, ps_members_get(&st->s->members, j->slots[slot].agent_node),
        &(struct ps_msg){
            .code = PS_MSG_DISAGREEMENT,
            .disagreement = {.gen = j->gen,
                             .number = d->number,
                             .kind = k != NULL ? k->kind : PS_KEY_KIND_STRING,
                             .name = k != NULL ? k->name : "",
                             .text = d->text}});
}

static void record(struct ps_sched_step *st, struct ps_sched_job *j,
                   const char *text)
{
    ps_effects_log_for(st->fx, &j->account, PS_LOG_NOTICE,
                       "job %s ranks disagree: %s", j->name, text);
    ps_sched_event_job(st, PS_EVENT_KIND_RANK, j, "disagree", true, text);
}

/* The same to the slots that have the key open, or to all slots of the job, but
 * for `except`. */
static void send_to_others(struct ps_sched_step *st,
                           const struct ps_sched_job *j,
                           const struct ps_sched_key *k, uint32_t except)
{
    for (uint32_t i = 0; i < j->slot_count; i++) {
        if (i != except &&
            (k == NULL || j->store.was_loaded || ps_bits_get(&k->openers, i))) {
            send_to_slot(st, j, k, i);
        }
    }
}

/* ------------------------------------------------------------------- keys */

void ps_sched_key_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j,
                                     struct ps_sched_key *k, uint32_t slot,
                                     const char *text)
{
    if (begin_disagreement(&k->disagreement, j->slot_count, slot, text)) {
        record(st, j, text);
        send_to_others(st, j, k, slot);
    }
}

void ps_sched_key_disagreement_opened(struct ps_sched_step *st,
                                      const struct ps_sched_job *j,
                                      struct ps_sched_key *k, uint32_t slot)
{
    if (remove_refused(k->disagreement, slot)) {
        send_to_others(st, j, k, slot);
    } else if (k->disagreement != NULL && k->disagreement->refused.count > 0) {
        send_to_slot(st, j, k, slot);
    }
}

/* Returns false if the agent has sent a newer message: links keep no order. */
static bool is_newest_report(struct ps_sched_disagreement *d, uint32_t slot,
                             uint64_t incarnation, uint32_t number)
{
    struct ps_sched_agent_report *r;

    if (d->reports == NULL) {
        d->reports = ps_calloc(d->refused.size, sizeof(*d->reports));
    }
    r = &d->reports[slot];
    if (r->incarnation == incarnation && number <= r->number) {
        return false;
    }
    *r = (struct ps_sched_agent_report){incarnation, number};
    return true;
}

void ps_sched_on_disagreement(struct ps_sched_step *st, struct ps_member *agent,
                              const struct ps_msg *msg)
{
    const struct ps_msg_disagreement *m = &msg->disagreement;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    const char *text = ps_str_or_empty(m->text);
    struct ps_sched_key *k;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (ps_sched_job_check_agent(st->s, j, m->gen, agent, &why) != 0) {
        return;
    }
    const uint32_t slot = ps_sched_job_slot_of(j, agent->node);

    k = ps_sched_job_find_key(j, m->kind, ps_str_or_empty(m->name));
    if (k == NULL || slot >= j->slot_count) {
        return; /* The key was refused for all. */
    }
    if (!is_newest_report(get_disagreement(&k->disagreement, j->slot_count),
                          slot, agent->incarnation, m->number)) {
        return;
    }
    if (*text == '\0') {
        ps_sched_key_disagreement_opened(st, j, k, slot);
        return;
    }
    ps_str_add_visible(&why, text);
    ps_sched_key_disagreement_begin(st, j, k, slot, why.data);
}

/* -------------------------------------------------------------------- job */

void ps_sched_job_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j, uint32_t rank,
                                     const char *text)
{
    if (begin_disagreement(&j->workers.disagreement, j->opt.num_workers, rank,
                           text)) {
        record(st, j, text);
        send_to_others(st, j, NULL, j->slot_count);
    }
}

void ps_sched_job_disagreement_end(struct ps_sched_step *st,
                                   const struct ps_sched_job *j, uint32_t rank)
{
    if (remove_refused(j->workers.disagreement, rank)) {
        send_to_others(st, j, NULL, j->slot_count);
    }
}
