/* SPDX-License-Identifier: Apache-2.0 */
#include "core/server/copies.h"

#include "base/alloc.h"

struct ps_server_copy *ps_server_copies_find(const struct ps_server_job *job,
                                             uint32_t key, uint32_t index)
{
    return job->copies.parts != NULL
               ? ps_map_get(job->copies.parts, ps_part_id(key, index))
               : NULL;
}

bool ps_server_copies_defer_reply(const struct ps_server_slot *slot,
                                  const struct ps_part *part, bool want)
{
    struct ps_server_copy *c = ps_server_copies_find(slot->job, part->key,
                                                     part->index);

    if (c == NULL || !c->defers || c->confirmed == c->changed) {
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

void ps_server_copies_drop_replies(const struct ps_server_slot *slot)
{
    if (slot->job->copies.parts == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_copy, c, slot->job->copies.parts)
    {
        if (c->due.words != NULL) {
            ps_bits_clear(&c->due, slot->index);
            ps_bits_clear(&c->due_values, slot->index);
        }
    }
}

/* ------------------------------------------------------------- the copies */

void ps_server_copies_forget_sent(struct ps_server_copy *c)
{
    c->job->copies.peer->copying_bytes -= c->sent_bytes;
    c->sent_bytes = 0;
    c->sent = 0;
}

void ps_server_copies_enqueue(struct ps_server_copy *c)
{
    if (!ps_list_linked(&c->node)) {
        ps_list_push_back(&c->job->copies.peer->waiting, &c->node);
    }
}

static void copy_free(struct ps_server_copy *c)
{
    ps_server_copies_forget_sent(c);
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
    }
    ps_bits_fini(&c->due);
    ps_bits_fini(&c->due_values);
    ps_free(c);
}

void ps_server_copies_free(struct ps_server_job *job)
{
    if (job->copies.parts == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_copy, c, job->copies.parts)
    {
        copy_free(c);
    }
    ps_map_free(job->copies.parts);
    job->copies.parts = NULL;
    job->copies.peer = NULL;
    job->copies.unfilled = 0;
}

struct ps_server_copy *ps_server_copies_add(struct ps_server_job *job,
                                            const struct ps_part *part,
                                            bool defers)
{
    struct ps_server_copy *c = ps_calloc(1, sizeof(*c));

    c->job = job;
    c->key = part->key;
    c->index = part->index;
    c->defers = defers;
    ps_map_put(job->copies.parts, ps_part_id(part->key, part->index), c);
    return c;
}

void ps_server_copies_on_change(struct ps_server_job *job,
                                const struct ps_part *part)
{
    struct ps_server_copy *c;

    if (job->copies.parts == NULL) {
        return;
    }
    c = ps_server_copies_find(job, part->key, part->index);
    if (c == NULL) {
        c = ps_server_copies_add(job, part, true);
    }
    c->changed = ++job->copies.last_number;
    if (c->sent == 0) {
        ps_server_copies_enqueue(c);
    }
}
