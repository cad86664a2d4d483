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
#include "core/agent/async.h"

#include "core/agent/contribution.h"
#include "core/agent/dense.h"
#include "core/agent/fail.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/pull.h"
#include "core/agent/round.h"
#include "core/agent/send_queue.h"
#include "core/agent/server.h"

#include <string.h>

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
        ps_agent_op_reject(st, s, m, PS_E_UNSUPPORTED,
                           "'%s': a broadcast is a round of all workers, "
                           "and an async or ssp job has none; init gives "
                           "a key its first value",
                           k->name);
        return false;
    }
    if (m->op == PS_OP_SKIP) {
        ps_agent_op_reject(st, s, m, PS_E_UNSUPPORTED,
                           "'%s': only a round can be skipped, and an async "
                           "or ssp job has none",
                           k->name);
        return false;
    }
    if (m->op != PS_OP_PULL && push_rule(k->job) == PS_RULE_NONE) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL, "'%s': %s", k->name,
                           rule_required_text);
        return false;
    }
    if ((m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL) &&
        m->reduce != PS_REDUCE_SUM) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': reduction %s needs a round; pushes of an "
                           "async or ssp job are applied one by one",
                           k->name, ps_reduce_name(m->reduce));
        return false;
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PUSHPULL) &&
        array->buf == NULL) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': the pull of an async or ssp job names no "
                           "memory for the value",
                           k->name);
        return false;
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
                             : k->async.applied_round[i];

        least = count < least ? count : least;
    }
    return least;
}

/* Opens a push with the deferred operations, unless one is open: the first, or
 * with rule accumulate the first of each rank. */
static void start_push(struct ps_agent_step *st, struct ps_agent_key *k)
{
    struct ps_list_node *n = ps_list_first(&k->round.deferred_pushes);

    if (!is_push_idle(k) || n == NULL) {
        return;
    }
    ps_agent_round_set_state(k, PS_AGENT_ROUND_OPEN);
    k->round.needs_value = false;
    k->round.number++;
    k->round.contributed_count = 0;
    k->round.op = PS_OP_PUSH;
    k->round.reduce = PS_REDUCE_SUM;
    k->round.rule = push_rule(k->job);
    while (n != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        n = ps_list_next(&k->round.deferred_pushes, n);
        if (k->round.contributed_count == 0 ||
            (k->round.rule == PS_RULE_ACCUMULATE &&
             k->round.contribution[op->local_rank] == NULL)) {
            ps_list_remove(&op->node);
            contribute_push(k, op);
        }
    }
    k->async.clock = k->job->config.mode == PS_MODE_SSP ? node_clock(k) : 0;
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
            k->async.applied_round[i] = op->round;
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
            ps_agent_send_dequeue(st, p);
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
        least = k->parts[i].async.clock < least ? k->parts[i].async.clock
                                                : least;
    }
    return least;
}

/* Returns true when the puller's earlier pushes are applied and, in ssp, no
 * rank is behind by more than the staleness. */
static bool is_pull_ready(const struct ps_agent_key *k,
                          const struct ps_agent_op *op)
{
    const struct ps_agent_job *j = k->job;

    return k->async.applied_round[op->local_rank] >= op->round &&
           (j->config.mode != PS_MODE_SSP || op->round <= j->config.staleness ||
            job_clock(k) >= op->round - j->config.staleness);
}

static void draw_ticket(struct ps_agent_key *k, struct ps_agent_op *op)
{
    if (op->ticket == 0) {
        op->ticket = ++k->async.last_ticket;
    }
}

static void end_answered_ops(struct ps_agent_step *st,
                             const struct ps_agent_key *k, struct ps_list *list)
{
    struct ps_list_node *n = ps_list_first(list);
    uint64_t least_served = UINT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].async.served_ticket < least_served) {
            least_served = k->parts[i].async.served_ticket;
        }
    }
    while (n != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        n = ps_list_next(list, n);
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
    PS_LIST_EACH(n, &k->pulls)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (is_pull_ready(k, op)) {
            draw_ticket(k, op);
            last = op->ticket > last ? op->ticket : last;
        }
    }
    if (k->init.pending_parts == 0) {
        /* An init ends when a value exists, from any rank. */
        PS_LIST_EACH(n, &k->init.ops)
        {
            struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

            draw_ticket(k, op);
            last = op->ticket > last ? op->ticket : last;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];
        struct ps_rec_part rec = {.key = k->number,
                                  .index = p->index,
                                  .dtype = k->dtype,
                                  .count = p->count};
        struct ps_agent_send_queue *f;

        if ((p->async.served_ticket >= last && !p->async.must_request_clock) ||
            p->requested_version != NO_VERSION) {
            continue;
        }
        p->requested_version = 0;
        p->async.must_request_clock = false;
        p->async.requested_ticket = k->async.last_ticket;
        f = ps_agent_send_queue_get(st, k->job, p->owner_node);
        ps_link_send_msg(
            f->server->dialer.link,
            &(struct ps_msg){.code = PS_MSG_PULL,
                             .pull = {.gen = k->job->gen,
                                      .epoch = st->a->servers.map_epoch,
                                      .slot = k->job->slot,
                                      .parts = &rec,
                                      .parts_count = 1}},
            st->now, st->fx);
    }
}

void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock)
{
    p->async.clock = clock > p->async.clock ? clock : p->async.clock;
}

/* Requests clocks again after a link was replaced, because reports on the old
 * link may be lost. */
static void reset_clocks(struct ps_agent_key *k, uint32_t node, uint32_t part)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->job->config.mode == PS_MODE_SSP && part == PS_AGENT_ALL_PARTS &&
            (node == 0 || k->parts[i].owner_node == node)) {
            k->parts[i].async.must_request_clock = true;
        }
    }
}

static int accept_async_value(struct ps_agent_step *st, struct ps_agent_part *p,
                              const struct ps_rec_part *rec,
                              const uint8_t *from)
{
    struct ps_agent_key *k = p->key;
    uint64_t bytes = ps_agent_part_bytes(p);

    ps_agent_async_raise_clock(p, rec->clock);
    if (rec->codec != PS_CODEC_NONE || p->requested_version == NO_VERSION) {
        /* Malformed, because only rounds are encoded; or a duplicate of an
         * answer, after a request was sent again. */
        return 0;
    }
    PS_LIST_EACH(n, &k->pulls)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        if (op->ticket > p->async.served_ticket &&
            op->ticket <= p->async.requested_ticket) {
            memcpy(ps_slice_data(&op->array) +
                       p->first_elem * ps_dtype_size(k->dtype),
                   from, bytes);
        }
    }
    st->a->stats.bytes_in += bytes;
    p->async.served_ticket = p->async.requested_ticket;
    p->requested_version = NO_VERSION;
    advance_async(st, k);
    return 0;
}

/* Returns true for a push that is applied although its worker died: the worker
 * that replaces it continues with the next one. */
static bool is_push_kept(const struct ps_agent_op *op)
{
    return (op->kind == PS_OP_PUSH || op->kind == PS_OP_PUSHPULL) &&
           op->round > op->key->async.applied_round[op->local_rank];
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

static void async_stamp_push(const struct ps_agent_key *k,
                             struct ps_rec_part *rec)
{
    rec->clock = k->async.clock;
}

static int64_t local_version(const struct ps_agent_part *p)
{
    return p->local_version;
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

static bool lose_async_owner(struct ps_agent_step *st, struct ps_agent_part *p,
                             bool open)
{
    if (p->committed_version == NO_VERSION) {
        return open;
    }
    ps_agent_fail_key(st, p->key, PS_E_JOBFAILED,
                      "a server was lost with values of this key, of which "
                      "there is no other copy");
    return false;
}

const struct ps_agent_key_kind ps_agent_key_async = {
    .push_code = PS_MSG_PUSH,
    .part_fits_frame = ps_agent_dense_part_fits_frame,
    .measure_array = ps_agent_dense_measure,
    .validate_op = validate_async_op,
    .accept_op = accept_async_op,
    .is_push_kept = is_push_kept,
    .awaited_round = awaited_async_round,
    .start_part = ps_agent_dense_start,
    .stamp_push = async_stamp_push,
    .end_round = end_push,
    .fail_ops = fail_async_ops,
    .resume_push = start_push,
    .advance = advance_async,
    .held_version = local_version,
    .decided_version = local_version,
    .on_requests_lost = reset_clocks,
    .place_value = place_async_value,
    .accept_value = accept_async_value,
    .on_owner_lost = lose_async_owner,
};
