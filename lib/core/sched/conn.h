/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of members and of operators' tools, and messages on them. */
#pragma once

#include "core/base/peer.h"
#include "core/sched/member/member.h"
#include "proto/ps_fixed.h"

struct ps_sched_step;

/* Rows of a reply that are handed to a connection at a time. */
#define PS_SCHED_ROWS_PER_SEND 256u

enum ps_sched_conn_kind {
    PS_SCHED_CONN_HANDSHAKE, /* No hello yet. */
    PS_SCHED_CONN_MEMBER,    /* Carries a member's link. */
    PS_SCHED_CONN_CTL,
    PS_SCHED_CONN_CLOSING, /* Close requested; further input is ignored. */
};

struct ps_sched_conn {
    ps_conn_id id;
    enum ps_sched_conn_kind kind;
    struct ps_member *member; /* MEMBER: owner of the link. */
    ps_time opened_at;
    char peer_text[64];
    bool is_local; /* Unix-socket connection, whose user is known. */
    uint32_t uid;  /* User of a local connection. */
    struct ps_peer_identity identity;
    /* CTL: signed, and counted at the hello; its id is 0: none. */
    struct ps_fixed_token_claims token;
    /* CTL: the query in progress. */
    uint32_t open_stalls; /* Jobs whose stall query is unanswered. */
    bool lists_keys;      /* A key listing is in progress. */
    uint64_t list_gen;    /* Generation of the job being listed. */
    uint32_t list_next;   /* Number of the next key to list. */
    bool lists_all_jobs;  /* Continue with jobs of higher generation. */
    /* Owned; NULL: no rebalance reply in progress. */
    struct ps_sched_rebalance_reply *rebalance_reply;
    /* Owned; NULL: no member is asked for its trace. */
    struct ps_sched_trace_read *trace_read;
};

/* Closes the connection. Its query, if any, has been dropped. */
void ps_sched_conn_close(struct ps_sched_step *st, struct ps_sched_conn *c);
/* Sends query_end, which closes the reply to a query. */
void ps_sched_conn_end_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                             int rc, const char *text);
/* Sends in sequence on the member's link. Does nothing when `m` is NULL or has
 * no link: a fresh link begins with all state that matters. */
void ps_sched_send_msg(struct ps_sched_step *st, struct ps_member *m,
                       const struct ps_msg *msg);
/* The same for a packet; takes over the reference. */
void ps_sched_send(struct ps_sched_step *st, struct ps_member *m,
                   struct ps_packet *packet);
