/* SPDX-License-Identifier: Apache-2.0 */
#include "base/scalar_name.h"

#include "base/limits.h"

#include <stddef.h>

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' ||
           c == ':' || c == '-';
}

bool ps_scalar_name_is_valid(const char *name)
{
    size_t len = 0;

    while (len <= PS_SCALAR_NAME_MAX && is_name_character(name[len])) {
        len++;
    }
    return name[len] == '\0' && len > 0 && len <= PS_SCALAR_NAME_MAX;
}
