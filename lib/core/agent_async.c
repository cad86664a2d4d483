/* SPDX-License-Identifier: Apache-2.0 */
/* Keys without rounds. A node has one push of a key on its way at a time, with
 * a number of its own, and goes on when every partition has said that it is
 * applied; what local ranks push meanwhile waits in order. Where pushes are
 * added, those that wait go together, as one sum; else one by one, because two
 * steps of an optimizer are not one step with the sum. A pull asks the servers
 * for what is newest once the puller's own pushes are applied, and is written
 * into the worker's memory: there is no version that all ranks would share.
 *
 * A pull draws a ticket when it may ask, and a question covers all tickets
 * drawn before it was put. One question for a partition is open at a time, so
 * values never go back.
 *
 * In an ssp job a pull may ask when every rank of the job has pushed as often
 * as the puller, less the staleness. A push says how often every rank here has
 * pushed with it; the servers find the least of all slots, and say it to all
 * when it grows. */
#include "core/agent_inner.h"

#include "base/str.h"

#include <assert.h>
#include <string.h>

static const char needs_rule[] =
    "an async or ssp job needs an optimizer, or a rule stated by all workers "
    "when they open it (accumulate or assign), before a key gets its first "
    "value";

static uint8_t rule_of(const struct ps_agent_job *j)
{
    return j->optimizes ? PS_RULE_STEP : j->rule;
}

bool ps_agent_async_allows(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_agent_key *k,
                           const struct ps_msg_l_op *m,
                           const struct ps_slice *array)
{
    if (m->op == PS_OP_BROADCAST || m->op == PS_OP_ATTEND) {
        ps_agent_round_refuse(st, s, m, PS_E_UNSUPPORTED,
                              "'%s': a broadcast is a round of all workers, "
                              "and an async or ssp job has none; init gives "
                              "a key its first value",
                              k->name);
        return false;
    }
    if (m->op == PS_OP_PASS) {
        ps_agent_round_refuse(st, s, m, PS_E_UNSUPPORTED,
                              "'%s': only a round can be passed, and an async "
                              "or ssp job has none",
                              k->name);
        return false;
    }
    if (m->op != PS_OP_PULL && rule_of(k->job) == PS_RULE_NONE) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL, "'%s': %s", k->name,
                              needs_rule);
        return false;
    }
    if ((m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL) &&
        m->reduce != PS_REDUCE_SUM) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "'%s': reduction %s needs a round; pushes of an "
                              "async or ssp job are applied one by one",
                              k->name, ps_reduce_name(m->reduce));
        return false;
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PUSHPULL) &&
        array->buf == NULL) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "'%s': the pull of an async or ssp job names no "
                              "memory for the value",
                              k->name);
        return false;
    }
    return true;
}

/* ----------------------------------------------------------------- pushing */

static bool is_idle(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        /* A sum of pushes that have failed may still be under way. */
        if (k->parts[i].state == PS_AGENT_PART_SUMMING) {
            return false;
        }
    }
    return !k->active;
}

static void offer(struct ps_agent_key *k, struct ps_agent_op *op)
{
    k->offer[op->local] = op;
    k->offered++;
    if (k->offered == 1 || op->priority > k->priority) {
        k->priority = op->priority;
    }
}

/* How often every rank here has pushed when what is offered is applied. */
static uint64_t clock_of(const struct ps_agent_key *k)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < k->job->local_count; i++) {
        uint64_t count = k->offer[i] != NULL ? k->offer[i]->round
                                             : k->applied[i];

        least = count < least ? count : least;
    }
    return least;
}

/* Begins with what waits, when nothing is on its way. */
void ps_agent_async_next(struct ps_agent_step *st, struct ps_agent_key *k)
{
    struct ps_list_node *n = ps_list_first(&k->parked);

    if (!is_idle(k) || n == NULL) {
        return;
    }
    k->active = true;
    k->want = false;
    k->round++;
    k->offered = 0;
    k->kind = PS_OP_PUSH;
    k->reduce = PS_REDUCE_SUM;
    k->rule = rule_of(k->job);
    while (n != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        n = ps_list_next(&k->parked, n);
        if (k->offered == 0 ||
            (k->rule == PS_RULE_ACCUMULATE && k->offer[op->local] == NULL)) {
            ps_list_remove(&op->node);
            offer(k, op);
        }
    }
    k->clock = k->job->mode == PS_MODE_SSP ? clock_of(k) : 0;
    ps_agent_round_complete(st, k);
}

/* The pushes on their way have ended, well or not. */
static void end_offers(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text)
{
    k->active = false;
    k->complete = false;
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        struct ps_agent_op *op = k->offer[i];

        k->offer[i] = NULL;
        if (op == NULL) {
            continue;
        }
        if (error == 0) {
            k->applied[i] = op->round;
        } else if (k->pushed[i] == op->round) {
            k->pushed[i]--; /* It may be offered again. */
        }
        if (error == 0 && op->kind == PS_OP_PUSHPULL && op->session != NULL) {
            ps_list_push_back(&k->pulls, &op->node);
        } else {
            ps_agent_op_done(st, op, op->round, error, text);
        }
    }
}

void ps_agent_async_finish(struct ps_agent_step *st, struct ps_agent_key *k)
{
    end_offers(st, k, 0, "");
    ps_agent_async_next(st, k);
    ps_agent_async_check(st, k);
}

static void fail_list(struct ps_agent_step *st, struct ps_list *list, int error,
                      const char *text)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(list)) != NULL) {
        ps_agent_op_done(st, PS_CONTAINER(n, struct ps_agent_op, node), 0,
                         error, text);
    }
}

/* Only those whose partition was refused hear of it. */
void ps_agent_async_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text)
{
    bool pushes = k->active;
    bool inits = !pushes && k->inits_open > 0;

    for (uint32_t i = 0; (pushes || inits) && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state != PS_AGENT_PART_SUMMING && p->init == inits) {
            ps_agent_send_unqueue(st, p);
            p->init = false;
        }
    }
    if (pushes) {
        end_offers(st, k, error, text);
    } else if (inits) {
        k->inits_open = 0;
        ps_buf_unref(k->init_array.buf);
        k->init_array = (struct ps_slice){0};
        fail_list(st, &k->inits, error, text);
    } else {
        fail_list(st, &k->pulls, error, text);
    }
    /* An init that could not go because of this push goes now. */
    if (k->part_count > 0 && k->parts[0].committed == NONE && is_idle(k)) {
        ps_agent_init_again(st, k);
    }
    ps_agent_async_next(st, k);
}

/* ----------------------------------------------------------------- pulling */

/* How often every rank of the job has pushed to all of the key. */
static uint64_t clock_of_all(const struct ps_agent_key *k)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        least = k->parts[i].clock < least ? k->parts[i].clock : least;
    }
    return least;
}

/* Has everything the puller pushed before it been applied, and is nobody too
 * far behind? */
static bool may_ask(const struct ps_agent_key *k, const struct ps_agent_op *op)
{
    const struct ps_agent_job *j = k->job;

    return k->applied[op->local] >= op->round &&
           (j->mode != PS_MODE_SSP || op->round <= j->staleness ||
            clock_of_all(k) >= op->round - j->staleness);
}

static void draw(struct ps_agent_key *k, struct ps_agent_op *op)
{
    if (op->ticket == 0) {
        op->ticket = ++k->ticket;
    }
}

static void end_served(struct ps_agent_step *st, const struct ps_agent_key *k,
                       struct ps_list *list)
{
    struct ps_list_node *n = ps_list_first(list);
    uint64_t served = UINT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].served < served) {
            served = k->parts[i].served;
        }
    }
    while (n != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        n = ps_list_next(list, n);
        if (op->ticket != 0 && op->ticket <= served) {
            ps_list_remove(&op->node);
            ps_agent_op_done(st, op, op->round, 0, "");
        }
    }
}

void ps_agent_async_check(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t last = 0;

    end_served(st, k, &k->pulls);
    end_served(st, k, &k->inits);
    PS_LIST_EACH(n, &k->pulls)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (may_ask(k, op)) {
            draw(k, op);
            last = op->ticket > last ? op->ticket : last;
        }
    }
    if (k->inits_open == 0) {
        /* An init is over when there is a value, whoever gave it. */
        PS_LIST_EACH(n, &k->inits)
        {
            struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

            draw(k, op);
            last = op->ticket > last ? op->ticket : last;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];
        struct ps_rec_part rec = {.key = k->number,
                                  .index = p->index,
                                  .dtype = k->dtype,
                                  .count = p->count};
        struct ps_agent_flow *f;

        if ((p->served >= last && !p->clock_asked) || p->asked != NONE) {
            continue;
        }
        p->asked = 0;
        p->clock_asked = false;
        p->asked_ticket = k->ticket;
        f = ps_agent_flow_get(st, k->job, p->node);
        ps_link_tell(f->server->caller.link,
                     &(struct ps_msg){.code = PS_MSG_PULL,
                                      .pull = {.gen = k->job->gen,
                                               .epoch = st->a->epoch,
                                               .slot = k->job->slot,
                                               .parts = &rec,
                                               .parts_count = 1}},
                     st->now, st->fx);
    }
}

void ps_agent_async_clock(struct ps_agent_part *p, uint64_t clock)
{
    p->clock = clock > p->clock ? clock : p->clock;
}

/* The link is a new one, and what was told on the other may be lost. */
void ps_agent_async_again(struct ps_agent_key *k, uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->job->mode == PS_MODE_SSP &&
            (node == 0 || k->parts[i].node == node)) {
            k->parts[i].clock_asked = true;
        }
    }
}

void ps_agent_async_value(struct ps_agent_step *st, struct ps_agent_part *p,
                          const uint8_t *from)
{
    struct ps_agent_key *k = p->key;
    uint64_t bytes = ps_agent_part_bytes(p);

    if (p->asked == NONE) {
        return; /* Of a question that was put again. */
    }
    PS_LIST_EACH(n, &k->pulls)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        if (op->ticket > p->served && op->ticket <= p->asked_ticket) {
            memcpy(ps_slice_data(&op->array) +
                       p->first * ps_dtype_size(k->dtype),
                   from, bytes);
        }
    }
    st->a->stats.bytes_in += bytes;
    p->served = p->asked_ticket;
    p->asked = NONE;
    ps_agent_async_check(st, k);
}

/* Its worker is told to go on behind it, so it is applied all the same. */
bool ps_agent_async_keeps(const struct ps_agent_op *op)
{
    return op->key->async &&
           (op->kind == PS_OP_PUSH || op->kind == PS_OP_PUSHPULL) &&
           op->round > op->key->applied[op->local];
}

void ps_agent_async_take(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (op->kind == PS_OP_PULL) {
        ps_list_push_back(&k->pulls, &op->node);
        ps_agent_async_check(st, k);
        return;
    }
    k->pushed[op->local] = op->round;
    ps_list_push_back(&k->parked, &op->node);
    ps_agent_async_next(st, k);
}
