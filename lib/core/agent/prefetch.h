/* SPDX-License-Identifier: Apache-2.0 */
/* Cache prefetch ahead of a batch of operations. */
#pragma once

#include <stdint.h>

struct ps_agent;
struct ps_agent_session;
struct ps_msg_l_op;
struct ps_rec_part;

/* Fetch the memory of at most PREFETCH_OPS operations or parts into
 * the cache. Thousands of keys do not stay cached between two rounds. */
void ps_agent_prefetch_ops(const struct ps_agent *a,
                           const struct ps_agent_session *s,
                           const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_prefetch_parts(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *part, uint32_t count);
