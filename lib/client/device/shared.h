/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in memory of a GPU that the agent maps. Locked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct ps_msg_l_device_info;
struct psc_client;
struct psc_device;
struct psc_op;
struct shared_table;

/* Attaches the arrays of an operation, as staged_attach(). PS_E_UNSUPPORTED, with
 * no change: one of them lies elsewhere, or the agent does not map it. */
PS_MUST_USE int shared_attach(struct psc_op *op, const struct psc_device *where,
                              const void *const *srcs, uint32_t count);
/* The agent's answer about one of them. */
void shared_accept_info(struct psc_client *c,
                        const struct ps_msg_l_device_info *m);
/* Offers all memory to a new agent. */
PS_MUST_USE int shared_announce_all(struct psc_client *c);
void shared_free_all(struct psc_client *c);
