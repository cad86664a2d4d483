/* SPDX-License-Identifier: Apache-2.0 */
/* One job in the scheduler's book: its workers with their ranks and slots,
 * its servers and keys. Knows no messages and no members; agents are node
 * numbers here. */
#pragma once

#include "base/bits.h"
#include "base/str.h"
#include "core/sched/barrier.h"
#include "core/base/effect.h"
#include "core/base/ledger.h"
#include "core/sched/demand.h"
#include "core/sched/place.h"
#include "core/optim/tuning.h"

#include <stdbool.h>
#include <stdint.h>

/* Requests for an optimizer that wait for servers; one more is refused. */
#define PS_SCHED_WAITERS_MAX PS_RANKS_MAX

/* While the job forms, in order of arrival; afterwards entry i is rank i. */
struct ps_sched_worker {
    char host[PS_NAME_MAX + 1];
    char agent_name[PS_NAME_MAX + 1];
    uint32_t agent_node;
    uint64_t agent_incarnation;
    uint64_t agent_instance;
    uint64_t worker_id;     /* The agent's number. */
    int32_t requested_rank; /* Rank it wants; -1: any. */
    uint8_t state;          /* enum ps_rank_state */
    bool confirmed;         /* Named by the agent since its link was fresh. */
    bool rounds_unknown; /* Died before its agent knew which rounds it is in. */
    ps_time lost_at;     /* LOST */
    uint32_t slot;
    uint32_t local_rank;
    uint64_t incarnation;
};

struct ps_sched_slot {
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    uint32_t ranks;
};

/* Sorted by name. */
struct ps_sched_job_server {
    char name[PS_NAME_MAX + 1];
    uint32_t node;
    uint32_t ready_version; /* Version of the state it has taken in, */
    uint64_t newest_round; /* and the highest one of a partition when it had. */
    uint64_t bytes;        /* Of this job's keys there. */
    struct ps_demand demand;
    uint64_t reserved_bytes; /* Bytes of `need`, in the server's books. */
};

/* The last of several openings of a key by the agent of one slot. */
struct ps_sched_reopening {
    uint32_t slot;
    uint64_t request;
};

struct ps_sched_user;
struct ps_sched_norm;        /* Norms of a key: norm.c */
struct ps_sched_global_norm; /* Of all keys of a round. */

struct ps_sched_key {
    struct ps_sched_norm *norm; /* NULL: nobody has asked for any. */
    uint32_t number;
    uint8_t dtype;
    bool is_reassigned; /* Its placement is not the first one. */
    bool must_announce; /* Nor have agents heard of the present one. */
    uint32_t
        announced_epoch; /* Epoch in which all agents heard of a placement; 0: none. */
    uint64_t count;
    uint32_t row_width; /* Elements of a row; 0: not a key of rows. */
    struct ps_place_part *parts;
    uint32_t part_count;
    struct ps_bits openers; /* Slots whose agents have it open. */
    struct ps_sched_reopening
        *reopenings; /* Those that opened it more than once. */
    uint32_t reopening_count;
    char name[];
};

/* A server that the job has lost. */
struct ps_sched_removed_server {
    uint32_t node;
    uint64_t incarnation;
};

/* A request for an optimizer that servers have not taken in. */
struct ps_sched_waiter {
    uint32_t agent_node;
    uint64_t request;
    ps_conn_id ctl_conn; /* Not 0: an operator asks instead, */
    uint64_t round;      /* for a change from this round on. */
};

#define PS_COMPRESSION_TEXT_MAX 256u

struct ps_sched_find_job {
    uint64_t gen;
    uint32_t version; /* Of job_state. */
    uint8_t phase;    /* enum ps_job_phase */
    uint8_t mode;
    uint8_t rule;       /* enum ps_rule; of a job without rounds. */
    uint32_t staleness; /* ssp */
    uint8_t on_loss;
    bool reopened; /* An earlier scheduler knew some of its workers. */
    uint8_t placement;
    char name[PS_NAME_MAX + 1];
    uint32_t uid;
    uint32_t num_workers;
    uint32_t num_servers;
    uint64_t big_array_bound;
    uint32_t partition_bytes; /* 0: each key has its own. */
    ps_time start_timeout;
    ps_time created_at;
    ps_time deadline;   /* Start; or end of a job without a live worker. */
    ps_time publish_at; /* Changes of ranks to tell; gathered for a while. */
    ps_time lost_since; /* Of the ranks that are LOST, the first; or never. */
    struct ps_sched_worker *workers;
    uint32_t worker_count;
    uint32_t worker_capacity;
    uint32_t live_workers; /* Workers in state LIVE. */
    struct ps_sched_slot *slots;
    uint32_t slot_count;
    struct ps_sched_job_server *servers;
    uint32_t server_count;
    struct ps_sched_removed_server *removed_servers;
    uint32_t removed_server_count;
    struct ps_sched_rebalance *rebalance; /* Of migration.c; NULL: none. */
    uint32_t *agents;                     /* All that ever had a worker here. */
    uint32_t agent_count;
    struct ps_barrier barrier; /* From the start on. */
    struct ps_map
        *keys_by_name_hash; /* By ps_name_hash_slot: no two share one. */
    uint64_t name_hash_seed;
    struct ps_sched_key **keys; /* By number; NULL: that key was closed. */
    uint32_t key_count;         /* Numbers that were given. */
    uint32_t open_key_count;    /* Keys that there are. */
    uint32_t key_capacity;
    struct ps_account account; /* Of account.c. */
    struct ps_sched_user *user;
    struct ps_demand_profile demand_profile;
    ps_time
        next_placements_at; /* Agents hear of further placements then; or never. */
    uint32_t first_unsent_key; /* Number of the first key that may be untold. */
    ps_time send_quota_at; /* Servers are told of their needs then; or never. */
    uint64_t quota_version;    /* Of what they were told last. */
    uint64_t string_key_count; /* Of them; the classic way numbers these. */
    uint64_t bytes;
    char *optimizer;             /* NULL: none. */
    struct ps_rec_param *params; /* One block with their names. */
    uint32_t param_count;
    struct ps_tunings tunings;
    struct ps_changes changes;
    bool
        skips_nonfinite; /* Its optimizer does, steps whose gradient is not finite: */
    uint64_t skipped_steps; /* so many, of its keys. */
    struct ps_sched_global_norm
        *global_norm;  /* Of all keys together; NULL: it needs none. */
    char *compression; /* NULL: none; it is there before the first key. */
    struct ps_rec_param *compression_params; /* One block with their names. */
    uint32_t compression_param_count;
    char compression_text[PS_COMPRESSION_TEXT_MAX]; /* For people. */
    /* State in which servers were told of what was declared last. */
    uint32_t declared_version;
    struct ps_sched_waiter *waiters;
    uint32_t waiter_count;
    char reason[PS_TEXT_MAX + 1];
};

/* `want` is checked; its start_timeout_ns is not 0. */
struct ps_sched_find_job *ps_sched_job_new(uint64_t gen, uint64_t label_seed,
                                           const struct ps_msg_job_open *want,
                                           ps_time now);
void ps_sched_job_free(struct ps_sched_find_job *j);

/* Leaves a note. */
void ps_sched_job_set_phase(struct ps_sched_find_job *j, enum ps_job_phase to,
                            struct ps_effects *fx);
/* Phases in which workers take part: not failed, not ended. */
bool ps_sched_job_is_open(const struct ps_sched_find_job *j);
bool ps_sched_job_has_started(const struct ps_sched_find_job *j);

/* A worker of this instance of the agent; NULL: none. */
struct ps_sched_worker *
ps_sched_job_find_worker(const struct ps_sched_find_job *j, uint32_t agent,
                         uint64_t agent_incarnation, uint64_t worker);
/* While forming. Copies *w; it is LIVE. */
void ps_sched_job_add_worker(struct ps_sched_find_job *j,
                             const struct ps_sched_worker *w);
/* Before the start. */
void ps_sched_job_remove_worker(struct ps_sched_find_job *j,
                                struct ps_sched_worker *w);
/* Change the state of a rank, the count of live ones, and since when the first
 * of the lost ones is. */
void ps_sched_job_set_rank_state(struct ps_sched_find_job *j,
                                 struct ps_sched_worker *w,
                                 enum ps_rank_state state, ps_time now);
/* An agent takes part; false: one too many. */
bool ps_sched_job_add_agent(struct ps_sched_find_job *j, uint32_t agent);
/* All are there: give ranks and slots. */
void ps_sched_job_assign_ranks(struct ps_sched_find_job *j);
/* Position of the agent's slot, or slot_count. */
uint32_t ps_sched_job_slot_of(const struct ps_sched_find_job *j,
                              uint32_t agent);
/* NULL: not a server of the job. */
struct ps_sched_job_server *
ps_sched_job_server_of(const struct ps_sched_find_job *j, uint32_t node);
/* Lowest version that all servers have taken in. */
uint32_t ps_sched_job_ready_version(const struct ps_sched_find_job *j);
/* Ranks that nobody has, if all who asked for none got the lowest ones left;
 * room for num_workers. Returns how many. */
uint32_t ps_sched_job_missing_ranks(const struct ps_sched_find_job *j,
                                    unsigned *ret_ranks);

/* NULL when the name is not registered. */
struct ps_sched_key *ps_sched_job_find_key(const struct ps_sched_find_job *j,
                                           const char *name);
/* The key that has the label of this name, whatever its own is. */
struct ps_sched_key *
ps_sched_job_key_by_name_hash(const struct ps_sched_find_job *j,
                              const char *name);
/* Takes over `parts`. */
struct ps_sched_key *ps_sched_job_add_key(struct ps_sched_find_job *j,
                                          const char *name, uint8_t dtype,
                                          uint64_t count,
                                          struct ps_place_part *parts,
                                          uint32_t part_count);
/* The agent of the slot has it open, by this request. */
void ps_sched_key_add_opener(const struct ps_sched_find_job *j,
                             struct ps_sched_key *k, uint32_t slot,
                             uint64_t request);
/* The agent of the slot did not take what this request opened. True: nobody
 * has the key open any more. */
bool ps_sched_key_remove_opener(struct ps_sched_key *k, uint32_t slot,
                                uint64_t request);
/* Forgets and frees it; its number is not given again. */
void ps_sched_job_remove_key(struct ps_sched_find_job *j,
                             struct ps_sched_key *k);

/* True: a partition of the key is on this server. */
bool ps_sched_key_is_on(const struct ps_sched_key *k, uint32_t node);

void ps_sched_job_set_optimizer(struct ps_sched_find_job *j,
                                const struct ps_msg_optimizer_set *m);
void ps_sched_job_set_compression(struct ps_sched_find_job *j, const char *name,
                                  const struct ps_rec_param *params,
                                  uint32_t count);
/* The same name and the same parameters in any order? */
bool ps_sched_job_same_optimizer(const struct ps_sched_find_job *j,
                                 const struct ps_msg_optimizer_set *m);
bool ps_sched_job_same_compression(const struct ps_sched_find_job *j,
                                   const char *name,
                                   const struct ps_rec_param *params,
                                   uint32_t count);
