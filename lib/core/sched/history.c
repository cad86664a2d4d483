/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/history.h"

#include <string.h>

void ps_sched_job_fill_row(const struct ps_sched_job *j, ps_time now,
                           struct ps_msg_job_row *ret)
{
    *ret = (struct ps_msg_job_row){
        .gen = j->gen,
        .name = j->name,
        .uid = j->uid,
        .phase = j->phase,
        .mode = j->opt.mode,
        .on_loss = j->opt.on_loss,
        .weight = j->weight,
        .num_workers = j->opt.num_workers,
        .live_workers = j->workers.live_count,
        .slots = j->slot_count,
        .keys = j->keys.open_count,
        .bytes = j->keys.bytes,
        .barriers = j->barrier.last_open,
        .age_ns = now - j->created_at,
        .optimizer = j->optimizer.name,
        .compression = j->compression.text,
        .skipped_steps = j->norms.skipped_steps,
        .reason = j->reason,
    };
}

void ps_sched_history_add(struct ps_sched_history *h,
                          const struct ps_sched_job *j, ps_time now)
{
    struct ps_sched_ended_job *p =
        &h->jobs[h->ended_count++ % PS_SCHED_HISTORY_MAX];

    memset(p, 0, sizeof(*p));
    ps_sched_job_fill_row(j, now, &p->row);
    ps_str_copy(p->name, sizeof(p->name), j->name);
    ps_str_copy(p->optimizer, sizeof(p->optimizer),
                j->optimizer.name != NULL ? j->optimizer.name : "");
    ps_str_copy(p->reason, sizeof(p->reason), j->reason);
    ps_str_copy(p->compression, sizeof(p->compression), j->compression.text);
    p->row.compression = p->compression;
    p->row.name = p->name;
    p->row.optimizer = p->optimizer;
    p->row.reason = p->reason;
    if (p->reason[0] != '\0') {
        /* Outcome of the job, for operators. */
        p->row.phase = PS_JOB_PHASE_FAILED;
    }
    p->created_at = j->created_at;
    ps_sched_scalars_keep(j->observed.scalars, now, &p->scalars);
}

uint32_t ps_sched_history_count(const struct ps_sched_history *h)
{
    return h->ended_count < PS_SCHED_HISTORY_MAX ? (uint32_t)h->ended_count
                                                 : PS_SCHED_HISTORY_MAX;
}

const struct ps_sched_ended_job *
ps_sched_history_get(const struct ps_sched_history *h, uint32_t index)
{
    const uint64_t first = h->ended_count - ps_sched_history_count(h);

    return &h->jobs[(first + index) % PS_SCHED_HISTORY_MAX];
}

const struct ps_sched_ended_job *
ps_sched_history_find(const struct ps_sched_history *h, uint64_t gen)
{
    for (uint32_t i = 0; i < ps_sched_history_count(h); i++) {
        if (h->jobs[i].row.gen == gen) {
            return &h->jobs[i];
        }
    }
    return NULL;
}
