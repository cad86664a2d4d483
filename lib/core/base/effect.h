/* SPDX-License-Identifier: Apache-2.0 */
/* What a machine wants done, in order. A machine appends; its driver carries
 * out and frees. Effects own the references to what they name. */
#pragma once

#include "base/buf.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdint.h>

/* A connection, numbered by the driver, never used again. 0: none. */
typedef uint64_t ps_conn_id;

/* A message and its payload, immutable and shared: a link keeps it until it is
 * acknowledged while the driver writes it. Sequence number and acknowledgement
 * are not in it: they stand in the effect, because a frame that is sent again
 * carries newer ones. */
struct ps_packet {
    uint32_t refs;
    uint32_t writers; /* Times that a connection has it and still writes it;
                       * the driver counts. */
    uint32_t slice_count;
    uint64_t payload_len;
    size_t msg_size;
    struct ps_msg *msg;       /* Own copy. */
    struct ps_slice slices[]; /* Payload in order; own references. */
};

/* Copies `msg` (ps_msg_dup) and takes a reference on each slice's buffer. */
struct ps_packet *ps_packet_new(const struct ps_msg *msg,
                                const struct ps_slice *slices,
                                uint32_t slice_count);
struct ps_packet *ps_packet_ref(struct ps_packet *p);
void ps_packet_unref(struct ps_packet *p); /* NULL is fine. */
/* Bytes that the last unref gives back: the parcel, its message, and payload
 * that nobody else references. */
uint64_t ps_packet_memory(const struct ps_packet *p);

/* A compute job with everything it touches kept alive. */
struct ps_compute {
    uint64_t token; /* Comes back in PS_EV_COMPUTED. */
    struct ps_job job;
    const void **src; /* These three lie behind the struct. */
    uint8_t *level;
    struct ps_buf **pinned;
    uint32_t pinned_count;
    void *plan; /* What else the job points to; freed with it. NULL: nothing. */
    void (*plan_free)(void *plan);
};

/* src, level and held are allocated for `src_max` and `held_max`; job.src and
 * job.level point to them. */
struct ps_compute *ps_compute_new(uint64_t token, uint32_t src_max,
                                  uint32_t held_max);
/* Append a source that lies in `slice`; references its buffer. */
void ps_compute_add_src(struct ps_compute *c, const struct ps_slice *slice,
                        uint8_t level);
/* Keep `b` alive until the job is done; references it. */
void ps_compute_pin(struct ps_compute *c, struct ps_buf *b);
void ps_compute_free(struct ps_compute *c);

enum ps_fx_type {
    PS_FX_SEND,    /* Write a parcel to a connection, behind earlier ones. */
    PS_FX_DIAL,    /* Try once to connect; PS_EV_OPEN or PS_EV_DIAL_FAILED. */
    PS_FX_PROBE,   /* As DIAL, and close at once; PS_EV_PROBED follows. */
    PS_FX_CLOSE,   /* Write what is queued, then close; PS_EV_CLOSED follows. */
    PS_FX_COMPUTE, /* Run a job off the loop; PS_EV_COMPUTED follows. */
    PS_FX_OP_DONE, /* An l_done without error to a worker. */
    PS_FX_OP_PROGRESS, /* How far a result is, to a worker; may be left out. */
    PS_FX_LOG,         /* A line for the log, and the story in simulation. */
};

struct ps_fx {
    enum ps_fx_type type;
    union {
        struct {
            ps_conn_id conn;
            uint64_t seq;
            uint64_t ack;
            struct ps_packet *packet;
        } send;
        struct {
            uint64_t target; /* The machine's word for it. */
            ps_time timeout; /* To connect; 0: the driver's. */
            char address[PS_ADDRESS_MAX + 1];
        } dial; /* PROBE, too. */
        struct {
            ps_conn_id conn;
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
            uint64_t bytes_ready; /* From the beginning of the result. */
        } op_progress;
        struct {
            enum ps_log_level level;
            uint64_t kind; /* Of ps_log_of(): the same for one format. */
            char *text;
        } log;
    };
};

struct ps_effects {
    struct ps_fx *items;
    uint32_t count;
    uint32_t capacity;
};

void ps_effects_init(struct ps_effects *fx);
void ps_effects_fini(struct ps_effects *fx); /* Frees what is left in it. */
/* Frees the effects' contents and empties the list. */
void ps_effects_clear(struct ps_effects *fx);

/* Takes over one reference of `parcel`. */
void ps_effects_send(struct ps_effects *fx, ps_conn_id conn, uint64_t seq,
                     uint64_t ack, struct ps_packet *parcel);
/* An unsequenced message without payload. */
void ps_effects_send_msg(struct ps_effects *fx, ps_conn_id conn,
                         const struct ps_msg *msg);
/* The l_done of an operation that has succeeded: there are very many. */
void ps_effects_op_done(struct ps_effects *fx, ps_conn_id conn, uint64_t op_id,
                        uint64_t version);
void ps_effects_op_progress(struct ps_effects *fx, ps_conn_id conn,
                            uint64_t op_id, uint64_t bytes);
/* Makes PS_FX_SEND of each PS_FX_OP_DONE, for drivers that know no other way. */
void ps_effects_op_done_as_msg(struct ps_effects *fx);
void ps_effects_dial(struct ps_effects *fx, uint64_t target,
                     const char *address, ps_time timeout);
/* True: a process listens there. */
void ps_effects_probe(struct ps_effects *fx, uint64_t target,
                      const char *address, ps_time timeout);
void ps_effects_close(struct ps_effects *fx, ps_conn_id conn);
/* Takes over `c`. */
void ps_effects_compute(struct ps_effects *fx, struct ps_compute *c);
/* Whatever it names, the note is one line of visible characters. */
void ps_effects_log(struct ps_effects *fx, enum ps_log_level level,
                    const char *fmt, ...) __attribute__((format(printf, 3, 4)));
