/* SPDX-License-Identifier: Apache-2.0 */
/* Pull and init. A pull is answered from the results on this node when they
 * are new enough, waits when the version is on its way, and asks the servers
 * otherwise. An init is done when this node holds version 0 or a newer one:
 * the root's array goes to the servers first, then everybody pulls. */
#include "core/agent_inner.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

static int64_t held_by_all(const struct ps_agent_key *k)
{
    int64_t least = INT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        /* Of a key of rows nothing is held here: that it is there is all. */
        int64_t has = k->width != 0 ? k->parts[i].committed : k->parts[i].held;

        if (has < least) {
            least = has;
        }
    }
    return least;
}

/* Is the value of at least `least` coming without being asked for? */
static bool on_its_way(const struct ps_agent_part *p, int64_t least)
{
    const struct ps_agent_key *k = p->key;

    if (p->asked == least) {
        /* A question for a later version waits perhaps for a rank that waits
         * for this one. */
        return true;
    }
    if (p->init) {
        return true; /* Asked for when the init is committed. */
    }
    return k->active && k->complete && k->want && (int64_t)k->round >= least &&
           p->state != PS_AGENT_PART_IDLE && p->committed < (int64_t)k->round;
}

struct asking {
    struct ps_agent_server *server;
    struct ps_rec_part parts[PS_PARTS_MAX];
    uint32_t count;
};

static void send_asking(struct ps_agent_step *st, const struct ps_agent_job *j,
                        struct asking *q)
{
    if (q->count == 0) {
        return;
    }
    ps_link_tell(q->server->caller.link,
                 &(struct ps_msg){.code = PS_MSG_PULL,
                                  .pull = {.gen = j->gen,
                                           .epoch = st->a->epoch,
                                           .slot = j->slot,
                                           .parts = q->parts,
                                           .parts_count = q->count}},
                 st->now, st->fx);
    q->count = 0;
}

/* Ask for version `least` of the partitions that lack it and are not coming.
 * Partitions of one server in one message, in order of their index. */
static void ask(struct ps_agent_step *st, struct ps_agent_key *k, int64_t least)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_flow *f;
    struct asking *q = NULL;

    for (uint32_t i = 0; k->width != 0 && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->committed < least && !on_its_way(p, least)) {
            p->asked = least;
            ps_agent_rows_ask_version(st, p, least);
        }
    }
    if (k->width != 0) {
        return;
    }

    for (uint32_t i = 0; i < k->part_count && q == NULL; i++) {
        if (k->parts[i].node != 0 && k->parts[i].held < least &&
            !on_its_way(&k->parts[i], least)) {
            q = ps_calloc(1, sizeof(*q));
        }
    }
    if (q == NULL) {
        return;
    }
    while ((f = ps_map_next(k->job->flows, &c)) != NULL) {
        q->server = f->server;
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *p = &k->parts[i];

            if (p->node != f->server->node || p->held >= least ||
                on_its_way(p, least)) {
                continue;
            }
            p->asked = least;
            q->parts[q->count++] = (struct ps_rec_part){
                .key = k->number,
                .index = p->index,
                .round = (uint64_t)least,
                .dtype = k->dtype,
                .count = p->count};
            if (q->count == PS_PARTS_MAX) {
                send_asking(st, k->job, q);
            }
        }
        send_asking(st, k->job, q);
    }
    ps_free(q);
}

/* A pass of a round that was over when its agent came: whether all have passed
 * in it is known of all partitions. */
static bool is_judged(const struct ps_agent_key *k,
                      const struct ps_agent_op *op, bool *ret_nobody)
{
    *ret_nobody = true;
    for (uint32_t i = 0; i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];
        const int64_t heard = k->width != 0 ? p->told : p->held;

        if (p->passed != (int64_t)op->round) {
            *ret_nobody = false;
            if (heard < (int64_t)op->round) {
                return false;
            }
        }
    }
    return true;
}

/* What such a pass needs of a key of rows. */
static void ask_judgement(struct ps_agent_step *st, struct ps_agent_key *k,
                          const struct ps_agent_op *op)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->told < (int64_t)op->round && p->asked != (int64_t)op->round) {
            p->asked = (int64_t)op->round;
            ps_agent_rows_ask_version(st, p, (int64_t)op->round);
        }
    }
}

static void end_satisfied(struct ps_agent_step *st, struct ps_agent_key *k,
                          struct ps_list *list)
{
    int64_t held = held_by_all(k);
    struct ps_list_node *n = ps_list_first(list);

    while (n != NULL) {
        struct ps_list_node *next = ps_list_next(list, n);
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);
        bool nobody = false;

        if (op->kind == PS_OP_PASS) {
            if (is_judged(k, op, &nobody)) {
                ps_list_remove(n);
                if (nobody) {
                    ps_agent_op_nobody(st, op, op->round);
                } else {
                    ps_agent_op_done(st, op, op->round, 0, "");
                }
            } else if (k->width != 0) {
                ask_judgement(st, k, op);
            }
        } else if (held >= (int64_t)op->round) {
            ps_list_remove(n);
            ps_agent_op_done(st, op, (uint64_t)held, 0, "");
        }
        n = next;
    }
}

static void need(int64_t *least, int64_t version)
{
    if (*least == NONE || version < *least) {
        *least = version;
    }
}

/* The earliest version first: later ones may have to wait for a rank that
 * waits for it. */
void ps_agent_pull_check(struct ps_agent_step *st, struct ps_agent_key *k)
{
    int64_t least = NONE;

    if (k->async) {
        ps_agent_async_check(st, k);
        return;
    }
    ps_agent_rows_check(st, k);

    end_satisfied(st, k, &k->pulls);
    if (k->inits_open == 0) {
        end_satisfied(st, k, &k->inits);
        if (!ps_list_empty(&k->inits)) {
            need(&least, 0);
        }
    }
    PS_LIST_EACH(n, &k->pulls)
    {
        need(&least, (int64_t)PS_CONTAINER(n, struct ps_agent_op, node)->round);
    }
    if (k->active && k->complete && k->want) {
        /* Partitions that were merged while nobody here got the value. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            if (k->parts[i].committed >= (int64_t)k->round &&
                k->parts[i].held < (int64_t)k->round) {
                need(&least, (int64_t)k->round);
            }
        }
    }
    if (least != NONE) {
        ask(st, k, least);
    }
}

void ps_agent_pull_take(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    ps_list_push_back(&k->pulls, &op->node);
    ps_agent_pull_check(st, k);
}

void ps_agent_pull_again(struct ps_agent_step *st, struct ps_agent_key *k,
                         uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (node == 0 || k->parts[i].node == node) {
            k->parts[i].asked = NONE;
        }
    }
    ps_agent_rows_again(k, node, UINT32_MAX);
    ps_agent_state_again(st, k, node);
    if (k->async) {
        ps_agent_async_again(k, node);
    }
    ps_agent_pull_check(st, k);
}

/* ---------------------------------------------------------------------- init */

static bool is_root(const struct ps_agent_op *op)
{
    return op->key->job->local[op->local].rank == op->root;
}

static void send_init(struct ps_agent_step *st, struct ps_agent_key *k,
                      const struct ps_agent_op *op)
{
    ps_buf_unref(k->init_array.buf);
    k->init_array = op->array;
    ps_buf_ref(op->array.buf);
    k->init_attempt++;
    k->inits_open = 0;
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].committed < 0) {
            k->parts[i].init = true;
            k->inits_open++;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        /* What is still summed of a round that failed goes when that is done:
         * pass_over() in agent_send.c. */
        if (p->init && p->state == PS_AGENT_PART_IDLE) {
            ps_agent_round_go(st, p);
        }
    }
    if (k->inits_open == 0) {
        ps_buf_unref(k->init_array.buf);
        k->init_array = (struct ps_slice){0};
    }
}

void ps_agent_init_take(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    op->round = 0;
    ps_list_push_back(&k->inits, &op->node);
    if (is_root(op) && k->inits_open == 0 && !k->active) {
        send_init(st, k, op);
    }
    if (k->part_count == 0 || k->parts[0].node != 0) {
        ps_agent_pull_check(st, k);
    } else {
        end_satisfied(st, k, &k->inits);
    }
}

void ps_agent_init_again(struct ps_agent_step *st, struct ps_agent_key *k)
{
    PS_LIST_EACH(n, &k->inits)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (is_root(op) && k->inits_open == 0) {
            send_init(st, k, op);
            return;
        }
    }
}

bool ps_agent_init_reopen(struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->committed != 0 || p->held != NONE || k->active || p->init) {
        return false;
    }
    PS_LIST_EACH(n, &k->inits)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        if (!is_root(op)) {
            continue;
        }
        if (k->inits_open == 0) {
            ps_buf_unref(k->init_array.buf);
            k->init_array = op->array;
            ps_buf_ref(op->array.buf);
            k->init_attempt++;
        }
        k->inits_open++;
        p->init = true;
        p->committed = NONE;
        return true;
    }
    return false;
}

void ps_agent_init_reached(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->state != PS_AGENT_PART_SUMMING) {
        ps_agent_send_unqueue(st, p);
    }
    p->init = false;
    assert(k->inits_open > 0);
    if (--k->inits_open > 0) {
        return;
    }
    ps_buf_unref(k->init_array.buf);
    k->init_array = (struct ps_slice){0};
    ps_agent_pull_check(st, k);
    if (k->active && k->complete) {
        /* A round became complete meanwhile: its partitions go now. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *q = &k->parts[i];

            if (q->state == PS_AGENT_PART_IDLE &&
                q->committed < (int64_t)k->round && ps_agent_round_there(q)) {
                ps_agent_round_go(st, q);
            }
        }
        ps_agent_resume_made(st, k);
    }
}
