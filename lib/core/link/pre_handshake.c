/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/pre_handshake.h"

void ps_pre_handshake_init(struct ps_pre_handshake *p, uint32_t max)
{
    *p = (struct ps_pre_handshake){.max = max};
    ps_list_init(&p->conns);
}

/* Places from which on a source makes room by its own connections. */
static uint32_t share_of(uint32_t max)
{
    return max / 4 > 0 ? max / 4 : 1;
}

static void make_room(struct ps_pre_handshake *p, uint64_t source,
                      struct ps_effects *fx)
{
    struct ps_pre_handshake_conn *oldest = NULL;
    struct ps_pre_handshake_conn *own = NULL;
    uint32_t count = 0;

    PS_LIST_EACH(n, &p->conns)
    {
        struct ps_pre_handshake_conn *c = PS_CONTAINER(
            n, struct ps_pre_handshake_conn, node);

        if (c->is_evicted) {
            continue;
        }
        oldest = oldest != NULL ? oldest : c;
        if (c->source == source) {
            own = own != NULL ? own : c;
            count++;
        }
    }
    if (count >= share_of(p->max)) {
        oldest = own;
    }
    if (oldest != NULL) {
        oldest->is_evicted = true;
        ps_effects_abort(fx, oldest->id, PS_E_FULL,
                         "too many connections before the handshake");
    }
}

void ps_pre_handshake_add(struct ps_pre_handshake *p,
                          struct ps_pre_handshake_conn *c,
                          struct ps_effects *fx)
{
    if (p->count >= p->max) {
        make_room(p, c->source, fx);
    }
    c->is_evicted = false;
    c->node = (struct ps_list_node){0};
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
