/* SPDX-License-Identifier: Apache-2.0 */
/* Element types. Their numbers are part of the protocol and of psclient.h. */
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
    PS_DTYPE_BOOL = 7, /* One byte, 0 or 1; its sum is a logical or. */
    PS_DTYPE_BFLOAT16 = 12,
};

/* Bytes of an element; 0: not a valid type. */
size_t ps_dtype_size(unsigned dtype);
const char *ps_dtype_name(unsigned dtype);
/* True if optimizers compute in this type. */
static inline bool ps_dtype_is_float(unsigned dtype)
{
    return dtype == PS_DTYPE_FLOAT32 || dtype == PS_DTYPE_FLOAT64;
}
/* True for all floating-point types. */
static inline bool ps_dtype_is_real(unsigned dtype)
{
    return ps_dtype_is_float(dtype) || dtype == PS_DTYPE_FLOAT16 ||
           dtype == PS_DTYPE_BFLOAT16;
}
/* Bytes of an element in optimizer state: 4 for 16-bit types, which are
 * computed in float32; the element's own size for all others. */
static inline size_t ps_dtype_state_size(unsigned dtype)
{
    return ps_dtype_is_real(dtype) && !ps_dtype_is_float(dtype)
               ? 4
               : ps_dtype_size(dtype);
}
