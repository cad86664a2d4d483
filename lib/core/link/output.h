/* SPDX-License-Identifier: Apache-2.0 */
/* Limits on what peers can cost a driver: output that waits for them, and
 * connections before their handshake. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "core/base/machine.h"

#include <stdbool.h>

struct ps_output_user;

/* ------------------------------------------------------------------ output */

/* Output that waits for peers, and the connection that is closed when there is
 * too much of it. Each connection has an account, which counts at its user's
 * (workers of one uid; all tools that connect by TCP, whose user is unknown)
 * and at the daemon's. A connection that exceeds its own limit is closed. Where
 * the user's or the daemon's limit is reached, or memory is used up, the
 * connection that holds most is closed, so that no other peer pays for one that
 * does not read.
 *
 * A driver has one struct ps_output, and a struct ps_output_conn in each
 * connection. It reports the bytes that are queued, and carries out the
 * closes. */

struct ps_output_options {
    enum ps_role self;
    /* Borrowed; its account is the parent of all accounts here. */
    const struct ps_machine *machine;
    /* Limits in bytes: of a worker or tool, of a daemon, in all. 0: the default
     * of base/limits.h. */
    uint64_t caller;
    uint64_t link;
    uint64_t total;
    /* Least memory of a connection that is closed because memory is used up; 0:
     * PS_RESERVE_EVICT_MIN. */
    uint64_t evict_min;
};

struct ps_output {
    struct ps_output_options opt;
    struct ps_account total;
    struct ps_account_limits caller_limits; /* Workers and tools. */
    struct ps_account_limits link_limits;   /* Daemons. */
    struct ps_account_limits user_limits;
    struct ps_account_limits total_limits;
    struct ps_map *users; /* struct ps_output_user by uid. */
    struct ps_list conns; /* Oldest first. */
    /* Closed because memory was used up, and not gone yet; NULL: none. */
    struct ps_output_conn *evicted;
};

struct ps_output_conn {
    struct ps_output *output;
    struct ps_list_node node;
    ps_conn_id id;
    enum ps_conn_kind kind;
    bool is_closing; /* Asked to close. */
    struct ps_account account;
    struct ps_output_user *user; /* Of a worker or tool; else NULL. */
};

/* A connection that the driver closes at once. */
struct ps_output_close {
    struct ps_output_conn *conn;
    int rc;
    char text[PS_TEXT_MAX];
};

void ps_output_init(struct ps_output *o, const struct ps_output_options *opt);
/* All connections must be removed. */
void ps_output_fini(struct ps_output *o);

/* `open` is the OPEN event of the connection. */
void ps_output_add(struct ps_output *o, struct ps_output_conn *c,
                   const struct ps_event *open);
/* The first frame of `c` has arrived, from a peer of this role. */
void ps_output_on_hello(struct ps_output_conn *c, enum ps_role role);
/* The connection writes what is queued, and closes. */
void ps_output_finish(struct ps_output_conn *c);
/* The connection is closed at once. Releases what it has queued, early: it is
 * freed very soon. */
void ps_output_abort(struct ps_output_conn *c);
/* The connection is closed. Also for one that was removed or never added. */
void ps_output_remove(struct ps_output_conn *c);

/* Sets the memory of the queued output of `c`. False: it counts. True: a limit
 * refuses it; the driver closes `ret_close->conn`, and reports again unless
 * that is `c`. */
PS_MUST_USE bool ps_output_update(struct ps_output_conn *c, uint64_t queued,
                                  struct ps_output_close *ret_close);
/* Shortens the error text of a message to a worker if its queued output is
 * large. */
void ps_output_shorten(const struct ps_output_conn *c, struct ps_msg *msg);

/* True while a connection that was closed because memory is used up is not
 * gone. */
static inline bool ps_output_is_evicting(const struct ps_output *o)
{
    return o->evicted != NULL;
}
/* Memory is used up. True: the driver closes `ret_close->conn`, which holds
 * most, with what the machine keeps for it; false: none holds much. */
PS_MUST_USE bool ps_output_evict(struct ps_output *o,
                                 struct ps_output_close *ret_close);

/* -------------------------------------------------------------- handshakes */

/* Accepted connections that have not completed their handshake. Their number is
 * limited, so that peers that send nothing cannot keep others out: one more
 * closes the oldest of its own source, if that has a quarter of the places, or
 * else the oldest. So one source cannot close those of others. */

struct ps_pre_handshake {
    struct ps_list conns; /* Oldest first. */
    uint32_t count;
    uint32_t max;
};

struct ps_pre_handshake_conn {
    struct ps_list_node node;
    ps_conn_id id;
    uint64_t source; /* Number of the peer's host, or user. */
    bool is_evicted; /* Asked to close; stays in the list until it is. */
};

void ps_pre_handshake_init(struct ps_pre_handshake *p, uint32_t max);
/* Connection `c->id` of `c->source` is accepted. Closes another one if there are
 * as many as the limit allows. */
void ps_pre_handshake_add(struct ps_pre_handshake *p,
                          struct ps_pre_handshake_conn *c,
                          struct ps_effects *fx);
/* The handshake of `c` is complete, or it is closed. Also for one that was
 * removed or never added. */
void ps_pre_handshake_remove(struct ps_pre_handshake *p,
                             struct ps_pre_handshake_conn *c);
