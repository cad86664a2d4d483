/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of partitions, takeover. */
#pragma once

#include <stdbool.h>

struct ps_agent_job;
struct ps_agent_key;
struct ps_agent_part;
struct ps_agent_step;
struct ps_msg_key_opened;
struct ps_slice;

/* Returns true when the table's partitions are exactly the elements of the key
 * and each fits into a frame. */
bool ps_agent_placement_covers(const struct ps_agent_key *k,
                               const struct ps_msg_key_opened *m,
                               const struct ps_slice *payload);
/* Makes the partitions of a key from a table that covers it. */
int ps_agent_placement_build(struct ps_agent_key *k,
                             const struct ps_msg_key_opened *m,
                             const struct ps_slice *payload);
/* Gives the partitions that a newer table places elsewhere to their owners. */
void ps_agent_placement_apply(struct ps_agent_step *st, struct ps_agent_key *k,
                              const struct ps_msg_key_opened *m,
                              const struct ps_slice *payload);
/* Keeps the newest placement of a key until the key is open, because links do
 * not preserve order. */
void ps_agent_placement_defer(struct ps_agent_job *j,
                              const struct ps_msg_key_opened *m,
                              const struct ps_slice *payload);
void ps_agent_placement_apply_deferred(struct ps_agent_step *st,
                                       struct ps_agent_key *k);
void ps_agent_placement_drop_deferred(struct ps_agent_job *j);
/* Sends restore for each partition to its owner, which may have taken the
 * partition over and wait for the report of this slot. */
void ps_agent_placement_report_all(struct ps_agent_step *st,
                                   struct ps_agent_key *k);
/* Sends restore with the newest local version to the partition's owner. */
void ps_agent_placement_send_state(struct ps_agent_step *st,
                                   struct ps_agent_part *p);
