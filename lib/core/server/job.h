/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs at a server, their contributors, and what bounds both; look-ups, and
 * recordings that workers ask for. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "core/codec/compression.h"
#include "core/optim/optim.h"
#include "core/part/credit.h"
#include "core/part/fair.h"
#include "core/part/round.h"
#include "core/part/store.h"
#include "core/server/session.h"
#include "proto/ps_msg.h"

/* A contributor of a job. */
struct ps_server_slot {
    struct ps_list_node list_node; /* In `batching_slots`. */
    struct ps_server_job *job;
    uint32_t index;
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    char name[PS_NAME_MAX +
              1];            /* Of the agent; "": the scheduler states none. */
    uint64_t unmerged_bytes; /* Push bytes received, not merged. */
    ps_time receiving_since; /* Start of the push that arrives; 0: none does. */
    ps_time last_push_at;    /* Arrival of the last push; 0: none yet. */
    ps_time last_accepted_at; /* Of the last push that was not refused. */
    ps_time starved_since;    /* 0: its payloads find memory. */
    /* Incomplete rounds of the job to which the slot has contributed. */
    uint32_t contributed_rounds;
    /* Replies about small partitions, collected until the next tick. */
    struct ps_batch value_batch;
    struct ps_batch commit_batch;
};

/* Memory that the scheduler admitted a job with. */
struct ps_server_quota {
    uint64_t version; /* Version of job_quota; 0: none yet. */
    uint64_t bytes;
    uint64_t round_bytes;         /* Part of `bytes` for the reserved round. */
    ps_time next_shortage_log_at; /* Limits the rate of shortage warnings. */
};

/* The one round of a job that may allocate when memory is short. */
struct ps_server_reserved_round {
    uint32_t key;
    uint32_t index;
    uint64_t round; /* 0: none is chosen. */
    ps_time chosen_at;
};

/* Last recording of a job, see job.c; all zero: there was none. */
struct ps_server_profile {
    uint8_t mode;    /* enum ps_profile_mode */
    uint32_t number; /* Of the recording. */
    ps_time begun_at;
    uint64_t entries_before; /* Entries of the trace when it began. */
};

/* A job in state memory. */
struct ps_server_job_kept {
    uint32_t epoch;             /* Of this server's place; 0: none is stated. */
    enum ps_part_memory memory; /* Origin of the partitions. */
    ps_time taken_at; /* When a running job was taken; 0: it was not running. */
    struct ps_record_place record;
    bool is_partial; /* Some partition has no record, for lack of room. */
};

/* A partition of another server. */
struct ps_server_backup_part {
    struct ps_server_backup *of; /* NULL: it is of a move. */
    struct ps_server_move *move;
    /* In the store of the role, or of a move in that of the job; it has no
     * rounds. */
    struct ps_part *part;
    uint64_t number;  /* Of the copy that it is; 0: none yet. */
    uint64_t refused; /* Of the last copy that was refused. */
    /* The copy that is taken in; number 0: none. It is one that arrives, or the
     * step of the part's merge. */
    struct {
        uint64_t number;
        struct ps_rec_part_image image;
        struct ps_slice buffers[PS_PART_BUFFERS];
        uint8_t shared;  /* Buffers that stay, by bit. */
        uint8_t missing; /* Those that have not come yet. */
    } next;
};

/* A place of another server of which this one is the backup. */
struct ps_server_backup {
    struct ps_server_job *job;
    uint32_t number; /* Of the place. */
    uint32_t node;   /* Its owner. */
    uint64_t incarnation;
    uint64_t instance;
    char name[PS_NAME_MAX + 1];
    uint32_t epoch;
    bool is_named; /* By the job_state that is taken in. */
    bool is_own;   /* This server's place, as a former process had it. */
    /* Version of the job_state that said that the owner is lost; 0: it is not.
     * Partitions of such a place wait for the scheduler to say whose they are. */
    uint32_t lost_version;
    uint32_t taken_count; /* Partitions that this server has taken over. */
    uint64_t newest_version;
    /* struct ps_server_backup_part, by partition. Another place may have the same
     * one, which moves between the two. */
    struct ps_map *parts;
    struct ps_store store; /* Their partitions. */
    struct ps_rec_part_copy due[PS_COPIES_CONFIRMED_MAX];
    uint32_t due_count; /* Confirmations to be sent. */
    struct ps_rec_part_copy refused[PS_COPIES_CONFIRMED_MAX];
    uint32_t refused_count;
};

/* Copies of partitions between servers. */
struct ps_server_job_copies {
    bool is_wanted;         /* The job has replicas: 2. */
    uint32_t epoch;         /* Of this server's place. */
    struct ps_list targets; /* struct ps_server_target */
    uint64_t last_number;   /* Of a change. */
    struct ps_map
        *backups; /* struct ps_server_backup, by number; NULL: none. */
    struct ps_list incoming; /* struct ps_server_move, to this server. */
};

struct ps_server_norms {
    struct ps_map *waits; /* Staged merges that wait, by key. */
    struct ps_map *known; /* Last norm_result of a key and stage; owned. */
};

/* A process that has a place in a job. */
struct ps_server_process {
    uint32_t node;
    uint64_t instance;
};

/* Moves of partitions, and what tells of owners. */
struct ps_server_job_moves {
    struct ps_map *by_part; /* struct ps_server_move; NULL: none yet. */
    bool has_moved;         /* Some partition has had another owner before. */
    bool was_rebalanced;    /* As job_state says. */
    /* Of the places, as the newest job_state names them. */
    struct ps_server_process *processes;
    uint32_t process_count;
};

struct ps_server_job {
    struct ps_server *server;
    struct ps_list_node node; /* In `credit_check`. */
    uint64_t gen;
    uint32_t version;
    uint32_t weight; /* Of its flows (core/part/fair). */
    char name[PS_NAME_MAX + 1];
    bool may_be_exhausted; /* Some slot may have used up its credit. */
    bool has_optimizer;
    struct ps_optim optim; /* If has_optimizer. */
    struct ps_tunings tunings;
    /* Newest version of all partitions, made or being made. */
    uint64_t newest_version;
    struct ps_compression compression;
    struct ps_server_slot *slots;
    uint32_t slot_count;
    struct ps_store store;
    struct ps_server_quota quota;
    struct ps_pool_share *pool_share; /* Pool bytes that the job uses. */
    struct ps_account account;        /* Updated before each cost report. */
    struct ps_server_reserved_round reserved_round;
    struct ps_server_job_moves moves;
    struct ps_server_job_copies copies;
    struct ps_server_norms norms;
    uint32_t incomplete_rounds; /* Open rounds that lack a slot. */
    uint32_t merging_rounds;    /* Complete rounds not in norms.waits. */
    /* Computations that wait for their turn, and the job's turns. */
    struct ps_list waiting_merges;
    struct ps_fair_flow merge_flow;
    struct ps_rate_meter push_rate; /* Payload bytes of all slots. */
    struct ps_server_profile profile;
    struct ps_server_job_kept kept;
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
    /* Jobs that have ended here, in a ring. */
    struct {
        uint64_t gen;
        uint32_t version; /* Of the job_state that said so. */
    } ended[PS_ENDED_JOBS_MAX];
    uint32_t next_ended;         /* Place of the next one. */
    struct ps_list credit_check; /* Jobs, at the end of the step. */
};

/* ----------------------------------------------------------------- requests */

/* Recipient of a reply to a message. */
struct ps_server_recipient {
    struct ps_server_session *session;
    uint64_t gen;
    struct ps_server_slot *slot; /* NULL: not known. */
};

/* A message of an agent about partitions of a job. */
struct ps_server_request {
    const struct ps_msg *msg;
    struct ps_server_recipient from;
    int rc;          /* Why from.slot is NULL. */
    bool is_foreign; /* It names a slot that is not its sender's (rule A4). */
    /* Parts of arrays, or rows; the other list is NULL. */
    const struct ps_rec_part *parts;
    const struct ps_rec_rows *rows;
    uint32_t count;
    uint64_t bytes;                 /* Of the payload, as the parts state. */
    const struct ps_slice *payload; /* NULL, or buf NULL: none. */
    int discard_reason;             /* Why the payload was discarded. */
};

/* Part `i`; of rows, `count` is theirs. */
static inline struct ps_rec_part
ps_server_request_part(const struct ps_server_request *q, uint32_t i)
{
    const struct ps_rec_rows *r = q->rows;

    return r == NULL ? q->parts[i]
                     : (struct ps_rec_part){.key = r[i].key,
                                            .index = r[i].index,
                                            .round = r[i].round,
                                            .dtype = r[i].dtype,
                                            .count = r[i].count};
}

/* ----------------------------------------------------------------- look-ups */

/* Time for which agents may not have heard of a move, or of a takeover, of before
 * this process took the job. */
#define PS_SERVER_SETTLING_TIME PS_SECONDS(10)

/* False if a partition without a value here may have another owner since before
 * this process took the job (rule E9). */
static inline bool ps_server_job_is_settled(const struct ps_server_job *job,
                                            ps_time now)
{
    return job->kept.taken_at == 0 ||
           now >= ps_time_add(job->kept.taken_at, PS_SERVER_SETTLING_TIME);
}

/* True if this server has a copy of a partition of which it is not the owner, as
 * far as it knows: the scheduler may be about to promote it. A copy that is not
 * newer than a partition of its own is a stray: an agent that had not heard of the
 * owner has sent an init to the process of which this is the backup. */
bool ps_server_job_backs_up(const struct ps_server_job *job, uint32_t key,
                            uint32_t index);
/* True if the copy is newer than the partition of this server. */
bool ps_server_job_is_newer(const struct ps_server_job *job,
                            const struct ps_server_backup_part *p);
/* True if it has partitions of a lost server that may not be its own. */
bool ps_server_job_takes_over(const struct ps_server_job *job);
/* Bytes of all partitions of the job here, also of other servers. */
uint64_t ps_server_job_stored_bytes(const struct ps_server_job *job);

/* The slot in which the scheduler has named this process as an agent of a job;
 * NULL: there is none. */
const struct ps_server_slot *
ps_server_job_slot_of(const struct ps_server *s, const struct ps_msg_hello *m);
/* Session of the slot's agent; NULL: none with the slot's incarnation. */
struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot);

/* --------------------------------------------------------------- recordings */

/* An event that ends now. */
struct ps_server_profile_event {
    enum ps_trace_kind kind;
    uint32_t slot;
    uint64_t round;
    ps_time begun_at;
    uint64_t bytes;
};

/* Takes in what job_state says of the recording. */
void ps_server_profile_set(struct ps_server_job *job, uint8_t mode,
                           uint32_t number);
/* Adds an event to the server's trace. */
void ps_server_record(struct ps_server_job *job, const struct ps_part *part,
                      const struct ps_server_profile_event *e);
/* As ps_trace_read(), of the job's last recording: numbers and times of its
 * entries count from where it began. */
void ps_server_read_recording(const struct ps_server *s,
                              const struct ps_msg_trace_get *m,
                              struct ps_rec_trace_entry *list,
                              struct ps_msg_trace_entries *ret);
