/* SPDX-License-Identifier: Apache-2.0 */
/* Options of all daemons: variables PSD_* of one are in the environment of the
 * others too. */
#pragma once

#include "conf/option.h"

/* Ends with NULL. */
extern const struct ps_option_set *const ps_daemon_sets[];
