/* SPDX-License-Identifier: Apache-2.0 */
/* A step of the optimizer for one partition: its states, its number, and what
 * the computation of the round must know of it. */
#include "core/shard_inner.h"

#include "base/num.h"

#include <string.h>

bool ps_shard_step_is_half(const struct ps_part *part)
{
    return ps_dtype_is_real(part->dtype) && !ps_dtype_is_float(part->dtype);
}

/* The weights in float32, from which the first step goes on. PS_E_NOMEM. */
static int prepare_master(struct ps_shard_job *job, struct ps_part *part)
{
    struct ps_buf *buf;

    if (!ps_shard_step_is_half(part) || part->state[PS_PART_MASTER] != NULL) {
        return 0;
    }
    int rc = ps_shard_room_take(job, part->count * sizeof(float), &buf);

    if (rc == 0) {
        ps_kernel_widen((enum ps_dtype)part->dtype, (float *)(void *)buf->data,
                        ps_slice_data(&part->value), part->count);
        ps_store_set_state(&job->store, part, PS_PART_MASTER, buf);
    }
    return rc;
}

uint64_t ps_shard_step_missing(const struct ps_shard_job *job,
                               const struct ps_part *part)
{
    const bool half = ps_shard_step_is_half(part);
    const uint64_t len = part->count *
                         (half ? sizeof(float) : ps_dtype_size(part->dtype));
    uint64_t missing = half && part->state[PS_PART_MASTER] == NULL ? len : 0;

    for (unsigned i = 0; job->optimizes && i < ps_optim_states(&job->optim);
         i++) {
        missing += part->state[i] == NULL ? len : 0;
    }
    return missing;
}

int ps_shard_step_states(struct ps_shard_job *job, struct ps_part *part)
{
    const bool half = ps_shard_step_is_half(part);
    const size_t len = part->count *
                       (half ? sizeof(float) : ps_dtype_size(part->dtype));
    int rc = prepare_master(job, part);

    if (rc != 0) {
        return rc;
    }
    for (unsigned i = 0; i < ps_optim_states(&job->optim); i++) {
        struct ps_buf *buf;

        if (part->state[i] != NULL) {
            continue;
        }
        rc = ps_shard_room_take(job, len, &buf);
        if (rc != 0) {
            return rc;
        }
        if (ps_optim_state_is_weight(&job->optim, i)) {
            memcpy(buf->data,
                   half ? part->state[PS_PART_MASTER]->data
                        : ps_slice_data(&part->value),
                   len);
        } else {
            memset(buf->data, 0, len);
        }
        ps_store_set_state(&job->store, part, i, buf);
    }
    return 0;
}

struct ps_optim_at ps_shard_step_at(struct ps_shard_job *job,
                                    const struct ps_part *part)
{
    const struct ps_rec_tuning *t = ps_tunings_find(&job->tunings, part->label);
    /* All servers agree on these: every partition has the same rounds. */
    struct ps_optim_at at = {
        .round = part->version + 1,
        .t = (uint64_t)((int64_t)part->version + 1 + part->shift),
        .lr_mult = t != NULL ? t->lr_mult : 1,
        .wd_mult = t != NULL ? t->wd_mult : 1,
        .plain = t != NULL ? t->plain : (part->label & 1) != 0,
        .ratio = 1,
        .scale = 1,
    };

    job->newest = ps_max_u64(job->newest, at.round);
    return at;
}

void ps_shard_step_add(struct ps_shard_run *run, const struct ps_optim_at *at,
                       struct ps_compute *c)
{
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;

    ps_optim_step(&job->optim, at, &c->job);
    c->job.weight = ps_slice_data(&part->value);
    ps_compute_hold(c, part->value.buf);
    for (unsigned i = 0; i < ps_optim_states(&job->optim); i++) {
        c->job.states[i] = part->state[i]->data;
        ps_compute_hold(c, part->state[i]);
    }
    c->job.state = c->job.states[0];
    if (ps_shard_step_is_half(part)) {
        c->job.half = (enum ps_dtype)part->dtype;
        c->job.dtype = PS_DTYPE_FLOAT32;
        c->job.master = part->state[PS_PART_MASTER]->data;
        ps_compute_hold(c, part->state[PS_PART_MASTER]);
    }
}
