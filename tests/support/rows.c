/* SPDX-License-Identifier: Apache-2.0 */
#include "support/rows.h"

#include "base/alloc.h"
#include "proto/row.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static int compare(const struct ps_sched_row_key *a,
                   const struct ps_sched_row_key *b)
{
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    if (a->a != b->a) {
        return a->a < b->a ? -1 : 1;
    }
    return (a->b > b->b) - (a->b < b->b);
}

/* Index of the first row that is not before `key`. */
static uint32_t position(const struct rows *r,
                         const struct ps_sched_row_key *key)
{
    uint32_t low = 0;
    uint32_t high = r->count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;

        if (compare(&r->list[mid].key, key) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

struct row *rows_find(const struct rows *r, struct ps_sched_row_key key)
{
    const uint32_t i = position(r, &key);

    return i < r->count && compare(&r->list[i].key, &key) == 0 ? &r->list[i]
                                                               : NULL;
}

uint32_t rows_count(const struct rows *r, uint8_t kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        n += r->list[i].key.kind == kind;
    }
    return n;
}

static void remove_from(struct rows *r, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        ps_free(r->list[i].bytes);
    }
    if (first + count < r->count) {
        memmove(&r->list[first], &r->list[first + count],
                (r->count - first - count) * sizeof(*r->list));
    }
    r->count -= count;
}

static void remove_rows(struct rows *r, const struct ps_store_row *row)
{
    const bool all = row->b == PS_STORE_ALL;
    const uint32_t first = position(
        r, &(struct ps_sched_row_key){row->kind, row->a, all ? 0 : row->b});
    uint32_t count = 0;

    while (first + count < r->count &&
           r->list[first + count].key.kind == row->kind &&
           r->list[first + count].key.a == row->a &&
           (all || r->list[first + count].key.b == row->b)) {
        count++;
    }
    remove_from(r, first, count);
}

static void put_row(struct rows *r, const struct ps_store_row *row)
{
    const struct ps_sched_row_key key = {row->kind, row->a, row->b};
    const uint32_t i = position(r, &key);
    uint8_t *bytes;
    size_t len;

    int rc = ps_row_encode(row->value->msg, row->value->slices,
                           row->value->slice_count, &bytes, &len);

    assert(rc == 0 && row->b != PS_STORE_ALL);
    (void)rc;
    if (i < r->count && compare(&r->list[i].key, &key) == 0) {
        ps_free(r->list[i].bytes);
    } else {
        r->list = ps_realloc(r->list, (r->count + 1u) * sizeof(*r->list));
        memmove(&r->list[i + 1], &r->list[i],
                (r->count - i) * sizeof(*r->list));
        r->count++;
    }
    r->list[i] = (struct row){.key = key, .bytes = bytes, .len = len};
}

void rows_apply(struct rows *r, const struct ps_fx *f)
{
    for (uint32_t i = 0; i < f->store.count; i++) {
        if (f->store.rows[i].value == NULL) {
            remove_rows(r, &f->store.rows[i]);
        } else {
            put_row(r, &f->store.rows[i]);
        }
    }
}

static int load_row(struct ps_sched_load *l, struct ps_decoder *d,
                    const struct row *row, struct ps_str *why)
{
    struct ps_slice payload = {0};
    struct ps_msg msg;
    int rc = ps_row_decode(d, row->bytes, row->len, &msg, &payload);

    ps_str_addf(why, "row %u %" PRIu64 " %" PRIu64 ": ", row->key.kind,
                row->key.a, row->key.b);
    if (rc != 0) {
        ps_str_add(why, ps_strerror(rc));
        return rc;
    }
    rc = ps_sched_load_row(l, &row->key, &msg,
                           payload.buf != NULL ? &payload : NULL, why);
    ps_buf_unref(payload.buf);
    return rc;
}

int rows_load(const struct rows *r, struct ps_sched *s, ps_time now,
              struct ps_str *why)
{
    struct ps_sched_load *l = ps_sched_load_begin(s, now);
    struct ps_decoder *d = ps_decoder_new();
    const size_t len = why->len;
    int rc = 0;
    int end;

    for (uint32_t i = 0; rc == 0 && i < r->count; i++) {
        why->len = len;
        rc = load_row(l, d, &r->list[i], why);
    }
    if (rc == 0) {
        why->len = len;
        why->data[len] = '\0';
    }
    end = ps_sched_load_end(l, rc == 0, why);
    ps_decoder_free(d);
    return rc != 0 ? rc : end;
}

void rows_copy(struct rows *to, const struct rows *from)
{
    rows_fini(to);
    to->list = ps_alloc((from->count + 1u) * sizeof(*to->list));
    to->count = from->count;
    for (uint32_t i = 0; i < from->count; i++) {
        to->list[i] = from->list[i];
        to->list[i].bytes = ps_alloc(from->list[i].len);
        memcpy(to->list[i].bytes, from->list[i].bytes, from->list[i].len);
    }
}

void rows_fini(struct rows *r)
{
    remove_from(r, 0, r->count);
    ps_free(r->list);
    *r = (struct rows){0};
}
