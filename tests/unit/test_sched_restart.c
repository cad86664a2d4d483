/* SPDX-License-Identifier: Apache-2.0 */
/* A restarted scheduler: its answers about jobs of its predecessor, and numbers
 * that differ from the predecessor's. */
#include "core/sched/member/member.h"

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
    w->machine = ps_sched_machine(w->sched);
    return w;
}

static void numbers_differ_between_starts_of_the_scheduler(void **state)
{
    enum { STARTS = 50, MEMBERS = 4 };
    const uint64_t wall = UINT64_C(1795334851837003899);
    uint32_t node[STARTS * MEMBERS];
    uint64_t incarnation = 0;

    (void)state;
    for (uint32_t i = 0; i < STARTS; i++) {
        /* The shortest possible pause between two starts. */
        struct world *w = world_from(wall + i * PS_MILLIS(1));

        for (uint32_t k = 0; k < MEMBERS; k++) {
            char name[8];
            uint32_t *mine = &node[i * MEMBERS + k];
            const struct ps_msg_welcome *m;

            snprintf(name, sizeof(name), "n%u", k);
            m = &last_msg(join_peer(w, PS_ROLE_AGENT, name), PS_MSG_WELCOME)
                     ->welcome;
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
    m = &last_msg(join_peer(w, PS_ROLE_AGENT, "a"), PS_MSG_WELCOME)->welcome;
    assert_int_equal(m->node, 1);
    assert_int_equal(m->incarnation, 1);
    world_free(w);
}

static struct ps_msg offer_again(uint64_t worker, uint64_t gen)
{
    struct ps_msg msg = make_job_open(worker, 2, 0, (int32_t)worker);

    msg.job_open.gen = gen;
    return msg;
}

/* A worker that is offered again gets the name of the unknown job and the
 * cause. */
static void job_of_a_former_scheduler_is_refused_with_a_cause(void **state)
{
    struct world *w = world_from(1000);
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");

    (void)state;
    deliver_msg(w, a, offer_again(1, 1000));
    assert_int_equal(last_job_opened(a)->error, PS_E_JOBFAILED);
    assert_int_equal(last_job_opened(a)->gen, 1000);
    assert_string_equal(last_job_opened(a)->text,
                        "the scheduler was restarted and does not know job "
                        "'train'; start the job again");
    /* Generations of the present scheduler are not those of a restart. */
    deliver_msg(w, a, offer_again(1, 1001));
    assert_int_equal(last_job_opened(a)->error, PS_E_NOJOB);
    assert_string_equal(last_job_opened(a)->text,
                        "job 'train' ended long ago; start the job again");
    end_world(w);
}

/* Other messages of an agent or a server about such a job are answered with its
 * end and the cause. */
static void messages_of_an_unknown_job_get_its_end_and_cause(void **state)
{
    const char *const cause = "the scheduler was restarted and does not know "
                              "this job; start the job again";
    struct world *w = world_from(1000);
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a");
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s");
    uint32_t rank = 0;

    (void)state;
    deliver_barrier_enter(w, a, 7, 1, &rank, 1);
    assert_int_equal(last_job_state(a)->phase, PS_JOB_PHASE_ENDED);
    assert_string_equal(last_job_state(a)->reason, cause);
    drop_inbox(a);
    deliver_worker_gone(w, a, 7, 3, false);
    assert_string_equal(last_job_state(a)->reason, cause);
    deliver_msg(w, s,
                (struct ps_msg){.code = PS_MSG_JOB_READY,
                                .job_ready = {.gen = 7, .version = 3}});
    assert_int_equal(last_job_state(s)->phase, PS_JOB_PHASE_ENDED);
    assert_int_equal(last_job_state(s)->version, 4);
    assert_string_equal(last_job_state(s)->reason, cause);
    open_key(w, a, 7, 1, "w", 10);
    assert_string_equal(last_msg(a, PS_MSG_KEY_OPENED)->key_opened.text, cause);
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_differ_between_starts_of_the_scheduler),
        cmocka_unit_test(without_a_base_numbers_begin_at_one),
        cmocka_unit_test(job_of_a_former_scheduler_is_refused_with_a_cause),
        cmocka_unit_test(messages_of_an_unknown_job_get_its_end_and_cause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
