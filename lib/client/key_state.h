/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, and the agent's memory that holds their results. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

struct psc_op;
struct ps_shm_block;

struct key {
    uint32_t number;       /* Key number of the public API. */
    uint32_t agent_number; /* Key number of the agent. */
    uint8_t kind;          /* enum ps_key_kind */
    char *name;
    int64_t mxnet_key;
    uint32_t dtype;
    uint64_t count;
    size_t bytes;
    uint32_t row_width; /* Elements of a row; 0: a dense key. */
    /* Dimensions of `shape`, declared again to the next agent. */
    uint32_t ndim;
    uint64_t *shape;
    uint8_t if_absent; /* enum ps_if_absent */
    /* No rounds: results arrive in the operation's block. */
    bool is_async;
    bool is_ready;
    /* Not yet declared to the agent that replaced a lost one. */
    bool is_unbound;
    struct psc_op *open_request; /* Open declaration; NULL once is_ready. */
    /* Not ready: the agent's refusal. Ready: error of an operation without
     * handle, returned by the next call on the key. */
    int rc;
    char *text;
    struct key *next;       /* Next in its bucket. */
    const uint8_t *data[2]; /* Results of even and odd versions. */
    uint64_t round;         /* Last round sent. */
    struct ps_list queue;
    /* Operations SENT or COPYING, and copies of ended ones to a GPU. */
    uint32_t ops_open;
    struct ps_list_node of_stalled; /* Linked when SENT_MAX was reached. */
    struct ps_shm_block *spare;     /* Staging block for reuse; NULL: none. */
};

struct key_table {
    struct key **by_number;
    uint32_t count;
    uint32_t cap;
    struct key **buckets;
    uint32_t bucket_count;  /* A power of two. */
    uint32_t unbound_count; /* Keys with is_unbound. */
};

/* Memory that the agent shares with this process. */
struct arena {
    uint32_t number;
    const void *data;
    uint64_t size;
    bool is_of_lost_agent; /* The agent that shared it is lost. */
    /* Operations whose result lies in it, once the agent is lost. */
    uint32_t uses;
};

struct arena_table {
    struct arena **list;
    size_t count;
    size_t cap;
};
