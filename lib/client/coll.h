/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as the other files of this folder see them. An operation of kind
 * OP_COLL consists of sub-operations: ordinary operations on internal keys. */
#pragma once

#include "client/state.h"

/* A sub-operation has ended; starts the next stage if it was the last one. */
void coll_subop_ended(struct psc_op *part);
/* The skip of a key has ended. */
void coll_skip_ended(struct psc_op *pass);
/* True if the collective needs the sub-operation's result. Locked. */
bool coll_is_wanted(const struct psc_op *part);
/* True if the result may be copied while it arrives. */
bool coll_may_copy_progress(const struct psc_op *part);
/* Copies the sub-operation's result into the collective's, from where progress
 * copies ended. Not locked. */
void coll_copy(struct psc_op *part, const void *from);
/* A sub-operation in COPYING, which psc_op_free() must wait for. */
bool coll_is_copying(const struct psc_op *op);
/* The open sub-operation that the collective waits for, or NULL. */
struct psc_op *coll_open_subop(struct psc_op *op);
void coll_name(const struct psc_op *op, char *text, size_t size);
/* The result in place. PSC_E_NOENT: none, or written to `out`. */
PS_MUST_USE int coll_view(const struct psc_op *op, const void **ret_data,
                          size_t *ret_bytes);
void coll_free(struct psc_op *op);
