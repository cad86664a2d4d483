/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs by rows: each row is run as a small dense job. */
#include "kernel/cpu.h"

#include <assert.h>
#include <stddef.h>

/* Sets the levels of the leaves in the perfect tree of level `level` over
 * places from `from` on. */
static void tree_levels(const uint32_t *place, uint32_t count, uint64_t from,
                        uint8_t level, uint8_t *out)
{
    uint64_t half = level == 0 ? 0 : (uint64_t)1 << (level - 1);
    uint8_t below = level;
    uint32_t left = 0;

    if (count == 1) {
        /* All other leaves are empty: this one stands for the whole. */
        out[0] = level;
        return;
    }
    while (left < count && place[left] < from + half) {
        left++;
    }
    if (left > 0 && left < count) {
        below--;
    }
    /* One half is empty: the other stands for the whole, one level higher. */
    if (left == 0 || left == count) {
        uint64_t at = left == 0 ? from + half : from;
        uint8_t inner = (uint8_t)(level - 1);

        tree_levels(place, count, at, inner, out);
        for (uint32_t i = 0; i < count; i++) {
            out[i]++;
        }
        return;
    }
    tree_levels(place, left, from, below, out);
    tree_levels(place + left, count - left, from + half, below, out + left);
}

void ps_row_levels(const uint32_t *place, uint32_t count, uint32_t places,
                   uint8_t *level)
{
    uint64_t from = 0;
    uint32_t done = 0;

    for (uint8_t l = 32; l-- > 0 && done < count;) {
        uint64_t size = (uint64_t)1 << l;
        uint32_t here = 0;

        if ((places & size) == 0) {
            continue;
        }
        while (done + here < count && place[done + here] < from + size) {
            here++;
        }
        if (here > 0) {
            tree_levels(place + done, here, from, l, level + done);
        }
        done += here;
        from += size;
    }
    assert(done == count);
}

/* Index of `row` in ascending numbers; `count`: not found. */
static uint32_t find_row(const uint32_t *rows, uint32_t count, uint32_t row)
{
    uint32_t low = 0;
    uint32_t high = count;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (rows[mid] < row) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < count && rows[low] == row ? low : count;
}

/* Runs one row; `to` is its position in dst, in rows. */
static int run_row(const struct ps_job *job, uint32_t row, uint64_t to)
{
    const struct ps_row_job *r = job->rows;
    const size_t wide = r->row_width * ps_dtype_size(job->dtype);
    const size_t bytes = r->row_width * ps_dtype_size(ps_job_is_half(job)
                                                          ? job->storage_dtype
                                                          : job->dtype);
    const void *src[PS_ROW_SOURCES_MAX];
    uint32_t place[PS_ROW_SOURCES_MAX];
    uint8_t level[PS_ROW_SOURCES_MAX];
    struct ps_job one = *job;
    uint32_t count = 0;

    for (uint32_t i = 0; i < r->source_count; i++) {
        const struct ps_row_source *s = &r->source[i];
        uint32_t k = find_row(s->numbers, s->count, row);

        if (k < s->count) {
            src[count] = ps_kernel_at(s->data, k * bytes);
            place[count++] = s->leaf;
        }
    }
    if (count > 0) {
        ps_row_levels(place, count, r->leaf_count, level);
    } else {
        src[count] = r->zeros;
        level[count++] = 0;
    }
    one.rows = NULL;
    one.count = r->row_width;
    one.src = src;
    one.src_count = count;
    one.level = level;
    one.dst = ps_kernel_at(job->dst, to * bytes);
    one.weight = ps_kernel_at(job->weight, row * bytes);
    one.master = ps_kernel_at(job->master, row * wide);
    one.state = ps_kernel_at(job->state, row * wide);
    for (unsigned i = 0; i < PS_STATES_MAX; i++) {
        one.states[i] = ps_kernel_at(job->states[i], row * wide);
    }
    one.step.first_index += (uint64_t)row * r->row_width;
    if (one.op == PS_JOB_STEP && one.step.kind == PS_STEP_GROUP_ADAGRAD) {
        if (!ps_dtype_is_float(one.dtype) || one.src_count == 0) {
            return PS_E_INVAL;
        }
        one.step.k[0] = ps_kernel_mean_square(&one);
    }
    return ps_kernel_run_range(&one, 0, one.count);
}

int ps_kernel_run_rows(const struct ps_job *job, uint64_t from, uint64_t to)
{
    const struct ps_row_job *r = job->rows;
    uint64_t rows;
    int rc = 0;

    if (r->row_width == 0 || job->fold != PS_FOLD_SUM ||
        job->prior.master != NULL || job->prior.states[0] != NULL ||
        job->prior.states[1] != NULL || job->prior.states[2] != NULL ||
        r->source_count > PS_ROW_SOURCES_MAX ||
        (r->all_rows != 0 && (r->zeros == NULL || r->compact)) || from > to ||
        to > job->count) {
        return PS_E_INVAL;
    }
    rows = r->all_rows != 0 ? r->all_rows : r->count;
    if (job->count != rows * r->row_width) {
        return PS_E_INVAL;
    }
    /* A row belongs to the range of its first element; ranges need not begin at
     * a row. */
    uint64_t first = from / r->row_width + (from % r->row_width != 0);
    uint64_t last = to / r->row_width + (to % r->row_width != 0);

    for (uint64_t i = first; i < last && rc == 0; i++) {
        uint32_t row = r->all_rows != 0 ? (uint32_t)i : r->numbers[i];

        rc = run_row(job, row, r->compact ? i : row);
    }
    return rc;
}
