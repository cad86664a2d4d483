/* SPDX-License-Identifier: Apache-2.0 */
/* A tool orders a supervisor of pslaunch on the node of one agent. The scheduler
 * states the user: that of the Unix socket, whom the kernel knows, or that of a
 * token with the right launch (rule U9). It starts nothing itself, and the agent
 * decides by its own options whether that user may start processes there. */
#include "core/sched/launch.h"

#include "base/alloc.h"
#include "core/sched/conn.h"
#include "core/sched/inner.h"
#include "core/sched/query.h"
#include "core/sched/rights.h"

#include <string.h>

/* Limit on the time that an agent takes: longer than its supervisor may try to
 * reach pslaunch. */
#define ANSWER_TIMEOUT PS_SECONDS(20)

struct ps_sched_launch {
    uint64_t request;
    uint32_t node;
    ps_time deadline;
};

static void refuse(struct ps_sched_step *st, struct ps_sched_conn *c, int rc,
                   const char *why)
{
    ps_effects_log(st->fx, PS_LOG_WARNING, "launch refused for %s: %s",
                   c->peer_text, why);
    ps_sched_conn_end_query(st, c, rc, why);
}

/* Agent of this name that is connected. NULL: the order was answered with the
 * reason. */
static struct ps_member *find_agent(struct ps_sched_step *st,
                                    struct ps_sched_conn *c, const char *name)
{
    char text[PS_TEXT_MAX + 1];
    bool is_known = false;
    struct ps_str why;

    for (uint32_t i = 0; i < st->s->members.count; i++) {
        struct ps_member *m = st->s->members.sorted[i];

        if (m->role != PS_ROLE_AGENT || strcmp(m->name, name) != 0) {
            continue;
        }
        if (ps_member_is_connected(m)) {
            return m;
        }
        is_known = true;
    }
    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, is_known ? "agent '" : "no agent '");
    ps_str_add_escaped(&why, name, strlen(name), PS_NAME_MAX);
    ps_str_add(&why, is_known ? "' is not connected"
                              : "' is there; psctl nodes lists them");
    refuse(st, c, is_known ? PS_E_UNREACH : PS_E_NOENT, text);
    return NULL;
}

/* Host of a peer "address:port". */
static void host_of_peer(const struct ps_sched_conn *c, char *out, size_t cap)
{
    const char *end = strrchr(c->peer_text, ':');
    const char *from = c->peer_text;

    ps_str_copy(out, cap, "");
    if (c->is_local || end == NULL) {
        return; /* On the scheduler's host. */
    }
    if (*from == '[' && end > from && end[-1] == ']') {
        from++;
        end--;
    }
    if ((size_t)(end - from) < cap) {
        memcpy(out, from, (size_t)(end - from));
        out[end - from] = '\0';
    }
}

static bool is_well_formed(const struct ps_msg_launch_order *m)
{
    return m->port != 0 && m->secret.len == PS_LAUNCH_SECRET_BYTES &&
           ps_str_is_name(ps_sched_text_or_empty(m->job), PS_NAME_MAX);
}

static void pass_order(struct ps_sched_step *st, struct ps_sched_conn *c,
                       struct ps_member *agent, uint32_t uid,
                       const struct ps_msg_launch_order *m)
{
    const char *address = ps_sched_text_or_empty(m->address);
    char host[sizeof(c->peer_text)];

    if (*address == '\0') {
        host_of_peer(c, host, sizeof(host));
        address = host;
    }
    c->launch = ps_calloc(1, sizeof(*c->launch));
    *c->launch = (struct ps_sched_launch){
        .request = ++st->s->last_collect_id,
        .node = agent->node,
        .deadline = ps_time_add(st->now, ANSWER_TIMEOUT)};
    ps_effects_log(st->fx, PS_LOG_NOTICE,
                   "launch of job %s on %s as user %u ordered by %s", m->job,
                   agent->name, uid, c->peer_text);
    ps_sched_send_msg(
        st, agent,
        &(struct ps_msg){.code = PS_MSG_LAUNCH_BEGIN,
                         .launch_begin = {.request = c->launch->request,
                                          .uid = uid,
                                          .job = m->job,
                                          .address = address,
                                          .port = m->port,
                                          .place = m->place,
                                          .secret = m->secret}});
}

void ps_sched_on_launch_order(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_msg_launch_order *m)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_member *agent;
    struct ps_str why;
    uint32_t uid;

    if (ps_sched_query_is_busy(st, c)) {
        return;
    }
    if (!is_well_formed(m)) {
        refuse(st, c, PS_E_INVAL, "malformed launch_order");
        return;
    }
    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, "not allowed: ");
    if (!ps_sched_may_launch(st, c, m->job, &uid, &why)) {
        refuse(st, c, PS_E_PERM, text);
        return;
    }
    agent = find_agent(st, c, ps_sched_text_or_empty(m->node));
    if (agent != NULL) {
        pass_order(st, c, agent, uid, m);
    }
}

/* Connection of the tool that waits for the answer; NULL: none does. */
static struct ps_sched_conn *find_orderer(const struct ps_sched *s,
                                          uint64_t request)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_conn *c;

    while ((c = ps_map_next(s->conns, &cursor)) != NULL) {
        if (c->launch != NULL && c->launch->request == request) {
            return c;
        }
    }
    return NULL;
}

int ps_sched_launch_check_answer(const struct ps_sched *s,
                                 const struct ps_member *member,
                                 const struct ps_msg *msg)
{
    const struct ps_sched_conn *c = find_orderer(s, msg->launch_begun.request);

    if (c == NULL) {
        return PS_E_NOENT;
    }
    return c->launch->node == member->node ? 0 : PS_E_PERM;
}

void ps_sched_on_launch_begun(struct ps_sched_step *st,
                              const struct ps_member *member,
                              const struct ps_msg_launch_begun *m)
{
    struct ps_sched_conn *c = find_orderer(st->s, m->request);

    if (c != NULL && c->launch->node == member->node) {
        ps_sched_launch_drop(c);
        ps_sched_conn_end_query(st, c, m->error, m->text);
    }
}

void ps_sched_launch_tick(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    if (ps_sched_launch_deadline(c) > st->now) {
        return;
    }
    ps_sched_launch_drop(c);
    refuse(st, c, PS_E_UNREACH, "the agent does not answer");
}

ps_time ps_sched_launch_deadline(const struct ps_sched_conn *c)
{
    return c->launch != NULL ? c->launch->deadline : PS_TIME_NEVER;
}

void ps_sched_launch_drop(struct ps_sched_conn *c)
{
    ps_free(c->launch);
    c->launch = NULL;
}
