/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient compression that a job may declare: names, parameters and their
 * ranges. The scheduler checks a declaration before it publishes it, so an
 * invalid one fails only its caller. docs/compression.md has names, parameters
 * and formulas. */
#pragma once

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>

/* A valid declaration. */
struct ps_compression {
    struct ps_codec codec; /* kind NONE: gradients are not encoded. */
    uint64_t min_bytes;    /* Partitions with fewer bytes are not encoded. */
    bool bidirectional;    /* Results are encoded, too. */
    bool per_worker;       /* Each worker's gradient has a code of its own. */
};

/* Parses and checks a declaration. PS_E_UNSUPPORTED: there is no compression of
 * that name; PS_E_INVAL: a parameter is unknown, given twice or out of range; the
 * error text is appended to `why`. An empty name stands for no compression. *ret
 * is written only on success. */
PS_MUST_USE int ps_compression_parse(const char *name,
                                     const struct ps_rec_param *params,
                                     uint32_t count, struct ps_compression *ret,
                                     struct ps_str *why);

/* True if a partition of `count` elements is encoded. Both sides compute it
 * from the declaration. */
bool ps_compression_applies(const struct ps_compression *c, uint8_t dtype,
                            uint64_t count);

/* Value that identifies a key in the codec's random numbers: from the hash of
 * its name (base/name_hash.h), because key numbers depend on the order of
 * arrival. */
static inline uint32_t ps_compression_rng_key(uint64_t name_hash)
{
    return (uint32_t)(name_hash >> 32);
}
