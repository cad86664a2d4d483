/* SPDX-License-Identifier: Apache-2.0 */
/* Backups of the places of jobs with replicas: 2: which server is the backup of
 * which, from when on it counts, and who goes on after a loss. */
#pragma once

#include "core/sched/job/job.h"
#include "core/sched/member/member.h"

/* True if the job has copies. */
static inline bool ps_sched_job_has_copies(const struct ps_sched_job *j)
{
    return j->opt.replicas > 1;
}

/* Reason why this server cannot have copies of a job; NULL: it can. */
const char *ps_sched_copies_refuse(const struct ps_member *m);
/* Names a backup for each place of the job that has none, if a server fits, and
 * publishes the job. */
void ps_sched_copies_name(struct ps_sched_step *st, struct ps_sched_job *j);
void ps_sched_copies_name_all(struct ps_sched_step *st);
/* The file of the scheduler is an older one: no backup counts that it names, until
 * its owner has filled it again (rule G5). */
void ps_sched_copies_distrust(struct ps_sched_step *st);
/* Applies the loss of a server of the job: its backup takes its place over, and
 * places of which it was the backup go on alone. 0: it is no server of the job any
 * more. PS_E_NOENT: it still is, and nobody has another copy of its partitions.
 * Else the job must fail, for the reason that is appended to `why`. */
int ps_sched_copies_lose_server(struct ps_sched_step *st,
                                struct ps_sched_job *j,
                                const struct ps_member *server,
                                struct ps_str *why);
ps_sched_handler ps_sched_on_filled;
/* Counts backups that are filled and have taken the job, and begins moves that wait
 * for one or for an answer. */
void ps_sched_copies_check(struct ps_sched_step *st, struct ps_sched_job *j);
/* Appends the state of the job's places, for people; nothing without copies. */
void ps_sched_copies_describe(const struct ps_sched_job *j, struct ps_str *out);
