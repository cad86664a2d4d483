/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of arrays and results. Locked; most release the mutex to copy. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/ps_msg.h"

struct psc_op;

/* Allocates a staging block for an array of its key. */
PS_MUST_USE int op_alloc_staging(struct psc_op *op);
/* Makes the arrays the source of the operation: in place, as a copy of their
 * sum, or for op_stream(). On failure sets the detail. */
PS_MUST_USE int op_attach_source(struct psc_op *op, const void *const *srcs,
                                 uint32_t count);
/* True if the agent may get the operation before its array, at `src`, is
 * copied. Not in a job that survives the death of a worker, which would leave
 * the array incomplete; not if early parts of the result would overwrite elements
 * that are not copied yet. */
bool op_may_stream(const struct psc_op *op, const void *src);
/* Sums the arrays into the block of the operation. */
PS_MUST_USE int op_sum_sources(struct psc_op *op, const void *const *srcs,
                               uint32_t count);
/* Reports src.bytes_ready to the agent. A queued operation reports it when it is
 * sent. */
void op_send_progress(struct psc_op *op);
/* Copies the source of a streaming operation, which the agent may already have,
 * and reports progress. Afterwards the operation may have ended. */
void op_stream(struct psc_op *op, const void *src);
/* Copies `bytes` of a result that are readable. Reader only. The operation
 * stays SENT. */
void op_accept_progress(struct psc_op *op, uint64_t bytes);
/* Completion from the agent. Reader only. */
void op_accept_done(struct psc_op *op, const struct ps_msg_l_done *m);
