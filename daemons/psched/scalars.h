/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of jobs as metrics. */
#pragma once

#include "common/metrics.h"
#include "core/sched/sched.h"

/* Adds them as far as they leave 8 KiB of the text for other metrics, and the
 * number of those that it has no room for. */
void psched_add_scalars(const struct ps_sched *s, struct ps_metrics *m);
