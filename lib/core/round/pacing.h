/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from how fast contributions come in all: how many bytes one
 * contributor may have waiting beyond the slowest, and how long one
 * may be silent before the others no longer wait for it. Contributors that
 * keep abreast complete rounds one after the other, so that answers leave
 * while the next contributions come; without this a few run ahead, and all
 * rounds complete at the end. */
#pragma once

#include "base/rate_meter.h"

/* A lead that is wide enough to keep a link of that rate busy. */
uint64_t ps_pacing_max_lead(const struct ps_rate_meter *r);

/* In this time each of `count` contributors has given more than a lead, if
 * nothing has gone wrong with it. */
ps_time ps_pacing_patience(const struct ps_rate_meter *r, uint32_t count);
