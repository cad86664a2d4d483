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

/* A round without memory for its result tries again after this time. */
#define STARVED_WAIT        PS_MILLIS(10)
/* Starved rounds tried in one tick. */
#define STARVED_RETRIES_MAX 256u
/* A request fails after this time if no merge can free enough memory for it. */
#define OUT_OF_MEMORY_AFTER PS_SECONDS(2)

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

/* Slots that one refusal names, at most. */
#define PS_CONFLICT_SLOTS_MAX 64u

/* Slots that ask for the same, and what: one side of a conflict. */
struct ps_server_conflict {
    uint32_t slots[PS_CONFLICT_SLOTS_MAX];
    uint32_t slot_count;
    uint8_t reduce;
    bool assign;
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

/* job.c */
struct ps_server_job *ps_server_job_find(const struct ps_server *s,
                                         uint64_t gen);
/* Finds a slot for a message of the session. PS_E_INVAL: no such slot;
 * PS_E_PERM: slot of another node; PS_E_STALE: another incarnation. */
int ps_server_job_find_slot(struct ps_server_job *job,
                            const struct ps_server_session *p, uint32_t slot,
                            struct ps_server_slot **ret_slot);
/* True if the scheduler named this process as an agent of a job. */
bool ps_server_job_names_agent(const struct ps_server *s,
                               const struct ps_msg_hello *m);
/* Session of the slot's agent; NULL: none with the slot's incarnation. */
struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot);

/* job_state.c */
void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m);
void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m);
/* Sends job_ready; nothing while the uplink is not connected. */
void ps_server_job_send_ready(struct ps_server_step *st,
                              const struct ps_server_job *job);
void ps_server_job_init(struct ps_server *s);
/* Frees all jobs with their partitions, merges, replies and migrations. */
void ps_server_job_fini(struct ps_server *s);

/* credit.c */
/* Returns the job's credit on the session's link, created on first use. */
struct ps_credit *ps_server_credit_get(struct ps_server *s,
                                       struct ps_server_session *p,
                                       uint64_t gen);
/* Returns the credit to announce in a reply. `slot` NULL: not known. */
uint64_t ps_server_credit_announce(struct ps_server *s,
                                   struct ps_server_session *p, uint64_t gen,
                                   const struct ps_server_slot *slot);
/* Start and end of the arrival of a push with `len` payload bytes. */
void ps_server_credit_push_begins(struct ps_server_slot *slot);
void ps_server_credit_push_ended(struct ps_server_slot *slot, uint64_t len);
/* Pacing: true if the slot's push has to wait, because its unmerged bytes are
 * too far above the slowest slot's. Never true for all slots at once. */
bool ps_server_credit_is_ahead(const struct ps_server_slot *slot);
/* Schedules the job's check in ps_server_grant_unblock_jobs(). */
void ps_server_credit_mark_job(struct ps_server_job *job);
void ps_server_credit_drop_all(struct ps_server_session *p);

/* grant.c */
/* After a push: sends the credit alone if it is due and no batched reply will
 * carry it. */
void ps_server_grant_if_due(struct ps_server_step *st,
                            struct ps_server_session *p,
                            const struct ps_server_slot *slot);
/* At the end of a step: where a marked job has open rounds and no merge, grants
 * credit to a slot that these lack and whose credit is exhausted. */
void ps_server_grant_unblock_jobs(struct ps_server_step *st);
