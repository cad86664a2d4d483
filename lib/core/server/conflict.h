/* SPDX-License-Identifier: Apache-2.0 */
/* Conflicting contributions, retry numbers. */
#pragma once

#include "core/server/job.h"

struct ps_server_conflict;

/* Discards the open round and refuses it to its contributors. */
void ps_server_conflict_void(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part,
                             int rc);
/* Sets the retry number of the next round to `attempt`, and refuses all
 * contributions to the attempt that ends. `other` is the conflicting side that
 * the refusals name; NULL: none. */
void ps_server_conflict_abort(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint32_t attempt,
                              const struct ps_server_conflict *other);
/* Compares `attempt` with the round's retry number: a lower one is refused, a
 * higher one aborts the attempt in progress unless that is complete. `part` may
 * be NULL. 0: accept; else the error. */
int ps_server_conflict_check_retry(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   struct ps_part *part, uint64_t round,
                                   uint32_t attempt);
/* Returns the partition's retry number if it is above `attempt`, else 0. */
uint32_t ps_server_conflict_newer_retry(const struct ps_server_job *job,
                                        uint32_t key, uint32_t index,
                                        uint32_t attempt);
/* Aborts a complete broadcast round whose root skipped it. */
void ps_server_conflict_no_root(struct ps_server_step *st,
                                struct ps_server_job *job,
                                struct ps_part *part);
/* Aborts the attempt because `own` conflicts with its request, and names in
 * `ret_others` the slots that made that. */
void ps_server_conflict_raise(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint64_t round,
                              const struct ps_server_conflict *own,
                              struct ps_server_conflict *ret_others);
/* A slot gives up an attempt at its rounds. */
void ps_server_on_abort_round(struct ps_server_step *st,
                              struct ps_server_conn *c,
                              const struct ps_msg_abort_round *m);
