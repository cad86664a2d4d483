/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the scheduler machine: options and facts in, state to the log. */
#include "psched/options.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/str.h"
#include "common/daemon.h"
#include "common/metrics.h"
#include "common/options.h"
#include "core/sched/sched.h"
#include "core/sched/store.h"
#include "psched/store.h"
#include "psched/tokens.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct app {
    struct ps_trace *trace;
    struct ps_sched *sched;
    struct psched_tokens *tokens;
    struct psched_store *store; /* NULL: none. */
};

/* Path of the file; "": none. */
static void find_state_file(const char *option, char ret[PATH_MAX])
{
    const char *folder = getenv("STATE_DIRECTORY");

    if (strcmp(option, "null") == 0) {
        *ret = '\0'; /* By -o, which has texts alone. */
    } else if (strcmp(option, "auto") != 0) {
        ps_str_copy(ret, PATH_MAX, option);
    } else if (folder != NULL && folder[0] == '/' &&
               strchr(folder, ':') == NULL) {
        snprintf(ret, PATH_MAX, "%s/psched.state", folder);
    } else {
        *ret = '\0';
    }
}

static int open_store(struct app *app, const struct psched_options *o)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    char path[PATH_MAX];
    int rc;

    find_state_file(o->state_file, path);
    if (*path == '\0') {
        ps_log(PS_LOG_NOTICE, "state.file is not set: jobs end if this process "
                              "is restarted");
        return 0;
    }
    rc = psched_store_open(path, &app->store, &why);
    if (rc != 0) {
        ps_log(PS_LOG_ERROR, "state.file: %s", why.data);
    }
    return rc;
}

/* Reads the file, after which it gets what changes. */
static int load_store(struct app *app, ps_time now)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (app->store != NULL) {
        ps_sched_store_set_room(app->sched, psched_store_has_room, app->store);
    }
    if (app->store == NULL ||
        psched_store_load(app->store, app->sched, now, &why) == 0) {
        return 0;
    }
    ps_log(PS_LOG_ERROR,
           "state.file: %s; put a copy of the file in its place, or move it "
           "away, which ends all jobs",
           why.data);
    return PS_E_CONFIG;
}

static void change_store(void *self, const struct ps_store_row *rows,
                         uint32_t count)
{
    psched_store_change(((struct app *)self)->store, rows, count);
}

static bool commit_store(void *self)
{
    return psched_store_commit(((struct app *)self)->store);
}

static void close_app(void *arg)
{
    struct app *app = arg;

    ps_sched_free(app->sched);
    ps_trace_free(app->trace);
    psched_tokens_free(app->tokens);
    psched_store_close(app->store);
    ps_free(app);
}

static int open_app(const void *values, const struct ps_daemon_facts *facts,
                    struct ps_daemon_app *ret_app)
{
    const struct psched_options *o = values;
    struct ps_sched_options opt = {
        .facts = facts->process,
        .instance = facts->instance,
        .generation_base = facts->wall_ns,
        .seed = facts->seed,
        .heartbeat = psched_heartbeat(o),
        .suspect_after = psched_suspect_after(o),
        .dead_after = psched_dead_after(o),
        .start_timeout = o->start_timeout,
        .rejoin_grace = o->rejoin_grace,
        .rejoin_timeout = o->rejoin_timeout,
        .diverged_after = o->diverged_after == 0 ? PS_TIME_NEVER
                                                 : o->diverged_after,
        .server_return = o->server_return,
        .partition_bytes = (uint32_t)o->partition_bytes,
        .link = facts->link,
        .link_linger = o->link_linger,
        .uid = facts->uid,
        .wall_ns = facts->wall_ns,
        .reading_needs_token = o->read == 1,
    };
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct app *app;
    int rc;

    /* Checked by check_options(). */
    opt.operator_count = ps_users_find(&o->operators, opt.operators,
                                       PS_OPERATORS_MAX);
    app = ps_calloc(1, sizeof(*app));
    app->tokens = psched_tokens_open(o->token_key, &why);
    if (app->tokens == NULL) {
        ps_log(PS_LOG_ERROR, "security.tokens.key: %s", why.data);
        ps_free(app);
        return PS_E_CONFIG;
    }
    rc = open_store(app, o);
    if (rc != 0) {
        close_app(app);
        return rc;
    }
    opt.token_ops = psched_tokens_ops(app->tokens);
    opt.tokens = psched_tokens_stored(app->tokens, &opt.token_count);
    ps_daemon_limit_keys(opt.limits, &o->key_limits);
    ps_daemon_limit(&opt.limits[PS_ACCOUNT_DAEMON], PS_COST_MEMORY,
                    o->table_memory, "limits.daemon.memory");
    ps_str_copy(opt.name, sizeof(opt.name), facts->name);
    ps_str_copy(opt.cluster, sizeof(opt.cluster), facts->cluster);
    ps_str_copy(opt.control_path, sizeof(opt.control_path), facts->socket);
    app->trace = ps_trace_new();
    opt.trace = app->trace;
    app->sched = ps_sched_new(&opt, facts->now);
    rc = load_store(app, facts->now);
    if (rc != 0) {
        close_app(app);
        return rc;
    }
    *ret_app = (struct ps_daemon_app){
        .self = app,
        .machine = ps_sched_machine(app->sched),
        .store_change = app->store != NULL ? change_store : NULL,
        .store_commit = commit_store};
    return 0;
}

static uint64_t report_residue(const void *arg)
{
    const struct app *app = arg;

    return ps_sched_residue(app->sched);
}

static void log_state(const void *arg)
{
    const struct ps_sched *sched = ((const struct app *)arg)->sched;
    static const struct {
        enum ps_role role;
        const char *name;
    } roles[] = {{PS_ROLE_SERVER, "servers"}, {PS_ROLE_AGENT, "agents"}};

    ps_log(PS_LOG_NOTICE, "state epoch %u jobs %u residue %" PRIu64,
           ps_sched_epoch(sched), ps_sched_job_count(sched),
           ps_sched_residue(sched));
    for (int i = 0; i < 2; i++) {
        enum ps_role role = roles[i].role;

        ps_log(PS_LOG_NOTICE,
               "state %s joining %u active %u suspect %u "
               "gone %u",
               roles[i].name,
               ps_sched_member_count(sched, role, PS_NODE_STATE_JOINING),
               ps_sched_member_count(sched, role, PS_NODE_STATE_ACTIVE),
               ps_sched_member_count(sched, role, PS_NODE_STATE_SUSPECT),
               ps_sched_member_count(sched, role, PS_NODE_STATE_GONE));
    }
}

/* ------------------------------------------------------------------ scalars */

/* Training scalars of jobs as metrics. All samples of a metric stand together,
 * so there is a pass over the scalars for each metric. */

/* Left for other metrics. */
#define RESERVED_BYTES 8192u
/* Bytes of the samples of psched_job_scalar of one scalar: three times the
 * common labels, a job's name with all bytes escaped, a scalar's name, and
 * digits. */
#define SCALAR_BYTES_MAX                                                       \
    (3u * (2u * PS_NAME_MAX + 6u * PS_NAME_MAX + PS_SCALAR_NAME_MAX + 160u))

struct pass {
    struct ps_metrics *m;
    size_t end;     /* Length of the text that values may reach. */
    uint32_t shown; /* Scalars that have samples. */
    uint32_t count; /* Scalars so far. */
};

#define LABELS 4u

/* `statistic` NULL: the step. */
static void add_sample(const struct pass *p, const struct ps_msg_job_row *job,
                       const struct ps_rec_job_scalar *scalar,
                       const char *statistic, double value)
{
    const char *metric = statistic != NULL ? "job_scalar" : "job_scalar_step";
    char uid[16];
    const struct ps_metric_label labels[LABELS] = {
        {"job", job->name},
        {"uid", uid},
        {"name", scalar->name},
        {"stat", statistic},
    };

    snprintf(uid, sizeof(uid), "%" PRIu32, job->uid);
    ps_metric_real(p->m, metric, labels,
                   statistic != NULL ? LABELS : LABELS - 1, value);
}

static void add_values(void *ctx, const struct ps_msg_job_row *job,
                       const struct ps_rec_job_scalar *scalar)
{
    struct pass *p = ctx;

    if (p->shown == p->count && p->m->text.len + SCALAR_BYTES_MAX <= p->end) {
        add_sample(p, job, scalar, "min", scalar->min);
        add_sample(p, job, scalar, "mean", scalar->mean);
        add_sample(p, job, scalar, "max", scalar->max);
        p->shown++;
    }
    p->count++;
}

static void add_step(void *ctx, const struct ps_msg_job_row *job,
                     const struct ps_rec_job_scalar *scalar)
{
    struct pass *p = ctx;

    if (p->count++ < p->shown) {
        add_sample(p, job, scalar, NULL, (double)scalar->step);
    }
}

/* Adds them as far as they leave 8 KiB of the text for other metrics, and the
 * number of those that it has no room for. */
static void add_scalars(const struct ps_sched *s, struct ps_metrics *m)
{
    const size_t left = m->text.cap - m->text.len;
    struct pass p = {.m = m};
    uint32_t omitted;

    /* The steps take a third of what the values take. */
    p.end = m->text.len +
            (left > RESERVED_BYTES ? (left - RESERVED_BYTES) / 4 * 3 : 0);
    ps_metric_begin(m, "job_scalar", PS_METRIC_GAUGE,
                    "Last values of a training scalar over the ranks that "
                    "report it.");
    ps_sched_each_scalar(s, add_values, &p);
    omitted = p.count - p.shown;
    ps_metric_begin(m, "job_scalar_step", PS_METRIC_GAUGE,
                    "Highest step of a training scalar.");
    p.count = 0;
    ps_sched_each_scalar(s, add_step, &p);
    ps_metric_gauge(m, "job_scalars_omitted",
                    "Training scalars that the metrics have no room for.",
                    omitted);
}

/* ------------------------------------------------------------------ metrics */

static void add_members(const struct ps_sched *sched, enum ps_role role,
                        const char *name, const char *help,
                        struct ps_metrics *m)
{
    static const struct {
        enum ps_node_state state;
        const char *word;
    } states[] = {{PS_NODE_STATE_JOINING, "joining"},
                  {PS_NODE_STATE_ACTIVE, "active"},
                  {PS_NODE_STATE_SUSPECT, "suspect"},
                  {PS_NODE_STATE_GONE, "gone"}};

    ps_metric_begin(m, name, PS_METRIC_GAUGE, help);
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        ps_metric_sample(m, name, "state", states[i].word,
                         ps_sched_member_count(sched, role, states[i].state));
    }
}

static void add_metrics(const void *self, struct ps_metrics *m)
{
    const struct ps_sched *sched = ((const struct app *)self)->sched;

    ps_metric_gauge(m, "epoch", "Epoch of the placement of keys.",
                    ps_sched_epoch(sched));
    ps_metric_gauge(m, "jobs", "Jobs that have not ended.",
                    ps_sched_job_count(sched));
    ps_metric_gauge(m, "jobs_diverged", "Jobs whose ranks wait for each other.",
                    ps_sched_diverged_count(sched));
    add_members(sched, PS_ROLE_SERVER, "servers", "Servers by state.", m);
    add_members(sched, PS_ROLE_AGENT, "agents", "Agents by state.", m);
    ps_metric_counter(m, "refused_frames_total",
                      "Messages of peers about objects of others.",
                      ps_sched_refused_frames(sched));
    add_scalars(sched, m);
}

static struct ps_daemon_socket control_socket(const void *values)
{
    const struct psched_options *o = values;

    return (struct ps_daemon_socket){.path = o->socket,
                                     .group = o->group,
                                     .mode = o->mode,
                                     .max = PS_CONTROL_MAX,
                                     .path_option = "control.socket",
                                     .group_option = "control.group",
                                     .is_optional = true};
}

/* True if the operators exist and the three heartbeat times are in ascending
 * order. */
static bool check_options(const void *values, const struct ps_options *o,
                          struct ps_str *report)
{
    const struct psched_options *p = values;

    if (!ps_users_check(&p->operators, "control.operators", o, report)) {
        return false;
    }
    if (psched_heartbeat(p) < psched_suspect_after(p) &&
        psched_suspect_after(p) < psched_dead_after(p)) {
        return true;
    }
    ps_options_where(o, "heartbeat.dead_after", report);
    ps_str_add(report, ": heartbeat: dead_after must be longer than "
                       "suspect_after, and that longer than interval\n");
    return false;
}

static const struct ps_daemon_spec psched_spec = {
    .summary = "The scheduler: who is a member, which jobs there are, where "
               "keys lie.",
    .commands =
        "      --check-state FILE   read a state.file and exit: 0 or 78\n"
        "      --copy-state FROM TO copy a state.file, check it and exit\n",
    .self = PS_ROLE_SCHED,
    .options = &psched_set,
    .values_size = sizeof(struct psched_options),
    .common = offsetof(struct psched_options, common),
    .listen = offsetof(struct psched_options, listen),
    .scheduler = PS_DAEMON_NONE,
    .transport = PS_DAEMON_NONE,
    .compute = PS_DAEMON_NONE,
    .liveness_port = PS_DAEMON_NONE,
    .link_connections = PS_DAEMON_NONE,
    .port = 9091,
    .port_count = 1,
    .socket = control_socket,
    .check = check_options,
    .open = open_app,
    .close = close_app,
    .residue = report_residue,
    .dump = log_state,
    .metrics = add_metrics,
    .shutdown_last = true,
};

int main(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--check-state") == 0 ||
                     strcmp(argv[1], "--copy-state") == 0)) {
        return psched_store_main(argc, argv);
    }
    return ps_daemon_main(&psched_spec, argc, argv);
}
