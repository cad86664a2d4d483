/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps that need norms of whole arrays, of which this server has a
 * part. Such a step has several stages, each a computation. After a stage its
 * output is kept in `work`, its sum of squares goes to the scheduler, and the
 * next stage begins when the scheduler returns the norm over all partitions.
 * The contributions are released as soon as they are summed, so that agents can
 * send other keys, for which this step may have to wait (rule N4). */
#include "core/server/norm.h"

#include "base/alloc.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/merge_run.h"
#include "core/server/optimizer.h"

#include <string.h>

bool ps_server_norm_is_needed(struct ps_server_job *job,
                              const struct ps_part *part)
{
    const struct ps_optim_step_params at = ps_server_optimizer_next_step(job,
                                                                         part);

    return ps_optim_first_stage(&job->optim, &at) != PS_STAGE_LAST;
}

/* Bytes of the partition in the type in which steps are computed. */
static size_t work_bytes(const struct ps_part *part)
{
    return part->image.count * (ps_server_optimizer_has_master(part)
                                    ? sizeof(float)
                                    : ps_dtype_size(part->image.dtype));
}

static int alloc_slice(struct ps_server_merge *run, size_t len,
                       struct ps_slice *ret)
{
    struct ps_buf *buf;
    int rc = ps_server_memory_alloc(run->job, len, &buf);

    if (rc == 0) {
        *ret = (struct ps_slice){.buf = buf, .len = len};
    }
    return rc;
}

static int prepare_stage(struct ps_server_merge *run)
{
    struct ps_part *part = run->part;
    const bool last = run->staged.params.stage == PS_STAGE_LAST;
    int rc = ps_server_optimizer_make_states(run->job, part);

    if (rc == 0 && run->staged.work.buf == NULL) {
        rc = alloc_slice(run, work_bytes(part), &run->staged.work);
    }
    if (rc != 0) {
        return rc;
    }
    if (last && !ps_server_optimizer_has_master(part)) {
        run->result = run->staged.work; /* The last use of `work`. */
        ps_buf_ref(run->result.buf);
        return 0;
    }
    if (last) {
        return alloc_slice(run,
                           part->image.count * ps_dtype_size(part->image.dtype),
                           &run->result);
    }
    /* A new buffer: a discarded computation may still write the last one. */
    ps_buf_unref(run->staged.square_sums);
    run->staged.square_sums = ps_buf_new(2 * sizeof(struct ps_square_sum));
    memset(run->staged.square_sums->data, 0, run->staged.square_sums->size);
    return 0;
}

static struct ps_square_sum *square_sums_of(const struct ps_server_merge *run)
{
    return (void *)run->staged.square_sums->data;
}

/* Returns the computation of a later stage, whose only source is `work`. */
static struct ps_compute *plan_next_stage(const struct ps_server_merge *run)
{
    struct ps_compute *c = ps_compute_new(0, 1, 5 + PS_PART_STATES);

    c->job.dtype = (enum ps_dtype)run->part->image.dtype;
    c->job.count = run->part->image.count;
    c->job.src_is_float32 = ps_server_optimizer_has_master(run->part);
    ps_compute_add_src(c, &run->staged.work, 0);
    return c;
}

int ps_server_norm_launch(struct ps_server_step *st,
                          struct ps_server_merge *run)
{
    if (!run->staged.is_begun) {
        run->staged.params = ps_server_optimizer_next_step(run->job, run->part);
        run->staged.params.stage = ps_optim_first_stage(&run->job->optim,
                                                        &run->staged.params);
        run->staged.is_begun = true;
    }
    int rc = prepare_stage(run);

    if (rc != 0) {
        return rc;
    }
    const bool last = run->staged.params.stage == PS_STAGE_LAST;
    struct ps_compute *c = run->staged.is_summed
                               ? plan_next_stage(run)
                               : ps_server_merge_sum(run, true);

    c->job.dst = ps_slice_data(last ? &run->result : &run->staged.work);
    c->job.kept[PS_KEPT_RESULT] = last ? run->result.buf : NULL;
    ps_compute_pin(c, last ? run->result.buf : run->staged.work.buf);
    if (!last) {
        c->job.square_sum = &square_sums_of(run)[0];
        if (ps_optim_needs_weight_norm(&run->job->optim, &run->staged.params)) {
            c->job.weight_square_sum = &square_sums_of(run)[1];
        }
        ps_compute_pin(c, run->staged.square_sums);
    }
    ps_server_optimizer_add_step(run, &run->staged.params, c);
    ps_server_merge_submit(st, run, c);
    return 0;
}

/* ----------------------------------------------------------------- requests */

static void send_norm_part(struct ps_server_step *st,
                           const struct ps_server_merge *run)
{
    const struct ps_part *part = run->part;
    const struct ps_square_sum *s = square_sums_of(run);
    uint32_t first[2];
    uint32_t digits[2][PS_SQUARE_SUM_DIGITS];
    uint32_t count[2];

    for (int i = 0; i < 2; i++) {
        count[i] = ps_square_sum_pack(&s[i], &first[i], digits[i]);
    }
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){
                .code = PS_MSG_NORM_PART,
                .norm_part =
                    {
                        .gen = run->job->gen,
                        .key = part->key,
                        .index = part->index,
                        .round = run->staged.params.round,
                        .stage = (uint8_t)run->staged.params.stage,
                        .nonfinite_count = s[0].nonfinite_count,
                        .first_digit = (uint8_t)first[0],
                        .digits = digits[0],
                        .digits_count = count[0],
                        .weight_first_digit = (uint8_t)first[1],
                        .weight_digits = digits[1],
                        .weight_digits_count = count[1],
                    },
            });
}

/* Releases the contributions, which are in the sum, and their credit. */
static void release_contributions(struct ps_server_step *st,
                                  struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_round *round = &run->part->open_round->round;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].unmerged_bytes -= round->contributions[i].len;
    }
    ps_round_release_payloads(round);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = ps_server_slot_session(&job->slots[i]);

        if (p != NULL && ps_server_credit_is_due(st->s, p, &job->slots[i])) {
            ps_server_credit_send(st, p, &job->slots[i]);
        }
    }
}

bool ps_server_norm_on_computed(struct ps_server_step *st,
                                struct ps_server_merge *run)
{
    if (run->staged.params.stage == PS_STAGE_LAST) {
        return true;
    }
    if (!run->staged.is_summed) {
        run->staged.is_summed = true;
        release_contributions(st, run);
    }
    ps_server_merge_await_norms(run);
    ps_square_sum_normalize(&square_sums_of(run)[0]);
    ps_square_sum_normalize(&square_sums_of(run)[1]);
    send_norm_part(st, run);
    return false;
}

void ps_server_norm_resend(struct ps_server_step *st,
                           const struct ps_server_job *job)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_merge *run;

    while ((run = ps_map_next(job->norm_waits, &c)) != NULL) {
        for (; run != NULL; run = run->staged.next_waiting) {
            send_norm_part(st, run);
        }
    }
}

/* ------------------------------------------------------------------ results */

bool ps_server_norm_apply(struct ps_server_merge *run,
                          const struct ps_msg_norm_result *m)
{
    const struct ps_optim *o = &run->job->optim;
    const struct ps_optim_norms norms = {
        .nonfinite_count = m->nonfinite_count,
        .square_sum = m->square_sum,
        .weight_square_sum = m->weight_square_sum,
        .global_square_sum = m->global_square_sum};

    if (!ps_optim_apply_norms(o, &norms, &run->staged.params)) {
        return false;
    }
    run->staged.params.stage = ps_optim_next_stage(o, &run->staged.params);
    return true;
}
