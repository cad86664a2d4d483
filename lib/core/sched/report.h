/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars that ranks report through their agents. */
#pragma once

#include "core/sched/member/member.h"

struct ps_sched_step;

void ps_sched_on_report(struct ps_sched_step *st, struct ps_member *agent,
                        const struct ps_msg_report *m);
