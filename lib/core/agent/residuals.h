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
    struct ps_agent_recovered_record *hash_next; /* Same hash. */
    struct ps_buf *segment;                      /* The job's reference. */
    uint64_t name_hash;
    uint64_t offset; /* Of the record in `segment`. */
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

/* encode.c */
/* Returns true if the partition's next contribution is sent encoded. */
bool ps_agent_encode_applies(const struct ps_agent_part *p);
/* Starts to sum and encode the sources. PS_E_NOMEM: no change. */
int ps_agent_encode_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p,
                          const struct ps_slice *slices, uint32_t count);
/* Returns true if the encoded form of the open round exists. */
bool ps_agent_encode_is_ready(const struct ps_agent_part *p);
/* Returns true while a computation makes it, even if it is cancelled. */
bool ps_agent_encode_is_running(const struct ps_agent_part *p);
/* The computation has ended. */
void ps_agent_encode_end(struct ps_agent_part *p);
void ps_agent_encode_on_computed(struct ps_agent_part *p,
                                 struct ps_agent_computation *run);
/* Frees the encoded form and the previous residual: the round is over. */
void ps_agent_encode_discard(struct ps_agent_part *p);
/* The round failed and may be retried: reverts an encoding never sent. */
void ps_agent_encode_round_failed(struct ps_agent_part *p);
/* The server did not count the contribution: reverts its encoding. */
void ps_agent_encode_refused(struct ps_agent_part *p, uint64_t round);
void ps_agent_encode_free(struct ps_agent_part *p);

/* residual_log.c */
/* Returns true if the partition has a residual record in the log. Adopts the
 * record of an earlier agent, or appends a new one. */
bool ps_agent_residual_attach(struct ps_agent_step *st,
                              struct ps_agent_part *p);
/* Returns true if the record holds an encoding of the open round, which an
 * earlier agent made. */
bool ps_agent_residual_is_encoded(const struct ps_agent_part *p);
/* For such a record: makes the residual from before that encoding current. */
void ps_agent_residual_rewind(struct ps_agent_part *p);
/* Undoes ps_agent_residual_rewind(). */
void ps_agent_residual_forward(struct ps_agent_part *p);
/* Returns a reference of the buffer that an encoding writes; NULL: none. */
struct ps_buf *ps_agent_residual_target(const struct ps_agent_part *p);
struct ps_buf *ps_agent_moment_target(const struct ps_agent_part *p);
/* Tags the record: the current residual is the result of `round`. */
void ps_agent_residual_commit(struct ps_agent_part *p, uint64_t round);
void ps_agent_residual_detach(struct ps_agent_part *p);
void ps_agent_residual_job_free(struct ps_agent *a, struct ps_agent_job *j);
/* Announces to the session the segments that it does not know. */
void ps_agent_residual_announce(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Reads the records of a segment that a worker has from an earlier agent. Ends
 * the session if it is malformed or over a limit. */
void ps_agent_residual_on_segment(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_buf *buf);
