/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the server machine with its memory: one pool, in arenas that agents of
 * this host can map. */
#include "psserver/options.h"

#include "base/alloc.h"
#include "base/pool.h"
#include "base/str.h"
#include "common/daemon.h"
#include "common/metrics.h"
#include "core/server/server.h"
#include "net/addr.h"
#include "net/arena.h"

#include <inttypes.h>
#include <string.h>

struct app {
    struct ps_arenas *arenas; /* Shared with agents on this host. */
    struct ps_pool *pool;
    struct ps_trace *trace;
    struct ps_server *server;
};

static int open_app(const void *values, const struct ps_daemon_facts *facts,
                    struct ps_daemon_app *ret_app)
{
    const struct psserver_options *o = values;
    struct app *app = ps_calloc(1, sizeof(*app));
    struct ps_server_options opt = {
        .facts = facts->process,
        .instance = facts->instance,
        .seed = facts->seed,
        .credit_window = o->window,
        .unbatched = o->transport.travel_together != 0,
        .dial_backoff_min = o->scheduler.retry_first,
        .dial_backoff_max = o->scheduler.retry_max,
        .link = facts->link,
        .link_linger = o->link_linger,
    };

    ps_str_copy(opt.name, sizeof(opt.name), facts->name);
    ps_str_copy(opt.cluster, sizeof(opt.cluster), facts->cluster);
    ps_str_copy(opt.address, sizeof(opt.address), facts->address);
    ps_str_copy(opt.sched_address, sizeof(opt.sched_address), facts->scheduler);
    app->arenas = ps_arenas_new();
    app->pool = ps_pool_new(&(struct ps_pool_options){
        .budget = o->memory, .source = ps_arenas_lazy_source(app->arenas)});
    opt.pool = app->pool;
    app->trace = ps_trace_new();
    opt.trace = app->trace;
    app->server = ps_server_new(&opt, facts->now);
    *ret_app = (struct ps_daemon_app){.self = app,
                                      .machine = ps_server_machine(app->server),
                                      .arenas = app->arenas};
    return 0;
}

static void close_app(void *self)
{
    struct app *app = self;

    ps_server_free(app->server);
    ps_trace_free(app->trace);
    ps_pool_free(app->pool);
    ps_arenas_free(app->arenas);
    ps_free(app);
}

static bool app_is_ready(const void *self)
{
    const struct app *app = self;

    return ps_server_is_ready(app->server);
}

static uint64_t report_residue(const void *self)
{
    const struct app *app = self;

    return ps_server_residue(app->server);
}

static void log_state(const void *self)
{
    const struct app *app = self;
    struct ps_server_stats s;

    ps_server_stats(app->server, &s);
    ps_log(PS_LOG_NOTICE,
           "state rounds %" PRIu64 " in %" PRIu64 " out %" PRIu64
           " stored %" PRIu64 " unmerged %" PRIu64 " resent %" PRIu64
           " waiting %u refused %" PRIu64 " residue %" PRIu64 " memory %" PRIu64
           " peak %" PRIu64,
           s.rounds, s.bytes_in, s.bytes_out, s.stored_bytes, s.unmerged_bytes,
           s.resent, s.waiting_requests, s.refused_parts,
           ps_server_residue(app->server), ps_pool_used(app->pool),
           ps_pool_peak(app->pool));
}

static void add_metrics(const void *self, struct ps_metrics *m)
{
    const struct app *app = self;
    struct ps_server_stats s;

    ps_server_stats(app->server, &s);
    ps_metric_counter(m, "rounds_total", "Committed rounds of partitions.",
                      s.rounds);
    ps_metric_counter(m, "push_bytes_total", "Tensor bytes received.",
                      s.bytes_in);
    ps_metric_counter(m, "pull_bytes_total", "Tensor bytes sent.", s.bytes_out);
    ps_metric_gauge(m, "store_bytes", "Values and optimizer states.",
                    s.stored_bytes);
    ps_metric_gauge(m, "unmerged_bytes",
                    "Contributions that wait for the others of their round.",
                    s.unmerged_bytes);
    ps_metric_counter(m, "resent_messages_total",
                      "Messages that were sent again.", s.resent);
    ps_metric_gauge(m, "waiting_requests", "Waiting pulls and open rounds.",
                    s.waiting_requests);
    ps_metric_counter(m, "refused_partitions_total",
                      "Partitions refused for lack of memory.",
                      s.refused_parts);
    ps_metric_counter(m, "refused_frames_total",
                      "Messages of peers about objects of others.",
                      s.refused_frames);
    ps_metric_gauge(m, "tensor_memory_bytes",
                    "Memory for values, states and payloads.",
                    ps_pool_used(app->pool));
}

static bool advertised_host(const void *values, char *out, size_t cap)
{
    const struct psserver_options *o = values;

    out[0] = '\0';
    if (o->advertise[0] != '\0' && strcmp(o->advertise, "auto") != 0) {
        ps_str_copy(out, cap, o->advertise);
    } else if (o->interface[0] != '\0') {
        int rc = ps_addr_of_interface(o->interface, out, cap);

        if (rc != 0) {
            ps_log(PS_LOG_ERROR,
                   "advertise.interface: %s has no address (%s); "
                   "'ip address' lists the interfaces",
                   o->interface, ps_strerror(rc));
            return false;
        }
        ps_log(PS_LOG_NOTICE, "advertised is %s, of interface %s", out,
               o->interface);
    }
    return true;
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 ||
           ps_addr_kind(host) == PS_ADDR_LOOPBACK;
}

/* Finds the host that would be advertised, without logging: "" if there is
 * none. */
static void find_advertised(const struct psserver_options *o, char *out,
                            size_t cap)
{
    out[0] = '\0';
    if (o->advertise[0] != '\0' && strcmp(o->advertise, "auto") != 0) {
        ps_str_copy(out, cap, o->advertise);
    } else if (o->interface[0] == '\0') {
        ps_str_copy(out, cap, o->listen.address);
    } else if (ps_addr_of_interface(o->interface, out, cap) != 0) {
        out[0] = '\0';
    }
}

/* False if agents would be told to dial an address at which this server cannot
 * be reached: the cluster would look healthy, and all its jobs would wait
 * forever. */
static bool check_options(const void *values, const struct ps_options *o,
                          struct ps_str *report)
{
    const struct psserver_options *p = values;
    char host[PS_ADDRESS_MAX + 1];
    bool is_address_set = ps_options_origin(o, "advertise.address") !=
                              PS_OPTION_FROM_DEFAULT &&
                          strcmp(p->advertise, "auto") != 0;

    find_advertised(p, host, sizeof(host));
    if (host[0] == '\0') {
        return true;
    }
    if (is_loopback(host) && !ps_addr_may_be_here(p->scheduler.address)) {
        ps_options_where(o, "scheduler.address", report);
        ps_str_addf(report,
                    ": scheduler.address: %s is another host, and agents "
                    "would be told to reach this server at %s; set "
                    "listen.address to an address of this host, with a "
                    "certificate (security.tls.directory) or "
                    "security.insecure\n",
                    p->scheduler.address, host);
        return false;
    }
    if (!is_loopback(host) && is_loopback(p->listen.address) &&
        ps_options_origin(o, "listen.address") == PS_OPTION_FROM_DEFAULT) {
        const char *path = is_address_set ? "advertise.address"
                                          : "advertise.interface";

        ps_options_where(o, path, report);
        ps_str_addf(report,
                    ": %s: agents are told to reach this server at %s, and it "
                    "listens on %s alone; set listen.address to %s, with a "
                    "certificate (security.tls.directory) or "
                    "security.insecure\n",
                    path, host, p->listen.address, host);
        return false;
    }
    return true;
}

static const struct ps_daemon_spec psserver_spec = {
    .summary = "A server: holds parameters, merges gradients, runs the "
               "optimizer.",
    .self = PS_ROLE_SERVER,
    .options = &psserver_set,
    .values_size = sizeof(struct psserver_options),
    .common = offsetof(struct psserver_options, common),
    .listen = offsetof(struct psserver_options, listen),
    .scheduler = offsetof(struct psserver_options, scheduler),
    .transport = offsetof(struct psserver_options, transport),
    .compute = offsetof(struct psserver_options, compute),
    .liveness_port = PS_DAEMON_NONE,
    .link_connections = PS_DAEMON_NONE,
    .port = 9092,
    .port_count = 64,
    .advertise = advertised_host,
    .check = check_options,
    .open = open_app,
    .close = close_app,
    .ready = app_is_ready,
    .residue = report_residue,
    .dump = log_state,
    .metrics = add_metrics,
    .shutdown_last = true,
    .has_state_memory = true,
};

int main(int argc, char **argv)
{
    return ps_daemon_main(&psserver_spec, argc, argv);
}
