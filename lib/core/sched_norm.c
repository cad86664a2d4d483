/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of whole arrays, for optimizers that need them: servers say what the
 * squares of their partitions add up to, and hear the sum when all have. A
 * server says so again when it may not have been heard, and a partition counts
 * once. No partition comes to the next point of a step before all have been at
 * this one, so the sum under way and the answer before it, which one of them
 * may not have heard yet, are all there is to keep for a key. */
#include "core/sched_inner.h"

#include "base/alloc.h"
#include "base/squares.h"
#include "base/str.h"
#include "core/optim.h"

#include <inttypes.h>
#include <string.h>

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
    struct sum *sum;            /* Under way; NULL: the answer is there, */
    bool waits;                 /* but for the norm of all keys. */
    struct ps_msg_norms before; /* The last answer; round 0: none. */
};

/* Gradients of all keys, for one step of each. */
struct ps_norms {
    uint32_t seen; /* Keys of the job that have been looked at: */
    uint32_t keys; /* so many of them take part. */
    uint32_t in;   /* Keys whose sum is complete. */
    uint64_t wild;
    struct ps_squares squares;
};

static void sum_free(struct ps_norm *n)
{
    if (n->sum != NULL) {
        ps_bits_fini(&n->sum->in);
        ps_free(n->sum);
        n->sum = NULL;
    }
}

void ps_sched_norms_begin(struct ps_sched_job *j)
{
    struct ps_optim o;

    if (ps_optim_parse(j->optimizer, j->params, j->param_count, &o) == 0) {
        j->skips = ps_optim_skips(&o);
        j->all = ps_optim_clips_all(&o) ? ps_calloc(1, sizeof(*j->all)) : NULL;
    }
}

void ps_sched_norms_free(struct ps_sched_job *j)
{
    ps_free(j->all);
    j->all = NULL;
    for (uint32_t i = 0; i < j->key_count; i++) {
        struct ps_norm *n = j->keys[i] != NULL ? j->keys[i]->norm : NULL;

        if (n != NULL) {
            sum_free(n);
            ps_free(n);
            j->keys[i]->norm = NULL;
        }
    }
}

static void tell(struct ps_sched_step *st, struct ps_member *server,
                 const struct ps_msg_norms *norms)
{
    ps_sched_tell(st, server,
                  &(struct ps_msg){.code = PS_MSG_NORMS, .norms = *norms});
}

static void tell_all(struct ps_sched_step *st, const struct ps_sched_job *j,
                     const struct ps_job_key *k)
{
    for (uint32_t i = 0; i < j->server_count; i++) {
        const uint32_t node = j->servers[i].node;

        if (ps_job_key_on(k, node)) {
            tell(st, ps_members_get(&st->s->members, node), &k->norm->norms);
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
    k->norm->before = k->norm->norms;
    k->norm->norms = (struct ps_msg_norms){
        .gen = m->gen, .key = m->key, .round = m->round, .stage = m->stage};
    k->norm->sum = ps_calloc(1, sizeof(*k->norm->sum));
    ps_bits_init(&k->norm->sum->in, k->part_count);
}

/* Does a step of all keys wait for this one? */
static bool counts(const struct ps_job_key *k)
{
    return k != NULL && ps_dtype_is_real(k->dtype) && k->width == 0 &&
           strncmp(k->name, "c:", 2) != 0;
}

static void skip(struct ps_sched_step *st, struct ps_sched_job *j,
                 const struct ps_job_key *k)
{
    j->skipped++;
    if ((j->skipped & (j->skipped - 1)) == 0) { /* Ever more rarely. */
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "job %s gen %" PRIu64 " key %u round %" PRIu64
                        " skipped: the gradient has %" PRIu64
                        " elements that are not finite; %" PRIu64
                        " steps skipped so far",
                        j->name, j->gen, k->number, k->norm->norms.round,
                        k->norm->norms.wild, j->skipped);
    }
}

/* The answer for the key is there. */
static void answer(struct ps_sched_step *st, struct ps_sched_job *j,
                   const struct ps_job_key *k)
{
    if (j->skips && k->norm->norms.stage == PS_STAGE_GRADIENT &&
        k->norm->norms.wild > 0) {
        skip(st, j, k);
    }
    tell_all(st, j, k);
}

static void answer_all(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const double square = ps_squares_value(&j->all->squares);

    for (uint32_t i = 0; i < j->key_count; i++) {
        struct ps_norm *n = j->keys[i] != NULL ? j->keys[i]->norm : NULL;

        if (n != NULL && n->waits) {
            n->waits = false;
            n->norms.wild = j->all->wild;
            n->norms.all_square = square;
            answer(st, j, j->keys[i]);
        }
    }
    *j->all = (struct ps_norms){.seen = j->all->seen, .keys = j->all->keys};
}

/* Has every key given its gradient? Keys stay, and new ones come behind. */
static bool has_all(const struct ps_sched_job *j)
{
    struct ps_norms *all = j->all;

    for (; all->seen < j->key_count; all->seen++) {
        all->keys += counts(j->keys[all->seen]);
    }
    return all->in >= all->keys;
}

void ps_sched_norms_forget(struct ps_sched_job *j, const struct ps_job_key *k)
{
    if (j->all != NULL && k->number < j->all->seen) {
        j->all->keys -= counts(k);
    }
}

void ps_sched_norms_check(struct ps_sched_step *st, struct ps_sched_job *j)
{
    if (j->all != NULL && j->all->in > 0 && has_all(j)) {
        answer_all(st, j);
    }
}

/* All partitions of the key are in. */
static void complete(struct ps_sched_step *st, struct ps_sched_job *j,
                     struct ps_job_key *k)
{
    struct ps_norm *n = k->norm;

    n->norms.wild = n->sum->wild;
    n->norms.square = ps_squares_value(&n->sum->squares);
    n->norms.weight_square = ps_squares_value(&n->sum->weight_squares);
    if (j->all == NULL || n->norms.stage != PS_STAGE_GRADIENT) {
        sum_free(n);
        answer(st, j, k);
        return;
    }
    n->waits = true;
    j->all->in++;
    j->all->wild += n->sum->wild;
    ps_squares_merge(&j->all->squares, &n->sum->squares);
    sum_free(n);
    if (has_all(j)) {
        answer_all(st, j);
    }
}

/* Names in a list of keys, and what one may take of it. */
#define SHOWN_MAX 4u
#define SHOWN_LEN 80u

void ps_sched_norms_missing(const struct ps_sched_job *j, uint32_t key,
                            struct ps_str *out)
{
    const struct ps_norm *n = key < j->key_count && j->keys[key] != NULL
                                  ? j->keys[key]->norm
                                  : NULL;
    uint32_t count = 0;

    if (n == NULL || !n->waits) {
        return;
    }
    for (uint32_t i = 0; i < j->key_count; i++) {
        const struct ps_job_key *k = j->keys[i];

        if (!counts(k) || (k->norm != NULL && k->norm->waits)) {
            continue;
        }
        if (count < SHOWN_MAX) {
            ps_str_add(out, count == 0 ? "gradients of " : ", ");
            ps_str_add_escaped(out, k->name, strlen(k->name), SHOWN_LEN);
        }
        count++;
    }
    if (count == 0) {
        return; /* All are there, and the answer is on its way. */
    }
    if (count > SHOWN_MAX) {
        ps_str_addf(out, " and %u more", count - SHOWN_MAX);
    }
    ps_str_add(out, ", for the norm of all keys");
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

    if (order < 0 && m->round == k->norm->before.round &&
        m->stage == k->norm->before.stage) {
        /* Others have heard, and gone on: its answer went with a link. */
        tell(st, server, &k->norm->before);
        return;
    }
    if (order < 0 || (order > 0 && k->norm != NULL &&
                      (k->norm->sum != NULL || k->norm->waits))) {
        return; /* Overtaken by its own answer. */
    }
    if (order == 0 && k->norm->sum == NULL) {
        if (!k->norm->waits) {
            tell(st, server, &k->norm->norms);
        }
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
        complete(st, j, k);
    }
}
