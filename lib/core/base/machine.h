/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of every machine: the events that it receives and the calls by
 * which a driver runs it. Two drivers exist, the daemons' and the
 * simulator's. */
#pragma once

#include "base/time.h"
#include "core/base/effect.h"
#include "core/base/ledger.h"
#include "core/base/peer.h"

#include <stdbool.h>

enum ps_event_type {
    PS_EV_TICK,        /* The deadline has been reached. */
    PS_EV_OPEN,        /* A connection is established. */
    PS_EV_DIAL_FAILED, /* A dial failed. */
    PS_EV_PROBED,      /* A probe ended, with an answer or by timeout. */
    PS_EV_MSG,         /* A complete frame has arrived. */
    PS_EV_SENT,        /* The kernel took bytes of a connection's queue. */
    /* For some time, the peer host of a dialled TCP connection has not
     * acknowledged any sent byte. Repeated while this lasts. */
    PS_EV_STALLED,
    PS_EV_CLOSED,   /* A connection is closed; its last event. */
    PS_EV_COMPUTED, /* A computation ended. */
    /* Agent: a worker's memory region was checked and mapped, or that
     * failed. */
    PS_EV_REGION,
    /* Agent: as REGION, for a residual segment of an earlier agent. */
    PS_EV_RESIDUAL_SEGMENT,
    PS_EV_OPS, /* Agent: operations that arrived through a shared ring. */
    PS_EV_CERTIFICATE, /* The own certificate, or how soon it ends, changed. */
    /* The daemon ends when its work is done; accept no new work. */
    PS_EV_DRAIN,
    PS_EV_SHUTDOWN, /* The operator asks for an orderly shutdown. */
};

enum ps_conn_kind {
    PS_CONN_DIALLED,  /* TCP, dialled by this daemon. */
    PS_CONN_ACCEPTED, /* TCP, dialled by the peer. */
    PS_CONN_LOCAL,    /* Unix socket, from a training process. */
};

struct ps_event {
    ps_time now; /* Monotonic time; the only clock that a machine has. */
    enum ps_event_type type;
    /* OPEN, MSG, SENT, STALLED, CLOSED, REGION, RESIDUAL_SEGMENT, OPS. */
    ps_conn_id conn;
    union {
        struct {
            enum ps_conn_kind kind;
            uint64_t target; /* DIALLED: the target of the effect. */
            uint32_t uid;    /* LOCAL: from SO_PEERCRED. */
            uint32_t pid;
            const char *peer; /* Name of the peer for messages; borrowed. */
            /* From the peer's certificate; borrowed. NULL: it has none. */
            const struct ps_peer_identity *identity;
            /* The link is within this host, where payloads travel by reference
             * to shared memory if both may. Else each byte takes time of the
             * loop. */
            bool is_by_reference;
            /* DIALLED to the scheduler: address at which a liveness probe
             * reaches this process. Borrowed; NULL: none. */
            const char *liveness_address;
        } open;
        struct {
            uint64_t target;
            int rc;
            const char *why; /* Error text, borrowed; NULL: only `rc`. */
            /* PROBED, too: 0 if a process listens, PS_E_REFUSED if not. */
        } dial_failed;
        struct {
            const struct ps_msg *msg; /* Borrowed. */
            /* Borrowed; NULL: no payload. Its buf is NULL when payload()
             * refused the bytes. */
            const struct ps_slice *payload;
            /* Error that payload() returned for this frame; 0: none. */
            int discard_reason;
        } msg;
        struct {
            uint64_t queued; /* Bytes that the kernel has not taken yet. */
        } sent;
        struct {
            int rc;          /* PS_E_CLOSED, PS_E_PROTO, ... */
            const char *why; /* Text, borrowed; NULL: only `rc`. */
        } closed;
        struct {
            uint64_t token;
            int rc;
        } computed;
        struct {
            uint32_t region;
            /* Borrowed; add a reference to keep it. NULL: it could not be
             * mapped. */
            struct ps_buf *buf;
            /* PS_E_NOMEM: the agent cannot map more memory; other errors: the
             * descriptor or its size is not valid. */
            int rc;
            const char *why; /* Error text; borrowed. */
        } region;
        struct {
            /* Array of `count` operations, to be handled in order; borrowed. */
            const struct ps_msg_l_op *op;
            uint32_t count;
        } ops;
        struct ps_certificate_end certificate;
    };
};

struct ps_machine_ops {
    /* Handles one event and appends effects. A negative result ends the daemon.
     * The only message of a peer that causes it is the scheduler's report that
     * another process holds this daemon's name (PS_E_CONFIG). */
    int (*step)(void *self, const struct ps_event *ev, struct ps_effects *fx);
    /* Time of the next PS_EV_TICK, or PS_TIME_NEVER. */
    ps_time (*deadline)(const void *self);
    /* Returns the memory for the `len` payload bytes of a frame whose header
     * has arrived on `conn`. On success *ret_slice owns a reference and has
     * that length. PS_E_AGAIN: no memory now; the driver stops reading this
     * connection and asks again after the next event. Other errors: the driver
     * reads and discards the bytes, and PS_EV_MSG follows with an empty slice.
     * Changes nothing but memory accounting. Several frames of one connection
     * may be in progress at once. */
    int (*payload)(void *self, ps_conn_id conn, const struct ps_msg *msg,
                   uint64_t len, struct ps_slice *ret_slice);
    /* Bytes of memory and address space held for the peer of a connection,
     * which closing it frees; NULL: not known. */
    uint64_t (*peer_memory)(const void *self, ps_conn_id conn);
};

struct ps_machine {
    const struct ps_machine_ops *ops;
    void *self;
    /* Account of all costs that peers cause; the driver's accounts are its
     * children. NULL: costs are not counted. */
    struct ps_account *account;
};
