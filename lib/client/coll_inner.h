/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of collectives; for coll*.c alone.
 *
 *     coll.c        the stages of a collective, in order, and its end
 *     coll_start.c  the calls: what is asked for, checked and copied
 *     coll_describe.c    what is asked for in words, and the ranks that differ
 *     coll_subop.c   parts: operations on keys, their memory and results
 *     coll_data.c   the work of each kind
 *     coll_join.c   ranks that have joined follow the others
 *     coll_join_rounds.c   and pass in the rounds of keys */
#pragma once

#include "client/coll.h"
#include "client/state.h"

#define COLL_NAME_MAX     200u /* Of a collective. */
/* What one rank says in DIFFER: words of 8 characters. */
#define DESCRIPTION_WORDS 24u
#define DESCRIPTION_BYTES (DESCRIPTION_WORDS * 8u)
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
    COLL_DATA
};

struct coll {
    struct psc_op *op;
    struct ps_list_node
        of_order_queue; /* From MEET on, until others may go on. */
    enum coll_kind kind;
    enum coll_stage stage;
    bool all_agree; /* All ask for the same. */
    char *name;
    char description[DESCRIPTION_BYTES];
    uint64_t hash;
    uint32_t dtype;
    size_t row_bytes; /* Allgather, alltoall, reduce-scatter. */
    uint64_t rows;    /* This rank's first dimension. */
    uint64_t count;   /* Elements given. */
    size_t bytes;     /* Given. */
    double postscale;
    struct ps_shm_block *block; /* What is given; NULL: nothing. */
    size_t offset;
    bool staged;           /* The block is ours. */
    bool is_size_rounded;  /* Sizes of keys are. */
    bool is_join;          /* It is a join, whatever kind it follows now. */
    uint32_t joined_count; /* Ranks that have joined. */
    /* Of a join. */
    uint64_t agreements;   /* Meetings since it began, which count less than */
    uint64_t rounds_begun; /* rounds of keys that this rank had begun then. */
    /* For each key the operation that passes in its rounds, and how many of
     * them are not over. */
    struct psc_op **skips;
    uint32_t skip_count;
    uint32_t skips_open;
    uint8_t *out;
    size_t out_size;
    struct psc_piece *pieces; /* Of a grouped allreduce; else NULL. */
    uint32_t piece_count;
    uint64_t *rows_by_rank; /* By rank: rows that came from it. */
    uint64_t *splits;       /* Alltoall: own, then everybody's, W x W. */
    void *result;       /* Where no out was given and there are many parts. */
    size_t result_size; /* Of out or result, as far as it is filled. */
    struct psc_op **subops;
    uint32_t subop_count;
    uint32_t subop_cap;
    uint32_t subops_open;
    int rc;
    char *text;
};

/* What a program asks for. */
struct coll_request {
    enum coll_kind kind;
    const char *name;
    const struct psc_shape *shape;
    const struct psc_piece *pieces;
    uint32_t piece_count;
    const uint64_t *splits;
    const void *src;
    void *out;
    size_t out_size;
    struct psc_coll_options o;
};

/* ------------------------------------------------------------------ coll.c */

const char *coll_kind_name(enum coll_kind kind);
/* It ends with this when what it has begun has ended; the first one stays. */
void coll_fail(struct coll *k, int rc, const char *text);
PS_MUST_USE int coll_start_agree(struct coll *k);
/* What it waited for has ended; unless there is more, the next step. */
void coll_next_stage(struct coll *k);

/* -------------------------------------------------------------- coll_describe.c */

void coll_describe(struct psc_client *c, struct coll *k,
                   const struct coll_request *a);
void coll_start_mismatch(struct coll *k);
void coll_end_mismatch(struct coll *k);

/* ------------------------------------------------------------- coll_subop.c */

/* Memory for `bytes` and what lies behind them: keys of rounded sizes read
 * that. */
PS_MUST_USE int coll_get_block(struct psc_client *c, size_t bytes,
                               struct ps_shm_block **ret_block);
size_t coll_slack(size_t bytes);
/* Lets go of what is given. */
void coll_release_source(struct coll *k);
void coll_copy_scaled(const struct coll *k, void *dst, const void *src,
                      size_t bytes, double by);
/* A part on the key of that name; `dtype` in elements of `count`. */
PS_MUST_USE int coll_subop_new(struct coll *k, enum op_kind kind,
                               const char *full, uint32_t dtype, uint64_t count,
                               struct psc_op **ret_part);
void coll_subop_set_source(struct psc_op *part, size_t offset);
void coll_subop_start(struct psc_op *part);
/* What the latest round of the part brought. */
const int64_t *coll_subop_result(const struct psc_op *part);
/* A round of `count` words to which this rank adds its own. */
PS_MUST_USE int coll_small_round(struct coll *k, const char *full,
                                 uint64_t count, int64_t **ret_words,
                                 struct psc_op **ret_part);

/* ------------------------------------------------------------- coll_data.c */

/* All agree: SPLITS or DATA. */
void coll_start_work(struct coll *k);
void coll_end_splits(struct coll *k);

/* ------------------------------------------------------------- coll_join.c */

void coll_start_shadow(struct coll *k);
void coll_end_shadow(struct coll *k);
/* This rank's word in a meeting: less than 0, and the more the later it has
 * joined. */
int64_t coll_join_entry(struct coll *k);
/* Everybody has joined. */
void coll_end_join(struct coll *k);
/* A join takes part in the next collective. */
void coll_join_next_agree(struct coll *k);

/* ------------------------------------------------------------- coll_join_rounds.c */

/* A pass for each key, none of them offered; tells what is wrong. */
PS_MUST_USE int coll_skips_prepare(struct coll *k);
void coll_skips_start(struct coll *k);
/* The join ends, whatever its passes do. */
void coll_skips_detach(struct coll *k);
