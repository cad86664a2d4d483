/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives, for the files of this folder only. Locked.
 *
 *     start.c         public calls: arguments checked and copied
 *     coll.c          stages of a collective in order, and its end
 *     join.c          joined ranks shadow the others' collectives and skip the
 *                     rounds of keys
 *     data.c          data transfer of each kind, arrays on a GPU included
 *     describe.c      the request as text, and the ranks that differ
 *     subop.c         sub-operations: operations on keys, memory, results
 *
 * A file calls those below it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "client/op.h"
#include "client/state.h"
#include "proto/ps_fixed.h"

#define COLL_NAME_MAX     200u /* Bytes of a collective's name. */
/* Description of one rank's request in MISMATCH. */
#define DESCRIPTION_BYTES PS_FIXED_COLL_DESCRIPTION_BYTES
#define WORD_BYTES        8u

enum coll_kind {
    COLL_ALLREDUCE,
    COLL_BCAST,
    COLL_ALLGATHER,
    COLL_REDUCESCATTER,
    COLL_ALLTOALL,
    COLL_JOIN,
};

enum coll_stage {
    COLL_AGREE,
    COLL_ORDER,
    COLL_SHADOW,
    COLL_MISMATCH,
    COLL_SPLITS,
    COLL_DATA,
    COLL_NO_DATA, /* The collective ends without DATA. */
};

/* This rank's array. */
struct coll_array {
    uint32_t dtype;
    size_t row_bytes; /* Bytes of a row: allgather, alltoall, reduce-scatter. */
    uint64_t rows;    /* First dimension. */
    uint64_t count;   /* Elements. */
    size_t bytes;
};

struct coll_source {
    struct ps_shm_block *block; /* NULL: none. */
    size_t offset;
    bool staged;     /* The block was allocated for a copy. */
    bool is_pending; /* The array is still copied from a GPU. */
};

struct coll_dest {
    uint8_t *out;
    size_t out_size;
    struct psc_piece *pieces; /* Grouped allreduce: its arrays; else NULL. */
    uint32_t piece_count;
    double postscale;
    /* Result of several sub-operations where the caller gave no `out`. */
    void *result;
    /* Bytes of `out` or `result` that the collective fills. */
    size_t result_size;
};

/* State of a join. */
struct coll_join {
    /* Collectives agreed on since it began. Less significant than rounds_begun
     * in coll_join_entry(). */
    uint64_t agreements;
    /* Rounds of keys that this rank had begun when it joined. */
    uint64_t rounds_begun;
    /* For each key the operation that skips its rounds, and the number of them
     * that are open. */
    struct psc_op **skips;
    uint32_t skip_count;
    uint32_t skips_open;
};

struct coll_subops {
    struct psc_op **list;
    uint32_t count;
    uint32_t open;
    size_t cap;
};

struct coll_device;

struct coll {
    struct psc_op *op;
    /* No sub-operation is open: starts the next stage. */
    void (*on_idle)(struct coll *k);
    /* Linked from AGREE until the next collective may start. */
    struct ps_list_node of_order_queue;
    enum coll_kind kind;
    enum coll_stage stage;
    bool all_agree;       /* Every rank made the same request. */
    bool is_size_rounded; /* Key sizes are rounded up. */
    bool is_join; /* A join; `kind` is that of the collective it shadows. */
    uint32_t joined_count;  /* Ranks that have joined. */
    enum psc_joined joined; /* Their part in it. */
    char *name;
    char description[DESCRIPTION_BYTES];
    uint64_t hash;
    struct coll_array array;
    struct coll_device *device; /* See data.c; NULL: arrays of the host. */
    struct coll_source src;
    struct coll_dest dst;
    struct coll_join join;
    struct coll_subops subops;
    uint64_t *rows_by_rank; /* Rows received from each rank. */
    /* Alltoall: this rank's splits; after SPLITS those of all ranks, W x W. */
    uint64_t *splits;
    int rc;
    char *text;
};

/* Arguments of a public call. */
struct coll_request {
    enum coll_kind kind;
    const char *name;
    const struct psc_array *array;
    const struct psc_piece *pieces;
    uint32_t piece_count;
    const uint64_t *splits;
    struct psc_coll_options o;
};

/* ----------------------------------------------------------- stages, coll.c */

/* A new collective and its operation, or NULL without memory. op_free() frees
 * both. */
struct coll *coll_new(struct psc_client *c);
/* Starts AGREE of a new collective, or of the next one that a join shadows. */
PS_MUST_USE int coll_start(struct coll *k);

/* ----------------------------------------------------- joined ranks, join.c */

void coll_start_shadow(struct coll *k);
/* Returns the stage that follows SHADOW. */
enum coll_stage coll_end_shadow(struct coll *k);
/* Returns this rank's entry in AGREE: negative, and greater the later the rank
 * has joined. */
int64_t coll_join_entry(struct coll *k);
/* Ends the join: all ranks have joined. */
void coll_end_join(struct coll *k);
/* Creates a skip for each key, unsent. On failure sets the detail. */
PS_MUST_USE int coll_skips_prepare(struct coll *k);
void coll_skips_start(struct coll *k);
/* Ends the join without waiting for its open skips. */
void coll_skips_detach(struct coll *k);

/* ------------------------------------------------------------- data, data.c */

/* The first stage of a collective on which all ranks agree. */
enum coll_stage coll_first_stage(const struct coll *k);
void coll_start_splits(struct coll *k);
void coll_end_splits(struct coll *k);
void coll_start_data(struct coll *k);

/* Arrays on a GPU. */

/* Notes the place in the program's stream. On failure sets the detail. */
PS_MUST_USE int coll_device_open(struct coll *k, const struct coll_request *a);
/* Begins the copy of the source to its block; the collective stays in ORDER
 * until the copy ends. On failure sets the detail. */
PS_MUST_USE int coll_device_fetch(struct coll *k, const struct coll_request *a);
/* The source is released: no copy of it is under way afterwards. */
void coll_device_drop_source(struct coll *k);
/* Results of the sub-operation go to the GPU if the collective's do. */
void coll_device_set(struct psc_op *part);
/* Copies memory of the source to the result, and waits. On failure fails the
 * collective. */
void coll_device_copy(struct coll *k, void *to, const void *from, size_t bytes);
void coll_device_close(struct coll *k);

/* --------------------------------------------- requests as text, describe.c */

const char *coll_kind_name(enum coll_kind kind);
void coll_name(const struct coll *k, char *text, size_t size);
/* Fails the collective, and the client, because the other ranks wait for data of
 * this rank. */
void coll_fail_client(struct coll *k, int rc);
void coll_describe(struct psc_client *c, struct coll *k,
                   const struct coll_request *a);
void coll_start_mismatch(struct coll *k);
void coll_end_mismatch(struct coll *k);

/* -------------------------------------------------- sub-operations, subop.c */

/* Sets the error with which the collective ends once its sub-operations have
 * ended. The first error stays. */
void coll_fail(struct coll *k, int rc, const char *text);
/* Memory of `bytes` plus coll_slack(), which keys of rounded sizes read. */
PS_MUST_USE int coll_get_block(struct psc_client *c, size_t bytes,
                               struct ps_shm_block **ret_block);
size_t coll_slack(size_t bytes);
/* Memory for a copy of the source. On failure sets the detail. */
PS_MUST_USE int coll_alloc_source(struct coll *k);
/* Releases the source memory. */
void coll_release_source(struct coll *k);
void coll_copy_scaled(const struct coll *k, void *dst, const void *src,
                      size_t bytes, double by);
/* A sub-operation on the collective key of that name, with `count` elements of
 * `dtype`. */
PS_MUST_USE int coll_subop_new(struct coll *k, enum op_kind kind,
                               const char *name, uint32_t dtype, uint64_t count,
                               struct psc_op **ret_part);
void coll_subop_set_source(struct psc_op *part, size_t offset);
void coll_subop_start(struct psc_op *part);
/* Result of the sub-operation's latest round. */
const uint8_t *coll_subop_result(const struct psc_op *part);
/* A summing round of `bytes`, as words; the caller fills in its own. */
PS_MUST_USE int coll_small_round(struct coll *k, const char *name,
                                 uint64_t bytes, uint8_t **ret_words,
                                 struct psc_op **ret_part);
