/* SPDX-License-Identifier: Apache-2.0 */
/* Agents at a server: connections, and links with their sessions. */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "core/base/machine.h"
#include "core/base/peer.h"
#include "core/link/link.h"
#include "core/part/fair.h"

/* Bytes of values unsent on a stream, and of running computations where there
 * are streams, while the server has several jobs: one partition of each. */
#define PS_STREAM_BYTES_MAX (64u * 1024u)

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
    ps_time hello_by; /* The hello arrives, or is verified, by then. */
    struct ps_server_session *session; /* NULL: before the handshake. */
    struct ps_msg *unverified_hello;   /* Owned; NULL: none. */
    struct ps_peer_identity identity;
    bool is_by_reference; /* Payloads are sent by reference. */
    char peer_text[64];
};

/* Payloads of one job that wait for their turn on a link. */
struct ps_server_reply_queue {
    struct ps_fair_flow flow; /* In turns->fair. */
    uint64_t gen;
    uint32_t weight;
    struct ps_list replies; /* Those that wait, oldest first. */
};

/* Turns of the jobs whose payloads leave on one link. */
struct ps_server_reply_turns {
    struct ps_fair fair;
    struct ps_map *queues; /* By generation; NULL: none yet. */
    /* Payload bytes with the driver, not yet with the kernel; counted while
     * the server has several jobs. */
    uint64_t unsent;
    uint32_t waiting; /* Replies in all queues. */
    uint64_t memory;  /* Of their messages. */
};

/* An agent and the link to it. */
struct ps_server_session {
    struct ps_heap_item timer;     /* In `timers`. */
    struct ps_list_node used_node; /* In `used`. */
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    char name[PS_NAME_MAX + 1]; /* As the scheduler stated, or the hello. */
    uint64_t session_id;
    /* Of the first certificate that its connections had. */
    struct ps_peer_identity identity;
    struct ps_link *link;
    struct ps_server_conn *conn; /* NULL: disconnected. */
    ps_time heard_at;            /* Arrival of the last message. */
    ps_time disconnected_at;
    bool is_backlogged; /* Takes no replies; the next tick closes it. */
    bool is_server;     /* It owns places whose backup is here. */
    struct ps_misuse misuse;
    struct ps_map *credits; /* struct ps_credit by generation. */
    struct ps_server_reply_turns turns;
};

struct ps_server_sessions {
    struct ps_map *conns; /* Accepted connections, by id. */
    uint32_t streams;     /* Those of sessions that are not by reference. */
    struct ps_list handshaking;
    struct ps_list unverified; /* Connections whose hello is held. */
    ps_time hello_at; /* No `hello_by` is before it; PS_TIME_NEVER: none. */
    struct ps_map *by_node; /* Sessions, by agent node. */
    struct ps_heap timers;
    struct ps_list used;     /* Sessions whose link the step has used. */
    uint64_t resent;         /* Frames sent again by freed links. */
    uint64_t refused_frames; /* About slots that are not the sender's. */
};

void ps_server_session_init(struct ps_server *s);
void ps_server_session_on_open(struct ps_server_step *st,
                               const struct ps_event *ev);
void ps_server_session_on_ping_req(struct ps_server_step *st,
                                   const struct ps_msg_ping_req *m);
void ps_server_session_on_closed(struct ps_server_step *st, ps_conn_id conn);
void ps_server_session_tick(struct ps_server_step *st);
/* Adds the session of the agent that says hello. If there are too many, frees
 * the one disconnected for longest; NULL: all are connected. */
struct ps_server_session *ps_server_session_new(struct ps_server *s,
                                                const struct ps_msg_hello *m);
/* Closes the session's connection and frees the session. */
void ps_server_session_close(struct ps_server_step *st,
                             struct ps_server_session *p);
/* To be called after each use of the session's link. */
void ps_server_session_use(struct ps_server *s, struct ps_server_session *p);
/* At the end of a step, for each session whose link was used: updates the timer
 * and checks that the agent takes its replies. */
void ps_server_session_settle(struct ps_server *s, struct ps_server_session *p);
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
/* Drops the replies of the generation that wait for their turn. */
void ps_server_session_drop_replies(struct ps_server_reply_turns *t,
                                    uint64_t gen);
/* Drops all of them, and the memory of the queues. */
void ps_server_session_drop_replies_all(struct ps_server_reply_turns *t);
/* Drops the credits of all jobs. */
void ps_server_session_drop_credits(struct ps_server_session *p);
