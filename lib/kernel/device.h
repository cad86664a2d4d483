/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on a device, by a module that is loaded at run time (plugin.h). The bits
 * of a result are those of the CPU, so each job may run on either; what the
 * device does not have, and what it fails at, the CPU computes. */
#pragma once

#include "base/err.h"
#include "kernel/kernel.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_device;
struct ps_device_copy;
struct ps_kernel_stats;

/* Loads the module and opens device `number`; on failure `why` has the reason.
 * No folder is searched: `path` is that of the module. */
PS_MUST_USE int ps_device_open(const char *path, uint32_t number,
                               struct ps_device **ret_device, char *why,
                               size_t why_cap);
/* No job may be in progress. NULL is allowed. The module stays loaded: its
 * libraries do not support being unloaded. */
void ps_device_close(struct ps_device *d);

/* From now on, optimizer states stay in the device's memory: jobs do not copy
 * them to the host, and a device that fails loses them. */
void ps_device_let_states_stay(struct ps_device *d);

/* Name and memory of the device, for a log. */
void ps_device_describe(const struct ps_device *d, char *text, size_t cap);

/* Copies that a job uses; see job->kept. */
struct ps_device_use {
    struct ps_device_copy *copies[PS_KEPT_RESULT]; /* NULL: none. */
    _Atomic(bool) is_spoiled; /* The CPU has changed some of the elements. */
};

/* Before the first range of a job: finds the copies of its arrays in the
 * device's memory, or makes them; without memory for them, the job runs without
 * copies. On the thread of the buffers, as are ps_device_end() and
 * ps_device_fetch(). */
PS_MUST_USE int ps_device_begin(struct ps_device *d, const struct ps_job *job,
                                struct ps_device_use *use);
/* After the last range, with the job's result: the copies of the weights are
 * now those of the result's buffer. */
void ps_device_end(const struct ps_job *job, struct ps_device_use *use, int rc);
/* Instead of both, before a job that the CPU computes whole. */
PS_MUST_USE int ps_device_fetch(const struct ps_job *job);

/* As ps_kernel_run_range(), on the calling thread; any number of threads may
 * call it. `use` NULL: without copies. */
PS_MUST_USE int ps_device_run_range(struct ps_device *d,
                                    const struct ps_job *job,
                                    struct ps_device_use *use, uint64_t from,
                                    uint64_t to);

/* True if the device would compute the job, whole or in ranges. */
bool ps_device_accepts(const struct ps_device *d, const struct ps_job *job);
/* True if besides, the device has copies of arrays of it. */
bool ps_device_has_copies(const struct ps_device *d, const struct ps_job *job);

/* Counters of jobs and ranges. */
struct ps_device_stats {
    uint64_t computed; /* By the device. */
    uint64_t refused; /* That the device does not have, or had no memory for. */
    uint64_t failed;  /* At which the device failed: it gets no more. */
};
void ps_device_stats(const struct ps_device *d, struct ps_device_stats *ret);
/* Memory of the device and copies of the module. */
void ps_device_memory(const struct ps_device *d, struct ps_kernel_stats *ret);
/* Reason of the failure; NULL: the device has not failed. */
const char *ps_device_failure(const struct ps_device *d);
