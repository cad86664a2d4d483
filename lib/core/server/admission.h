/* SPDX-License-Identifier: Apache-2.0 */
/* Hello of agents, held until the scheduler names them; jobs from job_state to
 * the end. */
#pragma once

#include "core/server/job.h"

/* Handles the hello of a connection without a session. */
void ps_server_on_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m);
/* Closes connections without a hello in time, and rejects agents that the
 * scheduler has not named in time. */
void ps_server_hello_tick(struct ps_server_step *st);

/* Handles held hellos whose processes the scheduler has named meanwhile. */
void ps_server_verify_held_hellos(struct ps_server_step *st);

void ps_server_job_init(struct ps_server *s);
/* Frees all jobs with their partitions, merges, replies and moves. */
void ps_server_job_fini(struct ps_server *s);
void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m);
void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m);
/* Sends job_ready; nothing while the uplink is not connected. */
void ps_server_job_send_ready(struct ps_server_step *st,
                              const struct ps_server_job *job);
