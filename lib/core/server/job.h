/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of jobs and slots. */
#pragma once

#include "core/server/jobs.h"

struct ps_server_job *ps_server_job_find(const struct ps_server *s,
                                         uint64_t gen);
/* Finds a slot for a message of the session. PS_E_INVAL: no such slot;
 * PS_E_PERM: slot of another node; PS_E_STALE: another incarnation. */
int ps_server_job_find_slot(struct ps_server_job *job,
                            const struct ps_server_session *p, uint32_t slot,
                            struct ps_server_slot **ret_slot);
/* The slot in which the scheduler has named this process as an agent of a job;
 * NULL: there is none. */
const struct ps_server_slot *
ps_server_job_slot_of(const struct ps_server *s, const struct ps_msg_hello *m);
/* Session of the slot's agent; NULL: none with the slot's incarnation. */
struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot);
