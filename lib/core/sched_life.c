/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a job from its start to its end, and what losses do to it.
 *
 *     FORMING    until all workers and enough servers are there
 *     STARTING   ranks, slots and servers are given; the servers are told
 *     RUNNING    all servers have said job_ready
 *     FAILED     everybody is told the reason; its workers go
 *     ENDED      nobody is left: daemons are told to forget it
 */
#include "core/sched_inner.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* ------------------------------------------------------------------ start */

/* This process was told that the job has ended for it. */
static bool has_left(const struct ps_sched_job *j, const struct ps_member *m)
{
    for (uint32_t i = 0; i < j->left_count; i++) {
        if (j->left[i].node == m->node &&
            j->left[i].incarnation == m->incarnation) {
            return true;
        }
    }
    return false;
}

static bool usable(const struct ps_sched_job *j, const struct ps_member *m)
{
    return m->role == PS_ROLE_SERVER && m->state == PS_NODE_STATE_ACTIVE &&
           !m->stats.draining && ps_job_server_of(j, m->node) == NULL &&
           !has_left(j, m);
}

uint32_t ps_sched_servers(const struct ps_sched *s, uint32_t *ret_draining,
                          const char **ret_name)
{
    uint32_t active = ps_members_count(&s->members, PS_ROLE_SERVER,
                                       PS_NODE_STATE_ACTIVE);

    *ret_draining = 0;
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        if (m->role == PS_ROLE_SERVER && m->state == PS_NODE_STATE_ACTIVE &&
            m->stats.draining) {
            *ret_name = m->name;
            ++*ret_draining;
        }
    }
    return active - *ret_draining;
}

static void leave(struct ps_sched_job *j, const struct ps_member *m)
{
    j->left = ps_realloc(j->left, (j->left_count + 1u) * sizeof(*j->left));
    j->left[j->left_count++] = (struct ps_job_left){
        .node = m->node, .incarnation = m->incarnation};
}

/* Which server of the cluster would the job get next? Fewest bytes, then by
 * name. NULL: none is left. */
static struct ps_member *next_server(const struct ps_sched *s,
                                     const struct ps_sched_job *j)
{
    struct ps_member *best = NULL;

    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        if (usable(j, m) && (best == NULL || m->load < best->load)) {
            best = m;
        }
    }
    return best;
}

uint32_t ps_sched_job_spares(const struct ps_sched *s,
                             const struct ps_sched_job *j,
                             const struct ps_member *list[PS_SERVERS_MAX])
{
    uint32_t room = j->num_servers > j->server_count
                        ? j->num_servers - j->server_count
                        : 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];
        uint32_t at = count;

        if (!usable(j, m)) {
            continue;
        }
        while (at > 0 && list[at - 1]->load > m->load) {
            at--;
        }
        if (at < room) {
            count += count < room;
            memmove(&list[at + 1], &list[at],
                    (count - 1 - at) * sizeof(list[0]));
            list[at] = m;
        }
    }
    return count;
}

/* Keeps the order by name. */
void ps_sched_job_add_server(struct ps_sched_job *j, const struct ps_member *m)
{
    uint32_t i = j->server_count;

    j->servers = ps_realloc(j->servers,
                            (j->server_count + 1u) * sizeof(*j->servers));
    while (i > 0 && strcmp(j->servers[i - 1].name, m->name) > 0) {
        j->servers[i] = j->servers[i - 1];
        i--;
    }
    j->servers[i] = (struct ps_job_server){.node = m->node};
    ps_str_copy(j->servers[i].name, sizeof(j->servers[i].name), m->name);
    j->server_count++;
}

void ps_sched_job_try_start(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const struct ps_sched *s = st->s;
    const char *name;
    uint32_t draining;

    if (j->phase != PS_JOB_PHASE_FORMING || j->worker_count < j->num_workers ||
        ps_sched_servers(s, &draining, &name) < j->num_servers) {
        return;
    }
    ps_job_assign(j);
    while (j->server_count < j->num_servers) {
        ps_sched_job_add_server(j, next_server(s, j));
    }
    ps_job_move(j, PS_JOB_PHASE_STARTING, st->fx);
    ps_sched_job_changed(st, j);
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
    if (j->phase != PS_JOB_PHASE_STARTING || ps_job_ready_version(j) == 0) {
        return;
    }
    j->deadline = PS_TIME_NEVER;
    ps_job_move(j, PS_JOB_PHASE_RUNNING, st->fx);
    ps_sched_job_changed(st, j);
    ps_sched_job_check_end(st, j); /* Some may have gone meanwhile. */
}

/* -------------------------------------------------------------------- end */

static void remember(struct ps_sched *s, const struct ps_sched_job *j,
                     ps_time now)
{
    struct ps_sched_past *p = &s->past[s->past_count++ % PS_SCHED_HISTORY];

    memset(p, 0, sizeof(*p));
    ps_sched_job_row(j, now, &p->row);
    ps_str_copy(p->name, sizeof(p->name), j->name);
    ps_str_copy(p->optimizer, sizeof(p->optimizer),
                ps_sched_text(j->optimizer));
    ps_str_copy(p->reason, sizeof(p->reason), j->reason);
    ps_str_copy(p->compression, sizeof(p->compression), j->compression_text);
    p->row.compression = p->compression;
    p->row.name = p->name;
    p->row.optimizer = p->optimizer;
    p->row.reason = p->reason;
    if (p->reason[0] != '\0') {
        p->row.phase = PS_JOB_PHASE_FAILED; /* How it ended, to a reader. */
    }
    p->created = j->created;
    p->ended = now;
}

static void take_load(struct ps_sched *s, const struct ps_job_server *on)
{
    struct ps_member *m = ps_members_get(&s->members, on->node);

    if (m != NULL) {
        assert(m->load >= on->bytes);
        m->load -= on->bytes;
        m->reserved -= on->reserved;
    }
}

static void end(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched *s = st->s;

    ps_sched_moves_stop(st, j, "the job has ended");
    ps_job_move(j, PS_JOB_PHASE_ENDED, st->fx);
    ps_sched_job_changed(st, j);
    ps_sched_optimizer_check(st, j);
    ps_sched_stall_drop_job(st, j);
    remember(s, j, st->now);
    for (uint32_t i = 0; i < j->server_count; i++) {
        take_load(s, &j->servers[i]);
    }
    ps_map_take(s->jobs, j->gen);
    ps_sched_norms_free(j);
    ps_sched_budget_close(j);
    ps_job_free(j);
}

void ps_sched_job_fail(struct ps_sched_step *st, struct ps_sched_job *j,
                       const char *reason)
{
    if (!ps_job_open_for_work(j)) {
        return;
    }
    ps_str_copy(j->reason, sizeof(j->reason), reason);
    ps_job_move(j, PS_JOB_PHASE_FAILED, st->fx);
    ps_sched_moves_stop(st, j, reason);
    ps_sched_room_leave(st, j);
    /* Agents let its workers go when they hear of it. */
    j->deadline = ps_time_add(st->now, st->s->opt.rejoin_grace);
    ps_sched_job_changed(st, j);
    ps_sched_optimizer_check(st, j);
    ps_sched_stall_drop_job(st, j);
    ps_sched_job_check_end(st, j);
}

void ps_sched_job_check_end(struct ps_sched_step *st, struct ps_sched_job *j)
{
    bool lost = false;

    if (j->live > 0) {
        return;
    }
    if (!ps_job_started(j) || j->phase == PS_JOB_PHASE_FAILED) {
        end(st, j);
        return;
    }
    for (uint32_t i = 0; i < j->worker_count && !lost; i++) {
        lost = j->workers[i].state == PS_RANK_STATE_LOST;
    }
    if (!lost) {
        end(st, j);
    } else if (j->deadline == PS_TIME_NEVER) {
        j->deadline = ps_time_add(st->now, st->s->opt.rejoin_grace);
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "job %s gen %" PRIu64 " has no live worker", j->name,
                        j->gen);
    }
}

/* ----------------------------------------------------------------- losses */

static bool fits(const struct ps_job_worker *w,
                 const struct ps_sched_loss *which)
{
    return w->state == PS_RANK_STATE_LIVE && w->agent == which->agent &&
           (which->all || w->worker == which->worker) &&
           (!which->unconfirmed || !w->confirmed);
}

static void lose_before_start(struct ps_sched_step *st, struct ps_sched_job *j,
                              const struct ps_sched_loss *which)
{
    bool any = false;

    for (uint32_t i = j->worker_count; i > 0; i--) {
        if (fits(&j->workers[i - 1], which)) {
            ps_job_remove(j, &j->workers[i - 1]);
            any = true;
        }
    }
    if (any) {
        ps_sched_job_check_end(st, j);
    }
}

void ps_sched_job_lose(struct ps_sched_step *st, struct ps_sched_job *j,
                       const struct ps_sched_loss *which, const char *why)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str reason;
    unsigned *ranks;
    uint32_t count = 0;

    if (!ps_job_started(j)) {
        lose_before_start(st, j, which);
        return;
    }
    ranks = ps_alloc(j->worker_count * sizeof(*ranks));
    for (uint32_t i = 0; i < j->worker_count; i++) {
        if (fits(&j->workers[i], which)) {
            ps_job_set_rank(j, &j->workers[i], PS_RANK_STATE_LOST, st->now);
            ranks[count++] = i;
        }
    }
    if (count > 0) {
        ps_str_init(&reason, text, sizeof(text));
        ps_str_add(&reason, count == 1 ? "rank " : "ranks ");
        ps_str_add_ranges(&reason, ranks, count);
        ps_str_addf(&reason, " on %s %s lost: %s", j->workers[ranks[0]].host,
                    count == 1 ? "was" : "were", why);
        ps_effects_note(st->fx, PS_LOG_WARNING, "job %s gen %" PRIu64 " %s",
                        j->name, j->gen, text);
        ps_sched_job_touched(st, j);
        if (j->on_loss == PS_LOSS_POLICY_FAIL && ps_job_open_for_work(j)) {
            ps_sched_job_fail(st, j, text);
        } else {
            ps_sched_job_check_end(st, j);
        }
    }
    ps_free(ranks);
}

void ps_sched_agent_gone(struct ps_sched_step *st, struct ps_member *agent,
                         const char *why)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;
    char text[PS_TEXT_MAX + 1];
    struct ps_str full;

    ps_str_init(&full, text, sizeof(text));
    ps_str_addf(&full, "agent %s is gone: %s", agent->name, why);
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        ps_sched_optimizer_forget(j, agent->node);
        ps_sched_job_lose(
            st, j, &(struct ps_sched_loss){.agent = agent->node, .all = true},
            text);
    }
}

/* The server leaves the job. What it had goes to the others, or to one that
 * takes its place; the job fails when that cannot be. */
static void lose_server(struct ps_sched_step *st, struct ps_sched_job *j,
                        struct ps_job_server *on,
                        const struct ps_member *server, const char *why)
{
    uint32_t node = on->node;
    bool held = on->bytes > 0;
    char text[PS_TEXT_MAX + 1];
    struct ps_str reason;
    struct ps_member *other;

    leave(j, server);
    ps_str_init(&reason, text, sizeof(text));
    ps_str_addf(&reason, "server %s was lost: %s", on->name, why);
    take_load(st->s, on);
    memmove(on, on + 1,
            (size_t)(&j->servers[j->server_count] - (on + 1)) * sizeof(*on));
    j->server_count--;
    if (!ps_job_open_for_work(j)) {
        return;
    }
    if (held && j->optimizer != NULL) {
        ps_str_add(&reason, "; it held weights and optimizer state of the job");
        ps_sched_job_fail(st, j, text);
        return;
    }
    other = j->keys_open == 0 || j->server_count == 0 ? next_server(st->s, j)
                                                      : NULL;
    if (other != NULL) {
        ps_sched_job_add_server(j, other);
        ps_sched_job_changed(st, j);
    }
    if (j->server_count == 0) {
        ps_str_add(&reason, "; there is no other");
        ps_sched_job_fail(st, j, text);
        return;
    }
    if (held) {
        ps_str_add(&reason, "; what it held");
        if (ps_sched_keys_move(st, j, node, &reason) != 0) {
            ps_sched_job_fail(st, j, text);
            return;
        }
    }
    ps_sched_optimizer_check(st, j);
    ps_sched_job_try_run(st, j); /* Last: the job may end. */
}

void ps_sched_server_gone(struct ps_sched_step *st, struct ps_member *server,
                          const char *why)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    ps_sched_moves_server_gone(st, server);
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        struct ps_job_server *on = ps_job_server_of(j, server->node);

        if (on != NULL) {
            lose_server(st, j, on, server, why);
        }
    }
    cursor = (struct ps_map_cursor){0};
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        ps_sched_moves_start(st, j);
    }
}

/* ------------------------------------------------------------------- time */

/* "not complete after 60 s: have 3/4 workers; missing: rank 2" */
static void say_incomplete(const struct ps_sched *s,
                           const struct ps_sched_job *j, struct ps_str *why)
{
    ps_str_addf(why, "job %s was not complete after %g s: have %u/%u workers",
                j->name, (double)j->start_timeout / 1e9, j->worker_count,
                j->num_workers);
    if (j->worker_count < j->num_workers) {
        unsigned *ranks = ps_alloc(j->num_workers * sizeof(*ranks));
        uint32_t count = ps_job_missing(j, ranks);

        ps_str_add(why, count == 1 ? "; missing: rank " : "; missing: ranks ");
        ps_str_add_ranges(why, ranks, count);
        ps_free(ranks);
    }
    const char *name;
    uint32_t draining;
    uint32_t active = ps_sched_servers(s, &draining, &name);

    if (active < j->num_servers && draining > 0) {
        ps_str_addf(why,
                    "; have %u/%u servers, and %s is shutting down: see psctl "
                    "nodes, start more or ask for fewer",
                    active, j->num_servers, name);
    } else if (active < j->num_servers) {
        ps_str_addf(why,
                    "; have %u/%u servers: see psctl status, start more or "
                    "ask for fewer",
                    active, j->num_servers);
    }
}

static void say_not_ready(const struct ps_sched_job *j, struct ps_str *why)
{
    bool first = true;

    ps_str_addf(why, "job %s did not start within %g s: no word from server",
                j->name, (double)j->start_timeout / 1e9);
    for (uint32_t i = 0; i < j->server_count; i++) {
        if (j->servers[i].ready == 0) {
            ps_str_addf(why, "%s %s", first ? "" : ",", j->servers[i].name);
            first = false;
        }
    }
}

static void job_due(struct ps_sched_step *st, struct ps_sched_job *j)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    switch ((enum ps_job_phase)j->phase) {
    case PS_JOB_PHASE_FORMING:
        say_incomplete(st->s, j, &why);
        break;
    case PS_JOB_PHASE_STARTING:
        say_not_ready(j, &why);
        break;
    case PS_JOB_PHASE_RUNNING:
        ps_str_addf(&why, "job %s had no live worker for %g s", j->name,
                    (double)st->s->opt.rejoin_grace / 1e9);
        break;
    case PS_JOB_PHASE_FAILED:
        end(st, j);
        return;
    case PS_JOB_PHASE_ENDED:
        return;
    }
    ps_sched_job_fail(st, j, text);
}

/* Those who wait for the ranks that are lost have waited long enough. */
static void give_up_lost(struct ps_sched_step *st, struct ps_sched_job *j)
{
    unsigned *ranks = ps_alloc(j->worker_count * sizeof(*ranks));
    const char *host = "";
    uint32_t count = 0;
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    for (uint32_t i = 0; i < j->worker_count; i++) {
        const struct ps_job_worker *w = &j->workers[i];

        if (w->state == PS_RANK_STATE_LOST && w->lost_at == j->lost_since) {
            host = count == 0 ? w->host : host;
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
                (double)(st->now - j->lost_since) / 1e9,
                count == 1 ? "it" : "them");
    ps_free(ranks);
    ps_sched_job_fail(st, j, text);
}

/* When the first of the lost ranks is given up; PS_TIME_NEVER: none is. */
static ps_time given_up_at(const struct ps_sched *s,
                           const struct ps_sched_job *j)
{
    return j->phase == PS_JOB_PHASE_RUNNING
               ? ps_time_add(j->lost_since, s->opt.rejoin_timeout)
               : PS_TIME_NEVER;
}

void ps_sched_jobs_tick(struct ps_sched_step *st)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        if (j->state_due <= st->now) {
            ps_sched_job_changed(st, j);
        }
        if (j->tell_due <= st->now) {
            ps_sched_keys_tell(st, j);
        }
        if (j->room_due <= st->now) {
            ps_sched_room_tell(st, j);
        }
        if (j->deadline <= st->now) {
            job_due(st, j);
        } else if (given_up_at(st->s, j) <= st->now) {
            give_up_lost(st, j);
        }
    }
}

/* Workers could not join or come back while the scheduler did not run. */
void ps_sched_jobs_slept(struct ps_sched_step *st, ps_time late)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        j->deadline = ps_time_add(j->deadline, late);
        for (uint32_t i = 0; i < j->worker_count; i++) {
            j->workers[i].lost_at = ps_time_add(j->workers[i].lost_at, late);
        }
        j->lost_since = ps_time_add(j->lost_since, late);
    }
}

ps_time ps_sched_jobs_deadline(const struct ps_sched *s)
{
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_job *j;
    ps_time due = PS_TIME_NEVER;

    while ((j = ps_map_next(s->jobs, &cursor)) != NULL) {
        due = ps_time_min(due, j->deadline);
        due = ps_time_min(due, j->state_due);
        due = ps_time_min(due, given_up_at(s, j));
        due = ps_time_min(due, j->room_due);
        due = ps_time_min(due, j->tell_due);
    }
    return due;
}
