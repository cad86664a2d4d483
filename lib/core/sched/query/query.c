/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of operators' tools. Their connections have no link: rows follow each
 * other, and query_end closes the reply. Key rows may be many, so they are sent
 * as the output of the connection drains. */
#include "core/sched/query/query.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/place/copies.h"
#include "core/sched/place/place.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ nodes */

/* Frames of the member that the scheduler has refused, and that others report
 * to have refused. */
static uint64_t count_refused(const struct ps_member *m,
                              const struct ps_rec_refusals *list,
                              uint32_t count)
{
    uint64_t n = m->misuse.frames;

    for (uint32_t i = 0; i < count; i++) {
        n += list[i].node == m->node ? list[i].frames : 0;
    }
    return n;
}

/* Reports of all members; the caller frees the list. */
static struct ps_rec_refusals *list_refusals(const struct ps_sched *s,
                                             uint32_t *ret_count)
{
    struct ps_rec_refusals *list = NULL;

    *ret_count = 0;
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_msg *m = s->members.sorted[i]->last_costs;
        const uint32_t count = m != NULL ? m->costs.refusals_count : 0;

        if (count > 0) {
            list = ps_realloc(list, (*ret_count + count) * sizeof(*list));
            memcpy(list + *ret_count, m->costs.refusals, count * sizeof(*list));
            *ret_count += count;
        }
    }
    return list;
}

static void send_member_row(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_member *m, uint64_t refused)
{
    const struct ps_msg_hello *h = &m->hello->hello;
    const struct ps_msg_ping *p = &m->last_ping;
    /* Rates of a silent member are unknown. */
    const struct ps_member_rates r = m->state == PS_NODE_STATE_ACTIVE
                                         ? m->rates
                                         : (struct ps_member_rates){0};
    const bool tells = m->last_costs != NULL &&
                       m->state == PS_NODE_STATE_ACTIVE;

    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_NODE_ROW,
            .node_row = {.role = m->role,
                         .node = m->node,
                         .name = m->name,
                         .state = m->state,
                         .incarnation = m->incarnation,
                         .address = m->address,
                         .silent_ns = st->now - m->last_recv_at,
                         .rounds = p->rounds,
                         .bytes_in = p->bytes_in,
                         .bytes_out = p->bytes_out,
                         .stored_bytes = p->stored_bytes,
                         .resent = p->resent,
                         .waiting_requests = p->waiting_requests,
                         .refused = refused,
                         .draining = p->draining,
                         .certificate_ends = p->certificate_ends,
                         .certificate_is_expiring = p->certificate_is_expiring,
                         .memory_limit = m->memory_limit,
                         .memory_reserved = m->reserved_bytes,
                         .memory_used = p->memory_used,
                         .memory_kept = p->memory_kept,
                         .memory_short = p->memory_short,
                         .unreachable = m->probe.unreachable != 0
                                            ? ps_strerror(m->probe.unreachable)
                                            : NULL,
                         .rounds_rate = r.rounds,
                         .in_rate = r.bytes_in,
                         .out_rate = r.bytes_out,
                         .version = h->version,
                         .descriptors = h->descriptors,
                         .clock_skew_ns = m->clock_skew_ns,
                         .avoids_shm = h->avoids_shm,
                         .ktls = h->ktls,
                         .gpu = h->gpu,
                         .gpu_memory = h->gpu_memory,
                         .gpu_held = p->gpu_held,
                         .gpu_up = p->gpu_up,
                         .gpu_down = p->gpu_down,
                         .gpu_up_rate = r.gpu_up,
                         .gpu_down_rate = r.gpu_down,
                         .costs = tells ? m->last_costs->costs.costs : NULL,
                         .costs_count = tells ? m->last_costs->costs.costs_count
                                              : 0},
        });
}

static void send_node_rows(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_sched *s = st->s;
    struct ps_rec_cost costs[PS_COSTS_SHOWN_MAX];
    uint32_t count;
    struct ps_rec_refusals *refusals = list_refusals(s, &count);

    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_NODE_ROW,
            .node_row = {.role = PS_ROLE_SCHED,
                         .name = s->opt.name,
                         .state = PS_NODE_STATE_ACTIVE,
                         .draining = s->draining,
                         .version = s->opt.facts.version,
                         .descriptors = s->opt.facts.descriptors,
                         .ktls = s->opt.facts.ktls,
                         .certificate_ends = s->certificate.at,
                         .certificate_is_expiring = s->certificate.is_expiring,
                         .costs = costs,
                         .costs_count = ps_ledger_records(&s->account, costs)},
        });
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        send_member_row(st, c, m, count_refused(m, refusals, count));
    }
    ps_free(refusals);
}

/* ------------------------------------------------------------------- jobs */

/* Returns the number of LOST ranks; `list` describes the first ones. */
static uint32_t
list_lost_ranks(const struct ps_sched_job *j,
                struct ps_rec_missing_rank list[PS_LOST_SHOWN_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; ps_sched_job_has_started(j) && i < j->workers.count;
         i++) {
        if (j->workers.list[i].state != PS_RANK_STATE_LOST) {
            continue;
        }
        if (count < PS_LOST_SHOWN_MAX) {
            list[count] = (struct ps_rec_missing_rank){
                .rank = i,
                .state = PS_RANK_STATE_LOST,
                .host = j->workers.list[i].host,
                .node = j->workers.list[i].agent_name,
                .does = "",
            };
        }
        count++;
    }
    return count;
}

/* Row of a job that has ended, with its ages now; `scalars` are written for
 * it. */
static struct ps_msg_job_row
ended_job_row(const struct ps_sched_ended_job *p, ps_time now,
              struct ps_rec_job_scalar scalars[PS_SCALARS_MAX])
{
    struct ps_msg_job_row row = p->row->job_row;

    row.age_ns += now - p->ended_at;
    for (uint32_t i = 0; i < row.scalars_count; i++) {
        scalars[i] = row.scalars[i];
        scalars[i].age_ns += now - p->ended_at;
    }
    row.scalars = scalars;
    return row;
}

/* Lists what was declared of the optimizer, and its changes. */
static uint32_t list_settings(const struct ps_sched_job *j,
                              struct ps_rec_change list[PS_SETTINGS_MAX])
{
    const struct ps_sched_declaration *o = &j->optimizer.declared;
    const struct ps_changes *c = &j->optimizer.changes;
    uint32_t count = 0;

    for (uint32_t i = 0; i < o->param_count && count < PS_SETTINGS_MAX; i++) {
        list[count++] = (struct ps_rec_change){.name = o->params[i].name,
                                               .value = o->params[i].value};
    }
    for (uint32_t i = 0; i < c->count && count < PS_SETTINGS_MAX; i++) {
        list[count++] = c->list[i];
    }
    return count;
}

/* Why the job cannot go on, or begin; "": it can. */
static const char *describe_standstill(const struct ps_sched *s,
                                       const struct ps_sched_job *j,
                                       ps_time now, struct ps_str *text)
{
    struct ps_str awaited = PS_STR_ROOM(256);

    ps_sched_describe_servers(s, j, text);
    ps_sched_job_describe_awaited(j, now, &awaited);
    if (awaited.len > 0) {
        ps_str_addf(text, "waits for %s", awaited.data);
    }
    return text->len > 0 ? text->data : ps_sched_diverged_text(s, j);
}

static void send_job_rows(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_sched *s = st->s;
    struct ps_msg msg = {.code = PS_MSG_JOB_ROW};
    struct ps_rec_missing_rank lost[PS_LOST_SHOWN_MAX];
    struct ps_rec_job_scalar scalars[PS_SCALARS_MAX];
    struct ps_rec_change settings[PS_SETTINGS_MAX];

    for (uint32_t i = 0; i < ps_sched_history_count(&s->history); i++) {
        const struct ps_sched_ended_job *p = ps_sched_history_get(&s->history,
                                                                  i);

        msg.job_row = ended_job_row(p, st->now, scalars);
        ps_effects_send_msg(st->fx, c->id, &msg);
    }
    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        uint32_t count = list_lost_ranks(j, lost);
        struct ps_str standstill = PS_STR_ROOM(256);
        struct ps_str copies = PS_STR_ROOM(64);

        ps_sched_copies_describe(j, &copies);
        ps_sched_job_fill_row(j, st->now, &msg.job_row);
        msg.job_row.copies = copies.data;
        msg.job_row.ranks_lost = count;
        msg.job_row.lost_ranks = lost;
        msg.job_row.lost_ranks_count = count < PS_LOST_SHOWN_MAX
                                           ? count
                                           : PS_LOST_SHOWN_MAX;
        msg.job_row.scalars = scalars;
        msg.job_row.scalars_count = ps_sched_scalars_rows(j->observed.scalars,
                                                          st->now, scalars);
        msg.job_row.standstill = describe_standstill(s, j, st->now,
                                                     &standstill);
        msg.job_row.settings = settings;
        msg.job_row.settings_count = list_settings(j, settings);
        ps_effects_send_msg(st->fx, c->id, &msg);
    }
}

/* ------------------------------------------------------------------- keys */

struct server_share {
    uint32_t parts;
    uint64_t bytes;
};

static void send_key_row(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_sched_job *j,
                         const struct ps_sched_key *k, const char *server,
                         const struct server_share *share)
{
    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_KEY_ROW,
                            .key_row = {.job = j->name,
                                        .uid = j->uid,
                                        .key = k->number,
                                        .kind = k->kind,
                                        .name = k->name,
                                        .dtype = k->dtype,
                                        .count = k->count,
                                        .server = server,
                                        .parts = share->parts,
                                        .bytes = share->bytes},
                        });
}

/* Returns the number of rows sent. */
static uint32_t send_key_rows(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_sched_job *j,
                              const struct ps_sched_key *k)
{
    struct server_share shares[PS_SERVERS_MAX + 1] = {{0}};
    uint64_t element = ps_dtype_size(k->dtype);
    uint32_t rows = 0;

    for (uint32_t i = 0; i < k->part_count; i++) {
        uint32_t at = 0;

        while (at < j->servers.count &&
               j->servers.list[at].node != k->parts[i].node) {
            at++;
        }
        shares[at].parts++;
        shares[at].bytes += k->parts[i].count * element;
    }
    for (uint32_t i = 0; i <= j->servers.count; i++) {
        if (shares[i].parts > 0) {
            send_key_row(st, c, j, k,
                         i < j->servers.count ? j->servers.list[i].name
                                              : "agent",
                         &shares[i]);
            rows++;
        }
    }
    return rows;
}

/* Job whose key rows are next; NULL: all are sent. Jobs may have ended since
 * the last call; generations increase, so later jobs have higher ones. */
static const struct ps_sched_job *next_listed_job(const struct ps_sched *s,
                                                  struct ps_sched_conn *c)
{
    const struct ps_sched_job *begun = ps_sched_find_job(s, c->list_gen);

    if (begun != NULL && c->list_next < begun->keys.count) {
        return begun;
    }
    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        if (c->lists_all_jobs && j->gen > c->list_gen && j->keys.count > 0) {
            c->list_gen = j->gen;
            c->list_next = 0;
            return j;
        }
    }
    return NULL;
}

void ps_sched_query_send_rows(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    uint32_t rows = 0;

    ps_sched_rebalance_send_rows(st, c);
    while (c->lists_keys && rows < PS_SCHED_ROWS_PER_SEND) {
        const struct ps_sched_job *j = next_listed_job(st->s, c);

        if (j == NULL) {
            c->lists_keys = false;
            ps_sched_conn_end_query(st, c, 0, NULL);
        } else {
            const struct ps_sched_key *k = j->keys.list[c->list_next++];

            rows += k != NULL ? send_key_rows(st, c, j, k) : 1;
        }
    }
}

/* ----------------------------------------------------------------- shares */

/* Sends what each server of the job holds, then the servers that could replace
 * those that it has lost. */
static void send_shares_of_job(struct ps_sched_step *st,
                               const struct ps_sched_conn *c,
                               const struct ps_sched_job *j)
{
    const struct ps_member *spares[PS_SERVERS_MAX];
    uint32_t spare_count = j->phase == PS_JOB_PHASE_RUNNING
                               ? ps_sched_job_spare_servers(st->s, j, spares)
                               : 0;
    struct ps_msg msg = {.code = PS_MSG_SHARE_ROW,
                         .share_row = {.job = j->name, .uid = j->uid}};

    for (uint32_t i = 0; i < j->servers.count; i++) {
        msg.share_row.server = j->servers.list[i].name;
        msg.share_row.bytes = j->servers.list[i].bytes;
        ps_effects_send_msg(st->fx, c->id, &msg);
    }
    msg.share_row.bytes = 0;
    msg.share_row.spare = true;
    for (uint32_t i = 0; i < spare_count; i++) {
        msg.share_row.server = spares[i]->name;
        ps_effects_send_msg(st->fx, c->id, &msg);
    }
}

static void send_share_rows(struct ps_sched_step *st,
                            const struct ps_sched_conn *c,
                            const struct ps_sched_job *only)
{
    PS_MAP_EACH(const struct ps_sched_job, j, st->s->jobs)
    {
        if (only == NULL || j == only) {
            send_shares_of_job(st, c, j);
        }
    }
}

/* ---------------------------------------------------------------- queries */

/* Open job that a tool names. Without an owner it is the job of the tool's own
 * user if there is one, and else the only one of that name. NULL: the query was
 * answered with the reason. */
static struct ps_sched_job *find_named_job(struct ps_sched_step *st,
                                           struct ps_sched_conn *c,
                                           const struct ps_sched_job_name *n)
{
    struct ps_sched_job *found = NULL;
    struct ps_str owners = PS_STR_ROOM(128);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    uint32_t count = 0;

    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (!ps_sched_job_is_open(j) || strcmp(j->name, n->name) != 0) {
            continue;
        }
        if (n->has_owner ? j->uid == n->owner
                         : c->is_local && c->uid == j->uid) {
            return j;
        }
        ps_str_addf(&owners, "%s%u", count > 0 ? ", " : "", j->uid);
        found = j;
        count++;
    }
    if (!n->has_owner && count == 1) {
        return found;
    }
    if (!n->has_owner && count > 1) {
        ps_str_addf(&why,
                    "several users have a job '%s': %s; name one of them, as "
                    "in %u/%s",
                    n->name, owners.data, found->uid, n->name);
        ps_sched_conn_end_query(st, c, PS_E_INVAL, why.data);
        return NULL;
    }
    ps_str_add(&why, "no job '");
    ps_str_add_escaped(&why, n->name, strlen(n->name), PS_NAME_MAX);
    if (n->has_owner) {
        ps_str_addf(&why, "' of uid %u", n->owner);
    } else {
        ps_str_add(&why, "'");
    }
    ps_str_add(&why, " is there; psctl jobs lists them");
    ps_sched_conn_end_query(st, c, PS_E_NOJOB, why.data);
    return NULL;
}

static void start_key_listing(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_sched_job *j)
{
    c->lists_keys = true;
    c->lists_all_jobs = j == NULL;
    c->list_gen = j != NULL ? j->gen : 0;
    c->list_next = 0;
    ps_sched_query_send_rows(st, c);
}

static void start_stall_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                              struct ps_sched_job *only)
{
    /* Share of this function: delays query_end until all are asked. */
    c->open_stalls = 1;
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (ps_sched_job_is_open(j) && (only == NULL || only == j)) {
            ps_sched_stall_query_job(st, j, c);
        }
    }
    if (--c->open_stalls == 0) {
        ps_sched_conn_end_query(st, c, 0, NULL);
    }
}

static void refuse_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const char *text)
{
    ps_effects_log(st->fx, PS_LOG_WARNING, "query refused for %s: %s",
                   c->peer_text, text);
    ps_sched_conn_end_query(st, c, PS_E_PERM, text);
}

bool ps_sched_query_check_right(struct ps_sched_step *st,
                                struct ps_sched_conn *c,
                                const struct ps_sched_job *j,
                                enum ps_token_right right)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_str_add(&why, "not allowed: ");
    if (ps_sched_has_right(st, c, j, right, &why)) {
        return true;
    }
    if (right == PS_TOKEN_RIGHT_READ) {
        refuse_query(st, c, why.data);
        return false;
    }
    if (j == NULL) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "log level not changed for %s: %s", c->peer_text,
                       why.data);
    } else {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "job %s gen %" PRIu64
                       " of uid %u not changed for %s: %s",
                       j->name, j->gen, j->uid, c->peer_text, why.data);
    }
    ps_sched_conn_end_query(st, c, PS_E_PERM, why.data);
    return false;
}

/* False: the query was answered with the reason, and the tool does not even
 * learn whether the job exists. */
static bool may_name(struct ps_sched_step *st, struct ps_sched_conn *c,
                     struct ps_sched_job_name *n)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_str_add(&why, "not allowed: ");
    if (ps_sched_may_name(st, c, n, &why)) {
        return true;
    }
    refuse_query(st, c, why.data);
    return false;
}

struct ps_sched_job *ps_sched_query_job(struct ps_sched_step *st,
                                        struct ps_sched_conn *c,
                                        struct ps_sched_job_name n,
                                        enum ps_token_right right)
{
    struct ps_sched_job *j = may_name(st, c, &n) ? find_named_job(st, c, &n)
                                                 : NULL;

    return j != NULL && ps_sched_query_check_right(st, c, j, right) ? j : NULL;
}

bool ps_sched_query_is_busy(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    if (!c->lists_keys && c->open_stalls == 0 && c->rebalance_reply == NULL &&
        c->trace_read == 0) {
        return false;
    }
    ps_sched_conn_end_query(st, c, PS_E_AGAIN,
                            "another query of this connection is unfinished");
    return true;
}

/* Logs a change of a job by an operator. */
static void log_operator_action(struct ps_sched_step *st,
                                const struct ps_sched_conn *c,
                                const struct ps_sched_job *j, const char *what)
{
    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "job %s gen %" PRIu64 " of uid %u %s by an operator at %s",
                   j->name, j->gen, j->uid, what, c->peer_text);
    ps_sched_event_job(st, PS_EVENT_KIND_OPERATOR, j, what, false,
                       c->peer_text);
}

/* Sends the plan for job `j`, and executes it if the tool asks for that. */
static void start_rebalance_query(struct ps_sched_step *st,
                                  struct ps_sched_conn *c,
                                  const struct ps_msg_query *m,
                                  struct ps_sched_job *j)
{
    const bool moves = m->what == PS_QUERY_REBALANCE;

    if (j == NULL) {
        ps_sched_conn_end_query(st, c, PS_E_INVAL, "name one job");
        return;
    }
    if (moves) {
        if (!ps_sched_query_check_right(st, c, j, PS_TOKEN_RIGHT_OPERATE)) {
            return;
        }
        log_operator_action(st, c, j, "rebalanced");
    }
    ps_sched_rebalance_query(st, c, j, ps_str_or_empty(m->drain_server), moves);
    ps_sched_query_send_rows(st, c);
}

void ps_sched_on_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_query *m)
{
    struct ps_sched_job_name n = {ps_str_or_empty(m->job), m->has_owner,
                                  m->owner};
    struct ps_sched_job *j = NULL;

    if (ps_sched_query_is_busy(st, c)) {
        return;
    }
    if (!may_name(st, c, &n)) {
        return;
    }
    if (*n.name != '\0') {
        j = find_named_job(st, c, &n);
        if (j == NULL) {
            return;
        }
    }
    if (m->what != PS_QUERY_REBALANCE &&
        !ps_sched_query_check_right(st, c, j, PS_TOKEN_RIGHT_READ)) {
        return;
    }
    switch ((enum ps_query)m->what) {
    case PS_QUERY_NODES:
        send_node_rows(st, c);
        break;
    case PS_QUERY_JOBS:
        send_job_rows(st, c);
        break;
    case PS_QUERY_SHARES:
        send_share_rows(st, c, j);
        break;
    case PS_QUERY_EVENTS:
        ps_sched_send_events(st, c, m->after_event);
        break;
    case PS_QUERY_KEYS:
        start_key_listing(st, c, j);
        return;
    case PS_QUERY_STALL:
        start_stall_query(st, c, j);
        return;
    case PS_QUERY_REBALANCE_PLAN:
    case PS_QUERY_REBALANCE:
        start_rebalance_query(st, c, m, j);
        return;
    case PS_QUERY_TOKENS: /* See ps_sched_on_token_query(). */
        ps_sched_conn_end_query(st, c, PS_E_UNSUPPORTED, "no such query");
        return;
    }
    ps_sched_conn_end_query(st, c, 0, NULL);
}

void ps_sched_on_job_cancel(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_msg_job_cancel *m)
{
    const char *reason = ps_str_or_empty(m->reason);
    struct ps_sched_job *j = ps_sched_query_job(
        st, c,
        (struct ps_sched_job_name){ps_str_or_empty(m->job), m->has_owner,
                                   m->owner},
        PS_TOKEN_RIGHT_OPERATE);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (j == NULL) {
        return;
    }
    ps_str_add(&why, "cancelled by an operator");
    if (reason[0] != '\0') {
        ps_str_add(&why, ": ");
        ps_str_add_escaped(&why, reason, strlen(reason), 256);
    }
    log_operator_action(st, c, j, "cancelled");
    ps_sched_job_fail(st, j, why.data);
    ps_sched_conn_end_query(st, c, 0, NULL);
}

/* The weight that a setting names; 0: none, and the query was answered. */
static uint32_t read_weight(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_msg_job_set *m)
{
    const bool is_in_range = m->value >= 1 && m->value <= PS_JOB_WEIGHT_MAX;
    const uint32_t weight = is_in_range ? (uint32_t)m->value : 0;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (m->round == 0 && is_in_range && m->value <= weight) {
        return weight;
    }
    if (m->round != 0) {
        ps_str_add(&why, "a weight takes effect at once, not from a round on");
    } else {
        ps_str_addf(&why, "weight is %g and must be a whole number, 1 to %u",
                    m->value, PS_JOB_WEIGHT_MAX);
    }
    ps_sched_conn_end_query(st, c, PS_E_INVAL, why.data);
    return 0;
}

static void set_weight(struct ps_sched_step *st, struct ps_sched_conn *c,
                       struct ps_sched_job *j, const struct ps_msg_job_set *m)
{
    const uint32_t weight = read_weight(st, c, m);
    char what[24];
    struct ps_str s;

    if (weight != 0) {
        ps_str_init(&s, what, sizeof(what));
        ps_str_addf(&s, "set to weight %u", weight);
        log_operator_action(st, c, j, what);
        ps_sched_job_change_weight(st, c, j, weight);
    }
}

void ps_sched_on_job_set(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_msg_job_set *m)
{
    struct ps_sched_job *j = ps_sched_query_job(
        st, c,
        (struct ps_sched_job_name){ps_str_or_empty(m->job), m->has_owner,
                                   m->owner},
        PS_TOKEN_RIGHT_OPERATE);

    if (j == NULL) {
        return;
    }
    if (strcmp(ps_str_or_empty(m->name), "weight") == 0) {
        set_weight(st, c, j, m);
        return;
    }
    log_operator_action(st, c, j, "changed");
    ps_sched_job_change_param(st, c, j, m);
}
