/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL keeps this interface for programs of before its version 3. */
#define OPENSSL_SUPPRESS_DEPRECATED

#include "random.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/rand.h>

static _Atomic uint64_t number;

/* SplitMix64, by Sebastiano Vigna. */
static uint64_t next(void)
{
    uint64_t z = atomic_fetch_add(&number, UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int make_bytes(unsigned char *out, int len)
{
    for (int i = 0; i < len; i++) {
        out[i] = (unsigned char)next();
    }
    return 1;
}

static int is_ready(void)
{
    return 1;
}

void fuzz_random_restart(void)
{
    static const RAND_METHOD method = {
        .bytes = make_bytes, .pseudorand = make_bytes, .status = is_ready};

    if (RAND_get_rand_method() != &method) {
        assert(RAND_set_rand_method(&method) == 1);
    }
    atomic_store(&number, 1);
}
