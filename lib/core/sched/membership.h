/* SPDX-License-Identifier: Apache-2.0 */
/* Hello and its reply; members that fall silent, go and return. */
#pragma once

#include "core/sched/member.h"

struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_hello(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_hello *m);
/* True: the unacknowledged messages of the member exceeded their limit, and its
 * link was dropped. */
bool ps_sched_member_is_backlogged(struct ps_sched_step *st,
                                   struct ps_member *m);
void ps_sched_member_on_closed(struct ps_sched_step *st, struct ps_member *m);
/* The driver refuses the peer of its connection, which closes: for this reason,
 * with the peer's name in parentheses. */
void ps_sched_member_on_refused(struct ps_member *m, const char *why);
/* A message of the member has arrived. */
void ps_sched_member_on_message(struct ps_sched_step *st, struct ps_member *m);
void ps_sched_on_probed(struct ps_sched_step *st, uint64_t target, int rc);
void ps_sched_members_tick(struct ps_sched_step *st);
ps_time ps_sched_members_deadline(const struct ps_sched *s, ps_time now);
