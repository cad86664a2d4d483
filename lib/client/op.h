/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: one call of the program, from its start to the end of its handle.
 * An operation is created, gets its array, waits for its turn on its key, is
 * sent, gets its result and ends; the sections below have this order. All
 * functions are called with the mutex of the client, unless stated otherwise. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/time.h"
#include "client/psclient.h"
#include "client/shm.h"
#include "proto/ps_msg.h"

/* Operations sent to the agent at one time; further ones are queued here. */
#define SENT_MAX   (PS_OPS_MAX / 2u)
/* Array size, in bytes, from which arrays and results are streamed; smaller
 * ones are copied when complete. */
#define PIECES_MIN (size_t)(4u * 1024 * 1024)

struct key;
struct coll;
struct arena;
struct job_request;
struct psc_client;
struct wait_condition;

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
    OP_PROFILE,
    OP_REPORT, /* Training scalars, see report.c. */
    OP_KEY,
    OP_COLL, /* Consists of sub-operations, see coll/; no key, never sent. */
    OP_SKIP, /* Round skipped by a joined rank, see coll/join.c. */
};

/* Properties that all operations of a kind have in common. */
struct op_kind_facts {
    const char *name;
    enum ps_op wire; /* 0: not sent as an operation on a key. */
    bool is_round;   /* Is one round of its key. */
    bool is_pull;
    bool has_result; /* The value of its key. */
};

/* By enum op_kind. */
extern const struct op_kind_facts op_kinds[];

enum op_state {
    OP_NEW,        /* Not submitted yet. */
    OP_QUEUED,     /* Waits here for earlier operations on its key. */
    OP_SENT,       /* The agent has it. */
    OP_COLLECTING, /* A collective: its sub-operations are running. */
    OP_COPYING,    /* The reader writes `out`, without the mutex. */
    OP_ENDING,     /* Has a result; the calling thread still streams. */
    OP_DONE,
};

/* Behaviour of an operation of a collective, which registers it, of a report,
 * or of an abandoned pull; plain operations have none. A member that is NULL: as
 * a plain operation. Locked, unless stated otherwise. */
struct op_hooks {
    /* The operation is DONE, and its result in place. */
    void (*on_ended)(struct psc_op *op);

    /* For sub-operations: true if the result is copied. */
    bool (*wants_result)(const struct psc_op *op);
    /* True if the result may be copied while it arrives. */
    bool (*may_copy_progress)(const struct psc_op *op);
    /* Copies the result into that of the collective, from where progress copies
     * ended. Not locked. */
    void (*copy_result)(struct psc_op *op, const void *from);

    /* For collectives, whose kind is OP_COLL. */
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

/* Options of the call. */
struct op_args {
    int32_t priority;
    uint8_t reduce;
    /* Broadcast: this rank does not ask for the value. */
    bool send_only;
    uint32_t samples;
    uint32_t root;
};

/* Array that the operation supplies, and memory for what arrives without a
 * round. */
struct op_source {
    struct ps_shm_block *block; /* NULL: none. */
    size_t offset;              /* In the block. */
    /* The block is a staging block and returns to the key. */
    bool staged;
    /* The array is still copied into the block: by the calling thread, without
     * the mutex, or from a GPU. */
    bool streaming;
    /* The operation stays QUEUED until the block is complete. */
    bool is_held;
    /* Rows key: rows in the block, each once, ascending. */
    uint32_t row_count;
    /* Streaming: bytes of the block that are complete. */
    size_t bytes_ready;
};

struct op_result {
    const void *data; /* In the agent's memory. */
    /* Arena of a lost agent that holds it; else NULL. */
    struct arena *arena;
    void *out;
    size_t copied; /* Bytes of `out` written so far. */
    /* `out` is written while the result arrives. */
    bool copies_progress;
    /* The agent could not write it where the operation said. */
    bool is_undelivered;
    /* OP_SKIP: every rank skipped its round. */
    bool all_skipped;
    /* Sub-operation: offset of the needed part of the result, and its bytes. */
    size_t from;
    size_t bytes;
    /* Pull of rows: index into the block for each requested row. */
    uint32_t *row_index;
    size_t row_index_count;
};

/* Arrays in the memory of a GPU: the functions of each way in which they reach
 * the agent. */
struct op_device_ops {
    /* Copies bytes [from, from + bytes) of the result, which are in the memory
     * of the host at `data`, to `out`; the operation stays SENT. On failure the
     * operation fails when it ends. NULL: results are copied as a whole. */
    void (*copy_part)(struct psc_op *op, const void *data, size_t from,
                      size_t bytes);
    /* Copies the rest of the result at `data`. 0: the operation may end;
     * PS_E_AGAIN: it is COPYING and is ended when the copy has; any other
     * error: it fails, with the detail of the client as its text. */
    int (*copy_result)(struct psc_op *op, const void *data);
    /* The operation is freed, or ends: no copy of it may be under way
     * afterwards. NULL: it has no state. */
    void (*release)(struct psc_op *op);
    /* Sends the operation; NULL: it is sent as `m`. */
    int (*send)(struct psc_op *op, const struct ps_msg_l_op *m);
};

/* The first member of the state of each way. */
struct op_device {
    const struct op_device_ops *ops;
};

/* A wait that takes long, see op_wait.c. */
struct wait_note {
    ps_time began;
    ps_time due;      /* Time of its next line; 0: there was no wait. */
    ps_time ended_at; /* End of its last slice. */
};

/* Entries of a server's recording, see profile.c. */
struct profile_answer {
    char server[PS_NAME_MAX + 1];
    uint64_t first;
    uint64_t count; /* Entries so far. */
    uint64_t next;
    uint32_t returned; /* Entries below. */
    struct ps_rec_trace_entry entries[];
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
    int rc;     /* Result; valid when ENDING or DONE. */
    char *text; /* Reason of a failure; NULL: text of `rc`. */
    /* Last count_mark of the client that counted it, see op_wait.c. */
    uint32_t count_mark;
    uint64_t id; /* 0: no slot in the table. */
    /* Round of a push, number of a barrier, least version of a pull. */
    uint64_t round;
    uint64_t version;
    ps_time started;
    struct wait_note note;
    struct op_args args;
    struct op_source src;
    struct op_result result;
    struct job_request *job_request; /* Request of the job; NULL: none. */
    struct profile_answer *profile;  /* Answer to it; NULL: none. */
    /* Collective that it is, or is a sub-operation of; NULL: none. Known to the
     * hooks only. */
    struct coll *coll;
    const struct op_hooks *hooks; /* NULL: a plain operation. */
    /* Arrays in the memory of a GPU; NULL: in that of the host. */
    const struct op_device *device;
    psc_callback callback;
    void *user;
    struct ps_list_node of_client; /* In `all` or `spare` of the table. */
    /* QUEUED: queue of the key; of barriers and job requests, of the client.
     * DONE: deferred_free. */
    struct ps_list_node of_key;
    /* DONE, callback not yet run. */
    struct ps_list_node of_callbacks;
};

/* --------------------------------------------------------------- life, op.c */

/* Writes "pushpull of 'fc1.weight'", with the round if it has one. */
void op_name(const struct psc_op *op, char *text, size_t size);
/* Writes "pushpull of fc1.weight round 3", "barrier 2", for lists. */
void op_label(const struct psc_op *op, char *text, size_t size);
/* A new operation, or NULL without memory. */
struct psc_op *op_new(struct psc_client *c, enum op_kind kind);
/* The open operation of that id, or NULL. */
struct psc_op *op_find(struct psc_client *c, uint64_t id);
/* Gives the operation an id and a slot in the table. */
PS_MUST_USE int op_number(struct psc_op *op);
void op_release_number(struct psc_op *op);
/* Changes the state, and what the table of operations counts by state. A change
 * that the table of states does not have fails the client. */
void op_set_state(struct psc_op *op, enum op_state to);
/* Ends the operation, which stays valid at least until the mutex is released:
 * a detached one joins deferred_free. `text` may be NULL. */
void op_end(struct psc_op *op, int rc, const char *text);
/* The thread that streams an operation which is ENDING has stopped. */
void op_finish_ending(struct psc_op *op);
/* Hands the result of a plain operation that is DONE to its handle or callback;
 * a detached one joins deferred_free. */
void op_report(struct psc_op *op);
/* Ends every operation that is QUEUED or SENT. */
void op_end_all(struct psc_client *c, int rc, const char *text);
/* Agent lost: the results of operations use the arenas that they lie in, until the
 * operations are freed. */
void op_keep_results(struct psc_client *c);
/* Ends a QUEUED operation without a result; it joins deferred_free. */
void op_drop(struct psc_op *op);
/* A SENT pull whose result nobody wants: it ends with PSC_E_CANCELED however the
 * agent ends it, and writes nothing. */
void op_abandon(struct psc_op *op);
bool op_is_abandoned(const struct psc_op *op);
/* Returns a staging block that an operation on the key has used. */
void op_release_staging(struct psc_client *c, struct key *k,
                        struct ps_shm_block *b);
/* Removes the operation from all lists and frees it. Not while COPYING. */
void op_free(struct psc_op *op);
/* Puts an operation that is DONE, and that no handle shows, on
 * deferred_free. */
void op_free_later(struct psc_op *op);

/* -------------------------------------------------------- start, op_start.c */

/* Starts an operation of the job rather than of a key. `op_id` points to the
 * number's field in the message; without a message it is a barrier. */
PS_MUST_USE int op_start_plain(struct psc_client *c, enum op_kind kind,
                               struct ps_msg *m, uint64_t *op_id,
                               const struct psc_op_options *o,
                               struct psc_op **ret_op);

/* ------------------------------------------------------- way, op_transfer.c */

/* Allocates a staging block for an array of its key. */
PS_MUST_USE int op_alloc_staging(struct psc_op *op);
/* Makes the arrays the source of the operation: in place, as a copy of their
 * sum, or for op_stream(). On failure sets the detail. */
PS_MUST_USE int op_attach_source(struct psc_op *op, const void *const *srcs,
                                 uint32_t count);
/* True if the agent may get the operation before its array, at `src`, is
 * copied. Not in a job that survives the death of a worker, which would leave
 * the array incomplete; not if early parts of the result would overwrite elements
 * that are not copied yet. */
bool op_may_stream(const struct psc_op *op, const void *src);
/* Sums the arrays into the block of the operation. */
PS_MUST_USE int op_sum_sources(struct psc_op *op, const void *const *srcs,
                               uint32_t count);
/* Queues the operation on its key or as a barrier, or sends it at once. The
 * client owns it then, and it may have ended. On failure the operation is still
 * NEW. `msg` is the message of a job request. */
PS_MUST_USE int op_submit(struct psc_op *op, const struct ps_msg *msg);
/* Sends the queued operations of a key that may leave. The caller flushes. */
void op_pump(struct psc_client *c, struct key *k);
/* Sends the operations that wait for the end of others, on any key. The caller
 * flushes. */
void op_send_stalled(struct psc_client *c);
/* Sends QUEUED job requests and barriers. Requests of an unbound key stay
 * queued. */
PS_MUST_USE int op_send_job_requests(struct psc_client *c);
void op_send_barriers(struct psc_client *c);
/* Reports src.bytes_ready to the agent. A queued operation reports it when it is
 * sent. */
void op_send_progress(struct psc_op *op);
/* Copies the source of a streaming operation, which the agent may already have,
 * and reports progress. Afterwards the operation may have ended. */
void op_stream(struct psc_op *op, const void *src);
/* Copies `bytes` of a result that are readable. Reader only. The operation
 * stays SENT. */
void op_accept_progress(struct psc_op *op, uint64_t bytes);
/* Completion from the agent. Reader only. */
void op_accept_done(struct psc_client *c, const struct ps_msg_l_done *m);
/* Answer about a recording: ends the operation that asked, and keeps the answer for
 * it. */
void op_accept_profile(struct psc_client *c,
                       const struct ps_msg_l_profile_events *m);
/* Agent lost: queues every SENT operation but OP_KEY again, in order. */
void op_requeue_all(struct psc_client *c);

/* ---------------------------------------------------------- wait, op_wait.c */

/* Describes what the operation waits for. Queries the agent, which takes time.
 * Locked; releases the mutex. */
void op_explain(struct psc_op *op, char *text, size_t size);
/* Describes what the start of the job waits for, in the same way. */
void start_explain(struct psc_client *c, char *text, size_t size);
/* Time of a wait before its first note. */
ps_time wait_note_first_after(const struct psc_client *c);
/* Describes a wait that has lasted for these seconds. No text: it is over. */
typedef void (*wait_note_describe)(struct psc_client *c,
                                   const struct wait_condition *until,
                                   unsigned long long seconds, char *text,
                                   size_t size);
/* As client_wait(), with notes of that text. */
int wait_note_text(struct psc_client *c, bool (*ready)(void *arg), void *arg,
                   ps_time deadline, wait_note_describe describe);
/* As psc_op_wait(). Locked; releases the mutex while it waits. */
int op_wait_locked(struct psc_op *op, int timeout_ms);
/* Frees the handle, and the operation once it has ended. Locked; releases the
 * mutex while the result is copied. */
void op_free_handle(struct psc_op *op);
/* Waits for an operation that was started with `rc`, and frees its handle. Not
 * locked. */
int op_finish(struct psc_op *op, int rc);
