/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of one job on one server: versions and values, contributions to
 * open rounds, and pulls that wait for a version. Slots are plain numbers: the
 * store knows no peers. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "base/time.h"
#include "core/part/image.h"
#include "core/part/records.h"
#include "core/part/round.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_server_contribution_kind;
struct ps_server_merge;

/* Request of a pull of rows. */
struct ps_row_pull {
    uint64_t request;
    uint32_t row_count;
    uint32_t row_width;
    struct ps_slice row_numbers; /* Owned. */
};

/* A pull of a slot whose version is not made yet. */
struct ps_waiting_pull {
    struct ps_list_node node;
    uint32_t slot;
    uint64_t min_version; /* Least version that satisfies it. */
    ps_time since;
    struct ps_row_pull *rows; /* NULL: a pull of the value. */
};

/* Contributions to the version after the present one. */
struct ps_open_round {
    /* Kind of the contributions, the same for all. */
    const struct ps_server_contribution_kind *kind;
    struct ps_round round;
    struct ps_bits needs_value; /* Slots that want the value. */
    ps_time opened_at;
    /* A contribution that is not a skip has arrived; the first one sets
     * `reduce` and `assign`. */
    bool has_request;
    uint8_t reduce;   /* enum ps_reduce */
    bool is_encoded;  /* Contributions are encoded. */
    uint32_t rng_key; /* Key of the codec's random numbers. */
    bool assign;      /* The result replaces the value. */
    uint8_t rule;     /* enum ps_rule; ACCUMULATE: it is added to the value. */
    struct ps_bits skips; /* Slots that skip; words NULL: none. */
};

/* A push of an async or ssp job, applied in order of arrival. */
struct ps_async_push {
    struct ps_list_node node;
    uint32_t slot;
    uint8_t rule; /* enum ps_rule */
    uint64_t incarnation;
    uint64_t seq;
    uint64_t clock; /* ssp: pushes that every rank of the slot has made. */
    struct ps_slice payload; /* Owned; moves to the open round. */
};

/* Further state of a partition without rounds, whose pushes are applied when
 * they arrive. A slot has at most one in flight, so two numbers identify
 * duplicates. */
struct ps_part_async {
    uint32_t slot_count;
    struct ps_rec_part_clock *clocks; /* By slot. */
    uint64_t *received_seqs; /* By slot: number of the last received push. */
    uint64_t clock;          /* ssp: least of clocks[]. */
    /* struct ps_async_push, in order of arrival. */
    struct ps_list queued_pushes;
    struct ps_list applying_pushes; /* Pushes being applied now. */
};

/* Further state of a partition of a rows key. */
struct ps_part_rows {
    uint32_t row_width; /* Elements of a row; 0: not known yet. */
    /* Of the open round: weight of all contributions, those without rows
     * included, and rows by slot. */
    uint64_t round_weight;
    uint32_t *round_counts;
};

struct ps_part_reports {
    struct ps_bits reported; /* Slots that have reported. */
    /* Newest version that a slot knows of, plus 1; 0: none. */
    uint64_t known_versions;
};

/* Index of the float32 master weights of a 16-bit value, after the optimizer
 * states. */
#define PS_PART_MASTER PS_STATES_MAX
#define PS_PART_STATES (PS_STATES_MAX + 1u)

/* The record of a partition, and its references on what that names. */
struct ps_part_record {
    struct ps_record_place place;
    struct ps_buf *bufs[PS_RECORD_RANGES];
    struct ps_list_node changed; /* In store->changed: it is not current. */
};

struct ps_part {
    uint32_t key;
    uint32_t index;
    struct ps_store *store;
    struct ps_rec_part_image image;
    /* By enum ps_part_buffer; buf NULL: none. The value is never written again,
     * but in place by a rows key. State 0 is the codec's residual where there
     * is no optimizer. */
    struct ps_slice buffers[PS_PART_BUFFERS];
    /* Those that were replaced or written, by bit, since somebody has cleared
     * this. */
    uint8_t changed_buffers;
    struct ps_open_round *open_round; /* NULL: no contribution yet. */
    /* Merge of the complete round, owned by merge.c; NULL: none. */
    struct ps_server_merge *merge;
    /* Versions that slots know, after a change of the owner; NULL: none
     * reported. */
    struct ps_part_reports *reports;
    struct ps_list waiting_pulls; /* struct ps_waiting_pull */
    struct ps_part_async *async;  /* NULL: no async push. */
    struct ps_part_rows *rows;    /* NULL: no push of rows. */
    struct ps_part_record record;
};

struct ps_store {
    struct ps_records *records; /* Not owned; NULL: none are kept. */
    /* Partitions whose records are not current, of all stores of the records;
     * NULL: none are kept. */
    struct ps_list *changed;
    struct ps_map *parts;  /* By key and index. */
    uint64_t stored_bytes; /* Values, states, accumulated gradients. */
    uint32_t open_round_count;
    uint32_t waiting_pull_count;
};

/* Number of a partition in maps. */
static inline uint64_t ps_part_id(uint32_t key, uint32_t index)
{
    return (uint64_t)key << 32 | index;
}

void ps_store_init(struct ps_store *st);
/* Frees everything but records; no partition may have a merge. */
void ps_store_fini(struct ps_store *st);

struct ps_part *ps_store_find(const struct ps_store *st, uint32_t key,
                              uint32_t index);
/* True if `part`, as found, is NULL and there is no room to add it. */
static inline bool ps_store_lacks_room(const struct ps_store *st,
                                       const struct ps_part *part)
{
    return part == NULL && ps_map_count(st->parts) >= PS_STORE_PARTS_MAX;
}
/* Finds the partition, or adds an empty one. */
struct ps_part *ps_store_find_or_add(struct ps_store *st, uint32_t key,
                                     uint32_t index);
/* Notes that the record of the partition is not current. Every function below
 * that changes its image or buffers does so. */
void ps_store_mark(struct ps_part *part);
/* Drops the references of the record, which stays as it is. */
void ps_part_release_record(struct ps_part *part);
/* Frees the partition, its contents and its record; it has no merge. */
void ps_store_remove(struct ps_store *st, struct ps_part *part);
/* Frees the partition unless it has a version, value, contribution, retry
 * number, report, async push or pull. */
void ps_store_remove_if_empty(struct ps_store *st, struct ps_part *part);

static inline const struct ps_slice *ps_part_value(const struct ps_part *part)
{
    return &part->buffers[PS_PART_BUFFER_VALUE];
}
static inline const struct ps_slice *
ps_part_accumulated(const struct ps_part *part)
{
    return &part->buffers[PS_PART_BUFFER_ACCUMULATED];
}
/* NULL: none. */
static inline struct ps_buf *ps_part_state(const struct ps_part *part,
                                           unsigned i)
{
    return part->buffers[PS_PART_BUFFER_STATE_0 + i].buf;
}
static inline bool ps_part_has_value(const struct ps_part *part)
{
    return part->buffers[PS_PART_BUFFER_VALUE].buf != NULL;
}
static inline bool ps_part_is_rows(const struct ps_part *part)
{
    return part->rows != NULL && part->rows->row_width != 0;
}
/* True if type and length do not contradict the partition's; count 0: not
 * stated. */
bool ps_part_matches(const struct ps_part *part, uint8_t dtype, uint32_t count);
/* Sets type and length, which match; count 0: length not stated. */
void ps_part_declare(struct ps_part *part, uint8_t dtype, uint32_t count);

/* Records that the slot knows of `made` versions, version 0 included. True when
 * all `slots` have reported. */
bool ps_part_add_report(struct ps_part *part, uint32_t slot, uint32_t slots,
                        uint64_t made);

/* Makes the image that of the partition, of which nothing else is here; takes
 * over the references of `buffers`. */
void ps_store_install(struct ps_store *st, struct ps_part *part,
                      const struct ps_image *m,
                      struct ps_slice buffers[PS_PART_BUFFERS]);
/* Replaces version and value; takes over one reference. */
void ps_store_set_value(struct ps_store *st, struct ps_part *part,
                        uint64_t version, const struct ps_slice *value);
/* Makes the next version with the same value, which is no longer sent encoded;
 * `all_skipped`: every rank skipped its round. */
void ps_store_keep_value(struct ps_store *st, struct ps_part *part,
                         bool all_skipped);
/* Sets the encoded form of the value, valid until the next one; takes over one
 * reference. */
void ps_store_set_encoded(struct ps_store *st, struct ps_part *part,
                          uint8_t codec, const struct ps_slice *code);
/* Replaces the accumulated gradient by `sum`, which has one round more; takes
 * over one reference. buf NULL: resets it. */
void ps_store_accumulate(struct ps_store *st, struct ps_part *part,
                         const struct ps_slice *sum, uint64_t weight,
                         uint8_t reduce);
/* Replaces a buffer; takes over one reference. buf NULL: removes it. */
void ps_store_set_buffer(struct ps_store *st, struct ps_part *part,
                         enum ps_part_buffer place, const struct ps_slice *to);

struct ps_open_round *
ps_store_open_round(struct ps_store *st, struct ps_part *part,
                    const struct ps_server_contribution_kind *kind,
                    uint32_t slots);
void ps_store_close_round(struct ps_store *st, struct ps_part *part);

/* Returns the state of its kind, made on first use. */
struct ps_part_async *ps_part_obtain_async(struct ps_part *part,
                                           uint32_t slots);
struct ps_part_rows *ps_part_obtain_rows(struct ps_part *part, uint32_t slots);

/* Frees a push that is in neither list. */
void ps_async_push_free(struct ps_async_push *a);

/* Adds a copy of the pull, of these rows, whose numbers it takes over, or of the
 * value: `rows` NULL. A slot waits at most once for a value, for the newest
 * version asked for. */
void ps_store_add_pull(struct ps_store *st, struct ps_part *part,
                       const struct ps_waiting_pull *pull,
                       const struct ps_row_pull *rows);
void ps_store_remove_pull(struct ps_store *st, struct ps_waiting_pull *p);
/* Removes all waiting pulls of the slot. */
void ps_store_remove_slot_pulls(struct ps_store *st, uint32_t slot);
