/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of a collective. Locked. */
#pragma once

#include "client/coll/state.h"

/* A new collective and its operation, or NULL without memory. op_free() frees
 * both. */
struct coll *coll_new(struct psc_client *c);
/* Starts AGREE of a new collective. */
PS_MUST_USE int coll_start(struct coll *k);
