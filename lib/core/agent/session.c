/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one per training process, from l_hello to l_detach or to the end of
 * its socket, which counts as the death of the process. This file has what
 * other files need of a session: its states, its hello and welcome, its errors,
 * and the memory that it registers. */
#include "core/agent/session.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"
#include "core/agent/budget.h"
#include "core/agent/inner.h"
#include "core/base/machine.h"

/* Regions unmapped at a time (2 us each), and the interval between batches. */
#define UNMAP_COUNT    32u
#define UNMAP_INTERVAL PS_MILLIS(1)

/* ------------------------------------------------------------------ states */

static const char *const state_names[] = {
    [PS_AGENT_SESSION_NEW] = "NEW",
    [PS_AGENT_SESSION_OPENING] = "OPENING",
    [PS_AGENT_SESSION_ACTIVE] = "ACTIVE",
};

static const uint32_t successors[] = {
    [PS_AGENT_SESSION_NEW] = PS_STATE_BIT(PS_AGENT_SESSION_OPENING),
    /* The job runs. */
    [PS_AGENT_SESSION_OPENING] = PS_STATE_BIT(PS_AGENT_SESSION_ACTIVE),
    [PS_AGENT_SESSION_ACTIVE] = 0,
};

/* A training process, at its agent. */
static const struct ps_state_table session_states = {
    .name = "session",
    .states = state_names,
    .count = sizeof(state_names) / sizeof(state_names[0]),
    .allowed = successors,
};

static void session_set_state(struct ps_agent_session *s,
                              enum ps_agent_session_state to)
{
    ps_state_change(&session_states, &s->state, (uint8_t)to);
}

/* -------------------------------------------------------------- open, close */

static void reject_conn(struct ps_agent_step *st, ps_conn_id conn,
                        const char *text)
{
    ps_effects_send_msg(
        st->fx, conn,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = PS_E_FULL, .text = text}});
    ps_effects_close(st->fx, conn);
}

void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev)
{
    struct ps_agent *a = st->a;
    struct ps_agent_session *s;
    struct ps_refusal why;

    if (a->draining) {
        reject_conn(st, ev->conn, "this agent is ending");
        return;
    }
    s = ps_calloc(1, sizeof(*s));
    s->conn = ev->conn;
    s->uid = ev->open.uid;
    s->worker = ++a->last.worker;
    s->pid = ev->open.pid;
    if (ps_agent_budget_open_session(a, s, ev->open.pid, &why) != 0) {
        char text[PS_TEXT_MAX + 1];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        reject_conn(st, ev->conn, text);
        ps_free(s);
        return;
    }
    s->regions = ps_map_new();
    s->unmapped = ps_map_new();
    s->announced_arenas = ps_map_new();
    s->known_segments = ps_map_new();
    ps_list_init(&s->ops);
    ps_list_push_back(&a->sessions, &s->node);
    ps_map_put(a->sessions_by_conn, s->conn, s);
}

/* Sends the error to the worker and closes the connection. The session is freed
 * when the socket is closed. */
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_msg m = {.code = PS_MSG_L_ERROR,
                       .l_error = {.error = error, .text = text}};
    struct ps_str t;
    va_list ap;

    if (s->is_closing) {
        return;
    }
    ps_str_init(&t, text, sizeof(text));
    va_start(ap, fmt);
    ps_str_addv(&t, fmt, ap);
    va_end(ap);
    if (s->state != PS_AGENT_SESSION_ACTIVE) {
        m = (struct ps_msg){.code = PS_MSG_REJECT,
                            .reject = {.error = error, .text = text}};
    }
    ps_effects_send_msg(st->fx, s->conn, &m);
    ps_effects_close(st->fx, s->conn);
    s->is_closing = true;
}

void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str t;

    ps_str_init(&t, text, sizeof(text));
    ps_refusal_text(why, &t);
    ps_agent_session_end(st, s, PS_E_FULL, "%s", text);
}

/* -------------------------------------------------------------------- hello */

void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s)
{
    const struct ps_msg_l_hello *h = &s->hello->l_hello;

    ps_agent_uplink_send_msg(
        st,
        &(struct ps_msg){
            .code = PS_MSG_JOB_OPEN,
            .job_open = {.worker = s->worker,
                         .name = h->job,
                         .uid = s->uid,
                         .num_workers = h->num_workers,
                         .num_servers = h->num_servers,
                         .rank = h->rank,
                         .mode = h->mode,
                         .rule = h->rule,
                         .staleness = h->staleness,
                         .on_loss = h->on_loss,
                         .weight = h->weight,
                         .placement = h->placement,
                         .big_array_bound = h->big_array_bound,
                         .partition_bytes = h->partition_bytes,
                         .start_timeout_ns = h->start_timeout_ns,
                         .host = st->a->opt.host,
                         .gen = s->gen,
                         .reattach = h->gen != 0,
                         .token = h->token,
                         .reoffer = s->job_open == PS_AGENT_JOB_OPEN_AGAIN}});
}

void ps_agent_session_on_hello(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_msg *m)
{
    if (s->state != PS_AGENT_SESSION_NEW) {
        ps_agent_session_end(st, s, PS_E_PROTO, "a second l_hello");
        return;
    }
    if (m->l_hello.protocol < PS_PROTOCOL_LEAST ||
        m->l_hello.protocol > PS_PROTOCOL) {
        ps_agent_session_end(
            st, s, PS_E_VERSION,
            "the library supports protocol %u, this agent %u to %u",
            m->l_hello.protocol, PS_PROTOCOL_LEAST, PS_PROTOCOL);
        return;
    }
    if (m->l_hello.num_workers == 0 || m->l_hello.num_workers > PS_RANKS_MAX ||
        m->l_hello.job[0] == '\0') {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a job needs a name and 1 to %u workers",
                             PS_RANKS_MAX);
        return;
    }
    if ((m->l_hello.mode == PS_MODE_SYNC && m->l_hello.rule != PS_RULE_NONE) ||
        m->l_hello.rule == PS_RULE_STEP) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a rule applies to async and ssp jobs only, "
                             "and is accumulate or assign; an optimizer is a "
                             "rule of its own");
        return;
    }
    if (m->l_hello.start_timeout_ns > PS_START_TIMEOUT_MAX) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a job may form for at most %llu days: choose a "
                             "shorter start_timeout",
                             PS_START_TIMEOUT_MAX / PS_SECONDS(86400));
        return;
    }
    if (m->l_hello.mode != PS_MODE_SSP && m->l_hello.staleness != 0) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "staleness applies to ssp jobs only");
        return;
    }
    if (m->l_hello.mode != PS_MODE_SYNC && m->l_hello.num_servers == 0) {
        ps_agent_session_end(st, s, PS_E_UNSUPPORTED,
                             "pushes of an async or ssp job are applied by "
                             "servers: start it with at least one");
        return;
    }
    s->hello = ps_msg_dup(m);
    session_set_state(s, PS_AGENT_SESSION_OPENING);
    s->gen = m->l_hello.gen;
    s->unreported_keys = s->gen == 0 ? 0 : m->l_hello.reattach_keys;
    if (st->a->departed.count > 0 &&
        ps_link_unacked(st->a->uplink.dialer.link) > 0) {
        s->job_open = PS_AGENT_JOB_OPEN_DEFERRED;
        st->a->deferred_session_count++;
        return;
    }
    ps_agent_session_send_open(st, s);
}

void ps_agent_session_send_deferred(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;

    if (ps_link_unacked(a->uplink.dialer.link) > 0) {
        return;
    }
    PS_LIST_EACH(n, &a->sessions)
    {
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (s->job_open == PS_AGENT_JOB_OPEN_DEFERRED) {
            s->job_open = PS_AGENT_JOB_OPEN_FIRST;
            a->deferred_session_count--;
            ps_agent_session_send_open(st, s);
        }
    }
}

void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s)
{
    const struct ps_agent_job *j = s->job;
    const struct ps_agent_rank *r = &j->local_ranks[s->local_rank];
    uint64_t passed = r->entered_barriers < j->barriers.completed
                          ? r->entered_barriers
                          : j->barriers.completed;

    session_set_state(s, PS_AGENT_SESSION_ACTIVE);
    ps_effects_send_msg(
        st->fx, s->conn,
        &(struct ps_msg){
            .code = PS_MSG_L_WELCOME,
            .l_welcome = {.gen = j->gen,
                          .rank = r->rank,
                          .num_workers = j->config.num_workers,
                          .local_rank = s->local_rank,
                          .local_size = j->local_rank_count,
                          .num_servers = j->config.num_servers,
                          .completed_barriers = passed,
                          .ring_layout = st->a->opt.ring_layout,
                          .takes_devices = st->a->opt.takes_devices,
                          .node = st->a->opt.name}});
}

/* ------------------------------------------------------------------- memory */

void ps_agent_unmap_regions(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_buf *b;
    uint32_t count = 0;

    while (count < UNMAP_COUNT &&
           (b = ps_map_next(a->unmapping.regions, &c)) != NULL) {
        ps_map_remove(a->unmapping.regions, c.key);
        ps_buf_unref(b);
        count++;
    }
    a->unmapping.next_at = ps_map_count(a->unmapping.regions) == 0
                               ? PS_TIME_NEVER
                               : ps_time_add(a->now, UNMAP_INTERVAL);
}

static void drop_unmapped(struct ps_agent_session *s, char *why)
{
    if (why != NULL) {
        ps_account_refund(&s->account, PS_COST_REGIONS, 1);
        ps_free(why);
    }
}

/* Returns true if the session may register a region of this number; otherwise
 * ends the session. */
static bool may_register(struct ps_agent_step *st, struct ps_agent_session *s,
                         uint32_t region)
{
    if (s->state != PS_AGENT_SESSION_ACTIVE) {
        ps_agent_session_end(st, s, PS_E_PROTO, "no region before l_welcome");
        return false;
    }
    if (region == 0 || ps_map_get(s->regions, region) != NULL ||
        ps_map_get(s->unmapped, region) != NULL) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a region needs a number of its own, not 0");
        return false;
    }
    return true;
}

void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf)
{
    struct ps_refusal why;
    struct ps_buf *mapping;

    if (!may_register(st, s, region)) {
        return;
    }
    if (ps_agent_budget_charge_mapping(s, buf, &mapping, &why) != 0) {
        ps_agent_session_end_quota(st, s, &why);
        return;
    }
    ps_map_put(s->regions, region, mapping);
}

void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why)
{
    struct ps_refusal refusal;

    if (s->is_closing) {
        return;
    }
    ps_effects_log_for(st->fx, &s->account, PS_LOG_WARNING,
                       "memory of worker %llu: %s",
                       (unsigned long long)s->worker, why);
    if (rc != PS_E_NOMEM || region == 0) {
        ps_agent_session_end(st, s, rc, "%s", why);
        return;
    }
    if (!may_register(st, s, region)) {
        return;
    }
    if (ps_account_charge(&s->account, PS_COST_REGIONS, 1, &refusal) != 0) {
        ps_agent_session_end_quota(st, s, &refusal);
        return;
    }
    ps_map_put(s->unmapped, region, ps_strdup(why));
}

int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why)
{
    const char *why = ps_map_get(s->unmapped, region);

    *ret_why = why != NULL ? why : "it was never registered";
    return why != NULL ? PS_E_NOMEM : PS_E_INVAL;
}

void ps_agent_session_on_region_gone(struct ps_agent_session *s,
                                     uint32_t region)
{
    ps_buf_unref(ps_map_remove(s->regions, region));
    drop_unmapped(s, ps_map_remove(s->unmapped, region));
}

void ps_agent_session_free_memory(struct ps_agent *a,
                                  struct ps_agent_session *s)
{
    struct ps_map_cursor c = {0};
    struct ps_map_cursor u = {0};
    struct ps_buf *b;
    char *why;

    while ((b = ps_map_next(s->regions, &c)) != NULL) {
        ps_map_put(a->unmapping.regions, ++a->unmapping.last, b);
    }
    ps_agent_unmap_regions(a);
    while ((why = ps_map_next(s->unmapped, &u)) != NULL) {
        drop_unmapped(s, why);
    }
    ps_map_free(s->regions);
    ps_map_free(s->unmapped);
}
