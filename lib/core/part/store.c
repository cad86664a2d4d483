/* SPDX-License-Identifier: Apache-2.0 */
#include "core/part/store.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

void ps_store_init(struct ps_store *st)
{
    memset(st, 0, sizeof(*st));
    st->parts = ps_map_new();
}

void ps_store_mark(struct ps_part *part)
{
    struct ps_list *changed = part->store->changed;

    if (changed != NULL && !ps_list_linked(&part->record.changed)) {
        ps_list_push_back(changed, &part->record.changed);
    }
}

void ps_part_release_record(struct ps_part *part)
{
    for (unsigned i = 0; i < PS_RECORD_RANGES; i++) {
        ps_buf_unref(part->record.bufs[i]);
        part->record.bufs[i] = NULL;
    }
}

static void reports_free(struct ps_part *part)
{
    if (part->reports != NULL) {
        ps_bits_fini(&part->reports->reported);
        ps_free(part->reports);
        part->reports = NULL;
    }
}

bool ps_part_add_report(struct ps_part *part, uint32_t slot, uint32_t slots,
                        uint64_t made)
{
    if (part->reports == NULL) {
        part->reports = ps_calloc(1, sizeof(*part->reports));
        ps_bits_init(&part->reports->reported, slots);
    }
    part->reports->known_versions = ps_max_u64(part->reports->known_versions,
                                               made);
    ps_bits_set(&part->reports->reported, slot);
    return ps_bits_full(&part->reports->reported);
}

void ps_store_set_buffer(struct ps_store *st, struct ps_part *part,
                         enum ps_part_buffer place, const struct ps_slice *to)
{
    struct ps_slice *buffer = &part->buffers[place];

    ps_store_mark(part);
    if (buffer->buf != NULL || to->buf != NULL) {
        part->changed_buffers |= (uint8_t)(1u << place);
    }
    st->stored_bytes -= buffer->len;
    ps_buf_unref(buffer->buf);
    *buffer = *to;
    st->stored_bytes += to->len;
}

static void async_free(struct ps_part_async *a)
{
    struct ps_async_push *p;

    while ((p = PS_LIST_POP(struct ps_async_push, node, &a->queued_pushes)) !=
               NULL ||
           (p = PS_LIST_POP(struct ps_async_push, node, &a->applying_pushes)) !=
               NULL) {
        ps_async_push_free(p);
    }
    ps_free(a->clocks);
    ps_free(a->received_seqs);
    ps_free(a);
}

static void part_free(struct ps_store *st, struct ps_part *part)
{
    assert(part->merge == NULL);
    PS_LIST_EACH_SAFE(struct ps_waiting_pull, p, node, &part->waiting_pulls)
    {
        ps_store_remove_pull(st, p);
    }
    ps_store_close_round(st, part);
    if (part->async != NULL) {
        async_free(part->async);
    }
    if (part->rows != NULL) {
        ps_free(part->rows->round_counts);
        ps_free(part->rows);
    }
    reports_free(part);
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        st->stored_bytes -= part->buffers[i].len;
    }
    ps_image_drop(part->buffers);
    ps_list_unlink(&part->record.changed);
    ps_part_release_record(part);
    ps_free(part);
}

void ps_store_fini(struct ps_store *st)
{
    PS_MAP_EACH(struct ps_part, part, st->parts)
    {
        part_free(st, part);
    }
    ps_map_free(st->parts);
    assert(st->stored_bytes == 0 && st->open_round_count == 0 &&
           st->waiting_pull_count == 0);
    memset(st, 0, sizeof(*st));
}

struct ps_part *ps_store_find(const struct ps_store *st, uint32_t key,
                              uint32_t index)
{
    return ps_map_get(st->parts, ps_part_id(key, index));
}

struct ps_part *ps_store_find_or_add(struct ps_store *st, uint32_t key,
                                     uint32_t index)
{
    struct ps_part *part = ps_store_find(st, key, index);

    if (part == NULL) {
        part = ps_calloc(1, sizeof(*part));
        part->key = key;
        part->index = index;
        part->store = st;
        ps_list_init(&part->waiting_pulls);
        ps_map_put(st->parts, ps_part_id(key, index), part);
    }
    return part;
}

void ps_store_remove(struct ps_store *st, struct ps_part *part)
{
    ps_map_remove(st->parts, ps_part_id(part->key, part->index));
    if (part->record.place.number != 0) {
        ps_records_remove(st->records, &part->record.place);
    }
    part_free(st, part);
}

void ps_store_remove_if_empty(struct ps_store *st, struct ps_part *part)
{
    if (part->image.version == 0 && !ps_part_has_value(part) &&
        part->open_round == NULL && part->async == NULL &&
        part->reports == NULL && part->image.retry == 0 &&
        ps_list_empty(&part->waiting_pulls)) {
        ps_store_remove(st, part);
    }
}

bool ps_part_matches(const struct ps_part *part, uint8_t dtype, uint32_t count)
{
    const struct ps_rec_part_image *im = &part->image;

    return (!im->has_dtype || im->dtype == dtype) &&
           (im->count == 0 || count == 0 || im->count == count);
}

void ps_part_declare(struct ps_part *part, uint8_t dtype, uint32_t count)
{
    assert(ps_part_matches(part, dtype, count));
    part->image.has_dtype = true;
    part->image.dtype = dtype;
    if (count != 0) {
        part->image.count = count;
    }
}

struct ps_part_async *ps_part_obtain_async(struct ps_part *part, uint32_t slots)
{
    struct ps_part_async *a = part->async;

    if (a == NULL) {
        a = ps_calloc(1, sizeof(*a));
        a->slot_count = slots;
        a->clocks = ps_calloc(slots, sizeof(*a->clocks));
        a->received_seqs = ps_calloc(slots, sizeof(*a->received_seqs));
        ps_list_init(&a->queued_pushes);
        ps_list_init(&a->applying_pushes);
        part->async = a;
    }
    return a;
}

struct ps_part_rows *ps_part_obtain_rows(struct ps_part *part, uint32_t slots)
{
    if (part->rows == NULL) {
        part->rows = ps_calloc(1, sizeof(*part->rows));
        part->rows->round_counts = ps_calloc(slots, sizeof(uint32_t));
    }
    return part->rows;
}

/* --------------------------------------------------------- parts of the image */

void ps_store_install(struct ps_store *st, struct ps_part *part,
                      const struct ps_image *m,
                      struct ps_slice buffers[PS_PART_BUFFERS])
{
    part->image = *m->records;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        ps_store_set_buffer(st, part, (enum ps_part_buffer)i, &buffers[i]);
        buffers[i] = (struct ps_slice){0};
    }
    if (m->clocks_count > 0) {
        struct ps_part_async *a = ps_part_obtain_async(part, m->clocks_count);

        memcpy(a->clocks, m->clocks, m->clocks_count * sizeof(*a->clocks));
        for (uint32_t i = 0; i < m->clocks_count; i++) {
            a->received_seqs[i] = m->clocks[i].applied_seq;
            a->clock = i == 0 ? m->clocks[i].clock
                              : ps_min_u64(a->clock, m->clocks[i].clock);
        }
    }
}

void ps_store_set_encoded(struct ps_store *st, struct ps_part *part,
                          uint8_t codec, const struct ps_slice *code)
{
    ps_store_set_buffer(st, part, PS_PART_BUFFER_ENCODED, code);
    part->image.codec = codec;
}

void ps_store_set_value(struct ps_store *st, struct ps_part *part,
                        uint64_t version, const struct ps_slice *value)
{
    struct ps_rec_part_image *im = &part->image;

    assert(version >= im->version);
    if (version != im->version) {
        im->retry = 0;
        im->all_skipped = false;
    }
    if (part->buffers[PS_PART_BUFFER_ENCODED].buf != NULL) {
        ps_store_set_encoded(st, part, 0, &(struct ps_slice){0});
    }
    ps_store_set_buffer(st, part, PS_PART_BUFFER_VALUE, value);
    im->version = version;
}

void ps_store_keep_value(struct ps_store *st, struct ps_part *part,
                         bool all_skipped)
{
    struct ps_rec_part_image *im = &part->image;

    ps_store_mark(part);
    im->version++;
    im->retry = 0;
    im->all_skipped = all_skipped;
    ps_store_set_encoded(st, part, 0, &(struct ps_slice){0});
}

void ps_store_accumulate(struct ps_store *st, struct ps_part *part,
                         const struct ps_slice *sum, uint64_t weight,
                         uint8_t reduce)
{
    struct ps_rec_part_image *im = &part->image;
    const bool more = sum->buf != NULL;

    ps_store_set_buffer(st, part, PS_PART_BUFFER_ACCUMULATED, sum);
    im->accumulated_rounds = more ? im->accumulated_rounds + 1 : 0;
    im->accumulated_weight = more ? im->accumulated_weight + weight : 0;
    im->accumulated_reduce = reduce;
}

/* --------------------------------------------------- open rounds, waiting pulls */

struct ps_open_round *
ps_store_open_round(struct ps_store *st, struct ps_part *part,
                    const struct ps_server_contribution_kind *kind,
                    uint32_t slots)
{
    struct ps_open_round *open = ps_calloc(1, sizeof(*open));

    assert(part->open_round == NULL);
    open->kind = kind;
    ps_round_init(&open->round, slots);
    ps_bits_init(&open->needs_value, slots);
    part->open_round = open;
    st->open_round_count++;
    return open;
}

void ps_store_close_round(struct ps_store *st, struct ps_part *part)
{
    struct ps_open_round *open = part->open_round;

    if (open == NULL) {
        return;
    }
    part->open_round = NULL;
    st->open_round_count--;
    ps_round_fini(&open->round);
    ps_bits_fini(&open->needs_value);
    ps_bits_fini(&open->skips);
    ps_free(open);
    if (part->rows != NULL) {
        part->rows->round_weight = 0;
    }
}

void ps_async_push_free(struct ps_async_push *a)
{
    ps_buf_unref(a->payload.buf);
    ps_free(a);
}

void ps_store_add_pull(struct ps_store *st, struct ps_part *part,
                       const struct ps_waiting_pull *pull,
                       const struct ps_row_pull *rows)
{
    PS_LIST_EACH_OF(struct ps_waiting_pull, p, node, &part->waiting_pulls)
    {
        if (p->slot == pull->slot && p->rows == NULL && rows == NULL) {
            p->min_version = ps_max_u64(p->min_version, pull->min_version);
            return;
        }
    }
    struct ps_waiting_pull *p = ps_calloc(1, sizeof(*p));

    *p = *pull;
    if (rows != NULL) {
        p->rows = ps_calloc(1, sizeof(*p->rows));
        *p->rows = *rows;
    }
    ps_list_push_back(&part->waiting_pulls, &p->node);
    st->waiting_pull_count++;
}

void ps_store_remove_pull(struct ps_store *st, struct ps_waiting_pull *p)
{
    ps_list_remove(&p->node);
    st->waiting_pull_count--;
    if (p->rows != NULL) {
        ps_buf_unref(p->rows->row_numbers.buf);
        ps_free(p->rows);
    }
    ps_free(p);
}

void ps_store_remove_slot_pulls(struct ps_store *st, uint32_t slot)
{
    PS_MAP_EACH(struct ps_part, part, st->parts)
    {
        PS_LIST_EACH_SAFE(struct ps_waiting_pull, p, node, &part->waiting_pulls)
        {
            if (p->slot == slot) {
                ps_store_remove_pull(st, p);
            }
        }
        /* The loop allows removal of its entry. */
        ps_store_remove_if_empty(st, part);
    }
}
