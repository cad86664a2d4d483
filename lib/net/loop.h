/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop of a daemon: one thread, one clock, any number of deadlines,
 * and one hook that runs before the thread goes to sleep, in which everything
 * that came in since then is settled. */
#pragma once

#include "base/err.h"
#include "base/heap.h"
#include "base/time.h"

#include <stdbool.h>
#include <stddef.h>

struct uv_loop_s;
struct ps_decoder;
struct ps_loop;

PS_MUST_USE int ps_loop_new(struct ps_loop **ret_loop);
/* Everything opened on it must be closed, though close callbacks may still be
 * due: they run here. NULL is fine. */
void ps_loop_free(struct ps_loop *l);

/* Runs until ps_loop_stop() is called or nothing is left to wait for. */
void ps_loop_run(struct ps_loop *l);
void ps_loop_stop(struct ps_loop *l);
/* Waits once, handles what came and settles it; for tests. False: nothing is
 * open. */
bool ps_loop_step(struct ps_loop *l);

/* The monotonic clock. */
ps_time ps_loop_now(const struct ps_loop *l);

/* Called before each wait. Returns true when it left something to do, so that
 * sockets are looked at without waiting and it is called again. */
typedef bool (*ps_loop_hook)(void *ctx);
void ps_loop_set_hook(struct ps_loop *l, ps_loop_hook hook, void *ctx);

/* A deadline, embedded in what waits for it; zeroed to begin with. `due` runs
 * once for each time it is set. */
struct ps_loop_timer {
    struct ps_heap_item item;
    void (*due)(struct ps_loop_timer *t);
};

/* Set or move; PS_TIME_NEVER takes it out. */
void ps_loop_timer_set(struct ps_loop *l, struct ps_loop_timer *t, ps_time at);
/* PS_TIME_NEVER when it is not set. */
ps_time ps_loop_timer_at(const struct ps_loop_timer *t);

/* `caught` runs on the loop for each signal of this number. A second call for
 * one number replaces the first. */
typedef void (*ps_loop_signal_cb)(void *ctx, int signum);
PS_MUST_USE int ps_loop_signal(struct ps_loop *l, int signum,
                               ps_loop_signal_cb caught, void *ctx);

/* For the other modules of this folder. */
struct ps_rcvbuf_tuner;
struct ps_rcvbuf_tuner *ps_loop_rcvbuf_tuner(struct ps_loop *l);
struct ps_send_scheduler;
struct ps_send_scheduler *ps_loop_send_scheduler(struct ps_loop *l);
struct uv_loop_s *ps_loop_uv(struct ps_loop *l);
struct ps_decoder *ps_loop_decoder(struct ps_loop *l);
/* Where bytes go that nobody wants. */
#define PS_LOOP_SCRATCH (64u * 1024u)
void *ps_loop_scratch(struct ps_loop *l);
