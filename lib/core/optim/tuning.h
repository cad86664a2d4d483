/* SPDX-License-Identifier: Apache-2.0 */
/* Adjustments of a job's optimizer beside its declaration: multipliers of
 * single keys, and hyper-parameter changes that hold from a round on. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keys in one table; a job_state with this many still fits into a frame. */
#define PS_TUNINGS_MAX 2048u

struct ps_tunings {
    /* By ascending name_hash, and of one key by round; owned memory. */
    struct ps_rec_tuning *list;
    uint32_t count;
};

void ps_tunings_fini(struct ps_tunings *t);
/* Replaces the table. */
void ps_tunings_set(struct ps_tunings *t, const struct ps_rec_tuning *list,
                    uint32_t count);
bool ps_tunings_equal(const struct ps_rec_tuning *a, uint32_t a_count,
                      const struct ps_rec_tuning *b, uint32_t b_count);
/* Returns 0, or PS_E_INVAL with the error text appended to `why`. */
PS_MUST_USE int ps_tunings_check(const struct ps_rec_tuning *list,
                                 uint32_t count, struct ps_str *why);
/* Entry that holds for this round of the key with name hash `name_hash`; NULL:
 * none. */
const struct ps_rec_tuning *ps_tunings_find(const struct ps_tunings *t,
                                            uint64_t name_hash, uint64_t round);
/* The entry that differs from `tuning` for the same key from the same round on;
 * NULL: none. */
const struct ps_rec_tuning *
ps_tunings_conflict(const struct ps_tunings *t,
                    const struct ps_rec_tuning *tuning);
/* Adds entries that pass the check and conflict with none. Of too many, the
 * oldest with a later one of the same key is dropped; steps of rounds between
 * the two then use the later one. *ret_changed is false if the table had all of
 * them. PS_E_INVAL: more than PS_TUNINGS_MAX keys; nothing changes, and the
 * error text is appended to `why`. */
PS_MUST_USE int ps_tunings_add(struct ps_tunings *t,
                               const struct ps_rec_tuning *list, uint32_t count,
                               bool *ret_changed, struct ps_str *why);

/* Changes that are kept. Of more, the oldest with a later one of the same name
 * is dropped; steps of rounds between the two then use the later value. */
#define PS_CHANGES_MAX 64u

struct ps_changes {
    uint32_t count;
    /* By ascending round; names are static strings of the optimizer. */
    struct ps_rec_change list[PS_CHANGES_MAX];
};

/* The change of this name at this round; NULL: none. */
const struct ps_rec_change *ps_changes_find(const struct ps_changes *c,
                                            const char *name, uint64_t round);
/* Adds a change; none of the same name and round may exist. */
void ps_changes_add(struct ps_changes *c, const struct ps_rec_change *change);
