/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of keys. The kind decides which operations a key accepts, what its
 * partitions send, where values go, and what the loss of a server means. Each
 * kind is one constant table; code for all kinds calls through key->kind.
 *
 *     kind_sync.c   dense keys with rounds, and keys of collectives
 *     kind_rows.c   row-sparse keys, with rounds
 *     kind_async.c  dense keys of async and ssp jobs, without rounds */
#pragma once

#include "base/buf.h"
#include "base/str.h"
#include "proto/ps_msg.h"

struct ps_agent;
struct ps_agent_job;
struct ps_agent_key;
struct ps_agent_op;
struct ps_agent_part;
struct ps_agent_rows;
struct ps_agent_send_queue;
struct ps_agent_server;
struct ps_agent_session;
struct ps_agent_step;

#define PS_AGENT_ALL_PARTS UINT32_MAX

/* Data that an operation brings. */
struct ps_agent_op_input {
    struct ps_slice array;      /* buf NULL: none. */
    size_t align;               /* That the array must have. */
    struct ps_agent_rows *rows; /* NULL: none. */
    uint64_t charged_bytes;     /* Charged to the job for `rows`. */
};

/* Bytes of what a kind keeps of a key beside the common state, in key->own. */
struct ps_agent_own_bytes {
    size_t key;
    size_t rank; /* For each local rank. */
    size_t part; /* For each partition. */
};

struct ps_agent_key_kind {
    enum ps_msg_code push_code;
    struct ps_agent_own_bytes own;
    /* Pushes form rounds; values have version numbers. */
    bool has_rounds;
    /* Values lie in key->results, and workers read them there. */
    bool has_results;
    /* Sums replace the value even if the job has an optimizer; one rank's
     * request decides for all, and nothing is encoded. */
    bool is_collective;

    /* ------------------------------------------------------- declaration */
    /* Returns 0 when a key of this kind can have the declared shape, else a
     * PS_E_* and the reason. NULL: any. */
    int (*check_shape)(const struct ps_msg_l_key *m, struct ps_str *why);
    /* Returns true when a partition of `count` elements fits into one frame in
     * every message. */
    bool (*part_fits_frame)(const struct ps_agent_key *k, uint32_t count);

    /* -------------------------------------------------------- operations */
    /* Writes length and alignment of the array that the operation names. False:
     * the operation has been rejected. */
    bool (*measure_array)(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_agent_key *k,
                          const struct ps_msg_l_op *m,
                          struct ps_agent_op_input *in);
    /* Checks what only this kind demands. False: it has been rejected. NULL:
     * nothing. */
    bool (*validate_op)(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_agent_key *k,
                        const struct ps_msg_l_op *m,
                        const struct ps_slice *array);
    /* Copies what the operation brings besides its array. False: it has been
     * rejected. NULL: nothing. */
    bool (*copy_input)(struct ps_agent_step *st, struct ps_agent_session *s,
                       const struct ps_agent_key *k,
                       const struct ps_msg_l_op *m,
                       struct ps_agent_op_input *in);
    /* Frees op->rows, which that has made. NULL: it makes none. */
    void (*free_rows)(struct ps_agent_rows *rows);
    /* Handles a validated operation, other than an init. */
    void (*accept_op)(struct ps_agent_step *st, struct ps_agent_op *op);
    /* Returns true for a push without a contribution to a round that is applied
     * although its worker has died. NULL: none is. */
    bool (*is_push_kept)(const struct ps_agent_op *op);
    /* Round that every rank must reach before `op` can end; 0: none. NULL: that
     * of the operation. */
    uint64_t (*awaited_round)(const struct ps_agent_op *op);

    /* ------------------------------------------------------------ pushes */
    /* Starts the sum of a partition, or sends it. False: no memory. */
    bool (*start_part)(struct ps_agent_step *st, struct ps_agent_send_queue *f,
                       struct ps_agent_part *p);
    /* Pushes that every local rank has made, sent with a push. NULL: the attempt
     * at the round is sent. */
    uint64_t (*push_clock)(const struct ps_agent_key *k);
    /* Every partition has the round, or has applied the push. */
    void (*end_round)(struct ps_agent_step *st, struct ps_agent_key *k);
    /* A server refused operations, or a sum failed. */
    void (*fail_ops)(struct ps_agent_step *st, struct ps_agent_key *k,
                     int error, const char *text);
    /* A sum of a failed push has ended: another push may begin. NULL: none
     * waits for that. */
    void (*resume_push)(struct ps_agent_step *st, struct ps_agent_key *k);

    /* ------------------------------------------------------------ values */
    /* Ends operations that have their value; requests what others need. */
    void (*advance)(struct ps_agent_step *st, struct ps_agent_key *k);
    /* Version up to which skips of this partition are decided. NULL: that of the
     * value here. */
    int64_t (*decided_version)(const struct ps_agent_part *p);
    /* Requests version `least` of the partitions that lack and do not expect
     * it. NULL: values have no versions. */
    void (*request_version)(struct ps_agent_step *st, struct ps_agent_key *k,
                            int64_t least);
    /* Requests the versions that decide a skip of an ended round. NULL: they
     * come with the values. */
    void (*request_verdict)(struct ps_agent_step *st, struct ps_agent_key *k,
                            const struct ps_agent_op *op);
    /* Server `node` (0: any) may have lost requests about the partition, or
     * about PS_AGENT_ALL_PARTS. NULL: requests have no state of their own. */
    void (*on_requests_lost)(struct ps_agent_key *k, uint32_t node,
                             uint32_t part);
    /* Place for the payload of a single value, with a reference: 0, or a
     * PS_E_* when it is to be discarded. NULL, as accept_value(): values travel
     * in messages of this kind alone. */
    int (*place_value)(struct ps_agent *a, const struct ps_agent_part *p,
                       const struct ps_rec_part *rec, uint64_t len,
                       struct ps_slice *ret_slice);
    /* Takes the value that lies in `from`. PS_E_PROTO: a malformed code. */
    int (*accept_value)(struct ps_agent_step *st, struct ps_agent_part *p,
                        const struct ps_rec_part *rec,
                        const struct ps_slice *from);

    /* ---------------------------------------------------------- takeover */
    /* The partition's owner was lost. Returns true if its committed round or
     * init is open again. NULL: nobody else has what was committed. */
    bool (*reopen_part)(struct ps_agent_part *p);
    /* Then the reason why the key fails. */
    const char *loss_text;
};

extern const struct ps_agent_key_kind ps_agent_key_sync;
extern const struct ps_agent_key_kind ps_agent_key_collective;
extern const struct ps_agent_key_kind ps_agent_key_rows;
extern const struct ps_agent_key_kind ps_agent_key_async;

/* Messages that only keys of one kind have. */

void ps_agent_rows_on_rows(struct ps_agent_step *st,
                           const struct ps_agent_server *s,
                           const struct ps_agent_job *j,
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload);
/* Returns the payload bytes of the message; 0: none, or malformed. */
uint64_t ps_agent_rows_payload_bytes(const struct ps_msg_rows *m);

/* ssp: raises the push count that every rank of the job has reached. */
void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock);
