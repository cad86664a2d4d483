/* SPDX-License-Identifier: Apache-2.0 */
/* A queue for each job, whose heads take turns by weight. Memory is only made
 * for jobs whose payloads have waited. */
#include "core/server/reply_queue.h"

#include "base/alloc.h"
#include "core/server/jobs.h"

/* A packet that waits. */
struct waiting_reply {
    struct ps_list_node node;
    struct ps_packet *packet;
};

static uint64_t message_memory(const struct ps_packet *packet)
{
    return sizeof(struct waiting_reply) + sizeof(*packet) + packet->msg_size;
}

static struct ps_server_reply_queue *get_queue(struct ps_server_reply_turns *t,
                                               const struct ps_server_job *job)
{
    struct ps_server_reply_queue *q;

    if (t->queues == NULL) {
        t->queues = ps_map_new();
        ps_fair_init(&t->fair);
    }
    q = ps_map_get(t->queues, job->gen);
    if (q == NULL) {
        q = ps_calloc(1, sizeof(*q));
        q->gen = job->gen;
        ps_list_init(&q->replies);
        ps_map_put(t->queues, job->gen, q);
    }
    q->weight = job->weight;
    return q;
}

/* Takes the oldest packet of the queue; NULL: it is empty. */
static struct ps_packet *pop_packet(struct ps_server_reply_turns *t,
                                    struct ps_server_reply_queue *q)
{
    struct ps_list_node *n = ps_list_pop(&q->replies);
    struct waiting_reply *w;
    struct ps_packet *packet;

    if (n == NULL) {
        return NULL;
    }
    w = PS_CONTAINER(n, struct waiting_reply, node);
    packet = w->packet;
    ps_free(w);
    t->waiting--;
    t->memory -= message_memory(packet);
    return packet;
}

void ps_server_reply_queue_push(struct ps_server_reply_turns *t,
                                const struct ps_server_job *job,
                                struct ps_packet *packet)
{
    struct ps_server_reply_queue *q = get_queue(t, job);
    struct waiting_reply *w = ps_calloc(1, sizeof(*w));

    w->packet = packet;
    ps_list_push_back(&q->replies, &w->node);
    t->waiting++;
    t->memory += message_memory(packet);
    ps_fair_activate(&t->fair, &q->flow);
}

struct ps_packet *ps_server_reply_queue_pop(struct ps_server_reply_turns *t)
{
    struct ps_server_reply_queue *q;
    struct ps_packet *packet;

    if (t->waiting == 0) {
        return NULL;
    }
    q = PS_CONTAINER(ps_fair_next(&t->fair), struct ps_server_reply_queue,
                     flow);
    packet = pop_packet(t, q);
    ps_fair_charge(&t->fair, &q->flow, q->weight, packet->payload_len);
    if (ps_list_empty(&q->replies)) {
        ps_fair_deactivate(&t->fair, &q->flow);
    }
    return packet;
}

static void queue_free(struct ps_server_reply_turns *t,
                       struct ps_server_reply_queue *q)
{
    struct ps_packet *packet;

    while ((packet = pop_packet(t, q)) != NULL) {
        ps_packet_unref(packet);
    }
    ps_fair_deactivate(&t->fair, &q->flow);
    ps_map_remove(t->queues, q->gen);
    ps_free(q);
}

void ps_server_reply_queue_drop(struct ps_server_reply_turns *t, uint64_t gen)
{
    struct ps_server_reply_queue *q = t->queues != NULL
                                          ? ps_map_get(t->queues, gen)
                                          : NULL;

    if (q != NULL) {
        queue_free(t, q);
    }
}

void ps_server_reply_queue_drop_all(struct ps_server_reply_turns *t)
{
    struct ps_map_cursor c = {0};
    struct ps_server_reply_queue *q;

    if (t->queues == NULL) {
        return;
    }
    while ((q = ps_map_next(t->queues, &c)) != NULL) {
        queue_free(t, q);
    }
    ps_map_free(t->queues);
    t->queues = NULL;
    ps_fair_fini(&t->fair);
}
