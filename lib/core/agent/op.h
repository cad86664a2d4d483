/* SPDX-License-Identifier: Apache-2.0 */
/* Operations, from their acceptance to their end, and the rows that they name. */
#pragma once

#include "core/agent/inner.h"

/* ------------------------------------------------------------- row numbers */

/* Part of a row pull that concerns one partition. */
struct ps_agent_row_request {
    uint32_t part_index;
    uint32_t first_row; /* Index of its first row in the operation. */
    uint32_t row_count;
    uint64_t request_id; /* 0: not sent. */
    bool is_answered;
};

/* Rows that an operation contributes or requests. The numbers are copied on
 * arrival, because the worker could change them later. */
struct ps_agent_rows {
    uint32_t count;
    size_t mapped_bytes; /* Bytes mapped at `numbers`; 0: from the heap. */
    uint32_t *numbers;   /* Row numbers in the key, ascending. */
    /* Pull: one entry for each partition that has requested rows. */
    struct ps_agent_row_request *requests;
    uint32_t request_count;
    uint32_t pending_requests; /* Requests without an answer. */
    uint64_t newest_version;
};

/* Copies the `count` row numbers at the beginning of the block; `count` is at
 * most `limit`, the rows of the key. PS_E_INVAL: they do not ascend, or one is
 * outside the key. PS_E_NOMEM. */
int ps_agent_rows_new(const struct ps_slice *block, uint32_t count,
                      uint32_t limit, struct ps_agent_rows **ret_rows);
/* Returns the bytes that `count` rows of a key of `part_count` partitions take
 * at most. */
uint64_t ps_agent_rows_memory(uint32_t count, uint32_t part_count);

/* -------------------------------------------------------------- operations */

struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id);
/* Removes the operation from its session, which has ended, and refunds its
 * charge there. */
void ps_agent_op_detach(struct ps_agent_op *op);
/* Sends the result to the worker, if it is connected, and frees `op`. */
void ps_agent_op_end(struct ps_agent_step *st, struct ps_agent_op *op,
                     uint64_t version, int error, const char *text);
/* Ends a skip of a round that all ranks skipped. */
void ps_agent_op_end_skipped(struct ps_agent_step *st, struct ps_agent_op *op,
                             uint64_t version);
void ps_agent_op_free(struct ps_agent_op *op);
void ps_agent_op_free_list(struct ps_list *list);
/* Refuses an operation that has not begun with an error and a text. Returns
 * false. */
bool ps_agent_op_reject(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m, int error, const char *fmt,
                        ...) __attribute__((format(printf, 5, 6)));
/* Kind's measure_array() for whole arrays. */
bool ps_agent_op_measure_dense(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_agent_key *k,
                               const struct ps_msg_l_op *m,
                               struct ps_agent_op_input *in);
