/* SPDX-License-Identifier: Apache-2.0 */
#include "client/profile_answer.h"

#include "client/op.h"
#include "client/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

void profile_accept_events(struct psc_client *c,
                           const struct ps_msg_l_profile_events *m)
{
    struct psc_op *op = op_find(c, m->op_id);
    const size_t bytes = m->events_count * sizeof(m->events[0]);
    struct profile_answer *a;

    if (op == NULL || op->kind != OP_PROFILE || op->state != OP_SENT) {
        client_fail(c, PSC_E_PROTO,
                    "the agent sent a recording that was not asked for");
        return;
    }
    a = malloc(sizeof(*a) + bytes);
    if (a == NULL) {
        op_end(op, PSC_E_NOMEM, NULL);
        return;
    }
    ps_str_copy(a->server, sizeof(a->server),
                m->server != NULL ? m->server : "");
    a->first = m->first;
    a->count = m->count;
    a->returned = m->events_count;
    if (bytes > 0) {
        memcpy(a->events, m->events, bytes);
    }
    op->profile = a;
    op_end(op, 0, NULL);
}
