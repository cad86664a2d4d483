/* SPDX-License-Identifier: Apache-2.0 */
/* A scheduler that was started again: its numbers are none of those that the
 * one before has given. */
#include "core/member.h"

#include "sched_world.h"

/* A scheduler that is started after any whose base is smaller. */
static struct world *world_from(uint64_t base)
{
    struct world *w = ps_calloc(1, sizeof(*w));
    const struct ps_sched_options opt = {
        .name = "sched",
        .cluster = "c",
        .instance = 1 + base,
        .generation_base = base,
        .seed = 1,
        .heartbeat = BEAT,
        .suspect_after = PS_MILLIS(500),
        .dead_after = PS_SECONDS(2),
        .start_timeout = PS_SECONDS(60),
        .rejoin_grace = PS_SECONDS(30),
        .link_linger = PS_SECONDS(1),
    };

    w->now = PS_SECONDS(10);
    w->sched = ps_sched_new(&opt, w->now);
    w->m = ps_sched_machine(w->sched);
    return w;
}

static void numbers_of_another_start_are_others(void **state)
{
    enum { STARTS = 50, MEMBERS = 4 };
    const uint64_t wall = UINT64_C(1795334851837003899);
    uint32_t node[STARTS * MEMBERS];
    uint64_t incarnation = 0;

    (void)state;
    for (uint32_t i = 0; i < STARTS; i++) {
        /* The shortest pause between two starts that there is. */
        struct world *w = world_from(wall + i * PS_MILLIS(1));

        for (uint32_t k = 0; k < MEMBERS; k++) {
            char name[8];
            uint32_t *mine = &node[i * MEMBERS + k];
            const struct ps_msg_welcome *m;

            snprintf(name, sizeof(name), "n%u", k);
            m = &last(join(w, PS_ROLE_AGENT, name), PS_MSG_WELCOME)->welcome;
            *mine = m->node;
            for (const uint32_t *other = node; other < mine; other++) {
                assert_int_not_equal(*other, *mine);
            }
            assert_true(k > 0 || m->incarnation > incarnation);
            assert_true(k == 0 || m->incarnation == incarnation);
            incarnation = m->incarnation;
        }
        world_free(w);
    }
}

static void without_a_base_numbers_begin_at_one(void **state)
{
    struct world *w = world_new();
    const struct ps_msg_welcome *m;

    (void)state;
    m = &last(join(w, PS_ROLE_AGENT, "a"), PS_MSG_WELCOME)->welcome;
    assert_int_equal(m->node, 1);
    assert_int_equal(m->incarnation, 1);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_another_start_are_others),
        cmocka_unit_test(without_a_base_numbers_begin_at_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
