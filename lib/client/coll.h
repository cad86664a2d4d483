/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as the other files of this folder see them: an operation of kind
 * OP_COLL consists of parts, ordinary operations on keys of its own. */
#pragma once

#include "client/state.h"

/* A part has ended; the reader goes on with the next step. */
void coll_subop_ended(struct psc_op *part);
/* The same of the pass of a key. */
void coll_skip_ended(struct psc_op *pass);
/* Does anybody want what this part brings? Locked. */
bool coll_is_wanted(const struct psc_op *part);
/* May its result be copied as it comes? */
bool coll_may_copy_progress(const struct psc_op *part);
/* Writes what the part has brought to where it belongs, beyond what
 * is there already. Not locked. */
void coll_copy(struct psc_op *part, const void *from);
/* A part that is being copied, which psc_op_free() has to wait for. */
bool coll_is_copying(const struct psc_op *op);
/* The part that the collective waits for. */
struct psc_op *coll_open_subop(struct psc_op *op);
void coll_name(const struct psc_op *op, char *text, size_t size);
/* Its result where it lies. PSC_E_NOENT: it has none, or gave it away. */
PS_MUST_USE int coll_view(const struct psc_op *op, const void **ret_data,
                          size_t *ret_bytes);
void coll_free(struct psc_op *op);
/* Frees collectives that nobody waited for. Locked. */
void coll_free_deferred(struct psc_client *c);
