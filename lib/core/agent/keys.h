/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a job on this node, their partitions, and unfinished operations. */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/pool.h"
#include "core/agent/kind.h"
#include "core/base/machine.h"
#include "core/codec/compression.h"

#define NO_VERSION     (-1) /* No version yet. */
/* Progress of a partial result is reported each time this many bytes are
 * added: small against a cache, large against the cost of a wake-up. */
#define PROGRESS_BYTES (2u * 1024u * 1024u)
/* Operations, or parts of a frame, handled as one batch: prefetch.c. */
#define PREFETCH_OPS   16u

struct ps_agent_job;
struct ps_agent_key;
struct ps_agent_residual_record;

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
    bool is_revertible;   /* residual[1] may become residual[0] again. */
    struct ps_slice data; /* The encoded form; buf NULL: none. */
    /* Current residual, and the one before `data`; NULL: zeros. */
    struct ps_buf *residual[2];
    struct ps_buf *moment[2]; /* Moments, as `residual`. */
    /* Log record with both vectors; NULL: they lie in the scratch pool. */
    struct ps_agent_residual_record *record;
    uint64_t round; /* Round of `data`. */
};

/* Pulls of a partition of an async key: async.c. */
struct ps_agent_part_async {
    uint64_t served_ticket; /* Pulls up to this ticket have the value. */
    /* Pulls up to this ticket get the value with the next reply. */
    uint64_t requested_ticket;
    uint64_t clock; /* ssp: pushes that every rank of the job has made. */
    bool must_request_clock; /* `clock` may be stale: replies were lost. */
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
    /* Rows key: newest version that its server reported; NO_VERSION. */
    int64_t server_version;
    /* Version that a frame of the owner is being read into the results of;
     * NO_VERSION: none, unless the frame was cut off. */
    int64_t lent_version;
    uint64_t completed_round; /* Last round that is over for it. */
    /* Least version of the open pull; NO_VERSION: none is open. */
    int64_t requested_version;
    struct ps_agent_encoding encoding;
    struct ps_agent_part_async async;
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
        deliveries; /* Copies of parts of the value to GPUs, see deliver.c. */
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

/* Pushes and pulls of an async key: async.c. */
struct ps_agent_key_async {
    /* ssp: least push count of the local ranks, pushes in flight included. */
    uint64_t clock;
    uint64_t last_ticket;
    uint64_t *applied_round; /* By local rank: last applied push. */
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

/* Fields that each round touches come first: prefetch.c. */
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
    struct ps_agent_key_async async;
    bool residual_loss_noted; /* The loss of a residual has been logged. */
    char name[PS_KEY_NAME_MAX + 1];
    uint32_t declared_by; /* Local rank that was the first. */
    struct ps_agent_disagreement *disagreement; /* NULL: there was none. */
    uint32_t placement_epoch;
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

/* A placement that arrived before the answer to the key's opening. */
struct ps_agent_pending_placement {
    uint32_t epoch;
    uint32_t part_count;
    struct ps_buf *table;
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

/* True if servers may have committed a round before it is complete here: the
 * prior process of the agent had pushed it, or an attempt was aborted here of
 * which servers had all contributions. */
static inline bool ps_agent_round_may_be_committed(const struct ps_agent_key *k)
{
    return k->prior_state != NULL || k->round.conflict != NULL;
}

/* Returns true if gradients of the key may be sent encoded. */
static inline bool ps_agent_key_has_codec(const struct ps_agent_key *k)
{
    return k->compression.codec.kind != PS_CODEC_NONE;
}

static inline bool ps_agent_key_is_open(const struct ps_agent_key *k)
{
    return k->opening.state == PS_AGENT_KEY_OPEN;
}
