/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs as operators see them: training scalars, and the last jobs that ended,
 * whose reason agents get, too. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/base/ledger.h"
#include "core/sched/job/job.h"
#include "proto/ps_msg.h"

#include <stdint.h>

struct ps_sched_scalars;

/* ----------------------------------------------------------------- scalars */

/* Training scalars of a job: the last value of each name and rank. NULL: no rank
 * has reported one. */

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
/* The account has been refunded, or is closed next. NULL is allowed. */
void ps_sched_scalars_free(struct ps_sched_scalars *s);

/* -------------------------------------------------------------- ended jobs */

/* Jobs as operators see them, and the last ones that ended: psctl shows them,
 * and agents get the reason of the end. */

/* Ended jobs that are remembered. */
#define PS_SCHED_HISTORY_MAX 16u

struct ps_sched_ended_job {
    struct ps_msg *row; /* Owned: job_row, with the ages at `ended_at`. */
    ps_time ended_at;
};

struct ps_sched_history {
    struct ps_sched_ended_job jobs[PS_SCHED_HISTORY_MAX]; /* A ring. */
    uint64_t ended_count; /* Jobs ended so far. */
};

/* Fills the row of the job; its strings are those of the job. */
void ps_sched_job_fill_row(const struct ps_sched_job *j, ps_time now,
                           struct ps_msg_job_row *ret);
void ps_sched_history_add(struct ps_sched_history *h,
                          const struct ps_sched_job *j, ps_time now);
/* Adds the row of a job that the file has, which was number `number` to end. */
void ps_sched_history_restore(struct ps_sched_history *h, uint64_t number,
                              const struct ps_msg *row, ps_time ended_at);
void ps_sched_history_fini(struct ps_sched_history *h);
/* Number of jobs that are remembered, and one of them, oldest first. */
uint32_t ps_sched_history_count(const struct ps_sched_history *h);
const struct ps_sched_ended_job *
ps_sched_history_get(const struct ps_sched_history *h, uint32_t index);
/* NULL: no job of this generation is remembered. */
const struct ps_sched_ended_job *
ps_sched_history_find(const struct ps_sched_history *h, uint64_t gen);
