/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of a complete round, publication of its version. */
#pragma once

#include "core/server/job.h"

/* Merges the complete round of the partition, or publishes it at once where
 * nothing has to be computed. */
void ps_server_merge_start(struct ps_server_step *st, struct ps_server_job *job,
                           struct ps_part *part);
void ps_server_merge_on_computed(struct ps_server_step *st, uint64_t token,
                                 int rc);
void ps_server_on_norm_result(struct ps_server_step *st,
                              const struct ps_msg_norm_result *m);
/* Launches starved merges again. */
void ps_server_merge_tick(struct ps_server_step *st);
ps_time ps_server_merge_deadline(const struct ps_server *s);
