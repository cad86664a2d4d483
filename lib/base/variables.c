/* SPDX-License-Identifier: Apache-2.0 */
#include "base/variables.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const ps_variables[] = {
    "PSKV_AGENT_RETRY",
    "PSKV_BIG_ARRAY_BOUND",
    "PSKV_BINDIR", /* Python: directory of psched and psserver. */
    "PSKV_CLOSE_TIMEOUT",
    "PSKV_CONNECT_TIMEOUT",
    "PSKV_CONTEXT",      /* psctl: the context in use. */
    "PSKV_CUDA_DRIVER",  /* CUDA's driver, in place of libcuda.so.1. */
    "PSKV_CUBLAS",       /* The same for cuBLAS. */
    "PSKV_HOST_ADDRESS", /* pslaunch: address of a pod, or its own. */
    "PSKV_JOB",
    "PSKV_LAUNCHER",   /* Set by pslaunch, which has checked these names. */
    "PSKV_LAUNCH_TLS", /* pslaunch: --tls. */
    "PSKV_LIBRARY",    /* Python: path of the library. */
    "PSKV_MODE",
    "PSKV_MPIRUN", /* pslaunch: command in place of mpirun. */
    "PSKV_NUM_SERVERS",
    "PSKV_NUM_WORKERS",
    "PSKV_ON_LOSS",
    "PSKV_OP_TIMEOUT",
    "PSKV_PARTITION_BYTES",
    "PSKV_PLACEMENT",
    "PSKV_RANK",
    "PSKV_REPLICAS",
    "PSKV_RULE",
    "PSKV_SCHED", /* psctl: address of the scheduler. */
    "PSKV_SOCKET",
    "PSKV_SPIN",
    "PSKV_SSH", /* pslaunch: command in place of ssh. */
    "PSKV_STALENESS",
    "PSKV_START_TIMEOUT",
    "PSKV_TLS", /* psctl: folder of a certificate. */
    "PSKV_TOKEN_FD",
    "PSKV_TOKEN_FILE",
    "PSKV_WAIT_NOTES",
    "PSKV_WEIGHT",
    NULL,
};

/* Used by this project's tests. */
static const char *const test_prefixes[] = {"PSKV_TEST_", "PSKV_BUILD_",
                                            "PSKV_EMU_", "PSKV_TORCH_"};

static int is_known_variable(const char *name)
{
    for (size_t i = 0; i < sizeof(test_prefixes) / sizeof(test_prefixes[0]);
         i++) {
        if (strncmp(name, test_prefixes[i], strlen(test_prefixes[i])) == 0) {
            return 1;
        }
    }
    for (size_t i = 0; ps_variables[i] != NULL; i++) {
        if (strcmp(name, ps_variables[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

const char *ps_variables_unknown(char *const *env, size_t *cursor,
                                 const char **ret_nearest)
{
    while (env != NULL && env[*cursor] != NULL) {
        const char *entry = env[(*cursor)++];
        char name[PS_NEAREST_MAX + 1];
        size_t len = strcspn(entry, "=");

        if (strncmp(entry, "PSKV_", 5) != 0) {
            continue;
        }
        len = len < sizeof(name) ? len : sizeof(name) - 1;
        memcpy(name, entry, len);
        name[len] = '\0';
        if (!is_known_variable(name)) {
            *ret_nearest = ps_nearest(ps_variables, name);
            return entry;
        }
    }
    return NULL;
}

bool ps_runtime_folder(char *out, size_t cap)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n = runtime != NULL && runtime[0] == '/'
                ? snprintf(out, cap, "%s/pskv", runtime)
                : -1;

    return n > 0 && (size_t)n < cap;
}

void ps_runtime_socket(const char *name, char *out, size_t cap)
{
    const size_t len = ps_runtime_folder(out, cap) ? strlen(out) : cap;

    if (len < cap) {
        int n = snprintf(out + len, cap - len, "/%s", name);

        if (n > 0 && (size_t)n < cap - len && access(out, F_OK) == 0) {
            return;
        }
    }
    (void)snprintf(out, cap, "/run/pskv/%s", name);
}
