/* SPDX-License-Identifier: Apache-2.0 */
/* Life of an operation, and the table of those of a client. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "client/op_state.h"
#include "proto/ps_msg.h"

/* Writes "pushpull of 'fc1.weight'", with the round if it has one. */
void op_name(const struct psc_op *op, char *text, size_t size);
/* Writes "pushpull of fc1.weight round 3", "barrier 2", for lists. */
void op_label(const struct psc_op *op, char *text, size_t size);
enum ps_op op_wire_kind(enum op_kind kind);
/* A new operation, or NULL without memory. */
struct psc_op *op_new(struct psc_client *c, enum op_kind kind);
/* The open operation of that id, or NULL. */
struct psc_op *op_find(struct psc_client *c, uint64_t id);
/* Gives the operation an id and a slot in the table. */
PS_MUST_USE int op_number(struct psc_op *op);
void op_release_number(struct psc_op *op);
/* Changes the state, and what the table of operations counts by state. A change
 * that the table of states does not have fails the client. */
void op_set_state(struct psc_op *op, enum op_state to);
/* Ends the operation, which stays valid at least until the mutex is released:
 * a detached one joins deferred_free. `text` may be NULL. */
void op_end(struct psc_op *op, int rc, const char *text);
/* The thread that streams an operation which is ENDING has stopped. */
void op_finish_ending(struct psc_op *op);
/* Hands the result of a plain operation that is DONE to its handle or callback;
 * a detached one joins deferred_free. */
void op_report(struct psc_op *op);
/* Ends every operation that is QUEUED or SENT. */
void op_end_all(struct psc_client *c, int rc, const char *text);
/* Ends a QUEUED operation without a result; it joins deferred_free. */
void op_drop(struct psc_op *op);
/* A SENT pull whose result nobody wants: it ends with PSC_E_CANCELED however the
 * agent ends it, and writes nothing. */
void op_abandon(struct psc_op *op);
bool op_is_abandoned(const struct psc_op *op);
/* Returns a staging block that an operation on the key has used. */
void op_release_staging(struct psc_client *c, struct key *k,
                        struct ps_shm_block *b);
/* Removes the operation from all lists and frees it. Not while COPYING. */
void op_free(struct psc_op *op);
/* Puts an operation that is DONE, and that no handle shows, on
 * deferred_free. */
void op_free_later(struct psc_op *op);
/* Frees the operations on deferred_free. The caller holds none of them. */
void op_free_deferred(struct psc_client *c);
