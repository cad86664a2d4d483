/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "conf/option.h"

/* Validates a table, for the test of each program: unique paths, valid defaults,
 * unique variables, complete sentences. PS_E_BUG: lines in `report`. */
PS_MUST_USE int option_set_check(const struct ps_option_set *set,
                                 struct ps_str *report);
