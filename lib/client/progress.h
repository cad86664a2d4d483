/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: input of the agent, and threads that wait for it. Locked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/time.h"

struct psc_client;
struct wait_condition;

/* Waits until `ready` is true. Returns 0, PS_E_TIMEOUT or the client's failure.
 * Releases the mutex while it waits. */
PS_MUST_USE int client_wait(struct psc_client *c, bool (*ready)(void *arg),
                            void *arg, ps_time deadline);
/* As client_wait(); fewer completions than are missing do not wake the
 * thread. */
PS_MUST_USE int client_wait_many(struct psc_client *c,
                                 const struct wait_condition *until,
                                 ps_time deadline);
/* Handles every message in the buffer of the socket. Reader only. */
void client_accept_messages(struct psc_client *c);
/* Reads and sends without waiting. May release the mutex. */
void client_poll(struct psc_client *c);
