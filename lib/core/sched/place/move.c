/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of partitions between the servers of a running job. The source sends
 * copies to the target as to a backup (rule M1); no byte of them comes here.
 *
 *     queued       waits for other moves
 *     begun        both servers know it; the source goes on with the partition
 *     completed    the source said that the target has it, and that replies wait
 *                  for it: the placement changes
 *     given up     a server was lost, or the source cannot send it: the partition
 *                  stays where the placement says
 *
 * A move that is over is forgotten. A server that may have missed its end asks on
 * its next session, and gets what the placement says (rule M5); so the next
 * process of the scheduler, which knows no move, needs no more than its file. */
#include "core/sched/place/place.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/store.h"

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

/* The moves of the job are over: the reply of `ctl` ends, too. */
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

/* ------------------------------------------------------------------- moves */

struct move {
    struct ps_list_node list_node;
    uint64_t id;
    uint32_t key;
    uint32_t index;
    uint32_t source; /* Node. */
    uint32_t target;
    bool has_begun; /* The source and the target know it. */
};

struct ps_sched_rebalance {
    ps_conn_id ctl_conn;
    struct ps_list moves; /* Those that have begun first. */
    uint32_t begun_count;
    uint32_t completed_count;
    uint32_t failed_count;
    /* Reason of the first that was given up. */
    char first_failure[PS_TEXT_MAX / 2];
};

/* ------------------------------------------------------------------ lists */

void ps_sched_moves_init(struct ps_sched *s, struct ps_sched_job *j,
                         ps_conn_id ctl)
{
    assert(j->rebalance == NULL);
    j->rebalance = ps_calloc(1, sizeof(*j->rebalance));
    j->rebalance->ctl_conn = ctl;
    ps_list_init(&j->rebalance->moves);
    if (!j->keys.were_rebalanced) {
        j->keys.were_rebalanced = true;
        ps_sched_store_job(s, j);
    }
}

int ps_sched_moves_add(struct ps_sched *s, struct ps_sched_job *j,
                       const struct ps_sched_part_move *m)
{
    struct move *mv = ps_try_calloc(1, sizeof(*mv));

    if (mv == NULL) {
        return PS_E_NOMEM;
    }
    mv->id = ++s->last_move_id;
    mv->key = m->key;
    mv->index = m->index;
    mv->source = m->source_node;
    mv->target = m->target_node;
    ps_list_push_back(&j->rebalance->moves, &mv->list_node);
    return 0;
}

void ps_sched_moves_free(struct ps_sched_job *j)
{
    if (j->rebalance == NULL) {
        return;
    }
    PS_LIST_EACH_SAFE(struct move, mv, list_node, &j->rebalance->moves)
    {
        ps_free(mv);
    }
    ps_free(j->rebalance);
    j->rebalance = NULL;
}

/* Move of this number that has begun; NULL: it is over. */
static struct move *find_move(const struct ps_sched_job *j, uint64_t number)
{
    if (j->rebalance == NULL) {
        return NULL;
    }
    PS_LIST_EACH_OF(struct move, mv, list_node, &j->rebalance->moves)
    {
        if (!mv->has_begun) {
            return NULL; /* So are all behind it. */
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
                       j->name, j->gen, r->completed_count, r->failed_count);
    ps_str_addf(&moved, "%u partitions moved, %u stayed", r->completed_count,
                r->failed_count);
    ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "rebalanced",
                       r->failed_count > 0, moved.data);
    if (r->failed_count > 0) {
        rc = PS_E_AGAIN;
        ps_str_addf(&why, "%u of %u partitions stayed where they were: %s",
                    r->failed_count, r->failed_count + r->completed_count,
                    r->first_failure);
    }
    ps_sched_moves_free(j);
    end_rebalance_reply(st, ctl, j->gen, rc, why.data);
}

void ps_sched_moves_cancel(struct ps_sched_step *st, struct ps_sched_job *j,
                           const char *why)
{
    if (j->rebalance == NULL) {
        return;
    }
    PS_LIST_EACH_OF(const struct move, mv, list_node, &j->rebalance->moves)
    {
        record_failure(j->rebalance, why);
    }
    finish_rebalance(st, j);
}

/* ------------------------------------------------------------ begin and end */

static void send_move(struct ps_sched_step *st, const struct ps_sched_job *j,
                      const struct move *mv, struct ps_member *to)
{
    const struct ps_member *source = ps_members_get(&st->s->members,
                                                    mv->source);
    const struct ps_member *target = ps_members_get(&st->s->members,
                                                    mv->target);

    ps_sched_send_msg(
        st, to,
        &(struct ps_msg){.code = PS_MSG_MOVE,
                         .move = {.move = mv->id,
                                  .gen = j->gen,
                                  .key = mv->key,
                                  .index = mv->index,
                                  .source = source->node,
                                  .source_name = source->name,
                                  .source_incarnation = source->incarnation,
                                  .source_instance = source->instance,
                                  .target = target->node,
                                  .target_instance = target->instance,
                                  .epoch = st->s->epoch}});
}

static void send_end(struct ps_sched_step *st, const struct ps_sched_job *j,
                     const struct ps_msg_moved *m, uint32_t node, bool is_owner)
{
    ps_sched_send_msg(st, ps_members_get(&st->s->members, node),
                      &(struct ps_msg){.code = PS_MSG_MOVE_END,
                                       .move_end = {.move = m->move,
                                                    .version = m->version,
                                                    .gen = j->gen,
                                                    .key = m->key,
                                                    .index = m->index,
                                                    .is_owner = is_owner,
                                                    .epoch = st->s->epoch}});
}

/* Tells both servers which of them has the partition, and frees the move. */
static void end_move(struct ps_sched_step *st, struct ps_sched_job *j,
                     struct move *mv, bool is_completed)
{
    const struct ps_msg_moved m = {
        .move = mv->id, .key = mv->key, .index = mv->index};

    if (mv->has_begun) {
        send_end(st, j, &m, mv->target, is_completed);
        send_end(st, j, &m, mv->source, !is_completed);
        j->rebalance->begun_count--;
    }
    ps_list_remove(&mv->list_node);
    ps_free(mv);
}

static void complete_move(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct move *mv)
{
    ps_sched_key_reassign_part(st, j, j->keys.list[mv->key], mv->index,
                               mv->target);
    j->rebalance->completed_count++;
    end_move(st, j, mv, true);
}

static void give_up_move(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct move *mv, const char *why)
{
    record_failure(j->rebalance, why);
    end_move(st, j, mv, false);
}

/* Begins a queued move, or gives it up if it is no longer possible. False: a
 * server does not know the present state of the job, by which the source may have
 * taken the partition over; it stays queued. */
static bool begin_move(struct ps_sched_step *st, struct ps_sched_job *j,
                       struct move *mv)
{
    const struct ps_sched_job_server *from = ps_sched_job_server_of(j,
                                                                    mv->source);
    const struct ps_sched_job_server *to = ps_sched_job_server_of(j,
                                                                  mv->target);
    const struct ps_sched_key *k = j->keys.list[mv->key];

    if (from == NULL || to == NULL || k == NULL ||
        k->parts[mv->index].node != mv->source) {
        give_up_move(st, j, mv, "a server was lost");
        return true;
    }
    if (from->ready_version < j->version || to->ready_version < j->version) {
        return false; /* ps_sched_on_job_ready() begins it. */
    }
    if (to->backup != 0 && !to->is_filled) {
        return false; /* When it counts: the partition has two copies here. */
    }
    if (!ps_sched_admission_fits_part(st->s, j, k, mv->index, mv->target)) {
        give_up_move(st, j, mv,
                     "the target server has no memory for them "
                     "(store.memory)");
        return true;
    }
    mv->has_begun = true;
    j->rebalance->begun_count++;
    send_move(st, j, mv, ps_members_get(&st->s->members, mv->target));
    send_move(st, j, mv, ps_members_get(&st->s->members, mv->source));
    return true;
}

static struct move *first_queued(const struct ps_sched_job *j)
{
    PS_LIST_EACH_OF(struct move, mv, list_node, &j->rebalance->moves)
    {
        if (!mv->has_begun) {
            return mv;
        }
    }
    return NULL;
}

void ps_sched_moves_start(struct ps_sched_step *st, struct ps_sched_job *j)
{
    if (j->rebalance == NULL) {
        return;
    }
    while (j->rebalance->begun_count < PS_MOVES_MAX) {
        struct move *mv = first_queued(j);

        if (mv == NULL || !begin_move(st, j, mv)) {
            break;
        }
    }
    if (ps_list_empty(&j->rebalance->moves)) {
        finish_rebalance(st, j);
    }
}

/* ---------------------------------------------------------------- servers */

void ps_sched_moves_lose_server(struct ps_sched_step *st,
                                const struct ps_member *server)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (j->rebalance == NULL) {
            continue;
        }
        PS_LIST_EACH_SAFE(struct move, mv, list_node, &j->rebalance->moves)
        {
            if (mv->has_begun && mv->source == server->node) {
                give_up_move(st, j, mv, "the source server was lost");
            } else if (mv->has_begun && mv->target == server->node) {
                give_up_move(st, j, mv, "the target server was lost");
            }
        }
    }
}

void ps_sched_moves_resend(struct ps_sched_step *st, struct ps_member *server)
{
    PS_MAP_EACH(const struct ps_sched_job, j, st->s->jobs)
    {
        if (j->rebalance == NULL) {
            continue;
        }
        PS_LIST_EACH_OF(const struct move, mv, list_node, &j->rebalance->moves)
        {
            if (mv->has_begun &&
                (mv->source == server->node || mv->target == server->node)) {
                send_move(st, j, mv, server);
            }
        }
    }
}

void ps_sched_on_moved(struct ps_sched_step *st, struct ps_member *server,
                       const struct ps_msg *msg)
{
    const struct ps_msg_moved *m = &msg->moved;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    const struct ps_sched_key *k = j != NULL ? ps_sched_job_key(j, m->key)
                                             : NULL;
    struct move *mv;

    if (j == NULL || !ps_sched_job_is_open(j)) {
        return;
    }
    mv = m->version == 0 ? find_move(j, m->move) : NULL;
    if (mv == NULL) {
        /* It is over, or of the process before this one; or the server has taken
         * over what it asks about. */
        send_end(st, j, m, server->node,
                 k != NULL && m->index < k->part_count &&
                     k->parts[m->index].node == server->node);
        return;
    }
    if (mv->source != server->node || mv->key != m->key ||
        mv->index != m->index) {
        return;
    }
    if (m->error != 0) {
        give_up_move(st, j, mv,
                     ps_str_or_empty(m->text)[0] != '\0'
                         ? m->text
                         : ps_strerror(m->error));
    } else if (m->is_filled) {
        complete_move(st, j, mv);
    }
    ps_sched_moves_start(st, j);
}
