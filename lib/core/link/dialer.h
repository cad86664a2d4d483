/* SPDX-License-Identifier: Apache-2.0 */
/* The side of a link that dials: an agent towards servers, both of them
 * towards the scheduler.
 *
 * One connection carries the link. While there is none, it is dialled with
 * back-off. A dial that is not answered soon has others beside it, and so has
 * a connection that does not get through (ps_dialer_on_stalled): after a break,
 * the first packet of a new dial arrives long before TCP sends again on the
 * old connection. The newest connection that is welcomed carries the link from
 * then on; when the old one is heard first, the new one is dropped.
 *
 * The machine decides which messages go over the connections: hello when
 * ps_dialer_on_open() is true, ps_link_open() when ps_dialer_on_welcome() is. */
#pragma once

#include "core/link/link.h"

/* Dials of one link at a time. */
#define PS_DIALER_DIALS_MAX       4u
/* Until another dial beside one that is not answered. */
#define PS_DIALER_PARALLEL_DELAY  PS_MILLIS(500)
/* A dial ends after this. */
#define PS_DIALER_DIAL_TIMEOUT    (PS_DIALER_DIALS_MAX * PS_DIALER_PARALLEL_DELAY)
/* From hello to welcome; then the connection is given up. */
#define PS_DIALER_WELCOME_TIMEOUT PS_SECONDS(5)

struct ps_dialer_options {
    uint32_t target; /* Of its dials, in the lower half; the upper one says
                      * to which address. */
    uint32_t
        first_generation; /* Where that begins: a target is not used twice. */
    uint64_t instance;
    ps_time backoff_min; /* Wait before the second try; doubles */
    ps_time backoff_max; /* up to this. */
    struct ps_link_options link;
};

struct ps_dialer {
    struct ps_dialer_options opt;
    struct ps_rng *rng;
    struct ps_link *link;
    uint64_t session;
    char address[PS_ADDRESS_MAX + 1]; /* "": not known yet. */
    uint32_t address_generation;      /* Grows with each other address. */
    bool enabled;                     /* Dial it. */
    bool suspect;    /* `conn` does not get through, as far as is known. */
    ps_conn_id conn; /* Welcomed, carries the link; 0: none. */
    ps_conn_id pending_conn;  /* Has said hello; 0: none. */
    uint32_t dials_in_flight; /* Under way. */
    ps_time backoff;
    ps_time hello_wait; /* From hello until another dial; doubles. */
    ps_time next_dial_at;
    ps_time last_dial_at;  /* Last dial; 0: never. */
    ps_time pending_since; /* When `next` was opened. */
    ps_time last_recv_at;  /* On `conn`. */
    int noted_error;       /* Last failure that was worth a note, */
    ps_time noted_at;      /* and when. */
};

void ps_dialer_init(struct ps_dialer *c, const struct ps_dialer_options *opt,
                    struct ps_rng *rng, ps_time now);
void ps_dialer_fini(struct ps_dialer *c);
/* A fresh link under a new session, without connections. */
void ps_dialer_reset(struct ps_dialer *c, ps_time now, struct ps_effects *fx);

static inline bool ps_dialer_is_connected(const struct ps_dialer *c)
{
    return c->conn != 0;
}

/* Where it is to be dialled. Connections to elsewhere are hung up. */
void ps_dialer_set_address(struct ps_dialer *c, const char *address,
                           ps_time now, struct ps_effects *fx);
/* True: it is one of its connections. */
bool ps_dialer_owns_conn(const struct ps_dialer *c, ps_conn_id conn);

/* The dial of `target` has led to a connection. True: it is `next`, say hello
 * on it. False: it is not needed, and was hung up. */
PS_MUST_USE bool ps_dialer_on_open(struct ps_dialer *c, uint64_t target,
                                   ps_conn_id conn, ps_time now,
                                   struct ps_effects *fx);
/* It came to nothing. True: worth a note. */
bool ps_dialer_on_dial_failed(struct ps_dialer *c, uint64_t target, int rc,
                              ps_time now);
/* The peer has welcomed `conn`. True: the link may be opened on it; it is
 * `conn` now, and an older one was hung up. */
PS_MUST_USE bool ps_dialer_on_welcome(struct ps_dialer *c, ps_conn_id conn,
                                      ps_time now, struct ps_effects *fx);
/* `conn` is gone. True: the link has lost its connection. */
bool ps_dialer_on_closed(struct ps_dialer *c, ps_conn_id conn, ps_time now);
/* Hang up `conn`, which may be any of its connections; another dial follows.
 * True: the link has lost its connection. */
bool ps_dialer_drop_conn(struct ps_dialer *c, ps_conn_id conn, ps_time now,
                         struct ps_effects *fx);
/* Hang up all. */
void ps_dialer_drop_all(struct ps_dialer *c, ps_time now,
                        struct ps_effects *fx);
/* The next dial waits for as long as ever. */
void ps_dialer_max_backoff(struct ps_dialer *c, ps_time now);
/* Dial at once, whatever failed before. */
void ps_dialer_dial_now(struct ps_dialer *c, ps_time now);

/* Something came on `conn`. */
void ps_dialer_on_recv(struct ps_dialer *c, ps_conn_id conn, ps_time now);
/* Frames on `conn` do not get through: dial beside it. */
void ps_dialer_on_stalled(struct ps_dialer *c, ps_time now);

/* Dials when due; gives up `next` when it was not welcomed in time. */
void ps_dialer_tick(struct ps_dialer *c, ps_time now, struct ps_effects *fx);
ps_time ps_dialer_deadline(const struct ps_dialer *c);
