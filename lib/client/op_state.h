/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: kinds, states, and the table of those of a client. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/list.h"
#include "base/time.h"
#include "client/psclient.h"
#include "client/shm.h"

/* Operations sent to the agent at one time; further ones are queued here. */
#define SENT_MAX   (PS_OPS_MAX / 2u)
/* Array size, in bytes, from which arrays and results are streamed; smaller
 * ones are copied when complete. */
#define PIECES_MIN (size_t)(4u * 1024 * 1024)

struct key;
struct coll;
struct arena;
struct job_request;
struct profile_answer;
struct op_device;

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
    OP_SKIP, /* Round skipped by a joined rank, see coll/join_rounds.c. */
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

/* Behaviour of an operation of a collective, which registers it, of a report,
 * or of an abandoned pull; plain operations have none. A member that is NULL: as a plain operation. Locked,
 * unless stated otherwise. */
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

/* A wait that takes long, see wait_note.c. */
struct wait_note {
    ps_time began;
    ps_time due;      /* Time of its next line; 0: there was no wait. */
    ps_time ended_at; /* End of its last slice. */
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

static inline bool op_is_round(enum op_kind kind)
{
    return kind == OP_PUSH || kind == OP_PUSHPULL || kind == OP_BROADCAST ||
           kind == OP_PUSH_ROWS || kind == OP_SKIP;
}
static inline bool op_has_result(enum op_kind kind)
{
    return kind == OP_PULL || kind == OP_PUSHPULL || kind == OP_BROADCAST;
}
