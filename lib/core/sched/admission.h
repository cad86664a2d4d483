/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of servers reserved for jobs. */
#pragma once

#include "core/sched/job.h"

struct ps_sched;
struct ps_sched_step;

/* Placement of a key. */
struct ps_sched_placement {
    const struct ps_place_part *parts;
    uint32_t count;
};
/* Reserves memory on the job's servers for a key with these partitions. When
 * refused, nothing changes and the reason is appended to `why`. */
int ps_sched_admission_add_key(struct ps_sched_step *st, struct ps_sched_job *j,
                               uint8_t dtype,
                               const struct ps_sched_placement *places,
                               struct ps_str *why);
/* Releases the memory of the key. */
void ps_sched_admission_remove_key(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_sched_key *k);
/* True: node `to` has memory for the partition of another node. */
bool ps_sched_admission_fits_part(const struct ps_sched *s,
                                  const struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to);
/* Moves the reservation of a partition from its present owner to node `to`. */
void ps_sched_admission_move_part(struct ps_sched_step *st,
                                  struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to);
/* Sets the demand profile of the job; fails as ps_sched_admission_add_key. */
int ps_sched_admission_set_profile(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_demand_profile *kind,
                                   struct ps_str *why);
/* Reserves memory again after placements changed; fails as
 * ps_sched_admission_add_key. */
int ps_sched_admission_recount(struct ps_sched_step *st, struct ps_sched_job *j,
                               struct ps_str *why);
/* Releases the reservations of a failed job. */
void ps_sched_admission_release(struct ps_sched_step *st,
                                struct ps_sched_job *j);
/* Sends the servers of the job its quotas. */
void ps_sched_admission_send_quota(struct ps_sched_step *st,
                                   struct ps_sched_job *j);
