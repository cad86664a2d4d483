/* SPDX-License-Identifier: Apache-2.0 */
/* Start: arguments, options, log, sockets, machine, driver; then readiness is
 * reported to the service manager, and the port to its file. Stop: the machine
 * gets the shutdown event, work in progress may finish for a while, connections
 * write their last output, and all is closed in reverse order. A failure at the
 * start ends the process with an error text and its exit code. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "common/exit.h"
#include "common/keeper.h"
#include "common/logsink.h"
#include "common/system.h"
#include "driver/driver.h"
#include "kernel/device.h"
#include "kernel/plugin.h"
#include "kernel/share.h"
#include "net/io_pool.h"
#include "net/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <uv.h>

/* ------------------------------------------------------------------ compute */

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
static int open_device(struct daemon *d,
                       const struct ps_compute_options *wanted)
{
    char text[PS_KERNEL_WHY_MAX] = "";

    if (wanted->device == PS_COMPUTE_CPU) {
        return PS_EXIT_OK;
    }
    int rc = open_module(
        d, strcmp(wanted->module, "auto") == 0 ? AUTO_MODULE : wanted->module,
        text);

    if (rc == 0) {
        ps_log(PS_LOG_INFO, "compute device cuda %s", text);
        update_figures(&d->compute);
        d->facts.process.gpu = &d->compute.gpu;
        if (wanted->state == PS_COMPUTE_STATE_DEVICE) {
            ps_device_let_states_stay(d->compute.device);
        }
        return PS_EXIT_OK;
    }
    if (wanted->device == PS_COMPUTE_AUTO) {
        ps_log(PS_LOG_INFO, "compute device cpu: %s", text);
        return PS_EXIT_OK;
    }
    ps_log(PS_LOG_ERROR,
           "compute.device is cuda, and there is no GPU to use: %s", text);
    return PS_EXIT_UNAVAILABLE;
}

/* Opens the device that the options name, and starts the compute threads.
 * Returns an exit code. */
static int start_compute(struct daemon *d)
{
    const struct ps_compute_options *wanted = daemon_group(d, d->spec->compute);
    struct ps_worker_options opt = {.loop = d->loop};

    if (wanted == NULL) {
        return PS_EXIT_OK;
    }
    int code = open_device(d, wanted);

    if (code != PS_EXIT_OK) {
        return code;
    }
    opt.threads = (unsigned)wanted->threads;
    opt.device = d->compute.device;
    int rc = ps_worker_new(&opt, &d->compute.worker);

    return rc == 0 ? PS_EXIT_OK
                   : ps_exit_refused("cannot start", "compute threads", rc);
}

/* Logs that the device has failed, once, and brings its figures up to date.
 * There is a device, or memory of one that is shared. */
static void check_compute(struct daemon *d)
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

/* Jobs in progress end inside. */
static void stop_compute(struct daemon *d)
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

/* Closes the devices. No buffer may have a copy there, and what processes of
 * this host share with the daemon is released. */
static void close_compute(struct daemon *d)
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

/* ----------------------------------------------------------- start and stop */

static void driver_closed(void *ctx)
{
    struct daemon *d = ctx;

    ps_loop_stop(d->loop);
}

static void close_driver(struct daemon *d)
{
    ps_loop_timer_set(d->loop, &d->grace_timer, PS_TIME_NEVER);
    ps_driver_close(d->driver, driver_closed);
}

/* Its last messages leave with the queued output. */
static void shut_down_machine(struct daemon *d)
{
    if (d->spec->shutdown_last) {
        ps_driver_shutdown(d->driver);
    }
    close_driver(d);
}

static void grace_expired(struct ps_loop_timer *t)
{
    struct daemon *d = PS_CONTAINER(t, struct daemon, grace_timer);

    ps_log(PS_LOG_WARNING,
           "shutdown.grace is over, %" PRIu64 " items of work are unfinished",
           d->spec->residue(d->app.self));
    shut_down_machine(d);
}

static void daemon_stop(void *ctx, int signum)
{
    struct daemon *d = ctx;

    if (d->is_stopping) {
        ps_log(PS_LOG_NOTICE, "stopping at once signal %d", signum);
        close_driver(d);
        return;
    }
    d->is_stopping = true;
    ps_log(PS_LOG_NOTICE, "stopping signal %d", signum);
    ps_notify("STOPPING=1");
    daemon_http_publish(d);
    if (ps_keeper_survives_stop() || d->app.store_change != NULL) {
        shut_down_machine(d); /* The next process goes on with the jobs. */
        return;
    }
    if (d->spec->shutdown_last) {
        ps_driver_drain(d->driver);
    } else {
        ps_driver_shutdown(d->driver);
    }
    ps_loop_timer_set(d->loop, &d->grace_timer,
                      ps_time_add(ps_loop_now(d->loop), d->config.grace_time));
}

static void on_sighup(void *ctx, int signum)
{
    (void)signum;
    daemon_config_reload(ctx);
}

static void on_sigusr1(void *ctx, int signum)
{
    (void)signum;
    daemon_log_state(ctx);
}

static void machine_failed(void *ctx, int rc)
{
    struct daemon *d = ctx;

    ps_log(PS_LOG_ERROR, "cannot go on: %s", ps_strerror(rc));
    d->exit_code = ps_exit_code(rc);
    close_driver(d);
}

static void change_store(void *ctx, const struct ps_store_row *rows,
                         uint32_t count)
{
    const struct daemon *d = ctx;

    d->app.store_change(d->app.self, rows, count);
}

static bool commit_store(void *ctx)
{
    const struct daemon *d = ctx;

    return d->app.store_commit(d->app.self);
}

static void on_idle(void *ctx)
{
    struct daemon *d = ctx;

    if (ps_trim_is_burst_over(&d->upkeep.trim, ps_alloc_peak(),
                              ps_alloc_bytes())) {
        daemon_trim_memory(d);
    }
    if (d->compute.device != NULL || d->compute.share != NULL) {
        check_compute(d);
    }
    if (!d->is_serving &&
        (d->spec->ready == NULL || d->spec->ready(d->app.self))) {
        daemon_report_serving(d);
    }
    if (d->is_stopping && d->spec->residue(d->app.self) == 0 &&
        ps_driver_is_quiet(d->driver)) {
        shut_down_machine(d);
    }
}

static const struct {
    int signum;
    ps_loop_signal_cb cb;
} signals[] = {{SIGTERM, daemon_stop},
               {SIGINT, daemon_stop},
               {SIGHUP, on_sighup},
               {SIGUSR1, on_sigusr1}};

#define SIGNALS (sizeof(signals) / sizeof(signals[0]))

static int catch_signals(struct daemon *d)
{
    (void)signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < SIGNALS; i++) {
        int rc = ps_loop_signal(d->loop, signals[i].signum, signals[i].cb, d);

        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Frees the loop, with which its handlers go. A further signal must not end the
 * process in place of its exit code, whichever thread it meets. */
static void free_loop(struct daemon *d)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    ps_loop_free(d->loop);
    for (size_t i = 0; i < SIGNALS; i++) {
        (void)signal(signals[i].signum, SIG_IGN);
    }
}

static void io_thread_added(void *ctx, unsigned count)
{
    struct daemon *d = ctx;

    ps_log(PS_LOG_NOTICE, "I/O thread added loops %u", count + 1);
    ps_driver_io_grown(d->driver);
}

/* One loop is the daemon's own; the others are I/O threads. */
static int make_io_pool(struct daemon *d)
{
    const struct ps_transport_options *t = daemon_transport_options(d);
    unsigned wanted = t == NULL ? 1 : (unsigned)t->loops;
    unsigned most = wanted;
    struct ps_io_pool_options opt = {
        .loop = d->loop, .on_grown = io_thread_added, .ctx = d};

    if (wanted == 0) {
        /* Leaves half of the processors to sums and other programs. */
        wanted = 1;
        most = uv_available_parallelism() / 2;
        most = most < PS_IO_THREADS_MAX ? most : PS_IO_THREADS_MAX;
    }
    if (most <= 1) {
        return 0;
    }
    opt.threads = wanted - 1;
    opt.threads_max = most - 1;
    return ps_io_pool_new(&opt, &d->io_pool);
}

static void set_liveness_port(const struct daemon *d,
                              struct ps_driver_options *opt)
{
    const uint64_t *port = daemon_group(d, d->spec->liveness_port);

    if (port == NULL) {
        return;
    }
    opt->liveness.any = *port == (uint64_t)PS_LISTEN_PORT_AUTO;
    opt->liveness.port = opt->liveness.any ? d->spec->port : (uint16_t)*port;
    opt->liveness.count = opt->liveness.any ? d->spec->port_count : 1;
}

static void make_driver(struct daemon *d)
{
    const struct ps_common_options *c = daemon_common_options(d);
    const uint64_t *connections = daemon_group(d, d->spec->link_connections);
    struct ps_driver_options opt = {
        .loop = d->loop,
        .worker = d->compute.worker,
        .io_pool = d->io_pool,
        .arenas = d->app.arenas,
        .share = d->compute.share,
        .machine = d->app.machine,
        .self = d->spec->self,
        .scheduler = d->facts.scheduler[0] != '\0' ? d->facts.scheduler : NULL,
        .limits = {.handshake_timeout = c->handshake,
                   .header_timeout = c->header,
                   .stall_timeout = c->stall},
        .output = c->output,
        .link_output = c->link_output,
        .output_total = c->output_total,
        .same_host = daemon_uses_shm(d),
        .link_connections = connections != NULL ? (uint32_t)*connections : 1,
        .bulk = c->congestion_control == 0 ? PS_TCP_BULK : PS_TCP_BULK_SYSTEM,
        .checksums = (enum ps_conn_checksums)c->checksums,
        .receive_buffer = (uint32_t)c->receive_buffer,
        .send_buffer = (uint32_t)c->send_buffer,
        .busy_poll = c->spin,
        .connections_max = (uint32_t)c->connections,
        .pre_handshake_max = (uint32_t)c->pre_handshake,
        .tls = daemon_tls_of_driver(d),
        .on_failed = machine_failed,
        .on_idle = on_idle,
        .ctx = d,
    };

    if (d->app.store_change != NULL) {
        opt.store = (struct ps_driver_store){.change = change_store,
                                             .commit = commit_store};
    }
    if (d->spec->socket != NULL) {
        opt.local_max = d->spec->socket(d->config.values).max;
    }
    set_liveness_port(d, &opt);
    d->driver = ps_driver_new(&opt);
    daemon_tls_report(d);
}

static int daemon_begin(struct daemon *d)
{
    int rc = ps_loop_new(&d->loop);

    if (rc == 0) {
        rc = catch_signals(d);
    }
    if (rc != 0) {
        return ps_exit_refused("cannot start", "the event loop", rc);
    }
    int code = daemon_sockets_open(d);

    if (code == PS_EXIT_OK) {
        code = daemon_make_facts(d);
    }
    if (code != PS_EXIT_OK) {
        return code;
    }
    code = start_compute(d);
    if (code != PS_EXIT_OK) {
        return code;
    }
    rc = make_io_pool(d);
    if (rc != 0) {
        return ps_exit_refused("cannot start", "I/O threads", rc);
    }
    rc = daemon_tls_start(d);
    if (rc != 0) {
        return ps_exit_refused("cannot start", "the thread for handshakes", rc);
    }
    rc = d->spec->open(d->config.values, &d->facts, &d->app);
    if (rc != 0) {
        return ps_exit_refused("cannot start", d->spec->options->program, rc);
    }
    make_driver(d);
    if (!ps_alloc_reserve(PS_RESERVE_BYTES)) {
        ps_log(PS_LOG_WARNING, "no memory for a reserve of %u MiB",
               PS_RESERVE_BYTES >> 20);
    }
    rc = daemon_listeners_open(d);
    if (rc != 0) {
        return ps_exit_refused("cannot", "accept connections", rc);
    }
    code = daemon_http_open(d);
    return code == PS_EXIT_OK ? daemon_write_port_file(d) : code;
}

static void daemon_run(struct daemon *d)
{
    daemon_log_warnings(d);
    ps_log(PS_LOG_NOTICE, "started name %s cluster %s%s%s%s%s", d->facts.name,
           d->facts.cluster, d->facts.scheduler[0] != '\0' ? " scheduler " : "",
           d->facts.scheduler, d->sockets.local_path != NULL ? " socket " : "",
           d->sockets.local_path != NULL ? d->sockets.local_path : "");
    ps_notify("READY=1\nSTATUS=%s",
              d->spec->ready == NULL ? "serving" : "waiting for the scheduler");
    d->grace_timer.due = grace_expired;
    daemon_upkeep_start(d);
    daemon_metrics_file_start(d);
    ps_loop_run(d->loop);
    daemon_config_stop(d);
    daemon_upkeep_stop(d);
    daemon_metrics_file_stop(d);
}

static void daemon_finish(struct daemon *d)
{
    daemon_http_close(d);
    daemon_sockets_close(d);
    stop_compute(d); /* Its jobs end through the driver. */
    ps_driver_free(d->driver);
    daemon_tls_stop(d);
    ps_io_pool_free(d->io_pool);
    if (d->app.self != NULL) {
        d->spec->close(d->app.self);
    }
    close_compute(d);
    free_loop(d);
}

static int hide_memory(const struct daemon *d)
{
    if (!daemon_common_options(d)->private_memory) {
        return PS_EXIT_OK;
    }
    if (!ps_private_memory()) {
        ps_log(PS_LOG_ERROR,
               "security.private_memory: the system refuses it: %s",
               strerror(errno));
        return PS_EXIT_NOPERM;
    }
    ps_log(PS_LOG_NOTICE,
           "security.private_memory: no core dumps; daemons of this host get "
           "payloads through shared memory or the socket, not by address");
    return PS_EXIT_OK;
}

static int daemon_serve(struct daemon *d)
{
    const struct ps_common_options *c = daemon_common_options(d);

    ps_logsink_open((enum ps_log_format)c->log_format,
                    (enum ps_log_level)c->log_level, d->spec->options->program);
    ps_notify_init();
    daemon_raise_descriptors(d);
    daemon_config_start(d);
    d->exit_code = hide_memory(d);
    if (d->exit_code == PS_EXIT_OK) {
        d->exit_code = daemon_begin(d);
    }
    if (d->exit_code == PS_EXIT_OK) {
        daemon_run(d);
        ps_log(PS_LOG_NOTICE, "stopped");
    }
    daemon_finish(d);
    return d->exit_code;
}

static int run_with_options(struct daemon *d)
{
    if (d->args.print == PS_PRINT_DEFAULTS ||
        d->args.print == PS_PRINT_SCHEMA) {
        return daemon_config_print(
            d); /* Independent of the configuration file. */
    }
    daemon_choose_runtime();
    int code = daemon_config_load(d);

    if (code == PS_EXIT_OK && d->args.check) {
        daemon_config_print_valid(d);
    }
    if (code != PS_EXIT_OK || d->args.check) {
        return code;
    }
    return d->args.print != PS_PRINT_NOTHING ? daemon_config_print(d)
                                             : daemon_serve(d);
}

void ps_daemon_limit(struct ps_account_limits *l, enum ps_cost cost,
                     uint64_t max, const char *option)
{
    l->limit[cost] = (struct ps_account_limit){.max = max, .option = option};
}

void ps_daemon_limit_keys(struct ps_account_limits *limits,
                          const struct ps_key_limits *k)
{
    struct ps_account_limits *job = &limits[PS_ACCOUNT_JOB];
    struct ps_account_limits *user = &limits[PS_ACCOUNT_USER];

    ps_daemon_limit(job, PS_COST_KEYS, k->job_keys, "limits.job.keys");
    ps_daemon_limit(user, PS_COST_KEYS, k->user_keys, "limits.user.keys");
    ps_daemon_limit(job, PS_COST_PARTITIONS, k->job_partitions,
                    "limits.job.partitions");
    ps_daemon_limit(user, PS_COST_PARTITIONS, k->user_partitions,
                    "limits.user.partitions");
}

int ps_daemon_main(const struct ps_daemon_spec *spec, int argc, char **argv)
{
    struct daemon d = {
        .spec = spec,
        .config = {.spare_fd = -1},
        .sockets = {.tcp = {.fd = -1}, .local = {.fd = -1}, .shm = {.fd = -1}}};
    int code;

    /* Port files, sockets until their mode is set, and whatever a library
     * writes belong to this user alone. */
    (void)umask(0077);
    if (!daemon_args_parse(&d, argc, argv)) {
        code = PS_EXIT_USAGE;
    } else if (d.args.help) {
        daemon_print_help(&d);
        code = PS_EXIT_OK;
    } else if (d.args.version) {
        daemon_print_version(spec);
        code = PS_EXIT_OK;
    } else if (!d.is_kept || !ps_keeper_fork(spec->options->program, &code)) {
        code = run_with_options(&d);
    }
    daemon_tls_fini(&d);
    daemon_config_fini(&d);
    return ps_exit_with_output(spec->options->program, code);
}
