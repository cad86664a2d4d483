/* SPDX-License-Identifier: Apache-2.0 */
/* Servers that get copies of partitions of this one, what each of them lacks, and
 * the replies that wait for that; copy.c sends the copies. */
#pragma once

#include "base/bits.h"
#include "core/server/job.h"
#include "core/server/peer.h"

/* A server that gets copies of partitions of a job. */
struct ps_server_target {
    struct ps_list_node node; /* In `targets` of the job. */
    struct ps_server_job *job;
    struct ps_server_peer *peer;
    uint64_t move; /* Number of the move that it takes; 0: it is the backup. */
    struct ps_map *parts; /* struct ps_server_copy, by partition. */
    uint32_t unfilled;    /* Of them, those that are not filled yet. */
    bool is_filled;       /* All do: the target counts. */
    bool is_unreachable;  /* The scheduler has heard of it. */
    uint8_t percent;      /* That the scheduler has heard of. */
};

/* Every buffer of a partition, by bit. */
#define PS_PART_ALL ((1u << PS_PART_BUFFERS) - 1)

/* Step of a partition that a target takes, too (rule O17). */
struct ps_server_copy_step {
    bool is_open;    /* The version that it makes is not published. */
    uint64_t number; /* Of that version. */
    struct ps_rec_part_image image; /* Before it, with its norms. */
    struct ps_optim_step_params params;
    struct ps_slice gradient; /* Owned; buf NULL: it does not wait. */
};

/* The copies of one partition at one target. */
struct ps_server_copy {
    struct ps_list_node node; /* In `waiting` or `filling` of the peer. */
    struct ps_server_target *target;
    uint32_t key;
    uint32_t index;
    uint64_t changed;   /* Number of the newest change. */
    uint64_t sent;      /* Number of the copy on its way; 0: none. */
    uint64_t confirmed; /* Newest number that the target has; 0: none. */
    uint64_t sent_bytes;
    /* Of these, those that the peer counts in `filling_bytes`. */
    uint64_t filling_bytes;
    bool sent_whole; /* It does not need the copy before. */
    uint8_t unsent;  /* Buffers that are not those of the last copy, by bit. */
    struct ps_server_copy_step step; /* The last one. */
    bool defers;                     /* Replies wait for the target. */
    bool is_filled;                  /* And it has had the newest version. */
    /* Slots that get a reply, and those of them that get the value. */
    struct ps_bits due;
    struct ps_bits due_values;
    struct ps_list due_loads; /* struct ps_server_due_load */
};

/* Answer to a load of states that waits. */
struct ps_server_due_load {
    struct ps_list_node node;
    uint32_t slot;
    uint64_t request; /* Of the slot's agent. */
};

/* Adds a target, which gets no partition yet. */
struct ps_server_target *ps_server_target_add(struct ps_server_job *job,
                                              struct ps_server_peer *peer,
                                              uint64_t move);
/* NULL: none takes the move, or has the backup for `move` 0. */
struct ps_server_target *ps_server_target_find(const struct ps_server_job *job,
                                               uint64_t move);
void ps_server_target_free(struct ps_server_target *t);
void ps_server_targets_free(struct ps_server_job *job);

/* NULL: the partition has not changed since, or is none that the target gets. */
struct ps_server_copy *ps_server_copies_find(const struct ps_server_target *t,
                                             uint32_t key, uint32_t index);
/* Adds the copies of a partition. */
struct ps_server_copy *ps_server_copies_add(struct ps_server_target *t,
                                            uint32_t key, uint32_t index,
                                            bool defers);
void ps_server_copies_remove(struct ps_server_copy *c);
/* Waits to be sent, unless it does. */
void ps_server_copies_enqueue(struct ps_server_copy *c);
/* The copy on its way is confirmed, or lost with its link. */
void ps_server_copies_forget_sent(struct ps_server_copy *c);
/* The next copy is a whole one, and waits to be sent unless one is on its way. */
void ps_server_copies_begin_anew(struct ps_server_copy *c);
/* True if a target can take the next step of the partition by its gradient. */
bool ps_server_copies_take_step(const struct ps_server_job *job,
                                const struct ps_part *part);
/* The last stage of the step has begun: its gradient waits to be sent to the
 * targets that can take it. The image is that of before the step, with its norms. */
void ps_server_copies_offer_step(struct ps_server_job *job,
                                 const struct ps_rec_part_image *image,
                                 const struct ps_part *part,
                                 const struct ps_optim_step_params *params,
                                 const struct ps_slice *gradient);
/* The round of such a step is discarded: targets may have its version. */
void ps_server_copies_on_discard(struct ps_server_job *job,
                                 const struct ps_part *part);
/* The partition has changed, and no reply has reported it. */
void ps_server_copies_on_change(struct ps_server_job *job,
                                struct ps_part *part);
/* The partition is gone. */
void ps_server_copies_on_removal(struct ps_server_job *job, uint32_t key,
                                 uint32_t index);
/* True if a target that counts lacks the newest change of the partition. */
bool ps_server_copies_await(const struct ps_server_job *job, uint32_t key,
                            uint32_t index);
/* Moves the slots whose replies about the partition wait to `slots`. */
void ps_server_copies_take_due(struct ps_server_job *job, uint32_t key,
                               uint32_t index, struct ps_bits *slots);

/* True if replies about the partition wait until a target has it; then the reply
 * to the slot is recorded, with the value if `want`. */
bool ps_server_copies_defer_reply(const struct ps_server_slot *slot,
                                  const struct ps_part *part, bool want);
/* The same for the answer to a load of states. */
bool ps_server_copies_defer_load(const struct ps_server_slot *slot,
                                 const struct ps_part *part, uint64_t request);
/* Forgets such replies to an agent, which asks again. */
void ps_server_copies_drop_replies(const struct ps_server_slot *slot);
