/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of partitions between the servers of a running job. Servers have no
 * links to each other, so what there is of a partition passes through here,
 * piece by piece; of each move one piece is on its way, and none is kept.
 *
 *     WAITING  others are under way
 *     READING  the old owner is asked for a piece, and stands still from the
 *              first one on
 *     WRITING  the new one is given it; READING again until it has all
 *     TAKING   the new one is told that the partition is its own
 *     MADE     it said yes: the table changes, agents hear of it, and the old
 *              one forgets the partition
 *     UNDONE   the new one forgets what it got, the old one goes on
 *
 * Each server has at most one question of a move to answer at a time, so
 * nothing overtakes anything; every question may be asked twice, and is, when
 * a link was forgotten. A server that is gone answers nothing any more: if the
 * old owner goes, the partition is lost with it, except while TAKING, because
 * the new one has all of it then; if the new one goes before MADE, the move is
 * undone, and afterwards it is lost with that. */
#include "core/sched_inner.h"

#include "base/alloc.h"

#include <inttypes.h>

enum stage { WAITING, READING, WRITING, TAKING, MADE, UNDONE };

struct side {
    uint32_t node;
    bool busy; /* An answer is awaited. */
    bool over; /* It needs to hear nothing more. */
};

struct move {
    struct ps_list_node node;
    uint64_t number;
    uint32_t key;
    uint32_t index;
    enum stage stage;
    struct side from;
    struct side to;
    uint64_t at;    /* Bytes that have been moved, */
    uint64_t total; /* of so many. */
    uint32_t epoch; /* MADE, UNDONE: when it became that. */
};

struct ps_sched_rebalance {
    ps_conn_id ctl;
    struct ps_list moves;
    uint32_t active;
    uint32_t made;
    uint32_t failed;
    char why[PS_TEXT_MAX / 2]; /* The first one that failed did. */
};

/* -------------------------------------------------------------------- lists */

void ps_sched_moves_new(struct ps_sched_job *j, ps_conn_id ctl)
{
    assert(j->rebalance == NULL);
    j->rebalance = ps_calloc(1, sizeof(*j->rebalance));
    j->rebalance->ctl = ctl;
    ps_list_init(&j->rebalance->moves);
}

int ps_sched_moves_add(struct ps_sched *s, struct ps_sched_job *j,
                       const struct ps_sched_part_move *m)
{
    struct move *mv = ps_try_calloc(1, sizeof(*mv));

    if (mv == NULL) {
        return PS_E_NOMEM;
    }
    mv->number = ++s->moves;
    mv->key = m->key;
    mv->index = m->index;
    mv->from.node = m->from;
    mv->to.node = m->to;
    ps_list_push_back(&j->rebalance->moves, &mv->node);
    return 0;
}

void ps_sched_moves_free(struct ps_sched_job *j)
{
    struct ps_list_node *n;

    if (j->rebalance == NULL) {
        return;
    }
    while ((n = ps_list_pop(&j->rebalance->moves)) != NULL) {
        ps_free(PS_CONTAINER(n, struct move, node));
    }
    ps_free(j->rebalance);
    j->rebalance = NULL;
}

/* Under way, NULL: it is over. */
static struct move *find(const struct ps_sched_job *j, uint64_t number)
{
    if (j == NULL || j->rebalance == NULL) {
        return NULL;
    }
    PS_LIST_EACH(n, &j->rebalance->moves)
    {
        struct move *mv = PS_CONTAINER(n, struct move, node);

        if (mv->stage == WAITING) {
            return NULL; /* Those behind it wait, too. */
        }
        if (mv->number == number) {
            return mv;
        }
    }
    return NULL;
}

static void failed(struct ps_sched_rebalance *r, const char *why)
{
    if (r->failed++ == 0) {
        ps_str_copy(r->why, sizeof(r->why), why);
    }
}

static void finish(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched_rebalance *r = j->rebalance;
    const ps_conn_id ctl = r->ctl;
    char text[PS_TEXT_MAX + 1] = "";
    struct ps_str s;
    int rc = 0;

    ps_str_init(&s, text, sizeof(text));
    ps_effects_note(st->fx, PS_LOG_INFO,
                    "job %s gen %" PRIu64 " rebalanced: %u partitions moved, "
                    "%u stayed",
                    j->name, j->gen, r->made, r->failed);
    if (r->failed > 0) {
        rc = PS_E_AGAIN;
        ps_str_addf(&s, "%u of %u partitions stayed where they were: %s",
                    r->failed, r->failed + r->made, r->why);
    }
    ps_sched_moves_free(j);
    ps_sched_even_made(st, ctl, j->gen, rc, text);
}

void ps_sched_moves_stop(struct ps_sched_step *st, struct ps_sched_job *j,
                         const char *why)
{
    struct ps_list_node *n;

    if (j->rebalance == NULL) {
        return;
    }
    while ((n = ps_list_pop(&j->rebalance->moves)) != NULL) {
        struct move *mv = PS_CONTAINER(n, struct move, node);

        if (mv->stage < MADE) {
            failed(j->rebalance, why);
        }
        ps_free(mv);
    }
    finish(st, j);
}

/* ---------------------------------------------------------------- questions */

static struct ps_member *member(const struct ps_sched_step *st, uint32_t node)
{
    return ps_members_get(&st->s->members, node);
}

static void ask_read(struct ps_sched_step *st, const struct ps_sched_job *j,
                     const struct move *mv)
{
    ps_sched_tell(
        st, member(st, mv->from.node),
        &(struct ps_msg){.code = PS_MSG_PART_READ,
                         .part_read = {.move = mv->number,
                                       .gen = j->gen,
                                       .key = mv->key,
                                       .index = mv->index,
                                       .at = mv->at,
                                       .most = st->s->opt.move_piece}});
}

static void ask_end(struct ps_sched_step *st, const struct ps_sched_job *j,
                    const struct move *mv, uint32_t node, bool yours)
{
    ps_sched_tell(st, member(st, node),
                  &(struct ps_msg){.code = PS_MSG_PART_END,
                                   .part_end = {.move = mv->number,
                                                .gen = j->gen,
                                                .key = mv->key,
                                                .index = mv->index,
                                                .yours = yours,
                                                .epoch = mv->epoch}});
}

static void ask_from(struct ps_sched_step *st, const struct ps_sched_job *j,
                     struct move *mv)
{
    if (mv->from.busy || mv->from.over) {
        return;
    }
    if (mv->stage == READING) {
        ask_read(st, j, mv);
        mv->from.busy = true;
    } else if (mv->stage >= MADE) {
        ask_end(st, j, mv, mv->from.node, mv->stage == UNDONE);
        mv->from.busy = true;
    }
}

static void ask_to(struct ps_sched_step *st, const struct ps_sched_job *j,
                   struct move *mv)
{
    if (!mv->to.busy && !mv->to.over && mv->stage >= TAKING) {
        ask_end(st, j, mv, mv->to.node, mv->stage != UNDONE);
        mv->to.busy = true;
    }
}

/* Asks what is to be asked next. The move is gone when that is nothing. */
static void proceed(struct ps_sched_step *st, struct ps_sched_job *j,
                    struct move *mv)
{
    ask_from(st, j, mv);
    ask_to(st, j, mv);
    if (mv->from.over && mv->to.over) {
        ps_list_remove(&mv->node);
        ps_free(mv);
        j->rebalance->active--;
    }
}

/* -------------------------------------------------------------------- steps */

static void make(struct ps_sched_step *st, struct ps_sched_job *j,
                 struct move *mv)
{
    ps_sched_key_move(st, j, j->keys[mv->key], mv->index, mv->to.node);
    mv->stage = MADE;
    mv->epoch = st->s->epoch;
    j->rebalance->made++;
}

static void undo(struct ps_sched_step *st, struct ps_sched_job *j,
                 struct move *mv, const char *why)
{
    mv->stage = UNDONE;
    mv->epoch = st->s->epoch;
    failed(j->rebalance, why);
}

/* Takes the first one that waits out of the list when it makes no sense any
 * more. False: it has to go on waiting. */
static bool start_one(struct ps_sched_step *st, struct ps_sched_job *j,
                      struct move *mv)
{
    const struct ps_job_server *to = ps_job_server_of(j, mv->to.node);

    if (to == NULL || ps_job_server_of(j, mv->from.node) == NULL ||
        j->keys[mv->key] == NULL ||
        j->keys[mv->key]->parts[mv->index].node != mv->from.node) {
        failed(j->rebalance, "a server was lost");
        ps_list_remove(&mv->node);
        ps_free(mv);
        return true;
    }
    if (to->ready == 0) {
        return false; /* ps_sched_job_ready starts it. */
    }
    if (!ps_sched_room_may_move(st->s, j, j->keys[mv->key], mv->index,
                                mv->to.node)) {
        failed(j->rebalance, "the server that was to have them has no memory "
                             "for them (store.memory)");
        ps_list_remove(&mv->node);
        ps_free(mv);
        return true;
    }
    mv->stage = READING;
    j->rebalance->active++;
    proceed(st, j, mv);
    return true;
}

static struct move *first_waiting(const struct ps_sched_job *j)
{
    PS_LIST_EACH(n, &j->rebalance->moves)
    {
        struct move *mv = PS_CONTAINER(n, struct move, node);

        if (mv->stage == WAITING) {
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
    while (j->rebalance->active < PS_MOVES_MAX) {
        struct move *mv = first_waiting(j);

        if (mv == NULL || !start_one(st, j, mv)) {
            break;
        }
    }
    if (ps_list_empty(&j->rebalance->moves)) {
        finish(st, j);
    }
}

/* --------------------------------------------------------------- the servers */

static void lost_side(struct ps_sched_step *st, struct ps_sched_job *j,
                      struct move *mv, uint32_t node)
{
    if (mv->from.node == node) {
        mv->from.busy = false;
        mv->from.over = true;
        if (mv->stage == TAKING) {
            make(st, j, mv); /* The new one has all, and will take it. */
        } else if (mv->stage < MADE) {
            undo(st, j, mv, "the server that has them was lost");
        }
    }
    if (mv->to.node == node) {
        mv->to.busy = false;
        mv->to.over = true;
        if (mv->stage < MADE) {
            undo(st, j, mv, "the server that was to have them was lost");
        }
    }
    proceed(st, j, mv);
}

void ps_sched_moves_server_gone(struct ps_sched_step *st,
                                const struct ps_member *server)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        struct ps_list_node *n = j->rebalance != NULL
                                     ? ps_list_first(&j->rebalance->moves)
                                     : NULL;

        while (n != NULL) {
            struct move *mv = PS_CONTAINER(n, struct move, node);

            n = ps_list_next(&j->rebalance->moves, n);
            if (mv->stage != WAITING) {
                lost_side(st, j, mv, server->node);
            }
        }
    }
}

void ps_sched_moves_again(struct ps_sched_step *st,
                          const struct ps_member *server)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        struct ps_list_node *n = j->rebalance != NULL
                                     ? ps_list_first(&j->rebalance->moves)
                                     : NULL;

        while (n != NULL) {
            struct move *mv = PS_CONTAINER(n, struct move, node);

            n = ps_list_next(&j->rebalance->moves, n);
            if (mv->stage == WAITING) {
                break;
            }
            if (mv->to.node == server->node && mv->stage == WRITING) {
                mv->stage = READING; /* The piece was not kept. */
            }
            if (mv->from.node == server->node) {
                mv->from.busy = false;
            }
            if (mv->to.node == server->node) {
                mv->to.busy = false;
            }
            proceed(st, j, mv);
        }
    }
}

static void took_piece(struct ps_sched_step *st, struct ps_sched_job *j,
                       struct move *mv, const struct ps_msg_part_piece *m,
                       const struct ps_slice *payload)
{
    const struct ps_msg msg = {.code = PS_MSG_PART_PIECE, .part_piece = *m};

    if (m->error != 0) {
        undo(st, j, mv,
             ps_sched_text(m->text)[0] != '\0' ? m->text
                                               : ps_strerror(m->error));
        return;
    }
    mv->total = 0;
    for (uint32_t i = 0; i < m->lens_count; i++) {
        mv->total += m->lens[i];
    }
    mv->stage = WRITING;
    mv->to.busy = true;
    ps_sched_send(st, member(st, mv->to.node),
                  ps_parcel_new(&msg, payload, payload != NULL ? 1 : 0));
}

void ps_sched_part_piece(struct ps_sched_step *st,
                         const struct ps_member *server,
                         const struct ps_msg_part_piece *m,
                         const struct ps_slice *payload)
{
    struct ps_sched_job *j = ps_sched_job(st->s, m->gen);
    struct move *mv = find(j, m->move);

    if (mv == NULL || mv->from.node != server->node || !mv->from.busy) {
        return;
    }
    mv->from.busy = false;
    if (mv->stage == READING) {
        took_piece(st, j, mv, m, payload);
    }
    proceed(st, j, mv);
    ps_sched_moves_start(st, j);
}

/* The new owner has `have` bytes. */
static void wrote(struct ps_sched_step *st, struct ps_sched_job *j,
                  struct move *mv, const struct ps_msg_part_done *m)
{
    if (m->error != 0 || (m->have <= mv->at && m->have < mv->total)) {
        undo(st, j, mv,
             ps_sched_text(m->text)[0] != '\0'
                 ? m->text
                 : "the server that was to have them did not take them");
        return;
    }
    mv->at = m->have;
    mv->stage = mv->at < mv->total ? READING : TAKING;
}

static void took_done(struct ps_sched_step *st, struct ps_sched_job *j,
                      struct move *mv, const struct ps_msg_part_done *m)
{
    mv->to.busy = false;
    if (!m->ended) {
        if (mv->stage == WRITING) {
            wrote(st, j, mv, m);
        }
    } else if (mv->stage == TAKING && m->error != 0) {
        undo(st, j, mv, "the server that was to have them did not take them");
    } else {
        mv->to.over = true;
        if (mv->stage == TAKING) {
            make(st, j, mv);
        }
    }
}

void ps_sched_part_done(struct ps_sched_step *st,
                        const struct ps_member *server,
                        const struct ps_msg_part_done *m)
{
    struct ps_sched_job *j = ps_sched_job(st->s, m->gen);
    struct move *mv = find(j, m->move);

    if (mv == NULL) {
        return;
    }
    if (mv->to.node == server->node && mv->to.busy) {
        took_done(st, j, mv, m);
    } else if (mv->from.node == server->node && mv->from.busy && m->ended) {
        mv->from.busy = false;
        mv->from.over = true;
    } else {
        return;
    }
    proceed(st, j, mv);
    ps_sched_moves_start(st, j);
}
