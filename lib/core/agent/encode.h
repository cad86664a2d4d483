/* SPDX-License-Identifier: Apache-2.0 */
/* Encoded gradients and their residuals. */
#pragma once

#include "core/agent/inner.h"

/* Returns true if the next contribution of a partition whose key has a codec is
 * sent encoded. */
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
/* The attempt at the round was aborted: what was sent of it is not sent again, but
 * stays until the next attempt needs another contribution. */
void ps_agent_encode_aborted(struct ps_agent_part *p);
/* The part is contributed again: reverts an encoding of an aborted attempt. */
void ps_agent_encode_begin_attempt(struct ps_agent_part *p);
/* The server did not count the contribution: reverts its encoding. */
void ps_agent_encode_refused(struct ps_agent_part *p, uint64_t round);
void ps_agent_encode_free(struct ps_agent_part *p);
