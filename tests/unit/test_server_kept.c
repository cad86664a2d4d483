/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of partitions that have holders beside the partition: rule E1. */
#include "unit/server_world.h"

#define COUNT 5u

static struct ps_part *part_of(struct world *w, uint32_t key)
{
    struct ps_server_job *job = ps_map_get(w->server->jobs.by_gen, GEN);

    return ps_store_find(&job->store, key, 0);
}

struct optimizer {
    const char *name;
    struct ps_rec_param params[2];
    uint32_t params_count;
};

static const struct optimizer optimizers[] = {
    {"sgd", {{"learning_rate", 0.1}, {"momentum", 0.9}}, 2},
    {"adam", {{"learning_rate", 0.1}}, 1},
    {"lamb", {{"learning_rate", 0.1}}, 1},
    {"lars", {{"learning_rate", 0.1}, {"momentum", 0.9}}, 2},
    {"ftml", {{"learning_rate", 0.1}}, 1},
};

/* Answers all norms of which the server has reported its part. */
static void answer_norms(struct world *w, uint32_t *answered)
{
    while (*answered < w->norm_part_count) {
        *answered = w->norm_part_count;
        sched_send_norm_result(w, &(struct ps_msg_norm_result){
                                      .gen = GEN,
                                      .key = w->last_norm_part.key,
                                      .round = w->last_norm_part.round,
                                      .stage = w->last_norm_part.stage,
                                      .square_sum = w->square,
                                      .weight_square_sum = w->weight_square,
                                      .global_square_sum = w->square});
    }
}

static void push_all(struct world *w, uint64_t round, uint32_t *answered)
{
    float grad[COUNT];

    for (uint32_t j = 0; j < COUNT; j++) {
        grad[j] = (float)(round + 1) * (0.25F + (float)j) * (j % 2 ? -1 : 1);
    }
    for (uint32_t i = 0; i < w->slots; i++) {
        agent_push(&w->agents[i],
                   &(struct push_options){
                       .key = 0, .round = round, .count = COUNT, .data = grad});
    }
    answer_norms(w, answered);
    assert_int_equal(part_of(w, 0)->image.version, round);
}

static struct world *world_of(const struct optimizer *o)
{
    static const float first[COUNT] = {1, -2, 3, 0.5F, -0.25F};
    struct world *w = world_new(
        &(struct world_options){.slots = 2,
                                .params = o->params,
                                .params_count = o->params_count,
                                .optimizer = o->name});

    agent_init(&w->agents[0], 0, COUNT, first);
    return w;
}

/* A held version. */
struct held {
    struct ps_buf *bufs[PS_PART_BUFFERS];
    uint8_t bytes[PS_PART_BUFFERS][COUNT * sizeof(float)];
};

static void hold(const struct ps_part *part, struct held *h)
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        h->bufs[i] = part->buffers[i].buf;
        if (h->bufs[i] != NULL) {
            ps_buf_ref(h->bufs[i]);
            memcpy(h->bytes[i], ps_slice_data(&part->buffers[i]),
                   part->buffers[i].len);
        }
    }
}

/* The version is as it was, and its states are not the partition's. */
static void check_and_release(const struct ps_part *part, struct held *h)
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if (h->bufs[i] == NULL) {
            continue;
        }
        assert_memory_equal(h->bytes[i], h->bufs[i]->data, h->bufs[i]->size);
        assert_ptr_not_equal(part->buffers[i].buf, h->bufs[i]);
        ps_buf_unref(h->bufs[i]);
    }
}

static void check_same(const struct ps_part *a, const struct ps_part *b)
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        assert_int_equal(a->buffers[i].len, b->buffers[i].len);
        if (a->buffers[i].len > 0) {
            assert_memory_equal(ps_slice_data(&a->buffers[i]),
                                ps_slice_data(&b->buffers[i]),
                                a->buffers[i].len);
        }
    }
    assert_int_equal(a->image.version, b->image.version);
    assert_int_equal(a->image.step_offset, b->image.step_offset);
}

/* A step writes other buffers while somebody holds the version before, with the
 * bits of one in place. */
static void step_leaves_a_held_version_as_it_was(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof(optimizers) / sizeof(optimizers[0]); k++) {
        struct world *in_place = world_of(&optimizers[k]);
        struct world *held = world_of(&optimizers[k]);
        uint32_t answered[2] = {0};

        for (uint64_t r = 1; r <= 4; r++) {
            const struct ps_buf *before = ps_part_state(part_of(in_place, 0),
                                                        0);
            struct held h;

            hold(part_of(held, 0), &h);
            push_all(held, r, &answered[1]);
            check_and_release(part_of(held, 0), &h);
            push_all(in_place, r, &answered[0]);
            check_same(part_of(in_place, 0), part_of(held, 0));
            if (before != NULL) {
                assert_ptr_equal(before,
                                 ps_part_state(part_of(in_place, 0), 0));
            }
        }
        world_free(in_place);
        world_free(held);
    }
}

/* Without memory for what a step writes the round waits, and changes nothing. */
static void step_without_memory_for_its_states_is_retried(void **state)
{
    struct world *w = world_of(&optimizers[1]);
    uint32_t answered = 0;
    struct held h;

    (void)state;
    push_all(w, 1, &answered);
    for (uint64_t fail_at = 1; fail_at <= 3; fail_at++) {
        const uint64_t round = 1 + fail_at;
        const float grad[COUNT] = {1, 2, 3, 4, 5};
        struct push_options push = {
            .key = 0, .round = round, .count = COUNT, .data = grad};

        hold(part_of(w, 0), &h);
        agent_push(&w->agents[0], &push);
        /* The first is the payload of the second slot. */
        ps_pool_fail_at(w->pool, 1 + fail_at);
        agent_push(&w->agents[1], &push);
        if (part_of(w, 0)->image.version < round) {
            for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
                assert_ptr_equal(part_of(w, 0)->buffers[i].buf, h.bufs[i]);
            }
            world_run(w, PS_MILLIS(50));
        }
        assert_int_equal(part_of(w, 0)->image.version, round);
        check_and_release(part_of(w, 0), &h);
    }
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_leaves_a_held_version_as_it_was),
        cmocka_unit_test(step_without_memory_for_its_states_is_retried),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
