/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a rank as text, and the stage MISMATCH. Locked. */
#pragma once

#include "client/coll/state.h"

const char *coll_kind_name(enum coll_kind kind);
void coll_name(const struct coll *k, char *text, size_t size);
void coll_describe(struct psc_client *c, struct coll *k,
                   const struct coll_request *a);
void coll_start_mismatch(struct coll *k);
void coll_end_mismatch(struct coll *k);
