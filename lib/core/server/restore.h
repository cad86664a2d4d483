/* SPDX-License-Identifier: Apache-2.0 */
/* Init, restore: values stored as received. */
#pragma once

#include "core/server/job.h"

void ps_server_on_init(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg,
                       const struct ps_slice *payload);
bool ps_server_init_is_duplicate(const struct ps_server_job *job,
                                 const struct ps_msg_init *m);
void ps_server_on_restore(struct ps_server_step *st, struct ps_server_conn *c,
                          const struct ps_msg *msg,
                          const struct ps_slice *payload);
/* Sends value_lost if the job has lost a version. */
void ps_server_restore_send_lost(struct ps_server_step *st,
                                 const struct ps_server_job *job);
