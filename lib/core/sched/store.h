/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's file (rules G1 to G9): a row for each object that must outlive
 * the process. A step's changes leave as one PS_FX_STORE before all other effects
 * of the step. store.c knows what has changed, save.c makes the rows, and load.c
 * reads them back.
 *
 * The value of a row is a message, with the message's checks of types, enums and
 * lengths. */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "base/str.h"
#include "core/base/machine.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_member;
struct ps_sched;
struct ps_sched_job;
struct ps_sched_key;
struct ps_sched_step;
struct ps_sched_worker;

/* Another layout is another file. */
#define PS_SCHED_STORE_LAYOUT 1u

/* In the order in which they are read back: a row needs only those before. */
enum ps_sched_row {
    PS_SCHED_ROW_META = 1,    /* row_meta */
    PS_SCHED_ROW_MEMBER,      /* node: row_member */
    PS_SCHED_ROW_HELLO,       /* node: the member's latest hello */
    PS_SCHED_ROW_OPEN,        /* gen: job_open, the options of the job */
    PS_SCHED_ROW_STATE,       /* gen: job_state, as servers get it */
    PS_SCHED_ROW_JOB,         /* gen: row_job */
    PS_SCHED_ROW_OPTIMIZER,   /* gen: optimizer_set, as first declared */
    PS_SCHED_ROW_COMPRESSION, /* gen: compression_set */
    PS_SCHED_ROW_RANK,        /* gen, rank: row_rank */
    PS_SCHED_ROW_KEY,         /* gen, number: row_key */
    PS_SCHED_ROW_ENDED, /* number, seconds since 1970 at the end: job_row */
};

/* A row's place: enum ps_sched_row and its keys. */
struct ps_sched_row_key {
    uint8_t kind;
    uint64_t a;
    uint64_t b;
};

/* False with the reason: the store has no room for another job or key. */
typedef bool ps_sched_has_room(void *arg, struct ps_str *why);

/* State of the store in struct ps_sched. */
struct ps_sched_store {
    uint64_t id; /* welcome.store; 0: nothing is stored. */
    uint32_t saved_epoch;
    bool has_saved_meta;
    /* Epoch of the file when this process read it; 0: it was new. */
    uint32_t loaded_epoch;
    /* Greatest epoch of members that the log has named. */
    uint32_t logged_epoch;
    ps_sched_has_room *has_room; /* NULL: it always has. */
    void *room_arg;
    struct ps_list members; /* Whose rows have to be written. */
    struct ps_list jobs;
    struct ps_store_row *rows; /* Of this step so far; owned. */
    uint32_t count;
    uint32_t capacity;
};

/* Of a job in struct ps_sched_job. */
struct ps_sched_job_store {
    struct ps_list_node unsaved; /* In the list of struct ps_sched_store. */
    struct ps_list keys;         /* Whose rows have to be written. */
    bool is_changed;             /* More than its keys. */
    /* Read from the file: `openers` of its keys may lack some. */
    bool was_loaded;
    /* Read from the file: agents get its state when its servers have it (rule
     * G6). */
    bool awaits_servers;
    /* Read from the file: newest version of job_state there, and first one of
     * this process. Versions in between are of a newer file (rule G5). */
    uint32_t loaded_version;
    uint32_t first_version;
};

/* ------------------------------------------------------------------- store */

void ps_sched_store_init(struct ps_sched *s);
void ps_sched_store_fini(struct ps_sched *s);

/* Sets how jobs and keys are admitted. */
void ps_sched_store_set_room(struct ps_sched *s, ps_sched_has_room *has_room,
                             void *arg);
bool ps_sched_store_has_room(const struct ps_sched *s, struct ps_str *why);
/* The object has changed: its rows are written at the end of the step. */
void ps_sched_store_member(struct ps_sched *s, struct ps_member *m);
void ps_sched_store_job(struct ps_sched *s, struct ps_sched_job *j);
void ps_sched_store_key(struct ps_sched *s, struct ps_sched_job *j,
                        struct ps_sched_key *k);
/* Before the object is freed. */
void ps_sched_store_remove_member(struct ps_sched *s, struct ps_member *m);
void ps_sched_store_remove_job(struct ps_sched *s, struct ps_sched_job *j);
void ps_sched_store_remove_key(struct ps_sched *s, struct ps_sched_job *j,
                               struct ps_sched_key *k);
/* The newest job of the history has been added. */
void ps_sched_store_ended(struct ps_sched_step *st);
/* Adds a row; takes over the value. */
void ps_sched_store_add(struct ps_sched *s, struct ps_sched_row_key key,
                        struct ps_packet *value);
void ps_sched_store_put(struct ps_sched *s, struct ps_sched_row_key key,
                        const struct ps_msg *msg);

/* -------------------------------------------------------------------- save */

/* Inserts the changes of this step before effect number `first`. */
void ps_sched_store_flush(struct ps_sched_step *st, uint32_t first);

/* -------------------------------------------------------------------- load */

/* Reads rows back into a new scheduler, before its first event: begin, each row in
 * the order of kinds and keys, end. Rows are checked as messages of a peer are.
 * A negative result has its reason in `why`, and the scheduler is of no use. */
struct ps_sched_load;

struct ps_sched_load *ps_sched_load_begin(struct ps_sched *s, ps_time now);
/* `msg` and `payload` are borrowed. */
PS_MUST_USE int ps_sched_load_row(struct ps_sched_load *l,
                                  const struct ps_sched_row_key *key,
                                  const struct ps_msg *msg,
                                  const struct ps_slice *payload,
                                  struct ps_str *why);
/* Frees `l`. After no row the store is new. `has_all`: no row was refused; else
 * the result is 0, and the caller has the reason. */
PS_MUST_USE int ps_sched_load_end(struct ps_sched_load *l, bool has_all,
                                  struct ps_str *why);
/* Functions of job/job.c for load.c. */

/* Sets the phase of a job that the file has. False: none that a job which has
 * started has. */
PS_MUST_USE bool ps_sched_job_restore_phase(struct ps_sched_job *j,
                                            enum ps_job_phase phase);
/* Adds a copy of *w, the next rank of a job that the file has. */
void ps_sched_job_restore_worker(struct ps_sched_job *j,
                                 const struct ps_sched_worker *w,
                                 enum ps_rank_state state, ps_time now);
/* The next number is that of a key which was removed. */
void ps_sched_job_skip_key(struct ps_sched_job *j);

/* Message of a row of this kind; 0: there is no such kind. */
unsigned ps_sched_row_code(uint8_t kind);
