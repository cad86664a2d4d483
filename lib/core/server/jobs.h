/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs at a server, their contributors, and what bounds both. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "core/codec/compression.h"
#include "core/optim/optim.h"
#include "core/round/batch.h"
#include "core/round/credit.h"
#include "core/round/pacing.h"
#include "core/server/sessions.h"
#include "core/server/store.h"

/* A contributor of a job. */
struct ps_server_slot {
    struct ps_list_node list_node; /* In `batching_slots`. */
    struct ps_server_job *job;
    uint32_t index;
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    uint64_t unmerged_bytes; /* Push bytes received, not merged. */
    ps_time receiving_since; /* A push arrives since then; 0: none. */
    ps_time last_push_at;    /* A push had arrived; 0: none yet. */
    ps_time starved_since;   /* 0: its payloads find memory. */
    /* Incomplete rounds of the job to which the slot has contributed. */
    uint32_t contributed_rounds;
    /* Replies about small partitions, collected until the next tick. */
    struct ps_batch value_batch;
    struct ps_batch commit_batch;
};

/* Memory that the scheduler admitted a job with. */
struct ps_server_quota {
    uint64_t version; /* Of job_quota; 0: none yet. */
    uint64_t bytes;
    uint64_t round_bytes; /* Of `bytes`, for the reserved round. */
};

/* The one round of a job that may allocate when memory is short. */
struct ps_server_reserved_round {
    uint32_t key;
    uint32_t index;
    uint64_t round; /* 0: none is chosen. */
    ps_time chosen_at;
};

struct ps_server_job {
    struct ps_server *server;
    struct ps_list_node node; /* In `credit_check`. */
    uint64_t gen;
    uint32_t version;
    char name[PS_NAME_MAX + 1];
    bool has_optimizer;
    struct ps_optim optim; /* If has_optimizer. */
    struct ps_tunings tunings;
    uint64_t newest_version; /* Of all partitions, made or being made. */
    struct ps_compression compression;
    struct ps_server_slot *slots;
    uint32_t slot_count;
    struct ps_store store;
    struct ps_server_quota quota;
    struct ps_pool_share *pool_share; /* Pool bytes that the job uses. */
    struct ps_account account;        /* Updated before each cost report. */
    struct ps_server_reserved_round reserved_round;
    ps_time next_shortage_log_at;   /* Limits the rate of shortage warnings. */
    struct ps_map *migrations;      /* By partition; NULL: none yet. */
    struct ps_map *norm_waits;      /* Staged merges that wait, by key. */
    uint32_t incomplete_rounds;     /* Open rounds that lack a slot. */
    uint32_t merging_rounds;        /* Complete rounds not in norm_waits. */
    struct ps_rate_meter push_rate; /* Payload bytes of all slots. */
    /* Version that no server or agent holds any more, if `known`. */
    struct {
        bool known;
        uint32_t key;
        uint32_t index;
        uint64_t version;
    } lost_value;
};

struct ps_server_jobs {
    struct ps_map *by_gen;
    uint64_t ended[PS_ENDED_JOBS_MAX]; /* Generations, in a ring. */
    uint32_t next_ended;               /* Place of the next one. */
    struct ps_list credit_check;       /* Jobs, at the end of the step. */
};
