/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster map: all servers that are not GONE. Each map has an epoch, and
 * placements are of an epoch, too. */
#pragma once

#include "core/sched/member/member.h"

struct ps_sched_step;

/* Starts a new epoch, newer than all placements sent before, and sends the
 * map. */
void ps_sched_begin_epoch(struct ps_sched_step *st);
/* Sends the map of this epoch to one member. */
void ps_sched_send_map(struct ps_sched_step *st, struct ps_member *m);
