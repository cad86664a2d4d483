/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of merges, rounds that are discarded. */
#pragma once

#include "core/server/merges.h"

struct ps_compute;

void ps_server_merge_init(struct ps_server *s);
void ps_server_merge_fini(struct ps_server *s);
/* Makes the run of the partition's complete round. */
struct ps_server_merge *ps_server_merge_new(struct ps_server_job *job,
                                            struct ps_part *part);
void ps_server_merge_free(struct ps_server *s, struct ps_server_merge *run);
/* Closes the open round: drops its contributions, its merge, and the async
 * pushes of the partition. */
void ps_server_merge_discard(struct ps_server *s, struct ps_server_job *job,
                             struct ps_part *part);
/* Returns a computation that sums the contributions, and the accumulated
 * gradient with them if `steps` or run->accumulates. The caller sets what is
 * done with the sum. */
struct ps_compute *ps_server_merge_sum(struct ps_server_merge *run, bool steps);
/* Hands the computation over under a new token of the run; while the server has
 * several jobs, when it is the job's turn. */
void ps_server_merge_submit(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c);
/* A computation has ended: starts those whose turn it is. Returns the run;
 * NULL: its round was discarded. */
struct ps_server_merge *ps_server_merge_computed(struct ps_server_step *st,
                                                 uint64_t token);
/* Puts the run, whose computation has ended, into job->norm_waits. */
void ps_server_merge_await_norms(struct ps_server_merge *run);
/* Takes the run out of job->norm_waits. */
void ps_server_merge_stop_waiting(struct ps_server_merge *run);
