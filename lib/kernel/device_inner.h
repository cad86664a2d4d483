/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of device.c and device_copy.c. */
#pragma once

#include "kernel/device.h"
#include "kernel/plugin.h"

#include <stdatomic.h>

/* Failure of the device: the first thread that meets it writes the text. */
enum ps_device_failure { PS_DEVICE_WORKS, PS_DEVICE_FAILING, PS_DEVICE_FAILED };

struct ps_device {
    void *library;
    const struct ps_kernel_api *api;
    void *kernel;
    bool states_stay;
    _Atomic(uint64_t) computed;
    _Atomic(uint64_t) refused;
    _Atomic(uint64_t) failed;
    _Atomic(enum ps_device_failure) failure;
    char why[PS_KERNEL_WHY_MAX];
};

/* Tells the module where the arrays' copies are. */
void ps_device_name_copies(const struct ps_device_use *use,
                           const struct ps_job *job,
                           struct ps_kernel_kept kept[PS_KERNEL_KEPT]);
/* Runs a range on the CPU; arrays that stay on the device are changed there,
 * too. */
int ps_device_run_on_cpu(struct ps_device *d, const struct ps_job *job,
                         struct ps_device_use *use, uint64_t from, uint64_t to);
