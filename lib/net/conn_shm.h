/* SPDX-License-Identifier: Apache-2.0 */
/* Part of a connection to a same-host peer (net/shm_peer.h): payloads sent by
 * reference in both directions, the arenas that they lie in, and the messages
 * about both, which the connection's user does not see (rule S9). */
#pragma once

#include "base/err.h"
#include "net/shm_peer.h"
#include "proto/frame.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_arenas;
struct ps_frame_writer;
struct ps_map;
struct ps_out_frame;
struct ps_transport;

/* Capabilities of a peer, as bits. */
enum conn_shm_cap {
    CONN_SHM_KNOWN = 1,        /* The peer has sent its capabilities. */
    CONN_SHM_READS_MEMORY = 2, /* The peer can read this process's memory. */
    CONN_SHM_MAPS_ARENAS = 4,
};

struct conn_shm {
    /* Input. */
    uint32_t process; /* Process whose memory is readable here; 0: none. */
    /* Mapped arenas of the peer; NULL: none so far. */
    struct ps_map *peer_arenas;
    struct ps_fixed_shm_ref refs[PS_FRAME_REFS_MAX];
    /* Referenced payloads copied and not yet reported as released. */
    uint32_t to_release;
    uint64_t to_release_bytes;

    /* Output. */
    uint8_t peer_caps; /* enum conn_shm_cap. */
    struct ps_frame_writer *writer;
    struct ps_arenas *arenas;   /* Arenas that the peer may map; NULL: none. */
    struct ps_map *arenas_sent; /* Numbers of arenas announced to the peer. */
    /* ps_arenas_freed_count() at the last notice of freed arenas. */
    uint64_t arenas_freed_seen;
};

/* `fd` is the socket of the connection that `writer` belongs to. */
struct conn_shm *conn_shm_new(int fd, struct ps_arenas *arenas,
                              struct ps_frame_writer *writer);
/* NULL is allowed. */
void conn_shm_free(struct conn_shm *s);

static inline bool conn_shm_can_refer(const struct conn_shm *s)
{
    return (s->peer_caps & (CONN_SHM_READS_MEMORY | CONN_SHM_MAPS_ARENAS)) != 0;
}

/* Handles a message about shared memory. Its descriptors come from `t`. Errors close the
 * connection, with the reason in *ret_why. */
PS_MUST_USE int conn_shm_accept(struct conn_shm *s, struct ps_transport *t,
                                const struct ps_msg *msg, const char **ret_why);

/* Parses the references after a header, of which there are some. False: one is malformed, or their
 * lengths do not match the payload's. */
bool conn_shm_parse_refs(struct conn_shm *s,
                         const struct ps_frame_prefix *prefix,
                         const uint8_t *at);
/* Copies a payload of `len` bytes that was sent by reference; NULL: nowhere.
 * Errors as ps_shm_read(). */
PS_MUST_USE int conn_shm_read(struct conn_shm *s, int fd, unsigned ref_count,
                              void *dst, uint64_t len);

/* A release is sent at the latest after this many bytes. */
#define CONN_SHM_RELEASE_BYTES (512u * 1024u)

/* True if enough is to release that it is reported before the next frame. */
static inline bool conn_shm_release_due(const struct conn_shm *s)
{
    return s->to_release_bytes >= CONN_SHM_RELEASE_BYTES;
}

/* Queues the report of released payloads; false: there are none. */
bool conn_shm_send_release(struct conn_shm *s);
/* Queues a message with this side's capabilities. */
void conn_shm_send_caps(struct conn_shm *s);
/* Queues notices of freed arenas; true if there was any. */
bool conn_shm_send_freed_arenas(struct conn_shm *s);
/* Replaces the payload of a frame by references to its place, where that is
 * possible. Requires conn_shm_can_refer(). The frame has space for PS_FRAME_REFS_MAX of them. */
void conn_shm_refer(struct conn_shm *s, struct ps_out_frame *f,
                    uint64_t payload_len);
