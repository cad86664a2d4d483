/* SPDX-License-Identifier: Apache-2.0 */
/* Silence of a member as its peers see it. */
#pragma once

#include "core/sched/member.h"

struct ps_msg;
struct ps_sched;
struct ps_sched_step;

/* Asks witnesses about a SUSPECT member when that is due. */
void ps_sched_witness_tick(struct ps_sched_step *st, struct ps_member *m);
ps_time ps_sched_witness_deadline(const struct ps_sched *s,
                                  const struct ps_member *m, ps_time now);
/* As ps_sched_migration_check_answer(), of a ping_ack: never PS_E_PERM, since
 * the job for which the witness was asked may have ended. */
int ps_sched_witness_check_answer(const struct ps_sched *s,
                                  const struct ps_member *witness,
                                  const struct ps_msg *msg);
void ps_sched_on_ping_ack(struct ps_sched_step *st,
                          const struct ps_member *witness,
                          const struct ps_msg_ping_ack *ack);
