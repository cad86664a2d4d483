/* SPDX-License-Identifier: Apache-2.0 */
/* What operators ask. Such connections have no link: rows follow each other
 * and query_end closes the answer. Rows of keys can be many, so they are sent
 * as the connection takes them. */
#include "core/sched_inner.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

/* Rows of keys handed to a connection at a time. */
#define KEY_ROWS 256u

void ps_sched_query_end(struct ps_sched_step *st, struct ps_sched_conn *c,
                        int rc, const char *text)
{
    const struct ps_sched *s = st->s;

    ps_effects_tell(st->fx, c->id,
                    &(struct ps_msg){
                        .code = PS_MSG_QUERY_END,
                        .query_end = {.error = rc,
                                      .text = text,
                                      .epoch = s->epoch,
                                      .cluster = s->opt.cluster,
                                      .uptime_ns = st->now - s->started},
                    });
}

/* ------------------------------------------------------------------ nodes */

static void member_row(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_member *m)
{
    const struct ps_msg_ping *p = &m->stats;
    /* Who is silent does nothing that is known. */
    const struct ps_member_rates r = m->state == PS_NODE_STATE_ACTIVE
                                         ? m->rates
                                         : (struct ps_member_rates){0};
    const bool tells = m->costs != NULL && m->state == PS_NODE_STATE_ACTIVE;

    ps_effects_tell(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_NODE_ROW,
            .node_row = {.role = m->role,
                         .node = m->node,
                         .name = m->name,
                         .state = m->state,
                         .incarnation = m->incarnation,
                         .address = m->address,
                         .heard_ns = st->now - m->heard,
                         .rounds = p->rounds,
                         .bytes_in = p->bytes_in,
                         .bytes_out = p->bytes_out,
                         .stored = p->stored,
                         .resent = p->resent,
                         .waiting = p->waiting,
                         .draining = p->draining,
                         .memory = m->memory,
                         .reserved = m->reserved,
                         .taken = p->memory,
                         .full = p->full,
                         .unreachable = m->probe.unreachable != 0
                                            ? ps_strerror(m->probe.unreachable)
                                            : NULL,
                         .rounds_rate = r.rounds,
                         .in_rate = r.bytes_in,
                         .out_rate = r.bytes_out,
                         .costs = tells ? m->costs->costs.costs : NULL,
                         .costs_count = tells ? m->costs->costs.costs_count
                                              : 0},
        });
}

static void node_rows(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_sched *s = st->s;
    struct ps_rec_cost costs[PS_COSTS_SHOWN_MAX];

    ps_effects_tell(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_NODE_ROW,
            .node_row = {.role = PS_ROLE_SCHED,
                         .name = s->opt.name,
                         .state = PS_NODE_STATE_ACTIVE,
                         .draining = s->draining,
                         .costs = costs,
                         .costs_count = ps_ledger_records(&s->account, costs)},
        });
    for (uint32_t i = 0; i < s->members.count; i++) {
        member_row(st, c, s->members.sorted[i]);
    }
}

/* ------------------------------------------------------------------- jobs */

void ps_sched_job_row(const struct ps_sched_job *j, ps_time now,
                      struct ps_msg_job_row *ret)
{
    *ret = (struct ps_msg_job_row){
        .gen = j->gen,
        .name = j->name,
        .uid = j->uid,
        .phase = j->phase,
        .mode = j->mode,
        .on_loss = j->on_loss,
        .num_workers = j->num_workers,
        .live = j->live,
        .slots = j->slot_count,
        .keys = j->keys_open,
        .bytes = j->bytes,
        .barriers = j->barrier.open,
        .age_ns = now - j->created,
        .optimizer = j->optimizer,
        .compression = j->compression_text,
        .skipped = j->skipped,
        .reason = j->reason,
    };
}

/* Returns how many, and describes the first ones in `list`. */
static uint32_t lost_ranks(const struct ps_sched_job *j,
                           struct ps_rec_waiting list[PS_LOST_SHOWN_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; ps_job_started(j) && i < j->worker_count; i++) {
        if (j->workers[i].state != PS_RANK_STATE_LOST) {
            continue;
        }
        if (count < PS_LOST_SHOWN_MAX) {
            list[count] = (struct ps_rec_waiting){
                .rank = i,
                .state = PS_RANK_STATE_LOST,
                .host = j->workers[i].host,
            };
        }
        count++;
    }
    return count;
}

static void job_rows(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_sched *s = st->s;
    uint64_t first = s->past_count > PS_SCHED_HISTORY
                         ? s->past_count - PS_SCHED_HISTORY
                         : 0;
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_job *j;
    struct ps_msg msg = {.code = PS_MSG_JOB_ROW};
    struct ps_rec_waiting lost[PS_LOST_SHOWN_MAX];

    for (uint64_t i = first; i < s->past_count; i++) {
        const struct ps_sched_past *p = &s->past[i % PS_SCHED_HISTORY];

        msg.job_row = p->row;
        msg.job_row.age_ns = st->now - p->created;
        ps_effects_tell(st->fx, c->id, &msg);
    }
    while ((j = ps_map_next(s->jobs, &cursor)) != NULL) {
        uint32_t count = lost_ranks(j, lost);

        ps_sched_job_row(j, st->now, &msg.job_row);
        msg.job_row.ranks_lost = count;
        msg.job_row.lost = lost;
        msg.job_row.lost_count = count < PS_LOST_SHOWN_MAX ? count
                                                           : PS_LOST_SHOWN_MAX;
        ps_effects_tell(st->fx, c->id, &msg);
    }
}

/* ------------------------------------------------------------------- keys */

struct share {
    uint32_t parts;
    uint64_t bytes;
};

static void key_row(struct ps_sched_step *st, struct ps_sched_conn *c,
                    const struct ps_sched_job *j, const struct ps_job_key *k,
                    const char *server, const struct share *share)
{
    ps_effects_tell(st->fx, c->id,
                    &(struct ps_msg){
                        .code = PS_MSG_KEY_ROW,
                        .key_row = {.job = j->name,
                                    .key = k->number,
                                    .name = k->name,
                                    .dtype = k->dtype,
                                    .count = k->count,
                                    .server = server,
                                    .parts = share->parts,
                                    .bytes = share->bytes},
                    });
}

/* Returns how many rows. */
static uint32_t rows_of_key(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_sched_job *j,
                            const struct ps_job_key *k)
{
    struct share shares[PS_SERVERS_MAX + 1] = {{0}};
    uint64_t element = ps_dtype_size(k->dtype);
    uint32_t rows = 0;

    for (uint32_t i = 0; i < k->part_count; i++) {
        uint32_t at = 0;

        while (at < j->server_count &&
               j->servers[at].node != k->parts[i].node) {
            at++;
        }
        shares[at].parts++;
        shares[at].bytes += k->parts[i].count * element;
    }
    for (uint32_t i = 0; i <= j->server_count; i++) {
        if (shares[i].parts > 0) {
            key_row(st, c, j, k,
                    i < j->server_count ? j->servers[i].name : "agent",
                    &shares[i]);
            rows++;
        }
    }
    return rows;
}

/* The job whose rows come next; NULL: all are done. Jobs may have ended since
 * the last call. Generations grow, so what is behind has a higher one. */
static const struct ps_sched_job *keys_job(const struct ps_sched *s,
                                           struct ps_sched_conn *c)
{
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_job *j = ps_sched_job(s, c->keys_gen);

    if (j != NULL && c->keys_next < j->key_count) {
        return j;
    }
    while (c->keys_all && (j = ps_map_next(s->jobs, &cursor)) != NULL) {
        if (j->gen > c->keys_gen && j->key_count > 0) {
            c->keys_gen = j->gen;
            c->keys_next = 0;
            return j;
        }
    }
    return NULL;
}

void ps_sched_query_pump(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    uint32_t rows = 0;

    ps_sched_even_pump(st, c, KEY_ROWS);
    while (c->keys && rows < KEY_ROWS) {
        const struct ps_sched_job *j = keys_job(st->s, c);

        if (j == NULL) {
            c->keys = false;
            ps_sched_query_end(st, c, 0, NULL);
        } else {
            const struct ps_job_key *k = j->keys[c->keys_next++];

            rows += k != NULL ? rows_of_key(st, c, j, k) : 1;
        }
    }
}

/* ----------------------------------------------------------------- shares */

static void share_rows(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_sched_job *only)
{
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        for (uint32_t i = 0; (only == NULL || j == only) && i < j->server_count;
             i++) {
            ps_effects_tell(st->fx, c->id,
                            &(struct ps_msg){
                                .code = PS_MSG_SHARE_ROW,
                                .share_row = {.job = j->name,
                                              .server = j->servers[i].name,
                                              .bytes = j->servers[i].bytes},
                            });
        }
    }
}

/* ---------------------------------------------------------------- queries */

static void no_such_job(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const char *name)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, "no job '");
    ps_str_add_escaped(&why, name, strlen(name), PS_NAME_MAX);
    ps_str_add(&why, "' is there; psctl jobs lists them");
    ps_sched_query_end(st, c, PS_E_NOJOB, text);
}

static void start_keys(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_sched_job *j)
{
    c->keys = true;
    c->keys_all = j == NULL;
    c->keys_gen = j != NULL ? j->gen : 0;
    c->keys_next = 0;
    ps_sched_query_pump(st, c);
}

static void start_stall(struct ps_sched_step *st, struct ps_sched_conn *c,
                        struct ps_sched_job *only)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    c->stalls = 1; /* This function's own share: no end before its end. */
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        if (ps_job_open_for_work(j) && (only == NULL || only == j)) {
            c->stalls++;
            ps_sched_stall_show(st, j, c);
        }
    }
    if (--c->stalls == 0) {
        ps_sched_query_end(st, c, 0, NULL);
    }
}

/* A job belongs to the user whose workers opened it. Over TCP nobody knows
 * who asks, so a tool may only read there, in every configuration. False: the
 * query has been answered with the reason. */
static bool check_owner(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const struct ps_sched_job *j)
{
    const struct ps_sched_options *opt = &st->s->opt;
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (c->local && (c->uid == j->uid || c->uid == 0 || c->uid == opt->uid)) {
        return true;
    }
    ps_str_init(&why, text, sizeof(text));
    ps_str_addf(&why, "not allowed: job '%s' belongs to user %u; ", j->name,
                j->uid);
    if (opt->control[0] != '\0') {
        ps_str_add(&why, "use psctl on the scheduler's host as that user or "
                         "root");
    } else {
        ps_str_add(&why, "jobs can be changed over a Unix socket alone, and "
                         "this scheduler has none: set control.socket");
    }
    ps_effects_note(st->fx, PS_LOG_WARNING,
                    "job %s gen %" PRIu64 " of uid %u not changed for %s: "
                    "not allowed",
                    j->name, j->gen, j->uid, c->peer);
    ps_sched_query_end(st, c, PS_E_PERM, text);
    return false;
}

/* A change of a job leaves a trace. */
static void witness(struct ps_sched_step *st, const struct ps_sched_conn *c,
                    const struct ps_sched_job *j, const char *what)
{
    ps_effects_note(st->fx, PS_LOG_WARNING,
                    "job %s gen %" PRIu64 " of uid %u %s by an operator at %s",
                    j->name, j->gen, j->uid, what, c->peer);
}

void ps_sched_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                    const struct ps_msg_query *m)
{
    const char *name = ps_sched_text(m->job);
    struct ps_sched_job *j = NULL;

    if (c->keys || c->stalls > 0 || c->moves != NULL) {
        ps_sched_query_end(st, c, PS_E_AGAIN,
                           "another query of this connection is not done");
        return;
    }
    if (name[0] != '\0') {
        j = ps_sched_job_named(st->s, name);
        if (j == NULL) {
            no_such_job(st, c, name);
            return;
        }
    }
    switch ((enum ps_query)m->what) {
    case PS_QUERY_NODES:
        node_rows(st, c);
        ps_sched_query_end(st, c, 0, NULL);
        return;
    case PS_QUERY_JOBS:
        job_rows(st, c);
        ps_sched_query_end(st, c, 0, NULL);
        return;
    case PS_QUERY_KEYS:
        start_keys(st, c, j);
        return;
    case PS_QUERY_STALL:
        start_stall(st, c, j);
        return;
    case PS_QUERY_SHARES:
        share_rows(st, c, j);
        ps_sched_query_end(st, c, 0, NULL);
        return;
    case PS_QUERY_MOVES:
    case PS_QUERY_REBALANCE:
        if (j == NULL) {
            ps_sched_query_end(st, c, PS_E_INVAL, "name one job");
            return;
        }
        if (m->what == PS_QUERY_REBALANCE) {
            if (!check_owner(st, c, j)) {
                return;
            }
            witness(st, c, j, "rebalanced");
        }
        ps_sched_even(st, c, j, ps_sched_text(m->off),
                      m->what == PS_QUERY_REBALANCE);
        ps_sched_query_pump(st, c);
        return;
    }
    ps_sched_query_end(st, c, PS_E_UNSUPPORTED, "no such query");
}

void ps_sched_job_cancel(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_msg_job_cancel *m)
{
    const char *name = ps_sched_text(m->job);
    const char *said = ps_sched_text(m->reason);
    struct ps_sched_job *j = ps_sched_job_named(st->s, name);
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (j == NULL) {
        no_such_job(st, c, name);
        return;
    }
    if (!check_owner(st, c, j)) {
        return;
    }
    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, "cancelled by an operator");
    if (said[0] != '\0') {
        ps_str_add(&why, ": ");
        ps_str_add_escaped(&why, said, strlen(said), 256);
    }
    witness(st, c, j, "cancelled");
    ps_sched_job_fail(st, j, text);
    ps_sched_query_end(st, c, 0, NULL);
}

void ps_sched_query_set(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const struct ps_msg_job_set *m)
{
    const char *name = ps_sched_text(m->job);
    struct ps_sched_job *j = ps_sched_job_named(st->s, name);

    if (j == NULL) {
        no_such_job(st, c, name);
        return;
    }
    if (!check_owner(st, c, j)) {
        return;
    }
    witness(st, c, j, "changed");
    ps_sched_job_set(st, c, j, m);
}
