/* SPDX-License-Identifier: Apache-2.0 */
/* Goyal, Vin and Cheng, "Start-time Fair Queuing", 1996. The start tag of an
 * item is the larger of the virtual time and the finish tag of the flow's
 * previous item, its finish tag is later by cost / weight, and the least start
 * tag is served. No rate need be known, so it suits resources whose rate
 * varies. Here the items of a turn share one start tag. */
#include "core/part/fair.h"

#include "base/limits.h"
#include "base/list.h"
#include "base/num.h"

#include <assert.h>

/* Virtual time of a byte at weight 1. Tags have room for 2^27 of the largest
 * frames at that weight, which is weeks of competition without an idle moment;
 * each idle moment starts again at 0. */
#define TAG_SCALE PS_JOB_WEIGHT_MAX
/* Virtual time for which a flow keeps its turn, so that its small items travel
 * in one batch: PS_FAIR_TURN at the default weight. */
#define TURN      ((uint64_t)PS_FAIR_TURN * TAG_SCALE / PS_JOB_WEIGHT_DEFAULT)

void ps_fair_init(struct ps_fair *f)
{
    ps_heap_init(&f->active);
    f->now = 0;
    f->period = 1;
}

void ps_fair_fini(struct ps_fair *f)
{
    assert(f->active.count == 0);
    ps_heap_fini(&f->active);
}

uint32_t ps_fair_weight(uint32_t weight)
{
    return weight == 0 ? PS_JOB_WEIGHT_DEFAULT
                       : (uint32_t)ps_min_u64(weight, PS_JOB_WEIGHT_MAX);
}

void ps_fair_activate(struct ps_fair *f, struct ps_fair_flow *flow)
{
    if (ps_fair_is_active(flow)) {
        return;
    }
    if (flow->period != f->period) {
        flow->period = f->period;
        flow->finish = 0;
    }
    flow->finish = ps_max_u64(f->now, flow->finish);
    ps_heap_push(&f->active, &flow->item, flow->finish);
}

void ps_fair_deactivate(struct ps_fair *f, struct ps_fair_flow *flow)
{
    if (!ps_fair_is_active(flow)) {
        return;
    }
    ps_heap_remove(&f->active, &flow->item);
    if (f->active.count == 0) {
        f->now = 0;
        f->period++;
    }
}

struct ps_fair_flow *ps_fair_next(const struct ps_fair *f)
{
    struct ps_heap_item *item = ps_heap_peek(&f->active);

    return item == NULL ? NULL : PS_CONTAINER(item, struct ps_fair_flow, item);
}

void ps_fair_charge(struct ps_fair *f, struct ps_fair_flow *flow,
                    uint32_t weight, uint64_t bytes)
{
    if (f->active.count <= 1) {
        return;
    }
    f->now = flow->item.key;
    flow->finish += (bytes + PS_FAIR_ITEM_COST) * TAG_SCALE /
                    ps_fair_weight(weight);
    if (flow->finish - f->now >= TURN) {
        ps_heap_update(&f->active, &flow->item, flow->finish);
    }
}
