/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs from job_state to the end. */
#pragma once

#include "core/server/job.h"

void ps_server_job_init(struct ps_server *s);
/* Frees all jobs with their partitions, merges, replies and migrations. */
void ps_server_job_fini(struct ps_server *s);
void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m);
void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m);
/* Sends job_ready; nothing while the uplink is not connected. */
void ps_server_job_send_ready(struct ps_server_step *st,
                              const struct ps_server_job *job);
