/* SPDX-License-Identifier: Apache-2.0 */
/* Ring of the last things that a member did, always on. An entry is one store
 * of a record of fixed size; the oldest makes room. It has no clock: the caller
 * states the times. One thread adds and reads. */
#pragma once

#include "base/alloc.h"
#include "base/limits.h"
#include "base/time.h"

#include <stddef.h>
#include <stdint.h>

struct ps_trace_entry {
    ps_time begun_at;
    ps_time ended_at;
    uint64_t gen; /* Of the job. */
    uint64_t round;
    uint64_t bytes;
    uint32_t key;       /* Number. */
    uint32_t index;     /* Partition. */
    uint32_t peer;      /* By kind: rank, slot, node, or phase. */
    uint8_t kind;       /* enum ps_trace_kind */
    uint8_t op;         /* enum ps_op */
    uint16_t recording; /* Of the job, that it belongs to; 0: none. */
};

struct ps_trace {
    uint64_t count; /* Entries so far; entry n is at n modulo the size. */
    struct ps_trace_entry entries[PS_TRACE_ENTRIES];
};

static inline struct ps_trace *ps_trace_new(void)
{
    return ps_calloc(1, sizeof(struct ps_trace));
}

static inline void ps_trace_free(struct ps_trace *t)
{
    ps_free(t);
}

/* NULL: nothing is recorded. The fields are stored one by one: a copy of the
 * whole would wait for the stores that have just made it. */
static inline void ps_trace_add(struct ps_trace *t,
                                const struct ps_trace_entry *e)
{
    struct ps_trace_entry *to;

    if (t != NULL) {
        to = &t->entries[t->count++ % PS_TRACE_ENTRIES];
        to->begun_at = e->begun_at;
        to->ended_at = e->ended_at;
        to->gen = e->gen;
        to->round = e->round;
        to->bytes = e->bytes;
        to->key = e->key;
        to->index = e->index;
        to->peer = e->peer;
        to->kind = e->kind;
        to->op = e->op;
        to->recording = e->recording;
    }
}
