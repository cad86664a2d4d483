/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/conn.h"

#include "core/sched/inner.h"

void ps_sched_conn_close(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    if (c->kind == PS_SCHED_CONN_CLOSING) {
        return;
    }
    assert(!c->lists_keys && c->rebalance_reply == NULL &&
           c->trace_read == NULL);
    c->kind = PS_SCHED_CONN_CLOSING;
    c->member = NULL;
    ps_effects_close(st->fx, c->id);
}

void ps_sched_conn_end_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                             int rc, const char *text)
{
    const struct ps_sched *s = st->s;

    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_QUERY_END,
                            .query_end = {.error = rc,
                                          .text = text,
                                          .epoch = s->epoch,
                                          .cluster = s->opt.cluster,
                                          .uptime_ns = st->now - s->started_at},
                        });
}

void ps_sched_send(struct ps_sched_step *st, struct ps_member *m,
                   struct ps_packet *packet)
{
    if (m == NULL || m->link == NULL) {
        ps_packet_unref(packet);
        return;
    }
    ps_link_send(m->link, packet, st->now, st->fx);
}

void ps_sched_send_msg(struct ps_sched_step *st, struct ps_member *m,
                       const struct ps_msg *msg)
{
    if (m != NULL && m->link != NULL) {
        ps_link_send_msg(m->link, msg, st->now, st->fx);
    }
}
