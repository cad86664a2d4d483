/* SPDX-License-Identifier: Apache-2.0 */
/* Workers join and leave jobs. */
#include "core/sched/job/run.h"

#include "base/name_hash.h"
#include "base/num.h"
#include "core/part/fair.h"
#include "core/sched/inner.h"
#include "core/sched/query/query.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --------------------------------------------------------------- job_open */

static void send_job_opened(struct ps_sched_step *st, struct ps_member *agent,
                            uint64_t worker, uint64_t gen)
{
    ps_sched_send_msg(st, agent,
                      &(struct ps_msg){
                          .code = PS_MSG_JOB_OPENED,
                          .job_opened = {.worker = worker, .gen = gen},
                      });
}

/* A worker that wants to take part in a job. */
struct joining {
    struct ps_msg_job_open m; /* `uid` is the owner of the job. */
    uint64_t token;           /* Number of the worker's token; 0: none. */
};

static void send_job_refused(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_job_open *m, int rc,
                             const char *text)
{
    ps_effects_log(st->fx, PS_LOG_INFO,
                   "worker %" PRIu64 " of agent %s refused: %s", m->worker,
                   agent->name, text);
    ps_sched_send_msg(st, agent,
                      &(struct ps_msg){
                          .code = PS_MSG_JOB_OPENED,
                          .job_opened = {.worker = m->worker,
                                         .error = rc,
                                         .text = text,
                                         .gen = m->gen},
                      });
}

int ps_sched_check_job_open(const struct ps_msg_job_open *m, struct ps_str *why)
{
    if (!ps_str_is_name(m->name, PS_NAME_MAX)) {
        ps_str_addf(why,
                    "a job's name has 1 to %u printable ASCII characters "
                    "without spaces",
                    PS_NAME_MAX);
        return PS_E_INVAL;
    }
    if (m->num_workers == 0 || m->num_workers > PS_RANKS_MAX) {
        ps_str_addf(why, "num_workers is %u and must be 1 to %u",
                    m->num_workers, PS_RANKS_MAX);
        return PS_E_INVAL;
    }
    if (m->num_servers > PS_SERVERS_MAX) {
        ps_str_addf(why, "num_servers is %u and must be 0 to %u",
                    m->num_servers, PS_SERVERS_MAX);
        return PS_E_INVAL;
    }
    if (m->rank < -1 || (m->rank >= 0 && (uint32_t)m->rank >= m->num_workers)) {
        ps_str_addf(why,
                    "rank is %d and must be 0 to %u, or -1 for any that is "
                    "free",
                    m->rank, m->num_workers - 1);
        return PS_E_INVAL;
    }
    if (m->weight > PS_JOB_WEIGHT_MAX) {
        ps_str_addf(why, "weight is %u and must be 1 to %u", m->weight,
                    PS_JOB_WEIGHT_MAX);
        return PS_E_INVAL;
    }
    if (m->replicas > PS_REPLICAS_MAX) {
        ps_str_addf(why, "replicas is %u and must be 1 or %u", m->replicas,
                    PS_REPLICAS_MAX);
        return PS_E_INVAL;
    }
    if (m->replicas > 1 && m->mode != PS_MODE_SYNC) {
        ps_str_addf(why,
                    "replicas: 2 is for jobs with rounds, and this one has "
                    "mode %s",
                    ps_mode_name(m->mode));
        return PS_E_UNSUPPORTED;
    }
    if (m->replicas > 1 && m->num_servers == 0) {
        ps_str_add(why, "replicas: 2 needs servers, and the job asks for none");
        return PS_E_INVAL;
    }
    if (m->partition_bytes != 0 &&
        (m->partition_bytes < PS_PARTITION_BYTES_MIN ||
         m->partition_bytes > PS_PARTITION_BYTES_MAX)) {
        ps_str_addf(why, "partition_bytes is %u and must be %u to %u, or 0",
                    m->partition_bytes, PS_PARTITION_BYTES_MIN,
                    PS_PARTITION_BYTES_MAX);
        return PS_E_INVAL;
    }
    return 0;
}

static void append_worker(struct ps_str *why, int32_t rank, const char *host)
{
    if (rank >= 0) {
        ps_str_addf(why, "rank %d on %s", rank, host);
    } else {
        ps_str_addf(why, "a worker on %s", host);
    }
}

/* Writes which worker has which value of an option. */
static void describe_difference(struct ps_str *why,
                                const struct ps_sched_job *j,
                                const struct ps_member *agent,
                                const struct ps_msg_job_open *m,
                                const char *option, const char *values[2])
{
    const struct ps_sched_worker *first = &j->workers.list[0];
    const char *host = ps_str_is_name(m->host, PS_NAME_MAX) ? m->host
                                                            : agent->name;

    ps_str_addf(why, "job %s has %s %s", j->name, option, values[0]);
    if (j->workers.count > 0) {
        ps_str_add(why, " for ");
        append_worker(why, first->requested_rank, first->host);
    }
    ps_str_add(why, ", and ");
    append_worker(why, m->rank, host);
    ps_str_addf(why, " states %s; all workers of a job must state the same",
                values[1]);
}

/* Checks that the worker has the options that the job began with; names the
 * first that differs. */
static int check_same_options(const struct ps_sched_job *j,
                              const struct ps_member *agent,
                              const struct ps_msg_job_open *m,
                              uint32_t partition, struct ps_str *why)
{
    const struct {
        const char *what;
        uint64_t current;
        uint64_t says;
    } fields[] = {
        {"num_workers", j->opt.num_workers, m->num_workers},
        {"num_servers", j->opt.num_servers, m->num_servers},
        {"big_array_bound", j->opt.big_array_bound, m->big_array_bound},
        {"staleness", j->opt.staleness, m->staleness},
        {"partition_bytes", j->opt.partition_bytes, partition},
        {"weight", j->opt.weight, ps_fair_weight(m->weight)},
        {"replicas", ps_max_u64(j->opt.replicas, 1),
         ps_max_u64(m->replicas, 1)},
    };
    const struct {
        const char *what;
        const char *current;
        const char *says;
    } words[] = {
        {"mode", ps_mode_name(j->opt.mode), ps_mode_name(m->mode)},
        {"rule", ps_rule_name(j->opt.rule), ps_rule_name(m->rule)},
        {"on_loss", ps_loss_policy_name(j->opt.on_loss),
         ps_loss_policy_name(m->on_loss)},
        {"placement", ps_placement_name(j->opt.placement),
         ps_placement_name(m->placement)},
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (fields[i].current != fields[i].says) {
            char numbers[2][24];

            snprintf(numbers[0], sizeof(numbers[0]), "%" PRIu64,
                     fields[i].current);
            snprintf(numbers[1], sizeof(numbers[1]), "%" PRIu64,
                     fields[i].says);
            describe_difference(why, j, agent, m, fields[i].what,
                                (const char *[2]){numbers[0], numbers[1]});
            return PS_E_MISMATCH;
        }
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(words[i].current, words[i].says) != 0) {
            describe_difference(
                why, j, agent, m, words[i].what,
                (const char *[2]){words[i].current, words[i].says});
            return PS_E_MISMATCH;
        }
    }
    return 0;
}

static void init_worker(struct ps_sched_worker *w,
                        const struct ps_member *agent,
                        const struct ps_msg_job_open *m)
{
    const char *host = ps_str_is_name(m->host, PS_NAME_MAX) ? m->host
                                                            : agent->name;

    memset(w, 0, sizeof(*w));
    ps_str_copy(w->host, sizeof(w->host), host);
    ps_str_copy(w->agent_name, sizeof(w->agent_name), agent->name);
    w->agent_node = agent->node;
    w->agent_incarnation = agent->incarnation;
    w->agent_instance = agent->instance;
    w->worker_id = m->worker;
    w->requested_rank = m->rank;
    w->confirmed = true;
}

/* A rank is claimed twice, most often by two launchers on two hosts, or by what
 * is left of an earlier run. */
static void append_taken(struct ps_str *why, const struct ps_sched_job *j,
                         int32_t rank, const char *host)
{
    ps_str_addf(why,
                "rank %d of job %s is taken by a worker on %s: the job %s "
                "there; end it, or start this one under another name (pslaunch "
                "--name)",
                rank, j->name, host,
                ps_sched_job_has_started(j) ? "runs" : "is being started");
}

/* Adds a worker while the job forms. 0, or an error code with the reason. */
static int add_worker(struct ps_sched_step *st, struct ps_sched_job *j,
                      struct ps_member *agent, const struct ps_msg_job_open *m,
                      struct ps_str *why)
{
    struct ps_sched_worker w;

    for (uint32_t i = 0; i < j->workers.count; i++) {
        const struct ps_sched_worker *other = &j->workers.list[i];

        if (m->rank >= 0 && other->requested_rank == m->rank) {
            append_taken(why, j, m->rank, other->agent_name);
            return PS_E_EXIST;
        }
        if (j->opt.num_servers == 0 && other->agent_node != agent->node) {
            ps_str_addf(why,
                        "job %s has no servers, so all its workers must be on "
                        "%s; ask for at least one server",
                        j->name, other->agent_name);
            return PS_E_MISMATCH;
        }
    }
    if (j->workers.count == j->opt.num_workers) {
        ps_str_addf(why, "all %u workers of job %s are there",
                    j->opt.num_workers, j->name);
        return PS_E_FULL;
    }
    if (!ps_sched_job_add_agent(j, agent->node)) {
        ps_str_addf(why, "job %s has workers on %u nodes, which is the limit",
                    j->name, PS_SLOTS_MAX);
        return PS_E_FULL;
    }
    init_worker(&w, agent, m);
    ps_sched_job_add_worker(j, &w);
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64 " worker %" PRIu64
                       " of agent %s joined, %u of %u",
                       j->name, j->gen, m->worker, agent->name,
                       j->workers.count, j->opt.num_workers);
    return 0;
}

static void record_return(struct ps_sched_step *st,
                          const struct ps_sched_job *j,
                          const struct ps_sched_worker *w)
{
    struct ps_str s = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

    ps_str_addf(&s, "rank %d on %s", w->requested_rank, w->agent_name);
    ps_sched_event_job(st, PS_EVENT_KIND_RANK, j, "taken again", false, s.data);
}

/* Makes a rank LIVE again, with a new incarnation. */
static void mark_rank_live(struct ps_sched_step *st, struct ps_sched_job *j,
                           struct ps_sched_worker *w)
{
    struct ps_sched_slot *slot = &j->slots[w->slot];

    ps_sched_job_set_rank_state(j, w, PS_RANK_STATE_LIVE, st->now);
    w->incarnation++;
    w->confirmed = true;
    slot->incarnation = w->agent_incarnation;
    slot->instance = w->agent_instance;
    if (j->phase == PS_JOB_PHASE_RUNNING) {
        j->deadline = PS_TIME_NEVER;
    }
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64 " rank %d taken again on %s",
                       j->name, j->gen, w->requested_rank, w->agent_name);
    record_return(st, j, w);
    ps_sched_job_publish_later(st, j);
}

/* True: the agent, restarted since or never informed, lacks the rounds of the
 * rank. Only an agent and its processes know the round of each key; a new
 * process would begin at the first, and get results of rounds long over
 * (rule J16). */
static bool agent_lost_rounds(const struct ps_sched_job *j,
                              const struct ps_sched_worker *w,
                              const struct ps_member *agent)
{
    if (agent->incarnation == w->agent_incarnation && !w->rounds_unknown) {
        return false;
    }
    for (uint32_t i = 0; i < j->keys.count; i++) {
        /* Collectives have rounds in every mode. */
        if (j->keys.list[i] != NULL &&
            (j->opt.mode == PS_MODE_SYNC ||
             j->keys.list[i]->kind == PS_KEY_KIND_COLLECTIVE)) {
            return true;
        }
    }
    return false;
}

/* Gives a LOST rank to a new process, after the start. The process must run
 * on the node that had the rank, because the slot belongs to the node. */
static int reassign_lost_rank(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_member *agent,
                              const struct ps_msg_job_open *m,
                              struct ps_str *why)
{
    struct ps_sched_worker *w = NULL;

    if (m->rank >= 0) {
        w = &j->workers.list[m->rank];
        if (w->state == PS_RANK_STATE_LIVE) {
            append_taken(why, j, m->rank, w->agent_name);
            return PS_E_EXIST;
        }
        if (w->state == PS_RANK_STATE_LEFT) {
            ps_str_addf(why, "rank %d has left job %s in good order", m->rank,
                        j->name);
            return PS_E_EXIST;
        }
        if (w->agent_node != agent->node) {
            ps_str_addf(why,
                        "rank %d of job %s was on %s; start it there again",
                        m->rank, j->name, w->agent_name);
            return PS_E_REFUSED;
        }
    } else {
        for (uint32_t i = 0; i < j->workers.count && w == NULL; i++) {
            if (j->workers.list[i].state == PS_RANK_STATE_LOST &&
                j->workers.list[i].agent_node == agent->node) {
                w = &j->workers.list[i];
            }
        }
        if (w == NULL) {
            ps_str_addf(why,
                        "job %s runs with all its %u workers and none of "
                        "agent %s was lost",
                        j->name, j->opt.num_workers, agent->name);
            return PS_E_FULL;
        }
    }
    if (agent_lost_rounds(j, w, agent)) {
        ps_str_addf(why,
                    "rank %d cannot come back to job %s: agent %s was "
                    "restarted, and the rounds of the job went with the old "
                    "process; "
                    "start the job again",
                    w->requested_rank, j->name, agent->name);
        /* No later process could take it either. */
        ps_sched_job_fail(st, j, why->data);
        return PS_E_JOBFAILED;
    }
    ps_str_copy(w->host, sizeof(w->host),
                ps_str_is_name(m->host, PS_NAME_MAX) ? m->host : agent->name);
    w->worker_id = m->worker;
    w->agent_incarnation = agent->incarnation;
    w->agent_instance = agent->instance;
    mark_rank_live(st, j, w);
    return 0;
}

/* 0: a process that survived its agent may reattach at a new one; otherwise an
 * error code with the reason. */
static int check_reattach(const struct ps_sched_job *j,
                          const struct ps_member *agent,
                          const struct ps_msg_job_open *m, struct ps_str *why)
{
    const struct ps_sched_worker *w;

    if (j->uid != m->uid) {
        ps_str_addf(why, "job %s belongs to uid %u, not to uid %u", j->name,
                    j->uid, m->uid);
        return PS_E_PERM;
    }
    if (!ps_sched_job_is_open(j)) {
        ps_str_add(why, j->reason);
        return j->opt.on_loss == PS_LOSS_POLICY_FAIL ? PS_E_PEERLOST
                                                     : PS_E_JOBFAILED;
    }
    if (!ps_sched_job_has_started(j) || m->rank < 0 ||
        (uint32_t)m->rank >= j->opt.num_workers) {
        ps_str_addf(why, "job %s has not begun, or has no rank %d", j->name,
                    m->rank);
        return PS_E_INVAL;
    }
    if (j->opt.mode != PS_MODE_SYNC || j->opt.num_servers == 0) {
        ps_str_addf(
            why,
            "rank %d of job %s cannot continue: its agent was lost, and "
            "with it %s",
            m->rank, j->name,
            j->opt.num_servers == 0
                ? "the values of the job, which has no servers"
                : "the record of applied pushes; only a sync job has rounds to "
                  "go on from");
        return PS_E_UNSUPPORTED;
    }
    w = &j->workers.list[m->rank];
    if (w->agent_node != agent->node) {
        ps_str_addf(why, "rank %d of job %s is on %s, not on %s", m->rank,
                    j->name, w->agent_name, agent->name);
        return PS_E_REFUSED;
    }
    if (w->state != PS_RANK_STATE_LOST) {
        ps_str_addf(why, "rank %d of job %s %s", m->rank, j->name,
                    w->state == PS_RANK_STATE_LEFT
                        ? "has left it in good order"
                        : "is taken by another process");
        return PS_E_EXIST;
    }
    if (w->agent_incarnation == agent->incarnation) {
        ps_str_addf(why,
                    "agent %s was not restarted since rank %d of job %s "
                    "was lost: start that rank again",
                    agent->name, m->rank, j->name);
        return PS_E_STALE;
    }
    return 0;
}

/* A recorded worker that the agent sends again on a fresh link. 0, or an error code
 * with the reason. */
static int accept_known_worker(struct ps_sched_step *st, struct ps_sched_job *j,
                               struct ps_member *agent,
                               struct ps_sched_worker *w, struct ps_str *why)
{
    if (!ps_sched_job_is_open(j)) {
        w->confirmed = true;
        ps_str_add(why, j->reason);
        return PS_E_JOBFAILED;
    }
    if (w->state == PS_RANK_STATE_LEFT) {
        ps_str_add(why, "this worker has left the job");
        return PS_E_CLOSED;
    }
    w->confirmed = true;
    if (w->state == PS_RANK_STATE_LOST) {
        mark_rank_live(st, j, w);
    }
    send_job_opened(st, agent, w->worker_id, j->gen);
    return 0;
}

/* Reattaches a process that survived its agent. 0, or an error code with the
 * reason. */
static int open_reattached(struct ps_sched_step *st, struct ps_member *agent,
                           struct ps_sched_job *j, const struct joining *in,
                           struct ps_str *why)
{
    const struct ps_msg_job_open *m = &in->m;
    int rc = check_reattach(j, agent, m, why);
    struct ps_sched_worker *w;

    if (rc != 0) {
        return rc;
    }
    w = &j->workers.list[m->rank];
    w->worker_id = m->worker;
    w->token = in->token;
    w->agent_incarnation = agent->incarnation;
    w->agent_instance = agent->instance;
    mark_rank_live(st, j, w);
    send_job_opened(st, agent, m->worker, j->gen);
    return 0;
}

/* -------------------------------------------- jobs of earlier schedulers
 *
 * A job that no worker saw start forms again at a restarted scheduler: agents
 * offer its workers as new ones (job_open.reoffer). If the earlier scheduler
 * ended when only some agents had seen the start, these offer their workers
 * under the old generation and the others as new ones; the job cannot continue,
 * and all of them are refused (rules V13 and V14). */

static bool find_earlier_job(const struct ps_sched *s,
                             const struct ps_msg_job_open *m)
{
    for (uint32_t i = 0; i < PS_SCHED_EARLIER_JOBS; i++) {
        if (*s->earlier_jobs[i].name != '\0' &&
            s->earlier_jobs[i].uid == m->uid &&
            strcmp(s->earlier_jobs[i].name, m->name) == 0) {
            return true;
        }
    }
    return false;
}

static void record_earlier_job(struct ps_sched_step *st,
                               const struct ps_msg_job_open *m, const char *why)
{
    struct ps_sched *s = st->s;
    struct ps_sched_job *j = ps_sched_find_open_job(s, m->uid, m->name);

    if (m->gen > s->opt.generation_base ||
        !ps_str_is_name(m->name, PS_NAME_MAX)) {
        return;
    }
    if (!find_earlier_job(s, m)) {
        struct ps_sched_earlier_job *b =
            &s->earlier_jobs[s->earlier_jobs_next++ % PS_SCHED_EARLIER_JOBS];

        b->uid = m->uid;
        ps_str_copy(b->name, sizeof(b->name), m->name);
    }
    if (j != NULL && j->reopened && !ps_sched_job_has_started(j)) {
        ps_sched_job_fail(st, j, why);
    }
}

/* Handles a job_open with a generation, for a job that the agent knows. 0, or an
 * error code with the reason. */
static int open_known_job(struct ps_sched_step *st, struct ps_member *agent,
                          const struct joining *in, struct ps_str *why)
{
    const struct ps_msg_job_open *m = &in->m;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_worker *w;

    if (j == NULL) {
        int rc = ps_sched_job_end_reason(st->s, m->gen, m->name, why);

        record_earlier_job(st, m, why->data);
        return rc;
    }
    w = ps_sched_job_find_worker(j, agent->node, agent->incarnation, m->worker);
    if (w != NULL) {
        return accept_known_worker(st, j, agent, w, why);
    }
    if (m->reattach) {
        return open_reattached(st, agent, j, in, why);
    }
    ps_str_addf(why,
                "job %s does not know this worker any more; start it again",
                j->name);
    return PS_E_STALE;
}

/* 0: a new job may be made. Refused while this scheduler is draining, where
 * only draining servers would make the job complete, and at PS_JOBS_MAX. */
static int check_new_job(const struct ps_sched *s,
                         const struct ps_msg_job_open *m, struct ps_str *why)
{
    const char *name;
    uint32_t draining;
    uint32_t usable = ps_sched_count_servers(s, &draining, &name);

    if (s->draining) {
        ps_str_addf(why,
                    "the scheduler is shutting down and takes no new job; "
                    "start job %s again when it is back",
                    m->name);
        return PS_E_REFUSED;
    }
    if (usable < m->num_servers && usable + draining >= m->num_servers) {
        ps_str_addf(why,
                    "job %s asks for %u servers and there are %u: server %s is "
                    "shutting down; start it again when that is back, or ask "
                    "for fewer",
                    m->name, m->num_servers, usable, name);
        return PS_E_REFUSED;
    }
    if (!ps_sched_store_has_room(s, why)) {
        return PS_E_REFUSED;
    }
    if (ps_map_count(s->jobs) >= PS_JOBS_MAX) {
        ps_str_addf(why,
                    "the cluster runs %u jobs, which is the limit; end one or "
                    "wait",
                    PS_JOBS_MAX);
        return PS_E_FULL;
    }
    return 0;
}

/* Checks a name "job/group": it is reserved for the user of "job", since
 * another user could open it first, to join or to exclude its workers. The
 * parent of a group of a group is the latter. */
static int check_group(const struct ps_sched *s,
                       const struct ps_msg_job_open *m, struct ps_str *why)
{
    const char *slash = strrchr(m->name, '/');
    const struct ps_sched_job *parent;
    size_t len;

    if (slash == NULL) {
        return 0;
    }
    len = (size_t)(slash - m->name);
    parent = ps_sched_find_parent_job(s, m->name, m->uid);
    if (parent == NULL) {
        ps_str_addf(why,
                    "job %s is a group of job %.*s, and there is no such job, "
                    "or it has ended; choose a name without '/'",
                    m->name, (int)len, m->name);
        return PS_E_INVAL;
    }
    if (!ps_sched_job_is_open(parent)) {
        ps_str_add(why, parent->reason);
        return parent->opt.on_loss == PS_LOSS_POLICY_FAIL ? PS_E_PEERLOST
                                                          : PS_E_JOBFAILED;
    }
    if (parent->uid != m->uid) {
        ps_str_addf(why,
                    "job %s is a group of job %s, which belongs to uid %u, "
                    "not to uid %u; choose another name",
                    m->name, parent->name, parent->uid, m->uid);
        return PS_E_PERM;
    }
    return 0;
}

static void record_forming(struct ps_sched_step *st,
                           const struct ps_sched_job *j)
{
    struct ps_str s = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

    ps_str_addf(&s, "%u workers, %u servers", j->opt.num_workers,
                j->opt.num_servers);
    ps_sched_event_job(st, PS_EVENT_KIND_JOB, j,
                       ps_job_phase_name(PS_JOB_PHASE_FORMING), false, s.data);
}

/* Open job of that user and name, or a new one; NULL with the reason. */
static struct ps_sched_job *find_or_make_job(struct ps_sched_step *st,
                                             const struct ps_member *agent,
                                             const struct ps_msg_job_open *m,
                                             struct ps_str *why, int *ret_rc)
{
    struct ps_sched *s = st->s;
    struct ps_sched_job *j = ps_sched_find_open_job(s, m->uid, m->name);
    uint32_t partition = m->partition_bytes != 0 ? m->partition_bytes
                                                 : s->opt.partition_bytes;

    if (j != NULL) {
        *ret_rc = check_same_options(j, agent, m, partition, why);
        if (*ret_rc != 0 && !ps_sched_job_has_started(j)) {
            /* Its workers wait for this one, too. */
            ps_sched_job_fail(st, j, why->data);
        }
        return *ret_rc == 0 ? j : NULL;
    }
    *ret_rc = check_group(s, m, why);
    if (*ret_rc == 0) {
        *ret_rc = check_new_job(s, m, why);
    }
    if (*ret_rc != 0) {
        return NULL;
    }
    struct ps_msg_job_open want = *m;

    want.partition_bytes = partition;
    if (want.start_timeout_ns == 0) {
        want.start_timeout_ns = s->opt.start_timeout;
    }
    s->last_gen++;
    /* The seed is secret, and the generation different for each job. */
    j = ps_sched_job_new(s->last_gen,
                         ps_name_hash_slot(s->opt.seed, s->last_gen, 0), &want,
                         st->now);
    ps_sched_account_open_job(s, j);
    ps_map_put(s->jobs, j->gen, j);
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64 " FORMING uid %u workers %u "
                       "servers %u",
                       j->name, j->gen, j->uid, j->opt.num_workers,
                       j->opt.num_servers);
    record_forming(st, j);
    return j;
}

/* Returns the worker if a job of that user and name has it, also one that is not
 * open; NULL: none has. */
static struct ps_sched_worker *
find_known_worker(const struct ps_sched *s, const struct ps_member *agent,
                  const struct ps_msg_job_open *m,
                  struct ps_sched_job **ret_job)
{
    PS_MAP_EACH(struct ps_sched_job, j, s->jobs)
    {
        struct ps_sched_worker *w =
            j->uid == m->uid && strcmp(j->name, m->name) == 0
                ? ps_sched_job_find_worker(j, agent->node, agent->incarnation,
                                           m->worker)
                : NULL;

        if (w != NULL) {
            *ret_job = j;
            return w;
        }
    }
    return NULL;
}

/* Handles a job_open without a generation. 0, or an error code with the
 * reason. */
static int open_job(struct ps_sched_step *st, struct ps_member *agent,
                    const struct joining *in, struct ps_str *why)
{
    const struct ps_msg_job_open *m = &in->m;
    struct ps_sched_job *j;
    struct ps_sched_worker *w;
    int rc = ps_sched_check_job_open(m, why);

    if (rc != 0) {
        return rc;
    }
    w = find_known_worker(st->s, agent, m, &j);
    if (w != NULL) {
        return accept_known_worker(st, j, agent, w, why);
    }
    if (m->reoffer && find_earlier_job(st->s, m)) {
        ps_str_addf(why,
                    "the scheduler was restarted and does not know job '%s'; "
                    "start the job again",
                    m->name);
        return PS_E_JOBFAILED;
    }
    j = find_or_make_job(st, agent, m, why, &rc);
    if (j == NULL) {
        return rc;
    }
    rc = ps_sched_job_has_started(j) ? reassign_lost_rank(st, j, agent, m, why)
                                     : add_worker(st, j, agent, m, why);
    if (rc == PS_E_MISMATCH) {
        ps_sched_job_fail(st, j, why->data);
    }
    if (rc != 0) {
        return rc;
    }
    w = ps_sched_job_find_worker(j, agent->node, agent->incarnation, m->worker);
    w->token = in->token;
    j->reopened |= m->reoffer;
    send_job_opened(st, agent, m->worker, j->gen);
    ps_sched_job_try_start(st, j);
    return 0;
}

void ps_sched_on_job_open(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg *msg)
{
    const struct ps_msg_job_open *m = &msg->job_open;
    const struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct joining in = {.m = *m};
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int rc;

    if (ps_member_has_pending_exit(agent, m->worker)) {
        send_job_refused(st, agent, m, PS_E_CLOSED, "this worker is gone");
        return;
    }
    rc = ps_sched_check_join(st, m,
                             j != NULL ? j->name : ps_str_or_empty(m->name),
                             &in.m.uid, &in.token, &why);
    /* A job that is over is over for all its workers, with or without token. */
    if (rc != 0 && (j != NULL || m->gen == 0)) {
        send_job_refused(st, agent, m, rc, why.data);
        return;
    }
    ps_str_init(&why, why.data, why.cap);
    rc = m->gen != 0 ? open_known_job(st, agent, &in, &why)
                     : open_job(st, agent, &in, &why);
    if (rc != 0) {
        send_job_refused(st, agent, m, rc, why.data);
    }
}

/* ------------------------------------------------------------ worker_gone */

static void worker_left(struct ps_sched_step *st, struct ps_sched_job *j,
                        struct ps_sched_worker *w)
{
    if (!ps_sched_job_has_started(j)) {
        ps_sched_job_remove_worker(j, w);
    } else if (w->state != PS_RANK_STATE_LEFT) {
        uint32_t rank = (uint32_t)(w - j->workers.list);

        ps_sched_job_set_rank_state(j, w, PS_RANK_STATE_LEFT, st->now);
        ps_sched_store_job(st->s, j);
        if (ps_barrier_leave(&j->barrier, rank, st->now)) {
            ps_sched_barrier_notify(st, j);
        }
        ps_sched_stall_check_left(st, j);
    }
    ps_sched_job_end_if_unused(st, j);
}

static void remove_worker(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct ps_member *agent, struct ps_sched_worker *w,
                          const struct ps_msg_worker_gone *m)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_effects_log_for(
        st->fx, &j->account, PS_LOG_INFO,
        "job %s gen %" PRIu64 " worker %" PRIu64 " of agent %s %s", j->name,
        j->gen, m->worker, agent->name, m->clean ? "left" : "died");
    if (m->clean) {
        worker_left(st, j, w);
        return;
    }
    w->rounds_unknown = m->rounds_unknown;
    if (ps_str_or_empty(m->text)[0] != '\0') {
        ps_str_add_escaped(&why, m->text, strlen(m->text), 200);
    } else {
        ps_str_add(&why, "its process ended without leaving the job");
    }
    ps_sched_job_lose_workers(
        st, j,
        &(struct ps_sched_loss){.agent_node = agent->node, .worker = m->worker},
        why.data);
}

void ps_sched_on_worker_gone(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg *msg)
{
    const struct ps_msg_worker_gone *m = &msg->worker_gone;

    /* Its job_open may arrive later. */
    ps_member_add_pending_exit(agent, m->worker, msg->seq);
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        struct ps_sched_worker *w;

        if (m->gen != 0 && m->gen != j->gen) {
            continue;
        }
        w = ps_sched_job_find_worker(j, agent->node, agent->incarnation,
                                     m->worker);
        if (w != NULL) {
            remove_worker(st, j, agent, w, m);
            return;
        }
    }
    if (m->gen != 0 && ps_sched_find_job(st->s, m->gen) == NULL) {
        /* The agent does not know yet that the job is over. */
        ps_sched_job_send_ended(st, agent, m->gen, UINT32_MAX - 1);
    }
}
