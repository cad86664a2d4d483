/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of operators' tools, and what stands still in jobs, for tools, for
 * workers and for the scheduler itself. */
#pragma once

#include "base/time.h"
#include "core/sched/member/member.h"
#include "core/sched/token.h"

struct ps_sched_job;

/* ----------------------------------------------------------------- query.c */

/* The open job that a tool names, for which it has the right. NULL: the request
 * was answered with the reason. */
struct ps_sched_job *ps_sched_query_job(struct ps_sched_step *st,
                                        struct ps_sched_conn *c,
                                        struct ps_sched_job_name n,
                                        enum ps_token_right right);
/* True: the tool may change the job or, if NULL, members; with READ, read of it or
 * of all jobs. False: the request was answered with the reason. */
bool ps_sched_query_check_right(struct ps_sched_step *st,
                                struct ps_sched_conn *c,
                                const struct ps_sched_job *j,
                                enum ps_token_right right);
/* True: an earlier request of the connection is not done, and the new one was
 * answered with that. */
bool ps_sched_query_is_busy(struct ps_sched_step *st, struct ps_sched_conn *c);

/* All queries but that of tokens. */
void ps_sched_on_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_query *m);
void ps_sched_on_job_set(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_msg_job_set *m);
void ps_sched_on_job_cancel(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_msg_job_cancel *m);
/* Sends further rows; called when the output of the connection has drained. */
void ps_sched_query_send_rows(struct ps_sched_step *st,
                              struct ps_sched_conn *c);

/* --------------------------------------------------------- tools.c: tokens */

/* A query of tokens: sends a row for each one that the tool may manage. */
void ps_sched_on_token_query(struct ps_sched_step *st, struct ps_sched_conn *c);
void ps_sched_on_token_issue(struct ps_sched_step *st, struct ps_sched_conn *c,
                             const struct ps_msg_token_issue *m);
void ps_sched_on_token_revoke(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_msg_token_revoke *m);

/* ----------------------------------------------------- tools.c: log levels */

void ps_sched_on_log_level(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_log_level *m);

/* --------------------------------------------------------- tools.c: traces */

void ps_sched_on_trace_get(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_trace_get *m);
/* ----------------------------------------------------------------- stall.c */

/* Which ranks an operation waits for. */

ps_sched_handler ps_sched_on_stall_query;
/* Returns a job that must fail, with the reason: a round needs a rank that has
 * left. NULL: none. */
struct ps_sched_job *
ps_sched_on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                         const struct ps_msg_stall_report *m,
                         struct ps_str *why);
/* Sends psctl the stall rows of one job, and counts in open_stalls what is still
 * asked. */
void ps_sched_stall_query_job(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_sched_conn *ctl);
/* A rank has left the job. While others are live, the agents are asked again and
 * again whether a round needs a rank that has left. */
void ps_sched_stall_check_left(struct ps_sched_step *st,
                               struct ps_sched_job *j);
void ps_sched_stall_drop_job(struct ps_sched_step *st, struct ps_sched_job *j);
/* Frees all queries, without a reply. */
void ps_sched_stalls_free(struct ps_sched *s);
void ps_sched_stall_drop_ctl(struct ps_sched *s, ps_conn_id ctl);
/* Continues queries whose time is up. Returns as ps_sched_on_stall_report(); the
 * caller then calls it again. */
struct ps_sched_job *ps_sched_stalls_tick(struct ps_sched_step *st,
                                          struct ps_str *why);

/* -------------------------------------------------------------- diverged.c */

/* Ranks that wait for each other (rules T6 to T12 of docs/protocol.md). */

/* An agent says that the job stands still there: it is watched from now on. */
ps_sched_handler ps_sched_on_job_still;
ps_sched_handler ps_sched_on_wait_report;
/* Returns a job that must fail, with the reason; NULL: none. Called again until
 * there is none. */
struct ps_sched_job *ps_sched_diverged_tick(struct ps_sched_step *st,
                                            struct ps_str *why);
/* Text that begins with DIVERGED and names the calls of all ranks; "": the job
 * is not DIVERGED. */
const char *ps_sched_diverged_text(const struct ps_sched *s,
                                   const struct ps_sched_job *j);
/* Sends psctl the stall row of a job that is DIVERGED. */
void ps_sched_diverged_send_row(struct ps_sched_step *st,
                                const struct ps_sched_job *j, ps_conn_id ctl);
/* Jobs that are DIVERGED. */
uint32_t ps_sched_diverged_jobs(const struct ps_sched *s);
void ps_sched_diverged_drop_job(struct ps_sched *s,
                                const struct ps_sched_job *j);
void ps_sched_diverged_free(struct ps_sched *s);
