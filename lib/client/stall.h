/* SPDX-License-Identifier: Apache-2.0 */
/* The reason why an operation is open, from the agent. */
#pragma once

#include <stddef.h>

struct psc_client;
struct psc_op;

/* Describes what the operation waits for. Queries the agent, which takes time.
 * Locked; releases the mutex. */
void op_explain(struct psc_op *op, char *text, size_t size);
/* Describes what the start of the job waits for, in the same way. */
void start_explain(struct psc_client *c, char *text, size_t size);
