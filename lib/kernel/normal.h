/* SPDX-License-Identifier: Apache-2.0 */
/* Normal numbers by position: each is a function of a stream and an index
 * alone, so the elements of an array may be computed in any parts and in any
 * order. The generator is Philox4x32-10 (J. Salmon, M. Moraes, R. Dror,
 * D. Shaw: Parallel random numbers: as easy as 1, 2, 3. SC 2011), the transform
 * that of G. Box and M. Muller (A note on the generation of random normal
 * deviates. 1958). Logarithm, sine and cosine are polynomials in double, of
 * operations that IEEE arithmetic rounds exactly: the bits do not depend on the
 * processor or on a library. Without branches, for the auto-vectorizer. */
#pragma once

#include "kernel/both.h"

#include <stdint.h>
#include <string.h>

/* Numbers of one step of one array. */
struct ps_normal_stream {
    uint64_t key;  /* Stands for the array and the program's seed. */
    uint64_t step; /* Number of the step. */
};

/* Four words of the block `counter` of the generator with this key. */
PS_BOTH void ps_philox(const uint32_t counter[4], const uint32_t key[2],
                       uint32_t out[4])
{
    uint32_t c0 = counter[0];
    uint32_t c1 = counter[1];
    uint32_t c2 = counter[2];
    uint32_t c3 = counter[3];
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];

    for (int round = 0; round < 10; round++) {
        const uint64_t p = (uint64_t)0xd2511f53u * c0;
        const uint64_t q = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)q;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Natural logarithm of m / 2^53, for m from 1 to 2^53. */
PS_BOTH double ps_log_of_fraction(uint64_t m)
{
    double x = (double)m;
    uint64_t bits;
    double f;

    memcpy(&bits, &x, sizeof(bits));
    const uint64_t fraction = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;

    memcpy(&f, &fraction, sizeof(f));
    const int high = f > 1.4142135623730951;
    const double e = (double)((int)(bits >> 52) - (1023 + 53) + high);

    f = high ? f * 0.5 : f;
    const double s = (f - 1) / (f + 1);
    const double z = s * s;
    double sum = 1.0 / 21;

    sum = sum * z + 1.0 / 19;
    sum = sum * z + 1.0 / 17;
    sum = sum * z + 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    sum = sum * z + 1;
    return e * 0.6931471805599453 + 2 * s * sum;
}

/* Cosine and sine of 2 pi y / 2^64. */
PS_BOTH void ps_turn(uint64_t y, double *ret_cos, double *ret_sin)
{
    /* The nearest quarter, and the angle from there, up to pi/4. */
    const uint64_t quarter = (y + ((uint64_t)1 << 61)) >> 62;
    const double a = (double)(int64_t)(y - (quarter << 62)) *
                     (6.283185307179586 / 18446744073709551616.0);
    const double z = a * a;
    double s = 1.0 / 355687428096000;
    double c = -1.0 / 6402373705728000;

    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = a + a * (s * z);
    c = c * z + 1.0 / 20922789888000;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 1.0 / 2;
    c = c * z + 1;

    const double across = (quarter & 1) != 0 ? s : c;
    const double along = (quarter & 1) != 0 ? c : s;

    *ret_cos = ((quarter + 1) & 2) != 0 ? -across : across;
    *ret_sin = (quarter & 2) != 0 ? -along : along;
}

/* The normal numbers of indices 2 pair and 2 pair + 1. */
PS_BOTH void ps_normal_pair(const struct ps_normal_stream *stream,
                            uint64_t pair, double ret[2])
{
    const uint32_t counter[4] = {(uint32_t)pair, (uint32_t)(pair >> 32),
                                 (uint32_t)stream->step,
                                 (uint32_t)(stream->step >> 32)};
    const uint32_t key[2] = {(uint32_t)stream->key,
                             (uint32_t)(stream->key >> 32)};
    uint32_t word[4];
    double along;
    double across;

    ps_philox(counter, key, word);
    const uint64_t m = ((uint64_t)word[0] << 32 | word[1]) >> 11;
    const double radius = PS_ROOT_DOUBLE(-2 * ps_log_of_fraction(m + 1));

    ps_turn((uint64_t)word[2] << 32 | word[3], &along, &across);
    ret[0] = radius * along;
    ret[1] = radius * across;
}
