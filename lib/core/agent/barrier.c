/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers: ranks of this node that wait at one, the barrier_enter that the
 * scheduler gets of them, and the barriers that are open. */
#include "core/agent/barrier.h"

#include "base/alloc.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"

/* Sends one barrier_enter for each barrier at which local ranks wait. */
void ps_agent_barrier_send(struct ps_agent_step *st, struct ps_agent_job *j)
{
    uint32_t *ranks = ps_calloc(j->local_rank_count + 1, sizeof(*ranks));
    uint64_t number = j->barriers.completed;

    for (;;) {
        uint64_t next = UINT64_MAX;
        uint32_t count = 0;

        for (uint32_t i = 0; i < j->local_rank_count; i++) {
            if (j->local_ranks[i].entered_barriers > number &&
                j->local_ranks[i].entered_barriers < next) {
                next = j->local_ranks[i].entered_barriers;
            }
        }
        if (next == UINT64_MAX) {
            break;
        }
        for (uint32_t i = 0; i < j->local_rank_count; i++) {
            if (j->local_ranks[i].entered_barriers == next) {
                ranks[count++] = j->local_ranks[i].rank;
            }
        }
        ps_agent_uplink_send_msg(
            st, &(struct ps_msg){.code = PS_MSG_BARRIER_ENTER,
                                 .barrier_enter = {.gen = j->gen,
                                                   .number = next,
                                                   .ranks = ranks,
                                                   .ranks_count = count}});
        number = next;
    }
    ps_free(ranks);
}

void ps_agent_barrier_complete(struct ps_agent_step *st, struct ps_agent_job *j,
                               uint64_t number)
{
    struct ps_list_node *n;

    if (number <= j->barriers.completed) {
        return;
    }
    j->barriers.completed = number;
    n = ps_list_first(&j->barriers.ops);
    while (n != NULL) {
        struct ps_list_node *next = ps_list_next(&j->barriers.ops, n);
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (op->round <= j->barriers.completed) {
            ps_list_remove(n);
            ps_agent_op_end(st, op, op->round, 0, "");
        }
        n = next;
    }
}

void ps_agent_barrier_on_done(struct ps_agent_step *st,
                              const struct ps_msg_barrier_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j != NULL) {
        ps_agent_barrier_complete(st, j, m->number);
    }
}

void ps_agent_barrier_enter(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_barrier *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_rank *r = &j->local_ranks[s->local_rank];
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);

    op->is_barrier = true;
    op->round = m->number;
    if (m->number <= j->barriers.completed &&
        m->number <= r->entered_barriers + 1 && m->number > 0) {
        if (m->number > r->entered_barriers) {
            r->entered_barriers = m->number;
        }
        ps_agent_op_end(st, op, m->number, 0, "");
        return;
    }
    if (m->number == 0 || m->number > r->entered_barriers + 1 ||
        (m->number == r->entered_barriers + 1 &&
         r->entered_barriers > j->barriers.completed)) {
        ps_agent_op_end(st, op, 0, PS_E_INVAL,
                        "barriers are entered one after the other");
        return;
    }
    r->entered_barriers = m->number;
    ps_list_push_back(&j->barriers.ops, &op->node);
    ps_agent_barrier_send(st, j);
}
