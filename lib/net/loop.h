/* SPDX-License-Identifier: Apache-2.0 */
/* Event loop of a daemon: one thread, one monotonic clock, any number of
 * deadlines, and one hook that runs before each wait and handles all that
 * arrived since the last one. */
#pragma once

#include "base/err.h"
#include "base/heap.h"
#include "base/time.h"

#include <stdbool.h>
#include <stddef.h>

struct ps_decoder;
struct ps_loop;
struct ps_rcvbuf_tuner;
struct ps_send_scheduler;
struct uv_loop_s;

PS_MUST_USE int ps_loop_new(struct ps_loop **ret_loop);
/* Requires that all handles opened on the loop are closed; close callbacks
 * still due run here. NULL is allowed. */
void ps_loop_free(struct ps_loop *l);

/* Runs until ps_loop_stop() or until nothing keeps the loop alive. */
void ps_loop_run(struct ps_loop *l);
void ps_loop_stop(struct ps_loop *l);
/* Waits once, handles the events and runs the hook; for tests. False: no handle
 * is open. */
bool ps_loop_step(struct ps_loop *l);

/* Monotonic clock. */
ps_time ps_loop_now(const struct ps_loop *l);

/* Called before each wait. True if it left work to do: sockets are then polled
 * without waiting, and it is called again. */
typedef bool (*ps_loop_hook)(void *ctx);
void ps_loop_set_hook(struct ps_loop *l, ps_loop_hook hook, void *ctx);

/* A deadline, embedded in its owner; zeroed at first. `due` runs once for each
 * time it is set. */
struct ps_loop_timer {
    struct ps_heap_item item;
    void (*due)(struct ps_loop_timer *t);
};

/* Sets or moves the deadline; PS_TIME_NEVER cancels it. */
void ps_loop_timer_set(struct ps_loop *l, struct ps_loop_timer *t, ps_time at);

/* `caught` runs on the loop for each signal `signum`. A second call for one
 * signal replaces the callback. */
typedef void (*ps_loop_signal_cb)(void *ctx, int signum);
PS_MUST_USE int ps_loop_signal(struct ps_loop *l, int signum,
                               ps_loop_signal_cb caught, void *ctx);

/* For the other modules of this folder. */
struct uv_loop_s *ps_loop_uv(struct ps_loop *l);

/* State that the connections of a loop share. */
struct ps_loop_shared {
    struct ps_rcvbuf_tuner *rcvbuf_tuner;
    struct ps_send_scheduler *send_scheduler;
    struct ps_decoder *decoder;
    /* Scratch memory of PS_LOOP_SCRATCH bytes, valid until the next callback:
     * discarded input, headers to encode. */
    void *scratch;
};

#define PS_LOOP_SCRATCH (64u * 1024u)

/* Valid as long as the loop. */
const struct ps_loop_shared *ps_loop_shared(const struct ps_loop *l);

/* ---------------------------------------------- codes and wake-ups of libuv */

/* Nearest PS_E_* for a negative libuv code; 0 stays 0. */
int ps_err_from_uv(int status);

struct uv_async_s;
/* Wakes the loop of `async`, from any thread. A lost wake-up would leave ended
 * work unnoticed, so a failure is tried again. */
void ps_uv_wake(struct uv_async_s *async);
