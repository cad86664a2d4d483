/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of contributions, which are the parts of a push. push.c accepts each in
 * the same steps; a kind is a table of operations: dense parts (kind_dense.c),
 * rows (kind_rows.c), pushes of async and ssp jobs (kind_async.c). */
#pragma once

#include "core/server/job.h"

struct ps_compute;

/* Fields that are common to all parts of a push. */
struct ps_server_push {
    const struct ps_server_contribution_kind *kind;
    const struct ps_server_request *request;
    uint64_t incarnation; /* Incarnation of the sender. */
    uint64_t weight;      /* 0: all ranks of the slot skip the round. */
    uint32_t retry;
    uint8_t reduce;
    uint8_t rule;
    bool assign;
    bool needs_value;
};

struct ps_server_contribution {
    const struct ps_server_push *push;
    struct ps_server_slot *slot; /* Slot of the sender. */
    struct ps_rec_part rec;      /* count: elements, or rows. */
    uint32_t row_width;          /* Rows: elements of a row. */
    uint64_t name_hash;          /* Name hash of the key; 0: not sent. */
    uint64_t first_elem;         /* Sent with it. */
    uint64_t offset;             /* Offset of its bytes in the payload. */
    uint64_t payload_bytes;
};

/* Result of check(): the contribution is known, and answered now or with its
 * round. */
#define PS_CONTRIBUTION_KNOWN 1

struct ps_server_contribution_kind {
    /* Keeps the bytes; the caller gets a reference. 0 or the refusal. */
    int (*retain)(struct ps_server_step *st,
                  const struct ps_server_contribution *in,
                  const struct ps_part *part, struct ps_slice *ret_bytes);

    /* Kinds with rounds; the others have NULL. */

    /* Checks the contribution against the partition, which may be NULL, and its
     * open round: 0 or a PS_E_*. Sets *ret_conflict if its request conflicts
     * with that of other slots. */
    int (*validate)(const struct ps_server_contribution *in,
                    const struct ps_part *part, bool *ret_conflict);
    /* Sets what the contribution states about the partition and its round. */
    void (*record)(const struct ps_server_contribution *in,
                   struct ps_part *part);

    /* Kinds whose rounds are no sums of arrays; the others have NULL. */

    /* True if the partition's complete round changes nothing. */
    bool (*is_noop)(const struct ps_server_job *job,
                    const struct ps_part *part);
    /* Returns the computation that merges the round into run->result.
     * PS_E_NOMEM: nothing has changed. */
    int (*plan)(struct ps_server_merge *run, struct ps_compute **ret_compute);

    /* Kinds without rounds; the others have NULL. */

    /* True if the part's payload is superfluous. */
    bool (*is_duplicate)(const struct ps_server_contribution *in,
                         const struct ps_part *part);
    /* 0: take it; PS_CONTRIBUTION_KNOWN; or the refusal. */
    int (*check)(struct ps_server_step *st,
                 const struct ps_server_contribution *in, struct ps_part *part);
    /* Adds the contribution; takes over the reference of `bytes`. True: the
     * partition has a round to be merged. */
    bool (*take)(struct ps_server_step *st,
                 const struct ps_server_contribution *in, struct ps_part *part,
                 const struct ps_slice *bytes);
    /* Those of the open round are in the value: replies to them. True: the next
     * have become a round to be merged. */
    bool (*applied)(struct ps_server_step *st, struct ps_server_job *job,
                    struct ps_part *part);
    /* Frees all that the partition has. */
    void (*drop)(struct ps_server_job *job, struct ps_part *part);
};

/* True if the round lacks no contribution; pushes of a kind without rounds have
 * none to wait for. */
static inline bool ps_server_round_is_complete(const struct ps_open_round *open)
{
    return open->kind->take != NULL || ps_round_is_complete(&open->round);
}

extern const struct ps_server_contribution_kind ps_server_dense_kind;
extern const struct ps_server_contribution_kind ps_server_rows_kind;
extern const struct ps_server_contribution_kind ps_server_async_kind;

/* -------------------------------------------------------------- dense parts */

/* Keeps the bytes of one part, a slice of the payload. Refers to the frame, or copies if
 * the elements are not aligned or are a small share of the frame's memory. The
 * caller gets a reference. PS_E_NOMEM. */
int ps_server_part_retain(struct ps_server_job *job, uint8_t dtype,
                          const struct ps_slice *bytes,
                          struct ps_slice *ret_slice);

/* Retains dense parts; async pushes share it. */
int ps_server_dense_retain(struct ps_server_step *st,
                           const struct ps_server_contribution *in,
                           const struct ps_part *part,
                           struct ps_slice *ret_bytes);

/* --------------------------------------------------------------------- rows */

/* Bytes of a block, its numbers and rows. */
uint64_t ps_server_rows_block_bytes(const struct ps_rec_rows *rec);
/* Sums the bytes of all blocks, with those of rows if `data`; false if a record
 * is invalid. */
bool ps_server_rows_bytes(const struct ps_rec_rows *part, uint32_t count,
                          bool data, uint64_t *ret_bytes);
/* Checks a record of rows against the partition. 0 or a PS_E_*. */
int ps_server_rows_check(const struct ps_part *part,
                         const struct ps_rec_part *rec, uint32_t row_width);

/* --------------------------------------------------------------- acceptance */

/* Handles PS_MSG_PUSH and PS_MSG_PUSH_ROWS. */
void ps_server_on_push(struct ps_server_step *st,
                       const struct ps_server_request *q);
/* Decides whether the payload of such a message is received: 0, or the discard
 * reason. */
int ps_server_push_check_payload(struct ps_server *s,
                                 const struct ps_server_request *q);
