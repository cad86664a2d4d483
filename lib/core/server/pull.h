/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls, now or when their version is made. */
#pragma once

#include "core/server/job.h"

void ps_server_on_pull(struct ps_server_step *st,
                       const struct ps_server_request *q);
void ps_server_on_pull_rows(struct ps_server_step *st,
                            const struct ps_server_request *q);
/* Replies to pulls that the present version satisfies. `up_to_date`: slots that
 * have its value already; may be NULL. */
void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *up_to_date);
