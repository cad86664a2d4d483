/* SPDX-License-Identifier: Apache-2.0 */
/* Agents at a server: connections, and links with their sessions. */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "core/base/peer.h"
#include "core/base/effect.h"
#include "core/link/link.h"
#include "core/round/fair.h"

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
    ps_time listed_at;                 /* When `node` was listed. */
    struct ps_server_session *session; /* NULL: before the handshake. */
    struct ps_msg *unverified_hello;   /* Owned; NULL: none. */
    int discard_reason;                /* payload()'s error for this frame. */
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
    struct ps_list_node list_node; /* In `backlogged`. */
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
    struct ps_misuse misuse;
    struct ps_map *credits; /* struct ps_credit by generation. */
    struct ps_server_reply_turns turns;
};

struct ps_server_sessions {
    struct ps_map *conns; /* Accepted connections, by id. */
    uint32_t streams;     /* Those of sessions that are not by reference. */
    struct ps_list handshaking;
    struct ps_list unverified; /* Connections whose hello is held. */
    struct ps_map *by_node;    /* Sessions, by agent node. */
    struct ps_heap timers;
    struct ps_list backlogged; /* Sessions to be closed. */
    uint64_t resent;           /* Frames sent again by freed links. */
    uint64_t refused_frames;   /* About slots that are not the sender's. */
};
