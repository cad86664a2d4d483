/* SPDX-License-Identifier: Apache-2.0 */
/* Element types. The numbers travel on the wire and stand in psclient.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum ps_dtype {
    PS_DTYPE_FLOAT32 = 0,
    PS_DTYPE_FLOAT64 = 1,
    PS_DTYPE_FLOAT16 = 2,
    PS_DTYPE_UINT8 = 3,
    PS_DTYPE_INT32 = 4,
    PS_DTYPE_INT8 = 5,
    PS_DTYPE_INT64 = 6,
    PS_DTYPE_BOOL = 7, /* A byte, 0 or 1; its sum is "or". */
    PS_DTYPE_BFLOAT16 = 12,
};

/* 0 for a type that does not exist. */
size_t ps_dtype_size(unsigned dtype);
const char *ps_dtype_name(unsigned dtype);
/* Is it one that optimizers compute in? */
static inline bool ps_dtype_is_float(unsigned dtype)
{
    return dtype == PS_DTYPE_FLOAT32 || dtype == PS_DTYPE_FLOAT64;
}
/* Does it hold real numbers? */
static inline bool ps_dtype_is_real(unsigned dtype)
{
    return ps_dtype_is_float(dtype) || dtype == PS_DTYPE_FLOAT16 ||
           dtype == PS_DTYPE_BFLOAT16;
}
/* Bytes of an element as an optimizer keeps it, which computes 16-bit types in
 * 32 bits; the element's own bytes for types that have no optimizer. */
static inline size_t ps_dtype_state_size(unsigned dtype)
{
    return ps_dtype_is_real(dtype) && !ps_dtype_is_float(dtype)
               ? 4
               : ps_dtype_size(dtype);
}
