/* SPDX-License-Identifier: Apache-2.0 */
/* Two rings in memory that a worker shares with its agent: operations one way,
 * ends of operations the other. They carry what l_op and l_done carry, without
 * a system call as long as the other side is awake; who finds the other side
 * asleep sends it l_wake over the socket.
 *
 * Each side trusts nothing it finds there: a counter that is further ahead
 * than the ring is long breaks the conversation, an entry is copied word by
 * word before anything in it is looked at, and what this side has written it
 * remembers by itself.
 *
 * Beside them lie words about operations that have not ended: how far the
 * result of one is there already. Such a word is a favour: it is dropped where
 * there is no room for it, and wakes only who asks to be woken for it.
 *
 * Order: an entry says how many frames its worker had sent before it; the
 * agent takes it after these and before the next one. What finds a ring full
 * goes over the socket. */
#pragma once

#include "base/err.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_RING_OP_SLOTS       8192u /* Powers of two. */
#define PS_RING_DONE_SLOTS     8192u
#define PS_RING_PROGRESS_SLOTS 256u

struct ps_ring_shared;

/* How an operation looks in memory, as one number that differs between builds
 * that disagree about it; they use the socket. 0: it does not fit in a ring. */
uint32_t ps_ring_layout(void);
/* Bytes of the memory; both sides must see it at a page's beginning. */
size_t ps_ring_bytes(void);

/* ------------------------------------------------------- the worker's side */

struct ps_ring_worker {
    struct ps_ring_shared *shared;
    uint32_t ops_to;     /* Written up to here. */
    uint32_t dones_from; /* Read up to here. */
    uint32_t progress_from;
};

/* The first so many bytes of an operation's result are there. */
struct ps_ring_progress {
    uint64_t op_id;
    uint64_t bytes;
};

/* `memory` is all zero. */
void ps_ring_worker_init(struct ps_ring_worker *r, void *memory);
/* False: full. `after` counts the frames sent before it. */
PS_MUST_USE bool ps_ring_push_op(struct ps_ring_worker *r,
                                 const struct ps_msg_l_op *op, uint64_t after);
/* Operations that would fit now. */
uint32_t ps_ring_free_op_slots(const struct ps_ring_worker *r);
/* After a batch: true when the agent must be sent an l_wake. */
PS_MUST_USE bool ps_ring_wake_agent(struct ps_ring_worker *r);
/* The next end: 1; none: 0; PS_E_PROTO. Fills in what a ring carries. */
PS_MUST_USE int ps_ring_pop_done(struct ps_ring_worker *r,
                                 struct ps_msg_l_done *ret_done);
/* At most `max` of them: how many. */
PS_MUST_USE int ps_ring_pop_dones(struct ps_ring_worker *r,
                                  struct ps_msg_l_done *ret_dones,
                                  uint32_t max);
bool ps_ring_has_done(const struct ps_ring_worker *r);
/* The next word about a result: 1; none: 0; PS_E_PROTO. */
PS_MUST_USE int ps_ring_pop_progress(struct ps_ring_worker *r,
                                     struct ps_ring_progress *ret_piece);
bool ps_ring_has_progress(const struct ps_ring_worker *r);
/* Asks for an l_wake once `count` >= 1 ends lie there, or with `pieces` a word
 * about a result. False: they do already. */
PS_MUST_USE bool ps_ring_worker_sleep(struct ps_ring_worker *r, uint32_t count,
                                      bool pieces);
void ps_ring_worker_awake(struct ps_ring_worker *r);

/* -------------------------------------------------------- the agent's side */

struct ps_ring_agent {
    struct ps_ring_shared *shared;
    uint32_t ops_from;
    uint32_t dones_to;
    uint32_t progress_to;
};

void ps_ring_agent_init(struct ps_ring_agent *r, void *memory);
/* The next operation of a worker that has sent `frames` frames, checked as the
 * codec would: 1; none yet: 0; PS_E_PROTO. */
PS_MUST_USE int ps_ring_pop_op(struct ps_ring_agent *r, uint64_t frames,
                               struct ps_msg_l_op *ret_op);
/* At most `max` of them: how many. PS_E_PROTO only when the first one is
 * wrong. */
PS_MUST_USE int ps_ring_pop_ops(struct ps_ring_agent *r, uint64_t frames,
                                struct ps_msg_l_op *ret_ops, uint32_t max);
/* False: full. */
PS_MUST_USE bool ps_ring_push_done(struct ps_ring_agent *r, uint64_t op_id,
                                   uint64_t version);
/* False: full, and it was dropped. */
bool ps_ring_push_progress(struct ps_ring_agent *r,
                           const struct ps_ring_progress *piece);
/* After a batch: true when the worker must be sent an l_wake. */
PS_MUST_USE bool ps_ring_wake_worker(struct ps_ring_agent *r);
/* Asks for an l_wake. False: there is something to take. */
PS_MUST_USE bool ps_ring_agent_sleep(struct ps_ring_agent *r, uint64_t frames);
void ps_ring_agent_awake(struct ps_ring_agent *r);
