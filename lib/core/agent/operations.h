/* SPDX-License-Identifier: Apache-2.0 */
/* Unfinished operations of workers. */
#pragma once

#include "base/list.h"
#include "base/time.h"
#include "core/agent/kind.h"

struct ps_agent_state_transfer;

/* An unfinished operation of a worker. */
struct ps_agent_op {
    struct ps_list_node node;         /* In the list where it waits. */
    struct ps_list_node session_node; /* In session->ops. */
    struct ps_agent *agent;
    struct ps_agent_session *session; /* NULL: its worker has died. */
    struct ps_agent_key *key;         /* NULL: barrier or optimizer. */
    uint64_t id;
    /* Round; or least version, barrier number, or number of sched_request. */
    uint64_t round;
    struct ps_slice array; /* buf NULL: the operation has no array. */
    uint64_t bytes_ready;  /* Bytes of `array` that the worker has copied. */
    /* Memory of a GPU that gets the value; buf NULL: none. */
    struct ps_slice out;
    bool is_undelivered; /* A part of the value could not be written there. */
    uint32_t local_rank;
    int32_t priority;
    uint32_t root;
    uint32_t samples; /* Weight in a mean. */
    enum ps_op kind;  /* BROADCAST_SEND_ONLY: kept as BROADCAST. */
    bool send_only;   /* Broadcast whose value is not wanted. */
    uint8_t reduce;   /* enum ps_reduce. */
    bool is_barrier;
    struct ps_agent_rows *rows; /* Rows key; NULL: none. */
    /* Transfer of optimizer state; NULL: none. */
    struct ps_agent_state_transfer *state_transfer;
    /* Copy of the request to the scheduler; NULL: none. */
    struct ps_msg *sched_request;
    /* Bytes of memory charged to the account of the key's job. */
    uint64_t charged_bytes;
    ps_time started_at;
    uint64_t ticket; /* Async pull; 0: none drawn yet. */
};

/* Returns true while the worker is copying the operation's array. */
static inline bool ps_agent_op_is_streaming(const struct ps_agent_op *op)
{
    return op->bytes_ready < op->array.len;
}

/* Returns true for an operation that pushes or pulls rows. */
static inline bool ps_agent_op_names_rows(const struct ps_msg_l_op *m)
{
    return m->op == PS_OP_PUSH_ROWS || m->op == PS_OP_PULL_ROWS;
}
