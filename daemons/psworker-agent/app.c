/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the agent machine with its two kinds of memory: scratch for sums is its
 * own, results lie in memfds that workers map. */
#include "psworker-agent/options.h"

#include "base/alloc.h"
#include "base/pool.h"
#include "base/str.h"
#include "common/daemon.h"
#include "common/metrics.h"
#include "core/agent/agent.h"
#include "kernel/share.h"
#include "net/arena.h"
#include "proto/ring.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Bytes that are summed inline, in about 10 us. */
#define SUM_HERE_MAX (128u * 1024u)

struct app {
    struct ps_share *share; /* NULL: workers share no memory of GPUs. */
    struct ps_pool *scratch_pool;
    struct ps_arenas *arenas;
    uint64_t memory; /* Limit of each pool. */
    struct ps_trace *trace;
    struct ps_agent *agent;
};

/* ------------------------------------------------------------------- memory */

/* A pool keeps what its source has given, so pinning, which is slow, is rare. */
struct pinned {
    struct ps_share *share;
    struct ps_pool_source source;
};

static int get_pinned(void *ctx, size_t size, void **ret_data,
                      uint32_t *ret_tag, uint64_t *ret_offset)
{
    const struct pinned *p = ctx;
    int rc = p->source.get(p->source.ctx, size, ret_data, ret_tag, ret_offset);

    if (rc == 0) {
        ps_share_pin(p->share, *ret_data, size);
    }
    return rc;
}

static void put_pinned(void *ctx, void *data, size_t size, uint32_t tag)
{
    const struct pinned *p = ctx;

    ps_share_unpin(p->share, data);
    p->source.put(p->source.ctx, data, size, tag);
}

static void close_pinned(void *ctx)
{
    struct pinned *p = ctx;

    if (p->source.close != NULL) {
        p->source.close(p->source.ctx);
    }
    ps_free(p);
}

static struct ps_pool_source pinned_source(struct ps_share *share,
                                           struct ps_pool_source source)
{
    struct pinned *p;

    if (share == NULL) {
        return source;
    }
    p = ps_calloc(1, sizeof(*p));
    *p = (struct pinned){.share = share, .source = source};
    return (struct ps_pool_source){
        .get = get_pinned, .put = put_pinned, .close = close_pinned, .ctx = p};
}

static struct ps_pool *new_result_pool(void *ctx)
{
    const struct app *app = ctx;

    return ps_pool_new(&(struct ps_pool_options){
        .budget = app->memory,
        .source = pinned_source(app->share, ps_arenas_source(app->arenas))});
}

static int new_residual_segment(void *ctx, size_t size, struct ps_buf **ret_buf)
{
    const struct app *app = ctx;

    return ps_arenas_create_segment(app->arenas, size, ret_buf);
}

/* Limit of the system on mappings of a process; Linux's default if it is
 * unknown. */
static uint64_t max_map_count(void)
{
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    unsigned long long count = 0;

    if (f != NULL) {
        if (fscanf(f, "%llu", &count) != 1) {
            count = 0;
        }
        (void)fclose(f);
    }
    return count != 0 ? count : 65530;
}

static void set_limits(const struct psagent_options *o,
                       struct ps_account_limits *limits)
{
    const struct psagent_limits *l = &o->limits;
    struct ps_account_limits *session = &limits[PS_ACCOUNT_SESSION];
    struct ps_account_limits *user = &limits[PS_ACCOUNT_USER];
    struct ps_account_limits *daemon = &limits[PS_ACCOUNT_DAEMON];
    const uint64_t regions = l->daemon_regions != 0 ? l->daemon_regions
                                                    : max_map_count() / 2;

    ps_daemon_limit(session, PS_COST_REGIONS, l->session_regions,
                    "limits.session.regions");
    ps_daemon_limit(user, PS_COST_REGIONS,
                    l->user_regions != 0 ? l->user_regions : (regions + 1) / 2,
                    "limits.user.regions");
    ps_daemon_limit(daemon, PS_COST_REGIONS, regions, "limits.daemon.regions");
    ps_daemon_limit(session, PS_COST_MAPPED, l->session_mapped,
                    "limits.session.mapped");
    ps_daemon_limit(user, PS_COST_MAPPED, l->user_mapped, "limits.user.mapped");
    ps_daemon_limit(daemon, PS_COST_MAPPED, l->daemon_mapped,
                    "limits.daemon.mapped");
    ps_daemon_limit(user, PS_COST_MEMORY,
                    l->user_memory != 0 ? l->user_memory : o->memory / 5 * 4,
                    "limits.user.memory");
    ps_daemon_limit(daemon, PS_COST_MEMORY, o->memory, "local.memory");
    ps_daemon_limit_keys(limits, &o->key_limits);
    ps_daemon_limit(user, PS_COST_OPERATIONS, l->user_operations,
                    "limits.user.operations");
    ps_daemon_limit(session, PS_COST_QUERIES, l->session_queries,
                    "limits.session.queries");
    ps_daemon_limit(user, PS_COST_QUERIES, l->user_queries,
                    "limits.user.queries");
    ps_daemon_limit(user, PS_COST_SESSIONS, l->user_sessions,
                    "limits.user.sessions");
    ps_daemon_limit(daemon, PS_COST_SESSIONS, o->max_clients,
                    "client.max_clients");
}

static int open_app(const void *values, const struct ps_daemon_facts *facts,
                    struct ps_daemon_app *ret_app)
{
    const struct psagent_options *o = values;
    struct app *app = ps_calloc(1, sizeof(*app));
    struct ps_agent_options opt = {
        .facts = facts->process,
        .instance = facts->instance,
        .seed = facts->seed,
        .dial_backoff_min = o->scheduler.retry_first,
        .dial_backoff_max = o->scheduler.retry_max,
        .unsent_max = o->hand_over,
        .unbatched = o->transport.travel_together != 0,
        .inline_sum_max = SUM_HERE_MAX,
        .ring_layout = ps_ring_layout(),
        .takes_devices = true,
        .link = facts->link,
    };

    set_limits(o, opt.limits);
    ps_str_copy(opt.name, sizeof(opt.name), facts->name);
    ps_str_copy(opt.cluster, sizeof(opt.cluster), facts->cluster);
    ps_str_copy(opt.sched_address, sizeof(opt.sched_address), facts->scheduler);
    ps_str_copy(opt.host, sizeof(opt.host), facts->host);
    app->arenas = ps_arenas_new();
    app->share = facts->share;
    app->scratch_pool = ps_pool_new(&(struct ps_pool_options){
        .budget = o->memory,
        .source = pinned_source(app->share,
                                ps_arenas_lazy_source(app->arenas))});
    app->memory = o->memory;
    opt.scratch_pool = app->scratch_pool;
    opt.result_pool_new = new_result_pool;
    opt.alloc_ctx = app;
    opt.residual_segment_new = new_residual_segment;
    opt.residual_log_max = o->memory;
    app->trace = ps_trace_new();
    opt.trace = app->trace;
    app->agent = ps_agent_new(&opt, facts->now);
    *ret_app = (struct ps_daemon_app){.self = app,
                                      .machine = ps_agent_machine(app->agent),
                                      .arenas = app->arenas};
    return 0;
}

static void close_app(void *self)
{
    struct app *app = self;

    ps_agent_free(app->agent);
    ps_trace_free(app->trace);
    ps_pool_free(app->scratch_pool);
    ps_arenas_free(app->arenas);
    ps_free(app);
}

static bool app_is_ready(const void *self)
{
    const struct app *app = self;

    return ps_agent_is_ready(app->agent);
}

static uint64_t report_residue(const void *self)
{
    const struct app *app = self;

    return ps_agent_residue(app->agent);
}

static void log_state(const void *self)
{
    const struct app *app = self;
    struct ps_agent_stats s;

    ps_agent_stats(app->agent, &s);
    ps_log(PS_LOG_NOTICE,
           "state sessions %u rounds %" PRIu64 " in %" PRIu64 " out %" PRIu64
           " summed %" PRIu64 " resent %" PRIu64 " waiting %u residue %" PRIu64
           " sums %" PRIu64,
           s.sessions, s.rounds, s.bytes_in, s.bytes_out, s.bytes_summed,
           s.resent, s.pending_ops, ps_agent_residue(app->agent),
           ps_pool_used(app->scratch_pool));
}

static void add_metrics(const void *self, struct ps_metrics *m)
{
    const struct app *app = self;
    struct ps_agent_stats s;

    ps_agent_stats(app->agent, &s);
    ps_metric_gauge(m, "sessions", "Training processes of this node.",
                    s.sessions);
    ps_metric_counter(m, "rounds_total", "Committed rounds of partitions.",
                      s.rounds);
    ps_metric_counter(m, "push_bytes_total", "Tensor bytes to servers.",
                      s.bytes_out);
    ps_metric_counter(m, "pull_bytes_total", "Tensor bytes from servers.",
                      s.bytes_in);
    ps_metric_counter(m, "summed_bytes_total", "Bytes read by local sums.",
                      s.bytes_summed);
    ps_metric_counter(m, "resent_messages_total",
                      "Messages that were sent again.", s.resent);
    ps_metric_counter(m, "refused_frames_total",
                      "Messages of peers about objects of others.",
                      s.refused_frames);
    ps_metric_gauge(m, "pending_operations",
                    "Operations of training processes in progress.",
                    s.pending_ops);
    ps_metric_gauge(m, "sum_memory_bytes", "Memory for local sums.",
                    ps_pool_used(app->scratch_pool));
}

static struct ps_daemon_socket client_socket(const void *values)
{
    const struct psagent_options *o = values;

    return (struct ps_daemon_socket){.path = o->socket,
                                     .group = o->group,
                                     .mode = o->mode,
                                     .max = (uint32_t)o->max_clients +
                                            PS_LOCAL_SPARE,
                                     .path_option = "client.socket",
                                     .group_option = "client.group"};
}

static const struct ps_daemon_spec psagent_spec = {
    .summary = "The agent of a node: training processes reach the service "
               "through it.",
    .self = PS_ROLE_AGENT,
    .options = &psagent_set,
    .values_size = sizeof(struct psagent_options),
    .common = offsetof(struct psagent_options, common),
    .listen = PS_DAEMON_NONE,
    .scheduler = offsetof(struct psagent_options, scheduler),
    .transport = offsetof(struct psagent_options, transport),
    .compute = offsetof(struct psagent_options, compute),
    .liveness_port = offsetof(struct psagent_options, liveness_port),
    .link_connections = offsetof(struct psagent_options, connections),
    .port = 9156, /* Behind those of psserver. */
    .port_count = 64,
    .socket = client_socket,
    .shares_devices = true,
    .open = open_app,
    .close = close_app,
    .ready = app_is_ready,
    .residue = report_residue,
    .dump = log_state,
    .metrics = add_metrics,
};

int main(int argc, char **argv)
{
    return ps_daemon_main(&psagent_spec, argc, argv);
}
