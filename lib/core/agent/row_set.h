/* SPDX-License-Identifier: Apache-2.0 */
/* Row numbers that an operation on a rows key names, and its requests for such
 * rows. The numbers are copied on arrival, because the worker could change them
 * later. */
#pragma once

#include "base/buf.h"

/* Part of a row pull that concerns one partition. */
struct ps_agent_row_request {
    uint32_t part_index;
    uint32_t first_row; /* Index of its first row in the operation. */
    uint32_t row_count;
    uint64_t request_id; /* 0: not sent. */
    bool is_answered;
};

/* Rows that an operation contributes or requests. */
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
void ps_agent_rows_free(struct ps_agent_rows *r);
/* Returns the bytes that `count` rows of a key of `part_count` partitions take
 * at most. */
uint64_t ps_agent_rows_memory(uint32_t count, uint32_t part_count);
