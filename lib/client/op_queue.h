/* SPDX-License-Identifier: Apache-2.0 */
/* Order of operations on a key, of barriers and of requests about the job.
 * Locked. */
#pragma once

#include "base/err.h"
#include "proto/ps_msg.h"

struct key;
struct psc_client;
struct psc_op;

/* Queues the operation on its key or as a barrier, or sends it at once. The
 * client owns it then, and it may have ended. On failure the operation is still
 * NEW. `msg` is the message of a job request. */
PS_MUST_USE int op_submit(struct psc_op *op, const struct ps_msg *msg);
/* Sends the queued operations of a key that may leave. The caller flushes. */
void op_pump(struct psc_client *c, struct key *k);
/* Sends the operations that wait for the end of others, on any key. The caller
 * flushes. */
void op_send_stalled(struct psc_client *c);
/* Sends QUEUED job requests and barriers. Requests of an unbound key stay
 * queued. */
PS_MUST_USE int op_send_job_requests(struct psc_client *c);
void op_send_barriers(struct psc_client *c);
/* Agent lost: queues every SENT operation but OP_KEY again, in order. */
void op_requeue_all(struct psc_client *c);
