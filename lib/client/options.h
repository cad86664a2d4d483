/* SPDX-License-Identifier: Apache-2.0 */
/* Options of psc_open(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct psc_options;

/* Returns PSC_E_INVAL, with the reason in `err`, for values out of range. */
PS_MUST_USE int options_check(const struct psc_options *o, char *err,
                              size_t size);
/* True if the caller names no socket: the user's own agent comes first. */
bool options_have_default_socket(const struct psc_options *o);
/* True if the options allow to re-attach to another agent. */
bool options_allow_reattach(const struct psc_options *o);
