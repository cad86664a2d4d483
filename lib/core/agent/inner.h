/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the agent machine; for the files of this folder alone.
 *
 *     agent.c         the machine's three calls, time, what checkers ask
 *     uplink.c        the scheduler: dialling, heartbeat, what it tells
 *     server_conn.c   servers: dialling, links, what they answer
 *     send_queue.c    what goes to a server next: priority, credit, sums
 *     encode.c        gradients that travel as codes
 *     budget.c        what sessions, jobs and users hold
 *     session.c       training processes: hello, memory, barriers
 *     diagnose.c      what an operation waits for
 *     residual_log.c  what codes leave over, for the next agent
 *     job.c           jobs: from job_state to the end
 *     key.c           keys: placement, results, takeover
 *     round.c         rounds over the ranks of this node
 *     reattach.c      processes that had another agent before
 *     async.c         keys without rounds
 *     pull.c          pull and init
 *     conflict.c      ranks that disagree about a round
 *     rows.c          keys of rows
 *     prefetch.c      memory that is fetched before it is needed
 *     opt_state.c     optimizer state, saved and loaded */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "core/agent/agent.h"
#include "core/link/dialer.h"
#include "core/codec/compression.h"
#include "core/base/ledger.h"
#include "core/link/link.h"

/* What was refused for a passing reason is offered again after this. */
#define RESEND_WAIT          PS_MILLIS(50)
/* Where a server has no memory: twice the wait each time, up to this. */
#define FULL_BACKOFF_MAX     PS_SECONDS(1)
/* Sums that found no memory try again after this. */
#define SCRATCH_RETRY_WAIT   PS_MILLIS(5)
/* Sums under way for one server at most, in partitions and in bytes, so that
 * urgent partitions that come later are not behind many that are summed
 * already. */
#define COMPUTING_MAX        1024u
#define COMPUTING_BYTES_MAX  (4u * 1024u * 1024u)
#define UNSENT_DEFAULT       (2u * 1024u * 1024u)
/* Departures remembered; the oldest is dropped when there are more. */
#define DEPARTED_WORKERS_MAX 4096u
#define NO_VERSION           (-1) /* No version yet. */
/* Who waits for a result hears how far it is when so much more of it is there:
 * a small share of a cache, and of so much that a wake-up does not count. */
#define PROGRESS_BYTES       (2u * 1024u * 1024u)
/* Ended operations kept for the next ones. */
#define SPARE_OPS_MAX        16384u
/* Operations, or parts of a frame, that are looked at together: prefetch.c. */
#define PREFETCH_OPS         16u

struct ps_agent_job;
struct ps_agent_key;

/* One call of step(). */
struct ps_agent_step {
    struct ps_agent *a;
    ps_time now;
    struct ps_effects *fx;
};

/* The conversation with the scheduler. */
struct ps_agent_uplink {
    struct ps_dialer dialer;
    char liveness_address[PS_ADDRESS_MAX +
                          1]; /* Where this process is seen; "". */
    ps_time heartbeat_interval;
    ps_time next_ping_at;
    ps_time last_ping_at; /* Last ping. */
};

/* Small partitions that are to travel together. */
struct ps_agent_batch {
    enum ps_msg_code msg_code; /* PUSH, INIT or PUSH_ROWS. */
    struct ps_agent_job *job;
    uint8_t reduce;
    uint8_t rule;
    bool assign;
    bool needs_value;
    uint32_t retry;
    uint64_t weight;
    uint32_t part_count;
    uint64_t payload_bytes;
    bool has_name_hashes; /* The labels are sent, too. */
    struct ps_rec_part *parts;
    uint64_t *name_hashes;
    struct ps_rec_rows *row_parts; /* Instead of parts: PUSH_ROWS. */
    struct ps_slice *slices;
    uint32_t slice_count;
};

struct ps_agent_server {
    struct ps_dialer dialer;
    ps_time next_ping_at;  /* While operations wait. */
    ps_time ping_interval; /* Between pings; doubles. */
    uint32_t node;
    uint64_t incarnation;
    char name[PS_NAME_MAX + 1];
    char peer[16];      /* Of its account: "node 5". */
    uint32_t map_epoch; /* Of the last map that had it. */
    bool was_in_map;    /* A map has had it. */
    bool removed;
    uint64_t unsent;    /* With the driver, not yet with the kernel. */
    uint32_t computing; /* Partitions for it being summed. */
    uint64_t computing_bytes;
    uint32_t turn;   /* Which job's queue is asked first. */
    bool needs_pump; /* Its queues may have something to send. */
    struct ps_list send_queues;
    struct ps_agent_batch batch;
};

/* Partitions of one job that wait to go to one server. */
struct ps_agent_send_queue {
    struct ps_list_node node; /* In server->flows. */
    struct ps_agent_server *server;
    struct ps_agent_job *job;
    struct ps_heap heap;
    uint64_t bytes_sent;      /* Push bytes since the session began. */
    uint64_t computing_bytes; /* Bytes that are being summed, to be sent. */
    uint64_t credit;
    ps_time
        backoff_until; /* The server has no memory: nothing goes again before
                         * this; */
    ps_time backoff;   /* that was so long; 0: it took something since. */
};

enum ps_agent_part_state {
    PS_AGENT_PART_IDLE,
    PS_AGENT_PART_QUEUED,
    PS_AGENT_PART_COMPUTING,
    PS_AGENT_PART_SENT,    /* Not committed yet. */
    PS_AGENT_PART_BACKOFF, /* Refused for now; queued again at a time. */
};

/* Of this and what follows: first what each round touches, so that it lies in
 * few cache lines. */
struct ps_agent_part {
    struct ps_heap_item queue_item; /* In the queue of its flow. */
    struct ps_agent_key *key;
    uint32_t index;
    uint32_t owner_node; /* Its server; 0: this agent. */
    uint64_t first_elem; /* Element of the key. */
    uint32_t count;
    enum ps_agent_part_state state;
    bool owner_changed;     /* Its server got it from another one, */
    bool must_resend_state; /* and is to hear again what is known of it here. */
    bool is_init;           /* What is queued or sent is an init. */
    bool residual_revertible; /* [1] may become [0] again. */
    bool encoded_sent;        /* A server may have counted it. */
    bool is_encoding;         /* A computation makes it. */
    bool encoding_cancelled;  /* What that makes is not wanted. */
    bool
        must_request_clock; /* `clock` is to be asked, it may have been lost. */
    int64_t
        committed_version; /* Newest version known to be made; NO_VERSION. */
    int64_t
        local_version; /* Version whose value lies in the results; NO_VERSION. */
    int64_t
        skipped_version; /* Newest known version that all have passed in; NO_VERSION. */
    int64_t
        server_version; /* Rows: version that a server has spoken of; NO_VERSION. */
    uint64_t completed_round; /* Last round that it has ended. */
    int64_t
        requested_version; /* Least version of the pull that is open; NO_VERSION. */
    /* Only where gradients travel as codes; see encode.c. */
    struct ps_slice encoded;    /* buf NULL: none. */
    struct ps_buf *residual[2]; /* Now, and before the code; NULL: zeros. */
    struct ps_buf *moment[2];
    struct ps_agent_residual_record
        *residual_record;   /* Where these lie; NULL: in the pool. */
    uint64_t encoded_round; /* What it is of. */
    /* Of a key without rounds: pulls up to these tickets have the value, and
     * will have it when the open question is answered. */
    uint64_t served_ticket;
    uint64_t requested_ticket;
    uint64_t clock; /* ssp: pushes that every rank of the job has made. */
};

struct ps_agent_state_transfer;
struct ps_agent_residual_record;

/* Memory that workers keep open for the next agent. */
struct ps_agent_residual_segment {
    uint64_t id;
    struct ps_buf *buf; /* The tag is what workers are told. */
};

/* A record of a partition in what an agent before this one has left. */
struct ps_agent_recovered_record {
    struct ps_agent_recovered_record *hash_next; /* Of the same hash. */
    struct ps_buf *segment;                      /* The job's reference. */
    uint64_t name_hash;
    uint64_t offset;
    uint64_t codec_hash;
    uint64_t round_tag;
    uint32_t part_index;
    uint32_t count;
    uint32_t vector_count;
};

/* An operation of a worker that is not done. */
struct ps_agent_op {
    struct ps_list_node node;         /* In the list that waits for it. */
    struct ps_list_node session_node; /* In session->ops. */
    struct ps_agent *agent;
    struct ps_agent_session *session; /* NULL: its worker has died. */
    struct ps_agent_key *key;         /* NULL: barrier or optimizer. */
    uint64_t id;
    uint64_t round;        /* Or least version, or number of the barrier. */
    struct ps_slice array; /* buf NULL: it gives none. */
    uint64_t bytes_ready;  /* Bytes of it that the worker has copied so far. */
    uint32_t local_rank;
    int32_t priority;
    uint32_t root;
    uint32_t samples; /* Its weight in a mean. */
    enum ps_op kind;  /* ATTEND is BROADCAST, */
    bool send_only;   /* whose value is not asked for. */
    uint8_t reduce;
    bool is_barrier;
    struct ps_agent_rows *rows; /* Of a key of rows; NULL: none. */
    struct ps_agent_state_transfer
        *state_transfer;          /* Optimizer state; NULL: none. */
    struct ps_msg *sched_request; /* Optimizer: what the scheduler is told. */
    uint64_t
        charged_bytes; /* Bytes of memory, at the account of the key's job. */
    ps_time started_at;
    uint64_t ticket; /* Of a pull of a key without rounds; 0: none yet. */
};

/* What ranks that had another agent before have said of a key. */
struct ps_agent_prior_state {
    uint64_t min_completed; /* Rounds that one of them has heard the end of, */
    uint64_t max_completed; /* and that another one has. */
    bool *reported;         /* By local rank. */
};

/* Ranks have disagreed about the last begun round of a key. */
struct ps_agent_conflict {
    uint32_t retry;           /* Those below are over. */
    uint32_t *notified_retry; /* By local rank: up to which attempt it knows. */
    char text[PS_TEXT_MAX + 1];
};

struct ps_agent_key {
    struct ps_agent_job *job;
    struct ps_agent_key *same_name_hash;
    struct ps_agent_part *parts;
    uint32_t part_count;
    uint32_t number;
    uint64_t count;
    uint32_t row_width; /* Elements of a row; 0: not a key of rows. */
    uint8_t dtype;
    bool is_collective; /* Its sums are no gradients, whatever the job does. */
    bool is_async;      /* Of an async or ssp job: see below. */
    uint8_t rule;       /* enum ps_rule of the pushes under way. */
    /* The open round. */
    uint64_t round; /* The last begun; pushed[] are this or one less. */
    uint64_t
        round_starts; /* Counts beginnings: one that failed is begun again. */
    bool round_open;  /* Somebody has offered it. */
    bool round_complete; /* Everybody has: it is on its way. */
    bool needs_value;
    uint8_t reduce;
    enum ps_op round_op; /* PASS: as yet, or in the end, all who offered do. */
    uint32_t contributed_count;
    uint32_t streaming_count; /* Offers whose array is not all there. */
    uint32_t
        launched_parts; /* Complete: partitions before this one have gone. */
    uint32_t root;
    struct ps_agent_op **contribution;  /* By local rank; NULL: not yet. */
    struct ps_agent_conflict *conflict; /* NULL: nobody has disagreed. */
    uint64_t *pushed_round;             /* By local rank: rounds offered. */
    struct ps_agent_prior_state
        *prior_state; /* With another agent; NULL: none. */
    bool
        residual_loss_noted; /* It has been said that something of it was lost. */
    int32_t priority;
    uint32_t pending_parts;    /* Partitions that have not reached the round. */
    uint32_t completed_prefix; /* All before this one have. */
    uint64_t reported_bytes;   /* Bytes of the result that workers know of. */
    uint64_t weight;           /* In a mean, of all who offered. */
    struct ps_list deferred_pushes; /* Pushes of the next round. */
    struct ps_list pulls;
    struct ps_list row_pulls;
    struct ps_buf *results;    /* Both versions. NULL: a key of rows. */
    uint64_t result_offset[2]; /* Of even versions, of odd ones. */
    uint64_t name_hash;        /* Of the name. */
    struct ps_compression compression;
    struct ps_list inits;
    struct ps_list state_transfers;
    struct ps_slice init_array;  /* Of the root, while it is being sent. */
    uint32_t pending_init_parts; /* Partitions whose init is not committed. */
    uint64_t init_retry;         /* Counts inits that were sent. */
    /* Without rounds: `round` counts the pushes of this node. */
    uint64_t
        clock; /* ssp: least count of a rank here when these are applied. */
    uint64_t last_ticket;
    uint64_t *applied_round; /* By local rank: its last push that is applied. */
    /* What was declared. */
    struct ps_list_node
        opening_node; /* In job->opening until the scheduler answers. */
    char name[PS_KEY_NAME_MAX + 1];
    uint64_t *shape;
    uint32_t shape_count;
    int64_t mxnet_key;
    uint64_t open_request;
    uint8_t if_absent; /* enum ps_find, the least of those who ask. */
    bool is_open;      /* Answered. */
    bool open_sent;    /* The scheduler is to answer. */
    uint32_t placement_epoch;
    struct ps_list waiters; /* struct ps_agent_key_waiter */
    uint64_t charged_bytes; /* Bytes of memory at the job's account, */
    uint32_t charged_parts; /* and partitions. */
};

struct ps_agent_key_waiter {
    struct ps_list_node node;
    struct ps_agent_session *session;
    uint64_t request;
};

struct ps_agent_rank {
    uint32_t rank;
    uint64_t worker;
    uint8_t state;
    struct ps_agent_session *session; /* NULL: none now. */
    uint64_t entered_barriers;        /* Entered. */
};

/* Whoever has sessions or jobs here. */
struct ps_agent_user {
    struct ps_agent *agent;
    uint32_t uid;
    uint32_t refs; /* By sessions, jobs, and what outlives them. */
    uint32_t stall_queries_sent;
    struct ps_account account;
};

/* Results of a job that is over, while frames still use them. */
struct ps_agent_draining_pool {
    struct ps_pool *pool;
    struct ps_agent_user *user; /* Pays for them; NULL: nobody. */
    uint64_t charged_bytes;
};

/* A mapping that somebody still reads counts until it is released. */
struct ps_agent_mapping {
    struct ps_list_node node;         /* In session->holds. */
    struct ps_agent_session *session; /* NULL: gone, the user pays. */
    struct ps_agent_user *user;
    struct ps_buf *buf;
};

struct ps_agent_job {
    uint64_t gen;
    uint32_t state_version; /* 0: no job_state yet. */
    char name[PS_NAME_MAX + 1];
    uint8_t phase;
    char end_reason[PS_TEXT_MAX + 1];
    uint32_t num_workers;
    uint32_t num_servers;
    bool has_optimizer;
    uint8_t mode;
    uint8_t rule;
    uint32_t staleness; /* ssp */
    uint32_t slot;
    bool ranks_assigned; /* slot and local are known. */
    struct ps_agent_rank *local_ranks;
    uint32_t local_rank_count;
    uint32_t *slot_by_rank; /* By rank, once seated. */
    uint32_t rank_count;
    uint32_t session_count; /* That belong to it. */
    struct ps_pool *result_pool;
    struct ps_map *keys; /* By number. */
    struct ps_map
        *keys_by_name; /* First key of a label, by ps_name_hash_slot. */
    struct ps_map *
        pending_placements; /* struct ps_agent_pending_placement by number of the key. */
    uint32_t key_count;
    struct ps_list
        opening_keys; /* Keys: those that were asked for, then others. */
    uint32_t opens_in_flight; /* So many were, */
    struct ps_list_node
        *next_unsent_open;      /* and this is the first that was not. */
    struct ps_map *send_queues; /* By node. */
    struct ps_list barrier_ops; /* Operations that wait at one. */
    uint64_t completed_barriers;
    struct ps_list sched_ops;
    struct ps_agent_residual_segment *segments;
    uint32_t segment_count;
    uint32_t tail_segment;   /* The piece, + 1, with room; 0: none yet. */
    uint64_t tail_used;      /* Of that. */
    uint64_t residual_bytes; /* Of all. */
    uint64_t record_count;   /* Looked at in pieces of other agents. */
    struct ps_map *
        recovered_records; /* struct ps_agent_recovered_record by ps_name_hash_slot. */
    uint64_t name_hash_seed;         /* Of ps_name_hash_slot. */
    uint64_t residual_charged_bytes; /* Bytes of memory at `account`. */
    struct ps_agent_user *user;      /* NULL: nobody of it was seated here. */
    struct ps_account account;
};

enum ps_agent_session_state {
    PS_AGENT_SESSION_NEW,     /* No l_hello yet. */
    PS_AGENT_SESSION_OPENING, /* Waits for its job to run. */
    PS_AGENT_SESSION_ACTIVE,
};

struct ps_agent_session {
    struct ps_list_node node; /* In agent->sessions. */
    ps_conn_id conn;
    uint64_t worker;
    uint32_t uid;
    enum ps_agent_session_state state;
    struct ps_msg *hello; /* Own copy of l_hello. */
    uint64_t gen;         /* 0: job_open is not answered. */
    struct ps_agent_job *job;
    uint32_t local_rank; /* Index of its rank in job->local. */
    bool clean_exit;
    bool
        is_deferred; /* Its job_open waits, see ps_agent_session_send_deferred. */
    bool is_closing;          /* Hung up on; what still comes is ignored. */
    bool reoffer;             /* An earlier scheduler was told of it. */
    uint32_t unreported_keys; /* Resumed: keys whose rounds it has not said. */
    struct ps_map *regions;   /* number -> struct ps_buf */
    struct ps_map *unmapped;  /* Regions that could not be: number -> text. */
    struct ps_map *announced_arenas; /* Told of: tag -> anything. */
    struct ps_map *known_segments;   /* It has: id -> anything. */
    struct ps_list ops;
    uint32_t op_count;
    struct ps_list mappings;      /* struct ps_agent_mapping */
    struct ps_list stall_queries; /* struct ps_agent_stall_query */
    uint32_t query_rate_count;    /* That it has made since this time. */
    ps_time query_rate_since;
    struct ps_agent_user *user;
    struct ps_account account;
};

/* Something is being computed. */
struct ps_agent_computation {
    uint64_t token;
    struct ps_agent_part *part;             /* NULL: its key is gone. */
    struct ps_agent_send_queue *send_queue; /* Sum for a server; NULL: local. */
    struct ps_slice dst;
    uint32_t row_count;    /* Of a key of rows: how many there are in dst. */
    int64_t version;       /* Local: what it makes; code: its round. */
    uint64_t round_starts; /* Of the round whose arrays it has read. */
    bool is_encode;
    uint64_t bytes;
};

/* A new placement that came before the first answer about its key. */
struct ps_agent_pending_placement {
    uint32_t epoch;
    uint32_t part_count;
    struct ps_buf *table;
};

/* Jobs that have ended here, whose earlier states may still come: links keep no
 * order. */
#define PS_AGENT_ENDED_JOBS 64u

/* A worker that has gone: said again to a scheduler that has forgotten us. */
struct ps_agent_departed_worker {
    uint64_t gen;
    uint64_t worker;
    bool clean_exit;
    bool rounds_unknown; /* In the middle of a resume. */
};

/* What an operation waits for: a question to the scheduler without an answer,
 * or without a place among those that it is asked at a time. */
struct ps_agent_stall_query {
    struct ps_list_node node; /* In session->questions. */
    uint64_t request;
    uint64_t gen;
    struct ps_agent_session *session; /* NULL: gone; the answer is dropped. */
    struct ps_agent_user *user;       /* A reference. */
    bool is_sent;
    uint64_t op_id;
    uint32_t key;
    uint64_t round;
    bool is_barrier;
    char local_text[256]; /* The operation, and how long it has waited. */
    char awaited[256];    /* Servers that have something of it to do. */
};

struct ps_agent {
    struct ps_agent_options opt;
    struct ps_rng rng;
    ps_time now;
    struct ps_agent_uplink uplink;
    ps_time name_refused_since; /* Another process has our name; 0: none has. */
    bool name_lost;             /* For good: this daemon ends. */
    uint64_t
        sched_instance; /* Instance of the scheduler that gave what follows. */
    uint32_t node;
    uint64_t incarnation;
    ps_time next_costs_at;
    uint32_t map_epoch;
    bool draining;
    struct ps_map *servers; /* By node. */
    struct ps_list sessions;
    struct ps_map *sessions_by_conn; /* Sessions. */
    struct ps_map *servers_by_conn;  /* Servers, until the connection closes. */
    struct ps_map *jobs;             /* By generation. */
    uint64_t ended_jobs
        [PS_AGENT_ENDED_JOBS]; /* Generations, the oldest at over_next. */
    uint32_t ended_jobs_next;
    struct ps_map *computations;  /* By token. */
    struct ps_map *stall_queries; /* By request. */
    struct ps_map *users;         /* By uid. */
    struct ps_account account;
    uint64_t last_worker;
    uint64_t last_token;
    uint64_t last_request;
    struct ps_agent_draining_pool *draining_pools;
    uint32_t draining_pool_count;
    /* Regions of sessions that have ended, in this order: to unmap many takes
     * longer than others should wait. */
    struct ps_map *unmapping_sessions;
    uint64_t last_unmapping;
    ps_time next_unmap_at; /* PS_TIME_NEVER: there are none. */
    struct ps_agent_departed_worker *departed_workers;
    uint32_t departed_worker_count;
    uint32_t deferred_session_count; /* Sessions whose job_open waits. */
    uint32_t op_count;               /* Of all sessions. */
    uint32_t servers_met;            /* Of servers met so far. */
    struct ps_agent_op **spare_ops;  /* A stack. */
    uint32_t spare_op_count;
    uint32_t spare_op_capacity;
    uint64_t residual_bytes; /* Of all jobs. */
    bool must_flush;         /* Gathered partitions wait for the tick. */
    /* Where small sums lie one behind the other until then; NULL: nowhere. */
    struct ps_buf *batch_arena;
    uint64_t batch_arena_used;
    ps_time scratch_retry_at; /* PS_TIME_NEVER: nobody is. */
    ps_time resend_at;        /* Partitions held back; PS_TIME_NEVER. */
    ps_time scratch_trim_at;  /* Free memory of sums; PS_TIME_NEVER. */
    struct ps_agent_stats stats;
};

/* agent.c */
uint64_t ps_agent_key_bytes(const struct ps_agent_key *k);
uint64_t ps_agent_part_bytes(const struct ps_agent_part *p);

/* budget.c */
void ps_agent_budget_init(struct ps_agent *a);
void ps_agent_budget_fini(struct ps_agent *a);
struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid);
void ps_agent_user_put(struct ps_agent_user *u);
/* A session takes a place. Refused: nothing is left of it. */
PS_MUST_USE int ps_agent_budget_open_session(struct ps_agent *a,
                                             struct ps_agent_session *s,
                                             uint32_t pid,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_close_session(struct ps_agent_session *s);
/* The session counts at its job from now on. */
void ps_agent_budget_assign_job(struct ps_agent_session *s,
                                struct ps_agent_job *j);
/* The job holds nothing any more. */
void ps_agent_budget_close_job(struct ps_agent_job *j);
/* A key, as it is declared: itself and its results. The job has it refunded
 * with the key. */
PS_MUST_USE int ps_agent_budget_charge_key(struct ps_agent_job *j,
                                           const struct ps_msg_l_key *m,
                                           uint64_t *ret_charged,
                                           struct ps_refusal *ret_refusal);
/* Its table of partitions, once their number is known. */
PS_MUST_USE int ps_agent_budget_charge_parts(struct ps_agent_key *k,
                                             uint32_t count,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_refund_key(struct ps_agent_key *k);
/* The results of a job that is over, which frames still carry. */
void ps_agent_budget_charge_pool(struct ps_agent_job *j,
                                 struct ps_agent_draining_pool *g);
void ps_agent_budget_refund_pool(struct ps_agent_draining_pool *g);
/* A mapping that the session has brought; *ret_buf owns a reference of it, and
 * pays back at its last unref. */
PS_MUST_USE int ps_agent_budget_charge_mapping(struct ps_agent_session *s,
                                               struct ps_buf *buf,
                                               struct ps_buf **ret_buf,
                                               struct ps_refusal *ret_refusal);

/* uplink.c */
void ps_agent_uplink_init(struct ps_agent *a, ps_time now);
/* `pulse` may be NULL. */
void ps_agent_uplink_on_open(struct ps_agent_step *st, ps_conn_id conn,
                             const char *pulse);
void ps_agent_uplink_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why);
void ps_agent_uplink_on_closed(struct ps_agent_step *st, ps_conn_id conn);
void ps_agent_uplink_on_msg(struct ps_agent_step *st, ps_conn_id conn,
                            const struct ps_msg *m,
                            const struct ps_slice *payload);
void ps_agent_uplink_tick(struct ps_agent_step *st);
ps_time ps_agent_uplink_deadline(const struct ps_agent *a);
/* Tell the scheduler, in sequence; kept until it hears. */
void ps_agent_uplink_send_msg(struct ps_agent_step *st, const struct ps_msg *m);

/* The greeting on a connection to the scheduler or a server. */
void ps_agent_send_hello(struct ps_agent_step *st, const struct ps_dialer *c,
                         ps_conn_id conn);

/* server_conn.c */
void ps_agent_server_on_open(struct ps_agent_step *st, uint64_t target,
                             ps_conn_id conn);
void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why);
void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn);
/* What is sent on `conn` does not get through. */
void ps_agent_server_on_stalled(struct ps_agent_step *st,
                                struct ps_agent_server *s, ps_conn_id conn);
void ps_agent_server_on_ping_req(struct ps_agent_step *st,
                                 const struct ps_msg_ping_req *m);
void ps_agent_server_tick(struct ps_agent_step *st, struct ps_agent_server *s);
ps_time ps_agent_server_deadline(const struct ps_agent *a,
                                 const struct ps_agent_server *s);
struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node);
void ps_agent_server_on_map(struct ps_agent_step *st,
                            const struct ps_msg_map *m);
void ps_agent_server_on_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                            ps_conn_id conn, const struct ps_msg *m,
                            const struct ps_slice *payload);
void ps_agent_server_free(struct ps_agent_server *s);
/* Nothing is needed of it any more. */
void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s);
int ps_agent_server_payload(struct ps_agent *a, struct ps_agent_server *s,
                            const struct ps_msg *m, uint64_t len,
                            struct ps_slice *ret_slice);

/* send_queue.c */
struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node);
void ps_agent_send_queue_free(struct ps_agent_send_queue *f);
void ps_agent_send_enqueue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_dequeue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_pump(struct ps_agent_step *st, struct ps_agent_server *s);
void ps_agent_send_pump_all(struct ps_agent_step *st);
/* `error`: of the computation, 0 or a PS_E_*. */
void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error);
void ps_agent_send_flush(struct ps_agent_step *st, struct ps_agent_server *s);
/* The next small sums begin anew. */
void ps_agent_send_release_arena(struct ps_agent *a);
void ps_agent_send_drop_batch(struct ps_agent_job *j,
                              struct ps_agent_server *s);
/* The server has taken something of the job, or has no memory for it. */
void ps_agent_send_end_backoff(struct ps_agent_step *st,
                               struct ps_agent_server *s, uint64_t gen);
void ps_agent_send_begin_backoff(struct ps_agent_step *st,
                                 struct ps_agent_send_queue *f);
/* True: the refused part waits for memory of its server. */
bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p);
void ps_agent_send_raise_credit(struct ps_agent_step *st,
                                struct ps_agent_server *s, uint64_t gen,
                                uint64_t credit);
/* The link is a new one: all that is not committed goes again. */
void ps_agent_send_resend(struct ps_agent_step *st, struct ps_agent_server *s);

/* encode.c */
/* Does what goes to the server travel as a code? */
bool ps_agent_encode_applies(const struct ps_agent_part *p);
/* Sum and encode. PS_E_NOMEM: nothing has happened. */
int ps_agent_encode_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p,
                          const struct ps_slice *slices, uint32_t count);
/* Is there the code of the open round? */
bool ps_agent_encode_is_ready(const struct ps_agent_part *p);
void ps_agent_encode_on_computed(struct ps_agent_part *p,
                                 struct ps_agent_computation *run);
/* The round is over. */
void ps_agent_encode_discard(struct ps_agent_part *p);
/* The round has failed, and may be offered anew. */
void ps_agent_encode_round_failed(struct ps_agent_part *p);
/* Its server did not count what it got of that round. */
void ps_agent_encode_refused(struct ps_agent_part *p, uint64_t round);
void ps_agent_encode_free(struct ps_agent_part *p);

/* residual_log.c */
/* Does what the code leaves over lie in memory that outlives this process? It
 * is made, or what another agent has left there is found. */
bool ps_agent_residual_attach(struct ps_agent_step *st,
                              struct ps_agent_part *p);
/* Has another agent encoded the open round? */
bool ps_agent_residual_is_encoded(const struct ps_agent_part *p);
/* Then: go back to what was there before it; and forth. */
void ps_agent_residual_rewind(struct ps_agent_part *p);
void ps_agent_residual_forward(struct ps_agent_part *p);
/* Where an encoding writes, one reference; NULL: nowhere. */
struct ps_buf *ps_agent_residual_target(const struct ps_agent_part *p);
struct ps_buf *ps_agent_moment_target(const struct ps_agent_part *p);
/* What the partition has now is of this round. */
void ps_agent_residual_commit(struct ps_agent_part *p, uint64_t round);
void ps_agent_residual_detach(struct ps_agent_part *p);
void ps_agent_residual_job_free(struct ps_agent *a, struct ps_agent_job *j);
/* The session hears of what it does not have. */
void ps_agent_residual_announce(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* A process gives back what another agent has left. */
void ps_agent_residual_on_segment(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_buf *buf);

/* session.c */
void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev);
void ps_agent_session_on_closed(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* As a message each; at most PREFETCH_OPS. */
void ps_agent_session_on_ops(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_session_on_msg(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg *m);
void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf);
/* Memory that could not be mapped. Where the agent lacks room for a region,
 * operations that name it are refused in these words; else, and for region 0,
 * the session ends. */
void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why);
/* The session has no such region: the error, and why it has none. */
int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why);
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a limit, in its words. */
void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why);
void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* A worker that takes the place of one that died must not be heard of before
 * that death, and links do not keep order: its job_open waits until the
 * scheduler has acknowledged everything said before. */
void ps_agent_session_send_deferred(struct ps_agent_step *st);
void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s);
/* Departures are said again; those of a job that is over are forgotten. */
void ps_agent_departed_resend(struct ps_agent_step *st);
void ps_agent_departed_drop_job(struct ps_agent *a, uint64_t gen);
/* Another scheduler never knew of them; of those whose job is here it is told,
 * so that it says that the job is over. */
void ps_agent_departed_drop_unknown(struct ps_agent *a);
void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s);
/* Lets go of some regions of sessions that have ended. */
void ps_agent_unmap_regions(struct ps_agent *a);
struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id);
/* Answers the worker, if it lives, and frees. */
void ps_agent_op_end(struct ps_agent_step *st, struct ps_agent_op *op,
                     uint64_t version, int error, const char *text);
/* Of a pass, in whose round all have passed. */
void ps_agent_op_end_skipped(struct ps_agent_step *st, struct ps_agent_op *op,
                             uint64_t version);
void ps_agent_op_free(struct ps_agent_op *op);

/* diagnose.c */
void ps_agent_diagnose_op(struct ps_agent_step *st, struct ps_agent_session *s,
                          uint64_t op_id);
/* Adds what the key lacks of servers that this agent does not hear. */
void ps_agent_report_unheard(const struct ps_agent_step *st,
                             const struct ps_agent_key *k, struct ps_str *t);
void ps_agent_diagnose_on_reply(struct ps_agent_step *st,
                                const struct ps_msg_stall_reply *m);
void ps_agent_diagnose_resend(struct ps_agent_step *st);
void ps_agent_diagnose_fini(struct ps_agent *a);
/* The session is gone: its questions are dropped. */
void ps_agent_diagnose_drop_session(struct ps_agent *a,
                                    struct ps_agent_session *s);

/* job.c */
struct ps_agent_job *ps_agent_job_find(const struct ps_agent *a, uint64_t gen);
void ps_agent_job_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_job_opened *m);
void ps_agent_job_on_state(struct ps_agent_step *st,
                           const struct ps_msg_job_state *m);
void ps_agent_job_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_job *j);
/* Free the memory of jobs that are over and that no frame uses any more. */
void ps_agent_job_reap_pools(struct ps_agent *a);
/* Free it when nobody needs it any more. */
void ps_agent_job_free_if_unused(struct ps_agent_step *st,
                                 struct ps_agent_job *j);
void ps_agent_job_on_barrier_done(struct ps_agent_step *st,
                                  const struct ps_msg_barrier_done *m);
void ps_agent_job_send_barriers(struct ps_agent_step *st,
                                struct ps_agent_job *j);
void ps_agent_job_on_optimizer_done(struct ps_agent_step *st,
                                    const struct ps_msg_optimizer_done *m);
void ps_agent_job_on_stall_collect(struct ps_agent_step *st,
                                   const struct ps_msg_stall_collect *m);
/* A fresh link to the scheduler: everything open is said again. */
/* Another scheduler: jobs that have not begun for anybody here open again. */
void ps_agent_job_reoffer(struct ps_agent_step *st);
void ps_agent_job_resend_all(struct ps_agent_step *st);

/* key.c */
/* Bytes of the two results of such a key; 0: it has none here. */
uint64_t ps_agent_key_result_bytes(uint64_t bytes);
void ps_agent_key_waiter_free(struct ps_agent_key_waiter *asker);
void ps_agent_key_on_declare(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_key *m);
void ps_agent_key_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_key_opened *m,
                            const struct ps_slice *payload);
void ps_agent_key_send_open(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_key_drop_placements(struct ps_agent_job *j);
/* Give the new owner of a partition the newest version held here. */
void ps_agent_part_send_state(struct ps_agent_step *st,
                              struct ps_agent_part *p);
void ps_agent_key_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_key *k);
/* The memory that operations, or a frame from a server, are about to touch is
 * fetched: thousands of keys do not stay in the cache between two rounds. At
 * most PREFETCH_OPS of each. */
void ps_agent_prefetch_ops(const struct ps_agent *a,
                           const struct ps_agent_session *s,
                           const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_prefetch_parts(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *part, uint32_t count);
struct ps_agent_part *ps_agent_part_find(const struct ps_agent *a, uint64_t gen,
                                         const struct ps_rec_part *rec);
/* The same, whatever its elements are. */
struct ps_agent_part *
ps_agent_part_find_any_dtype(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *rec);

/* round.c */
void ps_agent_op_accept(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m);
void ps_agent_round_part_advanced(struct ps_agent_step *st,
                                  struct ps_agent_part *p);
void ps_agent_round_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
/* The offers are all there: the partitions go. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k);
/* The server says that all have passed in the round of this version. */
void ps_agent_round_part_skipped(struct ps_agent_part *p, uint64_t version);
/* What this node gives to a partition: arrays in rank order. */
uint32_t ps_agent_round_part_sources(const struct ps_agent_part *p,
                                     struct ps_slice *slices);
/* Its sum or init is under way: to its server, or here. */
void ps_agent_round_launch_part(struct ps_agent_step *st,
                                struct ps_agent_part *p);
void ps_agent_round_on_computed(struct ps_agent_step *st,
                                struct ps_agent_computation *run, int error);
/* Have all ranks here copied what they give to it? */
bool ps_agent_round_is_part_ready(const struct ps_agent_part *p);
/* Has the rank not offered the round, or does it still copy what it gives? */
bool ps_agent_round_awaits_rank(const struct ps_agent_key *k, uint32_t local,
                                uint64_t round);

/* Says no to an operation, in words. */
void ps_agent_op_reject(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m, int error, const char *fmt,
                        ...) __attribute__((format(printf, 5, 6)));

/* reattach.c */
/* A rank is seated that had another agent. */
void ps_agent_reattach_session(struct ps_agent_session *s);
/* It names a key again. False: it has been hung up on. */
bool ps_agent_reattach_key(struct ps_agent_step *st, struct ps_agent_session *s,
                           struct ps_agent_key *k, uint64_t pushed);
/* The key is open: what is known of its past. */
void ps_agent_reattach_key_opened(struct ps_agent_step *st,
                                  struct ps_agent_key *k);
/* An operation of a round whose end another rank here has heard already; true:
 * it has been dealt with. */
bool ps_agent_reattach_accept_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
/* All ranks here have offered a round: what of it is made already. */
void ps_agent_reattach_advance(struct ps_agent_step *st,
                               struct ps_agent_key *k);
void ps_agent_reattach_free(struct ps_agent_key *k);

/* async.c */
/* Does the operation make sense on a key without rounds? False: refused. */
bool ps_agent_async_validate_op(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_agent_key *k,
                                const struct ps_msg_l_op *m,
                                const struct ps_slice *array);
/* A push that waits for its turn, whose worker dies: does it stay? */
bool ps_agent_async_push_survives(const struct ps_agent_op *op);
/* Push, pull and pushpull. */
void ps_agent_async_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
void ps_agent_async_start_push(struct ps_agent_step *st,
                               struct ps_agent_key *k);
/* Every partition has applied what was on its way. */
void ps_agent_async_push_applied(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
void ps_agent_async_fail_ops(struct ps_agent_step *st, struct ps_agent_key *k,
                             int error, const char *text);
/* Ends the pulls and inits that have their value; asks for the others. */
void ps_agent_async_advance(struct ps_agent_step *st, struct ps_agent_key *k);
/* What every rank of the job has pushed. */
void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock);
void ps_agent_async_reset_clock(struct ps_agent_key *k, uint32_t node);
/* The answer to the partition's question. */
void ps_agent_async_accept_value(struct ps_agent_step *st,
                                 struct ps_agent_part *p, const uint8_t *from);

/* rows.c */
uint32_t ps_agent_rows_in_key(const struct ps_agent_key *k);
/* Bytes that an operation with `count` rows takes here. */
uint64_t ps_agent_rows_memory(const struct ps_agent_key *k, uint32_t count);
/* Copies the `count` numbers at the beginning of the block, at most the rows
 * of the key. PS_E_INVAL when they are not ascending, or not all in the key;
 * PS_E_NOMEM. */
PS_MUST_USE int ps_agent_rows_new(const struct ps_agent_key *k,
                                  const struct ps_slice *block, uint32_t count,
                                  struct ps_agent_rows **ret_rows);
void ps_agent_rows_free(struct ps_agent_rows *r); /* NULL is fine. */
/* What the ranks here give to a partition, into run->dst with run->rows; the
 * computation is NULL when they give nothing. PS_E_NOMEM: nothing has
 * happened. */
int ps_agent_rows_plan_sum(struct ps_agent *a, struct ps_agent_part *p,
                           struct ps_agent_computation *run,
                           struct ps_compute **ret_compute);
void ps_agent_rows_accept_pull(struct ps_agent_step *st,
                               struct ps_agent_op *op);
/* Asks for what is not asked for. */
void ps_agent_rows_advance(struct ps_agent_step *st, struct ps_agent_key *k);
/* Questions to a node (0: all), or about a partition (UINT32_MAX: all), are
 * not known there and must be asked again. */
void ps_agent_rows_reset_requests(struct ps_agent_key *k, uint32_t node,
                                  uint32_t part);
void ps_agent_rows_on_rows(struct ps_agent_step *st,
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload);
/* Bytes that must come with it; 0: it makes no sense, or has none. */
uint64_t ps_agent_rows_payload_bytes(const struct ps_msg_rows *m);
/* Is there a version of at least `least`? */
void ps_agent_rows_request_version(struct ps_agent_step *st,
                                   struct ps_agent_part *p, int64_t least);

/* conflict.c */
/* Which attempt at its round the key is at. */
uint32_t ps_agent_conflict_retry(const struct ps_agent_key *k);
/* A new round begins: nobody has disagreed. */
void ps_agent_conflict_clear(struct ps_agent_key *k);
/* Has the rank, that offers once more or late, heard of it? Else it is told,
 * and its operation is over. */
bool ps_agent_conflict_notify_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
/* Ranks of this node disagree: `op` with those who came before. */
void ps_agent_conflict_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                             const char *text);
/* A server refuses a part of a round for what others ask for. */
void ps_agent_conflict_on_refuse(struct ps_agent_step *st,
                                 struct ps_agent_key *k, uint64_t round,
                                 uint32_t attempt, const char *text);
/* The server may have lost what it was told. */
void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node);

/* pull.c */
void ps_agent_pull_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
void ps_agent_pull_advance(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_init_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Sends what the root gave, if it waits. */
void ps_agent_init_start_pending(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
/* The init of this partition is committed where nobody answers any more: true
 * when the root is here and it is to be sent again. */
bool ps_agent_init_reopen_part(struct ps_agent_part *p);
void ps_agent_init_part_committed(struct ps_agent_step *st,
                                  struct ps_agent_part *p);
/* Ask again whatever was asked of this server. */
void ps_agent_pull_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                          uint32_t node);

/* opt_state.c */
void ps_agent_opt_state_accept_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_optimizer_state *m);
void ps_agent_opt_state_on_state(struct ps_agent_step *st,
                                 const struct ps_msg_state *m,
                                 const struct ps_slice *payload);
/* The server has forgotten what it was asked; sends that again. */
void ps_agent_opt_state_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                               uint32_t node);
/* The partition is at another server, and what was asked of it is to be asked
 * there. */
void ps_agent_opt_state_reset_part(struct ps_agent_step *st,
                                   struct ps_agent_part *p);
/* Asks what may be asked. */
void ps_agent_opt_state_advance(struct ps_agent_step *st,
                                struct ps_agent_key *k);
