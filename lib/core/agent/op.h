/* SPDX-License-Identifier: Apache-2.0 */
/* Operations, from their acceptance to their end. */
#pragma once

#include "core/agent/inner.h"

/* An operation of the job begins or ends. */
void ps_agent_op_note_move(struct ps_agent_step *st, struct ps_agent_job *j);
struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id);
/* Removes the operation from its session, which has ended, and refunds its
 * charge there. */
void ps_agent_op_detach(struct ps_agent_op *op);
/* Sends the result to the worker, if it is connected, and frees `op`. */
void ps_agent_op_end(struct ps_agent_step *st, struct ps_agent_op *op,
                     uint64_t version, int error, const char *text);
/* Ends a skip of a round that all ranks skipped. */
void ps_agent_op_end_skipped(struct ps_agent_step *st, struct ps_agent_op *op,
                             uint64_t version);
void ps_agent_op_free(struct ps_agent_op *op);
void ps_agent_op_free_list(struct ps_list *list);
/* Refuses an operation that has not begun with an error and a text. Returns
 * false. */
bool ps_agent_op_reject(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m, int error, const char *fmt,
                        ...) __attribute__((format(printf, 5, 6)));
/* Kind's measure_array() for whole arrays. */
bool ps_agent_op_measure_dense(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_agent_key *k,
                               const struct ps_msg_l_op *m,
                               struct ps_agent_op_input *in);
