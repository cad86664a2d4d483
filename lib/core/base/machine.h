/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a machine, and the three calls by which a driver runs any of
 * them. The daemons' driver and the simulator are the two drivers. */
#pragma once

#include "base/time.h"
#include "core/base/effect.h"
#include "core/base/ledger.h"

#include <stdbool.h>

enum ps_event_type {
    PS_EV_TICK,        /* The deadline has come. */
    PS_EV_OPEN,        /* A connection exists. */
    PS_EV_DIAL_FAILED, /* A dial came to nothing. */
    PS_EV_PROBED,      /* A probe has an answer, or none in time. */
    PS_EV_MSG,         /* A whole frame has arrived. */
    PS_EV_SENT,        /* Bytes went to the kernel; less is queued now. */
    PS_EV_STALLED,     /* The host at the other end of a connection that was
                        * dialled by TCP has acknowledged nothing of what was
                        * sent, for a while. Comes again as long as it is so. */
    PS_EV_CLOSED,      /* A connection is gone; the last event about it. */
    PS_EV_COMPUTED,    /* A job is done. */
    PS_EV_REGION,      /* Agent: a worker's memory was checked and mapped, or
                        * could not be. */
    PS_EV_RESIDUAL_SEGMENT, /* Agent: as REGION, memory of an agent before it. */
    PS_EV_OPS,              /* Agent: operations that came without frames. */
    PS_EV_DRAIN,    /* The daemon is to end when it is done: take nothing
                        * new. */
    PS_EV_SHUTDOWN, /* The operator wants the daemon to end in good order. */
};

enum ps_conn_kind {
    PS_CONN_DIALLED,  /* TCP, by us. */
    PS_CONN_ACCEPTED, /* TCP, by them. */
    PS_CONN_LOCAL,    /* Unix socket, by a training process. */
};

struct ps_event {
    ps_time now; /* Time enters here and nowhere else; it never falls. */
    enum ps_event_type type;
    ps_conn_id conn; /* OPEN, MSG, SENT, STALLED, CLOSED, REGION, KEEP, OPS. */
    union {
        struct {
            enum ps_conn_kind kind;
            uint64_t target; /* DIALLED: as in the effect. */
            uint32_t uid;    /* LOCAL: by SO_PEERCRED. */
            uint32_t pid;
            const char *peer; /* For humans; borrowed. */
            /* DIALLED, to the scheduler: where others can see whether this
             * process is there. Borrowed; NULL: nowhere. */
            const char *liveness_address;
        } open;
        struct {
            uint64_t target;
            int rc;
            const char *why; /* In words, borrowed; NULL: what `rc` says. */
        } dial_failed;       /* PROBED, too: rc is 0 when somebody listens, and
                        * PS_E_REFUSED when nobody does. */
        struct {
            const struct ps_msg *msg;       /* Borrowed. */
            const struct ps_slice *payload; /* Borrowed; NULL without one. Its
                                             * buf is NULL when the machine's
                                             * payload() did not want it. */
            int discard_reason; /* What payload() said then; else 0. */
        } msg;
        struct {
            uint64_t queued; /* Bytes not yet with the kernel. */
        } sent;
        struct {
            int rc; /* PS_E_CLOSED, PS_E_PROTO, ... */
        } closed;
        struct {
            uint64_t token;
            int rc;
        } computed;
        struct {
            uint32_t region;
            struct ps_buf *buf; /* Borrowed: reference it to keep it. NULL: it
                                 * could not be mapped, */
            int rc;             /* PS_E_NOMEM: the agent cannot map more; else
                                 * the worker has passed something else, */
            const char *why;    /* in words; borrowed. */
        } region;
        struct {
            const struct ps_msg_l_op *op; /* Borrowed; as so many messages, */
            uint32_t count;               /* one after the other. */
        } ops;
    };
};

struct ps_machine_ops {
    /* Feed one event; append what is to be done. Negative: this daemon cannot
     * go on; of what peers send that follows only from a scheduler's word that
     * another process has its name (PS_E_CONFIG). */
    int (*step)(void *self, const struct ps_event *ev, struct ps_effects *fx);
    /* When the next PS_EV_TICK is due, or PS_TIME_NEVER. */
    ps_time (*deadline)(const void *self);
    /* A frame's header has arrived on `conn`: where are its `len` payload
     * bytes to go? On success *ret_slice owns a reference and has that
     * length. PS_E_AGAIN: no memory now, stop reading this connection and ask
     * again after the next event. Other errors: read them and throw them
     * away; PS_EV_MSG follows with an empty slice. Changes nothing but memory
     * accounting. Frames of one connection may be under way at once. */
    int (*payload)(void *self, ps_conn_id conn, const struct ps_msg *msg,
                   uint64_t len, struct ps_slice *ret_slice);
    /* Bytes of memory and address space that are held for the peer of a
     * connection, which come back when it is gone; NULL: not known. */
    uint64_t (*peer_memory)(const void *self, ps_conn_id conn);
};

struct ps_machine {
    const struct ps_machine_ops *ops;
    void *self;
    /* What peers cost; what the driver counts joins it. NULL: not counted. */
    struct ps_account *account;
};
