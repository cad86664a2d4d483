/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on this node. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "core/agent/keys.h"
#include "core/agent/residuals.h"
#include "core/base/ledger.h"

/* Ended jobs remembered. An earlier job_state of one may still arrive, because
 * links keep no order. */
#define PS_AGENT_ENDED_JOBS 64u

struct ps_agent_rank {
    uint32_t rank;
    struct ps_agent_session *session; /* NULL: none now. */
    uint64_t entered_barriers;        /* Number of the last barrier entered. */
};

/* Contents of job_state, other than ranks. */
struct ps_agent_job_config {
    uint32_t num_workers;
    uint32_t num_servers;
    bool has_optimizer;
    uint8_t mode;
    uint8_t rule;
    uint32_t staleness; /* ssp */
};

/* Keys that are not open. */
struct ps_agent_openings {
    struct ps_list keys; /* Those requested first, then the others. */
    uint32_t in_flight;  /* Keys requested from the scheduler. */
    /* First of `keys` that is not requested; NULL: none. */
    struct ps_list_node *next_unsent;
};

struct ps_agent_barriers {
    struct ps_list ops; /* Operations that wait at a barrier. */
    uint64_t completed; /* Number of the last one that is open. */
};

struct ps_agent_job {
    uint64_t gen;
    uint32_t state_version; /* Of the last job_state; 0: none yet. */
    char name[PS_NAME_MAX + 1];
    uint8_t phase; /* enum ps_job_phase, as far as this agent knows. */
    char end_reason[PS_TEXT_MAX + 1];
    struct ps_agent_job_config config;
    uint32_t slot;
    bool ranks_assigned; /* slot and local_ranks are valid. */
    struct ps_agent_rank *local_ranks;
    uint32_t local_rank_count;
    uint32_t *slot_by_rank; /* Valid once ranks are assigned. */
    uint32_t rank_count;
    uint32_t session_count;
    struct ps_pool *result_pool;
    struct ps_map *keys; /* By number. */
    /* First key of each name hash, by ps_name_hash_slot. */
    struct ps_map *keys_by_name;
    /* struct ps_agent_pending_placement by number of the key. */
    struct ps_map *pending_placements;
    uint32_t key_count;
    struct ps_agent_openings openings;
    struct ps_map *send_queues; /* By node. */
    struct ps_agent_barriers barriers;
    struct ps_list sched_ops; /* Operations with an open sched_request. */
    struct ps_agent_residual_log residual_log;
    uint64_t name_hash_seed;    /* For ps_name_hash_slot. */
    struct ps_agent_user *user; /* NULL: no session was assigned. */
    struct ps_account account;
};

/* Result memory of a job that is over, kept while frames reference it. */
struct ps_agent_draining_pool {
    struct ps_pool *pool;
    struct ps_agent_user *user; /* Charged for it; NULL: no user. */
    uint64_t charged_bytes;
};

/* job.c */
void ps_agent_job_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_job_opened *m);
void ps_agent_job_on_state(struct ps_agent_step *st,
                           const struct ps_msg_job_state *m);
void ps_agent_job_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_job *j);
/* Frees some memory of draining pools that no frame references any more. */
void ps_agent_job_reap_pools(struct ps_agent *a);
/* Frees the job if it is over and has no session. */
void ps_agent_job_free_if_unused(struct ps_agent_step *st,
                                 struct ps_agent_job *j);
/* New scheduler: workers of jobs that do not run yet open them again, and such
 * jobs without sessions are freed. */
void ps_agent_job_reoffer(struct ps_agent_step *st);
/* Resends all that is open to a scheduler with a new link. */
void ps_agent_job_resend_all(struct ps_agent_step *st);

/* barrier.c */
void ps_agent_barrier_enter(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_barrier *m);
/* Sends one barrier_enter for each barrier at which local ranks wait. */
void ps_agent_barrier_send(struct ps_agent_step *st, struct ps_agent_job *j);
/* Records that all barriers up to `number` are open, and ends the operations of
 * ranks that wait at them. */
void ps_agent_barrier_complete(struct ps_agent_step *st, struct ps_agent_job *j,
                               uint64_t number);
void ps_agent_barrier_on_done(struct ps_agent_step *st,
                              const struct ps_msg_barrier_done *m);

/* request.c */
void ps_agent_request_optimizer(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_msg_l_optimizer *m);
void ps_agent_request_optimizer_change(
    struct ps_agent_step *st, struct ps_agent_session *s,
    const struct ps_msg_l_optimizer_change *m);
void ps_agent_request_compression(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_compression *m);
/* The scheduler's answer to any of them. */
void ps_agent_request_on_done(struct ps_agent_step *st,
                              const struct ps_msg_optimizer_done *m);
/* Sends all unanswered requests of the job again. */
void ps_agent_request_resend(struct ps_agent_step *st, struct ps_agent_job *j);
