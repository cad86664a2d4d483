/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of partitions that the backup of this server's place lacks, and the
 * replies that wait for it; copy.c sends the copies. */
#pragma once

#include "base/bits.h"
#include "core/server/job.h"
#include "core/server/peer.h"

/* The copies of one partition. */
struct ps_server_copy {
    struct ps_list_node node; /* In `waiting` of the peer. */
    struct ps_server_job *job;
    uint32_t key;
    uint32_t index;
    uint64_t changed;   /* Number of the newest change. */
    uint64_t sent;      /* Number of the copy on its way; 0: none. */
    uint64_t confirmed; /* Newest number that the backup has; 0: none. */
    uint64_t sent_bytes;
    bool defers; /* Replies wait for the backup. */
    /* Slots that get a reply, and those of them that get the value. */
    struct ps_bits due;
    struct ps_bits due_values;
};

/* NULL: there is no backup, or the partition has not changed since. */
struct ps_server_copy *ps_server_copies_find(const struct ps_server_job *job,
                                             uint32_t key, uint32_t index);
/* Adds the copies of a partition; it waits to be sent. */
struct ps_server_copy *ps_server_copies_add(struct ps_server_job *job,
                                            const struct ps_part *part,
                                            bool defers);
/* Waits to be sent, unless it does. */
void ps_server_copies_enqueue(struct ps_server_copy *c);
/* The copy on its way is confirmed, or lost with its link. */
void ps_server_copies_forget_sent(struct ps_server_copy *c);
/* The partition has changed, and no reply has reported it. */
void ps_server_copies_on_change(struct ps_server_job *job,
                                const struct ps_part *part);
void ps_server_copies_free(struct ps_server_job *job);

/* True if replies about the partition wait until the backup has it; then the
 * reply to the slot is recorded, with the value if `want`. */
bool ps_server_copies_defer_reply(const struct ps_server_slot *slot,
                                  const struct ps_part *part, bool want);
/* Forgets such replies to an agent, which asks again. */
void ps_server_copies_drop_replies(const struct ps_server_slot *slot);
