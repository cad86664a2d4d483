/* SPDX-License-Identifier: Apache-2.0 */
/* Accepted connections that have not completed their handshake. Their number is
 * limited, so that peers that send nothing cannot keep others out: one more
 * closes the oldest of its own source, if that has a quarter of the places, or
 * else the oldest. So one source cannot close those of others. */
#pragma once

#include "base/list.h"
#include "core/base/effect.h"

#include <stdbool.h>

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
