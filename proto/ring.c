/* SPDX-License-Identifier: Apache-2.0 */
/* Counters are free-running and taken modulo the size of their ring. A flag
 * states that a side sleeps or is about to: it sets the flag and then checks
 * the ring again; the other side writes its entry and then checks the flag. A
 * full fence between the two steps of each side ensures that at least one sees
 * the other's write. The side that finds the flag set clears it and sends the
 * wake-up, so there is only one. */
#include "proto/ring.h"

#include "base/fnv1a.h"
#include "base/prefetch.h"
#include "proto/ps_fixed.h"

#include <stdatomic.h>

#define LINE       64u
#define OP_WORDS   (PS_FIXED_RING_OP_BYTES / sizeof(uint64_t))
#define AFTER_WORD (offsetof(struct ps_fixed_ring_op, after) / sizeof(uint64_t))

_Static_assert(PS_FIXED_RING_OP_BYTES % LINE == 0,
               "an operation has cache lines of its own");

/* A ring_op, whose words are copied one by one. */
struct slot {
    _Atomic uint64_t words[OP_WORDS];
};

/* Values of worker_asleep. */
enum { AWAKE, ASLEEP, ASLEEP_FOR_PROGRESS };

struct ps_ring_shared {
    _Alignas(LINE) struct ps_fixed_ring_control control;
    struct slot ops[PS_RING_OP_SLOTS];
    struct ps_fixed_ring_done dones[PS_RING_DONE_SLOTS];
    struct ps_fixed_ring_progress progress[PS_RING_PROGRESS_SLOTS];
};

_Static_assert(sizeof(struct ps_ring_shared) ==
                   PS_FIXED_RING_CONTROL_BYTES +
                       PS_FIXED_RING_OP_BYTES * PS_RING_OP_SLOTS +
                       PS_FIXED_RING_DONE_BYTES * PS_RING_DONE_SLOTS +
                       PS_FIXED_RING_PROGRESS_BYTES * PS_RING_PROGRESS_SLOTS,
               "the rings lie one behind the other");

_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2,
               "processes share words, not locks");

size_t ps_ring_bytes(void)
{
    return (sizeof(struct ps_ring_shared) + 4095u) & ~(size_t)4095u;
}

uint32_t ps_ring_layout(void)
{
    static const uint32_t parts[] = {
        PS_FIXED_RING_CONTROL_LAYOUT,
        PS_FIXED_RING_OP_LAYOUT,
        PS_FIXED_RING_DONE_LAYOUT,
        PS_FIXED_RING_PROGRESS_LAYOUT,
        PS_RING_OP_SLOTS,
        PS_RING_DONE_SLOTS,
        PS_RING_PROGRESS_SLOTS,
    };
    uint32_t hash = PS_FNV1A_32;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        hash = ps_fnv1a_32_add(hash, parts[i]);
    }
    return hash != 0 ? hash : 1;
}

/* ------------------------------------------------------------ worker side */

void ps_ring_worker_init(struct ps_ring_worker *r, void *memory)
{
    *r = (struct ps_ring_worker){.shared = memory};
}

bool ps_ring_push_op(struct ps_ring_worker *r, const struct ps_msg_l_op *op,
                     uint64_t after)
{
    struct ps_ring_shared *s = r->shared;
    struct slot *slot = &s->ops[r->ops_to % PS_RING_OP_SLOTS];
    const struct ps_fixed_ring_op entry = {
        .after = after,
        .op_id = op->op_id,
        .offset = op->offset,
        .round = op->round,
        .key = op->key,
        .region = op->region,
        .priority = op->priority,
        .row_count = op->row_count,
        .samples = op->samples,
        .root = op->root,
        .op = op->op,
        .reduce = op->reduce,
        .streaming = op->streaming,
    };
    uint64_t words[OP_WORDS];
    uint32_t from = atomic_load_explicit(&s->control.ops_from,
                                         memory_order_acquire);

    if (r->ops_to - from >= PS_RING_OP_SLOTS) {
        return false;
    }
    ps_fixed_put_ring_op((uint8_t *)words, &entry);
    for (size_t i = 0; i < OP_WORDS; i++) {
        atomic_store_explicit(&slot->words[i], words[i], memory_order_relaxed);
    }
    r->ops_to++;
    atomic_store_explicit(&s->control.ops_to, r->ops_to, memory_order_release);
    return true;
}

uint32_t ps_ring_free_op_slots(const struct ps_ring_worker *r)
{
    uint32_t from = atomic_load_explicit(&r->shared->control.ops_from,
                                         memory_order_acquire);
    uint32_t taken = r->ops_to - from;

    return taken < PS_RING_OP_SLOTS ? PS_RING_OP_SLOTS - taken : 0;
}

/* Clears the flag; true if it was set. */
static bool exchange_flag(_Atomic uint32_t *flag)
{
    return atomic_load_explicit(flag, memory_order_relaxed) != 0 &&
           atomic_exchange_explicit(flag, 0, memory_order_acq_rel) != 0;
}

bool ps_ring_wake_agent(struct ps_ring_worker *r)
{
    atomic_thread_fence(memory_order_seq_cst);
    return exchange_flag(&r->shared->control.agent_asleep);
}

int ps_ring_pop_dones(struct ps_ring_worker *r, struct ps_msg_l_done *ret_dones,
                      uint32_t max)
{
    struct ps_ring_shared *s = r->shared;
    uint32_t to = atomic_load_explicit(&s->control.dones_to,
                                       memory_order_acquire);
    uint32_t there = to - r->dones_from;
    uint32_t count = there < max ? there : max;

    if (there > PS_RING_DONE_SLOTS) {
        return PS_E_PROTO;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_fixed_ring_done *d =
            &s->dones[r->dones_from++ % PS_RING_DONE_SLOTS];

        ret_dones[i] = (struct ps_msg_l_done){
            .op_id = atomic_load_explicit(&d->op_id, memory_order_relaxed),
            .version = atomic_load_explicit(&d->version, memory_order_relaxed),
            .text = "",
        };
    }
    if (count > 0) {
        atomic_store_explicit(&s->control.dones_from, r->dones_from,
                              memory_order_release);
    }
    return (int)count;
}

bool ps_ring_has_done(const struct ps_ring_worker *r)
{
    return atomic_load_explicit(&r->shared->control.dones_to,
                                memory_order_acquire) != r->dones_from;
}

int ps_ring_pop_progress(struct ps_ring_worker *r,
                         struct ps_ring_progress *ret_piece)
{
    struct ps_ring_shared *s = r->shared;
    uint32_t to = atomic_load_explicit(&s->control.progress_to,
                                       memory_order_acquire);
    const struct ps_fixed_ring_progress *p =
        &s->progress[r->progress_from % PS_RING_PROGRESS_SLOTS];

    if (to == r->progress_from) {
        return 0;
    }
    if (to - r->progress_from > PS_RING_PROGRESS_SLOTS) {
        return PS_E_PROTO;
    }
    ret_piece->op_id = atomic_load_explicit(&p->op_id, memory_order_relaxed);
    ret_piece->bytes = atomic_load_explicit(&p->bytes, memory_order_relaxed);
    r->progress_from++;
    atomic_store_explicit(&s->control.progress_from, r->progress_from,
                          memory_order_release);
    return 1;
}

bool ps_ring_has_progress(const struct ps_ring_worker *r)
{
    return atomic_load_explicit(&r->shared->control.progress_to,
                                memory_order_acquire) != r->progress_from;
}

bool ps_ring_worker_sleep(struct ps_ring_worker *r, uint32_t count, bool pieces)
{
    struct ps_ring_shared *s = r->shared;
    /* A full ring must wake a worker that waits for more than the ring
     * holds. */
    uint32_t most = PS_RING_DONE_SLOTS / 2;
    uint32_t at = r->dones_from + (count < most ? count : most);
    uint32_t to;

    atomic_store_explicit(&s->control.wake_at, at, memory_order_relaxed);
    atomic_store_explicit(&s->control.worker_asleep,
                          pieces ? ASLEEP_FOR_PROGRESS : ASLEEP,
                          memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    to = atomic_load_explicit(&s->control.dones_to, memory_order_acquire);
    if (to - r->dones_from >= at - r->dones_from ||
        (pieces && ps_ring_has_progress(r))) {
        ps_ring_worker_awake(r);
        return false;
    }
    return true;
}

void ps_ring_worker_awake(struct ps_ring_worker *r)
{
    atomic_store_explicit(&r->shared->control.worker_asleep, AWAKE,
                          memory_order_relaxed);
}

/* ------------------------------------------------------------- agent side */

void ps_ring_agent_init(struct ps_ring_agent *r, void *memory)
{
    *r = (struct ps_ring_agent){.shared = memory};
}

/* Reads the operation in a slot: 1, or PS_E_PROTO; 0: a frame that was sent
 * before it has not been read yet. */
static int read_slot(const struct slot *slot, uint64_t frames,
                     struct ps_msg_l_op *ret_op)
{
    struct ps_fixed_ring_op entry;
    uint64_t words[OP_WORDS];

    if (atomic_load_explicit(&slot->words[AFTER_WORD], memory_order_relaxed) >
        frames) {
        return 0;
    }
    for (size_t i = 0; i < OP_WORDS; i++) {
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_relaxed);
    }
    if (!ps_fixed_get_ring_op((const uint8_t *)words, &entry)) {
        return PS_E_PROTO;
    }
    *ret_op = (struct ps_msg_l_op){
        .op_id = entry.op_id,
        .op = entry.op,
        .key = entry.key,
        .region = entry.region,
        .offset = entry.offset,
        .round = entry.round,
        .priority = entry.priority,
        .reduce = entry.reduce,
        .root = entry.root,
        .row_count = entry.row_count,
        .samples = entry.samples,
        .streaming = entry.streaming != 0,
    };
    return 1;
}

int ps_ring_pop_ops(struct ps_ring_agent *r, uint64_t frames,
                    struct ps_msg_l_op *ret_ops, uint32_t max)
{
    struct ps_ring_shared *s = r->shared;
    uint32_t to = atomic_load_explicit(&s->control.ops_to,
                                       memory_order_acquire);
    uint32_t there = to - r->ops_from;
    uint32_t count = 0;
    int rc = 1;

    if (there > PS_RING_OP_SLOTS) {
        return PS_E_PROTO;
    }
    /* The slots are in the other processor's cache. */
    for (uint32_t i = 0; i < there && i < max; i++) {
        ps_prefetch(&s->ops[(r->ops_from + i) % PS_RING_OP_SLOTS],
                    sizeof(struct slot));
    }
    while (count < there && count < max && rc > 0) {
        rc = read_slot(&s->ops[r->ops_from % PS_RING_OP_SLOTS], frames,
                       &ret_ops[count]);
        if (rc > 0) {
            count++;
            r->ops_from++;
        }
    }
    if (count > 0) {
        atomic_store_explicit(&s->control.ops_from, r->ops_from,
                              memory_order_release);
        return (int)count;
    }
    return there == 0 ? 0 : rc;
}

bool ps_ring_push_done(struct ps_ring_agent *r, uint64_t op_id,
                       uint64_t version)
{
    struct ps_ring_shared *s = r->shared;
    struct ps_fixed_ring_done *d = &s->dones[r->dones_to % PS_RING_DONE_SLOTS];
    uint32_t from = atomic_load_explicit(&s->control.dones_from,
                                         memory_order_acquire);

    /* A worker that corrupts `dones_from` harms only itself. */
    if (r->dones_to - from >= PS_RING_DONE_SLOTS) {
        return false;
    }
    atomic_store_explicit(&d->op_id, op_id, memory_order_relaxed);
    atomic_store_explicit(&d->version, version, memory_order_relaxed);
    r->dones_to++;
    atomic_store_explicit(&s->control.dones_to, r->dones_to,
                          memory_order_release);
    return true;
}

bool ps_ring_push_progress(struct ps_ring_agent *r,
                           const struct ps_ring_progress *piece)
{
    struct ps_ring_shared *s = r->shared;
    struct ps_fixed_ring_progress *p =
        &s->progress[r->progress_to % PS_RING_PROGRESS_SLOTS];
    uint32_t from = atomic_load_explicit(&s->control.progress_from,
                                         memory_order_acquire);

    if (r->progress_to - from >= PS_RING_PROGRESS_SLOTS) {
        return false;
    }
    atomic_store_explicit(&p->op_id, piece->op_id, memory_order_relaxed);
    atomic_store_explicit(&p->bytes, piece->bytes, memory_order_relaxed);
    r->progress_to++;
    atomic_store_explicit(&s->control.progress_to, r->progress_to,
                          memory_order_release);
    return true;
}

bool ps_ring_wake_worker(struct ps_ring_agent *r)
{
    struct ps_ring_shared *s = r->shared;
    uint32_t asleep;
    uint32_t at;

    atomic_thread_fence(memory_order_seq_cst);
    asleep = atomic_load_explicit(&s->control.worker_asleep,
                                  memory_order_acquire);
    if (asleep == AWAKE) {
        return false;
    }
    at = atomic_load_explicit(&s->control.wake_at, memory_order_relaxed);
    if (at - r->dones_to - 1u < PS_RING_DONE_SLOTS &&
        (asleep != ASLEEP_FOR_PROGRESS ||
         atomic_load_explicit(&s->control.progress_from,
                              memory_order_relaxed) == r->progress_to)) {
        return false; /* The worker waits for more. */
    }
    return exchange_flag(&s->control.worker_asleep);
}

bool ps_ring_agent_sleep(struct ps_ring_agent *r, uint64_t frames)
{
    struct ps_ring_shared *s = r->shared;
    const struct slot *slot = &s->ops[r->ops_from % PS_RING_OP_SLOTS];

    atomic_store_explicit(&s->control.agent_asleep, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&s->control.ops_to, memory_order_acquire) ==
            r->ops_from ||
        /* The operation waits for a frame, whose arrival wakes the agent. */
        atomic_load_explicit(&slot->words[AFTER_WORD], memory_order_relaxed) >
            frames) {
        return true;
    }
    ps_ring_agent_awake(r);
    return false;
}

void ps_ring_agent_awake(struct ps_ring_agent *r)
{
    atomic_store_explicit(&r->shared->control.agent_asleep, 0,
                          memory_order_relaxed);
}
