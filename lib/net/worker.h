/* SPDX-License-Identifier: Apache-2.0 */
/* Compute threads. A job goes in on the loop thread and comes back there; in
 * between threads share it in pieces. Small jobs are not worth a wake-up and
 * run on the loop itself. */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "kernel/kernel.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_loop;
struct ps_worker;

/* One job under way; embedded in what waits for it. Everything the job names
 * must stay until `done`. */
struct ps_worker_task {
    const struct ps_job *job;
    void (*done)(struct ps_worker_task *t, int rc);
    /* The module's own. */
    struct ps_list_node node;
    uint64_t next;   /* First element that nobody has taken. */
    uint64_t step;   /* Elements of a piece. */
    uint32_t pieces; /* Taken and not finished. */
    int rc;
};

struct ps_worker_options {
    struct ps_loop *loop;
    unsigned threads;    /* 0: one for each processor. */
    uint64_t inline_max; /* Bytes read and written of a job that runs on the
                          * loop; 0: 128 KiB. One without others may have
                          * eight times as many. */
};

PS_MUST_USE int ps_worker_new(const struct ps_worker_options *opt,
                              struct ps_worker **ret_worker);
/* Ends the threads when their pieces are done; every task that is left ends
 * inside, with PS_E_CANCELED unless it was complete. NULL is fine. */
void ps_worker_free(struct ps_worker *w);

/* `done` runs on the loop thread later, not inside. Jobs that the kernel
 * refuses end with its code. */
void ps_worker_submit(struct ps_worker *w, struct ps_worker_task *t);
/* Runs small jobs submitted before this call, and their `done`. True when
 * there were any. */
bool ps_worker_run_small(struct ps_worker *w);

unsigned ps_worker_threads(const struct ps_worker *w);
