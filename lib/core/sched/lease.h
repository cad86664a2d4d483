/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: verdicts on silent members. */
#pragma once

#include "core/sched/member.h"

struct ps_sched;
struct ps_sched_step;

/* Restarts the lease of the member. */
void ps_sched_lease_renew(struct ps_sched_step *st, struct ps_member *m);
/* Restarts the lease of a member that sent a message. True: it was SUSPECT and
 * is ACTIVE. */
bool ps_sched_lease_on_message(struct ps_sched_step *st, struct ps_member *m);
/* Extends all leases by `late`, the delay of this step behind its deadline.
 * False: that is too short to matter. */
bool ps_sched_lease_extend_all(struct ps_sched_step *st, ps_time late);

/* Lease terms that hold for all members at one time. */
struct ps_sched_lease {
    ps_time not_before; /* No member is GONE before this time. */
    ps_time timeout;    /* Silence before a member is GONE. */
};
/* Returns the terms of this time, and logs when no member is heard. */
struct ps_sched_lease ps_sched_lease_tick(struct ps_sched_step *st);
/* Makes a silent member SUSPECT. True: its lease has ended, and it is to be
 * GONE for the reason that is appended. */
bool ps_sched_lease_check(struct ps_sched_step *st,
                          const struct ps_sched_lease *l, struct ps_member *m,
                          struct ps_str *why);
ps_time ps_sched_lease_deadline(const struct ps_sched *s, ps_time now);
