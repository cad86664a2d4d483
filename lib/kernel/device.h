/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on a device, by a module that is loaded at run time (plugin.h). The bits
 * of a result are those of the CPU, so each job may run on either; what the
 * device does not have, and what it fails at, the CPU computes. */
#pragma once

#include "base/err.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_device;

/* Loads the module and opens device `number`; on failure `why` has the reason.
 * No folder is searched: `path` is that of the module. */
PS_MUST_USE int ps_device_open(const char *path, uint32_t number,
                               struct ps_device **ret_device, char *why,
                               size_t why_cap);
/* No job may be in progress. NULL is allowed. The module stays loaded: its
 * libraries do not support being unloaded. */
void ps_device_close(struct ps_device *d);

/* Name and memory of the device, for a log. */
void ps_device_describe(const struct ps_device *d, char *text, size_t cap);

/* As ps_kernel_run_range(), on the calling thread; any number of threads may
 * call it. */
PS_MUST_USE int ps_device_run_range(struct ps_device *d,
                                    const struct ps_job *job, uint64_t from,
                                    uint64_t to);

/* True if the device would compute the job, whole or in ranges. */
bool ps_device_accepts(const struct ps_device *d, const struct ps_job *job);

/* Counters of jobs and ranges. */
struct ps_device_stats {
    uint64_t computed; /* By the device. */
    uint64_t refused; /* That the device does not have, or had no memory for. */
    uint64_t failed;  /* At which the device failed: it gets no more. */
};
void ps_device_stats(const struct ps_device *d, struct ps_device_stats *ret);
/* Reason of the failure; NULL: the device has not failed. */
const char *ps_device_failure(const struct ps_device *d);
