/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of this server's partitions of a job on their way to its backup. */
#pragma once

#include "core/server/job.h"

struct ps_server_peer;

/* The place of this server has changed. Replies that wait leave. With a backup
 * its filling begins; `node` 0: there is none. */
void ps_server_copies_begin(struct ps_server_step *st,
                            struct ps_server_job *job, uint32_t epoch,
                            uint32_t node, uint64_t instance);
/* Ends the links to servers that are no backups any more. */
void ps_server_copies_drop_unused_peers(struct ps_server_step *st);
/* Tells the scheduler on a new session again that the backup has all. */
void ps_server_copies_report(struct ps_server_step *st,
                             const struct ps_server_job *job);

/* Sends what waits, as far as there is room on its way. */
void ps_server_copy_pump(struct ps_server_step *st);
void ps_server_copy_on_copied(struct ps_server_step *st,
                              struct ps_server_peer *p,
                              const struct ps_msg_copied *m);
/* The link has a new session: sends again what is not confirmed. */
void ps_server_copy_resend(struct ps_server_step *st, struct ps_server_peer *p);
