/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions in state memory: their records, and those that a former process of
 * this server has left. */
#pragma once

#include "core/server/job.h"

/* Partitions whose records are not current: struct ps_part. */
struct ps_server_kept {
    struct ps_list changed;
    struct ps_list changed_copies; /* Of other servers' partitions. */
};

void ps_server_kept_init(struct ps_server *s);
/* Makes the job that has just been taken keep records. True: a former process
 * had this place of it, and the job has the partitions of that one now, and its
 * copies of others. Those of another place are dropped: its backup has taken them
 * over. If partitions of the job have moved, the scheduler says which are this
 * server's (rule M15). */
bool ps_server_kept_adopt(struct ps_server_step *st, struct ps_server_job *job,
                          uint32_t place_number);
/* Makes the records of all changed partitions current, before anybody hears of
 * what has changed. */
void ps_server_kept_write(struct ps_server_step *st);
/* The job has ended, taken or not: no record of it counts any more. */
void ps_server_kept_drop(struct ps_server *s, uint64_t gen);
/* Names the jobs of a former process that are not taken yet to the scheduler,
 * which says which of them have ended. */
void ps_server_kept_send_ready(struct ps_server_step *st);
