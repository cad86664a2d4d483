/* SPDX-License-Identifier: Apache-2.0 */
/* Rings in memory that a hostile process shares: counters and entries change
 * to anything between the calls of the other side. The input is a list of
 * steps: what (1), a number (1), a value (8). */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proto/ps_fixed.h"
#include "proto/ring.h"

#define STEP_BYTES  10u
#define SLOTS       8u /* Slots and control words that steps write to. */
#define WRITTEN_MAX 4096u
#define TAKEN_MAX   32

struct life {
    uint8_t *memory;
    struct ps_ring_agent agent;
    struct ps_ring_worker worker;
    size_t written[WRITTEN_MAX]; /* Places to be zeroed again. */
    size_t written_count;
};

static void write_word(struct life *l, size_t place, uint64_t value)
{
    assert(place + sizeof(value) <= ps_ring_bytes());
    memcpy(l->memory + place, &value, sizeof(value));
    if (l->written_count < WRITTEN_MAX) {
        l->written[l->written_count++] = place;
    }
}

/* An operation is one that the codec would accept. */
static void check_op(const struct ps_msg_l_op *op)
{
    assert(op->op <= UINT8_MAX && op->reduce <= UINT8_MAX);
    assert(op->streaming == false || op->streaming == true);
}

static void take_ops(struct life *l, uint64_t frames, uint32_t max)
{
    struct ps_msg_l_op ops[TAKEN_MAX];
    int count = ps_ring_pop_ops(&l->agent, frames, ops, max);

    assert(count <= (int)max);
    assert(count >= 0 || count == PS_E_PROTO);
    for (int i = 0; i < count; i++) {
        check_op(&ops[i]);
    }
}

static void take_dones(struct life *l, uint32_t max)
{
    struct ps_msg_l_done dones[TAKEN_MAX];
    struct ps_ring_progress piece;
    int count = ps_ring_pop_dones(&l->worker, dones, max);

    assert(count <= (int)max);
    assert(count >= 0 || count == PS_E_PROTO);
    count = ps_ring_pop_progress(&l->worker, &piece);
    assert(count == 0 || count == 1 || count == PS_E_PROTO);
}

static void sleep_and_wake(struct life *l, uint8_t number, uint64_t value)
{
    if ((number & 1) != 0) {
        if (ps_ring_agent_sleep(&l->agent, value)) {
            (void)!ps_ring_wake_agent(&l->worker);
        }
        ps_ring_agent_awake(&l->agent);
    } else {
        if (ps_ring_worker_sleep(&l->worker, (uint32_t)value % 64 + 1,
                                 (number & 2) != 0)) {
            (void)!ps_ring_wake_worker(&l->agent);
        }
        ps_ring_worker_awake(&l->worker);
    }
}

static void apply_step(struct life *l, uint8_t what, uint8_t number,
                       uint64_t value)
{
    const size_t ops = PS_FIXED_RING_CONTROL_BYTES;
    const struct ps_msg_l_op op = {.op_id = value, .op = number % 4};

    switch (what % 8) {
    case 0:
        write_word(l, number % (PS_FIXED_RING_CONTROL_BYTES / 8) * 8, value);
        break;
    case 1:
        write_word(l,
                   ops + number / 8 % SLOTS * PS_FIXED_RING_OP_BYTES +
                       number % 8 * 8,
                   value);
        break;
    case 2:
        take_ops(l, value, number % TAKEN_MAX + 1);
        break;
    case 3:
        take_dones(l, number % TAKEN_MAX + 1);
        break;
    case 4:
        (void)!ps_ring_push_done(&l->agent, value, number);
        break;
    case 5:
        (void)ps_ring_push_progress(
            &l->agent,
            &(struct ps_ring_progress){.op_id = number, .bytes = value});
        break;
    case 6:
        assert(ps_ring_free_op_slots(&l->worker) <= PS_RING_OP_SLOTS);
        (void)!ps_ring_push_op(&l->worker, &op, number);
        break;
    default:
        sleep_and_wake(l, number, value);
        break;
    }
}

/* Zeroes what the steps and the rings themselves have written. */
static void clean(struct life *l)
{
    for (size_t i = 0; i < l->written_count; i++) {
        memset(l->memory + l->written[i], 0, sizeof(uint64_t));
    }
    l->written_count = 0;
    memset(l->memory, 0, PS_FIXED_RING_CONTROL_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct life l;

    if (l.memory == NULL) {
        l.memory = aligned_alloc(4096, ps_ring_bytes());
        assert(l.memory != NULL);
        memset(l.memory, 0, ps_ring_bytes());
    }
    ps_ring_agent_init(&l.agent, l.memory);
    ps_ring_worker_init(&l.worker, l.memory);
    for (size_t at = 0; at + STEP_BYTES <= size; at += STEP_BYTES) {
        uint64_t value;

        memcpy(&value, data + at + 2, sizeof(value));
        apply_step(&l, data[at], data[at + 1], value);
    }
    clean(&l);
    return 0;
}
