/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that are gone: reported to the scheduler, and again to one that does
 * not know it. */
#include "core/agent/departed.h"

#include "base/alloc.h"
#include "core/agent/inner.h"

#include <string.h>

static void send_worker_gone(struct ps_agent_step *st,
                             const struct ps_agent_departed_worker *d)
{
    ps_agent_uplink_send_msg(
        st,
        &(struct ps_msg){.code = PS_MSG_WORKER_GONE,
                         .worker_gone = {.gen = d->gen,
                                         .worker = d->worker,
                                         .clean = d->clean_exit,
                                         .rounds_unknown = d->rounds_unknown,
                                         .text = ""}});
}

void ps_agent_departed_add(struct ps_agent_step *st,
                           const struct ps_agent_session *s)
{
    struct ps_agent *a = st->a;
    struct ps_agent_departed_worker d = {
        .gen = s->gen,
        .worker = s->worker,
        .clean_exit = s->clean_exit,
        .rounds_unknown = !s->clean_exit && s->unreported_keys > 0};

    if (a->departed.workers == NULL) {
        a->departed.workers = ps_calloc(DEPARTED_WORKERS_MAX,
                                        sizeof(*a->departed.workers));
    }
    if (a->departed.count == DEPARTED_WORKERS_MAX) {
        memmove(a->departed.workers, a->departed.workers + 1,
                (DEPARTED_WORKERS_MAX - 1) * sizeof(*a->departed.workers));
        a->departed.count--;
    }
    a->departed.workers[a->departed.count++] = d;
    send_worker_gone(st, &d);
}

void ps_agent_departed_resend(struct ps_agent_step *st)
{
    for (uint32_t i = 0; i < st->a->departed.count; i++) {
        send_worker_gone(st, &st->a->departed.workers[i]);
    }
}

void ps_agent_departed_drop_unknown(struct ps_agent *a)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed.count; i++) {
        if (ps_agent_job_find(a, a->departed.workers[i].gen) != NULL) {
            a->departed.workers[kept++] = a->departed.workers[i];
        }
    }
    a->departed.count = kept;
}

void ps_agent_departed_drop_job(struct ps_agent *a, uint64_t gen)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed.count; i++) {
        if (a->departed.workers[i].gen != gen) {
            a->departed.workers[kept++] = a->departed.workers[i];
        }
    }
    a->departed.count = kept;
}
