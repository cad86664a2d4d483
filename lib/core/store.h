/* SPDX-License-Identifier: Apache-2.0 */
/* The partitions of one job on one server: versions and values, what a round
 * under way has, and who waits for a version. Knows nothing of peers: slots
 * are numbers here. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "core/round.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stdint.h>

/* A pull that cannot be answered yet. */
struct ps_parked {
    struct ps_list_node node;
    uint32_t slot;
    uint64_t least; /* Version asked for, or newer. */
};

/* Contributions to the version after the present one. */
struct ps_open {
    struct ps_round round;
    struct ps_bits want;  /* Who is to get the value, not only a commit. */
    bool settled;         /* Somebody has offered who does not pass, */
    uint8_t reduce;       /* and the first has stated this enum ps_reduce */
    bool coded;           /* What was given are codes, */
    uint32_t salt;        /* whose random numbers depend on this. */
    bool assign;          /* and this. */
    uint8_t *passes;      /* By slot: 1: it passes. NULL: nobody does. */
    uint8_t rule;         /* enum ps_rule; not NONE: no round, see applying. */
    bool rows;            /* What was given are blocks of rows. */
    uint64_t weight;      /* Of rows: ranks of all who have offered, */
    uint32_t *rows_given; /* and how many rows each slot gave. */
};

/* A push that is applied when its turn comes, instead of taking part in a
 * round. */
struct ps_apply {
    struct ps_list_node node;
    uint32_t slot;
    uint8_t rule; /* enum ps_rule */
    uint64_t incarnation;
    uint64_t seq;
    uint64_t clock; /* ssp: pushes that every rank of the slot has made. */
    struct ps_slice given; /* Own reference. */
};

/* What is known of the pushes of one slot to one partition: it has at most
 * one on its way, so two numbers tell which ones were here. */
struct ps_applied {
    uint64_t incarnation; /* Whose numbers these are. */
    uint64_t taken;       /* The last that came, */
    uint64_t done;        /* and the last that is in the value. */
    uint64_t clock;       /* ssp: as above, of what is in the value. */
};

struct ps_stated {
    struct ps_bits slots; /* Who has spoken, */
    uint64_t made;        /* and how many versions one knows of: that of the
                           * newest and 1. */
};

/* Behind the states of an optimizer: the weights in float32, where the value
 * is of a type of 16 bits. */
#define PS_PART_MASTER PS_STATES_MAX
#define PS_PART_STATES (PS_STATES_MAX + 1u)

struct ps_part {
    uint32_t key;
    uint32_t index;
    bool typed;     /* dtype is known. */
    uint8_t dtype;  /* enum ps_dtype */
    uint32_t count; /* Elements; 0: not known yet. */
    uint32_t width; /* Elements of a row; 0: nobody has spoken of rows. */
    uint64_t version;
    bool passed;      /* All have passed in its round. */
    uint32_t attempt; /* At the next one: those below are over. */
    uint64_t label;   /* Of the key's name, base/label.h; 0: not known. */
    /* What the optimizer counts beyond the versions: steps that were loaded,
     * less rounds that were none. */
    int64_t shift;
    struct ps_slice value; /* buf NULL: has none. Never written again. */
    struct ps_slice code;  /* What travels in its place; buf NULL: nothing. */
    uint8_t codec;         /* Of that. */
    struct ps_buf *state[PS_PART_STATES]; /* Of the optimizer; NULL: none. */
    /* Gradients of rounds that wait for the optimizer's step, added up. */
    struct ps_slice gathered; /* buf NULL: none. */
    uint64_t gathered_rounds;
    uint64_t gathered_weight; /* Ranks that gave them. */
    uint8_t gathered_reduce;
    struct ps_open *open; /* NULL: nobody has contributed. */
    void *run;            /* The owner's: a computation under way, or NULL. */
    /* What slots know of a partition that has moved here; NULL: nobody has
     * said anything yet. */
    struct ps_stated *stated;
    struct ps_list parked;
    struct ps_list asked; /* Pulls of rows that wait; struct ps_rows_wait. */
    struct ps_applied
        *applied;            /* By slot; NULL: nobody pushed without rounds. */
    struct ps_list waiting;  /* struct ps_apply, in order of arrival, */
    struct ps_list applying; /* and those that are being applied. */
    uint64_t clock;          /* ssp: the least of applied[]. */
};

/* A pull of rows that cannot be answered yet. */
struct ps_rows_wait {
    struct ps_list_node node;
    uint32_t slot;
    uint64_t least;
    uint64_t request;
    uint32_t count;
    uint32_t width;
    struct ps_slice row; /* Their numbers; own reference. */
};

struct ps_store {
    struct ps_map *parts; /* By key and index. */
    uint64_t stored;      /* Bytes of values and states. */
    uint32_t open_count;
    uint32_t parked_count;
};

void ps_store_init(struct ps_store *st);
/* Frees everything; no partition may have a computation under way. */
void ps_store_fini(struct ps_store *st);

struct ps_part *ps_store_find(const struct ps_store *st, uint32_t key,
                              uint32_t index);
/* Finds it, or makes one that knows nothing. */
struct ps_part *ps_store_obtain(struct ps_store *st, uint32_t key,
                                uint32_t index);
/* Frees the partition with all that is in it; it has no computation. */
void ps_store_forget(struct ps_store *st, struct ps_part *part);
/* Frees the partition if there is nothing in it. */
void ps_store_tidy(struct ps_store *st, struct ps_part *part);

static inline bool ps_part_has_value(const struct ps_part *part)
{
    return part->value.buf != NULL;
}
/* Does this agree with what is known of the partition? count 0: no opinion. */
bool ps_part_fits(const struct ps_part *part, uint8_t dtype, uint32_t count);
/* From now on it is known; it fits. */
void ps_part_declare(struct ps_part *part, uint8_t dtype, uint32_t count);

/* The slot, one of so many, knows that so many versions were made, the first of
 * them 0. True when all have spoken. */
bool ps_part_state(struct ps_part *part, uint32_t slot, uint32_t slots,
                   uint64_t made);

/* Replaces version and value; takes over one reference of the buffer. */
void ps_store_set(struct ps_store *st, struct ps_part *part, uint64_t version,
                  const struct ps_slice *value);
/* The value as a code; until the next value. Takes over the reference. */
void ps_store_set_code(struct ps_store *st, struct ps_part *part, uint8_t codec,
                       const struct ps_slice *code);
/* Gives the partition state `i` of its optimizer, or where it has none of what
 * its code has left over, as state 0; takes over the reference. */
/* One round more waits; takes over one reference. buf NULL: none does. */
void ps_store_gather(struct ps_store *st, struct ps_part *part,
                     const struct ps_slice *sum, uint64_t weight,
                     uint8_t reduce);
void ps_store_set_state(struct ps_store *st, struct ps_part *part, unsigned i,
                        struct ps_buf *state);

struct ps_open *ps_store_open(struct ps_store *st, struct ps_part *part,
                              uint32_t slots);
void ps_store_close(struct ps_store *st, struct ps_part *part);
/* Have all who are in this round passed? */
static inline bool ps_open_passes(const struct ps_open *open)
{
    return open->passes != NULL && !open->settled;
}

/* Takes over the reference in `w->row`, of which it keeps a copy. */
void ps_store_ask(struct ps_store *st, struct ps_part *part,
                  const struct ps_rows_wait *w);
void ps_store_unask(struct ps_store *st, struct ps_rows_wait *w);

/* Frees a push that is in neither list any more. */
void ps_store_apply_free(struct ps_apply *a);

/* A slot waits at most once for a partition, for the newest version that it
 * has asked for. */
void ps_store_park(struct ps_store *st, struct ps_part *part, uint32_t slot,
                   uint64_t least);
void ps_store_unpark(struct ps_store *st, struct ps_parked *p);
/* A slot that waits no more, for anything. */
void ps_store_unpark_slot(struct ps_store *st, uint32_t slot);
