/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the agent machine, which its files share: operations, keys and
 * their partitions, jobs, servers, training processes, and the agent that has
 * them all. Only files of this folder include it.
 *
 * Layers, top to bottom; a file uses only those below it, and declares in a
 * header of its own what those above it may use:
 *
 *     agent.c         entry points of the machine, timers; scheduler
 *     reply.c         servers: values, commits and refusals
 *     worker.c        training processes: messages, operations, their end
 *     job.c           jobs: from job_state to the end
 *     key.c           keys: declaration, results, end
 *
 *     kind_rows.c     kind.h: rows keys (row-sparse)
 *     kind_async.c    kind.h: keys of async and ssp jobs, without rounds
 *     kind_sync.c     kind.h: dense keys with rounds
 *     round.c         rounds over the ranks of this node
 *     place.c         owners of partitions; what is sent again after a loss
 *     pull.c          pull and init
 *     request.c       requests that the scheduler answers; barriers
 *
 *     send.c          partitions from the round to the frame: launch, sums
 *     conflict.c      failure of a key; conflicting requests and declarations
 *     encode.c        encoded gradients and their residuals
 *     residual_log.c  residuals in memory that outlives the agent
 *     opt_state.c     transfers of optimizer state
 *     server.c        servers: map, links, pings, queues of partitions
 *
 *     diagnose.c      stall queries: the reason why an operation waits
 *     waits.c         standstills: what processes wait for, for the scheduler
 *     report.c        training scalars and spans of programs
 *     session.c       training processes: accounts, hello, memory, departure
 *     op.c            operations, from acceptance to end
 *     part.c          partitions of keys, contributions of the local ranks */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/time.h"
#include "core/agent/agent.h"
#include "core/agent/kind.h"
#include "core/base/ledger.h"
#include "core/base/machine.h"
#include "core/base/peer.h"
#include "core/codec/compression.h"
#include "core/link/dialer.h"
#include "core/link/link.h"
#include "core/part/fair.h"
#include "core/part/round.h"

struct ps_agent_job;
struct ps_agent_key;
struct ps_agent_reports;
struct ps_agent_residual_record;
struct ps_agent_send_queue;
struct ps_agent_span_names;
struct ps_agent_state_transfer;

/* --------------------------------------------------------------- operations */

/* An unfinished operation of a worker. */
struct ps_agent_op {
    struct ps_list_node node;         /* In the list where it waits. */
    struct ps_list_node session_node; /* In session->ops. */
    struct ps_agent *agent;
    struct ps_agent_session *session; /* NULL: its worker has died. */
    struct ps_agent_key *key;         /* NULL: barrier or optimizer. */
    uint64_t id;
    /* Round; or least version, barrier number, or number of sched_request. */
    uint64_t round;
    struct ps_slice array; /* buf NULL: the operation has no array. */
    uint64_t bytes_ready;  /* Bytes of `array` that the worker has copied. */
    /* Memory of a GPU that gets the value; buf NULL: none. */
    struct ps_slice out;
    bool is_undelivered; /* A part of the value could not be written there. */
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

/* Returns true while the worker is copying the operation's array. */
static inline bool ps_agent_op_is_streaming(const struct ps_agent_op *op)
{
    return op->bytes_ready < op->array.len;
}

/* Returns true for an operation that pushes or pulls rows. */
static inline bool ps_agent_op_names_rows(const struct ps_msg_l_op *m)
{
    return m->op == PS_OP_PUSH_ROWS || m->op == PS_OP_PULL_ROWS;
}

/* --------------------------------------------------------------------- keys */

#define NO_VERSION   (-1) /* No version yet. */
/* Operations, or parts of a frame, handled as one batch: part.c. */
#define PREFETCH_OPS 16u

enum ps_agent_part_state {
    PS_AGENT_PART_IDLE,
    PS_AGENT_PART_QUEUED,
    PS_AGENT_PART_COMPUTING,
    PS_AGENT_PART_SENT, /* Not committed yet. */
    /* Refused for a transient reason; enqueued at resend_at. */
    PS_AGENT_PART_BACKOFF,
};

enum ps_agent_encoding_state {
    PS_AGENT_ENCODING_IDLE,
    PS_AGENT_ENCODING_RUNNING,   /* A computation makes `data`. */
    PS_AGENT_ENCODING_CANCELLED, /* The same; the result will be dropped. */
};

/* Encoded contribution of a partition, and its residuals: encode.c. Used only
 * with a codec. */
struct ps_agent_encoding {
    uint8_t state;        /* enum ps_agent_encoding_state. */
    bool was_sent;        /* A server may have counted `data`. */
    bool is_void;         /* `data` was sent in an attempt that was aborted. */
    bool is_revertible;   /* residual[1] may become residual[0] again. */
    struct ps_slice data; /* The encoded form; buf NULL: none. */
    /* Current residual, and the one before `data`; NULL: zeros. */
    struct ps_buf *residual[2];
    struct ps_buf *moment[2]; /* Moments, as `residual`. */
    /* Log record with both vectors; NULL: they lie in the scratch pool. */
    struct ps_agent_residual_record *record;
    uint64_t round; /* Round of `data`. */
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
    /* The partition has moved to its present server, or may have. */
    bool owner_changed;
    bool must_resend_state; /* The restore to its owner is sent again. */
    bool is_init;           /* The queued or sent contribution is an init. */
    /* Newest version that is known to be committed; NO_VERSION. */
    int64_t committed_version;
    /* Version whose value lies in the results; NO_VERSION. */
    int64_t local_version;
    /* Newest version known to come from an all-skipped round; NO_VERSION. */
    int64_t skipped_version;
    /* Version that a frame of the owner is being read into the results of;
     * NO_VERSION: none, unless the frame was cut off. */
    int64_t lent_version;
    uint64_t completed_round; /* Last round that is over for it. */
    /* Least version of the open pull; NO_VERSION: none is open. */
    int64_t requested_version;
    struct ps_agent_encoding encoding;
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
    uint32_t *notified_retry; /* By local rank: last abort reported to it. */
    char text[PS_TEXT_MAX + 1];
};

enum ps_agent_notice_state {
    PS_AGENT_NOTICE_DONE,
    PS_AGENT_NOTICE_DUE,     /* Its next operation ends with the text. */
    PS_AGENT_NOTICE_REFUSED, /* Its own declaration was refused, with the text. */
};

/* Declarations of ranks that contradict each other, of a key or of the whole
 * job: each rank that was not refused is notified once, unless they agree
 * before. */
struct ps_agent_disagreement {
    uint32_t number;        /* Newest message of the scheduler. */
    uint32_t report_number; /* Newest message to it. */
    bool is_elsewhere;      /* As the scheduler knows it. */
    uint32_t refused_count; /* Local ranks that are REFUSED. */
    uint8_t *notice;        /* enum ps_agent_notice_state by local rank. */
    /* Round of which servers are asked to abort the attempts before the retry
     * number; 0: none. */
    uint64_t asked_round;
    uint32_t asked_retry;
    char text[PS_TEXT_MAX + 1];
};

enum ps_agent_round_state {
    PS_AGENT_ROUND_IDLE,
    PS_AGENT_ROUND_OPEN,     /* A local rank has contributed. */
    PS_AGENT_ROUND_COMPLETE, /* All local ranks have: partitions may leave. */
};

/* Last begun round of a key over the ranks of this node. Async: the push of
 * this node. */
struct ps_agent_round {
    /* Number of the round; pushed_round[] are this or one less. Async: pushes
     * so far. */
    uint64_t number;
    uint64_t starts; /* Attempts at all rounds, failed ones included. */
    uint8_t state;   /* enum ps_agent_round_state. */
    bool needs_value;
    bool has_outs; /* A contribution wants the value in memory of a GPU. */
    uint8_t reduce;
    uint8_t rule;  /* enum ps_rule of the pushes in flight. */
    enum ps_op op; /* SKIP: all contributions so far are skips. */
    uint32_t root;
    int32_t priority;
    uint32_t contributed_count;
    uint32_t streaming_count; /* Contributions that are still being copied. */
    uint32_t launched_parts;  /* Partitions before this index were launched. */
    struct ps_agent_op **contribution;  /* By local rank; NULL: none yet. */
    struct ps_agent_conflict *conflict; /* NULL: none in this round. */
    uint64_t *pushed_round; /* By local rank: last round contributed to. */
    uint32_t pending_parts; /* Partitions that have not ended the round. */
    uint32_t
        deliveries; /* Copies of parts of the value to GPUs, see round.c. */
    uint32_t completed_prefix; /* Partitions before this index have. */
    uint64_t reported_bytes;   /* Bytes of the result reported to workers. */
    uint64_t weight;           /* Contributing ranks; in a mean, samples. */
    struct ps_list deferred_pushes; /* Pushes of the next round. */
};

/* First value of a key. */
struct ps_agent_init {
    struct ps_list ops;
    struct ps_slice array;  /* The root's array while it is being sent. */
    uint32_t pending_parts; /* Partitions whose init is not committed. */
    uint64_t retry;         /* Attempts at sending an init. */
};

enum ps_agent_key_state {
    PS_AGENT_KEY_WAITING,   /* PS_KEY_OPENS_MAX key_opens are in flight. */
    PS_AGENT_KEY_REQUESTED, /* key_open is sent and not answered. */
    PS_AGENT_KEY_OPEN,      /* key_opened has arrived. */
};

/* Declaration of a key, and its opening at the scheduler. */
struct ps_agent_key_opening {
    struct ps_list_node node; /* In job->opening_keys until opened. */
    uint8_t state;            /* enum ps_agent_key_state. */
    uint8_t if_absent; /* enum ps_if_absent, the least of all waiters'. */
    uint32_t shape_count;
    uint64_t *shape;
    int64_t mxnet_key;
    uint64_t request;
    struct ps_list waiters; /* struct ps_agent_key_waiter */
};

/* Costs of a key, charged to its job. */
struct ps_agent_key_charge {
    uint64_t bytes; /* Memory of the key's tables and results. */
    uint32_t parts;
};

/* Fields that each round touches come first: part.c prefetches them. */
struct ps_agent_key {
    struct ps_agent_job *job;
    const struct ps_agent_key_kind *kind;
    void *own; /* Of the kind; NULL: nothing, or the key is not open. */
    struct ps_agent_key *same_name_hash;
    struct ps_agent_part *parts;
    uint32_t part_count;
    uint32_t number;
    uint64_t count;
    uint32_t row_width; /* Elements of a row; 0: a dense key. */
    uint8_t dtype;
    uint8_t key_kind; /* enum ps_key_kind */
    struct ps_agent_round round;
    /* Rounds with an earlier agent; NULL: no rank reattached. */
    struct ps_agent_prior_state *prior_state;
    struct ps_list pulls;
    struct ps_list row_pulls;
    /* Memory of both versions; NULL: rows or async key. */
    struct ps_buf *results;
    uint64_t result_offset[2]; /* Offsets of even and odd versions. */
    uint64_t name_hash;
    struct ps_compression compression;
    struct ps_agent_init init;
    struct ps_list state_transfers;
    bool residual_loss_noted; /* The loss of a residual has been logged. */
    char name[PS_KEY_NAME_MAX + 1];
    uint32_t declared_by; /* Local rank that was the first. */
    struct ps_agent_disagreement *disagreement; /* NULL: there was none. */
    uint32_t placement_epoch;
    bool is_reassigned; /* A partition has had another owner. */
    struct ps_agent_key_opening opening;
    struct ps_agent_key_charge charge;
};

struct ps_agent_key_waiter {
    struct ps_list_node node;
    struct ps_agent_session *session;
    uint64_t request;
    bool reattached; /* As in the l_key, and repeated in its answer. */
};

/* A sum, encoding or copy that runs off the event loop. */
struct ps_agent_computation {
    uint64_t token;
    struct ps_agent_part *part;             /* NULL: its key is gone. */
    struct ps_agent_send_queue *send_queue; /* Sum for a server; NULL: local. */
    struct ps_slice dst;
    uint32_t row_count;    /* Rows key: rows in dst. */
    int64_t version;       /* Local: version made; encoding: its round. */
    uint64_t round_starts; /* `starts` of the round whose arrays it reads. */
    bool is_encode;
    bool is_delivery; /* Copy of a value to GPUs. */
    uint64_t bytes;
};

static inline bool ps_agent_round_is_open(const struct ps_agent_key *k)
{
    return k->round.state != PS_AGENT_ROUND_IDLE;
}

/* Number of the current attempt at the key's round. */
static inline uint32_t ps_agent_round_retry(const struct ps_agent_key *k)
{
    return k->round.conflict != NULL ? k->round.conflict->retry : 0;
}

static inline bool ps_agent_key_is_open(const struct ps_agent_key *k)
{
    return k->opening.state == PS_AGENT_KEY_OPEN;
}

/* ---------------------------------------------------------------- residuals */

/* Shared memory file that workers keep open for the next agent. */
struct ps_agent_residual_segment {
    uint64_t id;        /* Random; also in the segment's header. */
    struct ps_buf *buf; /* Workers know the segment by the buffer's tag. */
};

/* Residual log of a job. */
struct ps_agent_residual_log {
    struct ps_agent_residual_segment *segments;
    uint32_t segment_count;
    uint32_t tail_segment; /* Index + 1 of the one appended to; 0: none. */
    uint64_t tail_used;    /* Bytes used of the tail segment. */
    uint64_t bytes;        /* Bytes used of all segments. */
    uint64_t record_count; /* Records read in segments of other agents. */
    /* struct ps_agent_recovered_record by ps_name_hash_slot. */
    struct ps_map *recovered;
    uint64_t charged_bytes; /* Bytes of memory charged to the job. */
};

/* --------------------------------------------------------------------- jobs */

/* Ended jobs remembered. An earlier job_state of one may still arrive, because
 * links keep no order. */
#define PS_AGENT_ENDED_JOBS 64u

struct ps_agent_rank {
    uint32_t rank;
    struct ps_agent_session *session; /* NULL: none now. */
    bool had_process;                 /* A process has had the rank here. */
    bool has_left;                    /* As the job's state says. */
    bool is_resuming; /* Its process is a later one, and has ended no round. */
    uint64_t entered_barriers; /* Number of the last barrier entered. */
};

/* Contents of job_state, other than ranks. */
struct ps_agent_job_config {
    uint32_t num_workers;
    uint32_t num_servers;
    bool has_optimizer;
    bool has_copies; /* Servers have copies of partitions (replicas: 2). */
    uint8_t mode;
    uint8_t rule;
    uint32_t staleness; /* ssp */
    uint32_t weight;    /* Of its flows (core/part/fair). */
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
    struct ps_agent_span_names *span_names; /* See report.c; NULL: none. */
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

/* ------------------------------------------------------------------ servers */

/* Wait before a request refused for a transient reason is sent again. */
#define RESEND_WAIT       PS_MILLIS(50)
/* Silence after which a server is pinged while operations wait. The interval
 * between pings doubles from the minimum to the maximum. */
#define PING_INTERVAL_MIN PS_MILLIS(500)
#define PING_INTERVAL_MAX PS_SECONDS(2)

/* Bytes for one server at which no further partition is started. */
struct ps_agent_queue_limits {
    uint64_t computing; /* Being summed or encoded. */
    uint64_t unsent;    /* With the driver; beside ps_agent_options. */
};

/* Fields of a message that its partitions share. */
struct ps_agent_batch_head {
    enum ps_msg_code msg_code; /* PUSH, INIT or PUSH_ROWS. */
    struct ps_agent_job *job;
    uint8_t reduce;
    uint8_t rule;
    bool assign;
    bool needs_value;
    bool has_name_hashes; /* name_hashes and first_elems are sent too. */
    uint32_t retry;
    uint64_t weight;
};

/* Small partitions of one job that travel in one frame to one server. */
struct ps_agent_batch {
    struct ps_agent_batch_head head; /* Fields of all parts. */
    struct ps_batch parts;
    uint64_t *name_hashes; /* Name hashes of the parts; NULL: none yet. */
    uint64_t *first_elems; /* Their first elements; NULL: none yet. */
    struct ps_rec_rows *row_parts; /* PUSH_ROWS: used instead of `parts`. */
};

struct ps_agent_server {
    struct ps_dialer dialer;
    ps_time next_ping_at;  /* Applies while operations wait. */
    ps_time ping_interval; /* Doubles with each ping. */
    uint32_t node;
    uint64_t incarnation;
    uint64_t instance; /* Of the last welcome; 0: there was none. */
    char name[PS_NAME_MAX + 1];
    char peer[16];      /* Name of the link's account: "node 5". */
    uint32_t map_epoch; /* Newest map that lists the server. */
    bool was_in_map;    /* Some map has listed it. */
    bool removed;       /* The newest map does not list it. */
    uint64_t unsent;    /* Bytes with the driver, not yet with the kernel. */
    uint32_t computing; /* Partitions being summed or encoded for it. */
    uint64_t computing_bytes;
    struct ps_list_node touched_node;
    struct ps_list_node batch_node; /* In servers.with_batch. */
    struct ps_heap_item due_item;
    struct ps_heap_item ping_item;
    struct ps_list send_queues;
    uint32_t queue_count; /* Several, of as many jobs, take turns. */
    bool is_full;         /* The limit of `unsent` has stopped its pump. */
    struct ps_misuse misuse;
    /* Limits while several jobs use it; NULL: no link yet. */
    const struct ps_agent_queue_limits *shared_limits;
    /* Turns of the jobs, over `send_queues`; empty while there is only one. */
    struct ps_fair fair;
    struct ps_agent_batch batch;
};

/* Partitions of one job that wait to be sent to one server. */
struct ps_agent_send_queue {
    struct ps_list_node node; /* In server->send_queues. */
    /* In server->fair while other jobs use the server: active while the queue
     * has partitions, unless credit is used up. */
    struct ps_fair_flow flow;
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

/* ------------------------------------------------------- training processes */

/* User with sessions, jobs or leftover resources on this node. */
struct ps_agent_user {
    struct ps_agent *agent;
    uint32_t uid;
    uint32_t refs; /* Sessions, jobs, and resources that outlive them. */
    uint32_t stall_queries_sent;
    struct ps_account account;
};

/* Bytes of a text about the calls in which a process is. */
#define PS_DOES_MAX         160u
/* That of a process without an open operation. */
#define PS_AGENT_IN_NO_CALL "in no call"

/* Last answer of the process of a session to l_wait_query. */
struct ps_agent_wait_state {
    uint64_t sent;  /* Number of the last question; 0: none yet. */
    uint64_t query; /* Number of the last one that was answered. */
    ps_time at;     /* When it was. */
    uint64_t moves;
    uint32_t ops;
    uint8_t still; /* enum ps_stillness */
    char does[PS_DOES_MAX + 1];
};

enum ps_agent_session_state {
    PS_AGENT_SESSION_NEW,     /* No l_hello yet. */
    PS_AGENT_SESSION_OPENING, /* Waits for its job to run. */
    PS_AGENT_SESSION_ACTIVE,
};

/* How the scheduler gets the job_open of a session. */
enum ps_agent_job_open {
    PS_AGENT_JOB_OPEN_FIRST,
    PS_AGENT_JOB_OPEN_DEFERRED, /* Waits: ps_agent_session_send_deferred(). */
    PS_AGENT_JOB_OPEN_AGAIN,    /* An earlier scheduler got it. */
};

struct ps_agent_session {
    struct ps_list_node node; /* In agent->sessions. */
    ps_conn_id conn;
    uint64_t worker;
    uint32_t uid;
    uint32_t pid;         /* 0: not known. */
    uint8_t state;        /* enum ps_agent_session_state. */
    struct ps_msg *hello; /* Own copy of l_hello. */
    uint64_t gen;         /* 0: job_open is not answered. */
    struct ps_agent_job *job;
    uint32_t local_rank; /* Index in job->local_ranks. */
    bool clean_exit;
    bool is_closing;  /* Connection is closing; messages are ignored. */
    uint8_t job_open; /* enum ps_agent_job_open. */
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
    struct ps_agent_wait_state wait;
    struct ps_agent_user *user;
    struct ps_account account;
};

/* A worker that is gone, resent to a scheduler that does not know it. */
struct ps_agent_departed_worker {
    uint64_t gen;
    uint64_t worker;
    bool clean_exit;
    bool rounds_unknown; /* Ended while it was reattaching. */
};

/* ---------------------------------------------------------------- the agent */

/* Context of one call of step(). */
struct ps_agent_step {
    struct ps_agent *a;
    ps_time now;
    struct ps_effects *fx;
};

struct ps_agent_server_table {
    struct ps_map *by_node;
    struct ps_map *by_conn; /* Until the connection is closed. */
    /* Servers that the step has touched, in that order: its end pumps their
     * queues and computes their deadlines. */
    struct ps_list touched;
    struct ps_list with_batch; /* Servers whose batch waits for the tick. */
    struct ps_heap due;        /* By the deadline of the link. */
    struct ps_heap pings; /* By the time of a ping, while operations wait. */
    uint32_t met;         /* Structs made for servers so far. */
    uint32_t map_epoch;   /* Epoch of the newest map. */
};

/* Last assigned numbers. */
struct ps_agent_last_numbers {
    uint64_t worker;
    uint64_t token; /* Token of a computation. */
    uint64_t request;
};

/* Generations of ended jobs in a ring. */
struct ps_agent_ended_jobs {
    uint64_t gens[PS_AGENT_ENDED_JOBS];
    uint32_t next; /* Modulo the size of the ring: index of the oldest. */
};

/* Result memory of ended jobs. */
struct ps_agent_draining_pools {
    struct ps_agent_draining_pool *pools;
    uint32_t count;
    ps_time next_reap_at; /* PS_TIME_NEVER: no pool has memory to free. */
};

/* Regions of ended sessions; a few are unmapped at a time. */
struct ps_agent_unmapping {
    struct ps_map *regions; /* struct ps_buf */
    uint64_t last;          /* Number of the last one. */
    ps_time next_at;        /* PS_TIME_NEVER: there are none. */
};

struct ps_agent_departed_workers {
    struct ps_agent_departed_worker *workers;
    uint32_t count;
};

/* Ended operations kept for reuse, a stack. */
struct ps_agent_spare_ops {
    uint32_t in_use; /* Operations of all sessions. */
    struct ps_agent_op **ops;
    uint32_t count;
    uint32_t capacity;
};

/* Small sums of batches, one behind the other until the tick. */
struct ps_agent_sum_arena {
    struct ps_buf *buf; /* NULL: none. */
    uint64_t used;
};

/* When something is due; PS_TIME_NEVER: */
struct ps_agent_due {
    ps_time scratch_retry_at; /* No sum lacks memory. */
    ps_time resend_at;        /* Nothing was refused. */
    ps_time scratch_trim_at;  /* No trim is due. */
    ps_time report_at;        /* No scalar waits for its report. */
    ps_time stall_answer_at;  /* No stall query waits for the scheduler. */
    ps_time uplink_at;        /* As of the last step that changed the uplink. */
    bool uplink_has_changed;
};

/* See waits.c. */
struct ps_agent_waits {
    struct ps_list collects; /* struct ps_agent_wait_collect */
    uint32_t collect_count;
    /* When the first job is looked at, or the first report is sent; or never. */
    ps_time check_at;
};

struct ps_agent {
    struct ps_agent_options opt;
    struct ps_rng rng;
    ps_time now;
    struct ps_uplink uplink;
    /* Port on which this agent only listens, for liveness probes; "": none. */
    char liveness_address[PS_ADDRESS_MAX + 1];
    bool draining;
    struct ps_certificate_end certificate;
    struct ps_agent_server_table servers;
    struct ps_list sessions;
    struct ps_map *sessions_by_conn; /* struct ps_agent_session */
    struct ps_map *jobs;             /* By generation. */
    struct ps_agent_ended_jobs ended_jobs;
    struct ps_map *computations;  /* By token. */
    struct ps_map *stall_queries; /* By request. */
    struct ps_map *users;         /* By uid. */
    struct ps_agent_waits waits;
    struct ps_account account;
    struct ps_agent_last_numbers last;
    struct ps_agent_draining_pools draining_pools;
    struct ps_agent_unmapping unmapping;
    struct ps_agent_departed_workers departed;
    uint32_t deferred_session_count; /* Sessions whose job_open waits. */
    struct ps_agent_spare_ops spare_ops;
    uint64_t residual_bytes; /* Bytes used of the segments of all jobs. */
    struct ps_agent_sum_arena sum_arena;
    struct ps_agent_due due;
    struct ps_agent_stats stats;
};

static inline struct ps_agent_job *ps_agent_job_find(const struct ps_agent *a,
                                                     uint64_t gen)
{
    return ps_map_get(a->jobs, gen);
}

/* Hello of this agent, on connections to the scheduler and to servers. */
static inline struct ps_msg_hello ps_agent_hello(const struct ps_agent *a)
{
    return (struct ps_msg_hello){.role = PS_ROLE_AGENT,
                                 .name = a->opt.name,
                                 .cluster = a->opt.cluster,
                                 .node = a->uplink.node,
                                 .incarnation = a->uplink.incarnation,
                                 .address = a->liveness_address};
}

/* Sends a message to the scheduler on the link, which keeps it until it is
 * acknowledged. Dropped before registration, which resends all state. */
static inline void ps_agent_uplink_send_msg(struct ps_agent_step *st,
                                            const struct ps_msg *m)
{
    ps_uplink_send_msg(&st->a->uplink, m, st->now, st->fx);
    st->a->due.uplink_has_changed = true;
}

/* Begins a call that may change the uplink. */
static inline struct ps_uplink_call
ps_agent_uplink_call(struct ps_agent_step *st)
{
    st->a->due.uplink_has_changed = true;
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}

/* ----------------------------------------------------- messages of servers */

/* reply.c */
void ps_agent_reply_on_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                           ps_conn_id conn, const struct ps_msg *m,
                           const struct ps_slice *payload);
/* Place for the payload of a server's message: 0, or a PS_E_* when it is to be
 * discarded or the message is malformed. */
int ps_agent_reply_payload(struct ps_agent *a, struct ps_agent_server *s,
                           const struct ps_msg *m, uint64_t len,
                           struct ps_slice *ret_slice);
