/* SPDX-License-Identifier: Apache-2.0 */
/* Credit, pacing. */
#pragma once

#include "core/server/job.h"

/* Counts the bytes of a push that have arrived on the link. */
void ps_server_credit_on_receive(struct ps_server *s,
                                 const struct ps_server_request *q);
/* Returns the job's credit on the session's link, created on first use. */
struct ps_credit *ps_server_credit_get(struct ps_server *s,
                                       struct ps_server_session *p,
                                       uint64_t gen);
/* Returns the credit to announce in a reply. */
uint64_t ps_server_credit_announce(struct ps_server *s,
                                   const struct ps_server_recipient *to);
/* A push of a known slot has arrived. */
void ps_server_credit_push_ended(const struct ps_server_request *q);
/* Some part of it was not refused. */
void ps_server_credit_push_accepted(const struct ps_server_request *q);
/* Pacing: true if the slot's push has to wait, because its unmerged bytes are
 * too far above the slowest slot's, and no other job shares its link. */
bool ps_server_credit_must_wait(const struct ps_server_slot *slot);
/* The job may have become one that waits for a slot without credit. */
void ps_server_credit_mark_job(struct ps_server_job *job);
/* Sends the credit alone if it is due and no batched reply will carry it, to a
 * slot that may be disconnected. */
void ps_server_credit_send_due(struct ps_server_step *st,
                               const struct ps_server_recipient *to);
/* At the end of a step, for each marked job: if its open rounds lack
 * contributions while nothing is merged (rule C4), grants credit to a slot that
 * they lack and whose credit is exhausted. */
void ps_server_credit_unblock(struct ps_server_step *st,
                              struct ps_server_job *job);
