/* SPDX-License-Identifier: Apache-2.0 */
/* Asked by an operator: which partitions of a job would have to lie on other
 * servers? Planned at once; the rows are sent as the connection takes them. */
#include "core/sched_inner.h"

#include "base/alloc.h"
#include "core/even.h"

#include <assert.h>

struct move {
    uint32_t key;
    uint32_t from; /* Positions of servers in the job. */
    uint32_t to;
    uint32_t parts;
    uint64_t bytes;
};

struct ps_sched_moves {
    uint64_t gen;
    uint32_t epoch; /* In which the positions are right. */
    uint32_t next;
    uint32_t count;
    struct move *list;
};

void ps_sched_even_drop(struct ps_sched_conn *c)
{
    if (c->moves != NULL) {
        ps_free(c->moves->list);
        ps_free(c->moves);
        c->moves = NULL;
    }
}

static uint64_t count_parts(const struct ps_sched_job *j)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < j->key_count; i++) {
        n += j->keys[i]->part_count;
    }
    return n;
}

static uint32_t position_of(const struct ps_sched_job *j, uint32_t node)
{
    uint32_t at = 0;

    while (j->servers[at].node != node) {
        at++;
        assert(at < j->server_count);
    }
    return at;
}

/* Every partition, in the order of keys. */
static struct ps_even_piece *make_pieces(const struct ps_sched_job *j,
                                         uint64_t count)
{
    struct ps_even_piece *list = ps_alloc((count + 1) * sizeof(*list));
    struct ps_even_piece *p = list;

    for (uint32_t i = 0; i < j->key_count; i++) {
        const struct ps_job_key *k = j->keys[i];

        for (uint32_t n = 0; n < k->part_count; n++, p++) {
            p->from = position_of(j, k->parts[n].node);
            p->to = p->from;
            p->bytes = k->parts[n].count * ps_dtype_size(k->dtype);
        }
    }
    return list;
}

static void add(struct ps_sched_moves *m, uint32_t first, uint32_t key,
                const struct ps_even_piece *p)
{
    struct move *to = NULL;

    for (uint32_t i = m->count; i > first && to == NULL; i--) {
        if (m->list[i - 1].from == p->from && m->list[i - 1].to == p->to) {
            to = &m->list[i - 1];
        }
    }
    if (to == NULL) {
        to = &m->list[m->count++];
        *to = (struct move){.key = key, .from = p->from, .to = p->to};
    }
    to->parts++;
    to->bytes += p->bytes;
}

/* Moves of one key between the same servers are told together. */
static void gather(const struct ps_sched_job *j, struct ps_sched_moves *m,
                   const struct ps_even_piece *p)
{
    for (uint32_t i = 0; i < j->key_count; i++) {
        uint32_t first = m->count;

        for (uint32_t n = 0; n < j->keys[i]->part_count; n++, p++) {
            if (p->to != p->from) {
                add(m, first, i, p);
            }
        }
    }
}

void ps_sched_even(struct ps_sched_step *st, struct ps_sched_conn *c,
                   const struct ps_sched_job *j)
{
    uint64_t count = count_parts(j);
    uint64_t bytes[PS_SERVERS_MAX];
    struct ps_even_piece *pieces;
    uint32_t moved;

    if (count > PS_EVEN_PIECES_MAX) {
        ps_sched_query_end(st, c, PS_E_TOOBIG,
                           "the job has more partitions than are looked at "
                           "for this");
        return;
    }
    c->moves = ps_calloc(1, sizeof(*c->moves));
    c->moves->gen = j->gen;
    c->moves->epoch = st->s->epoch;
    if (j->server_count == 0) {
        return; /* The agent has it all. */
    }
    for (uint32_t i = 0; i < j->server_count; i++) {
        bytes[i] = j->servers[i].bytes;
    }
    pieces = make_pieces(j, count);
    moved = ps_even_plan(pieces, (uint32_t)count, bytes, j->server_count);
    c->moves->list = ps_alloc((moved + 1u) * sizeof(*c->moves->list));
    gather(j, c->moves, pieces);
    ps_free(pieces);
}

static void tell(struct ps_sched_step *st, const struct ps_sched_conn *c,
                 const struct ps_sched_job *j, const struct move *m)
{
    const struct ps_job_key *k = j->keys[m->key];

    ps_effects_tell(st->fx, c->id,
                    &(struct ps_msg){
                        .code = PS_MSG_MOVE_ROW,
                        .move_row = {.job = j->name,
                                     .key = k->number,
                                     .name = k->name,
                                     .from = j->servers[m->from].name,
                                     .to = j->servers[m->to].name,
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
    if (j == NULL || m->epoch != st->s->epoch) {
        ps_sched_even_drop(c);
        ps_sched_query_end(st, c, PS_E_AGAIN,
                           j == NULL ? "the job has ended meanwhile"
                                     : "the servers have changed meanwhile");
        return;
    }
    for (; rows > 0 && m->next < m->count; rows--) {
        tell(st, c, j, &m->list[m->next++]);
    }
    if (m->next == m->count) {
        ps_sched_even_drop(c);
        ps_sched_query_end(st, c, 0, NULL);
    }
}
