/* SPDX-License-Identifier: Apache-2.0 */
/* The link to the scheduler: reports, messages. */
#pragma once

#include "core/server/inner.h"
#include "core/server/sessions.h"

static inline struct ps_uplink_call
ps_server_uplink_call(struct ps_server_step *st)
{
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}
void ps_server_uplink_init(struct ps_server *s, ps_time now);
void ps_server_uplink_on_msg(struct ps_server_step *st, ps_conn_id conn,
                             const struct ps_msg *msg,
                             const struct ps_slice *payload);
int ps_server_uplink_payload(struct ps_server *s, const struct ps_msg *msg,
                             uint64_t len, struct ps_slice *ret_slice);
