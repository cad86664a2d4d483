/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a job from its start to its end.
 *
 *     FORMING    until all workers and enough servers are there
 *     STARTING   ranks, slots and servers are assigned; servers are notified
 *     RUNNING    all servers have sent job_ready
 *     FAILED     all are sent the reason; workers leave
 *     ENDED      no worker is left: daemons are notified to forget the job */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "base/name_hash.h"
#include "core/sched/inner.h"
#include "core/sched/place/copies.h"
#include "core/sched/place/place.h"
#include "core/sched/query/query.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* ------------------------------------------------------------------ start */

static void try_run(struct ps_sched_step *st, struct ps_sched_job *j)
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

/* Fails a job with copies that has a server which cannot have any. */
static bool check_copies(struct ps_sched_step *st, struct ps_sched_job *j)
{
    for (uint32_t i = 0; ps_sched_job_has_copies(j) && i < j->servers.count;
         i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];
        const char *why = ps_sched_copies_refuse(
            ps_members_get(&st->s->members, on->node));
        struct ps_str reason = PS_STR_ROOM(PS_TEXT_MAX + 1);

        if (why != NULL) {
            ps_str_addf(&reason,
                        "replicas: 2 does not work with server %s: it "
                        "%s",
                        on->name, why);
            ps_sched_job_fail(st, j, reason.data);
            return false;
        }
    }
    return true;
}

void ps_sched_job_try_start(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const struct ps_sched *s = st->s;
    const char *name;
    uint32_t draining;

    if (j->phase != PS_JOB_PHASE_FORMING ||
        j->workers.count < j->opt.num_workers ||
        ps_sched_count_servers(s, &draining, &name) <
            ps_sched_job_servers_needed(j)) {
        return;
    }
    ps_sched_job_assign_ranks(j);
    while (j->servers.count < ps_sched_job_servers_needed(j)) {
        ps_sched_job_add_server(s, j, ps_sched_job_next_server(s, j));
    }
    ps_sched_move_job(st, j, PS_JOB_PHASE_STARTING);
    if (!check_copies(st, j)) {
        return;
    }
    ps_sched_copies_name(st, j);
    ps_sched_job_publish(st, j);
    try_run(st, j);
}

void ps_sched_jobs_try_start(struct ps_sched_step *st)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        ps_sched_job_try_start(st, j);
    }
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

    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
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

    ps_sched_moves_cancel(st, j, "the job has ended");
    ps_sched_move_job(st, j, PS_JOB_PHASE_ENDED);
    ps_sched_job_publish(st, j);
    ps_sched_waiters_reply(st, j);
    ps_sched_stall_drop_job(st, j);
    ps_sched_diverged_drop_job(st->s, j);
    ps_sched_trace_drop(s, 0, j->gen);
    ps_sched_history_add(&s->history, j, st->now);
    ps_sched_store_ended(st);
    ps_sched_job_release_servers(s, j);
    ps_map_remove(s->jobs, j->gen);
    ps_sched_store_remove_job(s, j);
    fail_forming_groups(st, j);
    ps_sched_norm_free(j);
    ps_sched_account_close_job(j);
    ps_sched_job_free(j);
    ps_sched_copies_name_all(st); /* Its memory is free for copies. */
}

void ps_sched_job_fail(struct ps_sched_step *st, struct ps_sched_job *j,
                       const char *reason)
{
    if (!ps_sched_job_is_open(j)) {
        return;
    }
    ps_str_copy(j->reason, sizeof(j->reason), reason);
    ps_sched_move_job(st, j, PS_JOB_PHASE_FAILED);
    ps_sched_moves_cancel(st, j, reason);
    ps_sched_admission_release(st, j);
    /* Agents release the workers on this state. */
    j->deadline = ps_time_add(st->now, st->s->opt.rejoin_grace);
    ps_sched_job_publish(st, j);
    ps_sched_waiters_reply(st, j);
    ps_sched_stall_drop_job(st, j);
    ps_sched_diverged_drop_job(st->s, j);
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

/* --------------------------------------------------------- losses of servers */

/* Removes a lost server from the job. Its partitions go to the others, or to a
 * replacement; the job fails when neither is possible, with `advice` behind the
 * loss of an only copy. */
static void remove_server(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct ps_sched_job_server *on, const char *why,
                          const char *advice)
{
    uint32_t node = on->node;
    bool had_data = on->bytes > 0;
    struct ps_str reason = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_member *other;

    ps_str_addf(&reason, "server %s was lost: %s", on->name, why);
    ps_sched_job_remove_server(st->s, j, on,
                               ps_members_get(&st->s->members, node));
    if (!ps_sched_job_is_open(j)) {
        return;
    }
    if (had_data &&
        (j->optimizer.declared.name != NULL || ps_sched_job_has_copies(j))) {
        const uint32_t keys = ps_sched_keys_count_on(j, node);

        ps_str_addf(&reason, "; it had the only copy of %u key%s of job %s%s",
                    keys, keys == 1 ? "" : "s", j->name, advice);
        ps_sched_job_fail(st, j, reason.data);
        return;
    }
    other = j->keys.open_count == 0 || j->servers.count == 0
                ? ps_sched_job_next_server(st->s, j)
                : NULL;
    if (other != NULL) {
        ps_sched_job_add_server(st->s, j, other);
        ps_sched_job_publish(st, j);
    }
    if (j->servers.count == 0) {
        ps_str_add(&reason, "; there is no other");
        ps_sched_job_fail(st, j, reason.data);
        return;
    }
    if (had_data) {
        ps_str_add(&reason, "; what it held");
        if (ps_sched_keys_reassign(st, j, node, &reason) != 0) {
            ps_sched_job_fail(st, j, reason.data);
            return;
        }
    }
    ps_sched_copies_name(st, j);
    ps_sched_waiters_reply(st, j);
    ps_sched_job_announce_restored(st, j);
    try_run(st, j); /* Last: this may end the job. */
}

static bool is_waiting(const struct ps_sched_job *j,
                       const struct ps_sched_job_server *on)
{
    return on->return_by != PS_TIME_NEVER && ps_sched_job_is_open(j);
}

/* True: the job waits for the next process of the server, which has its memory,
 * or without which the job has no server (rule O4). Agents have what a job of
 * rounds needs without an optimizer; where another server can be had, it does not
 * wait for a host that may be lost, too. */
static bool may_return(const struct ps_sched *s, const struct ps_sched_job *j,
                       const struct ps_sched_job_server *on,
                       const struct ps_member *server, bool is_silent)
{
    const bool is_only = j->servers.count == 1 &&
                         ps_sched_job_next_server(s, j) == NULL;

    return ps_sched_job_is_open(j) && (on->bytes > 0 || is_only) &&
           server->hello != NULL && server->hello->hello.keep &&
           (!is_silent || is_only || j->optimizer.declared.name != NULL ||
            j->opt.mode != PS_MODE_SYNC || ps_sched_job_has_copies(j));
}

/* The wait of a server that is lost again goes on. */
static void await_return(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_job_server *on, const char *why)
{
    const uint32_t keys = ps_sched_keys_count_on(j, on->node);
    const double wait = (double)st->s->opt.server_return / 1e9;
    struct ps_str text = PS_STR_ROOM(PS_TEXT_MAX + 1);

    on->ready_version = 0;
    if (on->return_by != PS_TIME_NEVER) {
        return;
    }
    on->lost_at = st->now;
    on->return_by = ps_time_add(st->now, st->s->opt.server_return);
    ps_sched_store_job(st->s, j);
    ps_str_copy(on->lost_why, sizeof(on->lost_why), why);
    if (keys > 0) {
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s gen %" PRIu64 " waits for server %s, which "
                           "has the only copy of %u key%s, for %g s: %s",
                           j->name, j->gen, on->name, keys,
                           keys == 1 ? "" : "s", wait, why);
    } else {
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s gen %" PRIu64 " waits for server %s, the "
                           "only one that it can have, for %g s: %s",
                           j->name, j->gen, on->name, wait, why);
    }
    ps_str_addf(&text, "for server %s: %s", on->name, why);
    ps_sched_event_job(st, PS_EVENT_KIND_JOB, j, "waits", true, text.data);
}

/* True: the job has copies, and the loss of the server is dealt with. */
static bool was_taken_over(struct ps_sched_step *st, struct ps_sched_job *j,
                           const struct ps_member *server, const char *why)
{
    struct ps_str reason = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (!ps_sched_job_has_copies(j) || !ps_sched_job_is_open(j)) {
        return false;
    }
    ps_str_addf(&reason, "server %s was lost: %s", server->name, why);

    int rc = ps_sched_copies_lose_server(st, j, server, &reason);

    if (rc != 0 && rc != PS_E_NOENT) {
        ps_sched_job_fail(st, j, reason.data);
    }
    return rc != PS_E_NOENT;
}

void ps_sched_jobs_lose_server(struct ps_sched_step *st,
                               struct ps_member *server, bool is_silent,
                               const char *why)
{
    ps_sched_moves_lose_server(st, server);
    ps_sched_trace_lose_server(st, server->node);
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        struct ps_sched_job_server *on = ps_sched_job_server_of(j,
                                                                server->node);

        if (on == NULL || was_taken_over(st, j, server, why)) {
            continue;
        }
        if (may_return(st->s, j, on, server, is_silent)) {
            await_return(st, j, on, why);
        } else {
            remove_server(st, j, on, why,
                          "; a server comes back with it that is started with "
                          "--keep, or by its unit");
        }
    }
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        ps_sched_moves_start(st, j);
    }
}

/* The server has not come back in time with the job's memory. */
static void give_up_return(struct ps_sched_step *st, struct ps_sched_job *j,
                           struct ps_sched_job_server *on, const char *advice)
{
    char why[PS_SCHED_LOSS_TEXT + 1];

    ps_str_copy(why, sizeof(why), on->lost_why);
    remove_server(st, j, on, why, advice);
}

/* A process has taken the place of one that was lost. False: it does not have
 * the memory of its keys, or the message is of before that. */
static bool check_return(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_job_server *on,
                         struct ps_member *server,
                         const struct ps_msg_job_ready *m)
{
    const uint64_t gen = j->gen;

    if (m->epoch != on->epoch && m->epoch != 0) {
        return false;
    }
    const bool is_kept = m->memory == PS_PART_MEMORY_KEPT;

    if (m->epoch == 0 || (!is_kept && on->bytes > 0)) {
        give_up_return(st, j, on, ", and came back without it");
        ps_sched_job_send_ended(st, server, gen, m->version);
        return false;
    }
    on->return_by = PS_TIME_NEVER;
    ps_sched_store_job(st->s, j);
    struct ps_str text = PS_STR_ROOM(PS_NAME_MAX + 80);

    ps_str_addf(&text, "server %s is back%s after %.1f s", on->name,
                is_kept ? " with its memory" : "",
                (double)(st->now - on->lost_at) / 1e9);
    ps_effects_log_for(st->fx, &j->account, PS_LOG_NOTICE,
                       "job %s gen %" PRIu64 " goes on: %s", j->name, j->gen,
                       text.data);
    ps_sched_event_job(st, PS_EVENT_KIND_JOB, j, "goes on", false, text.data);
    ps_sched_copies_name(st, j);
    return true;
}

/* First server whose time to return is over; NULL: none. */
static struct ps_sched_job_server *find_overdue(const struct ps_sched_job *j,
                                                ps_time now)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        struct ps_sched_job_server *on = &j->servers.list[i];

        if (is_waiting(j, on) && on->return_by <= now) {
            return on;
        }
    }
    return NULL;
}

static void give_up_overdue(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const uint64_t gen = j->gen;
    struct ps_sched_job_server *on;
    struct ps_str advice = PS_STR_ROOM(80);

    ps_str_addf(&advice, ", and did not come back within %g s",
                (double)st->s->opt.server_return / 1e9);
    while (j != NULL && (on = find_overdue(j, st->now)) != NULL) {
        give_up_return(st, j, on, advice.data);
        j = ps_sched_find_job(st->s, gen);
    }
}

static ps_time return_deadline(const struct ps_sched_job *j)
{
    ps_time due = PS_TIME_NEVER;

    for (uint32_t i = 0; ps_sched_job_is_open(j) && i < j->servers.count; i++) {
        due = ps_time_min(due, j->servers.list[i].return_by);
    }
    return due;
}

/* ---------------------------------------------------------------- servers */

/* True: the server has a version of the job that the file lacks, so the job is
 * lost: it would go on with older declarations, ranks and places (rule G5). */
static bool fail_if_outdated(struct ps_sched_step *st, struct ps_sched_job *j,
                             const struct ps_member *server, uint32_t version)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (!j->store.was_loaded || version <= j->store.loaded_version ||
        version >= j->store.first_version) {
        return false;
    }
    ps_str_addf(&why,
                "state.file is older than job %s, of which server %s knows "
                "more: what has changed in between is not known; start the job "
                "again",
                j->name, server->name);
    ps_sched_job_fail(st, j, why.data);
    return true;
}

void ps_sched_on_job_ready(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg *msg)
{
    const struct ps_msg_job_ready *m = &msg->job_ready;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_job_server *on =
        j != NULL ? ps_sched_job_server_of(j, server->node) : NULL;

    if (on == NULL) {
        ps_sched_job_send_ended(st, server, m->gen, m->version);
        return;
    }
    if (m->version == 0) {
        return; /* Of memory alone (rule E7); the state is on its way. */
    }
    if (fail_if_outdated(st, j, server, m->version)) {
        return;
    }
    if (is_waiting(j, on)) {
        if (!check_return(st, j, on, server, m)) {
            return;
        }
        on = ps_sched_job_server_of(j, server->node); /* The list may move. */
    }
    /* A version that is not made yet would satisfy later waiters. */
    if (m->version > on->ready_version && m->version <= j->version) {
        on->ready_version = m->version;
        on->newest_round = m->round;
        ps_sched_job_announce_restored(st, j);
        try_run(st, j);
        ps_sched_waiters_reply(st, j);
        j = ps_sched_find_job(st->s, m->gen); /* The job may have ended. */
        if (j != NULL) {
            ps_sched_copies_check(st, j);
        }
    }
}

void ps_sched_on_value_lost(struct ps_sched_step *st, struct ps_member *server,
                            const struct ps_msg *msg)
{
    const struct ps_msg_value_lost *m = &msg->value_lost;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    const struct ps_sched_key *k = j != NULL ? ps_sched_job_key(j, m->key)
                                             : NULL;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (k == NULL || m->index >= k->part_count ||
        k->parts[m->index].node != server->node) {
        return; /* The partition has moved: its next owner counts reports. */
    }
    if (j->opt.mode == PS_MODE_SYNC) {
        ps_str_addf(&why,
                    "a server was lost with version %llu of '%s', of which "
                    "there is no other copy",
                    (unsigned long long)m->version, k->name);
    } else {
        ps_str_addf(&why,
                    "a server was lost with the value of '%s', of which there "
                    "is no other copy",
                    k->name);
    }
    ps_sched_job_fail(st, j, why.data);
}

/* ------------------------------------------------------------------- time */

/* Appends "job x was not complete after 60 s: have 3/4 workers; missing: rank
 * 2". */
static void describe_incomplete(const struct ps_sched *s,
                                const struct ps_sched_job *j,
                                struct ps_str *why)
{
    ps_str_addf(why, "job %s was not complete after %g s: have %u/%u workers",
                j->name, (double)j->opt.start_timeout_ns / 1e9,
                j->workers.count, j->opt.num_workers);
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

    const uint32_t needed = ps_sched_job_servers_needed(j);

    if (active < needed && draining > 0) {
        ps_str_addf(why,
                    "; have %u/%u servers, and %s is shutting down: see psctl "
                    "nodes, start more or ask for fewer",
                    active, needed, name);
    } else if (active < needed) {
        ps_str_addf(why,
                    "; have %u/%u servers: see psctl status, start more or "
                    "ask for fewer",
                    active, needed);
    }
}

static void describe_not_ready(const struct ps_sched_job *j, struct ps_str *why)
{
    bool first = true;

    ps_str_addf(why, "job %s did not start within %g s: no answer from server",
                j->name, (double)j->opt.start_timeout_ns / 1e9);
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
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

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
    ps_sched_job_fail(st, j, why.data);
}

/* Fails the job: no process took a LOST rank within rejoin_timeout. */
static void fail_for_lost_ranks(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    unsigned *ranks = ps_alloc(j->workers.count * sizeof(*ranks));
    const char *host = "";
    uint32_t count = 0;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    for (uint32_t i = 0; i < j->workers.count; i++) {
        const struct ps_sched_worker *w = &j->workers.list[i];

        if (w->state == PS_RANK_STATE_LOST &&
            w->lost_at == j->workers.lost_since) {
            host = count == 0 ? w->agent_name : host;
            ranks[count++] = i;
        }
    }
    ps_str_add(&why, count == 1 ? "rank " : "ranks ");
    ps_str_add_ranges(&why, ranks, count);
    ps_str_addf(&why,
                " on %s %s lost %g s ago, and no process has taken %s again "
                "(registration.rejoin_timeout); start the job again",
                host, count == 1 ? "was" : "were",
                (double)(st->now - j->workers.lost_since) / 1e9,
                count == 1 ? "it" : "them");
    ps_free(ranks);
    ps_sched_job_fail(st, j, why.data);
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
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (j->publish_at <= st->now) {
            ps_sched_job_publish(st, j);
        }
        if (j->keys.send_at <= st->now) {
            ps_sched_keys_send_placements(st, j);
        }
        if (j->quota.send_at <= st->now) {
            ps_sched_admission_send_quota(st, j);
        }
        if (return_deadline(j) <= st->now) {
            give_up_overdue(st, j);
        } else if (j->deadline <= st->now) {
            handle_job_deadline(st, j);
        } else if (lost_ranks_deadline(st->s, j) <= st->now) {
            fail_for_lost_ranks(st, j);
        }
    }
}

/* Workers could not join or reconnect while the scheduler did not run. */
void ps_sched_jobs_on_wakeup(struct ps_sched_step *st, ps_time late)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        j->deadline = ps_time_add(j->deadline, late);
        for (uint32_t i = 0; i < j->workers.count; i++) {
            j->workers.list[i].lost_at = ps_time_add(j->workers.list[i].lost_at,
                                                     late);
        }
        j->workers.lost_since = ps_time_add(j->workers.lost_since, late);
        for (uint32_t i = 0; i < j->servers.count; i++) {
            j->servers.list[i].return_by = ps_time_add(
                j->servers.list[i].return_by, late);
        }
    }
}

ps_time ps_sched_jobs_deadline(const struct ps_sched *s)
{
    ps_time due = PS_TIME_NEVER;

    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        due = ps_time_min(due, j->deadline);
        due = ps_time_min(due, j->publish_at);
        due = ps_time_min(due, lost_ranks_deadline(s, j));
        due = ps_time_min(due, return_deadline(j));
        due = ps_time_min(due, j->quota.send_at);
        due = ps_time_min(due, j->keys.send_at);
    }
    return due;
}

/* ------------------------------------------------------------------ losses */

/* Losses as jobs see them: of workers, agents and servers, and the return of a
 * member whose link was lost with all that was in flight on it. */

/* ---------------------------------------------------------------- workers */

static bool loss_matches(const struct ps_sched_worker *w,
                         const struct ps_sched_loss *which)
{
    return w->state == PS_RANK_STATE_LIVE &&
           w->agent_node == which->agent_node &&
           (which->all_workers ||
            (which->token != 0 ? w->token == which->token
                               : w->worker_id == which->worker)) &&
           (!which->only_unconfirmed || !w->confirmed);
}

static void remove_lost_workers(struct ps_sched_step *st,
                                struct ps_sched_job *j,
                                const struct ps_sched_loss *which)
{
    bool any = false;

    for (uint32_t i = j->workers.count; i > 0; i--) {
        if (loss_matches(&j->workers.list[i - 1], which)) {
            ps_sched_job_remove_worker(j, &j->workers.list[i - 1]);
            any = true;
        }
    }
    if (any) {
        ps_sched_job_end_if_unused(st, j);
    }
}

void ps_sched_job_lose_workers(struct ps_sched_step *st, struct ps_sched_job *j,
                               const struct ps_sched_loss *which,
                               const char *why)
{
    unsigned *ranks;
    uint32_t count = 0;

    if (!ps_sched_job_has_started(j)) {
        remove_lost_workers(st, j, which);
        return;
    }
    ranks = ps_alloc(j->workers.count * sizeof(*ranks));
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (loss_matches(&j->workers.list[i], which)) {
            ps_sched_job_set_rank_state(j, &j->workers.list[i],
                                        PS_RANK_STATE_LOST, st->now);
            ranks[count++] = i;
        }
    }
    if (count > 0) {
        struct ps_str reason = PS_STR_ROOM(PS_TEXT_MAX + 1);

        ps_str_add(&reason, count == 1 ? "rank " : "ranks ");
        ps_str_add_ranges(&reason, ranks, count);
        ps_str_addf(&reason, " on %s %s lost: %s",
                    j->workers.list[ranks[0]].agent_name,
                    count == 1 ? "was" : "were", why);
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s gen %" PRIu64 " %s", j->name, j->gen,
                           reason.data);
        ps_sched_event_job(st, PS_EVENT_KIND_RANK, j, "lost", true,
                           reason.data);
        ps_sched_job_publish_later(st, j);
        if (j->opt.on_loss == PS_LOSS_POLICY_FAIL && ps_sched_job_is_open(j)) {
            ps_sched_job_fail(st, j, reason.data);
        } else {
            ps_sched_job_end_if_unused(st, j);
        }
    }
    ps_free(ranks);
}

void ps_sched_jobs_lose_agent(struct ps_sched_step *st, struct ps_member *agent,
                              const char *why)
{
    struct ps_str full = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_str_addf(&full, "agent %s is gone: %s", agent->name, why);
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        ps_sched_waiters_drop_agent(j, agent->node);
        ps_sched_job_lose_workers(
            st, j,
            &(struct ps_sched_loss){.agent_node = agent->node,
                                    .all_workers = true},
            full.data);
    }
}

void ps_sched_workers_drop_missing(struct ps_sched_step *st,
                                   struct ps_member *agent)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        ps_sched_job_lose_workers(
            st, j,
            &(struct ps_sched_loss){.agent_node = agent->node,
                                    .all_workers = true,
                                    .only_unconfirmed = true},
            "its agent does not know it any more");
    }
}

/* First live worker whose token does not count any more; NULL: none. */
static const struct ps_sched_worker *
find_without_right(const struct ps_sched_step *st, const struct ps_sched_job *j,
                   struct ps_str *why)
{
    uint64_t valid = 0; /* Most workers of a job have the same token. */

    for (uint32_t i = 0; i < j->workers.count; i++) {
        const struct ps_sched_worker *w = &j->workers.list[i];

        if (w->state != PS_RANK_STATE_LIVE || w->token == 0 ||
            w->token == valid) {
            continue;
        }
        if (ps_sched_token_check_number(st, w->token, why) != 0) {
            return w;
        }
        valid = w->token;
    }
    return NULL;
}

/* Drops workers with one token that has ended, of one agent. False: there are
 * none. The job may be gone afterwards. */
static bool drop_ended_token(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const struct ps_sched_worker *w;
    struct ps_sched_loss which = {0};
    struct ps_member *agent;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    w = find_without_right(st, j, &why);
    if (w == NULL) {
        return false;
    }
    which.agent_node = w->agent_node;
    which.token = w->token;
    agent = ps_members_get(&st->s->members, w->agent_node);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        w = &j->workers.list[i];
        if (loss_matches(w, &which)) {
            ps_sched_send_msg(st, agent,
                              &(struct ps_msg){
                                  .code = PS_MSG_JOB_OPENED,
                                  .job_opened = {.worker = w->worker_id,
                                                 .error = PS_E_PERM,
                                                 .text = why.data,
                                                 .gen = j->gen},
                              });
        }
    }
    ps_sched_job_lose_workers(st, j, &which, why.data);
    return true;
}

void ps_sched_workers_drop_tokens(struct ps_sched_step *st)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        const uint64_t gen = j->gen;

        while (j != NULL && drop_ended_token(st, j)) {
            j = ps_sched_find_job(st->s, gen);
        }
    }
    ps_sched_tokens_set_check_time(st->s, st->now);
}

/* ------------------------------------------------------------- fresh link */

/* Marks the workers of an agent unconfirmed until it reports them again. */
static void unconfirm_workers(struct ps_sched_step *st, struct ps_member *agent)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        for (uint32_t i = 0; i < j->workers.count; i++) {
            struct ps_sched_worker *w = &j->workers.list[i];

            if (w->agent_node == agent->node &&
                w->state == PS_RANK_STATE_LIVE) {
                w->confirmed = false;
                agent->confirm_at = ps_time_add(st->now, st->s->opt.dead_after);
            }
        }
    }
}

/* Sends a server of the job its state. A place that waits for it is its own from
 * this epoch on, which is a change (rule O5). */
static void send_server_state(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_member *m)
{
    struct ps_sched_job_server *on = ps_sched_job_server_of(j, m->node);

    if (on == NULL) {
        return;
    }
    if (is_waiting(j, on)) {
        ps_sched_job_take_place(st->s, on, m);
        ps_sched_job_publish(st, j);
    } else {
        ps_sched_job_send_state(st, j, m);
    }
    j->quota.send_at = st->now;
}

/* Sends the states of all jobs of the member. */
static void send_job_states(struct ps_sched_step *st, struct ps_member *m)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (m->role == PS_ROLE_SERVER) {
            send_server_state(st, j, m);
            continue;
        }
        if (j->version == 0 || !ps_sched_job_has_agent(j, m->node)) {
            continue; /* Its state is not published yet. */
        }
        if (!j->store.awaits_servers) {
            ps_sched_job_send_state(st, j, m);
        }
        ps_sched_keys_send_reassigned(st, j, m);
        if (ps_sched_job_has_started(j) && j->barrier.last_open > 0) {
            ps_sched_barrier_send_done(st, j, m);
        }
    }
}

void ps_sched_jobs_on_fresh_link(struct ps_sched_step *st, struct ps_member *m)
{
    if (m->role == PS_ROLE_AGENT) {
        unconfirm_workers(st, m);
    }
    send_job_states(st, m);
    ps_sched_moves_resend(st, m);
    ps_sched_trace_resend(st, m);
}
