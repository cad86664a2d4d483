/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of dense partitions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_agent;
struct ps_agent_key;
struct ps_agent_op_input;
struct ps_agent_part;
struct ps_agent_send_queue;
struct ps_agent_session;
struct ps_agent_step;
struct ps_msg_l_op;

/* Kind's start_part() for whole arrays. */
bool ps_agent_dense_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p);
/* Releases the batch arena; the next small sum allocates another. */
void ps_agent_dense_release_arena(struct ps_agent *a);
