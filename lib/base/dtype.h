/* SPDX-License-Identifier: Apache-2.0 */
/* Element types. The numbers travel on the wire and stand in psclient.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum ps_dtype {
    PS_DTYPE_FLOAT32 = 0,
    PS_DTYPE_FLOAT64 = 1,
    PS_DTYPE_INT32 = 4,
    PS_DTYPE_INT64 = 6,
};

/* 0 for a type that does not exist. */
size_t ps_dtype_size(unsigned dtype);
const char *ps_dtype_name(unsigned dtype);
static inline bool ps_dtype_is_float(unsigned dtype)
{
    return dtype == PS_DTYPE_FLOAT32 || dtype == PS_DTYPE_FLOAT64;
}
