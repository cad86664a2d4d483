/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of what the servers of a job do. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched;
struct ps_sched_step;

void ps_sched_on_profile_set(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_profile_set *m);
void ps_sched_on_profile_get(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_profile_get *m);
/* As ps_sched_migration_check_answer(), of profile_events. */
int ps_sched_profile_check_answer(const struct ps_sched *s,
                                  const struct ps_member *server,
                                  const struct ps_msg *msg);
void ps_sched_on_profile_events(struct ps_sched_step *st,
                                struct ps_member *server,
                                const struct ps_msg *msg);
/* Sends a server on a fresh link again what it has not answered. */
void ps_sched_profile_resend(struct ps_sched_step *st, struct ps_sched_job *j,
                             const struct ps_member *server);
/* Refuses what the server has not answered. */
void ps_sched_profile_server_lost(struct ps_sched_step *st,
                                  struct ps_sched_job *j, uint32_t node);
