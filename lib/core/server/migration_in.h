/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of a partition that migrates to this server. */
#pragma once

#include "core/server/job.h"

struct ps_server_migration;

void ps_server_on_part_chunk(struct ps_server_step *st,
                             const struct ps_msg_part_chunk *m,
                             const struct ps_slice *payload);
/* Makes the received buffers the partition, of which nothing else is here. */
void ps_server_migration_install(struct ps_server_job *job,
                                 struct ps_server_migration *mv);
/* Replies to the scheduler. The uplink's link keeps the reply while the
 * scheduler is disconnected; one that has lost the link's state asks again. */
void ps_server_migration_send_ack(struct ps_server_step *st,
                                  const struct ps_msg_part_ack *m);
