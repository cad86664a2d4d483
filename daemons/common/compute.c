/* SPDX-License-Identifier: Apache-2.0 */
/* Compute threads of a daemon, and the device that computes for them. The
 * device is optional: without it, and after it has failed, the CPU computes the
 * same bits. */
#include "common/daemon_inner.h"

#include "base/log.h"
#include "base/str.h"
#include "common/exit.h"
#include "kernel/device.h"
#include "kernel/plugin.h"
#include "kernel/share.h"
#include "net/worker.h"

#include <inttypes.h>
#include <string.h>

#define AUTO_MODULE PS_MODULE_DIR "/libpskv-cuda.so"

_Static_assert(PS_SHARE_WHY_MAX == PS_KERNEL_WHY_MAX, "one size of texts");

/* Opens the device, or all of them; `text` gets its description or the
 * reason. */
static int open_module(struct daemon *d, const char *path, char *text)
{
    int rc;

    if (d->spec->shares_devices) {
        rc = ps_share_open(path, &d->compute.share, text);
        if (rc == 0) {
            d->facts.share = d->compute.share;
            ps_share_describe(d->compute.share, text, PS_SHARE_WHY_MAX);
        }
        return rc;
    }
    rc = ps_device_open(path, 0, &d->compute.device, text, PS_KERNEL_WHY_MAX);
    if (rc == 0) {
        ps_device_describe(d->compute.device, text, PS_KERNEL_WHY_MAX);
    }
    return rc;
}

static void update_figures(struct daemon_compute *c)
{
    struct ps_kernel_stats s;
    struct ps_share_stats shared;

    if (c->device != NULL) {
        ps_device_memory(c->device, &s);
        ps_str_copy(c->gpu.name, sizeof(c->gpu.name), s.device);
        c->gpu.memory = s.memory_total;
        c->gpu.memory_held = s.memory_held;
        c->gpu.bytes_up = s.bytes_up;
        c->gpu.bytes_down = s.bytes_down;
    } else if (c->share != NULL) {
        ps_share_describe(c->share, c->gpu.name, sizeof(c->gpu.name));
        ps_share_stats(c->share, &shared);
        c->gpu.bytes_up = shared.to_device;
        c->gpu.bytes_down = shared.to_host;
    }
}

/* Opens the device that the options name, if there is one. */
static int open_device(struct daemon *d)
{
    struct ps_daemon_device wanted;
    char text[PS_KERNEL_WHY_MAX] = "";

    if (d->spec->device == NULL) {
        return PS_EXIT_OK;
    }
    wanted = d->spec->device(d->config.values);
    if (wanted.device == PS_COMPUTE_CPU) {
        return PS_EXIT_OK;
    }
    int rc = open_module(
        d, strcmp(wanted.module, "auto") == 0 ? AUTO_MODULE : wanted.module,
        text);

    if (rc == 0) {
        ps_log(PS_LOG_INFO, "compute device cuda %s", text);
        update_figures(&d->compute);
        d->facts.process.gpu = &d->compute.gpu;
        if (wanted.state == PS_COMPUTE_STATE_DEVICE) {
            ps_device_let_states_stay(d->compute.device);
        }
        return PS_EXIT_OK;
    }
    if (wanted.device == PS_COMPUTE_AUTO) {
        ps_log(PS_LOG_INFO, "compute device cpu: %s", text);
        return PS_EXIT_OK;
    }
    ps_log(PS_LOG_ERROR,
           "compute.device is cuda, and there is no GPU to use: %s", text);
    return PS_EXIT_UNAVAILABLE;
}

int daemon_compute_start(struct daemon *d)
{
    struct ps_worker_options opt = {.loop = d->loop};

    if (d->spec->threads == NULL) {
        return PS_EXIT_OK;
    }
    int code = open_device(d);

    if (code != PS_EXIT_OK) {
        return code;
    }
    opt.threads = d->spec->threads(d->config.values);
    opt.device = d->compute.device;
    int rc = ps_worker_new(&opt, &d->compute.worker);

    return rc == 0 ? PS_EXIT_OK
                   : ps_exit_refused("cannot start", "compute threads", rc);
}

void daemon_compute_check(struct daemon *d)
{
    struct daemon_compute *c = &d->compute;
    const char *why = c->device == NULL ? NULL : ps_device_failure(c->device);

    update_figures(c);
    if (why != NULL && !c->is_failure_logged) {
        c->is_failure_logged = true;
        ps_log(PS_LOG_WARNING,
               "the GPU has failed, the CPU computes from now on: %s", why);
    }
}

void daemon_compute_stop(struct daemon *d)
{
    struct ps_kernel_stats memory;
    struct ps_device_stats stats;

    ps_worker_free(d->compute.worker);
    if (d->compute.device != NULL) {
        ps_device_stats(d->compute.device, &stats);
        ps_device_memory(d->compute.device, &memory);
        ps_log(PS_LOG_INFO,
               "compute device cuda computed %" PRIu64 " refused %" PRIu64
               " failed %" PRIu64 " up %" PRIu64 " down %" PRIu64,
               stats.computed, stats.refused, stats.failed, memory.bytes_up,
               memory.bytes_down);
    }
}

void daemon_compute_fini(struct daemon *d)
{
    struct ps_share_stats stats;

    ps_device_close(d->compute.device);
    if (d->compute.share != NULL) {
        ps_share_stats(d->compute.share, &stats);
        ps_log(PS_LOG_INFO,
               "memory of GPUs read %" PRIu64 " to host %" PRIu64
               " to device %" PRIu64 " between %" PRIu64,
               stats.folded, stats.to_host, stats.to_device, stats.between);
        ps_share_close(d->compute.share);
    }
}
