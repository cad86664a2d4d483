/* SPDX-License-Identifier: Apache-2.0 */
/* State of a client, shared by the files of this folder only.
 *
 * One mutex guards everything. One thread at a time is the reader: it waits for
 * the socket and copies results with the mutex released. The other threads wait
 * on the condition; when the reader's own wait is over, one of them becomes the
 * reader.
 *
 *     client.c      open, close, statistics; clients for a subset of the ranks
 *     options.c     options, environment
 *     reattach.c    connections: the first one, and from a lost agent to the next
 *     progress.c    the reader, messages of the agent, waiting, the descriptor to
 *                   poll
 *     state.c       time, errors, messages to the agent
 *     threads.c     every public call enters and leaves the client; whether the
 *                   process can go on without the end of an operation
 *     op.c          life of an operation; op_transfer.c: order, arrays, results;
 *                   op_start.c, op_wait.c: public calls
 *     key.c         names and shapes of keys
 *     arena.c       memory of the agent; memory.c: memory shared with it, that of
 *                   the program included
 *     declare.c     public calls: keys, optimizer, compression; state_file.c: files
 *                   of the optimizer's state
 *     report.c      training scalars
 *     span.c        spans of the program
 *     device/       memory of GPUs: gpu.c has CUDA's driver, streams and copies;
 *                   staged.c operations by way of the host; shared.c memory that
 *                   the agent maps, shared_op.c operations on it
 *     coll/         collectives, see coll/coll.h
 *
 * No file calls one that calls it: public calls, coll/, progress.c,
 * reattach.c, key.c, op_transfer.c, op.c call in this order, and all of them the
 * others. Operations know collectives only by the hooks that these register. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/spin.h"
#include "base/time.h"
#include "client/psclient.h"
#include "client/shm.h"
#include "client/sock.h"
#include "proto/ps_msg.h"
#include "proto/ring.h"

struct arena;
struct key;
struct psc_op;

/* Shared memory blocks kept between two collectives. */
#define COLLS_SPARES 16u

/* State of the connection to the agent, see reattach.c. */
enum link_state {
    LINK_UP,
    LINK_LOST,      /* The socket is dialled again. */
    LINK_HANDSHAKE, /* Connected; l_welcome has not arrived. */
};

/* Identity of this worker in its job. */
struct identity {
    bool is_welcomed;
    uint64_t gen; /* Generation of the job. */
    uint32_t rank;
    uint32_t size;
    uint32_t local_rank;
    uint32_t local_size;
    uint32_t num_servers;
    uint64_t group_hash;        /* Hash of the ranks of a group. */
    char node[PS_NAME_MAX + 1]; /* Name of the agent; "": not known. */
    bool agent_takes_devices;
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
    int poll_fd;      /* Result of psc_fd(); -1: not created. */
    int event_fd;     /* Readable while psc_dispatch() is due. */
    bool is_signaled; /* It is readable. */
    struct ps_list callbacks;
    struct ps_list stall_requests;
    struct ps_list waiting; /* struct waiting */
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
    size_t segment_cap;
};

struct op_table {
    struct ps_list all; /* In order of creation, by of_client. */
    struct psc_op **by_slot;
    uint32_t slot_count;
    uint32_t slot_cap;
    uint32_t *free_slots; /* Stack of slot_cap entries. */
    uint32_t free_slot_count;
    uint64_t next_id;
    uint32_t sent;        /* Operations SENT or COPYING. */
    uint32_t streaming;   /* Operations sent with copies_progress. */
    uint32_t queued;      /* Operations QUEUED. */
    struct ps_list spare; /* Freed operations for reuse, by of_client. */
    uint32_t spare_count;
    /* Ended operations that no handle shows, by of_key; freed when the mutex is
     * released next. */
    struct ps_list deferred_free;
};

/* Operations that wait here; those on a key wait in the key's queue. */
struct op_queues {
    struct ps_list stalled;      /* Keys whose turn came at SENT_MAX. */
    struct ps_list job_requests; /* Operations with a job_request. */
    struct ps_list barriers;
    /* Barriers sent, or completed before a restart of this worker. */
    uint64_t barriers_sent;
    /* The agent has a barrier; further ones wait. */
    bool barrier_open;
    /* Barrier that timed out in psc_barrier(); the next call waits for it. */
    struct psc_op *late_barrier;
};

struct key_table {
    struct key **by_number;
    uint32_t count;
    size_t cap;
    struct key **buckets;
    uint32_t bucket_count;  /* A power of two. */
    uint32_t unbound_count; /* Keys with is_unbound. */
};

struct arena_table {
    struct arena **list;
    size_t count;
    size_t cap;
};

struct report_table;
struct span_table;
struct gpu_table;
struct shared_table;

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

/* An open l_stall_query, on the stack of its caller. */
struct stall_request {
    struct ps_list_node node;
    uint64_t id;
    bool is_answered;
    char text[PSC_TEXT_MAX];
};

struct psc_client {
    struct ps_list_node of_process; /* In the list of threads.c. */
    /* client_is_forked() has both. */
    bool is_forked;
    uint32_t mark;
    pthread_mutex_t lock;
    struct psc_options options;        /* The client owns the strings. */
    char token[PS_TOKEN_TEXT_MAX + 1]; /* "": none. */

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
    struct shared_table *shared; /* See device/shared.c; NULL: none. */
    struct gpu_table *gpus;      /* See device/gpu.c; NULL: none. */
    uint32_t gpu_transfers;      /* Copies of GPUs under way. */
    struct psc_stats
        stats; /* Without what others count, see psc_get_stats(). */
    struct report_table *reports; /* See report.c; NULL: none. */
    struct span_table *spans;     /* See span.c. */
    char *optimizer; /* Last declaration of this worker; NULL: none. */
};

/* --------------------------------------------------------------------- time */

/* Monotonic. */
ps_time client_now(void);
/* PS_TIME_NEVER for a negative limit. */
ps_time client_deadline(int timeout_ms);
/* Milliseconds until the deadline, rounded up, so that a wait does not end just
 * before it. -1: PS_TIME_NEVER. */
int client_ms_until(ps_time deadline);

/* ---------------------------------------------------------- errors and news */

/* Sets the detail and returns `rc`. Locked. */
int client_error(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails the client: every operation ends with `rc`, in client_reap_ops(). The
 * first failure stays. Locked. */
void client_fail(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Error code of the agent as a PSC_E_*; never 0. */
int client_failure(int32_t error);
/* Writes an error text before there is a client that holds its detail. Returns
 * `rc`. */
int client_open_error(char *err, size_t err_size, int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Wakes threads that wait for a change by another thread. Locked. */
void client_changed(struct psc_client *c);
/* Makes the descriptor of psc_fd() readable until psc_dispatch(). Locked. */
void client_signal_poll(struct psc_client *c);

/* ---------------------------------------------------- messages to the agent */

/* By the socket or the ring. Locked. */

/* Queues a message. Without an agent it is dropped, because all open state is
 * sent to the next agent. */
PS_MUST_USE int client_put(struct psc_client *c, const struct ps_msg *msg);
/* Queues an operation, in the ring if that has room. */
PS_MUST_USE int client_put_op(struct psc_client *c,
                              const struct ps_msg_l_op *m);
/* Sends queued messages; a failure ends every operation. */
void client_flush(struct psc_client *c);
/* client_put() and client_flush(). */
PS_MUST_USE int client_send(struct psc_client *c, const struct ps_msg *msg);
/* The next completion lets this client send more, or wakes another thread: the
 * reader may not sleep until several have arrived. */
void client_kick(struct psc_client *c);

/* ---------------------------------------------------- options of psc_open() */

/* Returns PSC_E_INVAL, with the reason in `err`, for values out of range. */
PS_MUST_USE int options_check(const struct psc_options *o, char *err,
                              size_t size);
/* True if the caller names no socket: the user's own agent comes first. */
bool options_have_default_socket(const struct psc_options *o);
/* True if the options allow to re-attach to another agent. */
bool options_allow_reattach(const struct psc_options *o);

/* -------------------------------------------------- memory, scalars, spans */

/* Sets up the client's memory, whose arenas are offered to the agent. */
void memory_init(struct psc_client *c);
void report_free(struct psc_client *c);
/* NULL: no memory. */
struct span_table *span_table_new(void);
/* `child`: this is a forked child. */
void span_table_free(struct span_table *t, bool child);
/* Sends spans, if there are some and the last ones were not sent just now. For a
 * caller that is about to wait. Locked. */
void span_send_due(struct psc_client *c);
/* Sends all spans. Locked. */
void span_send_all(struct psc_client *c);
