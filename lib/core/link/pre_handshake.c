/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/pre_handshake.h"

void ps_pre_handshake_init(struct ps_pre_handshake *p, uint32_t max)
{
    *p = (struct ps_pre_handshake){.max = max};
    ps_list_init(&p->conns);
}

static void evict_oldest(struct ps_pre_handshake *p, struct ps_effects *fx)
{
    PS_LIST_EACH(n, &p->conns)
    {
        struct ps_pre_handshake_conn *c = PS_CONTAINER(
            n, struct ps_pre_handshake_conn, node);

        if (!c->is_evicted) {
            c->is_evicted = true;
            ps_effects_abort(fx, c->id, PS_E_FULL,
                             "too many connections without a greeting");
            return;
        }
    }
}

void ps_pre_handshake_add(struct ps_pre_handshake *p,
                          struct ps_pre_handshake_conn *c, ps_conn_id id,
                          struct ps_effects *fx)
{
    if (p->count >= p->max) {
        evict_oldest(p, fx);
    }
    *c = (struct ps_pre_handshake_conn){.id = id};
    ps_list_push_back(&p->conns, &c->node);
    p->count++;
}

void ps_pre_handshake_remove(struct ps_pre_handshake *p,
                             struct ps_pre_handshake_conn *c)
{
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
        p->count--;
    }
}
