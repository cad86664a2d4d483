/* SPDX-License-Identifier: Apache-2.0 */
/* Failure of the operations of a key. */
#include "core/agent/fail.h"

#include "core/agent/contribution.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/send_queue.h"

void ps_agent_fail_list(struct ps_agent_step *st, struct ps_list *list,
                        int error, const char *text)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(list)) != NULL) {
        ps_agent_op_end(st, PS_CONTAINER(n, struct ps_agent_op, node), 0, error,
                        text);
    }
}

void ps_agent_fail_inits(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text)
{
    ps_agent_fail_list(st, &k->init.ops, error, text);
    for (uint32_t i = 0; k->init.pending_parts > 0 && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->is_init) {
            if (p->state != PS_AGENT_PART_COMPUTING) {
                ps_agent_send_dequeue(st, p);
            }
            p->is_init = false;
            k->init.pending_parts--;
        }
    }
    ps_buf_unref(k->init.array.buf);
    k->init.array = (struct ps_slice){0};
}

void ps_agent_fail_key(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text)
{
    struct ps_list_node *n;

    ps_agent_fail_inits(st, k, error, text);
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state != PS_AGENT_PART_COMPUTING) {
            ps_agent_send_dequeue(st, p);
        }
        p->requested_version = NO_VERSION;
        ps_agent_encode_round_failed(p);
    }
    for (uint32_t i = 0;
         ps_agent_round_is_open(k) && i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->round.contribution[i];

        k->round.contribution[i] = NULL;
        if (op != NULL) {
            k->round.pushed_round[i] = op->round - 1; /* May be retried. */
            ps_agent_op_end(st, op, 0, error, text);
        }
    }
    if (ps_agent_round_is_open(k)) {
        ps_agent_round_set_state(k, PS_AGENT_ROUND_IDLE);
    }
    ps_agent_fail_list(st, &k->pulls, error, text);
    ps_agent_fail_list(st, &k->row_pulls, error, text);
    while ((n = ps_list_pop(&k->round.deferred_pushes)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (k->round.pushed_round[op->local_rank] >= op->round) {
            k->round.pushed_round[op->local_rank] = op->round - 1;
        }
        ps_agent_op_end(st, op, 0, error, text);
    }
}
