/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations of partitions between the servers of a running job. Servers have
 * no links to each other, so a partition passes through the scheduler in
 * chunks; each migration has one chunk in flight, and none is stored here.
 *
 *     QUEUED       waits for other migrations
 *     READING      the source is asked for a chunk; its partition is frozen
 *                  from the first one on
 *     WRITING      the target gets the chunk; then READING until it has all
 *     INSTALLING   the target is notified that it owns the partition
 *     COMMITTED    the target confirmed: the placement changes, agents are
 *                  sent it, and the source drops the partition
 *     ROLLED_BACK  the target drops its copy, the source continues
 *
 * Rule M10: each server has at most one open request of a migration, so no
 * message overtakes another; every request may be repeated, and is, on a fresh
 * link. A lost server answers nothing: if the source is lost, so is the
 * partition, except in INSTALLING, when the target has all of it (rule M11). It
 * has it in no memory that outlives it: the migration of a source whose memory
 * does is rolled back. If the target is lost before COMMITTED, the migration is
 * rolled back, and afterwards the partition is lost with it (rule M12). */
#include "core/sched/place/place.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/state_table.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"

#include <inttypes.h>

/* --------------------------------------------------------- reply to a tool */

void ps_sched_rebalance_drop_reply(struct ps_sched_conn *c)
{
    if (c->rebalance_reply != NULL) {
        ps_free(c->rebalance_reply->rows);
        ps_free(c->rebalance_reply);
        c->rebalance_reply = NULL;
    }
}

/* The migrations of the job are over: the reply of `ctl` ends, too. */
static void end_rebalance_reply(struct ps_sched_step *st, ps_conn_id ctl,
                                uint64_t gen, int rc, const char *text)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ctl);

    if (c == NULL || c->rebalance_reply == NULL ||
        c->rebalance_reply->gen != gen) {
        return; /* No connection waits for it any more. */
    }
    c->rebalance_reply->has_ended = true;
    c->rebalance_reply->rc = rc;
    ps_str_copy(c->rebalance_reply->text, sizeof(c->rebalance_reply->text),
                text);
    ps_sched_rebalance_send_rows(st, c);
}

static const char *server_name(const struct ps_sched *s, uint32_t node)
{
    const struct ps_member *m = ps_members_get(&s->members, node);

    return m != NULL ? m->name : "?";
}

static void send_migration_row(struct ps_sched_step *st,
                               const struct ps_sched_conn *c,
                               const struct ps_sched_job *j,
                               const struct ps_sched_rebalance_row *row)
{
    const struct ps_sched_key *k = j->keys.list[row->key];

    if (k == NULL) {
        return; /* Removed since the plan was made. */
    }
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_MIGRATION_ROW,
            .migration_row = {.job = j->name,
                              .key = k->number,
                              .kind = k->kind,
                              .name = k->name,
                              .from = server_name(st->s, row->source),
                              .to = server_name(st->s, row->target),
                              .parts = row->part_count,
                              .bytes = row->bytes},
        });
}

void ps_sched_rebalance_send_rows(struct ps_sched_step *st,
                                  struct ps_sched_conn *c)
{
    struct ps_sched_rebalance_reply *m = c->rebalance_reply;
    uint32_t rows = PS_SCHED_ROWS_PER_SEND;
    const struct ps_sched_job *j;

    if (m == NULL) {
        return;
    }
    j = ps_sched_find_job(st->s, m->gen);
    if (j == NULL) {
        ps_sched_rebalance_drop_reply(c);
        ps_sched_conn_end_query(st, c, PS_E_AGAIN,
                                "the job has ended meanwhile");
        return;
    }
    for (; rows > 0 && m->next_row < m->row_count; rows--) {
        send_migration_row(st, c, j, &m->rows[m->next_row++]);
    }
    if (m->next_row == m->row_count && (m->has_ended || !m->awaits_end)) {
        struct ps_sched_rebalance_reply last = *m;

        ps_sched_rebalance_drop_reply(c);
        ps_sched_conn_end_query(st, c, last.rc, last.text);
    }
}

/* -------------------------------------------------------------- migrations */

enum migration_state {
    MIG_QUEUED,
    MIG_READING,
    MIG_WRITING,
    MIG_INSTALLING,
    MIG_COMMITTED,
    MIG_ROLLED_BACK
};

static const uint32_t successors[] = {
    [MIG_QUEUED] = PS_STATE_BIT(MIG_READING),
    [MIG_READING] = PS_STATE_BIT(MIG_WRITING) | PS_STATE_BIT(MIG_ROLLED_BACK),
    /* READING again for the next chunk, or because this one was lost. */
    [MIG_WRITING] = PS_STATE_BIT(MIG_READING) | PS_STATE_BIT(MIG_INSTALLING) |
                    PS_STATE_BIT(MIG_ROLLED_BACK),
    [MIG_INSTALLING] = PS_STATE_BIT(MIG_COMMITTED) |
                       PS_STATE_BIT(MIG_ROLLED_BACK),
    /* Source and target are notified, then the migration is freed. */
    [MIG_COMMITTED] = 0,
    [MIG_ROLLED_BACK] = 0,
};

/* The move of one partition between servers, at the scheduler. */
static const struct ps_state_table migration_states = {
    .name = "migration",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

struct endpoint {
    uint32_t node;
    bool awaits_ack; /* A request is unanswered. */
    bool is_done;    /* Needs no further request. */
};

struct migration {
    struct ps_list_node list_node;
    uint64_t id;
    uint32_t key;
    uint32_t index;
    uint8_t state; /* enum migration_state. */
    struct endpoint source;
    struct endpoint target;
    uint64_t copied_bytes; /* Bytes that the target has received. */
    uint64_t total_bytes;  /* Bytes of the partition with its state. */
    uint32_t epoch; /* COMMITTED, ROLLED_BACK: epoch of that transition. */
};

static void migration_set_state(struct migration *mv, enum migration_state to)
{
    ps_state_change(&migration_states, &mv->state, (uint8_t)to);
}

struct ps_sched_rebalance {
    ps_conn_id ctl_conn;
    struct ps_list migrations;
    uint32_t active_count;
    uint32_t committed_count;
    uint32_t failed_count;
    /* Reason of the first failed migration. */
    char first_failure[PS_TEXT_MAX / 2];
};

/* ------------------------------------------------------------------ lists */

void ps_sched_migrations_init(struct ps_sched_job *j, ps_conn_id ctl)
{
    assert(j->rebalance == NULL);
    j->rebalance = ps_calloc(1, sizeof(*j->rebalance));
    j->rebalance->ctl_conn = ctl;
    ps_list_init(&j->rebalance->migrations);
}

int ps_sched_migrations_add(struct ps_sched *s, struct ps_sched_job *j,
                            const struct ps_sched_part_migration *m)
{
    struct migration *mv = ps_try_calloc(1, sizeof(*mv));

    if (mv == NULL) {
        return PS_E_NOMEM;
    }
    mv->id = ++s->last_migration_id;
    mv->key = m->key;
    mv->index = m->index;
    mv->source.node = m->source_node;
    mv->target.node = m->target_node;
    ps_list_push_back(&j->rebalance->migrations, &mv->list_node);
    return 0;
}

void ps_sched_migrations_free(struct ps_sched_job *j)
{
    if (j->rebalance == NULL) {
        return;
    }
    PS_LIST_EACH_SAFE(struct migration, mv, list_node,
                      &j->rebalance->migrations)
    {
        ps_free(mv);
    }
    ps_free(j->rebalance);
    j->rebalance = NULL;
}

/* Migration of this number that has begun; NULL: it is over. */
static struct migration *find_migration(const struct ps_sched_job *j,
                                        uint64_t number)
{
    if (j == NULL || j->rebalance == NULL) {
        return NULL;
    }
    PS_LIST_EACH_OF(struct migration, mv, list_node, &j->rebalance->migrations)
    {
        if (mv->state == MIG_QUEUED) {
            return NULL; /* All behind it are queued, too. */
        }
        if (mv->id == number) {
            return mv;
        }
    }
    return NULL;
}

static void record_failure(struct ps_sched_rebalance *r, const char *why)
{
    if (r->failed_count++ == 0) {
        ps_str_copy(r->first_failure, sizeof(r->first_failure), why);
    }
}

static void finish_rebalance(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched_rebalance *r = j->rebalance;
    const ps_conn_id ctl = r->ctl_conn;
    struct ps_str moved = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int rc = 0;

    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64
                       " rebalanced: %u partitions moved, "
                       "%u stayed",
                       j->name, j->gen, r->committed_count, r->failed_count);
    ps_str_addf(&moved, "%u partitions moved, %u stayed", r->committed_count,
                r->failed_count);
    ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "rebalanced",
                       r->failed_count > 0, moved.data);
    if (r->failed_count > 0) {
        rc = PS_E_AGAIN;
        ps_str_addf(&why, "%u of %u partitions stayed where they were: %s",
                    r->failed_count, r->failed_count + r->committed_count,
                    r->first_failure);
    }
    ps_sched_migrations_free(j);
    end_rebalance_reply(st, ctl, j->gen, rc, why.data);
}

void ps_sched_migrations_cancel(struct ps_sched_step *st,
                                struct ps_sched_job *j, const char *why)
{
    struct migration *mv;

    if (j->rebalance == NULL) {
        return;
    }
    while ((mv = PS_LIST_POP(struct migration, list_node,
                             &j->rebalance->migrations)) != NULL) {
        if (mv->state < MIG_COMMITTED) {
            record_failure(j->rebalance, why);
        }
        if (mv->state != MIG_QUEUED) {
            ps_sched_store_remove_move(st->s, j, mv->id);
        }
        ps_free(mv);
    }
    finish_rebalance(st, j);
}

/* --------------------------------------------------------------- requests */

static struct ps_member *find_member(const struct ps_sched_step *st,
                                     uint32_t node)
{
    return ps_members_get(&st->s->members, node);
}

static void send_part_read(struct ps_sched_step *st,
                           const struct ps_sched_job *j,
                           const struct migration *mv)
{
    ps_sched_send_msg(
        st, find_member(st, mv->source.node),
        &(struct ps_msg){
            .code = PS_MSG_PART_READ,
            .part_read = {.migration = mv->id,
                          .gen = j->gen,
                          .key = mv->key,
                          .index = mv->index,
                          .offset = mv->copied_bytes,
                          .max_bytes = st->s->opt.migration_chunk}});
}

static void send_part_end(struct ps_sched_step *st,
                          const struct ps_sched_job *j,
                          const struct migration *mv, uint32_t node, bool yours)
{
    ps_sched_send_msg(st, find_member(st, node),
                      &(struct ps_msg){.code = PS_MSG_PART_END,
                                       .part_end = {.migration = mv->id,
                                                    .gen = j->gen,
                                                    .key = mv->key,
                                                    .index = mv->index,
                                                    .is_owner = yours,
                                                    .epoch = mv->epoch}});
}

static void request_source(struct ps_sched_step *st,
                           const struct ps_sched_job *j, struct migration *mv)
{
    if (mv->source.awaits_ack || mv->source.is_done) {
        return;
    }
    if (mv->state == MIG_READING) {
        send_part_read(st, j, mv);
        mv->source.awaits_ack = true;
    } else if (mv->state >= MIG_COMMITTED) {
        send_part_end(st, j, mv, mv->source.node, mv->state == MIG_ROLLED_BACK);
        mv->source.awaits_ack = true;
    }
}

static void request_target(struct ps_sched_step *st,
                           const struct ps_sched_job *j, struct migration *mv)
{
    if (!mv->target.awaits_ack && !mv->target.is_done &&
        mv->state >= MIG_INSTALLING) {
        send_part_end(st, j, mv, mv->target.node, mv->state != MIG_ROLLED_BACK);
        mv->target.awaits_ack = true;
    }
}

/* Sends the requests that are due. Frees the migration when none remains. */
static void advance_migration(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct migration *mv)
{
    request_source(st, j, mv);
    request_target(st, j, mv);
    if (mv->source.is_done && mv->target.is_done) {
        ps_sched_store_remove_move(st->s, j, mv->id);
        ps_list_remove(&mv->list_node);
        ps_free(mv);
        j->rebalance->active_count--;
    }
}

/* ------------------------------------------------------------------ steps */

static void commit_migration(struct ps_sched_step *st, struct ps_sched_job *j,
                             struct migration *mv)
{
    ps_sched_key_reassign_part(st, j, j->keys.list[mv->key], mv->index,
                               mv->target.node);
    migration_set_state(mv, MIG_COMMITTED);
    mv->epoch = st->s->epoch;
    j->rebalance->committed_count++;
}

static void roll_back_migration(struct ps_sched_step *st,
                                struct ps_sched_job *j, struct migration *mv,
                                const char *why)
{
    migration_set_state(mv, MIG_ROLLED_BACK);
    mv->epoch = st->s->epoch;
    record_failure(j->rebalance, why);
}

/* Starts a queued migration, or drops it if it is no longer possible. False:
 * the target is not ready; it stays queued. */
static bool start_migration(struct ps_sched_step *st, struct ps_sched_job *j,
                            struct migration *mv)
{
    const struct ps_sched_job_server *to = ps_sched_job_server_of(
        j, mv->target.node);

    if (to == NULL || ps_sched_job_server_of(j, mv->source.node) == NULL ||
        j->keys.list[mv->key] == NULL ||
        j->keys.list[mv->key]->parts[mv->index].node != mv->source.node) {
        record_failure(j->rebalance, "a server was lost");
        ps_list_remove(&mv->list_node);
        ps_free(mv);
        return true;
    }
    if (to->ready_version == 0) {
        return false; /* ps_sched_on_job_ready() starts it. */
    }
    if (!ps_sched_admission_fits_part(st->s, j, j->keys.list[mv->key],
                                      mv->index, mv->target.node)) {
        record_failure(
            j->rebalance,
            "the target server has no memory for them (store.memory)");
        ps_list_remove(&mv->list_node);
        ps_free(mv);
        return true;
    }
    migration_set_state(mv, MIG_READING);
    j->rebalance->active_count++;
    ps_sched_store_move(st->s, j, mv->id,
                        &(struct ps_msg_row_move){.key = mv->key,
                                                  .index = mv->index,
                                                  .source = mv->source.node,
                                                  .target = mv->target.node});
    advance_migration(st, j, mv);
    return true;
}

static struct migration *first_queued(const struct ps_sched_job *j)
{
    PS_LIST_EACH_OF(struct migration, mv, list_node, &j->rebalance->migrations)
    {
        if (mv->state == MIG_QUEUED) {
            return mv;
        }
    }
    return NULL;
}

void ps_sched_migrations_start(struct ps_sched_step *st, struct ps_sched_job *j)
{
    if (j->rebalance == NULL) {
        return;
    }
    while (j->rebalance->active_count < PS_MIGRATIONS_MAX) {
        struct migration *mv = first_queued(j);

        if (mv == NULL || !start_migration(st, j, mv)) {
            break;
        }
    }
    if (ps_list_empty(&j->rebalance->migrations)) {
        finish_rebalance(st, j);
    }
}

/* A migration of the process before this one, for which servers still keep the
 * partition: it ends as after a roll-back or a commit. */
int ps_sched_migration_restore(struct ps_sched *s, struct ps_sched_job *j,
                               uint64_t number,
                               const struct ps_msg_row_move *row,
                               struct ps_str *why)
{
    const struct ps_sched_key *k = ps_sched_job_key(j, row->key);
    struct migration *mv;
    int rc;

    if (k == NULL || row->index >= k->part_count || number == 0) {
        ps_str_add(why, "there is no such partition");
        return PS_E_PROTO;
    }
    if (ps_sched_job_server_of(j, row->source) == NULL &&
        ps_sched_job_server_of(j, row->target) == NULL) {
        return 0; /* Nobody waits for its end. */
    }
    if (j->rebalance == NULL) {
        ps_sched_migrations_init(j, 0);
    }
    s->last_migration_id = ps_max_u64(s->last_migration_id, number - 1);
    rc = ps_sched_migrations_add(
        s, j,
        &(struct ps_sched_part_migration){.key = row->key,
                                          .index = row->index,
                                          .source_node = row->source,
                                          .target_node = row->target});
    if (rc != 0) {
        ps_str_add(why, ps_strerror(rc));
        return rc;
    }
    mv = PS_CONTAINER(ps_list_last(&j->rebalance->migrations), struct migration,
                      list_node);
    mv->id = number;
    mv->epoch = s->epoch;
    mv->state = k->parts[row->index].node == row->target ? MIG_COMMITTED
                                                         : MIG_ROLLED_BACK;
    mv->source.is_done = ps_sched_job_server_of(j, row->source) == NULL;
    mv->target.is_done = ps_sched_job_server_of(j, row->target) == NULL;
    j->rebalance->active_count++;
    return 0;
}

/* ---------------------------------------------------------------- servers */

/* The member was lost; its next process may have its memory. */
static bool may_return(const struct ps_sched_step *st, uint32_t node)
{
    const struct ps_member *m = find_member(st, node);

    return m != NULL && m->hello != NULL && m->hello->hello.keep;
}

static void lose_endpoint(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct migration *mv, uint32_t node)
{
    if (mv->source.node == node) {
        mv->source.awaits_ack = false;
        mv->source.is_done = true;
        if (mv->state == MIG_INSTALLING && !may_return(st, node)) {
            commit_migration(st, j, mv); /* The target has all of it. */
        } else if (mv->state < MIG_COMMITTED) {
            roll_back_migration(st, j, mv, "the source server was lost");
        }
    }
    if (mv->target.node == node) {
        mv->target.awaits_ack = false;
        mv->target.is_done = true;
        if (mv->state < MIG_COMMITTED) {
            roll_back_migration(st, j, mv, "the target server was lost");
        }
    }
    advance_migration(st, j, mv);
}

static void resend_migration(struct ps_sched_step *st, struct ps_sched_job *j,
                             struct migration *mv, uint32_t node)
{
    if (mv->target.node == node && mv->state == MIG_WRITING) {
        migration_set_state(mv, MIG_READING); /* The chunk was not stored. */
    }
    if (mv->source.node == node) {
        mv->source.awaits_ack = false;
    }
    if (mv->target.node == node) {
        mv->target.awaits_ack = false;
    }
    advance_migration(st, j, mv);
}

/* Calls `visit` for all migrations of all jobs that have begun. It may end
 * them. */
static void visit_migrations(struct ps_sched_step *st, uint32_t node,
                             void (*visit)(struct ps_sched_step *st,
                                           struct ps_sched_job *j,
                                           struct migration *mv, uint32_t node))
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        struct ps_list_node *n = j->rebalance != NULL
                                     ? ps_list_first(&j->rebalance->migrations)
                                     : NULL;

        while (n != NULL) {
            struct migration *mv = PS_CONTAINER(n, struct migration, list_node);

            if (mv->state == MIG_QUEUED) {
                break; /* All behind it are queued, too. */
            }
            n = ps_list_next(&j->rebalance->migrations, n);
            visit(st, j, mv, node);
        }
    }
}

void ps_sched_migrations_lose_server(struct ps_sched_step *st,
                                     const struct ps_member *server)
{
    visit_migrations(st, server->node, lose_endpoint);
}

void ps_sched_migrations_resend(struct ps_sched_step *st,
                                const struct ps_member *server)
{
    visit_migrations(st, server->node, resend_migration);
}

static void forward_chunk(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct migration *mv,
                          const struct ps_msg_part_chunk *m)
{
    const struct ps_msg msg = {.code = PS_MSG_PART_CHUNK, .part_chunk = *m};

    if (m->error != 0) {
        roll_back_migration(st, j, mv,
                            ps_str_or_empty(m->text)[0] != '\0'
                                ? m->text
                                : ps_strerror(m->error));
        return;
    }
    mv->total_bytes = 0;
    for (uint32_t i = 0; i < m->buffer_bytes_count; i++) {
        mv->total_bytes += m->buffer_bytes[i];
    }
    migration_set_state(mv, MIG_WRITING);
    mv->target.awaits_ack = true;
    ps_sched_send(
        st, find_member(st, mv->target.node),
        ps_packet_new(&msg, st->payload, st->payload != NULL ? 1 : 0));
}

/* True if an answer is about the partition of the migration, and states no more
 * bytes than that has. The target writes where a chunk says. */
static bool is_of_migration(const struct migration *mv,
                            const struct ps_msg *msg)
{
    if (msg->code == PS_MSG_PART_CHUNK) {
        return msg->part_chunk.key == mv->key &&
               msg->part_chunk.index == mv->index;
    }
    return msg->part_ack.key == mv->key && msg->part_ack.index == mv->index &&
           (msg->part_ack.is_end_ack ||
            msg->part_ack.received_bytes <= mv->total_bytes);
}

int ps_sched_migration_check_answer(const struct ps_sched *s,
                                    const struct ps_member *server,
                                    const struct ps_msg *msg)
{
    const bool is_chunk = msg->code == PS_MSG_PART_CHUNK;
    const struct migration *mv = find_migration(
        ps_sched_find_job(s,
                          is_chunk ? msg->part_chunk.gen : msg->part_ack.gen),
        is_chunk ? msg->part_chunk.migration : msg->part_ack.migration);

    if (mv == NULL) {
        return PS_E_NOENT;
    }
    if (!is_of_migration(mv, msg)) {
        return PS_E_PERM;
    }
    if (mv->source.node == server->node) {
        return mv->source.awaits_ack ? 0 : PS_E_NOENT;
    }
    if (mv->target.node != server->node || is_chunk) {
        return PS_E_PERM;
    }
    return mv->target.awaits_ack ? 0 : PS_E_NOENT;
}

void ps_sched_on_part_chunk(struct ps_sched_step *st, struct ps_member *server,
                            const struct ps_msg *msg)
{
    const struct ps_msg_part_chunk *m = &msg->part_chunk;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct migration *mv = find_migration(j, m->migration);

    if (mv == NULL || mv->source.node != server->node ||
        !mv->source.awaits_ack) {
        return;
    }
    mv->source.awaits_ack = false;
    if (mv->state == MIG_READING) {
        forward_chunk(st, j, mv, m);
    }
    advance_migration(st, j, mv);
    ps_sched_migrations_start(st, j);
}

/* Handles the target's acknowledgement of a chunk. */
static void chunk_written(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct migration *mv, const struct ps_msg_part_ack *m)
{
    if (m->error != 0 || (m->received_bytes <= mv->copied_bytes &&
                          m->received_bytes < mv->total_bytes)) {
        roll_back_migration(st, j, mv,
                            ps_str_or_empty(m->text)[0] != '\0'
                                ? m->text
                                : "the target server refused them");
        return;
    }
    mv->copied_bytes = m->received_bytes;
    migration_set_state(
        mv, mv->copied_bytes < mv->total_bytes ? MIG_READING : MIG_INSTALLING);
}

static void on_target_ack(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct migration *mv, const struct ps_msg_part_ack *m)
{
    mv->target.awaits_ack = false;
    if (!m->is_end_ack) {
        if (mv->state == MIG_WRITING) {
            chunk_written(st, j, mv, m);
        }
    } else if (mv->state == MIG_INSTALLING && m->error != 0) {
        roll_back_migration(st, j, mv, "the target server refused them");
    } else {
        mv->target.is_done = true;
        if (mv->state == MIG_INSTALLING) {
            commit_migration(st, j, mv);
        }
    }
}

void ps_sched_on_part_ack(struct ps_sched_step *st, struct ps_member *server,
                          const struct ps_msg *msg)
{
    const struct ps_msg_part_ack *m = &msg->part_ack;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct migration *mv = find_migration(j, m->migration);

    if (mv == NULL) {
        return;
    }
    if (mv->target.node == server->node && mv->target.awaits_ack) {
        on_target_ack(st, j, mv, m);
    } else if (mv->source.node == server->node && mv->source.awaits_ack &&
               m->is_end_ack) {
        mv->source.awaits_ack = false;
        mv->source.is_done = true;
    } else {
        return;
    }
    advance_migration(st, j, mv);
    ps_sched_migrations_start(st, j);
}
