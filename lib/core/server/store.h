/* SPDX-License-Identifier: Apache-2.0 */
/* The partitions of one job on one server: versions and values, what a round
 * under way has, and who waits for a version. Knows nothing of peers: slots
 * are numbers here. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "core/round/round.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stdint.h>

/* A pull that cannot be answered yet. */
struct ps_waiting_pull {
    struct ps_list_node node;
    uint32_t slot;
    uint64_t min_version; /* Version asked for, or newer. */
};

/* Contributions to the version after the present one. */
struct ps_open_round {
    struct ps_round round;
    struct ps_bits
        needs_value;      /* Who is to get the value, not only a commit. */
    bool has_request;     /* Somebody has offered who does not pass, */
    uint8_t reduce;       /* and the first has stated this enum ps_reduce */
    bool is_encoded;      /* What was given are codes, */
    uint32_t rng_key;     /* whose random numbers depend on this. */
    bool assign;          /* and this. */
    uint8_t *skips;       /* By slot: 1: it passes. NULL: nobody does. */
    uint8_t rule;         /* enum ps_rule; not NONE: no round, see applying. */
    bool is_rows;         /* What was given are blocks of rows. */
    uint64_t row_weight;  /* Of rows: ranks of all who have offered, */
    uint32_t *row_counts; /* and how many rows each slot gave. */
};

/* A push that is applied when its turn comes, instead of taking part in a
 * round. */
struct ps_async_push {
    struct ps_list_node node;
    uint32_t slot;
    uint8_t rule; /* enum ps_rule */
    uint64_t incarnation;
    uint64_t seq;
    uint64_t clock; /* ssp: pushes that every rank of the slot has made. */
    struct ps_slice payload; /* Own reference. */
};

/* What is known of the pushes of one slot to one partition: it has at most
 * one on its way, so two numbers tell which ones were here. */
struct ps_async_slot {
    uint64_t incarnation;  /* Whose numbers these are. */
    uint64_t received_seq; /* The last that came, */
    uint64_t applied_seq;  /* and the last that is in the value. */
    uint64_t clock;        /* ssp: as above, of what is in the value. */
};

struct ps_part_reports {
    struct ps_bits reported; /* Who has spoken, */
    uint64_t known_versions; /* and how many versions one knows of: that of the
                           * newest and 1. */
};

/* Behind the states of an optimizer: the weights in float32, where the value
 * is of a type of 16 bits. */
#define PS_PART_MASTER PS_STATES_MAX
#define PS_PART_STATES (PS_STATES_MAX + 1u)

struct ps_part {
    uint32_t key;
    uint32_t index;
    bool has_dtype;     /* dtype is known. */
    uint8_t dtype;      /* enum ps_dtype */
    uint32_t count;     /* Elements; 0: not known yet. */
    uint32_t row_width; /* Elements of a row; 0: nobody has spoken of rows. */
    uint64_t version;
    bool all_skipped;   /* All have passed in its round. */
    uint32_t retry;     /* At the next one: those below are over. */
    uint64_t name_hash; /* Of the key's name, base/name_hash.h; 0: not known. */
    /* What the optimizer counts beyond the versions: steps that were loaded,
     * less rounds that were none. */
    int64_t step_offset;
    struct ps_slice value; /* buf NULL: has none. Never written again. */
    struct ps_slice
        encoded_value; /* What travels in its place; buf NULL: nothing. */
    uint8_t codec;     /* Of that. */
    struct ps_buf *states[PS_PART_STATES]; /* Of the optimizer; NULL: none. */
    /* Gradients of rounds that wait for the optimizer's step, added up. */
    struct ps_slice accumulated; /* buf NULL: none. */
    uint64_t accumulated_rounds;
    uint64_t accumulated_weight; /* Ranks that gave them. */
    uint8_t accumulated_reduce;
    struct ps_open_round *open_round; /* NULL: nobody has contributed. */
    void *merge; /* The owner's: a computation under way, or NULL. */
    /* What slots know of a partition that has moved here; NULL: nobody has
     * said anything yet. */
    struct ps_part_reports *reports;
    struct ps_list waiting_pulls;
    struct ps_list
        waiting_row_pulls; /* Pulls of rows that wait; struct ps_waiting_row_pull. */
    struct ps_async_slot
        *async_slots; /* By slot; NULL: nobody pushed without rounds. */
    struct ps_list queued_pushes;   /* struct ps_apply, in order of arrival, */
    struct ps_list applying_pushes; /* and those that are being applied. */
    uint64_t clock;                 /* ssp: the least of applied[]. */
};

/* A pull of rows that cannot be answered yet. */
struct ps_waiting_row_pull {
    struct ps_list_node node;
    uint32_t slot;
    uint64_t min_version;
    uint64_t request;
    uint32_t row_count;
    uint32_t row_width;
    struct ps_slice row_numbers; /* Their numbers; own reference. */
};

struct ps_store {
    struct ps_map *parts;  /* By key and index. */
    uint64_t stored_bytes; /* Bytes of values and states. */
    uint32_t open_round_count;
    uint32_t waiting_pull_count;
};

void ps_store_init(struct ps_store *st);
/* Frees everything; no partition may have a computation under way. */
void ps_store_fini(struct ps_store *st);

struct ps_part *ps_store_find(const struct ps_store *st, uint32_t key,
                              uint32_t index);
/* Finds it, or makes one that knows nothing. */
struct ps_part *ps_store_find_or_add(struct ps_store *st, uint32_t key,
                                     uint32_t index);
/* Frees the partition with all that is in it; it has no computation. */
void ps_store_remove(struct ps_store *st, struct ps_part *part);
/* Frees the partition if there is nothing in it. */
void ps_store_remove_if_empty(struct ps_store *st, struct ps_part *part);

static inline bool ps_part_has_value(const struct ps_part *part)
{
    return part->value.buf != NULL;
}
/* Does this agree with what is known of the partition? count 0: no opinion. */
bool ps_part_matches(const struct ps_part *part, uint8_t dtype, uint32_t count);
/* From now on it is known; it fits. */
void ps_part_declare(struct ps_part *part, uint8_t dtype, uint32_t count);

/* The slot, one of so many, knows that so many versions were made, the first of
 * them 0. True when all have spoken. */
bool ps_part_add_report(struct ps_part *part, uint32_t slot, uint32_t slots,
                        uint64_t made);

/* Replaces version and value; takes over one reference of the buffer. */
void ps_store_set_value(struct ps_store *st, struct ps_part *part,
                        uint64_t version, const struct ps_slice *value);
/* The value as a code; until the next value. Takes over the reference. */
void ps_store_set_encoded(struct ps_store *st, struct ps_part *part,
                          uint8_t codec, const struct ps_slice *code);
/* Gives the partition state `i` of its optimizer, or where it has none of what
 * its code has left over, as state 0; takes over the reference. */
/* One round more waits; takes over one reference. buf NULL: none does. */
void ps_store_accumulate(struct ps_store *st, struct ps_part *part,
                         const struct ps_slice *sum, uint64_t weight,
                         uint8_t reduce);
void ps_store_set_state(struct ps_store *st, struct ps_part *part, unsigned i,
                        struct ps_buf *state);

struct ps_open_round *ps_store_open_round(struct ps_store *st,
                                          struct ps_part *part, uint32_t slots);
void ps_store_close_round(struct ps_store *st, struct ps_part *part);
/* Have all who are in this round passed? */
static inline bool ps_open_round_all_skip(const struct ps_open_round *open)
{
    return open->skips != NULL && !open->has_request;
}

/* Takes over the reference in `w->row`, of which it keeps a copy. */
void ps_store_add_row_pull(struct ps_store *st, struct ps_part *part,
                           const struct ps_waiting_row_pull *w);
void ps_store_remove_row_pull(struct ps_store *st,
                              struct ps_waiting_row_pull *w);

/* Frees a push that is in neither list any more. */
void ps_async_push_free(struct ps_async_push *a);

/* A slot waits at most once for a partition, for the newest version that it
 * has asked for. */
void ps_store_add_pull(struct ps_store *st, struct ps_part *part, uint32_t slot,
                       uint64_t least);
void ps_store_remove_pull(struct ps_store *st, struct ps_waiting_pull *p);
/* A slot that waits no more, for anything. */
void ps_store_remove_slot_pulls(struct ps_store *st, uint32_t slot);
