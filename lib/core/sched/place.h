/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: which server owns which partition of a key. Pure arithmetic: the
 * same input has the same result everywhere. docs/protocol.md, "Keys and
 * placement". */
#pragma once

#include "base/err.h"
#include "proto/ps_msg.h"

#include <stdint.h>

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
