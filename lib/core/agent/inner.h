/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the agent machine: structs and functions that its files share.
 * Only files of this folder include it.
 *
 *     agent.c         the machine's entry points, timers, inspection
 *     uplink.c        link to the scheduler: reports, messages
 *     server_conn.c   links to servers: dialling, pings, replies
 *     send_queue.c    send queues per server: priority, credit, sums
 *     encode.c        encoded gradients and their residuals
 *     budget.c        accounts of sessions, jobs and users
 *     session.c       training processes: hello, memory, barriers
 *     diagnose.c      stall queries: the reason why an operation waits
 *     residual_log.c  residuals in memory that outlives the agent
 *     job.c           jobs: from job_state to the end
 *     key.c           keys: placement, results, takeover
 *     kind.h          what kinds of keys do differently
 *     sync.c          dense keys with rounds
 *     round.c         rounds over the ranks of this node
 *     reattach.c      workers that lost an earlier agent
 *     async.c         keys of async and ssp jobs, which have no rounds
 *     pull.c          pull and init
 *     conflict.c      rounds aborted because of conflicting requests
 *     rows.c          rows keys (row-sparse)
 *     prefetch.c      cache prefetch ahead of a batch of operations
 *     opt_state.c     transfers of optimizer state */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "core/agent/agent.h"
#include "core/agent/kind.h"
#include "core/link/dialer.h"
#include "core/codec/compression.h"
#include "core/base/ledger.h"
#include "core/link/link.h"
#include "core/link/uplink.h"

/* Wait before a request refused for a transient reason is sent again. */
#define RESEND_WAIT          PS_MILLIS(50)
/* Longest wait for a server without memory; the wait doubles each time. */
#define FULL_BACKOFF_MAX     PS_SECONDS(1)
/* Wait before a sum is retried for which the scratch pool had no memory. */
#define SCRATCH_RETRY_WAIT   PS_MILLIS(5)
/* Most partitions being summed for one server at a time, so that an urgent
 * partition does not wait behind many that are summed already. */
#define COMPUTING_MAX        1024u
/* The same limit in bytes. */
#define COMPUTING_BYTES_MAX  (4u * 1024u * 1024u)
/* Default of ps_agent_options.unsent_max, in bytes. */
#define UNSENT_DEFAULT       (2u * 1024u * 1024u)
/* Departed workers remembered; when there are more, the oldest is dropped. */
#define DEPARTED_WORKERS_MAX 4096u
#define NO_VERSION           (-1) /* No version yet. */
/* Progress of a partial result is reported each time this many bytes are
 * added: small against a cache, large against the cost of a wake-up. */
#define PROGRESS_BYTES       (2u * 1024u * 1024u)
/* Ended operations kept for reuse. */
#define SPARE_OPS_MAX        16384u
/* Operations, or parts of a frame, handled as one batch: prefetch.c. */
#define PREFETCH_OPS         16u

struct ps_agent_job;
struct ps_agent_key;

/* Context of one call of step(). */
struct ps_agent_step {
    struct ps_agent *a;
    ps_time now;
    struct ps_effects *fx;
};

/* Small partitions of one job that travel in one frame to one server. */
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
    bool has_name_hashes; /* name_hashes are sent too. */
    struct ps_rec_part *parts;
    uint64_t *name_hashes;
    struct ps_rec_rows *row_parts; /* PUSH_ROWS: used instead of `parts`. */
    struct ps_slice *slices;
    uint32_t slice_count;
};

struct ps_agent_server {
    struct ps_dialer dialer;
    ps_time next_ping_at;  /* Applies while operations wait. */
    ps_time ping_interval; /* Doubles with each ping. */
    uint32_t node;
    uint64_t incarnation;
    char name[PS_NAME_MAX + 1];
    char peer[16];      /* Name of the link's account: "node 5". */
    uint32_t map_epoch; /* Newest map that lists the server. */
    bool was_in_map;    /* Some map has listed it. */
    bool removed;       /* The newest map does not list it. */
    uint64_t unsent;    /* Bytes with the driver, not yet with the kernel. */
    uint32_t computing; /* Partitions being summed or encoded for it. */
    uint64_t computing_bytes;
    bool needs_pump; /* Its queues may have something to send. */
    struct ps_list send_queues;
    struct ps_agent_batch batch;
};

/* Partitions of one job that wait to be sent to one server. */
struct ps_agent_send_queue {
    struct ps_list_node node; /* In server->send_queues. */
    struct ps_agent_server *server;
    struct ps_agent_job *job;
    struct ps_heap heap;
    uint64_t bytes_sent;      /* Push bytes since the link's session began. */
    uint64_t computing_bytes; /* Bytes being summed, to be sent next. */
    uint64_t credit;
    /* The server has no memory: refused partitions wait until then. */
    ps_time backoff_until;
    ps_time backoff; /* Last wait; 0: the server accepted something since. */
};

enum ps_agent_part_state {
    PS_AGENT_PART_IDLE,
    PS_AGENT_PART_QUEUED,
    PS_AGENT_PART_COMPUTING,
    PS_AGENT_PART_SENT, /* Not committed yet. */
    PS_AGENT_PART_BACKOFF, /* Refused for a passing reason; enqueued at resend_at. */
};

/* A partition of a key. In this struct and those below, fields that each round
 * touches come first, so that they lie in few cache lines. */
struct ps_agent_part {
    struct ps_heap_item queue_item; /* In send_queue->heap. */
    struct ps_agent_key *key;
    uint32_t index;
    uint32_t owner_node; /* Server that owns it; 0: this agent. */
    uint64_t first_elem; /* Element of the key. */
    uint32_t count;
    uint8_t state; /* enum ps_agent_part_state. */
    /* Its server took it over from another one, or may have. */
    bool owner_changed;
    bool must_resend_state;   /* Its server has to get our state again. */
    bool is_init;             /* The queued or sent contribution is an init. */
    bool residual_revertible; /* residual[1] may become residual[0] again. */
    bool encoded_sent;        /* A server may have counted `encoded`. */
    bool is_encoding;         /* A computation makes `encoded`. */
    bool encoding_cancelled;  /* Its result is to be dropped. */
    bool must_request_clock;  /* `clock` may be stale: replies were lost. */
    /* Newest version that is known to be committed; NO_VERSION. */
    int64_t committed_version;
    /* Version whose value lies in the results; NO_VERSION. */
    int64_t local_version;
    /* Newest version known to come from an all-skipped round; NO_VERSION. */
    int64_t skipped_version;
    /* Rows key: newest version that its server reported; NO_VERSION. */
    int64_t server_version;
    uint64_t completed_round; /* Last round that is over for it. */
    /* Least version of the open pull; NO_VERSION: none is open. */
    int64_t requested_version;
    /* The next fields are used only with a codec; see encode.c. */
    struct ps_slice encoded; /* buf NULL: none. */
    /* Current residual, and the one before `encoded`; NULL: zeros. */
    struct ps_buf *residual[2];
    struct ps_buf *moment[2]; /* As `residual`. */
    /* Log record with both vectors; NULL: they lie in the scratch pool. */
    struct ps_agent_residual_record *residual_record;
    uint64_t encoded_round; /* Round of `encoded`. */
    /* Async: pulls up to this ticket have the value. */
    uint64_t served_ticket;
    /* Async: pulls up to this ticket get the value with the next reply. */
    uint64_t requested_ticket;
    uint64_t clock; /* ssp: pushes that every rank of the job has made. */
};

struct ps_agent_state_transfer;
struct ps_agent_residual_record;

/* Shared memory file that workers keep open for the next agent. */
struct ps_agent_residual_segment {
    uint64_t id;        /* Random; also in the segment's header. */
    struct ps_buf *buf; /* Workers know the segment by the buffer's tag. */
};

/* Residual record that an earlier agent left in a segment. */
struct ps_agent_recovered_record {
    struct ps_agent_recovered_record *hash_next; /* Same hash. */
    struct ps_buf *segment;                      /* The job's reference. */
    uint64_t name_hash;
    uint64_t offset; /* Of the record in `segment`. */
    uint64_t codec_hash;
    uint64_t round_tag;
    uint32_t part_index;
    uint32_t count;
    uint32_t vector_count;
};

/* An unfinished operation of a worker. */
struct ps_agent_op {
    struct ps_list_node node;         /* In the list where it waits. */
    struct ps_list_node session_node; /* In session->ops. */
    struct ps_agent *agent;
    struct ps_agent_session *session; /* NULL: its worker has died. */
    struct ps_agent_key *key;         /* NULL: barrier or optimizer. */
    uint64_t id;
    /* Or least version, barrier number, or number of sched_request. */
    uint64_t round;
    struct ps_slice array; /* buf NULL: the operation has no array. */
    uint64_t bytes_ready;  /* Bytes of `array` that the worker has copied. */
    uint32_t local_rank;
    int32_t priority;
    uint32_t root;
    uint32_t samples; /* Weight in a mean. */
    enum ps_op kind;  /* BROADCAST_SEND_ONLY: kept as BROADCAST. */
    bool send_only;   /* Broadcast whose value is not wanted. */
    uint8_t reduce;   /* enum ps_reduce. */
    bool is_barrier;
    struct ps_agent_rows *rows; /* Rows key; NULL: none. */
    /* Transfer of optimizer state; NULL: none. */
    struct ps_agent_state_transfer *state_transfer;
    /* Copy of the request to the scheduler; NULL: none. */
    struct ps_msg *sched_request;
    /* Bytes of memory charged to the account of the key's job. */
    uint64_t charged_bytes;
    ps_time started_at;
    uint64_t ticket; /* Async pull; 0: none drawn yet. */
};

/* Rounds of a key that reattached ranks completed with an earlier agent. */
struct ps_agent_prior_state {
    uint64_t min_completed; /* Least that a rank reported. */
    uint64_t max_completed; /* Most that a rank reported; at most one more. */
    bool *reported;         /* By local rank. */
};

/* Conflicting requests of ranks in the last begun round of a key. */
struct ps_agent_conflict {
    uint32_t retry;           /* Attempts with a lower number are over. */
    uint32_t *notified_retry; /* By local rank: last abort it was told of. */
    char text[PS_TEXT_MAX + 1];
};

struct ps_agent_key {
    struct ps_agent_job *job;
    const struct ps_agent_key_kind *kind;
    struct ps_agent_key *same_name_hash;
    struct ps_agent_part *parts;
    uint32_t part_count;
    uint32_t number;
    uint64_t count;
    uint32_t row_width; /* Elements of a row; 0: a dense key. */
    uint8_t dtype;
    uint8_t rule; /* enum ps_rule of the pushes in flight. */
    /* Last begun round; pushed_round[] are this or one less. Async: pushes of
     * this node. */
    uint64_t round;
    uint64_t round_starts; /* Attempts at all rounds, failed ones included. */
    bool round_open;       /* A local rank has contributed. */
    bool round_complete;   /* All local ranks have: partitions may leave. */
    bool needs_value;
    uint8_t reduce;
    enum ps_op round_op; /* SKIP: all contributions so far are skips. */
    uint32_t contributed_count;
    uint32_t streaming_count; /* Contributions that are still being copied. */
    uint32_t launched_parts;  /* Partitions before this index were launched. */
    uint32_t root;
    struct ps_agent_op **contribution;  /* By local rank; NULL: none yet. */
    struct ps_agent_conflict *conflict; /* NULL: none in this round. */
    uint64_t *pushed_round; /* By local rank: last round contributed to. */
    /* Rounds with an earlier agent; NULL: no rank reattached. */
    struct ps_agent_prior_state *prior_state;
    bool residual_loss_noted; /* The loss of a residual has been logged. */
    int32_t priority;
    uint32_t pending_parts;    /* Partitions that have not ended the round. */
    uint32_t completed_prefix; /* Partitions before this index have. */
    uint64_t reported_bytes;   /* Bytes of the result reported to workers. */
    uint64_t weight;           /* Contributing ranks; in a mean, samples. */
    struct ps_list deferred_pushes; /* Pushes of the next round. */
    struct ps_list pulls;
    struct ps_list row_pulls;
    struct ps_buf *results;    /* Both versions; NULL: rows or async key. */
    uint64_t result_offset[2]; /* Of even versions, of odd ones. */
    uint64_t name_hash;
    struct ps_compression compression;
    struct ps_list inits;
    struct ps_list state_transfers;
    struct ps_slice init_array;  /* The root's array while it is being sent. */
    uint32_t pending_init_parts; /* Partitions whose init is not committed. */
    uint64_t init_retry;         /* Attempts at sending an init. */
    /* ssp: least push count of the local ranks, pushes in flight included. */
    uint64_t clock;
    uint64_t last_ticket;
    uint64_t *applied_round; /* Async, by local rank: last applied push. */
    /* Declaration of the key. */
    struct ps_list_node opening_node; /* In job->opening_keys until opened. */
    char name[PS_KEY_NAME_MAX + 1];
    uint64_t *shape;
    uint32_t shape_count;
    int64_t mxnet_key;
    uint64_t open_request;
    uint8_t if_absent; /* enum ps_if_absent, the least of all waiters'. */
    bool is_open;      /* key_opened has arrived. */
    bool open_sent;    /* key_open is sent and not answered. */
    uint32_t placement_epoch;
    struct ps_list waiters; /* struct ps_agent_key_waiter */
    uint64_t charged_bytes; /* Bytes of memory charged to the job. */
    uint32_t charged_parts; /* Partitions charged to the job. */
};

struct ps_agent_key_waiter {
    struct ps_list_node node;
    struct ps_agent_session *session;
    uint64_t request;
    bool reattached; /* As in the l_key, and repeated in its answer. */
};

struct ps_agent_rank {
    uint32_t rank;
    uint64_t worker;
    uint8_t state;
    struct ps_agent_session *session; /* NULL: none now. */
    uint64_t entered_barriers;        /* Number of the last barrier entered. */
};

/* User with sessions, jobs or leftover resources on this node. */
struct ps_agent_user {
    struct ps_agent *agent;
    uint32_t uid;
    uint32_t refs; /* Sessions, jobs, and resources that outlive them. */
    uint32_t stall_queries_sent;
    struct ps_account account;
};

/* Result memory of a job that is over, kept while frames reference it. */
struct ps_agent_draining_pool {
    struct ps_pool *pool;
    struct ps_agent_user *user; /* Charged for it; NULL: no user. */
    uint64_t charged_bytes;
};

/* Mapped region, charged until its last reader releases it. */
struct ps_agent_mapping {
    struct ps_list_node node;         /* In session->mappings. */
    struct ps_agent_session *session; /* NULL: gone, the user is charged. */
    struct ps_agent_user *user;
    struct ps_buf *buf;
};

struct ps_agent_job {
    uint64_t gen;
    uint32_t state_version; /* Of the last job_state; 0: none yet. */
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
    /* Keys that are not open: those requested first, then the others. */
    struct ps_list opening_keys;
    uint32_t opens_in_flight; /* Keys requested from the scheduler. */
    /* First of opening_keys that is not requested; NULL: none. */
    struct ps_list_node *next_unsent_open;
    struct ps_map *send_queues; /* By node. */
    struct ps_list barrier_ops; /* Operations that wait at a barrier. */
    uint64_t completed_barriers;
    struct ps_list sched_ops; /* Operations with an open sched_request. */
    struct ps_agent_residual_segment *segments;
    uint32_t segment_count;
    uint32_t tail_segment;   /* Index + 1 of the one appended to; 0: none. */
    uint64_t tail_used;      /* Bytes used of the tail segment. */
    uint64_t residual_bytes; /* Bytes used of all segments. */
    uint64_t record_count;   /* Records read in segments of other agents. */
    /* struct ps_agent_recovered_record by ps_name_hash_slot. */
    struct ps_map *recovered_records;
    uint64_t name_hash_seed;         /* For ps_name_hash_slot. */
    uint64_t residual_charged_bytes; /* Bytes of memory charged here. */
    struct ps_agent_user *user;      /* NULL: no session was assigned. */
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
    uint8_t state; /* enum ps_agent_session_state. */
    struct ps_msg *hello; /* Own copy of l_hello. */
    uint64_t gen;         /* 0: job_open is not answered. */
    struct ps_agent_job *job;
    uint32_t local_rank; /* Index in job->local_ranks. */
    bool clean_exit;
    bool is_deferred; /* Its job_open waits: session_send_deferred(). */
    bool is_closing;  /* Connection is closing; messages are ignored. */
    bool reoffer;     /* An earlier scheduler got its job_open. */
    /* Reattached: keys whose completed rounds are not reported yet. */
    uint32_t unreported_keys;
    struct ps_map *regions;          /* number -> struct ps_buf */
    struct ps_map *unmapped;         /* Failed regions: number -> text. */
    struct ps_map *announced_arenas; /* Set of arena tags. */
    struct ps_map *known_segments;   /* Set of ids of residual segments. */
    struct ps_list ops;
    uint32_t op_count;
    struct ps_list mappings;      /* struct ps_agent_mapping */
    struct ps_list stall_queries; /* struct ps_agent_stall_query */
    uint32_t query_rate_count;    /* Queries since query_rate_since. */
    ps_time query_rate_since;     /* Begin of the current second. */
    struct ps_agent_user *user;
    struct ps_account account;
};

/* A sum, encoding or copy that runs off the event loop. */
struct ps_agent_computation {
    uint64_t token;
    struct ps_agent_part *part;             /* NULL: its key is gone. */
    struct ps_agent_send_queue *send_queue; /* Sum for a server; NULL: local. */
    struct ps_slice dst;
    uint32_t row_count;    /* Rows key: rows in dst. */
    int64_t version;       /* Local: version made; encoding: its round. */
    uint64_t round_starts; /* Of the round whose arrays it reads. */
    bool is_encode;
    uint64_t bytes;
};

/* A placement that arrived before the answer to the key's opening. */
struct ps_agent_pending_placement {
    uint32_t epoch;
    uint32_t part_count;
    struct ps_buf *table;
};

/* Ended jobs remembered. An earlier job_state of one may still arrive, because
 * links keep no order. */
#define PS_AGENT_ENDED_JOBS 64u

/* A worker that is gone, resent to a scheduler that does not know it. */
struct ps_agent_departed_worker {
    uint64_t gen;
    uint64_t worker;
    bool clean_exit;
    bool rounds_unknown; /* Ended while it was reattaching. */
};

/* A stall query: sent to the scheduler and not answered, or waiting because
 * the user has PS_QUERIES_SENT_MAX in flight. */
struct ps_agent_stall_query {
    struct ps_list_node node; /* In session->stall_queries. */
    uint64_t request;
    uint64_t gen;
    struct ps_agent_session *session; /* NULL: gone; the reply is dropped. */
    struct ps_agent_user *user;       /* A reference. */
    bool is_sent;
    uint64_t op_id;
    uint32_t key;
    uint64_t round;
    bool is_barrier;
    char local_text[256]; /* The operation, and how long it has waited. */
    char awaited[256];    /* Servers whose reply it waits for. */
};

struct ps_agent {
    struct ps_agent_options opt;
    struct ps_rng rng;
    ps_time now;
    struct ps_uplink uplink;
    /* Port on which this agent only listens, for liveness probes; "": none. */
    char liveness_address[PS_ADDRESS_MAX + 1];
    uint32_t map_epoch;
    bool draining;
    struct ps_map *servers; /* By node. */
    struct ps_list sessions;
    struct ps_map *sessions_by_conn; /* struct ps_agent_session */
    struct ps_map *servers_by_conn;  /* Until the connection is closed. */
    struct ps_map *jobs;             /* By generation. */
    /* Generations in a ring; ended_jobs_next modulo its size is the oldest. */
    uint64_t ended_jobs[PS_AGENT_ENDED_JOBS];
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
    ps_time next_reap_at; /* PS_TIME_NEVER: no pool has memory to free. */
    /* Regions (struct ps_buf) of ended sessions; a few leave at a time. */
    struct ps_map *unmapping_regions;
    uint64_t last_unmapping;
    ps_time next_unmap_at; /* PS_TIME_NEVER: there are none. */
    struct ps_agent_departed_worker *departed_workers;
    uint32_t departed_worker_count;
    uint32_t deferred_session_count; /* Sessions whose job_open waits. */
    uint32_t op_count;               /* Operations of all sessions. */
    uint32_t servers_met;            /* Structs made for servers so far. */
    struct ps_agent_op **spare_ops;  /* A stack. */
    uint32_t spare_op_count;
    uint32_t spare_op_capacity;
    uint64_t residual_bytes; /* Bytes used of the segments of all jobs. */
    bool must_flush;         /* Batches or the arena wait for the tick. */
    /* Small sums one behind the other until the tick; NULL: none. */
    struct ps_buf *batch_arena;
    uint64_t batch_arena_used;
    ps_time scratch_retry_at; /* PS_TIME_NEVER: no sum lacks memory. */
    ps_time resend_at;        /* PS_TIME_NEVER: nothing was refused. */
    ps_time scratch_trim_at;  /* PS_TIME_NEVER: no trim is due. */
    struct ps_agent_stats stats;
};

/* key.c */
uint64_t ps_agent_key_bytes(const struct ps_agent_key *k);
uint64_t ps_agent_part_bytes(const struct ps_agent_part *p);

/* budget.c */
void ps_agent_budget_init(struct ps_agent *a);
void ps_agent_budget_fini(struct ps_agent *a);
struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid);
void ps_agent_user_put(struct ps_agent_user *u);
/* Charges a new session to its user. On refusal no charge or reference
 * stays. */
PS_MUST_USE int ps_agent_budget_open_session(struct ps_agent *a,
                                             struct ps_agent_session *s,
                                             uint32_t pid,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_close_session(struct ps_agent_session *s);
/* Makes the session's account a child of its job's. */
void ps_agent_budget_assign_job(struct ps_agent_session *s,
                                struct ps_agent_job *j);
/* Closes the job's account, which must hold no charge. */
void ps_agent_budget_close_job(struct ps_agent_job *j);
/* Charges a declared key and its results to the job. The caller keeps
 * *ret_charged in the key, whose end refunds it. */
PS_MUST_USE int ps_agent_budget_charge_key(struct ps_agent_job *j,
                                           const struct ps_agent_key_kind *kind,
                                           const struct ps_msg_l_key *m,
                                           uint64_t *ret_charged,
                                           struct ps_refusal *ret_refusal);
/* Charges the key's table of `count` partitions to the job. */
PS_MUST_USE int ps_agent_budget_charge_parts(struct ps_agent_key *k,
                                             uint32_t count,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_refund_key(struct ps_agent_key *k);
/* Moves the results of an ended job, which frames still carry, to its user. */
void ps_agent_budget_charge_pool(struct ps_agent_job *j,
                                 struct ps_agent_draining_pool *g);
void ps_agent_budget_refund_pool(struct ps_agent_draining_pool *g);
/* Charges a mapping to the session. *ret_buf holds a reference of `buf`; its
 * last unref refunds the charge. */
PS_MUST_USE int ps_agent_budget_charge_mapping(struct ps_agent_session *s,
                                               struct ps_buf *buf,
                                               struct ps_buf **ret_buf,
                                               struct ps_refusal *ret_refusal);

/* uplink.c */
static inline struct ps_uplink_call
ps_agent_uplink_call(struct ps_agent_step *st)
{
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}
void ps_agent_uplink_init(struct ps_agent *a, ps_time now);
/* `liveness_address` NULL: none. */
void ps_agent_uplink_on_open(struct ps_agent_step *st, ps_conn_id conn,
                             const char *liveness_address);
void ps_agent_uplink_on_msg(struct ps_agent_step *st, ps_conn_id conn,
                            const struct ps_msg *m,
                            const struct ps_slice *payload);
/* Sends a message on the link, which keeps it until it is acknowledged. Dropped
 * before registration, which resends all state. */
void ps_agent_uplink_send_msg(struct ps_agent_step *st, const struct ps_msg *m);

/* Sends hello on a new connection to a server. */
void ps_agent_send_hello(struct ps_agent_step *st, const struct ps_dialer *c,
                         ps_conn_id conn);

/* server_conn.c */
void ps_agent_server_on_open(struct ps_agent_step *st, uint64_t target,
                             ps_conn_id conn);
void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why);
void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn);
/* Frames on `conn` are not acknowledged: dials a second connection. */
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
/* Stops dialling the server and drops its link if no job uses it any more. */
void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s);
/* Memory for a payload without a final place. */
int ps_agent_server_alloc_payload(struct ps_agent *a, uint64_t len,
                                  struct ps_slice *ret_slice);
int ps_agent_server_payload(struct ps_agent *a, struct ps_agent_server *s,
                            const struct ps_msg *m, uint64_t len,
                            struct ps_slice *ret_slice);

/* send_queue.c */
struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node);
void ps_agent_send_queue_free(struct ps_agent_send_queue *f);
void ps_agent_part_set_state(struct ps_agent_part *p,
                             enum ps_agent_part_state to);
void ps_agent_send_enqueue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_dequeue(struct ps_agent_step *st, struct ps_agent_part *p);
/* Sends a partition: alone, or in the server's batch if it is small. `slice`
 * NULL: an empty part. `rows`: rows in the slice of a rows key. */
void ps_agent_send_dispatch(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p,
                            const struct ps_slice *slice, uint32_t rows);
/* Kind's start_part() for whole arrays. */
bool ps_agent_send_start_dense(struct ps_agent_step *st,
                               struct ps_agent_send_queue *f,
                               struct ps_agent_part *p);
void ps_agent_send_pump(struct ps_agent_step *st, struct ps_agent_server *s);
void ps_agent_send_pump_all(struct ps_agent_step *st);
/* Dispatches the result of a computation. `error`: 0 or a PS_E_*. */
void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error);
void ps_agent_send_flush(struct ps_agent_step *st, struct ps_agent_server *s);
/* Releases the batch arena; the next small sum allocates another. */
void ps_agent_send_release_arena(struct ps_agent *a);
void ps_agent_send_drop_batch(struct ps_agent_job *j,
                              struct ps_agent_server *s);
/* Ends the back-off: the server accepted something of job `gen`. */
void ps_agent_send_end_backoff(struct ps_agent_step *st,
                               struct ps_agent_server *s, uint64_t gen);
/* Starts the back-off, or doubles it: the server has no memory for the job. */
void ps_agent_send_begin_backoff(struct ps_agent_step *st,
                                 struct ps_agent_send_queue *f);
/* Returns true while a refused partition waits for memory of its server. */
bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p);
void ps_agent_send_raise_credit(struct ps_agent_step *st,
                                struct ps_agent_server *s, uint64_t gen,
                                uint64_t credit);
/* Resends to a server with a new link all that is not committed. */
void ps_agent_send_resend(struct ps_agent_step *st, struct ps_agent_server *s);

/* encode.c */
/* Returns true if the partition's next contribution is sent encoded. */
bool ps_agent_encode_applies(const struct ps_agent_part *p);
/* Starts to sum and encode the sources. PS_E_NOMEM: no change. */
int ps_agent_encode_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p,
                          const struct ps_slice *slices, uint32_t count);
/* Returns true if the encoded form of the open round exists. */
bool ps_agent_encode_is_ready(const struct ps_agent_part *p);
void ps_agent_encode_on_computed(struct ps_agent_part *p,
                                 struct ps_agent_computation *run);
/* Frees the encoded form and the previous residual: the round is over. */
void ps_agent_encode_discard(struct ps_agent_part *p);
/* The round failed and may be retried: reverts an encoding never sent. */
void ps_agent_encode_round_failed(struct ps_agent_part *p);
/* The server did not count the contribution: reverts its encoding. */
void ps_agent_encode_refused(struct ps_agent_part *p, uint64_t round);
void ps_agent_encode_free(struct ps_agent_part *p);

/* residual_log.c */
/* Returns true if the partition has a residual record in the log. Adopts the
 * record of an earlier agent, or appends a new one. */
bool ps_agent_residual_attach(struct ps_agent_step *st,
                              struct ps_agent_part *p);
/* Returns true if the record holds an encoding of the open round, which an
 * earlier agent made. */
bool ps_agent_residual_is_encoded(const struct ps_agent_part *p);
/* For such a record: makes the residual from before that encoding current. */
void ps_agent_residual_rewind(struct ps_agent_part *p);
/* Undoes ps_agent_residual_rewind(). */
void ps_agent_residual_forward(struct ps_agent_part *p);
/* Returns a reference of the buffer that an encoding writes; NULL: none. */
struct ps_buf *ps_agent_residual_target(const struct ps_agent_part *p);
struct ps_buf *ps_agent_moment_target(const struct ps_agent_part *p);
/* Tags the record: the current residual is the result of `round`. */
void ps_agent_residual_commit(struct ps_agent_part *p, uint64_t round);
void ps_agent_residual_detach(struct ps_agent_part *p);
void ps_agent_residual_job_free(struct ps_agent *a, struct ps_agent_job *j);
/* Announces to the session the segments that it does not know. */
void ps_agent_residual_announce(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Reads the records of a segment that a worker has from an earlier agent. Ends
 * the session if it is malformed or over a limit. */
void ps_agent_residual_on_segment(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_buf *buf);

/* session.c */
void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev);
void ps_agent_session_on_closed(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Handles each operation as a message; at most PREFETCH_OPS. */
void ps_agent_session_on_ops(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_session_on_msg(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg *m);
void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf);
/* A region could not be mapped. PS_E_NOMEM: operations that name it are refused
 * with the text `why`. Other errors, and region 0, end the session. */
void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why);
/* Returns the error for an operation that names a missing region, and its text
 * in *ret_why. */
int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why);
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the session with the text of the limit that it exceeded. */
void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why);
void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Sends the deferred job_opens once the scheduler has acknowledged everything
 * before. A worker that replaces a dead one must not be announced before that
 * death, and links keep no order. */
void ps_agent_session_send_deferred(struct ps_agent_step *st);
void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s);
/* Resends all departures. */
void ps_agent_departed_resend(struct ps_agent_step *st);
/* Forgets the departures of a job that is over. */
void ps_agent_departed_drop_job(struct ps_agent *a, uint64_t gen);
/* Drops departures that a new scheduler cannot know. Those of jobs on this node
 * stay: the scheduler answers them with the job's end. */
void ps_agent_departed_drop_unknown(struct ps_agent *a);
void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s);
/* Unmaps some regions of sessions that have ended. */
void ps_agent_unmap_regions(struct ps_agent *a);
struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id);
/* Sends the result to the worker, if it is connected, and frees `op`. */
void ps_agent_op_end(struct ps_agent_step *st, struct ps_agent_op *op,
                     uint64_t version, int error, const char *text);
/* Ends a skip of a round that all ranks skipped. */
void ps_agent_op_end_skipped(struct ps_agent_step *st, struct ps_agent_op *op,
                             uint64_t version);
void ps_agent_op_free(struct ps_agent_op *op);

/* diagnose.c */
void ps_agent_diagnose_op(struct ps_agent_step *st, struct ps_agent_session *s,
                          uint64_t op_id);
/* Appends the servers that the key waits for and that are silent. */
void ps_agent_report_unheard(const struct ps_agent_step *st,
                             const struct ps_agent_key *k, struct ps_str *t);
void ps_agent_diagnose_on_reply(struct ps_agent_step *st,
                                const struct ps_msg_stall_reply *m);
void ps_agent_diagnose_resend(struct ps_agent_step *st);
void ps_agent_diagnose_fini(struct ps_agent *a);
/* Drops the queries of a session that is gone. */
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
/* Frees some memory of draining pools that no frame references any more. */
void ps_agent_job_reap_pools(struct ps_agent *a);
/* Frees the job if it is over and has no session. */
void ps_agent_job_free_if_unused(struct ps_agent_step *st,
                                 struct ps_agent_job *j);
/* Records that all barriers up to `number` are open, and ends the operations of
 * ranks that wait at them. */
void ps_agent_job_complete_barriers(struct ps_agent_step *st,
                                    struct ps_agent_job *j, uint64_t number);
void ps_agent_job_on_barrier_done(struct ps_agent_step *st,
                                  const struct ps_msg_barrier_done *m);
void ps_agent_job_send_barriers(struct ps_agent_step *st,
                                struct ps_agent_job *j);
void ps_agent_job_on_optimizer_done(struct ps_agent_step *st,
                                    const struct ps_msg_optimizer_done *m);
void ps_agent_job_on_stall_collect(struct ps_agent_step *st,
                                   const struct ps_msg_stall_collect *m);
/* New scheduler: workers of jobs that do not run yet open them again, and such
 * jobs without sessions are freed. */
void ps_agent_job_reoffer(struct ps_agent_step *st);
/* Resends all that is open to a scheduler with a new link. */
void ps_agent_job_resend_all(struct ps_agent_step *st);

/* key.c */
/* Returns the bytes that both results of a key of `bytes` bytes take. */
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
/* Sends restore with the newest local version to the partition's owner. */
void ps_agent_part_send_state(struct ps_agent_step *st,
                              struct ps_agent_part *p);
void ps_agent_key_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_key *k);
/* prefetch.c: fetch the memory of at most PREFETCH_OPS operations or parts into
 * the cache. Thousands of keys do not stay cached between two rounds. */
void ps_agent_prefetch_ops(const struct ps_agent *a,
                           const struct ps_agent_session *s,
                           const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_prefetch_parts(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *part, uint32_t count);
struct ps_agent_part *ps_agent_part_find(const struct ps_agent *a, uint64_t gen,
                                         const struct ps_rec_part *rec);
/* The same without comparing the dtype. */
struct ps_agent_part *
ps_agent_part_find_any_dtype(const struct ps_agent *a, uint64_t gen,
                             const struct ps_rec_part *rec);

/* round.c */
/* Returns true for an operation that pushes or pulls rows. */
bool ps_agent_op_names_rows(const struct ps_msg_l_op *m);
/* Kind's measure_array() for whole arrays. */
bool ps_agent_op_measure_dense(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_agent_key *k,
                               const struct ps_msg_l_op *m,
                               struct ps_agent_op_input *in);
uint64_t ps_agent_round_of_op(const struct ps_agent_op *op);
/* Adds the contribution to its round, or defers it until that is open. */
void ps_agent_round_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Ends the operations of the open round after its last partition; deferred
 * pushes start the next one. */
void ps_agent_round_end(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_op_accept(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m);
void ps_agent_round_part_advanced(struct ps_agent_step *st,
                                  struct ps_agent_part *p);
void ps_agent_round_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
/* All local ranks have contributed: launches the ready partitions. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k);
/* The server reported that all ranks skipped the round of `version`. */
void ps_agent_round_part_skipped(struct ps_agent_part *p, uint64_t version);
/* Writes this node's sources of a partition in rank order; returns their
 * number, at most one per local rank. */
uint32_t ps_agent_round_part_sources(const struct ps_agent_part *p,
                                     struct ps_slice *slices);
/* Queues the partition for its server, or starts the local sum or init. */
void ps_agent_round_launch_part(struct ps_agent_step *st,
                                struct ps_agent_part *p);
void ps_agent_round_on_computed(struct ps_agent_step *st,
                                struct ps_agent_computation *run, int error);
/* Returns true if all local ranks have copied their contribution to it. */
bool ps_agent_round_is_part_ready(const struct ps_agent_part *p);
/* Returns true if the rank has not contributed to the round, or is still
 * copying its contribution. */
bool ps_agent_round_awaits_rank(const struct ps_agent_key *k, uint32_t local,
                                uint64_t round);

/* Refuses an operation with an error and a text. */
void ps_agent_op_reject(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m, int error, const char *fmt,
                        ...) __attribute__((format(printf, 5, 6)));

/* reattach.c */
/* Takes over the completed barriers of a reattached worker. */
void ps_agent_reattach_session(struct ps_agent_step *st,
                               struct ps_agent_session *s);
/* A reattached worker declares a key of which it completed `pushed` rounds.
 * Returns false if that is inconsistent; the session is then closed. */
bool ps_agent_reattach_key(struct ps_agent_step *st, struct ps_agent_session *s,
                           struct ps_agent_key *k, uint64_t pushed);
/* Applies the prior state to a key that has been opened. */
void ps_agent_reattach_key_opened(struct ps_agent_step *st,
                                  struct ps_agent_key *k);
/* Returns true if the operation's round was completed before the reattach, as
 * another rank reported; the operation is then handled here. */
bool ps_agent_reattach_accept_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
/* Ends the partitions of a complete round that are committed already. */
void ps_agent_reattach_advance(struct ps_agent_step *st,
                               struct ps_agent_key *k);
void ps_agent_reattach_free(struct ps_agent_key *k);

/* sync.c */
/* Kind's part_fits_frame() of keys that are not of rows. */
bool ps_agent_dense_part_fits_frame(const struct ps_agent_key *k,
                                    uint32_t count);

/* async.c */
/* Returns true for a push that is applied even if its worker dies. */
bool ps_agent_async_push_survives(const struct ps_agent_op *op);
/* ssp: raises the push count that every rank of the job has reached. */
void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock);

/* rows.c */
void ps_agent_rows_free(struct ps_agent_rows *r); /* NULL: no-op. */
void ps_agent_rows_on_rows(struct ps_agent_step *st,
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload);
/* Returns the payload bytes of the message; 0: none, or malformed. */
uint64_t ps_agent_rows_payload_bytes(const struct ps_msg_rows *m);

/* conflict.c */
/* Returns the number of the current attempt at the key's round. */
uint32_t ps_agent_conflict_retry(const struct ps_agent_key *k);
/* Frees the conflict of the last round: a new round begins. */
void ps_agent_conflict_clear(struct ps_agent_key *k);
/* If this rank has not yet been notified of the aborted attempt, fails its
 * operation with the conflict text and returns true. */
bool ps_agent_conflict_notify_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
/* Aborts the attempt: `op` conflicts with the local ranks before it. */
void ps_agent_conflict_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                             const char *text);
/* Aborts the open attempt if a server refused one of its parts because of a
 * conflict with other slots: `attempt` is above the current retry number. */
void ps_agent_conflict_on_refuse(struct ps_agent_step *st,
                                 struct ps_agent_key *k, uint64_t round,
                                 uint32_t attempt, const char *text);
/* Resends abort_round to `node` (0: all owners), which may have lost it. */
void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node);

/* pull.c */
/* Returns true when version `least` will arrive without another request. */
bool ps_agent_pull_is_expected(const struct ps_agent_part *p, int64_t least);
void ps_agent_pull_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Kind's advance() for versions. */
void ps_agent_pull_advance(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_init_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Sends the root's init if one is waiting. */
void ps_agent_init_start_pending(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
/* Reopens an init that was committed at a lost server. Returns true if the root
 * is on this node, so that the init is sent again. */
bool ps_agent_init_reopen_part(struct ps_agent_part *p);
void ps_agent_init_part_committed(struct ps_agent_step *st,
                                  struct ps_agent_part *p);
/* Resends the open requests to server `node`. */
void ps_agent_pull_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                          uint32_t node);

/* opt_state.c */
void ps_agent_opt_state_accept_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_optimizer_state *m);
void ps_agent_opt_state_on_state(struct ps_agent_step *st,
                                 const struct ps_msg_state *m,
                                 const struct ps_slice *payload);
/* Resends the unanswered requests to a server that may have lost them. */
void ps_agent_opt_state_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                               uint32_t node);
/* Sends the partition's unanswered request to its new owner. */
void ps_agent_opt_state_reset_part(struct ps_agent_step *st,
                                   struct ps_agent_part *p);
/* Sends as many requests as may be in flight. */
void ps_agent_opt_state_advance(struct ps_agent_step *st,
                                struct ps_agent_key *k);
