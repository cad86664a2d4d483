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

struct ps_agent_reports;
struct ps_agent_span_names;

struct ps_agent_rank {
    uint32_t rank;
    struct ps_agent_session *session; /* NULL: none now. */
    bool had_process;                 /* A process has had the rank here. */
    bool is_resuming; /* Its process is a later one, and has ended no round. */
    uint64_t entered_barriers; /* Number of the last barrier entered. */
};

/* Contents of job_state, other than ranks. */
struct ps_agent_job_config {
    uint32_t num_workers;
    uint32_t num_servers;
    bool has_optimizer;
    uint8_t mode;
    uint8_t rule;
    uint32_t staleness; /* ssp */
    uint32_t weight;    /* Of its flows (core/round/fair). */
};

/* Keys that are not open. */
struct ps_agent_openings {
    /* Opening keys: those requested first, then the others. */
    struct ps_list keys;
    uint32_t in_flight; /* Keys requested from the scheduler. */
    /* First of `keys` that is not requested; NULL: none. */
    struct ps_list_node *next_unsent;
};

struct ps_agent_barriers {
    struct ps_list ops; /* Operations that wait at a barrier. */
    uint64_t completed; /* Number of the last one that is open. */
};

/* Time without the begin or end of an operation after which a job with open ones
 * stands still. */
#define PS_AGENT_STILL PS_SECONDS(1)

struct ps_agent_standstill {
    ps_time moved_at; /* When an operation began or ended last. */
    ps_time check_at; /* PS_TIME_NEVER: it has not moved since the check. */
};

struct ps_agent_job {
    uint64_t gen;
    uint32_t state_version; /* Version of the last job_state; 0: none yet. */
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
    struct ps_agent_standstill standstill;
    struct ps_list sched_ops; /* Operations with an open sched_request. */
    /* About optimizer or compression; NULL: there was none. */
    struct ps_agent_disagreement *disagreement;
    struct ps_agent_reports *reports;       /* See report.c; NULL: none. */
    struct ps_agent_span_names *span_names; /* See span.c; NULL: none. */
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
