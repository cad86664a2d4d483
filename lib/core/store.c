/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

static uint64_t id_of(uint32_t key, uint32_t index)
{
    return (uint64_t)key << 32 | index;
}

void ps_store_init(struct ps_store *st)
{
    memset(st, 0, sizeof(*st));
    st->parts = ps_map_new();
}

static void stated_free(struct ps_part *part)
{
    if (part->stated != NULL) {
        ps_bits_fini(&part->stated->slots);
        ps_free(part->stated);
        part->stated = NULL;
    }
}

bool ps_part_state(struct ps_part *part, uint32_t slot, uint32_t slots,
                   uint64_t made)
{
    if (part->stated == NULL) {
        part->stated = ps_calloc(1, sizeof(*part->stated));
        ps_bits_init(&part->stated->slots, slots);
    }
    part->stated->made = ps_max_u64(part->stated->made, made);
    ps_bits_set(&part->stated->slots, slot);
    return ps_bits_full(&part->stated->slots);
}

static void part_free(struct ps_store *st, struct ps_part *part)
{
    struct ps_list_node *n;

    assert(part->run == NULL);
    while ((n = ps_list_first(&part->parked)) != NULL) {
        ps_store_unpark(st, PS_CONTAINER(n, struct ps_parked, node));
    }
    while ((n = ps_list_first(&part->asked)) != NULL) {
        ps_store_unask(st, PS_CONTAINER(n, struct ps_rows_wait, node));
    }
    while ((n = ps_list_pop(&part->waiting)) != NULL ||
           (n = ps_list_pop(&part->applying)) != NULL) {
        ps_store_apply_free(PS_CONTAINER(n, struct ps_apply, node));
    }
    ps_free(part->applied);
    stated_free(part);
    ps_store_close(st, part);
    st->stored -= part->value.len;
    ps_buf_unref(part->value.buf);
    ps_store_set_code(st, part, 0, &(struct ps_slice){0});
    ps_store_gather(st, part, &(struct ps_slice){0}, 0, 0);
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
    assert(st->stored == 0 && st->open_count == 0 && st->parked_count == 0);
    memset(st, 0, sizeof(*st));
}

struct ps_part *ps_store_find(const struct ps_store *st, uint32_t key,
                              uint32_t index)
{
    return ps_map_get(st->parts, id_of(key, index));
}

struct ps_part *ps_store_obtain(struct ps_store *st, uint32_t key,
                                uint32_t index)
{
    struct ps_part *part = ps_store_find(st, key, index);

    if (part == NULL) {
        part = ps_calloc(1, sizeof(*part));
        part->key = key;
        part->index = index;
        ps_list_init(&part->parked);
        ps_list_init(&part->asked);
        ps_list_init(&part->waiting);
        ps_list_init(&part->applying);
        ps_map_put(st->parts, id_of(key, index), part);
    }
    return part;
}

void ps_store_forget(struct ps_store *st, struct ps_part *part)
{
    ps_map_take(st->parts, id_of(part->key, part->index));
    part_free(st, part);
}

void ps_store_tidy(struct ps_store *st, struct ps_part *part)
{
    if (part->version == 0 && !ps_part_has_value(part) && part->open == NULL &&
        part->applied == NULL && part->stated == NULL && part->attempt == 0 &&
        ps_list_empty(&part->parked) && ps_list_empty(&part->asked)) {
        ps_store_forget(st, part);
    }
}

bool ps_part_fits(const struct ps_part *part, uint8_t dtype, uint32_t count)
{
    return (!part->typed || part->dtype == dtype) &&
           (part->count == 0 || count == 0 || part->count == count);
}

void ps_part_declare(struct ps_part *part, uint8_t dtype, uint32_t count)
{
    assert(ps_part_fits(part, dtype, count));
    part->typed = true;
    part->dtype = dtype;
    if (count != 0) {
        part->count = count;
    }
}

void ps_store_set_code(struct ps_store *st, struct ps_part *part, uint8_t codec,
                       const struct ps_slice *code)
{
    st->stored -= part->code.len;
    ps_buf_unref(part->code.buf);
    part->code = *code;
    part->codec = codec;
    st->stored += part->code.len;
}

void ps_store_set(struct ps_store *st, struct ps_part *part, uint64_t version,
                  const struct ps_slice *value)
{
    assert(version >= part->version);
    if (version != part->version) {
        part->attempt = 0;
        part->passed = false;
    }
    ps_store_set_code(st, part, 0, &(struct ps_slice){0});
    st->stored -= part->value.len;
    ps_buf_unref(part->value.buf);
    part->value = *value;
    st->stored += part->value.len;
    part->version = version;
}

void ps_store_gather(struct ps_store *st, struct ps_part *part,
                     const struct ps_slice *sum, uint64_t weight,
                     uint8_t reduce)
{
    const bool more = sum->buf != NULL;

    st->stored -= part->gathered.len;
    ps_buf_unref(part->gathered.buf);
    part->gathered = *sum;
    st->stored += part->gathered.len;
    part->gathered_rounds = more ? part->gathered_rounds + 1 : 0;
    part->gathered_weight = more ? part->gathered_weight + weight : 0;
    part->gathered_reduce = reduce;
}

void ps_store_set_state(struct ps_store *st, struct ps_part *part, unsigned i,
                        struct ps_buf *state)
{
    assert(i < PS_PART_STATES);
    if (part->state[i] != NULL) {
        st->stored -= part->state[i]->size;
        ps_buf_unref(part->state[i]);
    }
    part->state[i] = state;
    if (state != NULL) {
        st->stored += state->size;
    }
}

struct ps_open *ps_store_open(struct ps_store *st, struct ps_part *part,
                              uint32_t slots)
{
    struct ps_open *open = ps_calloc(1, sizeof(*open));

    assert(part->open == NULL);
    ps_round_init(&open->round, slots);
    ps_bits_init(&open->want, slots);
    part->open = open;
    st->open_count++;
    return open;
}

void ps_store_close(struct ps_store *st, struct ps_part *part)
{
    struct ps_open *open = part->open;

    if (open == NULL) {
        return;
    }
    part->open = NULL;
    st->open_count--;
    ps_round_fini(&open->round);
    ps_bits_fini(&open->want);
    ps_free(open->rows_given);
    ps_free(open->passes);
    ps_free(open);
}

void ps_store_apply_free(struct ps_apply *a)
{
    ps_buf_unref(a->given.buf);
    ps_free(a);
}

void ps_store_park(struct ps_store *st, struct ps_part *part, uint32_t slot,
                   uint64_t least)
{
    struct ps_parked *p;

    PS_LIST_EACH(n, &part->parked)
    {
        p = PS_CONTAINER(n, struct ps_parked, node);
        if (p->slot == slot) {
            p->least = ps_max_u64(p->least, least);
            return;
        }
    }
    p = ps_calloc(1, sizeof(*p));
    p->slot = slot;
    p->least = least;
    ps_list_push_back(&part->parked, &p->node);
    st->parked_count++;
}

void ps_store_unpark(struct ps_store *st, struct ps_parked *p)
{
    ps_list_remove(&p->node);
    st->parked_count--;
    ps_free(p);
}

void ps_store_ask(struct ps_store *st, struct ps_part *part,
                  const struct ps_rows_wait *w)
{
    struct ps_rows_wait *own = ps_calloc(1, sizeof(*own));

    *own = *w;
    own->node = (struct ps_list_node){0};
    ps_list_push_back(&part->asked, &own->node);
    st->parked_count++;
}

void ps_store_unask(struct ps_store *st, struct ps_rows_wait *w)
{
    ps_list_remove(&w->node);
    st->parked_count--;
    ps_buf_unref(w->row.buf);
    ps_free(w);
}

void ps_store_unpark_slot(struct ps_store *st, uint32_t slot)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(st->parts, &c)) != NULL) {
        struct ps_list_node *n = ps_list_first(&part->parked);

        while (n != NULL) {
            struct ps_parked *p = PS_CONTAINER(n, struct ps_parked, node);

            n = ps_list_next(&part->parked, n);
            if (p->slot == slot) {
                ps_store_unpark(st, p);
            }
        }
        n = ps_list_first(&part->asked);
        while (n != NULL) {
            struct ps_rows_wait *w = PS_CONTAINER(n, struct ps_rows_wait, node);

            n = ps_list_next(&part->asked, n);
            if (w->slot == slot) {
                ps_store_unask(st, w);
            }
        }
        ps_store_tidy(st, part); /* Taking what was just returned is fine. */
    }
}
