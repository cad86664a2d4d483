/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and reports of running ranks: barriers, training scalars, and reads of
 * what members have recorded. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <string.h>

/* ---------------------------------------------------------------- barriers */

void ps_sched_barrier_send_done(struct ps_sched_step *st,
                                const struct ps_sched_job *j,
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
        ps_sched_barrier_send_done(
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
        if (ps_sched_job_is_rank_at(j, m->ranks[i], agent->node)) {
            opens |= ps_barrier_enter(&j->barrier, m->ranks[i], m->number,
                                      st->now);
        }
    }
    for (uint32_t i = 0;
         m->is_open && j->store.was_loaded && i < j->workers.count; i++) {
        /* Rule B2, of a barrier of the process before this one. */
        opens |= ps_barrier_enter(&j->barrier, i, m->number, st->now);
    }
    if (opens) {
        ps_sched_barrier_notify(st, j);
    } else if (m->number <= j->barrier.last_open) {
        ps_sched_barrier_send_done(st, j, agent);
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
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (ps_sched_scalars_set(&j->observed.scalars, &j->account,
                             j->opt.num_workers, r, st->now, &why) != 0) {
        refuse_name(a, r->name);
        ps_str_copy(a->text, sizeof(a->text), why.data);
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

        if (ps_sched_job_is_rank_at(j, r->rank, agent->node)) {
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

/* ------------------------------------------------------------------ traces */

/* Entries of the traces of members. Tools ask for those of all members, and
 * agents for recordings of servers; they get them through the scheduler, because
 * they have no link to the member. The answer gets the times of the scheduler's
 * clock at which the member was asked and answered: a tool estimates from them
 * how far the member's clock is from the scheduler's. A member answers for one
 * job, so a tool that may read of one job sees nothing of others. */

/* Limit on the silence of a member that a tool asks. */
#define ANSWER_TIMEOUT PS_SECONDS(2)
/* Requests of agents of one job that servers have not answered; further ones are
 * refused. */
#define READS_MAX      64u

struct trace_read {
    /* Of a tool; agents wait for as long as the server is there. */
    struct ps_sched_timer timer;
    struct ps_msg_trace_get message; /* To the member. */
    uint32_t member;                 /* Its node. */
    ps_conn_id conn;                 /* Of the tool; 0: an agent asks. */
    uint32_t agent;                  /* Its node. */
    uint64_t request;                /* Its number at the agent. */
    ps_time asked_at;
};

static void send_get(struct ps_sched_step *st, const struct trace_read *r)
{
    ps_sched_send_msg(
        st, ps_members_get(&st->s->members, r->member),
        &(struct ps_msg){.code = PS_MSG_TRACE_GET, .trace_get = r->message});
}

/* Returns the number of the request to the member. */
static uint64_t begin_read(struct ps_sched_step *st,
                           const struct trace_read *new)
{
    struct trace_read *r = ps_alloc(sizeof(*r));

    *r = *new;
    r->message.request = ++st->s->last_collect_id;
    r->asked_at = st->now;
    ps_list_push_back(&st->s->trace_reads, &r->timer.node);
    send_get(st, r);
    return r->message.request;
}

static struct trace_read *find_read(const struct ps_sched *s, uint64_t number)
{
    PS_LIST_EACH_OF(struct trace_read, r, timer.node, &s->trace_reads)
    {
        if (r->message.request == number) {
            return r;
        }
    }
    return NULL;
}

static void read_free(struct trace_read *r)
{
    ps_list_remove(&r->timer.node);
    ps_free(r);
}

/* Ends a request whose answer was passed on (0), or that gets none. */
static void end_read(struct ps_sched_step *st, struct trace_read *r, int rc,
                     const char *text)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, r->conn);

    if (r->conn == 0 && rc != 0) {
        ps_sched_optimizer_done(st, ps_members_get(&st->s->members, r->agent),
                                r->message.gen, r->request, rc, text);
    } else if (c != NULL) {
        c->trace_read = 0;
        ps_sched_conn_end_query(st, c, rc, text);
    }
    read_free(r);
}

/* States how many members the job has, and when the entries were asked for and
 * came. */
static void describe_entries(struct ps_msg_trace_entries *e,
                             const struct ps_sched_job *j, ps_time asked_at,
                             ps_time now)
{
    e->servers = j != NULL ? j->servers.count : 0;
    e->agents = j != NULL && ps_sched_job_has_started(j) ? j->slot_count : 0;
    e->asked_ns = asked_at;
    e->answered_ns = now;
}

/* Sends the entries of this scheduler. */
static void send_own(struct ps_sched_step *st, struct ps_sched_conn *c,
                     const struct ps_sched_job *j,
                     const struct ps_msg_trace_get *m)
{
    struct ps_rec_trace_entry *list = ps_calloc(PS_TRACE_READ_MAX,
                                                sizeof(*list));
    struct ps_msg msg = {.code = PS_MSG_TRACE_ENTRIES};

    ps_trace_read(st->s->opt.trace,
                  &(struct ps_msg_trace_get){.gen = j->gen, .first = m->first},
                  0, st->now, list, &msg.trace_entries);
    msg.trace_entries.role = PS_ROLE_SCHED;
    msg.trace_entries.name = st->s->opt.name;
    describe_entries(&msg.trace_entries, j, st->now, st->now);
    ps_effects_send_msg(st->fx, c->id, &msg);
    ps_free(list);
    ps_sched_conn_end_query(st, c, 0, NULL);
}

/* Node of a member of the job, by its number in trace_get; 0: there is none. */
static uint32_t node_of(const struct ps_sched_job *j, uint32_t member)
{
    uint32_t i = member - 1;

    if (i < j->servers.count) {
        return j->servers.list[i].node;
    }
    i -= j->servers.count;
    return ps_sched_job_has_started(j) && i < j->slot_count
               ? j->slots[i].agent_node
               : 0;
}

static const char no_such_member[] = "the job has no such member now";

static void add_member(struct ps_str *s, const struct ps_member *m,
                       const char *what)
{
    ps_str_addf(s, "%s %s %s", ps_role_name(m->role), m->name, what);
}

void ps_sched_trace_ask(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const struct ps_sched_job *j,
                        const struct ps_msg_trace_get *m)
{
    const struct ps_member *of;

    if (m->member == 0) {
        send_own(st, c, j, m);
        return;
    }
    of = ps_members_get(&st->s->members, node_of(j, m->member));
    if (of == NULL) {
        ps_sched_conn_end_query(st, c, PS_E_NOENT, no_such_member);
    } else if (!ps_member_is_connected(of)) {
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        add_member(&why, of, "is not connected; the trace lacks it");
        ps_sched_conn_end_query(st, c, PS_E_UNREACH, why.data);
    } else {
        c->trace_read = begin_read(
            st, &(struct trace_read){
                    .message = {.gen = j->gen, .first = m->first},
                    .member = of->node,
                    .conn = c->id,
                    .timer.due_at = ps_time_add(st->now, ANSWER_TIMEOUT)});
    }
}

void ps_sched_on_recording_get(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg *msg)
{
    const struct ps_msg_trace_get *m = &msg->trace_get;
    const struct ps_sched_job *j = ps_sched_optimizer_find_job(
        st, agent, m->gen, m->request);
    struct trace_read *before = NULL;
    uint32_t count = 0;

    if (j == NULL) {
        return;
    }
    PS_LIST_EACH_OF(struct trace_read, r, timer.node, &st->s->trace_reads)
    {
        if (r->agent == agent->node && r->request == m->request) {
            before = r;
        } else {
            count += r->conn == 0 && r->message.gen == j->gen;
        }
    }
    if (before != NULL) { /* Of its link before, or of its process before. */
        read_free(before);
    }
    if (m->member - 1 >= j->servers.count) {
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        ps_str_addf(&why, "job %s has %u servers, and none of rank %u", j->name,
                    j->servers.count, m->member - 1);
        ps_sched_optimizer_done(st, agent, m->gen, m->request, PS_E_NOENT,
                                why.data);
    } else if (count == READS_MAX) {
        ps_sched_optimizer_done(
            st, agent, m->gen, m->request, PS_E_FULL,
            "too many requests for recordings wait for servers");
    } else {
        (void)begin_read(st,
                         &(struct trace_read){.message = {.gen = j->gen,
                                                          .first = m->first,
                                                          .recording = true},
                                              .member = node_of(j, m->member),
                                              .agent = agent->node,
                                              .request = m->request,
                                              .timer.due_at = PS_TIME_NEVER});
    }
}

int ps_sched_trace_check_answer(const struct ps_sched *s,
                                const struct ps_member *member,
                                const struct ps_msg *msg)
{
    const struct trace_read *r = find_read(s, msg->trace_entries.request);

    if (r == NULL) {
        return PS_E_NOENT;
    }
    return r->member == member->node ? 0 : PS_E_PERM;
}

void ps_sched_on_trace_entries(struct ps_sched_step *st,
                               struct ps_member *member,
                               const struct ps_msg *msg)
{
    struct trace_read *r = find_read(st->s, msg->trace_entries.request);
    struct ps_msg out = {.code = PS_MSG_TRACE_ENTRIES,
                         .trace_entries = msg->trace_entries};
    struct ps_msg_trace_entries *e = &out.trace_entries;

    if (r == NULL) {
        return;
    }
    e->gen = r->message.gen;
    e->request = r->request;
    e->role = member->role;
    e->name = member->name;
    e->node = member->node;
    describe_entries(e, ps_sched_find_job(st->s, e->gen), r->asked_at, st->now);
    if (r->conn != 0) {
        ps_effects_send_msg(st->fx, r->conn, &out);
    } else {
        ps_sched_send_msg(st, ps_members_get(&st->s->members, r->agent), &out);
    }
    end_read(st, r, 0, NULL);
}

void ps_sched_trace_resend(struct ps_sched_step *st, const struct ps_member *m)
{
    PS_LIST_EACH_OF(const struct trace_read, r, timer.node, &st->s->trace_reads)
    {
        if (r->member == m->node) {
            send_get(st, r);
        }
    }
}

void ps_sched_trace_lose_server(struct ps_sched_step *st, uint32_t node)
{
    PS_LIST_EACH_SAFE(struct trace_read, r, timer.node, &st->s->trace_reads)
    {
        if (r->member == node && r->conn == 0) {
            end_read(st, r, PS_E_UNREACH,
                     "the server was lost, and its recording with it");
        }
    }
}

void ps_sched_trace_tick(struct ps_sched_step *st)
{
    struct ps_sched_timer *t;

    while ((t = ps_sched_timers_due(&st->s->trace_reads, st->now)) != NULL) {
        struct trace_read *r = PS_CONTAINER(t, struct trace_read, timer);
        const struct ps_member *m = ps_members_get(&st->s->members, r->member);
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        if (m != NULL) {
            add_member(&why, m, "does not answer; the trace lacks it");
        } else {
            ps_str_add(&why, no_such_member);
        }
        end_read(st, r, m != NULL ? PS_E_UNREACH : PS_E_NOENT, why.data);
    }
}

void ps_sched_trace_drop(struct ps_sched *s, ps_conn_id conn, uint64_t gen)
{
    PS_LIST_EACH_SAFE(struct trace_read, r, timer.node, &s->trace_reads)
    {
        if (r->conn == conn && (conn != 0 || r->message.gen == gen)) {
            read_free(r);
        }
    }
}
