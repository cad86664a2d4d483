/* SPDX-License-Identifier: Apache-2.0 */
/* A reader names the first entry that it wants and gets the number of the next
 * one, so that it can read on while others are added. Entries of other jobs are
 * counted and left out. */
#include "core/base/trace_read.h"

#include "base/num.h"

static struct ps_rec_trace_entry record_of(const struct ps_trace_entry *e)
{
    return (struct ps_rec_trace_entry){
        .kind = e->kind,
        .op = e->op,
        .begun_ns = e->begun_at,
        .duration_ns = e->ended_at > e->begun_at ? e->ended_at - e->begun_at
                                                 : 0,
        .round = e->round,
        .bytes = e->bytes,
        .key = e->key,
        .index = e->index,
        .peer = e->peer,
    };
}

void ps_trace_read(const struct ps_trace *t, const struct ps_msg_trace_get *m,
                   ps_time now, struct ps_rec_trace_entry *list,
                   struct ps_msg_trace_entries *ret)
{
    const uint64_t count = t != NULL ? t->count : 0;
    const uint64_t oldest = count - ps_min_u64(count, PS_TRACE_ENTRIES);
    uint64_t at = ps_min_u64(ps_max_u64(m->first, oldest), count);

    *ret = (struct ps_msg_trace_entries){.request = m->request,
                                         .now_ns = now,
                                         .first = at,
                                         .count = count,
                                         .entries = list,
                                         .role = PS_ROLE_SCHED};
    while (at < count && ret->entries_count < PS_TRACE_READ_MAX) {
        const struct ps_trace_entry *e = &t->entries[at++ % PS_TRACE_ENTRIES];

        if (e->gen == m->gen) {
            list[ret->entries_count++] = record_of(e);
        }
    }
    ret->next = at;
}
