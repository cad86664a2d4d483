/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and states that stay in a GPU's memory, on the emulated driver: the
 * bits of each round, bytes over PCIe, what a failure leaves, and memory. The
 * first argument is the module. With a second one, "table", it prints the bytes
 * for docs/gpu.md. */
#include "cuda_emu/control.h"
#include "kernel/device.h"
#include "kernel/plugin.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A multiple of 64, so that arrays leave no gaps. */
#define COUNT       16384u
#define SOURCES_MAX 8u

enum optimizer { SGD, MOMENTUM, ADAM };
static const char *const optimizer_names[] = {"SGD", "momentum", "Adam"};
static const unsigned optimizer_states[] = {0, 1, 2};

/* Numbers of the emulated devices: two of them get lost. */
enum { DEVICE, LOST_MIRRORED, LOST_STATES, DEVICES };

static const char *module;
static const struct pskv_emu_control *control;
static float gradients[SOURCES_MAX][COUNT];
static const void *sources[SOURCES_MAX];

/* Parameters of one key. */
struct part {
    enum optimizer optimizer;
    unsigned sources;
    bool is_half;
    bool is_direction; /* Computes directions, of which norms are made. */
    struct ps_buf *value;
    struct ps_buf *master;
    struct ps_buf *states[2];
    uint64_t round;
};

static struct ps_device *opened(unsigned number)
{
    struct ps_device *d = NULL;
    char why[256] = "";

    if (ps_device_open(module, number, &d, why, sizeof(why)) != 0) {
        fail_msg("%s", why);
    }
    return d;
}

static void find_control(void)
{
    void *driver = dlopen(getenv("PSKV_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    pskv_emu_control_fn *find = NULL;

    assert_non_null(driver);
    *(void **)&find = dlsym(driver, "pskv_emu_control");
    assert_non_null(find);
    control = find();
}

static struct pskv_emu_stats stats_of(unsigned device)
{
    struct pskv_emu_stats stats;

    control->stats(device, &stats);
    return stats;
}

/* Adds failures; NULL: removes all. */
static void inject(const char *text)
{
    /* cmocka has a macro of this name. */
    assert_int_equal((control->fail)(text), 0);
}

/* -------------------------------------------------------------------- model */

static struct ps_buf *zeros(size_t bytes)
{
    struct ps_buf *b = ps_buf_new(bytes);

    memset(b->data, 0, bytes);
    return b;
}

static struct part new_part(enum optimizer optimizer, unsigned count)
{
    struct part p = {.optimizer = optimizer, .sources = count};

    p.value = ps_buf_new(COUNT * sizeof(float));
    for (unsigned i = 0; i < COUNT; i++) {
        ((float *)(void *)p.value->data)[i] = (float)(i % 101) / 37.0F - 1;
    }
    for (unsigned i = 0; i < optimizer_states[optimizer]; i++) {
        p.states[i] = zeros(COUNT * sizeof(float));
    }
    return p;
}

static void make_half(struct part *p)
{
    p->is_half = true;
    p->master = p->value;
    p->value = zeros(COUNT * sizeof(uint16_t));
}

static void free_part(struct part *p)
{
    ps_buf_unref(p->value);
    ps_buf_unref(p->master);
    ps_buf_unref(p->states[0]);
    ps_buf_unref(p->states[1]);
}

static void fill_gradients(uint64_t round)
{
    for (unsigned i = 0; i < SOURCES_MAX; i++) {
        sources[i] = gradients[i];
        for (unsigned j = 0; j < COUNT; j++) {
            gradients[i][j] =
                (float)((j * 7 + i * 11 + round * 13) % 97) / 43.0F - 1;
        }
    }
}

static struct ps_job plan_step(struct part *p, struct ps_buf *result)
{
    struct ps_job job = {.op = p->optimizer == ADAM ? PS_JOB_STEP : PS_JOB_SGD,
                         .dtype = PS_DTYPE_FLOAT32,
                         .storage_dtype = p->is_half ? PS_DTYPE_BFLOAT16
                                                     : PS_DTYPE_FLOAT32,
                         .src_is_float32 = p->is_half,
                         .direction_only = p->is_direction,
                         .count = COUNT,
                         .src_count = p->sources,
                         .src = sources,
                         .dst = result->data,
                         .weight = p->value->data};

    job.sgd = (struct ps_sgd){.lr = 0.1,
                              .momentum = p->optimizer == MOMENTUM ? 0.9 : 0,
                              .wd = 0.01,
                              .rescale = 1};
    job.step = (struct ps_step){.kind = PS_STEP_ADAM,
                                .lr = 0.01,
                                .rescale = 1,
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .epsilon = 1e-8};
    for (unsigned i = 0; i < 2 && p->states[i] != NULL; i++) {
        job.states[i] = p->states[i]->data;
        job.kept[PS_KEPT_STATE_0 + i] = p->states[i];
    }
    job.state = job.states[0];
    job.kept[PS_KEPT_WEIGHT] = p->is_half ? p->master : p->value;
    job.kept[PS_KEPT_RESULT] = result;
    job.master = p->is_half ? p->master->data : NULL;
    return job;
}

/* In two ranges, as two threads would. */
static int run_job(struct ps_device *d, const struct ps_job *job)
{
    struct ps_device_use use;
    int rc = ps_device_begin(d, job, &use);

    if (rc != 0) {
        return rc;
    }
    rc = ps_device_run_range(d, job, &use, 0, COUNT / 2);
    if (rc == 0) {
        rc = ps_device_run_range(d, job, &use, COUNT / 2, COUNT);
    }
    ps_device_end(job, &use, rc);
    return rc;
}

/* One round, on the CPU if `d` is NULL. */
static int run_round(struct part *p, struct ps_device *d)
{
    struct ps_buf *result = zeros(COUNT * (p->is_half && !p->is_direction
                                               ? sizeof(uint16_t)
                                               : sizeof(float)));
    const struct ps_job job = plan_step(p, result);
    int rc;

    fill_gradients(++p->round);
    rc = d == NULL ? ps_kernel_run(&job) : run_job(d, &job);
    if (p->is_direction) {
        ps_buf_unref(result);
        return rc;
    }
    ps_buf_unref(p->value);
    p->value = result;
    return rc;
}

static void assert_same_bytes(const struct ps_buf *a, const struct ps_buf *b)
{
    if ((a == NULL) != (b == NULL) ||
        (a != NULL &&
         (a->size != b->size || memcmp(a->data, b->data, a->size) != 0))) {
        fail_msg("the device has other bits than the CPU");
    }
}

static void fetch_states(const struct part *p)
{
    for (unsigned i = 0; i < 2 && p->states[i] != NULL; i++) {
        assert_int_equal(ps_buf_fetch(p->states[i]), 0);
    }
    if (p->master != NULL) {
        assert_int_equal(ps_buf_fetch(p->master), 0);
    }
}

static void assert_same_part(const struct part *p, const struct part *want)
{
    assert_same_bytes(p->value, want->value);
    assert_same_bytes(p->master, want->master);
    assert_same_bytes(p->states[0], want->states[0]);
    assert_same_bytes(p->states[1], want->states[1]);
}

/* -------------------------------------------------------------------- tests */

static void rounds_have_the_bits_of_the_cpu(struct ps_device *d)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        for (unsigned shape = 0; shape < 3; shape++) {
            struct part p = new_part((enum optimizer)kind, 3);
            struct part want = new_part((enum optimizer)kind, 3);

            if (shape == 1) {
                make_half(&p);
                make_half(&want);
            }
            for (unsigned round = 0; round < 4; round++) {
                p.is_direction = shape == 2 && round % 2 == 0 && kind == ADAM;
                want.is_direction = p.is_direction;
                assert_int_equal(run_round(&p, d), 0);
                assert_int_equal(run_round(&want, NULL), 0);
                assert_same_bytes(p.value, want.value);
            }
            fetch_states(&p);
            assert_same_part(&p, &want);
            free_part(&p);
            free_part(&want);
        }
    }
    assert_null(ps_device_failure(d));
}

static void mirrored_states_have_the_bits_of_the_cpu(void **state)
{
    struct ps_device *d = opened(DEVICE);
    struct ps_device_stats stats;

    (void)state;
    rounds_have_the_bits_of_the_cpu(d);
    ps_device_stats(d, &stats);
    assert_int_equal(stats.refused, 0);
    ps_device_close(d);
}

static void states_that_stay_have_the_bits_of_the_cpu(void **state)
{
    struct ps_device *d = opened(DEVICE);

    (void)state;
    ps_device_let_states_stay(d);
    rounds_have_the_bits_of_the_cpu(d);
    ps_device_close(d);
}

/* Bytes written on the host count, not those of the device. */
static void changes_on_the_host_reach_the_device(void **state)
{
    struct ps_device *d = opened(DEVICE);
    struct part p = new_part(ADAM, 2);
    struct part want = new_part(ADAM, 2);

    (void)state;
    ps_device_let_states_stay(d);
    for (unsigned round = 0; round < 4; round++) {
        assert_int_equal(run_round(&p, d), 0);
        assert_int_equal(run_round(&want, NULL), 0);
        memset(p.states[0]->data, 0, p.states[0]->size);
        memset(want.states[0]->data, 0, want.states[0]->size);
        ps_buf_invalidate_copy(p.states[0]);
        if (round == 2) {
            /* A job of the CPU in between. */
            const struct ps_job job = plan_step(&p, p.value);

            assert_true(ps_device_has_copies(d, &job));
            assert_int_equal(ps_device_fetch(&job), 0);
            assert_int_equal(run_round(&p, NULL), 0);
            assert_int_equal(run_round(&want, NULL), 0);
        }
    }
    fetch_states(&p);
    assert_same_part(&p, &want);
    free_part(&p);
    free_part(&want);
    ps_device_close(d);
}

/* Each allocation fails in turn: some arrays are copied with each job, or the
 * CPU computes. */
static void rounds_go_on_without_memory(void **state)
{
    for (unsigned n = 1; n <= 5; n++) {
        for (unsigned stay = 0; stay < 2; stay++) {
            struct ps_device *d = opened(DEVICE);
            struct part p = new_part(ADAM, 2);
            struct part want = new_part(ADAM, 2);
            char text[32];

            (void)state;
            if (stay == 1) {
                ps_device_let_states_stay(d);
            }
            (void)snprintf(text, sizeof(text), "alloc:%u", n);
            inject(text);
            for (unsigned round = 0; round < 3; round++) {
                assert_int_equal(run_round(&p, d), 0);
                assert_int_equal(run_round(&want, NULL), 0);
            }
            inject(NULL);
            fetch_states(&p);
            assert_same_part(&p, &want);
            assert_null(ps_device_failure(d));
            free_part(&p);
            free_part(&want);
            ps_device_close(d);
        }
    }
}

static void copies_are_freed_with_their_buffers(void **state)
{
    struct ps_device *d = opened(DEVICE);
    struct part p = new_part(ADAM, 1);
    struct ps_kernel_stats before;
    struct ps_kernel_stats after;

    (void)state;
    assert_int_equal(run_round(&p, d), 0);
    ps_device_memory(d, &before);
    assert_int_equal(run_round(&p, d), 0);
    ps_device_memory(d, &after);
    assert_int_equal(after.memory_held, before.memory_held);
    assert_int_equal(after.memory_held, stats_of(DEVICE).memory_used);
    free_part(&p);
    ps_device_memory(d, &after);
    assert_int_equal(before.memory_held - after.memory_held,
                     3 * COUNT * sizeof(float));
    ps_device_close(d);
    assert_int_equal(stats_of(DEVICE).memory_used, 0);
}

/* The device fails in a later round: nothing is lost, as the host has all. */
static void a_lost_device_loses_no_mirrored_state(void **state)
{
    struct ps_device *d = opened(LOST_MIRRORED);
    struct part p = new_part(ADAM, 2);
    struct part want = new_part(ADAM, 2);

    (void)state;
    for (unsigned round = 0; round < 6; round++) {
        if (round == 3) {
            /* In the middle of a job. */
            inject("lost:7");
        }
        assert_int_equal(run_round(&p, d), 0);
        assert_int_equal(run_round(&want, NULL), 0);
        assert_same_part(&p, &want);
    }
    assert_non_null(ps_device_failure(d));
    free_part(&p);
    free_part(&want);
    ps_device_close(d);
    inject(NULL);
}

/* The rounds fail, and the states are not read as if they were good. */
static void a_lost_device_loses_states_that_stay(void **state)
{
    struct ps_device *d = opened(LOST_STATES);
    struct part p = new_part(ADAM, 2);

    (void)state;
    ps_device_let_states_stay(d);
    assert_int_equal(run_round(&p, d), 0);
    inject("lost:1");
    assert_int_equal(run_round(&p, d), PS_E_IO);
    assert_int_equal(run_round(&p, d), PS_E_IO);
    assert_int_equal(ps_buf_fetch(p.states[0]), PS_E_IO);
    /* New ones can be loaded. */
    for (unsigned i = 0; i < 2; i++) {
        memset(p.states[i]->data, 0, p.states[i]->size);
        ps_buf_invalidate_copy(p.states[i]);
    }
    assert_int_equal(run_round(&p, d), 0);
    free_part(&p);
    ps_device_close(d);
    inject(NULL);
}

/* -------------------------------------------------------------------- table */

enum kind { WITHOUT_COPIES, MIRRORED, STAYS };

struct traffic {
    double up; /* Bytes for each byte of gradients. */
    double down;
};

/* Bytes of a later round, by the driver. */
static struct traffic measure(enum optimizer optimizer, unsigned count,
                              enum kind kind)
{
    struct ps_device *d = opened(DEVICE);
    struct part p = new_part(optimizer, count);
    const double gradient = (double)count * COUNT * sizeof(float);

    if (kind == STAYS) {
        ps_device_let_states_stay(d);
    }
    assert_int_equal(run_round(&p, d), 0);
    const struct pskv_emu_stats before = stats_of(DEVICE);

    if (kind == WITHOUT_COPIES) {
        struct ps_buf *result = zeros(p.value->size);
        struct ps_job job = plan_step(&p, result);

        fetch_states(&p);
        memset(job.kept, 0, sizeof(job.kept));
        assert_int_equal(run_job(d, &job), 0);
        ps_buf_unref(result);
    } else {
        assert_int_equal(run_round(&p, d), 0);
    }
    const struct pskv_emu_stats after = stats_of(DEVICE);

    free_part(&p);
    ps_device_close(d);
    return (struct traffic){
        .up = (double)(after.host_to_device - before.host_to_device) / gradient,
        .down = (double)(after.device_to_host - before.device_to_host) /
                gradient};
}

static const unsigned table_sources[] = {1, 2, 8};

static void print_table(void)
{
    ps_device_close(opened(DEVICE)); /* Loads the driver. */
    find_control();
    (void)printf("| step | sources | each job alone | `mirrored` | `device` "
                 "|\n| --- | --- | --- | --- | --- |\n");
    for (unsigned o = 0; o < 3; o++) {
        for (unsigned i = 0; i < 3; i++) {
            (void)printf("| %s | %u |", optimizer_names[o], table_sources[i]);
            for (unsigned kind = 0; kind < 3; kind++) {
                const struct traffic t = measure(
                    (enum optimizer)o, table_sources[i], (enum kind)kind);

                (void)printf(" %.2f + %.2f |", t.up, t.down);
            }
            (void)printf("\n");
        }
    }
}

static void each_job_copies_its_gradients_and_results(void **state)
{
    (void)state;
    for (unsigned o = 0; o < 3; o++) {
        for (unsigned i = 0; i < 3; i++) {
            const unsigned n = table_sources[i];
            const double states = optimizer_states[o];

            for (unsigned kind = 0; kind < 3; kind++) {
                const struct traffic t = measure((enum optimizer)o, n,
                                                 (enum kind)kind);
                const double up = kind == WITHOUT_COPIES ? 1 + states : 0;
                const double down = kind == STAYS ? 0 : states;

                assert_true(t.up == (n + up) / n);
                assert_true(t.down == (1 + down) / n);
            }
        }
    }
}

static int open_driver(void **state)
{
    (void)state;
    ps_device_close(opened(DEVICE));
    find_control();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirrored_states_have_the_bits_of_the_cpu),
        cmocka_unit_test(states_that_stay_have_the_bits_of_the_cpu),
        cmocka_unit_test(changes_on_the_host_reach_the_device),
        cmocka_unit_test(rounds_go_on_without_memory),
        cmocka_unit_test(copies_are_freed_with_their_buffers),
        cmocka_unit_test(each_job_copies_its_gradients_and_results),
        cmocka_unit_test(a_lost_device_loses_no_mirrored_state),
        cmocka_unit_test(a_lost_device_loses_states_that_stay),
    };
    char devices[8];

    if (argc < 2) {
        return 2;
    }
    module = argv[1];
    (void)snprintf(devices, sizeof(devices), "%d", DEVICES);
    (void)setenv("PSKV_EMU_DEVICES", devices, 1);
    if (argc > 2 && strcmp(argv[2], "table") == 0) {
        print_table();
        return 0;
    }
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
