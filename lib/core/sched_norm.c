/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of whole arrays, for optimizers that need them: servers say what the
 * squares of their partitions add up to, and hear the sum when all have. A
 * server says so again when it may not have been heard, and a partition counts
 * once. No partition begins a step before all have made the last one, so the
 * sum under way and the last answer are all there is to keep for a key. */
#include "core/sched_inner.h"

#include "base/alloc.h"
#include "base/squares.h"

/* Partitions of a key that come to one point of one step. */
struct sum {
    struct ps_bits in;
    uint64_t wild;
    struct ps_squares squares;
    struct ps_squares weight_squares;
};

struct ps_norm {
    /* The answer, or what it will be: gen, key, round and stage at first. */
    struct ps_msg_norms norms;
    struct sum *sum; /* Under way; NULL: the answer is there. */
};

static void sum_free(struct ps_norm *n)
{
    if (n->sum != NULL) {
        ps_bits_fini(&n->sum->in);
        ps_free(n->sum);
        n->sum = NULL;
    }
}

void ps_sched_norms_free(struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->key_count; i++) {
        struct ps_norm *n = j->keys[i]->norm;

        if (n != NULL) {
            sum_free(n);
            ps_free(n);
            j->keys[i]->norm = NULL;
        }
    }
}

static void tell(struct ps_sched_step *st, struct ps_member *server,
                 const struct ps_norm *n)
{
    ps_sched_tell(st, server,
                  &(struct ps_msg){.code = PS_MSG_NORMS, .norms = n->norms});
}

static bool has_part(const struct ps_job_key *k, uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].node == node) {
            return true;
        }
    }
    return false;
}

static void tell_all(struct ps_sched_step *st, const struct ps_sched_job *j,
                     const struct ps_job_key *k)
{
    for (uint32_t i = 0; i < j->server_count; i++) {
        const uint32_t node = j->servers[i].node;

        if (has_part(k, node)) {
            tell(st, ps_members_get(&st->s->members, node), k->norm);
        }
    }
}

/* Negative: `m` is of a point before that of `n`; 0: of the same. */
static int compare(const struct ps_msg_squares *m, const struct ps_norm *n)
{
    if (m->round != n->norms.round) {
        return m->round < n->norms.round ? -1 : 1;
    }
    return (int)m->stage - (int)n->norms.stage;
}

static void begin(struct ps_job_key *k, const struct ps_msg_squares *m)
{
    if (k->norm == NULL) {
        k->norm = ps_calloc(1, sizeof(*k->norm));
    }
    k->norm->norms = (struct ps_msg_norms){
        .gen = m->gen, .key = m->key, .round = m->round, .stage = m->stage};
    k->norm->sum = ps_calloc(1, sizeof(*k->norm->sum));
    ps_bits_init(&k->norm->sum->in, k->part_count);
}

static void complete(struct ps_norm *n)
{
    n->norms.wild = n->sum->wild;
    n->norms.square = ps_squares_value(&n->sum->squares);
    n->norms.weight_square = ps_squares_value(&n->sum->weight_squares);
    sum_free(n);
}

/* Is it of a partition that the server has? */
static struct ps_job_key *key_of(const struct ps_sched_job *j,
                                 const struct ps_member *server,
                                 const struct ps_msg_squares *m)
{
    struct ps_job_key *k = m->key < j->key_count ? j->keys[m->key] : NULL;

    return k != NULL && m->index < k->part_count &&
                   k->parts[m->index].node == server->node &&
                   m->stage != PS_STAGE_LAST
               ? k
               : NULL;
}

void ps_sched_squares(struct ps_sched_step *st, struct ps_member *server,
                      const struct ps_msg_squares *m)
{
    struct ps_sched_job *j = ps_sched_job(st->s, m->gen);

    if (j == NULL) {
        ps_sched_job_tell_ended(st, server, m->gen, UINT32_MAX - 1);
        return;
    }
    struct ps_job_key *k = key_of(j, server, m);

    if (k == NULL || !ps_job_open_for_work(j)) {
        return; /* A failed job's servers are told so anyway. */
    }
    const int order = k->norm != NULL ? compare(m, k->norm) : 1;

    if (order < 0 || (order > 0 && k->norm != NULL && k->norm->sum != NULL)) {
        return; /* Overtaken by its own answer. */
    }
    if (order == 0 && k->norm->sum == NULL) {
        tell(st, server, k->norm);
        return;
    }
    if (order > 0) {
        begin(k, m);
    }
    struct sum *sum = k->norm->sum;

    if (!ps_bits_set(&sum->in, m->index)) {
        return;
    }
    sum->wild += m->wild;
    ps_squares_add_packed(&sum->squares, 0, m->first, m->digits,
                          m->digits_count);
    ps_squares_add_packed(&sum->weight_squares, 0, m->weight_first,
                          m->weight_digits, m->weight_digits_count);
    if (ps_bits_full(&sum->in)) {
        complete(k->norm);
        tell_all(st, j, k);
    }
}
