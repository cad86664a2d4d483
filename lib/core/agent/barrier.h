/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers. */
#pragma once

#include <stdint.h>

struct ps_agent_job;
struct ps_agent_session;
struct ps_agent_step;
struct ps_msg_barrier_done;
struct ps_msg_l_barrier;

void ps_agent_barrier_enter(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_barrier *m);
/* Sends one barrier_enter for each barrier at which local ranks wait. */
void ps_agent_barrier_send(struct ps_agent_step *st, struct ps_agent_job *j);
/* Records that all barriers up to `number` are open, and ends the operations of
 * ranks that wait at them. */
void ps_agent_barrier_complete(struct ps_agent_step *st, struct ps_agent_job *j,
                               uint64_t number);
void ps_agent_barrier_on_done(struct ps_agent_step *st,
                              const struct ps_msg_barrier_done *m);
