/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of async and ssp jobs, which have no rounds. A node has one push of a
 * key open at a time; it ends when every partition is applied, and later pushes
 * of local ranks wait in order. With rule accumulate, waiting pushes of
 * different ranks travel as one sum; otherwise each travels alone, because two
 * optimizer steps differ from one step with the sum. A pull waits until the
 * puller's own pushes are applied, requests the newest value from the servers,
 * and writes it to the worker's memory: ranks share no version.
 *
 * A pull draws a ticket when it may start, and a request covers all tickets
 * drawn before it. Each partition has at most one open request, so values never
 * go back.
 *
 * In an ssp job a pull starts when every rank of the job has pushed as often as
 * the puller, less the staleness. A push carries the clock of this node;
 * servers compute the least clock of all slots and report it when it grows. */
#include "base/num.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/pull.h"
#include "core/agent/round.h"
#include "core/agent/send.h"
#include "core/agent/server.h"

#include <string.h>

struct async_key {
    /* ssp: least push count of the local ranks, pushes in flight included. */
    uint64_t clock;
    uint64_t last_ticket;
    /* By local rank: last applied push. The partitions follow. */
    uint64_t applied_round[];
};

struct async_part {
    uint64_t served_ticket; /* Pulls up to this ticket have the value. */
    /* Pulls up to this ticket get the value with the next reply. */
    uint64_t requested_ticket;
    uint64_t clock; /* ssp: pushes that every rank of the job has made. */
    bool must_request_clock; /* `clock` may be stale: replies were lost. */
};

static struct async_key *async_key(const struct ps_agent_key *k)
{
    return k->own;
}

static struct async_part *async_part(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;
    void *first = &async_key(k)->applied_round[k->job->local_rank_count];

    return (struct async_part *)first + p->index;
}

static const char rule_required_text[] =
    "an async or ssp job needs an optimizer, or a rule stated by all workers "
    "when they open it (accumulate or assign), before a key gets its first "
    "value";

static uint8_t push_rule(const struct ps_agent_job *j)
{
    return j->config.has_optimizer ? PS_RULE_STEP : j->config.rule;
}

static bool validate_async_op(struct ps_agent_step *st,
                              struct ps_agent_session *s,
                              const struct ps_agent_key *k,
                              const struct ps_msg_l_op *m,
                              const struct ps_slice *array)
{
    if (m->op == PS_OP_BROADCAST || m->op == PS_OP_BROADCAST_SEND_ONLY) {
        return ps_agent_op_reject(
            st, s, m, PS_E_UNSUPPORTED,
            "'%s': a broadcast is a round of all workers, "
            "and an async or ssp job has none; init gives "
            "a key its first value",
            k->name);
    }
    if (m->op == PS_OP_SKIP) {
        return ps_agent_op_reject(
            st, s, m, PS_E_UNSUPPORTED,
            "'%s': only a round can be skipped, and an async "
            "or ssp job has none",
            k->name);
    }
    if (m->op != PS_OP_PULL && push_rule(k->job) == PS_RULE_NONE) {
        return ps_agent_op_reject(st, s, m, PS_E_INVAL, "'%s': %s", k->name,
                                  rule_required_text);
    }
    if ((m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL) &&
        m->reduce != PS_REDUCE_SUM) {
        return ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': reduction %s needs a round; pushes of an "
            "async or ssp job are applied one by one",
            k->name, ps_reduce_name(m->reduce));
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PUSHPULL) &&
        array->buf == NULL) {
        return ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': a pull of an async or ssp job needs memory for the value",
            k->name);
    }
    return true;
}

/* ----------------------------------------------------------------- pushing */

static bool is_push_idle(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        /* A sum of failed pushes may still run. */
        if (k->parts[i].state == PS_AGENT_PART_COMPUTING) {
            return false;
        }
    }
    return !ps_agent_round_is_open(k);
}

static void contribute_push(struct ps_agent_key *k, struct ps_agent_op *op)
{
    k->round.contribution[op->local_rank] = op;
    k->round.contributed_count++;
    if (k->round.contributed_count == 1 || op->priority > k->round.priority) {
        k->round.priority = op->priority;
    }
}

/* Pushes that every local rank has made, including the open ones. */
static uint64_t node_clock(const struct ps_agent_key *k)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        uint64_t count = k->round.contribution[i] != NULL
                             ? k->round.contribution[i]->round
                             : async_key(k)->applied_round[i];

        least = ps_min_u64(least, count);
    }
    return least;
}

/* Opens a push with the deferred operations, unless one is open: the first, or
 * with rule accumulate the first of each rank. */
static void start_push(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (!is_push_idle(k) || ps_list_empty(&k->round.deferred_pushes)) {
        return;
    }
    ps_agent_round_set_state(k, PS_AGENT_ROUND_OPEN);
    k->round.needs_value = false;
    k->round.number++;
    k->round.contributed_count = 0;
    k->round.op = PS_OP_PUSH;
    k->round.reduce = PS_REDUCE_SUM;
    k->round.rule = push_rule(k->job);
    PS_LIST_EACH_SAFE(struct ps_agent_op, op, node, &k->round.deferred_pushes)
    {
        if (k->round.contributed_count == 0 ||
            (k->round.rule == PS_RULE_ACCUMULATE &&
             k->round.contribution[op->local_rank] == NULL)) {
            ps_list_remove(&op->node);
            contribute_push(k, op);
        }
    }
    async_key(k)->clock = k->job->config.mode == PS_MODE_SSP ? node_clock(k)
                                                             : 0;
    ps_agent_round_complete(st, k);
}

/* Ends the operations of the open push; a pushpull without error becomes a
 * pull. */
static void end_pushes(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text)
{
    ps_agent_round_set_state(k, PS_AGENT_ROUND_IDLE);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->round.contribution[i];

        k->round.contribution[i] = NULL;
        if (op == NULL) {
            continue;
        }
        if (error == 0) {
            async_key(k)->applied_round[i] = op->round;
        } else if (k->round.pushed_round[i] == op->round) {
            k->round.pushed_round[i]--; /* May be retried. */
        }
        if (error == 0 && op->kind == PS_OP_PUSHPULL && op->session != NULL) {
            ps_list_push_back(&k->pulls, &op->node);
        } else {
            ps_agent_op_end(st, op, op->round, error, text);
        }
    }
}

static void advance_async(struct ps_agent_step *st, struct ps_agent_key *k);

static void end_push(struct ps_agent_step *st, struct ps_agent_key *k)
{
    end_pushes(st, k, 0, "");
    start_push(st, k);
    advance_async(st, k);
}

/* Fails the operations that a server refused: those of the open push, else the
 * inits, else the pulls. */
static void fail_async_ops(struct ps_agent_step *st, struct ps_agent_key *k,
                           int error, const char *text)
{
    bool pushes = ps_agent_round_is_open(k);

    for (uint32_t i = 0; pushes && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state != PS_AGENT_PART_COMPUTING && !p->is_init) {
            ps_agent_server_dequeue(st, p);
        }
    }
    if (pushes) {
        end_pushes(st, k, error, text);
    } else if (k->init.pending_parts > 0) {
        ps_agent_fail_inits(st, k, error, text);
    } else {
        ps_agent_fail_list(st, &k->pulls, error, text);
    }
    /* An init may have waited for this push. */
    ps_agent_init_start_pending(st, k);
    start_push(st, k);
}

/* ----------------------------------------------------------------- pulling */

/* Pushes that every rank of the job has made to all partitions. */
static uint64_t job_clock(const struct ps_agent_key *k)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        least = ps_min_u64(least, async_part(&k->parts[i])->clock);
    }
    return least;
}

/* Returns true when the puller's earlier pushes are applied and, in ssp, no
 * rank is behind by more than the staleness. */
static bool is_pull_ready(const struct ps_agent_key *k,
                          const struct ps_agent_op *op)
{
    const struct ps_agent_job *j = k->job;

    return async_key(k)->applied_round[op->local_rank] >= op->round &&
           (j->config.mode != PS_MODE_SSP || op->round <= j->config.staleness ||
            job_clock(k) >= op->round - j->config.staleness);
}

static void draw_ticket(struct ps_agent_key *k, struct ps_agent_op *op)
{
    if (op->ticket == 0) {
        op->ticket = ++async_key(k)->last_ticket;
    }
}

static void end_answered_ops(struct ps_agent_step *st,
                             const struct ps_agent_key *k, struct ps_list *list)
{
    uint64_t least_served = UINT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        least_served = ps_min_u64(least_served,
                                  async_part(&k->parts[i])->served_ticket);
    }
    PS_LIST_EACH_SAFE(struct ps_agent_op, op, node, list)
    {
        if (op->ticket != 0 && op->ticket <= least_served) {
            ps_list_remove(&op->node);
            ps_agent_op_end(st, op, op->round, 0, "");
        }
    }
}

static void advance_async(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t last = 0;

    end_answered_ops(st, k, &k->pulls);
    end_answered_ops(st, k, &k->init.ops);
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->pulls)
    {
        if (is_pull_ready(k, op)) {
            draw_ticket(k, op);
            last = op->ticket > last ? op->ticket : last;
        }
    }
    if (k->init.pending_parts == 0) {
        /* An init ends when a value exists, from any rank. */
        PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->init.ops)
        {
            draw_ticket(k, op);
            last = op->ticket > last ? op->ticket : last;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];
        struct async_part *own = async_part(p);
        struct ps_rec_part rec = {.key = k->number,
                                  .index = p->index,
                                  .dtype = k->dtype,
                                  .count = p->count};
        struct ps_agent_send_queue *f;

        if ((own->served_ticket >= last && !own->must_request_clock) ||
            p->requested_version != NO_VERSION) {
            continue;
        }
        p->requested_version = 0;
        own->must_request_clock = false;
        own->requested_ticket = async_key(k)->last_ticket;
        f = ps_agent_send_queue_get(st, k->job, p->owner_node);
        ps_agent_server_send_msg(
            st, f->server,
            &(struct ps_msg){.code = PS_MSG_PULL,
                             .pull = {.gen = k->job->gen,
                                      .epoch = st->a->servers.map_epoch,
                                      .slot = k->job->slot,
                                      .parts = &rec,
                                      .parts_count = 1}});
    }
}

void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock)
{
    if (p->key->kind == &ps_agent_key_async) {
        async_part(p)->clock = ps_max_u64(async_part(p)->clock, clock);
    }
}

/* Requests clocks again: after a link was replaced, because reports on the old
 * link may be lost, and after the server refused to report one. */
static void reset_clocks(struct ps_agent_key *k, uint32_t node, uint32_t part)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->job->config.mode == PS_MODE_SSP &&
            (part == PS_AGENT_ALL_PARTS || part == i) &&
            (node == 0 || k->parts[i].owner_node == node)) {
            async_part(&k->parts[i])->must_request_clock = true;
        }
    }
}

static int accept_async_value(struct ps_agent_step *st, struct ps_agent_part *p,
                              const struct ps_rec_part *rec,
                              const struct ps_slice *from)
{
    struct ps_agent_key *k = p->key;
    struct async_part *own = async_part(p);

    ps_agent_async_raise_clock(p, rec->clock);
    if (rec->codec != PS_CODEC_NONE || p->requested_version == NO_VERSION) {
        /* Malformed, because only rounds are encoded; or a duplicate of an
         * answer, after a request was sent again. */
        return 0;
    }
    PS_LIST_EACH_OF(const struct ps_agent_op, op, node, &k->pulls)
    {
        if (op->ticket > own->served_ticket &&
            op->ticket <= own->requested_ticket) {
            const struct ps_slice to = ps_agent_part_slice(p, &op->array);

            memcpy(ps_slice_data(&to), ps_slice_data(from), to.len);
        }
    }
    st->a->stats.bytes_in += from->len;
    own->served_ticket = own->requested_ticket;
    p->requested_version = NO_VERSION;
    advance_async(st, k);
    return 0;
}

/* Returns true for a push that is applied although its worker died: the worker
 * that replaces it continues with the next one. */
static bool is_push_kept(const struct ps_agent_op *op)
{
    return (op->kind == PS_OP_PUSH || op->kind == PS_OP_PUSHPULL) &&
           op->round > async_key(op->key)->applied_round[op->local_rank];
}

static void accept_async_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (op->kind == PS_OP_PULL) {
        ps_list_push_back(&k->pulls, &op->node);
        advance_async(st, k);
        return;
    }
    k->round.pushed_round[op->local_rank] = op->round;
    ps_list_push_back(&k->round.deferred_pushes, &op->node);
    start_push(st, k);
}

/* --------------------------------------------------------------------- kind */

/* ssp: a pull waits for the rounds beyond the staleness. */
static uint64_t awaited_async_round(const struct ps_agent_op *op)
{
    const struct ps_agent_job *j = op->key->job;

    return j->config.mode == PS_MODE_SSP && op->round > j->config.staleness &&
                   (op->kind == PS_OP_PULL || op->kind == PS_OP_PUSHPULL)
               ? op->round - j->config.staleness
               : 0;
}

static uint64_t push_clock(const struct ps_agent_key *k)
{
    return async_key(k)->clock;
}

/* Values are copied to the worker's own memory. */
static int place_async_value(struct ps_agent *a, const struct ps_agent_part *p,
                             const struct ps_rec_part *rec, uint64_t len,
                             struct ps_slice *ret_slice)
{
    (void)p;
    (void)rec;
    return ps_agent_server_alloc_payload(a, len, ret_slice);
}

const struct ps_agent_key_kind ps_agent_key_async = {
    .push_code = PS_MSG_PUSH,
    .own = {.key = sizeof(struct async_key),
            .rank = sizeof(uint64_t),
            .part = sizeof(struct async_part)},
    .part_fits_frame = ps_agent_part_fits_frame,
    .measure_array = ps_agent_op_measure_dense,
    .validate_op = validate_async_op,
    .accept_op = accept_async_op,
    .is_push_kept = is_push_kept,
    .awaited_round = awaited_async_round,
    .start_part = ps_agent_send_dense,
    .push_clock = push_clock,
    .end_round = end_push,
    .fail_ops = fail_async_ops,
    .resume_push = start_push,
    .advance = advance_async,
    .on_requests_lost = reset_clocks,
    .place_value = place_async_value,
    .accept_value = accept_async_value,
    .loss_text = "a server was lost with values of this key, of which there is "
                 "no other copy",
};
