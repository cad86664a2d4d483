/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of frames: XXH3 with 64 bits, by the instructions that the processor
 * has. */
#pragma once

#include "base/buf.h"

#include <stdint.h>
#include <sys/uio.h>

/* Of the bytes of all pieces, one behind the other. */
uint64_t ps_checksum(const struct iovec *pieces, uint32_t count, uint64_t seed);
/* The same of slices, with the seed 0; 0: there are none. */
uint64_t ps_checksum_slices(const struct ps_slice *slices, uint32_t count);

struct ps_checksum_variant {
    uint64_t (*pieces)(const struct iovec *pieces, uint32_t count,
                       uint64_t seed);
    uint64_t (*slices)(const struct ps_slice *slices, uint32_t count);
};
extern const struct ps_checksum_variant ps_checksum_avx2;
