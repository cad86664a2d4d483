/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-operations of a collective, its memory and its error. Locked. */
#pragma once

#include "client/coll/state.h"

/* Sets the error with which the collective ends once its sub-operations have
 * ended. The first error stays. */
void coll_fail(struct coll *k, int rc, const char *text);
/* Memory of `bytes` plus coll_slack(), which keys of rounded sizes read. */
PS_MUST_USE int coll_get_block(struct psc_client *c, size_t bytes,
                               struct ps_shm_block **ret_block);
size_t coll_slack(size_t bytes);
/* Releases the source memory. */
void coll_release_source(struct coll *k);
void coll_copy_scaled(const struct coll *k, void *dst, const void *src,
                      size_t bytes, double by);
/* A sub-operation on the collective key of that name, with `count` elements of
 * `dtype`. */
PS_MUST_USE int coll_subop_new(struct coll *k, enum op_kind kind,
                               const char *name, uint32_t dtype, uint64_t count,
                               struct psc_op **ret_part);
void coll_subop_set_source(struct psc_op *part, size_t offset);
void coll_subop_start(struct psc_op *part);
/* Result of the sub-operation's latest round. */
const uint8_t *coll_subop_result(const struct psc_op *part);
/* A summing round of `bytes`, as words; the caller fills in its own. */
PS_MUST_USE int coll_small_round(struct coll *k, const char *name,
                                 uint64_t bytes, uint8_t **ret_words,
                                 struct psc_op **ret_part);
