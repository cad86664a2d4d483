/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of keys. Their numbers are part of the protocol. */
#pragma once

enum ps_key_kind {
    PS_KEY_KIND_STRING = 0,
    PS_KEY_KIND_INTEGER = 1,
    PS_KEY_KIND_COLLECTIVE = 2,
};

/* Name of the kind; "?" for other numbers. */
const char *ps_key_kind_name(unsigned kind);
