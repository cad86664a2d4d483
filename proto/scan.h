/* SPDX-License-Identifier: Apache-2.0 */
/* Check of msgpack bytes before msgpack-c parses them. msgpack-c allocates an
 * array by its declared count, so five bytes of an unauthenticated peer could
 * make it reserve gigabytes; all input passes this scan first. The scan
 * allocates nothing and reads each byte at most once. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Upper bound of depth_max; size of the scan's stack. */
#define PS_SCAN_DEPTH_MAX 8u

struct ps_scan_limits {
    uint32_t depth_max; /* 1: only a scalar. At most PS_SCAN_DEPTH_MAX. */
    uint32_t nodes_max; /* Values in all, containers and keys included. */
};

/* Returns 0 if `data` is exactly one complete value within the limits.
 * PS_E_TOOBIG: too deep or too many values. PS_E_PROTO: truncated, trailing
 * bytes, an extension or an invalid byte. A container with more elements than
 * remaining bytes counts as truncated. */
PS_MUST_USE int ps_scan(const uint8_t *data, size_t len,
                        const struct ps_scan_limits *limits);
