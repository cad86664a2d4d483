/* SPDX-License-Identifier: Apache-2.0 */
/* Users that options name. */
#pragma once

#include "common/options.h"

#include <stdbool.h>
#include <stdint.h>

/* Finds the uid of a user by name or number. */
bool ps_user_find(const char *text, uint32_t *ret_uid);
/* Writes the uids of users that exist, of `max` at most, and returns their
 * number. */
uint32_t ps_users_find(const struct ps_option_list *names, uint32_t *uids,
                       uint32_t max);
/* True if all users exist; else a line in the report names the option. */
bool ps_users_check(const struct ps_option_list *names, const char *option,
                    const struct ps_options *o, struct ps_str *report);
