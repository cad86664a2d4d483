/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of keys, and contributions of the local ranks to their rounds. */
#pragma once

#include "core/agent/inner.h"

void ps_agent_part_set_state(struct ps_agent_part *p,
                             enum ps_agent_part_state to);
uint64_t ps_agent_key_bytes(const struct ps_agent_key *k);
uint64_t ps_agent_part_bytes(const struct ps_agent_part *p);
/* Returns the partition's part of an array of its key, without a reference. */
struct ps_slice ps_agent_part_slice(const struct ps_agent_part *p,
                                    const struct ps_slice *array);
/* Returns the place of a version of the partition in the key's results. */
struct ps_slice ps_agent_part_result(const struct ps_agent_part *p,
                                     uint64_t version);
/* Returns the bytes that both results of a key of `bytes` bytes take. */
uint64_t ps_agent_key_result_bytes(uint64_t bytes);
/* Returns the bytes of key->own for `parts` partitions. */
uint64_t ps_agent_key_own_bytes(const struct ps_agent_key *k, uint32_t parts);
/* Kind's part_fits_frame() of keys that are not of rows. */
bool ps_agent_part_fits_frame(const struct ps_agent_key *k, uint32_t count);
/* Partition that the record names, whatever its dtype; NULL: none. `j` NULL: the
 * job is not known. */
struct ps_agent_part *
ps_agent_part_find_any_dtype(const struct ps_agent_job *j,
                             const struct ps_rec_part *rec);
/* The same, if `server` owns it; NULL: none, or it moved to another server
 * (rule V3). */
struct ps_agent_part *
ps_agent_part_find_owned(const struct ps_agent_job *j,
                         const struct ps_agent_server *server,
                         const struct ps_rec_part *rec);
/* The server reported that all ranks skipped the round of `version`: the value
 * before it is repeated. */
void ps_agent_part_skip(struct ps_agent_part *p, uint64_t version);

void ps_agent_round_set_state(struct ps_agent_key *k,
                              enum ps_agent_round_state to);
/* Returns the number of contributions to the open round that are not skips, or
 * in a mean their samples (rule R20). */
uint64_t ps_agent_contribution_weight(const struct ps_agent_key *k);
/* Returns true if all local ranks have copied their contribution to it. */
bool ps_agent_contribution_is_ready(const struct ps_agent_part *p);
/* Returns true if it is, and the complete round still needs the partition. */
bool ps_agent_contribution_is_needed(const struct ps_agent_part *p);
/* Returns true if the rank has not contributed to the round, or is still
 * copying its contribution. */
bool ps_agent_contribution_awaits_rank(const struct ps_agent_key *k,
                                       uint32_t local, uint64_t round);
/* Writes the contribution of a local rank to a partition; returns false if it
 * has none. */
bool ps_agent_contribution_source(const struct ps_agent_part *p, uint32_t local,
                                  struct ps_slice *ret);
/* Writes this node's sources of a partition in rank order; returns their
 * number, at most one per local rank. */
uint32_t ps_agent_contribution_sources(const struct ps_agent_part *p,
                                       struct ps_slice *slices);

/* Fetch the memory of at most PREFETCH_OPS operations or parts into
 * the cache. Thousands of keys do not stay cached between two rounds. */
void ps_agent_prefetch_ops(const struct ps_agent *a,
                           const struct ps_agent_session *s,
                           const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_prefetch_parts(const struct ps_agent_job *j,
                             const struct ps_rec_part *part, uint32_t count);
