/* SPDX-License-Identifier: Apache-2.0 */
/* Losses as jobs see them: of workers, agents and servers, and the return of a
 * member whose link was lost with all that was in flight on it. */
#include "core/sched/loss.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job_server.h"
#include "core/sched/job_state.h"
#include "core/sched/key.h"
#include "core/sched/lifecycle.h"
#include "core/sched/optimizer.h"
#include "core/sched/place/place.h"
#include "core/sched/profile.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <string.h>

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
    char text[PS_TEXT_MAX + 1];
    struct ps_str reason;
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
        ps_str_init(&reason, text, sizeof(text));
        ps_str_add(&reason, count == 1 ? "rank " : "ranks ");
        ps_str_add_ranges(&reason, ranks, count);
        ps_str_addf(&reason, " on %s %s lost: %s",
                    j->workers.list[ranks[0]].agent_name,
                    count == 1 ? "was" : "were", why);
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s gen %" PRIu64 " %s", j->name, j->gen, text);
        ps_sched_event_job(st, PS_EVENT_KIND_RANK, j, "lost", true, text);
        ps_sched_job_publish_later(st, j);
        if (j->opt.on_loss == PS_LOSS_POLICY_FAIL && ps_sched_job_is_open(j)) {
            ps_sched_job_fail(st, j, text);
        } else {
            ps_sched_job_end_if_unused(st, j);
        }
    }
    ps_free(ranks);
}

void ps_sched_jobs_lose_agent(struct ps_sched_step *st, struct ps_member *agent,
                              const char *why)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;
    char text[PS_TEXT_MAX + 1];
    struct ps_str full;

    ps_str_init(&full, text, sizeof(text));
    ps_str_addf(&full, "agent %s is gone: %s", agent->name, why);
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        ps_sched_waiters_drop_agent(j, agent->node);
        ps_sched_job_lose_workers(
            st, j,
            &(struct ps_sched_loss){.agent_node = agent->node,
                                    .all_workers = true},
            text);
    }
}

void ps_sched_workers_drop_missing(struct ps_sched_step *st,
                                   struct ps_member *agent)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
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
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
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
                                                 .text = text,
                                                 .gen = j->gen},
                              });
        }
    }
    ps_sched_job_lose_workers(st, j, &which, text);
    return true;
}

void ps_sched_workers_drop_tokens(struct ps_sched_step *st)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        const uint64_t gen = j->gen;

        while (j != NULL && drop_ended_token(st, j)) {
            j = ps_sched_find_job(st->s, gen);
        }
    }
    ps_sched_tokens_set_check_time(st);
}

/* ---------------------------------------------------------------- servers */

/* Removes a lost server from the job. Its partitions go to the others, or to a
 * replacement; the job fails when neither is possible. */
static void remove_server(struct ps_sched_step *st, struct ps_sched_job *j,
                          struct ps_sched_job_server *on,
                          const struct ps_member *server, const char *why)
{
    uint32_t node = on->node;
    bool had_data = on->bytes > 0;
    char text[PS_TEXT_MAX + 1];
    struct ps_str reason;
    struct ps_member *other;

    ps_str_init(&reason, text, sizeof(text));
    ps_str_addf(&reason, "server %s was lost: %s", on->name, why);
    ps_sched_job_remove_server(st->s, j, on, server);
    ps_sched_profile_server_lost(st, j, node);
    if (!ps_sched_job_is_open(j)) {
        return;
    }
    if (had_data && j->optimizer.name != NULL) {
        ps_str_add(&reason, "; it held weights and optimizer state of the job");
        ps_sched_job_fail(st, j, text);
        return;
    }
    other = j->keys.open_count == 0 || j->servers.count == 0
                ? ps_sched_job_next_server(st->s, j)
                : NULL;
    if (other != NULL) {
        ps_sched_job_add_server(j, other);
        ps_sched_job_publish(st, j);
    }
    if (j->servers.count == 0) {
        ps_str_add(&reason, "; there is no other");
        ps_sched_job_fail(st, j, text);
        return;
    }
    if (had_data) {
        ps_str_add(&reason, "; what it held");
        if (ps_sched_keys_reassign(st, j, node, &reason) != 0) {
            ps_sched_job_fail(st, j, text);
            return;
        }
    }
    ps_sched_waiters_reply(st, j);
    ps_sched_job_try_run(st, j); /* Last: this may end the job. */
}

void ps_sched_jobs_lose_server(struct ps_sched_step *st,
                               struct ps_member *server, const char *why)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    ps_sched_migrations_lose_server(st, server);
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        struct ps_sched_job_server *on = ps_sched_job_server_of(j,
                                                                server->node);

        if (on != NULL) {
            remove_server(st, j, on, server, why);
        }
    }
    cursor = (struct ps_map_cursor){0};
    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        ps_sched_migrations_start(st, j);
    }
}

/* ------------------------------------------------------------- fresh link */

/* Marks the workers of an agent unconfirmed until it reports them again. */
static void unconfirm_workers(struct ps_sched_step *st, struct ps_member *agent)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
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

static bool job_has_agent(const struct ps_sched_job *j, uint32_t node)
{
    for (uint32_t i = 0; i < j->agent_count; i++) {
        if (j->agents[i] == node) {
            return true;
        }
    }
    return false;
}

/* Sends the states of all jobs of the member. */
static void send_job_states(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
        if (m->role == PS_ROLE_SERVER) {
            if (ps_sched_job_server_of(j, m->node) != NULL) {
                ps_sched_job_send_state(st, j, m);
                ps_sched_profile_resend(st, j, m);
                j->quota.send_at = st->now;
            }
            continue;
        }
        if (j->version == 0 || !job_has_agent(j, m->node)) {
            continue; /* Its state is not published yet. */
        }
        ps_sched_job_send_state(st, j, m);
        ps_sched_keys_send_reassigned(st, j, m);
        if (ps_sched_job_has_started(j) && j->barrier.last_open > 0) {
            ps_sched_send_msg(
                st, m,
                &(struct ps_msg){
                    .code = PS_MSG_BARRIER_DONE,
                    .barrier_done = {.gen = j->gen,
                                     .number = j->barrier.last_open},
                });
        }
    }
}

void ps_sched_jobs_on_fresh_link(struct ps_sched_step *st, struct ps_member *m)
{
    if (m->role == PS_ROLE_AGENT) {
        unconfirm_workers(st, m);
    }
    send_job_states(st, m);
    ps_sched_migrations_resend(st, m);
}
