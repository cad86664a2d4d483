/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisors that this node starts for users. The scheduler has checked which
 * user orders; whether this user may start processes here is decided from the
 * agent's own options alone (launch.allow, launch.users), so that no other
 * member of the cluster can widen it. A scheduler that has not proved itself
 * could be any process that got its address. */
#include "core/agent/supervisor.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/base/machine.h"

#include <string.h>

static const uint32_t supervisor_allowed[] = {
    /* Its process has not connected to pslaunch. */
    [PS_AGENT_SUPERVISOR_STARTING] = PS_STATE_BIT(PS_AGENT_SUPERVISOR_RUNNING) |
                                     PS_STATE_BIT(PS_AGENT_SUPERVISOR_FAILED),
    [PS_AGENT_SUPERVISOR_RUNNING] = PS_STATE_BIT(PS_AGENT_SUPERVISOR_ENDED),
    /* The scheduler has the reason. */
    [PS_AGENT_SUPERVISOR_FAILED] = PS_STATE_BIT(PS_AGENT_SUPERVISOR_ENDED),
    /* With all processes of its job on this node. */
    [PS_AGENT_SUPERVISOR_ENDED] = 0,
};
static const char *const supervisor_names[] = {
    [PS_AGENT_SUPERVISOR_STARTING] = "starting",
    [PS_AGENT_SUPERVISOR_RUNNING] = "running",
    [PS_AGENT_SUPERVISOR_FAILED] = "failed",
    [PS_AGENT_SUPERVISOR_ENDED] = "ended",
};
/* A supervisor of pslaunch that an agent has started on its node. */
static const struct ps_state_table supervisor_states = {
    .name = "supervisor",
    .states = supervisor_names,
    .count = sizeof(supervisor_allowed) / sizeof(supervisor_allowed[0]),
    .allowed = supervisor_allowed,
};

static void supervisor_set_state(struct ps_agent_supervisor *s,
                                 enum ps_agent_supervisor_state to)
{
    ps_state_change(&supervisor_states, &s->state, (uint8_t)to);
}

static void answer(struct ps_agent_step *st, uint64_t request, int rc,
                   const char *text)
{
    ps_agent_uplink_send_msg(
        st,
        &(struct ps_msg){
            .code = PS_MSG_LAUNCH_BEGUN,
            .launch_begun = {.request = request, .error = rc, .text = text}});
}

static bool is_listed(const struct ps_agent_launch_options *o, uint32_t uid)
{
    for (uint32_t i = 0; i < o->user_count; i++) {
        if (o->users[i] == uid) {
            return true;
        }
    }
    return false;
}

/* True: this node starts processes of the user. Else `why` has the reason. */
static bool may_run(const struct ps_agent *a, uint32_t uid, struct ps_str *why)
{
    const struct ps_agent_launch_options *o = &a->opt.launch;

    if (o->allow == PS_AGENT_LAUNCH_OFF) {
        ps_str_add(why, "it starts no processes (launch.allow: off)");
        return false;
    }
    if (!a->scheduler_is_proven && !o->obeys_unproven) {
        ps_str_add(why, "it starts no processes, because psched has not proved "
                        "by a certificate who it is (security.tls, "
                        "launch.insecure)");
        return false;
    }
    if (uid == 0) {
        ps_str_add(why, "it starts no processes of root");
        return false;
    }
    if (o->allow == PS_AGENT_LAUNCH_SELF && uid != o->uid) {
        ps_str_addf(why,
                    "it starts processes of its own user %u only "
                    "(launch.allow: self), not of user %u",
                    o->uid, uid);
        return false;
    }
    if (o->allow == PS_AGENT_LAUNCH_USERS && !is_listed(o, uid)) {
        ps_str_addf(why, "user %u is not one of its launch.users", uid);
        return false;
    }
    if (uid != o->uid && !o->can_change_user) {
        ps_str_addf(why,
                    "it runs as user %u without the capabilities to start "
                    "processes of user %u",
                    o->uid, uid);
        return false;
    }
    return true;
}

/* True: neither the user nor the node has too many supervisors. */
static bool has_room(const struct ps_agent *a, uint32_t uid, struct ps_str *why)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_supervisor *s;
    uint32_t own = 0;

    while ((s = ps_map_next(a->supervisors, &c)) != NULL) {
        own += s->uid == uid;
    }
    if (own >= PS_LAUNCHES_USER_MAX) {
        ps_str_addf(why, "user %u has %u jobs there, which is the limit", uid,
                    own);
        return false;
    }
    if (ps_map_count(a->supervisors) >= PS_LAUNCHES_MAX) {
        ps_str_addf(why, "it has %u jobs, which is the limit", PS_LAUNCHES_MAX);
        return false;
    }
    return true;
}

/* Writes the host of the scheduler, without its port, for an order that names
 * no host. */
static void host_of_scheduler(const struct ps_agent *a, char *out, size_t cap)
{
    const char *from = a->opt.sched_address;
    const char *end = strrchr(from, ':');

    ps_str_copy(out, cap, from);
    if (end == NULL) {
        return;
    }
    if (*from == '[' && end > from && end[-1] == ']') {
        from++;
        end--;
    }
    memmove(out, out + (from - a->opt.sched_address), (size_t)(end - from));
    out[end - from] = '\0';
}

static void start(struct ps_agent_step *st, const struct ps_msg_launch_begin *m)
{
    struct ps_agent *a = st->a;
    struct ps_agent_supervisor *s = ps_calloc(1, sizeof(*s));
    struct ps_msg order = {.code = PS_MSG_LAUNCH_BEGIN, .launch_begin = *m};
    char host[PS_ADDRESS_MAX + 1];

    *s = (struct ps_agent_supervisor){.id = ++a->last.supervisor,
                                      .request = m->request,
                                      .uid = m->uid,
                                      .state = PS_AGENT_SUPERVISOR_STARTING};
    ps_str_copy(s->job, sizeof(s->job), m->job);
    ps_map_put(a->supervisors, s->id, s);
    if (m->address == NULL || *m->address == '\0') {
        host_of_scheduler(a, host, sizeof(host));
        order.launch_begin.address = host;
    }
    ps_effects_launch(st->fx, s->id, &order);
}

void ps_agent_supervisor_on_begin(struct ps_agent_step *st,
                                  const struct ps_msg_launch_begin *m)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    ps_str_addf(&why, "agent %s: ", st->a->opt.name);
    if (st->a->draining) {
        ps_str_add(&why, "it ends");
        answer(st, m->request, PS_E_AGAIN, text);
        return;
    }
    if (!may_run(st->a, m->uid, &why)) {
        ps_effects_log(st->fx, PS_LOG_WARNING, "launch of job %s refused: %s",
                       m->job, text);
        answer(st, m->request, PS_E_PERM, text);
        return;
    }
    if (!has_room(st->a, m->uid, &why)) {
        answer(st, m->request, PS_E_FULL, text);
        return;
    }
    start(st, m);
}

void ps_agent_supervisor_on_launched(struct ps_agent_step *st,
                                     const struct ps_event *ev)
{
    struct ps_agent_supervisor *s = ps_map_get(st->a->supervisors,
                                               ev->launched.id);
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (s == NULL) {
        return;
    }
    if (ev->launched.rc == 0) {
        supervisor_set_state(s, PS_AGENT_SUPERVISOR_RUNNING);
        ps_effects_log(st->fx, PS_LOG_NOTICE, "launched job %s as user %u",
                       s->job, s->uid);
        answer(st, s->request, 0, "");
        return;
    }
    supervisor_set_state(s, PS_AGENT_SUPERVISOR_FAILED);
    ps_str_init(&why, text, sizeof(text));
    ps_str_addf(&why, "agent %s: ", st->a->opt.name);
    ps_str_add_escaped(&why, ev->launched.why, strlen(ev->launched.why),
                       PS_TEXT_MAX / 2);
    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "launch of job %s as user %u failed: %s", s->job, s->uid,
                   text);
    answer(st, s->request, ev->launched.rc, text);
}

void ps_agent_supervisor_on_ended(struct ps_agent_step *st, uint64_t id)
{
    struct ps_agent_supervisor *s = ps_map_remove(st->a->supervisors, id);

    if (s == NULL) {
        return;
    }
    if (s->state == PS_AGENT_SUPERVISOR_RUNNING) {
        ps_effects_log(st->fx, PS_LOG_NOTICE,
                       "launched job %s of user %u has ended", s->job, s->uid);
    }
    supervisor_set_state(s, PS_AGENT_SUPERVISOR_ENDED);
    ps_free(s);
}

void ps_agent_supervisor_free_all(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_supervisor *s;

    while ((s = ps_map_next(a->supervisors, &c)) != NULL) {
        ps_free(s);
    }
    ps_map_free(a->supervisors);
}
