/* SPDX-License-Identifier: Apache-2.0 */
/* State memory: what a server keeps of its partitions for the process after it
 * (rules E3 to E7). A header, two places for the record of each partition, and
 * ranges for buffers. A record names the buffers of one version, which nobody
 * writes any more; the next version goes to the other place. state_header and
 * state_record of messages.toml have the layout.
 *
 * The memory of a former process is not trusted: what a record names must lie in
 * it, and belongs to one partition. */
#pragma once

#include "base/pool.h"
#include "base/str.h"
#include "core/part/image.h"

#include <stdbool.h>
#include <stdint.h>

/* Memory that outlives the process. */
struct ps_state_memory {
    uint8_t *base; /* Begins at a page; zeros where nothing was written. */
    uint64_t size;
    /* Gives back pages whose bytes are of no use. */
    void (*release)(void *ctx, uint64_t offset, uint64_t bytes);
    /* Tests: one more word of a record is stored; NULL. */
    void (*stored)(void *ctx);
    void *ctx;
};

/* The buffers of a partition, and its clocks. */
#define PS_RECORD_RANGES (PS_PART_BUFFERS + 1u)
#define PS_RECORD_CLOCKS PS_PART_BUFFERS
/* Key and index of the record of a job. */
#define PS_RECORD_JOB    UINT32_MAX

struct ps_record_range {
    uint64_t offset; /* In the memory. */
    uint64_t bytes;  /* 0: there is none. */
};

/* A version of a partition. */
struct ps_record {
    uint64_t gen;
    uint32_t key;
    uint32_t index;
    struct ps_rec_part_image image;
    uint32_t slots; /* Number of clocks; 0: it has rounds. */
    uint32_t place; /* Of another server, whose copy it is; 0: of this one. */
    struct ps_record_range ranges[PS_RECORD_RANGES];
};

/* Where the record of a partition is; all zero: there is none. */
struct ps_record_place {
    uint32_t number;   /* From 1. */
    uint64_t sequence; /* Of the newest record. */
};

struct ps_records;

struct ps_records_options {
    struct ps_state_memory memory;
    const char *name; /* Of the server. */
    const char *cluster;
    uint64_t id; /* Of memory that is begun here. */
};

/* Reads the memory, or empties it: then `why` gets the reason, "" of memory that
 * nobody has used. NULL: it is too small. */
struct ps_records *ps_records_open(const struct ps_records_options *opt,
                                   struct ps_str *why);
/* The pool is freed. NULL: no effect. */
void ps_records_free(struct ps_records *r);
/* From now on the memory stays as it is: this process ends. */
void ps_records_freeze(struct ps_records *r);
/* The ranges, for one pool. */
struct ps_pool_source ps_records_source(struct ps_records *r);
/* Number under which other processes may read the memory; buffers that are made
 * from now on have it as their tag, and their offset in it. */
void ps_records_set_arena(struct ps_records *r, uint32_t arena);
/* Bytes of the ranges in use. */
uint64_t ps_records_bytes(const struct ps_records *r);
/* Records that were valid when the memory was opened. */
uint32_t ps_records_found(const struct ps_records *r);

/* Makes `rec` the record of the partition: the one before it counts until the
 * last store. False: there is no room for one more. */
bool ps_records_write(struct ps_records *r, struct ps_record_place *place,
                      const struct ps_record *rec);
/* No record of the partition counts any more. */
void ps_records_remove(struct ps_records *r, struct ps_record_place *place);
/* True if the buffer lies in the memory; *ret is then where. */
bool ps_records_locate(const struct ps_records *r, const struct ps_slice *s,
                       struct ps_record_range *ret);

/* Record that a former process has left, each once: that of the job, or one of its
 * partitions after that. NULL: there are no more. The caller keeps or removes
 * what *ret_place gets. */
const struct ps_record *ps_records_take(struct ps_records *r, uint64_t gen,
                                        struct ps_record_place *ret_place);
/* Makes the buffer of a taken record. */
struct ps_buf *ps_records_adopt(struct ps_records *r,
                                const struct ps_record_range *range,
                                struct ps_pool *pool,
                                struct ps_pool_share *share);
/* Returns the range of a taken record that nobody adopts. */
void ps_records_release(struct ps_records *r,
                        const struct ps_record_range *range);
/* A job of which there are records that nobody has taken; 0: none. */
uint64_t ps_records_untaken_gen(const struct ps_records *r, uint64_t above);
