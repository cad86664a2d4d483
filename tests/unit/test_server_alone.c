/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine with one job: neither its computations nor its values
 * enter fair queueing. */
#include "server_world.h"
#include "fair_unused.h"

#define COUNT (32u * 1024u) /* 128 KiB. */

static float data[COUNT];

static void rounds_of_a_job_alone_take_no_turn(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 2});

    (void)state;
    for (uint64_t round = 1; round <= 3; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            agent_push(&w->agents[i], &(struct push_options){.key = 1,
                                                             .round = round,
                                                             .count = COUNT,
                                                             .data = data});
        }
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(w->agents[i].seen[1].values, round);
        }
    }
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_of_a_job_alone_take_no_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
