/* SPDX-License-Identifier: Apache-2.0 */
/* Messages sent to servers again: to a server with a new link all that is not
 * committed, and all that was refused for a transient reason. */
#include "core/agent/resend.h"

#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/opt_state.h"
#include "core/agent/placement.h"
#include "core/agent/server.h"

/* Sends the open requests to server `node` again. */
static void resend_requests(struct ps_agent_step *st, struct ps_agent_key *k,
                            uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (node == 0 || k->parts[i].owner_node == node) {
            k->parts[i].requested_version = NO_VERSION;
        }
    }
    if (k->kind->on_requests_lost != NULL) {
        k->kind->on_requests_lost(k, node, PS_AGENT_ALL_PARTS);
    }
    ps_agent_opt_state_resend(st, k, node);
    k->kind->advance(st, k);
}

void ps_agent_resend_server(struct ps_agent_step *st, struct ps_agent_server *s)
{
    PS_LIST_EACH(n, &s->send_queues)
    {
        struct ps_agent_send_queue *f = PS_CONTAINER(
            n, struct ps_agent_send_queue, node);
        struct ps_map_cursor c = {0};
        struct ps_agent_key *k;

        ps_agent_send_queue_reset(st->a, f);
        while ((k = ps_map_next(f->job->keys, &c)) != NULL) {
            for (uint32_t i = 0; i < k->part_count; i++) {
                struct ps_agent_part *p = &k->parts[i];

                if (p->owner_node == s->node &&
                    (p->owner_changed || (k->prior_state != NULL &&
                                          p->local_version == NO_VERSION))) {
                    /* The state sent before may have been lost as well. */
                    ps_agent_placement_send_state(st, p);
                }
                if (p->owner_node == s->node &&
                    (p->state == PS_AGENT_PART_SENT ||
                     p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_server_enqueue(st, p);
                }
            }
            ps_agent_conflict_resend(st, k, s->node);
            resend_requests(st, k, s->node);
        }
    }
}

void ps_agent_resend_refused(struct ps_agent_step *st)
{
    struct ps_map_cursor jc = {0};
    struct ps_agent_job *j;

    st->a->due.resend_at = PS_TIME_NEVER;
    while ((j = ps_map_next(st->a->jobs, &jc)) != NULL) {
        struct ps_map_cursor kc = {0};
        struct ps_agent_key *k;

        while ((k = ps_map_next(j->keys, &kc)) != NULL) {
            for (uint32_t i = 0; i < k->part_count; i++) {
                if (k->parts[i].must_resend_state) {
                    ps_agent_placement_send_state(st, &k->parts[i]);
                }
                if (k->parts[i].state == PS_AGENT_PART_BACKOFF &&
                    !ps_agent_server_is_backing_off(st, &k->parts[i])) {
                    ps_agent_server_enqueue(st, &k->parts[i]);
                }
            }
            k->kind->advance(st, k);
            ps_agent_opt_state_advance(st, k);
            ps_agent_conflict_resend(st, k, 0);
        }
    }
}
