/* SPDX-License-Identifier: Apache-2.0 */
/* Encoded gradients, and residuals in memory that outlives the agent. */
#pragma once

#include "core/agent/keys.h"

struct ps_agent_send_queue;

/* Shared memory file that workers keep open for the next agent. */
struct ps_agent_residual_segment {
    uint64_t id;        /* Random; also in the segment's header. */
    struct ps_buf *buf; /* Workers know the segment by the buffer's tag. */
};

/* Residual record that an earlier agent left in a segment. */
struct ps_agent_recovered_record {
    struct ps_agent_recovered_record *hash_next; /* With the same hash. */
    struct ps_buf *segment;                      /* The job's reference. */
    uint64_t name_hash;
    uint64_t offset; /* Offset of the record in `segment`. */
    uint64_t codec_hash;
    uint64_t round_tag;
    uint32_t part_index;
    uint32_t count;
    uint32_t vector_count;
};

/* Residual log of a job. */
struct ps_agent_residual_log {
    struct ps_agent_residual_segment *segments;
    uint32_t segment_count;
    uint32_t tail_segment; /* Index + 1 of the one appended to; 0: none. */
    uint64_t tail_used;    /* Bytes used of the tail segment. */
    uint64_t bytes;        /* Bytes used of all segments. */
    uint64_t record_count; /* Records read in segments of other agents. */
    /* struct ps_agent_recovered_record by ps_name_hash_slot. */
    struct ps_map *recovered;
    uint64_t charged_bytes; /* Bytes of memory charged to the job. */
};
