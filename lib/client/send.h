/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and operations to the agent, by its socket or the ring. Locked. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "proto/ps_msg.h"

struct psc_client;

/* Queues a message. Without an agent it is dropped, because all open state is
 * sent to the next agent. */
PS_MUST_USE int client_put(struct psc_client *c, const struct ps_msg *msg);
/* Puts an operation into the ring. False: it must use the socket. */
bool client_push_op(struct psc_client *c, const struct ps_msg_l_op *m);
/* Sends queued messages; a failure ends every operation. */
void client_flush(struct psc_client *c);
/* client_put() and client_flush(). */
PS_MUST_USE int client_send(struct psc_client *c, const struct ps_msg *msg);
/* True if the next completion lets this client send more: no thread may sleep
 * until several have arrived. client_kick() wakes the reader then. */
bool client_wants_kick(const struct psc_client *c);
void client_kick(struct psc_client *c);
