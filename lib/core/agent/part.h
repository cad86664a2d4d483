/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of keys: states, sizes, look-up. */
#pragma once

#include "core/agent/inner.h"

struct ps_agent;
struct ps_agent_key;
struct ps_agent_part;
struct ps_agent_server;
struct ps_rec_part;

void ps_agent_part_set_state(struct ps_agent_part *p,
                             enum ps_agent_part_state to);
uint64_t ps_agent_key_bytes(const struct ps_agent_key *k);
uint64_t ps_agent_part_bytes(const struct ps_agent_part *p);
/* Returns the bytes that both results of a key of `bytes` bytes take. */
uint64_t ps_agent_key_result_bytes(uint64_t bytes);
/* Partition that the record names; NULL: none. */
struct ps_agent_part *ps_agent_part_find(const struct ps_agent *a, uint64_t gen,
                                         const struct ps_rec_part *rec);
/* The same without comparing the dtype. */
struct ps_agent_part *
ps_agent_part_find_any_dtype(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *rec);
/* Partition that the record names, if `server` owns it; NULL: none, or it moved
 * to another server (rule V3). */
struct ps_agent_part *
ps_agent_part_find_owned(const struct ps_agent *a,
                         const struct ps_agent_server *server, uint64_t gen,
                         const struct ps_rec_part *rec);
/* The server reported that all ranks skipped the round of `version`: the value
 * before it is repeated. */
void ps_agent_part_skip(struct ps_agent_part *p, uint64_t version);
