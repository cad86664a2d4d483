/* SPDX-License-Identifier: Apache-2.0 */
/* Places of a job's partitions: which server owns which of them, how much memory
 * they take there, and how they change servers.
 *
 * place.c is pure arithmetic: the same input has the same result everywhere
 * (docs/protocol.md, "Keys and placement"). move.c moves partitions of a running
 * job, and rebalance.c plans which. */
#pragma once

#include "base/err.h"
#include "core/base/machine.h"
#include "core/codec/compression.h"
#include "core/optim/optim.h"
#include "core/sched/member/member.h"
#include "proto/ps_msg.h"

#include <stdint.h>

struct ps_sched_job;

/* --------------------------------------------------------------- placement */

/* Server of the job. An array of them is sorted by name. */
struct ps_place_server {
    uint32_t node;
    uint64_t bytes; /* Bytes of this job's keys; placed partitions are added. */
    uint64_t load;  /* Bytes of all jobs; decides between equal `bytes`. */
};

struct ps_place_part {
    uint32_t node;
    uint32_t count; /* Elements. */
};

struct ps_place_request {
    enum ps_placement policy;
    /* Servers for which the key is cut: those of the whole job, whichever get its
     * partitions now. The bits of compressed gradients depend on the cut. */
    uint32_t servers;
    uint64_t count; /* Elements, > 0. */
    uint32_t element_bytes;
    uint32_t partition_bytes; /* 0: chosen by size and servers. */
    uint64_t big_array_bound; /* mxnet: elements from which a key is split. */
    uint64_t mxnet_key;       /* mxnet: the integer key. */
    uint32_t row_width; /* Elements of a row, which is not split; 0, 1: none. */
    uint32_t max_rows;  /* Rows of one partition at most; 0: no limit. */
};

/* Places partitions in the order of the elements; the caller frees *ret_parts
 * with ps_free. Without servers all are on node 0, the agent. PS_E_TOOBIG: more
 * than PS_KEY_PARTS_MAX; PS_E_NOMEM. */
PS_MUST_USE int ps_place_request(const struct ps_place_request *key,
                                 struct ps_place_server *servers,
                                 uint32_t server_count,
                                 struct ps_place_part **ret_parts,
                                 uint32_t *ret_count);

/* Moves the partitions of node `gone` to `servers`, which do not include it.
 * Returns the number of moved partitions. */
uint32_t ps_place_reassign(struct ps_place_part *parts, uint32_t count,
                           uint32_t element, uint32_t gone,
                           struct ps_place_server *servers,
                           uint32_t server_count);

/* ----------------------------------------------------------------- balance */

/* Balance plan: which partitions change servers so that all servers of a job
 * hold about the same number of bytes. */

/* A server is balanced within mean / PS_BALANCE_TOLERANCE_DIV of the mean. */
#define PS_BALANCE_TOLERANCE_DIV 20u

struct ps_balance_part {
    uint32_t key; /* For the caller, with `index`. */
    uint32_t index;
    uint32_t source; /* Index of its server. */
    /* Output: index of its new server; `source` if it stays. */
    uint32_t target;
    uint64_t bytes;
};

/* Sets the target of each part; `pieces` has all parts of the job, and `bytes`
 * of each server becomes the result. Few parts move: none twice, always from
 * the fullest server to the emptiest, and the largest part with which neither
 * of the two crosses the mean, or else the smallest that still makes the two
 * more alike. A server that is too full and has no such part is left out, also
 * of the mean of the others. PS_E_NOMEM: no plan; all is unchanged. */
PS_MUST_USE int ps_balance_plan(struct ps_balance_part *pieces, uint32_t count,
                                uint64_t *bytes, uint32_t server_count,
                                uint32_t *ret_moved);

/* ------------------------------------------------------------------ demand */

/* Memory demand of a job's partitions on a server, computed from declarations
 * alone, before any value arrives. The scheduler admits keys by it, and servers
 * reserve it for the job.
 *
 *     stored    values, optimizer state, residuals of codecs, tables
 *     versions  new values made while earlier ones are still being sent to
 *               agents: one of each value, up to 64 MiB
 *     rounds    a contribution of every slot to each of the two largest
 *               partitions, or a frame of small ones: enough to merge a round
 *               of the job at any time */

/* Properties of a job that need memory beside its values. */
struct ps_demand_profile {
    bool has_optimizer;
    bool encodes_values; /* Values are sent encoded. */
    /* Buffers of each partition in the precision of a step: optimizer state,
     * and the gradient that a step keeps while it waits for norms. */
    uint32_t step_buffers;
    /* Buffers of each partition in its own type: the sum of gradients of
     * several rounds. */
    uint32_t sum_buffers;
};

/* `optim` NULL: no optimizer. */
void ps_demand_profile_set(struct ps_demand_profile *kind,
                           const struct ps_optim *optim,
                           const struct ps_compression *compress);

/* Demand of one job on one server. */
struct ps_demand {
    uint64_t stored_bytes;
    uint64_t value_bytes; /* Bytes of values in stored_bytes. */
    /* Largest partition so far; does not shrink. */
    uint64_t largest_part_bytes;
};

/* Add and remove a partition of `count` elements. */
void ps_demand_add(struct ps_demand *n, const struct ps_demand_profile *kind,
                   uint8_t dtype, uint64_t count);
void ps_demand_remove(struct ps_demand *n, const struct ps_demand_profile *kind,
                      uint8_t dtype, uint64_t count);

/* Bytes for the round that is merged next, in a job of `slots` slots. */
uint64_t ps_demand_round_bytes(const struct ps_demand *n, uint32_t slots);
/* Whole demand: stored, versions and rounds. */
uint64_t ps_demand_bytes(const struct ps_demand *n, uint32_t slots);

/* ------------------------------------------------------------------ move.c */

/* Makes an empty rebalance; ps_sched_moves_start() begins it. */
void ps_sched_moves_init(struct ps_sched *s, struct ps_sched_job *j,
                         ps_conn_id ctl);
struct ps_sched_part_move {
    uint32_t key;
    uint32_t index;
    uint32_t source_node; /* Node number. */
    uint32_t target_node;
};
PS_MUST_USE int ps_sched_moves_add(struct ps_sched *s, struct ps_sched_job *j,
                                   const struct ps_sched_part_move *m);
/* Begins queued moves, up to PS_MOVES_MAX at once, of servers that are ready for
 * the job. */
void ps_sched_moves_start(struct ps_sched_step *st, struct ps_sched_job *j);
/* Drops all moves, which count as failed. Servers discard theirs with the
 * job. */
void ps_sched_moves_cancel(struct ps_sched_step *st, struct ps_sched_job *j,
                           const char *why);
void ps_sched_moves_free(struct ps_sched_job *j);
void ps_sched_moves_lose_server(struct ps_sched_step *st,
                                const struct ps_member *server);
/* Tells a server on a fresh link of the moves that it has a part in. */
void ps_sched_moves_resend(struct ps_sched_step *st, struct ps_member *server);
ps_sched_handler ps_sched_on_moved;

/* --------------------------------------------------------- reply to a tool */

/* Reply to a rebalance query: the rows of a plan, sent as the output of the
 * connection drains, and the end, which may wait for the moves. */

/* Moves of partitions of a key from one server to another. */
struct ps_sched_rebalance_row {
    uint32_t key;
    uint32_t source; /* Node number. */
    uint32_t target;
    uint32_t part_count;
    uint64_t bytes;
};

struct ps_sched_rebalance_reply {
    uint64_t gen;
    uint32_t next_row; /* Rows before it have been sent. */
    uint32_t row_count;
    struct ps_sched_rebalance_row *rows;
    bool awaits_end; /* query_end waits for the end of the moves. */
    bool has_ended;  /* The moves are over. */
    int rc;          /* Result of the moves. */
    char text[PS_TEXT_MAX + 1];
};

/* Sends up to PS_SCHED_ROWS_PER_SEND rows of the plan, and query_end after the
 * last. */
void ps_sched_rebalance_send_rows(struct ps_sched_step *st,
                                  struct ps_sched_conn *c);
void ps_sched_rebalance_drop_reply(struct ps_sched_conn *c);

/* ------------------------------------------------------------- rebalance.c */

/* Replies with the moves that balance the job's servers, or that drain
 * server `off` ("": none). `makes`: also starts them. */
void ps_sched_rebalance_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                              struct ps_sched_job *j, const char *off,
                              bool makes);
