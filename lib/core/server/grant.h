/* SPDX-License-Identifier: Apache-2.0 */
/* Credit without a reply, slots that block their job. */
#pragma once

#include "core/server/jobs.h"

/* Sends the credit alone, where ps_server_credit_is_due(). */
void ps_server_grant_send(struct ps_server_step *st,
                          struct ps_server_session *p,
                          const struct ps_server_slot *slot);
/* Grants credit to a slot that the job's open rounds lack and whose credit is
 * exhausted. At the end of a step, for the jobs that
 * ps_server_credit_next_waiting() returns. */
void ps_server_grant_unblock(struct ps_server_step *st,
                             struct ps_server_job *job);
