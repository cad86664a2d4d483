/* SPDX-License-Identifier: Apache-2.0 */
/* Key and file of the tokens of psched. */
#pragma once

#include "base/str.h"
#include "core/sched/options.h"

struct psched_tokens;

/* Reads the key of `path`, or makes it, and the tokens of `path`.tokens; ""
 * makes a key that ends with the process, and stores nothing. NULL with the
 * reason. */
struct psched_tokens *psched_tokens_open(const char *path, struct ps_str *why);
void psched_tokens_free(struct psched_tokens *t);
/* For the machine; borrowed until psched_tokens_free(). */
const struct ps_token_ops *psched_tokens_ops(const struct psched_tokens *t);
/* Tokens as they were stored last. */
const struct ps_token_record *
psched_tokens_stored(const struct psched_tokens *t, uint32_t *ret_count);
