/* SPDX-License-Identifier: Apache-2.0 */
/* A machine: it takes every decision, and has no clock, socket, file, thread or
 * source of randomness of its own. A driver hands it events and the time, and
 * carries out the effects that it appends to a list. */
#pragma once

#include "base/buf.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "core/base/ledger.h"
#include "core/base/peer.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_account;
struct ps_msg_body;

/* ----------------------------------------------------------------- effects */

/* Effects: work that a machine asks its driver to do, in order. The machine
 * appends; the driver carries out and frees. An effect owns its references to
 * packets and buffers. */

/* Number of a connection; the driver assigns it and never reuses it. 0:
 * none. */
typedef uint64_t ps_conn_id;

/* A message and its payload, immutable and shared: the link keeps it until it
 * is acknowledged, while the driver writes it. Sequence number and
 * acknowledgement are fields of the effect instead, because a retransmitted
 * frame carries newer ones. */
struct ps_packet {
    uint32_t refs;
    /* Connections that hold it and have not written it completely; maintained
     * by the driver. */
    uint32_t writers;
    uint32_t slice_count;
    uint64_t payload_len;
    size_t msg_size;
    struct ps_msg *msg; /* Owned copy. */
    /* The message as it is sent to several peers; made and used by the driver,
     * and owned. NULL: not made. */
    struct ps_msg_body *body;
    /* Payload in order; each holds a reference on its buffer. */
    struct ps_slice slices[];
};

/* Returns a packet with one reference. Copies `msg` (ps_msg_dup) and references
 * each slice's buffer. */
struct ps_packet *ps_packet_new(const struct ps_msg *msg,
                                const struct ps_slice *slices,
                                uint32_t slice_count);
struct ps_packet *ps_packet_ref(struct ps_packet *p);
void ps_packet_unref(struct ps_packet *p); /* NULL: no effect. */
/* Bytes that the last unref frees: the packet, its message, and payload buffers
 * without other references. */
uint64_t ps_packet_memory(const struct ps_packet *p);

/* A computation; it keeps every buffer alive that it reads or writes. */
struct ps_compute {
    uint64_t token; /* Returned in PS_EV_COMPUTED. */
    struct ps_job job;
    /* src, level and pinned lie in the allocation of this struct. */
    const void **src;
    uint8_t *level;
    struct ps_buf **pinned;
    uint32_t pinned_count;
    /* Slices that get the bytes of `job.src[0]` instead of `job.dst`, in memory of
     * GPUs. Their buffers are pinned. NULL: none. */
    struct ps_slice *outs;
    uint32_t out_count;
    /* Some sources are memory of GPUs; `pinned` begins with their buffers. */
    bool reads_device;
    /* Further memory that `job` points to, freed by plan_free; NULL: none. */
    void *plan;
    void (*plan_free)(void *plan);
};

/* Returns a zeroed computation with capacity for `src_max` sources and
 * `held_max` pinned buffers more; job.src and job.level point to its arrays. */
struct ps_compute *ps_compute_new(uint64_t token, uint32_t src_max,
                                  uint32_t held_max);
/* Appends the bytes of `slice` as a source and pins its buffer. */
void ps_compute_add_src(struct ps_compute *c, const struct ps_slice *slice,
                        uint8_t level);
/* Appends a slice to `outs`, which has room for `out_max` in all, and pins its
 * buffer. */
void ps_compute_add_out(struct ps_compute *c, const struct ps_slice *slice,
                        uint32_t out_max);
/* References `b` until the computation is freed. */
void ps_compute_pin(struct ps_compute *c, struct ps_buf *b);
void ps_compute_free(struct ps_compute *c);

/* A row of the driver's store: a value, or the removal of one. */
struct ps_store_row {
    uint8_t kind; /* Of the machine. */
    uint64_t a;
    uint64_t b;
    /* NULL: the row is removed; if `b` is PS_STORE_ALL, all of `kind` and `a`
     * are. */
    struct ps_packet *value;
};

#define PS_STORE_ALL UINT64_MAX

enum ps_fx_type {
    /* Change rows of the store. The driver commits before it carries out later
     * effects, and a commit that fails ends the daemon: nobody hears of a change
     * that is lost. */
    PS_FX_STORE,
    PS_FX_SEND, /* Write a packet to a connection, after earlier ones. */
    /* Try to connect, once; PS_EV_OPEN or PS_EV_DIAL_FAILED follows. */
    PS_FX_DIAL,
    PS_FX_PROBE, /* Connect and close at once; PS_EV_PROBED follows. */
    /* Write the queued packets, then close, or close at once; PS_EV_CLOSED
     * follows. */
    PS_FX_CLOSE,
    PS_FX_COMPUTE, /* Run a computation off the loop; PS_EV_COMPUTED follows. */
    PS_FX_OP_DONE, /* Report success of an operation to a worker (l_done). */
    /* Report progress of a result to a worker; the driver may drop it. */
    PS_FX_OP_PROGRESS,
    PS_FX_LOG, /* Write a line to the log; in simulation also to the trace. */
    PS_FX_LOG_LEVEL, /* Write lines up to another level from now on. */
};

struct ps_fx {
    enum ps_fx_type type;
    union {
        struct {
            struct ps_store_row *rows; /* Owned, with their values. */
            uint32_t count;
        } store;
        struct {
            ps_conn_id conn;
            uint64_t seq;
            uint64_t ack;
            struct ps_packet *packet;
        } send;
        struct {
            /* Chosen by the machine; returned in the event that follows. */
            uint64_t target;
            /* Main connection of the link that gets one more connection; 0: the
             * dial is not for a subflow. */
            ps_conn_id subflow_of;
            /* Time limit of the attempt; 0: the driver's default. */
            ps_time timeout;
            char address[PS_ADDRESS_MAX + 1];
        } dial; /* DIAL and PROBE. */
        struct {
            ps_conn_id conn;
            int rc;          /* 0: queued packets are written first. */
            const char *why; /* Reason of an `rc`; a constant. */
        } close;
        struct ps_compute *compute;
        struct {
            ps_conn_id conn;
            uint64_t op_id;
            uint64_t version;
        } op_done;
        struct {
            ps_conn_id conn;
            uint64_t op_id;
            /* Complete bytes from the beginning of the result. */
            uint64_t bytes_ready;
        } op_progress;
        struct {
            enum ps_log_level level;
            uint64_t kind; /* As in ps_log_of(): format and user. */
            char *text;
        } log;
        enum ps_log_level log_level;
    };
};

struct ps_effects {
    struct ps_fx *items;
    uint32_t count;
    uint32_t capacity;
    /* Connection of the event in progress, and, of one that is closed, the host
     * or user: log lines of different ones are of different kinds. The driver
     * sets both. 0: none. */
    ps_conn_id cause;
    uint64_t closed_source;
};

void ps_effects_init(struct ps_effects *fx);
/* Frees the remaining effects, too. */
void ps_effects_fini(struct ps_effects *fx);
/* Frees what the effects own and empties the list. */
void ps_effects_clear(struct ps_effects *fx);

/* Inserts PS_FX_STORE before effect number `at`, at most `fx->count`; takes over
 * the rows. */
void ps_effects_store(struct ps_effects *fx, uint32_t at,
                      struct ps_store_row *rows, uint32_t count);
/* Takes over one reference of `packet`. */
void ps_effects_send(struct ps_effects *fx, ps_conn_id conn, uint64_t seq,
                     uint64_t ack, struct ps_packet *packet);
/* Sends an unsequenced message without payload. */
void ps_effects_send_msg(struct ps_effects *fx, ps_conn_id conn,
                         const struct ps_msg *msg);
/* Reports success of an operation, without a packet: this is the most frequent
 * effect of an agent. */
void ps_effects_op_done(struct ps_effects *fx, ps_conn_id conn, uint64_t op_id,
                        uint64_t version);
void ps_effects_op_progress(struct ps_effects *fx, ps_conn_id conn,
                            uint64_t op_id, uint64_t bytes);
void ps_effects_dial(struct ps_effects *fx, uint64_t target,
                     const char *address, ps_time timeout);
/* Dials a subflow of the link with main connection `main`. */
void ps_effects_dial_subflow(struct ps_effects *fx, ps_conn_id main,
                             const char *address);
/* Asks whether a process listens at `address`. */
void ps_effects_probe(struct ps_effects *fx, uint64_t target,
                      const char *address, ps_time timeout);
void ps_effects_close(struct ps_effects *fx, ps_conn_id conn);
/* Closes at once; `why` must be a constant. */
void ps_effects_abort(struct ps_effects *fx, ps_conn_id conn, int rc,
                      const char *why);
/* Takes ownership of `c`. */
void ps_effects_compute(struct ps_effects *fx, struct ps_compute *c);
/* Appends one log line; unprintable characters are escaped. */
void ps_effects_log(struct ps_effects *fx, enum ps_log_level level,
                    const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same for a line that a peer causes; counted in its account. Lines of
 * different users are of different kinds: none hides those of another one. */
void ps_effects_log_for(struct ps_effects *fx, struct ps_account *account,
                        enum ps_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Applies a log_level message; a level that does not exist has no effect. */
void ps_effects_log_level(struct ps_effects *fx,
                          const struct ps_msg_log_level *m);

/* ----------------------------------------------------- events and machines */

/* The interface of every machine: the events that it receives and the calls by
 * which a driver runs it. Two drivers exist, the daemons' and the
 * simulator's. */

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
