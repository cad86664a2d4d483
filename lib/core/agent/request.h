/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that the scheduler answers. */
#pragma once

struct ps_agent_job;
struct ps_agent_session;
struct ps_agent_step;
struct ps_msg_l_compression;
struct ps_msg_l_optimizer;
struct ps_msg_l_optimizer_change;
struct ps_msg_optimizer_done;

void ps_agent_request_optimizer(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_msg_l_optimizer *m);
void ps_agent_request_optimizer_change(
    struct ps_agent_step *st, struct ps_agent_session *s,
    const struct ps_msg_l_optimizer_change *m);
void ps_agent_request_compression(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_compression *m);
/* The scheduler's answer to any of them. */
void ps_agent_request_on_done(struct ps_agent_step *st,
                              const struct ps_msg_optimizer_done *m);
/* Sends all unanswered requests of the job again. */
void ps_agent_request_resend(struct ps_agent_step *st, struct ps_agent_job *j);
