/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of workers that the scheduler answers, and barriers. */
#pragma once

#include "core/agent/inner.h"

/* ---------------------------------------------------------------- requests */

/* A request of a worker to the scheduler, as operation `op_id`: l_optimizer,
 * l_optimizer_change, l_optimizer_tune, l_compression, l_profile_set or
 * l_profile_get. */
void ps_agent_request_accept(struct ps_agent_step *st,
                             struct ps_agent_session *s, const struct ps_msg *m,
                             uint64_t op_id);
void ps_agent_request_on_entries(struct ps_agent_step *st,
                                 const struct ps_msg_trace_entries *m);
/* The scheduler's answer to any other request. */
void ps_agent_request_on_done(struct ps_agent_step *st,
                              const struct ps_msg_optimizer_done *m);
/* Sends all unanswered requests of the job again. */
void ps_agent_request_resend(struct ps_agent_step *st, struct ps_agent_job *j);

/* ---------------------------------------------------------------- barriers */

void ps_agent_barrier_enter(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_barrier *m);
/* On a fresh link: the last barrier that was open, and those below. */
void ps_agent_barrier_resend(struct ps_agent_step *st, struct ps_agent_job *j);
/* Sends one barrier_enter for each barrier at which local ranks wait. */
void ps_agent_barrier_send(struct ps_agent_step *st, struct ps_agent_job *j);
/* Takes over the completed barriers of a reattached worker. */
void ps_agent_barrier_reattach(struct ps_agent_step *st,
                               struct ps_agent_session *s);
void ps_agent_barrier_on_done(struct ps_agent_step *st,
                              const struct ps_msg_barrier_done *m);
