/* SPDX-License-Identifier: Apache-2.0 */
/* Send queues: order in which partitions go to a server. Each job has one queue
 * per server: higher priority first, FIFO among equals (rule C5). A queue also
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
        ps_list_push_back(&f->server->send_queues, &f->node);
        f->server->dialer.enabled = !f->server->removed;
        ps_map_put(j->send_queues, node, f);
    }
    return f;
}

void ps_agent_send_queue_reset(const struct ps_agent *a,
                               struct ps_agent_send_queue *f)
{
    f->bytes_sent = 0;
    f->credit = initial_credit(a);
}

void ps_agent_send_queue_free(struct ps_agent_send_queue *f)
{
    assert(f->heap.count == 0);
    ps_list_remove(&f->node);
    ps_heap_fini(&f->heap);
    ps_free(f);
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
    f->server->needs_pump = true;
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
        st->a->resend_at = ps_time_min(st->a->resend_at, retry_at);
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
    st->a->resend_at = ps_time_min(st->a->resend_at, f->backoff_until);
}

bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p)
{
    const struct ps_agent_send_queue *f = ps_map_get(p->key->job->send_queues,
                                                     p->owner_node);

    if (f == NULL || f->backoff_until <= st->now) {
        return false;
    }
    st->a->resend_at = ps_time_min(st->a->resend_at, f->backoff_until);
    return true;
}
