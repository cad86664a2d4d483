/* SPDX-License-Identifier: Apache-2.0 */
/* Time in nanoseconds of a monotonic clock. This header reads no clock. */
#pragma once

#include <stdint.h>

typedef uint64_t ps_time;

#define PS_TIME_NEVER UINT64_MAX
#define PS_NANOS(n)   ((ps_time)(n))
#define PS_MICROS(n)  ((ps_time)(n)*1000u)
#define PS_MILLIS(n)  ((ps_time)(n)*1000000u)
#define PS_SECONDS(n) ((ps_time)(n)*1000000000u)

/* Sum, saturated at PS_TIME_NEVER. */
static inline ps_time ps_time_add(ps_time a, ps_time b)
{
    return a > PS_TIME_NEVER - b ? PS_TIME_NEVER : a + b;
}

static inline ps_time ps_time_min(ps_time a, ps_time b)
{
    return a < b ? a : b;
}
