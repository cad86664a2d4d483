/* SPDX-License-Identifier: Apache-2.0 */
/* Credit, pacing. */
#pragma once

#include "core/server/jobs.h"

/* Returns the job's credit on the session's link, created on first use. */
struct ps_credit *ps_server_credit_get(struct ps_server *s,
                                       struct ps_server_session *p,
                                       uint64_t gen);
void ps_server_credit_drop_all(struct ps_server_session *p);
/* Returns the credit to announce in a reply. `slot` NULL: not known. */
uint64_t ps_server_credit_announce(struct ps_server *s,
                                   struct ps_server_session *p, uint64_t gen,
                                   const struct ps_server_slot *slot);
/* Start and end of the arrival of a push with `len` payload bytes. */
void ps_server_credit_push_begins(struct ps_server_slot *slot);
void ps_server_credit_push_ended(struct ps_server_slot *slot, uint64_t len);
/* Pacing: true if the slot's push has to wait, because its unmerged bytes are
 * too far above the slowest slot's. Never true for all slots at once. */
bool ps_server_credit_is_ahead(const struct ps_server_slot *slot);
/* Schedules the job's check in ps_server_grant_unblock_jobs(). */
void ps_server_credit_mark_job(struct ps_server_job *job);
