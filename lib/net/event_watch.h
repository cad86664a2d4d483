/* SPDX-License-Identifier: Apache-2.0 */
/* Waits in a thread for work that other processes have given to GPUs. It asks
 * their events, again and again while there are any: a stream that waits for an
 * event of a process that has died may never go on. */
#pragma once

#include "base/err.h"
#include "base/list.h"

struct ps_event_watch;
struct ps_loop;
struct ps_share;

/* One event to be waited for, embedded in its owner. */
struct ps_event_wait {
    void *event; /* Of ps_share_event_import(). */
    /* Runs on the loop thread, once. */
    void (*over)(struct ps_event_wait *w);
    struct ps_list_node node; /* Private to the module. */
};

PS_MUST_USE int ps_event_watch_new(struct ps_loop *loop, struct ps_share *share,
                                   struct ps_event_watch **ret_watch);
/* Waits that are left count as over. NULL is allowed. */
void ps_event_watch_free(struct ps_event_watch *w);
void ps_event_watch_add(struct ps_event_watch *w, struct ps_event_wait *e);
