/* SPDX-License-Identifier: Apache-2.0 */
/* Links that this server dials: to the backups of its places. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "core/link/dialer.h"

struct ps_server;
struct ps_server_step;

/* A process of a server, which gets copies. */
struct ps_server_peer {
    uint32_t number; /* Here, not used again. */
    uint32_t node;
    uint64_t instance;
    char name[PS_NAME_MAX + 1];
    struct ps_dialer dialer;
    ps_time away_since;     /* No connection; or PS_TIME_NEVER. */
    bool is_used;           /* By a place. */
    uint32_t kernel_class;  /* 0: not known yet. */
    uint64_t copying_bytes; /* Of copies that it has not confirmed. */
    struct ps_list waiting; /* struct ps_server_copy, to be sent. */
    /* The same, of partitions that a target does not have yet. */
    struct ps_list filling;
    uint64_t filling_bytes;  /* Of these, on their way. */
    ps_time filling_since;   /* When it was 0, */
    uint64_t filling_rounds; /* and the rounds of the server by then. */
    ps_time fill_at;         /* Rounds have the link until then. */
    ps_time next_ping_at;
};

struct ps_server_peers {
    struct ps_map *by_number;
    uint32_t last_number;
    struct ps_msg *map; /* The newest map, which has the addresses. */
};

void ps_server_peer_init(struct ps_server *s);
void ps_server_peer_fini(struct ps_server *s);
/* A new map: addresses may have changed. */
void ps_server_peer_on_map(struct ps_server_step *st, const struct ps_msg *map);
/* Returns the link to this process of a server, made on first use. That to an
 * earlier process stays until no job uses it: job by job, the scheduler names the
 * next one. */
struct ps_server_peer *ps_server_peer_obtain(struct ps_server_step *st,
                                             uint32_t node, uint64_t instance);
/* Ends the links that are not in use; not those that are connected if
 * `keeps_connected`. */
void ps_server_peer_drop_unused(struct ps_server_step *st,
                                bool keeps_connected);
/* Sends on the link; takes over one reference. */
void ps_server_peer_send(struct ps_server_step *st, struct ps_server_peer *p,
                         struct ps_packet *packet);

/* The peer of a connection; NULL: it is no peer's. */
struct ps_server_peer *ps_server_peer_of_conn(const struct ps_server *s,
                                              ps_conn_id conn);
/* A dial of a peer led to a connection, or to none. */
void ps_server_peer_on_open(struct ps_server_step *st,
                            const struct ps_event *ev);
void ps_server_peer_on_dial_failed(struct ps_server_step *st,
                                   const struct ps_event *ev);
/* True: there has been no connection for 5 s. */
bool ps_server_peer_is_away(const struct ps_server_peer *p, ps_time now);
/* True: `copied`, or the welcome of a new session, for the caller to handle. */
bool ps_server_peer_on_msg(struct ps_server_step *st, struct ps_server_peer *p,
                           const struct ps_event *ev);
void ps_server_peer_on_closed(struct ps_server_step *st,
                              struct ps_server_peer *p, ps_conn_id conn);
void ps_server_peer_close_all(struct ps_server_step *st);
/* True if some peer is away. */
bool ps_server_peer_tick(struct ps_server_step *st);
ps_time ps_server_peer_deadline(const struct ps_server *s);
