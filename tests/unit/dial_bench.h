/* SPDX-License-Identifier: Apache-2.0 */
/* A dialling side in virtual time, for the tests of the dialer and of the
 * uplink, whose struct bench begins with a struct dial_bench. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "core/base/machine.h"

#define DIAL_BENCH_MAX 256

struct dial_bench;

/* The object under test. */
struct dial_bench_ops {
    ps_time (*deadline)(const struct dial_bench *d);
    void (*tick)(struct dial_bench *d);
    /* Checks or counts an effect; may be NULL. */
    void (*note_effect)(struct dial_bench *d, const struct ps_fx *f);
};

struct dial_bench {
    const struct dial_bench_ops *ops;
    struct ps_rng rng;
    struct ps_effects fx;
    ps_time now;
    ps_conn_id conns; /* Number of the newest connection. */
    uint64_t dial_targets[DIAL_BENCH_MAX];
    uint32_t dials;
    ps_conn_id closed_conns[DIAL_BENCH_MAX];
    uint32_t closed;
};

static inline void dial_bench_init(struct dial_bench *d,
                                   const struct dial_bench_ops *ops)
{
    memset(d, 0, sizeof(*d));
    d->ops = ops;
    d->now = PS_SECONDS(100);
    ps_rng_init(&d->rng, 1);
    ps_effects_init(&d->fx);
}

static inline void dial_bench_fini(struct dial_bench *d)
{
    ps_effects_fini(&d->fx);
}

/* Counts the effects, and removes them. */
static inline void dial_bench_carry_out(struct dial_bench *d)
{
    for (uint32_t i = 0; i < d->fx.count; i++) {
        const struct ps_fx *f = &d->fx.items[i];

        if (f->type == PS_FX_DIAL) {
            assert_true(d->dials < DIAL_BENCH_MAX);
            d->dial_targets[d->dials++] = f->dial.target;
        } else if (f->type == PS_FX_CLOSE) {
            assert_true(d->closed < DIAL_BENCH_MAX);
            d->closed_conns[d->closed++] = f->close.conn;
        }
        if (d->ops->note_effect != NULL) {
            d->ops->note_effect(d, f);
        }
    }
    ps_effects_clear(&d->fx);
}

/* Ticks as a driver does, up to `how_long` from now. */
static inline void dial_bench_run(struct dial_bench *d, ps_time how_long)
{
    ps_time end = d->now + how_long;
    ps_time due;

    while ((due = d->ops->deadline(d)) <= end) {
        d->now = due > d->now ? due : d->now;
        d->ops->tick(d);
        dial_bench_carry_out(d);
        assert_true(d->ops->deadline(d) > d->now);
    }
    d->now = end;
}

/* Waits for the next dial. */
static inline void dial_bench_await_dial(struct dial_bench *d)
{
    const uint32_t before = d->dials;

    while (d->dials == before) {
        dial_bench_run(d, PS_MILLIS(10));
    }
}

static inline uint64_t dial_bench_newest(const struct dial_bench *d)
{
    assert_true(d->dials > 0);
    return d->dial_targets[d->dials - 1];
}
