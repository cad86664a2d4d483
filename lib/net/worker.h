/* SPDX-License-Identifier: Apache-2.0 */
/* Compute threads. A job is submitted on the loop thread and completes there;
 * in between, the threads share it in pieces. Small jobs do not justify a
 * wake-up and run on the loop thread. */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "kernel/device.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_loop;
struct ps_worker;

/* One job in flight, embedded in its owner. Everything that the job references
 * must stay valid until `done`. */
struct ps_worker_task {
    const struct ps_job *job;
    void (*done)(struct ps_worker_task *t, int rc);
    /* Runs elements [from, to) of the job, on a thread, in pieces of `run_step`
     * elements; NULL: the kernel or the device does. */
    int (*run)(struct ps_worker_task *t, uint64_t from, uint64_t to);
    uint64_t run_step;
    /* Private to the module. */
    struct ps_list_node node;
    uint64_t next;   /* First element that no thread has taken. */
    uint64_t step;   /* Elements of a piece. */
    uint32_t pieces; /* Pieces taken and not finished. */
    int rc;
    struct ps_device_use use;
};

struct ps_worker_options {
    struct ps_loop *loop;
    unsigned threads; /* Number of threads; 0: one for each processor. */
    /* Limit, in bytes read and written, for a job to run on the loop thread; 0:
     * 128 KiB. Eight times that for a job of one piece without others. */
    uint64_t inline_max;
    /* Computes what the threads would; outlives the worker. NULL: none. */
    struct ps_device *device;
};

PS_MUST_USE int ps_worker_new(const struct ps_worker_options *opt,
                              struct ps_worker **ret_worker);
/* Stops the threads after their current pieces; remaining tasks end inside,
 * with PS_E_CANCELED unless they were complete. NULL is allowed. */
void ps_worker_free(struct ps_worker *w);

/* `done` runs on the loop thread later, not inside. A job that the kernel
 * refuses ends with its code. */
void ps_worker_submit(struct ps_worker *w, struct ps_worker_task *t);
/* Runs the small jobs submitted before this call, and their `done`. True if
 * there was any. */
bool ps_worker_run_small(struct ps_worker *w);

unsigned ps_worker_threads(const struct ps_worker *w);
