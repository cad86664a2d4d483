/* SPDX-License-Identifier: Apache-2.0 */
/* Limits derived from the total rate of contributions: how many bytes one
 * contributor may have waiting beyond the slowest, and how long a silent one
 * delays the others. Contributors that keep the same pace complete rounds one
 * after the other, so replies leave while the next contributions arrive.
 * Without a limit a few run ahead, and all rounds complete at the end. */
#pragma once

#include "base/rate_meter.h"

/* Bytes of lead that keep a link of that rate busy. */
uint64_t ps_pacing_max_lead(const struct ps_rate_meter *r);

/* Time in which each of `count` healthy contributors sends more than one
 * lead. */
ps_time ps_pacing_patience(const struct ps_rate_meter *r, uint32_t count);
