/* SPDX-License-Identifier: Apache-2.0 */
/* First messages of a connection to an agent. Locked, unless stated
 * otherwise. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/ps_msg.h"

struct psc_client;
struct psc_options;

/* Connects to the agent, again and again until connect_timeout_ms. Not
 * locked. */
PS_MUST_USE int handshake_connect(struct psc_client *c,
                                  const struct psc_options *o, char *err,
                                  size_t err_size);
/* Fills the first message of a connection, without the fields of a
 * re-attach. */
void handshake_hello(const struct psc_client *c, struct ps_msg *ret_msg);
/* Offers the agent a ring of this layout. Without memory for one all messages
 * use the socket. */
void handshake_open_ring(struct psc_client *c, uint32_t layout);
/* The welcome of the first agent. */
void handshake_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m);
