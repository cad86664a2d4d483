/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/map.h"

#include "base/alloc.h"
#include "core/sched/conn.h"
#include "core/sched/inner.h"

static struct ps_packet *make_server_map(const struct ps_sched *s)
{
    const struct ps_members *t = &s->members;
    struct ps_rec_server *rec = ps_alloc((PS_SERVERS_MAX + 1) * sizeof(*rec));
    uint32_t count = 0;
    struct ps_packet *p;

    for (uint32_t i = 0; i < t->count; i++) {
        const struct ps_member *m = t->sorted[i];

        if (m->role == PS_ROLE_SERVER && m->state != PS_NODE_STATE_GONE) {
            assert(count < PS_SERVERS_MAX);
            rec[count++] = (struct ps_rec_server){
                .node = m->node,
                .name = m->name,
                .incarnation = m->incarnation,
                .address = m->address,
                .state = m->state,
            };
        }
    }
    p = ps_packet_new(
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = s->epoch, .servers = rec, .servers_count = count}},
        NULL, 0);
    ps_free(rec);
    return p;
}

void ps_sched_begin_epoch(struct ps_sched_step *st)
{
    struct ps_members *t = &st->s->members;
    struct ps_packet *p;

    st->s->epoch++;
    ps_effects_log(st->fx, PS_LOG_INFO, "epoch %u -> %u", st->s->epoch - 1,
                   st->s->epoch);
    p = make_server_map(st->s);
    for (uint32_t i = 0; i < t->count; i++) {
        ps_sched_send(st, t->sorted[i], ps_packet_ref(p));
    }
    ps_packet_unref(p);
}

void ps_sched_send_map(struct ps_sched_step *st, struct ps_member *m)
{
    ps_sched_send(st, m, make_server_map(st->s));
}
