/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of the processes of a job. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "pslaunch/plan.h"

struct env {
    char **items; /* "NAME=VALUE"; NULL ends the list. */
    size_t count;
    size_t capacity;
};

/* Addresses and paths for the variables of a worker. */
struct places {
    const char *socket; /* Of the worker's agent. */
    /* Address and port of psched; NULL: not known. */
    const char *sched_host;
    const char *sched_port;
    /* Where rank 0 may serve the store of torch; NULL: as it is set. */
    const char *store_host;
    const char *store_port;
};

/* All variables of a worker: pslaunch's own on this host, on other hosts those
 * that are passed on; then those of the job, then those of options. */
void env_of_worker(const struct plan *p, uint32_t rank, const struct places *at,
                   struct env *ret_env);
/* The same for a server. */
void env_of_server(const struct plan *p, struct env *ret_env);
void env_fini(struct env *e);
