/* SPDX-License-Identifier: Apache-2.0 */
/* A server as the backup of another one's place: agents[1] is that server, and
 * agents[0] the agent of the job. And as the owner of places that have backups. */
#include "server_world.h"

static const float one[4] = {1, 2, 3, 4};
/* After a step from these weights with this momentum and gradient. */
static const float stepped[4] = {.5f, 1, 1.5f, 2};
static const struct ps_rec_param sgd[] = {{"learning_rate", 1},
                                          {"momentum", .5}};

static void send_places(struct world *w, uint32_t version,
                        const struct ps_rec_place *places, uint32_t count)
{
    sched_send_job_state(w, &(struct job_options){.version = version,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .place = places,
                                                  .place_count = count,
                                                  .replicas = 2});
}

static void send_places_with_sgd(struct world *w, uint32_t version,
                                 const struct ps_rec_place *places,
                                 uint32_t count)
{
    sched_send_job_state(w, &(struct job_options){.version = version,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .params = sgd,
                                                  .params_count = 2,
                                                  .place = places,
                                                  .place_count = count,
                                                  .replicas = 2});
}

static struct world *begin_backup(void)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    const struct ps_rec_place place = owners_place(w, 5);

    w->agents[1].is_owner = true;
    send_places(w, 2, &place, 1);
    agent_dial(&w->agents[1]);
    assert_int_equal(w->agents[1].rejected, 0);
    return w;
}

/* The job has an optimizer, declared by its version 3. */
static struct world *begin_backup_with_sgd(void)
{
    struct world *w = begin_backup();
    const struct ps_rec_place place = owners_place(w, 5);

    send_places_with_sgd(w, 3, &place, 1);
    return w;
}

static void send_copy(struct world *w, uint32_t epoch, uint64_t number,
                      uint64_t version, uint8_t buffer)
{
    owner_send_copy(&w->agents[1], &(struct copy_options){.epoch = epoch,
                                                          .number = number,
                                                          .version = version,
                                                          .buffer = buffer,
                                                          .values = one});
}

/* Sends the step from `version` of key 1, as copy `base`. */
static void send_step(struct world *w, uint64_t number, uint64_t base,
                      uint64_t version, uint32_t job_version)
{
    const struct ps_rec_part_image image = {.version = version,
                                            .has_dtype = true,
                                            .dtype = PS_DTYPE_FLOAT32,
                                            .count = 4};
    const struct ps_rec_copy_step step = {.job_version = job_version,
                                          .number = version + 1,
                                          .lr_mult = 1,
                                          .wd_mult = 1,
                                          .trust_ratio = 1,
                                          .grad_scale = 1};

    agent_send(&w->agents[1],
               &(struct ps_msg){.code = PS_MSG_COPY,
                                .copy = {.gen = GEN,
                                         .epoch = 5,
                                         .key = 1,
                                         .number = number,
                                         .image = &image,
                                         .image_count = 1,
                                         .base = base,
                                         .step = &step,
                                         .step_count = 1,
                                         .newest_version = version + 1}},
               one, sizeof(one));
    world_run(w, PS_MILLIS(1));
}

static void send_version(struct world *w, uint32_t epoch, uint64_t number,
                         uint64_t version)
{
    send_copy(w, epoch, number, version, PS_PART_BUFFER_VALUE);
    send_copy(w, epoch, number, version, PS_PART_BUFFER_STATE_0);
}

static void a_version_is_confirmed_with_its_last_buffer(void **state)
{
    struct world *w = begin_backup();
    const struct agent *owner = &w->agents[1];

    (void)state;
    send_copy(w, 5, 1, 3, PS_PART_BUFFER_STATE_0);
    assert_int_equal(owner->copied_number, 0);
    send_copy(w, 5, 1, 3, PS_PART_BUFFER_VALUE);
    assert_int_equal(owner->copied_number, 1);
    sched_end(w);
    world_free(w);
}

static void a_repeated_copy_is_confirmed_again(void **state)
{
    struct world *w = begin_backup();
    struct agent *owner = &w->agents[1];

    (void)state;
    send_version(w, 5, 4, 3);
    owner->copied_number = 0;
    send_copy(w, 5, 4, 3, PS_PART_BUFFER_VALUE);
    assert_int_equal(owner->copied_number, 4);
    sched_end(w);
    world_free(w);
}

static void copies_of_another_epoch_do_not_count(void **state)
{
    struct world *w = begin_backup();

    (void)state;
    send_version(w, 4, 1, 3);
    send_version(w, 6, 2, 3);
    assert_int_equal(w->agents[1].copied_number, 0);
    sched_end(w);
    world_free(w);
}

static void a_new_epoch_begins_with_nothing(void **state)
{
    struct world *w = begin_backup();
    struct ps_rec_place place;

    (void)state;
    send_version(w, 5, 9, 3);
    place = owners_place(w, 6);
    send_places(w, 3, &place, 1);
    /* A lower number than that of before: it is not taken for a repetition. */
    w->agents[1].copied_number = 0;
    send_copy(w, 6, 2, 4, PS_PART_BUFFER_VALUE);
    assert_int_equal(w->agents[1].copied_number, 0);
    send_copy(w, 6, 2, 4, PS_PART_BUFFER_STATE_0);
    assert_int_equal(w->agents[1].copied_number, 2);
    sched_end(w);
    world_free(w);
}

static void buffers_are_shared_with_the_copy_that_is_named(void **state)
{
    const uint8_t shared = 1u << PS_PART_BUFFER_STATE_0;
    struct world *w = begin_backup();
    const struct agent *owner = &w->agents[1];

    (void)state;
    send_version(w, 5, 1, 3);
    send_version(w, 5, 2, 4);
    owner_send_copy(&w->agents[1],
                    &(struct copy_options){.epoch = 5,
                                           .number = 3,
                                           .version = 5,
                                           .buffer = PS_PART_BUFFER_VALUE,
                                           .base = 1,
                                           .shared = shared,
                                           .values = one});
    assert_int_equal(owner->copied_number, 2);
    assert_int_equal(owner->refused_copy, 3);
    send_version(w, 5, 3, 5); /* The whole one instead. */
    assert_int_equal(owner->copied_number, 3);
    owner_send_copy(&w->agents[1],
                    &(struct copy_options){.epoch = 5,
                                           .number = 4,
                                           .version = 6,
                                           .buffer = PS_PART_BUFFER_VALUE,
                                           .base = 3,
                                           .shared = shared,
                                           .values = one});
    assert_int_equal(owner->copied_number, 4);
    sched_end(w);
    world_free(w);
}

static void a_step_makes_the_next_version(void **state)
{
    struct world *w = begin_backup_with_sgd();
    struct agent *a = &w->agents[0];

    (void)state;
    send_version(w, 5, 1, 3);
    send_step(w, 2, 1, 3, 3);
    assert_int_equal(w->agents[1].copied_number, 2);
    send_places_with_sgd(w, 4, NULL, 0);
    agent_pull(a, 1, 4);
    world_run(w, PS_MILLIS(1));
    assert_int_equal(a->seen[1].value_version, 4);
    assert_memory_equal(a->seen[1].bytes, stepped, sizeof(stepped));
    sched_end(w);
    world_free(w);
}

static void a_step_is_for_the_version_before(void **state)
{
    struct world *w = begin_backup_with_sgd();
    const struct agent *owner = &w->agents[1];

    (void)state;
    send_version(w, 5, 1, 3);
    send_version(w, 5, 2, 3); /* As after a load of states. */
    send_step(w, 3, 1, 3, 3);
    assert_int_equal(owner->refused_copy, 3);
    send_step(w, 4, 2, 4, 3);
    assert_int_equal(owner->refused_copy, 4);
    send_step(w, 5, 2, 3, 3);
    assert_int_equal(owner->copied_number, 5);
    sched_end(w);
    world_free(w);
}

static void a_step_is_of_the_same_declaration(void **state)
{
    struct world *w = begin_backup_with_sgd();
    const struct agent *owner = &w->agents[1];

    (void)state;
    send_version(w, 5, 1, 3);
    send_step(w, 2, 1, 3, 2);
    assert_int_equal(owner->refused_copy, 2);
    assert_int_equal(owner->copied_number, 1);
    sched_end(w);
    world_free(w);
}

/* The owner is lost while the step is computed here. */
static void a_step_that_is_dropped_leaves_the_version_before(void **state)
{
    struct world *w = begin_backup_with_sgd();
    struct agent *a = &w->agents[0];

    (void)state;
    send_version(w, 5, 1, 3);
    w->hold_compute = true;
    send_step(w, 2, 1, 3, 3);
    send_places_with_sgd(w, 4, NULL, 0);
    w->hold_compute = false;
    world_run(w, PS_MILLIS(1));
    agent_pull(a, 1, 3);
    world_run(w, PS_MILLIS(1));
    assert_int_equal(a->seen[1].value_version, 3);
    agent_push(a, &(struct push_options){
                      .key = 1, .round = 4, .count = 4, .data = one});
    assert_int_equal(a->seen[1].value_version, 4);
    assert_memory_equal(a->seen[1].bytes, stepped, sizeof(stepped));
    sched_end(w);
    world_free(w);
}

static void agents_wait_until_it_is_the_owner(void **state)
{
    struct world *w = begin_backup();
    struct agent *a = &w->agents[0];

    (void)state;
    send_version(w, 5, 1, 3);
    agent_pull(a, 1, 3);
    assert_int_equal(a->seen[1].error, PS_E_MIGRATING);
    assert_int_equal(a->seen[1].values, 0);
    send_places(w, 3, NULL, 0);
    agent_pull(a, 1, 3);
    world_run(w, PS_MILLIS(1));
    assert_int_equal(a->seen[1].value_version, 3);
    assert_int_equal(a->seen[1].len, sizeof(one));
    assert_memory_equal(a->seen[1].bytes, one, sizeof(one));
    sched_end(w);
    world_free(w);
}

static void a_dismissed_backup_has_nothing(void **state)
{
    struct world *w = begin_backup();
    struct agent *a = &w->agents[0];
    struct ps_rec_place place = owners_place(w, 6);

    (void)state;
    send_version(w, 5, 1, 3);
    place.backup = 0;
    send_places(w, 3, &place, 1);
    send_places(w, 4, NULL, 0);
    agent_pull(a, 1, 3);
    world_run(w, PS_MILLIS(1));
    assert_int_equal(a->seen[1].values, 0);
    sched_end(w);
    world_free(w);
}

/* It moves from one place to the other: what this server has for one of them is not
 * touched by what happens to the other one. */
static void two_places_have_the_same_partition(void **state)
{
    struct world *w = begin_backup();
    struct agent *a = &w->agents[0];
    struct agent *target = &w->agents[2];
    struct ps_rec_place places[] = {owners_place(w, 5), owners_place(w, 6)};
    struct copy_options o = {.epoch = 6,
                             .number = 1,
                             .version = 3,
                             .buffer = PS_PART_BUFFER_VALUE,
                             .values = one};

    (void)state;
    target->is_owner = true;
    places[1].node = NODE(2);
    places[1].incarnation = target->incarnation;
    places[1].instance = target->instance;
    places[1].number = OWNER + 1;
    send_places(w, 3, places, 2);
    agent_dial(target);
    send_version(w, 5, 9, 3);
    owner_send_copy(target, &o);
    o.buffer = PS_PART_BUFFER_STATE_0;
    owner_send_copy(target, &o);
    assert_int_equal(w->agents[1].copied_number, 9);
    assert_int_equal(target->copied_number, 1);
    send_places(w, 4, places, 1); /* The target is lost. */
    send_version(w, 5, 10, 4);
    assert_int_equal(w->agents[1].copied_number, 10);
    send_places(w, 5, NULL, 0);
    agent_pull(a, 1, 4);
    world_run(w, PS_MILLIS(1));
    assert_int_equal(a->seen[1].value_version, 4);
    sched_end(w);
    world_free(w);
}

/* An agent has sent an init to the process of which this is the backup, before it
 * heard that the partition is here. */
static void a_copy_of_a_stray_is_not_taken_for_the_partition(void **state)
{
    const float init[4] = {5, 6, 7, 8};
    const float grad[4] = {1, 1, 1, 1};
    struct world *w = begin_backup();
    struct agent *a = &w->agents[0];

    (void)state;
    agent_init(a, 1, 4, init);
    send_version(w, 5, 1, 0);
    assert_int_equal(w->agents[1].copied_number, 1);
    agent_push(a, &(struct push_options){
                      .key = 1, .round = 1, .count = 4, .data = grad});
    assert_int_equal(a->seen[1].error, 0);
    assert_int_equal(a->seen[1].value_version, 1);
    send_places(w, 3, NULL, 0);
    agent_pull(a, 1, 1);
    world_run(w, PS_MILLIS(1));
    assert_int_equal(a->seen[1].value_version, 1);
    assert_memory_equal(a->seen[1].bytes, grad, sizeof(grad));
    sched_end(w);
    world_free(w);
}

/* Rule E9: its partitions were taken over, and agents may not know it. */
static void a_new_process_calls_nothing_lost_at_first(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 1, .no_job = true});
    struct agent *a = &w->agents[0];

    (void)state;
    send_places(w, 2, NULL, 0);
    agent_restore_committed(a, 1, 3);
    assert_int_equal(a->seen[1].error, PS_E_STALE);
    assert_int_equal(w->value_lost_count, 0);
    world_run(w, PS_SECONDS(11));
    agent_restore_committed(a, 1, 3);
    assert_int_equal(w->value_lost_count, 1);
    sched_end(w);
    world_free(w);
}

/* Another server has the partition, which nobody has given a value yet. */
static void a_new_process_makes_no_partition_at_first(void **state)
{
    struct world *w = world_new(
        &(struct world_options){.slots = 1, .no_job = true});
    struct agent *a = &w->agents[0];
    const struct push_options push = {
        .key = 1, .round = 1, .count = 4, .data = one};

    (void)state;
    sched_send_job_state(w, &(struct job_options){.version = 2,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .replicas = 2,
                                                  .has_moved = true});
    agent_push(a, &push);
    assert_int_equal(a->seen[1].error, PS_E_FUTURE);
    world_run(w, PS_SECONDS(11));
    agent_push(a, &push);
    assert_int_equal(a->seen[1].value_version, 1);
    sched_end(w);
    world_free(w);
}

static void a_server_that_owns_no_place_is_not_welcome(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});

    (void)state;
    w->agents[1].is_owner = true;
    agent_dial(&w->agents[1]);
    world_run(w, PS_SECONDS(3));
    assert_int_equal(w->agents[1].rejected, PS_E_AGAIN);
    sched_end(w);
    world_free(w);
}

/* ---------------------------------------------------------- as the owner */

/* Names a process of node 30 as the backup of this server's place in a job. */
static void send_own_place(struct world *w, uint64_t gen, uint32_t version,
                           uint64_t backup)
{
    const struct ps_rec_place place = {.epoch = version,
                                       .node = w->server->uplink.node,
                                       .name = "s0",
                                       .incarnation = 1,
                                       .instance = 77,
                                       .number = 1,
                                       .backup = 30,
                                       .backup_instance = backup};

    sched_send_job_state(w, &(struct job_options){.gen = gen,
                                                  .version = version,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .place = &place,
                                                  .replicas = 2});
}

static uint64_t copying_bytes(const struct world *w, uint64_t instance)
{
    PS_MAP_EACH(const struct ps_server_peer, p, w->server->peers.by_number)
    {
        if (p->instance == instance) {
            return p->copying_bytes;
        }
    }
    return UINT64_MAX;
}

static void jobs_hear_of_a_restarted_backup_one_by_one(void **state)
{
    struct world *w = world_new(&(struct world_options){.slots = 1});
    const uint64_t none = UINT64_MAX;

    (void)state;
    send_own_place(w, GEN, 2, 500);
    send_own_place(w, GEN + 1, 2, 500);
    agent_init(&w->agents[0], 1, 4, one);
    assert_int_equal(copying_bytes(w, 500), 17);
    /* The other job's copies are those of the process before, until its turn. */
    send_own_place(w, GEN + 1, 3, 501);
    assert_int_equal(copying_bytes(w, 500), 17);
    assert_int_equal(copying_bytes(w, 501), 0);
    assert_int_equal(w->agents[0].seen[1].commits, 0);
    send_own_place(w, GEN, 3, 501);
    assert_int_equal(copying_bytes(w, 500), none);
    assert_int_equal(copying_bytes(w, 501), 17);
    sched_send_job_state(w, &(struct job_options){.gen = GEN + 1,
                                                  .version = 99,
                                                  .phase = PS_JOB_PHASE_ENDED});
    sched_end(w);
    assert_int_equal(copying_bytes(w, 501), none);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_version_is_confirmed_with_its_last_buffer),
        cmocka_unit_test(a_repeated_copy_is_confirmed_again),
        cmocka_unit_test(copies_of_another_epoch_do_not_count),
        cmocka_unit_test(a_new_epoch_begins_with_nothing),
        cmocka_unit_test(buffers_are_shared_with_the_copy_that_is_named),
        cmocka_unit_test(a_step_makes_the_next_version),
        cmocka_unit_test(a_step_is_for_the_version_before),
        cmocka_unit_test(a_step_is_of_the_same_declaration),
        cmocka_unit_test(a_step_that_is_dropped_leaves_the_version_before),
        cmocka_unit_test(agents_wait_until_it_is_the_owner),
        cmocka_unit_test(a_dismissed_backup_has_nothing),
        cmocka_unit_test(two_places_have_the_same_partition),
        cmocka_unit_test(a_copy_of_a_stray_is_not_taken_for_the_partition),
        cmocka_unit_test(a_new_process_calls_nothing_lost_at_first),
        cmocka_unit_test(a_new_process_makes_no_partition_at_first),
        cmocka_unit_test(a_server_that_owns_no_place_is_not_welcome),
        cmocka_unit_test(jobs_hear_of_a_restarted_backup_one_by_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
