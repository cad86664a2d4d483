/* SPDX-License-Identifier: Apache-2.0 */
/* Identities that certificates prove, and facts that daemons state. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/time.h"
#include "base/trace.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_effects;

/* -------------------------------------------------------------- identities */

/* Identity of a peer that its certificate proves. Role, cluster and name of a
 * daemon come from there alone: a hello that claims another is refused. */

struct ps_peer_identity {
    uint8_t role; /* enum ps_role; 0: the peer has no certificate. */
    char cluster[PS_NAME_MAX + 1];
    char name[PS_NAME_MAX + 1]; /* Of a tool: its operator's. */
};

/* End of the own certificate, which heartbeats report. */
struct ps_certificate_end {
    uint64_t at; /* Seconds since 1970; 0: there is no certificate. */
    bool is_expiring;
};

/* Frames of one peer that were refused because they are about what is not the
 * peer's own (rule A2). */
struct ps_misuse {
    uint64_t frames;  /* All of them. */
    uint32_t of_link; /* Since its connection was last closed for them. */
    ps_time noted_at; /* Last line in the log; 0: none. */
    ps_time closing_noted_at;
};

/* Counts a refused frame. Logs a warning, "WHO WHAT", for each peer at most once
 * a minute. Returns true if the connection has brought PS_MISUSE_MAX of them:
 * the caller closes it. That is logged as often at most, and counts from 0
 * again. */
PS_MUST_USE bool ps_misuse_add(struct ps_misuse *u, ps_time now,
                               struct ps_effects *fx, const char *who,
                               const char *what);
/* Adds a peer to a list of those with the most refused frames. */
void ps_misuse_list(const struct ps_misuse *u, uint32_t node,
                    struct ps_rec_refusals list[PS_REFUSALS_SHOWN_MAX],
                    uint32_t *count);
/* Stores the identity of an event, NULL: none. */
void ps_peer_identity_set(struct ps_peer_identity *id,
                          const struct ps_peer_identity *from);
static inline bool ps_peer_has_certificate(const struct ps_peer_identity *id)
{
    return id->role != 0;
}

/* True if both certificates name the same peer, or neither peer has one. */
bool ps_peer_is_same(const struct ps_peer_identity *a,
                     const struct ps_peer_identity *b);
/* True if a certificate is of `cluster`, and of one of `roles` (bits 1 << role);
 * else `why` names the difference. */
bool ps_peer_check_role(const struct ps_peer_identity *id, const char *cluster,
                        uint32_t roles, struct ps_str *why);
/* True if the peer that was dialled as `name` has a certificate of that name,
 * or none (NULL). */
bool ps_peer_check_name(const struct ps_peer_identity *id, const char *name,
                        struct ps_str *why);
/* True if a hello claims what the certificate proves, or there is none; else
 * `why` names both. `cluster` is that of this daemon. */
bool ps_peer_check_hello(const struct ps_peer_identity *id, const char *cluster,
                         const struct ps_msg_hello *m, struct ps_str *why);

/* ------------------------------------------------------------------- facts */

/* Facts of a daemon's process and host, which a member reports when it
 * registers, so that operators see them in one place. */

#define PS_VERSION_MAX  32u
#define PS_GPU_NAME_MAX 128u

/* The GPU on which a daemon computes. The daemon keeps the figures up to date
 * while a machine reads them. */
struct ps_gpu {
    char name[PS_GPU_NAME_MAX + 1]; /* "": there is none. */
    uint64_t memory;                /* Bytes of its memory; */
    uint64_t memory_held;           /* of them, allocated by the daemon. */
    uint64_t bytes_up;              /* Copied to it, */
    uint64_t bytes_down;            /* and from it. */
};

struct ps_facts {
    char version[PS_VERSION_MAX + 1]; /* Of the program; "": not stated. */
    uint64_t descriptors;             /* Limit of the process; 0: not stated. */
    /* Nanoseconds since 1970 at time 0 of the machine's clock; 0: not
     * stated. */
    uint64_t wall_zero_ns;
    bool avoids_shm; /* Connects by TCP even within its host. */
    bool ktls;       /* The kernel protects the records of its connections. */
    const struct ps_gpu *gpu; /* Not owned; NULL: not stated. */
};

/* Wall clock at the time `now`; 0: not known. */
static inline uint64_t ps_facts_wall_ns(const struct ps_facts *f, ps_time now)
{
    return f->wall_zero_ns != 0 ? f->wall_zero_ns + now : 0;
}

static inline void ps_facts_fill_hello(const struct ps_facts *f, ps_time now,
                                       struct ps_msg_hello *hello)
{
    hello->version = f->version;
    hello->descriptors = f->descriptors;
    hello->wall_ns = ps_facts_wall_ns(f, now);
    hello->avoids_shm = f->avoids_shm;
    hello->ktls = f->ktls;
    hello->gpu = f->gpu != NULL ? f->gpu->name : "";
    hello->gpu_memory = f->gpu != NULL ? f->gpu->memory : 0;
}

static inline void ps_facts_fill_ping(const struct ps_facts *f,
                                      struct ps_msg_ping *ping)
{
    if (f->gpu != NULL) {
        ping->gpu_held = f->gpu->memory_held;
        ping->gpu_up = f->gpu->bytes_up;
        ping->gpu_down = f->gpu->bytes_down;
    }
}

/* ------------------------------------------------------------------ traces */

/* Entries of a trace ring, as the answer to trace_get. */

/* Fills `ret` with entries of job `m->gen` from number `m->first` on, of one
 * recording or, if 0, of all and of none. `list` has room for PS_TRACE_READ_MAX.
 * `t` NULL: there are none. */
void ps_trace_read(const struct ps_trace *t, const struct ps_msg_trace_get *m,
                   uint16_t recording, ps_time now,
                   struct ps_rec_trace_entry *list,
                   struct ps_msg_trace_entries *ret);
