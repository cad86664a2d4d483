/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of partitions that have holders beside the partition, and state
 * memory: rules E1 to E8. */
#include "core/part/records.h"
#include "proto/ps_fixed.h"
#include "unit/server_world.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

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

/* The last results, by stage. */
static struct ps_msg_norm_result given_norms[3];

/* Answers all norms of which the server has reported its part. */
static void answer_norms(struct world *w, uint32_t *answered)
{
    while (*answered < w->norm_part_count) {
        const uint8_t stage = w->last_norm_part.stage;

        *answered = w->norm_part_count;
        given_norms[stage] = (struct ps_msg_norm_result){
            .gen = GEN,
            .key = w->last_norm_part.key,
            .round = w->last_norm_part.round,
            .stage = stage,
            .square_sum = w->square,
            .weight_square_sum = w->weight_square};
        if (stage == PS_STAGE_GRADIENT) {
            given_norms[stage].global_square_sum = w->square;
            given_norms[stage].number = *answered;
        }
        sched_send_norm_result(w, &given_norms[stage]);
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

/* ------------------------------------------------------------- state memory */

#define MEMORY_BYTES ((size_t)4 << 20)

/* Memory that outlives servers, and what it was at some store. */
struct memory {
    uint8_t *bytes;
    uint8_t *then;   /* The bytes after store number `take_at`. */
    uint64_t stores; /* So far. */
    uint64_t take_at;
    struct world *world;
    uint64_t answered; /* Newest version that a peer had heard of then. */
    uint64_t copied;   /* Newest copy that an owner had heard of then. */
};

static void release_pages(void *ctx, uint64_t offset, uint64_t bytes)
{
    struct memory *m = ctx;

    memset(m->bytes + offset, 0, bytes);
}

static uint64_t newest_answer(const struct world *w)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < w->slots; i++) {
        const struct seen *s = &w->agents[i].seen[0];

        newest = s->value_version > newest ? s->value_version : newest;
        newest = s->commit_version > newest ? s->commit_version : newest;
    }
    return newest;
}

static void on_store(void *ctx)
{
    struct memory *m = ctx;

    if (++m->stores == m->take_at) {
        memcpy(m->then, m->bytes, MEMORY_BYTES);
        m->answered = m->world != NULL ? newest_answer(m->world) : 0;
        m->copied = m->world != NULL ? m->world->agents[1].copied_number : 0;
    }
}

static struct memory *memory_new(void)
{
    struct memory *m = ps_calloc(1, sizeof(*m));

    m->bytes = aligned_alloc(4096, MEMORY_BYTES);
    m->then = malloc(MEMORY_BYTES);
    assert_true(m->bytes != NULL && m->then != NULL);
    memset(m->bytes, 0, MEMORY_BYTES);
    return m;
}

static void memory_free(struct memory *m)
{
    free(m->bytes);
    free(m->then);
    ps_free(m);
}

/* Opens the memory as the server `name` of a cluster does; `why` may be
 * NULL. */
static struct ps_records *memory_open_as(struct memory *m, const char *name,
                                         const char *cluster,
                                         struct ps_str *why)
{
    struct ps_str text = PS_STR_ROOM(128);
    struct ps_records *r = ps_records_open(
        &(struct ps_records_options){.memory = {.base = m->bytes,
                                                .size = MEMORY_BYTES,
                                                .release = release_pages,
                                                .stored = on_store,
                                                .ctx = m},
                                     .name = name,
                                     .cluster = cluster,
                                     .id = 7},
        why != NULL ? why : &text);

    assert_non_null(r);
    return r;
}

static struct ps_records *memory_open(struct memory *m)
{
    return memory_open_as(m, "s0", "test", NULL);
}

static struct world *world_in(const struct optimizer *o, struct memory *m)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2,
        .params = o->params_count > 0 ? o->params : NULL,
        .params_count = o->params_count,
        .optimizer = o->name,
        .records = memory_open(m)});

    m->world = w;
    return w;
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

/* It does not hold buffers that it needed only because somebody held the states:
 * with them there might never be memory for the rest. */
static void step_that_waits_holds_no_second_states(void **state)
{
    struct world *w = world_of(&optimizers[1]);
    uint32_t answered = 0;

    (void)state;
    push_all(w, 1, &answered);
    for (uint64_t fail_at = 1; fail_at <= 2; fail_at++) {
        const uint64_t used = ps_pool_used(w->pool);
        const float grad[COUNT] = {1, 2, 3, 4, 5};
        struct push_options push = {
            .key = 0, .round = 1 + fail_at, .count = COUNT, .data = grad};
        struct held h;

        hold(part_of(w, 0), &h);
        agent_push(&w->agents[0], &push);
        ps_pool_fail_at(w->pool, 1 + fail_at);
        agent_push(&w->agents[1], &push);
        assert_int_equal(part_of(w, 0)->image.version, fail_at);
        assert_int_equal(ps_pool_used(w->pool),
                         used + 2 * ps_pool_cost(sizeof(grad)));
        for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
            ps_buf_unref(h.bufs[i]);
        }
        world_run(w, PS_MILLIS(50));
        assert_int_equal(part_of(w, 0)->image.version, 1 + fail_at);
        for (unsigned i = 0; i < 2; i++) { /* In place. */
            assert_ptr_equal(ps_part_state(part_of(w, 0), i),
                             h.bufs[PS_PART_BUFFER_STATE_0 + i]);
        }
    }
    world_free(w);
}

#define ROUNDS 5u

static const struct optimizer kept_optimizers[] = {
    {"sgd", {{"learning_rate", 0.1}, {"momentum", 0.9}}, 2},
    {"adam", {{"learning_rate", 0.1}}, 1},
    {"lamb", {{"learning_rate", 0.1}}, 1},
    {"adam", {{"learning_rate", 0.1}, {"accumulate", 2}}, 2},
    {"none", {{NULL, 0}}, 0},
};
#define KEPT_OPTIMIZERS (sizeof(kept_optimizers) / sizeof(kept_optimizers[0]))

/* Pushes all rounds that the partition lacks. */
static void run_to_the_end(struct world *w)
{
    static const float first[COUNT] = {1, -2, 3, 0.5F, -0.25F};
    uint32_t answered = w->norm_part_count;

    agent_init(&w->agents[0], 0, COUNT, first);
    while (part_of(w, 0)->image.version < ROUNDS) {
        push_all(w, part_of(w, 0)->image.version + 1, &answered);
    }
}

/* Whatever store of a record is the last of a process, the next one has the
 * version before or the new one, and goes on to the same bits. */
static void death_at_any_store_leaves_one_version(void **state)
{
    (void)state;
    for (size_t k = 0; k < KEPT_OPTIMIZERS; k++) {
        const struct optimizer *o = &kept_optimizers[k];
        struct memory *m = memory_new();
        struct world *alone = world_in(o, m);
        uint64_t stores;

        run_to_the_end(alone);
        stores = m->stores;
        assert_true(stores > 20 * ROUNDS);
        for (uint64_t at = 1; at <= stores; at++) {
            struct memory *n = memory_new();
            struct world *w;

            n->take_at = at;
            w = world_in(o, n);
            run_to_the_end(w);
            world_free(w);
            memcpy(n->bytes, n->then, MEMORY_BYTES);
            n->take_at = 0;
            w = world_in(o, n);
            if (part_of(w, 0) != NULL) {
                assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
                assert_true(part_of(w, 0)->image.version >= n->answered);
            } else {
                assert_int_equal(n->answered, 0);
            }
            run_to_the_end(w);
            check_same(part_of(alone, 0), part_of(w, 0));
            sched_end(w);
            world_free(w);
            memory_free(n);
        }
        world_free(alone);
        memory_free(m);
    }
}

/* A step that has computed, and is not published, changes nothing. */
static void die_during_step(uint64_t round, struct world *alone)
{
    const struct optimizer *o = &kept_optimizers[1];
    struct memory *m = memory_new();
    struct world *w = world_in(o, m);
    const float grad[COUNT] = {9, 8, 7, 6, 5};
    uint32_t answered = 0;

    agent_init(&w->agents[0], 0, COUNT, (float[]){1, -2, 3, 0.5F, -0.25F});
    for (uint64_t r = 1; r < round; r++) {
        push_all(w, r, &answered);
    }
    w->hold_compute = true;
    for (uint32_t i = 0; i < 2; i++) {
        agent_push(&w->agents[i],
                   &(struct push_options){
                       .key = 0, .round = round, .count = COUNT, .data = grad});
    }
    assert_int_equal(w->compute_count, 1);
    assert_int_equal(ps_kernel_run(&w->computes[0]->job), 0);
    memcpy(m->then, m->bytes, MEMORY_BYTES);
    world_free(w);
    memcpy(m->bytes, m->then, MEMORY_BYTES);
    w = world_in(o, m);
    assert_int_equal(part_of(w, 0)->image.version, round - 1);
    run_to_the_end(w);
    check_same(part_of(alone, 0), part_of(w, 0));
    world_free(w);
    memory_free(m);
}

static void death_during_a_step_leaves_the_version_before(void **state)
{
    struct world *alone = world_of(&kept_optimizers[1]);

    (void)state;
    run_to_the_end(alone);
    for (uint64_t round = 1; round <= 3; round++) {
        die_during_step(round, alone);
    }
    world_free(alone);
}

static void ended_job_leaves_nothing(void **state)
{
    struct memory *m = memory_new();
    struct world *w = world_in(&kept_optimizers[1], m);

    (void)state;
    run_to_the_end(w);
    assert_true(ps_records_bytes(w->records) > 0);
    sched_end(w);
    assert_int_equal(ps_pool_used(w->pool), 0);
    world_free(w);
    struct ps_records *r = memory_open(m);

    assert_int_equal(ps_records_found(r), 0);
    assert_int_equal(ps_records_bytes(r), 0);
    ps_records_free(r);
    memory_free(m);
}

/* Rules E6 and E7. */
static void job_goes_on_when_the_scheduler_names_it(void **state)
{
    const struct optimizer *o = &kept_optimizers[1];
    struct memory *m = memory_new();
    struct world *w = world_in(o, m);
    struct ps_rec_place place = {
        .epoch = 4, .node = 2, .name = "s0", .incarnation = 1, .instance = 76};
    struct job_options job = {.version = 5,
                              .phase = PS_JOB_PHASE_RUNNING,
                              .params = o->params,
                              .params_count = o->params_count,
                              .optimizer = o->name,
                              .place = &place};

    (void)state;
    run_to_the_end(w);
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_NEW);
    world_free(w);
    w = world_new(
        &(struct world_options){.no_job = true, .records = memory_open(m)});
    w->slots = 2;
    /* The scheduler may say that the job has ended. */
    assert_int_equal(w->last_ready.gen, GEN);
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
    assert_int_equal(w->last_ready.version, 0);
    sched_send_job_state(w, &job); /* For the process before. */
    assert_null(ps_map_get(w->server->jobs.by_gen, GEN));
    place.instance = 77;
    place.epoch = 5;
    job.version = 6;
    sched_send_job_state(w, &job);
    assert_int_equal(w->last_ready.version, 6);
    assert_int_equal(w->last_ready.epoch, 5);
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
    assert_int_equal(w->last_ready.round, ROUNDS);
    assert_int_equal(part_of(w, 0)->image.version, ROUNDS);
    world_free(w);
    /* One that the scheduler does not know. */
    w = world_new(
        &(struct world_options){.no_job = true, .records = memory_open(m)});
    w->slots = 2;
    assert_true(ps_records_bytes(w->records) > 0);
    sched_end(w);
    ps_pool_trim(w->pool);
    assert_int_equal(ps_records_bytes(w->records), 0);
    world_free(w);
    memory_free(m);
}

static void a_job_without_room_for_its_record_is_named(void **state)
{
    struct memory *m = memory_new();
    struct world *w = world_new(
        &(struct world_options){.no_job = true, .records = memory_open(m)});
    struct ps_record_place place = {0};

    (void)state;
    w->slots = 2;
    while (
        ps_records_write(w->records, &place, &(struct ps_record){.gen = 1})) {
        place = (struct ps_record_place){0};
    }
    sched_send_job_state(
        w, &(struct job_options){.version = 1, .phase = PS_JOB_PHASE_RUNNING});
    assert_non_null(strstr(w->last_log, "state memory has no room for it; the "
                                        "job does not survive a restart"));
    world_free(w);
    memory_free(m);
}

static void memory_of_another_server_is_dropped(void **state)
{
    static const struct {
        const char *name;
        const char *cluster;
        size_t damage; /* Byte of the header that is changed; 0: none. */
        const char *text;
    } cases[] = {
        {"s1", "test", 0, "it is that of a server of another name"},
        {"s0", "other", 0, "it is of another cluster"},
        {"s0", "test", 1, "it is of another version of psserver"},
        {"s0", "test", 8, "it is of another version of psserver"},
        {"s0", "test", 12, "it is of another version of psserver"},
        {"s0", "test", 17, "it is of another version of psserver"},
        {"s0", "test", 43, "it is of another version of psserver"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct memory *m = memory_new();
        struct world *w = world_in(&kept_optimizers[1], m);
        struct ps_str why = PS_STR_ROOM(128);
        struct ps_records *r;

        run_to_the_end(w);
        world_free(w);
        m->bytes[cases[i].damage] ^= cases[i].damage != 0 ? 0x40 : 0;
        r = memory_open_as(m, cases[i].name, cases[i].cluster, &why);
        assert_string_equal(why.data, cases[i].text);
        assert_int_equal(ps_records_found(r), 0);
        assert_int_equal(ps_records_bytes(r), 0);
        ps_records_free(r);
        why.data[0] = '\0';
        why.len = 0;
        r = memory_open_as(m, cases[i].name, cases[i].cluster, &why);
        assert_string_equal(why.data, "");
        ps_records_free(r);
        memory_free(m);
    }
}

/* The first of both places of record `number`. */
static uint8_t *record_at(struct memory *m, uint32_t number, unsigned parity)
{
    return m->bytes + PS_FIXED_STATE_HEADER_BYTES +
           (2 * (size_t)(number - 1) + parity) * PS_FIXED_STATE_RECORD_BYTES;
}

/* A changed bit of a record is found by its sum; the one before it names
 * buffers that may have been used again, and yet it counts: a death before the
 * last store looks the same. */
static void damaged_records_are_dropped(void **state)
{
    struct memory *m = memory_new();
    struct world *w = world_in(&kept_optimizers[1], m);

    (void)state;
    run_to_the_end(w);
    world_free(w);
    memcpy(m->then, m->bytes, MEMORY_BYTES);
    for (size_t i = 0; i < PS_FIXED_STATE_RECORD_BYTES; i++) {
        struct ps_records *r;

        memcpy(m->bytes, m->then, MEMORY_BYTES);
        for (unsigned parity = 0; parity < 2; parity++) {
            record_at(m, 2, parity)[i] ^= 0x10;
        }
        r = memory_open(m);
        assert_int_equal(ps_records_found(r), 1); /* The job's. */
        assert_int_equal(ps_records_bytes(r), 0);
        ps_records_free(r);
    }
    memory_free(m);
}

/* Rewrites the record with another range, and its sum. */
static void set_range(struct memory *m, uint32_t number, unsigned parity,
                      unsigned buffer, uint64_t offset, uint64_t bytes)
{
    uint8_t *at = record_at(m, number, parity);
    const struct ps_record_range range = {offset, bytes};
    uint64_t sum;

    memcpy(at + offsetof(struct ps_fixed_state_record, ranges) +
               buffer * sizeof(range),
           &range, sizeof(range));
    sum = XXH3_64bits(at + 8, PS_FIXED_STATE_RECORD_BYTES - 8);
    memcpy(at, &sum, sizeof(sum));
}

/* Rule E5: what a record names is checked, however good its sum is. */
static void buffers_of_two_records_do_not_overlap(void **state)
{
    struct memory *m = memory_new();
    struct world *w = world_in(&kept_optimizers[1], m);
    struct ps_record_range value;
    const uint64_t bytes = COUNT * sizeof(float);
    unsigned parity;

    (void)state;
    run_to_the_end(w);
    assert_true(
        ps_records_locate(w->records, ps_part_value(part_of(w, 0)), &value));
    parity = part_of(w, 0)->record.place.sequence & 1;
    world_free(w);
    memcpy(m->then, m->bytes, MEMORY_BYTES);

    const struct {
        uint64_t offset;
        uint64_t bytes;
        uint32_t found;
    } cases[] = {
        {value.offset, bytes, 1},     /* State and value. */
        {value.offset + 8, bytes, 1}, /* Some bytes of both. */
        {0, bytes, 1},                /* The header. */
        {4096, bytes, 1},             /* Records. */
        {MEMORY_BYTES - 8, bytes, 1}, /* Beyond the end. */
        {MEMORY_BYTES, bytes, 1},
        {UINT64_MAX - 7, bytes, 1},
        {value.offset + 1, bytes, 1}, /* Not aligned. */
        {MEMORY_BYTES - 4096, bytes - 4, 1},
        {MEMORY_BYTES - 4096, UINT64_MAX, 1},
        {MEMORY_BYTES - 4096, bytes, 2}, /* Valid. */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memcpy(m->bytes, m->then, MEMORY_BYTES);
        set_range(m, 2, parity, PS_PART_BUFFER_STATE_0, cases[i].offset,
                  cases[i].bytes);
        struct ps_records *r = memory_open(m);

        assert_int_equal(ps_records_found(r), cases[i].found);
        ps_records_free(r);
    }
    memory_free(m);
}

static void push_async(struct agent *a, uint64_t seq)
{
    const float grad[COUNT] = {1, 2, 3, 4, (float)seq};

    agent_push(a, &(struct push_options){.key = 0,
                                         .round = seq,
                                         .count = COUNT,
                                         .data = grad,
                                         .rule = PS_RULE_STEP});
}

static void async_pushes_count_once_after_a_death(void **state)
{
    const struct optimizer *o = &kept_optimizers[1];
    static const float first[COUNT] = {1, -2, 3, 0.5F, -0.25F};
    struct memory *m[2] = {memory_new(), memory_new()};
    struct world *alone = world_in(o, m[0]);
    struct world *w = world_in(o, m[1]);

    (void)state;
    agent_init(&alone->agents[0], 0, COUNT, first);
    agent_init(&w->agents[0], 0, COUNT, first);
    for (uint64_t seq = 1; seq <= 4; seq++) {
        for (uint32_t i = 0; i < 2; i++) {
            push_async(&alone->agents[i], seq);
            push_async(&w->agents[i], seq);
            world_free(w);
            w = world_in(o, m[1]);
            push_async(&w->agents[i], seq); /* It may not have been answered. */
            assert_int_equal(w->agents[i].seen[0].commit_version, seq);
            check_same(part_of(alone, 0), part_of(w, 0));
        }
    }
    world_free(w);
    world_free(alone);
    memory_free(m[0]);
    memory_free(m[1]);
}

/* An agent knows a committed version that a server with an optimizer lacks: the
 * server is not what it says, and the job cannot go on. */
static void
a_version_that_an_agent_knows_and_the_server_lacks_is_lost(void **state)
{
    struct world *w = world_of(&kept_optimizers[0]);
    uint32_t answered = 0;

    (void)state;
    for (uint64_t r = 1; r <= 2; r++) {
        push_all(w, r, &answered);
    }
    agent_restore_committed(&w->agents[0], 0, 1);
    agent_restore_committed(&w->agents[1], 0, 2);
    assert_int_equal(w->value_lost_count, 0);
    agent_restore_committed(&w->agents[1], 0, 3);
    assert_int_equal(w->value_lost_count, 1);
    world_free(w);
}

/* The scheduler took a process for dead that was only cut off: in the next epoch
 * it has what it had. */
static void the_same_process_keeps_its_partitions_in_a_newer_place(void **state)
{
    struct memory *m = memory_new();
    struct world *w = world_in(&kept_optimizers[0], m);
    struct ps_rec_place place = {
        .epoch = 7, .node = 1, .name = "s0", .instance = 77};

    (void)state;
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_NEW);
    sched_send_job_state(w, &(struct job_options){
                                .version = 8,
                                .phase = PS_JOB_PHASE_RUNNING,
                                .params = kept_optimizers[0].params,
                                .params_count = kept_optimizers[0].params_count,
                                .place = &place});
    assert_int_equal(w->last_ready.version, 8);
    assert_int_equal(w->last_ready.epoch, 7);
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
    world_free(w);
    memory_free(m);
}

/* Backs up key 1 of another server, agents[1], up to version 5. */
static void back_up(struct world *w)
{
    const struct ps_rec_place place = owners_place(w, 5);

    w->agents[1].is_owner = true;
    sched_send_job_state(w, &(struct job_options){.version = 2,
                                                  .phase = PS_JOB_PHASE_RUNNING,
                                                  .place = &place,
                                                  .place_count = 1,
                                                  .replicas = 2});
    agent_dial(&w->agents[1]);
    for (uint64_t number = 1; number <= 4; number++) {
        const float values[4] = {(float)number, 2, 3, 4};
        struct copy_options o = {.epoch = 5,
                                 .number = number,
                                 .version = number + 1,
                                 .buffer = PS_PART_BUFFER_VALUE,
                                 .values = values};

        owner_send_copy(&w->agents[1], &o);
        o.buffer = PS_PART_BUFFER_STATE_0;
        owner_send_copy(&w->agents[1], &o);
        assert_int_equal(w->agents[1].copied_number, number);
    }
}

/* The owner is lost; if partitions have moved, the scheduler says whose this one
 * is. */
static void take_over(struct world *w, bool was_rebalanced)
{
    sched_send_job_state(
        w, &(struct job_options){.version = 3,
                                 .phase = PS_JOB_PHASE_RUNNING,
                                 .replicas = 2,
                                 .was_rebalanced = was_rebalanced});
    if (w->moved_count > 0) {
        assert_true(was_rebalanced);
        assert_null(part_of(w, 1));
        sched_answer(w, true);
    }
    world_run(w, PS_MILLIS(1));
}

/* The owner is lost, and its backup ends at any store of a record, before or while
 * it takes over: the next process has what was confirmed. */
static void end_backup_at_each_store(bool was_rebalanced)
{
    uint64_t stores = 1;
    bool was_copied = false;

    for (uint64_t at = 1; at <= stores; at++) {
        struct memory *m = memory_new();
        struct world *w;

        m->take_at = at;
        m->world = w = world_new(
            &(struct world_options){.slots = 1, .records = memory_open(m)});
        back_up(w);
        take_over(w, was_rebalanced);
        assert_int_equal(part_of(w, 1)->image.version, 5);
        stores = m->stores;
        world_free(w);
        memcpy(m->bytes, m->then, MEMORY_BYTES);
        m->world = NULL;
        w = world_new(&(struct world_options){
            .slots = 1, .no_job = true, .records = memory_open(m)});
        take_over(w, was_rebalanced);
        if (m->copied != 0) {
            const struct ps_part *part = part_of(w, 1);

            was_copied = true;
            assert_non_null(part);
            assert_true(part->image.version > m->copied);
            assert_true(*(const float *)ps_slice_data(ps_part_value(part)) ==
                        (float)(part->image.version - 1));
            assert_non_null(ps_part_state(part, 0));
        }
        sched_end(w);
        world_free(w);
        memory_free(m);
    }
    assert_true(was_copied);
}

static void copies_outlive_their_backup(void **state)
{
    (void)state;
    end_backup_at_each_store(false);
    end_backup_at_each_store(true);
}

static void copies_stay_when_their_process_ends(void **state)
{
    struct memory *m = memory_new();
    struct world *w = world_new(
        &(struct world_options){.slots = 1, .records = memory_open(m)});

    (void)state;
    back_up(w);
    world_free(w);
    w = world_new(
        &(struct world_options){.slots = 1, .records = memory_open(m)});
    assert_non_null(part_of(w, 1));
    assert_int_equal(part_of(w, 1)->image.version, 5);
    sched_end(w);
    world_free(w);
    memory_free(m);
}

/* A server with memory that the scheduler has named for a place. */
static struct world *world_in_place(struct memory *m, bool was_rebalanced)
{
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .no_job = true, .records = memory_open(m)});
    const struct ps_rec_place place = {.epoch = 4,
                                       .node = w->server->uplink.node,
                                       .name = "s0",
                                       .incarnation = 1,
                                       .instance = 77,
                                       .number = 7};

    m->world = w;
    sched_send_job_state(
        w, &(struct job_options){.version = 2,
                                 .phase = PS_JOB_PHASE_RUNNING,
                                 .params = kept_optimizers[0].params,
                                 .params_count = 1,
                                 .place = &place,
                                 .was_rebalanced = was_rebalanced});
    return w;
}

/* A source ends when it has said that the target has the partition, or a target
 * before that: the next process asks whose it is (rule M15). */
static void a_returned_server_asks_for_the_owner_of_each_partition(void **state)
{
    uint32_t answered = 0;

    (void)state;
    for (int is_owner = 0; is_owner <= 1; is_owner++) {
        struct memory *m = memory_new();
        struct world *w = world_in_place(m, false);

        run_to_the_end(w);
        world_free(w);
        w = world_in_place(m, true);
        assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
        assert_int_equal(w->last_ready.round, ROUNDS);
        assert_int_equal(w->moved_count, 1);
        agent_pull(&w->agents[0], 0, ROUNDS);
        assert_int_equal(w->agents[0].seen[0].error, PS_E_MIGRATING);
        world_free(w); /* It ends before it hears the answer. */
        w = world_in_place(m, true);
        assert_int_equal(w->moved_count, 1);
        sched_answer(w, is_owner == 1);
        if (is_owner == 1) {
            assert_int_equal(part_of(w, 0)->image.version, ROUNDS);
            push_all(w, ROUNDS + 1, &answered);
        } else {
            assert_null(part_of(w, 0));
        }
        world_free(w);
        w = world_in_place(m, true);
        assert_int_equal(w->moved_count, is_owner);
        sched_end(w);
        world_free(w);
        memory_free(m);
    }
}

/* A partition has moved away before its server died, and an agent does not know
 * it (rule E9). One that has been forgotten is refused for good in the end. */
static void a_partition_that_is_not_in_the_memory_may_have_moved(void **state)
{
    const float grad[COUNT] = {1, 2, 3, 4, 5};
    struct push_options push = {
        .key = 1, .round = 1, .count = COUNT, .data = grad};
    struct memory *m = memory_new();
    struct world *w = world_in(&kept_optimizers[0], m);

    (void)state;
    run_to_the_end(w);
    agent_push(&w->agents[0], &push);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_NOKEY);
    world_free(w);
    w = world_in(&kept_optimizers[0], m);
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
    agent_push(&w->agents[0], &push);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_FUTURE);
    world_run(w, PS_SECONDS(11));
    agent_push(&w->agents[0], &push);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_NOKEY);
    world_free(w);
    memory_free(m);
}

/* Rule G10: a scheduler that has ended, too, knows no norms, and another
 * partition of the key may wait for those of the last step. */
static void norms_of_the_last_step_are_kept(void **state)
{
    static const struct optimizer lamb = {
        "lamb", {{"learning_rate", 0.1}, {"skip_nonfinite", 1}}, 2};
    struct memory *m = memory_new();
    struct world *w = world_in(&lamb, m);
    struct ps_msg_norm_result given[3];

    (void)state;
    run_to_the_end(w);
    memcpy(given, given_norms, sizeof(given));
    assert_int_equal(given[PS_STAGE_GRADIENT].round, ROUNDS);
    assert_true(given[PS_STAGE_GRADIENT].number != 0);
    world_free(w);
    w = world_in(&lamb, m);
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_KEPT);
    for (int stage = PS_STAGE_GRADIENT; stage <= PS_STAGE_DIRECTION; stage++) {
        assert_memory_equal(&w->norm_results[stage], &given[stage],
                            sizeof(given[stage]));
    }
    world_free(w);
    memory_free(m);
}

/* Rule E9: all its partitions had moved away, and it has one again, which an
 * agent looks for here since before. */
static void
a_server_that_takes_a_running_job_may_have_had_partitions(void **state)
{
    const float grad[COUNT] = {1, 2, 3, 4, 5};
    struct push_options push = {
        .key = 1, .round = 1, .count = COUNT, .data = grad};
    struct world *w = world_new(&(struct world_options){
        .slots = 2, .params = kept_optimizers[0].params, .params_count = 1});

    (void)state;
    agent_push(&w->agents[0], &push);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_NOKEY);
    sched_send_job_state(
        w, &(struct job_options){.version = 2, .phase = PS_JOB_PHASE_ENDED});
    sched_send_job_state(
        w, &(struct job_options){.version = 3,
                                 .phase = PS_JOB_PHASE_RUNNING,
                                 .params = kept_optimizers[0].params,
                                 .params_count = 1});
    assert_int_equal(w->last_ready.memory, PS_PART_MEMORY_NEW);
    agent_push(&w->agents[0], &push);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_FUTURE);
    world_run(w, PS_SECONDS(11));
    agent_push(&w->agents[0], &push);
    assert_int_equal(w->agents[0].seen[1].error, PS_E_NOKEY);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_at_any_store_leaves_one_version),
        cmocka_unit_test(death_during_a_step_leaves_the_version_before),
        cmocka_unit_test(ended_job_leaves_nothing),
        cmocka_unit_test(job_goes_on_when_the_scheduler_names_it),
        cmocka_unit_test(a_job_without_room_for_its_record_is_named),
        cmocka_unit_test(memory_of_another_server_is_dropped),
        cmocka_unit_test(damaged_records_are_dropped),
        cmocka_unit_test(buffers_of_two_records_do_not_overlap),
        cmocka_unit_test(async_pushes_count_once_after_a_death),
        cmocka_unit_test(step_leaves_a_held_version_as_it_was),
        cmocka_unit_test(step_without_memory_for_its_states_is_retried),
        cmocka_unit_test(step_that_waits_holds_no_second_states),
        cmocka_unit_test(
            a_version_that_an_agent_knows_and_the_server_lacks_is_lost),
        cmocka_unit_test(
            the_same_process_keeps_its_partitions_in_a_newer_place),
        cmocka_unit_test(copies_outlive_their_backup),
        cmocka_unit_test(copies_stay_when_their_process_ends),
        cmocka_unit_test(
            a_returned_server_asks_for_the_owner_of_each_partition),
        cmocka_unit_test(a_partition_that_is_not_in_the_memory_may_have_moved),
        cmocka_unit_test(norms_of_the_last_step_are_kept),
        cmocka_unit_test(
            a_server_that_takes_a_running_job_may_have_had_partitions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
