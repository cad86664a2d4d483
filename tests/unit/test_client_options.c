/* SPDX-License-Identifier: Apache-2.0 */
/* Options from the environment. */
#include "client/psclient.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct psc_options o;
static char err[PSC_TEXT_MAX];

/* Reads with these variables alone; NAME=VALUE strings, NULL at the end. */
static int read_with(const char *const *set)
{
    static char output[64]; /* Output format of cmocka. */
    const char *kept = getenv("CMOCKA_MESSAGE_OUTPUT");

    if (kept != NULL && output[0] == '\0') {
        snprintf(output, sizeof(output), "CMOCKA_MESSAGE_OUTPUT=%s", kept);
    }
    clearenv();
    if (output[0] != '\0') {
        putenv(output);
    }
    for (; *set != NULL; set++) {
        assert_int_equal(putenv((char *)(uintptr_t)*set), 0);
    }
    psc_options_init(&o, sizeof(o));
    err[0] = '\0';
    return psc_options_env(&o, err, sizeof(err));
}

#define READ(...) read_with((const char *const[]){__VA_ARGS__, NULL})

static void options_without_variables_are_the_defaults(void **state)
{
    (void)state;
    assert_int_equal(read_with((const char *const[]){NULL}), 0);
    assert_int_equal(o.rank, PSC_RANK_ANY);
    assert_int_equal(o.num_workers, 1);
    assert_int_equal(o.num_servers, 1);
    assert_string_equal(o.job, "default");
    assert_string_equal(o.socket, PSC_DEFAULT_SOCKET);
    assert_int_equal(o.op_timeout_ms, 0);
    assert_int_equal(o.spin_us, 0);
    assert_int_equal(o.agent_retry_ms, 60000);
    assert_int_equal(o.on_loss, PSC_ON_LOSS_FAIL);
}

static void variable_of_polling_is_a_number_or_auto(void **state)
{
    (void)state;
    assert_int_equal(READ("PSKV_SPIN=0"), 0);
    assert_int_equal(o.spin_us, -1);
    assert_int_equal(READ("PSKV_SPIN=auto"), 0);
    assert_int_equal(o.spin_us, 0);
}

static void variables_of_pskv_set_all_options(void **state)
{
    (void)state;
    assert_int_equal(
        READ("PSKV_SOCKET=/x/y.sock", "PSKV_JOB=fashion", "PSKV_RANK=3",
             "PSKV_NUM_WORKERS=8", "PSKV_NUM_SERVERS=0", "PSKV_MODE=sync",
             "PSKV_ON_LOSS=wait", "PSKV_PLACEMENT=mxnet",
             "PSKV_PARTITION_BYTES=65536", "PSKV_BIG_ARRAY_BOUND=77",
             "MXNET_KVSTORE_BIGARRAY_BOUND=88", "PSKV_OP_TIMEOUT=250ms",
             "PSKV_START_TIMEOUT=2m", "PSKV_CLOSE_TIMEOUT=3", "PSKV_SPIN=40",
             "PSKV_AGENT_RETRY=1.5s", "PSKV_WEIGHT=250",
             "PSKV_TOKEN_FILE=/x/token"),
        0);
    assert_int_equal(o.agent_retry_ms, 1500);
    assert_string_equal(o.socket, "/x/y.sock");
    assert_string_equal(o.job, "fashion");
    assert_int_equal(o.rank, 3);
    assert_int_equal(o.num_workers, 8);
    assert_int_equal(o.num_servers, 0);
    assert_int_equal(o.on_loss, PSC_ON_LOSS_WAIT);
    assert_int_equal(o.placement, PSC_PLACEMENT_MXNET);
    assert_int_equal(o.partition_bytes, 65536);
    assert_int_equal(o.big_array_bound, 77);
    assert_int_equal(o.op_timeout_ms, 250);
    assert_int_equal(o.start_timeout_ms, 120000);
    assert_int_equal(o.close_timeout_ms, 3000);
    assert_int_equal(o.spin_us, 40);
    assert_int_equal(o.weight, 250);
    assert_string_equal(o.token_file, "/x/token");
}

static void variables_of_older_systems_are_read(void **state)
{
    (void)state;
    assert_int_equal(READ("DMLC_NUM_WORKER=4", "DMLC_NUM_SERVER=2",
                          "DMLC_WORKER_ID=1", "DMLC_TASK_ID=3",
                          "MXNET_KVSTORE_BIGARRAY_BOUND=88"),
                     0);
    assert_int_equal(o.num_workers, 4);
    assert_int_equal(o.num_servers, 2);
    assert_int_equal(o.rank, 1);
    assert_int_equal(o.big_array_bound, 88);
    assert_int_equal(READ("DMLC_TASK_ID=3", "DMLC_NUM_WORKER=4"), 0);
    assert_int_equal(o.rank, 3);
    assert_int_equal(READ("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3"),
                     0);
    assert_int_equal(o.rank, 2);
    assert_int_equal(o.num_workers, 3);
    assert_int_equal(READ("SLURM_PROCID=5", "SLURM_NTASKS=6"), 0);
    assert_int_equal(o.rank, 5);
    assert_int_equal(READ("PMI_RANK=0", "PMI_SIZE=2"), 0);
    assert_int_equal(o.rank, 0);
    assert_int_equal(o.num_workers, 2);
}

static void first_complete_pair_of_rank_and_size_counts(void **state)
{
    (void)state;
    /* A stray RANK is ignored. */
    assert_int_equal(READ("RANK=7", "SLURM_PROCID=1", "SLURM_NTASKS=2"), 0);
    assert_int_equal(o.rank, 1);
    /* So are the variables of another launcher. */
    assert_int_equal(READ("DMLC_NUM_WORKER=4", "RANK=0", "WORLD_SIZE=1",
                          "SLURM_PROCID=3", "SLURM_NTASKS=4"),
                     0);
    assert_int_equal(o.rank, 3);
    assert_int_equal(o.num_workers, 4);
    /* A job of another size, whose ranks would be those of arrival, is none of
     * this launcher. */
    assert_int_equal(READ("PSKV_NUM_WORKERS=2", "OMPI_COMM_WORLD_RANK=3",
                          "OMPI_COMM_WORLD_SIZE=4"),
                     PSC_E_INVAL);
    assert_non_null(strstr(err, "OMPI_COMM_WORLD_SIZE is '4', but must be 2"));
    assert_int_equal(READ("PSKV_NUM_WORKERS=2", "OMPI_COMM_WORLD_RANK=0",
                          "OMPI_COMM_WORLD_SIZE=1"),
                     0);
    assert_int_equal(READ("PSKV_NUM_WORKERS=2", "PSKV_RANK=1",
                          "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4"),
                     0);
    /* pskv's own rank takes precedence over the launcher's. */
    assert_int_equal(READ("PSKV_RANK=1", "RANK=0", "WORLD_SIZE=2"), 0);
    assert_int_equal(o.rank, 1);
    assert_int_equal(o.num_workers, 2);
}

static void invalid_variables_are_named(void **state)
{
    static const char *const bad[] = {
        "PSKV_RANK=one",
        "PSKV_RANK=-1",
        "PSKV_NUM_WORKERS=0",
        "PSKV_NUM_WORKERS=99999999999999999999",
        "PSKV_NUM_SERVERS=2x",
        "PSKV_MODE=later",
        "PSKV_ON_LOSS=shrug",
        "PSKV_PLACEMENT=hash",
        "PSKV_OP_TIMEOUT=10 parsecs",
        "PSKV_OP_TIMEOUT=-1",
        "PSKV_PARTITION_BYTES=1",
        "PSKV_SPIN=often",
        "PSKV_SPIN=1000001",
        "PSKV_WEIGHT=0",
        "PSKV_WEIGHT=1001",
        "DMLC_NUM_WORKER=1.5",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char name[64] = {0};
        struct psc_options before;

        assert_int_equal(read_with((const char *const[]){bad[i], NULL}),
                         PSC_E_INVAL);
        memcpy(name, bad[i], strcspn(bad[i], "="));
        assert_non_null(strstr(err, name));
        assert_non_null(strstr(err, strchr(bad[i], '=') + 1));
        /* All or nothing. */
        psc_options_init(&before, sizeof(before));
        assert_memory_equal(&before, &o, sizeof(o));
    }
    assert_int_equal(READ("RANK=4", "WORLD_SIZE=4"), PSC_E_INVAL);
    assert_int_equal(psc_options_env(&o, NULL, 0), PSC_E_INVAL);
}

static void options_of_other_sizes_are_accepted(void **state)
{
    struct {
        struct psc_options known;
        uint64_t later;
    } newer;
    struct psc_options old;

    (void)state;
    memset(&newer, 0xff, sizeof(newer));
    psc_options_init(&newer.known, sizeof(newer));
    assert_int_equal(newer.later, 0);
    assert_int_equal(newer.known.size, sizeof(struct psc_options));
    memset(&old, 0xff, sizeof(old));
    psc_options_init(&old, offsetof(struct psc_options, op_timeout_ms));
    assert_int_equal(old.op_timeout_ms, -1);
    assert_int_equal(READ("PSKV_OP_TIMEOUT=1s"), 0);
    assert_int_equal(psc_options_env(&old, NULL, 0), 0);
    assert_int_equal(old.op_timeout_ms, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_without_variables_are_the_defaults),
        cmocka_unit_test(variables_of_pskv_set_all_options),
        cmocka_unit_test(variable_of_polling_is_a_number_or_auto),
        cmocka_unit_test(variables_of_older_systems_are_read),
        cmocka_unit_test(first_complete_pair_of_rank_and_size_counts),
        cmocka_unit_test(invalid_variables_are_named),
        cmocka_unit_test(options_of_other_sizes_are_accepted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
