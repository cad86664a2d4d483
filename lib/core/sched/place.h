/* SPDX-License-Identifier: Apache-2.0 */
/* Which server gets which piece of a key. Pure arithmetic: the same question
 * has the same answer everywhere. docs/protocol.md, "Keys and placement". */
#pragma once

#include "base/err.h"
#include "proto/ps_msg.h"

#include <stdint.h>

/* A server of the job. An array of them is sorted by name. */
struct ps_place_server {
    uint32_t node;
    uint64_t bytes; /* Of this job's keys; what is placed is added. */
    uint64_t load;  /* Of all jobs: decides between equals. */
};

struct ps_place_part {
    uint32_t node;
    uint32_t count; /* Elements. */
};

struct ps_place_request {
    enum ps_placement policy;
    uint64_t count;           /* Elements, > 0. */
    uint32_t element_bytes;   /* Bytes of one. */
    uint32_t partition_bytes; /* 0: as fits the size and the servers. */
    uint64_t big_array_bound; /* mxnet */
    uint64_t mxnet_key;       /* mxnet: the integer key. */
    uint32_t row_width; /* Elements of a row, which is never cut; 0, 1: none. */
    uint32_t max_rows;  /* Rows of one part at most; 0: no bound. */
};

/* Parts in the order of the elements; the caller frees *ret_parts with
 * ps_free. With no servers all parts are at node 0, the agent itself.
 * PS_E_TOOBIG when there would be more than PS_KEY_PARTS_MAX; PS_E_NOMEM. */
PS_MUST_USE int ps_place_request(const struct ps_place_request *key,
                                 struct ps_place_server *servers,
                                 uint32_t server_count,
                                 struct ps_place_part **ret_parts,
                                 uint32_t *ret_count);

/* Move the parts of node `gone` to `servers`, which it is not among; others
 * stay where they are. Returns how many moved. */
uint32_t ps_place_reassign(struct ps_place_part *parts, uint32_t count,
                           uint32_t element, uint32_t gone,
                           struct ps_place_server *servers,
                           uint32_t server_count);
