/* SPDX-License-Identifier: Apache-2.0 */
/* Sample values of every message, for round-trip tests, golden bytes and fuzzer
 * seeds. Three per message, in the order of messages.toml: the least value, a
 * typical one, and the greatest, with full strings and lists. */
#pragma once

#include <stddef.h>

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
