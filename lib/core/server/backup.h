/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of partitions of other servers: of places of which this server is the
 * backup, and of moves to it. */
#pragma once

#include "core/server/job.h"

struct ps_msg_hello;
struct ps_server_move;

/* Takes in the places that job_state names: the roles of this server. */
void ps_server_backup_set_places(struct ps_server_step *st,
                                 struct ps_server_job *job,
                                 const struct ps_msg_job_state *m);
/* Frees all roles, of a job that is freed; the records of copies stay. */
void ps_server_backup_free_all(struct ps_server_job *job);

/* The role of whose store the partition is. */
struct ps_server_backup *ps_server_backup_of(const struct ps_part *part);
/* Store of copies of the place; or of what a former process had in this server's
 * own, and may have sent away. */
struct ps_store *ps_server_backup_store(struct ps_server_job *job,
                                        uint32_t place, bool is_own);
/* Takes the partition, in such a store, as a copy that a former process had. The
 * next job_state says whether it counts. */
void ps_server_backup_adopt(struct ps_part *part);

/* Asks the scheduler whether this server owns the partition, if it has that from a
 * lost server; `id` UINT64_MAX: all that it has. */
void ps_server_backup_ask_owner(struct ps_server_step *st,
                                const struct ps_server_job *job, uint64_t id);
/* Its answer, for what was taken over by this version of job_state; 0: by any. */
void ps_server_backup_set_owner(struct ps_server_step *st,
                                struct ps_server_job *job, uint64_t id,
                                uint32_t version, bool is_owner);
/* True if it has a partition of this node that is lost, and has not heard whose
 * that is. */
bool ps_server_backup_has_of(const struct ps_server_job *job, uint32_t node,
                             uint64_t id);
/* Takes the role of the target of a move. */
void ps_server_backup_begin_move(struct ps_server_step *st,
                                 struct ps_server_move *mv,
                                 const struct ps_msg_move *m);
/* Name of the server that the scheduler has named as the owner of a place whose
 * backup is here, or as the source of a move to here, if this is the hello of that
 * process; NULL: it is not. */
const char *ps_server_backup_owner_of(const struct ps_server *s,
                                      const struct ps_msg_hello *m);
/* Of a copy: 0 with memory for the payload, or the reason to discard it. */
int ps_server_backup_payload(struct ps_server *s,
                             const struct ps_server_session *p,
                             const struct ps_msg *msg, uint64_t len,
                             struct ps_slice *ret_slice);
void ps_server_backup_on_copy(struct ps_server_step *st,
                              struct ps_server_conn *c,
                              const struct ps_event *ev);
/* True if it was a computation of a backup. */
bool ps_server_backup_on_computed(struct ps_server_step *st, uint64_t token,
                                  int rc);
/* Sends the confirmations of the last steps. */
void ps_server_backup_flush(struct ps_server_step *st);
