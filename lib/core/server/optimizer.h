/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer step of a merge. */
#pragma once

#include "core/server/merges.h"

struct ps_compute;

/* True if the value has a 16-bit type, so that steps use float32 master
 * weights. */
bool ps_server_optimizer_has_master(const struct ps_part *part);
/* Bytes of states and master weights that are not allocated yet. */
uint64_t ps_server_optimizer_missing(const struct ps_server_job *job,
                                     const struct ps_part *part);
/* Allocates missing states and master weights. PS_E_NOMEM: some may exist. */
int ps_server_optimizer_make_states(struct ps_server_job *job,
                                    struct ps_part *part);
/* Returns the parameters of the step that makes the next version, and raises
 * job->newest_version to it. */
struct ps_optim_step_params
ps_server_optimizer_next_step(struct ps_server_job *job,
                              const struct ps_part *part);
/* Makes the computation take the optimizer step too; the states exist. */
void ps_server_optimizer_add_step(struct ps_server_merge *run,
                                  const struct ps_optim_step_params *at,
                                  struct ps_compute *c);
