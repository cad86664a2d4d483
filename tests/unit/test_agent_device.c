/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on memory of GPUs at the agent machine: no step touches it, jobs
 * read it, and a round ends when its value is delivered. */
#include "agent_world.h"

#include "base/alloc.h"

#define EACH  64u
#define BYTES (EACH * sizeof(float))

static int gpu; /* What `device` of buffers points to. */

/* Registers memory of a GPU as region `number` of the worker. */
static struct ps_buf *share_device(struct bench *b, uint32_t worker,
                                   uint32_t number)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN + worker};
    struct ps_buf *buf = ps_buf_new(BYTES);

    for (size_t i = 0; i < EACH; i++) {
        ((float *)(void *)buf->data)[i] = (float)(worker + 1);
    }
    buf->device = &gpu;
    ev.region.region = number;
    ev.region.buf = buf;
    feed_event(b, ev);
    return buf;
}

static void submit_device(struct bench *b, uint32_t worker, uint64_t round,
                          uint8_t op)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_DEVICE_OP,
                                 .l_device_op = {.op_id = 100 + round,
                                                 .op = op,
                                                 .key = 5,
                                                 .region = 2,
                                                 .round = round,
                                                 .out_region = 3}},
                NULL);
}

/* Runs the first computation as the driver does, unless it fails. */
static void run_one(struct bench *b, int rc)
{
    struct ps_compute *c = b->computations[0];
    struct ps_event ev = {.type = PS_EV_COMPUTED};

    assert_true(b->computation_count > 0);
    memmove(b->computations, b->computations + 1,
            --b->computation_count * sizeof(b->computations[0]));
    for (uint32_t i = 0; i < c->out_count && rc == 0; i++) {
        memcpy(ps_slice_data(&c->outs[i]), c->job.src[0], c->outs[i].len);
    }
    if (c->out_count == 0 && rc == 0) {
        assert_true(c->reads_device);
        rc = ps_kernel_run(&c->job);
    }
    ev.computed.token = c->token;
    ev.computed.rc = rc;
    ps_compute_free(c);
    feed_event(b, ev);
}

struct gpus {
    struct bench b;
    struct ps_buf *src[2];
    struct ps_buf *out[2];
};

static void begin_gpus(struct gpus *g, uint32_t workers, uint32_t node)
{
    begin_bench(&g->b, workers, node == 0 ? 0 : 1);
    for (uint32_t w = 0; w < workers; w++) {
        g->src[w] = share_device(&g->b, w, 2);
        g->out[w] = share_device(&g->b, w, 3);
    }
    open_key(&g->b, 5, 1, EACH, node);
    if (node != 0) {
        feed_tick(&g->b);
        connect_server(&g->b, false, 0);
    }
    drop_sent(&g->b);
}

static void end_gpus(struct gpus *g)
{
    end_bench(&g->b);
    for (uint32_t w = 0; w < 2; w++) {
        ps_buf_unref(g->src[w]);
        ps_buf_unref(g->out[w]);
    }
}

static float first_of(const struct ps_buf *buf)
{
    return ((const float *)(const void *)buf->data)[0];
}

static void a_round_ends_when_its_value_is_delivered(void **state)
{
    struct gpus g = {0};

    (void)state;
    begin_gpus(&g, 2, 0);
    submit_device(&g.b, 0, 1, PS_OP_PUSHPULL);
    submit_device(&g.b, 1, 1, PS_OP_PUSHPULL);
    run_one(&g.b, 0);
    assert_int_equal(count_sent(&g.b, WORKER_CONN, PS_MSG_L_DONE), 0);
    assert_int_equal(g.b.computation_count, 1);
    assert_int_equal(g.b.computations[0]->out_count, 2);
    run_one(&g.b, 0);
    for (uint32_t w = 0; w < 2; w++) {
        assert_int_equal(last_op_done(&g.b, w)->version, 1);
        assert_false(last_op_done(&g.b, w)->is_undelivered);
        assert_true(first_of(g.out[w]) == 3);
    }
    end_gpus(&g);
}

static void a_single_source_goes_to_the_server_by_a_job(void **state)
{
    struct gpus g = {0};

    (void)state;
    begin_gpus(&g, 1, SERVER_NODE);
    submit_device(&g.b, 0, 1, PS_OP_PUSHPULL);
    assert_int_equal(count_sent(&g.b, SERVER_CONN, PS_MSG_PUSH), 0);
    run_one(&g.b, 0);
    feed_tick(&g.b);
    assert_int_equal(count_sent(&g.b, SERVER_CONN, PS_MSG_PUSH), 1);
    deliver_value(&g.b, 5, 0, 1, EACH, 8, 0);
    assert_int_equal(count_sent(&g.b, WORKER_CONN, PS_MSG_L_DONE), 0);
    run_one(&g.b, 0);
    assert_int_equal(last_op_done(&g.b, 0)->version, 1);
    assert_true(first_of(g.out[0]) == 8);
    end_gpus(&g);
}

static void a_failed_delivery_leaves_the_value_in_the_results(void **state)
{
    struct gpus g = {0};

    (void)state;
    begin_gpus(&g, 1, 0);
    submit_device(&g.b, 0, 1, PS_OP_PUSHPULL);
    run_one(&g.b, 0);
    run_one(&g.b, PS_E_IO);
    assert_int_equal(last_op_done(&g.b, 0)->error, 0);
    assert_true(last_op_done(&g.b, 0)->is_undelivered);
    submit_device(&g.b, 0, 2, PS_OP_PUSHPULL);
    run_one(&g.b, 0);
    run_one(&g.b, 0);
    assert_int_equal(last_op_done(&g.b, 0)->version, 2);
    assert_false(last_op_done(&g.b, 0)->is_undelivered);
    end_gpus(&g);
}

static void a_sum_that_fails_fails_the_round(void **state)
{
    struct gpus g = {0};

    (void)state;
    begin_gpus(&g, 1, 0);
    submit_device(&g.b, 0, 1, PS_OP_PUSHPULL);
    run_one(&g.b, PS_E_IO);
    assert_int_equal(last_op_done(&g.b, 0)->error, PS_E_IO);
    assert_int_equal(g.b.computation_count, 0);
    end_gpus(&g);
}

static void a_worker_that_dies_gets_nothing_delivered(void **state)
{
    struct gpus g = {0};

    (void)state;
    begin_gpus(&g, 2, 0);
    submit_device(&g.b, 1, 1, PS_OP_PUSHPULL);
    kill_worker(&g.b, 1);
    submit_device(&g.b, 0, 1, PS_OP_PUSHPULL);
    run_one(&g.b, 0);
    assert_int_equal(g.b.computations[0]->out_count, 1);
    run_one(&g.b, 0);
    assert_int_equal(last_op_done(&g.b, 0)->version, 1);
    assert_true(first_of(g.out[0]) == 3);
    assert_true(first_of(g.out[1]) == 2);
    end_gpus(&g);
}

static void other_operations_are_refused(void **state)
{
    static const uint8_t refused[] = {PS_OP_INIT, PS_OP_PULL, PS_OP_SKIP};
    struct ps_msg_l_op op = pushpull_op(5, 1);
    struct gpus g = {0};

    (void)state;
    begin_gpus(&g, 1, 0);
    for (size_t i = 0; i < sizeof(refused); i++) {
        submit_device(&g.b, 0, 1, refused[i]);
        assert_int_equal(last_op_done(&g.b, 0)->error, PS_E_UNSUPPORTED);
    }
    /* An array of a GPU in a message for the host's. */
    op.op = PS_OP_INIT;
    op.region = 2;
    op.round = 0;
    submit_op(&g.b, 0, op);
    assert_int_equal(last_op_done(&g.b, 0)->error, PS_E_UNSUPPORTED);
    end_gpus(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_ends_when_its_value_is_delivered),
        cmocka_unit_test(a_single_source_goes_to_the_server_by_a_job),
        cmocka_unit_test(a_failed_delivery_leaves_the_value_in_the_results),
        cmocka_unit_test(a_sum_that_fails_fails_the_round),
        cmocka_unit_test(a_worker_that_dies_gets_nothing_delivered),
        cmocka_unit_test(other_operations_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
