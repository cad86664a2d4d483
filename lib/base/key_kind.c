/* SPDX-License-Identifier: Apache-2.0 */
#include "base/key_kind.h"

#include <stddef.h>

static const char *const names[] = {
    [PS_KEY_KIND_STRING] = "string",
    [PS_KEY_KIND_INTEGER] = "integer",
    [PS_KEY_KIND_COLLECTIVE] = "collective",
};

const char *ps_key_kind_name(unsigned kind)
{
    return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}
