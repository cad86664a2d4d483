/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one per training process, from l_hello to l_detach or to the end of
 * its socket, which counts as the death of the process: its states, its hello
 * and welcome, its errors, the memory that it registers, and the report that it
 * is gone. worker.c has its other messages and its end.
 *
 * Costs of sessions, jobs and users on this node:
 *
 *     session ──▶ job ──▶ user ──▶ daemon
 *
 * A session is charged to its user from the first byte, and to its job once
 * its rank is assigned. A job belongs to one user, as the scheduler ensures. A
 * resource that outlives its session or job (a region that an operation still
 * reads, results that a frame still carries) is charged to the user until it
 * is released. */
#include "core/agent/session.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/base/machine.h"

#include <assert.h>
#include <string.h>

/* Departed workers remembered; when there are more, the oldest is dropped. */
#define DEPARTED_WORKERS_MAX 4096u

/* Mapped region, charged until its last reader releases it. */
struct ps_agent_mapping {
    struct ps_list_node node;         /* In session->mappings. */
    struct ps_agent_session *session; /* NULL: gone, the user is charged. */
    struct ps_agent_user *user;
    struct ps_buf *buf;
};

/* ------------------------------------------------------- accounts of users */

void ps_agent_budget_init(struct ps_agent *a)
{
    a->users = ps_map_new();
    ps_account_init(&a->account, PS_ACCOUNT_DAEMON, a->opt.name,
                    &a->opt.limits[PS_ACCOUNT_DAEMON]);
}

void ps_agent_budget_fini(struct ps_agent *a)
{
    assert(ps_map_count(a->users) == 0);
    ps_map_free(a->users);
    ps_account_fini(&a->account);
}

struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid)
{
    struct ps_agent_user *u = ps_map_get(a->users, uid);

    if (u == NULL) {
        u = ps_calloc(1, sizeof(*u));
        u->agent = a;
        u->uid = uid;
        struct ps_str s = PS_STR_ROOM(16);

        ps_str_addf(&s, "%u", uid);
        ps_account_init(&u->account, PS_ACCOUNT_USER, s.data,
                        &a->opt.limits[PS_ACCOUNT_USER]);
        ps_account_add_parent(&u->account, &a->account);
        ps_map_put(a->users, uid, u);
    }
    u->refs++;
    return u;
}

void ps_agent_user_put(struct ps_agent_user *u)
{
    assert(u->refs > 0);
    if (--u->refs == 0) {
        ps_map_remove(u->agent->users, u->uid);
        ps_account_fini(&u->account);
        ps_free(u);
    }
}

/* ------------------------------------------- accounts of sessions and jobs */

/* Charges a new session to its user. On refusal no charge or reference
 * stays. */
static int budget_open_session(struct ps_agent *a, struct ps_agent_session *s,
                               uint32_t pid, struct ps_refusal *ret_refusal)
{
    int rc;
    struct ps_str t = PS_STR_ROOM(48);

    ps_str_addf(&t, "%llu (pid %u)", (unsigned long long)s->worker, pid);
    ps_list_init(&s->mappings);
    ps_list_init(&s->stall_queries);
    s->user = ps_agent_user_get(a, s->uid);
    ps_account_init(&s->account, PS_ACCOUNT_SESSION, t.data,
                    &a->opt.limits[PS_ACCOUNT_SESSION]);
    ps_account_add_parent(&s->account, &s->user->account);
    rc = ps_account_charge(&s->account, PS_COST_SESSIONS, 1, ret_refusal);
    if (rc != 0) {
        ps_account_fini(&s->account);
        ps_agent_user_put(s->user);
    }
    return rc;
}

void ps_agent_budget_close_session(struct ps_agent_session *s)
{
    struct ps_agent_mapping *h;

    while ((h = PS_LIST_POP(struct ps_agent_mapping, node, &s->mappings)) !=
           NULL) {
        ps_account_refund(&s->account, PS_COST_REGIONS, 1);
        ps_account_refund(&s->account, PS_COST_MAPPED, h->buf->size);
        ps_account_charge_unchecked(&s->user->account, PS_COST_REGIONS, 1);
        ps_account_charge_unchecked(&s->user->account, PS_COST_MAPPED,
                                    h->buf->size);
        h->session = NULL;
    }
    ps_account_refund(&s->account, PS_COST_SESSIONS, 1);
    ps_account_fini(&s->account);
    ps_agent_user_put(s->user);
}

void ps_agent_budget_assign_job(struct ps_agent_session *s,
                                struct ps_agent_job *j)
{
    if (j->user == NULL) {
        j->user = ps_agent_user_get(s->user->agent, s->uid);
        ps_account_init(&j->account, PS_ACCOUNT_JOB, j->name,
                        &s->user->agent->opt.limits[PS_ACCOUNT_JOB]);
        ps_account_add_parent(&j->account, &j->user->account);
    }
    ps_account_add_parent(&s->account, &j->account);
}

void ps_agent_budget_close_job(struct ps_agent_job *j)
{
    if (j->user != NULL) {
        ps_account_fini(&j->account);
        ps_agent_user_put(j->user);
        j->user = NULL;
    }
}

/* -------------------------------------------------------- accounts of keys */

/* Bytes of state that every key holds for each local rank. */
#define KEY_RANK_BYTES (sizeof(uint64_t) + sizeof(struct ps_agent_op *))

int ps_agent_budget_charge_key(struct ps_agent_job *j,
                               const struct ps_agent_key_kind *kind,
                               const struct ps_msg_l_key *m,
                               uint64_t *ret_charged,
                               struct ps_refusal *ret_refusal)
{
    uint64_t bytes = sizeof(struct ps_agent_key) +
                     m->shape_count * sizeof(uint64_t) +
                     j->local_rank_count * KEY_RANK_BYTES;

    if (kind->has_results) {
        bytes += ps_agent_key_result_bytes(m->count * ps_dtype_size(m->dtype));
    }
    *ret_charged = bytes;
    return ps_account_charge_all(
        &j->account,
        (struct ps_charge[]){{PS_COST_KEYS, 1}, {PS_COST_MEMORY, bytes}}, 2,
        ret_refusal);
}

int ps_agent_budget_charge_parts(struct ps_agent_key *k, uint32_t count,
                                 struct ps_refusal *ret_refusal)
{
    const uint64_t bytes = count * sizeof(struct ps_agent_part) +
                           ps_agent_key_own_bytes(k, count);
    int rc = ps_account_charge_all(
        &k->job->account,
        (struct ps_charge[]){{PS_COST_PARTITIONS, count},
                             {PS_COST_MEMORY, bytes}},
        2, ret_refusal);

    if (rc != 0) {
        return rc;
    }
    k->charge.bytes += bytes;
    k->charge.parts = count;
    return 0;
}

void ps_agent_budget_refund_key(struct ps_agent_key *k)
{
    ps_account_refund(&k->job->account, PS_COST_KEYS, 1);
    ps_account_refund(&k->job->account, PS_COST_PARTITIONS, k->charge.parts);
    ps_account_refund(&k->job->account, PS_COST_MEMORY, k->charge.bytes);
}

void ps_agent_budget_charge_pool(struct ps_agent_job *j,
                                 struct ps_agent_draining_pool *g)
{
    *g = (struct ps_agent_draining_pool){.pool = j->result_pool};
    if (j->user != NULL) {
        g->user = ps_agent_user_get(j->user->agent, j->user->uid);
        g->charged_bytes = ps_pool_used(j->result_pool);
        ps_account_charge_unchecked(&g->user->account, PS_COST_MEMORY,
                                    g->charged_bytes);
    }
}

void ps_agent_budget_refund_pool(struct ps_agent_draining_pool *g)
{
    if (g->user != NULL) {
        ps_account_refund(&g->user->account, PS_COST_MEMORY, g->charged_bytes);
        ps_agent_user_put(g->user);
        g->user = NULL;
    }
}

/* ----------------------------------------------------- accounts of regions */

static void release_mapping(void *ctx)
{
    struct ps_agent_mapping *h = ctx;
    struct ps_account *account = h->session != NULL ? &h->session->account
                                                    : &h->user->account;

    ps_account_refund(account, PS_COST_REGIONS, 1);
    ps_account_refund(account, PS_COST_MAPPED, h->buf->size);
    if (h->session != NULL) {
        ps_list_remove(&h->node);
    }
    ps_agent_user_put(h->user);
    ps_buf_unref(h->buf);
    ps_free(h);
}

int ps_agent_budget_charge_mapping(struct ps_agent_session *s,
                                   struct ps_buf *buf, struct ps_buf **ret_buf,
                                   struct ps_refusal *ret_refusal)
{
    struct ps_agent_mapping *h;
    int rc = ps_account_charge_all(
        &s->account,
        (struct ps_charge[]){{PS_COST_REGIONS, 1}, {PS_COST_MAPPED, buf->size}},
        2, ret_refusal);

    if (rc != 0) {
        return rc;
    }
    h = ps_calloc(1, sizeof(*h));
    h->session = s;
    h->user = ps_agent_user_get(s->user->agent, s->uid);
    h->buf = ps_buf_ref(buf);
    ps_list_push_back(&s->mappings, &h->node);
    *ret_buf = ps_buf_wrap(buf->data, buf->size, release_mapping, h);
    (*ret_buf)->tag = buf->tag;
    (*ret_buf)->offset = buf->offset;
    (*ret_buf)->device = buf->device;
    return 0;
}

/* --------------------------------------------------- workers that are gone */

static void send_worker_gone(struct ps_agent_step *st,
                             const struct ps_agent_departed_worker *d)
{
    ps_agent_uplink_send_msg(
        st,
        &(struct ps_msg){.code = PS_MSG_WORKER_GONE,
                         .worker_gone = {.gen = d->gen,
                                         .worker = d->worker,
                                         .clean = d->clean_exit,
                                         .rounds_unknown = d->rounds_unknown,
                                         .text = ""}});
}

void ps_agent_departed_add(struct ps_agent_step *st,
                           const struct ps_agent_session *s)
{
    struct ps_agent *a = st->a;
    struct ps_agent_departed_worker d = {
        .gen = s->gen,
        .worker = s->worker,
        .clean_exit = s->clean_exit,
        .rounds_unknown = !s->clean_exit && s->unreported_keys > 0};

    if (a->departed.workers == NULL) {
        a->departed.workers = ps_calloc(DEPARTED_WORKERS_MAX,
                                        sizeof(*a->departed.workers));
    }
    if (a->departed.count == DEPARTED_WORKERS_MAX) {
        memmove(a->departed.workers, a->departed.workers + 1,
                (DEPARTED_WORKERS_MAX - 1) * sizeof(*a->departed.workers));
        a->departed.count--;
    }
    a->departed.workers[a->departed.count++] = d;
    send_worker_gone(st, &d);
}

void ps_agent_departed_resend(struct ps_agent_step *st)
{
    for (uint32_t i = 0; i < st->a->departed.count; i++) {
        send_worker_gone(st, &st->a->departed.workers[i]);
    }
}

void ps_agent_departed_drop(struct ps_agent *a, const uint64_t *gen)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed.count; i++) {
        const struct ps_agent_departed_worker *d = &a->departed.workers[i];

        if (gen != NULL ? d->gen != *gen
                        : ps_agent_job_find(a, d->gen) != NULL) {
            a->departed.workers[kept++] = *d;
        }
    }
    a->departed.count = kept;
}

/* Regions unmapped at a time (2 us each), and the interval between batches. */
#define UNMAP_COUNT    32u
#define UNMAP_INTERVAL PS_MILLIS(1)

/* ----------------------------------------------------- states of a session */

static const uint32_t successors[] = {
    [PS_AGENT_SESSION_NEW] = PS_STATE_BIT(PS_AGENT_SESSION_OPENING),
    /* The job runs. */
    [PS_AGENT_SESSION_OPENING] = PS_STATE_BIT(PS_AGENT_SESSION_ACTIVE),
    [PS_AGENT_SESSION_ACTIVE] = 0,
};

/* A training process, at its agent. */
static const struct ps_state_table session_states = {
    .name = "session",
    .count = sizeof(successors) / sizeof(successors[0]),
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
    if (budget_open_session(a, s, ev->open.pid, &why) != 0) {
        struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX + 1);

        ps_refusal_text(&why, &t);
        reject_conn(st, ev->conn, t.data);
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
    va_list ap;

    if (s->is_closing) {
        return;
    }
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX + 1);

    va_start(ap, fmt);
    ps_str_addv(&t, fmt, ap);
    va_end(ap);
    const struct ps_msg m =
        s->state == PS_AGENT_SESSION_ACTIVE
            ? (struct ps_msg){.code = PS_MSG_L_ERROR,
                              .l_error = {.error = error, .text = t.data}}
            : (struct ps_msg){.code = PS_MSG_REJECT,
                              .reject = {.error = error, .text = t.data}};

    ps_effects_send_msg(st->fx, s->conn, &m);
    ps_effects_close(st->fx, s->conn);
    s->is_closing = true;
}

void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why)
{
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_refusal_text(why, &t);
    ps_agent_session_end(st, s, PS_E_FULL, "%s", t.data);
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
                         .replicas = h->replicas,
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
    PS_LIST_EACH_OF(struct ps_agent_session, s, node, &a->sessions)
    {
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

/* ----------------------------------------------------- memory of a session */

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
    PS_MAP_EACH(struct ps_buf, b, s->regions)
    {
        ps_map_put(a->unmapping.regions, ++a->unmapping.last, b);
    }
    ps_agent_unmap_regions(a);
    PS_MAP_EACH(char, why, s->unmapped)
    {
        drop_unmapped(s, why);
    }
    ps_map_free(s->regions);
    ps_map_free(s->unmapped);
}
