/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the scheduler machine: options and facts in, state to the log. */
#include "psched/app.h"

#include "base/str.h"
#include "core/sched/sched.h"
#include "psched/options.h"

#include <inttypes.h>

static void set_cost_limit(struct ps_account_limits *l, enum ps_cost cost,
                           uint64_t max, const char *option)
{
    l->limit[cost] = (struct ps_account_limit){.max = max, .option = option};
}

static void set_limits(const struct psched_options *o,
                       struct ps_account_limits *limits)
{
    const struct ps_key_limits *l = &o->key_limits;
    struct ps_account_limits *job = &limits[PS_ACCOUNT_JOB];
    struct ps_account_limits *user = &limits[PS_ACCOUNT_USER];

    set_cost_limit(job, PS_COST_KEYS, l->job_keys, "limits.job.keys");
    set_cost_limit(user, PS_COST_KEYS, l->user_keys, "limits.user.keys");
    set_cost_limit(job, PS_COST_PARTITIONS, l->job_partitions,
                   "limits.job.partitions");
    set_cost_limit(user, PS_COST_PARTITIONS, l->user_partitions,
                   "limits.user.partitions");
    set_cost_limit(&limits[PS_ACCOUNT_DAEMON], PS_COST_MEMORY, o->table_memory,
                   "limits.daemon.memory");
}

static int open_app(const void *values, const struct ps_daemon_facts *facts,
                    void **ret_app)
{
    const struct psched_options *o = values;
    struct ps_sched_options opt = {
        .instance = facts->instance,
        .generation_base = facts->wall_ns,
        .seed = facts->seed,
        .heartbeat = psched_heartbeat(o),
        .suspect_after = psched_suspect_after(o),
        .dead_after = psched_dead_after(o),
        .start_timeout = o->start_timeout,
        .rejoin_grace = o->rejoin_grace,
        .rejoin_timeout = o->rejoin_timeout,
        .partition_bytes = (uint32_t)o->partition_bytes,
        .link = facts->link,
        .link_linger = o->link_linger,
        .uid = facts->uid,
    };

    set_limits(o, opt.limits);
    ps_str_copy(opt.name, sizeof(opt.name), facts->name);
    ps_str_copy(opt.cluster, sizeof(opt.cluster), facts->cluster);
    ps_str_copy(opt.control_path, sizeof(opt.control_path), facts->socket);
    *ret_app = ps_sched_new(&opt, facts->now);
    return 0;
}

static void close_app(void *app)
{
    ps_sched_free(app);
}

static struct ps_machine app_machine(void *app)
{
    return ps_sched_machine(app);
}

static uint64_t report_residue(const void *app)
{
    return ps_sched_residue(app);
}

static void log_state(const void *app)
{
    static const struct {
        enum ps_role role;
        const char *name;
    } roles[] = {{PS_ROLE_SERVER, "servers"}, {PS_ROLE_AGENT, "agents"}};

    ps_log(PS_LOG_NOTICE, "state epoch %u jobs %u residue %" PRIu64,
           ps_sched_epoch(app), ps_sched_job_count(app), ps_sched_residue(app));
    for (int i = 0; i < 2; i++) {
        enum ps_role role = roles[i].role;

        ps_log(PS_LOG_NOTICE,
               "state %s joining %u active %u suspect %u "
               "gone %u",
               roles[i].name,
               ps_sched_member_count(app, role, PS_NODE_STATE_JOINING),
               ps_sched_member_count(app, role, PS_NODE_STATE_ACTIVE),
               ps_sched_member_count(app, role, PS_NODE_STATE_SUSPECT),
               ps_sched_member_count(app, role, PS_NODE_STATE_GONE));
    }
}

static const char *socket_path(const void *values, unsigned *ret_mode,
                               uint32_t *ret_max)
{
    const struct psched_options *o = values;

    *ret_mode = o->mode;
    *ret_max = PS_CONTROL_MAX;
    return o->socket;
}

/* True if the three heartbeat times are in ascending order. */
static bool check_options(const void *values, const struct ps_options *o,
                          struct ps_str *report)
{
    const struct psched_options *p = values;

    if (psched_heartbeat(p) < psched_suspect_after(p) &&
        psched_suspect_after(p) < psched_dead_after(p)) {
        return true;
    }
    ps_options_where(o, "heartbeat.dead_after", report);
    ps_str_add(report, ": heartbeat: dead_after must be longer than "
                       "suspect_after, and that longer than interval\n");
    return false;
}

const struct ps_daemon_spec psched_spec = {
    .summary = "The scheduler: who is a member, which jobs there are, where "
               "keys lie.",
    .self = PS_ROLE_SCHED,
    .options = &psched_set,
    .values_size = sizeof(struct psched_options),
    .common = offsetof(struct psched_options, common),
    .listen = offsetof(struct psched_options, listen),
    .scheduler = PS_DAEMON_NONE,
    .transport = PS_DAEMON_NONE,
    .port = 9091,
    .port_count = 1,
    .socket = socket_path,
    .socket_option = "control.socket",
    .check = check_options,
    .open = open_app,
    .close = close_app,
    .machine = app_machine,
    .residue = report_residue,
    .dump = log_state,
    .shutdown_last = true,
};
