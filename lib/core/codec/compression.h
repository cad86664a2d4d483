/* SPDX-License-Identifier: Apache-2.0 */
/* Compression that a job may declare: names, numbers and the ranges these may
 * lie in. The scheduler asks before it tells anybody, so that a declaration
 * that makes no sense fails for its caller alone. docs/compression.md has the
 * names, numbers and formulas. */
#pragma once

#include "base/dtype.h"
#include "base/err.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>

/* A declaration that makes sense. */
struct ps_compression {
    struct ps_codec codec; /* kind NONE: gradients travel as they are. */
    uint64_t min_bytes;    /* Smaller partitions travel as they are. */
    bool bidirectional;    /* Values come back as codes, too. */
};

/* 0, PS_E_UNSUPPORTED for a compression that does not exist, PS_E_INVAL for a
 * number that does not, stands there twice, or makes no sense; then `why` says
 * in words what is wrong. An empty name is none at all. *ret is written only
 * on success. */
PS_MUST_USE int ps_compression_parse(const char *name,
                                     const struct ps_rec_param *params,
                                     uint32_t count, struct ps_compression *ret,
                                     char *why, size_t why_cap);

/* Does a partition of `count` elements travel as a code? Known to both sides
 * from the declaration alone. */
bool ps_compression_applies(const struct ps_compression *c, uint8_t dtype,
                            uint64_t count);

/* What stands for a key in the random numbers of its codes: of its label
 * (base/name_hash.h). Its number does not: that is given in order of arrival. */
static inline uint32_t ps_compression_rng_key(uint64_t label)
{
    return (uint32_t)(label >> 32);
}

/* What the salt of an answer says of its version: every rank has passed in that
 * round, and the value is the one before. */
#define PS_PART_SKIPPED 1u

/* Payload bytes of a part of a message: of a code, or of its elements. */
static inline uint64_t ps_part_payload_bytes(const struct ps_rec_part *rec)
{
    return rec->codec != PS_CODEC_NONE
               ? rec->encoded_bytes
               : rec->count * (uint64_t)ps_dtype_size(rec->dtype);
}
