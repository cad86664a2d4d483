/* SPDX-License-Identifier: Apache-2.0 */
#include "net/conn_shm.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/map.h"
#include "net/arena.h"
#include "net/frame_writer.h"
#include "net/transport.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <fcntl.h>

/* Least payload sent by reference; below it, writing is cheaper. */
#define REF_MIN (8u * 1024u)

struct conn_shm *conn_shm_new(int fd, struct ps_arenas *arenas,
                              struct ps_frame_writer *writer)
{
    struct conn_shm *s = ps_calloc(1, sizeof(*s));

    s->process = ps_shm_peer_process(fd);
    s->arenas = arenas;
    s->writer = writer;
    return s;
}

void conn_shm_free(struct conn_shm *s)
{
    struct ps_map_cursor at = {0};
    struct ps_buf *b;

    if (s == NULL) {
        return;
    }
    while (s->peer_arenas != NULL &&
           (b = ps_map_next(s->peer_arenas, &at)) != NULL) {
        ps_buf_unref(b);
    }
    ps_map_free(s->peer_arenas);
    ps_map_free(s->arenas_sent);
    ps_free(s);
}

/* Input */

/* Maps an arena whose descriptor came with the message. */
static int map_peer_arena(struct conn_shm *s, struct ps_transport *t,
                          uint32_t number, const char **ret_why)
{
    struct ps_buf *buf;

    if (s->peer_arenas == NULL) {
        s->peer_arenas = ps_map_new();
    }
    if (t->fd_count == 0) {
        *ret_why = "arena without a descriptor";
        return PS_E_PROTO;
    }
    if (number == 0 || ps_map_get(s->peer_arenas, number) != NULL ||
        ps_map_count(s->peer_arenas) == PS_SHM_ARENAS_MAX) {
        *ret_why = "arena shown twice, or too many";
        return PS_E_PROTO;
    }
    int rc = ps_shm_map_arena(ps_transport_pop_fd(t), &buf, ret_why);

    if (rc == 0) {
        ps_map_put(s->peer_arenas, number, buf);
    }
    return rc;
}

static int unmap_peer_arena(struct conn_shm *s, uint32_t number,
                            const char **ret_why)
{
    struct ps_buf *b = s->peer_arenas == NULL
                           ? NULL
                           : ps_map_remove(s->peer_arenas, number);

    if (b == NULL) {
        *ret_why = "an end of an arena that was not shown";
        return PS_E_PROTO;
    }
    ps_buf_unref(b);
    return 0;
}

static int accept_caps(struct conn_shm *s, const struct ps_msg_shm_caps *m,
                       const char **ret_why)
{
    if (s->peer_caps != 0) {
        *ret_why = "shm_caps sent twice";
        return PS_E_PROTO;
    }
    s->peer_caps = (uint8_t)(CONN_SHM_KNOWN |
                             (m->reads_memory ? CONN_SHM_READS_MEMORY : 0) |
                             (m->maps_arenas ? CONN_SHM_MAPS_ARENAS : 0));
    return 0;
}

static int accept_release(struct conn_shm *s, uint32_t payloads,
                          const char **ret_why)
{
    if (payloads == 0 || !ps_frame_writer_release(s->writer, payloads)) {
        *ret_why = "receipt for what was not sent";
        return PS_E_PROTO;
    }
    return 0;
}

int conn_shm_accept(struct conn_shm *s, struct ps_transport *t,
                    const struct ps_msg *msg, const char **ret_why)
{
    switch (msg->code) {
    case PS_MSG_SHM_CAPS:
        return accept_caps(s, &msg->shm_caps, ret_why);
    case PS_MSG_SHM_MAP:
        return map_peer_arena(s, t, msg->shm_map.arena, ret_why);
    case PS_MSG_SHM_UNMAP:
        return unmap_peer_arena(s, msg->shm_unmap.arena, ret_why);
    default:
        return accept_release(s, msg->shm_release.payloads, ret_why);
    }
}

bool conn_shm_parse_refs(struct conn_shm *s,
                         const struct ps_frame_prefix *prefix,
                         const uint8_t *at)
{
    uint64_t left = prefix->payload_len;
    bool ok = true;

    for (unsigned i = 0; ok && i < prefix->ref_count; i++) {
        ok = ps_fixed_get_shm_ref(at, &s->refs[i]) && s->refs[i].len <= left;
        left -= ok ? s->refs[i].len : 0;
        at += PS_FIXED_SHM_REF_BYTES;
    }
    return ok && left == 0;
}

int conn_shm_read(struct conn_shm *s, int fd, unsigned ref_count, void *dst,
                  uint64_t len)
{
    const struct ps_shm_peer peer = {
        .fd = fd, .process = s->process, .arenas = s->peer_arenas};
    int rc = dst == NULL ? 0 : ps_shm_read(&peer, s->refs, ref_count, dst);

    if (rc == 0) {
        s->to_release++;
        s->to_release_bytes += len;
    }
    return rc;
}

/* Output */

/* Queues a message of the connection itself. Takes over the descriptor. */
static void send_shm_msg(struct conn_shm *s, const struct ps_msg *msg, int fd)
{
    struct ps_out_frame *f;
    int rc = ps_out_frame_new(s->writer, msg, 0, 0, NULL, &f);

    assert(rc == 0); /* Only integers, within their bound. */
    (void)rc;
    f->pass_fd = fd;
    ps_frame_writer_push(s->writer, f, 0);
}

bool conn_shm_send_release(struct conn_shm *s)
{
    if (s->to_release == 0) {
        return false;
    }
    send_shm_msg(s,
                 &(struct ps_msg){.code = PS_MSG_SHM_RELEASE,
                                  .shm_release = {.payloads = s->to_release}},
                 -1);
    s->to_release = 0;
    s->to_release_bytes = 0;
    return true;
}

void conn_shm_send_caps(struct conn_shm *s)
{
    send_shm_msg(s,
                 &(struct ps_msg){.code = PS_MSG_SHM_CAPS,
                                  .shm_caps = {.reads_memory = s->process != 0,
                                               .maps_arenas = true}},
                 -1);
}

bool conn_shm_send_freed_arenas(struct conn_shm *s)
{
    struct ps_map_cursor at = {0};
    bool any = false;
    void *number;

    if (s->arenas_sent == NULL ||
        s->arenas_freed_seen == ps_arenas_freed_count(s->arenas)) {
        return false;
    }
    s->arenas_freed_seen = ps_arenas_freed_count(s->arenas);
    while ((number = ps_map_next(s->arenas_sent, &at)) != NULL) {
        const uint32_t arena = (uint32_t)(uintptr_t)number;
        uint64_t size;
        int fd;

        if (ps_arenas_fd(s->arenas, arena, &fd, &size) != 0) {
            (void)ps_map_remove(s->arenas_sent, arena);
            send_shm_msg(s,
                         &(struct ps_msg){.code = PS_MSG_SHM_UNMAP,
                                          .shm_unmap = {.arena = arena}},
                         -1);
            any = true;
        }
    }
    return any;
}

/* Announces an arena to the peer. False: impossible now. */
static bool send_arena(struct conn_shm *s, uint32_t arena)
{
    uint64_t size;
    int fd;

    if (s->arenas_sent != NULL && ps_map_get(s->arenas_sent, arena) != NULL) {
        return true;
    }
    if (s->arenas_sent == NULL) {
        s->arenas_sent = ps_map_new();
        s->arenas_freed_seen = ps_arenas_freed_count(s->arenas);
    }
    if (ps_map_count(s->arenas_sent) == PS_SHM_ARENAS_MAX) {
        (void)conn_shm_send_freed_arenas(s);
    }
    if (ps_map_count(s->arenas_sent) == PS_SHM_ARENAS_MAX ||
        ps_arenas_fd(s->arenas, arena, &fd, &size) != 0) {
        return false;
    }
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return false; /* Out of descriptors: the payload is sent otherwise. */
    }
    send_shm_msg(
        s,
        &(struct ps_msg){.code = PS_MSG_SHM_MAP, .shm_map = {.arena = arena}},
        fd);
    ps_map_put(s->arenas_sent, arena, (void *)(uintptr_t)arena);
    return true;
}

static bool can_refer(struct conn_shm *s, const struct ps_out_frame *f,
                      uint64_t payload_len)
{
    if (payload_len < REF_MIN || f->slice_count > PS_FRAME_REFS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const struct ps_slice *slice = &f->slices[i];

        if (slice->len == 0) {
            return false;
        }
        if ((s->peer_caps & CONN_SHM_MAPS_ARENAS) != 0 && s->arenas != NULL &&
            slice->buf->tag != 0) {
            if (!send_arena(s, slice->buf->tag)) {
                return false;
            }
        } else if ((s->peer_caps & CONN_SHM_READS_MEMORY) == 0) {
            return false;
        }
    }
    return true;
}

void conn_shm_refer(struct conn_shm *s, struct ps_out_frame *f,
                    uint64_t payload_len)
{
    uint8_t *at = f->header + f->header_len;

    if (!can_refer(s, f, payload_len)) {
        return;
    }
    ps_frame_set_ref_count(f->header, (uint8_t)f->slice_count);
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const struct ps_slice *p = &f->slices[i];
        const uint32_t arena = (s->peer_caps & CONN_SHM_MAPS_ARENAS) != 0
                                   ? p->buf->tag
                                   : 0;

        ps_fixed_put_shm_ref(at, &(struct ps_fixed_shm_ref){
                                     .place = arena != 0
                                                  ? p->buf->offset + p->offset
                                                  : (uintptr_t)ps_slice_data(p),
                                     .len = (uint32_t)p->len,
                                     .arena = arena});
        at += PS_FIXED_SHM_REF_BYTES;
    }
    f->header_len += f->slice_count * PS_FIXED_SHM_REF_BYTES;
    f->len = f->header_len;
    f->by_reference = true;
}
