/* SPDX-License-Identifier: Apache-2.0 */
/* Names of training scalars. They stand in metrics, tables and JSON as they
 * are, so few characters are allowed. */
#pragma once

#include <stdbool.h>

/* Characters of a name, for messages to users. */
#define PS_SCALAR_NAME_CHARACTERS "letters, digits and any of _ . / : -"

/* True for 1 to PS_SCALAR_NAME_MAX of these characters. */
bool ps_scalar_name_is_valid(const char *name);
