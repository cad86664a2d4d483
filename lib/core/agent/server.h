/* SPDX-License-Identifier: Apache-2.0 */
/* Links to servers: map, dialling, pings. */
#pragma once

#include "base/time.h"
#include "core/base/machine.h"

struct ps_agent;
struct ps_agent_server;
struct ps_agent_step;
struct ps_event;
struct ps_msg_map;
struct ps_msg_ping_req;
struct ps_slice;

void ps_agent_server_on_open(struct ps_agent_step *st,
                             const struct ps_event *ev);
void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why);
void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn);
/* Frames on `conn` are not acknowledged: dials a second connection. */
void ps_agent_server_on_stalled(struct ps_agent_step *st,
                                struct ps_agent_server *s, ps_conn_id conn);
void ps_agent_server_on_ping_req(struct ps_agent_step *st,
                                 const struct ps_msg_ping_req *m);
void ps_agent_server_tick(struct ps_agent_step *st, struct ps_agent_server *s);
ps_time ps_agent_server_deadline(const struct ps_agent *a,
                                 const struct ps_agent_server *s);
struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node);
void ps_agent_server_on_map(struct ps_agent_step *st,
                            const struct ps_msg_map *m);
/* A message has arrived on the server's connection. */
void ps_agent_server_on_recv(struct ps_agent_step *st,
                             struct ps_agent_server *s);
void ps_agent_server_note(struct ps_agent_step *st,
                          const struct ps_agent_server *s, const char *why);
void ps_agent_server_free(struct ps_agent_server *s);
/* Stops dialling the server and drops its link if no job uses it any more. */
void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s);
/* Memory for a payload without a final place. */
int ps_agent_server_alloc_payload(struct ps_agent *a, uint64_t len,
                                  struct ps_slice *ret_slice);
