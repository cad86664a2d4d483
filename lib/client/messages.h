/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the agent. Reader only; locked. */
#pragma once

#include "proto/ps_msg.h"

struct psc_client;

/* Handles every message in the buffer of the socket. */
void client_accept_messages(struct psc_client *c);
/* Handles the completion of an operation. */
void client_accept_done(struct psc_client *c, const struct ps_msg_l_done *m);
