/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that read or write memory of GPUs run there, see kernel/share.h. */
#include "driver/inner.h"

#include "kernel/share.h"

/* Bytes of a piece: enough for fast copies; a multiple of 16 elements. */
#define PIECE_BYTES (4u * 1024 * 1024)

void driver_log_device_failure(struct ps_driver *d)
{
    char why[PS_SHARE_WHY_MAX];

    ps_share_failure(d->opt.share, why);
    ps_log_of(LOG_DEVICE, PS_LOG_WARNING, "a job on a GPU has failed: %s", why);
}

bool driver_needs_device(const struct ps_compute *c)
{
    return c->reads_device || c->out_count > 0;
}

uint64_t driver_device_step(const struct ps_compute *c)
{
    return ps_kernel_is_divisible(&c->job)
               ? PIECE_BYTES / ps_dtype_size(c->job.dtype)
               : c->job.count;
}

int driver_device_run(struct ps_share *share, const struct ps_compute *c,
                      uint64_t from, uint64_t to)
{
    const size_t size = ps_dtype_size(c->job.dtype);

    if (c->out_count > 0) {
        return ps_share_deliver(share, c->job.src[0], from * size,
                                (to - from) * size, c->outs, c->out_count);
    }
    return ps_share_run_range(share, &c->job, c->pinned, (uint32_t)c->token,
                              from, to);
}
