/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: from job_state to the end. */
#pragma once

#include "core/agent/inner.h"

void ps_agent_job_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_job_opened *m);
void ps_agent_job_on_state(struct ps_agent_step *st,
                           const struct ps_msg_job_state *m);
void ps_agent_job_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_job *j);
/* Frees some memory of draining pools that no frame references any more. */
void ps_agent_job_reap_pools(struct ps_agent *a);
/* Frees the job if it is over and has no session. */
void ps_agent_job_free_if_unused(struct ps_agent_step *st,
                                 struct ps_agent_job *j);
/* New scheduler: workers of jobs that do not run yet open them again, and such
 * jobs without sessions are freed. */
void ps_agent_job_reoffer(struct ps_agent_step *st);
/* Resends all that is open to a scheduler with a new link. */
void ps_agent_job_resend_all(struct ps_agent_step *st);
