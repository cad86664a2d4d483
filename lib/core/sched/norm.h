/* SPDX-License-Identifier: Apache-2.0 */
/* Norm allreduce over the partitions of a key. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched_step;

void ps_sched_on_norm_part(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg_norm_part *m);
/* Called once the job has optimizer `o`; keys may exist already. */
void ps_sched_norm_init(struct ps_sched_job *j, const struct ps_optim *o);
/* Called at the end of a job. */
void ps_sched_norm_free(struct ps_sched_job *j);
/* Takes a key without norms out of the global norm; called before its
 * removal. */
void ps_sched_norm_remove_key(struct ps_sched_job *j,
                              const struct ps_sched_key *k);
/* Publishes the global norm when a removed key was the last one missing. */
void ps_sched_norm_recheck_global(struct ps_sched_step *st,
                                  struct ps_sched_job *j);
/* Appends the names of keys that the global norm of this key's step waits for;
 * appends nothing when it does not wait. */
void ps_sched_norm_describe_missing(const struct ps_sched_job *j, uint32_t key,
                                    struct ps_str *out);
