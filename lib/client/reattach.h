/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to the agent: the first messages of each, and the way from a lost
 * agent to the next one, see reattach.c. Locked, unless stated otherwise. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/ps_msg.h"

struct key;
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
/* The welcome of the first agent. */
void handshake_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m);
/* The agent refuses this client. */
void handshake_reject(struct psc_client *c, const struct ps_msg_reject *m);

/* True if this client can re-attach when it loses its agent. */
bool reattach_is_possible(const struct psc_client *c);
/* Reader only: the stream has ended and all its messages are handled. */
void reattach_agent_lost(struct psc_client *c);
/* Dials the agent's socket. Reader only, while the link is LOST. */
void reattach_dial(struct psc_client *c);
/* The welcome of the next agent: re-declares all state to it. */
void reattach_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m);
/* Describes why operations wait while no agent knows the key (NULL: the job).
 * False: an agent does. */
bool reattach_explain(const struct psc_client *c, const struct key *k,
                      char *text, size_t size);
/* Stores a residual segment; owns `fd`. */
void reattach_add_segment(struct psc_client *c,
                          const struct ps_msg_l_residual_segment *m, int fd);
void reattach_fini(struct psc_client *c);
