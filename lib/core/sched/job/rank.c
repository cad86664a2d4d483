/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and reports of running ranks: barriers, training scalars, and
 * recordings of what servers do. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <string.h>

/* ---------------------------------------------------------------- barriers */

static void send_barrier_done(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_member *agent)
{
    ps_sched_send_msg(
        st, agent,
        &(struct ps_msg){
            .code = PS_MSG_BARRIER_DONE,
            .barrier_done = {.gen = j->gen, .number = j->barrier.last_open},
        });
}

void ps_sched_barrier_notify(struct ps_sched_step *st, struct ps_sched_job *j)
{
    ps_effects_log_for(st->fx, &j->account, PS_LOG_DEBUG,
                       "job %s gen %" PRIu64 " barrier %" PRIu64 " open",
                       j->name, j->gen, j->barrier.last_open);
    ps_trace_add(st->s->opt.trace,
                 &(struct ps_trace_entry){.begun_at = st->now,
                                          .ended_at = st->now,
                                          .gen = j->gen,
                                          .round = j->barrier.last_open,
                                          .key = UINT32_MAX,
                                          .kind = PS_TRACE_KIND_BARRIER});
    for (uint32_t i = 0; i < j->slot_count; i++) {
        send_barrier_done(
            st, j, ps_members_get(&st->s->members, j->slots[i].agent_node));
    }
}

void ps_sched_on_barrier_enter(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg *msg)
{
    const struct ps_msg_barrier_enter *m = &msg->barrier_enter;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    bool opens = false;

    if (j == NULL) {
        ps_sched_job_send_ended(st, agent, m->gen, UINT32_MAX - 1);
        return;
    }
    if (!ps_sched_job_has_started(j) || !ps_sched_job_is_open(j) ||
        m->number == 0 || m->number >= PS_BARRIER_LEFT) {
        return; /* Agents of a failed job are notified anyway. */
    }
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        uint32_t rank = m->ranks[i];

        if (rank < j->opt.num_workers &&
            j->workers.list[rank].agent_node == agent->node) {
            opens |= ps_barrier_enter(&j->barrier, rank, m->number, st->now);
        }
    }
    if (opens) {
        ps_sched_barrier_notify(st, j);
    } else if (m->number <= j->barrier.last_open) {
        send_barrier_done(st, j, agent);
    }
}

/* ----------------------------------------------------------------- scalars */

/* Training scalars that ranks report through their agents. An agent sends a
 * report only after the answer to the one before, so the last value of a rank
 * is that of the last report. */

/* Answer to a report. */
struct answer {
    struct ps_rec_scalar_name refused[PS_SCALARS_MAX];
    uint32_t refused_count;
    char text[PS_TEXT_MAX + 1];
};

/* Adds a name that is refused. The names of a report are in order, and an agent
 * has at most PS_SCALARS_MAX. */
static void refuse_name(struct answer *a, const char *name)
{
    if (a->refused_count == PS_SCALARS_MAX ||
        (a->refused_count > 0 &&
         strcmp(a->refused[a->refused_count - 1].name, name) == 0)) {
        return;
    }
    a->refused[a->refused_count++].name = name;
}

static void accept_scalar(struct ps_sched_step *st, struct ps_sched_job *j,
                          const struct ps_rec_rank_scalar *r, struct answer *a)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (ps_sched_scalars_set(&j->observed.scalars, &j->account,
                             j->opt.num_workers, r, st->now, &why) != 0) {
        refuse_name(a, r->name);
        ps_str_copy(a->text, sizeof(a->text), text);
    }
}

void ps_sched_on_report(struct ps_sched_step *st, struct ps_member *agent,
                        const struct ps_msg *msg)
{
    const struct ps_msg_report *m = &msg->report;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct answer a = {.refused_count = 0};

    if (j == NULL) {
        ps_sched_job_send_ended(st, agent, m->gen, UINT32_MAX - 1);
        return;
    }
    if (!ps_sched_job_has_started(j) || !ps_sched_job_is_open(j)) {
        return; /* Agents of a failed job are notified anyway. */
    }
    for (uint32_t i = 0; i < m->scalars_count; i++) {
        const struct ps_rec_rank_scalar *r = &m->scalars[i];

        if (r->rank < j->opt.num_workers &&
            j->workers.list[r->rank].agent_node == agent->node) {
            accept_scalar(st, j, r, &a);
        }
    }
    ps_sched_send_msg(
        st, agent,
        &(struct ps_msg){.code = PS_MSG_REPORT_DONE,
                         .report_done = {.gen = m->gen,
                                         .request = m->request,
                                         .refused = a.refused,
                                         .refused_count = a.refused_count,
                                         .text = a.text}});
}

/* -------------------------------------------------------------- recordings */

/* An agent that asks for the recording of a server gets it through the
 * scheduler, because it has no link to a server that owns none of its keys. */

/* Requests of one job that servers have not answered; further ones are
 * refused. */
#define READS_MAX 64u

static struct ps_sched_profile_read *
find_read(struct ps_sched_job *j, uint32_t agent_node, uint64_t request)
{
    for (uint32_t i = 0; i < j->observed.profile.read_count; i++) {
        struct ps_sched_profile_read *r = &j->observed.profile.reads[i];

        if (r->message.agent == agent_node && r->message.request == request) {
            return r;
        }
    }
    return NULL;
}

static void remove_read(struct ps_sched_job *j, struct ps_sched_profile_read *r)
{
    *r = j->observed.profile.reads[--j->observed.profile.read_count];
}

/* Requests of agents that are gone. */
static void remove_stale_reads(struct ps_sched_step *st, struct ps_sched_job *j)
{
    for (uint32_t i = j->observed.profile.read_count; i-- > 0;) {
        struct ps_sched_profile_read *r = &j->observed.profile.reads[i];

        if (ps_members_get(&st->s->members, r->message.agent) == NULL) {
            remove_read(j, r);
        }
    }
}

/* Notes the request. 0, or a PS_E_*. */
static int add_read(struct ps_sched_step *st, struct ps_sched_job *j,
                    const struct ps_sched_profile_read *new, struct ps_str *why)
{
    struct ps_sched_profile *p = &j->observed.profile;

    if (find_read(j, new->message.agent, new->message.request) != NULL) {
        return 0;
    }
    remove_stale_reads(st, j);
    if (p->read_count == READS_MAX) {
        ps_str_add(why, "too many requests for recordings wait for servers");
        return PS_E_FULL;
    }
    if (p->reads == NULL) {
        p->reads = ps_calloc(READS_MAX, sizeof(*p->reads));
    }
    p->reads[p->read_count++] = *new;
    return 0;
}

static void send_get(struct ps_sched_step *st,
                     const struct ps_sched_profile_read *r)
{
    ps_sched_send_msg(st, ps_members_get(&st->s->members, r->server_node),
                      &(struct ps_msg){.code = PS_MSG_PROFILE_GET,
                                       .profile_get = r->message});
}

static int forward_get(struct ps_sched_step *st, struct ps_member *agent,
                       struct ps_sched_job *j,
                       const struct ps_msg_profile_get *m, struct ps_str *why)
{
    struct ps_sched_profile_read r = {.message = *m};

    if (m->server >= j->servers.count) {
        ps_str_addf(why, "job %s has %u servers, and none of rank %u", j->name,
                    j->servers.count, m->server);
        return PS_E_NOENT;
    }
    r.server_node = j->servers.list[m->server].node;
    r.message.agent = agent->node;
    int rc = add_read(st, j, &r, why);

    if (rc == 0) {
        send_get(st, &r);
    }
    return rc;
}

void ps_sched_profile_resend(struct ps_sched_step *st, struct ps_sched_job *j,
                             const struct ps_member *server)
{
    for (uint32_t i = 0; i < j->observed.profile.read_count; i++) {
        if (j->observed.profile.reads[i].server_node == server->node) {
            send_get(st, &j->observed.profile.reads[i]);
        }
    }
}

void ps_sched_on_profile_get(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg *msg)
{
    const struct ps_msg_profile_get *m = &msg->profile_get;
    struct ps_sched_job *j = ps_sched_optimizer_find_job(st, agent, m->gen,
                                                         m->request);
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (j == NULL) {
        return;
    }
    ps_str_init(&why, text, sizeof(text));
    int rc = forward_get(st, agent, j, m, &why);

    if (rc != 0) {
        ps_sched_optimizer_done(st, agent, m->gen, m->request, rc, text);
    }
}

int ps_sched_profile_check_answer(const struct ps_sched *s,
                                  const struct ps_member *server,
                                  const struct ps_msg *msg)
{
    const struct ps_msg_profile_events *m = &msg->profile_events;
    struct ps_sched_job *j = ps_sched_find_job(s, m->gen);
    const struct ps_sched_profile_read *r = j != NULL ? find_read(j, m->agent,
                                                                  m->request)
                                                      : NULL;

    if (r == NULL) {
        return PS_E_NOENT;
    }
    return r->server_node == server->node &&
                   strcmp(ps_sched_text_or_empty(m->server), server->name) == 0
               ? 0
               : PS_E_PERM;
}

void ps_sched_on_profile_events(struct ps_sched_step *st,
                                struct ps_member *server,
                                const struct ps_msg *msg)
{
    const struct ps_msg_profile_events *m = &msg->profile_events;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_profile_read *r = j != NULL
                                          ? find_read(j, m->agent, m->request)
                                          : NULL;

    if (r == NULL || r->server_node != server->node) {
        return; /* Answered before, or nobody asks. */
    }
    remove_read(j, r);
    ps_sched_send_msg(
        st, ps_members_get(&st->s->members, m->agent),
        &(struct ps_msg){.code = PS_MSG_PROFILE_EVENTS, .profile_events = *m});
}

void ps_sched_profile_server_lost(struct ps_sched_step *st,
                                  struct ps_sched_job *j, uint32_t node)
{
    for (uint32_t i = j->observed.profile.read_count; i-- > 0;) {
        const struct ps_sched_profile_read r = j->observed.profile.reads[i];
        struct ps_member *agent = ps_members_get(&st->s->members,
                                                 r.message.agent);

        if (r.server_node != node) {
            continue;
        }
        remove_read(j, &j->observed.profile.reads[i]);
        if (agent != NULL) {
            ps_sched_optimizer_done(st, agent, j->gen, r.message.request,
                                    PS_E_UNREACH,
                                    "the server was lost, and its recording "
                                    "with it");
        }
    }
}
