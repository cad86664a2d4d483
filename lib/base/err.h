/* SPDX-License-Identifier: Apache-2.0 */
/* Error codes: 0 is success, failures are negative PS_E_*. */
#pragma once

enum ps_err {
#define PS_ERR(name, number, text) PS_E_##name = -(number),
#include "base/err.def"
#undef PS_ERR
};

#define PS_MUST_USE __attribute__((warn_unused_result))

/* Text of a code, never NULL; unknown codes give "unknown error". */
const char *ps_strerror(int rc);
/* "PS_E_INVAL" and so on, for logs. */
const char *ps_err_name(int rc);
/* Nearest PS_E_* for a positive errno value. */
int ps_err_from_errno(int errnum);
