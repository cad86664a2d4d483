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
#include "client/key_state.h"
#include "client/op_state.h"
#include "client/psclient.h"
#include "client/shm.h"
#include "client/sock.h"
#include "proto/ps_msg.h"
#include "proto/ring.h"

/* Longest busy poll, in microseconds; a longer one would delay messages of the
 * socket. */
#define SPIN_MAX_US  1000000
/* Shared memory blocks kept between two collectives. */
#define COLLS_SPARES 16u

/* State of the connection to the agent, see reattach.c. */
enum link_state {
    LINK_UP,
    LINK_LOST,     /* The socket is dialled again. */
    LINK_GREETING, /* Connected; l_welcome has not arrived. */
};

/* What the job calls this worker. */
struct identity {
    bool is_welcomed;
    uint64_t gen; /* Generation of the job. */
    uint32_t rank;
    uint32_t size;
    uint32_t local_rank;
    uint32_t local_size;
    uint32_t num_servers;
    uint64_t group_hash; /* Hash of the ranks of a group. */
};

/* Threads that wait, and what wakes them. */
struct progress {
    bool has_reader;        /* A thread is the reader. */
    uint32_t waiter_count;  /* Threads that wait for `changed`. */
    pthread_cond_t changed; /* The state, by another thread. */
    struct ps_spin busy_poll;
    /* Completions that wake the sleeping reader; 0: it is awake. */
    uint32_t wake_threshold;
    uint32_t count_mark;
    int poll_fd;  /* Result of psc_fd(); -1: not created. */
    int event_fd; /* Readable while callbacks are due. */
    struct ps_list callbacks;
    struct ps_list stall_requests;
};

/* Ring of operations and completions in shared memory. */
struct ring {
    void *memory; /* NULL: no ring, all messages use the socket. */
    struct ps_ring_worker worker;
    /* Operations use the socket until the ring is half empty. */
    bool is_full;
    /* The agent may sleep although the ring has entries. */
    bool needs_wake;
};

/* Residual segment of an agent, held open for the next agent. */
struct residual_segment {
    uint32_t number;
    uint64_t size;
    int fd;
};

/* From a lost agent to the next one. */
struct reattach {
    enum link_state link;
    uint32_t count;     /* Agents that this client re-attached to. */
    int32_t retry_ms;   /* LOST: delay between two dials. */
    ps_time retry_at;   /* LOST: time of the next dial. */
    ps_time lost_at;    /* Time at which the agent was lost. */
    char lost_text[64]; /* Reason why the last attempt failed. */
    struct residual_segment *segments;
    uint32_t segment_count;
};

/* Lines about waits that take long. */
struct wait_notes {
    ps_time every;    /* PS_TIME_NEVER: none. */
    ps_time due;      /* Time of the next line. */
    ps_time ended_at; /* Time at which the last wait ended. */
    /* Operation of the last wait; compared, never dereferenced. */
    const struct psc_op *op;
};

struct coll_table {
    /* Collectives that agree or wait for their turn. */
    struct ps_list order_queue;
    bool order_is_running;   /* run_order_queue() is active. */
    struct psc_op *join;     /* Open join; rounds of keys are refused. */
    uint32_t skips_detached; /* Open skips of a join that has failed. */
    /* Memory of ended collectives. */
    struct ps_shm_block *spare_blocks[COLLS_SPARES];
    size_t next_spare;
};

/* As in struct psc_stats. */
struct stats {
    uint64_t ops_ended;
    uint64_t rounds;
    uint64_t bytes_pushed;
    uint64_t bytes_pulled;
    uint64_t bytes_copied;
};

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
    struct psc_options options; /* For groups; the client owns the strings. */
    int32_t op_timeout_ms;
    int32_t close_timeout_ms;
    bool is_quiet; /* Set by PSC_OPEN_QUIET. */

    int rc; /* Not 0: the client has failed permanently. */
    char text[PSC_TEXT_MAX];
    /* The failure has not yet ended the open operations. */
    bool has_unended_ops;
    char detail[PSC_TEXT_MAX];

    struct ps_sock *sock;
    struct ring ring;
    struct ps_shm shm;
    struct arena_table arenas;
    struct identity id;
    struct reattach reattach;
    struct progress progress;
    struct op_table ops;
    struct op_queues queues;
    struct key_table keys;
    struct coll_table colls;
    struct wait_notes notes;
    struct stats stats;
    char *optimizer; /* Last declaration of this worker; NULL: none. */
};

/* False in a forked child. */
static inline bool client_is_own_process(const struct psc_client *c)
{
    return c->fork_page != NULL ? *c->fork_page != 0 : c->pid == getpid();
}

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

/* ---------------------------------------------------------------- client.c */

ps_time client_now(void);
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
