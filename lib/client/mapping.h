/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the file behind memory of this process, which the agent can map, too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "client/shm.h"

/* Finds the file in which [data, data + size) is mapped, as the agent accepts it:
 * a memfd that is sealed against shrinking, growing and sealing, or, with
 * `may_seal`, that gets these seals. The caller owns the descriptor.
 * PS_E_UNSUPPORTED: there is none, for the reason in *ret_why. */
PS_MUST_USE int mapping_find(void *data, size_t size, bool may_seal,
                             struct ps_shm_mapping *ret_mapping,
                             const char **ret_why);
