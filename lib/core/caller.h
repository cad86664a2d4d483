/* SPDX-License-Identifier: Apache-2.0 */
/* The side of a link that dials: an agent towards servers, both of them
 * towards the scheduler.
 *
 * One connection carries the link. While there is none, it is dialled with
 * back-off. A dial that is not answered soon has others beside it, and so has
 * a connection that does not get through (ps_caller_trouble): after a break,
 * the first packet of a new dial arrives long before TCP sends again on the
 * old connection. The newest connection that is welcomed carries the link from
 * then on; when the old one is heard first, the new one is dropped.
 *
 * The machine decides which messages go over the connections: hello when
 * ps_caller_open() is true, ps_link_open() when ps_caller_welcomed() is. */
#pragma once

#include "core/link.h"

/* Dials of one link at a time. */
#define PS_CALLER_DIALS_MAX 4u
/* Until another dial beside one that is not answered. */
#define PS_CALLER_AGAIN     PS_MILLIS(500)
/* A dial ends after this. */
#define PS_CALLER_TIMEOUT   (PS_CALLER_DIALS_MAX * PS_CALLER_AGAIN)
/* From hello to welcome; then the connection is given up. */
#define PS_CALLER_WELCOME   PS_SECONDS(5)

struct ps_caller_options {
    uint32_t target; /* Of its dials, in the lower half; the upper one says
                      * to which address. */
    uint32_t era;    /* Where that begins: a target is not used twice. */
    uint64_t instance;
    ps_time dial_first; /* Wait before the second try; doubles */
    ps_time dial_max;   /* up to this. */
    struct ps_link_options link;
};

struct ps_caller {
    struct ps_caller_options opt;
    struct ps_rng *rng;
    struct ps_link *link;
    uint64_t session;
    char address[PS_ADDRESS_MAX + 1]; /* "": not known yet. */
    uint32_t era;                     /* Grows with each other address. */
    bool wanted;                      /* Dial it. */
    bool troubled;   /* `conn` does not get through, as far as is known. */
    ps_conn_id conn; /* Welcomed, carries the link; 0: none. */
    ps_conn_id next; /* Has said hello; 0: none. */
    uint32_t dials;  /* Under way. */
    ps_time backoff;
    ps_time patience; /* From hello until another dial; doubles. */
    ps_time dial_at;
    ps_time tried_at; /* Last dial; 0: never. */
    ps_time next_at;  /* When `next` was opened. */
    ps_time heard_at; /* On `conn`. */
    int told;         /* Last failure that was worth a note, */
    ps_time told_at;  /* and when. */
};

void ps_caller_init(struct ps_caller *c, const struct ps_caller_options *opt,
                    struct ps_rng *rng, ps_time now);
void ps_caller_fini(struct ps_caller *c);
/* A fresh link under a new session, without connections. */
void ps_caller_reset(struct ps_caller *c, ps_time now, struct ps_effects *fx);

static inline bool ps_caller_is_known(const struct ps_caller *c)
{
    return c->conn != 0;
}

/* Where it is to be dialled. Connections to elsewhere are hung up. */
void ps_caller_address(struct ps_caller *c, const char *address, ps_time now,
                       struct ps_effects *fx);
/* True: it is one of its connections. */
bool ps_caller_has(const struct ps_caller *c, ps_conn_id conn);

/* The dial of `target` has led to a connection. True: it is `next`, say hello
 * on it. False: it is not needed, and was hung up. */
PS_MUST_USE bool ps_caller_open(struct ps_caller *c, uint64_t target,
                                ps_conn_id conn, ps_time now,
                                struct ps_effects *fx);
/* It came to nothing. True: worth a note. */
bool ps_caller_failed(struct ps_caller *c, uint64_t target, int rc,
                      ps_time now);
/* The peer has welcomed `conn`. True: the link may be opened on it; it is
 * `conn` now, and an older one was hung up. */
PS_MUST_USE bool ps_caller_welcomed(struct ps_caller *c, ps_conn_id conn,
                                    ps_time now, struct ps_effects *fx);
/* `conn` is gone. True: the link has lost its connection. */
bool ps_caller_closed(struct ps_caller *c, ps_conn_id conn, ps_time now);
/* Hang up `conn`, which may be any of its connections; another dial follows.
 * True: the link has lost its connection. */
bool ps_caller_drop(struct ps_caller *c, ps_conn_id conn, ps_time now,
                    struct ps_effects *fx);
/* Hang up all. */
void ps_caller_cut(struct ps_caller *c, ps_time now, struct ps_effects *fx);
/* The next dial waits for as long as ever. */
void ps_caller_slow(struct ps_caller *c, ps_time now);
/* Dial at once, whatever failed before. */
void ps_caller_hurry(struct ps_caller *c, ps_time now);

/* Something came on `conn`. */
void ps_caller_heard(struct ps_caller *c, ps_conn_id conn, ps_time now);
/* Frames on `conn` do not get through: dial beside it. */
void ps_caller_trouble(struct ps_caller *c, ps_time now);

/* Dials when due; gives up `next` when it was not welcomed in time. */
void ps_caller_tick(struct ps_caller *c, ps_time now, struct ps_effects *fx);
ps_time ps_caller_deadline(const struct ps_caller *c);
