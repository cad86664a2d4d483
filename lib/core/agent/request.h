/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that the scheduler answers. */
#pragma once

struct ps_agent_job;
struct ps_agent_session;
struct ps_agent_step;
struct ps_msg_l_compression;
struct ps_msg_l_optimizer;
struct ps_msg_l_optimizer_change;
struct ps_msg_l_optimizer_tune;
struct ps_msg_l_profile_get;
struct ps_msg_l_profile_set;
struct ps_msg_optimizer_done;
struct ps_msg_profile_events;

void ps_agent_request_optimizer(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_msg_l_optimizer *m);
void ps_agent_request_optimizer_change(
    struct ps_agent_step *st, struct ps_agent_session *s,
    const struct ps_msg_l_optimizer_change *m);
void ps_agent_request_optimizer_tune(struct ps_agent_step *st,
                                     struct ps_agent_session *s,
                                     const struct ps_msg_l_optimizer_tune *m);
void ps_agent_request_compression(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_compression *m);
/* The scheduler's answer to any of them. */
void ps_agent_request_profile_set(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_profile_set *m);
void ps_agent_request_profile_get(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_profile_get *m);
void ps_agent_request_on_profile_events(struct ps_agent_step *st,
                                        const struct ps_msg_profile_events *m);
void ps_agent_request_on_done(struct ps_agent_step *st,
                              const struct ps_msg_optimizer_done *m);
/* Sends all unanswered requests of the job again. */
void ps_agent_request_resend(struct ps_agent_step *st, struct ps_agent_job *j);
