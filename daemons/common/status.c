/* SPDX-License-Identifier: Apache-2.0 */
/* Status of a daemon to its operator and service manager: version, warnings,
 * readiness, watchdog, state in the log, memory of bursts. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/log.h"
#include "common/logsink.h"
#include "common/notify.h"
#include "crypto/tls_context.h"
#include "driver/driver.h"
#include "kernel/kernel.h"
#include "net/io_pool.h"

#include <inttypes.h>
#include <malloc.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

/* Age that metrics by HTTP may have. */
#define HTTP_BEAT PS_SECONDS(1)

void daemon_print_version(const struct ps_daemon_spec *spec)
{
    printf("%s %s\n", spec->options->program, PS_VERSION);
    printf("protocol %u, speaks %u and later\n", PS_PROTOCOL,
           PS_PROTOCOL_LEAST);
    printf("libuv %s\n", uv_version_string());
    printf("msgpack %s\n", msgpack_version());
    printf("kernel %s\n", ps_kernel_variant());
    printf("tls %s\n", ps_tls_library());
}

static void warn_insecure(const struct daemon *d)
{
    const struct ps_listen_options *l = daemon_listen_options(d);

    if (l == NULL || !l->insecure) {
        return;
    }
    if (daemon_tls_identity(d) != NULL) {
        ps_log(PS_LOG_WARNING,
               "security.insecure has no effect: there is a certificate, and "
               "connections with other hosts are encrypted");
    } else {
        ps_log(PS_LOG_WARNING,
               "security.insecure: connections on %s are not encrypted, and "
               "any peer that reaches the port is trusted",
               l->address);
    }
}

/* Warns about variables of ps-lite that have no effect. */
static void warn_environment(void)
{
    static const struct {
        const char *name;
        const char *why;
    } ignored[] = {
        {"DMLC_ENABLE_RDMA", "there is no RDMA transport"},
        {"DMLC_LOCAL", "training processes always use the agent's Unix socket"},
        {"DMLC_PS_VAN_TYPE", "there is one transport, and it has priorities"},
        {"DMLC_PS_WATER_MARK", "windows adapt by themselves"},
        {"DMLC_USE_KUBERNETES", "addresses are used as given"},
        {"PS_DROP_MSG", "only simulations lose messages"},
        {"PS_RESEND", "unacknowledged messages are always resent"},
    };

    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
        if (getenv(ignored[i].name) != NULL) {
            ps_log(PS_LOG_WARNING, "environment %s has no effect: %s",
                   ignored[i].name, ignored[i].why);
        }
    }
}

void daemon_log_warnings(const struct daemon *d)
{
    warn_insecure(d);
    warn_environment();
}

static unsigned loop_count(const struct daemon *d)
{
    return 1 + (d->io_pool != NULL ? ps_io_pool_threads(d->io_pool) : 0);
}

void daemon_log_state(const struct daemon *d)
{
    struct ps_driver_stats s;

    ps_driver_stats(d->driver, &s);
    ps_log(PS_LOG_NOTICE,
           "state %s name %s connections %u pre_handshake %u paused %u "
           "computing %u queued %" PRIu64 " in %" PRIu64 " out %" PRIu64
           " copied %" PRIu64 " moved %" PRIu64 " loops %u reads %" PRIu64
           " writes %" PRIu64 " refused %" PRIu64 " allocations %zu",
           d->spec->options->program, d->facts.name, s.connections,
           s.pre_handshake, s.paused, s.computing, s.queued, s.bytes_in,
           s.bytes_out, s.copied, s.moved_by_pool, loop_count(d), s.reads,
           s.writes, s.refused, ps_alloc_live());
    d->spec->dump(d->app.self);
    ps_driver_dump(d->driver);
}

void daemon_report_serving(struct daemon *d)
{
    d->is_serving = true;
    ps_log(PS_LOG_NOTICE, "serving name %s%s%s", d->facts.name,
           d->facts.address[0] != '\0' ? " address " : "", d->facts.address);
    ps_notify("STATUS=serving");
    daemon_http_publish(d);
    if (d->args.ready_fd >= 0) {
        ssize_t n = write(d->args.ready_fd, "\n", 1);

        (void)n; /* The reader may be gone. */
        close(d->args.ready_fd);
        d->args.ready_fd = -1;
    }
}

/* Sets the time of the next summary of skipped lines. */
static void set_log_timer(void *ctx)
{
    struct daemon *d = ctx;

    ps_loop_timer_set(d->loop, &d->upkeep.log_timer, ps_logsink_deadline());
}

static void log_timer_due(struct ps_loop_timer *t)
{
    struct daemon *d = PS_CONTAINER(t, struct daemon, upkeep.log_timer);

    ps_logsink_write_summaries(false);
    set_log_timer(d);
}

void daemon_trim_memory(struct daemon *d)
{
    if (ps_trim_check(&d->upkeep.trim, ps_alloc_take_peak(), ps_alloc_bytes(),
                      ps_loop_now(d->loop))) {
        (void)malloc_trim(0);
        ps_log(PS_LOG_DEBUG, "memory of a burst returned to the system");
    }
    ps_loop_timer_set(d->loop, &d->upkeep.trim_timer,
                      ps_trim_deadline(&d->upkeep.trim));
}

static void trim_timer_due(struct ps_loop_timer *t)
{
    daemon_trim_memory(PS_CONTAINER(t, struct daemon, upkeep.trim_timer));
}

/* Signs of life of the main loop, for the service manager and for HTTP. */
static void beat_due(struct ps_loop_timer *t)
{
    struct daemon *d = PS_CONTAINER(t, struct daemon, upkeep.beat_timer);

    if (ps_notify_watchdog() != PS_TIME_NEVER) {
        ps_notify("WATCHDOG=1");
    }
    daemon_http_publish(d);
    ps_loop_timer_set(d->loop, t,
                      ps_time_add(ps_loop_now(d->loop), d->upkeep.beat));
}

void daemon_upkeep_start(struct daemon *d)
{
    d->upkeep.trim_timer.due = trim_timer_due;
    d->upkeep.log_timer.due = log_timer_due;
    d->upkeep.beat_timer.due = beat_due;
    d->upkeep.beat = ps_time_min(ps_notify_watchdog(), d->metrics.http != NULL
                                                           ? HTTP_BEAT
                                                           : PS_TIME_NEVER);
    ps_logsink_on_skipped(set_log_timer, d);
    set_log_timer(d);
    if (d->upkeep.beat != PS_TIME_NEVER) {
        beat_due(&d->upkeep.beat_timer);
    }
}

void daemon_upkeep_stop(struct daemon *d)
{
    ps_logsink_on_skipped(NULL, NULL);
    ps_loop_timer_set(d->loop, &d->upkeep.beat_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->loop, &d->upkeep.trim_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->loop, &d->upkeep.log_timer, PS_TIME_NEVER);
    ps_logsink_write_summaries(true);
}
