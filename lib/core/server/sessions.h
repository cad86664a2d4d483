/* SPDX-License-Identifier: Apache-2.0 */
/* Agents at a server: connections, and links with their sessions. */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "core/link/link.h"
#include "core/base/effect.h"

/* An accepted connection without a hello is closed after this time. */
#define HELLO_TIMEOUT  PS_SECONDS(10)
/* The hello of an unverified agent waits this long for the scheduler to name
 * it: hello and job_state race when the agent was restarted or this server
 * joins its job. */
#define VERIFY_TIMEOUT PS_SECONDS(2)

struct ps_credit;
struct ps_server;
struct ps_server_job;
struct ps_server_slot;
struct ps_server_step;

/* An accepted connection. */
struct ps_server_conn {
    /* In `handshaking` until the hello, in `unverified` until the scheduler
     * names the agent. */
    struct ps_list_node node;
    ps_conn_id id;
    ps_time listed_at;                 /* When `node` was listed. */
    struct ps_server_session *session; /* NULL: before the handshake. */
    struct ps_msg *unverified_hello;   /* Owned; NULL: none. */
    int discard_reason;                /* payload()'s error for this frame. */
};

/* An agent and the link to it. */
struct ps_server_session {
    struct ps_heap_item timer;     /* In `session_timers`. */
    struct ps_list_node list_node; /* In `backlogged`. */
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    uint64_t session_id;
    struct ps_link *link;
    struct ps_server_conn *conn; /* NULL: disconnected. */
    ps_time heard_at;            /* Arrival of the last message. */
    ps_time disconnected_at;
    struct ps_map *credits; /* struct ps_credit by generation. */
};

struct ps_server_sessions {
    struct ps_map *conns; /* Accepted connections, by id. */
    struct ps_list handshaking;
    struct ps_list unverified; /* Connections whose hello is held. */
    struct ps_map *by_node;    /* Sessions, by agent node. */
    struct ps_heap timers;
    struct ps_list backlogged; /* Sessions to be closed. */
    uint64_t resent;           /* Frames sent again by freed links. */
};

/* session.c */
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

/* hello.c */
/* Handles the hello of a connection without a session. */
void ps_server_on_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m);
/* Handles held hellos whose agents the scheduler has named meanwhile. */
void ps_server_hello_verify_all(struct ps_server_step *st);
/* Closes connections without a hello in time, and rejects agents that the
 * scheduler has not named in time. */
void ps_server_hello_tick(struct ps_server_step *st);
ps_time ps_server_hello_deadline(const struct ps_server *s);

/* agent_msg.c */
void ps_server_agent_on_msg(struct ps_server_step *st, ps_conn_id conn,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload, int discard_reason);
int ps_server_agent_payload(struct ps_server *s, ps_conn_id conn,
                            const struct ps_msg *msg, uint64_t len,
                            struct ps_slice *ret_slice);
