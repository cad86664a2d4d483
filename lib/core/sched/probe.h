/* SPDX-License-Identifier: Apache-2.0 */
/* Liveness and reach probes of members. */
#pragma once

#include "core/sched/member.h"

struct ps_sched_step;

/* The member has completed its handshake. */
void ps_sched_probe_hello(struct ps_sched_step *st, struct ps_member *m);
/* The member's connection is lost. */
void ps_sched_probe_lost(struct ps_sched_step *st, struct ps_member *m);
/* Records the result of a probe. Returns the member whose process has ended as
 * the result shows, which is to be GONE for the reason that is appended; NULL:
 * none. */
struct ps_member *ps_sched_probe_result(struct ps_sched_step *st,
                                        uint64_t target, int rc,
                                        struct ps_str *why);
void ps_sched_probe_tick(struct ps_sched_step *st, struct ps_member *m);
