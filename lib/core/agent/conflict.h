/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds aborted because of conflicting requests. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_agent_key;
struct ps_agent_op;
struct ps_agent_step;

/* Frees the conflict of the last round, if there is one: a new round begins. */
void ps_agent_conflict_clear(struct ps_agent_key *k);
/* If this rank has not yet been notified of the aborted attempt, fails its
 * operation with the conflict text and returns true. */
bool ps_agent_conflict_notify_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
/* Aborts the attempt: `op` conflicts with the local ranks before it. */
void ps_agent_conflict_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                             const char *text);
/* Aborts the open attempt if a server refused one of its parts because of a
 * conflict with other slots: `attempt` is above the current retry number. */
void ps_agent_conflict_on_refuse(struct ps_agent_step *st,
                                 struct ps_agent_key *k, uint64_t round,
                                 uint32_t attempt, const char *text);
/* Resends abort_round to `node` (0: all owners), which may have lost it. */
void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node);
