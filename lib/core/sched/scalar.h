/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of a job: the last value of each name and rank. Independent
 * of messages and members. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/base/ledger.h"
#include "proto/ps_msg.h"

#include <stdint.h>

/* NULL: no rank has reported a scalar. */
struct ps_sched_scalars;

/* Scalars of a job that has ended, as operators see them. */
struct ps_sched_last_scalars {
    uint32_t count;
    ps_time at;                                    /* When the job ended. */
    struct ps_rec_job_scalar list[PS_SCALARS_MAX]; /* Names are below. */
    char names[PS_SCALARS_MAX][PS_SCALAR_NAME_MAX + 1];
};

/* Sets the last value of a rank, a number below `num_workers`, which is the same
 * in all calls. PS_E_INVAL: the name has other characters than names have;
 * PS_E_FULL: the job has PS_SCALARS_MAX names, or a limit of its account
 * refuses the table, with the reason in `why`. */
PS_MUST_USE int ps_sched_scalars_set(struct ps_sched_scalars **scalars,
                                     struct ps_account *account,
                                     uint32_t num_workers,
                                     const struct ps_rec_rank_scalar *r,
                                     ps_time now, struct ps_str *why);
/* Writes what all ranks have reported, and returns the number of names, which
 * the rows borrow. NULL is allowed. */
uint32_t ps_sched_scalars_rows(const struct ps_sched_scalars *s, ps_time now,
                               struct ps_rec_job_scalar rows[PS_SCALARS_MAX]);
/* Copies them for the time after the job. */
void ps_sched_scalars_keep(const struct ps_sched_scalars *s, ps_time now,
                           struct ps_sched_last_scalars *ret);
/* The account has been refunded, or is closed next. NULL is allowed. */
void ps_sched_scalars_free(struct ps_sched_scalars *s);
