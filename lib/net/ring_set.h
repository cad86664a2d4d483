/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of operations (proto/ring.h) beside the connections of workers. A ring
 * is a faster way for some messages of its connection: it keeps their order to
 * the frames, and its sleeping side is woken by a frame. All rings of a loop
 * are polled before each wait, and asleep while the loop waits. */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "proto/ring.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_buf;
struct ps_conn;

/* All rings of a loop. */
struct ps_ring_set {
    struct ps_list conns; /* Connections with a ring. */
    struct ps_list wakes; /* Rings with new completions. */
    bool are_asleep;      /* Workers have to wake the agent. */
};

/* Ring of a connection; zeroed at first. */
struct ps_ring_conn {
    struct ps_conn *conn;
    struct ps_buf *memory; /* Mapping of the ring; NULL: no ring. */
    struct ps_ring_agent ring;
    struct ps_list_node node;
    /* In the list while the ring has new completions. */
    struct ps_list_node wake;
};

void ps_ring_set_init(struct ps_ring_set *s);

/* Maps the ring whose descriptor came with the frame being delivered; inside
 * the frame callback of `conn` only. Errors have a reason in *ret_why.
 * PS_E_PROTO: no such message is due, and the connection has to be closed;
 * others as ps_local_map_shared(). */
PS_MUST_USE int ps_ring_set_accept(struct ps_ring_set *s,
                                   struct ps_ring_conn *r, struct ps_conn *conn,
                                   uint64_t size, const char **ret_why);
void ps_ring_conn_drop(struct ps_ring_conn *r);

/* Takes at most `max` operations that the worker pushed before its frame number
 * `frames` + 1; returns their number. PS_E_PROTO: one is malformed; the
 * connection is closing, and its ring is gone. */
PS_MUST_USE int ps_ring_conn_take(struct ps_ring_conn *r, uint64_t frames,
                                  struct ps_msg_l_op *ret_ops, uint32_t max);

/* Adds the end of an operation. False: no ring, or a full one. */
PS_MUST_USE bool ps_ring_set_push_done(struct ps_ring_set *s,
                                       struct ps_ring_conn *r, uint64_t op_id,
                                       uint64_t version);
/* Adds a progress report. Without a ring, or with a full one, it is dropped. */
void ps_ring_set_push_progress(struct ps_ring_set *s, struct ps_ring_conn *r,
                               const struct ps_ring_progress *piece);
/* Queues l_wake for the next sleeping worker with new completions, and returns
 * its ring, so that its output is flushed. NULL: no more. */
struct ps_ring_conn *ps_ring_set_wake_next(struct ps_ring_set *s);

/* Marks the rings as asleep. False: one of them has an operation. */
PS_MUST_USE bool ps_ring_set_sleep(struct ps_ring_set *s);
void ps_ring_set_awake(struct ps_ring_set *s);
