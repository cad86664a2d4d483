/* SPDX-License-Identifier: Apache-2.0 */
/* Joined ranks in the rounds of keys. Locked. */
#pragma once

#include "client/coll/state.h"

/* Creates a skip for each key, unsent. On failure sets the detail. */
PS_MUST_USE int coll_skips_prepare(struct coll *k);
void coll_skips_start(struct coll *k);
/* Ends the join without waiting for its open skips. */
void coll_skips_detach(struct coll *k);
