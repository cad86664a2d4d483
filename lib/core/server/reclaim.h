/* SPDX-License-Identifier: Apache-2.0 */
/* Memory taken back from open rounds. */
#pragma once

#include "core/server/job.h"

/* A contribution's payload was discarded. If it is for the reserved round and
 * the slot is starved for long, voids other open rounds of the job. */
void ps_server_reclaim(struct ps_server_step *st, struct ps_server_slot *slot,
                       const struct ps_msg *msg, uint64_t len);
