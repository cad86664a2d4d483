/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that need norms of whole arrays. */
#pragma once

#include "core/server/merges.h"

/* True if the next step of the partition needs norms. */
bool ps_server_norm_is_needed(struct ps_server_job *job,
                              const struct ps_part *part);
/* Launches the present stage of the step. PS_E_NOMEM: nothing has changed. */
int ps_server_norm_launch(struct ps_server_step *st,
                          struct ps_server_merge *run);
/* One stage is computed. True: it was the last. False: the run waits for
 * norms. */
bool ps_server_norm_on_computed(struct ps_server_step *st,
                                struct ps_server_merge *run);
/* Applies the norms and chooses the next stage. False: the step is skipped. */
bool ps_server_norm_apply(struct ps_server_merge *run,
                          const struct ps_msg_norm_result *m);
/* Sends the waiting norm_parts of the job again, to a scheduler that may lack
 * them. */
void ps_server_norm_resend(struct ps_server_step *st,
                           const struct ps_server_job *job);
