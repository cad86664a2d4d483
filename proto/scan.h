/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded look at msgpack bytes before the library sees them. msgpack-c
 * allocates an array by its declared count, so five bytes from a stranger make
 * it reserve gigabytes; nothing reaches it that has not passed here. The scan
 * allocates nothing and reads each byte at most once. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define PS_SCAN_DEPTH_MAX 8u /* Of any limit; the scan's stack. */

struct ps_scan_limits {
    uint32_t depth_max; /* 1: a lone scalar. At most PS_SCAN_DEPTH_MAX. */
    uint32_t nodes_max; /* Values in all, containers and keys included. */
};

/* 0 when `data` is exactly one whole value within the limits. PS_E_TOOBIG:
 * deeper or more values than allowed. PS_E_PROTO: cut short, bytes behind the
 * value, an extension or a byte that begins no value. A container whose
 * elements could not fit in the bytes that are left counts as cut short. */
PS_MUST_USE int ps_scan(const uint8_t *data, size_t len,
                        const struct ps_scan_limits *limits);
