/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the place of core/part/fair.c in a program whose only job must not
 * use it: no flow may become active, be served or be charged. */
#pragma once

#include "core/part/fair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void ps_fair_init(struct ps_fair *f)
{
    *f = (struct ps_fair){0};
}

void ps_fair_fini(struct ps_fair *f)
{
    assert_int_equal(f->active.count, 0);
}

void ps_fair_deactivate(struct ps_fair *f, struct ps_fair_flow *flow)
{
    assert_int_equal(f->active.count, 0);
    assert_false(ps_fair_is_active(flow));
}

uint32_t ps_fair_weight(uint32_t weight)
{
    fail_msg("the weight of a job alone does not matter");
    return weight;
}

void ps_fair_activate(struct ps_fair *f, struct ps_fair_flow *flow)
{
    (void)f;
    (void)flow;
    fail_msg("a job alone waits for its turn");
}

struct ps_fair_flow *ps_fair_next(const struct ps_fair *f)
{
    (void)f;
    fail_msg("a job alone has turns");
    return NULL;
}

void ps_fair_charge(struct ps_fair *f, struct ps_fair_flow *flow,
                    uint32_t weight, uint64_t bytes)
{
    (void)f;
    (void)flow;
    (void)weight;
    (void)bytes;
    fail_msg("a job alone is charged for its turn");
}
