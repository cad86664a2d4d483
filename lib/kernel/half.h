/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of half precision and bfloat16 bit patterns to and from float.
 * Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a
 * NaN, quiet, with the upper bits of its payload. Branch-free integer
 * arithmetic, so that loops vectorize and all variants give the same bits. */
#pragma once

#include "kernel/both.h"

#include <stdint.h>
#include <string.h>

PS_BOTH uint32_t ps_float_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

PS_BOTH float ps_float_of_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

PS_BOTH uint16_t ps_bf16_of_float(float x)
{
    uint32_t u = ps_float_bits(x);
    uint32_t even = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : even);
}

PS_BOTH float ps_float_of_bf16(uint16_t h)
{
    return ps_float_of_bits((uint32_t)h << 16);
}

PS_BOTH uint16_t ps_fp16_of_float(float x)
{
    uint32_t u = ps_float_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t a = u & 0x7fffffffu;
    /* Below 2^-14: adding 0.5 moves the bits that half keeps to the lowest bits
     * of the sum, and rounds. */
    uint32_t tiny = ps_float_bits(ps_float_of_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t normal = (a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13;
    uint32_t nan = 0x7e00u | ((a >> 13) & 0x3ffu);
    uint32_t h = a < 0x38800000u ? tiny : normal;

    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? nan : h;
    return (uint16_t)(sign | h);
}

PS_BOTH float ps_float_of_fp16(uint16_t h)
{
    uint32_t sign = ((uint32_t)h & 0x8000u) << 16;
    uint32_t a = (uint32_t)h & 0x7fffu;
    uint32_t normal = (a << 13) + 0x38000000u;
    uint32_t huge = (a << 13) + 0x70000000u; /* Infinity and NaN. */
    uint32_t tiny = ps_float_bits(ps_float_of_bits((a << 13) + 0x38800000u) -
                                  0x1p-14f);
    uint32_t u = a < 0x400u ? tiny : normal;

    u = a >= 0x7c00u ? huge : u;
    u = a > 0x7c00u ? u | 0x400000u : u;
    return ps_float_of_bits(sign | u);
}
