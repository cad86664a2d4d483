/* SPDX-License-Identifier: Apache-2.0 */
/* Connections and sessions of agents. */
#pragma once

#include "core/base/machine.h"
#include "core/server/sessions.h"

void ps_server_session_init(struct ps_server *s);
void ps_server_session_on_open(struct ps_server_step *st,
                               const struct ps_event *ev);
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
/* The same for a reply with a payload of the job. While the server has several
 * jobs, it waits for the job's turn. */
void ps_server_session_send_payload(struct ps_server_step *st,
                                    struct ps_server_session *p,
                                    const struct ps_server_job *job,
                                    struct ps_packet *packet);
/* Sends the payloads whose turn it is, as many as the connection takes. */
void ps_server_session_pump(struct ps_server_step *st,
                            struct ps_server_session *p);
/* The kernel took bytes of the connection; `queued` are left. */
void ps_server_session_on_sent(struct ps_server_step *st, ps_conn_id conn,
                               uint64_t queued);
/* The server got its second job: unsent bytes count from now on. */
void ps_server_session_begin_turns(struct ps_server *s);
