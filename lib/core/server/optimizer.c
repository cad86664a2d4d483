/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer step of one partition: its states, its parameters, and its part of
 * the merge's computation. */
#include "core/server/optimizer.h"

#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/memory.h"

#include <string.h>

bool ps_server_optimizer_has_master(const struct ps_part *part)
{
    return ps_dtype_is_real(part->image.dtype) &&
           !ps_dtype_is_float(part->image.dtype);
}

/* Allocates the float32 master weights, which begin as the value.
 * PS_E_NOMEM. */
static int prepare_master_weights(struct ps_server_job *job,
                                  struct ps_part *part)
{
    struct ps_buf *buf;

    if (!ps_server_optimizer_has_master(part) ||
        ps_part_state(part, PS_PART_MASTER) != NULL) {
        return 0;
    }
    int rc = ps_server_memory_alloc(job, part->image.count * sizeof(float),
                                    &buf);

    if (rc == 0) {
        ps_kernel_widen((enum ps_dtype)part->image.dtype,
                        (float *)(void *)buf->data,
                        ps_slice_data(ps_part_value(part)), part->image.count);
        ps_store_set_state(&job->store, part, PS_PART_MASTER, buf);
    }
    return rc;
}

uint64_t ps_server_optimizer_missing(const struct ps_server_job *job,
                                     const struct ps_part *part)
{
    const bool half = ps_server_optimizer_has_master(part);
    const uint64_t len = part->image.count *
                         (half ? sizeof(float)
                               : ps_dtype_size(part->image.dtype));
    uint64_t missing = half && ps_part_state(part, PS_PART_MASTER) == NULL ? len
                                                                           : 0;

    for (unsigned i = 0;
         job->has_optimizer && i < ps_optim_state_count(&job->optim); i++) {
        missing += ps_part_state(part, i) == NULL ? len : 0;
    }
    return missing;
}

int ps_server_optimizer_make_states(struct ps_server_job *job,
                                    struct ps_part *part)
{
    const bool half = ps_server_optimizer_has_master(part);
    const size_t len = part->image.count *
                       (half ? sizeof(float)
                             : ps_dtype_size(part->image.dtype));
    int rc = prepare_master_weights(job, part);

    if (rc == 0 && half && ps_server_optimizer_missing(job, part) > 0) {
        rc = ps_buf_fetch(ps_part_state(part, PS_PART_MASTER));
    }
    if (rc != 0) {
        return rc;
    }
    for (unsigned i = 0; i < ps_optim_state_count(&job->optim); i++) {
        struct ps_buf *buf;

        if (ps_part_state(part, i) != NULL) {
            continue;
        }
        rc = ps_server_memory_alloc(job, len, &buf);
        if (rc != 0) {
            return rc;
        }
        if (ps_optim_state_is_weight(&job->optim, i)) {
            memcpy(buf->data,
                   half ? ps_part_state(part, PS_PART_MASTER)->data
                        : ps_slice_data(ps_part_value(part)),
                   len);
        } else {
            memset(buf->data, 0, len);
        }
        ps_store_set_state(&job->store, part, i, buf);
    }
    return 0;
}

struct ps_optim_step_params
ps_server_optimizer_next_step(struct ps_server_job *job,
                              const struct ps_part *part)
{
    const struct ps_rec_tuning *t = ps_tunings_find(
        &job->tunings, part->image.name_hash, part->image.version + 1);
    /* The same on all servers, because every partition has the same rounds. */
    struct ps_optim_step_params at = {
        .round = part->image.version + 1,
        .step_number = (uint64_t)((int64_t)part->image.version + 1 +
                                  part->image.step_offset),
        .name_hash = part->image.name_hash,
        .first_elem = part->image.first_elem,
        .lr_mult = t != NULL ? t->lr_mult : 1,
        .wd_mult = t != NULL ? t->wd_mult : 1,
        .is_mean = part->open_round->reduce == PS_REDUCE_MEAN,
        .norm_exempt = t != NULL ? t->norm_exempt
                                 : (part->image.name_hash & 1) != 0,
        .trust_ratio = 1,
        .grad_scale = 1,
    };

    job->newest_version = ps_max_u64(job->newest_version, at.round);
    return at;
}

void ps_server_optimizer_add_step(struct ps_server_merge *run,
                                  const struct ps_optim_step_params *at,
                                  struct ps_compute *c)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;

    ps_optim_plan_step(&job->optim, at, &c->job);
    c->job.weight = ps_slice_data(ps_part_value(part));
    c->job.kept[PS_KEPT_WEIGHT] = ps_part_value(part)->buf;
    ps_compute_pin(c, ps_part_value(part)->buf);
    for (unsigned i = 0; i < ps_optim_state_count(&job->optim); i++) {
        c->job.states[i] = ps_part_state(part, i)->data;
        c->job.kept[PS_KEPT_STATE_0 + i] = ps_part_state(part, i);
        ps_compute_pin(c, ps_part_state(part, i));
    }
    c->job.state = c->job.states[0];
    if (ps_server_optimizer_has_master(part)) {
        c->job.storage_dtype = (enum ps_dtype)part->image.dtype;
        c->job.dtype = PS_DTYPE_FLOAT32;
        c->job.master = ps_part_state(part, PS_PART_MASTER)->data;
        c->job.kept[PS_KEPT_WEIGHT] = ps_part_state(part, PS_PART_MASTER);
        ps_compute_pin(c, ps_part_state(part, PS_PART_MASTER));
    }
}
