/* SPDX-License-Identifier: Apache-2.0 */
/* Frames to bytes. A queued frame is a small block with its encoded header and
 * the place of its payload; many are written per call. A frame with a descriptor
 * begins a call of its own, so that the descriptor arrives with its first byte. A
 * frame by reference stays in memory until the peer releases it. Knows no
 * sockets: its users are the output of a connection, which writes the bytes that
 * it gathers, and the part for a same-host peer, which adds messages. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "net/checksum.h"
#include "proto/msg_codec.h"

#include <string.h>
#include <unistd.h>

/* Limit on unreleased bytes sent by reference, so that the peer's other
 * connections get served in between. */
#define UNRELEASED_MAX (4u * 1024u * 1024u)

/* Bytes of the payload of a frame by reference. */
static uint64_t referenced_bytes(const struct ps_out_frame *f)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < f->slice_count; i++) {
        sum += f->slices[i].len;
    }
    return sum;
}

static void frame_done(struct ps_frame_writer *w, struct ps_out_frame *f)
{
    ps_list_remove(&f->node);
    w->queued_memory -= f->memory;
    if (f->pass_fd >= 0) {
        close(f->pass_fd);
    }
    if (f->done != NULL) {
        f->done(f->ctx);
    }
    ps_free(f);
}

void ps_frame_writer_init(struct ps_frame_writer *w, uint16_t protocol)
{
    w->protocol = protocol;
    ps_list_init(&w->out);
    ps_list_init(&w->unreleased);
}

void ps_frame_writer_fini(struct ps_frame_writer *w)
{
    struct ps_out_frame *f;

    while ((f = PS_LIST_FIRST(struct ps_out_frame, node, &w->unreleased)) !=
           NULL) {
        frame_done(w, f);
    }
    while ((f = PS_LIST_FIRST(struct ps_out_frame, node, &w->out)) != NULL) {
        frame_done(w, f);
    }
    w->queued = 0;
    w->written = 0;
}

int ps_out_frame_new(const struct ps_frame_writer *w, const struct ps_msg *msg,
                     uint64_t payload_len, size_t extra, void *scratch,
                     struct ps_out_frame **ret_frame)
{
    size_t cap = ps_msg_encoded_bound(msg);
    bool beside = scratch != NULL && cap <= PS_LOOP_SCRATCH;
    struct ps_out_frame *f = beside ? NULL : ps_alloc(sizeof(*f) + cap + extra);
    uint8_t *header = beside ? scratch : f->header;
    size_t len;
    int rc = ps_msg_encode(msg, w->protocol, payload_len, header, cap, &len);

    if (rc != 0) {
        ps_free(f);
        return rc;
    }
    if (beside) {
        f = ps_alloc(sizeof(*f) + len + extra);
        memcpy(f->header, header, len);
    }
    *f = (struct ps_out_frame){
        .header_len = (uint32_t)len,
        .len = len + payload_len,
        .memory = ps_alloc_size(f),
        .pass_fd = -1,
    };
    *ret_frame = f;
    return 0;
}

static int encode_body(const struct ps_msg *msg, uint16_t version,
                       struct ps_msg_body **ret_body)
{
    const size_t cap = ps_msg_encoded_bound(msg);
    struct ps_msg_body *b = ps_alloc(sizeof(*b) + cap);
    int rc = ps_msg_encode_body(msg, version, b, cap);

    if (rc != 0) {
        ps_free(b);
        return rc;
    }
    *ret_body = ps_realloc(b, sizeof(*b) + b->len);
    return 0;
}

int ps_out_frame_new_shared(const struct ps_frame_writer *w,
                            const struct ps_msg *msg, size_t extra,
                            struct ps_msg_body **body,
                            struct ps_out_frame **ret_frame)
{
    struct ps_out_frame *f;
    int rc = *body == NULL ? encode_body(msg, w->protocol, body) : 0;

    if (rc != 0) {
        return rc;
    }
    if ((*body)->version != w->protocol) {
        return ps_out_frame_new(w, msg, 0, extra, NULL, ret_frame);
    }
    f = ps_alloc(sizeof(*f) + PS_MSG_FRONT_MAX + extra);
    *f = (struct ps_out_frame){
        .header_len = (uint32_t)ps_msg_encode_front(msg, *body, f->header),
        .body = *body,
        .memory = ps_alloc_size(f),
        .pass_fd = -1,
    };
    f->len = f->header_len + (*body)->len;
    *ret_frame = f;
    return 0;
}

/* Of a header whose body may lie elsewhere. */
static uint64_t sum_header(const uint8_t prefix[PS_FRAME_PREFIX],
                           const void *header, size_t len,
                           const struct ps_msg_body *body)
{
    const struct iovec front = {(void *)(uintptr_t)prefix, PS_FRAME_PREFIX};
    const struct iovec parts[] = {
        {(void *)(uintptr_t)header, len},
        {body != NULL ? (void *)(uintptr_t)body->bytes : NULL,
         body != NULL ? body->len : 0},
    };

    return ps_checksum(parts, body != NULL ? 2 : 1, ps_checksum(&front, 1, 0));
}

uint64_t ps_frame_header_checksum(const struct ps_frame_prefix *prefix,
                                  const void *header, size_t len)
{
    uint8_t bytes[PS_FRAME_PREFIX];

    ps_frame_build(bytes, prefix);
    return sum_header(bytes, header, len, NULL);
}

void ps_out_frame_add_checksums(struct ps_out_frame *f)
{
    uint8_t *const at = f->header + PS_FRAME_PREFIX;
    const size_t len = f->header_len - PS_FRAME_PREFIX;
    const struct ps_fixed_frame_checksums sums = {
        .header = sum_header(f->header, at, len, f->body),
        .payload = ps_checksum_slices(f->slices, f->slice_count)};

    memmove(at + PS_FIXED_FRAME_CHECKSUMS_BYTES, at, len);
    ps_fixed_put_frame_checksums(at, &sums);
    f->header_len += PS_FIXED_FRAME_CHECKSUMS_BYTES;
    f->len += PS_FIXED_FRAME_CHECKSUMS_BYTES;
}

/* Inserts a frame before the first frame that has not begun; an urgent one drops
 * urgent frames that wait there. */
static void push_ahead(struct ps_frame_writer *w, struct ps_out_frame *f,
                       uint64_t begun)
{
    PS_LIST_EACH_SAFE(struct ps_out_frame, other, node, &w->out)
    {
        if (begun == 0 && f->order == PS_FRAME_URGENT &&
            other->order == PS_FRAME_URGENT) {
            w->queued -= other->len;
            frame_done(w, other);
            continue;
        }
        if (begun == 0 && other->order != PS_FRAME_HANDSHAKE) {
            ps_list_insert(&other->node, &f->node);
            return;
        }
        begun -= ps_min_u64(begun, other->len);
    }
    ps_list_push_back(&w->out, &f->node);
}

void ps_frame_writer_push(struct ps_frame_writer *w, struct ps_out_frame *f,
                          uint64_t in_flight)
{
    w->queued += f->len + (f->by_reference ? referenced_bytes(f) : 0);
    w->queued_memory += f->memory;
    if (f->order >= PS_FRAME_AHEAD) {
        push_ahead(w, f, w->written + in_flight);
    } else {
        ps_list_push_back(&w->out, &f->node);
    }
}

/* Appends the frame from byte `skip` on, as far as `iov` has space after `n`
 * pieces; returns their new number. */
static int add_frame(const struct ps_out_frame *f, uint64_t skip,
                     struct iovec *iov, int n)
{
    if (skip < f->header_len) {
        iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)f->header + skip,
                                  f->header_len - skip};
        skip = 0;
    } else {
        skip -= f->header_len;
    }
    if (f->body != NULL) { /* It has no payload. */
        if (n < PS_FRAME_IOV_MAX) {
            iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)f->body->bytes +
                                          skip,
                                      f->body->len - skip};
        }
        return n;
    }
    if (f->by_reference) {
        return n;
    }
    for (uint32_t i = 0; i < f->slice_count && n < PS_FRAME_IOV_MAX; i++) {
        const struct ps_slice *s = &f->slices[i];

        if (skip >= s->len) {
            skip -= s->len;
            continue;
        }
        iov[n++] = (struct iovec){ps_slice_data(s) + skip, s->len - skip};
        skip = 0;
    }
    return n;
}

void ps_frame_writer_gather(const struct ps_frame_writer *w, uint64_t most,
                            struct ps_frame_batch *ret_batch)
{
    uint64_t skip = w->written;
    uint64_t bytes = 0;
    uint64_t unreleased = w->unreleased_bytes;
    int n = 0;

    ret_batch->pass_fd = -1;
    PS_LIST_EACH_OF(const struct ps_out_frame, f, node, &w->out)
    {
        if (n == PS_FRAME_IOV_MAX || bytes >= most ||
            (n > 0 && f->pass_fd >= 0)) {
            break;
        }
        if (f->by_reference) {
            if (skip == 0 && unreleased >= UNRELEASED_MAX) {
                break;
            }
            unreleased += referenced_bytes(f);
        }
        n = add_frame(f, skip, ret_batch->iov, n);
        skip = 0;
        bytes += f->len;
        if (f->pass_fd >= 0) {
            ret_batch->pass_fd = f->pass_fd;
            break;
        }
    }
    ret_batch->count = n;
    ret_batch->bytes = 0;
    for (int i = 0; i < n; i++) {
        ret_batch->bytes += ret_batch->iov[i].iov_len;
    }
}

void ps_frame_writer_advance(struct ps_frame_writer *w, uint64_t n)
{
    w->queued -= n;
    while (n > 0) {
        struct ps_out_frame *f = PS_LIST_FIRST(struct ps_out_frame, node,
                                               &w->out);
        uint64_t left = f->len - w->written;

        if (f->pass_fd >= 0) {
            close(f->pass_fd); /* Sent with the first byte. */
            f->pass_fd = -1;
        }
        if (n < left) {
            w->written += n;
            return;
        }
        n -= left;
        w->written = 0;
        if (f->by_reference) {
            ps_list_remove(&f->node);
            ps_list_push_back(&w->unreleased, &f->node);
            w->unreleased_bytes += referenced_bytes(f);
        } else {
            frame_done(w, f);
        }
    }
}

bool ps_frame_writer_release(struct ps_frame_writer *w, uint64_t count)
{
    struct ps_out_frame *f;

    while (count > 0 && (f = PS_LIST_FIRST(struct ps_out_frame, node,
                                           &w->unreleased)) != NULL) {
        const uint64_t len = referenced_bytes(f);

        w->queued -= len;
        w->unreleased_bytes -= len;
        frame_done(w, f);
        count--;
    }
    return count == 0;
}
