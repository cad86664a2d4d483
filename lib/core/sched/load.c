/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the file at the start of the scheduler (store.h). Each row is checked
 * against those before it, so that a file that somebody changed, or that was cut
 * off, ends the start with a reason and nothing else. Members are SUSPECT with a
 * grace, jobs are in the phase that they had, and what members offer on their
 * fresh links is missing: links, barriers, openers, sums of norms. */
#include "core/sched/store.h"

#include "base/alloc.h"
#include "base/name_hash.h"
#include "core/part/fair.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/place/place.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <string.h>

/* Versions of job_state begin as many above that of the file: above those that
 * processes have sent that wrote a newer file, which then shows (rule G5). */
#define VERSION_STEP 65536u

struct ps_sched_load {
    struct ps_sched *s;
    struct ps_sched_step st;
    struct ps_effects fx; /* Stays empty. */
    uint64_t id;          /* Of the store; 0: no row yet. */
};

struct ps_sched_load *ps_sched_load_begin(struct ps_sched *s, ps_time now)
{
    struct ps_sched_load *l = ps_calloc(1, sizeof(*l));

    l->s = s;
    ps_effects_init(&l->fx);
    l->st = (struct ps_sched_step){.s = s, .now = now, .fx = &l->fx};
    return l;
}

static int refuse(struct ps_str *why, const char *text)
{
    ps_str_add(why, text);
    return PS_E_PROTO;
}

/* ----------------------------------------------------------------- members */

static int load_meta(struct ps_sched_load *l, const struct ps_msg_row_meta *m,
                     struct ps_str *why)
{
    if (m->layout != PS_SCHED_STORE_LAYOUT) {
        ps_str_addf(why,
                    "it has layout %u, and this psched reads layout %u: run "
                    "the psched that wrote it, or begin with another file",
                    m->layout, PS_SCHED_STORE_LAYOUT);
        return PS_E_VERSION;
    }
    if (strcmp(ps_str_or_empty(m->cluster), l->s->opt.cluster) != 0) {
        ps_str_add(why, "it is of cluster '");
        ps_str_add_visible(why, ps_str_or_empty(m->cluster));
        ps_str_addf(why, "', not of '%s'", l->s->opt.cluster);
        return PS_E_MISMATCH;
    }
    if (m->store == 0) {
        return refuse(why, "it has no number");
    }
    l->id = m->store;
    l->s->epoch = m->epoch;
    return 0;
}

static int load_member(struct ps_sched_load *l,
                       const struct ps_sched_row_key *key,
                       const struct ps_msg_row_member *m, struct ps_str *why)
{
    struct ps_members *t = &l->s->members;
    struct ps_member *member;

    if (m->node == 0 || m->node != key->a || m->instance == 0 ||
        (m->role != PS_ROLE_SERVER && m->role != PS_ROLE_AGENT) ||
        m->replaced_count > PS_MEMBER_REPLACED_MAX) {
        return refuse(why, "it is of no member");
    }
    if (!ps_str_is_name(m->name, PS_NAME_MAX) ||
        ps_members_find(t, (enum ps_role)m->role, m->name) != NULL ||
        t->count >= PS_MEMBERS_MAX) {
        return refuse(why, "the member's name is not valid, or another has it");
    }
    member = ps_members_restore(t, m);
    ps_sched_lease_restore(member, l->st.now);
    member->forget_at = m->gone
                            ? ps_time_add(l->st.now, PS_MEMBER_GONE_RETENTION)
                            : PS_TIME_NEVER;
    return 0;
}

static int load_hello(struct ps_sched_load *l,
                      const struct ps_sched_row_key *key,
                      const struct ps_msg *msg, struct ps_str *why)
{
    const struct ps_msg_hello *h = &msg->hello;
    struct ps_member *m = key->a <= UINT32_MAX
                              ? ps_members_get(&l->s->members, (uint32_t)key->a)
                              : NULL;

    if (m == NULL || m->hello != NULL || h->role != m->role ||
        h->instance != m->instance || strcmp(h->name, m->name) != 0) {
        return refuse(why, "it is of another member");
    }
    m->hello = ps_msg_dup(msg);
    ps_str_copy(m->address, sizeof(m->address), ps_str_or_empty(h->address));
    m->memory_limit = h->memory_limit;
    return 0;
}

static struct ps_member *find_member(const struct ps_sched_load *l,
                                     uint32_t node, enum ps_role role)
{
    struct ps_member *m = ps_members_get(&l->s->members, node);

    return m != NULL && m->role == role && m->hello != NULL ? m : NULL;
}

/* -------------------------------------------------------------------- jobs */

static int load_open(struct ps_sched_load *l,
                     const struct ps_sched_row_key *key,
                     const struct ps_msg_job_open *m, struct ps_str *why)
{
    struct ps_sched *s = l->s;
    struct ps_sched_job *j;
    int rc = ps_sched_check_job_open(m, why);

    if (rc != 0) {
        return rc;
    }
    if (key->a == 0 || m->start_timeout_ns == 0 ||
        ps_map_count(s->jobs) >= PS_JOBS_MAX ||
        ps_sched_find_job(s, key->a) != NULL) {
        return refuse(why, "there are too many jobs, or two of one number");
    }
    j = ps_sched_job_new(key->a, ps_name_hash_slot(s->opt.seed, key->a, 0), m,
                         l->st.now);
    ps_sched_account_open_job(s, j);
    ps_map_put(s->jobs, j->gen, j);
    j->store.was_loaded = true;
    if (s->last_gen < j->gen) {
        s->last_gen = j->gen;
    }
    return 0;
}

static int load_slots(struct ps_sched_load *l, struct ps_sched_job *j,
                      const struct ps_msg_job_state *m, struct ps_str *why)
{
    if (m->slots_count == 0 || m->slots_count > j->opt.num_workers) {
        return refuse(why, "the job has no slots, or more than workers");
    }
    j->slots = ps_calloc(m->slots_count, sizeof(*j->slots));
    for (uint32_t i = 0; i < m->slots_count; i++) {
        const struct ps_rec_slot *r = &m->slots[i];
        struct ps_sched_slot *slot = &j->slots[i];

        if (find_member(l, r->node, PS_ROLE_AGENT) == NULL ||
            ps_sched_job_slot_of(j, r->node) < j->slot_count ||
            !ps_str_is_name(r->name, PS_NAME_MAX)) {
            return refuse(why, "a slot of the job is of no agent");
        }
        *slot = (struct ps_sched_slot){.agent_node = r->node,
                                       .incarnation = r->incarnation,
                                       .instance = r->instance,
                                       .first_unsent_key = UINT32_MAX};
        ps_str_copy(slot->agent_name, sizeof(slot->agent_name), r->name);
        j->slot_count++;
    }
    return 0;
}

static int load_places(struct ps_sched_load *l, struct ps_sched_job *j,
                       const struct ps_msg_job_state *m, struct ps_str *why)
{
    for (uint32_t i = 0; i < m->places_count; i++) {
        const struct ps_rec_place *p = &m->places[i];
        const struct ps_member *server = find_member(l, p->node,
                                                     PS_ROLE_SERVER);
        struct ps_sched_job_server *on;

        if (server == NULL || p->epoch > l->s->epoch ||
            ps_sched_job_server_of(j, p->node) != NULL) {
            return refuse(why, "a server of the job is not there");
        }
        ps_sched_job_add_server(l->s, j, server);
        on = ps_sched_job_server_of(j, p->node);
        on->epoch = p->epoch;
        on->incarnation = p->incarnation;
        on->instance = p->instance;
        on->number = p->number;
        on->backup = p->backup;
        on->backup_instance = p->backup_instance;
        on->is_filled = p->filled;
        if (p->backup != 0 &&
            find_member(l, p->backup, PS_ROLE_SERVER) == NULL) {
            return refuse(why, "the backup of a place is not there");
        }
    }
    /* Each place was made in an epoch of its own, or one at the start with those
     * of the servers, so no number is above the epoch. */
    j->servers.last_number = l->s->epoch;
    return 0;
}

static int load_changes(struct ps_sched_job *j,
                        const struct ps_msg_job_state *m, struct ps_str *why)
{
    int rc = ps_tunings_check(m->tunings, m->tunings_count, why);

    if (rc != 0) {
        return rc;
    }
    ps_tunings_set(&j->optimizer.tunings, m->tunings, m->tunings_count);
    for (uint32_t i = 0; i < m->changes_count; i++) {
        struct ps_rec_change c = m->changes[i];

        rc = i < PS_CHANGES_MAX
                 ? ps_optim_check_change(ps_str_or_empty(m->optimizer), &c,
                                         &c.name, why)
                 : PS_E_TOOBIG;
        if (rc != 0) {
            return rc;
        }
        ps_changes_add(&j->optimizer.changes, &c);
    }
    return 0;
}

static int load_state(struct ps_sched_load *l, struct ps_sched_job *j,
                      const struct ps_msg_job_state *m, struct ps_str *why)
{
    int rc;

    if (j->slot_count > 0 || m->gen != j->gen ||
        m->num_workers != j->opt.num_workers || m->version == UINT32_MAX ||
        !ps_sched_job_restore_phase(j, (enum ps_job_phase)m->phase)) {
        return refuse(why, "it is not the state of a job that has started");
    }
    rc = load_slots(l, j, m, why);
    if (rc == 0) {
        rc = load_places(l, j, m, why);
    }
    if (rc != 0) {
        return rc;
    }
    j->version = m->version;
    j->weight = ps_fair_weight(m->weight);
    j->observed.profile.mode = m->profile_mode;
    j->keys.were_rebalanced = m->was_rebalanced;
    j->observed.profile.number = m->profile_number;
    ps_str_copy(j->reason, sizeof(j->reason), ps_str_or_empty(m->reason));
    return load_changes(j, m, why);
}

static int load_job(struct ps_sched_load *l, struct ps_sched_job *j,
                    const struct ps_msg_row_job *m, struct ps_str *why)
{
    const uint64_t wall = ps_facts_wall_ns(&l->s->opt.facts, l->st.now);
    struct ps_sched_job_servers *on = &j->servers;

    if (on->removed_count + j->agent_count > 0) {
        return refuse(why, "the job has two of them");
    }
    for (uint32_t i = 0; i < m->agents_count; i++) {
        if (!ps_sched_job_add_agent(j, m->agents[i])) {
            return refuse(why, "the job has too many agents");
        }
    }
    for (uint32_t i = 0; i < m->awaited_count; i++) {
        struct ps_sched_job_server *server = ps_sched_job_server_of(
            j, m->awaited[i].node);

        if (server == NULL) {
            return refuse(why, "a server of the job is not there");
        }
        server->lost_at = l->st.now;
        server->return_by = ps_time_add(l->st.now, l->s->opt.server_return);
        ps_str_copy(server->lost_why, sizeof(server->lost_why),
                    ps_str_or_empty(m->awaited[i].why));
    }
    on->removed = ps_alloc((m->removed_count + 1u) * sizeof(*on->removed));
    for (uint32_t i = 0; i < m->removed_count; i++) {
        on->removed[on->removed_count++] = m->removed[i];
    }
    if (m->begun_ns != 0 && m->begun_ns < wall) {
        j->observed.created_at = wall - m->begun_ns < l->st.now
                                     ? l->st.now - (wall - m->begun_ns)
                                     : 0;
    }
    return 0;
}

static int load_rank(struct ps_sched_job *j, uint64_t rank,
                     const struct ps_msg_row_rank *m, ps_time now,
                     struct ps_str *why)
{
    struct ps_sched_worker w = {.requested_rank = (int32_t)rank,
                                .worker_id = m->worker,
                                .agent_incarnation = m->agent_incarnation,
                                .agent_instance = m->agent_instance,
                                .token = m->token,
                                .rounds_unknown = m->rounds_unknown,
                                .slot = m->slot,
                                .local_rank = m->local_rank,
                                .incarnation = m->incarnation};

    if (rank != j->workers.count || rank >= j->opt.num_workers ||
        m->slot >= j->slot_count || m->local_rank != j->slots[m->slot].ranks ||
        m->state == PS_RANK_STATE_ABSENT) {
        return refuse(why, "the job has no such rank");
    }
    w.agent_node = j->slots[m->slot].agent_node;
    ps_str_copy(w.agent_name, sizeof(w.agent_name),
                j->slots[m->slot].agent_name);
    ps_str_copy(w.host, sizeof(w.host),
                ps_str_is_name(m->host, PS_NAME_MAX) ? m->host : w.agent_name);
    j->slots[m->slot].ranks++;
    ps_sched_job_restore_worker(j, &w, (enum ps_rank_state)m->state, now);
    return 0;
}

static int load_ended(struct ps_sched_load *l,
                      const struct ps_sched_row_key *key,
                      const struct ps_msg *msg, struct ps_str *why)
{
    struct ps_sched_history *h = &l->s->history;
    const uint64_t wall = ps_sched_wall_seconds(&l->st);
    const ps_time age = key->b < wall &&
                                wall - key->b < PS_TIME_NEVER / PS_SECONDS(1)
                            ? PS_SECONDS(wall - key->b)
                            : 0;

    if (h->ended_count > 0 && key->a != h->ended_count) {
        return refuse(why, "jobs that ended are missing");
    }
    ps_sched_history_restore(h, key->a, msg,
                             age < l->st.now ? l->st.now - age : 0);
    return 0;
}

/* -------------------------------------------------------------------- rows */

static int load_of_job(struct ps_sched_load *l,
                       const struct ps_sched_row_key *key,
                       const struct ps_msg *msg, const struct ps_slice *payload,
                       struct ps_str *why)
{
    struct ps_sched_job *j = ps_sched_find_job(l->s, key->a);

    if (j == NULL || (key->kind != PS_SCHED_ROW_STATE && j->slot_count == 0)) {
        return refuse(why, "there is no such job");
    }
    switch (key->kind) {
    case PS_SCHED_ROW_STATE:
        return load_state(l, j, &msg->job_state, why);
    case PS_SCHED_ROW_JOB:
        return load_job(l, j, &msg->row_job, why);
    case PS_SCHED_ROW_OPTIMIZER:
    case PS_SCHED_ROW_COMPRESSION:
        return ps_sched_declaration_restore(j, msg, why);
    case PS_SCHED_ROW_RANK:
        return load_rank(j, key->b, &msg->row_rank, l->st.now, why);
    default:
        return ps_sched_key_restore(l->s, j, key->b, &msg->row_key, payload,
                                    why);
    }
}

int ps_sched_load_row(struct ps_sched_load *l,
                      const struct ps_sched_row_key *key,
                      const struct ps_msg *msg, const struct ps_slice *payload,
                      struct ps_str *why)
{
    if (msg->code != ps_sched_row_code(key->kind)) {
        return refuse(why, "it has no value of its kind");
    }
    if ((l->id == 0) != (key->kind == PS_SCHED_ROW_META)) {
        return refuse(why, "it does not begin with its number");
    }
    switch (key->kind) {
    case PS_SCHED_ROW_META:
        return load_meta(l, &msg->row_meta, why);
    case PS_SCHED_ROW_MEMBER:
        return load_member(l, key, &msg->row_member, why);
    case PS_SCHED_ROW_HELLO:
        return load_hello(l, key, msg, why);
    case PS_SCHED_ROW_OPEN:
        return load_open(l, key, &msg->job_open, why);
    case PS_SCHED_ROW_ENDED:
        return load_ended(l, key, msg, why);
    default:
        return load_of_job(l, key, msg, payload, why);
    }
}

/* --------------------------------------------------------------------- end */

static ps_time deadline_of(const struct ps_sched_load *l,
                           const struct ps_sched_job *j)
{
    const ps_time grace = ps_time_add(l->st.now, l->s->opt.rejoin_grace);

    switch ((enum ps_job_phase)j->phase) {
    case PS_JOB_PHASE_STARTING:
        return ps_time_add(l->st.now, j->opt.start_timeout_ns);
    case PS_JOB_PHASE_RUNNING:
        return j->workers.live_count == 0 ? grace : PS_TIME_NEVER;
    case PS_JOB_PHASE_FORMING:
    case PS_JOB_PHASE_FAILED:
    case PS_JOB_PHASE_ENDED:
        break;
    }
    return grace;
}

static int end_job(struct ps_sched_load *l, struct ps_sched_job *j,
                   struct ps_str *why)
{
    if (j->slot_count == 0 || j->agent_count < j->slot_count ||
        j->workers.count != j->opt.num_workers) {
        ps_str_addf(why, "rows of job %s are missing", j->name);
        return PS_E_PROTO;
    }
    ps_barrier_init(&j->barrier, j->opt.num_workers);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].state == PS_RANK_STATE_LEFT) {
            (void)ps_barrier_leave(&j->barrier, i, l->st.now);
        }
    }
    j->store.loaded_version = j->version;
    j->version += j->version < UINT32_MAX / 2 ? VERSION_STEP : 1;
    j->store.first_version = j->version;
    j->quota.version = (uint64_t)j->version << 32;
    ps_sched_admission_restore(&l->st, j);
    j->deadline = deadline_of(l, j);
    j->store.awaits_servers = ps_sched_job_is_open(j) && j->servers.count > 0;
    ps_sched_store_job(l->s, j);
    return 0;
}

static int end_members(const struct ps_sched *s, struct ps_str *why)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        if (s->members.sorted[i]->hello == NULL) {
            ps_str_addf(why, "the hello of %s is missing",
                        s->members.sorted[i]->name);
            return PS_E_PROTO;
        }
    }
    return 0;
}

static int end_load(struct ps_sched_load *l, struct ps_str *why)
{
    struct ps_sched *s = l->s;
    struct ps_str text = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);
    int rc = end_members(s, why);

    if (l->id == 0) {
        s->store.id = ps_rng_next(&s->rng) | 1;
        return rc;
    }
    s->store.id = l->id;
    s->store.loaded_epoch = s->epoch;
    PS_MAP_EACH(struct ps_sched_job, j, s->jobs)
    {
        rc = rc == 0 ? end_job(l, j, why) : rc;
    }
    ps_sched_tokens_set_check_time(s, l->st.now);
    ps_str_addf(&text, "from state.file: %u members, %zu jobs",
                s->members.count, ps_map_count(s->jobs));
    ps_sched_event_own(&l->st, "goes on", false, text.data);
    s->deadline = l->st.now; /* The first tick writes what has changed. */
    return rc;
}

int ps_sched_load_end(struct ps_sched_load *l, bool has_all, struct ps_str *why)
{
    int rc = has_all ? end_load(l, why) : 0;

    ps_effects_fini(&l->fx);
    ps_free(l);
    return rc;
}
