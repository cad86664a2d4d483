/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of plugin.h that have a fault each, so that the loader and the change
 * to the CPU are tested without a GPU. FAKE_* chooses the fault; without one,
 * the module adds two arrays of floats, and has nothing else. */
#include "kernel/plugin.h"

#include "base/dtype.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>

static int fake;

static int32_t fake_open(uint32_t device, void **ret_kernel, char *why,
                         uint64_t why_cap)
{
    (void)device;
    *ret_kernel = &fake;
#if defined(FAKE_OPEN)
    (void)snprintf(why, why_cap, "the fake has no device");
    return PS_E_NOENT;
#else
    (void)why;
    (void)why_cap;
    return 0;
#endif
}

static void fake_close(void *kernel)
{
    (void)kernel;
}

static int32_t fake_submit(void *kernel, const struct ps_kernel_range *range,
                           uint64_t *ret_done, char *why, uint64_t why_cap)
{
    const struct ps_job *job = range->job;
    uint64_t to = range->to;

    (void)kernel;
    (void)why;
    (void)why_cap;
    *ret_done = range->from;
    if (job->dtype != PS_DTYPE_FLOAT32 || job->op != PS_JOB_SUM ||
        job->src_count != 2) {
        return PS_E_UNSUPPORTED;
    }
#if defined(FAKE_SUBMIT)
    to = range->from + 16 < to ? range->from + 16 : to;
#endif
    for (uint64_t i = range->from; i < to; i++) {
        ((float *)job->dst)[i] = ((const float *)job->src[0])[i] +
                                 ((const float *)job->src[1])[i];
    }
    *ret_done = to;
#if defined(FAKE_SUBMIT)
    (void)snprintf(why, why_cap, "the fake is lost");
    return PS_E_IO;
#else
    return 0;
#endif
}

static void fake_describe(void *kernel, char *text, uint64_t cap)
{
    (void)kernel;
    (void)snprintf(text, cap, "fake");
}

static int32_t fake_device_alloc(void *kernel, uint64_t bytes,
                                 uint64_t *ret_address)
{
    (void)kernel;
    (void)bytes;
    (void)ret_address;
    return PS_E_NOMEM;
}

static void fake_device_free(void *kernel, uint64_t address, uint64_t bytes)
{
    (void)kernel;
    (void)address;
    (void)bytes;
}

static int32_t fake_upload(void *kernel, uint64_t address, const void *from,
                           uint64_t bytes)
{
    (void)kernel;
    (void)address;
    (void)from;
    (void)bytes;
    return PS_E_IO;
}

static int32_t fake_download(void *kernel, uint64_t address, void *to,
                             uint64_t bytes)
{
    (void)kernel;
    (void)address;
    (void)to;
    (void)bytes;
    return PS_E_IO;
}

static void fake_stats(void *kernel, struct ps_kernel_stats *ret)
{
    (void)kernel;
    *ret = (struct ps_kernel_stats){0};
}

__attribute__((
    visibility("default"))) extern const struct ps_kernel_api ps_kernel_plugin;

const struct ps_kernel_api ps_kernel_plugin = {
#if defined(FAKE_ABI)
    .abi = PS_KERNEL_ABI + 1,
#else
    .abi = PS_KERNEL_ABI,
#endif
    .size = PS_KERNEL_SIZE,
    .open = fake_open,
    .close = fake_close,
    .submit = fake_submit,
    .describe = fake_describe,
    .device_alloc = fake_device_alloc,
    .device_free = fake_device_free,
    .upload = fake_upload,
    .download = fake_download,
    .stats = fake_stats,
};
