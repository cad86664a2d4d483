/* SPDX-License-Identifier: Apache-2.0 */
/* Connections and sessions of agents. */
#pragma once

#include "core/server/sessions.h"

void ps_server_session_init(struct ps_server *s);
void ps_server_session_on_open(struct ps_server_step *st, ps_conn_id conn,
                               const char *who);
void ps_server_session_on_ping_req(struct ps_server_step *st,
                                   const struct ps_msg_ping_req *m);
void ps_server_session_on_closed(struct ps_server_step *st, ps_conn_id conn);
void ps_server_session_tick(struct ps_server_step *st);
ps_time ps_server_session_deadline(const struct ps_server *s);
/* Adds the session of the agent that says hello. If there are too many, frees
 * the one disconnected for longest; NULL: all are connected. */
struct ps_server_session *ps_server_session_new(struct ps_server *s,
                                                const struct ps_msg_hello *m);
/* Closes the session's connection and frees the session. */
void ps_server_session_close(struct ps_server_step *st,
                             struct ps_server_session *p);
/* To be called after each use of the session's link. */
void ps_server_session_update_timer(struct ps_server *s,
                                    struct ps_server_session *p);
/* Closes and frees the connection; its session stays. */
void ps_server_conn_close(struct ps_server_step *st, struct ps_server_conn *c);
/* Logs a protocol violation of an agent and closes its connection. */
void ps_server_session_close_bad(struct ps_server_step *st,
                                 struct ps_server_conn *c, const char *why);
/* Frees all connections and sessions. */
void ps_server_session_fini(struct ps_server *s);
/* Closes all connections. */
void ps_server_session_close_all(struct ps_server_step *st);
/* Sends on the session's numbered stream; takes over one reference of the
 * packet. */
void ps_server_session_send(struct ps_server_step *st,
                            struct ps_server_session *p,
                            struct ps_packet *packet);
