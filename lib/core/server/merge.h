/* SPDX-License-Identifier: Apache-2.0 */
/* From a complete round to its version: sums, steps, norms, conflicts. */
#pragma once

#include "core/server/job.h"

struct ps_compute;
struct ps_server_conflict;

/* A step of several computations: it needs norms, or its gradient goes to a
 * backup; step.c has its stages. */
struct ps_server_staged_step {
    enum {
        PS_STEP_NOT_STAGED, /* The fields below are not in use. */
        PS_STEP_SUMS,
        PS_STEP_HAS_SUM, /* In `work` or `gradient`. */
    } progress;
    bool awaits_norms; /* In job->norms.waits. */
    struct ps_optim_step_params params;
    struct ps_slice work; /* Gradient or direction, by stage. */
    /* The sum, if params.apart; nobody writes it. Then `work` is the direction
     * alone. */
    struct ps_slice gradient;
    struct ps_buf *square_sums; /* Square sums of `work` and of the weights. */
    /* Next waiting merge of the same key. */
    struct ps_server_merge *next_waiting;
};

/* Merge of a complete round, until its version is published. */
struct ps_server_merge {
    struct ps_list_node node;   /* In `starved`, or in job->waiting_merges. */
    struct ps_compute *waiting; /* Computation that waits for its turn. */
    uint64_t computing_bytes;   /* Cost of the one that runs; 0: none. */
    ps_time computing_since;
    struct ps_server_job *job;
    struct ps_part *part;
    uint64_t token;          /* 0: waits for memory, or for norms. */
    ps_time starved_since;   /* 0: does not wait for memory. */
    struct ps_slice result;  /* New value or accumulated sum; owned. */
    struct ps_slice encoded; /* Encoded result, sent instead; buf NULL: none. */
    /* States of the version that is being made, by enum ps_part_buffer; owned.
     * buf NULL: the present one stays, or is updated in place. */
    struct ps_slice next[PS_PART_BUFFERS];
    bool accumulates; /* The result is accumulated, no step. */
    struct ps_server_staged_step staged;
};

struct ps_server_merges {
    struct ps_map *by_token; /* Runs with a computation. */
    uint64_t last_token;
    struct ps_list starved;   /* Runs that wait for memory. */
    ps_time starved_retry_at; /* PS_TIME_NEVER: none waits. */
    struct ps_fair fair;      /* Turns of jobs with waiting computations. */
    uint64_t computing_bytes; /* Cost of the computations that run. */
};

/* ------------------------------------------------------------------- merges */

/* Merges the complete round of the partition, or publishes it at once where
 * nothing has to be computed. */
void ps_server_merge_start(struct ps_server_step *st, struct ps_server_job *job,
                           struct ps_part *part);
void ps_server_merge_on_computed(struct ps_server_step *st, uint64_t token,
                                 int rc);
void ps_server_on_norm_result(struct ps_server_step *st,
                              const struct ps_msg_norm_result *m);
/* Launches starved merges again. */
void ps_server_merge_tick(struct ps_server_step *st);

/* ---------------------------------------------------------------- conflicts */

/* Discards the open round and refuses it to its contributors. */
void ps_server_conflict_void(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part,
                             int rc);
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
/* Aborts the attempt because `own` conflicts with its request, and names in
 * `ret_others` the slots that made that. */
void ps_server_conflict_raise(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint64_t round,
                              const struct ps_server_conflict *own,
                              struct ps_server_conflict *ret_others);
/* A slot gives up an attempt at its rounds. */
void ps_server_on_abort_round(struct ps_server_step *st,
                              const struct ps_server_request *q);

/* --------------------------------------------------------------------- runs */

void ps_server_merge_init(struct ps_server *s);
void ps_server_merge_fini(struct ps_server *s);
/* Makes the run of the partition's complete round. */
struct ps_server_merge *ps_server_merge_new(struct ps_server_job *job,
                                            struct ps_part *part);
void ps_server_merge_free(struct ps_server *s, struct ps_server_merge *run);
/* Closes the open round: drops its contributions, its merge, and the async
 * pushes of the partition. */
void ps_server_merge_discard(struct ps_server *s, struct ps_server_job *job,
                             struct ps_part *part);
/* Returns a computation that sums the contributions, and the accumulated
 * gradient with them if `steps` or run->accumulates. The caller sets what is
 * done with the sum. */
struct ps_compute *ps_server_merge_sum(struct ps_server_merge *run, bool steps);
/* Hands the computation over under a new token of the run; while the server has
 * several jobs, when it is the job's turn. */
void ps_server_merge_submit(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c);
/* A computation has ended: starts those whose turn it is. Returns the run;
 * NULL: its round was discarded. */
struct ps_server_merge *ps_server_merge_computed(struct ps_server_step *st,
                                                 uint64_t token);
/* Takes the run out of job->norms.waits. */
void ps_server_merge_stop_waiting(struct ps_server_merge *run);

/* --------------------------------------------------- steps of the optimizer */

/* The buffers of a partition that steps use and that are saved and loaded: the
 * states, then the master weights of a 16-bit type. */
unsigned ps_server_state_count(const struct ps_server_job *job,
                               const struct ps_part *part);
enum ps_part_buffer ps_server_state_place(const struct ps_server_job *job,
                                          unsigned nth);
/* Bytes that a step needs beside the present ones. */
uint64_t ps_server_optimizer_missing(const struct ps_server_job *job,
                                     const struct ps_part *part);
/* Allocates those that are missing. PS_E_NOMEM: some may exist. */
int ps_server_optimizer_make_states(struct ps_server_job *job,
                                    struct ps_part *part);
/* Allocates what the step to the next version writes. PS_E_NOMEM: some may be
 * there. */
int ps_server_optimizer_prepare_step(struct ps_server_merge *run);
/* Allocates the next state of a place unless the present one is updated in
 * place, which nobody else may hold. */
int ps_server_merge_prepare_next(struct ps_server_merge *run,
                                 enum ps_part_buffer place);
/* Makes the computation read the present state and write the next one, which is
 * returned. *prior is set if that is another. */
struct ps_buf *ps_server_merge_add_state(const struct ps_server_merge *run,
                                         enum ps_part_buffer place,
                                         enum ps_kept kept, const void **prior,
                                         struct ps_compute *c);
/* Makes the next states those of the partition. */
void ps_server_merge_install_next(struct ps_server_merge *run);
/* Makes the computation take the optimizer's step to the next version, too; it
 * is prepared. */
void ps_server_optimizer_add_step(struct ps_server_merge *run,
                                  struct ps_compute *c);

/* -------------------------------------------------- steps of several stages */

/* True if the next step of the partition needs norms, or its gradient is sent to
 * the backup. */
bool ps_server_step_is_staged(struct ps_server_job *job,
                              const struct ps_part *part);
/* True if it needs norms. */
bool ps_server_norm_is_needed(struct ps_server_job *job,
                              const struct ps_part *part);
/* Launches the present stage of the step. PS_E_NOMEM: nothing has changed. */
int ps_server_step_launch(struct ps_server_step *st,
                          struct ps_server_merge *run);
/* Begins the step that another server has taken, with its gradient, of which it
 * takes over one reference; the run has no round. PS_E_NOMEM: not begun, and the
 * run is as it was. */
int ps_server_step_repeat(struct ps_server_step *st,
                          struct ps_server_merge *run,
                          const struct ps_optim_step_params *params,
                          const struct ps_slice *gradient);

enum ps_server_stage_end {
    PS_STAGE_END_LAST,  /* The step is complete. */
    PS_STAGE_END_NORMS, /* The run waits for norms. */
    PS_STAGE_END_MORE,  /* The next stage can be launched. */
};
/* One stage is computed. */
enum ps_server_stage_end
ps_server_step_on_computed(struct ps_server_step *st,
                           struct ps_server_merge *run);
/* Applies the norms and chooses the next stage. False: the step is skipped. */
bool ps_server_norm_apply(struct ps_server_merge *run,
                          const struct ps_msg_norm_result *m);
/* Keeps a result for a scheduler that does not know it (rule G10). False: it is
 * not newer than the one that is kept. */
bool ps_server_norm_keep(struct ps_server_job *job,
                         const struct ps_msg_norm_result *m);
/* Adds the norms of the step of that round to the image of a partition of the
 * key. */
void ps_server_norm_note(const struct ps_server_job *job, uint32_t key,
                         uint64_t round, struct ps_rec_part_image *im);
/* Keeps the norms of a partition that another process has stepped, and sends
 * them. */
void ps_server_norm_adopt(struct ps_server_step *st, struct ps_server_job *job,
                          const struct ps_part *part);
/* Sends the last norms of the job's keys to a scheduler that may lack them. */
void ps_server_norm_send_known(struct ps_server_step *st,
                               const struct ps_server_job *job);
/* Sends the waiting norm_parts of the job again, to a scheduler that may lack
 * them. */
void ps_server_norm_resend(struct ps_server_step *st,
                           const struct ps_server_job *job);
