/* SPDX-License-Identifier: Apache-2.0 */
#include "client/entry.h"
#include "client/error.h"
#include "client/op.h"
#include "client/state.h"
#include "client/waiting.h"

void client_reap_ops(struct psc_client *c)
{
    if (c->has_unended_ops) {
        c->has_unended_ops = false;
        op_end_all(c, c->rc, c->text);
    }
    op_free_deferred(c);
}

int client_enter(struct psc_client *c)
{
    if (c == NULL) {
        return PSC_E_INVAL;
    }
    if (!client_is_own_process(c)) {
        return PSC_E_FORKED;
    }
    waiting_note_caller();
    pthread_mutex_lock(&c->lock);
    return 0;
}

int client_enter_with(struct psc_client *c, const void *argument,
                      const char *what)
{
    int rc = client_enter(c);

    if (rc == 0 && argument == NULL) {
        rc = client_error(c, PSC_E_INVAL, "%s: NULL is no argument", what);
        client_leave(c);
    }
    return rc;
}

void client_leave(struct psc_client *c)
{
    client_reap_ops(c);
    pthread_mutex_unlock(&c->lock);
}
