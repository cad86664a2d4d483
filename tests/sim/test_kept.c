/* SPDX-License-Identifier: Apache-2.0 */
/* Stories of servers whose state memory outlives their process: the job goes on
 * with the bits of a run in which nobody dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/time.h"
#include "support/world.h"

#include <stdio.h>
#include <string.h>

#define WORKERS 4u

static struct world_options base(void)
{
    struct world_options o = {
        .seed = 11,
        .data_seed = 3,
        .servers = 2,
        .agents = 2,
        .workers = WORKERS,
        .rounds = 6,
        .key_count = 2,
        .key = {{"weight", 5000, PS_DTYPE_FLOAT32},
                {"bias", 70, PS_DTYPE_FLOAT32}},
        .partition_bytes = 4096,
        .keep = true,
        .story = true,
    };

    return o;
}

/* A kind of job. */
static struct world_options job_of(unsigned kind)
{
    struct world_options o = base();

    switch (kind) {
    case 0: /* SGD with momentum. */
        o.optimizer = o.init = true;
        break;
    case 1: /* LAMB. */
        o.optimizer = o.init = o.norms = true;
        break;
    case 2: /* Several rounds a step. */
        o.optimizer = o.init = true;
        o.accumulate = 3;
        break;
    case 3: /* LARS, with a limit of the norm of all gradients. */
        o.optimizer = o.init = o.norms = o.lars = true;
        o.clip_norm = 1e3;
        break;
    case 4: /* Sums. */
        o.mean = true;
        break;
    case 5: /* Encoded gradients and values. */
        o.compress.name = "2bit";
        break;
    default: /* Master weights of 16-bit values. */
        o.optimizer = o.init = true;
        o.key[0].dtype = PS_DTYPE_BFLOAT16;
        o.key[1].dtype = PS_DTYPE_FLOAT16;
        break;
    }
    return o;
}
#define KINDS 7u

static void all_well(struct world *w)
{
    char text[512];

    if (!world_run_workers(w, PS_SECONDS(60))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (world_worker_error(w, i, text, sizeof(text)) != 0) {
            fail_msg("rank %u: %s\n%s", i, text, world_story(w));
        }
    }
    if (!world_drain(w, PS_SECONDS(30))) {
        fail_msg("%s\n%s", world_error(w), world_story(w));
    }
}

/* Result of the job without a death; *ret_stores gets the stores of records. */
static uint64_t run_alone(unsigned kind, uint64_t *ret_stores)
{
    struct world_options o = job_of(kind);
    struct world *w = world_new(&o);
    uint64_t result;

    all_well(w);
    result = world_result(w, 0);
    *ret_stores = world_state_stores(w);
    world_free(w);
    return result;
}

static void job_goes_on_after_the_death_of_a_server(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        uint64_t stores;
        const uint64_t result = run_alone(kind, &stores);

        for (uint64_t round = 1; round <= 5; round++) {
            struct world_options o = job_of(kind);
            struct world *w = world_new(&o);

            world_hold_worker(w, WORKERS - 1, round);
            world_run(w, PS_SECONDS(1));
            world_kill_server(w, (uint32_t)round % 2);
            world_run(w, PS_MILLIS(1300));
            world_restart_server(w, (uint32_t)round % 2);
            world_release_worker(w, WORKERS - 1);
            all_well(w);
            assert_int_equal(world_result(w, 0), result);
            if (strstr(world_story(w), "from state memory") == NULL) {
                fail_msg("kind %u: nothing was kept\n%s", kind, world_story(w));
            }
            world_free(w);
        }
    }
}

/* Records are half written at most deaths. */
static void job_goes_on_after_a_death_at_any_store(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        uint64_t stores;
        const uint64_t result = run_alone(kind, &stores);
        const uint64_t step = 1 + stores / 2 / 60;

        for (uint64_t nth = 1 + kind; nth < stores / 2; nth += step) {
            struct world_options o = job_of(kind);
            struct world *w = world_new(&o);

            world_kill_server_at_store(w, (uint32_t)(nth % 2), nth,
                                       PS_MILLIS(1 + nth % 200));
            all_well(w);
            assert_int_equal(world_result(w, 0), result);
            world_free(w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_goes_on_after_the_death_of_a_server),
        cmocka_unit_test(job_goes_on_after_a_death_at_any_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
