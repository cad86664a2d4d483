/* SPDX-License-Identifier: Apache-2.0 */
/* Every public call enters the client and leaves it. */
#pragma once

#include "base/err.h"

struct psc_client;

/* Locks the client. PSC_E_FORKED in a forked child, where the mutex may be
 * locked for ever; PSC_E_INVAL for NULL. */
PS_MUST_USE int client_enter(struct psc_client *c);
/* The same; PSC_E_INVAL with a text, and not locked, if `argument` is NULL. */
PS_MUST_USE int client_enter_with(struct psc_client *c, const void *argument,
                                  const char *what);
/* Calls client_reap_ops() and unlocks the client. */
void client_leave(struct psc_client *c);
/* Ends the operations of a client that has failed, and frees those on
 * deferred_free. Called before the mutex is released or a wait goes on, by a
 * caller that holds no operation without handle. Locked. */
void client_reap_ops(struct psc_client *c);
