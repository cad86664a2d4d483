/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and their placement. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched_step;

void ps_sched_on_key_open(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg_key_open *m);
/* Removes the agent, which could not take the key, from its openers; removes a
 * key without openers. */
void ps_sched_on_key_close(struct ps_sched_step *st,
                           const struct ps_member *agent,
                           const struct ps_msg_key_close *m);
/* Moves the partitions of the lost server `gone` to the servers of the job.
 * PS_E_FULL: they lack memory; the reason is appended to `why`. */
int ps_sched_keys_reassign(struct ps_sched_step *st, struct ps_sched_job *j,
                           uint32_t gone, struct ps_str *why);
/* Sends agents the placements that they lack: some now, the others from
 * keys.send_at on. */
void ps_sched_keys_send_placements(struct ps_sched_step *st,
                                   struct ps_sched_job *j);
/* Makes node `to` the owner of the partition, in a new epoch. */
void ps_sched_key_reassign_part(struct ps_sched_step *st,
                                struct ps_sched_job *j, struct ps_sched_key *k,
                                uint32_t index, uint32_t to);
/* Sends an agent on a fresh link all placements other than first ones: some
 * now, the others from keys.send_at on. */
void ps_sched_keys_send_reassigned(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_member *m);
