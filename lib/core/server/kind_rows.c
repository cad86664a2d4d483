/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys. A partition of such a key has whole rows, and a value from its
 * init on. Contributions are blocks of rows (core/part/rows.h), some of them
 * empty, and are merged by row when the round is complete. The value is updated
 * in place if it has no other user, so a round costs what its rows cost; pulls
 * wait for the end of such a computation. */
#include "core/server/kind.h"

#include "base/alloc.h"
#include "core/part/rows.h"
#include "core/server/inner.h"
#include "core/server/memory.h"

#include <string.h>

/* ---------------------------------------------------------------- messages */

uint64_t ps_server_rows_block_bytes(const struct ps_rec_rows *rec)
{
    return ps_rows_numbers_bytes(rec->count) +
           ps_rows_data_bytes(rec->count, rec->row_width, rec->dtype);
}

bool ps_server_rows_bytes(const struct ps_rec_rows *part, uint32_t count,
                          bool data, uint64_t *ret_bytes)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (ps_rows_per_frame(part[i].row_width, part[i].dtype) == 0) {
            return false;
        }
        total += data ? ps_server_rows_block_bytes(&part[i])
                      : ps_rows_numbers_bytes(part[i].count);
        if (total > PS_PAYLOAD_MAX) {
            return false;
        }
    }
    *ret_bytes = total;
    return true;
}

/* Checks a record of rows against the partition. 0 or a PS_E_*. */
int ps_server_rows_check(const struct ps_part *part,
                         const struct ps_rec_part *rec, uint32_t row_width)
{
    if (part == NULL || !ps_part_has_value(part)) {
        return PS_E_NOKEY;
    }
    if (part->async != NULL || part->image.dtype != rec->dtype ||
        part->image.count % row_width != 0 ||
        (ps_part_is_rows(part) && part->rows->row_width != row_width) ||
        rec->count > part->image.count / row_width) {
        return PS_E_MISMATCH;
    }
    return 0;
}

/* -------------------------------------------------------------------- push */

/* Returns true if the optimizer or the reduction has no rows. */
static bool is_unsupported(const struct ps_server_job *job,
                           const struct ps_part *part, uint8_t reduce)
{
    return reduce > PS_REDUCE_MEAN ||
           (job->has_optimizer && (!ps_dtype_is_real(part->image.dtype) ||
                                   ps_optim_rounds_per_step(&job->optim) > 1 ||
                                   ps_optim_needs_norms(&job->optim)));
}

static int validate_rows(const struct ps_server_contribution *in,
                         const struct ps_part *part, bool *ret_conflict)
{
    const struct ps_server_push *push = in->push;
    int rc = ps_server_rows_check(part, &in->rec, in->row_width);

    if (rc != 0) {
        return rc;
    }
    if (in->rec.round > part->image.version + 1) {
        return PS_E_FUTURE;
    }
    if (push->weight != 0 &&
        is_unsupported(in->slot->job, part, push->reduce)) {
        return PS_E_UNSUPPORTED;
    }
    const struct ps_open_round *open = part->open_round;

    if (open == NULL) {
        return 0;
    }
    if (push->weight == 0) {
        return open->kind == push->kind ? 0 : PS_E_MISMATCH;
    }
    *ret_conflict = open->kind != push->kind ||
                    (open->has_request && open->reduce != push->reduce);
    return *ret_conflict ? PS_E_MISMATCH : 0;
}

/* Copies the block, because its frame may hold many. */
static int retain_rows(struct ps_server_step *st,
                       const struct ps_server_contribution *in,
                       const struct ps_part *part, struct ps_slice *ret_bytes)
{
    int rc = ps_server_memory_alloc(in->slot->job, in->payload_bytes,
                                    ret_bytes);

    (void)st;
    if (rc != 0) {
        return rc;
    }
    memcpy(ps_slice_data(ret_bytes),
           ps_slice_data(in->push->request->payload) + in->offset,
           in->payload_bytes);
    if (!ps_rows_are_valid(
            (const uint32_t *)(const void *)ps_slice_data(ret_bytes),
            in->rec.count, part->image.count / in->row_width)) {
        ps_buf_unref(ret_bytes->buf);
        return PS_E_INVAL;
    }
    return 0;
}

static void record_rows(const struct ps_server_contribution *in,
                        struct ps_part *part)
{
    struct ps_part_rows *rows = ps_part_obtain_rows(part,
                                                    in->slot->job->slot_count);

    rows->row_width = in->row_width;
    rows->round_weight += in->push->weight;
    rows->round_counts[in->slot->index] = in->rec.count;
}

/* ------------------------------------------------------------------- merge */

/* True if a round also changes rows without a gradient: without an optimizer
 * they become zero, and some optimizers step all rows. */
static bool updates_all_rows(const struct ps_server_job *job)
{
    return !job->has_optimizer || !ps_optim_is_lazy(&job->optim);
}

/* True if the round has no rows, and rows without a gradient stay. */
static bool rows_are_unchanged(const struct ps_server_job *job,
                               const struct ps_part *part)
{
    return part->open_round->round.nonempty == 0 && !updates_all_rows(job);
}

/* Sets the memory of the new value: the present value's if it has no other
 * user, else new memory with a copy of the value. */
static int prepare_result(struct ps_server_merge *run)
{
    const struct ps_slice *value = ps_part_value(run->part);

    if (value->buf->refs == 1) {
        run->result = *value;
        ps_buf_ref(value->buf);
        return 0;
    }
    int rc = ps_server_memory_alloc(run->job, value->len, &run->result);

    if (rc == 0) {
        memcpy(ps_slice_data(&run->result), ps_slice_data(value), value->len);
    }
    return rc;
}

static int plan_rows(struct ps_server_merge *run,
                     struct ps_compute **ret_compute)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;
    const struct ps_open_round *open = part->open_round;
    const struct ps_round *round = &open->round;
    uint32_t all = updates_all_rows(job)
                       ? part->image.count / part->rows->row_width
                       : 0;
    int rc = prepare_result(run);
    struct ps_rows_sum sum;
    struct ps_compute *c;
    uint32_t rows;

    if (rc != 0) {
        return rc;
    }
    c = ps_compute_new(run->token, round->nonempty, 2 + PS_PART_STATES);
    ps_rows_sum_init(&sum, part->image.dtype, part->rows->row_width,
                     round->size);
    for (uint32_t i = 0; i < round->size; i++) {
        const struct ps_slice *block = &round->contributions[i];

        if (block->buf == NULL) {
            continue;
        }
        rows = part->rows->round_counts[i];
        ps_rows_sum_add(
            &sum, i, (const uint32_t *)(const void *)ps_slice_data(block), rows,
            ps_slice_data(block) + ps_rows_numbers_bytes(rows));
        ps_compute_pin(c, block->buf);
    }
    rc = ps_rows_sum_plan(&sum, all, c, &rows);
    ps_rows_sum_fini(&sum);
    if (rc != 0) {
        ps_compute_free(c);
        ps_buf_unref(run->result.buf);
        run->result = (struct ps_slice){0};
        return rc;
    }
    c->job.op = PS_JOB_SUM;
    c->job.divide_by = open->reduce == PS_REDUCE_MEAN ? part->rows->round_weight
                                                      : 1;
    c->job.dst = ps_slice_data(&run->result);
    ps_compute_pin(c, run->result.buf);
    *ret_compute = c;
    return 0;
}

const struct ps_server_contribution_kind ps_server_rows_kind = {
    .retain = retain_rows,
    .validate = validate_rows,
    .record = record_rows,
    .is_noop = rows_are_unchanged,
    .plan = plan_rows,
};
