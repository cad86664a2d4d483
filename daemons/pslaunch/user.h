/* SPDX-License-Identifier: Apache-2.0 */
/* The user of processes that an agent starts. */
#pragma once

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

/* Makes this process, which has one thread, one of the user: groups, uids and
 * no capabilities, for ever; then the user's folder, and an environment that has
 * nothing of before. False after the reason is appended to `why`; the process
 * must end then. Never for root. */
bool user_become(uint32_t uid, struct ps_str *why);
