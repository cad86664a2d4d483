/* SPDX-License-Identifier: Apache-2.0 */
/* A link with its connections; for path.c, which has the main one, and
 * multipath.c, which has the subflows. */
#pragma once

#include "core/link/multipath.h"

/* First wait before a subflow is dialled again; doubles with each failure. */
#define PS_PATH_DIAL_WAIT PS_MILLIS(100)

/* Operations that differ between links with one connection and with several. */
struct ps_path_kind {
    /* Chooses the connection of a large frame that is sent for the first
     * time. */
    struct ps_path *(*choose)(struct ps_path_link *link,
                              const struct ps_msg *msg,
                              struct ps_packet *packet);
    /* link->acked has grown. */
    void (*on_acked)(struct ps_path_link *link);
    /* `slice`, the place of a payload that arrives on `p`, is memory that the
     * machine uses, too. */
    void (*borrow)(struct ps_path *p, struct ps_slice *slice);
    /* Bytes queued on all connections. */
    uint64_t (*queued)(const struct ps_path_link *link);
};

extern const struct ps_path_kind ps_path_single_kind;
extern const struct ps_path_kind ps_multipath_kind;

struct ps_path_link {
    const struct ps_path_kind *kind; /* Several: now, or from now on. */
    struct ps_list_node node;        /* In the links of `multipath`. */
    struct ps_multipath *multipath;
    struct ps_path *main;
    struct ps_list paths; /* The main one first. */
    uint32_t path_count;
    uint64_t seq_max;  /* Highest number sent so far. */
    uint64_t acked;    /* Highest number acknowledged by the peer. */
    uint64_t ack;      /* Highest acknowledgement sent to the peer. */
    uint64_t ack_sent; /* Latest acknowledgement that left without delay. */
    /* Identity, from the hello of an accepted peer. */
    uint32_t peer_node;
    uint64_t instance;
    uint64_t session;
    bool is_welcomed; /* Handshake complete; the server allows subflows. */
    bool is_ending;   /* The main connection was asked to close. */
    /* Dialling side. */
    char *address;           /* NULL: no subflows are dialled. */
    struct ps_packet *hello; /* Owned reference; NULL: not sent yet. */
    uint32_t dials;          /* Dials in progress. */
    ps_time dial_at;         /* When to check whether subflows are missing. */
    ps_time dial_wait;
    struct ps_losses losses; /* Losses of all connections. */
};

/* path.c */

void ps_path_set_state(struct ps_path *p, enum ps_path_state to);
/* Makes `p` a connection of the link, which becomes one of several. */
void ps_path_join_link(struct ps_path_link *link, struct ps_path *p);
/* `p` is the connection of a dialled subflow of the link. */
void ps_path_init_subflow(struct ps_path *p, ps_conn_id id,
                          struct ps_path_link *link);
/* `p` has no link and no records any more. */
void ps_path_leave(struct ps_path *p);
void ps_path_link_free(struct ps_path_link *link);
/* Accepts an acknowledgement. Any value is allowed: the peer chose it. */
void ps_path_accept_ack(struct ps_path_link *link, uint64_t ack);

/* multipath.c */

/* Checks at once, or after a wait, whether subflows are missing. */
void ps_multipath_check_later(struct ps_path_link *link, bool failed,
                              ps_time now);
/* Server side: joins an accepted connection to its link (rule L16). */
enum ps_path_verdict ps_multipath_accept_join(struct ps_path *p,
                                              const struct ps_msg_hello *m,
                                              struct ps_effects *fx);
enum ps_path_verdict ps_multipath_receive(struct ps_path *p,
                                          const struct ps_msg *msg,
                                          struct ps_effects *fx);
/* Sends the unacknowledged frames of a subflow again, on the main
 * connection. */
void ps_multipath_resend(struct ps_path *p, struct ps_effects *fx);
/* Frees the records of a subflow. */
void ps_multipath_drop_records(struct ps_path *p);
