/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's file for tests: rows in memory, as the bytes that a file would
 * have, which outlive the scheduler. */
#pragma once

#include "core/sched/sched.h"
#include "core/sched/store.h"

#include <stddef.h>
#include <stdint.h>

struct row {
    struct ps_sched_row_key key;
    uint8_t *bytes;
    size_t len;
};

/* Sorted by kind and keys; zeroed: empty. */
struct rows {
    struct row *list;
    uint32_t count;
};

/* Carries out a PS_FX_STORE. */
void rows_apply(struct rows *r, const struct ps_fx *f);
/* Feeds all rows to a new scheduler. A negative result has its reason in `why`,
 * after the kind and keys of the row. */
PS_MUST_USE int rows_load(const struct rows *r, struct ps_sched *s, ps_time now,
                          struct ps_str *why);
void rows_copy(struct rows *to, const struct rows *from);
void rows_fini(struct rows *r);
/* NULL: there is no such row. */
struct row *rows_find(const struct rows *r, struct ps_sched_row_key key);
/* Rows of one kind. */
uint32_t rows_count(const struct rows *r, uint8_t kind);
