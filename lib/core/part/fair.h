/* SPDX-License-Identifier: Apache-2.0 */
/* Start-time fair queueing: which of several flows, one for each job, is served
 * next at a resource that they share. While flows compete, each gets service in
 * proportion to its weight, whatever the sizes of its items. A flow that was
 * idle is served next, but gains no claim to service from its idle time; no
 * flow with a weight above 0 starves.
 *
 * Knows neither items nor their order within a flow. */
#pragma once

#include "base/heap.h"

/* Cost of an item beside its bytes: the work of a daemon that does not depend
 * on the length. Without it many small items would cost their peers more than
 * a few large ones of as many bytes. */
#define PS_FAIR_ITEM_COST 2048u
/* Cost of the items that a flow of the default weight has served in one turn,
 * at least. */
#define PS_FAIR_TURN      (64u * 1024u)

struct ps_fair {
    struct ps_heap active; /* Flows with something to serve, by start tag. */
    /* Virtual time: start tag of the turn served last. */
    uint64_t now;
    /* Number of the busy period: grows when all flows are idle. Finish tags of
     * an earlier period are void. */
    uint64_t period;
};

/* Zeroed at first. */
struct ps_fair_flow {
    struct ps_heap_item item; /* In `active`; its key is the start tag. */
    /* Finish tag of the last item served, or the start tag of the turn. */
    uint64_t finish;
    uint64_t period; /* Period of `finish`. */
};

void ps_fair_init(struct ps_fair *f);
/* No flow may be active. */
void ps_fair_fini(struct ps_fair *f);

/* Weight of a job that gives `weight` (0: none) from 1 to PS_JOB_WEIGHT_MAX. */
uint32_t ps_fair_weight(uint32_t weight);

/* The flow has something to serve; no effect if it is active. */
void ps_fair_activate(struct ps_fair *f, struct ps_fair_flow *flow);
/* The flow has nothing to serve now; no effect if it is not active. */
void ps_fair_deactivate(struct ps_fair *f, struct ps_fair_flow *flow);
static inline bool ps_fair_is_active(const struct ps_fair_flow *flow)
{
    return ps_heap_linked(&flow->item);
}

/* Returns the active flow to be served next; NULL: none is active. */
struct ps_fair_flow *ps_fair_next(const struct ps_fair *f);
/* Counts an item of `bytes` served for an active flow with the weight of its
 * job. A flow alone is not charged, because it took nothing from another. */
void ps_fair_charge(struct ps_fair *f, struct ps_fair_flow *flow,
                    uint32_t weight, uint64_t bytes);
