/* SPDX-License-Identifier: Apache-2.0 */
/* Sample values of every message and fixed record, for round-trip tests, golden
 * bytes and fuzzer seeds. Three each, in the order of messages.toml: the least
 * value, a typical one, and the greatest, with full strings and lists. */
#pragma once

#include <stddef.h>

#include "proto/ps_fixed.h"
#include "proto/ps_msg.h"

enum ps_sample_kind {
    PS_SAMPLE_LEAST,
    PS_SAMPLE_TYPICAL,
    PS_SAMPLE_GREATEST,
};

size_t ps_samples_count(void);
const struct ps_msg *ps_sample(size_t i);

static inline enum ps_sample_kind ps_sample_kind(size_t i)
{
    return (enum ps_sample_kind)(i % 3);
}

struct ps_fixed_sample {
    const char *name;
    size_t size; /* Bytes of the record, and of its struct. */
    const void *value;
    void (*put)(uint8_t *out, const void *v);
    bool (*get)(const uint8_t *in, void *ret_v);
};

/* Samples of records that are copied; those with atomic fields have none. */
size_t ps_fixed_samples_count(void);
const struct ps_fixed_sample *ps_fixed_sample(size_t i);
