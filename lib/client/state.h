/* SPDX-License-Identifier: Apache-2.0 */
/* State of a client, shared by the files of this folder only.
 *
 * One mutex guards everything. One thread at a time is the reader: it waits for
 * the socket and copies results with the mutex released. The other threads wait
 * on the condition; when the reader's own wait is over, one of them becomes the
 * reader.
 *
 *     client.c      open, close, wait, messages from the agent
 *     key.c         names, shapes, location of results
 *     op.c          life of an operation, order on a key
 *     options.c     options, environment
 *     api.c         public calls on operations
 *     wait_note.c   lines about waits that take long
 *     reattach.c    from a lost agent to the next one
 *     coll*.c       collectives, see coll_inner.h
 *     group.c       clients for a subset of the ranks */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/list.h"
#include "base/spin.h"
#include "base/time.h"
#include "client/psclient.h"
#include "client/shm.h"
#include "client/sock.h"
#include "proto/ps_msg.h"
#include "proto/ring.h"

/* Longest busy poll, in microseconds; a longer one would delay messages of the
 * socket. */
#define SPIN_MAX_US 1000000
/* Operations sent to the agent at one time; further ones are queued here. */
#define SENT_MAX    (PS_OPS_MAX / 2u)
/* Array size, in bytes, from which arrays and results are streamed; smaller
 * ones are copied when complete. */
#define PIECES_MIN  (size_t)(4u * 1024 * 1024)
/* Freed operations kept for reuse. */
#define SPARE_OPS   4096u
/* Low bits of an operation's id: its slot in the table. Above: a counter. */
#define PLACE_BITS  20u
/* Shared memory blocks kept between two collectives. */
#define PSC_SPARES  16u

enum op_kind {
    OP_INIT,
    OP_PUSH,
    OP_PULL,
    OP_PUSHPULL,
    OP_BROADCAST,
    OP_PUSH_ROWS,
    OP_PULL_ROWS,
    OP_BARRIER,
    OP_OPTIMIZER,
    OP_CHANGE,
    OP_STATE,
    OP_COMPRESSION,
    OP_KEY,
    OP_COLL, /* Consists of sub-operations, see coll.c; no key, never sent. */
    OP_SKIP, /* Round skipped by a joined rank, see coll_join_rounds.c. */
};

enum op_state {
    OP_NEW,        /* Not submitted yet. */
    OP_QUEUED,     /* Waits here for earlier operations on its key. */
    OP_SENT,       /* The agent has it. */
    OP_COLLECTING, /* A collective: its sub-operations are running. */
    OP_COPYING,    /* The reader writes `out`, without the mutex. */
    OP_ENDING,     /* Has a result; the calling thread still streams. */
    OP_DONE,
};

/* State of the connection to the agent, see reattach.c. */
enum link_state {
    LINK_UP,
    LINK_LOST,     /* The socket is dialled again. */
    LINK_GREETING, /* Connected; l_welcome has not arrived. */
};

struct key;
struct coll;
struct arena;
struct job_request;
struct psc_op;

/* Behaviour of an operation of a collective, which registers it; plain
 * operations have none. A member that is NULL: as a plain operation. Locked,
 * unless stated otherwise. */
struct op_hooks {
    /* The operation is DONE, and its result in place. */
    void (*on_ended)(struct psc_op *op);

    /* Of a sub-operation. True if its result is copied. */
    bool (*wants_result)(const struct psc_op *op);
    /* True if the result may be copied while it arrives. */
    bool (*may_copy_progress)(const struct psc_op *op);
    /* Copies the result into that of the collective, from where progress copies
     * ended. Not locked. */
    void (*copy_result)(struct psc_op *op, const void *from);

    /* Of a collective, whose kind is OP_COLL. */
    void (*name)(const struct psc_op *op, char *text, size_t size);
    /* Frees what it consists of. */
    void (*fini)(struct psc_op *op);
    /* True while a sub-operation is COPYING; psc_op_free() waits for it. */
    bool (*is_copying)(const struct psc_op *op);
    /* The open operation that it waits for. */
    struct psc_op *(*waits_for)(struct psc_op *op);
    /* The result in place. PSC_E_NOENT: none, or written to `out`. */
    int (*view)(const struct psc_op *op, const void **ret_data,
                size_t *ret_bytes);
};

struct psc_op {
    struct psc_client *client;
    struct key *key; /* NULL: a barrier or a request of the job. */
    enum op_kind kind;
    enum op_state state;
    /* No handle: freed after it has ended; `out` is not written. */
    bool detached;
    /* QUEUED: was sent to an agent that is lost now. */
    bool must_resend;
    /* OP_SKIP: every rank skipped its round. */
    bool all_skipped;
    /* Broadcast: this rank does not ask for the value. */
    bool send_only;
    int rc; /* Result; valid when ENDING or DONE. */
    /* Last count_mark of the client that counted it, see api.c. */
    uint32_t count_mark;
    uint64_t id; /* 0: no slot in the table. */
    /* Round of a push, number of a barrier, least version of a pull. */
    uint64_t round;
    uint64_t version;
    ps_time started;
    int32_t priority;
    uint8_t reduce;
    uint32_t samples;
    uint32_t root;
    struct ps_shm_block *block; /* Source memory; NULL: none. */
    size_t block_offset;
    /* The block is a staging block and returns to the key. */
    bool staged;
    /* The calling thread still copies into the block, without the mutex. */
    bool streaming;
    /* Rows key: rows in the block, each once, ascending. */
    uint32_t row_count;
    /* Streaming: bytes of the block that are complete. */
    size_t bytes_ready;
    /* Pull of rows: index into the block for each requested row. */
    uint32_t *row_index;
    size_t row_index_count;
    struct job_request *job_request; /* Request of the job; NULL: none. */
    const void *data;                /* Result in the agent's memory. */
    /* Arena of a lost agent that holds the result; else NULL. */
    struct arena *arena;
    void *out;
    /* `out` is written while the result arrives. */
    bool copies_progress;
    size_t copied; /* Bytes of `out` written so far. */
    /* Sub-operation: offset of the needed part of the result. */
    size_t out_from;
    /* Sub-operation: bytes needed. */
    size_t out_bytes;
    /* Collective that it is, or is a sub-operation of; NULL: none. Known to the
     * hooks only. */
    struct coll *coll;
    const struct op_hooks *hooks; /* NULL: a plain operation. */
    psc_callback callback;
    void *user;
    char *text; /* Reason of a failure; NULL: text of `rc`. */
    struct ps_list_node of_client;
    /* QUEUED: queue of the key; of barriers and job requests, of the client.
     * DONE: deferred_free. */
    struct ps_list_node of_key;
    /* DONE, callback not yet run. */
    struct ps_list_node of_callbacks;
};

struct key {
    /* No rounds: results arrive in the operation's block. */
    bool is_async;
    uint32_t number; /* Key number of the public API. */
    /* Key number of the agent. */
    uint32_t agent_number;
    char *wire_name; /* Name on the wire: a prefix for the kind, then `name`. */
    const char *name; /* Full name. */
    int64_t mxnet_key;
    uint32_t dtype;
    uint64_t count;
    size_t bytes;
    uint32_t row_width; /* Elements of a row; 0: a dense key. */
    /* Dimensions of `shape`, declared again to the next agent. */
    uint32_t ndim;
    uint64_t *shape;
    uint8_t if_absent;           /* enum ps_find */
    struct psc_op *open_request; /* Open declaration; NULL once is_ready. */
    bool is_ready;
    /* Not yet declared to the agent that replaced a lost one. */
    bool is_unbound;
    /* Not ready: the agent's refusal. Ready: error of an operation without
     * handle, returned by the next call on the key. */
    int rc;
    char *text;
    struct key *next;       /* Next in its bucket. */
    const uint8_t *data[2]; /* Results of even and odd versions. */
    uint64_t round;         /* Last round sent. */
    struct ps_list queue;
    uint32_t ops_open; /* Operations SENT or COPYING. */
    bool is_stalled; /* In the client's `stalled` list: SENT_MAX was reached. */
    struct ps_list_node of_stalled;
    struct ps_shm_block *spare; /* Staging block for reuse; NULL: none. */
};

struct arena {
    uint32_t number;
    const void *data;
    uint64_t size;
    bool is_of_lost_agent; /* The agent that shared it is lost. */
    /* Operations whose result lies in it, once the agent is lost. */
    uint32_t uses;
};

/* Residual segment of an agent, held open for the next agent. */
struct residual_segment {
    uint32_t number;
    uint64_t size;
    int fd;
};

/* -------------------------------------------------------------- wait_note.c */

/* api.c: describes what the operation waits for. Queries the agent, which takes
 * time. */
void op_explain(struct psc_op *op, char *text, size_t size);
/* Sets note_every from the options. */
void wait_note_init(struct psc_client *c);
/* Waits as client_wait_many() does and writes wait notes about the operation
 * that `first` returns, the first one that has not ended. Slices of one wait
 * count together. */
int wait_note_many(struct psc_client *c, bool (*ready)(void *arg),
                   uint32_t (*missing)(void *arg), void *arg, ps_time deadline,
                   struct psc_op *(*first)(void *arg));
/* Waits for the start of the job, with wait notes. */
int wait_note_start(struct psc_client *c, bool (*ready)(void *arg),
                    ps_time deadline);

/* An open l_stall_query, on the stack of its caller. */
struct stall_request {
    struct ps_list_node node;
    uint64_t id;
    bool is_answered;
    char text[PSC_TEXT_MAX];
};

struct psc_client {
    pid_t pid;
    /* Page that fork() clears in a child; NULL: getpid() is compared. */
    const volatile uint8_t *fork_page;
    pthread_mutex_t lock;
    pthread_cond_t state_changed;
    bool has_reader;       /* A thread is the reader. */
    uint32_t waiter_count; /* Threads that wait for state_changed. */
    struct ps_sock *sock;
    struct ps_shm shm;
    void *ring_memory; /* NULL: no ring, all messages use the socket. */
    struct ps_ring_worker ring;
    struct ps_spin busy_poll;
    /* Operations use the socket until the ring is half empty. */
    bool ring_is_full;
    /* The agent may sleep although the ring has entries. */
    bool ring_needs_wake;
    /* Completions that wake the sleeping reader; 0: it is awake. */
    uint32_t wake_threshold;
    uint32_t count_mark;

    int rc; /* Not 0: the client has failed permanently. */
    char text[PSC_TEXT_MAX];
    /* The failure has not yet ended the open operations. */
    bool has_unended_ops;
    char detail[PSC_TEXT_MAX];

    bool is_welcomed;
    uint64_t gen;
    uint32_t rank;
    uint32_t size;
    uint32_t local_rank;
    uint32_t local_size;
    uint32_t num_servers;
    int32_t op_timeout_ms;
    int32_t close_timeout_ms;
    bool is_quiet; /* Set by PSC_OPEN_QUIET. */

    enum link_state link;
    uint32_t keys_unbound;   /* Keys with is_unbound. */
    uint32_t reattach_count; /* Agents that this client re-attached to. */
    int32_t retry_ms;        /* LOST: delay between two dials. */
    ps_time retry_at;        /* LOST: time of the next dial. */
    ps_time lost_at;         /* Time at which the agent was lost. */
    char lost_text[64];      /* Reason why the last attempt failed. */
    struct residual_segment *residual_segments;
    uint32_t residual_segment_count;
    struct ps_list job_requests; /* QUEUED operations with a job_request. */

    struct psc_op **ops_by_place;
    uint32_t op_slot_count;
    uint32_t op_slot_cap;
    uint32_t *free_op_slots; /* Stack of op_slot_cap entries. */
    uint32_t free_op_slot_count;
    uint64_t next_id;
    uint32_t ops_sent;      /* Operations SENT or COPYING. */
    uint32_t ops_streaming; /* Operations sent with copies_progress. */
    uint32_t ops_queued;    /* Operations QUEUED. */
    struct ps_list ops;
    struct ps_list spare_ops; /* Freed operations for reuse, by of_client. */
    uint32_t spare_op_count;
    struct ps_list callbacks;
    struct ps_list stalled;
    struct ps_list stall_requests;
    /* Wait notes: lines about waits that take long. */
    ps_time note_every;    /* PS_TIME_NEVER: none. */
    ps_time note_due;      /* Time of the next line. */
    ps_time note_ended_at; /* Time at which the last wait ended. */
    /* Operation of the last wait; compared, never dereferenced. */
    const struct psc_op *note_op;

    struct key **keys; /* Indexed by number. */
    uint32_t key_count;
    uint32_t key_cap;
    struct key **buckets;
    uint32_t bucket_count; /* A power of two. */
    struct arena **arenas;
    size_t arena_count;
    size_t arena_cap;

    char *optimizer; /* Last declaration of this worker; NULL: none. */
    /* Barriers sent, or completed before a restart of this worker. */
    uint64_t barriers;
    /* The agent has a barrier; further ones wait in barrier_queue. */
    bool barrier_open;
    struct ps_list barrier_queue;
    /* Barrier that timed out in psc_barrier(); the next call waits for it. */
    struct psc_op *late_barrier;

    int poll_fd;  /* Result of psc_fd(); -1: not created. */
    int event_fd; /* Readable while callbacks are due. */

    struct psc_options options; /* For groups; the client owns the strings. */
    uint64_t group_hash;        /* Hash of the ranks of a group. */
    /* Ended operations that no handle shows, by of_key; freed when the mutex is
     * released next. */
    struct ps_list deferred_free;
    /* Collectives that agree or wait for their turn. */
    struct ps_list order_queue;
    bool order_is_running;   /* run_order_queue() is active. */
    struct psc_op *join;     /* Open join; rounds of keys are refused. */
    uint32_t skips_detached; /* Skips sent for a join that has failed. */
    struct ps_shm_block
        *spare_blocks[PSC_SPARES]; /* Memory of ended collectives. */
    size_t next_spare;

    uint64_t ops_ended;
    uint64_t rounds;
    uint64_t bytes_pushed;
    uint64_t bytes_pulled;
    uint64_t bytes_copied;
};

/* ---------------------------------------------------------------- client.c */

ps_time client_now(void);
/* False in a forked child. */
static inline bool client_is_own_process(const struct psc_client *c)
{
    return c->fork_page != NULL ? *c->fork_page != 0 : c->pid == getpid();
}
/* Locks the client. PSC_E_FORKED in a forked child, where the mutex may be
 * locked for ever. */
PS_MUST_USE int client_enter(struct psc_client *c);
/* Settles and unlocks the client. */
void client_leave(struct psc_client *c);
/* Ends the operations of a client that has failed, and frees those on
 * deferred_free. Called before the mutex is released or a wait goes on, by a
 * caller that holds no operation without handle. Locked. */
void client_settle(struct psc_client *c);
/* Sets the detail and returns `rc`. Locked. */
int client_error(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails the client: every operation ends with `rc`, in client_settle(). The
 * first failure stays. Locked. */
void client_fail(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Queues a message. Without an agent it is dropped, because all open state is
 * sent to the next agent. Locked. */
PS_MUST_USE int client_put(struct psc_client *c, const struct ps_msg *msg);
/* Sends queued messages; a failure ends every operation. Locked. */
void client_flush(struct psc_client *c);
/* client_put() and client_flush(). */
PS_MUST_USE int client_send(struct psc_client *c, const struct ps_msg *msg);
/* Error code of the agent as a PSC_E_*; never 0. */
int client_failure(int32_t error);
/* Waits until `ready` is true. Returns 0, PS_E_TIMEOUT or the client's failure.
 * Locked; releases the mutex while it waits. */
PS_MUST_USE int client_wait(struct psc_client *c, bool (*ready)(void *arg),
                            void *arg, ps_time deadline);
/* As client_wait(); `missing` returns how many operations must still end at
 * least, so that fewer completions do not wake the thread. */
PS_MUST_USE int client_wait_many(struct psc_client *c, bool (*ready)(void *arg),
                                 uint32_t (*missing)(void *arg), void *arg,
                                 ps_time deadline);
/* Reads and sends without waiting. Locked; may release the mutex. */
void client_poll(struct psc_client *c);
/* True if the next completion lets this client send more: no thread may sleep
 * until several have arrived. client_kick() wakes the reader then. Locked. */
bool client_wants_kick(const struct psc_client *c);
void client_kick(struct psc_client *c);
/* Wakes threads that wait for a change by another thread. Locked. */
void client_changed(struct psc_client *c);
ps_time client_deadline(int timeout_ms);
/* Fills the first message of a connection, without the fields of a
 * re-attach. */
void client_hello(const struct psc_client *c, struct ps_msg *ret_msg);
/* Offers the agent a ring of this layout. */
void client_open_ring(struct psc_client *c, uint32_t layout);

/* ------------------------------------------------------------------- key.c */

/* The ready key of that number; NULL: PSC_E_NOKEY. Locked. */
struct key *key_of(struct psc_client *c, uint32_t number);
/* The key of that full name. An unknown key is declared; operations may be
 * queued on it at once. Locked. */
PS_MUST_USE int key_get_or_ask(struct psc_client *c, const char *full,
                               uint32_t dtype, uint64_t count,
                               struct key **ret_key);
/* True for keys of collectives. */
bool key_is_internal(const struct key *k);
/* Last round that this worker has begun, queued ones included. */
uint64_t key_rounds_begun(const struct key *k);
/* Handlers of the agent's messages. Locked. */
void key_accept_arena(struct psc_client *c, const struct ps_msg_l_arena *m,
                      int fd);
void key_accept_info(struct psc_client *c, struct psc_op *op,
                     const struct ps_msg_l_key_info *m);
void key_free_all(struct psc_client *c);
/* Agent connection lost: marks all keys unbound. Keeps only mappings that back
 * open results. No operation but OP_KEY is SENT. */
void key_unbind_all(struct psc_client *c);
/* Declares all keys to the next agent; key_accept_rebind() takes its
 * answers. */
PS_MUST_USE int key_rebind_all(struct psc_client *c);
void key_accept_rebind(struct psc_client *c, const struct ps_msg_l_key_info *m);
/* Bit of `request` in l_key and l_key_info of an unbound key; the other bits
 * are its number. */
#define KEY_REBIND ((uint64_t)1 << 63)
/* Drops one use of a lost agent's arena; the last one unmaps it. */
void key_drop_arena(struct psc_client *c, struct arena *a);
/* The key of that wire name, or NULL. Locked. */
struct key *key_by_name(const struct psc_client *c, const char *full);

/* -------------------------------------------------------------------- op.c */

/* Writes "pushpull of 'fc1.weight'", with the round if it has one. */
void op_name(const struct psc_op *op, char *text, size_t size);
/* Starts an operation of the job rather than of a key. `op_id` points to the
 * number's field in the message; without a message it is a barrier. Locked. */
PS_MUST_USE int op_start_plain(struct psc_client *c, enum op_kind kind,
                               struct ps_msg *m, uint64_t *op_id,
                               const struct psc_op_options *o,
                               struct psc_op **ret_op);
/* Waits for an operation that was started with `rc`, and frees it. Not
 * locked. */
int op_finish(struct psc_op *op, int rc);
/* A new operation, or NULL without memory. Locked, as all below. */
struct psc_op *op_new(struct psc_client *c, enum op_kind kind);
/* The open operation of that id, or NULL. */
struct psc_op *op_find(struct psc_client *c, uint64_t id);
/* Gives the operation an id and a slot in the table. */
PS_MUST_USE int op_number(struct psc_op *op);
/* Marks the operation as sent to the agent. */
void op_sent(struct psc_op *op);
/* Queues the operation on its key or as a barrier, or sends it at once. The
 * client owns it then, and it may have ended. On failure the operation is still
 * NEW. `msg` is the message of a job request. */
PS_MUST_USE int op_submit(struct psc_op *op, const struct ps_msg *msg);
/* Allocates a staging block for an array of its key. */
PS_MUST_USE int op_alloc_staging(struct psc_op *op);
/* Copies the source of a streaming operation, which the agent may already have,
 * and reports progress. Afterwards the operation may have ended. */
void op_stream(struct psc_op *op, const void *src);
/* Sends the queued operations of a key that is ready. */
void op_pump(struct key *k, struct psc_client *c);
/* Agent lost: queues every SENT operation but OP_KEY again, in order. */
void op_requeue_all(struct psc_client *c);
/* Sends QUEUED job requests and barriers. Requests of an unbound key stay
 * queued. */
PS_MUST_USE int op_send_job_requests(struct psc_client *c);
void op_send_barriers(struct psc_client *c);
/* Completion from the agent. Reader only; releases the mutex to copy. */
void op_accept_done(struct psc_op *op, const struct ps_msg_l_done *m);
/* Copies `bytes` of a result that are readable. Reader only; releases the
 * mutex. The operation stays SENT. */
void op_accept_progress(struct psc_op *op, uint64_t bytes);
/* Ends the operation, which stays valid at least until the mutex is released:
 * a detached one joins deferred_free. `text` may be NULL. */
void op_end(struct psc_op *op, int rc, const char *text);
/* Hands the result of a plain operation that is DONE to its handle or callback;
 * a detached one joins deferred_free. */
void op_report(struct psc_op *op);
/* Ends every operation that is QUEUED or SENT. */
void op_end_all(struct psc_client *c, int rc, const char *text);
/* Ends a QUEUED operation without a result; it joins deferred_free. */
void op_cancel(struct psc_op *op);
/* Puts an operation that is DONE, and that no handle shows, on
 * deferred_free. */
void op_free_later(struct psc_op *op);
/* Frees the operations on deferred_free. The caller holds none of them. */
void op_free_deferred(struct psc_client *c);
/* Removes the operation from all lists and frees it. Not while COPYING. */
void op_free(struct psc_op *op);
static inline bool op_is_round(enum op_kind kind)
{
    return kind == OP_PUSH || kind == OP_PUSHPULL || kind == OP_BROADCAST ||
           kind == OP_PUSH_ROWS || kind == OP_SKIP;
}
static inline bool op_has_result(enum op_kind kind)
{
    return kind == OP_PULL || kind == OP_PUSHPULL || kind == OP_BROADCAST;
}

/* --------------------------------------------------------------- reattach.c */

/* True if the options allow to re-attach to another agent. */
bool reattach_is_wanted(const struct psc_options *o);
/* True if this client can re-attach when it loses its agent. */
bool reattach_is_possible(const struct psc_client *c);
/* Reader only: the stream has ended and all its messages are handled. */
void reattach_agent_lost(struct psc_client *c);
/* Dials the agent's socket. Reader only, while the link is LOST. */
void reattach_dial(struct psc_client *c);
/* The welcome of the next agent: re-declares all state to it. */
void reattach_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m);
/* Describes why operations wait while no agent knows the key (NULL: the job).
 * False: an agent does. */
bool reattach_explain(const struct psc_client *c, const struct key *k,
                      char *text, size_t size);
/* Stores a residual segment; owns `fd`. */
void reattach_add_segment(struct psc_client *c,
                          const struct ps_msg_l_residual_segment *m, int fd);
void reattach_fini(struct psc_client *c);
