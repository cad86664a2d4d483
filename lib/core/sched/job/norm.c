/* SPDX-License-Identifier: Apache-2.0 */
/* Norm allreduce: servers send the sums of squares of their partitions of a
 * key, and get the total when all have arrived. A server sends its part again
 * when the first may be lost, and a partition counts once. No partition reaches
 * the next stage of a step before all have reached this one, so the pending sum
 * and the result before it, which some server may still lack, are all the state
 * of a key. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/square_sum.h"
#include "base/str.h"
#include "core/optim/optim.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <string.h>

/* Sum over the partitions of a key, for one stage of one step. */
struct key_sum {
    struct ps_bits arrived;
    uint64_t nonfinite_count;
    struct ps_square_sum square_sum;
    struct ps_square_sum weight_square_sum;
};

struct ps_sched_norm {
    /* Result, or gen, key, round and stage of the pending one. */
    struct ps_msg_norm_result result;
    struct key_sum *pending; /* NULL: the result is complete. */
    bool awaits_global;      /* Complete but for the norm of all keys. */
    uint64_t number; /* Of the last norm of all keys that it was in; 0: none. */
    /* Result before; round 0: none. */
    struct ps_msg_norm_result prior_result;
};

/* Norm of the gradients of all keys, for one step of each. */
struct ps_sched_global_norm {
    uint32_t counted_keys; /* Keys of the job, by number, that were examined. */
    uint32_t expected_keys; /* Of those, keys that take part. */
    uint32_t arrived_keys;  /* Keys whose sum is complete. */
    uint64_t nonfinite_count;
    struct ps_square_sum square_sum;
    /* Number of the last one that was answered, here or by the scheduler before
     * this one, and what it was. */
    uint64_t number;
    bool is_last_known; /* False: some server has the result, which comes. */
    uint64_t last_nonfinite_count;
    double last_square_sum;
};

uint64_t ps_sched_norms_so_far(const struct ps_sched_job *j)
{
    return j->norms.global != NULL ? j->norms.global->number : 0;
}

static void pending_free(struct ps_sched_norm *n)
{
    if (n->pending != NULL) {
        ps_bits_fini(&n->pending->arrived);
        ps_free(n->pending);
        n->pending = NULL;
    }
}

void ps_sched_norm_init(struct ps_sched_job *j, const struct ps_optim *o)
{
    j->norms.skips_nonfinite = ps_optim_skips_nonfinite(o);
    j->norms.global = ps_optim_clips_global_norm(o)
                          ? ps_calloc(1, sizeof(*j->norms.global))
                          : NULL;
}

void ps_sched_norm_free(struct ps_sched_job *j)
{
    ps_free(j->norms.global);
    j->norms.global = NULL;
    for (uint32_t i = 0; i < j->keys.count; i++) {
        struct ps_sched_norm *n = j->keys.list[i] != NULL
                                      ? j->keys.list[i]->norm
                                      : NULL;

        if (n != NULL) {
            pending_free(n);
            ps_free(n);
            j->keys.list[i]->norm = NULL;
        }
    }
}

static void send_norm_result(struct ps_sched_step *st, struct ps_member *server,
                             const struct ps_msg_norm_result *norms)
{
    ps_sched_send_msg(
        st, server,
        &(struct ps_msg){.code = PS_MSG_NORM_RESULT, .norm_result = *norms});
}

static void broadcast_result(struct ps_sched_step *st,
                             const struct ps_sched_job *j,
                             const struct ps_sched_key *k,
                             const struct ps_msg_norm_result *result)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        const uint32_t node = j->servers.list[i].node;

        if (ps_sched_key_is_on(k, node)) {
            send_norm_result(st, ps_members_get(&st->s->members, node), result);
        }
    }
}

/* Negative: `m` is of an earlier stage than `n`; 0: of the same. */
static int compare_stage(const struct ps_msg_norm_part *m,
                         const struct ps_sched_norm *n)
{
    if (m->round != n->result.round) {
        return m->round < n->result.round ? -1 : 1;
    }
    return (int)m->stage - (int)n->result.stage;
}

/* True: the key takes part in the global norm: dense, real, no collective. */
static bool is_in_global_norm(const struct ps_sched_key *k)
{
    return k != NULL && ps_dtype_is_real(k->dtype) && k->row_width == 0 &&
           k->kind != PS_KEY_KIND_COLLECTIVE;
}

static void count_skipped_step(struct ps_sched_step *st, struct ps_sched_job *j,
                               const struct ps_sched_key *k)
{
    j->norms.skipped_steps++;
    /* Logged at powers of two. */
    if ((j->norms.skipped_steps & (j->norms.skipped_steps - 1)) == 0) {
        ps_effects_log_for(
            st->fx, &j->account, PS_LOG_WARNING,
            "job %s gen %" PRIu64 " key %u round %" PRIu64
            " skipped: the gradient has %" PRIu64
            " elements that are not finite; %" PRIu64 " steps skipped so far",
            j->name, j->gen, k->number, k->norm->result.round,
            k->norm->result.nonfinite_count, j->norms.skipped_steps);
    }
}

/* Sends the complete result of a key, and counts a skipped step. */
static void publish_result(struct ps_sched_step *st, struct ps_sched_job *j,
                           const struct ps_sched_key *k)
{
    if (j->norms.skips_nonfinite &&
        k->norm->result.stage == PS_STAGE_GRADIENT &&
        k->norm->result.nonfinite_count > 0) {
        count_skipped_step(st, j, k);
    }
    broadcast_result(st, j, k, &k->norm->result);
}

/* Gives a complete key the last norm of all keys. */
static void publish_with_global(struct ps_sched_step *st,
                                struct ps_sched_job *j,
                                const struct ps_sched_key *k)
{
    struct ps_sched_norm *n = k->norm;

    pending_free(n);
    n->awaits_global = false;
    n->result.nonfinite_count = j->norms.global->last_nonfinite_count;
    n->result.global_square_sum = j->norms.global->last_square_sum;
    n->result.number = j->norms.global->number;
    n->number = n->result.number;
    publish_result(st, j, k);
}

/* True: the last norm of all keys has the key's present gradient. */
static bool was_in_last(const struct ps_sched_job *j,
                        const struct ps_sched_key *k)
{
    return ps_max_u64(k->norm->number, k->norms_before) <
           j->norms.global->number;
}

static void count_arrived(struct ps_sched_global_norm *all,
                          const struct ps_sched_norm *n)
{
    all->arrived_keys++;
    all->nonfinite_count += n->pending->nonfinite_count;
    ps_square_sum_merge(&all->square_sum, &n->pending->square_sum);
}

/* Gives the last norm of all keys to those that it has; the others wait for the
 * next one. */
static void publish_last(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched_global_norm *all = j->norms.global;

    all->arrived_keys = 0;
    all->nonfinite_count = 0;
    all->square_sum = (struct ps_square_sum){0};
    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        if (k == NULL || k->norm == NULL || !k->norm->awaits_global) {
            continue;
        }
        if (!was_in_last(j, k)) {
            count_arrived(all, k->norm);
        } else if (all->is_last_known) {
            publish_with_global(st, j, k);
        }
    }
}

/* Gives up the sum of a key: a server has its result. */
static void drop_pending(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_norm *n)
{
    pending_free(n);
    if (n->awaits_global) {
        n->awaits_global = false;
        publish_last(st, j); /* Counts those that still wait. */
    }
}

static void begin_allreduce(struct ps_sched_step *st, struct ps_sched_job *j,
                            struct ps_sched_key *k,
                            const struct ps_msg_norm_part *m)
{
    if (k->norm == NULL) {
        k->norm = ps_calloc(1, sizeof(*k->norm));
    }
    if (k->norm->pending == NULL) {
        k->norm->prior_result = k->norm->result;
    }
    drop_pending(st, j, k->norm);
    k->norm->result = (struct ps_msg_norm_result){
        .gen = m->gen, .key = m->key, .round = m->round, .stage = m->stage};
    k->norm->pending = ps_calloc(1, sizeof(*k->norm->pending));
    ps_bits_init(&k->norm->pending->arrived, k->part_count);
}

static void publish_global(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched_global_norm *all = j->norms.global;

    all->number++;
    all->is_last_known = true;
    all->last_square_sum = ps_square_sum_value(&all->square_sum);
    all->last_nonfinite_count = all->nonfinite_count;
    publish_last(st, j);
}

/* True: the gradients of all keys have arrived. Keys that open later have
 * higher numbers, so each is examined once. */
static bool have_all_keys_arrived(const struct ps_sched_job *j)
{
    struct ps_sched_global_norm *all = j->norms.global;

    for (; all->counted_keys < j->keys.count; all->counted_keys++) {
        all->expected_keys += is_in_global_norm(
            j->keys.list[all->counted_keys]);
    }
    return all->arrived_keys >= all->expected_keys;
}

void ps_sched_norm_remove_key(struct ps_sched_job *j,
                              const struct ps_sched_key *k)
{
    if (j->norms.global != NULL && k->number < j->norms.global->counted_keys) {
        j->norms.global->expected_keys -= is_in_global_norm(k);
    }
}

void ps_sched_norm_recheck_global(struct ps_sched_step *st,
                                  struct ps_sched_job *j)
{
    if (j->norms.global != NULL && j->norms.global->arrived_keys > 0 &&
        have_all_keys_arrived(j)) {
        publish_global(st, j);
    }
}

/* Completes the sum of a key of which all partitions have arrived. */
static void complete_key(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_key *k)
{
    struct ps_sched_norm *n = k->norm;

    n->result.nonfinite_count = n->pending->nonfinite_count;
    n->result.square_sum = ps_square_sum_value(&n->pending->square_sum);
    n->result.weight_square_sum = ps_square_sum_value(
        &n->pending->weight_square_sum);
    if (j->norms.global == NULL || n->result.stage != PS_STAGE_GRADIENT) {
        pending_free(n);
        publish_result(st, j, k);
        return;
    }
    n->awaits_global = true;
    if (!was_in_last(j, k)) {
        count_arrived(j->norms.global, n);
        if (have_all_keys_arrived(j)) {
            publish_global(st, j);
        }
    } else if (j->norms.global->is_last_known) {
        publish_with_global(st, j, k);
    }
}

/* Keys named in a list, and bytes of each name. */
#define KEYS_NAMED_MAX     4u
#define KEY_NAME_SHOWN_MAX 80u

void ps_sched_norm_describe_missing(const struct ps_sched_job *j, uint32_t key,
                                    struct ps_str *out)
{
    const struct ps_sched_key *of = ps_sched_job_key(j, key);
    uint32_t count = 0;

    if (of == NULL || of->norm == NULL || !of->norm->awaits_global) {
        return;
    }
    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        if (!is_in_global_norm(k) ||
            (k->norm != NULL && k->norm->awaits_global)) {
            continue;
        }
        if (count < KEYS_NAMED_MAX) {
            ps_str_add(out, count == 0 ? "gradients of " : ", ");
            ps_str_add_escaped(out, k->name, strlen(k->name),
                               KEY_NAME_SHOWN_MAX);
        }
        count++;
    }
    if (count == 0) {
        return; /* All have arrived, and the result is in flight. */
    }
    if (count > KEYS_NAMED_MAX) {
        ps_str_addf(out, " and %u more", count - KEYS_NAMED_MAX);
    }
    ps_str_add(out, ", for the norm of all keys");
}

/* Key of the part, if the server owns the partition; else NULL. */
static struct ps_sched_key *find_key_of_part(const struct ps_sched_job *j,
                                             const struct ps_member *server,
                                             const struct ps_msg_norm_part *m)
{
    struct ps_sched_key *k = ps_sched_job_key(j, m->key);

    return k != NULL && m->index < k->part_count &&
                   k->parts[m->index].node == server->node &&
                   m->stage != PS_STAGE_LAST
               ? k
               : NULL;
}

/* The scheduler before this one has answered a norm of all keys. Its keys wait
 * here, or their servers have the answer; other keys were opened later. */
static void note_answered(struct ps_sched_step *st, struct ps_sched_job *j,
                          uint64_t number)
{
    struct ps_sched_global_norm *all = j->norms.global;

    if (all == NULL || number <= all->number) {
        return;
    }
    for (uint32_t i = 0; i < j->keys.count; i++) {
        struct ps_sched_key *k = j->keys.list[i];

        if (k != NULL && !k->was_loaded) {
            k->norms_before = number;
            ps_sched_store_key(st->s, j, k);
        }
    }
    all->number = number;
    all->is_last_known = false;
    publish_last(st, j);
}

static void adopt_global(struct ps_sched_step *st, struct ps_sched_job *j,
                         const struct ps_sched_key *k,
                         const struct ps_msg_norm_result *m)
{
    struct ps_sched_global_norm *all = j->norms.global;

    k->norm->number = ps_max_u64(k->norm->number, m->number);
    note_answered(st, j, m->number);
    if (all != NULL && m->number == all->number && !all->is_last_known) {
        all->is_last_known = true;
        all->last_square_sum = m->global_square_sum;
        all->last_nonfinite_count = m->nonfinite_count;
        publish_last(st, j);
    }
}

/* Keeps a result before the present one, which some server may lack: it sent its
 * part before the result was known here. */
static void adopt_prior(struct ps_sched_step *st, const struct ps_sched_job *j,
                        const struct ps_sched_key *k,
                        const struct ps_msg_norm_result *m)
{
    struct ps_msg_norm_result *prior = &k->norm->prior_result;

    if (m->round > prior->round ||
        (m->round == prior->round && m->stage > prior->stage)) {
        *prior = *m;
        broadcast_result(st, j, k, prior);
    }
}

void ps_sched_on_norm_result(struct ps_sched_step *st, struct ps_member *server,
                             const struct ps_msg *msg)
{
    const struct ps_msg_norm_result *m = &msg->norm_result;
    const struct ps_msg_norm_part stage = {.round = m->round,
                                           .stage = m->stage};
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_key *k = j != NULL ? ps_sched_job_key(j, m->key) : NULL;

    if (k == NULL || !ps_sched_job_is_open(j) || !j->store.was_loaded ||
        m->stage == PS_STAGE_LAST || !ps_sched_key_is_on(k, server->node)) {
        return;
    }
    if (k->norm == NULL) {
        k->norm = ps_calloc(1, sizeof(*k->norm));
    }
    const int order = compare_stage(&stage, k->norm);

    if (order < 0) {
        adopt_prior(st, j, k, m);
    } else if (order > 0 || k->norm->pending != NULL) {
        if (k->norm->pending == NULL) {
            k->norm->prior_result = k->norm->result;
        }
        drop_pending(st, j, k->norm);
        k->norm->result = *m;
        broadcast_result(st, j, k, m);
    }
    adopt_global(st, j, k, m);
}

void ps_sched_on_norm_part(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg *msg)
{
    const struct ps_msg_norm_part *m = &msg->norm_part;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);

    if (j == NULL) {
        ps_sched_job_send_ended(st, server, m->gen, UINT32_MAX - 1);
        return;
    }
    struct ps_sched_key *k = find_key_of_part(j, server, m);

    if (k == NULL || !ps_sched_job_is_open(j)) {
        return; /* Servers of a failed job are notified anyway. */
    }
    const int order = k->norm != NULL ? compare_stage(m, k->norm) : 1;

    if (order < 0 && m->round == k->norm->prior_result.round &&
        m->stage == k->norm->prior_result.stage) {
        /* Other servers have proceeded; this one lost the result with a
         * link. */
        send_norm_result(st, server, &k->norm->prior_result);
        return;
    }
    /* Late: its own result was sent before it arrived. Or a server has gone on by
     * a result of the scheduler before, which comes. */
    if (order < 0 || (order > 0 && !j->store.was_loaded && k->norm != NULL &&
                      k->norm->pending != NULL)) {
        return;
    }
    if (order == 0 && k->norm->pending == NULL) {
        send_norm_result(st, server, &k->norm->result);
        return;
    }
    if (order > 0) {
        begin_allreduce(st, j, k, m);
    }
    k->norm->number = ps_max_u64(k->norm->number, m->number);
    note_answered(st, j, m->number);
    struct key_sum *sum = k->norm->pending;

    if (!ps_bits_set(&sum->arrived, m->index)) {
        return;
    }
    sum->nonfinite_count += m->nonfinite_count;
    ps_square_sum_add_packed(&sum->square_sum, 0, m->first_digit, m->digits,
                             m->digits_count);
    ps_square_sum_add_packed(&sum->weight_square_sum, 0, m->weight_first_digit,
                             m->weight_digits, m->weight_digits_count);
    if (ps_bits_full(&sum->arrived)) {
        complete_key(st, j, k);
    }
}
