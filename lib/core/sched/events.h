/* SPDX-License-Identifier: Apache-2.0 */
/* Events of members and jobs, the last ones, for operators: psctl events lists
 * them. Also the functions that change the states of members and jobs, which
 * record the change. */
#pragma once

#include "core/sched/event_ring.h"
#include "proto/ps_msg.h"

struct ps_member;
struct ps_sched_conn;
struct ps_sched_job;
struct ps_sched_step;

void ps_sched_events_fini(struct ps_sched_events *e);
/* Records what happened to the scheduler itself. */
void ps_sched_event_own(struct ps_sched_step *st, const char *what, bool is_bad,
                        const char *text);
/* `text` may be NULL. */
void ps_sched_event_member(struct ps_sched_step *st, const struct ps_member *m,
                           const char *what, bool is_bad, const char *text);
/* `kind`: PS_EVENT_KIND_JOB, _RANK, _MIGRATION or _OPERATOR. */
void ps_sched_event_job(struct ps_sched_step *st, enum ps_event_kind kind,
                        const struct ps_sched_job *j, const char *what,
                        bool is_bad, const char *text);

/* ps_member_set_state() and ps_sched_job_set_phase(), with an event. */
void ps_sched_move_member(struct ps_sched_step *st, struct ps_member *m,
                          enum ps_node_state to, const char *why);
void ps_sched_move_job(struct ps_sched_step *st, struct ps_sched_job *j,
                       enum ps_job_phase to);

/* Sends the events after number `after`, oldest first. */
void ps_sched_send_events(struct ps_sched_step *st, struct ps_sched_conn *c,
                          uint64_t after);
