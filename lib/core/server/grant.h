/* SPDX-License-Identifier: Apache-2.0 */
/* Credit without a reply, slots that block their job. */
#pragma once

#include "core/server/jobs.h"

/* After a push: sends the credit alone if it is due and no batched reply will
 * carry it. */
void ps_server_grant_if_due(struct ps_server_step *st,
                            struct ps_server_session *p,
                            const struct ps_server_slot *slot);
/* At the end of a step: where a marked job has open rounds and no merge, grants
 * credit to a slot that these lack and whose credit is exhausted. */
void ps_server_grant_unblock_jobs(struct ps_server_step *st);
