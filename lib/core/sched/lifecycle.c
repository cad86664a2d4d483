/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a job from its start to its end.
 *
 *     FORMING    until all workers and enough servers are there
 *     STARTING   ranks, slots and servers are assigned; servers are notified
 *     RUNNING    all servers have sent job_ready
 *     FAILED     all are sent the reason; workers leave
 *     ENDED      no worker is left: daemons are notified to forget the job */
#include "core/sched/lifecycle.h"

#include "base/alloc.h"
#include "base/name_hash.h"
#include "core/sched/account.h"
#include "core/sched/admission.h"
#include "core/sched/diverged.h"
#include "core/sched/events.h"
#include "core/sched/inner.h"
#include "core/sched/job_server.h"
#include "core/sched/job_state.h"
#include "core/sched/key.h"
#include "core/sched/migration.h"
#include "core/sched/norm.h"
#include "core/sched/optimizer.h"
#include "core/sched/stall.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* ------------------------------------------------------------------ start */

void ps_sched_job_try_start(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const struct ps_sched *s = st->s;
    const char *name;
    uint32_t draining;

    if (j->phase != PS_JOB_PHASE_FORMING ||
        j->workers.count < j->opt.num_workers ||
        ps_sched_count_servers(s, &draining, &name) < j->opt.num_servers) {
        return;
    }
    ps_sched_job_assign_ranks(j);
    while (j->servers.count < j->opt.num_servers) {
        ps_sched_job_add_server(j, ps_sched_job_next_server(s, j));
    }
    ps_sched_move_job(st, j, PS_JOB_PHASE_STARTING);
    ps_sched_job_publish(st, j);
    ps_sched_job_try_run(st, j);
}

void ps_sched_jobs_try_start(struct ps_sched_step *st)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        ps_sched_job_try_start(st, j);
    }
}

void ps_sched_job_try_run(struct ps_sched_step *st, struct ps_sched_job *j)
{
    if (j->phase != PS_JOB_PHASE_STARTING ||
        ps_sched_job_ready_version(j) == 0) {
        return;
    }
    j->deadline = PS_TIME_NEVER;
    ps_sched_move_job(st, j, PS_JOB_PHASE_RUNNING);
    ps_sched_job_publish(st, j);
    ps_sched_job_end_if_unused(st, j); /* Workers may have left meanwhile. */
}

/* -------------------------------------------------------------------- end */

/* Fails the groups of a failed or ended job that wait for members: no rank can
 * open one of them any more. */
static void fail_forming_groups(struct ps_sched_step *st,
                                const struct ps_sched_job *parent)
{
    const char *why = parent->reason[0] != '\0'
                          ? parent->reason
                          : "the job of which it is a group has ended; open "
                            "groups before ranks leave";
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        const struct ps_sched_job *other;

        if (j->phase != PS_JOB_PHASE_FORMING || j->uid != parent->uid ||
            !ps_group_name_is_of(j->name, parent->name)) {
            continue;
        }
        /* A later job of the same name has groups of its own. */
        other = ps_sched_find_parent_job(st->s, j->name, j->uid);
        if (other == NULL || !ps_sched_job_is_open(other) ||
            other->uid != j->uid) {
            ps_sched_job_fail(st, j, why);
        }
    }
}

static void end_job(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched *s = st->s;

    ps_sched_migrations_cancel(st, j, "the job has ended");
    ps_sched_move_job(st, j, PS_JOB_PHASE_ENDED);
    ps_sched_job_publish(st, j);
    ps_sched_waiters_reply(st, j);
    ps_sched_stall_drop_job(st, j);
    ps_sched_diverged_drop_job(st->s, j->gen);
    ps_sched_history_add(&s->history, j, st->now);
    ps_sched_job_release_servers(s, j);
    ps_map_remove(s->jobs, j->gen);
    fail_forming_groups(st, j);
    ps_sched_norm_free(j);
    ps_sched_account_close_job(j);
    ps_sched_job_free(j);
}

void ps_sched_job_fail(struct ps_sched_step *st, struct ps_sched_job *j,
                       const char *reason)
{
    if (!ps_sched_job_is_open(j)) {
        return;
    }
    ps_str_copy(j->reason, sizeof(j->reason), reason);
    ps_sched_move_job(st, j, PS_JOB_PHASE_FAILED);
    ps_sched_migrations_cancel(st, j, reason);
    ps_sched_admission_release(st, j);
    /* Agents release the workers on this state. */
    j->deadline = ps_time_add(st->now, st->s->opt.rejoin_grace);
    ps_sched_job_publish(st, j);
    ps_sched_waiters_reply(st, j);
    ps_sched_stall_drop_job(st, j);
    ps_sched_diverged_drop_job(st->s, j->gen);
    fail_forming_groups(st, j);
    ps_sched_job_end_if_unused(st, j);
}

void ps_sched_job_end_if_unused(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    if (j->workers.live_count > 0) {
        return;
    }
    if (!ps_sched_job_has_started(j) || j->phase == PS_JOB_PHASE_FAILED) {
        end_job(st, j);
        return;
    }
    if (!ps_sched_job_has_lost_rank(j)) {
        end_job(st, j);
    } else if (j->deadline == PS_TIME_NEVER) {
        j->deadline = ps_time_add(st->now, st->s->opt.rejoin_grace);
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s gen %" PRIu64 " has no live worker", j->name,
                           j->gen);
    }
}

/* ---------------------------------------------------------------- servers */

void ps_sched_on_job_ready(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg_job_ready *m)
{
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_job_server *on =
        j != NULL ? ps_sched_job_server_of(j, server->node) : NULL;

    if (on == NULL) {
        ps_sched_job_send_ended(st, server, m->gen, m->version);
        return;
    }
    /* A version that is not made yet would satisfy later waiters. */
    if (m->version > on->ready_version && m->version <= j->version) {
        on->ready_version = m->version;
        on->newest_round = m->round;
        ps_sched_job_try_run(st, j);
        ps_sched_waiters_reply(st, j);
        j = ps_sched_find_job(st->s, m->gen); /* The job may have ended. */
        if (j != NULL) {
            ps_sched_migrations_start(st, j);
        }
    }
}

void ps_sched_on_value_lost(struct ps_sched_step *st, struct ps_member *server,
                            const struct ps_msg_value_lost *m)
{
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (j == NULL || m->key >= j->keys.count || j->keys.list[m->key] == NULL ||
        m->index >= j->keys.list[m->key]->part_count ||
        j->keys.list[m->key]->parts[m->index].node != server->node) {
        return; /* The partition has moved: its next owner counts reports. */
    }
    ps_str_init(&why, text, sizeof(text));
    if (j->opt.mode == PS_MODE_SYNC) {
        ps_str_addf(&why,
                    "a server was lost with version %llu of '%s', of which "
                    "there is no other copy",
                    (unsigned long long)m->version, j->keys.list[m->key]->name);
    } else {
        ps_str_addf(&why,
                    "a server was lost with the value of '%s', of which there "
                    "is no other copy",
                    j->keys.list[m->key]->name);
    }
    ps_sched_job_fail(st, j, text);
}

/* ------------------------------------------------------------------- time */

/* Appends "job x was not complete after 60 s: have 3/4 workers; missing: rank
 * 2". */
static void describe_incomplete(const struct ps_sched *s,
                                const struct ps_sched_job *j,
                                struct ps_str *why)
{
    ps_str_addf(why, "job %s was not complete after %g s: have %u/%u workers",
                j->name, (double)j->opt.start_timeout / 1e9, j->workers.count,
                j->opt.num_workers);
    if (j->workers.count < j->opt.num_workers) {
        unsigned *ranks = ps_alloc(j->opt.num_workers * sizeof(*ranks));
        uint32_t count = ps_sched_job_missing_ranks(j, ranks);

        ps_str_add(why, count == 1 ? "; missing: rank " : "; missing: ranks ");
        ps_str_add_ranges(why, ranks, count);
        ps_free(ranks);
    }
    const char *name;
    uint32_t draining;
    uint32_t active = ps_sched_count_servers(s, &draining, &name);

    if (active < j->opt.num_servers && draining > 0) {
        ps_str_addf(why,
                    "; have %u/%u servers, and %s is shutting down: see psctl "
                    "nodes, start more or ask for fewer",
                    active, j->opt.num_servers, name);
    } else if (active < j->opt.num_servers) {
        ps_str_addf(why,
                    "; have %u/%u servers: see psctl status, start more or "
                    "ask for fewer",
                    active, j->opt.num_servers);
    }
}

static void describe_not_ready(const struct ps_sched_job *j, struct ps_str *why)
{
    bool first = true;

    ps_str_addf(why, "job %s did not start within %g s: no answer from server",
                j->name, (double)j->opt.start_timeout / 1e9);
    for (uint32_t i = 0; i < j->servers.count; i++) {
        if (j->servers.list[i].ready_version == 0) {
            ps_str_addf(why, "%s %s", first ? "" : ",",
                        j->servers.list[i].name);
            first = false;
        }
    }
}

static void handle_job_deadline(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    switch ((enum ps_job_phase)j->phase) {
    case PS_JOB_PHASE_FORMING:
        describe_incomplete(st->s, j, &why);
        break;
    case PS_JOB_PHASE_STARTING:
        describe_not_ready(j, &why);
        break;
    case PS_JOB_PHASE_RUNNING:
        ps_str_addf(&why, "job %s had no live worker for %g s", j->name,
                    (double)st->s->opt.rejoin_grace / 1e9);
        break;
    case PS_JOB_PHASE_FAILED:
        end_job(st, j);
        return;
    case PS_JOB_PHASE_ENDED:
        return;
    }
    ps_sched_job_fail(st, j, text);
}

/* Fails the job: no process took a LOST rank within rejoin_timeout. */
static void fail_for_lost_ranks(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    unsigned *ranks = ps_alloc(j->workers.count * sizeof(*ranks));
    const char *host = "";
    uint32_t count = 0;
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    for (uint32_t i = 0; i < j->workers.count; i++) {
        const struct ps_sched_worker *w = &j->workers.list[i];

        if (w->state == PS_RANK_STATE_LOST &&
            w->lost_at == j->workers.lost_since) {
            host = count == 0 ? w->agent_name : host;
            ranks[count++] = i;
        }
    }
    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, count == 1 ? "rank " : "ranks ");
    ps_str_add_ranges(&why, ranks, count);
    ps_str_addf(&why,
                " on %s %s lost %g s ago, and no process has taken %s again "
                "(registration.rejoin_timeout); start the job again",
                host, count == 1 ? "was" : "were",
                (double)(st->now - j->workers.lost_since) / 1e9,
                count == 1 ? "it" : "them");
    ps_free(ranks);
    ps_sched_job_fail(st, j, text);
}

/* When the job fails for the first of its LOST ranks; PS_TIME_NEVER: never. */
static ps_time lost_ranks_deadline(const struct ps_sched *s,
                                   const struct ps_sched_job *j)
{
    return j->phase == PS_JOB_PHASE_RUNNING
               ? ps_time_add(j->workers.lost_since, s->opt.rejoin_timeout)
               : PS_TIME_NEVER;
}

void ps_sched_jobs_tick(struct ps_sched_step *st)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        if (j->publish_at <= st->now) {
            ps_sched_job_publish(st, j);
        }
        if (j->keys.send_at <= st->now) {
            ps_sched_keys_send_placements(st, j);
        }
        if (j->quota.send_at <= st->now) {
            ps_sched_admission_send_quota(st, j);
        }
        if (j->deadline <= st->now) {
            handle_job_deadline(st, j);
        } else if (lost_ranks_deadline(st->s, j) <= st->now) {
            fail_for_lost_ranks(st, j);
        }
    }
}

/* Workers could not join or reconnect while the scheduler did not run. */
void ps_sched_jobs_on_wakeup(struct ps_sched_step *st, ps_time late)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        j->deadline = ps_time_add(j->deadline, late);
        for (uint32_t i = 0; i < j->workers.count; i++) {
            j->workers.list[i].lost_at = ps_time_add(j->workers.list[i].lost_at,
                                                     late);
        }
        j->workers.lost_since = ps_time_add(j->workers.lost_since, late);
    }
}

ps_time ps_sched_jobs_deadline(const struct ps_sched *s)
{
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_job *j;
    ps_time due = PS_TIME_NEVER;

    while ((j = ps_map_next(s->jobs, &cursor)) != NULL) {
        due = ps_time_min(due, j->deadline);
        due = ps_time_min(due, j->publish_at);
        due = ps_time_min(due, lost_ranks_deadline(s, j));
        due = ps_time_min(due, j->quota.send_at);
        due = ps_time_min(due, j->keys.send_at);
    }
    return due;
}
