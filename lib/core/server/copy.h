/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of this server's partitions of a job on their way to its backup, and to
 * servers that they move to. */
#pragma once

#include "core/server/job.h"

struct ps_server_move;
struct ps_server_peer;

/* The place of this server has changed. Replies that wait leave. With a backup
 * its filling begins; `node` 0: there is none. */
void ps_server_copies_begin(struct ps_server_step *st,
                            struct ps_server_job *job, uint32_t epoch,
                            uint32_t node, uint64_t instance);
/* Tells the scheduler of targets that have been away for long: of backups for which
 * replies wait (rule O18), and of moves that have not come to their end. */
void ps_server_copies_report_unreachable(struct ps_server_step *st);
/* Tells the scheduler that the partition, whose last move is `mv`, cannot be
 * moved yet. */
void ps_server_copies_refuse_move(struct ps_server_step *st,
                                  const struct ps_server_move *mv,
                                  uint64_t move);
/* Begins to send a partition to the server that it moves to; and ends the move, the
 * partition being this server's: replies that waited leave. */
void ps_server_copies_begin_move(struct ps_server_step *st,
                                 struct ps_server_move *mv, uint32_t node,
                                 uint64_t instance);
void ps_server_copies_end_move(struct ps_server_step *st,
                               struct ps_server_move *mv);
/* The partition has come from a lost server. */
void ps_server_copies_on_takeover(struct ps_server_job *job,
                                  struct ps_part *part);
/* Looks whether the backup counts by now. */
void ps_server_copies_check(struct ps_server_step *st,
                            struct ps_server_job *job);
/* Ends the links to servers that get no copies any more. One that is connected is
 * kept if another move may follow. */
void ps_server_copies_drop_unused_peers(struct ps_server_step *st,
                                        bool keeps_connected);
/* Tells the scheduler on a new session again that the backup has all, and what
 * moves this server has a part in. */
void ps_server_copies_report(struct ps_server_step *st,
                             const struct ps_server_job *job);

/* Sends what waits, as far as there is room on its way. */
void ps_server_copy_pump(struct ps_server_step *st);
void ps_server_copy_on_copied(struct ps_server_step *st,
                              struct ps_server_peer *p,
                              const struct ps_msg_copied *m);
/* The link has a new session: sends again what is not confirmed. */
void ps_server_copy_resend(struct ps_server_step *st, struct ps_server_peer *p);
