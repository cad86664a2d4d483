/* SPDX-License-Identifier: Apache-2.0 */
#include "net/worker.h"

#include "base/alloc.h"
#include "net/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LARGE (1024u * 1024u) /* Elements. */

struct job {
    struct ps_worker_task task;
    struct ps_job job;
    const void *src[2];
    float *dst;
    unsigned *order;
    unsigned place; /* Order of completion, from 1. */
    int rc;
    struct ps_worker *resubmit;
};

static void job_done(struct ps_worker_task *t, int rc)
{
    struct job *j = PS_CONTAINER(t, struct job, task);

    j->rc = rc;
    j->place = ++*j->order;
    if (j->resubmit != NULL) {
        struct ps_worker *w = j->resubmit;

        j->resubmit = NULL;
        ps_worker_submit(w, t);
    }
}

static void job_init(struct job *j, const float *a, const float *b,
                     uint64_t count, unsigned *order)
{
    memset(j, 0, sizeof(*j));
    j->src[0] = a;
    j->src[1] = b;
    j->dst = calloc(count, sizeof(float));
    j->order = order;
    j->task.job = &j->job;
    j->task.done = job_done;
    j->job = (struct ps_job){.op = PS_JOB_SUM,
                             .dtype = PS_DTYPE_FLOAT32,
                             .count = count,
                             .src_count = 2,
                             .src = j->src,
                             .dst = j->dst};
}

struct world {
    struct ps_loop *loop;
    struct ps_worker *worker;
    float *a;
    float *b;
    unsigned order;
};

static void begin_world(struct world *w, unsigned threads)
{
    struct ps_worker_options opt = {.threads = threads};

    memset(w, 0, sizeof(*w));
    assert_int_equal(ps_loop_new(&w->loop), 0);
    opt.loop = w->loop;
    assert_int_equal(ps_worker_new(&opt, &w->worker), 0);
    w->a = malloc(LARGE * sizeof(float));
    w->b = malloc(LARGE * sizeof(float));
    for (unsigned i = 0; i < LARGE; i++) {
        w->a[i] = (float)i;
        w->b[i] = (float)(i % 97) * 0.5f;
    }
}

static void end(struct world *w)
{
    ps_worker_free(w->worker);
    ps_loop_free(w->loop);
    free(w->a);
    free(w->b);
    assert_int_equal(ps_alloc_live(), 0);
}

static void keep(struct ps_loop_timer *t)
{
    (void)t;
}

/* The worker alone does not keep a loop running: a far deadline does. */
static void run_until_done(struct world *w, unsigned count)
{
    struct ps_loop_timer far = {.due = keep};

    ps_loop_timer_set(w->loop, &far, ps_loop_now(w->loop) + PS_SECONDS(60));
    while (w->order < count) {
        (void)ps_worker_run_small(w->worker);
        if (w->order < count) {
            assert_true(ps_loop_step(w->loop));
        }
    }
    ps_loop_timer_set(w->loop, &far, PS_TIME_NEVER);
}

static void check(const struct world *w, const struct job *j)
{
    assert_int_equal(j->rc, 0);
    for (uint64_t i = 0; i < j->job.count; i++) {
        if (j->dst[i] != w->a[i] + w->b[i]) {
            fail_msg("element %llu", (unsigned long long)i);
        }
    }
}

static void threads_share_one_job(void **state)
{
    struct world w;
    struct job j;

    (void)state;
    begin_world(&w, 4);
    assert_int_equal(ps_worker_threads(w.worker), 4);
    job_init(&j, w.a, w.b, LARGE - 5, &w.order);
    ps_worker_submit(w.worker, &j.task);
    assert_int_equal(w.order, 0);
    run_until_done(&w, 1);
    check(&w, &j);
    free(j.dst);
    end(&w);
}

static void all_submitted_jobs_end(void **state)
{
    struct job jobs[64];
    struct world w;

    (void)state;
    begin_world(&w, 3);
    for (unsigned i = 0; i < 64; i++) {
        job_init(&jobs[i], w.a, w.b, 1 + (uint64_t)i * 4001, &w.order);
        ps_worker_submit(w.worker, &jobs[i].task);
    }
    run_until_done(&w, 64);
    for (unsigned i = 0; i < 64; i++) {
        check(&w, &jobs[i]);
        free(jobs[i].dst);
    }
    end(&w);
}

static void small_jobs_run_in_order_after_submission(void **state)
{
    struct job jobs[8];
    struct world w;

    (void)state;
    begin_world(&w, 1);
    for (unsigned i = 0; i < 8; i++) {
        job_init(&jobs[i], w.a, w.b, 1024, &w.order);
        ps_worker_submit(w.worker, &jobs[i].task);
    }
    assert_int_equal(w.order, 0);
    assert_true(ps_worker_run_small(w.worker));
    assert_false(ps_worker_run_small(w.worker));
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(jobs[i].place, i + 1);
        check(&w, &jobs[i]);
        free(jobs[i].dst);
    }
    end(&w);
}

/* Too large to be one of many on the loop, too small to wake a thread for. */
static void single_medium_job_wakes_no_thread(void **state)
{
    struct job jobs[3];
    struct world w;

    (void)state;
    begin_world(&w, 2);
    for (unsigned i = 0; i < 3; i++) {
        job_init(&jobs[i], w.a, w.b, 20000, &w.order);
    }
    ps_worker_submit(w.worker, &jobs[0].task);
    ps_worker_submit(w.worker, &jobs[1].task); /* Not alone. */
    assert_true(ps_worker_run_small(w.worker));
    assert_int_equal(jobs[0].place, 1);
    assert_false(ps_worker_run_small(w.worker));
    run_until_done(&w, 2);
    ps_worker_submit(w.worker, &jobs[2].task);
    assert_true(ps_worker_run_small(w.worker));
    assert_int_equal(jobs[2].place, 3);
    for (unsigned i = 0; i < 3; i++) {
        check(&w, &jobs[i]);
        free(jobs[i].dst);
    }
    end(&w);
}

static void a_small_job_may_submit_another(void **state)
{
    struct world w;
    struct job j;

    (void)state;
    begin_world(&w, 1);
    job_init(&j, w.a, w.b, 16, &w.order);
    j.resubmit = w.worker;
    ps_worker_submit(w.worker, &j.task);
    assert_true(ps_worker_run_small(w.worker));
    assert_int_equal(w.order, 1); /* The second waits for the next call. */
    assert_true(ps_worker_run_small(w.worker));
    assert_int_equal(w.order, 2);
    free(j.dst);
    end(&w);
}

static void refused_job_returns_an_error(void **state)
{
    struct job jobs[2];
    struct world w;

    (void)state;
    begin_world(&w, 2);
    for (unsigned i = 0; i < 2; i++) {
        job_init(&jobs[i], w.a, w.b, i == 0 ? 16 : LARGE, &w.order);
        jobs[i].job.op = PS_JOB_SGD; /* Without weights. */
        jobs[i].job.dtype = PS_DTYPE_INT32;
        ps_worker_submit(w.worker, &jobs[i].task);
    }
    run_until_done(&w, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(jobs[i].rc, PS_E_INVAL);
        free(jobs[i].dst);
    }
    end(&w);
}

/* Every task ends, complete or cancelled, when the worker is freed. */
static void free_ends_remaining_tasks(void **state)
{
    struct job jobs[40];
    struct world w;

    (void)state;
    begin_world(&w, 2);
    for (unsigned i = 0; i < 40; i++) {
        job_init(&jobs[i], w.a, w.b, i % 8 == 0 ? 16 : LARGE, &w.order);
        ps_worker_submit(w.worker, &jobs[i].task);
    }
    ps_worker_free(w.worker);
    w.worker = NULL;
    assert_int_equal(w.order, 40);
    for (unsigned i = 0; i < 40; i++) {
        assert_true(jobs[i].rc == 0 || jobs[i].rc == PS_E_CANCELED);
        if (jobs[i].rc == 0) {
            check(&w, &jobs[i]);
        }
        free(jobs[i].dst);
    }
    assert_int_equal(jobs[0].rc, PS_E_CANCELED); /* Small, never run. */
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_one_job),
        cmocka_unit_test(all_submitted_jobs_end),
        cmocka_unit_test(small_jobs_run_in_order_after_submission),
        cmocka_unit_test(single_medium_job_wakes_no_thread),
        cmocka_unit_test(a_small_job_may_submit_another),
        cmocka_unit_test(refused_job_returns_an_error),
        cmocka_unit_test(free_ends_remaining_tasks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
