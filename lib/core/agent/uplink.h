/* SPDX-License-Identifier: Apache-2.0 */
/* Scheduler: reports to it, its messages. */
#pragma once

#include "base/time.h"
#include "core/base/machine.h"

struct ps_agent;
struct ps_agent_step;
struct ps_msg;
struct ps_slice;

void ps_agent_uplink_init(struct ps_agent *a, ps_time now);
/* `liveness_address` NULL: none. */
void ps_agent_uplink_on_open(struct ps_agent_step *st, ps_conn_id conn,
                             const char *liveness_address);
void ps_agent_uplink_on_msg(struct ps_agent_step *st, ps_conn_id conn,
                            const struct ps_msg *m,
                            const struct ps_slice *payload);
