/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations, what they allow agents, and the chunks that leave. */
#pragma once

#include "core/server/job.h"

enum ps_server_migration_role {
    MIG_ENDED,
    MIG_OUT,
    MIG_IN,
    MIG_AWAY,
    MIG_BACK
};

struct ps_server_migration {
    uint64_t id; /* Number assigned by the scheduler. */
    uint32_t key;
    uint32_t index;
    enum ps_server_migration_role role;
    /* MIG_OUT: a part_read waits for the end of a merge. */
    bool read_pending;
    uint64_t offset;
    uint32_t max_bytes;
    uint32_t away_epoch; /* Epoch of the last migration away; 0: none. */
    /* MIG_BACK: slots that have sent their state. */
    struct ps_bits reported;
    /* The fields below are of MIG_IN. */
    struct ps_msg *first_chunk; /* Without its payload; NULL: none. */
    struct ps_slice buffers[PS_PART_BUFFERS];
    uint64_t received_bytes;
    uint64_t total_bytes;
};

/* Finds or adds the migration that a message names, and gives this server the
 * role in it, if it is newer than what is known. NULL: it is over, or this
 * server has another role in it. */
struct ps_server_migration *
ps_server_migration_obtain(struct ps_server_job *job, uint64_t number,
                           uint32_t key, uint32_t index,
                           enum ps_server_migration_role role);
/* Finds the migration that ends. One of which no other message has come is
 * recorded as over. NULL: it has ended before. */
struct ps_server_migration *
ps_server_migration_find_ending(struct ps_server_job *job, uint64_t number,
                                uint32_t key, uint32_t index);
void ps_server_migration_drop_buffers(struct ps_server_migration *mv);
/* The partition is as if it had never migrated; the number stays, so that late
 * messages of the migration change nothing. */
void ps_server_migration_end(struct ps_server_migration *mv);
void ps_server_migration_free_all(struct ps_server_job *job);
/* True if the partition migrates away: its complete rounds wait. */
bool ps_server_migration_freezes(const struct ps_server_job *job,
                                 const struct ps_part *part);
/* True if the partition migrates in or out, has migrated away, or is another
 * server's whose backup is here. */
bool ps_server_migration_involves(const struct ps_server_job *job,
                                  const struct ps_rec_part *rec);
/* Returns why the slot cannot push to the partition or pull it: PS_E_MIGRATING
 * if it migrates in, or is another server's whose backup is here, PS_E_STALE if it has migrated away, or has come back
 * without a migration and the slot has not sent its state yet. 0: it can. */
int ps_server_migration_check_use(const struct ps_server_slot *slot,
                                  const struct ps_rec_part *rec);
/* Checks a restore by an agent whose placement has this epoch. One newer than
 * the migration away means that the partition came back. PS_E_STALE: refuse for
 * now. */
int ps_server_migration_check_restore(struct ps_server_step *st,
                                      const struct ps_server_slot *slot,
                                      const struct ps_rec_part *rec,
                                      uint32_t epoch);
/* The slot's restore was accepted. */
void ps_server_migration_on_restored(const struct ps_server_slot *slot,
                                     const struct ps_rec_part *rec);

void ps_server_on_part_read(struct ps_server_step *st,
                            const struct ps_msg_part_read *m);
/* The partition's computation has ended: sends the chunk that waited. */
void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part);
