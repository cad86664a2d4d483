/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of workers that the scheduler answers: the optimizer of a job, a
 * change of it, and its compression. Each is an operation, which keeps a copy
 * of the message until the answer and sends it again on a new link. */
#include "core/agent/request.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"

/* Sends a request to the scheduler, whose reply ends `op`. A copy is kept until
 * then and resent to a scheduler that comes back. */
static void send_request(struct ps_agent_step *st, struct ps_agent_session *s,
                         struct ps_agent_op *op, const struct ps_msg *m)
{
    struct ps_msg *copy = ps_msg_dup(m);
    struct ps_refusal why;
    int rc = ps_account_charge(&s->account, PS_COST_QUERIES, 1, &why);

    if (rc == 0) {
        rc = ps_account_charge(&s->account, PS_COST_MEMORY, ps_alloc_size(copy),
                               &why);
        if (rc != 0) {
            ps_account_refund(&s->account, PS_COST_QUERIES, 1);
        }
    }
    if (rc != 0) {
        char text[PS_TEXT_MAX + 1];
        struct ps_str t;

        ps_msg_free(copy);
        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        ps_agent_op_end(st, op, 0, rc, text);
        return;
    }
    op->sched_request = copy;
    ps_list_push_back(&s->job->sched_ops, &op->node);
    ps_agent_uplink_send_msg(st, m);
}

void ps_agent_request_optimizer(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_msg_l_optimizer *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_OPTIMIZER_SET};

    if (j->config.num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "an optimizer runs on servers: start the job with "
                        "at least one");
        return;
    }
    if (j->config.rule != PS_RULE_NONE) {
        char text[PS_TEXT_MAX];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_str_addf(&t,
                    "the job states the rule '%s' for its pushes: open it "
                    "without a rule when an optimizer is to apply them",
                    ps_rule_name(j->config.rule));
        ps_agent_op_end(st, op, 0, PS_E_INVAL, text);
        return;
    }
    op->round = ++st->a->last.request;
    set.optimizer_set.gen = j->gen;
    set.optimizer_set.request = op->round;
    set.optimizer_set.name = m->name;
    set.optimizer_set.params = m->params;
    set.optimizer_set.params_count = m->params_count;
    set.optimizer_set.tunings = m->tunings;
    set.optimizer_set.tunings_count = m->tunings_count;
    send_request(st, s, op, &set);
}

void ps_agent_request_optimizer_change(
    struct ps_agent_step *st, struct ps_agent_session *s,
    const struct ps_msg_l_optimizer_change *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_OPTIMIZER_CHANGE};

    if (j->config.num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "an optimizer runs on servers, and the job has none");
        return;
    }
    op->round = ++st->a->last.request;
    set.optimizer_change.gen = j->gen;
    set.optimizer_change.request = op->round;
    set.optimizer_change.name = m->name;
    set.optimizer_change.value = m->value;
    set.optimizer_change.round = m->round;
    send_request(st, s, op, &set);
}

void ps_agent_request_compression(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_compression *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_COMPRESSION_SET};

    if (j->config.mode != PS_MODE_SYNC) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "gradients travel as codes in rounds alone, and an "
                        "async or ssp job has none");
        return;
    }
    if (j->config.num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "gradients are compressed on their way to servers: "
                        "start the job with at least one");
        return;
    }
    op->round = ++st->a->last.request;
    set.compression_set.gen = j->gen;
    set.compression_set.request = op->round;
    set.compression_set.name = m->name;
    set.compression_set.params = m->params;
    set.compression_set.params_count = m->params_count;
    send_request(st, s, op, &set);
}

void ps_agent_request_on_done(struct ps_agent_step *st,
                              const struct ps_msg_optimizer_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j == NULL) {
        return;
    }
    PS_LIST_EACH(n, &j->sched_ops)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (op->round == m->request) {
            /* The job_state with the optimizer may arrive later. */
            j->config.has_optimizer |= m->error == 0 &&
                                       op->sched_request->code ==
                                           PS_MSG_OPTIMIZER_SET;
            ps_list_remove(n);
            ps_agent_op_end(st, op, 0, m->error, m->text);
            return;
        }
    }
}

void ps_agent_request_resend(struct ps_agent_step *st, struct ps_agent_job *j)
{
    PS_LIST_EACH(n, &j->sched_ops)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        ps_agent_uplink_send_msg(st, op->sched_request);
    }
}
