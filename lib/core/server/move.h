/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of partitions between servers: the role of this one in each, and what
 * that allows agents. */
#pragma once

#include "base/bits.h"
#include "core/server/job.h"

enum ps_server_move_role {
    MOVE_ENDED,
    MOVE_OUT,
    MOVE_IN,
    MOVE_AWAY,
    MOVE_BACK
};

struct ps_server_move {
    uint64_t id; /* Number assigned by the scheduler. */
    struct ps_server_job *job;
    uint32_t key;
    uint32_t index;
    enum ps_server_move_role role;
    uint32_t target;     /* MOVE_OUT: node. */
    bool is_reported;    /* MOVE_OUT: the scheduler may end it as completed. */
    uint32_t away_epoch; /* Epoch of the last move away; 0: none. */
    /* Newest placement by which an agent has sent its state here; 0: none. Not
     * used in jobs with copies, of which a takeover names the servers. */
    uint32_t restored_epoch;
    /* MOVE_BACK: slots that have sent their state. */
    struct ps_bits reported;
    /* The fields below are of MOVE_IN. */
    struct ps_list_node node; /* In copies.incoming of the job. */
    uint32_t source;          /* Node. */
    uint64_t source_incarnation;
    uint64_t source_instance;
    char source_name[PS_NAME_MAX + 1];
    struct ps_server_backup_part *copies; /* Copies so far. */
    uint64_t unconfirmed; /* Number of the copy that is here; 0: none. */
    uint64_t refused;     /* Of one that was refused; 0: none. */
};

/* The last move of the partition; NULL: there was none. */
struct ps_server_move *ps_server_move_find(const struct ps_server_job *job,
                                           uint32_t key, uint32_t index);
/* Finds or adds the move of this number. NULL: it is not newer than what is known
 * of the partition, or has ended. It has no role yet if it is new. */
struct ps_server_move *ps_server_move_obtain(struct ps_server_job *job,
                                             uint64_t number, uint32_t key,
                                             uint32_t index);
/* Finds the move that ends. One of which no other message has come is recorded as
 * over. NULL: it has ended before. */
struct ps_server_move *ps_server_move_find_ending(struct ps_server_job *job,
                                                  uint64_t number, uint32_t key,
                                                  uint32_t index);
/* Begins the role of the target. */
void ps_server_move_take_in(struct ps_server_move *mv,
                            const struct ps_msg_move *m);
/* The partition is as if it had never moved; the number stays, so that late
 * messages of the move change nothing. */
void ps_server_move_end(struct ps_server_move *mv);
/* The partition has moved away by the placement of this epoch. */
void ps_server_move_set_away(struct ps_server_move *mv, uint32_t epoch);
void ps_server_moves_free(struct ps_server_job *job);

/* True if the scheduler may complete the move of the partition at any time. */
bool ps_server_move_is_reported(const struct ps_server_job *job,
                                const struct ps_part *part);
/* True if the partition moves in or out, has moved away, or is another server's
 * whose backup is here. */
bool ps_server_move_involves(const struct ps_server_job *job,
                             const struct ps_rec_part *rec);
/* Returns why the slot cannot push to the partition or pull it: PS_E_MIGRATING
 * if it moves in, or is another server's whose backup is here, PS_E_STALE if it
 * has moved away, or has come back without a move and the slot has not sent its
 * state yet. 0: it can. */
int ps_server_move_check_use(const struct ps_server_slot *slot,
                             const struct ps_rec_part *rec);
/* Checks a restore by an agent whose placement has this epoch. One newer than
 * the move away means that the partition came back. PS_E_STALE: refuse for
 * now. */
int ps_server_move_check_restore(struct ps_server_step *st,
                                 const struct ps_server_slot *slot,
                                 const struct ps_rec_part *rec, uint32_t epoch);
/* True if the partition came here by a newer placement than that of the move to
 * this server: its source was lost, and the message is late. */
bool ps_server_move_is_late(const struct ps_server_move *mv,
                            const struct ps_msg_move *m);
/* The slot's restore was accepted. */
void ps_server_move_on_restored(const struct ps_server_slot *slot,
                                const struct ps_rec_part *rec);
