/* SPDX-License-Identifier: Apache-2.0 */
/* Silence of a member as its peers see it. */
#pragma once

#include "core/sched/member.h"

struct ps_sched;
struct ps_sched_step;

/* Asks witnesses about a SUSPECT member when that is due. */
void ps_sched_witness_tick(struct ps_sched_step *st, struct ps_member *m);
ps_time ps_sched_witness_deadline(const struct ps_sched *s,
                                  const struct ps_member *m, ps_time now);
void ps_sched_on_ping_ack(struct ps_sched_step *st,
                          const struct ps_member *witness,
                          const struct ps_msg_ping_ack *ack);
