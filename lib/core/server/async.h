/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes of async and ssp jobs. */
#pragma once

#include "core/server/job.h"
#include "core/server/kind.h"

extern const struct ps_server_contribution_kind ps_server_async_kind;

/* The applying pushes are in the value: replies to them. True: the next have
 * become a round to be merged. */
bool ps_server_async_applied(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part);
