/* SPDX-License-Identifier: Apache-2.0 */
/* Residuals in memory that outlives the agent. */
#pragma once

#include "core/agent/inner.h"

/* Elements of one vector of a partition: one residual for the node, or for each
 * of its workers in the order of their ranks. */
uint64_t ps_agent_residual_elements(const struct ps_agent_part *p);
/* Returns true if the partition has a residual record in the log. Adopts the
 * record of an earlier agent, or appends a new one. */
bool ps_agent_residual_attach(struct ps_agent_step *st,
                              struct ps_agent_part *p);
/* Returns true if the record holds an encoding of the open round, which an
 * earlier agent made. */
bool ps_agent_residual_is_encoded(const struct ps_agent_part *p);
/* For such a record: makes the residual from before that encoding current. */
void ps_agent_residual_rewind(struct ps_agent_part *p);
/* Undoes ps_agent_residual_rewind(). */
void ps_agent_residual_forward(struct ps_agent_part *p);
/* References of the buffers that an encoding writes; NULL: none. */
void ps_agent_residual_targets(const struct ps_agent_part *p,
                               struct ps_buf **ret_residual,
                               struct ps_buf **ret_moment);
/* Tags the record: the current residual is the result of `round`. */
void ps_agent_residual_commit(struct ps_agent_part *p, uint64_t round);
void ps_agent_residual_detach(struct ps_agent_part *p);
void ps_agent_residual_job_free(struct ps_agent *a, struct ps_agent_job *j);
/* Announces to the session the segments that it does not know. */
void ps_agent_residual_announce(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Reads the records of a segment that a worker has from an earlier agent. Ends
 * the session if it is malformed or over a limit. */
void ps_agent_residual_on_segment(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_buf *buf);
