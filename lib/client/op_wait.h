/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for operations, and their results. */
#pragma once

struct psc_op;

/* As psc_op_wait(). Locked; releases the mutex while it waits. */
int op_wait_locked(struct psc_op *op, int timeout_ms);
/* Waits for an operation that was started with `rc`, and frees it. Not
 * locked. */
int op_finish(struct psc_op *op, int rc);
