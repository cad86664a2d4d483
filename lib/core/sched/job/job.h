/* SPDX-License-Identifier: Apache-2.0 */
/* One job as the scheduler records it: workers with ranks, slots and barriers,
 * servers and keys. Independent of messages and members; agents are node numbers
 * here. */
#pragma once

#include "base/bits.h"
#include "base/str.h"
#include "base/time.h"
#include "core/base/ledger.h"
#include "core/base/machine.h"
#include "core/optim/tuning.h"
#include "core/sched/place/place.h"
#include "core/sched/store.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_sched_user;

/* ---------------------------------------------------------------- barriers */

/* Barriers of one job. The n-th barrier of a rank is the job's n-th, and a rank
 * at the n-th has entered all before it. So one number per rank gives the set
 * of ranks at a barrier, even if messages arrive twice or out of order. */

struct ps_barrier {
    /* Highest barrier, by rank; PS_BARRIER_LEFT: rank has left. */
    uint64_t *entered;
    uint32_t rank_count;
    uint32_t behind_count;    /* Ranks with `entered` not beyond last_open. */
    uint64_t last_open;       /* This barrier and all before it are open. */
    uint64_t highest_entered; /* Highest barrier that any rank entered. */
    /* When the oldest barrier not open was first entered. */
    ps_time waiting_since;
};

#define PS_BARRIER_LEFT UINT64_MAX

void ps_barrier_init(struct ps_barrier *b, uint32_t ranks);
void ps_barrier_fini(struct ps_barrier *b);
/* True: further barriers are open now. */
bool ps_barrier_enter(struct ps_barrier *b, uint32_t rank, uint64_t number,
                      ps_time now);
/* The rank has left; no barrier waits for it. Returns as ps_barrier_enter. */
bool ps_barrier_leave(struct ps_barrier *b, uint32_t rank, ps_time now);
/* True: ranks wait at a barrier that is not open. */
bool ps_barrier_is_waiting(const struct ps_barrier *b);
/* True: the barrier waits for this rank. */
bool ps_barrier_is_missing(const struct ps_barrier *b, uint32_t rank,
                           uint64_t number);

/* --------------------------------------------------------------------- job */

/* Requests about an optimizer that wait for servers; further ones are
 * refused. */
#define PS_SCHED_WAITERS_MAX PS_RANKS_MAX

/* Worker of a job: in order of arrival while the job forms, afterwards entry i
 * is rank i. */
struct ps_sched_worker {
    char host[PS_NAME_MAX + 1];
    char agent_name[PS_NAME_MAX + 1];
    uint32_t agent_node;
    uint64_t agent_incarnation;
    uint64_t agent_instance;
    uint64_t worker_id;     /* Number that the agent gave the worker. */
    uint64_t token;         /* Number of its token; 0: it needs none. */
    int32_t requested_rank; /* Rank requested; -1: any. */
    uint8_t state;          /* enum ps_rank_state */
    bool confirmed;         /* Reported by the agent on its present link. */
    bool rounds_unknown; /* Died before its agent knew the worker's rounds. */
    ps_time lost_at;     /* Time of the loss, while LOST. */
    uint32_t slot;
    uint32_t local_rank;
    uint64_t incarnation;
    bool unsaved; /* Its row is to be written. */
};

struct ps_sched_slot {
    uint32_t agent_node;
    char agent_name[PS_NAME_MAX + 1];
    uint64_t incarnation;
    uint64_t instance;
    uint32_t ranks;
    /* Keys from this number on whose placement has changed are still to be sent
     * to the agent, which has a fresh link; UINT32_MAX: none. */
    uint32_t first_unsent_key;
};

/* Bytes of the reason for a loss that are kept. */
#define PS_SCHED_LOSS_TEXT 159u

/* Server of a job: a place (rule O1). The list is sorted by name. */
struct ps_sched_job_server {
    char name[PS_NAME_MAX + 1];
    uint32_t node;
    /* The process that the place is for, and the epoch of its last change. */
    uint32_t epoch;
    uint64_t incarnation;
    uint64_t instance;
    /* Its process was lost: until when the job waits for the next one, which has
     * its memory; or never. */
    ps_time return_by;
    ps_time lost_at;
    char lost_why[PS_SCHED_LOSS_TEXT + 1];
    uint32_t ready_version; /* Version of job_state that it acknowledged. */
    uint64_t newest_round;  /* Of its partitions at that time. */
    uint64_t bytes;         /* Bytes of the job's keys placed there. */
    uint32_t number;        /* Of the place, not used again. */
    uint32_t backup;        /* 0: none; see place/copies.c. */
    uint32_t avoided;       /* Node that the owner could not reach. */
    uint64_t backup_instance;
    bool is_filled;   /* The backup has all partitions, and counts. */
    bool is_reported; /* As the owner says; the backup may not count yet. */
    bool lacks_room;  /* No server has memory for its backup. */
    uint8_t filled_percent; /* Or how many of them, as the owner says. */
    struct ps_demand demand;
    uint64_t reserved_bytes; /* Bytes of `demand`, as reserved at the server. */
};

/* Latest of several openings of a key by the agent of one slot. */
struct ps_sched_reopening {
    uint32_t slot;
    uint64_t request;
};

/* Declarations of ranks that contradict each other; see state.c. */
struct ps_sched_disagreement {
    uint32_t number; /* Number of the newest message about it. */
    /* Slots, of a key, or ranks that were refused and have not declared since
     * what the others have. */
    struct ps_bits refused;
    /* Of a key, by slot: newest message of the agent about it. */
    struct ps_sched_agent_report {
        uint64_t incarnation;
        uint32_t number;
    } * reports;
    char text[PS_TEXT_MAX + 1]; /* Both declarations; "": all agree. */
};

struct ps_sched_norm;        /* Norms of one key; norm.c. */
struct ps_sched_global_norm; /* Norm of all keys; norm.c. */

struct ps_sched_key {
    struct ps_sched_norm *norm; /* NULL: no norm was requested. */
    uint64_t norms_before;      /* Norms of all keys without this one. */
    uint32_t number;
    uint8_t kind; /* enum ps_key_kind */
    uint8_t dtype;
    bool is_reassigned; /* The placement differs from the first one. */
    bool must_announce; /* The placement is still to be sent to agents. */
    bool was_loaded;    /* From the file. */
    /* Epoch in which a placement was last sent to all agents; 0: none. */
    uint32_t announced_epoch;
    uint64_t count;
    uint32_t row_width; /* Elements of one row; 0: a dense key. */
    struct ps_place_part *parts;
    uint32_t part_count;
    uint32_t declared_by; /* Rank; UINT32_MAX: not stated. */
    struct ps_sched_disagreement *disagreement; /* NULL: there was none. */
    struct ps_bits openers; /* Slots whose agents have the key open. */
    /* Slots that opened the key more than once. */
    struct ps_sched_reopening *reopenings;
    uint32_t reopening_count;
    struct ps_list_node unsaved; /* In the list of struct ps_sched_job_store. */
    char name[];
};

/* Request about optimizer, compression or weight that servers have not taken
 * in. */
struct ps_sched_waiter {
    uint32_t agent_node;
    uint64_t request;
    ps_conn_id ctl_conn; /* Operator's connection; 0: an agent asked. */
    uint64_t round;      /* Operator: first round of the change; 0: none. */
};

#define PS_DECLARATION_TEXT_MAX 256u

struct ps_sched_workers {
    struct ps_sched_worker *list;
    uint32_t count;
    uint32_t capacity;
    uint32_t live_count; /* Workers in state LIVE. */
    ps_time lost_since;  /* When the first LOST rank was lost; or never. */
    /* About optimizer or compression; NULL: there was none. */
    struct ps_sched_disagreement *disagreement;
};

struct ps_sched_job_servers {
    struct ps_sched_job_server *list;
    uint32_t count;
    uint32_t last_number;                  /* Of the newest place. */
    struct ps_rec_removed_server *removed; /* Servers that it has lost. */
    uint32_t removed_count;
};

struct ps_sched_keys {
    /* By ps_name_hash_slot(); no two keys share one. */
    struct ps_map *by_name_hash;
    bool were_rebalanced; /* See job_state.was_rebalanced. */
    uint64_t hash_seed;
    struct ps_sched_key **list; /* By number; NULL: key was removed. */
    uint32_t count;             /* Key numbers assigned so far. */
    uint32_t open_count;        /* Keys that exist. */
    uint32_t capacity;
    /* String keys so far: number of the next one in mxnet placement. */
    uint64_t string_count;
    uint64_t bytes;
    /* When further placements are sent; or never. */
    ps_time send_at;
    /* Keys below this number need no announcement. */
    uint32_t first_unsent;
};

/* Memory of servers that the job may take. */
struct ps_sched_quota {
    struct ps_demand_profile profile;
    ps_time send_at;  /* When servers get their quotas; or never. */
    uint64_t version; /* Version of the quotas last sent. */
};

/* Recording of what the job's servers do. */
struct ps_sched_profile {
    uint8_t mode;    /* enum ps_profile_mode */
    uint32_t number; /* Of the recording; 0: none yet. */
};

/* Data about the training that operators and users look at. */
struct ps_sched_observed {
    ps_time created_at;
    struct ps_sched_profile profile;
    struct ps_sched_scalars *scalars; /* See history.h; NULL: none. */
};

/* Declaration of ranks for the whole job: its optimizer, or its compression. */
struct ps_sched_declaration {
    const char *name; /* NULL: none. */
    const struct ps_rec_param *params;
    uint32_t param_count;
    const struct ps_rec_tuning *tunings; /* Of an optimizer. */
    uint32_t tuning_count;
    uint32_t rank; /* That declared it first; UINT32_MAX: not stated. */
    /* Owned, and all of the above lies in it; NULL: a message on its way. */
    struct ps_msg *message;
    struct ps_bits agreed;              /* Ranks that have declared it. */
    char text[PS_DECLARATION_TEXT_MAX]; /* For operators. */
};

struct ps_sched_optimizer {
    struct ps_sched_declaration declared;
    struct ps_tunings tunings; /* Declared, and those from a round on. */
    struct ps_changes changes;
};

/* See norm.c. */
struct ps_sched_job_norms {
    struct ps_sched_global_norm *global; /* NULL: the optimizer needs none. */
    /* The optimizer skips steps with a non-finite gradient. */
    bool skips_nonfinite;
    uint64_t skipped_steps; /* Such steps so far, of all keys. */
};

/* Requests that wait until servers have taken in a declaration. */
struct ps_sched_waiters {
    struct ps_sched_waiter *list;
    uint32_t count;
    uint32_t version; /* Version of job_state with the latest declaration. */
};

struct ps_sched_job {
    uint64_t gen;
    uint32_t version;       /* Version of job_state last published. */
    uint8_t phase;          /* enum ps_job_phase */
    bool checks_left_ranks; /* ps_sched_stall_check_left() has been called. */
    bool reopened; /* Some workers were re-offered after a scheduler restart. */
    char name[PS_NAME_MAX + 1];
    uint32_t uid;
    /* As all workers have to state them; with defaults, and without strings. */
    struct ps_msg_job_open opt;
    uint32_t weight;  /* Now: that of `opt`, or as an operator has set it. */
    ps_time deadline; /* End of the start, or of a job without a live worker. */
    ps_time publish_at; /* When changed ranks are published; or never. */
    struct ps_sched_workers workers;
    uint32_t *agents; /* All that ever had a worker here. */
    uint32_t agent_count;
    struct ps_sched_slot *slots;
    uint32_t slot_count;
    struct ps_barrier barrier; /* Valid after the start. */
    struct ps_sched_job_servers servers;
    struct ps_sched_rebalance *rebalance; /* See move.c; NULL: none. */
    struct ps_sched_keys keys;
    struct ps_account account; /* See admission.c. */
    struct ps_sched_user *user;
    struct ps_sched_quota quota;
    struct ps_sched_optimizer optimizer;
    struct ps_sched_job_norms norms;
    /* Only set while there is no key. */
    struct ps_sched_declaration compression;
    struct ps_sched_waiters waiters;
    struct ps_sched_observed observed;
    struct ps_sched_job_store store;
    char reason[PS_TEXT_MAX + 1];
};

/* Makes a job in phase FORMING. `want` has been checked, and its
 * start_timeout_ns is not 0. */
struct ps_sched_job *ps_sched_job_new(uint64_t gen, uint64_t hash_seed,
                                      const struct ps_msg_job_open *want,
                                      ps_time now);
void ps_sched_job_free(struct ps_sched_job *j);

/* Changes the phase and logs it. */
void ps_sched_job_set_phase(struct ps_sched_job *j, enum ps_job_phase to,
                            struct ps_effects *fx);
/* True: workers take part; not FAILED, not ENDED. */
bool ps_sched_job_is_open(const struct ps_sched_job *j);
/* A process of the job was lost, and none has taken its place. */
bool ps_sched_job_has_lost_rank(const struct ps_sched_job *j);
bool ps_sched_job_has_started(const struct ps_sched_job *j);

/* Worker of this incarnation of the agent; NULL: none. */
struct ps_sched_worker *ps_sched_job_find_worker(const struct ps_sched_job *j,
                                                 uint32_t agent,
                                                 uint64_t agent_incarnation,
                                                 uint64_t worker);
/* Adds a copy of *w as LIVE; only while FORMING. */
void ps_sched_job_add_worker(struct ps_sched_job *j,
                             const struct ps_sched_worker *w);
/* Only before the start. */
void ps_sched_job_remove_worker(struct ps_sched_job *j,
                                struct ps_sched_worker *w);
/* Sets the state of a rank; updates live_count and lost_since. */
void ps_sched_job_set_rank_state(struct ps_sched_job *j,
                                 struct ps_sched_worker *w,
                                 enum ps_rank_state state, ps_time now);
/* True: the agent has, or had, workers in the job. */
bool ps_sched_job_has_agent(const struct ps_sched_job *j, uint32_t agent);
/* Adds an agent. False: the job has PS_SLOTS_MAX already. */
bool ps_sched_job_add_agent(struct ps_sched_job *j, uint32_t agent);
/* Assigns ranks and slots once all workers have joined. */
void ps_sched_job_assign_ranks(struct ps_sched_job *j);
/* Index of the agent's slot, or slot_count. */
uint32_t ps_sched_job_slot_of(const struct ps_sched_job *j, uint32_t agent);
/* After the start. True: the rank is in the job, and at this agent. */
bool ps_sched_job_is_rank_at(const struct ps_sched_job *j, uint32_t rank,
                             uint32_t agent);
/* Servers with which the job starts. */
uint32_t ps_sched_job_servers_needed(const struct ps_sched_job *j);
/* NULL: not a server of the job. */
struct ps_sched_job_server *ps_sched_job_server_of(const struct ps_sched_job *j,
                                                   uint32_t node);
/* Lowest version that all servers have acknowledged. */
uint32_t ps_sched_job_ready_version(const struct ps_sched_job *j);
/* Ranks without a worker, when workers that requested none get the lowest free
 * ones. `ret_ranks` holds num_workers. Returns the count. */
uint32_t ps_sched_job_missing_ranks(const struct ps_sched_job *j,
                                    unsigned *ret_ranks);

/* NULL: there is no key of this number, or it was removed. */
struct ps_sched_key *ps_sched_job_key(const struct ps_sched_job *j,
                                      uint32_t number);
/* NULL when no key of this kind and name is registered. */
struct ps_sched_key *ps_sched_job_find_key(const struct ps_sched_job *j,
                                           enum ps_key_kind kind,
                                           const char *name);
/* Key with the name hash of this kind and name, whatever its own ones; NULL:
 * none. */
struct ps_sched_key *ps_sched_job_key_by_name_hash(const struct ps_sched_job *j,
                                                   enum ps_key_kind kind,
                                                   const char *name);
/* Takes over `parts`. */
struct ps_sched_key *ps_sched_job_add_key(struct ps_sched_job *j,
                                          const struct ps_msg_key_open *m,
                                          struct ps_place_part *parts,
                                          uint32_t part_count);
/* Records that the agent of the slot opened the key with `request`. */
void ps_sched_key_add_opener(const struct ps_sched_job *j,
                             struct ps_sched_key *k, uint32_t slot,
                             uint64_t request);
/* Undoes the opening by `request`; a later one of the same slot remains. True:
 * the key has no opener left. */
bool ps_sched_key_remove_opener(struct ps_sched_key *k, uint32_t slot,
                                uint64_t request);
/* Removes and frees the key; its number is not reused. */
void ps_sched_job_remove_key(struct ps_sched_job *j, struct ps_sched_key *k);

/* True: a partition of the key is on this server. */
bool ps_sched_key_is_on(const struct ps_sched_key *k, uint32_t node);

/* Borrows what an optimizer_set or compression_set declares. */
struct ps_sched_declaration ps_sched_declaration_of(const struct ps_msg *msg);
/* The first declaration of a job: copies what the message declares. */
void ps_sched_declaration_set(struct ps_sched_declaration *d,
                              const struct ps_msg *msg, uint32_t num_workers);
/* True: the same name, and the same parameters in any order. */
bool ps_sched_declaration_is_same(const struct ps_sched_declaration *a,
                                  const struct ps_sched_declaration *b);
