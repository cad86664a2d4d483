/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the server machine with its memory: one pool, in arenas that agents of
 * this host can map. */
#include "psserver/options.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/pool.h"
#include "base/str.h"
#include "common/daemon.h"
#include "common/keeper.h"
#include "common/metrics.h"
#include "core/part/records.h"
#include "core/server/server.h"
#include "kernel/kernel.h"
#include "net/addr.h"
#include "net/arena.h"
#include "net/state_file.h"

#include <gnu/libc-version.h>
#include <inttypes.h>
#include <string.h>

/* Size of state memory for each byte of store.memory: ranges of buffers that have
 * been freed may be in pieces that are too small. Pages exist where something was
 * written. */
#define STATE_SHARE 2u

struct app {
    struct ps_arenas *arenas;    /* Shared with agents on this host. */
    struct ps_state_file *state; /* State memory; NULL: none. */
    struct ps_records *records;  /* In it. */
    struct ps_pool *pool;
    struct ps_trace *trace;
    struct ps_server *server;
};

/* Takes over the state memory of the process before, if somebody has kept it. */
static struct ps_state_file *take_state(void)
{
    struct ps_state_file *f;
    const char *why;
    int fd = ps_keeper_take();

    if (fd < 0) {
        return NULL;
    }
    if (ps_state_file_open(fd, &f, &why) != 0) {
        ps_log(PS_LOG_WARNING, "state memory is dropped: %s", why);
        return NULL;
    }
    return f;
}

/* Drops the state memory of the process before, which is not used. */
static void drop_state(const char *why)
{
    if (ps_keeper_drop()) {
        ps_log(PS_LOG_WARNING, "state memory is dropped: %s", why);
    }
}

/* Reads what the process before has left, or makes empty memory. */
static struct ps_records *open_records(struct ps_state_file *f,
                                       const struct ps_daemon_facts *facts)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX);
    struct ps_records *r = ps_records_open(
        &(struct ps_records_options){
            .memory = {.base = ps_state_file_data(f),
                       .size = ps_state_file_size(f),
                       .release = ps_state_file_release,
                       .ctx = f},
            .name = facts->name,
            .cluster = facts->cluster,
            .id = facts->instance},
        &why);

    if (r == NULL) {
        ps_log(PS_LOG_WARNING, "state memory is dropped: it is too small");
    } else if (why.len > 0) {
        ps_log(PS_LOG_WARNING, "state memory is dropped: %s", why.data);
    } else if (ps_records_found(r) > 0) {
        ps_log(PS_LOG_NOTICE,
               "state memory has %u records, %" PRIu64 " bytes of buffers",
               ps_records_found(r), ps_records_bytes(r));
    }
    return r;
}

/* Agents of this host read values where they lie; without a descriptor for them
 * they copy them. */
static void share_state(struct app *app)
{
    int fd = ps_state_file_open_reader(app->state);

    if (fd >= 0) {
        ps_records_set_arena(
            app->records,
            ps_arenas_add(app->arenas, fd, ps_state_file_size(app->state)));
    }
}

/* Makes the pool's memory outlive this process, if somebody keeps it. */
static void open_state(struct app *app, const struct psserver_options *o,
                       const struct ps_daemon_facts *facts)
{
    struct ps_state_file *f;
    struct ps_records *r = NULL;

    if (o->keep == PSSERVER_KEEP_OFF) {
        drop_state("store.keep is off");
        return;
    }
    if (facts->process.gpu != NULL) {
        drop_state("optimizer states are on a GPU (compute.device)");
        ps_log(PS_LOG_NOTICE,
               "state does not outlive this process: optimizer states are on a "
               "GPU (compute.device)");
        return;
    }
    f = take_state();
    r = f != NULL ? open_records(f, facts) : NULL;
    if (r != NULL && ps_records_found(r) == 0 &&
        ps_state_file_size(f) != STATE_SHARE * o->memory) {
        ps_records_free(r); /* It has the size of another store.memory. */
        r = NULL;
    }
    if (r == NULL) {
        ps_state_file_close(f);
        if (ps_state_file_new(STATE_SHARE * o->memory, &f) != 0) {
            ps_log(PS_LOG_WARNING,
                   "state does not outlive this process: no memory for it");
            return;
        }
        r = open_records(f, facts);
    }
    if (r == NULL || ps_keeper_offer(ps_state_file_fd(f)) != 0) {
        ps_log(PS_LOG_NOTICE,
               "state does not outlive this process: nobody keeps it; see "
               "--keep, and FileDescriptorStoreMax of the unit");
        ps_records_free(r);
        ps_state_file_close(f);
        return;
    }
    app->state = f;
    app->records = r;
    share_state(app);
}

/* Bytes of the pool: store.memory, or what the state memory of the process before
 * has room for. */
static uint64_t pool_budget(const struct app *app, uint64_t wanted)
{
    struct ps_str text = PS_STR_ROOM(80);
    uint64_t room;

    if (app->state == NULL) {
        return wanted;
    }
    room = ps_state_file_size(app->state) / STATE_SHARE;
    if (room >= wanted) {
        return wanted;
    }
    ps_str_add_size(&text, room);
    ps_str_add(&text, " of the ");
    ps_str_add_size(&text, wanted);
    ps_log(PS_LOG_WARNING,
           "state memory of jobs that go on has room for %s of store.memory: "
           "more counts after a restart without jobs",
           text.data);
    return room;
}

/* Two servers compute the same bits if program and C library are the same and
 * choose the same instructions. */
static uint32_t kernel_class_of(const struct ps_daemon_facts *facts)
{
    struct ps_str all = PS_STR_ROOM(200);

    ps_str_addf(&all, "%s %s %s", facts->process.version, ps_kernel_variant(),
                gnu_get_libc_version());
#if defined(__x86_64__)
    /* Functions of libm have variants for these. */
    ps_str_addf(&all, " %d%d%d", __builtin_cpu_supports("fma") != 0,
                __builtin_cpu_supports("fma4") != 0,
                __builtin_cpu_supports("avx2") != 0);
#endif
    return ps_fnv1a_32(PS_FNV1A_32, all.data, all.len) | 1; /* Not 0. */
}

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
        .kernel_class = kernel_class_of(facts),
    };

    ps_str_copy(opt.name, sizeof(opt.name), facts->name);
    ps_str_copy(opt.cluster, sizeof(opt.cluster), facts->cluster);
    ps_str_copy(opt.address, sizeof(opt.address), facts->address);
    ps_str_copy(opt.sched_address, sizeof(opt.sched_address), facts->scheduler);
    app->arenas = ps_arenas_new();
    open_state(app, o, facts);
    app->pool = ps_pool_new(&(struct ps_pool_options){
        .budget = pool_budget(app, o->memory),
        .source = app->records != NULL ? ps_records_source(app->records)
                                       : ps_arenas_lazy_source(app->arenas)});
    opt.pool = app->pool;
    opt.records = app->records;
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

    if (app->records != NULL) {
        ps_records_freeze(app->records);
    }
    ps_server_free(app->server);
    ps_trace_free(app->trace);
    ps_pool_free(app->pool);
    ps_records_free(app->records);
    ps_state_file_close(app->state);
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
    ps_metric_gauge(m, "state_memory_bytes",
                    "Memory of the above that outlives the process.",
                    app->records != NULL ? ps_records_bytes(app->records) : 0);
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
