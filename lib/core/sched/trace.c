/* SPDX-License-Identifier: Apache-2.0 */
/* A tool asks for the entries of one member at a time. A server or agent is
 * asked in turn, and its answer gets the times of the scheduler's clock at which
 * it was asked and answered: the tool estimates from them how far the member's
 * clock is from the scheduler's. A member answers for one job, so a tool that
 * may read of one job sees nothing of others. */
#include "core/sched/trace.h"

#include "base/alloc.h"
#include "core/base/trace_read.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/query.h"
#include "core/sched/token.h"

/* Limit on the silence of a member. */
#define ANSWER_TIMEOUT PS_SECONDS(2)

struct ps_sched_trace_read {
    uint64_t gen;
    uint64_t request;
    uint32_t node;
    ps_time asked_at;
    ps_time deadline;
};

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

static uint32_t count_agents(const struct ps_sched_job *j)
{
    return ps_sched_job_has_started(j) ? j->slot_count : 0;
}

/* Sends the entries of this scheduler. */
static void send_own(struct ps_sched_step *st, struct ps_sched_conn *c,
                     const struct ps_sched_job *j,
                     const struct ps_msg_trace_get *m)
{
    struct ps_rec_trace_entry *list = ps_calloc(PS_TRACE_READ_MAX,
                                                sizeof(*list));
    struct ps_msg msg = {.code = PS_MSG_TRACE_ENTRIES};
    struct ps_msg_trace_entries *e = &msg.trace_entries;

    ps_trace_read(st->s->opt.trace,
                  &(struct ps_msg_trace_get){.gen = j->gen, .first = m->first},
                  st->now, list, e);
    e->role = PS_ROLE_SCHED;
    e->name = st->s->opt.name;
    e->servers = j->servers.count;
    e->agents = count_agents(j);
    e->asked_ns = st->now;
    e->answered_ns = st->now;
    ps_effects_send_msg(st->fx, c->id, &msg);
    ps_free(list);
    ps_sched_conn_end_query(st, c, 0, NULL);
}

static void refuse_member(struct ps_sched_step *st, struct ps_sched_conn *c,
                          const struct ps_member *m, const char *why)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_str_addf(&s, "%s %s %s", ps_role_name(m->role), m->name, why);
    ps_sched_conn_end_query(st, c, PS_E_UNREACH, text);
}

static void ask_member(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_sched_job *j, uint32_t node,
                       uint64_t first)
{
    struct ps_member *m = ps_members_get(&st->s->members, node);

    if (m == NULL) {
        ps_sched_conn_end_query(st, c, PS_E_NOENT,
                                "the job has no such member now");
        return;
    }
    if (!ps_member_is_connected(m)) {
        refuse_member(st, c, m, "is not connected; the trace lacks it");
        return;
    }
    c->trace_read = ps_calloc(1, sizeof(*c->trace_read));
    *c->trace_read = (struct ps_sched_trace_read){
        .gen = j->gen,
        .request = ++st->s->last_collect_id,
        .node = node,
        .asked_at = st->now,
        .deadline = ps_time_add(st->now, ANSWER_TIMEOUT)};
    ps_sched_send_msg(
        st, m,
        &(struct ps_msg){.code = PS_MSG_TRACE_GET,
                         .trace_get = {.gen = j->gen,
                                       .request = c->trace_read->request,
                                       .first = first}});
}

void ps_sched_on_trace_get(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_trace_get *m)
{
    const struct ps_sched_job *j;

    if (ps_sched_query_is_busy(st, c)) {
        return;
    }
    j = ps_sched_query_job(
        st, c,
        (struct ps_sched_job_name){ps_sched_text_or_empty(m->job), m->has_owner,
                                   m->owner},
        PS_TOKEN_RIGHT_READ);
    if (j == NULL) {
        return;
    }
    if (m->member == 0) {
        send_own(st, c, j, m);
    } else {
        ask_member(st, c, j, node_of(j, m->member), m->first);
    }
}

static struct ps_sched_conn *find_asker(const struct ps_sched *s,
                                        uint64_t request)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_conn *c;

    while ((c = ps_map_next(s->conns, &cursor)) != NULL) {
        if (c->trace_read != NULL && c->trace_read->request == request) {
            return c;
        }
    }
    return NULL;
}

int ps_sched_trace_check_answer(const struct ps_sched *s,
                                const struct ps_member *member,
                                const struct ps_msg *msg)
{
    const struct ps_sched_conn *c = find_asker(s, msg->trace_entries.request);

    if (c == NULL) {
        return PS_E_NOENT;
    }
    return c->trace_read->node == member->node ? 0 : PS_E_PERM;
}

void ps_sched_on_trace_entries(struct ps_sched_step *st,
                               const struct ps_member *member,
                               const struct ps_msg *msg)
{
    struct ps_sched_conn *c = find_asker(st->s, msg->trace_entries.request);
    const struct ps_sched_job *j =
        c != NULL ? ps_sched_find_job(st->s, c->trace_read->gen) : NULL;
    struct ps_msg out = {.code = PS_MSG_TRACE_ENTRIES,
                         .trace_entries = msg->trace_entries};
    struct ps_msg_trace_entries *e = &out.trace_entries;

    if (c == NULL) {
        return;
    }
    e->role = member->role;
    e->name = member->name;
    e->node = member->node;
    e->servers = j != NULL ? j->servers.count : 0;
    e->agents = j != NULL ? count_agents(j) : 0;
    e->asked_ns = c->trace_read->asked_at;
    e->answered_ns = st->now;
    ps_effects_send_msg(st->fx, c->id, &out);
    ps_sched_trace_drop(c);
    ps_sched_conn_end_query(st, c, 0, NULL);
}

void ps_sched_trace_tick(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_member *m;

    if (ps_sched_trace_deadline(c) > st->now) {
        return;
    }
    m = ps_members_get(&st->s->members, c->trace_read->node);
    ps_sched_trace_drop(c);
    if (m == NULL) {
        ps_sched_conn_end_query(st, c, PS_E_NOENT,
                                "the job has no such member now");
    } else {
        refuse_member(st, c, m, "does not answer; the trace lacks it");
    }
}

ps_time ps_sched_trace_deadline(const struct ps_sched_conn *c)
{
    return c->trace_read != NULL ? c->trace_read->deadline : PS_TIME_NEVER;
}

void ps_sched_trace_drop(struct ps_sched_conn *c)
{
    ps_free(c->trace_read);
    c->trace_read = NULL;
}
