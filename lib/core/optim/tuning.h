/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a job's optimizer beside its declaration: multipliers of
 * single keys, and values that hold from a round on. */
#pragma once

#include "base/err.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keys in one table; a job_state of that many still fits into a frame. */
#define PS_TUNINGS_MAX 2048u

struct ps_tunings {
    struct ps_rec_tuning *list; /* Ascending labels; own memory. */
    uint32_t count;
};

void ps_tunings_fini(struct ps_tunings *t);
/* Replaces what is there. */
void ps_tunings_set(struct ps_tunings *t, const struct ps_rec_tuning *list,
                    uint32_t count);
bool ps_tunings_equal(const struct ps_tunings *t,
                      const struct ps_rec_tuning *list, uint32_t count);
/* 0, or PS_E_INVAL and `why` says what is wrong. */
PS_MUST_USE int ps_tunings_check(const struct ps_rec_tuning *list,
                                 uint32_t count, char *why, size_t why_cap);
/* Of the key with this label; NULL: nothing is said of it. */
const struct ps_rec_tuning *ps_tunings_find(const struct ps_tunings *t,
                                            uint64_t label);

/* Changes that are kept. Of more, the oldest goes that a later one of the same
 * name has replaced; what a key would still do before that later one is done
 * with the newer value then. */
#define PS_CHANGES_MAX 64u

struct ps_changes {
    uint32_t count;
    /* Ascending rounds; names are the optimizer's own, not copied. */
    struct ps_rec_change list[PS_CHANGES_MAX];
};

/* The change of this name at this round; NULL: there is none. */
const struct ps_rec_change *ps_changes_find(const struct ps_changes *c,
                                            const char *name, uint64_t round);
/* There is none of the same name at its round yet. */
void ps_changes_add(struct ps_changes *c, const struct ps_rec_change *change);
