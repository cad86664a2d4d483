/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of ranks that contradict each other. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched_step;

/* Appends "rank 3 on HOST"; without a host, or for a number that is no rank of
 * the job, less. */
void ps_sched_add_rank_text(const struct ps_sched_job *j, uint32_t rank,
                            struct ps_str *s);

/* The agent of `slot` has declared the key otherwise: notifies the agents that
 * have it open, and those that open it until that slot has it open, too. `text`
 * names both declarations. */
void ps_sched_key_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j,
                                     struct ps_sched_key *k, uint32_t slot,
                                     const char *text);
/* The agent of `slot` has the key open: ends its part in a disagreement, and
 * notifies it of that of others. */
void ps_sched_key_disagreement_opened(struct ps_sched_step *st,
                                      const struct ps_sched_job *j,
                                      struct ps_sched_key *k, uint32_t slot);

/* The rank has declared for the whole job what contradicts a declaration of
 * another one: notifies all agents. */
void ps_sched_job_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j, uint32_t rank,
                                     const char *text);
/* The rank has declared what the others have. */
void ps_sched_job_disagreement_end(struct ps_sched_step *st,
                                   const struct ps_sched_job *j, uint32_t rank);

/* Two ranks of the agent disagree about a key, or agree again. */
void ps_sched_on_disagreement(struct ps_sched_step *st, struct ps_member *agent,
                              const struct ps_msg_disagreement *m);
