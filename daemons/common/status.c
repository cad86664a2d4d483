/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon to its peers, operator and service manager: node name, host, instance
 * and the addresses that peers dial; version, warnings, readiness, watchdog, state
 * in the log, memory of bursts. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/log.h"
#include "common/logsink.h"
#include "common/system.h"
#include "crypto/tls.h"
#include "driver/driver.h"
#include "kernel/kernel.h"
#include "net/addr.h"
#include "net/io_pool.h"

#include <inttypes.h>
#include <malloc.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

/* ----------------------------------------------------------------- identity */

static uint64_t random_instance(void)
{
    uint64_t n = 0;

    while (n == 0) {
        if (getrandom(&n, sizeof(n), 0) != (ssize_t)sizeof(n)) {
            n = 0;
        }
    }
    return n;
}

/* Makes the node name: that of the certificate or of the option, or one that is
 * the same after a restart, and unique on the host by the port or the path of
 * the socket. */
static void make_name(struct daemon *d)
{
    struct ps_daemon_facts *f = &d->facts;
    const char *path = d->sockets.local_path;

    if (daemon_tls_identity(d) != NULL) {
        ps_str_copy(f->name, sizeof(f->name), daemon_tls_identity(d)->name);
    } else if (daemon_common_options(d)->node[0] != '\0') {
        ps_str_copy(f->name, sizeof(f->name), daemon_common_options(d)->node);
    } else if (daemon_listen_options(d) != NULL) {
        snprintf(f->name, sizeof(f->name), "%.50s-%u", f->host,
                 (unsigned)d->sockets.listen_port);
    } else {
        snprintf(f->name, sizeof(f->name), "%.50s-%08x", f->host,
                 (unsigned)ps_fnv1a_32(PS_FNV1A_32, path, strlen(path)));
    }
}

static int make_addresses(struct daemon *d)
{
    const struct ps_scheduler_options *s = daemon_group(d, d->spec->scheduler);
    const struct ps_listen_options *l = daemon_listen_options(d);
    struct ps_daemon_facts *f = &d->facts;
    char host[PS_ADDRESS_MAX + 1];

    if (s != NULL && !ps_addr_format(s->address, (uint16_t)s->port,
                                     f->scheduler, sizeof(f->scheduler))) {
        return ps_exit_refused("scheduler.address", s->address, PS_E_TOOBIG);
    }
    if (l == NULL || d->spec->advertise == NULL) {
        return PS_EXIT_OK;
    }
    if (!d->spec->advertise(d->config.values, host, sizeof(host))) {
        return PS_EXIT_CONFIG;
    }
    if (host[0] == '\0') {
        ps_str_copy(host, sizeof(host),
                    strcmp(l->address, "localhost") == 0 ? "127.0.0.1"
                                                         : l->address);
    }
    if (ps_addr_kind(host) == PS_ADDR_ANY) {
        struct ps_addr peer;
        int rc = ps_addr_parse(f->scheduler, &peer);

        if (rc == 0) {
            rc = ps_addr_local_for(&peer, host, sizeof(host));
        }
        if (rc != 0) {
            ps_log(PS_LOG_ERROR,
                   "no address to advertise: no route to %s; set "
                   "advertise.address",
                   f->scheduler);
            return PS_EXIT_CONFIG;
        }
    }
    if (!ps_addr_format(host, d->sockets.listen_port, f->address,
                        sizeof(f->address))) {
        return ps_exit_refused("advertise.address", host, PS_E_TOOBIG);
    }
    return PS_EXIT_OK;
}

static void set_process_facts(struct daemon *d)
{
    const struct ps_transport_options *t = daemon_transport_options(d);
    struct ps_daemon_facts *f = &d->facts;
    struct rlimit limit;

    ps_str_copy(f->process.version, sizeof(f->process.version), PS_VERSION);
    f->process.descriptors = getrlimit(RLIMIT_NOFILE, &limit) == 0
                                 ? limit.rlim_cur
                                 : 0;
    f->process.wall_zero_ns = f->wall_ns - f->now;
    f->process.avoids_shm = t != NULL && t->same_host != 0;
}

int daemon_make_facts(struct daemon *d)
{
    const struct ps_common_options *c = daemon_common_options(d);
    struct ps_daemon_facts *f = &d->facts;
    struct timespec wall;

    if (gethostname(f->host, sizeof(f->host)) != 0 || f->host[0] == '\0') {
        ps_str_copy(f->host, sizeof(f->host), "localhost");
    }
    f->host[sizeof(f->host) - 1] = '\0';
    make_name(d);
    ps_str_copy(f->cluster, sizeof(f->cluster),
                daemon_tls_identity(d) != NULL ? daemon_tls_identity(d)->cluster
                                               : c->cluster);
    f->socket = d->sockets.local_path != NULL ? d->sockets.local_path : "";
    f->uid = (uint32_t)geteuid();
    clock_gettime(CLOCK_REALTIME, &wall);
    f->wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
    f->instance = random_instance();
    f->seed = random_instance();
    f->now = ps_loop_now(d->loop);
    f->link = (struct ps_link_options){.resend_timeout = c->resend_timeout,
                                       .resend_max = c->resend_max,
                                       .memory_max = c->link_output};
    set_process_facts(d);
    ps_logsink_set_node(f->name);
    int code = make_addresses(d);

    if (code == PS_EXIT_OK) {
        daemon_listen_shm(d);
    }
    return code;
}

/* ------------------------------------------------------------------- status */

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
