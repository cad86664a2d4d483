/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

size_t ps_dtype_size(unsigned dtype)
{
    switch (dtype) {
    case PS_DTYPE_UINT8:
    case PS_DTYPE_INT8:
    case PS_DTYPE_BOOL:
        return 1;
    case PS_DTYPE_FLOAT16:
    case PS_DTYPE_BFLOAT16:
        return 2;
    case PS_DTYPE_FLOAT32:
    case PS_DTYPE_INT32:
        return 4;
    case PS_DTYPE_FLOAT64:
    case PS_DTYPE_INT64:
        return 8;
    default: /* Numbers of peers may be invalid. */
        return 0;
    }
}

const char *ps_dtype_name(unsigned dtype)
{
    switch (dtype) {
    case PS_DTYPE_FLOAT32:
        return "float32";
    case PS_DTYPE_FLOAT64:
        return "float64";
    case PS_DTYPE_INT32:
        return "int32";
    case PS_DTYPE_INT64:
        return "int64";
    case PS_DTYPE_FLOAT16:
        return "float16";
    case PS_DTYPE_BFLOAT16:
        return "bfloat16";
    case PS_DTYPE_UINT8:
        return "uint8";
    case PS_DTYPE_INT8:
        return "int8";
    case PS_DTYPE_BOOL:
        return "bool";
    default:
        return "unknown";
    }
}
