/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of a complete round or init. */
#pragma once

#include <stdbool.h>

struct ps_agent_part;
struct ps_agent_step;

/* Queues the partition for its server, or starts the local sum or init. Returns
 * true if it has the version at once: the caller advances it. */
bool ps_agent_launch_part(struct ps_agent_step *st, struct ps_agent_part *p);
