/* SPDX-License-Identifier: Apache-2.0 */
/* State of a collective, shared by the files of this folder only.
 *
 *     start.c         public calls: arguments checked and copied
 *     coll.c          stages of a collective in order, and its end
 *     describe.c      the request as text, and the ranks that differ
 *     data.c          data transfer of each kind
 *     join.c          joined ranks shadow the others' collectives
 *     join_rounds.c     and skip the rounds of keys
 *     staged.c        arrays on a GPU
 *     subop.c         sub-operations: operations on keys, memory, results
 *
 * A file calls those below it. */
#pragma once

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
    uint32_t cap;
    uint32_t open;
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
    struct coll_device *device; /* See staged.c; NULL: arrays of the host. */
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
