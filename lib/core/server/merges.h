/* SPDX-License-Identifier: Apache-2.0 */
/* From a complete round to its version: sums, steps, norms, conflicts. */
#pragma once

#include "core/server/job.h"

/* A step that needs norms; norm.c has its stages. */
struct ps_server_staged_step {
    bool is_begun;     /* False: the fields below are not in use. */
    bool awaits_norms; /* In job->norm_waits. */
    bool is_summed;    /* `work` has the contributions' sum. */
    struct ps_optim_step_params params;
    struct ps_slice work;       /* Gradient or direction, by stage. */
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
    bool accumulates;        /* The result is accumulated, no step. */
    struct ps_server_staged_step staged;
};

struct ps_server_merges {
    struct ps_map *by_token; /* Runs with a computation. */
    uint64_t last_token;
    struct ps_list starved; /* Runs that wait for memory. */
    ps_time starved_retry_at;
    struct ps_fair fair;      /* Turns of jobs with waiting computations. */
    uint64_t computing_bytes; /* Cost of the computations that run. */
};
