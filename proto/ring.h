/* SPDX-License-Identifier: Apache-2.0 */
/* Two rings in memory that a worker shares with its agent: operations in one
 * direction, their ends in the other. They replace l_op and l_done messages,
 * without a system call while the other side is awake; for a sleeping side,
 * l_wake is sent over the socket.
 *
 * Neither side trusts the shared memory: a counter further ahead than the
 * ring's size is a protocol error, an entry is copied word by word before it is
 * checked, and each side keeps its own counters privately.
 *
 * A third ring carries progress: how much of an operation's result is complete.
 * These entries are hints, dropped when their ring is full; they wake the
 * worker only if it asked for it.
 *
 * Order: an entry states how many frames its worker had sent before it; the
 * agent handles it after these and before the next one. When a ring is full,
 * messages go over the socket. */
#pragma once

#include "base/err.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_RING_OP_SLOTS       8192u /* Sizes are powers of two. */
#define PS_RING_DONE_SLOTS     8192u
#define PS_RING_PROGRESS_SLOTS 256u

struct ps_ring_shared;

/* Hash of the memory's layout, never 0; builds with different hashes use the
 * socket. */
uint32_t ps_ring_layout(void);
/* Bytes of the memory, which both sides map page-aligned. */
size_t ps_ring_bytes(void);

/* ------------------------------------------------------------ worker side */

struct ps_ring_worker {
    struct ps_ring_shared *shared;
    uint32_t ops_to;     /* Operations written so far. */
    uint32_t dones_from; /* Ends read so far. */
    uint32_t progress_from;
};

/* The first `bytes` bytes of an operation's result are complete. */
struct ps_ring_progress {
    uint64_t op_id;
    uint64_t bytes;
};

/* `memory` must be zeroed. */
void ps_ring_worker_init(struct ps_ring_worker *r, void *memory);
/* Adds an operation; `after` is the number of frames sent before it. False:
 * full. */
PS_MUST_USE bool ps_ring_push_op(struct ps_ring_worker *r,
                                 const struct ps_msg_l_op *op, uint64_t after);
/* Number of operations that fit now. */
uint32_t ps_ring_free_op_slots(const struct ps_ring_worker *r);
/* To be called after a batch: true if the agent must be sent l_wake. */
PS_MUST_USE bool ps_ring_wake_agent(struct ps_ring_worker *r);
/* Takes at most `max` ends; returns their number, or PS_E_PROTO. Sets only the
 * fields that a ring carries. */
PS_MUST_USE int ps_ring_pop_dones(struct ps_ring_worker *r,
                                  struct ps_msg_l_done *ret_dones,
                                  uint32_t max);
bool ps_ring_has_done(const struct ps_ring_worker *r);
/* Takes the next progress entry: 1; none: 0; PS_E_PROTO. */
PS_MUST_USE int ps_ring_pop_progress(struct ps_ring_worker *r,
                                     struct ps_ring_progress *ret_piece);
bool ps_ring_has_progress(const struct ps_ring_worker *r);
/* Requests an l_wake once `count` >= 1 ends are in the ring, or with `pieces`
 * any progress entry. False: they are there already. */
PS_MUST_USE bool ps_ring_worker_sleep(struct ps_ring_worker *r, uint32_t count,
                                      bool pieces);
void ps_ring_worker_awake(struct ps_ring_worker *r);

/* ------------------------------------------------------------- agent side */

struct ps_ring_agent {
    struct ps_ring_shared *shared;
    uint32_t ops_from;
    uint32_t dones_to;
    uint32_t progress_to;
};

void ps_ring_agent_init(struct ps_ring_agent *r, void *memory);
/* Takes at most `max` operations of a worker of which `frames` frames were read,
 * checked as the codec would; returns their number. PS_E_PROTO only if the first
 * one is not valid. */
PS_MUST_USE int ps_ring_pop_ops(struct ps_ring_agent *r, uint64_t frames,
                                struct ps_msg_l_op *ret_ops, uint32_t max);
/* Adds the end of an operation. False: full. */
PS_MUST_USE bool ps_ring_push_done(struct ps_ring_agent *r, uint64_t op_id,
                                   uint64_t version);
/* Adds a progress entry. False: full, and it is dropped. */
bool ps_ring_push_progress(struct ps_ring_agent *r,
                           const struct ps_ring_progress *piece);
/* To be called after a batch: true if the worker must be sent l_wake. */
PS_MUST_USE bool ps_ring_wake_worker(struct ps_ring_agent *r);
/* Requests an l_wake. False: an operation is ready. */
PS_MUST_USE bool ps_ring_agent_sleep(struct ps_ring_agent *r, uint64_t frames);
void ps_ring_agent_awake(struct ps_ring_agent *r);
