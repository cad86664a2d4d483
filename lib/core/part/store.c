/* SPDX-License-Identifier: Apache-2.0 */
#include "core/part/store.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

static uint64_t part_id(uint32_t key, uint32_t index)
{
    return (uint64_t)key << 32 | index;
}

void ps_store_init(struct ps_store *st)
{
    memset(st, 0, sizeof(*st));
    st->parts = ps_map_new();
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

static void part_free(struct ps_store *st, struct ps_part *part)
{
    struct ps_list_node *n;

    assert(part->merge == NULL);
    while ((n = ps_list_first(&part->waiting_pulls)) != NULL) {
        ps_store_remove_pull(st, PS_CONTAINER(n, struct ps_waiting_pull, node));
    }
    while ((n = ps_list_first(&part->waiting_row_pulls)) != NULL) {
        ps_store_remove_row_pull(
            st, PS_CONTAINER(n, struct ps_waiting_row_pull, node));
    }
    while ((n = ps_list_pop(&part->queued_pushes)) != NULL ||
           (n = ps_list_pop(&part->applying_pushes)) != NULL) {
        ps_async_push_free(PS_CONTAINER(n, struct ps_async_push, node));
    }
    ps_free(part->async_slots);
    reports_free(part);
    ps_store_close_round(st, part);
    st->stored_bytes -= part->value.len;
    ps_buf_unref(part->value.buf);
    ps_store_set_encoded(st, part, 0, &(struct ps_slice){0});
    ps_store_accumulate(st, part, &(struct ps_slice){0}, 0, 0);
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        ps_store_set_state(st, part, i, NULL);
    }
    ps_free(part);
}

void ps_store_fini(struct ps_store *st)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(st->parts, &c)) != NULL) {
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
    return ps_map_get(st->parts, part_id(key, index));
}

struct ps_part *ps_store_find_or_add(struct ps_store *st, uint32_t key,
                                     uint32_t index)
{
    struct ps_part *part = ps_store_find(st, key, index);

    if (part == NULL) {
        part = ps_calloc(1, sizeof(*part));
        part->key = key;
        part->index = index;
        ps_list_init(&part->waiting_pulls);
        ps_list_init(&part->waiting_row_pulls);
        ps_list_init(&part->queued_pushes);
        ps_list_init(&part->applying_pushes);
        ps_map_put(st->parts, part_id(key, index), part);
    }
    return part;
}

void ps_store_remove(struct ps_store *st, struct ps_part *part)
{
    ps_map_remove(st->parts, part_id(part->key, part->index));
    part_free(st, part);
}

void ps_store_remove_if_empty(struct ps_store *st, struct ps_part *part)
{
    if (part->version == 0 && !ps_part_has_value(part) &&
        part->open_round == NULL && part->async_slots == NULL &&
        part->reports == NULL && part->retry == 0 &&
        ps_list_empty(&part->waiting_pulls) &&
        ps_list_empty(&part->waiting_row_pulls)) {
        ps_store_remove(st, part);
    }
}

bool ps_part_matches(const struct ps_part *part, uint8_t dtype, uint32_t count)
{
    return (!part->has_dtype || part->dtype == dtype) &&
           (part->count == 0 || count == 0 || part->count == count);
}

void ps_part_declare(struct ps_part *part, uint8_t dtype, uint32_t count)
{
    assert(ps_part_matches(part, dtype, count));
    part->has_dtype = true;
    part->dtype = dtype;
    if (count != 0) {
        part->count = count;
    }
}

void ps_store_set_encoded(struct ps_store *st, struct ps_part *part,
                          uint8_t codec, const struct ps_slice *code)
{
    st->stored_bytes -= part->encoded_value.len;
    ps_buf_unref(part->encoded_value.buf);
    part->encoded_value = *code;
    part->codec = codec;
    st->stored_bytes += part->encoded_value.len;
}

void ps_store_set_value(struct ps_store *st, struct ps_part *part,
                        uint64_t version, const struct ps_slice *value)
{
    assert(version >= part->version);
    if (version != part->version) {
        part->retry = 0;
        part->all_skipped = false;
    }
    ps_store_set_encoded(st, part, 0, &(struct ps_slice){0});
    st->stored_bytes -= part->value.len;
    ps_buf_unref(part->value.buf);
    part->value = *value;
    st->stored_bytes += part->value.len;
    part->version = version;
}

void ps_store_accumulate(struct ps_store *st, struct ps_part *part,
                         const struct ps_slice *sum, uint64_t weight,
                         uint8_t reduce)
{
    const bool more = sum->buf != NULL;

    st->stored_bytes -= part->accumulated.len;
    ps_buf_unref(part->accumulated.buf);
    part->accumulated = *sum;
    st->stored_bytes += part->accumulated.len;
    part->accumulated_rounds = more ? part->accumulated_rounds + 1 : 0;
    part->accumulated_weight = more ? part->accumulated_weight + weight : 0;
    part->accumulated_reduce = reduce;
}

void ps_store_set_state(struct ps_store *st, struct ps_part *part, unsigned i,
                        struct ps_buf *state)
{
    assert(i < PS_PART_STATES);
    if (part->states[i] != NULL) {
        st->stored_bytes -= part->states[i]->size;
        ps_buf_unref(part->states[i]);
    }
    part->states[i] = state;
    if (state != NULL) {
        st->stored_bytes += state->size;
    }
}

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
    ps_free(open->row_counts);
    ps_free(open->skips);
    ps_free(open);
}

void ps_async_push_free(struct ps_async_push *a)
{
    ps_buf_unref(a->payload.buf);
    ps_free(a);
}

void ps_store_add_pull(struct ps_store *st, struct ps_part *part, uint32_t slot,
                       uint64_t least, ps_time now)
{
    struct ps_waiting_pull *p;

    PS_LIST_EACH(n, &part->waiting_pulls)
    {
        p = PS_CONTAINER(n, struct ps_waiting_pull, node);
        if (p->slot == slot) {
            p->min_version = ps_max_u64(p->min_version, least);
            return;
        }
    }
    p = ps_calloc(1, sizeof(*p));
    p->slot = slot;
    p->min_version = least;
    p->since = now;
    ps_list_push_back(&part->waiting_pulls, &p->node);
    st->waiting_pull_count++;
}

void ps_store_remove_pull(struct ps_store *st, struct ps_waiting_pull *p)
{
    ps_list_remove(&p->node);
    st->waiting_pull_count--;
    ps_free(p);
}

void ps_store_add_row_pull(struct ps_store *st, struct ps_part *part,
                           const struct ps_waiting_row_pull *w)
{
    struct ps_waiting_row_pull *own = ps_calloc(1, sizeof(*own));

    *own = *w;
    own->node = (struct ps_list_node){0};
    ps_list_push_back(&part->waiting_row_pulls, &own->node);
    st->waiting_pull_count++;
}

void ps_store_remove_row_pull(struct ps_store *st,
                              struct ps_waiting_row_pull *w)
{
    ps_list_remove(&w->node);
    st->waiting_pull_count--;
    ps_buf_unref(w->row_numbers.buf);
    ps_free(w);
}

void ps_store_remove_slot_pulls(struct ps_store *st, uint32_t slot)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(st->parts, &c)) != NULL) {
        struct ps_list_node *n = ps_list_first(&part->waiting_pulls);

        while (n != NULL) {
            struct ps_waiting_pull *p = PS_CONTAINER(n, struct ps_waiting_pull,
                                                     node);

            n = ps_list_next(&part->waiting_pulls, n);
            if (p->slot == slot) {
                ps_store_remove_pull(st, p);
            }
        }
        n = ps_list_first(&part->waiting_row_pulls);
        while (n != NULL) {
            struct ps_waiting_row_pull *w = PS_CONTAINER(
                n, struct ps_waiting_row_pull, node);

            n = ps_list_next(&part->waiting_row_pulls, n);
            if (w->slot == slot) {
                ps_store_remove_row_pull(st, w);
            }
        }
        /* ps_map_next() allows removal of the entry that it returned last. */
        ps_store_remove_if_empty(st, part);
    }
}
