/* SPDX-License-Identifier: Apache-2.0 */
/* The stages SPLITS and DATA. Locked. */
#pragma once

#include "client/coll/state.h"

/* The first stage of a collective on which all ranks agree. */
enum coll_stage coll_first_stage(const struct coll *k);
void coll_start_splits(struct coll *k);
void coll_end_splits(struct coll *k);
void coll_start_data(struct coll *k);
