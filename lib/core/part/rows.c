/* SPDX-License-Identifier: Apache-2.0 */
#include "core/part/rows.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

uint64_t ps_rows_numbers_bytes(uint32_t count)
{
    return ps_round_up(count * (uint64_t)sizeof(uint32_t), 8);
}

uint32_t ps_rows_per_frame(uint32_t width, uint8_t dtype)
{
    uint64_t bytes = width * (uint64_t)ps_dtype_size(dtype);
    uint64_t state = width * (uint64_t)ps_dtype_state_size(dtype);

    if (bytes == 0 || state > PS_ROW_BYTES_MAX) {
        return 0;
    }
    /* Row numbers and rows are each padded to a multiple of 8 bytes. */
    return (uint32_t)ps_min_u64((PS_PAYLOAD_MAX - 16) /
                                    (sizeof(uint32_t) + bytes),
                                PS_PAYLOAD_MAX / state);
}

uint64_t ps_rows_data_bytes(uint32_t count, uint32_t width, uint8_t dtype)
{
    /* At most 2^32 rows of PS_ROW_BYTES_MAX: below 2^58. */
    return ps_round_up((uint64_t)count * width * ps_dtype_size(dtype), 8);
}

bool ps_rows_are_valid(const uint32_t *row, uint32_t count, uint32_t limit)
{
    for (uint32_t i = 0; i < count; i++) {
        if (row[i] >= limit || (i > 0 && row[i] <= row[i - 1])) {
            return false;
        }
    }
    return true;
}

uint32_t ps_rows_lower_bound(const uint32_t *row, uint32_t count,
                             uint32_t row_wanted)
{
    uint32_t low = 0;
    uint32_t high = count;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (row[mid] < row_wanted) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

void ps_rows_sum_init(struct ps_rows_sum *s, uint8_t dtype, uint32_t width,
                      uint32_t places)
{
    memset(s, 0, sizeof(*s));
    s->dtype = dtype;
    s->row_width = width;
    s->leaf_count = places;
    s->sources = ps_calloc(places, sizeof(*s->sources));
}

void ps_rows_sum_add(struct ps_rows_sum *s, uint32_t place, const uint32_t *row,
                     uint32_t count, const void *data)
{
    assert(s->source_count < s->leaf_count);
    if (count > 0) {
        s->sources[s->source_count++] = (struct ps_row_source){
            .numbers = row, .count = count, .leaf = place, .data = data};
    }
}

void ps_rows_sum_fini(struct ps_rows_sum *s)
{
    ps_free(s->sources);
    memset(s, 0, sizeof(*s));
}

/* Merges two ascending lists without duplicates and returns the count. */
static uint32_t merge_row_numbers(const uint32_t *a, uint32_t a_count,
                                  const uint32_t *b, uint32_t b_count,
                                  uint32_t *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0, j = 0; i < a_count || j < b_count; n++) {
        uint32_t row = j == b_count || (i < a_count && a[i] <= b[j]) ? a[i]
                                                                     : b[j];

        i += i < a_count && a[i] == row;
        j += j < b_count && b[j] == row;
        out[n] = row;
    }
    return n;
}

/* Returns the sorted union of all row numbers, which the caller frees; NULL: no
 * memory. */
static uint32_t *unite_row_numbers(const struct ps_rows_sum *s,
                                   uint32_t *ret_count)
{
    uint64_t most = 1;
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->source_count; i++) {
        most += s->sources[i].count;
    }
    uint32_t *rows = ps_try_alloc(most * sizeof(*rows));
    uint32_t *merged = ps_try_alloc(most * sizeof(*merged));

    if (rows == NULL || merged == NULL) {
        ps_free(rows);
        ps_free(merged);
        return NULL;
    }
    for (uint32_t i = 0; i < s->source_count; i++) {
        uint32_t *before = rows;

        count = merge_row_numbers(before, count, s->sources[i].numbers,
                                  s->sources[i].count, merged);
        rows = merged;
        merged = before;
    }
    ps_free(merged);
    *ret_count = count;
    return rows;
}

/* Memory of a computation by rows, except for the sources' data. */
struct plan {
    struct ps_row_job job;
    struct ps_row_source *source;
    uint32_t *row;
    void *zeros;
};

static void plan_free(void *plan)
{
    struct plan *p = plan;

    ps_free(p->source);
    ps_free(p->row);
    ps_free(p->zeros);
    ps_free(p);
}

int ps_rows_sum_plan(const struct ps_rows_sum *s, uint32_t all,
                     struct ps_compute *c, uint32_t *ret_rows)
{
    struct plan *p = ps_calloc(1, sizeof(*p));

    p->source = ps_calloc(s->source_count + 1u, sizeof(*p->source));
    if (s->source_count > 0) {
        memcpy(p->source, s->sources, s->source_count * sizeof(*p->source));
    }
    p->row = unite_row_numbers(s, &p->job.count);
    if (all != 0) {
        p->zeros = ps_try_calloc(s->row_width, ps_dtype_size(s->dtype));
        p->job.zeros = p->zeros;
    }
    if (p->row == NULL || (all != 0 && p->zeros == NULL)) {
        plan_free(p);
        return PS_E_NOMEM;
    }
    p->job.row_width = s->row_width;
    p->job.numbers = p->row;
    p->job.all_rows = all;
    p->job.leaf_count = s->leaf_count;
    p->job.source = p->source;
    p->job.source_count = s->source_count;
    c->plan = p;
    c->plan_free = plan_free;
    c->job.rows = &p->job;
    c->job.dtype = (enum ps_dtype)s->dtype;
    c->job.count = (uint64_t)(all != 0 ? all : p->job.count) * s->row_width;
    c->job.src_count = s->source_count;
    *ret_rows = p->job.count;
    return 0;
}

void ps_rows_plan_compact(struct ps_compute *c)
{
    struct plan *p = c->plan;

    p->job.compact = true;
}
