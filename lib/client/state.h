/* SPDX-License-Identifier: Apache-2.0 */
/* What a client consists of; for the files of this folder alone.
 *
 * One mutex guards everything. One thread at a time is the reader: it waits
 * for the socket and copies results with the mutex released; the others wait
 * for the condition and take over when the reader has what it came for.
 *
 *     client.c   open, close, wait, messages from the agent
 *     key.c      names, shapes, where results lie
 *     op.c       life of an operation, order on a key
 *     options.c  options, environment
 *     api.c      the calls on operations
 *     wait_note.c    lines about waits that take long
 *     reattach.c   from an agent that was lost to the next one
 *     coll*.c    collectives, see coll_inner.h
 *     group.c    clients of some of the ranks
 */
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

/* Longer would make a wait deaf to what comes over the socket. */
#define SPIN_MAX_US 1000000
/* Operations that the agent knows of; more wait here. */
#define SENT_MAX    (PS_OPS_MAX / 2u)
/* Smaller arrays and results are copied when they are complete. */
#define PIECES_MIN  (size_t)(4u * 1024 * 1024)
/* Operations kept for the next ones. */
#define SPARE_OPS   4096u
/* An operation's number is a count above its place in the table. */
#define PLACE_BITS  20u
/* Pieces of shared memory kept between two collectives. */
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
    OP_COLL, /* Has parts, see coll.c; no key, and is never sent. */
    OP_SKIP, /* Of a join, see coll_join_rounds.c. */
};

enum op_state {
    OP_NEW,        /* Is being put together. */
    OP_QUEUED,     /* Waits here for its turn on the key. */
    OP_SENT,       /* With the agent. */
    OP_COLLECTING, /* Its parts are under way. */
    OP_COPYING,    /* The reader writes its out, without the mutex. */
    OP_DONE,
};

/* See reattach.c. */
enum link_state {
    LINK_UP,
    LINK_LOST,     /* The socket is dialled again. */
    LINK_GREETING, /* It is connected; l_welcome is to come. */
};

struct key;
struct coll;
struct arena;
struct job_request;

struct psc_op {
    struct psc_client *client;
    struct key *key; /* NULL: barrier, optimizer. */
    enum op_kind kind;
    enum op_state state;
    bool detached; /* Nobody waits: it goes when it ends, and writes no out. */
    bool must_resend;    /* QUEUED: an agent had it, and was lost. */
    bool all_skipped;    /* A pass, as all have done in its round. */
    bool send_only;      /* A broadcast whose value goes to others alone. */
    int rc;              /* DONE. */
    uint32_t count_mark; /* The count that has met it, see api.c. */
    uint64_t id;         /* 0: has no place in the table. */
    uint64_t round; /* Of the push; number of the barrier; least version. */
    uint64_t version;
    ps_time started;
    int32_t priority;
    uint8_t reduce;
    uint32_t samples;
    uint32_t root;
    struct ps_shm_block *block; /* What is given; NULL: nothing. */
    size_t block_offset;
    bool staged; /* The block is ours and goes back to the key. */
    /* Its starter still copies into the block, without the mutex: */
    bool streaming;
    bool ended_early;    /* it has ended meanwhile, with rc and text. */
    uint32_t row_count;  /* Of a key of rows: each once and in order. */
    size_t bytes_ready;  /* Growing: so many bytes are there. */
    uint32_t *row_index; /* Pull: for each row asked for, which one it is. */
    size_t row_index_count;
    struct job_request *job_request; /* What is said of the whole job. */
    const void *data;                /* Its result in the agent's memory. */
    struct arena *arena; /* That is of an agent which was lost; else NULL. */
    void *out;
    bool copies_progress;  /* Out is written as the result comes, */
    size_t copied;         /* so far to here. */
    size_t out_from;       /* Parts: of the result, these */
    size_t out_bytes;      /* bytes. */
    struct coll *coll;     /* Of a collective. */
    struct coll *subop_of; /* Whose part it is; NULL: of none. */
    psc_callback callback;
    void *user;
    char *text; /* Why it failed; NULL: what the code says. */
    struct ps_list_node of_client;
    struct ps_list_node of_key;       /* QUEUED; of barriers and words, in the
                                  * client's; of collectives, in its graves. */
    struct ps_list_node of_callbacks; /* DONE, the callback is to come. */
};

struct key {
    bool is_async;   /* No rounds: results come into the operation's block. */
    uint32_t number; /* Ours, what callers hold. */
    uint32_t agent_number; /* The agent's. */
    char *wire_name;       /* Its name on the wire: with the kind in front. */
    const char *name;      /* In full. */
    int64_t mxnet_key;
    uint32_t dtype;
    uint64_t count;
    size_t bytes;
    uint32_t row_width; /* Elements of a row; 0: not a key of rows. */
    uint32_t ndim;      /* Of its shape, for an agent that asks later. */
    uint64_t *shape;
    uint8_t if_absent;           /* enum ps_find */
    struct psc_op *open_request; /* Not ready: the question. */
    bool is_ready;
    bool
        is_unbound; /* Its agent was lost, and the next one has not answered. */
    /* Not ready: the agent refused it. Ready: an operation that nobody waited
     * for failed, and the next call on the key says so. */
    int rc;
    char *text;
    struct key *next;       /* Same bucket. */
    const uint8_t *data[2]; /* Results with even and odd versions. */
    uint64_t round;         /* Rounds pushed. */
    struct ps_list queue;
    uint32_t ops_open; /* Operations SENT or COPYING. */
    bool is_stalled;   /* In the client's list: the agent has enough to do. */
    struct ps_list_node of_stalled;
    struct ps_shm_block *spare; /* A staging block between two uses. */
};

struct arena {
    uint32_t number;
    const void *data;
    uint64_t size;
    bool is_of_lost_agent; /* Of an agent that was lost: */
    uint32_t uses;         /* operations whose result lies there. */
};

/* Memory of the agent that this process holds for the next one. */
struct residual_segment {
    uint32_t number;
    uint64_t size;
    int fd;
};

/* -------------------------------------------------------------- wait_note.c */

/* api.c: for whom the operation waits; asks the agent, which takes time. */
void op_explain(struct psc_op *op, char *text, size_t size);
/* Sets note_every. */
void wait_note_init(struct psc_client *c);
/* As client_wait_many() for an operation: `first` is asked for the first one
 * that has not ended. Slices of one wait count together. */
int wait_note_many(struct psc_client *c, bool (*ready)(void *arg),
                   uint32_t (*missing)(void *arg), void *arg, ps_time deadline,
                   struct psc_op *(*first)(void *arg));
/* The same for the start of the job. */
int wait_note_start(struct psc_client *c, bool (*ready)(void *arg),
                    ps_time deadline);

/* A question of l_stall_query under way, on the asker's stack. */
struct stall_request {
    struct ps_list_node node;
    uint64_t id;
    bool is_answered;
    char text[PSC_TEXT_MAX];
};

struct psc_client {
    pid_t pid;
    /* A page that a child of fork() finds all zero; NULL: ask for the pid. */
    const volatile uint8_t *fork_page;
    pthread_mutex_t lock;
    pthread_cond_t state_changed;
    bool has_reader;       /* Some thread is it. */
    uint32_t waiter_count; /* Threads on `changed`. */
    struct ps_sock *sock;
    struct ps_shm shm;
    void *ring_memory; /* NULL: everything goes over the socket. */
    struct ps_ring_worker ring;
    struct ps_spin busy_poll;
    bool
        ring_is_full; /* Operations go over the socket until it is half empty. */
    bool ring_needs_wake; /* The agent may have to be woken for it. */
    uint32_t
        wake_threshold; /* Ends that the reader lets gather; 0: is awake. */
    uint32_t count_mark;

    int rc; /* Not 0: the client has failed, for good. */
    char text[PSC_TEXT_MAX];
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
    bool is_quiet; /* PSC_OPEN_QUIET */

    enum link_state link;
    uint32_t keys_unbound;   /* Keys that are. */
    uint32_t reattach_count; /* Times that another agent has taken us up. */
    int32_t retry_ms;        /* LOST: between two attempts. */
    ps_time retry_at;        /* LOST: the next one. */
    ps_time lost_at;         /* When this began. */
    char lost_text[64];      /* Why the last attempt came to nothing. */
    struct residual_segment *residual_segments;
    uint32_t residual_segment_count;
    struct ps_list job_requests; /* QUEUED operations that have some. */

    struct psc_op **ops_by_place;
    uint32_t op_slot_count;
    uint32_t op_slot_cap;
    uint32_t *free_op_slots; /* A stack of place_cap entries. */
    uint32_t free_op_slot_count;
    uint64_t next_id;
    uint32_t ops_sent;      /* Operations the agent has not ended. */
    uint32_t ops_streaming; /* Those that are copied as they come. */
    uint32_t ops_queued;    /* Those that wait for the end of others. */
    struct ps_list ops;
    struct ps_list spare_ops; /* Freed, for the next ones; by of_client. */
    uint32_t spare_op_count;
    struct ps_list callbacks;
    struct ps_list stalled;
    struct ps_list stall_requests;
    /* Lines about waits that take long. */
    ps_time note_every;    /* PS_TIME_NEVER: none. */
    ps_time note_due;      /* When the next line is due. */
    ps_time note_ended_at; /* When the last wait ended, of this operation: */
    const struct psc_op *note_op; /* for comparison alone. */

    struct key **keys; /* By number. */
    uint32_t key_count;
    uint32_t key_cap;
    struct key **buckets;
    uint32_t bucket_count; /* A power of two. */
    struct arena **arenas;
    size_t arena_count;
    size_t arena_cap;

    char *optimizer;   /* Last one that this worker declared; NULL: none. */
    uint64_t barriers; /* Sent, or passed in an earlier life. */
    bool barrier_open; /* One is with the agent; the others wait here: */
    struct ps_list barrier_queue;
    /* A barrier that psc_barrier() has given up waiting for. */
    struct psc_op *late_barrier;

    int poll_fd;  /* What psc_fd() gives; -1: not asked for. */
    int event_fd; /* Readable while callbacks are due. */

    struct psc_options options;   /* For groups; the strings are ours. */
    uint64_t group_hash;          /* Of a group: a hash of its ranks. */
    struct ps_list deferred_free; /* Collectives that are to be freed. */
    struct ps_list order_queue;   /* Those whose data is not under way yet. */
    bool order_is_running;        /* They are being gone through. */
    struct psc_op *join;          /* Open: rounds of keys are refused. */
    uint32_t skips_detached;      /* Passes sent for a join that has failed. */
    struct ps_shm_block *spare_blocks[PSC_SPARES]; /* Of collectives. */
    size_t next_spare;

    uint64_t ops_ended;
    uint64_t rounds;
    uint64_t bytes_pushed;
    uint64_t bytes_pulled;
    uint64_t bytes_copied;
};

/* ---------------------------------------------------------------- client.c */

ps_time client_now(void);
/* False in a child of the process that opened it. */
static inline bool client_is_own_process(const struct psc_client *c)
{
    return c->fork_page != NULL ? *c->fork_page != 0 : c->pid == getpid();
}
/* Locks; PSC_E_FORKED in a child, where the mutex may never come free. */
PS_MUST_USE int client_enter(struct psc_client *c);
void client_leave(struct psc_client *c);
/* Sets the detail and returns `rc`. Locked. */
int client_error(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends every operation with `rc`. Locked. */
void client_fail(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Queues a message. While there is no agent it is dropped: what is open is said
 * to the next one in any case. Locked. */
PS_MUST_USE int client_put(struct psc_client *c, const struct ps_msg *msg);
/* Tries to send what is queued; may end every operation. Locked. */
void client_flush(struct psc_client *c);
/* Both. */
PS_MUST_USE int client_send(struct psc_client *c, const struct ps_msg *msg);
/* A code from the agent as one of ours: whatever it is, it is an error. */
int client_failure(int32_t error);
/* Until `ready` says so: 0, PS_E_TIMEOUT, or how the client failed. Locked,
 * but lets go while it waits. */
PS_MUST_USE int client_wait(struct psc_client *c, bool (*ready)(void *arg),
                            void *arg, ps_time deadline);
/* The same; `missing` says how many operations must at least end until then:
 * nobody is woken for fewer. */
PS_MUST_USE int client_wait_many(struct psc_client *c, bool (*ready)(void *arg),
                                 uint32_t (*missing)(void *arg), void *arg,
                                 ps_time deadline);
/* Reads and sends without waiting. Locked; may let go meanwhile. */
void client_poll(struct psc_client *c);
/* Something is to be done here when the next operation ends: nobody may sleep
 * until more of them have. Locked. */
bool client_wants_kick(const struct psc_client *c);
void client_kick(struct psc_client *c);
/* Wakes threads that wait for a change they did not make. Locked. */
void client_changed(struct psc_client *c);
ps_time client_deadline(int timeout_ms);
/* The first message of a connection, but for what a resume says. */
void client_hello(const struct psc_client *c, struct ps_msg *ret_msg);
/* Offers the agent a ring of this layout. */
void client_open_ring(struct psc_client *c, uint32_t layout);

/* ------------------------------------------------------------------- key.c */

/* PSC_E_NOKEY or NULL. Locked. */
struct key *key_of(struct psc_client *c, uint32_t number);
/* The key of that full name, asked for where it is not known yet; operations
 * may be queued on it at once. Locked. */
PS_MUST_USE int key_get_or_ask(struct psc_client *c, const char *full,
                               uint32_t dtype, uint64_t count,
                               struct key **ret_key);
/* The library's, for collectives. */
bool key_is_internal(const struct key *k);
/* The last round that this worker has begun. */
uint64_t key_rounds_begun(const struct key *k);
/* Locked; the answers of the agent. */
void key_accept_arena(struct psc_client *c, const struct ps_msg_l_arena *m,
                      int fd);
void key_accept_info(struct psc_client *c, struct psc_op *op,
                     const struct ps_msg_l_key_info *m);
void key_free_all(struct psc_client *c);
/* The agent is lost: keys are away, and of its memory stays what shows results.
 * No operation is SENT but questions for keys. */
void key_unbind_all(struct psc_client *c);
/* Names them to the next one; the answer. */
PS_MUST_USE int key_rebind_all(struct psc_client *c);
void key_accept_rebind(struct psc_client *c, const struct ps_msg_l_key_info *m);
/* In the l_key and l_key_info of a key that was away: with its number. */
#define KEY_REBIND ((uint64_t)1 << 63)
/* One use less of memory of an agent that was lost. */
void key_drop_arena(struct psc_client *c, struct arena *a);
/* By the name on the wire; NULL: it is not known. Locked. */
struct key *key_by_name(const struct psc_client *c, const char *full);

/* -------------------------------------------------------------------- op.c */

/* "pushpull of 'fc1.weight'", with the round where there is one. */
void op_name(const struct psc_op *op, char *text, size_t size);
/* An operation of the job rather than of a key. `op_id` is where in the message
 * its number belongs; without a message it is a barrier. Locked. */
PS_MUST_USE int op_start_plain(struct psc_client *c, enum op_kind kind,
                               struct ps_msg *m, uint64_t *op_id,
                               const struct psc_op_options *o,
                               struct psc_op **ret_op);
/* Waits for an operation that was started with `rc`, and frees it. Not
 * locked. */
int op_finish(struct psc_op *op, int rc);
/* NULL when memory is gone. All of these: locked. */
struct psc_op *op_new(struct psc_client *c, enum op_kind kind);
/* The open operation of that number, or NULL. */
struct psc_op *op_find(struct psc_client *c, uint64_t id);
/* A number for what is about to be sent. */
PS_MUST_USE int op_number(struct psc_op *op);
/* From here on it is with the agent. */
void op_sent(struct psc_op *op);
/* Queues it on its key or as a barrier, or sends what is neither; the
 * operation belongs to the client then, and is gone if it has ended and nobody
 * waits for it. Fails for what cannot be sent at all; the operation is NEW
 * still. `msg` is of what has no queue. */
PS_MUST_USE int op_submit(struct psc_op *op, const struct ps_msg *msg);
/* A piece for an array of its key. */
PS_MUST_USE int op_alloc_staging(struct psc_op *op);
/* Copies what a growing operation gives, which may be with the agent already:
 * that hears piece by piece. Afterwards it may have ended, and be gone if
 * nobody waits for it. */
void op_stream(struct psc_op *op, const void *src);
/* The key is there: what is queued goes. */
void op_pump(struct key *k, struct psc_client *c);
/* Everything that is SENT, but questions for keys, is QUEUED again, in order:
 * the agent that had it is lost. */
void op_requeue_all(struct psc_client *c);
/* Sends words and barriers that are QUEUED. The words of a key that is away
 * stay. */
PS_MUST_USE int op_send_job_requests(struct psc_client *c);
void op_send_barriers(struct psc_client *c);
/* The agent has ended it. The reader alone; lets go of the mutex to copy. */
void op_accept_done(struct psc_op *op, const struct ps_msg_l_done *m);
/* So many bytes of its result are there. As above, but it goes on. */
void op_accept_progress(struct psc_op *op, uint64_t bytes);
/* Ends it here; frees it if nobody waits for it. `text` may be NULL. */
void op_end(struct psc_op *op, int rc, const char *text);
/* Forgets it wherever it is. Not while COPYING. */
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

/* ---------------------------------------------------------------- reattach.c */

/* Do these options ask for another agent when one is lost? */
bool reattach_is_wanted(const struct psc_options *o);
/* Is there a next agent for this client when it loses the one it has? */
bool reattach_is_possible(const struct psc_client *c);
/* The reader alone: the stream has ended, and what had come is taken. */
void reattach_agent_lost(struct psc_client *c);
/* The reader alone, while the link is LOST. */
void reattach_dial(struct psc_client *c);
/* The welcome of the next agent. */
void reattach_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m);
/* Says why nothing goes on while there is no agent that knows the key (NULL:
 * the job). False: there is one. */
bool reattach_explain(const struct psc_client *c, const struct key *k,
                      char *text, size_t size);
/* Takes the descriptor. */
void reattach_add_segment(struct psc_client *c,
                          const struct ps_msg_l_residual_segment *m, int fd);
void reattach_fini(struct psc_client *c);
