/* SPDX-License-Identifier: Apache-2.0 */
/* Joined ranks in the collectives of the others. Locked. */
#pragma once

#include "client/coll/state.h"

void coll_start_shadow(struct coll *k);
/* Returns the stage that follows SHADOW. */
enum coll_stage coll_end_shadow(struct coll *k);
/* Returns this rank's entry in AGREE: negative, and greater the later the rank
 * has joined. */
int64_t coll_join_entry(struct coll *k);
/* Ends the join: all ranks have joined. */
void coll_end_join(struct coll *k);
