/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of agents, of servers with a backup here, and of jobs.
 *
 * A hello is not trusted: the scheduler decides which process is an agent of a
 * job or the owner of a place, and which one is newer. The hello of a process
 * that it has not named yet is held (rule H10). An accepted hello makes the
 * connection carry the session's link, resumed or new.
 *
 * A job lives from its job_state to its end, which frees all that it has. A
 * computation of an ended job keeps its own memory alive; its result is
 * dropped. */
#include "core/server/admission.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/optim/optim.h"
#include "core/server/backup.h"
#include "core/server/copies.h"
#include "core/server/copy.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/move.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -------------------------------------------------------------------- hello */

/* The hello of a process that the scheduler has not named waits this long for
 * that: hello and job_state race when the process was restarted or this server
 * joins its job. */
#define VERIFY_TIMEOUT PS_SECONDS(2)

static void reject_hello(struct ps_server_step *st, struct ps_server_conn *c,
                         int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void reject_hello(struct ps_server_step *st, struct ps_server_conn *c,
                         int rc, const char *fmt, ...)
{
    char text[PS_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = rc, .text = text}});
    ps_server_session_close_bad(st, c, text);
}

/* False: rejected, and the connection is closed. */
static bool check_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m)
{
    const char *cluster = ps_str_or_empty(m->cluster);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX);

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol_least > PS_PROTOCOL) {
        reject_hello(st, c, PS_E_VERSION,
                     "protocol %u to %u offered, this server supports %u to %u",
                     m->protocol_least, m->protocol, PS_PROTOCOL_LEAST,
                     PS_PROTOCOL);
    } else if (strcmp(cluster, st->s->opt.cluster) != 0) {
        struct ps_str theirs = PS_STR_ROOM(PS_NAME_MAX * 4 + 1);

        ps_str_add_escaped(&theirs, cluster, strlen(cluster), PS_NAME_MAX);
        reject_hello(st, c, PS_E_MISMATCH,
                     "this server is of cluster '%s', not of '%s'",
                     st->s->opt.cluster, theirs.data);
    } else if (m->role != PS_ROLE_AGENT && m->role != PS_ROLE_SERVER) {
        reject_hello(st, c, PS_E_PERM,
                     "only agents and servers connect to servers");
    } else if (m->node == 0 || m->incarnation == 0) {
        reject_hello(st, c, PS_E_PERM, "the scheduler must be asked first");
    } else if (!ps_peer_check_hello(&c->identity, st->s->opt.cluster, m,
                                    &why)) {
        reject_hello(st, c, PS_E_PERM, "%s", why.data);
    } else {
        return true;
    }
    return false;
}

static void reject_oldest_unverified(struct ps_server_step *st)
{
    struct ps_server_conn *c = PS_LIST_FIRST(struct ps_server_conn, node,
                                             &st->s->sessions.unverified);

    reject_hello(
        st, c, PS_E_AGAIN,
        "the scheduler has not named node %u with incarnation %llu as an "
        "agent of a job, or a server with a backup, here; try again when it "
        "has",
        c->unverified_hello->hello.node,
        (unsigned long long)c->unverified_hello->hello.incarnation);
}

/* Holds the hello until the scheduler names the agent. */
static void await_verification(struct ps_server_step *st,
                               struct ps_server_conn *c,
                               const struct ps_msg_hello *m)
{
    const struct ps_msg msg = {.code = PS_MSG_HELLO, .hello = *m};

    uint32_t count = 0;

    assert(c->unverified_hello == NULL);
    PS_LIST_EACH(n, &st->s->sessions.unverified)
    {
        count++;
    }
    if (count >= PS_UNVERIFIED_MAX) {
        reject_oldest_unverified(st);
    }
    c->unverified_hello = ps_msg_dup(&msg);
    c->hello_by = ps_time_add(st->now, VERIFY_TIMEOUT);
    ps_list_remove(&c->node);
    ps_list_push_back(&st->s->sessions.unverified, &c->node);
    st->s->sessions.hello_at = ps_time_min(st->s->sessions.hello_at,
                                           c->hello_by);
}

/* True unless the session is that of another certificate (rule H12). */
static bool is_of_session(const struct ps_server_conn *c,
                          const struct ps_server_session *p)
{
    return !ps_peer_has_certificate(&c->identity) ||
           !ps_peer_has_certificate(&p->identity) ||
           ps_peer_is_same(&c->identity, &p->identity);
}

/* Rejects a hello with another name than that of its node (rule H9a). */
static bool check_name(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg_hello *m, const char *name)
{
    const char *theirs = ps_str_or_empty(m->name);
    struct ps_str shown = PS_STR_ROOM(PS_NAME_MAX * 4 + 1);

    if (name[0] == '\0' || strcmp(theirs, name) == 0) {
        return true;
    }
    ps_str_add_escaped(&shown, theirs, strlen(theirs), PS_NAME_MAX);
    reject_hello(st, c, PS_E_PERM, "node %u is '%s', not '%s'", m->node, name,
                 shown.data);
    return false;
}

/* Name by which the scheduler has named this process: as an agent of a job, or as
 * the owner of a place whose backup is here, or of a partition that moves here.
 * NULL: it has not. */
static const char *name_of_peer(const struct ps_server *s,
                                const struct ps_msg_hello *m)
{
    const struct ps_server_slot *slot;

    if (m->role == PS_ROLE_SERVER) {
        return ps_server_backup_owner_of(s, m);
    }
    slot = ps_server_job_slot_of(s, m);
    return slot != NULL ? slot->name : NULL;
}

/* Returns the session for this hello; NULL: rejected or held. A hello is not
 * trusted: its node, incarnation, instance and name must be those of a process
 * that the scheduler has named (rules H9, H9a and O7). */
static struct ps_server_session *obtain_session(struct ps_server_step *st,
                                                struct ps_server_conn *c,
                                                const struct ps_msg_hello *m)
{
    struct ps_server *s = st->s;
    struct ps_server_session *p = ps_map_get(s->sessions.by_node, m->node);
    const char *name;

    if (p != NULL && p->incarnation == m->incarnation &&
        p->instance == m->instance) {
        if (!is_of_session(c, p)) {
            reject_hello(st, c, PS_E_PERM,
                         "its certificate is of '%s', and node %u is '%s'",
                         c->identity.name, p->agent_node, p->identity.name);
            return NULL;
        }
        return check_name(st, c, m, p->name) ? p : NULL;
    }
    name = name_of_peer(s, m);
    if (name == NULL) {
        if (p != NULL && p->incarnation > m->incarnation) {
            reject_hello(st, c, PS_E_STALE, "node %u was restarted since",
                         m->node);
        } else if (p != NULL && p->incarnation == m->incarnation) {
            reject_hello(st, c, PS_E_EXIST, "node %u is another process",
                         m->node);
        } else {
            await_verification(st, c, m);
        }
        return NULL;
    }
    if (!check_name(st, c, m, name)) {
        return NULL;
    }
    if (p != NULL) {
        ps_effects_log(st->fx, PS_LOG_INFO, "node %u was restarted", m->node);
        ps_server_session_close(st, p);
    }
    p = ps_server_session_new(s, m);
    if (p == NULL) {
        reject_hello(st, c, PS_E_FULL, "too many agents and servers");
    }
    return p;
}

/* Drops pulls and batched replies of the agent, whose link began a new session:
 * the agent asks again, and a reply to the old request would be taken for one
 * to a later request. */
static void drop_waits(struct ps_server *s, const struct ps_server_session *p)
{
    PS_MAP_EACH(struct ps_server_job, job, s->jobs.by_gen)
    {
        for (uint32_t i = 0; i < job->slot_count; i++) {
            struct ps_server_slot *slot = &job->slots[i];

            if (slot->agent_node == p->agent_node &&
                slot->incarnation == p->incarnation) {
                ps_server_reply_drop(slot);
                ps_store_remove_slot_pulls(&job->store, i);
            }
        }
    }
}

/* Makes the connection carry the session's link. */
static void attach_conn(struct ps_server_step *st, struct ps_server_conn *c,
                        struct ps_server_session *p,
                        const struct ps_msg_hello *m)
{
    struct ps_server *s = st->s;

    if (p->conn != NULL) {
        ps_server_conn_close(st, p->conn);
    }
    ps_list_remove(&c->node);
    if (!ps_peer_has_certificate(&p->identity)) {
        p->identity = c->identity;
    }
    c->session = p;
    s->sessions.streams += !c->is_by_reference;
    p->conn = c;
    p->heard_at = st->now;

    bool resumed = m->session != 0 && p->session_id == m->session &&
                   ps_link_is_resumable(p->link);
    if (!resumed) {
        p->session_id = m->session;
        ps_server_session_drop_credits(p);
        ps_server_session_drop_replies_all(&p->turns);
        drop_waits(s, p);
    }
    p->turns.unsent = 0; /* Of the earlier connection. */
    ps_effects_log(st->fx, PS_LOG_INFO, "%s node %u incarnation %llu %s",
                   p->is_server ? "server" : "agent", p->agent_node,
                   (unsigned long long)p->incarnation,
                   resumed ? "resumed" : "connected");
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_WELCOME,
            .welcome = {
                .protocol = m->protocol < PS_PROTOCOL ? m->protocol
                                                      : (uint16_t)PS_PROTOCOL,
                .name = s->opt.name,
                .instance = s->opt.instance,
                .node = p->agent_node,
                .incarnation = p->incarnation,
                .resumed = resumed,
                .received = resumed ? ps_link_received(p->link) : 0,
                .kernel_class = p->is_server ? s->opt.kernel_class : 0,
            }});
    ps_link_open(p->link, c->id, resumed, m->received, st->now, st->fx);
    ps_server_session_use(s, p);
    ps_server_session_pump(st, p);
}

void ps_server_on_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m)
{
    struct ps_server_session *p;

    if (!check_hello(st, c, m)) {
        return;
    }
    p = obtain_session(st, c, m);
    if (p != NULL) {
        attach_conn(st, c, p, m);
    }
}

void ps_server_verify_held_hellos(struct ps_server_step *st)
{
    struct ps_list *unverified = &st->s->sessions.unverified;
    struct ps_server_conn *c = PS_LIST_FIRST(struct ps_server_conn, node,
                                             unverified);

    while (c != NULL) {
        if (name_of_peer(st->s, &c->unverified_hello->hello) == NULL) {
            c = PS_LIST_NEXT(struct ps_server_conn, c, node, unverified);
            continue;
        }
        struct ps_msg *msg = c->unverified_hello;

        c->unverified_hello = NULL;
        ps_server_on_hello(st, c, &msg->hello);
        ps_msg_free(msg);
        /* This may have closed other unverified connections of the agent. */
        c = PS_LIST_FIRST(struct ps_server_conn, node, unverified);
    }
}

/* ---------------------------------------------------------- time of a hello */

/* Time limit of the first connection in the list. */
static ps_time first_limit(const struct ps_list *list)
{
    const struct ps_server_conn *c = PS_LIST_FIRST(struct ps_server_conn, node,
                                                   list);

    return c != NULL ? c->hello_by : PS_TIME_NEVER;
}

void ps_server_hello_tick(struct ps_server_step *st)
{
    struct ps_server_sessions *all = &st->s->sessions;

    if (st->now < all->hello_at) {
        return;
    }
    while (first_limit(&all->handshaking) <= st->now) {
        ps_server_session_close_bad(
            st, PS_LIST_FIRST(struct ps_server_conn, node, &all->handshaking),
            "it did not say hello in time");
    }
    while (first_limit(&all->unverified) <= st->now) {
        reject_oldest_unverified(st);
    }
    all->hello_at = ps_time_min(first_limit(&all->handshaking),
                                first_limit(&all->unverified));
}

/* --------------------------------------------------------------------- jobs */

void ps_server_job_init(struct ps_server *s)
{
    s->jobs.by_gen = ps_map_new();
    ps_list_init(&s->jobs.credit_check);
}

static void job_free(struct ps_server *s, struct ps_server_job *job)
{
    PS_MAP_EACH(struct ps_part, part, job->store.parts)
    {
        ps_server_merge_discard(s, job, part);
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        ps_server_reply_drop(&job->slots[i]);
    }
    if (ps_list_linked(&job->node)) {
        ps_list_remove(&job->node);
    }
    ps_fair_deactivate(&s->merges.fair, &job->merge_flow);
    ps_server_targets_free(job);
    ps_server_moves_free(job);
    ps_server_backup_free_all(job);
    ps_store_fini(&job->store);
    ps_map_free(job->norms.waits);
    PS_MAP_EACH(struct ps_msg, m, job->norms.known)
    {
        ps_msg_free(m);
    }
    ps_map_free(job->norms.known);
    ps_tunings_fini(&job->tunings);
    ps_map_remove(s->jobs.by_gen, job->gen);
    ps_pool_share_unref(job->pool_share);
    ps_account_set_used(&job->account, PS_COST_PARTITIONS, 0);
    ps_account_set_used(&job->account, PS_COST_MEMORY, 0);
    ps_account_fini(&job->account);
    ps_free(job->slots);
    ps_free(job->moves.processes);
    ps_free(job);
}

void ps_server_job_fini(struct ps_server *s)
{
    PS_MAP_EACH(struct ps_server_job, job, s->jobs.by_gen)
    {
        job_free(s, job);
    }
    ps_map_free(s->jobs.by_gen);
}

/* True if the job has ended here, as a job_state of this version or of a newer
 * one said: an older one arrives late. A newer one gives the server a part in the
 * job again. */
static bool job_has_ended(const struct ps_server *s, uint64_t gen,
                          uint32_t version)
{
    for (uint32_t i = 0; i < PS_ENDED_JOBS_MAX; i++) {
        if (s->jobs.ended[i].gen == gen &&
            s->jobs.ended[i].version >= version) {
            return true;
        }
    }
    return false;
}

/* Values on their way to the job's agents are not sent again. */
static void drop_unacked_values(struct ps_server_job *job)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = ps_server_slot_session(&job->slots[i]);

        if (p != NULL) {
            ps_server_session_drop_replies(&p->turns, job->gen);
            ps_link_drop_payloads(p->link, job->gen);
        }
    }
}

static void end_job(struct ps_server_step *st, const struct ps_msg_job_state *m)
{
    struct ps_server *s = st->s;
    struct ps_server_job *job = ps_map_get(s->jobs.by_gen, m->gen);

    if (job != NULL && m->version < job->version) {
        return; /* The server has a part in the job again since then. */
    }
    if (!job_has_ended(s, m->gen, m->version)) {
        s->jobs.ended[s->jobs.next_ended].gen = m->gen;
        s->jobs.ended[s->jobs.next_ended].version = m->version;
        s->jobs.next_ended = (s->jobs.next_ended + 1) % PS_ENDED_JOBS_MAX;
    }
    ps_server_kept_drop(s, m->gen);
    if (job != NULL) {
        const char *reason = ps_str_or_empty(m->reason);
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        ps_str_add_escaped(&why, reason, strlen(reason), PS_TEXT_MAX);
        ps_effects_log_for(st->fx, &job->account, PS_LOG_INFO, "job %s %s%s%s",
                           job->name, ps_job_phase_name(m->phase),
                           why.len == 0 ? "" : ": ", why.data);
        drop_unacked_values(job);
        job_free(s, job);
        ps_server_copies_drop_unused_peers(st, false);
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
    job->norms.waits = ps_map_new();
    job->norms.known = ps_map_new();
    ps_list_init(&job->waiting_merges);
    ps_list_init(&job->copies.targets);
    ps_list_init(&job->copies.incoming);
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
    ps_str_copy(slot->name, sizeof(slot->name), ps_str_or_empty(r->name));
    ps_server_reply_drop(slot);
    ps_store_remove_slot_pulls(&slot->job->store, slot->index);
}

static bool has_optimizer(const struct ps_msg_job_state *m)
{
    return m->optimizer != NULL && *m->optimizer != '\0';
}

static bool add_optim_changes(struct ps_optim *o,
                              const struct ps_msg_job_state *m,
                              struct ps_str *why)
{
    for (uint32_t i = 0; i < m->changes_count; i++) {
        struct ps_rec_change c = m->changes[i];

        if (i >= PS_CHANGES_MAX ||
            ps_optim_check_change(m->optimizer, &c, &c.name, why) != 0) {
            return false;
        }
        ps_changes_add(&o->changes, &c);
    }
    return true;
}

/* Reads the declarations. NULL if the state is valid, else the reason to reject
 * it. */
static const char *read_job_state(const struct ps_server *s,
                                  const struct ps_server_job *job,
                                  const struct ps_msg_job_state *m,
                                  struct ps_optim *optim,
                                  struct ps_compression *compression)
{
    struct ps_str why = PS_STR_ROOM(256); /* Not read: the scheduler has it. */

    if (m->slots_count == 0 || m->slots_count > PS_SLOTS_MAX) {
        return "it has no slots, or too many";
    }
    if (job != NULL && job->slot_count != m->slots_count) {
        return "the number of its slots has changed";
    }
    if (job == NULL && ps_map_count(s->jobs.by_gen) >= PS_JOBS_MAX) {
        return "too many jobs";
    }
    if (has_optimizer(m) && ps_optim_parse(m->optimizer, m->params,
                                           m->params_count, optim, &why) != 0) {
        return "its optimizer is not known here";
    }
    if (has_optimizer(m) && !add_optim_changes(optim, m, &why)) {
        return "the changes of its optimizer are invalid";
    }
    if (ps_tunings_check(m->tunings, m->tunings_count, &why) != 0) {
        return "the multipliers of its keys are invalid";
    }
    if (ps_compression_parse(m->compression, m->compression_params,
                             m->compression_params_count, compression,
                             &why) != 0) {
        return "its compression is not known here";
    }
    return NULL;
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
                                           .round = job->newest_version,
                                           .memory = (uint8_t)job->kept.memory,
                                           .epoch = job->kept.epoch}});
}

/* This server's place in the job; NULL: none is stated. */
static const struct ps_rec_place *find_place(const struct ps_server *s,
                                             const struct ps_msg_job_state *m)
{
    for (uint32_t i = 0; i < m->places_count; i++) {
        if (strcmp(ps_str_or_empty(m->places[i].name), s->opt.name) == 0) {
            return &m->places[i];
        }
    }
    return NULL;
}

/* Takes what the process before has left of the job. */
static enum ps_part_memory take_kept(struct ps_server_step *st,
                                     struct ps_server_job *job,
                                     const struct ps_rec_place *place)
{
    if (!ps_server_kept_adopt(st, job, place != NULL ? place->number : 0)) {
        return PS_PART_MEMORY_NEW;
    }
    PS_MAP_EACH(const struct ps_part, part, job->store.parts)
    {
        ps_server_norm_adopt(st, job, part);
    }
    return PS_PART_MEMORY_KEPT;
}

static void set_processes(struct ps_server_job *job,
                          const struct ps_msg_job_state *m)
{
    ps_free(job->moves.processes);
    job->moves.processes = ps_alloc((m->places_count + 1u) *
                                    sizeof(*job->moves.processes));
    job->moves.process_count = m->places_count;
    for (uint32_t i = 0; i < m->places_count; i++) {
        job->moves.processes[i] = (struct ps_server_process){
            .node = m->places[i].node, .instance = m->places[i].instance};
    }
}

void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m)
{
    struct ps_server *s = st->s;
    struct ps_server_job *job = ps_map_get(s->jobs.by_gen, m->gen);
    struct ps_optim optim = {0};
    struct ps_compression compression = {0};

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
    if (job_has_ended(s, m->gen, m->version)) {
        return; /* Sent before the end, arrived after it. */
    }
    if (job != NULL && m->version <= job->version) {
        /* The scheduler may ask again. */
        ps_server_job_send_ready(st, job);
        return;
    }
    const struct ps_rec_place *place = find_place(s, m);

    if (place != NULL && place->instance != s->opt.instance) {
        return; /* For another process of this name (rule E6). */
    }
    const char *why = read_job_state(s, job, m, &optim, &compression);

    if (why != NULL) {
        ps_effects_log(st->fx, PS_LOG_ERROR, "job %llu not taken: %s",
                       (unsigned long long)m->gen, why);
        return;
    }
    if (job == NULL) {
        job = job_new(s, m);
        job->moves.was_rebalanced = m->was_rebalanced;
        job->kept.memory = take_kept(st, job, place);
        if (job->kept.memory == PS_PART_MEMORY_KEPT ||
            m->phase == PS_JOB_PHASE_RUNNING) {
            job->kept.taken_at = st->now;
        }
        ps_effects_log_for(st->fx, &job->account, PS_LOG_INFO,
                           "job %s taken, %u slots", job->name,
                           job->slot_count);
    }
    if (place != NULL && job->version != 0 && place->epoch > job->kept.epoch) {
        job->kept.memory = PS_PART_MEMORY_KEPT; /* The same process. */
    }
    job->version = m->version;
    job->kept.epoch = place != NULL ? place->epoch : 0;
    job->weight = m->weight;
    job->has_optimizer = has_optimizer(m);
    job->optim = optim;
    ps_tunings_set(&job->tunings, m->tunings, m->tunings_count);
    job->compression = compression;
    ps_server_profile_set(job, m->profile_mode, m->profile_number);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        update_slot(&job->slots[i], &m->slots[i]);
    }
    job->may_be_exhausted = true;
    ps_server_credit_mark_job(job);
    job->copies.is_wanted = m->replicas > 1;
    job->moves.has_moved = m->has_moved;
    job->moves.was_rebalanced = m->was_rebalanced;
    set_processes(job, m);
    ps_server_backup_set_places(st, job, m);
    ps_server_job_send_ready(st, job);
    ps_server_verify_held_hellos(st);
}

void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m)
{
    struct ps_server_job *job = ps_map_get(st->s->jobs.by_gen, m->gen);

    if (job != NULL && m->version > job->quota.version) {
        job->quota.version = m->version;
        job->quota.bytes = m->bytes;
        job->quota.round_bytes = m->round_bytes;
    }
}
