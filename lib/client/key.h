/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: the table by number and name, and declarations to the agent. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/list.h"
#include "base/num.h"
#include "proto/ps_msg.h"

struct ps_shm_block;
struct psc_client;
struct psc_op;

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

/* Bytes of `count` row numbers, padded to 8; the rows follow. */
static inline uint64_t key_row_numbers_bytes(uint32_t count)
{
    return ps_round_up(count * (uint64_t)sizeof(uint32_t), 8);
}

/* Bytes of one row. */
static inline size_t key_row_bytes(const struct key *k)
{
    return k->row_width * ps_dtype_size(k->dtype);
}

/* Bytes of the name of an integer key, with the terminator. */
#define KEY_DIGITS_MAX 24u

/* A declaration. */
struct key_request {
    enum ps_key_kind kind;
    const char *name;
    int64_t mxnet_key; /* Number of an integer key; -1: another kind. */
    uint32_t dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint32_t row_width; /* Elements of a row; 0: a dense key. */
    uint8_t if_absent;  /* enum ps_if_absent */
    uint64_t count;
    uint64_t bytes;
};

/* The ready key of that number; NULL: PSC_E_NOKEY. */
struct key *key_of(struct psc_client *c, uint32_t number);
/* The key of that kind and name, or NULL. */
struct key *key_by_name(const struct psc_client *c, enum ps_key_kind kind,
                        const char *name);
/* True for keys of collectives. */
bool key_is_internal(const struct key *k);
/* Last round that this worker has begun, queued ones included. */
uint64_t key_rounds_begun(const struct key *k);
/* The same over all keys of the program; no later round can end without this
 * worker. */
uint64_t key_newest_round(const struct psc_client *c);
/* The name of the program's key `name`; if that is NULL, of the key `number`,
 * whose digits go to `digits`. On failure sets the detail. */
PS_MUST_USE int key_name_of(struct psc_client *c, const char *name,
                            int64_t number, char digits[KEY_DIGITS_MAX],
                            const char **ret_name);
/* Computes count and bytes of a declaration. On failure sets the detail. */
PS_MUST_USE int key_check_request(struct psc_client *c, struct key_request *w);
/* Compares a declaration with a known key. On failure sets the detail. */
PS_MUST_USE int key_check_same(struct psc_client *c, const struct key *k,
                               const struct key_request *w);
/* Makes a key and its declaration, whose operation is detached: callers wait
 * for the key. The caller flushes. */
PS_MUST_USE int key_declare(struct psc_client *c, const struct key_request *w,
                            struct key **ret_key);
/* The collective key of that name. An unknown key is declared; operations may
 * be queued on it at once. */
PS_MUST_USE int key_get_collective(struct psc_client *c, const char *name,
                                   uint32_t dtype, uint64_t count,
                                   struct key **ret_key);
/* The agent's answer to a declaration. */
void key_accept_info(struct psc_client *c, struct psc_op *op,
                     const struct ps_msg_l_key_info *m);
/* Agent connection lost: marks all keys unbound. */
void key_unbind_all(struct psc_client *c);
/* Declares all keys to the next agent; key_accept_rebind() takes its
 * answers. */
PS_MUST_USE int key_rebind_all(struct psc_client *c);
void key_accept_rebind(struct psc_client *c, const struct ps_msg_l_key_info *m);
void key_free_all(struct psc_client *c);
