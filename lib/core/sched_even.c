/* SPDX-License-Identifier: Apache-2.0 */
/* Asked by an operator: which partitions of a job have to lie on other servers
 * for these to be even, or for one to be empty? Planned at once; the rows are
 * sent as the connection takes them, and then sched_move.c makes the moves, if
 * that was asked for. */
#include "core/sched_inner.h"

#include "base/alloc.h"
#include "core/even.h"

#include <assert.h>
#include <string.h>

struct move {
    uint32_t key;
    uint32_t from; /* Nodes. */
    uint32_t to;
    uint32_t parts;
    uint64_t bytes;
};

/* Rows to be told, and the end behind them. */
struct ps_sched_moves {
    uint64_t gen;
    uint32_t next;
    uint32_t count;
    struct move *list;
    bool waits; /* The end comes when they are made, */
    bool made;  /* as they are, */
    int rc;     /* or not. */
    char text[PS_TEXT_MAX + 1];
};

/* A plan: the job's servers with those that it could have beside them, and all
 * partitions that can be moved. */
struct plan {
    uint32_t node[PS_SERVERS_MAX];
    uint64_t bytes[PS_SERVERS_MAX];
    uint32_t server_count;
    const struct ps_member *spare[PS_SERVERS_MAX];
    uint32_t spare_count;
    struct ps_even_piece *pieces;
    uint32_t count;
    uint32_t moved;
};

void ps_sched_even_drop(struct ps_sched_conn *c)
{
    if (c->moves != NULL) {
        ps_free(c->moves->list);
        ps_free(c->moves);
        c->moves = NULL;
    }
}

/* Rows of a key lie with what optimizers keep of them: they stay. */
static bool is_movable(const struct ps_job_key *k)
{
    return k != NULL && k->width == 0;
}

static uint64_t count_parts(const struct ps_sched_job *j)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < j->key_count; i++) {
        n += is_movable(j->keys[i]) ? j->keys[i]->part_count : 0;
    }
    return n;
}

static uint32_t position_of(const struct plan *p, uint32_t node)
{
    uint32_t at = 0;

    while (p->node[at] != node) {
        at++;
        assert(at < p->server_count);
    }
    return at;
}

static void list_servers(const struct ps_sched *s, const struct ps_sched_job *j,
                         struct plan *p)
{
    p->spare_count = ps_sched_job_spares(s, j, p->spare);
    for (uint32_t i = 0; i < j->server_count; i++) {
        p->node[p->server_count] = j->servers[i].node;
        p->bytes[p->server_count++] = j->servers[i].bytes;
    }
    for (uint32_t i = 0; i < p->spare_count; i++) {
        p->node[p->server_count] = p->spare[i]->node;
        p->bytes[p->server_count++] = 0;
    }
}

/* Every partition, in the order of keys. */
static int list_pieces(const struct ps_sched_job *j, struct plan *p)
{
    p->pieces = ps_try_alloc((p->count + 1u) * sizeof(*p->pieces));

    struct ps_even_piece *at = p->pieces;

    if (at == NULL) {
        return PS_E_NOMEM;
    }

    for (uint32_t i = 0; i < j->key_count; i++) {
        const struct ps_job_key *k = j->keys[i];

        for (uint32_t n = 0; is_movable(k) && n < k->part_count; n++, at++) {
            at->from = position_of(p, k->parts[n].node);
            at->to = at->from;
            at->bytes = k->parts[n].count * ps_dtype_size(k->dtype);
        }
    }
    return 0;
}

/* Each piece of the server `off` to the one that has least then. */
static uint32_t empty(struct plan *p, uint32_t off)
{
    uint32_t moved = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        struct ps_even_piece *piece = &p->pieces[i];
        uint32_t to = off == 0 ? 1 : 0;

        if (piece->from != off) {
            continue;
        }
        for (uint32_t s = 0; s < p->server_count; s++) {
            to = s != off && p->bytes[s] < p->bytes[to] ? s : to;
        }
        piece->to = to;
        p->bytes[off] -= piece->bytes;
        p->bytes[to] += piece->bytes;
        moved++;
    }
    return moved;
}

static void add(struct ps_sched_moves *m, uint32_t first, uint32_t key,
                const struct plan *plan, const struct ps_even_piece *p)
{
    const uint32_t from = plan->node[p->from];
    const uint32_t node = plan->node[p->to];
    struct move *to = NULL;

    for (uint32_t i = m->count; i > first && to == NULL; i--) {
        if (m->list[i - 1].from == from && m->list[i - 1].to == node) {
            to = &m->list[i - 1];
        }
    }
    if (to == NULL) {
        to = &m->list[m->count++];
        *to = (struct move){.key = key, .from = from, .to = node};
    }
    to->parts++;
    to->bytes += p->bytes;
}

/* Moves of one key between the same servers are told together. */
static int gather(const struct ps_sched_job *j, struct ps_sched_moves *m,
                  const struct plan *plan)
{
    const struct ps_even_piece *p = plan->pieces;

    m->list = ps_try_alloc((plan->moved + 1u) * sizeof(*m->list));
    if (m->list == NULL) {
        return PS_E_NOMEM;
    }
    for (uint32_t i = 0; i < j->key_count; i++) {
        uint32_t first = m->count;

        for (uint32_t n = 0;
             is_movable(j->keys[i]) && n < j->keys[i]->part_count; n++, p++) {
            if (p->to != p->from) {
                add(m, first, i, plan, p);
            }
        }
    }
    return 0;
}

static int make_moves(struct ps_sched_step *st, struct ps_sched_job *j,
                      const struct plan *plan, ps_conn_id ctl)
{
    const struct ps_even_piece *p = plan->pieces;
    int rc = 0;

    ps_sched_moves_new(j, ctl);
    for (uint32_t i = 0; i < j->key_count; i++) {
        for (uint32_t n = 0;
             is_movable(j->keys[i]) && n < j->keys[i]->part_count; n++, p++) {
            if (p->to != p->from && rc == 0) {
                rc = ps_sched_moves_add(
                    st->s, j,
                    &(struct ps_sched_part_move){.key = i,
                                                 .index = n,
                                                 .from = plan->node[p->from],
                                                 .to = plan->node[p->to]});
            }
        }
    }
    if (rc != 0) {
        ps_sched_moves_free(j);
        return rc;
    }
    for (uint32_t i = 0; i < plan->spare_count; i++) {
        ps_sched_job_add_server(j, plan->spare[i]);
    }
    if (plan->spare_count > 0) {
        ps_sched_job_changed(st, j);
    }
    return 0;
}

/* Where every piece goes; the rows and the moves that follow from it. */
static int make_plan(struct ps_sched_step *st, struct ps_sched_job *j,
                     struct ps_sched_conn *c, struct plan *p, uint32_t off,
                     bool makes)
{
    int rc = list_pieces(j, p);

    if (rc == 0 && off < p->server_count) {
        p->moved = empty(p, off);
    } else if (rc == 0) {
        rc = ps_even_plan(p->pieces, p->count, p->bytes, p->server_count,
                          &p->moved);
    }
    if (rc == 0) {
        rc = gather(j, c->moves, p);
    }
    if (rc == 0 && makes && p->moved > 0) {
        rc = make_moves(st, j, p, c->id);
        c->moves->waits = rc == 0;
    }
    return rc;
}

/* Why nothing of the job can be moved now; NULL: it can. */
static const char *objection(const struct ps_sched_job *j, int *ret_rc)
{
    *ret_rc = PS_E_AGAIN;
    if (j->rebalance != NULL) {
        return "partitions of the job are being moved already; ask again when "
               "that is done";
    }
    if (j->phase != PS_JOB_PHASE_RUNNING) {
        return "the job is not running yet";
    }
    *ret_rc = PS_E_UNSUPPORTED;
    if (j->mode != PS_MODE_SYNC) {
        return "keys of an async or ssp job stay where they are: pushes "
               "without rounds cannot be told from each other at another "
               "server";
    }
    return NULL;
}

/* Where the server to be emptied is; server_count: there is none. */
static int find_off(const struct ps_sched_job *j, const char *off,
                    const struct plan *p, uint32_t *ret_at, struct ps_str *why)
{
    *ret_at = p->server_count;
    for (uint32_t i = 0; i < j->server_count && off[0] != '\0'; i++) {
        if (strcmp(j->servers[i].name, off) == 0) {
            *ret_at = i;
        }
    }
    if (off[0] == '\0') {
        return 0;
    }
    if (*ret_at == p->server_count) {
        ps_str_add(why, "the job has no server '");
        ps_str_add_escaped(why, off, strlen(off), PS_NAME_MAX);
        ps_str_add(why, "'; psctl keys lists those that it has");
        return PS_E_INVAL;
    }
    if (p->server_count < 2) {
        ps_str_add(why, "the job has no other server");
        return PS_E_INVAL;
    }
    return 0;
}

void ps_sched_even(struct ps_sched_step *st, struct ps_sched_conn *c,
                   struct ps_sched_job *j, const char *off, bool makes)
{
    const uint64_t count = count_parts(j);
    struct plan *p;
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;
    uint32_t at;
    int rc = 0;
    const char *no = makes ? objection(j, &rc) : NULL;

    if (no != NULL) {
        ps_sched_query_end(st, c, rc, no);
        return;
    }
    if (count > PS_EVEN_PIECES_MAX) {
        ps_sched_query_end(st, c, PS_E_TOOBIG,
                           "the job has more partitions than are looked at "
                           "for this");
        return;
    }
    p = ps_calloc(1, sizeof(*p));
    list_servers(st->s, j, p);
    ps_str_init(&why, text, sizeof(text));
    rc = find_off(j, off, p, &at, &why);
    if (rc != 0) {
        ps_free(p);
        ps_sched_query_end(st, c, rc, text);
        return;
    }
    c->moves = ps_calloc(1, sizeof(*c->moves));
    c->moves->gen = j->gen;
    if (j->server_count > 0) { /* Else the agent has it all. */
        p->count = (uint32_t)count;
        rc = make_plan(st, j, c, p, at, makes);
    }
    ps_free(p->pieces);
    ps_free(p);
    if (rc != 0) {
        ps_sched_even_drop(c);
        ps_str_addf(&why,
                    "the scheduler has no memory to plan for %u partitions: "
                    "ask again when others have ended",
                    (uint32_t)count);
        ps_sched_query_end(st, c, rc, text);
    } else if (c->moves->waits) {
        ps_sched_moves_start(st, j);
    }
}

void ps_sched_even_made(struct ps_sched_step *st, ps_conn_id ctl, uint64_t gen,
                        int rc, const char *text)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ctl);

    if (c == NULL || c->moves == NULL || c->moves->gen != gen) {
        return; /* Nobody waits for it any more. */
    }
    c->moves->made = true;
    c->moves->rc = rc;
    ps_str_copy(c->moves->text, sizeof(c->moves->text), text);
    ps_sched_query_pump(st, c);
}

static const char *server_name(const struct ps_sched *s, uint32_t node)
{
    const struct ps_member *m = ps_members_get(&s->members, node);

    return m != NULL ? m->name : "?";
}

static void tell(struct ps_sched_step *st, const struct ps_sched_conn *c,
                 const struct ps_sched_job *j, const struct move *m)
{
    const struct ps_job_key *k = j->keys[m->key];

    if (k == NULL) {
        return; /* Closed since the plan was made. */
    }
    ps_effects_tell(st->fx, c->id,
                    &(struct ps_msg){
                        .code = PS_MSG_MOVE_ROW,
                        .move_row = {.job = j->name,
                                     .key = k->number,
                                     .name = k->name,
                                     .from = server_name(st->s, m->from),
                                     .to = server_name(st->s, m->to),
                                     .parts = m->parts,
                                     .bytes = m->bytes},
                    });
}

void ps_sched_even_pump(struct ps_sched_step *st, struct ps_sched_conn *c,
                        uint32_t rows)
{
    struct ps_sched_moves *m = c->moves;
    const struct ps_sched_job *j;

    if (m == NULL) {
        return;
    }
    j = ps_sched_job(st->s, m->gen);
    if (j == NULL) {
        ps_sched_even_drop(c);
        ps_sched_query_end(st, c, PS_E_AGAIN, "the job has ended meanwhile");
        return;
    }
    for (; rows > 0 && m->next < m->count; rows--) {
        tell(st, c, j, &m->list[m->next++]);
    }
    if (m->next == m->count && (m->made || !m->waits)) {
        struct ps_sched_moves last = *m;

        ps_sched_even_drop(c);
        ps_sched_query_end(st, c, last.rc, last.text);
    }
}
