/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs as operators see them, and the last ones that ended: psctl shows them,
 * and agents get the reason of the end. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/scalar.h"

/* Ended jobs that are remembered. */
#define PS_SCHED_HISTORY_MAX 16u

struct ps_sched_ended_job {
    struct ps_msg_job_row row; /* Strings point into the arrays below. */
    ps_time created_at;
    char name[PS_NAME_MAX + 1];
    char optimizer[33];
    char compression[PS_COMPRESSION_TEXT_MAX];
    char reason[PS_TEXT_MAX + 1];
    struct ps_sched_last_scalars scalars;
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
/* Number of jobs that are remembered, and one of them, oldest first. */
uint32_t ps_sched_history_count(const struct ps_sched_history *h);
const struct ps_sched_ended_job *
ps_sched_history_get(const struct ps_sched_history *h, uint32_t index);
/* NULL: no job of this generation is remembered. */
const struct ps_sched_ended_job *
ps_sched_history_find(const struct ps_sched_history *h, uint64_t gen);
