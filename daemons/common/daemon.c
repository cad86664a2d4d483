/* SPDX-License-Identifier: Apache-2.0 */
/* Start: arguments, options, log, sockets, machine, driver; then readiness is
 * reported to the service manager, and the port to its file. Stop: the machine
 * gets the shutdown event, work in progress may finish for a while, connections
 * write their last output, and all is closed in reverse order. A failure at the
 * start ends the process with an error text and its exit code. */
#include "common/daemon.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "common/advice.h"
#include "common/args.h"
#include "driver/driver.h"
#include "common/logsink.h"
#include "common/memlimit.h"
#include "common/notify.h"
#include "common/sets.h"
#include "common/trim.h"
#include "net/addr.h"
#include "net/listen.h"
#include "net/local.h"
#include "net/loop.h"
#include "net/io_pool.h"
#include "net/shm_peer.h"
#include "net/worker.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <msgpack.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define REPORT_MAX (64u * 1024u)

struct daemon {
    const struct ps_daemon_spec *spec;
    struct ps_args args;
    void *values;
    struct ps_options *options; /* Owner of the strings in `values`. */
    struct ps_options *reloaded_options;
    struct ps_daemon_facts facts;
    struct ps_loop *loop;
    struct ps_worker *worker;
    struct ps_io_pool *io_pool; /* NULL: all I/O is done on the loop thread. */
    struct ps_driver *driver;
    struct ps_listener *tcp_listener;
    struct ps_listener *local_listener;
    struct ps_listener *shm_listener;
    int listen_fd;
    int shm_fd; /* Listens for agents of this host; -1: none. */
    uint16_t listen_port;
    int local_fd;
    const char *local_path; /* Owned socket file: removed at the end. */
    void *app;
    struct ps_loop_timer watchdog_timer;
    /* Next try of a reload without descriptors. */
    struct ps_loop_timer reload_timer;
    int spare_fd; /* Reserved for reading the configuration; -1: none. */
    /* Wakes the loop; on_idle() trims memory. */
    struct ps_loop_timer trim_timer;
    /* Wakes the loop; on_idle() logs summaries. */
    struct ps_loop_timer log_timer;
    struct ps_trim trim;
    struct ps_loop_timer grace_timer;
    ps_time grace_time;
    bool is_serving; /* Readiness has been reported. */
    bool is_stopping;
    int exit_code;
};

/* Static, so that one buffer serves every report. */
static char report_text[REPORT_MAX];

static const struct ps_common_options *common_options(const struct daemon *d)
{
    return (const void *)((const char *)d->values + d->spec->common);
}

static const struct ps_listen_options *listen_options(const struct daemon *d)
{
    return d->spec->listen == PS_DAEMON_NONE
               ? NULL
               : (const void *)((const char *)d->values + d->spec->listen);
}

static const struct ps_scheduler_options *
scheduler_options(const struct daemon *d)
{
    return d->spec->scheduler == PS_DAEMON_NONE
               ? NULL
               : (const void *)((const char *)d->values + d->spec->scheduler);
}

static int exit_code_of(int rc)
{
    switch (rc) {
    case PS_E_INVAL:
    case PS_E_CONFIG:
        return PS_EXIT_CONFIG;
    case PS_E_PERM:
        return PS_EXIT_NOPERM;
    case PS_E_EXIST:
    case PS_E_NOENT:
        return PS_EXIT_CANTCREAT;
    case PS_E_AGAIN:
    case PS_E_FULL:
    case PS_E_VERSION:
        return PS_EXIT_TEMPFAIL;
    case PS_E_UNREACH:
    case PS_E_TIMEOUT:
        return PS_EXIT_UNAVAILABLE;
    default:
        return PS_EXIT_FAILURE;
    }
}

/* ------------------------------------------------------------------ options */

static void default_config_path(const struct daemon *d, char *out, size_t cap)
{
    snprintf(out, cap, "%s/pskv/%s.yaml", PS_SYSCONFDIR,
             d->spec->options->program);
}

/* True unless the address has a port, which another option sets, or the daemon
 * would listen off loopback without security.insecure: any peer that reaches
 * the port is trusted. */
static bool check_listen(const struct daemon *d, const struct ps_options *o,
                         struct ps_str *report)
{
    const struct ps_listen_options *l = listen_options(d);
    char number[PS_ADDRESS_MAX + 1];
    struct ps_addr with_port;
    enum ps_addr_kind kind;

    if (l != NULL && ps_addr_parse(l->address, &with_port) == 0) {
        ps_options_where(o, "listen.address", report);
        ps_str_addf(report,
                    ": listen.address: %s: the port does not belong here; set "
                    "listen.address to %s, and listen.port to %u\n",
                    l->address, with_port.host, with_port.port);
        return false;
    }
    if (l == NULL || l->insecure || strcmp(l->address, "localhost") == 0) {
        return true;
    }
    kind = ps_addr_kind(l->address);
    if (kind == PS_ADDR_NAME &&
        ps_addr_lookup(l->address, number, sizeof(number)) == 0) {
        kind = ps_addr_kind(number);
    }
    if (kind == PS_ADDR_LOOPBACK) {
        return true;
    }
    ps_options_where(o, "listen.address", report);
    if (kind == PS_ADDR_NAME) {
        ps_str_addf(report, ": listen.address: %s: %s\n", l->address,
                    ps_advice_tcp(PS_E_UNREACH, 0));
        return false;
    }
    ps_str_addf(report,
                ": listen.address: %s can be reached from other hosts, and "
                "connections are not encrypted; listen on 127.0.0.1, or set "
                "security.insecure to true\n",
                l->address);
    return false;
}

/* Loads the options into `values`; the report has errors and warnings. */
static int load_options(const struct daemon *d,
                        const struct ps_options *previous, void *values,
                        struct ps_options **ret_options, struct ps_str *report)
{
    char path[512];
    struct ps_option_input in = {
        .file = d->args.config,
        .overrides = (const char *const *)d->args.overrides,
        .override_count = d->args.override_count,
        .env = environ,
        .sets = ps_daemon_sets,
        .memory = ps_memory_limit(""),
        .previous = previous,
    };

    if (in.file == NULL) {
        default_config_path(d, path, sizeof(path));
        in.file = path;
        in.file_optional = true;
    }
    return ps_options_load(d->spec->options, &in, values, ret_options, report);
}

/* Loads the options at the start. A combination that is invalid is still
 * printed with --print-config, because that shows where the values come
 * from. */
static int load_initial_options(struct daemon *d)
{
    struct ps_str report;
    bool good;
    int rc;

    ps_str_init(&report, report_text, sizeof(report_text));
    d->values = ps_calloc(1, d->spec->values_size);
    rc = load_options(d, NULL, d->values, &d->options, &report);
    if (rc == 0 && d->args.print == PS_PRINT_NOTHING) {
        good = check_listen(d, d->options, &report);
        if (d->spec->check != NULL) {
            good = d->spec->check(d->values, d->options, &report) && good;
        }
        rc = good ? 0 : PS_E_CONFIG;
    }
    fputs(report_text, stderr);
    d->grace_time = rc == 0 ? common_options(d)->grace : 0;
    return rc == 0 ? PS_EXIT_OK : PS_EXIT_CONFIG;
}

static void log_option_change(void *ctx, const struct ps_option *row)
{
    const struct daemon *d = ctx;
    char text[256];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_options_text(d->reloaded_options, row->path, &s);
    ps_log(PS_LOG_NOTICE, "option changed %s=%s", row->path, text);
}

static void log_report(enum ps_log_level level)
{
    char *rest = report_text;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] != '\0') {
            ps_log(level, "%s", line);
        }
    }
}

static int open_spare_fd(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Reloads the options and applies the reloadable ones; all others stay. */
static void reload_options(struct daemon *d)
{
    struct ps_options *now = NULL;
    struct ps_options *before = d->reloaded_options != NULL
                                    ? d->reloaded_options
                                    : d->options;
    void *values = ps_calloc(1, d->spec->values_size);
    struct timespec mono;
    struct ps_str report;

    clock_gettime(CLOCK_MONOTONIC, &mono);
    ps_notify("RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
              (uint64_t)mono.tv_sec * 1000000u +
                  (uint64_t)mono.tv_nsec / 1000u);
    ps_str_init(&report, report_text, sizeof(report_text));
    if (d->spare_fd >= 0) {
        close(d->spare_fd);
    }
    int rc = load_options(d, before, values, &now, &report);

    d->spare_fd = open_spare_fd();
    if (rc == 0) {
        const struct ps_common_options *c =
            (const void *)((const char *)values + d->spec->common);

        log_report(PS_LOG_WARNING);
        d->reloaded_options = now;
        ps_options_compare(before, now, log_option_change, d);
        ps_log_level_set((enum ps_log_level)c->log_level);
        d->grace_time = c->grace;
        if (before != d->options) {
            ps_options_free(before);
        }
        ps_log(PS_LOG_NOTICE, "options reloaded");
    } else {
        log_report(PS_LOG_ERROR);
        ps_log(PS_LOG_ERROR, "options not reloaded, the old ones stay%s",
               d->spare_fd < 0 ? "; no descriptor is left, trying again" : "");
    }
    if (d->spare_fd < 0) {
        ps_loop_timer_set(d->loop, &d->reload_timer,
                          ps_loop_now(d->loop) + PS_SECONDS(1));
    }
    ps_free(values);
    ps_notify("READY=1\nSTATUS=%s",
              rc == 0 ? "serving"
                      : "serving with old options: the new ones could not be "
                        "read, see the log");
}

/* -------------------------------------------------------------------- start */

static void print_version(const struct ps_daemon_spec *spec)
{
    printf("%s %s\n", spec->options->program, PS_VERSION);
    printf("protocol %u, speaks %u and later\n", PS_PROTOCOL,
           PS_PROTOCOL_LEAST);
    printf("libuv %s\n", uv_version_string());
    printf("msgpack %s\n", msgpack_version());
    printf("kernel %s\n", ps_kernel_variant());
    printf("tls none\n");
}

static int report_option_error(const struct daemon *d, const char *what,
                               const char *name, int rc)
{
    ps_log(PS_LOG_ERROR, "%s %s: %s", what, name, ps_strerror(rc));
    (void)d;
    return exit_code_of(rc);
}

/* Raises the limit on descriptors to the hard limit: each agent takes one at
 * least. */
static void raise_nofile(const struct daemon *d)
{
    struct rlimit lim;
    uint64_t wanted = common_options(d)->connections + 64;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) {
        return;
    }
    lim.rlim_cur = lim.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &lim);
    if (listen_options(d) != NULL && lim.rlim_max < wanted) {
        ps_log(PS_LOG_WARNING,
               "descriptors limit %" PRIu64 " less than limits.connections "
               "needs %" PRIu64 "; raise LimitNOFILE",
               (uint64_t)lim.rlim_max, wanted);
    }
}

static int open_local(struct daemon *d)
{
    const char *option = d->spec->socket_option;
    unsigned mode;
    uint32_t max;
    const char *path = d->spec->socket(d->values, &mode, &max);
    const char *advice;
    int rc;

    if (path[0] == '\0') {
        return PS_EXIT_OK;
    }
    rc = ps_local_listen(path, mode, (int)max, &d->local_fd);
    advice = ps_advice_local(rc, errno);
    if (rc == 0) {
        d->local_path = path;
        return PS_EXIT_OK;
    }
    if (option != NULL &&
        ps_options_origin(d->options, option) == PS_OPTION_FROM_DEFAULT) {
        ps_log(PS_LOG_NOTICE,
               "no Unix socket at %s (%s): psctl cannot change jobs; %s says "
               "where it is to be",
               path, advice, option);
        return PS_EXIT_OK;
    }
    ps_log(PS_LOG_ERROR, "cannot listen on %s: %s", path, advice);
    return rc == PS_E_PERM ? PS_EXIT_NOPERM : PS_EXIT_CANTCREAT;
}

static int open_tcp(struct daemon *d, const struct ps_listen_options *l)
{
    bool any = l->port == (uint64_t)PS_LISTEN_PORT_AUTO;
    uint16_t first = any ? d->spec->port : (uint16_t)l->port;
    uint16_t count = any ? d->spec->port_count : 1;
    char where[PS_ADDRESS_MAX + 1];
    int rc = PS_E_EXIST;

    for (uint16_t i = 0; rc == PS_E_EXIST && i < count; i++) {
        rc = ps_listen_tcp(l->address, (uint16_t)(first + i), l->backlog,
                           &d->listen_fd, &d->listen_port);
    }
    if (rc == 0) {
        return PS_EXIT_OK;
    }
    const char *advice = ps_advice_tcp(rc, errno);

    (void)ps_addr_format(l->address, first, where, sizeof(where));
    ps_log(PS_LOG_ERROR, "cannot listen on %s: %s", where, advice);
    return exit_code_of(rc);
}

static int open_sockets(struct daemon *d)
{
    const struct ps_listen_options *l = listen_options(d);

    if (l != NULL) {
        int code = open_tcp(d, l);

        if (code != PS_EXIT_OK) {
            return code;
        }
    }
    return d->spec->socket != NULL ? open_local(d) : PS_EXIT_OK;
}

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

static uint32_t hash_text(const char *text)
{
    uint32_t h = 2166136261u; /* FNV-1a */

    for (; *text != '\0'; text++) {
        h = (h ^ (uint8_t)*text) * 16777619u;
    }
    return h;
}

/* Makes the node name: the same after a restart, and unique on the host by the
 * port or the path of the socket. */
static void make_name(struct daemon *d)
{
    struct ps_daemon_facts *f = &d->facts;

    if (common_options(d)->node[0] != '\0') {
        ps_str_copy(f->name, sizeof(f->name), common_options(d)->node);
    } else if (listen_options(d) != NULL) {
        snprintf(f->name, sizeof(f->name), "%.50s-%u", f->host,
                 (unsigned)d->listen_port);
    } else {
        snprintf(f->name, sizeof(f->name), "%.50s-%08x", f->host,
                 (unsigned)hash_text(d->local_path));
    }
}

static int make_addresses(struct daemon *d)
{
    const struct ps_scheduler_options *s = scheduler_options(d);
    const struct ps_listen_options *l = listen_options(d);
    struct ps_daemon_facts *f = &d->facts;
    char host[PS_ADDRESS_MAX + 1];

    if (s != NULL && !ps_addr_format(s->address, (uint16_t)s->port,
                                     f->scheduler, sizeof(f->scheduler))) {
        return report_option_error(d, "scheduler.address", s->address,
                                   PS_E_TOOBIG);
    }
    if (l == NULL || d->spec->advertise == NULL) {
        return PS_EXIT_OK;
    }
    if (!d->spec->advertise(d->values, host, sizeof(host))) {
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
                   "no address to advertise: there is no way to %s; set "
                   "advertise.address",
                   f->scheduler);
            return PS_EXIT_CONFIG;
        }
    }
    if (!ps_addr_format(host, d->listen_port, f->address, sizeof(f->address))) {
        return report_option_error(d, "advertise.address", host, PS_E_TOOBIG);
    }
    return PS_EXIT_OK;
}

static bool uses_shm(const struct daemon *d)
{
    return d->spec->same_host != NULL && d->spec->same_host(d->values);
}

/* Listens for agents of this host. A failure is no error: they use TCP then. */
static void listen_shm(struct daemon *d)
{
    const struct ps_listen_options *l = listen_options(d);
    int rc;

    if (l == NULL || !uses_shm(d)) {
        return;
    }
    rc = ps_shm_listen(d->facts.address, l->backlog, &d->shm_fd);
    if (rc != 0) {
        ps_log(PS_LOG_NOTICE,
               "agents on this host come by TCP address %s reason \"%s\"",
               d->facts.address, ps_strerror(rc));
    }
}

static int make_facts(struct daemon *d)
{
    const struct ps_common_options *c = common_options(d);
    struct ps_daemon_facts *f = &d->facts;
    struct timespec wall;

    if (gethostname(f->host, sizeof(f->host)) != 0 || f->host[0] == '\0') {
        ps_str_copy(f->host, sizeof(f->host), "localhost");
    }
    f->host[sizeof(f->host) - 1] = '\0';
    make_name(d);
    ps_str_copy(f->cluster, sizeof(f->cluster), c->cluster);
    f->socket = d->local_path != NULL ? d->local_path : "";
    f->uid = (uint32_t)geteuid();
    clock_gettime(CLOCK_REALTIME, &wall);
    f->wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
    f->instance = random_instance();
    f->seed = random_instance();
    f->now = ps_loop_now(d->loop);
    f->link = (struct ps_link_options){.resend_timeout = c->resend_timeout,
                                       .resend_max = c->resend_max,
                                       .memory_max = c->link_output};
    ps_logsink_set_node(f->name);
    int code = make_addresses(d);

    if (code == PS_EXIT_OK) {
        listen_shm(d);
    }
    return code;
}

static void accepted_tcp(void *ctx, int fd)
{
    struct daemon *d = ctx;

    ps_driver_accept(d->driver, fd);
}

static void accepted_shm(void *ctx, int fd)
{
    struct daemon *d = ctx;

    ps_driver_accept_shm(d->driver, fd);
}

static void accepted_local(void *ctx, int fd)
{
    struct daemon *d = ctx;

    ps_driver_accept_local(d->driver, fd);
}

/* Writes the port file atomically: a reader may open it at any moment. */
static int write_port_file(const struct daemon *d)
{
    char temp[4096];
    FILE *f;
    bool good;

    if (d->args.port_file == NULL) {
        return PS_EXIT_OK;
    }
    snprintf(temp, sizeof(temp), "%s.new", d->args.port_file);
    f = fopen(temp, "we");
    good = f != NULL;
    if (good) {
        good = fprintf(f, "%u\n", (unsigned)d->listen_port) > 0;
        good = fclose(f) == 0 && good;
        good = good && rename(temp, d->args.port_file) == 0;
    }
    if (!good) {
        ps_log(PS_LOG_ERROR, "cannot write %s: %s", d->args.port_file,
               strerror(errno));
        return PS_EXIT_CANTCREAT;
    }
    return PS_EXIT_OK;
}

/* --------------------------------------------------------------------- stop */

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
           "shutdown.grace is over, %" PRIu64 " things in progress are left",
           d->spec->residue(d->app));
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
    if (d->spec->shutdown_last) {
        ps_driver_drain(d->driver);
    } else {
        ps_driver_shutdown(d->driver);
    }
    ps_loop_timer_set(d->loop, &d->grace_timer,
                      ps_time_add(ps_loop_now(d->loop), d->grace_time));
}

/* Repeats a reload that failed because no descriptor was left. */
static void retry_reload(struct ps_loop_timer *t)
{
    struct daemon *d = PS_CONTAINER(t, struct daemon, reload_timer);

    d->spare_fd = open_spare_fd();
    if (d->spare_fd >= 0) {
        reload_options(d);
    } else {
        ps_loop_timer_set(d->loop, t, ps_loop_now(d->loop) + PS_SECONDS(1));
    }
}

static void on_sighup(void *ctx, int signum)
{
    (void)signum;
    reload_options(ctx);
}

static unsigned loop_count(const struct daemon *d)
{
    return 1 + (d->io_pool != NULL ? ps_io_pool_threads(d->io_pool) : 0);
}

static void log_state(void *ctx, int signum)
{
    const struct daemon *d = ctx;
    struct ps_driver_stats s;

    (void)signum;
    ps_driver_stats(d->driver, &s);
    ps_log(PS_LOG_NOTICE,
           "state %s name %s connections %u strangers %u paused %u "
           "computing %u queued %" PRIu64 " in %" PRIu64 " out %" PRIu64
           " copied %" PRIu64 " moved %" PRIu64 " loops %u reads %" PRIu64
           " writes %" PRIu64 " refused %" PRIu64 " allocations %zu",
           d->spec->options->program, d->facts.name, s.connections,
           s.pre_handshake, s.paused, s.computing, s.queued, s.bytes_in,
           s.bytes_out, s.copied, s.moved_by_pool, loop_count(d), s.reads,
           s.writes, s.refused, ps_alloc_live());
    d->spec->dump(d->app);
    ps_driver_dump(d->driver);
}

static void machine_failed(void *ctx, int rc)
{
    struct daemon *d = ctx;

    ps_log(PS_LOG_ERROR, "cannot go on: %s", ps_strerror(rc));
    d->exit_code = exit_code_of(rc);
    close_driver(d);
}

static void report_serving(struct daemon *d)
{
    d->is_serving = true;
    ps_log(PS_LOG_NOTICE, "serving name %s%s%s", d->facts.name,
           d->facts.address[0] != '\0' ? " address " : "", d->facts.address);
    ps_notify("STATUS=serving");
    if (d->args.ready_fd >= 0) {
        ssize_t n = write(d->args.ready_fd, "\n", 1);

        (void)n; /* The reader may be gone. */
        close(d->args.ready_fd);
        d->args.ready_fd = -1;
    }
}

static void trim_timer_due(struct ps_loop_timer *t)
{
    (void)t;
}

/* Logs the summaries of skipped lines. */
static void log_skipped_lines(struct daemon *d)
{
    ps_logsink_write_summaries(false);
    if (ps_loop_timer_at(&d->log_timer) != ps_logsink_deadline()) {
        ps_loop_timer_set(d->loop, &d->log_timer, ps_logsink_deadline());
    }
}

/* Returns memory of a burst to the system, which the allocator would keep. */
static void trim_memory(struct daemon *d)
{
    if (ps_trim_check(&d->trim, ps_alloc_peak(), ps_alloc_bytes(),
                      ps_loop_now(d->loop))) {
        (void)malloc_trim(0);
        ps_log(PS_LOG_DEBUG, "memory of a burst given back");
    }
    if (ps_loop_timer_at(&d->trim_timer) != ps_trim_deadline(&d->trim)) {
        ps_loop_timer_set(d->loop, &d->trim_timer, ps_trim_deadline(&d->trim));
    }
}

static void on_idle(void *ctx)
{
    struct daemon *d = ctx;

    trim_memory(d);
    log_skipped_lines(d);
    if (!d->is_serving && (d->spec->ready == NULL || d->spec->ready(d->app))) {
        report_serving(d);
    }
    if (d->is_stopping && d->spec->residue(d->app) == 0 &&
        ps_driver_is_quiet(d->driver)) {
        shut_down_machine(d);
    }
}

static void feed_watchdog(struct ps_loop_timer *t)
{
    struct daemon *d = PS_CONTAINER(t, struct daemon, watchdog_timer);

    ps_notify("WATCHDOG=1");
    ps_loop_timer_set(d->loop, t,
                      ps_time_add(ps_loop_now(d->loop), ps_notify_watchdog()));
}

/* --------------------------------------------------------------------- main */

static int catch_signals(struct daemon *d)
{
    const struct {
        int signum;
        ps_loop_signal_cb cb;
    } signals[] = {{SIGTERM, daemon_stop},
                   {SIGINT, daemon_stop},
                   {SIGHUP, on_sighup},
                   {SIGUSR1, log_state}};

    (void)signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        int rc = ps_loop_signal(d->loop, signals[i].signum, signals[i].cb, d);

        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int make_worker(struct daemon *d)
{
    struct ps_worker_options opt = {.loop = d->loop};

    if (d->spec->threads == NULL) {
        return 0;
    }
    opt.threads = d->spec->threads(d->values);
    return ps_worker_new(&opt, &d->worker);
}

static void io_thread_added(void *ctx, unsigned count)
{
    struct daemon *d = ctx;

    ps_log(PS_LOG_NOTICE, "one more loop loops %u", count + 1);
    ps_driver_io_grown(d->driver);
}

/* One loop is the daemon's own; the others are I/O threads. */
static int make_io_pool(struct daemon *d)
{
    unsigned wanted = d->spec->loops == NULL ? 1 : d->spec->loops(d->values);
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
    uint64_t port = d->spec->liveness_port != NULL
                        ? d->spec->liveness_port(d->values)
                        : 0;

    opt->liveness_any = port == (uint64_t)PS_LISTEN_PORT_AUTO;
    if (opt->liveness_any) {
        opt->liveness_port = d->spec->port;
        opt->liveness_port_count = d->spec->port_count;
    } else if (d->spec->liveness_port != NULL) {
        opt->liveness_port = (uint16_t)port;
        opt->liveness_port_count = 1;
    }
}

static void make_driver(struct daemon *d)
{
    const struct ps_common_options *c = common_options(d);
    struct ps_driver_options opt = {
        .loop = d->loop,
        .worker = d->worker,
        .io_pool = d->io_pool,
        .arenas = d->spec->arenas == NULL ? NULL : d->spec->arenas(d->app),
        .machine = d->spec->machine(d->app),
        .self = d->spec->self,
        .scheduler = d->facts.scheduler[0] != '\0' ? d->facts.scheduler : NULL,
        .limits = {.greeting_timeout = c->greeting,
                   .header_timeout = c->header,
                   .stall_timeout = c->stall},
        .output = c->output,
        .link_output = c->link_output,
        .output_total = c->output_total,
        .same_host = uses_shm(d),
        .link_connections = d->spec->link_connections != NULL
                                ? d->spec->link_connections(d->values)
                                : 1,
        .bulk = c->congestion_control == 0 ? PS_TCP_BULK : PS_TCP_BULK_SYSTEM,
        .receive_buffer = (uint32_t)c->receive_buffer,
        .send_buffer = (uint32_t)c->send_buffer,
        .busy_poll = c->spin,
        .connections_max = (uint32_t)c->connections,
        .pre_handshake_max = (uint32_t)c->pre_handshake,
        .on_failed = machine_failed,
        .on_idle = on_idle,
        .ctx = d,
    };

    if (d->spec->socket != NULL) {
        unsigned mode;

        (void)d->spec->socket(d->values, &mode, &opt.local_max);
    }
    set_liveness_port(d, &opt);
    d->driver = ps_driver_new(&opt);
}

static int open_listeners(struct daemon *d)
{
    int rc = 0;

    if (d->listen_fd >= 0) {
        rc = ps_listener_open(d->loop, d->listen_fd, accepted_tcp, d,
                              &d->tcp_listener);
        d->listen_fd = rc == 0 ? -1 : d->listen_fd;
    }
    if (rc == 0 && d->shm_fd >= 0) {
        rc = ps_listener_open(d->loop, d->shm_fd, accepted_shm, d,
                              &d->shm_listener);
        d->shm_fd = rc == 0 ? -1 : d->shm_fd;
    }
    if (rc == 0 && d->local_fd >= 0) {
        rc = ps_listener_open(d->loop, d->local_fd, accepted_local, d,
                              &d->local_listener);
        d->local_fd = rc == 0 ? -1 : d->local_fd;
    }
    return rc;
}

static int daemon_begin(struct daemon *d)
{
    int rc = ps_loop_new(&d->loop);

    if (rc == 0) {
        rc = catch_signals(d);
    }
    if (rc != 0) {
        return report_option_error(d, "cannot start", "the event loop", rc);
    }
    int code = open_sockets(d);

    if (code == PS_EXIT_OK) {
        code = make_facts(d);
    }
    if (code != PS_EXIT_OK) {
        return code;
    }
    rc = make_worker(d);
    if (rc != 0) {
        return report_option_error(d, "cannot start", "compute threads", rc);
    }
    rc = make_io_pool(d);
    if (rc != 0) {
        return report_option_error(d, "cannot start", "further loops", rc);
    }
    rc = d->spec->open(d->values, &d->facts, &d->app);
    if (rc != 0) {
        return report_option_error(d, "cannot start", d->spec->options->program,
                                   rc);
    }
    make_driver(d);
    if (!ps_alloc_reserve(PS_RESERVE_BYTES)) {
        ps_log(PS_LOG_WARNING, "no memory for a reserve of %u MiB",
               PS_RESERVE_BYTES >> 20);
    }
    rc = open_listeners(d);
    if (rc != 0) {
        return report_option_error(d, "cannot", "accept connections", rc);
    }
    return write_port_file(d);
}

static void warn_insecure(const struct daemon *d)
{
    const struct ps_listen_options *l = listen_options(d);

    if (l != NULL && l->insecure) {
        ps_log(PS_LOG_WARNING,
               "security.insecure: connections on %s are not encrypted, and "
               "whoever reaches the port is believed",
               l->address);
    }
}

/* Warns about variables of ps-lite that have no effect. */
static void warn_environment(void)
{
    static const struct {
        const char *name;
        const char *why;
    } vain[] = {
        {"DMLC_ENABLE_RDMA", "there is no RDMA transport"},
        {"DMLC_LOCAL", "training processes always use the agent's Unix socket"},
        {"DMLC_PS_VAN_TYPE", "there is one transport, which knows priorities"},
        {"DMLC_PS_WATER_MARK", "windows adapt by themselves"},
        {"DMLC_USE_KUBERNETES", "addresses are taken as they are"},
        {"PS_DROP_MSG", "messages are lost in simulations alone"},
        {"PS_RESEND", "what is not acknowledged is always sent again"},
    };

    for (size_t i = 0; i < sizeof(vain) / sizeof(vain[0]); i++) {
        if (getenv(vain[i].name) != NULL) {
            ps_log(PS_LOG_WARNING, "environment %s has no effect: %s",
                   vain[i].name, vain[i].why);
        }
    }
}

static void daemon_run(struct daemon *d)
{
    warn_insecure(d);
    warn_environment();
    ps_log(PS_LOG_NOTICE, "started name %s cluster %s%s%s%s%s", d->facts.name,
           d->facts.cluster, d->facts.scheduler[0] != '\0' ? " scheduler " : "",
           d->facts.scheduler, d->local_path != NULL ? " socket " : "",
           d->local_path != NULL ? d->local_path : "");
    ps_notify("READY=1\nSTATUS=%s",
              d->spec->ready == NULL ? "serving" : "waiting for the scheduler");
    d->grace_timer.due = grace_expired;
    d->trim_timer.due = trim_timer_due;
    d->log_timer.due = trim_timer_due;
    d->reload_timer.due = retry_reload;
    d->watchdog_timer.due = feed_watchdog;
    if (ps_notify_watchdog() != PS_TIME_NEVER) {
        feed_watchdog(&d->watchdog_timer);
    }
    ps_loop_run(d->loop);
    ps_loop_timer_set(d->loop, &d->watchdog_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->loop, &d->trim_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->loop, &d->log_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->loop, &d->reload_timer, PS_TIME_NEVER);
    ps_logsink_write_summaries(true);
}

static void daemon_finish(struct daemon *d)
{
    ps_listener_close(d->tcp_listener);
    ps_listener_close(d->local_listener);
    ps_listener_close(d->shm_listener);
    if (d->shm_fd >= 0) {
        close(d->shm_fd);
    }
    if (d->listen_fd >= 0) {
        close(d->listen_fd);
    }
    if (d->local_fd >= 0) {
        close(d->local_fd);
    }
    if (d->local_path != NULL) {
        ps_local_remove(d->local_path);
    }
    ps_worker_free(d->worker); /* Its jobs end through the driver. */
    ps_driver_free(d->driver);
    ps_io_pool_free(d->io_pool);
    if (d->app != NULL) {
        d->spec->close(d->app);
    }
    ps_loop_free(d->loop);
}

static int print_config(const struct daemon *d)
{
    switch (d->args.print) {
    case PS_PRINT_DEFAULTS:
        ps_option_set_print_defaults(d->spec->options, stdout);
        break;
    case PS_PRINT_SCHEMA:
        ps_option_set_print_schema(d->spec->options, stdout);
        break;
    case PS_PRINT_EFFECTIVE:
        ps_options_print(d->options, stdout);
        break;
    case PS_PRINT_NOTHING:
        break;
    }
    return PS_EXIT_OK;
}

static int daemon_serve(struct daemon *d)
{
    const struct ps_common_options *c = common_options(d);

    ps_logsink_open((enum ps_log_format)c->log_format,
                    (enum ps_log_level)c->log_level, d->spec->options->program);
    ps_notify_init();
    raise_nofile(d);
    d->spare_fd = open_spare_fd();
    d->exit_code = daemon_begin(d);
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
        return print_config(d); /* Independent of the configuration file. */
    }
    int code = load_initial_options(d);

    if (code != PS_EXIT_OK || d->args.check) {
        return code;
    }
    return d->args.print != PS_PRINT_NOTHING ? print_config(d)
                                             : daemon_serve(d);
}

int ps_daemon_main(const struct ps_daemon_spec *spec, int argc, char **argv)
{
    struct daemon d = {.spec = spec,
                       .spare_fd = -1,
                       .listen_fd = -1,
                       .shm_fd = -1,
                       .local_fd = -1};
    struct ps_args_options opt = {
        .program = spec->options->program,
        .dials = spec->scheduler != PS_DAEMON_NONE,
        .listens = spec->listen != PS_DAEMON_NONE,
    };
    char path[512];
    int code;

    if (!ps_args_parse(&opt, argc, argv, &d.args)) {
        return PS_EXIT_USAGE;
    }
    default_config_path(&d, path, sizeof(path));
    if (d.args.help) {
        ps_args_help(&opt, spec->summary, path);
        code = PS_EXIT_OK;
    } else if (d.args.version) {
        print_version(spec);
        code = PS_EXIT_OK;
    } else {
        code = run_with_options(&d);
    }
    ps_options_free(d.reloaded_options);
    ps_options_free(d.options);
    ps_free(d.values);
    ps_args_fini(&d.args);
    return code;
}
