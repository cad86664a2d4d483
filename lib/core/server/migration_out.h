/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of a partition that migrates away. */
#pragma once

#include "core/server/job.h"

void ps_server_on_part_read(struct ps_server_step *st,
                            const struct ps_msg_part_read *m);
/* The partition's computation has ended: sends the chunk that waited. */
void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part);
