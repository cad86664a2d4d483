/* SPDX-License-Identifier: Apache-2.0 */
/* Send queues: order in which partitions go to a server. Each job has one queue
 * per server: higher priority first, FIFO among equals (rule C5). Between jobs
 * the order is that of fair queueing by their weights, so a priority is one of
 * its job only (rule C7). A server that one job uses has no turns. A queue also
 * has the job's credit at the server, and the time until which refused
 * partitions wait for its memory. */
#include "core/agent/send_queue.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/server.h"

#include <assert.h>

static uint64_t initial_credit(const struct ps_agent *a)
{
    return a->opt.initial_credit != 0 ? a->opt.initial_credit
                                      : PS_CREDIT_INITIAL;
}

/* The only queue of the server; NULL: there are several, or none. */
static struct ps_agent_send_queue *sole_queue(const struct ps_agent_server *s)
{
    struct ps_list_node *n = ps_list_first(&s->send_queues);

    return n == NULL || ps_agent_server_is_shared(s)
               ? NULL
               : PS_CONTAINER(n, struct ps_agent_send_queue, node);
}

/* Adds the queue to those of its server. The second one begins the turns. */
static void join_server(struct ps_agent_send_queue *f)
{
    struct ps_agent_server *s = f->server;
    struct ps_agent_send_queue *first = sole_queue(s);

    ps_list_push_back(&s->send_queues, &f->node);
    if (first != NULL) {
        ps_agent_send_queue_wake(first);
    }
    s->dialer.enabled = !s->removed;
}

/* Removes the queue from those of its server. The turns end when one is
 * left. */
static void leave_server(struct ps_agent_send_queue *f)
{
    struct ps_agent_server *s = f->server;
    struct ps_agent_send_queue *last;

    ps_fair_deactivate(&s->fair, &f->flow);
    ps_list_remove(&f->node);
    last = sole_queue(s);
    if (last != NULL) {
        ps_fair_deactivate(&s->fair, &last->flow);
    }
}

struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node)
{
    struct ps_agent_send_queue *f = ps_map_get(j->send_queues, node);

    if (f == NULL) {
        f = ps_calloc(1, sizeof(*f));
        f->job = j;
        f->server = ps_agent_server_get(st, node);
        f->credit = initial_credit(st->a);
        ps_heap_init(&f->heap);
        join_server(f);
        ps_map_put(j->send_queues, node, f);
    } else if (!f->server->dialer.enabled && !f->server->removed) {
        f->server->dialer.enabled = true; /* It had no partition meanwhile. */
        ps_dialer_dial_now(&f->server->dialer, st->now);
    }
    return f;
}

void ps_agent_send_queue_reset(const struct ps_agent *a,
                               struct ps_agent_send_queue *f)
{
    f->bytes_sent = 0;
    f->credit = initial_credit(a);
    ps_agent_send_queue_wake(f);
}

void ps_agent_send_queue_wake(struct ps_agent_send_queue *f)
{
    if (f->heap.count > 0 && ps_agent_server_is_shared(f->server)) {
        ps_fair_activate(&f->server->fair, &f->flow);
    }
}

void ps_agent_send_queue_free(struct ps_agent_send_queue *f)
{
    assert(f->heap.count == 0);
    leave_server(f);
    ps_heap_fini(&f->heap);
    ps_free(f);
}

/* The partition at the head of the queue; NULL: there is none, or credit is
 * used up. An init needs no credit. */
static struct ps_agent_part *head_part(const struct ps_agent_send_queue *f)
{
    struct ps_heap_item *item = ps_heap_peek(&f->heap);
    struct ps_agent_part *p;

    if (item == NULL) {
        return NULL;
    }
    p = PS_CONTAINER(item, struct ps_agent_part, queue_item);
    return p->is_init || f->bytes_sent + f->computing_bytes < f->credit ? p
                                                                        : NULL;
}

struct ps_agent_part *
ps_agent_send_queue_next(struct ps_agent_server *s,
                         struct ps_agent_send_queue **ret_queue)
{
    struct ps_agent_send_queue *f = sole_queue(s);
    struct ps_fair_flow *flow;
    struct ps_agent_part *p;

    if (f != NULL) {
        *ret_queue = f;
        return head_part(f);
    }
    while ((flow = ps_fair_next(&s->fair)) != NULL) {
        f = PS_CONTAINER(flow, struct ps_agent_send_queue, flow);
        p = head_part(f);
        if (p != NULL) {
            *ret_queue = f;
            return p;
        }
        /* More partitions or credit make it active again. */
        ps_fair_deactivate(&s->fair, flow);
    }
    return NULL;
}

void ps_agent_send_queue_charge(struct ps_agent_send_queue *f, uint64_t bytes)
{
    if (ps_agent_server_is_shared(f->server)) {
        ps_fair_charge(&f->server->fair, &f->flow, f->job->config.weight,
                       bytes);
    }
}

void ps_agent_send_enqueue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, p->key->job,
                                                            p->owner_node);
    int64_t priority = p->is_init ? 0 : p->key->round.priority;

    assert(p->state != PS_AGENT_PART_QUEUED &&
           p->state != PS_AGENT_PART_COMPUTING);
    ps_agent_part_set_state(p, PS_AGENT_PART_QUEUED);
    ps_heap_push(&f->heap, &p->queue_item, (uint64_t)(INT32_MAX - priority));
    ps_agent_send_queue_wake(f);
    ps_agent_server_add_work(st->a, f->server);
}

void ps_agent_send_dequeue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->state == PS_AGENT_PART_QUEUED) {
        struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, p->key->job,
                                                                p->owner_node);

        ps_heap_remove(&f->heap, &p->queue_item);
    }
    ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
}

void ps_agent_send_raise_credit(struct ps_agent_step *st,
                                struct ps_agent_server *s, uint64_t gen,
                                uint64_t credit)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, gen);
    struct ps_agent_send_queue *f = j == NULL
                                        ? NULL
                                        : ps_map_get(j->send_queues, s->node);

    if (f != NULL && credit > f->credit) {
        f->credit = credit;
        ps_agent_send_queue_wake(f);
    }
}

void ps_agent_send_end_backoff(struct ps_agent_step *st,
                               struct ps_agent_server *s, uint64_t gen)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, gen);
    struct ps_agent_send_queue *f = j == NULL
                                        ? NULL
                                        : ps_map_get(j->send_queues, s->node);
    const ps_time retry_at = ps_time_add(st->now, RESEND_WAIT);

    if (f != NULL && f->backoff != 0) {
        f->backoff = 0;
        f->backoff_until = ps_time_min(f->backoff_until, retry_at);
        st->a->due.resend_at = ps_time_min(st->a->due.resend_at, retry_at);
    }
}

void ps_agent_send_begin_backoff(struct ps_agent_step *st,
                                 struct ps_agent_send_queue *f)
{
    if (f->backoff_until <= st->now) {
        f->backoff = ps_min_u64(ps_max_u64(2 * f->backoff, RESEND_WAIT),
                                FULL_BACKOFF_MAX);
        f->backoff_until = ps_time_add(st->now, f->backoff);
    }
    st->a->due.resend_at = ps_time_min(st->a->due.resend_at, f->backoff_until);
}

bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p)
{
    const struct ps_agent_send_queue *f = ps_map_get(p->key->job->send_queues,
                                                     p->owner_node);

    if (f == NULL || f->backoff_until <= st->now) {
        return false;
    }
    st->a->due.resend_at = ps_time_min(st->a->due.resend_at, f->backoff_until);
    return true;
}
