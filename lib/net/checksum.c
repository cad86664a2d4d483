/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions that every processor of its kind has, or those of AVX2. */
#define VARIANT static const struct ps_checksum_variant portable
#include "net/checksum_variant.inc"

static const struct ps_checksum_variant *variant(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") != 0) {
        return &ps_checksum_avx2;
    }
#endif
    return &portable;
}

uint64_t ps_checksum(const struct iovec *pieces, uint32_t count, uint64_t seed)
{
    return variant()->pieces(pieces, count, seed);
}

uint64_t ps_checksum_slices(const struct ps_slice *slices, uint32_t count)
{
    return variant()->slices(slices, count);
}
