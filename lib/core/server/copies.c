/* SPDX-License-Identifier: Apache-2.0 */
#include "core/server/copies.h"

#include "base/alloc.h"
#include "core/server/inner.h"

struct ps_server_copy *ps_server_copies_find(const struct ps_server_target *t,
                                             uint32_t key, uint32_t index)
{
    return ps_map_get(t->parts, ps_part_id(key, index));
}

/* The first copy that replies about the partition wait for; NULL: none. */
static struct ps_server_copy *first_awaited(const struct ps_server_job *job,
                                            uint32_t key, uint32_t index)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        struct ps_server_copy *c = ps_server_copies_find(t, key, index);

        if (c != NULL && c->defers && c->confirmed < c->changed) {
            return c;
        }
    }
    return NULL;
}

bool ps_server_copies_await(const struct ps_server_job *job, uint32_t key,
                            uint32_t index)
{
    return first_awaited(job, key, index) != NULL;
}

bool ps_server_copies_defer_reply(const struct ps_server_slot *slot,
                                  const struct ps_part *part, bool want)
{
    struct ps_server_copy *c = first_awaited(slot->job, part->key, part->index);

    if (c == NULL) {
        return false;
    }
    if (c->due.words == NULL) {
        ps_bits_init(&c->due, slot->job->slot_count);
        ps_bits_init(&c->due_values, slot->job->slot_count);
    }
    ps_bits_set(&c->due, slot->index);
    if (want) {
        ps_bits_set(&c->due_values, slot->index);
    }
    return true;
}

bool ps_server_copies_defer_load(const struct ps_server_slot *slot,
                                 const struct ps_part *part, uint64_t request)
{
    struct ps_server_copy *c = first_awaited(slot->job, part->key, part->index);

    if (c == NULL) {
        return false;
    }
    struct ps_server_due_load *due = ps_calloc(1, sizeof(*due));

    due->slot = slot->index;
    due->request = request;
    ps_list_push_back(&c->due_loads, &due->node);
    return true;
}

/* Drops the answers to loads of a slot; UINT32_MAX: of all. */
static void drop_loads(struct ps_server_copy *c, uint32_t slot)
{
    PS_LIST_EACH_SAFE(struct ps_server_due_load, due, node, &c->due_loads)
    {
        if (slot == UINT32_MAX || due->slot == slot) {
            ps_list_remove(&due->node);
            ps_free(due);
        }
    }
}

void ps_server_copies_drop_replies(const struct ps_server_slot *slot)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &slot->job->copies.targets)
    {
        PS_MAP_EACH(struct ps_server_copy, c, t->parts)
        {
            drop_loads(c, slot->index);
            if (c->due.words != NULL) {
                ps_bits_clear(&c->due, slot->index);
                ps_bits_clear(&c->due_values, slot->index);
            }
        }
    }
}

void ps_server_copies_take_due(struct ps_server_job *job, uint32_t key,
                               uint32_t index, struct ps_bits *slots)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        struct ps_server_copy *c = ps_server_copies_find(t, key, index);

        for (uint32_t i = 0;
             c != NULL && c->due.words != NULL && i < job->slot_count; i++) {
            if (ps_bits_get(&c->due, i)) {
                ps_bits_set(slots, i);
            }
        }
        if (c != NULL) {
            ps_bits_fini(&c->due);
            ps_bits_fini(&c->due_values);
        }
    }
}

/* ------------------------------------------------------------- the copies */

void ps_server_copies_forget_sent(struct ps_server_copy *c)
{
    c->target->peer->copying_bytes -= c->sent_bytes;
    c->target->peer->filling_bytes -= c->filling_bytes;
    c->sent_bytes = 0;
    c->filling_bytes = 0;
    c->sent = 0;
}

void ps_server_copies_enqueue(struct ps_server_copy *c)
{
    if (!ps_list_linked(&c->node)) {
        ps_list_push_back(c->defers ? &c->target->peer->waiting
                                    : &c->target->peer->filling,
                          &c->node);
    }
}

static void drop_step(struct ps_server_copy *c)
{
    ps_buf_unref(c->step.gradient.buf);
    c->step = (struct ps_server_copy_step){0};
}

void ps_server_copies_begin_anew(struct ps_server_copy *c)
{
    drop_step(c);
    c->unsent = PS_PART_ALL;
    if (c->sent == 0) {
        ps_server_copies_enqueue(c);
    }
}

static void copy_free(struct ps_server_copy *c)
{
    ps_server_copies_forget_sent(c);
    drop_step(c);
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
    }
    ps_bits_fini(&c->due);
    ps_bits_fini(&c->due_values);
    drop_loads(c, UINT32_MAX);
    ps_free(c);
}

struct ps_server_copy *ps_server_copies_add(struct ps_server_target *t,
                                            uint32_t key, uint32_t index,
                                            bool defers)
{
    struct ps_server_copy *c = ps_calloc(1, sizeof(*c));

    c->target = t;
    c->key = key;
    c->index = index;
    c->defers = defers;
    c->is_filled = defers;
    c->unsent = PS_PART_ALL;
    ps_list_init(&c->due_loads);
    ps_map_put(t->parts, ps_part_id(key, index), c);
    return c;
}

void ps_server_copies_remove(struct ps_server_copy *c)
{
    ps_map_remove(c->target->parts, ps_part_id(c->key, c->index));
    copy_free(c);
}

static void note_change(struct ps_server_copy *c, const struct ps_part *part)
{
    struct ps_server_copy_step *step = &c->step;

    if (step->is_open && step->image.version + 1 == part->image.version) {
        c->changed = step->number; /* It has all that has changed. */
        step->is_open = false;
    } else {
        c->changed = ++c->target->job->copies.last_number;
        c->unsent |= part->changed_buffers;
        if (step->gradient.buf != NULL) {
            ps_server_copies_begin_anew(c);
        }
    }
    if (c->sent == 0 && c->confirmed < c->changed) {
        ps_server_copies_enqueue(c);
    }
}

void ps_server_copies_on_change(struct ps_server_job *job, struct ps_part *part)
{
    PS_LIST_EACH_OF(struct ps_server_target, t, node, &job->copies.targets)
    {
        struct ps_server_copy *c = ps_server_copies_find(t, part->key,
                                                         part->index);

        if (c == NULL && t->move != 0) {
            continue; /* Of another partition. */
        }
        if (c == NULL) {
            c = ps_server_copies_add(t, part->key, part->index, true);
        }
        note_change(c, part);
    }
    part->changed_buffers = 0;
}

void ps_server_copies_on_removal(struct ps_server_job *job, uint32_t key,
                                 uint32_t index)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        struct ps_server_copy *c = ps_server_copies_find(t, key, index);

        if (c != NULL) {
            c->changed = ++job->copies.last_number;
            ps_server_copies_begin_anew(c);
        }
    }
}

/* -------------------------------------------------------------------- steps */

/* True if the target has the present version and computes the same bits, and
 * nothing is on its way. */
static bool takes_step(const struct ps_server_copy *c)
{
    const uint32_t own = c->target->job->server->opt.kernel_class;

    return c->target->move == 0 && c->confirmed != 0 &&
           c->confirmed == c->changed && c->sent == 0 && c->unsent == 0 &&
           !c->step.is_open && c->step.gradient.buf == NULL && own != 0 &&
           c->target->peer->kernel_class == own;
}

bool ps_server_copies_take_step(const struct ps_server_job *job,
                                const struct ps_part *part)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        const struct ps_server_copy *c = ps_server_copies_find(t, part->key,
                                                               part->index);

        if (c != NULL && part->changed_buffers == 0 && takes_step(c)) {
            return true;
        }
    }
    return false;
}

void ps_server_copies_offer_step(struct ps_server_job *job,
                                 const struct ps_rec_part_image *image,
                                 const struct ps_part *part,
                                 const struct ps_optim_step_params *params,
                                 const struct ps_slice *gradient)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        struct ps_server_copy *c = ps_server_copies_find(t, part->key,
                                                         part->index);

        if (c == NULL || !takes_step(c)) {
            continue;
        }
        c->step = (struct ps_server_copy_step){
            .is_open = true,
            .number = ++job->copies.last_number,
            .image = *image,
            .params = *params,
            .gradient = *gradient};
        ps_buf_ref(gradient->buf);
        ps_server_copies_enqueue(c);
    }
}

void ps_server_copies_on_discard(struct ps_server_job *job,
                                 const struct ps_part *part)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        struct ps_server_copy *c = ps_server_copies_find(t, part->key,
                                                         part->index);

        if (c != NULL && c->step.is_open) {
            c->changed = ++job->copies.last_number;
            ps_server_copies_begin_anew(c);
        }
    }
}

/* ------------------------------------------------------------------ targets */

struct ps_server_target *ps_server_target_add(struct ps_server_job *job,
                                              struct ps_server_peer *peer,
                                              uint64_t move)
{
    struct ps_server_target *t = ps_calloc(1, sizeof(*t));

    t->job = job;
    t->peer = peer;
    t->move = move;
    t->parts = ps_map_new();
    ps_list_push_back(&job->copies.targets, &t->node);
    return t;
}

struct ps_server_target *ps_server_target_find(const struct ps_server_job *job,
                                               uint64_t move)
{
    PS_LIST_EACH_OF(struct ps_server_target, t, node, &job->copies.targets)
    {
        if (t->move == move) {
            return t;
        }
    }
    return NULL;
}

void ps_server_target_free(struct ps_server_target *t)
{
    PS_MAP_EACH(struct ps_server_copy, c, t->parts)
    {
        copy_free(c);
    }
    ps_map_free(t->parts);
    ps_list_remove(&t->node);
    ps_free(t);
}

void ps_server_targets_free(struct ps_server_job *job)
{
    while (!ps_list_empty(&job->copies.targets)) {
        ps_server_target_free(PS_CONTAINER(ps_list_first(&job->copies.targets),
                                           struct ps_server_target, node));
    }
}
