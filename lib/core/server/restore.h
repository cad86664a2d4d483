/* SPDX-License-Identifier: Apache-2.0 */
/* Values, partitions and states that come from elsewhere. */
#pragma once

#include "core/server/job.h"

void ps_server_on_init(struct ps_server_step *st,
                       const struct ps_server_request *q);
/* True if all partitions of an init have a value. */
bool ps_server_init_is_duplicate(const struct ps_server_request *q);
void ps_server_on_restore(struct ps_server_step *st,
                          const struct ps_server_request *q);
/* Sends value_lost if the job has lost a version. */
void ps_server_restore_send_lost(struct ps_server_step *st,
                                 const struct ps_server_job *job);

void ps_server_on_state_get(struct ps_server_step *st,
                            const struct ps_server_request *q);
void ps_server_on_state_put(struct ps_server_step *st,
                            const struct ps_server_request *q);
/* Answers a load of states, now or when the backup has them (rule O11). */
void ps_server_reply_load(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_part *part, uint64_t request);
/* Answers such a request with an error. */
void ps_server_refuse_state(struct ps_server_step *st,
                            const struct ps_server_request *q, int rc);
